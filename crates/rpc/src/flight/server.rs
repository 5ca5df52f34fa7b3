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
use tributary_api::merge::{Merge, QueryRows};
use tributary_api::pulls::{FlightName, Pulls, TABLES};
use tributary_api::refused::refused_schema;
use tributary_api::timeline::Timeline;
use tributary_api::writer::Writer;
use tributary_types::{BatchName, Clock, Entropy, Outcome, PipelineName, Stage, SystemClock, SystemEntropy};

use super::pulls::PullSettings;
use super::rows::FlightStream;
use super::running::Running;
use super::sql::sql_command;
use super::ticket::PullTicket;
use super::{
    BATCH_PREFIX, QUERY_PREFIX, SPLIT_PREFIX, STAGE_PATH, actions, batch_metadata, batch_ticket, metrics, send_rows,
};
use crate::convert::{query_from_proto, read_from_proto};
use crate::coordinator::read_name;
use crate::fault::{malformed, to_status, unsupported};
use crate::proto::merge as merge_proto;
use crate::proto::timeline as proto;
use crate::trace::within_current;
use crate::writer::stage;

/// Batches that `ListFlights` shows at most.
const LISTED_BATCHES: usize = 100;

/// Serves rows. Each role that runs here adds its own flights.
#[derive(Clone)]
pub struct FlightServer {
    pub(super) coordinator: Option<Arc<dyn Coordinator>>,
    pub(super) pulls: Option<Arc<dyn Pulls>>,
    pub(super) timeline: Option<Arc<dyn Timeline>>,
    pub(super) merge: Option<Arc<dyn Merge>>,
    pub(super) writer: Option<Arc<dyn Writer>>,
    pub(super) running: Arc<Running>,
    pub(super) settings: PullSettings,
    /// Where others reach this server.
    pub(super) advertise: Option<String>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
}

impl Default for FlightServer {
    fn default() -> Self {
        metrics::register();
        FlightServer {
            coordinator: None,
            pulls: None,
            timeline: None,
            merge: None,
            writer: None,
            running: Arc::default(),
            settings: PullSettings::default(),
            advertise: None,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
        }
    }
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

    /// Adds the flights `table:<name>`, endpoints for both kinds, and Flight SQL.
    #[must_use]
    pub fn with_pulls(mut self, pulls: Arc<dyn Pulls>) -> Self {
        self.pulls = Some(pulls);
        self
    }

    /// Adds the rows of queries, for [`crate::MergeClient`]s.
    #[must_use]
    pub fn with_merge(mut self, merge: Arc<dyn Merge>) -> Self {
        self.merge = Some(merge);
        self
    }

    /// Names the address that tickets are redeemed at, `grpc://HOST:PORT`.
    #[must_use]
    pub fn advertised_at(mut self, address: Option<String>) -> Self {
        self.advertise = address;
        self
    }

    /// Answers pulls by these settings, and by this clock.
    #[must_use]
    pub fn with_settings(mut self, settings: PullSettings, clock: Arc<dyn Clock>) -> Self {
        self.settings = settings;
        self.clock = clock;
        self
    }

    /// Where others reach it, if that was said.
    pub(crate) fn address(&self) -> Option<String> {
        self.advertise.clone()
    }

    /// The streams that it serves.
    pub fn running(&self) -> Arc<Running> {
        Arc::clone(&self.running)
    }

    /// The service to add to a server.
    pub fn into_service(self) -> FlightServiceServer<Self> {
        FlightServiceServer::new(self).max_decoding_message_size(crate::MESSAGE_LIMIT)
    }

