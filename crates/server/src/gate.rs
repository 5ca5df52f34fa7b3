// SPDX-License-Identifier: Apache-2.0
//! The door of a server that stops: batches that run go on for a while, new ones are turned away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tributary_api::checkpoint::CursorCommit;
use tributary_api::coordinator::{
    BatchStatus, Coordinator, Error, OpenedBatch, OverrideStatus, PlannedBatch, RunRequest,
};
use tributary_api::pipelines::{Change, Pipelines, RunStored, StoredPipeline};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Code, Outcome, Override, PipelineName, Retry};

/// Time that batches have to stop once the drain time is over.
const STOPPING: Duration = Duration::from_secs(5);

/// A coordinator that can be told to start nothing new.
pub(crate) struct Gate {
    coordinator: Arc<dyn Coordinator>,
    /// Stored pipelines, where there are any.
    pipelines: Option<Arc<dyn Pipelines>>,
    closed: AtomicBool,
    /// Batches that were started here and may still run.
    running: Mutex<Vec<watch::Receiver<BatchStatus>>>,
}

impl Gate {
    pub(crate) fn new(coordinator: Arc<dyn Coordinator>, pipelines: Option<Arc<dyn Pipelines>>) -> Self {
        Gate { coordinator, pipelines, closed: AtomicBool::new(false), running: Mutex::default() }
    }

    /// Whether pipelines are stored behind it.
    pub(crate) fn keeps_pipelines(&self) -> bool {
        self.pipelines.is_some()
    }

    fn pipelines(&self) -> Result<&Arc<dyn Pipelines>, Error> {
        self.pipelines.as_ref().ok_or_else(|| Error::Other {
            code: Code::Unsupported,
            retry: Retry::Never,
            message: "this server keeps no pipelines".to_string(),
        })
    }

    fn refuse_closed(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Other {
                code: Code::Unavailable,
                retry: Retry::Again,
                message: "the server is stopping and starts no batch; ask again once it is back".to_string(),
            });
        }
        Ok(())
    }

    /// Counts a batch that was started among those that may still run.
    async fn follow(&self, status: &BatchStatus) -> Result<(), Error> {
        if status.outcome.is_none() {
            let batch = self.coordinator.watch_batch(&status.name).await?;
            self.running();
            self.running.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
        }
        Ok(())
    }

    /// Turns new batches away from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn running(&self) -> Vec<watch::Receiver<BatchStatus>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|batch| batch.borrow().outcome.is_none());
        running.clone()
    }

    /// Waits until no batch runs, at most for `limit`; those that still run then are cancelled, so that their instants
    /// are rolled back now and not by their next batch. Answers the batches that did not finish.
    pub(crate) async fn drain(&self, limit: Duration) -> Vec<BatchName> {
        if ended(self.running(), limit).await {
            return Vec::new();
        }
        let unfinished = self.running();
        let mut names = Vec::new();
        for batch in &unfinished {
            let name = batch.borrow().name.clone();
            if let Err(error) = self.coordinator.cancel_batch(&name).await {
                tracing::warn!(batch = %name, error = &error as &dyn std::error::Error, "a batch cannot be cancelled");
            }
        }
        ended(unfinished.clone(), STOPPING).await;
        for batch in unfinished {
            let status = batch.borrow();
            // One that was committing when it was cancelled did finish.
            if status.outcome.is_none_or(|outcome| outcome == Outcome::Cancelled) {
                names.push(status.name.clone());
            }
        }
        names
    }
}

/// Whether all batches ended within `limit`.
async fn ended(batches: Vec<watch::Receiver<BatchStatus>>, limit: Duration) -> bool {
    let all = async {
        for mut batch in batches {
            // A sender that is gone changes nothing any more.
            let _ = batch.wait_for(|status| status.outcome.is_some()).await;
        }
    };
    tokio::time::timeout(limit, all).await.is_ok()
}

#[async_trait]
impl Coordinator for Gate {
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, Error> {
        self.refuse_closed()?;
        let status = self.coordinator.run_batch(request).await?;
        self.follow(&status).await?;
        Ok(status)
    }

    async fn get_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        self.coordinator.get_batch(name).await
    }

    async fn list_batches(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchStatus>, Error> {
        self.coordinator.list_batches(pipeline, limit).await
    }

    async fn watch_batch(&self, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        self.coordinator.watch_batch(name).await
    }

    async fn cancel_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        self.coordinator.cancel_batch(name).await
    }

    async fn plan_batch(&self, pipeline: Pipeline, overrides: Vec<Override>) -> Result<PlannedBatch, Error> {
        self.coordinator.plan_batch(pipeline, overrides).await
    }

    async fn check_overrides(
        &self,
        pipeline: Pipeline,
        overrides: Vec<Override>,
    ) -> Result<Vec<OverrideStatus>, Error> {
        self.coordinator.check_overrides(pipeline, overrides).await
    }

    async fn get_cursors(&self, pipeline: &PipelineName, target: &str) -> Result<Option<CursorCommit>, Error> {
        self.coordinator.get_cursors(pipeline, target).await
    }

    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, Error> {
        self.coordinator.open_batch(name).await
    }
}

#[async_trait]
impl Pipelines for Gate {
    async fn create_pipeline(&self, pipeline: Pipeline, change: Change) -> Result<StoredPipeline, Error> {
        self.pipelines()?.create_pipeline(pipeline, change).await
    }

    async fn update_pipeline(
        &self,
        pipeline: Pipeline,
        allow_missing: bool,
        change: Change,
    ) -> Result<StoredPipeline, Error> {
        self.pipelines()?.update_pipeline(pipeline, allow_missing, change).await
    }

    async fn get_pipeline(&self, name: &PipelineName) -> Result<StoredPipeline, Error> {
        self.pipelines()?.get_pipeline(name).await
    }

    async fn list_pipelines(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredPipeline>, Error> {
        self.pipelines()?.list_pipelines(after, limit).await
    }

    async fn delete_pipeline(&self, name: &PipelineName, allow_missing: bool, change: Change) -> Result<(), Error> {
        self.pipelines()?.delete_pipeline(name, allow_missing, change).await
    }

    async fn pause_pipeline(&self, name: &PipelineName, paused: bool, change: Change) -> Result<StoredPipeline, Error> {
        self.pipelines()?.pause_pipeline(name, paused, change).await
    }

    async fn run_stored(&self, request: RunStored) -> Result<BatchStatus, Error> {
        self.refuse_closed()?;
        let status = self.pipelines()?.run_stored(request).await?;
        self.follow(&status).await?;
        Ok(status)
    }
}
