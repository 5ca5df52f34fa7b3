// SPDX-License-Identifier: Apache-2.0
//! A coordinator, served.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tributary_api::coordinator::{BatchStatus, Coordinator, Error, RunRequest};
use tributary_api::pipelines::{Pipelines, RunStored};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Override, PipelineName, RequestId, Stage};

use super::pipelines::{Stored, read_pipeline_name};
use crate::convert::{
    Malformed, batch_to_proto, cursors_to_proto, override_statuses_to_proto, overrides_from_proto, pipeline_from_proto,
    plan_to_proto, required,
};
use crate::fault::{malformed, to_status};
use crate::proto::coordinator as proto;
use proto::coordinator_service_server::{CoordinatorService, CoordinatorServiceServer};

const DEFAULT_PAGE: usize = 50;
const LARGEST_PAGE: usize = 1000;

/// Serves a coordinator to [`super::CoordinatorClient`]s.
pub struct CoordinatorServer {
    coordinator: Arc<dyn Coordinator>,
    stored: Stored,
}

impl CoordinatorServer {
    /// The service to add to a server.
    pub fn new(coordinator: Arc<dyn Coordinator>) -> CoordinatorServiceServer<Self> {
        Self::with_pipelines(coordinator, None)
    }

    /// The same, with the pipelines that it keeps.
    pub fn with_pipelines(
        coordinator: Arc<dyn Coordinator>,
        pipelines: Option<Arc<dyn Pipelines>>,
    ) -> CoordinatorServiceServer<Self> {
        let server = CoordinatorServer { coordinator, stored: Stored(pipelines) };
        CoordinatorServiceServer::new(server).max_decoding_message_size(crate::MESSAGE_LIMIT)
    }
}

pub(super) fn read_pipeline(pipeline: Option<proto::Pipeline>) -> Result<Pipeline, Status> {
    let pipeline = required(pipeline, "pipeline").map_err(malformed)?;
    let name = pipeline.name.clone();
    pipeline_from_proto(pipeline).map_err(|e: Malformed| {
        to_status(&Error::Pipeline { pipeline: name, problems: vec![e.within("pipeline").to_string()] })
    })
}

fn read_overrides(overrides: Vec<proto::Override>) -> Result<Vec<Override>, Status> {
    overrides_from_proto(overrides).map_err(malformed)
}

pub(super) fn read_request(id: String) -> Result<RequestId, Status> {
    RequestId::new(id).map_err(|e| malformed(Malformed::new("request_id", e)))
}

/// How many a page has.
pub(crate) fn page_size(wanted: i32) -> Result<usize, Status> {
    match usize::try_from(wanted) {
        Ok(0) => Ok(DEFAULT_PAGE),
        Ok(size) => Ok(size.min(LARGEST_PAGE)),
        Err(_) => Err(malformed(Malformed::new("page_size", "is negative"))),
    }
}

/// Who asks, with where the request came from.
fn asked_by(who: String, from: Option<std::net::SocketAddr>) -> String {
    match from {
        Some(address) => format!("{who} from {}", address.ip()).trim_start().to_string(),
        None => who,
    }
}

/// A text that cannot be a batch's name names no batch.
pub(crate) fn read_name(name: String) -> Result<BatchName, Status> {
    BatchName::new(name.clone()).map_err(|_| to_status(&Error::NoBatch { name }))
}

#[async_trait]
impl CoordinatorService for CoordinatorServer {
    type WatchBatchStream = Pin<Box<dyn Stream<Item = Result<proto::Batch, Status>> + Send>>;

