// SPDX-License-Identifier: Apache-2.0
//! What to do when a source is not as its cursor expects it, and beside whom a target is written.

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

/// What becomes of records that are deleted in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deletes {
    /// Nothing tells the target of them: their rows stay in it.
    #[default]
    Ignore,
    /// They are delivered as rows whose `_hoodie_is_deleted` is true, with the values that they had last.
    Propagate,
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

/// Who else writes the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writers {
    /// Nobody: a foreign data commit since our last one fails the batch by name.
    #[default]
    Exclusive,
    /// Writers of Hudi's own that take the same lock and check for conflicts: a batch fails only where it and a foreign
    /// commit meet.
    Shared,
}

/// What to do when another writer added rows to a partition that a batch of upserts adds rows to as well: neither saw
/// the other's keys, so a key that is new to both would be there twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InsertConflict {
    /// A conflict: the batch is to be run again, and then finds the other's keys.
    #[default]
    Fail,
    /// Commit: the writers never add the same key, or a key that is there twice does no harm.
    Allow,
}
