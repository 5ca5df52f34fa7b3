// SPDX-License-Identifier: Apache-2.0
//! Tickets of pulls: the one place where they are written and read.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use prost::Message;
use tonic::Status;
use tributary_api::pulls::{PlannedQuery, Query};
use tributary_api::timeline::Relation;
use tributary_types::{BatchName, Entropy};

use crate::convert::{
    Malformed, count, relation_from_proto, relation_to_proto, required, schema_from_bytes, schema_to_bytes,
};
use crate::fault::{malformed, ticket_expired};
use crate::proto::flight as proto;

/// Begins a ticket of a pull; what follows is an encoded `tributary.flight.v1.Ticket`.
const PULL_PREFIX: &[u8] = b"pull:";

/// What a ticket of a pull says.
#[derive(Debug, Clone)]
pub(crate) struct PullTicket {
    /// Random name of the pull.
    pub(crate) pull: String,
    /// When it expires, milliseconds since the epoch.
    pub(crate) expires_millis: i64,
    /// What is pulled, for messages.
    pub(crate) flight: String,
    /// Metadata of the schema.
    pub(crate) metadata: HashMap<String, String>,
    /// Which rows.
    pub(crate) rows: TicketRows,
}

/// The rows of a ticket.
#[derive(Debug, Clone)]
pub(crate) enum TicketRows {
    /// Those of some splits, each with a flag if the batch deleted records.
    Part { relation: Relation, flagged: bool, batch_rows: usize },
    /// The records that a batch deleted.
    Deleted { batch: BatchName, schema: SchemaRef },
    /// The result of a query.
    Query(PlannedQuery),
}

impl PullTicket {
    /// The bytes that a client keeps.
    pub(crate) fn encode(&self) -> Bytes {
        let rows = match &self.rows {
            TicketRows::Part { relation, flagged, batch_rows } => proto::ticket::Rows::Part(proto::Part {
                relation: Some(relation_to_proto(relation)),
                flagged: *flagged,
                batch_rows: *batch_rows as u64,
            }),
            TicketRows::Deleted { batch, schema } => proto::ticket::Rows::Deleted(proto::Deleted {
                batch: batch.to_string(),
                schema: schema_to_bytes(schema),
            }),
            TicketRows::Query(planned) => proto::ticket::Rows::Query(query_to_proto(planned)),
        };
        let ticket = proto::Ticket {
            pull: self.pull.clone(),
            expires_millis: self.expires_millis,
            flight: self.flight.clone(),
            metadata: self.metadata.clone(),
            rows: Some(rows),
        };
        let mut bytes = PULL_PREFIX.to_vec();
        bytes.extend(ticket.encode_to_vec());
        bytes.into()
    }

    /// Whether the bytes are such a ticket.
    pub(crate) fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(PULL_PREFIX)
    }

    /// What the bytes say, expired or not.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Status> {
        let encoded = bytes.strip_prefix(PULL_PREFIX).unwrap_or_default();
        let ticket =
            proto::Ticket::decode(encoded).map_err(|e| malformed(format!("the ticket cannot be read: {e}")))?;
        read(ticket).map_err(|e| malformed(e.within("ticket")))
    }

    /// The same; one that expired is refused.
    pub(crate) fn open(bytes: &[u8], now_millis: i64) -> Result<Self, Status> {
        let ticket = PullTicket::decode(bytes)?;
        if now_millis >= ticket.expires_millis {
            return Err(ticket_expired(&ticket.flight, now_millis - ticket.expires_millis));
        }
        Ok(ticket)
    }

    /// Schema of the rows, as it is sent.
    pub(crate) fn schema(&self, flagged_schema: impl Fn(&SchemaRef) -> SchemaRef) -> SchemaRef {
        let schema = match &self.rows {
            TicketRows::Part { relation, flagged: true, .. } => flagged_schema(&relation.schema),
            TicketRows::Part { relation, .. } => Arc::clone(&relation.schema),
            TicketRows::Deleted { schema, .. } => Arc::clone(schema),
            TicketRows::Query(planned) => Arc::clone(&planned.schema),
        };
        with_metadata(&schema, self.metadata.clone())
    }
}

/// A schema with more metadata.
pub(crate) fn with_metadata(schema: &Schema, more: HashMap<String, String>) -> SchemaRef {
    let mut metadata = schema.metadata().clone();
    metadata.extend(more);
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), metadata))
}

/// A name for a pull, which nobody can guess.
pub(crate) fn new_pull(entropy: &dyn Entropy) -> String {
    format!("{:032x}", entropy.next_u128())
}