    async fn open(&self, flight: &[u8]) -> Result<OpenedBatch, Status> {
        let FlightName::Batch(name) = flight_name(flight)? else {
            return Err(unsupported("tables cannot be pulled here"));
        };
        let Some(coordinator) = &self.coordinator else {
            return Err(unsupported("the coordinator role does not run in this process: no batch can be pulled here"));
        };
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
            _ if request.split.is_refused_only() => refused_schema(),
            Some(columns) => Arc::new(request.schema.project(columns).map_err(malformed)?),
            None => Arc::clone(&request.schema),
        };
        let rows = timeline.read(request).await.map_err(|e| to_status(&e))?;
        Ok(send_rows(schema, Box::pin(within_current(rows))))
    }

    async fn read_query(&self, encoded: &[u8]) -> Result<FlightStream, Status> {
        let Some(merge) = &self.merge else {
            return Err(unsupported("the merge role does not run in this process: no query can be run here"));
        };
        let request = merge_proto::QueryRequest::decode(encoded)
            .map_err(|e| malformed(format!("the ticket holds no QueryRequest: {e}")))?;
        let request = query_from_proto(request).map_err(malformed)?;
        let QueryRows { schema, rows } = merge.query(request).await.map_err(|e| to_status(&e))?;
        Ok(send_rows(schema, rows))
    }

    /// The info of a flight, whether pulls are planned here or only batches opened.
    async fn info(&self, descriptor: &FlightDescriptor) -> Result<FlightInfo, Status> {
        if let Some(command) = sql_command(&descriptor.cmd)? {
            return Ok(self.info_of_command(command).await?.with_descriptor(descriptor.clone()));
        }
        let flight = flight_of(descriptor);
        if self.pulls.is_some() {
            return self.info_of_flight(&flight_name(&flight)?).await;
        }
        info_of(&self.open(&flight).await?)
    }

    /// The batch that a descriptor names while it runs; waits a while for its end.
    async fn still_running(&self, descriptor: &FlightDescriptor) -> Result<Option<BatchStatus>, Status> {
        let Some(coordinator) = &self.coordinator else { return Ok(None) };
        if sql_command(&descriptor.cmd)?.is_some() {
            return Ok(None);
        }
        let FlightName::Batch(name) = flight_name(&flight_of(descriptor))? else { return Ok(None) };
        let mut watch = coordinator.watch_batch(&name).await.map_err(|e| to_status(&e))?;
        let over = watch.wait_for(|status| status.outcome.is_some());
        // A sender that is gone changes nothing any more: GetFlightInfo tells what is known.
        if tokio::time::timeout(self.settings.poll_wait, over).await.is_ok() {
            return Ok(None);
        }
        let status = watch.borrow().clone();
        Ok(Some(status).filter(|status| status.outcome.is_none()))
    }
}

/// The flight that bytes name. A text that cannot be a batch's name names no batch.
fn flight_name(flight: &[u8]) -> Result<FlightName, Status> {
    let text = String::from_utf8_lossy(flight);
    match text.strip_prefix(BATCH_PREFIX) {
        Some(name) => Ok(FlightName::Batch(read_name(name.to_string())?)),
        None => text.parse().map_err(malformed),
    }
}