    async fn run_batch(
        &self,
        request: Request<proto::RunBatchRequest>,
    ) -> Result<Response<proto::RunBatchResponse>, Status> {
        let from = request.remote_addr();
        let request = request.into_inner();
        let overrides = read_overrides(request.overrides)?;
        if !request.pipeline_name.is_empty() && request.pipeline.is_none() && !request.validate_only {
            let run = RunStored {
                name: read_pipeline_name(&request.pipeline_name)?,
                request: read_request(request.request_id)?,
                allow_empty: request.allow_empty,
                overrides,
                cursors_only: false,
                asked_by: asked_by(request.asked_by, from),
            };
            let status = self.stored.keeper()?.run_stored(run).await.map_err(|e| to_status(&e))?;
            return Ok(Response::new(proto::RunBatchResponse { batch: Some(batch_to_proto(&status)), plan: None }));
        }
        let pipeline = self.stored.pipeline_of(request.pipeline, &request.pipeline_name).await?;
        if request.validate_only {
            let plan = self.coordinator.plan_batch(pipeline, overrides).await.map_err(|e| to_status(&e))?;
            return Ok(Response::new(proto::RunBatchResponse { batch: None, plan: Some(plan_to_proto(&plan)) }));
        }
        let run = RunRequest {
            pipeline,
            request: read_request(request.request_id)?,
            allow_empty: request.allow_empty,
            overrides,
            cursors_only: false,
            asked_by: asked_by(request.asked_by, from),
        };
        let status = self.coordinator.run_batch(run).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(proto::RunBatchResponse { batch: Some(batch_to_proto(&status)), plan: None }))
    }

    async fn get_batch(&self, request: Request<proto::GetBatchRequest>) -> Result<Response<proto::Batch>, Status> {
        let name = read_name(request.into_inner().name)?;
        let status = self.coordinator.get_batch(&name).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(batch_to_proto(&status)))
    }

    async fn list_batches(
        &self,
        request: Request<proto::ListBatchesRequest>,
    ) -> Result<Response<proto::ListBatchesResponse>, Status> {
        let request = request.into_inner();
        let pipeline = match request.pipeline.as_str() {
            "" => None,
            name => Some(PipelineName::new(name).map_err(|e| malformed(Malformed::new("pipeline", e)))?),
        };
        let size = page_size(request.page_size)?;
        let all = self.coordinator.list_batches(pipeline.as_ref(), usize::MAX).await.map_err(|e| to_status(&e))?;
        let page = page_after(&all, &request.page_token, size).map_err(malformed)?;
        let last = page.last().zip(all.last()).filter(|(shown, oldest)| shown.name != oldest.name);
        Ok(Response::new(proto::ListBatchesResponse {
            batches: page.iter().map(batch_to_proto).collect(),
            next_page_token: last.map(|(shown, _)| shown.name.to_string()).unwrap_or_default(),
        }))
    }

    async fn watch_batch(
        &self,
        request: Request<proto::WatchBatchRequest>,
    ) -> Result<Response<Self::WatchBatchStream>, Status> {
        let name = read_name(request.into_inner().name)?;
        let watch = self.coordinator.watch_batch(&name).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(Box::pin(follow(watch))))
    }

    async fn cancel_batch(
        &self,
        request: Request<proto::CancelBatchRequest>,
    ) -> Result<Response<proto::Batch>, Status> {
        let name = read_name(request.into_inner().name)?;
        let status = self.coordinator.cancel_batch(&name).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(batch_to_proto(&status)))
    }

    async fn plan_batch(
        &self,
        request: Request<proto::PlanBatchRequest>,
    ) -> Result<Response<proto::BatchPlan>, Status> {
        let request = request.into_inner();
        let overrides = read_overrides(request.overrides)?;
        let pipeline = self.stored.pipeline_of(request.pipeline, &request.pipeline_name).await?;
        let plan = self.coordinator.plan_batch(pipeline, overrides).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(plan_to_proto(&plan)))
    }

    async fn set_cursor(
        &self,
        request: Request<proto::SetCursorRequest>,
    ) -> Result<Response<proto::SetCursorResponse>, Status> {
        let from = request.remote_addr();
        let request = request.into_inner();
        let overrides = read_overrides(request.overrides)?;
        if !request.pipeline_name.is_empty() && request.pipeline.is_none() && !request.validate_only {
            let run = RunStored {
                name: read_pipeline_name(&request.pipeline_name)?,
                request: read_request(request.request_id)?,
                allow_empty: false,
                overrides,
                cursors_only: true,
                asked_by: asked_by(request.asked_by, from),
            };
            let status = self.stored.keeper()?.run_stored(run).await.map_err(|e| to_status(&e))?;
            let batch = Some(batch_to_proto(&status));
            return Ok(Response::new(proto::SetCursorResponse { batch, overrides: Vec::new() }));
        }
        let pipeline = self.stored.pipeline_of(request.pipeline, &request.pipeline_name).await?;
        if request.validate_only {
            let found = self.coordinator.check_overrides(pipeline, overrides).await.map_err(|e| to_status(&e))?;
            let overrides = override_statuses_to_proto(&found);
            return Ok(Response::new(proto::SetCursorResponse { batch: None, overrides }));
        }
        let run = RunRequest {
            pipeline,
            request: read_request(request.request_id)?,
            allow_empty: false,
            overrides,
            cursors_only: true,
            asked_by: asked_by(request.asked_by, from),
        };
        let status = self.coordinator.run_batch(run).await.map_err(|e| to_status(&e))?;
        let batch = Some(batch_to_proto(&status));
        Ok(Response::new(proto::SetCursorResponse { batch, overrides: Vec::new() }))
    }

    async fn get_cursors(
        &self,
        request: Request<proto::GetCursorsRequest>,
    ) -> Result<Response<proto::Cursors>, Status> {
        let request = request.into_inner();
        let pipeline = PipelineName::new(request.pipeline).map_err(|e| malformed(Malformed::new("pipeline", e)))?;
        let target = match request.target {
            target if !target.is_empty() => target,
            _ => {
                let stored = self.stored.keeper()?.get_pipeline(&pipeline).await.map_err(|e| to_status(&e))?;
                stored.pipeline.target.path
            }
        };
        let found = self.coordinator.get_cursors(&pipeline, &target).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(cursors_to_proto(found.as_ref())))
    }

    async fn wait_batch(&self, request: Request<proto::WaitBatchRequest>) -> Result<Response<proto::Batch>, Status> {
        let request = request.into_inner();
        let name = read_name(request.name)?;
        let limit = request.timeout.map(Duration::try_from).transpose();
        let limit = limit.map_err(|e| malformed(Malformed::new("timeout", e)))?;
        let mut watch = self.coordinator.watch_batch(&name).await.map_err(|e| to_status(&e))?;
        let over = watch.wait_for(|status| status.outcome.is_some());
        // One that nobody changes any more, or that is not over in time, is answered as it is.
        match limit {
            Some(limit) => drop(tokio::time::timeout(limit, over).await),
            None => drop(over.await),
        }
        let status = watch.borrow().clone();
        Ok(Response::new(batch_to_proto(&status)))
    }

    async fn create_pipeline(
        &self,
        request: Request<proto::CreatePipelineRequest>,
    ) -> Result<Response<proto::StoredPipeline>, Status> {
        Ok(Response::new(self.stored.create(request.into_inner()).await?))
    }

    async fn update_pipeline(
        &self,
        request: Request<proto::UpdatePipelineRequest>,
    ) -> Result<Response<proto::StoredPipeline>, Status> {
        Ok(Response::new(self.stored.update(request.into_inner()).await?))
    }

    async fn get_pipeline(
        &self,
        request: Request<proto::GetPipelineRequest>,
    ) -> Result<Response<proto::StoredPipeline>, Status> {
        Ok(Response::new(self.stored.get(request.into_inner()).await?))
    }

    async fn list_pipelines(
        &self,
        request: Request<proto::ListPipelinesRequest>,
    ) -> Result<Response<proto::ListPipelinesResponse>, Status> {
        Ok(Response::new(self.stored.list(request.into_inner()).await?))
    }

    async fn delete_pipeline(&self, request: Request<proto::DeletePipelineRequest>) -> Result<Response<()>, Status> {
        Ok(Response::new(self.stored.delete(request.into_inner()).await?))
    }

    async fn pause_pipeline(
        &self,
        request: Request<proto::PausePipelineRequest>,
    ) -> Result<Response<proto::StoredPipeline>, Status> {
        let proto::PausePipelineRequest { name, etag, request_id } = request.into_inner();
        Ok(Response::new(self.stored.pause(&name, true, etag, request_id).await?))
    }

    async fn resume_pipeline(
        &self,
        request: Request<proto::ResumePipelineRequest>,
    ) -> Result<Response<proto::StoredPipeline>, Status> {
        let proto::ResumePipelineRequest { name, etag, request_id } = request.into_inner();
        Ok(Response::new(self.stored.pause(&name, false, etag, request_id).await?))
    }
}

