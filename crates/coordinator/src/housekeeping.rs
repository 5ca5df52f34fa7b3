// SPDX-License-Identifier: Apache-2.0
//! What dead batches left on the target, finished before a new one begins.
//!
//! All of it runs while the lock among our own batches is held, which every live batch of ours holds from its beginning
//! to its end: a pending instant of ours is then dead by proof. On a shared target the lock that every writer takes is
//! held as well. Pending instants of foreign writers are never touched, nor is one of ours that a foreign writer is
//! rolling back.

use std::collections::BTreeSet;

use tributary_api::coordinator::Error;
use tributary_hudi::target::{
    Owner, delete_heartbeat, delete_leftovers, delete_markers, heartbeat_owner, marked_instants, mint_instant,
    own_heartbeats, pending_restores, pending_rollbacks, read_owner, resume_rollback, rollback_instant,
    rolled_back_instant, rolled_back_instants,
};
use tributary_hudi::{Storage, Timeline};
use tributary_types::pipeline::Writers;
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

/// Nothing is begun beside a restore, whose ever it is.
pub(crate) fn refuse_restoring(storage: &Storage, timeline: &Timeline) -> Result<(), Error> {
    match pending_restores(timeline).next() {
        None => Ok(()),
        Some(restore) => Err(Error::Conflict {
            url: storage.url().to_string(),
            what: format!("restore {restore} of another writer is pending; let that writer finish it"),
        }),
    }
}

/// Finishes interrupted rollbacks and rolls back dead instants of ours; answers how many. A pending instant or rollback
/// of a foreign writer is a conflict where the target is said to be written by nobody else, and passed over where it is
/// shared.
pub(crate) async fn clear_dead_instants(
    storage: &Storage,
    target: &TargetState,
    clock: &dyn Clock,
    writers: Writers,
) -> Result<usize, Error> {
    let directory = target.config.timeline_dir();
    let fail = |e| target_error(storage.url(), "rolling back a dead instant", e);
    refuse_restoring(storage, &target.timeline)?;
    let mut done = 0;
    let mut timeline = target.timeline.clone();
    // Instants of foreign writers, and whatever they are rolling back.
    let mut foreign: BTreeSet<InstantTime> = BTreeSet::new();
    loop {
        let next = pending_rollbacks(&timeline).find(|rollback| !foreign.contains(*rollback));
        let Some(rollback) = next.cloned() else { break };
        if writers == Writers::Shared && heartbeat_owner(storage, &rollback).await.map_err(fail)?.is_none() {
            // What it is about cannot be told of a plan that is not there yet; it is then none of ours that is dead.
            if let Ok((dead, _)) = rolled_back_instant(storage, &directory, &rollback).await {
                foreign.insert(dead);
            }
            foreign.insert(rollback);
            continue;
        }
        let (dead, action) = rolled_back_instant(storage, &directory, &rollback).await.map_err(fail)?;
        let dead_owner = read_owner(storage, &directory, &dead, action).await.map_err(fail)?;
        if writers == Writers::Exclusive && dead_owner.is_none() {
            return Err(pending_elsewhere(storage, "rollback", &rollback));
        }
        let completed = mint(clock, target, &timeline);
        resume_rollback(storage, &directory, &rollback, &completed).await.map_err(fail)?;
        done += 1;
        timeline = load_timeline(storage, &target.config).await?;
    }
    loop {
        let next = timeline.pending_writes().find(|instant| !foreign.contains(&instant.requested));
        let Some(dead) = next.cloned() else { break };
        let Some(owner) = read_owner(storage, &directory, &dead.requested, dead.action).await.map_err(fail)? else {
            if writers == Writers::Exclusive {
                return Err(pending_elsewhere(storage, dead.action.as_str(), &dead.requested));
            }
            foreign.insert(dead.requested);
            continue;
        };
        let rollback = mint(clock, target, &timeline);
        let completed = rollback.successor();
        let rolled_back =
            rollback_instant(storage, &directory, &dead.requested, dead.action, &rollback, &completed, &owner)
                .await
                .map_err(fail)?;
        tracing::info!(instant = %dead.requested, files = rolled_back.files, "dead instant rolled back");
        done += 1;
        timeline = load_timeline(storage, &target.config).await?;
    }
    ::metrics::counter!(metrics::ROLLBACKS).increment(done as u64);
    match writers {
        Writers::Exclusive => sweep(storage, &timeline).await?,
        Writers::Shared => sweep_own(storage, &timeline).await?,
    }
    Ok(done)
}

fn is_over(timeline: &Timeline, instant: &InstantTime) -> bool {
    timeline.find(instant).is_none_or(|found| !found.is_pending())
}

