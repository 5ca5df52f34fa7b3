// SPDX-License-Identifier: Apache-2.0
//! Removing file versions that no reader needs any more, as an instant of its own.
//!
//! Order: the stored plan, inflight, the files, the metadata table's delta, the completed clean. Every step may be
//! repeated, so whoever comes after an interruption finishes it from the stored plan.

use std::collections::{BTreeMap, HashMap};

use futures::{StreamExt, TryStreamExt};
use tributary_types::InstantTime;

use super::clean_records::{
    ActionInstant, FileRecord, MetadataRecord, POLICY, PartitionRecord, PlanRecord, RECORD_VERSION,
};
use super::retain::{CleanFacts, CleanPlan, plan_clean};
use super::{FileChange, write_indexed_delta};
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::listing::{has_file_listing, list_files};
use crate::slices::{GroupKey, completed_replacements, completions_for, read_metadata, replaced_groups};
use crate::storage::{REQUESTS_AT_ONCE, Storage};
use crate::timeline::{Action, Timeline, completed_path, inflight_path, requested_path};

/// Under which key of a plan its owner stands: a plan without it is another writer's.
pub(super) const OWNER_KEY: &str = "tributary.owner";

/// A finished clean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleaned {
    /// Its instant.
    pub instant: InstantTime,
    /// Files that its plan named.
    pub files: usize,
}

/// Reads what a clean is planned from and plans it; `None` when there is nothing to delete. Readers of the last
/// `keep` commits find everything.
pub async fn find_cleanable(
    storage: &Storage,
    config: &TableConfig,
    timeline: &Timeline,
    keep: usize,
) -> Result<Option<CleanPlan>> {
    if timeline.completed_writes().len() <= keep {
        return Ok(None);
    }
    let files = list_files(storage, config, timeline).await?;
    let completions = completions_for(storage, config, timeline, &files).await?;
    let replaced = replacement_times(storage, timeline).await?;
    let facts = CleanFacts {
        timeline,
        files: &files.bases,
        logs: &files.logs,
        completions: &completions,
        replaced: &replaced,
        keep,
    };
    Ok(plan_clean(&facts))
}

/// When each group that a replacecommit of the active timeline replaced was replaced first.
pub(super) async fn replacement_times(
    storage: &Storage,
    timeline: &Timeline,
) -> Result<HashMap<GroupKey, InstantTime>> {
    let replacements = completed_replacements(timeline, None);
    let mut replaced = HashMap::new();
    for (instant, metadata) in replacements.iter().zip(read_metadata(storage, timeline, &replacements).await?) {
        let Some(completed) = &instant.completed else { continue };
        for group in replaced_groups(&metadata) {
            replaced.entry(group).or_insert_with(|| completed.clone());
        }
    }
    Ok(replaced)
}

/// Stores the plan of a clean, after which it will be finished. `owner` names the process, for whoever looks.
pub async fn request_clean(
    storage: &Storage,
    timeline_dir: &str,
    instant: &InstantTime,
    plan: &CleanPlan,
    owner: &str,
) -> Result<()> {
    let mut paths: BTreeMap<String, Vec<FileRecord>> = BTreeMap::new();
    let bases = plan.files.iter().map(|file| (&file.partition, &file.path));
    for (partition, path) in bases.chain(plan.logs.iter().map(|log| (&log.partition, &log.path))) {
        paths.entry(partition.clone()).or_default().push(FileRecord {
            file_path: Some(format!("{}/{path}", storage.url())),
            is_bootstrap_base_file: Some(false),
        });
    }
    let record = PlanRecord {
        earliest_instant_to_retain: Some(ActionInstant {
            timestamp: plan.earliest.0.to_string(),
            action: plan.earliest.1.as_str().to_string(),
            state: "COMPLETED".to_string(),
        }),
        last_completed_commit_timestamp: plan.last_completed.to_string(),
        policy: POLICY.to_string(),
        files_to_be_deleted_per_partition: Some(BTreeMap::new()),
        version: Some(RECORD_VERSION),
        file_paths_to_be_deleted_per_partition: Some(paths),
        partitions_to_be_deleted: Some(Vec::new()),
        extra_metadata: Some(BTreeMap::from([(OWNER_KEY.to_string(), owner.to_string())])),
    };
    storage.put_new(&requested_path(timeline_dir, instant, Action::Clean), record.encode()?).await.map(drop)
}

