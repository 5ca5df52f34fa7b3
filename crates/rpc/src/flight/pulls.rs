// SPDX-License-Identifier: Apache-2.0
//! Pulls: what `GetFlightInfo` says of them, and the rows of their tickets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Location, Ticket};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;
use tonic::Status;
use tributary_api::coordinator::Error;
use tributary_api::pulls::{FlightName, Pull, Pulls};
use tributary_api::timeline::{self, ReadRequest, Relation, Split, balance};
use tributary_api::{RowError, RowStream};
use tributary_types::{Code, Fault, IS_DELETED, MemoryBudget};

use super::rows::{FlightStream, batch_of, send_rows, unsendable};
use super::server::FlightServer;
use super::ticket::{PullTicket, TicketRows, new_pull, with_metadata};
use super::{METADATA_PREFIX, batch_metadata};
use crate::convert::millis_to_proto;
use crate::fault::{to_status, unsupported};

/// Bytes that reading a split may take.
const SPLIT_MEMORY: usize = 256 << 20;
/// Record batches that are read ahead of what is sent.
const READ_AHEAD: usize = 2;

/// How pulls are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullSettings {
    /// How long a ticket is good for.
    pub tickets_valid: Duration,
    /// Endpoints that a pull is divided into at most.
    pub endpoints: usize,
    /// How long `PollFlightInfo` waits for a running batch before it answers that it runs.
    pub poll_wait: Duration,
}

impl Default for PullSettings {
    fn default() -> Self {
        PullSettings { tickets_valid: Duration::from_secs(3600), endpoints: 16, poll_wait: Duration::from_secs(5) }
    }
}

impl FlightServer {
    /// Whoever plans pulls here.
    pub(crate) fn pulls(&self) -> Result<&Arc<dyn Pulls>, Status> {
        self.pulls.as_ref().ok_or_else(|| {
            unsupported("the coordinator role does not run in this process: nothing but its tickets can be pulled here")
        })
    }

    pub(crate) fn expires_millis(&self) -> i64 {
        self.clock.now_millis().saturating_add(self.settings.tickets_valid.as_millis() as i64)
    }

