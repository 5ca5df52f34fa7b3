// SPDX-License-Identifier: Apache-2.0
//! Rolling back a dead instant by a stored plan, so that an interrupted rollback is finished by whoever comes next.
//!
//! Order (table version 8 and later): the plan; data files; the metadata table's delta; the dead instant's inflight
//! and requested files; the completed rollback; markers and heartbeat. The dead instant stays pending on the timeline
//! until nothing of it can be seen any more.

use std::collections::{BTreeMap, HashMap};

use hudi_core::metadata::rollback::{
    HoodieInstantInfo, HoodieRollbackMetadata, HoodieRollbackPartitionMetadata, HoodieRollbackPlan,
    HoodieRollbackRequest,
};
use tributary_types::InstantTime;

use crate::error::{Error, Result};
use crate::listing::list_directories;
use crate::storage::Storage;
use crate::target::Owner;
use crate::timeline::{Action, Timeline, completed_path, inflight_path, requested_path};

/// A finished rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolledBack {
    /// The dead instant.
    pub instant: InstantTime,
    /// The rollback's own instant.
    pub rollback: InstantTime,
    /// Data files that were deleted.
    pub files: usize,
}

/// Rolls back a dead instant, whose data files its markers name. `rollback` and `completed` are fresh instants, in
/// that order. The caller holds the table's lock and has proved that the instant's owner is gone.
///
/// A heartbeat says that the rollback is `owner`'s, before it is on the timeline: who finds it pending must know whether
/// another writer is at it.
pub async fn rollback_instant(
    storage: &Storage,
    timeline_dir: &str,
    dead: &InstantTime,
    action: Action,
    rollback: &InstantTime,
    completed: &InstantTime,
    owner: &Owner,
) -> Result<RolledBack> {
    let plan = plan(storage, dead, action).await?;
    super::write_heartbeat(storage, rollback, owner).await?;
    let bytes = plan.to_avro_bytes().map_err(|e| Error::corrupt("rollback plan", e))?;
    storage.put_new(&requested_path(timeline_dir, rollback, Action::Rollback), bytes).await?;
    execute(storage, timeline_dir, &plan, rollback, completed).await
}

/// Finishes a rollback that somebody began: a pending rollback instant of the timeline.
pub async fn resume_rollback(
    storage: &Storage,
    timeline_dir: &str,
    rollback: &InstantTime,
    completed: &InstantTime,
) -> Result<RolledBack> {
    let path = requested_path(timeline_dir, rollback, Action::Rollback);
    let bytes = storage.read(&path).await?;
    let plan = HoodieRollbackPlan::from_avro_bytes(&bytes).map_err(|e| Error::corrupt(&path, e))?;
    execute(storage, timeline_dir, &plan, rollback, completed).await
}

async fn plan(storage: &Storage, dead: &InstantTime, action: Action) -> Result<HoodieRollbackPlan> {
    let mut by_partition: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for marker in super::list_markers(storage, dead).await? {
        let partition = marker.file.rsplit_once('/').map(|(partition, _)| partition).unwrap_or_default();
        by_partition.entry(partition.to_string()).or_default().push(format!("{}/{}", storage.url(), marker.file));
    }
    let requests = by_partition.into_iter().map(|(partition_path, files_to_be_deleted)| HoodieRollbackRequest {
        partition_path,
        file_id: Some(String::new()),
        latest_base_instant: Some(String::new()),
        files_to_be_deleted,
        log_blocks_to_be_deleted: Some(HashMap::new()),
    });
    Ok(HoodieRollbackPlan {
        instant_to_rollback: Some(HoodieInstantInfo {
            commit_time: dead.to_string(),
            action: action.as_str().to_string(),
        }),
        rollback_requests: Some(requests.collect()),
        version: Some(1),
    })
}

