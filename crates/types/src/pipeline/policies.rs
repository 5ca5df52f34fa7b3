// SPDX-License-Identifier: Apache-2.0
//! What to do when a source is not as its cursor expects it.

use serde::{Deserialize, Serialize};

/// What to do with a stale cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStale {
    /// Fail, naming the earliest readable instant.
    #[default]
    Fail,
    /// Read the whole table, without the rows whose commits were read already. Deletes in the gap are lost.
    Snapshot,
}

/// What to do when completed commits follow a pending one, where commits are read in the order of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnHole {
    /// End the window before the pending commit, and wait.
    #[default]
    Block,
    /// Fail, naming it.
    Fail,
}

/// What to do with a late instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLate {
    /// Fail, naming it.
    #[default]
    Fail,
    /// Deliver its rows with this batch.
    Deliver,
}

/// What to do with an entry of a source, in the cursors of the target, that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMalformedCursor {
    /// Fail the batch, naming the source and the commit.
    #[default]
    Fail,
    /// Begin at `start`, as for a source that was never read.
    Start,
}