/// Carries out the stored plan of a clean, or what is left to do of it. `completed` is a fresh instant with another
/// one below it, which the metadata table's delta takes.
pub async fn execute_clean(
    storage: &Storage,
    config: &TableConfig,
    instant: &InstantTime,
    delta_completed: &InstantTime,
    completed: &InstantTime,
) -> Result<Cleaned> {
    let timeline_dir = config.timeline_dir();
    let plan = read_plan(storage, &timeline_dir, instant).await?;
    storage.put(&inflight_path(&timeline_dir, instant, Action::Clean), Vec::new()).await?;
    let by_partition = plan.names();
    let mut changes = Vec::new();
    let mut paths = Vec::new();
    for (partition, names) in &by_partition {
        for name in names {
            paths.push(if partition.is_empty() { name.clone() } else { format!("{partition}/{name}") });
            changes.push(FileChange { partition: partition.clone(), name: name.clone(), bytes: 0, deleted: true });
        }
    }
    // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
    let deletions: Vec<_> = paths.iter().map(|path| storage.delete(path)).collect();
    futures::stream::iter(deletions).buffer_unordered(REQUESTS_AT_ONCE).try_collect::<()>().await?;
    if has_file_listing(config) {
        write_indexed_delta(storage, config, instant, delta_completed, &changes).await?;
    }
    let metadata = outcome(instant, &plan, by_partition);
    let path = completed_path(&timeline_dir, instant, completed, Action::Clean);
    storage.put_new(&path, metadata.encode()?).await?;
    Ok(Cleaned { instant: instant.clone(), files: changes.len() })
}

fn outcome(instant: &InstantTime, plan: &PlanRecord, by_partition: BTreeMap<String, Vec<String>>) -> MetadataRecord {
    let earliest = plan.earliest_instant_to_retain.as_ref().map(|earliest| earliest.timestamp.clone());
    let total: usize = by_partition.values().map(Vec::len).sum();
    let partitions = by_partition.into_iter().map(|(partition, names)| {
        let record = PartitionRecord {
            partition_path: partition.clone(),
            policy: plan.policy.clone(),
            delete_path_patterns: names.clone(),
            success_delete_files: names,
            failed_delete_files: Vec::new(),
            is_partition_deleted: Some(false),
        };
        (partition, record)
    });
    MetadataRecord {
        start_clean_time: instant.to_string(),
        time_taken_in_millis: 0,
        total_files_deleted: i32::try_from(total).unwrap_or(i32::MAX),
        earliest_commit_to_retain: earliest.unwrap_or_default(),
        last_completed_commit_timestamp: plan.last_completed_commit_timestamp.clone(),
        partition_metadata: partitions.collect(),
        version: Some(RECORD_VERSION),
        bootstrap_partition_metadata: Some(BTreeMap::new()),
        extra_metadata: Some(BTreeMap::new()),
    }
}

async fn read_plan(storage: &Storage, timeline_dir: &str, instant: &InstantTime) -> Result<PlanRecord> {
    let path = requested_path(timeline_dir, instant, Action::Clean);
    PlanRecord::decode(&path, &storage.read(&path).await?)
}

/// Pending cleans of ours, which a dead process left. Those of other writers are theirs to finish.
pub async fn pending_cleans(storage: &Storage, timeline_dir: &str, timeline: &Timeline) -> Result<Vec<InstantTime>> {
    let mut found = Vec::new();
    let pending = timeline.instants().iter().filter(|instant| instant.is_pending() && instant.action == Action::Clean);
    for instant in pending {
        match read_plan(storage, timeline_dir, &instant.requested).await {
            Ok(plan) if plan.extra_metadata.iter().flatten().any(|(key, _)| key == OWNER_KEY) => {
                found.push(instant.requested.clone());
            }
            // What another writer wrote may be anything, and what has no requested file is not ours.
            Ok(_) | Err(Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Files that a completed clean deleted: paths relative to the table; `file` is for messages.
pub fn cleaned_files(file: &str, bytes: &[u8]) -> Result<Vec<String>> {
    let metadata = MetadataRecord::decode(file, bytes)?;
    let files = metadata.partition_metadata.iter().flat_map(|(partition, record)| {
        record.success_delete_files.iter().map(move |name| match partition.as_str() {
            "" => name.clone(),
            partition => format!("{partition}/{name}"),
        })
    });
    Ok(files.collect())
}
