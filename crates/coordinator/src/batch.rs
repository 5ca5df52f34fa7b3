// SPDX-License-Identifier: Apache-2.0
//! One batch from its request to its outcome.

mod answer;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tributary_api::Stop;
use tributary_api::checkpoint::Resolved;
use tributary_api::coordinator::{BatchStatus, Error, RunRequest};
use tributary_api::merge::{self, MergeLimits, MergeRequest, Merged};
use tributary_api::writer::{self, FileSizes, StageRequest, TargetSlice};
use tributary_hudi::target::{Owner, TableLock, acquire_lock, begin_instant, create_table, replace_untouched};
use tributary_hudi::{Storage, Timeline, current_file_slices};
use tributary_types::pipeline::ReadMode;
use tributary_types::{
    Checkpoint, Fault, InstantTime, MemoryBudget, Outcome, RECENT_INSTANTS, SourceCheckpoint, Stage,
};

use crate::commit::{Proposal, action_of, commit_metadata, remember};
use crate::compaction::Means;
use crate::control::Control;
use crate::decide::{Gate, gate};
use crate::heartbeat::Heartbeat;
use crate::history::definition_of;
use crate::housekeeping::{clear_dead_instants, mint, roll_back_own, tidy};
use crate::plan::{Ends, Opening, Plans, Purpose, kept_schema, merge_sources, open, plan_sources, sql_of, window_of};
use crate::remains::{refuse_damaged, refuse_reading_the_target, refuse_remains};
use crate::report::written;
use crate::service::Inner;
use crate::services::TableServices;
use crate::source_metrics;
use crate::staged::{replaced_groups, target_slices};
use crate::target::{TargetState, check_config, is_untouched, key_settings, load_timeline, new_table, target_error};

/// For how long a lock is asked for before the batch looks whether it was ended.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// What became of a batch that did not fail.
pub(crate) enum Ended {
    Committed(Commit),
    NoNewData,
}

/// The commit that a batch ended with.
pub(crate) struct Commit {
    pub(crate) instant: InstantTime,
    pub(crate) completed: Option<InstantTime>,
    pub(crate) seq: Option<u64>,
}

/// A batch under way.
pub(crate) struct Batch<'a> {
    inner: &'a Inner,
    request: &'a RunRequest,
    /// Fingerprint of the pipeline's definition.
    definition: String,
    storage: Storage,
    status: &'a watch::Sender<BatchStatus>,
    control: &'a Control,
    stop: Stop,
    stage_began: Instant,
    budget: MemoryBudget,
    /// Set while an operation of the batch may still be on its way to the store.
    unacknowledged: bool,
    /// The plans that were read in the end, where a file moved under the first ones.
    replanned: Option<Plans>,
}

/// Everything that is fixed before the first row is read, and the target.
struct Prepared {
    resolved: Resolved,
    opening: Opening,
    target: TargetState,
    /// Completed writes of the listing that was made before the cursors were looked up: whatever else completes is
    /// news to this batch.
    seen: BTreeSet<InstantTime>,
}