async fn execute(
    storage: &Storage,
    timeline_dir: &str,
    plan: &HoodieRollbackPlan,
    rollback: &InstantTime,
    completed: &InstantTime,
) -> Result<RolledBack> {
    let file = requested_path(timeline_dir, rollback, Action::Rollback);
    let target = plan.instant_to_rollback.as_ref().ok_or_else(|| Error::corrupt(&file, "it names no instant"))?;
    let dead: InstantTime = target.commit_time.parse().map_err(|e| Error::corrupt(&file, e))?;
    let action = Action::parse(&target.action)
        .ok_or_else(|| Error::corrupt(&file, format!("unknown action `{}`", target.action)))?;
    refuse_completed(storage, timeline_dir, &dead).await?;
    storage.put(&inflight_path(timeline_dir, rollback, Action::Rollback), Vec::new()).await?;

    let mut partitions = HashMap::new();
    let mut deleted = 0;
    for request in plan.rollback_requests.iter().flatten() {
        let mut success = Vec::new();
        for absolute in &request.files_to_be_deleted {
            // The table may have been moved or mounted elsewhere since: partition and name stay.
            let name = absolute.rsplit('/').next().unwrap_or(absolute);
            let relative = match request.partition_path.as_str() {
                "" => name.to_string(),
                partition => format!("{partition}/{name}"),
            };
            storage.delete(&relative).await?;
            success.push(absolute.clone());
        }
        deleted += success.len();
        partitions.insert(
            request.partition_path.clone(),
            HoodieRollbackPartitionMetadata {
                partition_path: request.partition_path.clone(),
                success_delete_files: success,
                failed_delete_files: Vec::new(),
                rollback_log_files: Some(HashMap::new()),
                log_files_from_failed_commit: Some(HashMap::new()),
            },
        );
    }
    // A completing request of a dead process may land late: nothing is taken off the timeline before this look.
    refuse_completed(storage, timeline_dir, &dead).await?;
    super::undo_delta(storage, &dead).await?;
    storage.delete(&inflight_path(timeline_dir, &dead, action)).await?;
    storage.delete(&requested_path(timeline_dir, &dead, action)).await?;
    finish(storage, timeline_dir, &dead, action, rollback, completed, partitions, deleted).await?;
    Ok(RolledBack { instant: dead, rollback: rollback.clone(), files: deleted })
}

#[allow(clippy::too_many_arguments)] // the facts of one record, passed once
async fn finish(
    storage: &Storage,
    timeline_dir: &str,
    dead: &InstantTime,
    action: Action,
    rollback: &InstantTime,
    completed: &InstantTime,
    partitions: HashMap<String, HoodieRollbackPartitionMetadata>,
    deleted: usize,
) -> Result<()> {
    let metadata = HoodieRollbackMetadata {
        start_rollback_time: rollback.to_string(),
        time_taken_in_millis: 0,
        total_files_deleted: deleted as i32,
        commits_rollback: vec![dead.to_string()],
        partition_metadata: partitions,
        version: Some(1),
        instants_rollback: vec![HoodieInstantInfo {
            commit_time: dead.to_string(),
            action: action.as_str().to_string(),
        }],
    };
    let bytes = metadata.to_avro_bytes().map_err(|e| Error::corrupt("rollback metadata", e))?;
    super::write_delta(storage, rollback, completed, &[]).await?;
    let path = completed_path(timeline_dir, rollback, completed, Action::Rollback);
    storage.put_new(&path, bytes).await?;
    super::delete_markers(storage, dead).await?;
    super::delete_heartbeat(storage, dead).await?;
    super::delete_heartbeat(storage, rollback).await?;
    report_late_completion(storage, timeline_dir, dead, action, rollback).await
}

