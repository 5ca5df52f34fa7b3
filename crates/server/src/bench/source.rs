// SPDX-License-Identifier: Apache-2.0
//! Tables made commit by commit through the writer role, for benchmarks and tests.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use tributary_api::timeline::InstantFact;
use tributary_api::writer::{FileSizes, KeySettings, StageRequest, TargetSlice, Writer};
use tributary_api::{RowError, RowStream, Stop};
use tributary_coordinator::{file_changes, target_slices, write_stats};
use tributary_hudi::target::{
    NewTable, Owner, begin_instant, complete_instant, create_table, mint_instant, write_delta,
};
use tributary_hudi::{
    Action, CommitMetadata, Storage, Stores, TableConfig, Timeline, avro_schema, current_file_slices,
};
use tributary_types::pipeline::{OnNullKey, Operation, TableType};
use tributary_types::{Clock, InstantTime, MemoryBudget, PipelineName, Zone};

/// An error of making a table: for benchmarks and tests, which only report it.
pub type BuildError = Box<dyn std::error::Error + Send + Sync>;

/// A table that is written by this process alone.
pub struct SourceTable {
    storage: Storage,
    writer: Arc<dyn Writer>,
    clock: Arc<dyn Clock>,
    schema: SchemaRef,
    table: NewTable,
}

impl SourceTable {
    /// Makes a copy-on-write table of version 9 at `url`, keyed by `record_key`.
    pub async fn create(
        stores: &dyn Stores,
        writer: Arc<dyn Writer>,
        clock: Arc<dyn Clock>,
        url: &str,
        record_key: &str,
        schema: SchemaRef,
    ) -> Result<Self, BuildError> {
        let name = url.rsplit('/').next().unwrap_or("table").to_string();
        let table = NewTable {
            name,
            table_type: TableType::CopyOnWrite,
            version: 9,
            record_key: vec![record_key.to_string()],
            partition_by: Vec::new(),
            ordering: Vec::new(),
            hive_style: true,
            url_encode: false,
        };
        let storage = stores.open(url)?;
        let now = InstantTime::from_epoch_millis(clock.now_millis(), Zone::Utc);
        create_table(&storage, &table, &now).await?;
        Ok(SourceTable { storage, writer, clock, schema, table })
    }

    /// Opens a table that [`SourceTable::create`] or a pipeline made, to write it beside whoever else does.
    pub async fn open(
        stores: &dyn Stores,
        writer: Arc<dyn Writer>,
        clock: Arc<dyn Clock>,
        url: &str,
        schema: SchemaRef,
    ) -> Result<Self, BuildError> {
        let storage = stores.open(url)?;
        let config = TableConfig::load(&storage).await?;
        let table = NewTable {
            name: config.name.clone(),
            table_type: config.table_type,
            version: config.version,
            record_key: config.record_key(),
            partition_by: config.partition_by(),
            ordering: config.ordering(),
            hive_style: config.hive_style(),
            url_encode: config.url_encode(),
        };
        Ok(SourceTable { storage, writer, clock, schema, table })
    }

    /// Upserts rows in one commit.
    pub async fn upsert(&self, rows: Vec<RecordBatch>) -> Result<InstantFact, BuildError> {
        self.commit(rows, Operation::Upsert).await
    }

    /// Writes rows in one commit.
    pub async fn commit(&self, rows: Vec<RecordBatch>, operation: Operation) -> Result<InstantFact, BuildError> {
        let config = TableConfig::load(&self.storage).await?;
        let directory = config.timeline_dir();
        let timeline = Timeline::load(&self.storage, &config).await?;
        let instant = mint_instant(self.clock.now_millis(), config.zone, timeline.latest_time());
        let owner = Owner { pipeline: PipelineName::new("source")?, epoch: 1, process: String::new() };
        let action = match config.table_type {
            TableType::CopyOnWrite => Action::Commit,
            TableType::MergeOnRead => Action::DeltaCommit,
        };
        begin_instant(&self.storage, &directory, &instant, action, operation.as_str(), &owner).await?;
        let slices = target_slices(current_file_slices(&self.storage, &config, &timeline).await?);
        let request = self.stage_request(&instant, operation, slices);
        let stream: RowStream = futures::stream::iter(rows.into_iter().map(Ok::<_, RowError>)).boxed();
        let staged = self.writer.stage(request, stream).await?;
        let delta = instant.successor();
        write_delta(&self.storage, &instant, &delta, &file_changes(&staged.files)).await?;
        let mut metadata = CommitMetadata { operation: operation.as_str().to_string(), ..CommitMetadata::default() };
        metadata.extra.insert("schema".to_string(), avro_schema(&self.table.name, &self.schema)?);
        metadata.stats = write_stats(&staged.files);
        let completed = mint_instant(self.clock.now_millis(), config.zone, Some(&delta));
        complete_instant(&self.storage, &directory, &instant, &completed, action, metadata.encode()?).await?;
        Ok(InstantFact { requested: instant, completed, action: action.as_str().to_string() })
    }

    fn stage_request(&self, instant: &InstantTime, operation: Operation, slices: Vec<TargetSlice>) -> StageRequest {
        StageRequest {
            url: self.storage.url().to_string(),
            table_name: self.table.name.clone(),
            table_type: self.table.table_type,
            instant: instant.clone(),
            attempt: 0,
            schema: Arc::clone(&self.schema),
            table_schema: Arc::clone(&self.schema),
            operation,
            keys: KeySettings {
                record_key: self.table.record_key.clone(),
                partition_by: self.table.partition_by.clone(),
                complex: false,
                hive_style: self.table.hive_style,
                url_encode: self.table.url_encode,
            },
            ordering: self.table.ordering.clone(),
            merge: None,
            deletes_give_way: false,
            on_null_key: OnNullKey::Fail,
            files: FileSizes { small: 0, largest: 120 << 20 },
            slices: Arc::new(slices),
            budget: MemoryBudget::new(2 << 30),
            share: None,
            spill_bytes: 20 << 30,
            stop: Stop::default(),
        }
    }
}
