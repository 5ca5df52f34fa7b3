// SPDX-License-Identifier: Apache-2.0
//! The coordinator role itself: requests, running batches, and what is known of finished ones.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;
use tributary_api::checkpoint::{BatchRecord, Checkpoints};
use tributary_api::coordinator::{
    BatchStatus, Coordinator, Error, Failure, OpenedBatch, PlannedBatch, RunRequest, Written,
};
use tributary_api::merge::{Merge, MergeLimits};
use tributary_api::timeline::Timeline;
use tributary_hudi::Stores;
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Clock, Code, Entropy, MemoryBudget, Outcome, PipelineName, RequestId, Retry, Stage};

use crate::batch::{Batch, Ended};
use crate::plan::{bind, check_sql, merge_sources, plan_sources};
use crate::settings::Settings;
use crate::target::{TargetState, check_config, target_error};
use crate::{metrics, pull, schema};

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
    inner: Arc<Inner>,
}

/// What a running batch needs of its coordinator.
pub(crate) struct Inner {
    pub(crate) roles: Roles,
    pub(crate) stores: Arc<dyn Stores>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    /// Random name of this process.
    pub(crate) process: String,
    batches: Mutex<Batches>,
}

#[derive(Default)]
struct Batches {
    by_name: HashMap<BatchName, Known>,
    /// Names, oldest first.
    order: Vec<BatchName>,
    pipelines: HashSet<PipelineName>,
}

struct Known {
    pipeline: Pipeline,
    status: watch::Receiver<BatchStatus>,
}

impl Service {
    /// A coordinator of targets in `stores`.
    pub fn new(
        roles: Roles,
        stores: Arc<dyn Stores>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        settings: Settings,
    ) -> Self {
        metrics::register();
        let process = format!("{:032x}", entropy.next_u128());
        Service { inner: Arc::new(Inner { roles, stores, clock, settings, process, batches: Mutex::default() }) }
    }
}

impl Inner {
    fn batches(&self) -> MutexGuard<'_, Batches> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a batch, or finds the one that has its name.
    fn admit(&self, request: &RunRequest, first: BatchStatus) -> Result<Admitted, Error> {
        let mut batches = self.batches();
        if let Some(known) = batches.by_name.get(&first.name) {
            if known.pipeline != request.pipeline {
                return Err(Error::RequestReused { request: request.request.clone() });
            }
            let status = known.status.borrow().clone();
            // A batch that failed for now may be asked for again by the same id.
            let failed =
                status.outcome.is_some_and(|outcome| !matches!(outcome, Outcome::Committed | Outcome::NoNewData));
            if !failed {
                return Ok(Admitted::Known(Box::new(status)));
            }
        }
        if batches.pipelines.insert(request.pipeline.name.clone()) {
            metrics::register_pipeline(request.pipeline.name.as_str());
        }
        let name = first.name.clone();
        let (sender, status) = watch::channel(first);
        let known = Known { pipeline: request.pipeline.clone(), status };
        if batches.by_name.insert(name.clone(), known).is_none() {
            batches.order.push(name);
        }
        self.forget_old(&mut batches);
        Ok(Admitted::New(sender))
    }

    fn forget_old(&self, batches: &mut Batches) {
        let surplus = batches.order.len().saturating_sub(self.settings.remembered_batches);
        let running = |name: &BatchName| batches.by_name.get(name).is_some_and(|k| k.status.borrow().outcome.is_none());
        let old: Vec<BatchName> = batches.order.iter().take(surplus).filter(|name| !running(name)).cloned().collect();
        for name in &old {
            batches.by_name.remove(name);
        }
        batches.order.retain(|name| !old.contains(name));
    }

    fn find(&self, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        let batches = self.batches();
        let known = batches.by_name.get(name).ok_or_else(|| Error::NoBatch { name: name.to_string() })?;
        Ok(known.status.clone())
    }

