// SPDX-License-Identifier: Apache-2.0
//! The coordinator role itself: requests, running batches, and what is known of finished ones.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use tokio::sync::{Semaphore, watch};
use tracing::Instrument as _;
use tributary_api::checkpoint::CursorCommit;
use tributary_api::checkpoint::{BatchRecord, Checkpoints};
use tributary_api::coordinator::{
    BatchStatus, Coordinator, Error, OpenedBatch, OverrideStatus, PlannedBatch, Refused, RunRequest, Written,
};
use tributary_api::merge::{Merge, MergeLimits};
use tributary_api::timeline::Timeline;
use tributary_api::{BatchObserver, Progress, Stop};
use tributary_hudi::target::LockOwner;
use tributary_hudi::{Storage, Stores, TableConfig};
use tributary_store::{KeyValue, MemoryStore};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Clock, Entropy, MemoryBudget, Outcome, Override, PipelineName, RequestId, Stage};

use crate::batch::{Batch, Ended};
use crate::catalog::Catalog;
use crate::control::Control;
use crate::history::{definition_of_request, target_key};
use crate::plan::{Purpose, open};
use crate::refused::{check_error_table, refusing};
use crate::registry::{Admitted, Registry, answers};
use crate::remains::refuse_reading_the_target;
use crate::schedule::{Claim, Limits, Schedule, Turn};
use crate::setting;
use crate::settings::Settings;
use crate::spans::{batch_span, close_span};
use crate::standing::find_standing;
use crate::target::{TargetState, check_config, is_untouched, load_timeline, target_error};
use crate::turns::Conflicts;
use crate::{metrics, pull, source_metrics};

/// The roles a coordinator calls.
#[derive(Clone)]
pub struct Roles {
    /// Reads the sources.
    pub timeline: Arc<dyn Timeline>,
    /// Finds cursors and keeps the history.
    pub checkpoints: Arc<dyn Checkpoints>,
    /// Runs the SQL and hands its rows to the writer.
    pub merge: Arc<dyn Merge>,
}

/// The coordinator role.
pub struct Service {
    pub(crate) inner: Arc<Inner>,
}

/// What a running batch needs of its coordinator.
pub(crate) struct Inner {
    pub(crate) roles: Roles,
    pub(crate) stores: Arc<dyn Stores>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    /// Random name of this process.
    pub(crate) process: String,
    pub(crate) registry: Registry,
    pub(crate) schedule: Arc<Schedule>,
    /// Stored pipelines.
    pub(crate) catalog: Catalog,
    /// Conflicts with other writers in a row.
    pub(crate) conflicts: Conflicts,
    /// Locks asked for so far: each has an owner of its own.
    locks: AtomicU64,
    /// One for each query of a puller that may run.
    pub(crate) queries: Arc<Semaphore>,
    /// Who wants to know of the batches.
    observer: OnceLock<Arc<dyn BatchObserver>>,
    /// Batches of which it was told how they ended once that was found out, and when each began.
    found_out: Mutex<HashSet<(BatchName, i64)>>,
}

impl Service {
    /// A coordinator of targets in `stores`, which forgets stored pipelines with its process.
    pub fn new(
        roles: Roles,
        stores: Arc<dyn Stores>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        settings: Settings,
    ) -> Self {
        Service::with_catalog(roles, stores, clock, entropy, settings, Arc::new(MemoryStore::default()))
    }

