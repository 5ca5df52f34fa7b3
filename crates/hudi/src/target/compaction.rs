// SPDX-License-Identifier: Apache-2.0
//! Compacting a merge-on-read table: each slice that has log files becomes one new base file.
//!
//! Order: heartbeat, the stored plan, inflight; then, slice by slice, a marker and the base file; the metadata table's
//! delta; the completed commit. Nobody reads a base file whose compaction did not complete, and logs that are written
//! later come on top of it, so an interrupted compaction is rolled back like any other dead instant.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use futures::StreamExt;
use hudi_core::metadata::compaction::{CompactionOperation, CompactionPlan};
use tributary_types::{InstantTime, MemoryBudget};

use super::clean::OWNER_KEY;
use super::{FileChange, MarkerKind, Owner, write_delta, write_heartbeat, write_marker};
use crate::avro::META_COLUMNS;
use crate::base_file::{BaseFileWriter, base_file_name};
use crate::commit::{CommitMetadata, WriteStat};
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::listing::has_file_listing;
use crate::log_blocks::Torn;
use crate::merge_rules::MergeRules;
use crate::merged_scan::{LogScan, open_slice};
use crate::scan::FileScan;
use crate::slices::{FileSlice, current_file_slices};
use crate::storage::{PutNew, Storage};
use crate::timeline::{Action, Timeline, completed_path, inflight_path, requested_path};

/// Rows of a record batch on its way into a base file.
const BATCH_ROWS: usize = 8192;

/// Deltacommits of a merge-on-read table since its newest compaction was requested.
pub fn delta_commits_since_compaction(timeline: &Timeline) -> usize {
    let completed = || timeline.instants().iter().filter(|instant| !instant.is_pending());
    let latest = completed().filter(|instant| instant.action == Action::Commit).map(|instant| &instant.requested).max();
    let deltas = completed().filter(|instant| instant.action == Action::DeltaCommit);
    deltas.filter(|instant| latest.is_none_or(|latest| &instant.requested > latest)).count()
}

/// The slices that have log files.
pub async fn find_compactable(storage: &Storage, config: &TableConfig, timeline: &Timeline) -> Result<Vec<FileSlice>> {
    let mut slices = current_file_slices(storage, config, timeline).await?;
    slices.retain(|slice| !slice.logs.is_empty());
    Ok(slices)
}

/// Stores the plan of a compaction and begins it. `instant` lies above every time of the timeline; the caller holds the
/// table's lock and saw that nothing is pending.
pub async fn begin_compaction(
    storage: &Storage,
    timeline_dir: &str,
    instant: &InstantTime,
    slices: &[FileSlice],
    owner: &Owner,
) -> Result<()> {
    write_heartbeat(storage, instant, owner).await?;
    let plan = plan_of(slices, owner)?.to_avro_bytes().map_err(|e| Error::corrupt("compaction plan", e))?;
    let requested = requested_path(timeline_dir, instant, Action::Compaction);
    if storage.put_new(&requested, plan).await? == PutNew::Exists {
        return Err(Error::Conflict { what: format!("`{requested}` exists: another writer took the same instant") });
    }
    storage.put(&inflight_path(timeline_dir, instant, Action::Compaction), Vec::new()).await
}

/// Who stored the plan of a pending compaction; `None` for another writer's.
pub(super) async fn plan_owner(storage: &Storage, timeline_dir: &str, instant: &InstantTime) -> Result<Option<Owner>> {
    let stored = storage.get(&requested_path(timeline_dir, instant, Action::Compaction)).await?;
    // What another writer wrote may be anything; ours always decodes.
    let plan = stored.and_then(|bytes| CompactionPlan::from_avro_bytes(&bytes).ok());
    let owner = plan.and_then(|plan| plan.extra_metadata?.remove(OWNER_KEY));
    Ok(owner.and_then(|owner| serde_json::from_str(&owner).ok()))
}

fn plan_of(slices: &[FileSlice], owner: &Owner) -> Result<CompactionPlan> {
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_string();
    let operation = |slice: &FileSlice| {
        let first_log = slice.logs.first().map(|log| &log.instant);
        let logs_bytes = slice.logs.iter().map(|log| log.bytes).sum::<u64>();
        CompactionOperation {
            base_instant_time: slice.base.as_ref().map(|base| &base.instant).or(first_log).map(ToString::to_string),
            delta_file_paths: Some(slice.logs.iter().map(|log| name(&log.path)).collect()),
            data_file_path: slice.base.as_ref().map(|base| name(&base.path)),
            file_id: Some(slice.group.1.clone()),
            partition_path: Some(slice.group.0.clone()),
            metrics: Some(HashMap::from([
                ("TOTAL_LOG_FILES".to_string(), slice.logs.len() as f64),
                ("TOTAL_LOG_FILES_SIZE".to_string(), logs_bytes as f64),
            ])),
            bootstrap_file_path: None,
        }
    };
    let owner = serde_json::to_string(owner).map_err(|e| Error::corrupt("compaction plan", e))?;
    Ok(CompactionPlan {
        operations: Some(slices.iter().map(operation).collect()),
        extra_metadata: Some(HashMap::from([(OWNER_KEY.to_string(), owner)])),
        version: Some(CompactionPlan::LATEST_VERSION),
        strategy: None,
        preserve_hoodie_metadata: Some(true),
        missing_schedule_partitions: Some(Vec::new()),
    })
}

