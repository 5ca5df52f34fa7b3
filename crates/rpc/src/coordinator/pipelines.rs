// SPDX-License-Identifier: Apache-2.0
//! Stored pipelines over gRPC: what the server does with the messages, and the client's side.

use std::sync::Arc;

use async_trait::async_trait;
use tonic::Status;
use tributary_api::coordinator::{BatchStatus, Error};
use tributary_api::pipelines::{Change, Pipelines, RunStored, StoredPipeline};
use tributary_types::pipeline::Pipeline;
use tributary_types::{PipelineName, RequestId};

use super::CoordinatorClient;
use super::server::{page_size, read_pipeline, read_request};
use crate::convert::{
    Malformed, batch_from_proto, overrides_to_proto, pipeline_to_proto, required, stored_from_proto, stored_to_proto,
};
use crate::fault::{malformed, to_status, unsupported};
use crate::proto::coordinator as proto;

/// The pipelines that a server keeps, if it keeps any.
pub(super) struct Stored(pub(super) Option<Arc<dyn Pipelines>>);

/// A text that cannot be a pipeline's name names no stored one.
pub(super) fn read_pipeline_name(name: &str) -> Result<PipelineName, Status> {
    if name.is_empty() {
        return Err(malformed(Malformed::new("name", "is missing")));
    }
    PipelineName::new(name).map_err(|_| to_status(&Error::NoPipeline { name: name.to_string() }))
}

fn read_change(etag: String, validate_only: bool, request_id: String) -> Result<Change, Status> {
    let request = match request_id.is_empty() {
        true => None,
        false => Some(read_request(request_id)?),
    };
    Ok(Change { etag: Some(etag).filter(|etag| !etag.is_empty()), validate_only, request })
}

impl Stored {
    pub(super) fn keeper(&self) -> Result<&Arc<dyn Pipelines>, Status> {
        self.0.as_ref().ok_or_else(|| unsupported("this server keeps no pipelines"))
    }

    /// The pipeline of a request: the one in it, or the stored one that it names.
    pub(super) async fn pipeline_of(&self, sent: Option<proto::Pipeline>, name: &str) -> Result<Pipeline, Status> {
        match (sent, name) {
            (Some(_), name) if !name.is_empty() => {
                Err(malformed(Malformed::new("pipeline_name", "does not go with `pipeline`: give one of them")))
            }
            (sent, "") => read_pipeline(sent),
            (_, name) => {
                let name = read_pipeline_name(name)?;
                let stored = self.keeper()?.get_pipeline(&name).await.map_err(|e| to_status(&e))?;
                Ok(stored.pipeline)
            }
        }
    }

    pub(super) async fn create(&self, request: proto::CreatePipelineRequest) -> Result<proto::StoredPipeline, Status> {
        let change = read_change(String::new(), request.validate_only, request.request_id)?;
        let pipeline = read_pipeline(request.pipeline)?;
        answer(self.keeper()?.create_pipeline(pipeline, change).await)
    }

    pub(super) async fn update(&self, request: proto::UpdatePipelineRequest) -> Result<proto::StoredPipeline, Status> {
        let change = read_change(request.etag, request.validate_only, request.request_id)?;
        let pipeline = read_pipeline(request.pipeline)?;
        answer(self.keeper()?.update_pipeline(pipeline, request.allow_missing, change).await)
    }

    pub(super) async fn get(&self, request: proto::GetPipelineRequest) -> Result<proto::StoredPipeline, Status> {
        answer(self.keeper()?.get_pipeline(&read_pipeline_name(&request.name)?).await)
    }

    pub(super) async fn list(
        &self,
        request: proto::ListPipelinesRequest,
    ) -> Result<proto::ListPipelinesResponse, Status> {
        let size = page_size(request.page_size)?;
        let after = Some(request.page_token.as_str()).filter(|token| !token.is_empty());
        if after.is_some_and(|token| PipelineName::new(token).is_err()) {
            return Err(malformed(Malformed::new("page_token", "is of no page; list anew")));
        }
        // One more tells whether another page follows.
        let mut found = self.keeper()?.list_pipelines(after, size + 1).await.map_err(|e| to_status(&e))?;
        let more = found.len() > size;
        found.truncate(size);
        let last = found.last().filter(|_| more).map(|stored| stored.pipeline.name.to_string());
        Ok(proto::ListPipelinesResponse {
            pipelines: found.iter().map(stored_to_proto).collect(),
            next_page_token: last.unwrap_or_default(),
        })
    }

    pub(super) async fn delete(&self, request: proto::DeletePipelineRequest) -> Result<(), Status> {
        let change = read_change(request.etag, request.validate_only, request.request_id)?;
        let name = read_pipeline_name(&request.name)?;
        self.keeper()?.delete_pipeline(&name, request.allow_missing, change).await.map_err(|e| to_status(&e))
    }

    pub(super) async fn pause(
        &self,
        name: &str,
        paused: bool,
        etag: String,
        request_id: String,
    ) -> Result<proto::StoredPipeline, Status> {
        let change = read_change(etag, false, request_id)?;
        answer(self.keeper()?.pause_pipeline(&read_pipeline_name(name)?, paused, change).await)
    }
}