/// How far a batch is, from 0 to 1.
fn progress(stage: Stage) -> f64 {
    match stage {
        Stage::Pending => 0.0,
        Stage::Resolve => 0.05,
        Stage::Plan => 0.1,
        Stage::Begin => 0.2,
        Stage::Merge => 0.3,
        Stage::Commit => 0.8,
        Stage::Publish => 0.9,
        Stage::Done => 1.0,
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

impl FlightServer {
    /// A flight in a listing; `None`: it is none any more.
    async fn listed_flight(&self, name: &FlightName) -> Option<Result<FlightInfo, Status>> {
        match self.info_of_flight(name).await {
            // Cleaned since, or forgotten, or a table that nobody committed to.
            Err(status) if matches!(status.code(), tonic::Code::NotFound | tonic::Code::FailedPrecondition) => None,
            info => Some(info),
        }
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
        Ok(Response::new(self.info(request.get_ref()).await?))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let descriptor = request.get_ref();
        let schema = if let Some(command) = sql_command(&descriptor.cmd)? {
            self.schema_of_command(command).await?
        } else if self.pulls.is_some() {
            self.schema_of_flight(&flight_name(&flight_of(descriptor))?).await?
        } else {
            let opened = self.open(&flight_of(descriptor)).await?;
            described_schema(&opened.schema, &opened.status)
        };
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
        if let Some(encoded) = ticket.strip_prefix(QUERY_PREFIX) {
            return Ok(Response::new(self.read_query(encoded).await?));
        }
        if PullTicket::is(ticket) {
            return Ok(Response::new(self.ticket_rows(ticket).await?));
        }
        if let Some(command) = sql_command(ticket)? {
            return Ok(Response::new(self.rows_of_command(command).await?));
        }
        if self.pulls.is_some() {
            return Ok(Response::new(self.whole_flight(&flight_name(ticket)?).await?));
        }
        let opened = self.open(ticket).await?;
        let schema = described_schema(&opened.schema, &opened.status);
        Ok(Response::new(send_rows(schema, opened.rows)))
    }

    /// The newest committed batches that can be pulled, of one pipeline when the criteria name it; without criteria the
    /// tables as well.
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
        let Some(pulls) = &self.pulls else {
            let flights = futures::stream::iter(committed.map(|status| status.name))
                .filter_map(move |name| listed(Arc::clone(&coordinator), name));
            return Ok(Response::new(Box::pin(flights)));
        };
        let mut names = Vec::new();
        if pipeline.is_none() {
            let tables = pulls.relations(false).await.map_err(|e| to_status(&e))?;
            let tables = tables.into_iter().filter(|listed| listed.schema_name == TABLES);
            names.extend(tables.map(|table| FlightName::Table { name: table.name, at: None }));
        }
        names.extend(committed.map(|status| FlightName::Batch(status.name)));
        let server = self.clone();
        let flights = futures::stream::iter(names).filter_map(move |name| {
            let server = server.clone();
            async move { server.listed_flight(&name).await }
        });
        Ok(Response::new(Box::pin(flights)))
    }

    /// A batch that runs is polled until it can be pulled; anything else is complete at once.
    async fn poll_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        let descriptor = request.into_inner();
        let Some(status) = self.still_running(&descriptor).await? else {
            return Ok(Response::new(PollInfo {
                info: Some(self.info(&descriptor).await?),
                flight_descriptor: None,
                progress: Some(1.0),
                expiration_time: None,
            }));
        };
        let info = FlightInfo::new().with_descriptor(descriptor.clone()).with_total_records(-1).with_total_bytes(-1);
        Ok(Response::new(PollInfo {
            info: Some(info),
            flight_descriptor: Some(descriptor),
            progress: Some(progress(status.stage)),
            expiration_time: None,
        }))
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
        let command = first.flight_descriptor.as_ref().map(|descriptor| sql_command(&descriptor.cmd)).transpose()?;
        if let Some(command) = command.flatten() {
            let result = self.put_of_command(command, first, messages).await?;
            return Ok(Response::new(Box::pin(futures::stream::iter([Ok(result)]))));
        }
        let path = first.flight_descriptor.as_ref().map(|descriptor| descriptor.path.join("/"));
        let Some(writer) = self.writer.as_ref().filter(|_| path.as_deref() == Some(STAGE_PATH)) else {
            return Err(unsupported("DoPut is not offered here: rows enter a table through a pipeline"));
        };
        let result = stage(Arc::clone(writer), first, messages).await?;
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(result)]))))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let results = self.act(request.into_inner()).await?;
        Ok(Response::new(Box::pin(futures::stream::iter(results.into_iter().map(Ok)))))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        let actions = if self.pulls.is_some() { actions::offered() } else { Vec::new() };
        Ok(Response::new(Box::pin(futures::stream::iter(actions.into_iter().map(Ok)))))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(unsupported("DoExchange is not offered"))
    }
}
