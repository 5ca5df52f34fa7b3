// SPDX-License-Identifier: Apache-2.0
//! The merge role over gRPC. No row passes here: the merge pulls them from the timeline role and pushes them to the
//! writer role by itself.
//!
//! A memory budget cannot be shared between processes, so its limit travels and the other side counts into a budget of
//! its own. What that counted at most comes back and is added to the caller's peak.

use std::sync::Arc;

use async_trait::async_trait;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tributary_api::merge::{Bound, CheckRequest, Checked, Error, Merge, MergeRequest, Merged};
use tributary_types::SourceName;

use crate::convert::{
    bound_from_proto, bound_to_proto, check_from_proto, check_to_proto, checked_from_proto, checked_to_proto, count,
    merge_from_proto, merge_to_proto, merged_from_proto, merged_to_proto, source_name,
};
use crate::fault::{malformed, to_status};
use crate::proto::merge as proto;
use crate::remote::Remote;
use proto::merge_service_client::MergeServiceClient;
use proto::merge_service_server::{MergeService, MergeServiceServer};

/// Calls a merge role in another process.
#[derive(Clone)]
pub struct MergeClient {
    calls: MergeServiceClient<Channel>,
    remote: Remote<Error>,
}

impl MergeClient {
    /// A client over `channel`; `address` is what messages call the other side.
    pub fn new(channel: Channel, address: impl Into<String>) -> Self {
        MergeClient {
            calls: MergeServiceClient::new(channel).max_decoding_message_size(crate::MESSAGE_LIMIT),
            remote: Remote::new(address),
        }
    }
}

#[async_trait]
impl Merge for MergeClient {
    /// Safe to repeat.
    async fn bind(&self, sql: Option<String>, sources: Vec<SourceName>) -> Result<Vec<Bound>, Error> {
        const DOING: &str = "binding the SQL";
        let sources = sources.iter().map(ToString::to_string).collect();
        let request = proto::BindRequest { sql, sources };
        let answer = self.calls.clone().bind(request).await.map_err(self.remote.failed(DOING))?;
        let bound = answer.into_inner().bound.into_iter().map(bound_from_proto);
        bound.collect::<Result<_, _>>().map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn check(&self, request: CheckRequest) -> Result<Checked, Error> {
        const DOING: &str = "planning the SQL";
        let request = check_to_proto(&request);
        let answer = self.calls.clone().check(request).await.map_err(self.remote.failed(DOING))?;
        checked_from_proto(answer.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat by another attempt: what a lost one staged is invisible until the instant is completed, and
    /// rolled back with it.
    async fn run(&self, request: MergeRequest) -> Result<Merged, Error> {
        const DOING: &str = "running the merge";
        let budget = request.limits.budget.clone();
        let request = merge_to_proto(&request);
        let answer = self.calls.clone().run(request).await.map_err(self.remote.failed(DOING))?.into_inner();
        crate::count_peak(&budget, count(answer.peak_memory_bytes));
        merged_from_proto(answer).map_err(self.remote.unreadable(DOING))
    }
}

/// Serves a merge role to [`MergeClient`]s.
pub struct MergeServer {
    merge: Arc<dyn Merge>,
}

impl MergeServer {
    /// The service to add to a server.
    pub fn new(merge: Arc<dyn Merge>) -> MergeServiceServer<Self> {
        MergeServiceServer::new(MergeServer { merge }).max_decoding_message_size(crate::MESSAGE_LIMIT)
    }
}

#[async_trait]
impl MergeService for MergeServer {
    async fn bind(&self, request: Request<proto::BindRequest>) -> Result<Response<proto::BindResponse>, Status> {
        let request = request.into_inner();
        let sources: Result<Vec<_>, _> = request.sources.into_iter().map(source_name).collect();
        let bound = self.merge.bind(request.sql, sources.map_err(malformed)?).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(proto::BindResponse { bound: bound.iter().map(bound_to_proto).collect() }))
    }

    async fn check(&self, request: Request<proto::CheckRequest>) -> Result<Response<proto::CheckResponse>, Status> {
        let request = check_from_proto(request.into_inner()).map_err(malformed)?;
        let checked = self.merge.check(request).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(checked_to_proto(&checked)))
    }

    async fn run(&self, request: Request<proto::RunRequest>) -> Result<Response<proto::RunResponse>, Status> {
        let request = merge_from_proto(request.into_inner()).map_err(malformed)?;
        let budget = request.limits.budget.clone();
        let merged = self.merge.run(request).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(merged_to_proto(&merged, budget.peak())))
    }
}

#[cfg(test)]
mod tests;
