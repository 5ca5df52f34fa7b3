// SPDX-License-Identifier: Apache-2.0
//! Stored pipelines, and batches that are asked for by their names.

use async_trait::async_trait;
use tributary_api::coordinator::{BatchStatus, Error, RunRequest};
use tributary_api::pipelines::{Change, Pipelines, RunStored, StoredPipeline};
use tributary_types::PipelineName;
use tributary_types::pipeline::Pipeline;

use crate::catalog::Wanted;
use crate::history::definition_of_stored;
use crate::service::Service;

/// A pipeline that can be stored: a coordinator reads no file, and what contradicts itself would fail every batch.
fn check(pipeline: &Pipeline) -> Result<(), Error> {
    let mut problems = pipeline.validate();
    let without_sql = pipeline.transforms.iter().filter(|step| step.sql.is_none());
    let from_file = without_sql.filter_map(|step| step.sql_file.as_ref());
    problems.extend(from_file.map(|file| format!("`{file}` is a file: a stored pipeline has its SQL in it, as `sql`")));
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Error::Pipeline { pipeline: pipeline.name.to_string(), problems }),
    }
}

impl Service {
    fn change(&self, wanted: &Wanted, change: &Change) -> Result<Option<StoredPipeline>, Error> {
        let inner = self.inner();
        let changed = inner.catalog.change(wanted, change, inner.clock.now_millis())?;
        if !change.validate_only {
            tracing::info!(change = ?WantedName(wanted), etag = ?change.etag, "a stored pipeline changed");
        }
        Ok(changed)
    }

    /// A change that leaves a pipeline.
    fn kept(&self, wanted: &Wanted, change: &Change) -> Result<StoredPipeline, Error> {
        let gone = || Error::NoPipeline { name: wanted.name().to_string() };
        self.change(wanted, change)?.ok_or_else(gone)
    }
}

/// A change without the definition, for the log.
struct WantedName<'a>(&'a Wanted);

impl std::fmt::Debug for WantedName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = match self.0 {
            Wanted::Create(_) => "create",
            Wanted::Update { .. } => "update",
            Wanted::Pause { paused: true, .. } => "pause",
            Wanted::Pause { paused: false, .. } => "resume",
            Wanted::Delete { .. } => "delete",
        };
        write!(f, "{verb} {}", self.0.name())
    }
}

#[async_trait]
impl Pipelines for Service {
    async fn create_pipeline(&self, pipeline: Pipeline, change: Change) -> Result<StoredPipeline, Error> {
        check(&pipeline)?;
        self.kept(&Wanted::Create(Box::new(pipeline)), &change)
    }

    async fn update_pipeline(
        &self,
        pipeline: Pipeline,
        allow_missing: bool,
        change: Change,
    ) -> Result<StoredPipeline, Error> {
        check(&pipeline)?;
        self.kept(&Wanted::Update { pipeline: Box::new(pipeline), allow_missing }, &change)
    }

    async fn get_pipeline(&self, name: &PipelineName) -> Result<StoredPipeline, Error> {
        self.inner().catalog.get(name)
    }

    async fn list_pipelines(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredPipeline>, Error> {
        self.inner().catalog.list(after, limit)
    }

    async fn delete_pipeline(&self, name: &PipelineName, allow_missing: bool, change: Change) -> Result<(), Error> {
        self.change(&Wanted::Delete { name: name.clone(), allow_missing }, &change).map(drop)
    }

    async fn pause_pipeline(&self, name: &PipelineName, paused: bool, change: Change) -> Result<StoredPipeline, Error> {
        self.kept(&Wanted::Pause { name: name.clone(), paused }, &change)
    }

    async fn run_stored(&self, request: RunStored) -> Result<BatchStatus, Error> {
        let StoredPipeline { pipeline, .. } = self.inner().catalog.get(&request.name)?;
        let run = RunRequest {
            pipeline,
            request: request.request,
            allow_empty: request.allow_empty,
            overrides: request.overrides,
            cursors_only: request.cursors_only,
            asked_by: request.asked_by,
        };
        self.start(run, definition_of_stored).await
    }
}
