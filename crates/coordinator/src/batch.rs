// SPDX-License-Identifier: Apache-2.0
//! One batch from its request to its outcome.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use tokio::sync::watch;
use tributary_api::checkpoint::Resolved;
use tributary_api::coordinator::{BatchStatus, Error, RunRequest, Written};
use tributary_api::merge::{Bound, MergeLimits, MergeRequest, Merged};
use tributary_api::writer::{StageRequest, TargetSlice};
use tributary_hudi::target::{
    LockOwner, Owner, TableLock, acquire_lock, begin_instant, create_table, replace_untouched, write_heartbeat,
};
use tributary_hudi::{Action, Storage, current_slices};
use tributary_types::pipeline::ReadMode;
use tributary_types::{
    Checkpoint, Code, Cursor, Fault, InstantTime, MemoryBudget, Outcome, RECENT_INSTANTS, SourceCheckpoint, Stage,
};

use crate::commit::{Proposal, commit_metadata, remember};
use crate::decide::{Gate, check_binding, gate};
use crate::housekeeping::{clear_dead_instants, mint, roll_back_own, tidy};
use crate::plan::{Plans, bind, check_sql, merge_sources, plan_sources, sql_of, window_of};
use crate::schema::target_schema;
use crate::service::Inner;
use crate::services::TableServices;
use crate::target::{TargetState, check_config, is_untouched, key_settings, load_timeline, new_table, target_error};

/// What became of a batch that did not fail.
pub(crate) enum Ended {
    Committed(InstantTime, Option<InstantTime>, u64),
    NoNewData,
}

/// A batch under way.
pub(crate) struct Batch<'a> {
    inner: &'a Inner,
    request: &'a RunRequest,
    storage: Storage,
    status: &'a watch::Sender<BatchStatus>,
    stage_began: Instant,
    budget: MemoryBudget,
}

/// Everything that is fixed before the first row is read.
struct Prepared {
    resolved: Resolved,
    bound: Vec<Bound>,
    binding: String,
    plans: Plans,
    /// Schema of the query's result.
    query_schema: SchemaRef,
    /// Schema of the table after the batch.
    schema: SchemaRef,
    target: TargetState,
}

