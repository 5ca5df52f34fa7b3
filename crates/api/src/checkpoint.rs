// SPDX-License-Identifier: Apache-2.0
//! The checkpoint role: where each pipeline stands in its target.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tributary_types::{
    Checkpoint, CheckpointError, Code, Fault, InstantTime, PipelineName, RequestId, Retry, SourceCheckpoint, SourceName,
};

use crate::BoxedError;
use crate::coordinator::BatchStatus;

/// Finds and keeps cursors. The target's timeline is the truth; what this role stores is a cache of it and the
/// history of batches, and can be lost.
#[async_trait]
pub trait Checkpoints: Send + Sync {
    /// The newest cursors of `pipeline` in the table at `target`, read from its timeline and compared with the
    /// cache, which is repaired where it disagrees. Safe to repeat.
    async fn resolve(&self, pipeline: &PipelineName, target: &str) -> Result<Resolved, Error>;

    /// The same for a look: no epoch is taken, and nothing is kept or repaired. `next_epoch` is what a batch would get.
    async fn look_up(&self, pipeline: &PipelineName, target: &str) -> Result<Resolved, Error>;

    /// The commit of `pipeline` in the table at `target` that answered `request`, as its timeline says; `None` when no
    /// commit there carries the id. Safe to repeat.
    async fn find_commit(
        &self,
        pipeline: &PipelineName,
        target: &str,
        request: &RequestId,
    ) -> Result<Option<CommitFound>, Error>;

    /// The newest cursors that any commit of `pipeline` in the table at `target`, archived ones included, has of
    /// `sources`. One that was never read is not in the answer. Safe to repeat.
    async fn find_cursors(
        &self,
        pipeline: &PipelineName,
        target: &str,
        sources: &[SourceName],
    ) -> Result<Vec<KnownCursor>, Error>;

    /// The newest checkpoint that another program left in the table at `target`: it is in no commit that has cursors of
    /// a pipeline of ours, and none such follows it. `None`: there is none. Safe to repeat.
    async fn find_legacy(&self, target: &str) -> Result<Option<LegacyCheckpoint>, Error>;

    /// Keeps the record of a batch, running or over. Safe to repeat: a record replaces the one of the same batch.
    async fn record(&self, record: BatchRecord) -> Result<(), Error>;

    /// The newest batches, newest first, of one pipeline or of all, at most `limit`.
    async fn history(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchRecord>, Error>;

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

/// The newest cursor that commits have of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownCursor {
    /// The source.
    pub source: SourceName,
    /// Requested time of the commit.
    pub instant: InstantTime,
    /// Its entry there, with a cursor.
    pub entry: SourceCheckpoint,
}

/// A checkpoint that another program left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegacyCheckpoint {
    /// Requested time of the commit.
    pub instant: InstantTime,
    /// The metadata key it stands under: [`tributary_types::FLAT_KEY`] or [`tributary_types::FLAT_KEY_V2`].
    pub key: String,
    /// Its text.
    pub value: String,
}

/// A commit that answered a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitFound {
    /// Requested time of the commit.
    pub instant: InstantTime,
    /// Its completion time; `None` when it is not on the active timeline any more.
    pub completed: Option<InstantTime>,
    /// Sequence number of the cursors in it, where the commit itself was found.
    pub seq: Option<u64>,
    /// Fingerprint of the pipeline's definition that the request was made with, where that is known.
    pub definition: Option<String>,
}

/// What is remembered of a batch. Its windows are the cursors before it and, where it committed, after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// The batch. Without an outcome: it ran when the record was made.
    pub status: BatchStatus,
    /// Base path or URL of its target.
    pub target: String,
    /// Fingerprint of the pipeline's definition, so that a request id is not answered for another one.
    pub definition: String,
    /// Random name of the process that ran it.
    pub process: String,
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
    #[error("the store of `{target}` failed while {doing}; see that it can be reached and used, then run again")]
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
