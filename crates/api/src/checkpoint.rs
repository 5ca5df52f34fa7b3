// SPDX-License-Identifier: Apache-2.0
//! The checkpoint role: where each pipeline stands in its target.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tributary_types::{
    Checkpoint, CheckpointError, Code, Fault, InstantTime, Outcome, PipelineName, RequestId, Retry, Window,
};

use crate::BoxedError;

/// Finds and keeps cursors. The target's timeline is the truth; what this role stores is a cache of it and the
/// history of batches, and can be lost.
#[async_trait]
pub trait Checkpoints: Send + Sync {
    /// The newest cursors of `pipeline` in the table at `target`, read from its timeline and compared with the
    /// cache, which is repaired where it disagrees. Safe to repeat.
    async fn resolve(&self, pipeline: &PipelineName, target: &str) -> Result<Resolved, Error>;

    /// Keeps the record of a finished batch. Safe to repeat: a record replaces the one of the same batch.
    async fn record(&self, record: BatchRecord) -> Result<(), Error>;

    /// The newest batches of `pipeline`, newest first, at most `limit`.
    async fn history(&self, pipeline: &PipelineName, limit: usize) -> Result<Vec<BatchRecord>, Error>;

    /// The record of one request, if it is still kept.
    async fn find_request(&self, pipeline: &PipelineName, request: &RequestId) -> Result<Option<BatchRecord>, Error>;
}

/// Where a pipeline stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Its newest cursors and the commit that carries them; `None` before the first commit.
    pub newest: Option<CursorCommit>,
    /// Whether another pipeline has cursors in the same target, so that the flat form is not ours to write.
    pub shared_target: bool,
    /// Epoch of the owner that goes on from here: above every one seen in the target and in the cache.
    pub next_epoch: u64,
    /// What the cache had wrong and was repaired, for the log.
    pub repaired: Option<String>,
}

/// A commit with cursors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorCommit {
    /// Requested time of the commit.
    pub instant: InstantTime,
    /// Its completion time; `None` when it is known from the archive without one.
    pub completed: Option<InstantTime>,
    /// The cursors.
    pub checkpoint: Checkpoint,
}

/// What is remembered of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// Name of the batch.
    pub name: String,
    /// Its pipeline.
    pub pipeline: PipelineName,
    /// The caller's id.
    pub request: RequestId,
    /// How it ended.
    pub outcome: Outcome,
    /// Requested time of its commit.
    pub instant: Option<InstantTime>,
    /// Completion time of its commit.
    pub completed: Option<InstantTime>,
    /// What it read of each source.
    pub windows: Vec<(String, Window)>,
    /// Rows that reached the target.
    pub rows: u64,
    /// When it started, milliseconds since the epoch.
    pub started_millis: i64,
    /// How long it took, in milliseconds.
    pub took_millis: u64,
    /// Why it did not commit.
    pub error: Option<String>,
}

/// Why cursors could not be found or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A stored checkpoint is malformed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Two commits carry one sequence number.
    #[error(
        "pipeline `{pipeline}` has two commits with sequence number {seq} in `{target}`: {first} and {second}. Two \
         owners committed side by side; compare both commits before going on, and roll one of them back"
    )]
    SplitBrain {
        /// The pipeline.
        pipeline: PipelineName,
        /// The target.
        target: String,
        /// The number.
        seq: u64,
        /// One commit.
        first: InstantTime,
        /// The other.
        second: InstantTime,
    },
    /// The target is not what its format says.
    #[error("target `{target}`: {detail}")]
    Corrupt {
        /// The target.
        target: String,
        /// What is wrong.
        detail: String,
    },
    /// The store of the target did not answer.
    #[error("the store of `{target}` failed while {doing}")]
    Store {
        /// The target.
        target: String,
        /// What was being attempted.
        doing: String,
        /// Its error.
        #[source]
        source: BoxedError,
    },
    /// The role's own disk failed.
    #[error("the checkpoint store failed while {doing}")]
    Cache {
        /// What was being attempted.
        doing: String,
        /// Its error.
        #[source]
        source: BoxedError,
    },
    /// The role itself could not be reached.
    #[error("the checkpoint role did not answer while {doing}")]
    Unreachable {
        /// What was being attempted.
        doing: String,
        /// The transport's error.
        #[source]
        source: BoxedError,
    },
    /// An answer of a remote role whose kind this version does not know.
    #[error("{message}")]
    Other {
        /// What kind of failure.
        code: Code,
        /// What to do.
        retry: Retry,
        /// The role's message.
        message: String,
    },
}

impl Fault for Error {
    fn code(&self) -> Code {
        match self {
            Error::Checkpoint(_) | Error::Corrupt { .. } => Code::Corrupt,
            Error::SplitBrain { .. } => Code::Conflict,
            Error::Store { .. } | Error::Cache { .. } | Error::Unreachable { .. } => Code::Unavailable,
            Error::Other { code, .. } => *code,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Error::Store { .. } | Error::Cache { .. } | Error::Unreachable { .. } => Retry::Again,
            Error::Other { retry, .. } => *retry,
            _ => Retry::Never,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Error::Checkpoint(_) => "CURSOR_MALFORMED",
            Error::SplitBrain { .. } => "SPLIT_BRAIN",
            Error::Corrupt { .. } => "TABLE_CORRUPT",
            Error::Store { .. } => "STORE_UNAVAILABLE",
            Error::Cache { .. } => "CACHE_UNAVAILABLE",
            Error::Unreachable { .. } => "ROLE_UNREACHABLE",
            Error::Other { .. } => "OTHER",
        }
    }
}