    /// Runs a batch to its end; every way out sets its outcome.
    async fn run(&self, request: RunRequest, status: watch::Sender<BatchStatus>) {
        let result = match Batch::new(self, &request, &status) {
            Ok(batch) => batch.run().await,
            Err(error) => Err(error),
        };
        let took = (self.clock.now_millis() - status.borrow().started_millis).max(0) as u64;
        status.send_modify(|status| {
            status.stage = Stage::Done;
            match result {
                Ok(Ended::Committed(instant, completed, seq)) => {
                    status.outcome = Some(Outcome::Committed);
                    status.instant = Some(instant);
                    status.completed = completed;
                    status.seq = Some(seq);
                }
                Ok(Ended::NoNewData) => status.outcome = Some(Outcome::NoNewData),
                Err(error) => {
                    status.outcome = Some(error.outcome());
                    status.error = Some(error.failure());
                }
            }
        });
        let ended = status.borrow().clone();
        self.publish(&ended, took).await;
    }

    async fn publish(&self, ended: &BatchStatus, took_millis: u64) {
        let outcome = ended.outcome.unwrap_or(Outcome::Failed);
        let pipeline = ended.pipeline.to_string();
        let labels = [("pipeline", pipeline.clone()), ("outcome", outcome.as_str().to_string())];
        ::metrics::counter!(metrics::BATCHES, &labels).increment(1);
        ::metrics::histogram!(metrics::DURATION, "pipeline" => pipeline.clone()).record(took_millis as f64 / 1000.0);
        ::metrics::counter!(metrics::ROWS, "pipeline" => pipeline).increment(ended.written.rows);
        tracing::info!(
            batch = %ended.name,
            outcome = outcome.as_str(),
            instant = ended.instant.as_ref().map(ToString::to_string),
            rows = ended.written.rows,
            took_millis,
            error = ended.error.as_ref().map(|failure| failure.message.as_str()),
            "batch ended"
        );
        let record = record_of(ended, outcome, took_millis);
        if let Err(error) = self.roles.checkpoints.record(record).await {
            // History is a convenience: the commit itself says everything.
            tracing::warn!(error = &error as &dyn std::error::Error, "the batch's record could not be kept");
        }
    }
}

enum Admitted {
    New(watch::Sender<BatchStatus>),
    Known(Box<BatchStatus>),
}

#[async_trait]
impl Coordinator for Service {
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, Error> {
        let problems = request.pipeline.validate();
        if !problems.is_empty() {
            return Err(Error::Pipeline { pipeline: request.pipeline.name.to_string(), problems });
        }
        let first = first_status(&request.pipeline, &request.request, self.inner.clock.now_millis())?;
        match self.inner.admit(&request, first.clone())? {
            Admitted::Known(status) => Ok(*status),
            Admitted::New(sender) => {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move { inner.run(request, sender).await });
                Ok(first)
            }
        }
    }

    async fn get_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        match self.inner.find(name) {
            Ok(status) => Ok(status.borrow().clone()),
            Err(error) => self.find_in_history(name).await?.ok_or(error),
        }
    }

    async fn list_batches(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchStatus>, Error> {
        let batches = self.inner.batches();
        let newest = batches.order.iter().rev().filter_map(|name| batches.by_name.get(name));
        let statuses = newest.map(|known| known.status.borrow().clone());
        Ok(statuses.filter(|status| pipeline.is_none_or(|name| &status.pipeline == name)).take(limit).collect())
    }

    async fn watch_batch(&self, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        self.inner.find(name)
    }

    async fn plan_batch(&self, pipeline: Pipeline) -> Result<PlannedBatch, Error> {
        let problems = pipeline.validate();
        if !problems.is_empty() {
            return Err(Error::Pipeline { pipeline: pipeline.name.to_string(), problems });
        }
        let url = &pipeline.target.path;
        let roles = &self.inner.roles;
        let storage = self.inner.stores.open(url).map_err(|e| target_error(url, "opening the target", e))?;
        let existing = TargetState::load(&storage).await?;
        if let Some(target) = &existing {
            let problems = check_config(&pipeline.target, &target.config);
            if !problems.is_empty() {
                return Err(Error::Target { url: url.clone(), what: problems.join("; ") });
            }
        }
        let resolved = roles.checkpoints.resolve(&pipeline.name, storage.url()).await?;
        let stored = resolved.newest.as_ref().map(|commit| &commit.checkpoint);
        let bound = bind(roles, &pipeline).await?;
        let plans = plan_sources(roles, &pipeline, &bound, stored, None).await?;
        let sources = merge_sources(&pipeline, &plans)?;
        let limits = MergeLimits {
            budget: MemoryBudget::new(pipeline.limits.memory.0 as usize),
            spill_bytes: pipeline.limits.spill.0,
            timeout: pipeline.limits.timeout.0,
            parallelism: self.inner.settings.parallelism,
        };
        let checked = check_sql(roles, &pipeline, &sources, &limits).await?;
        let stored_schema = existing.as_ref().and_then(|target| target.schema.as_ref());
        let schema = schema::target_schema(&pipeline.target, stored_schema, &checked.schema)
            .map_err(|problems| Error::Target { url: url.clone(), what: problems.join("; ") })?;
        let columns = schema.fields().iter().map(|f| (f.name().clone(), f.data_type().to_string())).collect();
        Ok(PlannedBatch {
            sources: plans.status(&pipeline),
            has_news: plans.has_news(&pipeline),
            logical_plan: checked.logical_plan,
            physical_plan: checked.physical_plan,
            columns,
        })
    }

    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, Error> {
        let (target, status) = {
            let batches = self.inner.batches();
            let known = batches.by_name.get(name).ok_or_else(|| Error::NoBatch { name: name.to_string() })?;
            (known.pipeline.target.path.clone(), known.status.borrow().clone())
        };
        pull::open(&self.inner.roles.timeline, &target, status, self.inner.settings.pull_batch_rows).await
    }
}

