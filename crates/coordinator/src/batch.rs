// SPDX-License-Identifier: Apache-2.0
//! One batch from its request to its outcome.

mod answer;
mod cursors;
mod errors;
mod locking;
mod merging;
mod stage;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tracing::{Instrument as _, Span};
use tributary_api::Stop;
use tributary_api::checkpoint::Resolved;
use tributary_api::coordinator::{BatchStatus, Error, RunRequest};
use tributary_api::merge::{MergeLimits, Merged};
use tributary_api::writer::TargetSlice;
use tributary_hudi::target::{Owner, TableLock, begin_instant, create_table, replace_untouched};
use tributary_hudi::{Storage, Timeline, current_file_slices};
use tributary_types::pipeline::Writers;
use tributary_types::{InstantTime, MemoryBudget, Outcome, Stage};

use self::cursors::SetCursors;
pub(crate) use self::cursors::place_cursors;
use self::locking::Relocking;
use crate::beside::Ours;
use crate::commit::{Proposal, action_of, commit_metadata};
use crate::compaction::Means;
use crate::conflict::OwnWrite;
use crate::control::Control;
use crate::decide::{Gate, gate};
use crate::flat::flat_of;
use crate::heartbeat::Heartbeat;
use crate::housekeeping::{clear_dead_instants, mint, refuse_restoring, roll_back_own, tidy};
use crate::locks::{Held, Locks, Pausable, give_back};
use crate::metrics;
use crate::plan::{Opening, Plans, Purpose, open};
use crate::pull::{digest_key, digest_of};
use crate::remains::{refuse_damaged, refuse_reading_the_target, refuse_remains};
use crate::service::Inner;
use crate::services::TableServices;
use crate::source_metrics;
use crate::spans::stage_span;
use crate::staged::{replaced_groups, target_slices};
use crate::standing::{Standing, find_standing};
use crate::target::{TargetState, check_config, is_untouched, load_timeline, new_table, target_error};

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
    /// Fingerprint of what was asked for.
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
    /// The batch's own span: its stages have spans below it.
    span: Span,
}

/// Everything that is fixed before the first row is read, and the target.
struct Prepared {
    resolved: Resolved,
    standing: Standing,
    work: Work,
    target: TargetState,
    /// Completed writes of the listing that was made before the cursors were looked up: whatever else completes is
    /// news to this batch.
    seen: BTreeSet<InstantTime>,
}

/// What a batch is to do.
enum Work {
    /// Read a window of every source, and merge them.
    Merge(Box<Opening>),
    /// Only set cursors.
    SetCursors(SetCursors),
}

