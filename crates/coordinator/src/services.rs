// SPDX-License-Identifier: Apache-2.0
//! Table services of the target: compaction, clean, compaction of the metadata table, archive.
//!
//! They run after a commit, in this order, while the batch still holds the target's locks: each is an instant of its
//! own on a timeline. Only while log files are put together other writers of a shared target may go on. A failure is logged and counted and never fails the batch, whose commit stands. What an
//! interrupted service left is finished or undone when the next batch begins.

use std::time::{Duration, Instant};

use tracing::Instrument as _;
use tributary_api::coordinator::Error;
use tributary_api::{Stop, StopSource};
use tributary_hudi::target::{
    Keep, archive_timelines, compact_metadata, deltas_since_compaction, execute_clean, find_cleanable,
    finish_archiving, metadata_timeline, mint_instant, pending_cleans, request_clean, undo_compactions,
};
use tributary_hudi::{Storage, has_file_listing};
use tributary_types::pipeline::Services;
use tributary_types::{Clock, InstantTime};

use crate::compaction::Means;
use crate::housekeeping::mint;
use crate::metrics;
use crate::target::{TargetState, load_timeline, target_error};

/// The services of one target, as its pipeline wants them.
pub(crate) struct TableServices<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) target: &'a TargetState,
    pub(crate) services: Services,
    pub(crate) clock: &'a dyn Clock,
    /// Name of this process, for whoever finds a pending instant of it.
    pub(crate) process: &'a str,
}

/// What a service did: how many things, or nothing.
pub(crate) type Did = Option<usize>;