    /// Plans a flight and divides it into endpoints.
    pub(crate) async fn info_of_flight(&self, name: &FlightName) -> Result<FlightInfo, Status> {
        let pulls = self.pulls()?;
        let pull = pulls.plan_pull(name).await.map_err(|e| to_status(&e))?;
        let locations = match pulls.locations().await {
            Ok(locations) => locations,
            Err(error) => {
                // The rows can be had here as well, only not in parallel.
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "where splits are read cannot be found out, so this server reads them itself");
                Vec::new()
            }
        };
        let (id, expires_millis) = (new_pull(self.entropy.as_ref()), self.expires_millis());
        let metadata = full_metadata(&pull);
        let mut endpoints = Vec::new();
        let parts = balance(&pull.relation.splits, self.settings.endpoints);
        for (position, splits) in parts.into_iter().enumerate() {
            let relation = Relation { schema: Arc::clone(&pull.relation.schema), splits };
            let rows = TicketRows::Part { relation, flagged: pull.flags_deletes, batch_rows: pull.batch_rows };
            endpoints.push((rows, self.locations_of(position, &locations)));
        }
        if let (true, FlightName::Batch(batch)) = (pull.flags_deletes, &pull.flight) {
            let rows = TicketRows::Deleted { batch: batch.clone(), schema: Arc::clone(&pull.schema) };
            endpoints.push((rows, self.locations_of(0, &[])));
        }
        let ticket = |rows| PullTicket {
            pull: id.clone(),
            expires_millis,
            flight: pull.flight.to_string(),
            metadata: metadata.clone(),
            rows,
        };
        let endpoints = endpoints.into_iter().map(|(rows, locations)| endpoint(&ticket(rows), locations)).collect();
        let schema = with_metadata(&pull.schema, metadata.clone());
        let records = pull.rows.and_then(|rows| i64::try_from(rows).ok()).unwrap_or(-1);
        let descriptor = FlightDescriptor::new_path(vec![pull.flight.to_string()]);
        Ok(info(&schema, endpoints, &id)?.with_descriptor(descriptor).with_total_records(records))
    }

    /// An endpoint's locations, begun with another one each time; none: the server that was asked.
    pub(crate) fn locations_of(&self, position: usize, all: &[String]) -> Vec<Location> {
        let own = self.advertise.as_slice();
        let all = if all.is_empty() { own } else { all };
        let turned = (0..all.len()).map(|step| all[(position + step) % all.len()].clone());
        turned.map(|uri| Location { uri }).collect()
    }

    /// The rows of a ticket.
    pub(crate) async fn ticket_rows(&self, bytes: &[u8]) -> Result<FlightStream, Status> {
        let ticket = PullTicket::open(bytes, self.clock.now_millis())?;
        let schema = ticket.schema(flagged_schema);
        let PullTicket { pull, flight, rows, .. } = ticket;
        let rows = self.running.watched(&pull, self.open_rows(flight, rows)).await?;
        Ok(send_rows(schema, rows))
    }

    async fn open_rows(&self, flight: String, rows: TicketRows) -> Result<RowStream, Status> {
        match rows {
            TicketRows::Part { relation, flagged, batch_rows } => {
                self.part_rows(flight, relation, flagged, batch_rows).await
            }
            TicketRows::Deleted { batch, .. } => self.pulls()?.deleted_rows(&batch).await.map_err(|e| to_status(&e)),
            TicketRows::Query(planned) => {
                let opened = self.pulls()?.run_query(&planned).await.map_err(|e| to_status(&e))?;
                Ok(opened.rows)
            }
        }
    }

    /// The rows of a part, read a little ahead of what is sent.
    async fn part_rows(
        &self,
        flight: String,
        relation: Relation,
        flagged: bool,
        batch_rows: usize,
    ) -> Result<RowStream, Status> {
        let Relation { schema, splits } = relation;
        let mut splits = splits.into_iter();
        let Some(first) = splits.next() else { return Ok(futures::stream::empty().boxed()) };
        // Opened before anything is answered: a file that is gone is the call's error.
        let first = self.read_split_of(first, &schema, batch_rows).await.map_err(|error| match error {
            Error::Timeline(timeline::Error::FileGone { file, .. }) => to_status(&cleaned(&flight, &file)),
            error => to_status(&error),
        })?;
        let (server, full) = (self.clone(), Arc::clone(&schema));
        let others = futures::stream::iter(splits).then(move |split| {
            let (server, schema) = (server.clone(), Arc::clone(&full));
            async move { server.read_split_of(split, &schema, batch_rows).await.map_err(RowError::new) }
        });
        let rows = first.chain(others.try_flatten());
        let flags = flagged.then(|| flagged_schema(&schema));
        let rows = rows.map(move |batch| match batch {
            Ok(batch) => flags.as_ref().map_or_else(|| Ok(batch.clone()), |schema| flag(schema, &batch)),
            // Cleaned while it was pulled.
            Err(error) if error.reason == "FILE_GONE" => Err(RowError::new(cleaned(&flight, &error.to_string()))),
            Err(error) => Err(error),
        });
        Ok(read_ahead(rows.boxed()))
    }

    async fn read_split_of(&self, split: Split, schema: &SchemaRef, batch_rows: usize) -> Result<RowStream, Error> {
        let memory = MemoryBudget::new(SPLIT_MEMORY);
        let schema = Arc::clone(schema);
        let request = ReadRequest { split, schema, projection: None, predicate: None, batch_rows, memory };
        match (&self.timeline, &self.pulls) {
            (Some(timeline), _) => Ok(timeline.read(request).await?),
            (None, Some(pulls)) => pulls.read_split(request).await,
            (None, None) => Err(Error::NoFlight {
                name: request.split.name().to_string(),
                what: "neither the timeline role nor the coordinator role runs in this process".to_string(),
            }),
        }
    }

    /// All rows of a flight in one stream, for those who name it instead of a ticket.
    pub(crate) async fn whole_flight(&self, name: &FlightName) -> Result<FlightStream, Status> {
        let pulls = self.pulls()?;
        let pull = pulls.plan_pull(name).await.map_err(|e| to_status(&e))?;
        let schema = with_metadata(&pull.schema, full_metadata(&pull));
        let deleted = match &pull.flight {
            FlightName::Batch(batch) if pull.flags_deletes => Some((Arc::clone(pulls), batch.clone())),
            _ => None,
        };
        let flight = pull.flight.to_string();
        let open = async {
            let rows = self.part_rows(flight, pull.relation, pull.flags_deletes, pull.batch_rows).await?;
            // Opened once the others are read: keys of the whole batch are held meanwhile.
            let deleted = futures::stream::iter(deleted)
                .then(|(pulls, batch)| async move { pulls.deleted_rows(&batch).await.map_err(RowError::new) });
            Ok(rows.chain(deleted.try_flatten()).boxed())
        };
        let rows = self.running.watched(&new_pull(self.entropy.as_ref()), open).await?;
        Ok(send_rows(schema, rows))
    }

    /// The schema of a flight, as it is sent.
    pub(crate) async fn schema_of_flight(&self, name: &FlightName) -> Result<SchemaRef, Status> {
        let pull = self.pulls()?.plan_pull(name).await.map_err(|e| to_status(&e))?;
        Ok(with_metadata(&pull.schema, full_metadata(&pull)))
    }

    /// Ends every stream of a pull, here and where others read for it.
    pub(crate) async fn cancel(&self, pull: &str) -> Result<(), Status> {
        self.running.cancel(pull);
        if let Some(pulls) = &self.pulls {
            pulls.cancel_pull(pull).await.map_err(|e| to_status(&e))?;
        }
        Ok(())
    }
}