/// The page that follows `token`, which is the name of the last batch of the page before: new batches come in front
/// of it and move nothing.
fn page_after<'a>(all: &'a [BatchStatus], token: &str, size: usize) -> Result<&'a [BatchStatus], Malformed> {
    let start = match token {
        "" => 0,
        name => match all.iter().position(|status| status.name.as_str() == name) {
            Some(position) => position + 1,
            None => {
                return Err(Malformed::new("page_token", "is of no page that can still be continued; list anew"));
            }
        },
    };
    Ok(&all[start..all.len().min(start.saturating_add(size))])
}

/// The state now, then each change, up to the last one.
fn follow(watch: watch::Receiver<BatchStatus>) -> impl Stream<Item = Result<proto::Batch, Status>> + Send {
    enum Next {
        Now(watch::Receiver<BatchStatus>),
        Change(watch::Receiver<BatchStatus>),
        End,
    }
    futures::stream::unfold(Next::Now(watch), |next| async move {
        let mut watch = match next {
            Next::Now(watch) => watch,
            Next::Change(mut watch) => {
                // Nobody will change it any more: the stream just ends, which tells the client as much.
                watch.changed().await.ok()?;
                watch
            }
            Next::End => return None,
        };
        let status = watch.borrow_and_update().clone();
        let after = if status.stage == Stage::Done { Next::End } else { Next::Change(watch) };
        Some((Ok(batch_to_proto(&status)), after))
    })
}