    /// The same, keeping stored pipelines in `catalog`.
    pub fn with_catalog(
        roles: Roles,
        stores: Arc<dyn Stores>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        settings: Settings,
        catalog: Arc<dyn KeyValue>,
    ) -> Self {
        metrics::register();
        let process = format!("{:032x}", entropy.next_u128());
        let registry = Registry::new(settings.remembered_batches);
        let schedule = Schedule::new(Limits { batches: settings.batches_at_once, memory: settings.memory });
        let locks = AtomicU64::new(0);
        let conflicts = Conflicts::default();
        let catalog = Catalog::new(catalog);
        let queries = Arc::new(Semaphore::new(settings.queries_at_once));
        let observer = OnceLock::new();
        let inner = Inner {
            roles,
            stores,
            clock,
            settings,
            process,
            registry,
            schedule,
            catalog,
            conflicts,
            locks,
            queries,
            observer,
            found_out: Mutex::default(),
        };
        Service { inner: Arc::new(inner) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Tells `observer` of every batch from now on; the first one that is given stays.
    pub fn observe(&self, observer: Arc<dyn BatchObserver>) {
        let _ = self.inner.observer.set(observer);
    }

    /// Finds out what became of batches whose process ended before they did. Answers what was found, a sentence each.
    /// Run once when a process starts; whoever asks for such a batch finds it out as well.
    pub async fn recover(&self) -> Result<Vec<String>, Error> {
        self.inner.recover().await
    }

    /// Starts a batch, or answers with the one that answers its request. `define` tells by what two requests under one id
    /// are the same.
    pub(crate) async fn start(
        &self,
        request: RunRequest,
        define: fn(&RunRequest) -> String,
    ) -> Result<BatchStatus, Error> {
        let problems = request.pipeline.validate();
        if !problems.is_empty() {
            return Err(Error::Pipeline { pipeline: request.pipeline.name.to_string(), problems });
        }
        let request = setting::prepared(request)?;
        let inner = &self.inner;
        let first = first_status(&request, inner.clock.now_millis())?;
        let definition = define(&request);
        // A stored pipeline may have another target by now than the batch that answers for it.
        let answered = match inner.registry.answer(&first.name, &definition, &request)? {
            Some(status) => inner.registry.find(&first.name).map(|known| (status, known.target)),
            None => inner.answer_from_record(&first.name, &definition, &request.request).await?,
        };
        let undone = match &answered {
            Some((status, target)) => inner.is_undone(target, status).await.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(batch = %status.name, error, "whether the target still has the batch cannot be told");
                false
            }),
            None => false,
        };
        if let Some((status, _)) = answered.filter(|_| !undone) {
            return Ok(status);
        }
        inner.refuse_paused(&request)?;
        let admitted = match inner.registry.admit(&request, &definition, first.clone(), undone)? {
            Ok(admitted) => admitted,
            Err(known) => return Ok(known),
        };
        if admitted.first_of_pipeline {
            metrics::register_pipeline(request.pipeline.name.as_str(), refusing(&request.pipeline));
            source_metrics::register(&request.pipeline);
        }
        // Before the answer, so that who got it can ask again after a restart.
        inner.keep_record(&first, &request.pipeline, &definition).await;
        // Before the answer as well: requests that follow one another wait in that order.
        let turn = inner.schedule.enter(claim_of(&request.pipeline));
        let span = batch_span(&first);
        tokio::spawn(Arc::clone(inner).run(Arc::new(request), definition, admitted, turn).instrument(span));
        Ok(first)
    }
}

impl Inner {
    pub(crate) fn observer(&self) -> Option<&dyn BatchObserver> {
        self.observer.get().map(AsRef::as_ref)
    }

    /// Tells and counts how a batch ended that did not say it itself; once, however often it is asked for meanwhile.
    /// `counted`: as one whose outcome is unknown.
    pub(crate) fn tell_found_out(&self, target: &str, status: &BatchStatus, counted: bool) {
        let batch = (status.name.clone(), status.started_millis);
        let (true, Some(outcome)) =
            (self.found_out.lock().unwrap_or_else(PoisonError::into_inner).insert(batch), status.outcome)
        else {
            return;
        };
        if !counted {
            metrics::record_found_out(status.pipeline.as_str(), outcome);
        }
        if let Some(observer) = self.observer() {
            observer.found_out(target, status);
        }
    }

    /// Who takes a target's lock next; `what` says what for.
    pub(crate) fn lock_owner(&self, what: &str) -> LockOwner {
        let number = self.locks.fetch_add(1, Ordering::Relaxed);
        LockOwner {
            name: format!("{}/{number}/{what}", self.process),
            clock: Arc::clone(&self.clock),
            leases: self.settings.leases.clone(),
        }
    }

    /// The files of a table that is to be written.
    pub(crate) fn open_target(&self, url: &str) -> Result<Storage, Error> {
        let opened = self.stores.open(url).and_then(|storage| storage.check_writable().map(|()| storage));
        opened.map_err(|e| target_error(url, "opening the target", e))
    }

    /// Refuses a batch of a paused pipeline, unless it only sets cursors.
    fn refuse_paused(&self, request: &RunRequest) -> Result<(), Error> {
        let name = &request.pipeline.name;
        match !request.cursors_only && self.catalog.is_paused(name)? {
            true => Err(Error::Paused { name: name.clone() }),
            false => Ok(()),
        }
    }

