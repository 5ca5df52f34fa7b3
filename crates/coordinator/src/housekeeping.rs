// SPDX-License-Identifier: Apache-2.0
//! What dead batches left on the target, finished before a new one begins.
//!
//! All of it runs while the target's lock is held, which every live batch of ours holds from its beginning to its end:
//! a pending instant of ours is then dead by proof. Pending instants of foreign writers are never touched.

use tributary_api::coordinator::Error;
use tributary_hudi::target::{
    delete_heartbeat, delete_markers, marked_instants, mint_instant, own_heartbeats, pending_restores,
    pending_rollbacks, read_owner, resume_rollback, rollback_instant, rolled_back_instant,
};
use tributary_hudi::{Storage, Timeline};
use tributary_types::{Clock, InstantTime};

use crate::metrics;
use crate::target::{TargetState, load_timeline, target_error};

fn pending_elsewhere(storage: &Storage, action: &str, instant: &InstantTime) -> Error {
    Error::Conflict {
        url: storage.url().to_string(),
        what: format!(
            "{action} {instant} of another writer is pending while `target.writers = \"exclusive\"`; let that writer \
             finish it or roll it back"
        ),
    }
}

/// Finishes interrupted rollbacks and rolls back dead instants of ours; answers how many. A pending instant, rollback
/// or restore of a foreign writer is a conflict: the target is said to be written by nobody else.
pub(crate) async fn clear_dead_instants(
    storage: &Storage,
    target: &TargetState,
    clock: &dyn Clock,
) -> Result<usize, Error> {
    let directory = target.config.timeline_dir();
    let fail = |e| target_error(storage.url(), "rolling back a dead instant", e);
    let mut done = 0;
    let mut timeline = target.timeline.clone();
    if let Some(restore) = pending_restores(&timeline).next() {
        return Err(pending_elsewhere(storage, "restore", restore));
    }
    loop {
        let Some(rollback) = pending_rollbacks(&timeline).next().cloned() else { break };
        let (dead, action) = rolled_back_instant(storage, &directory, &rollback).await.map_err(fail)?;
        if read_owner(storage, &directory, &dead, action).await.map_err(fail)?.is_none() {
            return Err(pending_elsewhere(storage, "rollback", &rollback));
        }
        let completed = mint(clock, target, &timeline);
        resume_rollback(storage, &directory, &rollback, &completed).await.map_err(fail)?;
        done += 1;
        timeline = load_timeline(storage, &target.config).await?;
    }
    loop {
        let Some(dead) = timeline.pending_writes().next().cloned() else { break };
        let owner = read_owner(storage, &directory, &dead.requested, dead.action).await.map_err(fail)?;
        if owner.is_none() {
            return Err(pending_elsewhere(storage, dead.action.as_str(), &dead.requested));
        }
        let rollback = mint(clock, target, &timeline);
        let completed = rollback.successor();
        let rolled_back = rollback_instant(storage, &directory, &dead.requested, dead.action, &rollback, &completed)
            .await
            .map_err(fail)?;
        tracing::info!(instant = %dead.requested, files = rolled_back.files, "dead instant rolled back");
        done += 1;
        timeline = load_timeline(storage, &target.config).await?;
    }
    ::metrics::counter!(metrics::ROLLBACKS).increment(done as u64);
    sweep(storage, &timeline).await?;
    Ok(done)
}

/// Removes markers and heartbeats of instants that are over: what a process left that died right after its commit.
async fn sweep(storage: &Storage, timeline: &Timeline) -> Result<(), Error> {
    let fail = |e| target_error(storage.url(), "removing leftovers of a commit", e);
    let over = |instant: &InstantTime| timeline.find(instant).is_none_or(|found| !found.is_pending());
    for instant in marked_instants(storage).await.map_err(fail)?.iter().filter(|instant| over(instant)) {
        delete_markers(storage, instant).await.map_err(fail)?;
    }
    for instant in own_heartbeats(storage).await.map_err(fail)?.iter().filter(|instant| over(instant)) {
        delete_heartbeat(storage, instant).await.map_err(fail)?;
    }
    Ok(())
}

/// Rolls back this batch's own instant after a failure. The batch still holds the lock.
pub(crate) async fn roll_back_own(
    storage: &Storage,
    target: &TargetState,
    instant: &InstantTime,
    clock: &dyn Clock,
) -> Result<(), Error> {
    let directory = target.config.timeline_dir();
    let timeline = load_timeline(storage, &target.config).await?;
    let Some(own) = timeline.find(instant).cloned() else { return Ok(()) };
    if !own.is_pending() {
        return Err(Error::Conflict {
            url: storage.url().to_string(),
            what: format!("instant {instant} is complete and cannot be rolled back"),
        });
    }
    let rollback = mint(clock, target, &timeline);
    rollback_instant(storage, &directory, instant, own.action, &rollback, &rollback.successor())
        .await
        .map_err(|e| target_error(storage.url(), "rolling back the batch", e))?;
    ::metrics::counter!(metrics::ROLLBACKS).increment(1);
    Ok(())
}

/// Removes what a committed instant no longer needs. Nothing depends on it, so a failure is only logged.
pub(crate) async fn tidy(storage: &Storage, instant: &InstantTime) {
    for result in [delete_markers(storage, instant).await, delete_heartbeat(storage, instant).await] {
        if let Err(error) = result {
            tracing::warn!(%instant, error = &error as &dyn std::error::Error, "leftovers of a commit stay");
        }
    }
}

/// A fresh instant of the target.
pub(crate) fn mint(clock: &dyn Clock, target: &TargetState, timeline: &Timeline) -> InstantTime {
    mint_instant(clock.now_millis(), target.config.zone, timeline.latest_time())
}
