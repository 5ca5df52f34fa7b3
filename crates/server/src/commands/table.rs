// SPDX-License-Identifier: Apache-2.0
//! `tributary table`: looking at a table.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::StreamExt;
use tributary_api::timeline::{self, PlanRequest, ReadRequest, Relation};
use tributary_hudi::{CommitMetadata, Stores, TableConfig, Timeline};
use tributary_types::{MemoryBudget, SourceName};

use crate::cli::{Output, TableCommand};
use crate::commands::{Failed, roles};
use crate::embedded::Embedded;
use crate::output::{self, CommitLine, TableReport};
use crate::pipeline_file::without_parents;

/// Bytes that merging the log files of one file group may take.
const READ_MEMORY: usize = 1 << 30;

/// Runs the command; answers the exit code.
pub async fn table(command: TableCommand, stores: Arc<dyn Stores>) -> Result<u8, Failed> {
    match command {
        TableCommand::Inspect { table, output } => inspect(&without_parents(&table), stores.as_ref(), output).await,
        TableCommand::Read { table, columns, limit, meta_columns, output } => {
            let roles = roles(None, stores)?;
            let relation = whole_table(&roles, &without_parents(&table), meta_columns).await?;
            let rows = collect(&roles, &relation, projection(&relation, &columns)?, limit).await?;
            output::print_rows(&rows, output).map_err(|e| Failed::new(&e, 1))?;
            Ok(0)
        }
    }
}

async fn inspect(url: &str, stores: &dyn Stores, output: Output) -> Result<u8, Failed> {
    let fail = |error: tributary_hudi::Error| match error.into_store_failure() {
        Ok((doing, source)) => Failed::new(&timeline::Error::Store { url: url.to_string(), doing, source }, 1),
        Err(error) => Failed::new(&error, 1),
    };
    let storage = stores.open(url).map_err(fail)?;
    let config = TableConfig::load(&storage).await.map_err(fail)?;
    let timeline = Timeline::load(&storage, &config).await.map_err(fail)?;
    let mut commits = Vec::new();
    for instant in timeline.completed_writes() {
        let Some(path) = timeline.completed_path(instant) else { continue };
        let bytes = storage.read(&path).await.map_err(fail)?;
        let metadata = CommitMetadata::decode(&path, &bytes).map_err(fail)?;
        commits.push(CommitLine::new(timeline.layout(), instant, &metadata));
    }
    let pending = timeline.instants().iter().filter(|instant| instant.is_pending());
    let report = TableReport {
        url: url.to_string(),
        name: config.name.clone(),
        version: config.version,
        table_type: config.table_type.as_str().to_string(),
        record_key: config.record_key(),
        partition_by: config.partition_by(),
        ordering: config.ordering(),
        metadata_partitions: config.metadata_partitions(),
        pending: pending.map(|instant| format!("{} {}", instant.requested, instant.action.as_str())).collect(),
        commits,
    };
    output::print_table(&report, output);
    Ok(0)
}

async fn whole_table(roles: &Embedded, url: &str, meta_columns: bool) -> Result<Relation, Failed> {
    // Messages name the source, and there is nothing to name here but the path.
    let source = SourceName::new(url).or_else(|_| SourceName::new("table")).map_err(|e| Failed::new(&e, 2))?;
    let request = PlanRequest { meta_columns, ..PlanRequest::whole_table(source, url) };
    let plan = roles.timeline.plan(request).await.map_err(|error| match error {
        timeline::Error::NoTable { url, .. } => Failed::new(&tributary_hudi::Error::NoTable { url }, 1),
        error => Failed::new(&error, 1),
    })?;
    plan.at_end.ok_or_else(|| Failed { message: format!("`{url}` has no rows yet"), exit_code: 1 })
}

fn projection(relation: &Relation, columns: &[String]) -> Result<Option<Vec<usize>>, Failed> {
    if columns.is_empty() {
        return Ok(None);
    }
    let find = |name: &String| {
        relation.schema.index_of(name).map_err(|_| {
            let names: Vec<&str> = relation.schema.fields().iter().map(|field| field.name().as_str()).collect();
            Failed { message: format!("there is no column `{name}`; there are: {}", names.join(", ")), exit_code: 2 }
        })
    };
    columns.iter().map(find).collect::<Result<Vec<_>, _>>().map(Some)
}

async fn collect(
    roles: &Embedded,
    relation: &Relation,
    projection: Option<Vec<usize>>,
    limit: usize,
) -> Result<Vec<RecordBatch>, Failed> {
    let mut found = Vec::new();
    let mut left = limit;
    let memory = MemoryBudget::new(READ_MEMORY);
    for split in &relation.splits {
        let request = ReadRequest {
            split: split.clone(),
            schema: relation.schema.clone(),
            projection: projection.clone(),
            predicate: None,
            batch_rows: limit.clamp(1, 8192),
            memory: memory.clone(),
        };
        let mut rows = roles.timeline.read(request).await.map_err(|e| Failed::new(&e, 1))?;
        while left > 0 {
            let Some(batch) = rows.next().await else { break };
            let batch = batch.map_err(|e| Failed::new(&e, 1))?;
            let taken = batch.slice(0, batch.num_rows().min(left));
            left -= taken.num_rows();
            found.push(taken);
        }
        if left == 0 {
            break;
        }
    }
    Ok(found)
}