    /// What a merge of the pipeline may use.
    pub(crate) fn limits(&self, pipeline: &Pipeline) -> MergeLimits {
        let limits = &pipeline.limits;
        MergeLimits {
            budget: MemoryBudget::new(limits.memory.0 as usize),
            spill_bytes: limits.spill.0,
            timeout: limits.timeout.0,
            parallelism: self.settings.parallelism,
            stop: Stop::default(),
            progress: Progress::default(),
        }
    }

    /// Waits for its turn and runs a batch to its end; every way out sets its outcome.
    async fn run(self: Arc<Self>, request: Arc<RunRequest>, definition: String, admitted: Admitted, turn: Turn) {
        let Admitted { status, control, .. } = admitted;
        let status = Arc::new(status);
        if let Some(observer) = self.observer() {
            observer.began(&request.pipeline, &status.borrow().clone());
        }
        // In a task of its own: whatever happens in it, even a panic, ends the batch with an outcome.
        let running = (Arc::clone(&self), Arc::clone(&request), definition.clone());
        let batch = run_in_turn(running, Arc::clone(&status), control, turn);
        let task = tokio::spawn(batch.in_current_span());
        let result = match task.await {
            Ok(result) => result,
            Err(ended) => Err(Error::Lost { what: format!("the batch ended without an outcome: {}", panic_of(ended)) }),
        };
        self.conflicts.ended(&request.pipeline.name, &result);
        let mut ended = status.borrow().clone();
        ended.stage = Stage::Done;
        match result {
            Ok(Ended::Committed(commit)) => {
                ended.outcome = Some(Outcome::Committed);
                ended.instant = Some(commit.instant);
                ended.completed = commit.completed;
                ended.seq = commit.seq;
            }
            Ok(Ended::NoNewData) => ended.outcome = Some(Outcome::NoNewData),
            Err(error) => {
                ended.outcome = Some(error.outcome());
                ended.error = Some(error.failure());
            }
        }
        let took_millis = (self.clock.now_millis() - ended.started_millis).max(0) as u64;
        close_span(&ended);
        publish(&ended, took_millis);
        let outcome = ended.outcome.unwrap_or(Outcome::Failed);
        metrics::record_end(ended.pipeline.as_str(), outcome, self.clock.now_millis());
        setting::count(&request, &ended);
        if let Some(observer) = self.observer() {
            observer.ended(&request.pipeline, &ended);
        }
        // Before anybody hears of the end: whoever does may end the process.
        self.keep_record(&ended, &request.pipeline, &definition).await;
        status.send_replace(ended);
    }

    /// Keeps the record of a batch. History is a convenience, since the commit itself says everything: a role that does
    /// not answer holds no batch up.
    async fn keep_record(&self, status: &BatchStatus, pipeline: &Pipeline, definition: &str) {
        let record = BatchRecord {
            status: status.clone(),
            target: pipeline.target.path.clone(),
            definition: definition.to_string(),
            process: self.process.clone(),
        };
        match tokio::time::timeout(self.settings.record_within, self.roles.checkpoints.record(record)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(batch = %status.name, error, "the batch's record could not be kept");
            }
            Err(_) => tracing::warn!(batch = %status.name, "the checkpoint role took too long to keep a record"),
        }
    }

    /// A batch and its target, of this process or from its record.
    pub(crate) async fn find_with_target(&self, name: &BatchName) -> Result<(BatchStatus, String), Error> {
        if let Some(known) = self.registry.find(name) {
            let status = known.status.borrow().clone();
            if status.outcome != Some(Outcome::Unknown) {
                return Ok((status, known.target));
            }
        }
        // One whose commit is unknown is read back: its record is settled as soon as the target tells how it ended.
        let record = self.find_record(name).await?.ok_or_else(|| Error::NoBatch { name: name.to_string() })?;
        Ok((record.status, record.target))
    }

    /// A batch as it is pulled, and its target.
    pub(crate) async fn find_to_pull(&self, name: &BatchName) -> Result<(BatchStatus, Storage), Error> {
        let (mut status, target) = self.find_with_target(name).await?;
        if status.outcome == Some(Outcome::Committed) && status.completed.is_none() {
            status.completed = completion_of(self, &target, &status).await?;
        }
        let storage = self.stores.open(&target).map_err(|e| target_error(&target, "opening the target", e))?;
        Ok((status, storage))
    }

    /// The batch of an earlier process that already answers a request for good, and its target.
    async fn answer_from_record(
        &self,
        name: &BatchName,
        definition: &str,
        request: &RequestId,
    ) -> Result<Option<(BatchStatus, String)>, Error> {
        let record = match self.find_record(name).await {
            Ok(record) => record,
            Err(error) => {
                // The batch asks the same role and says better what is wrong; and the target knows its commits.
                let error = &error as &dyn std::error::Error;
                tracing::warn!(batch = %name, error, "whether the request was made before cannot be looked up");
                None
            }
        };
        let Some(record) = record else { return Ok(None) };
        if record.definition != definition {
            return Err(Error::RequestReused { request: request.clone() });
        }
        let answered = Some((record.status, record.target));
        Ok(answered.filter(|(status, _)| status.outcome.is_some() && answers(status)))
    }
}