fn cleaned(flight: &str, file: &str) -> Error {
    Error::Gone { name: flight.to_string(), what: format!("a file of it was cleaned: {file}") }
}

/// An endpoint with its ticket.
pub(crate) fn endpoint(ticket: &PullTicket, location: Vec<Location>) -> FlightEndpoint {
    FlightEndpoint {
        ticket: Some(Ticket::new(ticket.encode())),
        location,
        expiration_time: Some(millis_to_proto(ticket.expires_millis)),
        app_metadata: Bytes::new(),
    }
}

/// What is told of a pull, with its name for whoever cancels it.
pub(crate) fn info(schema: &Schema, endpoints: Vec<FlightEndpoint>, pull: &str) -> Result<FlightInfo, Status> {
    let info = FlightInfo::new().try_with_schema(schema).map_err(|e| unsendable("the schema cannot be sent", e))?;
    let info = info.with_endpoints(endpoints).with_app_metadata(pull.as_bytes().to_vec());
    Ok(info.with_total_records(-1).with_total_bytes(-1).with_ordered(false))
}

/// What the schema says of a pull, by full keys.
fn full_metadata(pull: &Pull) -> HashMap<String, String> {
    let mut metadata = pull.batch.as_ref().map(batch_metadata).unwrap_or_default();
    metadata.extend(pull.metadata.iter().map(|(key, value)| (format!("{METADATA_PREFIX}{key}"), value.clone())));
    metadata
}

/// Reads in a task of its own, so that decoding files and sending go on at the same time. The task ends when the rows are
/// dropped.
fn read_ahead(mut rows: RowStream) -> RowStream {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let task = tokio::spawn(async move {
        loop {
            let next = tokio::select! {
                next = rows.next() => next,
                () = sender.closed() => return,
            };
            let Some(batch) = next else { return };
            let failed = batch.is_err();
            if sender.send(batch).await.is_err() || failed {
                return;
            }
        }
    });
    let state = Some((receiver, task));
    let read = futures::stream::unfold(state, |state| async move {
        let (mut receiver, task) = state?;
        if let Some(batch) = receiver.recv().await {
            return Some((batch, Some((receiver, task))));
        }
        // A task that panicked must not look like one that came to the end.
        let ended = task.await;
        ended.err().map(|error| (Err(RowError::new(ReadingEnded(error.to_string()))), None))
    });
    read.boxed()
}

/// The task that read rows ended before their end.
#[derive(Debug, thiserror::Error)]
#[error("reading the rows ended without a result: {0}")]
struct ReadingEnded(String);

impl Fault for ReadingEnded {
    fn code(&self) -> Code {
        Code::Internal
    }

    fn reason(&self) -> &'static str {
        "STREAM_CUT"
    }
}

/// The columns of a pulled batch that flags deletes.
pub(crate) fn flagged_schema(schema: &SchemaRef) -> SchemaRef {
    if schema.column_with_name(IS_DELETED).is_some() {
        return Arc::clone(schema);
    }
    let flag = Field::new(IS_DELETED, DataType::Boolean, true);
    let fields: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone()).chain([flag]).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Rows that are not deleted, in the columns of [`flagged_schema`].
fn flag(schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch, RowError> {
    let mut columns = batch.columns().to_vec();
    if columns.len() < schema.fields().len() {
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![false; batch.num_rows()]));
        columns.push(flags);
    }
    batch_of(schema, columns, batch.num_rows())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rows;

    #[tokio::test]
    async fn reading_ahead_that_panics_is_an_error_and_no_end() {
        let rows = futures::stream::iter([1, 2]).map(|number| match number {
            1 => Ok(rows(&["a"])),
            _ => panic!("a bug"),
        });
        let read: Vec<_> = read_ahead(rows.boxed()).collect().await;
        assert_eq!(read.len(), 2);
        assert!(read[0].is_ok());
        assert_eq!(read[1].as_ref().unwrap_err().reason, "STREAM_CUT");
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_dropped_with_its_reader() {
        let (held, mut gone) = mpsc::channel::<()>(1);
        let endless = futures::stream::repeat_with(move || {
            let _ = &held;
            Ok(rows(&["a"]))
        });
        let mut read = read_ahead(endless.boxed());
        assert!(read.next().await.unwrap().is_ok());
        drop(read);
        assert!(gone.recv().await.is_none(), "the source of the rows is dropped");
    }

    #[test]
    fn a_flag_is_added_once() {
        let batch = rows(&["a", "b"]);
        let schema = flagged_schema(&batch.schema());
        let flagged = flag(&schema, &batch).unwrap();
        assert_eq!(flagged.num_columns(), batch.num_columns() + 1);
        assert_eq!(flagged_schema(&schema), schema);
        assert_eq!(flag(&schema, &flagged).unwrap(), flagged);
    }
}
