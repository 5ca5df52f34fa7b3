// SPDX-License-Identifier: Apache-2.0
//! The Flight service of a process: one for all its roles, since Flight knows one service per port.

use std::pin::Pin;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use async_trait::async_trait;
use futures::{Stream, StreamExt};
use prost::Message;
use tonic::{Request, Response, Status, Streaming};
use tributary_api::coordinator::{BatchStatus, Coordinator, Error, OpenedBatch};
use tributary_api::timeline::Timeline;
use tributary_api::writer::Writer;
use tributary_types::{BatchName, Outcome, PipelineName};

use super::rows::FlightStream;
use super::{BATCH_PREFIX, SPLIT_PREFIX, STAGE_PATH, batch_metadata, batch_ticket, send_rows};
use crate::convert::read_from_proto;
use crate::coordinator::read_name;
use crate::fault::{malformed, to_status, unsupported};
use crate::proto::timeline as proto;
use crate::trace::within_current;
use crate::writer::stage;

/// Batches that `ListFlights` shows at most.
const LISTED_BATCHES: usize = 100;

/// Serves rows. Each role that runs here adds its own flights.
#[derive(Default, Clone)]
pub struct FlightServer {
    coordinator: Option<Arc<dyn Coordinator>>,
    timeline: Option<Arc<dyn Timeline>>,
    writer: Option<Arc<dyn Writer>>,
}

impl FlightServer {
    /// A service without any flight.
    pub fn new() -> Self {
        FlightServer::default()
    }

    /// Adds the flights `batch:<name>`.
    #[must_use]
    pub fn with_coordinator(mut self, coordinator: Arc<dyn Coordinator>) -> Self {
        self.coordinator = Some(coordinator);
        self
    }

    /// Adds the rows of splits, for [`crate::TimelineClient`]s.
    #[must_use]
    pub fn with_timeline(mut self, timeline: Arc<dyn Timeline>) -> Self {
        self.timeline = Some(timeline);
        self
    }

    /// Takes rows to stage, from [`crate::WriterClient`]s.
    #[must_use]
    pub fn with_writer(mut self, writer: Arc<dyn Writer>) -> Self {
        self.writer = Some(writer);
        self
    }

    /// The service to add to a server.
    pub fn into_service(self) -> FlightServiceServer<Self> {
        FlightServiceServer::new(self).max_decoding_message_size(crate::MESSAGE_LIMIT)
    }

    async fn open(&self, flight: &[u8]) -> Result<OpenedBatch, Status> {
        let text = std::str::from_utf8(flight).ok();
        let Some(name) = text.and_then(|text| text.strip_prefix(BATCH_PREFIX)) else {
            return Err(malformed(format!(
                "`{}` is no flight of this server: a batch is `{BATCH_PREFIX}<pipeline>/<request id>`",
                String::from_utf8_lossy(flight)
            )));
        };
        let Some(coordinator) = &self.coordinator else {
            return Err(unsupported("the coordinator role does not run in this process: no batch can be pulled here"));
        };
        let name = read_name(name.to_string())?;
        coordinator.open_batch(&name).await.map_err(|e| to_status(&e))
    }
}

impl FlightServer {
    async fn read_split(&self, encoded: &[u8]) -> Result<FlightStream, Status> {
        let Some(timeline) = &self.timeline else {
            return Err(unsupported("the timeline role does not run in this process: no split can be read here"));
        };
        let request = proto::ReadRequest::decode(encoded)
            .map_err(|e| malformed(format!("the ticket holds no ReadRequest: {e}")))?;
        let request = read_from_proto(request).map_err(malformed)?;
        let schema = match &request.projection {
            Some(columns) => Arc::new(request.schema.project(columns).map_err(malformed)?),
            None => Arc::clone(&request.schema),
        };
        let rows = timeline.read(request).await.map_err(|e| to_status(&e))?;
        Ok(send_rows(schema, Box::pin(within_current(rows))))
    }
}

/// The bytes that name a flight: a path is read as if it were joined by `/`.
fn flight_of(descriptor: &FlightDescriptor) -> Vec<u8> {
    if descriptor.r#type == DescriptorType::Path as i32 {
        return descriptor.path.join("/").into_bytes();
    }
    descriptor.cmd.to_vec()
}

/// The batch's schema with what the batch was in its metadata.
fn described_schema(schema: &Schema, status: &BatchStatus) -> SchemaRef {
    let mut metadata = schema.metadata().clone();
    metadata.extend(batch_metadata(status));
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), metadata))
}