/// What a batch of the pipeline needs to run.
fn claim_of(pipeline: &Pipeline) -> Claim {
    Claim {
        pipeline: pipeline.name.clone(),
        target: target_key(&pipeline.target.path),
        memory: pipeline.limits.memory.0,
    }
}

/// The whole of a batch but its outcome.
async fn run_in_turn(
    (inner, request, definition): (Arc<Inner>, Arc<RunRequest>, String),
    status: Arc<watch::Sender<BatchStatus>>,
    control: Arc<Control>,
    turn: Turn,
) -> Result<Ended, Error> {
    let stop = control.stop();
    let _slot = tokio::select! {
        biased;
        () = stop.wait() => return Err(Error::Cancelled),
        slot = turn.comes().instrument(tracing::info_span!("wait for a turn")) => slot,
    };
    // It may have been paused while the batch waited.
    inner.refuse_paused(&request)?;
    Batch::new(&inner, &request, definition, &status, &control)?.run().await
}

fn panic_of(ended: tokio::task::JoinError) -> String {
    let Ok(panic) = ended.try_into_panic() else { return "its task was aborted".to_string() };
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_string())
}

fn publish(ended: &BatchStatus, took_millis: u64) {
    let outcome = ended.outcome.unwrap_or(Outcome::Failed);
    let pipeline = ended.pipeline.to_string();
    let labels = [("pipeline", pipeline.clone()), ("outcome", outcome.as_str().to_string())];
    ::metrics::counter!(metrics::BATCHES, &labels).increment(1);
    ::metrics::histogram!(metrics::DURATION, "pipeline" => pipeline.clone()).record(took_millis as f64 / 1000.0);
    ::metrics::counter!(metrics::ROWS, "pipeline" => pipeline.clone()).increment(ended.written.rows);
    for (why, rows) in metrics::left_out(&ended.written) {
        ::metrics::counter!(metrics::LEFT_OUT, "pipeline" => pipeline.clone(), "why" => why).increment(rows);
    }
    tracing::info!(
        batch = %ended.name,
        outcome = outcome.as_str(),
        instant = ended.instant.as_ref().map(ToString::to_string),
        rows = ended.written.rows,
        took_millis,
        error = ended.error.as_ref().map(|failure| failure.message.as_str()),
        "batch ended"
    );
}

#[async_trait]
impl Coordinator for Service {
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, Error> {
        self.start(request, definition_of_request).await
    }