/// Removes markers and heartbeats of instants that are over: what a process left that died right after its commit.
async fn sweep(storage: &Storage, timeline: &Timeline) -> Result<(), Error> {
    let fail = |e| target_error(storage.url(), "removing leftovers of a commit", e);
    for instant in marked_instants(storage).await.map_err(fail)?.iter().filter(|instant| is_over(timeline, instant)) {
        delete_markers(storage, instant).await.map_err(fail)?;
    }
    for instant in own_heartbeats(storage).await.map_err(fail)?.iter().filter(|instant| is_over(timeline, instant)) {
        delete_heartbeat(storage, instant).await.map_err(fail)?;
    }
    Ok(())
}

/// The same beside other writers, whose markers stay: what is ours says its heartbeat. One of ours that another writer
/// rolled back may have written files after that writer had looked; they go too.
async fn sweep_own(storage: &Storage, timeline: &Timeline) -> Result<(), Error> {
    let fail = |e| target_error(storage.url(), "removing leftovers of a commit", e);
    let heartbeats = own_heartbeats(storage).await.map_err(fail)?;
    let over: Vec<&InstantTime> = heartbeats.iter().filter(|instant| is_over(timeline, instant)).collect();
    if over.is_empty() {
        return Ok(());
    }
    let rolled_back = rolled_back_instants(storage, timeline).await.map_err(fail)?;
    for instant in over {
        // A commit that was archived is not on the timeline either, and its files stay.
        if timeline.find(instant).is_none() && rolled_back.contains(instant) {
            let files = delete_leftovers(storage, instant).await.map_err(fail)?;
            tracing::info!(%instant, files, "files removed of an instant that another writer rolled back");
            continue;
        }
        delete_leftover_marks(storage, instant).await.map_err(fail)?;
    }
    Ok(())
}

/// Rolls back this batch's own instant after a failure. The batch still holds the locks, and nothing of it is under way.
/// What another writer rolled back already leaves no file behind.
pub(crate) async fn roll_back_own(
    storage: &Storage,
    target: &TargetState,
    instant: &InstantTime,
    owner: &Owner,
    clock: &dyn Clock,
) -> Result<(), Error> {
    let fail = |e| target_error(storage.url(), "rolling back the batch", e);
    let directory = target.config.timeline_dir();
    let timeline = load_timeline(storage, &target.config).await?;
    let Some(own) = timeline.find(instant).cloned() else {
        delete_leftovers(storage, instant).await.map_err(fail)?;
        return Ok(());
    };
    if !own.is_pending() {
        return Err(Error::Conflict {
            url: storage.url().to_string(),
            what: format!("instant {instant} is complete and cannot be rolled back"),
        });
    }
    // Collected: a lazily filtered iterator held across an await is not known to be `Send`.
    for rollback in pending_rollbacks(&timeline).cloned().collect::<Vec<_>>() {
        let foreign = heartbeat_owner(storage, &rollback).await.map_err(fail)?.is_none();
        let about = rolled_back_instant(storage, &directory, &rollback).await;
        if foreign && about.is_ok_and(|(dead, _)| &dead == instant) {
            // Two at once must not; what it leaves the next batch finds by our heartbeat.
            tracing::warn!(%instant, %rollback, "another writer is rolling the batch back");
            return Ok(());
        }
    }
    let rollback = mint(clock, target, &timeline);
    rollback_instant(storage, &directory, instant, own.action, &rollback, &rollback.successor(), owner)
        .await
        .map_err(fail)?;
    ::metrics::counter!(metrics::ROLLBACKS).increment(1);
    Ok(())
}

/// Removes what a committed instant no longer needs. Nothing depends on it, so a failure is only logged.
pub(crate) async fn tidy(storage: &Storage, instant: &InstantTime) {
    if let Err(error) = delete_leftover_marks(storage, instant).await {
        tracing::warn!(%instant, error = &error as &dyn std::error::Error, "leftovers of a commit stay");
    }
}

/// Markers go first: by the heartbeat whoever comes next knows whose they are.
pub(crate) async fn delete_leftover_marks(
    storage: &Storage,
    instant: &InstantTime,
) -> Result<(), tributary_hudi::Error> {
    delete_markers(storage, instant).await?;
    delete_heartbeat(storage, instant).await
}

/// A fresh instant of the target.
pub(crate) fn mint(clock: &dyn Clock, target: &TargetState, timeline: &Timeline) -> InstantTime {
    mint_instant(clock.now_millis(), target.config.zone, timeline.latest_time())
}