fn info_of(opened: &OpenedBatch) -> Result<FlightInfo, Status> {
    let status = &opened.status;
    let ticket = batch_ticket(&status.name);
    let written = &status.written;
    // Rows of the target that the commit changed; what a restarted coordinator remembers does not tell them.
    let known = written.rows == 0 || written.inserts + written.updates > 0;
    let records = if known { i64::try_from(written.inserts + written.updates).unwrap_or(-1) } else { -1 };
    let info = FlightInfo::new()
        .try_with_schema(&described_schema(&opened.schema, status))
        .map_err(|e| malformed(format!("the schema of the batch cannot be sent: {e}")))?;
    Ok(info
        .with_descriptor(FlightDescriptor::new_path(vec![ticket.clone()]))
        .with_endpoint(FlightEndpoint::new().with_ticket(Ticket::new(ticket)))
        .with_total_records(records)
        .with_total_bytes(-1)
        .with_ordered(false))
}

async fn listed(coordinator: Arc<dyn Coordinator>, name: BatchName) -> Option<Result<FlightInfo, Status>> {
    match coordinator.open_batch(&name).await {
        Ok(opened) => Some(info_of(&opened)),
        // Cleaned since, or forgotten: not a flight any more.
        Err(Error::Gone { .. } | Error::NoBatch { .. }) => None,
        Err(error) => Some(Err(to_status(&error))),
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[async_trait]
impl FlightService for FlightServer {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = FlightStream;
    type DoPutStream = Answers<PutResult>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;
    type DoExchangeStream = Answers<FlightData>;

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        let opened = self.open(&flight_of(request.get_ref())).await?;
        Ok(Response::new(info_of(&opened)?))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let opened = self.open(&flight_of(request.get_ref())).await?;
        let schema = described_schema(&opened.schema, &opened.status);
        let options = IpcWriteOptions::default();
        let result = SchemaAsIpc::new(&schema, &options)
            .try_into()
            .map_err(|e| malformed(format!("the schema of the batch cannot be sent: {e}")))?;
        Ok(Response::new(result))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let ticket = &request.get_ref().ticket;
        if let Some(encoded) = ticket.strip_prefix(SPLIT_PREFIX) {
            return Ok(Response::new(self.read_split(encoded).await?));
        }
        let opened = self.open(ticket).await?;
        let schema = described_schema(&opened.schema, &opened.status);
        Ok(Response::new(send_rows(schema, opened.rows)))
    }

    /// The newest committed batches that can be pulled; of one pipeline when the criteria name it.
    async fn list_flights(&self, request: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        let Some(coordinator) = self.coordinator.clone() else {
            return Ok(Response::new(Box::pin(futures::stream::empty())));
        };
        let expression = String::from_utf8_lossy(&request.get_ref().expression).into_owned();
        let pipeline = match expression.as_str() {
            "" => None,
            name => Some(PipelineName::new(name).map_err(|e| malformed(format!("criteria: {e}")))?),
        };
        let batches = coordinator.list_batches(pipeline.as_ref(), LISTED_BATCHES).await.map_err(|e| to_status(&e))?;
        let committed = batches.into_iter().filter(|status| status.outcome == Some(Outcome::Committed));
        let flights = futures::stream::iter(committed.map(|status| status.name))
            .filter_map(move |name| listed(Arc::clone(&coordinator), name));
        Ok(Response::new(Box::pin(flights)))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(unsupported("PollFlightInfo is not offered: a batch is complete when it can be pulled; use GetFlightInfo"))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(unsupported("Handshake is not offered: this server asks for no credentials"))
    }

    /// Stages rows for the coordinator of a running batch. It completes nothing: what it stages is invisible.
    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.unwrap_or_default();
        let path = first.flight_descriptor.as_ref().map(|descriptor| descriptor.path.join("/"));
        let Some(writer) = self.writer.as_ref().filter(|_| path.as_deref() == Some(STAGE_PATH)) else {
            return Err(unsupported("DoPut is not offered here: rows enter a table through a pipeline"));
        };
        let result = stage(Arc::clone(writer), first, messages).await?;
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(result)]))))
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        Err(unsupported("DoAction is not offered: batches are run over tributary.coordinator.v1"))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(Response::new(Box::pin(futures::stream::empty())))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(unsupported("DoExchange is not offered"))
    }
}
