// SPDX-License-Identifier: Apache-2.0
//! The timeline role over gRPC, and the rows of its splits over Flight.

use std::sync::Arc;

use arrow_flight::Ticket;
use arrow_flight::flight_service_client::FlightServiceClient;
use async_trait::async_trait;
use prost::Message;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tributary_api::RowStream;
use tributary_api::timeline::{Error, PlanRequest, ReadRequest, SourcePlan, TableInfo, Timeline};

use crate::convert::{
    read_to_proto, source_plan_from_proto, source_plan_to_proto, table_from_proto, table_to_proto,
    window_request_from_proto, window_request_to_proto,
};
use crate::fault::{malformed, to_status};
use crate::flight::{SPLIT_PREFIX, read_rows};
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
        let request = proto::DescribeRequest { url: url.to_string() };
        let table = self.calls.clone().describe(traced(request)).await.map_err(self.remote.failed(DOING))?;
        table_from_proto(table.into_inner()).map_err(self.remote.unreadable(DOING))
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
}

/// Serves a timeline role to [`TimelineClient`]s; the rows are served by [`crate::FlightServer::with_timeline`].
pub struct TimelineServer {
    timeline: Arc<dyn Timeline>,
}

impl TimelineServer {
    /// The service to add to a server.
    pub fn new(timeline: Arc<dyn Timeline>) -> TimelineServiceServer<Self> {
        TimelineServiceServer::new(TimelineServer { timeline }).max_decoding_message_size(crate::MESSAGE_LIMIT)
    }
}

#[async_trait]
impl TimelineService for TimelineServer {
    async fn describe(&self, request: Request<proto::DescribeRequest>) -> Result<Response<proto::Table>, Status> {
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
}

#[cfg(test)]
mod tests;