impl TableServices<'_> {
    /// Finishes or undoes what a dead process left. The batch goes on if that fails: a pending service keeps no
    /// reader and no writer from the table. Answers whether anything was found, and the timeline may have moved.
    pub(crate) async fn resume(&self) -> bool {
        let cleaned = self.watch(metrics::CLEAN, self.resume_clean()).await;
        let undone = self.watch(metrics::COMPACT_METADATA, self.undo_compaction()).await;
        let archived = self.watch(metrics::ARCHIVE, self.finish_archive()).await;
        cleaned || undone || archived
    }

    /// Runs what is due after the commit of sequence number `seq`; `None`: an earlier batch made that commit. Ends with
    /// the lock, or after `limit`.
    ///
    /// What is under way then is waited for, at most for `grace`: a file that lands after its instant was rolled back
    /// would stay.
    pub(crate) async fn run_within(&self, limit: Duration, grace: Duration, seq: Option<u64>, means: &Means<'_>) {
        let Some(seq) = seq else { return };
        let stop = StopSource::new();
        let running = self.run(seq, means, stop.listen());
        tokio::pin!(running);
        tokio::select! {
            () = &mut running => return,
            () = tokio::time::sleep(limit) => {
                tracing::warn!(?limit, "table services ran out of time; the next batch takes them up again");
            }
            () = means.locks.lost() => {
                tracing::warn!("the target's lock is lost; the next batch takes its table services up again");
            }
        }
        stop.stop();
        if tokio::time::timeout(grace, running).await.is_err() {
            tracing::warn!(?grace, "a table service did not stop in time");
        }
    }

    async fn run(&self, seq: u64, means: &Means<'_>, stop: Stop) {
        let services = &self.services;
        // First: what it makes superfluous the clean may take away.
        self.watch(metrics::COMPACT, self.compact_files(means, &stop)).await;
        if stop.is_set() {
            return;
        }
        // One that failed on the way may have left other writers in.
        if let Err(error) = means.locks.go_on().await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "no lock for the other table services; the next batch takes them up again");
            return;
        }
        // By number and not by what the timeline holds: a clean that finds nothing leaves no instant to count from.
        if services.clean_commits > 0 && seq.is_multiple_of(u64::from(services.clean_every())) {
            self.watch(metrics::CLEAN, self.clean()).await;
        }
        if stop.is_set() {
            return;
        }
        if services.compact_metadata_commits > 0 {
            self.watch(metrics::COMPACT_METADATA, self.compact()).await;
        }
        if services.archive_commits > 0 && !stop.is_set() {
            self.watch(metrics::ARCHIVE, self.archive()).await;
        }
    }

    async fn clean(&self) -> Result<Did, Error> {
        let fail = |e| target_error(self.storage.url(), "cleaning the target", e);
        let config = &self.target.config;
        let timeline = load_timeline(self.storage, config).await?;
        let keep = self.services.clean_commits as usize;
        let Some(plan) = find_cleanable(self.storage, config, &timeline, keep).await.map_err(fail)? else {
            return Ok(None);
        };
        let instant = mint(self.clock, self.target, &timeline);
        request_clean(self.storage, &config.timeline_dir(), &instant, &plan, self.process).await.map_err(fail)?;
        self.finish_clean(&instant, &instant).await.map(Some)
    }

    /// Carries out a requested clean; `latest` is the latest time on the timeline.
    async fn finish_clean(&self, instant: &InstantTime, latest: &InstantTime) -> Result<usize, Error> {
        let config = &self.target.config;
        let delta = mint_instant(self.clock.now_millis(), config.zone, Some(latest));
        let cleaned = execute_clean(self.storage, config, instant, &delta, &delta.successor())
            .await
            .map_err(|e| target_error(self.storage.url(), "cleaning the target", e))?;
        tracing::info!(%instant, files = cleaned.files, "old file versions removed");
        Ok(cleaned.files)
    }

    async fn resume_clean(&self) -> Result<Did, Error> {
        let fail = |e| target_error(self.storage.url(), "looking for interrupted cleans", e);
        let directory = self.target.config.timeline_dir();
        let pending = pending_cleans(self.storage, &directory, &self.target.timeline).await.map_err(fail)?;
        let mut files = None;
        for instant in &pending {
            let timeline = load_timeline(self.storage, &self.target.config).await?;
            let latest = timeline.latest_time().unwrap_or(instant);
            files = Some(files.unwrap_or(0) + self.finish_clean(instant, latest).await?);
        }
        Ok(files)
    }

    async fn compact(&self) -> Result<Did, Error> {
        let fail = |e| target_error(self.storage.url(), "compacting the target's metadata table", e);
        if !has_file_listing(&self.target.config) {
            return Ok(None);
        }
        let own = metadata_timeline(self.storage).await.map_err(fail)?;
        if deltas_since_compaction(&own) < self.services.compact_metadata_commits as usize {
            return Ok(None);
        }
        let timeline = load_timeline(self.storage, &self.target.config).await?;
        // Its delta might complete later and below the compaction.
        if timeline.instants().iter().chain(own.instants()).any(|instant| instant.is_pending()) {
            tracing::debug!("the metadata table is not compacted while an instant is pending");
            return Ok(None);
        }
        // The completion of the newest instant: above every delta there is, below every one to come, and nobody's
        // requested time.
        let Some(instant) = timeline.latest_time() else { return Ok(None) };
        let compacted = compact_metadata(self.storage, &timeline, instant, &instant.successor(), self.process)
            .await
            .map_err(fail)?;
        tracing::info!(%instant, logs = compacted.logs, removed = compacted.removed, "metadata table compacted");
        Ok(Some(compacted.logs))
    }

    async fn undo_compaction(&self) -> Result<Did, Error> {
        let fail = |e| target_error(self.storage.url(), "undoing an interrupted compaction", e);
        if !has_file_listing(&self.target.config) {
            return Ok(None);
        }
        let own = metadata_timeline(self.storage).await.map_err(fail)?;
        let undone = undo_compactions(self.storage, &own).await.map_err(fail)?;
        Ok((undone > 0).then_some(undone))
    }

    async fn archive(&self) -> Result<Did, Error> {
        let timeline = load_timeline(self.storage, &self.target.config).await?;
        let keep = Keep { max: self.services.archive_commits as usize, min: self.services.archive_down_to() as usize };
        let instants = archive_timelines(self.storage, &self.target.config, &timeline, keep)
            .await
            .map_err(|e| target_error(self.storage.url(), "archiving the target's timeline", e))?;
        if instants > 0 {
            tracing::info!(instants, "instants archived");
        }
        Ok((instants > 0).then_some(instants))
    }

    async fn finish_archive(&self) -> Result<Did, Error> {
        let finished = finish_archiving(self.storage, &self.target.config, &self.target.timeline)
            .await
            .map_err(|e| target_error(self.storage.url(), "finishing an interrupted archiving", e))?;
        Ok((finished > 0).then_some(finished))
    }

    /// Counts what a service did and says what went wrong; no error gets past here. Answers whether it did anything
    /// or failed on the way.
    async fn watch(&self, service: &'static str, running: impl Future<Output = Result<Did, Error>>) -> bool {
        let began = Instant::now();
        let outcome = match running.instrument(tracing::info_span!("table service", service)).await {
            Ok(None) => return false,
            Ok(Some(things)) => {
                ::metrics::counter!(metrics::SERVICE_THINGS, "service" => service).increment(things as u64);
                "done"
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(service, error, "a table service failed; the next batch takes it up again");
                "failed"
            }
        };
        ::metrics::counter!(metrics::SERVICE_RUNS, "service" => service, "outcome" => outcome).increment(1);
        ::metrics::histogram!(metrics::SERVICE_DURATION, "service" => service).record(began.elapsed().as_secs_f64());
        true
    }
}