/// Whether a text could be such a name.
pub(crate) fn is_pull(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn read(ticket: proto::Ticket) -> Result<PullTicket, Malformed> {
    let rows = match required(ticket.rows, "rows")? {
        proto::ticket::Rows::Part(part) => TicketRows::Part {
            relation: relation_from_proto(required(part.relation, "relation")?)?,
            flagged: part.flagged,
            batch_rows: count(part.batch_rows).max(1),
        },
        proto::ticket::Rows::Deleted(deleted) => TicketRows::Deleted {
            batch: BatchName::new(deleted.batch).map_err(|e| Malformed::new("batch", e))?,
            schema: schema_from_bytes(deleted.schema, "schema")?,
        },
        proto::ticket::Rows::Query(query) => TicketRows::Query(query_from_proto(query)?),
    };
    let proto::Ticket { pull, expires_millis, flight, metadata, .. } = ticket;
    Ok(PullTicket { pull, expires_millis, flight, metadata, rows })
}

fn query_to_proto(planned: &PlannedQuery) -> proto::Query {
    let pin = |(name, flight): &(Vec<String>, tributary_api::pulls::FlightName)| proto::Pin {
        name: name.clone(),
        flight: flight.to_string(),
    };
    proto::Query {
        statement: Some(statement_to_proto(&planned.query)),
        pins: planned.pins.iter().map(pin).collect(),
        schema: schema_to_bytes(&planned.schema),
    }
}

fn query_from_proto(query: proto::Query) -> Result<PlannedQuery, Malformed> {
    let mut pins = Vec::with_capacity(query.pins.len());
    for pin in query.pins {
        pins.push((pin.name, pin.flight.parse().map_err(|e| Malformed::new("pins.flight", e))?));
    }
    let statement = required(query.statement, "statement")?;
    Ok(PlannedQuery {
        query: statement_from_proto(statement)?,
        pins,
        schema: schema_from_bytes(query.schema, "schema")?,
        parameters: 0,
    })
}

/// The handle of a prepared statement: it is the statement itself, so that a server need not remember it.
pub(crate) fn statement_handle(query: &Query) -> Bytes {
    statement_to_proto(query).encode_to_vec().into()
}

/// What a handle stands for.
pub(crate) fn statement_of(handle: &[u8]) -> Result<Query, Status> {
    let statement = proto::Statement::decode(handle)
        .map_err(|e| malformed(format!("the handle is of no prepared statement of this server: {e}")))?;
    statement_from_proto(statement).map_err(malformed)
}

fn statement_to_proto(query: &Query) -> proto::Statement {
    proto::Statement { sql: query.sql.clone(), parameters: query.parameters.as_ref().map(rows_to_bytes) }
}

fn statement_from_proto(statement: proto::Statement) -> Result<Query, Malformed> {
    let parameters = statement.parameters.map(|bytes| rows_from_bytes(&bytes)).transpose()?;
    Ok(Query { sql: statement.sql, parameters })
}

/// Few rows as an Arrow IPC stream.
pub(crate) fn rows_to_bytes(rows: &RecordBatch) -> Vec<u8> {
    let written = || {
        let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema())?;
        writer.write(rows)?;
        writer.into_inner()
    };
    // Writing to memory fails for types that IPC does not have only; empty bytes are refused by whoever reads them.
    written().unwrap_or_default()
}

/// What [`rows_to_bytes`] wrote.
pub(crate) fn rows_from_bytes(bytes: &[u8]) -> Result<RecordBatch, Malformed> {
    let fail = |e: arrow::error::ArrowError| Malformed::new("parameters", format!("are no Arrow IPC stream: {e}"));
    let mut reader = StreamReader::try_new(bytes, None).map_err(fail)?;
    let first = reader.next().transpose().map_err(fail)?;
    required(first, "parameters")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rows;

    fn ticket(rows: TicketRows) -> PullTicket {
        PullTicket {
            pull: "p1".to_string(),
            expires_millis: 1_000,
            flight: "table:orders@20250606182826197".to_string(),
            metadata: HashMap::from([("tributary.table".to_string(), "orders".to_string())]),
            rows,
        }
    }

    fn part(flagged: bool) -> TicketRows {
        let relation = Relation { schema: rows(&[]).schema(), splits: Vec::new() };
        TicketRows::Part { relation, flagged, batch_rows: 7 }
    }

    #[test]
    fn a_ticket_arrives_whole() {
        let planned = PlannedQuery {
            query: Query { sql: "SELECT ?".to_string(), parameters: Some(rows(&["a"])) },
            pins: vec![(vec!["tables".to_string(), "t".to_string()], "table:t@20250606182826197".parse().unwrap())],
            schema: rows(&[]).schema(),
            parameters: 0,
        };
        let deleted = TicketRows::Deleted { batch: BatchName::new("p/r").unwrap(), schema: rows(&[]).schema() };
        for rows in [part(true), part(false), deleted, TicketRows::Query(planned)] {
            let sent = ticket(rows);
            assert!(PullTicket::is(&sent.encode()));
            assert_eq!(format!("{:?}", PullTicket::open(&sent.encode(), 999).unwrap()), format!("{sent:?}"));
        }
    }

    #[test]
    fn an_expired_ticket_says_so_and_what_to_do() {
        let status = PullTicket::open(&ticket(part(false)).encode(), 61_000).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        for said in ["table:orders@20250606182826197", "expired 60 s ago", "GetFlightInfo"] {
            assert!(status.message().contains(said), "{}", status.message());
        }
    }

    #[test]
    fn bytes_that_are_no_ticket_are_malformed() {
        for bytes in [&b"pull:"[..], b"pull:\xff\xff", b"pull:\x0a\x02p1"] {
            assert_eq!(PullTicket::open(bytes, 0).unwrap_err().code(), tonic::Code::InvalidArgument, "{bytes:?}");
        }
    }
}
