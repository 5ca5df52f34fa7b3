// SPDX-License-Identifier: Apache-2.0
//! What can be pulled from outside: the rows of a batch, a table as of an instant, and queries over both.
//!
//! Planning pins everything; what was pinned is what is read, whoever reads it and whenever, until it is cleaned.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use tributary_types::{BatchName, InstantTime};

use crate::RowStream;
use crate::coordinator::{BatchStatus, Error};
use crate::timeline::{ReadRequest, Relation};

const BATCH: &str = "batch:";
const TABLE: &str = "table:";

/// Answers pulls. The coordinator does: it knows which batches and tables there are.
#[async_trait]
pub trait Pulls: Send + Sync {
    /// Pins what a flight names. Safe to repeat.
    async fn plan_pull(&self, flight: &FlightName) -> Result<Pull, Error>;

    /// Reads rows of a split, where nobody nearer to the puller does.
    async fn read_split(&self, request: ReadRequest) -> Result<RowStream, Error>;

    /// The records that a batch took out of its target, their flag set, in the schema of its [`Pull`]. Safe to repeat.
    async fn deleted_rows(&self, name: &BatchName) -> Result<RowStream, Error>;

    /// Flight URIs of all who read splits, `grpc://HOST:PORT`; empty: nobody but whoever was asked.
    async fn locations(&self) -> Result<Vec<String>, Error>;

    /// Ends what others read for a pull; answers how many streams ended. Safe to repeat.
    async fn cancel_pull(&self, pull: &str) -> Result<u64, Error>;

    /// The tables and the newest batches that a query can name, with their schemas if asked for.
    async fn relations(&self, with_schemas: bool) -> Result<Vec<Listed>, Error>;

    /// Plans a query and pins what it names. Runs nothing. Safe to repeat.
    async fn plan_query(&self, query: &Query) -> Result<PlannedQuery, Error>;

    /// Runs a query over what its pins say. Dropping the rows stops it.
    async fn run_query(&self, query: &PlannedQuery) -> Result<QueryRows, Error>;
}

/// What can be pulled, by name: `batch:<pipeline>/<request id>`, or `table:<name>` with or without `@<instant>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlightName {
    /// The rows that a committed batch changed, and the records that it deleted, flagged.
    Batch(BatchName),
    /// A target as of an instant.
    Table {
        /// Its pipeline, or `hoodie.table.name`.
        name: String,
        /// A commit of it, by its requested time, or a time; `None`: its newest commit.
        at: Option<InstantTime>,
    },
}

/// A text that names no flight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no flight of this server: {what}")]
pub struct FlightNameError {
    /// The text.
    pub text: String,
    /// What is wrong.
    pub what: String,
}

impl FromStr for FlightName {
    type Err = FlightNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |what: String| FlightNameError { text: text.to_string(), what };
        if let Some(name) = text.strip_prefix(BATCH) {
            return BatchName::new(name).map(FlightName::Batch).map_err(|e| refuse(e.to_string()));
        }
        let Some(rest) = text.strip_prefix(TABLE) else {
            return Err(refuse(format!(
                "a batch is `{BATCH}<pipeline>/<request id>`, a table `{TABLE}<name>` or `{TABLE}<name>@<instant>`"
            )));
        };
        let (name, at) = match rest.split_once('@') {
            None => (rest, None),
            Some((name, at)) => (name, Some(at.parse().map_err(|e| refuse(format!("{e}")))?)),
        };
        if name.is_empty() {
            return Err(refuse("it names no table".to_string()));
        }
        Ok(FlightName::Table { name: name.to_string(), at })
    }
}

impl fmt::Display for FlightName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlightName::Batch(name) => write!(f, "{BATCH}{name}"),
            FlightName::Table { name, at: None } => write!(f, "{TABLE}{name}"),
            FlightName::Table { name, at: Some(at) } => write!(f, "{TABLE}{name}@{at}"),
        }
    }
}

/// A planned pull.
#[derive(Debug, Clone)]
pub struct Pull {
    /// The flight with its instant: named again, it is the same rows.
    pub flight: FlightName,
    /// Schema of the rows that are delivered.
    pub schema: SchemaRef,
    /// The batch, where it is one.
    pub batch: Option<BatchStatus>,
    /// What the schema's metadata says of it besides, by key without prefix.
    pub metadata: BTreeMap<String, String>,
    /// The rows, in pieces; in the schema before deleted records are flagged.
    pub relation: Relation,
    /// Whether records were deleted: all rows then carry a flag, and [`Pulls::deleted_rows`] has those.
    pub flags_deletes: bool,
    /// How many rows there are, deleted records aside; `None`: not known without reading them.
    pub rows: Option<u64>,
    /// Rows of a record batch.
    pub batch_rows: usize,
}

/// Something that queries can name.
#[derive(Debug, Clone)]
pub struct Listed {
    /// `tables` or `batches`.
    pub schema_name: &'static str,
    /// Its name there.
    pub name: String,
    /// Its columns, where they were asked for.
    pub schema: Option<SchemaRef>,
}

/// The schemas that queries name relations in.
pub const QUERY_SCHEMAS: [&str; 2] = [TABLES, BATCHES];
/// Targets, by pipeline.
pub const TABLES: &str = "tables";
/// Batches, by name.
pub const BATCHES: &str = "batches";

/// A query as it was asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// The text.
    pub sql: String,
    /// Values of its parameters, one row of as many columns; `None`: it is only looked at, and they are null.
    pub parameters: Option<RecordBatch>,
}

/// A planned query.
#[derive(Debug, Clone)]
pub struct PlannedQuery {
    /// What was asked.
    pub query: Query,
    /// Each relation that it names, as it stands in the text, and the flight with its instant.
    pub pins: Vec<(Vec<String>, FlightName)>,
    /// Schema of the result.
    pub schema: SchemaRef,
    /// How many parameters it has.
    pub parameters: usize,
}

/// The rows of a query.
pub struct QueryRows {
    /// Their schema.
    pub schema: SchemaRef,
    /// The rows.
    pub rows: RowStream,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_is_read_as_it_is_written() {
        for text in ["batch:orders/r1", "table:orders", "table:orders@20250606182826197"] {
            assert_eq!(text.parse::<FlightName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_names_no_flight_is_refused_with_the_forms_it_could_have() {
        let refused = |text: &str| text.parse::<FlightName>().unwrap_err().to_string();
        assert!(refused("orders").contains("`table:<name>@<instant>`"), "{}", refused("orders"));
        assert!(refused("table:").contains("names no table"));
        assert!(refused("table:orders@yesterday").contains("yesterday"));
        assert!(refused("batch:").contains("empty"));
    }
}
