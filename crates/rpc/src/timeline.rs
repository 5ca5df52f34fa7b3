// SPDX-License-Identifier: Apache-2.0
//! The timeline role over gRPC, and the rows of its splits over Flight.

use std::sync::Arc;

use arrow_flight::Ticket;
use arrow_flight::flight_service_client::FlightServiceClient;
use async_trait::async_trait;
use prost::Message;
use tonic::{Request, Response, Status};
use tributary_api::RowStream;
use tributary_api::timeline::{Error, InstantInfo, PlanRequest, ReadRequest, SourcePlan, TableInfo, Timeline};
use tributary_types::InstantTime;

use crate::channel::Channel;
use crate::convert::{
    instant_from_proto, instant_to_proto, optional, read_to_proto, source_plan_from_proto, source_plan_to_proto,
    table_from_proto, table_to_proto, window_request_from_proto, window_request_to_proto,
};
use crate::coordinator::page_size;
use crate::fault::{malformed, to_status};
use crate::flight::{FlightServer, Running, SPLIT_PREFIX, read_rows};
use crate::proto::timeline as proto;
use crate::remote::Remote;
use crate::trace::traced;
use proto::timeline_service_client::TimelineServiceClient;
use proto::timeline_service_server::{TimelineService, TimelineServiceServer};

/// Calls a timeline role in another process. All of its calls are safe to repeat.
#[derive(Clone)]
pub struct TimelineClient {
    calls: TimelineServiceClient<Channel>,
    flight: FlightServiceClient<Channel>,
    remote: Remote<Error>,
}

impl TimelineClient {
    /// A client over `channel`; `address` is what messages call the other side.
    pub fn new(channel: Channel, address: impl Into<String>) -> Self {
        TimelineClient {
            calls: TimelineServiceClient::new(channel.clone()).max_decoding_message_size(crate::MESSAGE_LIMIT),
            flight: FlightServiceClient::new(channel).max_decoding_message_size(crate::MESSAGE_LIMIT),
            remote: Remote::new(address),
        }
    }
}

#[async_trait]
impl Timeline for TimelineClient {
    async fn describe(&self, url: &str) -> Result<TableInfo, Error> {
        const DOING: &str = "asking what a table is";
        let request = proto::GetTableRequest { url: url.to_string() };
        let table = self.calls.clone().get_table(traced(request)).await.map_err(self.remote.failed(DOING))?;
        table_from_proto(table.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    async fn list_instants(
        &self,
        url: &str,
        before: Option<&InstantTime>,
        limit: usize,
    ) -> Result<Vec<InstantInfo>, Error> {
        const DOING: &str = "listing instants";
        let mut found = Vec::new();
        let mut page_token = before.map(ToString::to_string).unwrap_or_default();
        while found.len() < limit {
            let page_size = (limit - found.len()).min(1000) as i32;
            let request = proto::ListInstantsRequest { url: url.to_string(), page_size, page_token };
            let page = self.calls.clone().list_instants(request).await.map_err(self.remote.failed(DOING))?.into_inner();
            for instant in page.instants {
                found.push(instant_from_proto(instant).map_err(self.remote.unreadable(DOING))?);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, Error> {
        const DOING: &str = "planning a window";
        let request = window_request_to_proto(&request);
        let plan = self.calls.clone().plan_window(traced(request)).await.map_err(self.remote.failed(DOING))?;
        source_plan_from_proto(plan.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    async fn read(&self, request: ReadRequest) -> Result<RowStream, Error> {
        const DOING: &str = "reading a split";
        let mut ticket = SPLIT_PREFIX.to_vec();
        ticket.extend(read_to_proto(&request).encode_to_vec());
        let data = self.flight.clone().do_get(traced(Ticket::new(ticket))).await.map_err(self.remote.failed(DOING))?;
        let opened = read_rows(data.into_inner(), self.remote.at(DOING)).await;
        let (_, rows) = opened.map_err(self.remote.failed(DOING))?;
        Ok(rows)
    }

    async fn locations(&self) -> Result<Vec<String>, Error> {
        let request = proto::LocateRequest {};
        let answer =
            self.calls.clone().locate(request).await.map_err(self.remote.failed("asking where splits are read"))?;
        Ok(answer.into_inner().locations)
    }

    async fn cancel_pull(&self, pull: &str) -> Result<u64, Error> {
        let request = proto::CancelPullRequest { pull: pull.to_string() };
        let answer = self.calls.clone().cancel_pull(request).await.map_err(self.remote.failed("cancelling a pull"))?;
        Ok(answer.into_inner().streams)
    }
}

/// Serves a timeline role to [`TimelineClient`]s; the rows are served by [`crate::FlightServer::with_timeline`].
pub struct TimelineServer {
    timeline: Arc<dyn Timeline>,
    /// Where others read splits from this process.
    locations: Vec<String>,
    /// The streams that this process serves.
    running: Arc<Running>,
}

impl TimelineServer {
    /// The service to add to a server.
    pub fn new(timeline: Arc<dyn Timeline>) -> TimelineServiceServer<Self> {
        TimelineServer::beside(timeline, &FlightServer::new())
    }

    /// The same, beside the Flight service that serves the rows.
    pub fn beside(timeline: Arc<dyn Timeline>, flight: &FlightServer) -> TimelineServiceServer<Self> {
        let server =
            TimelineServer { timeline, locations: flight.address().into_iter().collect(), running: flight.running() };
        TimelineServiceServer::new(server).max_decoding_message_size(crate::MESSAGE_LIMIT)
    }
}

#[async_trait]
impl TimelineService for TimelineServer {
    async fn get_table(&self, request: Request<proto::GetTableRequest>) -> Result<Response<proto::Table>, Status> {
        let table = self.timeline.describe(&request.get_ref().url).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(table_to_proto(&table)))
    }

    async fn plan_window(
        &self,
        request: Request<proto::PlanWindowRequest>,
    ) -> Result<Response<proto::SourcePlan>, Status> {
        let request = window_request_from_proto(request.into_inner()).map_err(malformed)?;
        let plan = self.timeline.plan(request).await.map_err(|e| to_status(&e))?;
        Ok(Response::new(source_plan_to_proto(&plan)))
    }

    async fn list_instants(
        &self,
        request: Request<proto::ListInstantsRequest>,
    ) -> Result<Response<proto::ListInstantsResponse>, Status> {
        let request = request.into_inner();
        let size = page_size(request.page_size)?;
        // A page goes on before the last instant of the one before: new ones come in front of it and move nothing.
        let before = optional(&request.page_token, "page_token").map_err(malformed)?;
        let found = self.timeline.list_instants(&request.url, before.as_ref(), size + 1).await;
        let mut found = found.map_err(|e| to_status(&e))?;
        let more = found.len() > size;
        found.truncate(size);
        let last = found.last().filter(|_| more).map(|instant| instant.requested.to_string());
        Ok(Response::new(proto::ListInstantsResponse {
            instants: found.iter().map(instant_to_proto).collect(),
            next_page_token: last.unwrap_or_default(),
        }))
    }

    async fn locate(&self, _: Request<proto::LocateRequest>) -> Result<Response<proto::LocateResponse>, Status> {
        Ok(Response::new(proto::LocateResponse { locations: self.locations.clone() }))
    }

    async fn cancel_pull(
        &self,
        request: Request<proto::CancelPullRequest>,
    ) -> Result<Response<proto::CancelPullResponse>, Status> {
        let streams = self.running.cancel(&request.get_ref().pull);
        Ok(Response::new(proto::CancelPullResponse { streams }))
    }
}

#[cfg(test)]
mod tests;