/// An open instant.
struct Opened {
    instant: InstantTime,
    slices: Arc<Vec<TargetSlice>>,
    /// Completed instants of the state that the slices are of: what keys are tagged against.
    pinned: BTreeSet<InstantTime>,
    owner: Owner,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        inner: &'a Inner,
        request: &'a RunRequest,
        definition: String,
        status: &'a watch::Sender<BatchStatus>,
        control: &'a Control,
    ) -> Result<Self, Error> {
        let url = &request.pipeline.target.path;
        let storage = inner.open_target(url)?;
        let budget = MemoryBudget::new(request.pipeline.limits.memory.0 as usize);
        let stop = control.stop();
        let stage_began = Instant::now();
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
            span: Span::current(),
        })
    }

    /// Runs the batch. The lock among our own batches is held from the first look at the target's cursors to the last
    /// step, so that batches of ours into one target follow one another. The time limit counts from the lock to the
    /// commit.
    pub(crate) async fn run(mut self) -> Result<Ended, Error> {
        let limit = self.request.pipeline.limits.timeout.0;
        let locks = self.take_locks(limit).await?;
        let control = self.control;
        let mut batch = Box::pin(self.run_locked(&locks));
        let ended = tokio::select! {
            ended = &mut batch => ended,
            () = tokio::time::sleep(limit) => {
                control.time_out();
                batch.as_mut().await
            }
            () = locks.lost() => {
                control.lose_lock();
                batch.as_mut().await
            }
        };
        drop(batch);
        locks.give_back().await;
        ended
    }

    async fn run_locked(&mut self, locks: &Locks) -> Result<Ended, Error> {
        self.enter(Stage::Resolve);
        let prepared = match self.prepare(locks).await? {
            Preparation::Ready(prepared) => *prepared,
            Preparation::Ended(ended) => return Ok(ended),
        };
        self.go_on()?;
        self.enter(Stage::Begin);
        let table = self.table_lock(locks).await?;
        let opened = self.begin(&prepared).instrument(stage_span(Stage::Begin)).await;
        give_back_if(table).await;
        let opened = opened?;
        // Held from before the gate to the last table service, for a moment in between but not.
        let mut table = None;
        let result = self.merge_and_commit(&prepared, &opened, locks, &mut table).await;
        match &result {
            Err(error) => {
                let cleaning = self.clean_up(&prepared.target, &opened, error, locks, &mut table);
                cleaning.instrument(tracing::info_span!("roll back")).await;
            }
            Ok(Ended::Committed(commit)) => {
                let limit = self.request.pipeline.limits.timeout.0;
                let settings = &self.inner.settings;
                let relocking = Relocking { batch: self, locks };
                let pausable = Pausable::new(locks, table.take(), &relocking);
                let means = Means {
                    owner: &opened.owner,
                    memory: &self.budget,
                    locks: &pausable,
                    commit_request: settings.commit_request,
                };
                let services = self.services(&prepared.target);
                let running = services.run_within(limit, settings.stop_within, commit.seq, &means);
                running.instrument(tracing::info_span!("table services")).await;
                table = pausable.into_table();
            }
            Ok(Ended::NoNewData) => {}
        }
        give_back_if(table).await;
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

    async fn prepare(&mut self, locks: &Locks) -> Result<Preparation, Error> {
        refuse_reading_the_target(self.inner.stores.as_ref(), &self.request.pipeline, &self.storage)?;
        self.unless_stopped(self.check_error_table()).await?;
        let table = self.table_lock(locks).await?;
        let resolving = stage_span(Stage::Resolve);
        let existing = self.find_ready().instrument(resolving.clone()).await;
        give_back_if(table).await;
        let existing = existing?;
        let seen = existing.as_ref().map(|target| completed_writes(&target.timeline)).unwrap_or_default();
        let request = self.request;
        let pipeline = &request.pipeline;
        let roles = &self.inner.roles;
        let resolve = async { Ok(roles.checkpoints.resolve(&pipeline.name, self.storage.url()).await?) };
        let resolved = self.unless_stopped(resolve).instrument(resolving.clone()).await?;
        if let Some(commit) =
            self.unless_stopped(self.answer(existing.as_ref(), &resolved)).instrument(resolving).await?
        {
            return Ok(Preparation::Ended(Ended::Committed(commit)));
        }
        if let Some(target) = &existing {
            target.check_writers(self.storage.url(), pipeline.target.writers)?;
        }
        self.enter(Stage::Plan);
        let planning = stage_span(Stage::Plan);
        let status = self.status;
        let standing = find_standing(roles, pipeline, self.storage.url(), &resolved, &request.overrides);
        let standing = self.unless_stopped(standing).instrument(planning.clone()).await?;
        status.send_modify(|status| status.overrides = standing.overrides().to_vec());
        if request.cursors_only {
            return self.prepare_cursors(existing, resolved, standing, seen).instrument(planning).await;
        }
        let planned = |plans: &Plans| {
            status.send_modify(|status| status.sources = plans.status(pipeline));
        };
        let limits = self.limits();
        let opening = open(roles, pipeline, Purpose::Batch, existing.as_ref(), &standing, &limits, planned);
        let opening = self.unless_stopped(opening).instrument(planning).await?;
        source_metrics::record(pipeline, &opening.plans, self.inner.clock.now_millis());
        if let Some(observer) = self.inner.observer() {
            observer.planned(pipeline, &status.borrow().clone(), opening.schemas());
        }
        // Cursors that are set by hand are kept by a commit, or a flag would set them again and again.
        let empty = !opening.plans.has_news(pipeline) && standing.tokens().is_empty();
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
        let work = Work::Merge(Box::new(opening));
        Ok(Preparation::Ready(Box::new(Prepared { resolved, standing, work, target, seen })))
    }

    /// The target, if there is one, with nothing of dead batches of ours left on it.
    async fn find_ready(&self) -> Result<Option<TargetState>, Error> {
        let existing = self.unless_stopped(TargetState::load(&self.storage)).await?;
        match &existing {
            Some(target) if self.make_ready(target).await? => {
                self.unless_stopped(TargetState::load(&self.storage)).await
            }
            _ => Ok(existing),
        }
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
        let clock = self.inner.clock.as_ref();
        let mut changed = clear_dead_instants(&self.storage, target, clock, pipeline.target.writers).await? > 0;
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
        refuse_restoring(&self.storage, &timeline)?;
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
        self.span.record("instant", instant.as_str());
        let slices = current_file_slices(&self.storage, config, &timeline).await.map_err(fail)?;
        let completed = timeline.instants().iter().filter(|instant| !instant.is_pending());
        let pinned = completed.map(|instant| instant.requested.clone()).collect();
        Ok(Opened { instant, slices: Arc::new(target_slices(slices)), pinned, owner })
    }

    /// Keeps the heartbeat alive while the rows are merged and committed.
    async fn merge_and_commit(
        &mut self,
        prepared: &Prepared,
        opened: &Opened,
        locks: &Locks,
        table: &mut Option<TableLock>,
    ) -> Result<Ended, Error> {
        let heartbeat = Heartbeat::go_on(
            self.storage.clone(),
            opened.instant.clone(),
            opened.owner.clone(),
            Arc::clone(&self.inner.clock),
            self.inner.settings.heartbeat_every,
        );
        let ended = self.merge_then_commit(prepared, opened, &heartbeat, locks, table).await;
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
        locks: &Locks,
        table: &mut Option<TableLock>,
    ) -> Result<Ended, Error> {
        self.enter(Stage::Merge);
        let merged = match &prepared.work {
            Work::Merge(opening) => {
                let merged = self.merge(prepared, opening, opened).instrument(stage_span(Stage::Merge)).await?;
                Box::pin(self.commit_refused(prepared, opening, opened, &merged)).await?;
                merged
            }
            Work::SetCursors(_) => Merged::default(),
        };
        *table = self.table_lock(locks).await?;
        self.control.begin_commit(&self.request.pipeline.limits.timeout.to_string())?;
        self.enter(Stage::Commit);
        let lock = locks.held(table.as_ref());
        let committing = self.commit(prepared, opened, &merged, heartbeat.renewed_millis(), lock);
        committing.instrument(stage_span(Stage::Commit)).await
    }

    async fn commit(
        &mut self,
        prepared: &Prepared,
        opened: &Opened,
        merged: &Merged,
        renewed_millis: i64,
        lock: Held<'_>,
    ) -> Result<Ended, Error> {
        let pipeline = &self.request.pipeline;
        let operation = pipeline.target.operation;
        let replaced = replaced_groups(operation, &opened.slices, &merged.staged);
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
            action: action_of(operation, &prepared.target.config),
            lock,
            settings: &self.inner.settings,
        };
        let age = (self.inner.clock.now_millis() - renewed_millis).max(0) as u64;
        let ours = (pipeline.target.writers == Writers::Shared).then(|| Ours {
            write: OwnWrite::of(operation, &merged.staged, &replaced, pipeline.target.insert_conflict),
            pinned: &opened.pinned,
            schema: prepared.work.schema(),
            target: &pipeline.target,
        });
        let facts = proposal.facts(age, ours).await?;
        let checkpoint = self.next_checkpoint(prepared, &opened.instant);
        let seq = Some(checkpoint.seq);
        let own = |completed| Ended::Committed(Commit { instant: opened.instant.clone(), completed, seq });
        match gate(pipeline.name.as_str(), &self.request.request, &facts) {
            Gate::AlreadyCommitted(completed) => Ok(own(Some(completed))),
            Gate::AnsweredBy(instant) => {
                self.roll_back(&prepared.target, opened).await?;
                Ok(Ended::Committed(Commit { instant, completed: None, seq: None }))
            }
            Gate::Closed(what) => Err(Error::Conflict { url: self.storage.url().to_string(), what }),
            Gate::Conflict(conflict) => {
                let labels = [("pipeline", pipeline.name.to_string()), ("on", conflict.on.label().to_string())];
                ::metrics::counter!(metrics::WRITER_CONFLICTS, &labels).increment(1);
                let what = conflict.to_string();
                let (instant, action) = (conflict.instant, conflict.action);
                Err(Error::WriterConflict { url: self.storage.url().to_string(), instant, action, what })
            }
            Gate::Open(permit) => {
                proposal.delete_unnamed().await?;
                let groups = replaced.values().map(Vec::len).sum::<usize>() as u64;
                self.status.send_modify(|status| status.written.replaced_groups = groups);
                let mut metadata = commit_metadata(
                    &prepared.target.config.name,
                    prepared.work.schema(),
                    operation,
                    &merged.staged,
                    replaced,
                    &pipeline.name,
                    &checkpoint,
                    flat_of(pipeline, &checkpoint).filter(|_| !prepared.resolved.shared_target),
                )
                .map_err(|e| target_error(self.storage.url(), "describing the commit", e))?;
                let digest = digest_of(pipeline).map(|digest| (digest_key(&pipeline.name), digest));
                metadata.extra.extend(digest);
                let completed = proposal.complete(&permit, &metadata, self.inner.clock.as_ref()).await?;
                self.enter(Stage::Publish);
                Ok(own(Some(completed)))
            }
        }
    }

    /// After a failure: the instant is rolled back, where it is certain that nothing of it is still being written.
    async fn clean_up(
        &self,
        target: &TargetState,
        opened: &Opened,
        error: &Error,
        locks: &Locks,
        table: &mut Option<TableLock>,
    ) {
        let instant = &opened.instant;
        if error.outcome() == Outcome::Unknown || self.unacknowledged {
            // An unknown commit is read back first. And a stage that did not say that it stopped may have an operation
            // on its way: a file that lands after a rollback would stay. The next batch does it, under the lock.
            return;
        }
        if table.is_none() {
            match self.table_lock_to_clean_up(locks).await {
                Ok(lock) => *table = lock,
                Err(failed) => {
                    let error = &failed as &dyn std::error::Error;
                    tracing::warn!(%instant, error, "no lock to roll the batch back; the next batch does it");
                    return;
                }
            }
        }
        if locks.held(table.as_ref()).left().is_some_and(|left| left <= self.inner.settings.commit_request) {
            // Whoever takes the table next rolls it back; two at once must not.
            tracing::warn!(%instant, "the target's lock is lost; the next batch rolls this one back");
            return;
        }
        if let Err(failed) = self.roll_back(target, opened).await {
            tracing::warn!(
                %instant,
                error = &failed as &dyn std::error::Error,
                "rolling back failed; the next batch does it"
            );
        }
    }

    async fn roll_back(&self, target: &TargetState, opened: &Opened) -> Result<(), Error> {
        roll_back_own(&self.storage, target, &opened.instant, &opened.owner, self.inner.clock.as_ref()).await
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

async fn give_back_if(lock: Option<TableLock>) {
    if let Some(lock) = lock {
        give_back(lock).await;
    }
}