impl Service {
    async fn find_in_history(&self, name: &BatchName) -> Result<Option<BatchStatus>, Error> {
        let Some((pipeline, request)) = name.as_str().split_once('/') else { return Ok(None) };
        let (Ok(pipeline), Ok(request)) = (PipelineName::new(pipeline), RequestId::new(request)) else {
            return Ok(None);
        };
        let record = self.inner.roles.checkpoints.find_request(&pipeline, &request).await?;
        Ok(record.map(|record| status_of(name, record)))
    }
}

fn first_status(pipeline: &Pipeline, request: &RequestId, now_millis: i64) -> Result<BatchStatus, Error> {
    let name = BatchName::new(format!("{}/{request}", pipeline.name))
        .map_err(|e| Error::Pipeline { pipeline: pipeline.name.to_string(), problems: vec![e.to_string()] })?;
    Ok(BatchStatus {
        name,
        pipeline: pipeline.name.clone(),
        request: request.clone(),
        stage: Stage::Pending,
        outcome: None,
        instant: None,
        completed: None,
        seq: None,
        sources: Vec::new(),
        written: Written::default(),
        timings: Vec::new(),
        peak_memory: 0,
        error: None,
        started_millis: now_millis,
    })
}

fn record_of(ended: &BatchStatus, outcome: Outcome, took_millis: u64) -> BatchRecord {
    let windows = ended.sources.iter().filter_map(|s| s.window.clone().map(|window| (s.source.to_string(), window)));
    BatchRecord {
        name: ended.name.to_string(),
        pipeline: ended.pipeline.clone(),
        request: ended.request.clone(),
        outcome,
        instant: ended.instant.clone(),
        completed: ended.completed.clone(),
        windows: windows.collect(),
        rows: ended.written.rows,
        started_millis: ended.started_millis,
        took_millis,
        error: ended.error.as_ref().map(|failure| failure.message.clone()),
    }
}

fn status_of(name: &BatchName, record: BatchRecord) -> BatchStatus {
    let failure =
        |message| Failure { code: Code::Internal, retry: Retry::Never, reason: "FROM_HISTORY".to_string(), message };
    BatchStatus {
        name: name.clone(),
        pipeline: record.pipeline,
        request: record.request,
        stage: Stage::Done,
        outcome: Some(record.outcome),
        instant: record.instant,
        completed: record.completed,
        seq: None,
        sources: Vec::new(),
        written: Written { rows: record.rows, ..Written::default() },
        timings: Vec::new(),
        peak_memory: 0,
        error: record.error.map(failure),
        started_millis: record.started_millis,
    }
}