/// A completing request may land even after the last look that could still stop the rollback: then the timeline names
/// files that are deleted, and no reader may take it for a commit.
async fn report_late_completion(
    storage: &Storage,
    timeline_dir: &str,
    dead: &InstantTime,
    action: Action,
    rollback: &InstantTime,
) -> Result<()> {
    match super::find_completion(storage, timeline_dir, dead).await? {
        None => Ok(()),
        Some(at) => Err(Error::corrupt(
            completed_path(timeline_dir, dead, &at, action),
            format!(
                "its request landed after rollback {rollback} had deleted the files it names; nothing of it was ever to be \
                 read: remove this file, then run again"
            ),
        )),
    }
}

async fn refuse_completed(storage: &Storage, timeline_dir: &str, dead: &InstantTime) -> Result<()> {
    match super::find_completion(storage, timeline_dir, dead).await? {
        None => Ok(()),
        Some(at) => Err(Error::Conflict {
            what: format!("instant {dead} completed at {at} while it was being rolled back; it must not be touched"),
        }),
    }
}

/// The instant that a pending rollback removes, and its action, by the stored plan.
pub async fn rolled_back_instant(
    storage: &Storage,
    timeline_dir: &str,
    rollback: &InstantTime,
) -> Result<(InstantTime, Action)> {
    let path = requested_path(timeline_dir, rollback, Action::Rollback);
    let plan =
        HoodieRollbackPlan::from_avro_bytes(&storage.read(&path).await?).map_err(|e| Error::corrupt(&path, e))?;
    let dead = plan.instant_to_rollback.ok_or_else(|| Error::corrupt(&path, "it names no instant"))?;
    let action = Action::parse(&dead.action).ok_or_else(|| Error::corrupt(&path, "it names no known action"))?;
    Ok((dead.commit_time.parse().map_err(|e| Error::corrupt(&path, e))?, action))
}

/// Instants that completed rollbacks of the active timeline took away.
pub async fn rolled_back_instants(storage: &Storage, timeline: &Timeline) -> Result<Vec<InstantTime>> {
    let mut found = Vec::new();
    let rollbacks =
        timeline.instants().iter().filter(|instant| !instant.is_pending() && instant.action == Action::Rollback);
    // Collected: a lazily filtered iterator held across an await is not known to be `Send`.
    for path in rollbacks.filter_map(|instant| timeline.completed_path(instant)).collect::<Vec<_>>() {
        let metadata = HoodieRollbackMetadata::from_avro_bytes(&storage.read(&path).await?)
            .map_err(|e| Error::corrupt(&path, e))?;
        for dead in &metadata.commits_rollback {
            found.push(dead.parse().map_err(|e| Error::corrupt(&path, e))?);
        }
    }
    Ok(found)
}

/// Deletes every data file of an instant that another writer rolled back while it was still being written: what was
/// written after that writer had looked. Answers how many files went. Nothing of the instant is under way any more, and
/// it is not on the timeline.
pub async fn delete_leftovers(storage: &Storage, dead: &InstantTime) -> Result<usize> {
    let files = list_directories(storage).await?;
    let bases = files.bases.iter().filter(|file| &file.instant == dead).map(|file| &file.path);
    let logs = files.logs.iter().filter(|log| &log.instant == dead).map(|log| &log.path);
    let left: Vec<&String> = bases.chain(logs).collect();
    for path in &left {
        storage.delete(path).await?;
    }
    super::delete_markers(storage, dead).await?;
    super::delete_heartbeat(storage, dead).await?;
    Ok(left.len())
}

/// Pending rollbacks of a timeline, which must be finished before anything else is begun.
pub fn pending_rollbacks(timeline: &Timeline) -> impl Iterator<Item = &InstantTime> {
    pending(timeline, Action::Rollback)
}

/// Pending restores of a timeline: nothing is begun or completed beside one.
pub fn pending_restores(timeline: &Timeline) -> impl Iterator<Item = &InstantTime> {
    pending(timeline, Action::Restore)
}

fn pending(timeline: &Timeline, action: Action) -> impl Iterator<Item = &InstantTime> {
    let instants = timeline.instants().iter();
    instants.filter(move |instant| instant.is_pending() && instant.action == action).map(|instant| &instant.requested)
}