    async fn get_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        Ok(self.inner.find_with_target(name).await?.0)
    }

    async fn list_batches(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchStatus>, Error> {
        let mut all = self.inner.registry.newest();
        all.retain(|status| pipeline.is_none_or(|name| &status.pipeline == name));
        // Unknown ones are left to their records, which are read back.
        all.retain(|status| status.outcome != Some(Outcome::Unknown));
        let known: HashSet<BatchName> = all.iter().map(|status| status.name.clone()).collect();
        let records = self.inner.records(pipeline, limit).await?;
        all.extend(records.into_iter().map(|record| record.status).filter(|status| !known.contains(&status.name)));
        // Stable: batches of one moment stay in the order in which they came.
        all.sort_by_key(|status| std::cmp::Reverse(status.started_millis));
        all.truncate(limit);
        Ok(all)
    }

    async fn watch_batch(&self, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        self.inner.watch(name).await
    }

    async fn cancel_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        if let Some(known) = self.inner.registry.find(name) {
            known.control.cancel();
            let status = known.status.borrow().clone();
            return Ok(status);
        }
        // One of an earlier process is over, or not ours to end.
        self.get_batch(name).await
    }

    async fn plan_batch(&self, pipeline: Pipeline, overrides: Vec<Override>) -> Result<PlannedBatch, Error> {
        let problems = pipeline.validate();
        if !problems.is_empty() {
            return Err(Error::Pipeline { pipeline: pipeline.name.to_string(), problems });
        }
        let url = &pipeline.target.path;
        let inner = &self.inner;
        let storage = inner.open_target(url)?;
        refuse_reading_the_target(inner.stores.as_ref(), &pipeline, &storage)?;
        if let Some(table) = &pipeline.error_table {
            check_error_table(inner, &pipeline, table, &storage).await?;
        }
        let existing = TargetState::load(&storage).await?;
        if let Some(target) = &existing {
            let problems = check_config(&pipeline.target, &target.config);
            if !problems.is_empty() && !is_untouched(target) {
                return Err(Error::Target { url: url.clone(), what: problems.join("; ") });
            }
            target.check_writers(url, pipeline.target.writers)?;
        }
        let resolved = inner.roles.checkpoints.look_up(&pipeline.name, storage.url()).await?;
        let standing = find_standing(&inner.roles, &pipeline, storage.url(), &resolved, &overrides).await?;
        let limits = inner.limits(&pipeline);
        let opening =
            open(&inner.roles, &pipeline, Purpose::Look, existing.as_ref(), &standing, &limits, |_| {}).await?;
        let fields = opening.schema.fields().iter();
        Ok(PlannedBatch {
            sources: opening.plans.status(&pipeline),
            overrides: standing.overrides().to_vec(),
            has_news: opening.plans.has_news(&pipeline) || !standing.tokens().is_empty(),
            logical_plan: opening.checked.logical_plan,
            physical_plan: opening.checked.physical_plan,
            columns: fields.map(|f| (f.name().clone(), f.data_type().to_string())).collect(),
        })
    }

    async fn check_overrides(
        &self,
        pipeline: Pipeline,
        overrides: Vec<Override>,
    ) -> Result<Vec<OverrideStatus>, Error> {
        setting::check(&self.inner, &pipeline, overrides).await
    }

    async fn get_cursors(&self, pipeline: &PipelineName, target: &str) -> Result<Option<CursorCommit>, Error> {
        let inner = &self.inner;
        let storage = inner.stores.open(target).map_err(|e| target_error(target, "opening the target", e))?;
        Ok(inner.roles.checkpoints.look_up(pipeline, storage.url()).await?.newest)
    }

    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, Error> {
        let inner = &self.inner;
        let (status, storage) = inner.find_to_pull(name).await?;
        pull::open(&inner.roles.timeline, &storage, status, inner.settings.pull_batch_rows).await
    }
}

/// The completion time of a batch's commit, where its timeline still has it: an answer to a request that was found in a
/// newer commit does not tell it.
async fn completion_of(
    inner: &Inner,
    target: &str,
    status: &BatchStatus,
) -> Result<Option<tributary_types::InstantTime>, Error> {
    let Some(instant) = &status.instant else { return Ok(None) };
    let fail = |e| target_error(target, "reading the target", e);
    let storage = inner.stores.open(target).map_err(fail)?;
    let config = match TableConfig::load(&storage).await {
        Ok(config) => config,
        Err(tributary_hudi::Error::NoTable { .. }) => return Ok(None),
        Err(e) => return Err(fail(e)),
    };
    let timeline = load_timeline(&storage, &config).await?;
    Ok(timeline.find(instant).and_then(|found| found.completed.clone()))
}

fn first_status(request: &RunRequest, now_millis: i64) -> Result<BatchStatus, Error> {
    let pipeline = &request.pipeline.name;
    let name = BatchName::new(format!("{pipeline}/{}", request.request))
        .map_err(|e| Error::Pipeline { pipeline: pipeline.to_string(), problems: vec![e.to_string()] })?;
    Ok(BatchStatus {
        name,
        pipeline: pipeline.clone(),
        request: request.request.clone(),
        asked_by: request.asked_by.clone(),
        stage: Stage::Pending,
        outcome: None,
        instant: None,
        completed: None,
        seq: None,
        sources: Vec::new(),
        overrides: Vec::new(),
        written: Written::default(),
        refused: Refused::default(),
        timings: Vec::new(),
        peak_memory: 0,
        error: None,
        started_millis: now_millis,
    })
}
