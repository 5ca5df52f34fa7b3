// SPDX-License-Identifier: Apache-2.0
//! Pipelines that a coordinator keeps, so that batches of them can be asked for by name.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Override, PipelineName, RequestId};

use crate::coordinator::{BatchStatus, Error};

/// Keeps pipelines. What is stored survives a restart; every change gives the pipeline another etag.
#[async_trait]
pub trait Pipelines: Send + Sync {
    /// Stores a pipeline; one of the same name is refused.
    async fn create_pipeline(&self, pipeline: Pipeline, change: Change) -> Result<StoredPipeline, Error>;

    /// Replaces a definition. With `allow_missing` a pipeline that is not there is created.
    async fn update_pipeline(
        &self,
        pipeline: Pipeline,
        allow_missing: bool,
        change: Change,
    ) -> Result<StoredPipeline, Error>;

    /// One stored pipeline.
    async fn get_pipeline(&self, name: &PipelineName) -> Result<StoredPipeline, Error>;

    /// Stored pipelines in the order of their names, from the one after `after`, at most `limit`.
    async fn list_pipelines(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredPipeline>, Error>;

    /// Forgets a pipeline. Its target and its batches stay.
    async fn delete_pipeline(&self, name: &PipelineName, allow_missing: bool, change: Change) -> Result<(), Error>;

    /// Lets a pipeline start no batch, or lets it again. One that is so already keeps its etag.
    async fn pause_pipeline(&self, name: &PipelineName, paused: bool, change: Change) -> Result<StoredPipeline, Error>;

    /// Starts a batch of a stored pipeline and returns at once. The request's id stands for the pipeline's name: the same
    /// id again answers with the same batch, also when the pipeline was updated or paused in between.
    async fn run_stored(&self, request: RunStored) -> Result<BatchStatus, Error>;
}

/// How a stored pipeline is changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// The etag that it must have; `None`: any.
    pub etag: Option<String>,
    /// Only check, and answer what would be stored.
    pub validate_only: bool,
    /// The caller's id: the same id with the same change again gets the same answer.
    pub request: Option<RequestId>,
}

/// A stored pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredPipeline {
    /// Its definition.
    pub pipeline: Pipeline,
    /// Whether it starts no batch.
    pub paused: bool,
    /// Changes with every change. Empty where nothing was stored.
    pub etag: String,
    /// When it was created, milliseconds since the epoch.
    pub created_millis: i64,
    /// When it was changed last, milliseconds since the epoch.
    pub updated_millis: i64,
}

/// Asks for one batch of a stored pipeline.
#[derive(Debug, Clone)]
pub struct RunStored {
    /// The pipeline.
    pub name: PipelineName,
    /// The caller's id.
    pub request: RequestId,
    /// Commit at the old cursors even if nothing is new.
    pub allow_empty: bool,
    /// Cursors that are set by hand, each once.
    pub overrides: Vec<Override>,
    /// Only set the cursors; this is possible while the pipeline is paused, too.
    pub cursors_only: bool,
    /// Who asks, for the history: free text.
    pub asked_by: String,
}
