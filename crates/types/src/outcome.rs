// SPDX-License-Identifier: Apache-2.0
//! How a batch can end, and where it can be.

use serde::{Deserialize, Serialize};

/// How a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Outcome {
    /// Rows and cursors are in the target, in one commit.
    Committed,
    /// No source had news: nothing was written, no cursor moved.
    NoNewData,
    /// The pipeline or the request is wrong; nothing was written.
    Rejected,
    /// Somebody else committed first, or owns what this batch needs; nothing was written.
    Conflict,
    /// The caller cancelled it; nothing was written.
    Cancelled,
    /// It failed before the commit; nothing was written.
    Failed,
    /// The commit was sent and no answer came; it is being read back.
    Unknown,
}

impl Outcome {
    /// The exit code of `tributary run`, one for each outcome.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Committed | Outcome::NoNewData => 0,
            Outcome::Failed => 1,
            Outcome::Rejected => 2,
            Outcome::Conflict => 3,
            Outcome::Cancelled => 4,
            Outcome::Unknown => 5,
        }
    }

    /// The name on the wire, in JSON and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Committed => "COMMITTED",
            Outcome::NoNewData => "NO_NEW_DATA",
            Outcome::Rejected => "REJECTED",
            Outcome::Conflict => "CONFLICT",
            Outcome::Cancelled => "CANCELLED",
            Outcome::Failed => "FAILED",
            Outcome::Unknown => "UNKNOWN",
        }
    }
}

/// Where a running batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Stage {
    /// Waiting for its turn.
    Pending,
    /// Finding the cursors in the target.
    Resolve,
    /// Fixing the window and the files of every source.
    Plan,
    /// Opening the instant on the target.
    Begin,
    /// Reading, merging and staging files.
    Merge,
    /// Passing the gate and completing the instant.
    Commit,
    /// Telling the checkpoint role and the clients.
    Publish,
    /// Over; the outcome says how.
    Done,
}

impl Stage {
    /// The name on the wire, in JSON and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Pending => "PENDING",
            Stage::Resolve => "RESOLVE",
            Stage::Plan => "PLAN",
            Stage::Begin => "BEGIN",
            Stage::Merge => "MERGE",
            Stage::Commit => "COMMIT",
            Stage::Publish => "PUBLISH",
            Stage::Done => "DONE",
        }
    }
}