/// An open instant.
struct Opened {
    instant: InstantTime,
    pinned: BTreeSet<InstantTime>,
    slices: Arc<Vec<TargetSlice>>,
    owner: Owner,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        inner: &'a Inner,
        request: &'a RunRequest,
        status: &'a watch::Sender<BatchStatus>,
    ) -> Result<Self, Error> {
        let url = &request.pipeline.target.path;
        let storage = inner.stores.open(url).map_err(|e| target_error(url, "opening the target", e))?;
        let budget = MemoryBudget::new(request.pipeline.limits.memory.0 as usize);
        Ok(Batch { inner, request, storage, status, stage_began: Instant::now(), budget })
    }

    /// Runs the batch. The target's lock is held from the first look at its cursors to the last step, so that batches
    /// of ours into one target follow one another.
    pub(crate) async fn run(mut self) -> Result<Ended, Error> {
        let limit = self.request.pipeline.limits.timeout.0;
        let owner = LockOwner {
            name: format!("{}/{}/{}", self.inner.process, self.request.pipeline.name, self.request.request),
            clock: Arc::clone(&self.inner.clock),
            leases: self.inner.settings.leases.clone(),
        };
        let lock = acquire_lock(&self.storage, &owner, limit)
            .await
            .map_err(|e| target_error(self.storage.url(), "taking the target's lock", e))?;
        let Some(lock) = lock else {
            return Err(Error::Conflict {
                url: self.storage.url().to_string(),
                what: format!("another batch held the target's lock for {}", self.request.pipeline.limits.timeout),
            });
        };
        let result = self.run_locked(&lock).await;
        if let Err(error) = lock.release().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the target's lock stays until it lapses");
        }
        result
    }

    async fn run_locked(&mut self, lock: &TableLock) -> Result<Ended, Error> {
        let limit = self.request.pipeline.limits.timeout.0;
        self.enter(Stage::Resolve);
        let prepared = match self.prepare().await? {
            Preparation::Ready(prepared) => *prepared,
            Preparation::Ended(ended) => return Ok(ended),
        };
        self.enter(Stage::Begin);
        let opened = self.begin(&prepared).await?;
        let finished = tokio::time::timeout(limit, self.merge_and_commit(&prepared, &opened, lock)).await;
        let result = finished
            .unwrap_or_else(|_| Err(Error::Timeout { limit: self.request.pipeline.limits.timeout.to_string() }));
        match &result {
            Err(error) => self.clean_up(&prepared.target, &opened.instant, error, lock).await,
            Ok(Ended::Committed(.., seq)) => self.run_services(&prepared.target, *seq, lock).await,
            Ok(Ended::NoNewData) => {}
        }
        self.leave();
        result
    }

    async fn prepare(&mut self) -> Result<Preparation, Error> {
        let pipeline = &self.request.pipeline;
        let roles = &self.inner.roles;
        let mut existing = TargetState::load(&self.storage).await?;
        if let Some(target) = &existing {
            let problems = check_config(&pipeline.target, &target.config);
            if !problems.is_empty() && !is_untouched(target) {
                return Err(Error::Target { url: self.storage.url().to_string(), what: problems.join("; ") });
            }
            clear_dead_instants(&self.storage, target, self.inner.clock.as_ref()).await?;
            self.services(target).resume().await;
            if !problems.is_empty() {
                replace_untouched(&self.storage, &new_table(pipeline))
                    .await
                    .map_err(|e| target_error(self.storage.url(), "describing the target anew", e))?;
            }
            // A rollback moves the timeline.
            existing = TargetState::load(&self.storage).await?;
        }
        let resolved = roles.checkpoints.resolve(&pipeline.name, self.storage.url()).await?;
        let stored = resolved.newest.as_ref().map(|commit| &commit.checkpoint);
        if let Some(instant) = stored.and_then(|stored| stored.answered(&self.request.request)) {
            let seq = stored.map_or(0, |stored| stored.seq);
            let completed = existing.as_ref().and_then(|target| target.timeline.find(instant)?.completed.clone());
            return Ok(Preparation::Ended(Ended::Committed(instant.clone(), completed, seq)));
        }
        self.check_writers(existing.as_ref()).await?;
        let bound = bind(roles, pipeline).await?;
        let newest = resolved.newest.as_ref().map(|commit| (&commit.instant, &commit.checkpoint));
        let binding = check_binding(pipeline, &bound, newest)?;
        self.enter(Stage::Plan);
        let plans = plan_sources(roles, pipeline, &bound, stored, None).await?;
        self.status.send_modify(|status| status.sources = plans.status(pipeline));
        let sources = merge_sources(pipeline, &plans)?;
        let checked = check_sql(roles, pipeline, &sources, &self.limits()).await?;
        let stored_schema = existing.as_ref().and_then(|target| target.schema.as_ref());
        let schema = target_schema(&pipeline.target, stored_schema, &checked.schema)
            .map_err(|problems| Error::Target { url: self.storage.url().to_string(), what: problems.join("; ") })?;
        if !plans.has_news(pipeline) && !self.request.allow_empty {
            return Ok(Preparation::Ended(Ended::NoNewData));
        }
        let target = match existing {
            Some(target) => target,
            None => self.create_target().await?,
        };
        let query_schema = checked.schema;
        Ok(Preparation::Ready(Box::new(Prepared { resolved, bound, binding, plans, query_schema, schema, target })))
    }

    /// Under exclusive writers, no write that changes rows may have followed the newest one of ours. What was in the
    /// table before our first batch is not our concern.
    async fn check_writers(&self, target: Option<&TargetState>) -> Result<(), Error> {
        let Some(target) = target else { return Ok(()) };
        let mut foreign: Option<InstantTime> = None;
        for instant in target.timeline.completed_writes().into_iter().rev() {
            let Some(path) = target.timeline.completed_path(instant) else { continue };
            let metadata = crate::target::read_metadata(&self.storage, &path).await?;
            if metadata.extra.keys().any(|key| tributary_types::pipeline_of_key(key).is_some()) {
                return match foreign {
                    None => Ok(()),
                    Some(foreign) => Err(Error::Conflict {
                        url: self.storage.url().to_string(),
                        what: format!(
                            "another writer committed {foreign} after our commit {}, while `target.writers = \
                             \"exclusive\"`; stop that writer",
                            instant.requested
                        ),
                    }),
                };
            }
            if metadata.changes_rows() {
                foreign = Some(instant.requested.clone());
            }
        }
        Ok(())
    }

    async fn create_target(&self) -> Result<TargetState, Error> {
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
        let operation = self.request.pipeline.target.operation.as_str();
        begin_instant(&self.storage, &config.timeline_dir(), &instant, Action::Commit, operation, &owner)
            .await
            .map_err(fail)?;
        self.status.send_modify(|status| status.instant = Some(instant.clone()));
        let slices = current_slices(&self.storage, config, &timeline).await.map_err(fail)?;
        let slices = slices.into_iter().map(|slice| TargetSlice {
            partition: slice.partition,
            file_id: slice.file_id,
            path: slice.path,
            instant: slice.instant,
            bytes: slice.bytes,
        });
        let pinned = timeline.completed_writes().iter().map(|write| write.requested.clone()).collect();
        Ok(Opened { instant, pinned, slices: Arc::new(slices.collect()), owner })
    }

    /// Keeps the heartbeat alive while the rows are merged and committed.
    async fn merge_and_commit(
        &mut self,
        prepared: &Prepared,
        opened: &Opened,
        lock: &TableLock,
    ) -> Result<Ended, Error> {
        let beat = Arc::new(AtomicI64::new(self.inner.clock.now_millis()));
        let heart = tokio::spawn(keep_alive(
            self.storage.clone(),
            opened.instant.clone(),
            opened.owner.clone(),
            Arc::clone(&self.inner.clock),
            self.inner.settings.heartbeat_every,
            Arc::clone(&beat),
        ));
        let heart = AbortOnDrop(heart);
        self.enter(Stage::Merge);
        let url = self.storage.url().to_string();
        let merged = tokio::select! {
            merged = self.merge(prepared, opened) => merged?,
            () = lock.lost() => return Err(lock_lost(url)),
        };
        self.enter(Stage::Commit);
        let ended = self.commit(prepared, opened, &merged, &beat, lock).await;
        drop(heart);
        ended
    }

    /// Runs the merge; once more with the same windows when a pinned file vanished meanwhile.
    async fn merge(&mut self, prepared: &Prepared, opened: &Opened) -> Result<Merged, Error> {
        let first = self.merge_once(prepared, &prepared.plans, opened, 0).await;
        // The rows pass through the query and the writer, so the error comes back through either; its reason stays.
        let Some(error) = first.as_ref().err().filter(|error| error.reason() == "FILE_GONE") else { return first };
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "a pinned file is gone; planning the same windows again"
        );
        let ends: Vec<Cursor> = prepared.plans.sources.iter().map(|plan| plan.end.clone()).collect();
        let stored = prepared.resolved.newest.as_ref().map(|commit| &commit.checkpoint);
        let pipeline = &self.request.pipeline;
        let again = plan_sources(&self.inner.roles, pipeline, &prepared.bound, stored, Some(&ends)).await?;
        self.merge_once(prepared, &again, opened, 1).await
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
            instant: opened.instant.clone(),
            attempt,
            schema: Arc::clone(&prepared.query_schema),
            table_schema: Arc::clone(&prepared.schema),
            operation: pipeline.target.operation,
            keys: key_settings(&pipeline.target, &prepared.target.config),
            ordering: pipeline.target.ordering.clone(),
            on_null_key: pipeline.target.on_null_key,
            slices: Arc::clone(&opened.slices),
            budget: self.budget.clone(),
            spill_bytes: pipeline.limits.spill.0,
        };
        let sources = merge_sources(pipeline, plans)?;
        let request = MergeRequest { sql: sql_of(pipeline), sources, stage, limits: self.limits() };
        let merged = self.inner.roles.merge.run(request).await?;
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

    async fn commit(
        &mut self,
        prepared: &Prepared,
        opened: &Opened,
        merged: &Merged,
        beat: &AtomicI64,
        lock: &TableLock,
    ) -> Result<Ended, Error> {
        let pipeline = &self.request.pipeline;
        let base = prepared.resolved.newest.as_ref().map(|commit| &commit.instant);
        let proposal = Proposal {
            storage: &self.storage,
            target: &prepared.target,
            pipeline: &pipeline.name,
            instant: &opened.instant,
            pinned: &opened.pinned,
            base,
            staged: &merged.staged,
            lock,
            settings: &self.inner.settings,
        };
        let age = (self.inner.clock.now_millis() - beat.load(Ordering::Relaxed)).max(0) as u64;
        let facts = proposal.facts(age).await?;
        let checkpoint = self.next_checkpoint(prepared, &opened.instant);
        match gate(pipeline.name.as_str(), &self.request.request, &facts) {
            Gate::AlreadyCommitted(completed) => {
                Ok(Ended::Committed(opened.instant.clone(), Some(completed), checkpoint.seq))
            }
            Gate::AnsweredBy(instant) => {
                roll_back_own(&self.storage, &prepared.target, &opened.instant, self.inner.clock.as_ref()).await?;
                Ok(Ended::Committed(instant, None, checkpoint.seq))
            }
            Gate::Closed(what) => Err(Error::Conflict { url: self.storage.url().to_string(), what }),
            Gate::Open(permit) => {
                proposal.delete_unnamed().await?;
                let metadata = commit_metadata(
                    &prepared.target.config.name,
                    &prepared.schema,
                    pipeline.target.operation.as_str(),
                    &merged.staged,
                    &pipeline.name,
                    &checkpoint,
                    !prepared.resolved.shared_target,
                )
                .map_err(|e| target_error(self.storage.url(), "describing the commit", e))?;
                let completed = proposal.complete(&permit, &metadata, self.inner.clock.as_ref()).await?;
                self.enter(Stage::Publish);
                tidy(&self.storage, &opened.instant).await;
                Ok(Ended::Committed(opened.instant.clone(), Some(completed), checkpoint.seq))
            }
        }
    }

    /// The cursors after this batch.
    fn next_checkpoint(&self, prepared: &Prepared, instant: &InstantTime) -> Checkpoint {
        let pipeline = &self.request.pipeline;
        let stored = prepared.resolved.newest.as_ref().map(|commit| commit.checkpoint.clone());
        let mut next = stored.unwrap_or_else(|| Checkpoint::first(prepared.binding.clone()));
        next.seq += 1;
        next.epoch = prepared.resolved.next_epoch;
        next.binding.clone_from(&prepared.binding);
        next.ceiling_millis = prepared.plans.ceiling_millis;
        next.sources = pipeline
            .sources
            .iter()
            .zip(&prepared.plans.sources)
            .map(|(source, plan)| {
                let lookup = source.read == ReadMode::Snapshot;
                let recent = plan.recent.len().saturating_sub(RECENT_INSTANTS);
                let entry = SourceCheckpoint {
                    kind: source.kind.as_str().to_string(),
                    cursor: (!lookup).then(|| plan.end.clone()),
                    window: window_of(source, plan),
                    as_of: lookup.then(|| plan.end.clone()),
                    fingerprint: plan.table.fingerprint.clone(),
                    recent: plan.recent[recent..].to_vec(),
                };
                (source.name.clone(), entry)
            })
            .collect();
        remember(&mut next, &self.request.request, instant);
        next
    }

    /// After a failure: the instant is rolled back, where it is certain that nothing of it is still being written.
    async fn clean_up(&self, target: &TargetState, instant: &InstantTime, error: &Error, lock: &TableLock) {
        if lock.left().is_some_and(|left| left <= self.inner.settings.commit_request) {
            // Whoever takes the table next rolls it back; two at once must not.
            tracing::warn!(%instant, "the target's lock is lost; the next batch rolls this one back");
            return;
        }
        if error.outcome() == Outcome::Unknown || error.code() == Code::Timeout {
            // An unknown commit is read back first, and a staging that ran out of time may have one operation on its
            // way: a file that lands after a rollback would stay. The next batch rolls it back, under the lock.
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

    /// The commit stands, whatever becomes of these.
    async fn run_services(&self, target: &TargetState, seq: u64, lock: &TableLock) {
        let limit = self.request.pipeline.limits.timeout.0;
        let services = self.services(target);
        tokio::select! {
            ended = tokio::time::timeout(limit, services.run(seq)) => {
                if ended.is_err() {
                    tracing::warn!(?limit, "table services ran out of time; the next batch takes them up again");
                }
            }
            () = lock.lost() => {
                tracing::warn!("the target's lock is lost; the next batch takes its table services up again");
            }
        }
    }

    fn limits(&self) -> MergeLimits {
        let limits = &self.request.pipeline.limits;
        MergeLimits {
            budget: self.budget.clone(),
            spill_bytes: limits.spill.0,
            timeout: limits.timeout.0,
            parallelism: self.inner.settings.parallelism,
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

fn written(merged: &Merged) -> Written {
    let files = &merged.staged.files;
    Written {
        rows: merged.staged.rows_in,
        inserts: files.iter().map(|file| file.inserts).sum(),
        updates: files.iter().map(|file| file.updates).sum(),
        files: files.len() as u64,
        bytes: files.iter().map(|file| file.bytes).sum(),
    }
}

fn lock_lost(url: String) -> Error {
    Error::Conflict {
        url,
        what: "another writer took the target's lock, or it could not be renewed, while rows were staged".to_string(),
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep_alive(
    storage: Storage,
    instant: InstantTime,
    owner: Owner,
    clock: Arc<dyn tributary_types::Clock>,
    every: std::time::Duration,
    beat: Arc<AtomicI64>,
) {
    loop {
        tokio::time::sleep(every).await;
        let now = clock.now_millis();
        match write_heartbeat(&storage, &instant, &owner).await {
            // Counted from before the write: it may have taken long.
            Ok(()) => beat.store(now, Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(%instant, error = &error as &dyn std::error::Error, "heartbeat could not be renewed");
            }
        }
    }
}
