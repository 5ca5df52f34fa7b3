// SPDX-License-Identifier: Apache-2.0
//! The checkpoint role over gRPC.

use std::sync::Arc;

use async_trait::async_trait;
use tonic::{Request, Response, Status};
use tributary_api::checkpoint::{
    BatchRecord, Checkpoints, CommitFound, Error, KnownCursor, LegacyCheckpoint, Resolved,
};
use tributary_types::{PipelineName, RequestId, SourceName};

use crate::channel::Channel;
use crate::convert::{
    Malformed, commit_found_from_proto, commit_found_to_proto, count, known_cursors_from_proto, known_cursors_to_proto,
    legacy_from_proto, legacy_to_proto, record_from_proto, record_to_proto, required, resolved_from_proto,
    resolved_to_proto, source_name,
};
use crate::fault::{malformed, to_status};
use crate::proto::checkpoint as proto;
use crate::remote::Remote;
use crate::trace::traced;
use proto::checkpoint_service_client::CheckpointServiceClient;
use proto::checkpoint_service_server::{CheckpointService, CheckpointServiceServer};

/// Calls a checkpoint role in another process. All of its calls are safe to repeat, `record` included.
#[derive(Clone)]
pub struct CheckpointClient {
    calls: CheckpointServiceClient<Channel>,
    remote: Remote<Error>,
}

impl CheckpointClient {
    /// A client over `channel`; `address` is what messages call the other side.
    pub fn new(channel: Channel, address: impl Into<String>) -> Self {
        CheckpointClient {
            calls: CheckpointServiceClient::new(channel).max_decoding_message_size(crate::MESSAGE_LIMIT),
            remote: Remote::new(address),
        }
    }

    async fn ask_where(&self, pipeline: &PipelineName, target: &str, look_only: bool) -> Result<Resolved, Error> {
        const DOING: &str = "finding the cursors";
        let request = proto::ResolveRequest { pipeline: pipeline.to_string(), target: target.to_string(), look_only };
        let resolved = self.calls.clone().resolve(traced(request)).await.map_err(self.remote.failed(DOING))?;
        resolved_from_proto(pipeline, resolved.into_inner()).map_err(self.remote.unreadable(DOING))
    }
}

#[async_trait]
impl Checkpoints for CheckpointClient {
    async fn resolve(&self, pipeline: &PipelineName, target: &str) -> Result<Resolved, Error> {
        self.ask_where(pipeline, target, false).await
    }

    async fn look_up(&self, pipeline: &PipelineName, target: &str) -> Result<Resolved, Error> {
        self.ask_where(pipeline, target, true).await
    }