fn answer(stored: Result<StoredPipeline, Error>) -> Result<proto::StoredPipeline, Status> {
    stored.map(|stored| stored_to_proto(&stored)).map_err(|e| to_status(&e))
}

fn texts(change: Change) -> (String, bool, String) {
    let request = change.request.map(|request: RequestId| request.to_string());
    (change.etag.unwrap_or_default(), change.validate_only, request.unwrap_or_default())
}

/// A change is safe to repeat where it carries a request id; without one its lost answer is looked for with a get.
#[async_trait]
impl Pipelines for CoordinatorClient {
    async fn create_pipeline(&self, pipeline: Pipeline, change: Change) -> Result<StoredPipeline, Error> {
        const DOING: &str = "creating a pipeline";
        let (_, validate_only, request_id) = texts(change);
        let pipeline = Some(pipeline_to_proto(&pipeline));
        let request = proto::CreatePipelineRequest { pipeline, validate_only, request_id };
        let stored = self.calls().create_pipeline(request).await.map_err(self.remote().failed_write(DOING))?;
        stored_from_proto(stored.into_inner()).map_err(self.remote().unreadable(DOING))
    }

    async fn update_pipeline(
        &self,
        pipeline: Pipeline,
        allow_missing: bool,
        change: Change,
    ) -> Result<StoredPipeline, Error> {
        const DOING: &str = "updating a pipeline";
        let (etag, validate_only, request_id) = texts(change);
        let pipeline = Some(pipeline_to_proto(&pipeline));
        let request = proto::UpdatePipelineRequest { pipeline, etag, allow_missing, validate_only, request_id };
        let stored = self.calls().update_pipeline(request).await.map_err(self.remote().failed_write(DOING))?;
        stored_from_proto(stored.into_inner()).map_err(self.remote().unreadable(DOING))
    }

    /// Safe to repeat.
    async fn get_pipeline(&self, name: &PipelineName) -> Result<StoredPipeline, Error> {
        const DOING: &str = "asking for a pipeline";
        let request = proto::GetPipelineRequest { name: name.to_string() };
        let stored = self.calls().get_pipeline(request).await.map_err(self.remote().failed(DOING))?;
        stored_from_proto(stored.into_inner()).map_err(self.remote().unreadable(DOING))
    }

    /// Safe to repeat.
    async fn list_pipelines(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredPipeline>, Error> {
        const DOING: &str = "listing pipelines";
        let mut found = Vec::new();
        let mut page_token = after.unwrap_or_default().to_string();
        while found.len() < limit {
            let page_size = (limit - found.len()).min(1000) as i32;
            let request = proto::ListPipelinesRequest { page_size, page_token };
            let page = self.calls().list_pipelines(request).await.map_err(self.remote().failed(DOING))?.into_inner();
            for stored in page.pipelines {
                found.push(stored_from_proto(stored).map_err(self.remote().unreadable(DOING))?);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    async fn delete_pipeline(&self, name: &PipelineName, allow_missing: bool, change: Change) -> Result<(), Error> {
        const DOING: &str = "deleting a pipeline";
        let (etag, validate_only, request_id) = texts(change);
        let name = name.to_string();
        let request = proto::DeletePipelineRequest { name, etag, allow_missing, validate_only, request_id };
        self.calls().delete_pipeline(request).await.map_err(self.remote().failed_write(DOING))?;
        Ok(())
    }

    async fn pause_pipeline(&self, name: &PipelineName, paused: bool, change: Change) -> Result<StoredPipeline, Error> {
        let doing = if paused { "pausing a pipeline" } else { "resuming a pipeline" };
        let (etag, _, request_id) = texts(change);
        let name = name.to_string();
        let stored = match paused {
            true => self.calls().pause_pipeline(proto::PausePipelineRequest { name, etag, request_id }).await,
            false => self.calls().resume_pipeline(proto::ResumePipelineRequest { name, etag, request_id }).await,
        };
        let stored = stored.map_err(self.remote().failed_write(doing))?;
        stored_from_proto(stored.into_inner()).map_err(self.remote().unreadable(doing))
    }

    /// Safe to repeat: the request id makes the second call answer with the same batch.
    async fn run_stored(&self, request: RunStored) -> Result<BatchStatus, Error> {
        const DOING: &str = "starting a batch";
        let RunStored { name, request, allow_empty, overrides, cursors_only, asked_by } = request;
        let (pipeline_name, request_id) = (name.to_string(), request.to_string());
        let overrides = overrides_to_proto(&overrides);
        let failed = self.remote().failed_write(DOING);
        let batch = if cursors_only {
            let message = proto::SetCursorRequest {
                overrides,
                request_id,
                asked_by,
                pipeline_name,
                ..proto::SetCursorRequest::default()
            };
            self.calls().set_cursor(message).await.map_err(failed)?.into_inner().batch
        } else {
            let message = proto::RunBatchRequest {
                request_id,
                allow_empty,
                asked_by,
                overrides,
                pipeline_name,
                ..proto::RunBatchRequest::default()
            };
            self.calls().run_batch(message).await.map_err(failed)?.into_inner().batch
        };
        let batch = required(batch, "batch").map_err(self.remote().unreadable(DOING))?;
        batch_from_proto(batch).map_err(self.remote().unreadable(DOING))
    }
}