/// An open instant.
struct Opened {
    instant: InstantTime,
    slices: Arc<Vec<TargetSlice>>,
    owner: Owner,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        inner: &'a Inner,
        request: &'a RunRequest,
        status: &'a watch::Sender<BatchStatus>,
        control: &'a Control,
    ) -> Result<Self, Error> {
        let url = &request.pipeline.target.path;
        let storage = inner.stores.open(url).map_err(|e| target_error(url, "opening the target", e))?;
        let budget = MemoryBudget::new(request.pipeline.limits.memory.0 as usize);
        let stop = control.stop();
        let stage_began = Instant::now();
        let definition = definition_of(&request.pipeline);
        Ok(Batch {
            inner,
            request,
            definition,
            storage,
            status,
            control,
            stop,
            stage_began,
            budget,
            unacknowledged: false,
            replanned: None,
        })
    }

    /// Runs the batch. The target's lock is held from the first look at its cursors to the last step, so that batches
    /// of ours into one target follow one another. The time limit counts from the lock to the commit.
    pub(crate) async fn run(mut self) -> Result<Ended, Error> {
        let limit = self.request.pipeline.limits.timeout.0;
        let lock = self.take_lock(limit).await?;
        let control = self.control;
        let mut batch = Box::pin(self.run_locked(&lock));
        let ended = tokio::select! {
            ended = &mut batch => ended,
            () = tokio::time::sleep(limit) => {
                control.time_out();
                batch.as_mut().await
            }
            () = lock.lost() => {
                control.lose_lock();
                batch.as_mut().await
            }
        };
        drop(batch);
        give_back(lock).await;
        ended
    }

    /// Takes the target's lock. It is asked for again and again for a short time: a lease that was taken while nobody
    /// waited for it any more would keep others out until it lapses.
    async fn take_lock(&self, limit: Duration) -> Result<TableLock, Error> {
        let owner = self.inner.lock_owner(&format!("{}/{}", self.request.pipeline.name, self.request.request));
        let mut waited = Duration::ZERO;
        loop {
            self.go_on()?;
            let wait = LOCK_WAIT.min(limit - waited);
            let lock = acquire_lock(&self.storage, &owner, wait).await;
            if let Some(lock) = lock.map_err(|e| target_error(self.storage.url(), "taking the target's lock", e))? {
                return Ok(lock);
            }
            waited += wait;
            if waited >= limit {
                return Err(Error::Conflict {
                    url: self.storage.url().to_string(),
                    what: format!("another batch held the target's lock for {}", self.request.pipeline.limits.timeout),
                });
            }
        }
    }

    async fn run_locked(&mut self, lock: &TableLock) -> Result<Ended, Error> {
        self.enter(Stage::Resolve);
        let prepared = match self.prepare().await? {
            Preparation::Ready(prepared) => *prepared,
            Preparation::Ended(ended) => return Ok(ended),
        };
        self.go_on()?;
        self.enter(Stage::Begin);
        let opened = self.begin(&prepared).await?;
        let result = self.merge_and_commit(&prepared, &opened, lock).await;
        match &result {
            Err(error) => self.clean_up(&prepared.target, &opened.instant, error, lock).await,
            Ok(Ended::Committed(commit)) => {
                let limit = self.request.pipeline.limits.timeout.0;
                let settings = &self.inner.settings;
                let means =
                    Means { owner: &opened.owner, memory: &self.budget, lock, commit_request: settings.commit_request };
                let services = self.services(&prepared.target);
                services.run_within(limit, settings.stop_within, commit.seq, &means).await;
            }
            Ok(Ended::NoNewData) => {}
        }
        self.leave();
        result
    }

    /// Fails once the batch was ended.
    fn go_on(&self) -> Result<(), Error> {
        match self.control.cause(&self.request.pipeline.limits.timeout.to_string()) {
            Some(cause) => Err(cause),
            None => Ok(()),
        }
    }

    /// Work that changes nothing, dropped once the batch is ended.
    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.stop.wait() => {
                self.go_on()?;
                Err(Error::Cancelled)
            }
            done = Box::pin(work) => done,
        }
    }

    async fn prepare(&mut self) -> Result<Preparation, Error> {
        refuse_reading_the_target(self.inner.stores.as_ref(), &self.request.pipeline, &self.storage)?;
        let mut existing = self.unless_stopped(TargetState::load(&self.storage)).await?;
        if let Some(target) = &existing
            && self.make_ready(target).await?
        {
            existing = self.unless_stopped(TargetState::load(&self.storage)).await?;
        }
        let seen = existing.as_ref().map(|target| completed_writes(&target.timeline)).unwrap_or_default();
        let request = self.request;
        let pipeline = &request.pipeline;
        let roles = &self.inner.roles;
        let resolve = async { Ok(roles.checkpoints.resolve(&pipeline.name, self.storage.url()).await?) };
        let resolved = self.unless_stopped(resolve).await?;
        if let Some(commit) = self.unless_stopped(self.answer(existing.as_ref(), &resolved)).await? {
            return Ok(Preparation::Ended(Ended::Committed(commit)));
        }
        if let Some(target) = &existing {
            target.check_writers(self.storage.url())?;
        }
        self.enter(Stage::Plan);
        let status = self.status;
        let planned = |plans: &Plans| {
            status.send_modify(|status| status.sources = plans.status(pipeline));
        };
        let limits = self.limits();
        let opening = open(roles, pipeline, Purpose::Batch, existing.as_ref(), &resolved, &limits, planned);
        let opening = self.unless_stopped(opening).await?;
        source_metrics::record(pipeline, &opening.plans);
        let empty = !opening.plans.has_news(pipeline);
        if empty && (!request.allow_empty || opening.plans.all_left_out(pipeline)) {
            return Ok(Preparation::Ended(Ended::NoNewData));
        }
        let target = match existing {
            Some(target) => target,
            None => {
                self.go_on()?;
                self.create_target().await?
            }
        };
        Ok(Preparation::Ready(Box::new(Prepared { resolved, opening, target, seen })))
    }

    /// Clears what dead batches left, and describes anew a table that nobody used. Answers whether that changed the
    /// target. What it begins it finishes.
    async fn make_ready(&self, target: &TargetState) -> Result<bool, Error> {
        let pipeline = &self.request.pipeline;
        let problems = check_config(&pipeline.target, &target.config);
        refuse_damaged(&self.storage, target).await?;
        if !problems.is_empty() && !is_untouched(target) {
            return Err(Error::Target { url: self.storage.url().to_string(), what: problems.join("; ") });
        }
        let mut changed = clear_dead_instants(&self.storage, target, self.inner.clock.as_ref()).await? > 0;
        changed |= self.services(target).resume().await;
        if !problems.is_empty() {
            replace_untouched(&self.storage, &new_table(pipeline))
                .await
                .map_err(|e| target_error(self.storage.url(), "describing the target anew", e))?;
            changed = true;
        }
        Ok(changed)
    }

    async fn create_target(&self) -> Result<TargetState, Error> {
        refuse_remains(&self.storage).await?;
        let table = new_table(&self.request.pipeline);
        let now = InstantTime::from_epoch_millis(self.inner.clock.now_millis(), tributary_types::Zone::Utc);
        create_table(&self.storage, &table, &now)
            .await
            .map_err(|e| target_error(self.storage.url(), "creating the target", e))?;
        TargetState::load(&self.storage).await?.ok_or_else(|| Error::Target {
            url: self.storage.url().to_string(),
            what: "it was created and cannot be found: the store does not show its own writes".to_string(),
        })
    }

    async fn begin(&mut self, prepared: &Prepared) -> Result<Opened, Error> {
        let fail = |e| target_error(self.storage.url(), "opening an instant", e);
        let config = &prepared.target.config;
        let timeline = load_timeline(&self.storage, config).await?;
        let instant = mint(self.inner.clock.as_ref(), &prepared.target, &timeline);
        let owner = Owner {
            pipeline: self.request.pipeline.name.clone(),
            epoch: prepared.resolved.next_epoch,
            process: self.inner.process.clone(),
        };
        let operation = self.request.pipeline.target.operation;
        let (directory, action) = (config.timeline_dir(), action_of(operation, config));
        begin_instant(&self.storage, &directory, &instant, action, operation.as_str(), &owner).await.map_err(fail)?;
        self.status.send_modify(|status| status.instant = Some(instant.clone()));
        let slices = current_file_slices(&self.storage, config, &timeline).await.map_err(fail)?;
        Ok(Opened { instant, slices: Arc::new(target_slices(slices)), owner })
    }

    /// Keeps the heartbeat alive while the rows are merged and committed.
    async fn merge_and_commit(
        &mut self,
        prepared: &Prepared,
        opened: &Opened,
        lock: &TableLock,
    ) -> Result<Ended, Error> {
        let heartbeat = Heartbeat::go_on(
            self.storage.clone(),
            opened.instant.clone(),
            opened.owner.clone(),
            Arc::clone(&self.inner.clock),
            self.inner.settings.heartbeat_every,
        );
        let ended = self.merge_then_commit(prepared, opened, &heartbeat, lock).await;
        heartbeat.stop().await;
        if matches!(&ended, Ok(Ended::Committed(commit)) if commit.instant == opened.instant) {
            tidy(&self.storage, &opened.instant).await;
        }
        ended
    }

    async fn merge_then_commit(
        &mut self,
        prepared: &Prepared,
        opened: &Opened,
        heartbeat: &Heartbeat,
        lock: &TableLock,
    ) -> Result<Ended, Error> {
        self.enter(Stage::Merge);
        let merged = self.merge(prepared, opened).await?;
        self.control.begin_commit(&self.request.pipeline.limits.timeout.to_string())?;
        self.enter(Stage::Commit);
        self.commit(prepared, opened, &merged, heartbeat.renewed_millis(), lock).await
    }

    /// Runs the merge; once more with the same windows when a pinned file vanished meanwhile.
    async fn merge(&mut self, prepared: &Prepared, opened: &Opened) -> Result<Merged, Error> {
        let opening = &prepared.opening;
        let first = self.merge_once(prepared, &opening.plans, opened, 0).await;
        // The rows pass through the query and the writer, so the error comes back through either; its reason stays.
        let moved = |error: &&Error| matches!(error.reason(), "FILE_GONE" | "FILE_CHANGED");
        let Some(error) = first.as_ref().err().filter(moved) else { return first };
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "a pinned file is gone or changed; planning the same windows again"
        );
        let stored = prepared.resolved.newest.as_ref().map(|commit| &commit.checkpoint);
        let again = plan_sources(
            &self.inner.roles,
            &self.request.pipeline,
            &opening.bound,
            stored,
            Ends::Pinned(&opening.plans),
        );
        let again = self.unless_stopped(again).await?;
        let merged = self.merge_once(prepared, &again, opened, 1).await;
        self.replanned = Some(again);
        merged
    }

    async fn merge_once(
        &mut self,
        prepared: &Prepared,
        plans: &Plans,
        opened: &Opened,
        attempt: u32,
    ) -> Result<Merged, Error> {
        let pipeline = &self.request.pipeline;
        let stage = StageRequest {
            url: self.storage.url().to_string(),
            table_name: prepared.target.config.name.clone(),
            table_type: prepared.target.config.table_type,
            instant: opened.instant.clone(),
            attempt,
            schema: Arc::clone(&prepared.opening.checked.schema),
            table_schema: Arc::clone(&prepared.opening.schema),
            operation: pipeline.target.operation,
            keys: key_settings(&pipeline.target, &prepared.target.config),
            ordering: pipeline.target.ordering.clone(),
            on_null_key: pipeline.target.on_null_key,
            files: FileSizes { small: pipeline.target.small_file_limit.0, largest: pipeline.target.max_file_size.0 },
            slices: Arc::clone(&opened.slices),
            budget: self.budget.clone(),
            share: None,
            spill_bytes: pipeline.limits.spill.0,
            stop: self.stop.clone(),
        };
        let sources = merge_sources(pipeline, plans)?;
        let request = MergeRequest { sql: sql_of(pipeline), sources, stage, limits: self.limits() };
        let merged = self.acknowledged(self.inner.settings.stop_within, request).await?;
        source_metrics::record_rows(pipeline, &merged.rows_read);
        self.status.send_modify(|status| {
            for (source, rows) in &merged.rows_read {
                if let Some(found) = status.sources.iter_mut().find(|s| &s.source == source) {
                    found.rows = *rows;
                }
            }
            status.written = written(&merged);
            status.peak_memory = self.budget.peak() as u64;
        });
        Ok(merged)
    }

    /// Runs a merge, and once it was told to stop waits for it to have stopped, at most for `within`.
    async fn acknowledged(&mut self, within: Duration, request: MergeRequest) -> Result<Merged, Error> {
        let run = self.inner.roles.merge.run(request);
        tokio::pin!(run);
        let stop = self.stop.clone();
        let overdue = async move {
            stop.wait().await;
            tokio::time::sleep(within).await;
        };
        let result = tokio::select! {
            result = &mut run => result,
            () = overdue => {
                self.unacknowledged = true;
                tracing::warn!(?within, "the merge did not acknowledge that it stopped; the next batch clears up");
                self.go_on()?;
                return Err(Error::Cancelled);
            }
        };
        // A role that does not answer may still be writing.
        self.unacknowledged = matches!(
            &result,
            Err(merge::Error::Unreachable { .. } | merge::Error::Writer(writer::Error::Unreachable { .. }))
        );
        self.go_on()?;
        Ok(result?)
    }

    async fn commit(
        &mut self,
        prepared: &Prepared,
        opened: &Opened,
        merged: &Merged,
        renewed_millis: i64,
        lock: &TableLock,
    ) -> Result<Ended, Error> {
        let pipeline = &self.request.pipeline;
        let base = prepared.resolved.newest.as_ref().map(|commit| &commit.instant);
        let proposal = Proposal {
            storage: &self.storage,
            target: &prepared.target,
            pipeline: &pipeline.name,
            definition: &self.definition,
            instant: &opened.instant,
            seen: &prepared.seen,
            base,
            staged: &merged.staged,
            action: action_of(pipeline.target.operation, &prepared.target.config),
            lock,
            settings: &self.inner.settings,
        };
        let age = (self.inner.clock.now_millis() - renewed_millis).max(0) as u64;
        let facts = proposal.facts(age).await?;
        let checkpoint = self.next_checkpoint(prepared, &opened.instant);
        let seq = Some(checkpoint.seq);
        let own = |completed| Ended::Committed(Commit { instant: opened.instant.clone(), completed, seq });
        match gate(pipeline.name.as_str(), &self.request.request, &facts) {
            Gate::AlreadyCommitted(completed) => Ok(own(Some(completed))),
            Gate::AnsweredBy(instant) => {
                roll_back_own(&self.storage, &prepared.target, &opened.instant, self.inner.clock.as_ref()).await?;
                Ok(Ended::Committed(Commit { instant, completed: None, seq: None }))
            }
            Gate::Closed(what) => Err(Error::Conflict { url: self.storage.url().to_string(), what }),
            Gate::Open(permit) => {
                proposal.delete_unnamed().await?;
                let operation = pipeline.target.operation;
                let replaced = replaced_groups(operation, &opened.slices, &merged.staged);
                let groups = replaced.values().map(Vec::len).sum::<usize>() as u64;
                self.status.send_modify(|status| status.written.replaced_groups = groups);
                let metadata = commit_metadata(
                    &prepared.target.config.name,
                    &prepared.opening.schema,
                    operation,
                    &merged.staged,
                    replaced,
                    &pipeline.name,
                    &checkpoint,
                    !prepared.resolved.shared_target,
                )
                .map_err(|e| target_error(self.storage.url(), "describing the commit", e))?;
                let completed = proposal.complete(&permit, &metadata, self.inner.clock.as_ref()).await?;
                self.enter(Stage::Publish);
                Ok(own(Some(completed)))
            }
        }
    }

    /// The cursors after this batch.
    fn next_checkpoint(&self, prepared: &Prepared, instant: &InstantTime) -> Checkpoint {
        let pipeline = &self.request.pipeline;
        let stored = prepared.resolved.newest.as_ref().map(|commit| commit.checkpoint.clone());
        let mut next = stored.unwrap_or_else(|| Checkpoint::first(prepared.opening.binding.clone()));
        next.seq += 1;
        next.epoch = prepared.resolved.next_epoch;
        next.binding.clone_from(&prepared.opening.binding);
        let plans = self.replanned.as_ref().unwrap_or(&prepared.opening.plans);
        next.ceiling_millis = plans.ceiling_millis;
        next.malformed.clear();
        next.sources = pipeline
            .sources
            .iter()
            .zip(&plans.sources)
            .map(|(source, plan)| {
                let lookup = source.read == ReadMode::Snapshot;
                let recent = plan.recent.len().saturating_sub(RECENT_INSTANTS);
                let entry = SourceCheckpoint {
                    kind: source.kind.as_str().to_string(),
                    cursor: (!lookup).then(|| plan.end.clone()),
                    window: window_of(source, plan),
                    as_of: lookup.then(|| plan.end.clone()),
                    fingerprint: plan.table.fingerprint.clone(),
                    path: Some(source.location()),
                    schema: kept_schema(source, plan),
                    recent: plan.recent[recent..].to_vec(),
                    files: plan.files.as_deref().cloned(),
                };
                (source.name.clone(), entry)
            })
            .collect();
        remember(&mut next, &self.request.request, instant, &self.definition);
        next
    }

    /// After a failure: the instant is rolled back, where it is certain that nothing of it is still being written.
    async fn clean_up(&self, target: &TargetState, instant: &InstantTime, error: &Error, lock: &TableLock) {
        if lock.left().is_some_and(|left| left <= self.inner.settings.commit_request) {
            // Whoever takes the table next rolls it back; two at once must not.
            tracing::warn!(%instant, "the target's lock is lost; the next batch rolls this one back");
            return;
        }
        if error.outcome() == Outcome::Unknown || self.unacknowledged {
            // An unknown commit is read back first. And a stage that did not say that it stopped may have an operation
            // on its way: a file that lands after a rollback would stay. The next batch does it, under the lock.
            return;
        }
        if let Err(failed) = roll_back_own(&self.storage, target, instant, self.inner.clock.as_ref()).await {
            tracing::warn!(
                %instant,
                error = &failed as &dyn std::error::Error,
                "rolling back failed; the next batch does it"
            );
        }
    }

    fn services<'t>(&'t self, target: &'t TargetState) -> TableServices<'t> {
        TableServices {
            storage: &self.storage,
            target,
            services: self.request.pipeline.target.services,
            clock: self.inner.clock.as_ref(),
            process: &self.inner.process,
        }
    }

    fn limits(&self) -> MergeLimits {
        MergeLimits {
            budget: self.budget.clone(),
            stop: self.stop.clone(),
            ..self.inner.limits(&self.request.pipeline)
        }
    }

    /// Ends the running stage and begins the next.
    fn enter(&mut self, stage: Stage) {
        self.leave();
        self.status.send_modify(|status| status.stage = stage);
    }

    fn leave(&mut self) {
        let took = self.stage_began.elapsed().as_millis() as u64;
        self.stage_began = Instant::now();
        self.status.send_modify(|status| {
            let stage = status.stage;
            status.timings.push((stage, took));
        });
    }
}

enum Preparation {
    Ready(Box<Prepared>),
    Ended(Ended),
}

fn completed_writes(timeline: &Timeline) -> BTreeSet<InstantTime> {
    timeline.completed_writes().iter().map(|write| write.requested.clone()).collect()
}

/// Gives a lock back; one that cannot be given back lapses by itself.
pub(crate) async fn give_back(lock: TableLock) {
    if let Err(error) = lock.release().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "the target's lock stays until it lapses");
    }
}
