// SPDX-License-Identifier: Apache-2.0
//! The merge role over gRPC. No row passes here: the merge pulls them from the timeline role and pushes them to the
//! writer role by itself.
//!
//! A memory budget cannot be shared between processes, so its limit travels and the other side counts into a budget of
//! its own. What that counted at most comes back and is added to the caller's peak.
//!
//! A run is never cut off: a caller that wants it to stop sends [`proto::StopRequest`] and goes on waiting for the run's
//! own answer, which is the acknowledgement. A caller that went away tells it to stop as well.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow_flight::Ticket;
use arrow_flight::flight_service_client::FlightServiceClient;
use async_trait::async_trait;
use prost::Message;
use tonic::{Request, Response, Status};
use tracing::Instrument as _;
use tributary_api::merge::{
    Bound, CheckRequest, Checked, Error, Merge, MergeRequest, Merged, QueryNames, QueryRequest, QueryRows,
};
use tributary_api::{Progress, StopSource};
use tributary_types::{Code, Retry, SourceName};

use crate::channel::Channel;
use crate::convert::{
    bound_from_proto, bound_to_proto, check_from_proto, check_to_proto, checked_from_proto, checked_to_proto, count,
    merge_from_proto, merge_to_proto, merged_from_proto, merged_to_proto, query_from_proto, query_names_from_proto,
    query_names_to_proto, query_to_proto, reads_from_proto, reads_to_proto, schema_from_bytes, schema_to_bytes,
    source_name,
};
use crate::fault::{malformed, to_status};
use crate::flight::{QUERY_PREFIX, read_rows};
use crate::proto::merge as proto;
use crate::remote::Remote;
use crate::trace::traced;
use proto::merge_service_client::MergeServiceClient;
use proto::merge_service_server::{MergeService, MergeServiceServer};

/// How often a run elsewhere is asked how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Pause before a run that did not stop, or has not arrived yet, is told again.
const TELL_AGAIN: Duration = Duration::from_millis(200);

/// Calls a merge role in another process.
#[derive(Clone)]
pub struct MergeClient {
    calls: MergeServiceClient<Channel>,
    flight: FlightServiceClient<Channel>,
    remote: Remote<Error>,
}

impl MergeClient {
    /// A client over `channel`; `address` is what messages call the other side.
    pub fn new(channel: Channel, address: impl Into<String>) -> Self {
        MergeClient {
            calls: MergeServiceClient::new(channel.clone()).max_decoding_message_size(crate::MESSAGE_LIMIT),
            flight: FlightServiceClient::new(channel).max_decoding_message_size(crate::MESSAGE_LIMIT),
            remote: Remote::new(address),
        }
    }

    /// Tells a run to stop, again and again: one that was just sent may not have arrived yet.
    async fn tell_to_stop(&self, named: proto::StopRequest) -> Infallible {
        loop {
            if let Err(status) = self.calls.clone().stop(traced(named.clone())).await {
                tracing::warn!(instant = named.instant, status = status.message(), "a merge cannot be told to stop");
            }
            tokio::time::sleep(TELL_AGAIN).await;
        }
    }