/// What every slice of one compaction shares.
pub struct Compaction<'a> {
    /// The table.
    pub storage: &'a Storage,
    /// What it says of itself.
    pub config: &'a TableConfig,
    /// The compaction's instant.
    pub instant: &'a InstantTime,
    /// The table's schema with meta columns.
    pub schema: SchemaRef,
    /// What counts the logs of a slice and the file that is written.
    pub memory: &'a MemoryBudget,
}

impl Compaction<'_> {
    /// Makes the new base file of a slice. Rows keep the commit times that they have, so that what changed can still be
    /// told; `task` is part of the file's name.
    pub async fn compact(&self, slice: &FileSlice, task: usize) -> Result<WriteStat> {
        let (partition, file_id) = &slice.group;
        let name = base_file_name(file_id, task, 0, self.instant);
        let path = if partition.is_empty() { name.clone() } else { format!("{partition}/{name}") };
        let kind = if slice.base.is_some() { MarkerKind::Merge } else { MarkerKind::Create };
        write_marker(self.storage, self.instant, &path, kind).await?;
        let mut rows = open_slice(self.storage, self.scan(slice), self.logs(slice)?).await?;
        let mut file = BaseFileWriter::create(self.storage, &path, Arc::clone(&self.schema))?;
        let mut held = self.memory.reservation("a file being written by a compaction");
        while let Some(batch) = rows.next().await {
            file.write(&renamed(&path, &name, &batch?)?).await?;
            // What the encoder holds cannot be refused any more; it is counted.
            let now = file.buffered_bytes();
            if now > held.held() {
                held.grow(now - held.held());
            } else {
                held.shrink(held.held() - now);
            }
        }
        let (bytes, rows) = file.close().await?;
        Ok(WriteStat {
            partition: partition.clone(),
            file_id: file_id.clone(),
            path,
            previous: slice.base.as_ref().map(|base| base.instant.to_string()),
            previous_base: slice.base.as_ref().map(|base| file_name(&base.path).to_string()),
            rows: rows as i64,
            bytes: bytes as i64,
            ..WriteStat::default()
        })
    }

    fn scan(&self, slice: &FileSlice) -> FileScan {
        let base = slice.base.as_ref();
        FileScan {
            path: base.map(|base| base.path.clone()).unwrap_or_default(),
            bytes: base.map_or(0, |base| base.bytes),
            schema: Arc::clone(&self.schema),
            projection: None,
            // Tables that leave partition columns out of their files are refused as targets.
            constants: BTreeMap::new(),
            instants: None,
            all_but: false,
            prune: None,
            batch_rows: BATCH_ROWS,
            memory: self.memory.clone(),
        }
    }

    fn logs(&self, slice: &FileSlice) -> Result<LogScan> {
        Ok(LogScan {
            group: format!("{}/{}", slice.group.0, slice.group.1).trim_start_matches('/').to_string(),
            files: slice.logs.iter().map(|log| log.path.clone()).collect(),
            counted: None,
            torn: Torn::Refused,
            rules: MergeRules::of(self.config)?,
        })
    }

    /// Completes the compaction: the metadata table's delta, then the commit, after which readers see the new base
    /// files. `delta_completed` and `completed` are fresh instants, in that order; `schema` is that of the table's newest
    /// commit, as Avro.
    pub async fn complete(
        &self,
        stats: Vec<WriteStat>,
        schema: String,
        delta_completed: &InstantTime,
        completed: &InstantTime,
    ) -> Result<()> {
        if has_file_listing(self.config) {
            let changes: Vec<FileChange> = stats.iter().map(added).collect();
            write_delta(self.storage, self.instant, delta_completed, &changes).await?;
        }
        let metadata = CommitMetadata {
            operation: "COMPACT".to_string(),
            compacted: true,
            stats,
            extra: BTreeMap::from([("schema".to_string(), schema)]),
            ..CommitMetadata::default()
        };
        let path = completed_path(&self.config.timeline_dir(), self.instant, completed, Action::Commit);
        self.storage.put_new(&path, metadata.encode()?).await.map(drop)
    }
}

fn added(stat: &WriteStat) -> FileChange {
    FileChange {
        partition: stat.partition.clone(),
        name: file_name(&stat.path).to_string(),
        bytes: u64::try_from(stat.bytes).unwrap_or(0),
        deleted: false,
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Rows under the name of the file that they go into.
fn renamed(path: &str, name: &str, batch: &RecordBatch) -> Result<RecordBatch> {
    let mut columns = batch.columns().to_vec();
    let names = StringArray::from_iter_values(std::iter::repeat_n(name, batch.num_rows()));
    columns[META_COLUMNS.len() - 1] = Arc::new(names) as ArrayRef;
    RecordBatch::try_new(batch.schema(), columns).map_err(|e| Error::corrupt(path, e))
}

#[cfg(test)]
mod tests;