    async fn find_commit(
        &self,
        pipeline: &PipelineName,
        target: &str,
        request: &RequestId,
    ) -> Result<Option<CommitFound>, Error> {
        const DOING: &str = "looking for the commit of a request";
        let request = proto::FindCommitRequest {
            pipeline: pipeline.to_string(),
            target: target.to_string(),
            request_id: request.to_string(),
        };
        let found = self.calls.clone().find_commit(traced(request)).await.map_err(self.remote.failed(DOING))?;
        commit_found_from_proto(found.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    async fn find_cursors(
        &self,
        pipeline: &PipelineName,
        target: &str,
        sources: &[SourceName],
    ) -> Result<Vec<KnownCursor>, Error> {
        const DOING: &str = "looking for the cursors of sources";
        let request = proto::FindCursorsRequest {
            pipeline: pipeline.to_string(),
            target: target.to_string(),
            sources: sources.iter().map(ToString::to_string).collect(),
        };
        let found = self.calls.clone().find_cursors(traced(request)).await.map_err(self.remote.failed(DOING))?;
        known_cursors_from_proto(found.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    async fn find_legacy(&self, target: &str) -> Result<Option<LegacyCheckpoint>, Error> {
        const DOING: &str = "looking for a checkpoint of another program";
        let request = proto::FindLegacyRequest { target: target.to_string() };
        let found = self.calls.clone().find_legacy(traced(request)).await.map_err(self.remote.failed(DOING))?;
        legacy_from_proto(found.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    async fn record(&self, record: BatchRecord) -> Result<(), Error> {
        const DOING: &str = "keeping a record";
        let request = proto::RecordRequest { record: Some(record_to_proto(&record)) };
        self.calls.clone().record(traced(request)).await.map_err(self.remote.failed(DOING))?;
        Ok(())
    }

    async fn history(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchRecord>, Error> {
        const DOING: &str = "reading the history";
        let pipeline = pipeline.map(ToString::to_string).unwrap_or_default();
        let request = proto::ListRecordsRequest { pipeline, limit: limit as u64 };
        let found = self.calls.clone().list_records(traced(request)).await.map_err(self.remote.failed(DOING))?;
        let records = found.into_inner().records.into_iter().map(record_from_proto);
        records.collect::<Result<_, _>>().map_err(self.remote.unreadable(DOING))
    }

    async fn find_request(&self, pipeline: &PipelineName, request: &RequestId) -> Result<Option<BatchRecord>, Error> {
        const DOING: &str = "looking for a request";
        let request = proto::FindRequestRequest { pipeline: pipeline.to_string(), request_id: request.to_string() };
        let found = self.calls.clone().find_request(traced(request)).await.map_err(self.remote.failed(DOING))?;
        found.into_inner().record.map(record_from_proto).transpose().map_err(self.remote.unreadable(DOING))
    }
}

/// Serves a checkpoint role to [`CheckpointClient`]s.
pub struct CheckpointServer {
    checkpoints: Arc<dyn Checkpoints>,
}

impl CheckpointServer {
    /// The service to add to a server.
    pub fn new(checkpoints: Arc<dyn Checkpoints>) -> CheckpointServiceServer<Self> {
        CheckpointServiceServer::new(CheckpointServer { checkpoints }).max_decoding_message_size(crate::MESSAGE_LIMIT)
    }
}

fn pipeline_name(name: String) -> Result<PipelineName, Status> {
    PipelineName::new(name).map_err(|e| malformed(Malformed::new("pipeline", e)))
}

fn request_id(id: String) -> Result<RequestId, Status> {
    RequestId::new(id).map_err(|e| malformed(Malformed::new("request_id", e)))
}

#[async_trait]
impl CheckpointService for CheckpointServer {
    async fn resolve(
        &self,
        request: Request<proto::ResolveRequest>,
    ) -> Result<Response<proto::ResolveResponse>, Status> {
        let request = request.into_inner();
        let pipeline = pipeline_name(request.pipeline)?;
        let resolved = match request.look_only {
            true => self.checkpoints.look_up(&pipeline, &request.target).await,
            false => self.checkpoints.resolve(&pipeline, &request.target).await,
        };
        let resolved = resolved.map_err(|e| to_status(&e))?;
        Ok(Response::new(resolved_to_proto(&resolved)))
    }

    async fn find_commit(
        &self,
        request: Request<proto::FindCommitRequest>,
    ) -> Result<Response<proto::FindCommitResponse>, Status> {
        let request = request.into_inner();
        let pipeline = pipeline_name(request.pipeline)?;
        let id = request_id(request.request_id)?;
        let found = self.checkpoints.find_commit(&pipeline, &request.target, &id).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(commit_found_to_proto(found.as_ref())))
    }

    async fn find_cursors(
        &self,
        request: Request<proto::FindCursorsRequest>,
    ) -> Result<Response<proto::FindCursorsResponse>, Status> {
        let request = request.into_inner();
        let pipeline = pipeline_name(request.pipeline)?;
        let sources: Result<Vec<SourceName>, Malformed> = request.sources.into_iter().map(source_name).collect();
        let found = self.checkpoints.find_cursors(&pipeline, &request.target, &sources.map_err(malformed)?).await;
        Ok(Response::new(known_cursors_to_proto(&found.map_err(|e| to_status(&e))?)))
    }

    async fn find_legacy(
        &self,
        request: Request<proto::FindLegacyRequest>,
    ) -> Result<Response<proto::FindLegacyResponse>, Status> {
        let found = self.checkpoints.find_legacy(&request.into_inner().target).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(legacy_to_proto(found.as_ref())))
    }

    async fn record(&self, request: Request<proto::RecordRequest>) -> Result<Response<proto::RecordResponse>, Status> {
        let record = required(request.into_inner().record, "record").map_err(malformed)?;
        let record = record_from_proto(record).map_err(|e| malformed(e.within("record")))?;
        self.checkpoints.record(record).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(proto::RecordResponse {}))
    }

    async fn list_records(
        &self,
        request: Request<proto::ListRecordsRequest>,
    ) -> Result<Response<proto::ListRecordsResponse>, Status> {
        let request = request.into_inner();
        let pipeline = match request.pipeline.is_empty() {
            true => None,
            false => Some(pipeline_name(request.pipeline)?),
        };
        let found = self.checkpoints.history(pipeline.as_ref(), count(request.limit)).await;
        let found = found.map_err(|e| to_status(&e))?;
        Ok(Response::new(proto::ListRecordsResponse { records: found.iter().map(record_to_proto).collect() }))
    }

    async fn find_request(
        &self,
        request: Request<proto::FindRequestRequest>,
    ) -> Result<Response<proto::FindRequestResponse>, Status> {
        let request = request.into_inner();
        let pipeline = pipeline_name(request.pipeline)?;
        let id = request_id(request.request_id)?;
        let found = self.checkpoints.find_request(&pipeline, &id).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(proto::FindRequestResponse { record: found.as_ref().map(record_to_proto) }))
    }
}

#[cfg(test)]
mod tests;
