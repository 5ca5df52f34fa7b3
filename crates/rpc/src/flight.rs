// SPDX-License-Identifier: Apache-2.0
//! Rows over Arrow Flight.
//!
//! A committed batch is the flight `batch:<name>`, a target as of an instant `table:<name>@<instant>`: as a path, and as
//! a command. `GetFlightInfo` divides it into endpoints whose tickets say everything that is needed to read their rows,
//! until they expire; `DoGet` takes the name as well, for all rows in one stream. The schema carries what was pulled in
//! its metadata; see [`batch_metadata`]. Flight SQL runs queries over both.
//!
//! Between roles, rows of a split are a `DoGet` of the timeline role, those of a query one of the merge role, and rows to
//! stage a `DoPut` of the writer role.

mod actions;
pub(crate) mod asked;
mod echo;
pub mod metrics;
mod pulls;
mod rows;
mod running;
mod server;
mod sql;
mod sql_info;
mod ticket;

use std::collections::HashMap;

use tributary_api::coordinator::BatchStatus;
use tributary_types::BatchName;

pub use echo::Echo;
pub use pulls::PullSettings;
pub use running::Running;
pub use server::FlightServer;

pub(crate) use rows::{cut_stream, decoded_rows, encoder_error, read_rows, send_rows};
pub(crate) use ticket::{rows_from_bytes, rows_to_bytes};

/// Begins a descriptor or a ticket of a batch.
pub(crate) const BATCH_PREFIX: &str = "batch:";
/// Begins a descriptor or a ticket of a table.
pub(crate) const TABLE_PREFIX: &str = "table:";
/// Begins a ticket of a split; what follows is an encoded `tributary.timeline.v1.ReadRequest`.
pub(crate) const SPLIT_PREFIX: &[u8] = b"split:";
/// Begins a ticket of a query; what follows is an encoded `tributary.merge.v1.QueryRequest`.
pub(crate) const QUERY_PREFIX: &[u8] = b"query:";
/// Path of a `DoPut` that stages rows.
pub(crate) const STAGE_PATH: &str = "stage";
/// Begins every key of the schema's metadata that is ours.
const METADATA_PREFIX: &str = "tributary.";

/// The ticket of a batch, which is also its command and its path.
pub fn batch_ticket(name: &BatchName) -> String {
    format!("{BATCH_PREFIX}{name}")
}

/// What the schema of a pulled batch says of it: its name and pipeline, the instant and the completion time of its
/// commit, and for each source the cursors its window lies between. `GetFlightInfo` and its tickets add the digest of the
/// batch's SQL, `tributary.sql_sha256`.
pub fn batch_metadata(status: &BatchStatus) -> HashMap<String, String> {
    let mut metadata = HashMap::new();
    let mut put = |key: String, value: String| metadata.insert(format!("{METADATA_PREFIX}{key}"), value);
    put("batch".to_string(), status.name.to_string());
    put("pipeline".to_string(), status.pipeline.to_string());
    if let Some(instant) = &status.instant {
        put("instant".to_string(), instant.to_string());
    }
    if let Some(completed) = &status.completed {
        put("completed".to_string(), completed.to_string());
    }
    for source in &status.sources {
        let Some(window) = &source.window else { continue };
        if let Some(begin) = &window.begin {
            put(format!("source.{}.begin", source.source), begin.to_string());
        }
        put(format!("source.{}.end", source.source), window.end.to_string());
    }
    metadata
}