    /// Keeps `progress` at what a run elsewhere says. A role that cannot say it is asked no more: the run's own answer
    /// tells it in the end.
    async fn follow(&self, named: proto::GetProgressRequest, progress: Progress) -> Infallible {
        loop {
            tokio::time::sleep(PROGRESS_EVERY).await;
            match self.calls.clone().get_progress(named.clone()).await {
                Ok(answer) if answer.get_ref().found => {
                    if let Ok(reads) = reads_from_proto(&answer.get_ref().reads) {
                        progress.set(&reads);
                    }
                }
                Err(status) if status.code() == tonic::Code::Unimplemented => std::future::pending().await,
                Ok(_) | Err(_) => {}
            }
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
        let answer = self.calls.clone().bind(traced(request)).await.map_err(self.remote.failed(DOING))?;
        let bound = answer.into_inner().bound.into_iter().map(bound_from_proto);
        bound.collect::<Result<_, _>>().map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn check(&self, request: CheckRequest) -> Result<Checked, Error> {
        const DOING: &str = "planning the SQL";
        let request = check_to_proto(&request);
        let answer = self.calls.clone().check(traced(request)).await.map_err(self.remote.failed(DOING))?;
        checked_from_proto(answer.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat by another attempt: what a lost one staged is invisible until the instant is completed, and
    /// rolled back with it.
    async fn run(&self, request: MergeRequest) -> Result<Merged, Error> {
        const DOING: &str = "running the merge";
        let budget = request.limits.budget.clone();
        let stop = request.limits.stop.clone();
        let named = proto::StopRequest {
            url: request.stage.url.clone(),
            instant: request.stage.instant.to_string(),
            attempt: request.stage.attempt,
        };
        let asked = proto::GetProgressRequest {
            url: named.url.clone(),
            instant: named.instant.clone(),
            attempt: named.attempt,
        };
        let progress = request.limits.progress.clone();
        let mut calls = self.calls.clone();
        let call = calls.run(traced(merge_to_proto(&request)));
        tokio::pin!(call);
        let answer = tokio::select! {
            answer = &mut call => answer,
            never = async { stop.wait().await; self.tell_to_stop(named).await } => match never {},
            never = self.follow(asked, progress.clone()) => match never {},
        };
        let answer = answer.map_err(self.remote.failed(DOING))?.into_inner();
        crate::count_peak(&budget, count(answer.peak_memory_bytes));
        if let Ok(reads) = reads_from_proto(&answer.rows_read) {
            progress.set(&reads);
        }
        merged_from_proto(answer).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn read_query(&self, sql: String) -> Result<QueryNames, Error> {
        let request = proto::ReadQueryRequest { sql };
        let answer = self.calls.clone().read_query(request).await.map_err(self.remote.failed("reading a query"))?;
        Ok(query_names_from_proto(answer.into_inner()))
    }

    /// Safe to repeat.
    async fn check_query(&self, request: QueryRequest) -> Result<SchemaRef, Error> {
        const DOING: &str = "planning a query";
        let request = query_to_proto(&request);
        let answer = self.calls.clone().check_query(request).await.map_err(self.remote.failed(DOING))?;
        schema_from_bytes(answer.into_inner().schema, "schema").map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat. A caller that drops the rows ends the call, and that ends the query.
    async fn query(&self, request: QueryRequest) -> Result<QueryRows, Error> {
        const DOING: &str = "running a query";
        let mut ticket = QUERY_PREFIX.to_vec();
        ticket.extend(query_to_proto(&request).encode_to_vec());
        let data = self.flight.clone().do_get(Ticket::new(ticket)).await.map_err(self.remote.failed(DOING))?;
        let opened = read_rows(data.into_inner(), self.remote.at(DOING)).await;
        let (schema, rows) = opened.map_err(self.remote.failed(DOING))?;
        Ok(QueryRows { schema, rows })
    }
}

/// Serves a merge role to [`MergeClient`]s.
pub struct MergeServer {
    merge: Arc<dyn Merge>,
    runs: Arc<Mutex<Runs>>,
}

/// What stops each run, and how far it is: by URL and instant of the target, and attempt.
type Runs = HashMap<(String, String, u32), (Arc<StopSource>, Progress)>;

/// A run under way. Dropping it, as happens when its caller goes away, tells the run to stop.
struct UnderWay {
    runs: Arc<Mutex<Runs>>,
    key: (String, String, u32),
    stop: Arc<StopSource>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.stop.stop();
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        // Another call for the same attempt may have taken the place.
        if runs.get(&self.key).is_some_and(|(known, _)| Arc::ptr_eq(known, &self.stop)) {
            runs.remove(&self.key);
        }
    }
}

impl MergeServer {
    /// The service to add to a server.
    pub fn new(merge: Arc<dyn Merge>) -> MergeServiceServer<Self> {
        MergeServiceServer::new(MergeServer { merge, runs: Arc::default() })
            .max_decoding_message_size(crate::MESSAGE_LIMIT)
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
        let mut request = merge_from_proto(request.into_inner()).map_err(malformed)?;
        let budget = request.limits.budget.clone();
        let stage = &request.stage;
        let key = (stage.url.clone(), stage.instant.to_string(), stage.attempt);
        let stop = Arc::new(StopSource::new());
        let progress = request.limits.progress.clone();
        let known = (Arc::clone(&stop), progress.clone());
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), known);
        request.limits.stop = stop.listen();
        request.stage.stop = stop.listen();
        let under_way = UnderWay { runs: Arc::clone(&self.runs), key, stop };
        // In a task of its own: when the caller goes away this future is dropped, and the run must end by itself.
        let merge = Arc::clone(&self.merge);
        let run = tokio::spawn(async move { merge.run(request).await }.in_current_span());
        let merged = run.await.unwrap_or_else(|e| {
            let message = format!("the merge ended without a result: {e}");
            Err(Error::Other { code: Code::Internal, retry: Retry::Never, message })
        });
        drop(under_way);
        let mut answer = merged_to_proto(&merged.map_err(|e| to_status(&e))?, budget.peak());
        for read in &mut answer.rows_read {
            let counted = progress.reads().into_iter().find(|counted| counted.source.as_str() == read.source);
            read.bytes = counted.map_or(0, |counted| counted.bytes);
        }
        Ok(Response::new(answer))
    }

    async fn stop(&self, request: Request<proto::StopRequest>) -> Result<Response<proto::StopResponse>, Status> {
        let request = request.into_inner();
        let key = (request.url, request.instant, request.attempt);
        let found = self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((stop, _)) = &found {
            stop.stop();
        }
        Ok(Response::new(proto::StopResponse { found: found.is_some() }))
    }

    async fn read_query(
        &self,
        request: Request<proto::ReadQueryRequest>,
    ) -> Result<Response<proto::ReadQueryResponse>, Status> {
        let names = self.merge.read_query(request.into_inner().sql).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(query_names_to_proto(&names)))
    }

    async fn check_query(
        &self,
        request: Request<proto::QueryRequest>,
    ) -> Result<Response<proto::CheckQueryResponse>, Status> {
        let request = query_from_proto(request.into_inner()).map_err(malformed)?;
        let schema = self.merge.check_query(request).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(proto::CheckQueryResponse { schema: schema_to_bytes(&schema) }))
    }

    async fn get_progress(
        &self,
        request: Request<proto::GetProgressRequest>,
    ) -> Result<Response<proto::GetProgressResponse>, Status> {
        let request = request.into_inner();
        let key = (request.url, request.instant, request.attempt);
        let found = self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let reads = found.as_ref().map(|(_, progress)| reads_to_proto(&progress.reads()));
        Ok(Response::new(proto::GetProgressResponse { found: found.is_some(), reads: reads.unwrap_or_default() }))
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod progress_tests;
