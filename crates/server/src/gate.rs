// SPDX-License-Identifier: Apache-2.0
//! The door of a server that stops: batches that run go on, new ones are turned away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;
use tributary_api::coordinator::{BatchStatus, Coordinator, Error, OpenedBatch, PlannedBatch, RunRequest};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Code, PipelineName, Retry};

const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A coordinator that can be told to start nothing new.
pub(crate) struct Gate {
    coordinator: Arc<dyn Coordinator>,
    closed: AtomicBool,
}

impl Gate {
    pub(crate) fn new(coordinator: Arc<dyn Coordinator>) -> Self {
        Gate { coordinator, closed: AtomicBool::new(false) }
    }

    /// Turns new batches away from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Waits until no batch runs, at most for `limit`. Answers the batches that still run then.
    pub(crate) async fn drain(&self, limit: Duration) -> Result<Vec<BatchName>, Error> {
        let deadline = Instant::now() + limit;
        loop {
            let all = self.coordinator.list_batches(None, usize::MAX).await?;
            let running: Vec<BatchName> =
                all.into_iter().filter(|status| status.outcome.is_none()).map(|status| status.name).collect();
            if running.is_empty() || Instant::now() >= deadline {
                return Ok(running);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

#[async_trait]
impl Coordinator for Gate {
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, Error> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Other {
                code: Code::Unavailable,
                retry: Retry::Again,
                message: "the server is stopping and starts no batch; ask again once it is back".to_string(),
            });
        }
        self.coordinator.run_batch(request).await
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

    async fn plan_batch(&self, pipeline: Pipeline) -> Result<PlannedBatch, Error> {
        self.coordinator.plan_batch(pipeline).await
    }

    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, Error> {
        self.coordinator.open_batch(name).await
    }
}
