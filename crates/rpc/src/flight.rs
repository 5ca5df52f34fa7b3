// SPDX-License-Identifier: Apache-2.0
//! Rows over Arrow Flight.
//!
//! A committed batch is the flight `batch:<name>`: as a path, as a command, and as the ticket that `GetFlightInfo`
//! hands out. Its schema carries what the batch was in its metadata; see [`batch_metadata`]. Between roles, rows of a
//! split are a `DoGet` of the timeline role, and rows to stage a `DoPut` of the writer role.

mod rows;
mod server;

use std::collections::HashMap;

use tributary_api::coordinator::BatchStatus;
use tributary_types::BatchName;

pub use server::FlightServer;

pub(crate) use rows::{cut_stream, decoded_rows, encoder_error, read_rows, send_rows};

/// Begins a descriptor or a ticket of a batch.
pub(crate) const BATCH_PREFIX: &str = "batch:";
/// Begins a ticket of a split; what follows is an encoded `tributary.timeline.v1.ReadRequest`.
pub(crate) const SPLIT_PREFIX: &[u8] = b"split:";
/// Path of a `DoPut` that stages rows.
pub(crate) const STAGE_PATH: &str = "stage";
/// Begins every key of the schema's metadata that is ours.
const METADATA_PREFIX: &str = "tributary.";

/// The ticket of a batch, which is also its command and its path.
pub fn batch_ticket(name: &BatchName) -> String {
    format!("{BATCH_PREFIX}{name}")
}

/// What the schema of a pulled batch says of it: its name and pipeline, the instant and the completion time of its
/// commit, and for each source the cursors its window lies between.
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
