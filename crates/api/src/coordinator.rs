// SPDX-License-Identifier: Apache-2.0
//! The coordinator role: batches, from the request to the outcome.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tributary_types::pipeline::Pipeline;
use tributary_types::{
    BatchName, Code, Cursor, Fault, InstantTime, Outcome, Override, PipelineName, RequestId, Retry, SourceName, Stage,
    Window, with_causes,
};

use crate::checkpoint::CursorCommit;
use crate::timeline::WindowReport;
use crate::{BoxedError, RowStream, checkpoint, merge, timeline, writer};

/// Runs batches. One batch reads a window of every source, merges them and commits rows and cursors at once.
#[async_trait]
pub trait Coordinator: Send + Sync {
    /// Starts a batch and returns at once. The same request id again answers with the same batch; the same id with
    /// another pipeline is refused.
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, Error>;

    /// What a batch is doing, or how it ended.
    async fn get_batch(&self, name: &BatchName) -> Result<BatchStatus, Error>;

    /// The newest batches, newest first, of one pipeline or of all.
    async fn list_batches(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchStatus>, Error>;

    /// Follows a batch; the last value has stage [`Stage::Done`].
    async fn watch_batch(&self, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error>;

    /// Cancels a batch that has not begun its commit: it stops, its instant is rolled back, and it ends as
    /// [`Outcome::Cancelled`]. Answers at once with the batch as it is then; one that commits or is over goes on as it
    /// is. Safe to repeat.
    async fn cancel_batch(&self, name: &BatchName) -> Result<BatchStatus, Error>;

    /// Shows what the next batch would do with these overrides. Reads no data file and writes nothing.
    async fn plan_batch(&self, pipeline: Pipeline, overrides: Vec<Override>) -> Result<PlannedBatch, Error>;

    /// Looks whether cursors can be set so, and answers what [`RunRequest::cursors_only`] would do. Writes nothing.
    async fn check_overrides(&self, pipeline: Pipeline, overrides: Vec<Override>)
    -> Result<Vec<OverrideStatus>, Error>;

    /// The newest cursors of `pipeline` in the table at `target`, read from its timeline; `None`: it never committed.
    /// Writes nothing, and takes no epoch.
    async fn get_cursors(&self, pipeline: &PipelineName, target: &str) -> Result<Option<CursorCommit>, Error>;

    /// The rows a committed batch changed, as they stand in the target at its instant.
    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, Error>;
}

/// Asks for one batch.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The pipeline, with its SQL loaded.
    pub pipeline: Pipeline,
    /// The caller's id.
    pub request: RequestId,
    /// Commit at the old cursors even if nothing is new.
    pub allow_empty: bool,
    /// Cursors that are set by hand, each once.
    pub overrides: Vec<Override>,
    /// Only set the cursors: the commit has no rows, and the other cursors stay where they are.
    pub cursors_only: bool,
    /// Who asks, for the history: free text.
    pub asked_by: String,
}

/// A batch, running or over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchStatus {
    /// Its name, `<pipeline>/<request id>`.
    pub name: BatchName,
    /// Its pipeline.
    pub pipeline: PipelineName,
    /// The caller's id.
    pub request: RequestId,
    /// Who asked for it.
    pub asked_by: String,
    /// Where it is.
    pub stage: Stage,
    /// How it ended, once it has.
    pub outcome: Option<Outcome>,
    /// Requested time of its instant on the target.
    pub instant: Option<InstantTime>,
    /// Completion time of its commit.
    pub completed: Option<InstantTime>,
    /// `seq` of the cursors it committed.
    pub seq: Option<u64>,
    /// What it reads of each source.
    pub sources: Vec<SourceStatus>,
    /// Cursors that it was to set by hand.
    #[serde(default)]
    pub overrides: Vec<OverrideStatus>,
    /// Rows and files that reached the target.
    pub written: Written,
    /// Milliseconds spent in each stage.
    pub timings: Vec<(Stage, u64)>,
    /// Most memory that was ever counted, in bytes.
    pub peak_memory: u64,
    /// Why it did not commit.
    pub error: Option<Failure>,
    /// When it started, milliseconds since the epoch.
    pub started_millis: i64,
}

/// One source in a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// The source.
    pub source: SourceName,
    /// What is read of it; `None` for a look-up.
    pub window: Option<Window>,
    /// Figures of the plan.
    pub report: WindowReport,
    /// Rows read so far.
    pub rows: u64,
}

/// A cursor that was to be set by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideStatus {
    /// The source.
    pub source: SourceName,
    /// Where to, as it was asked for.
    pub to: String,
    /// The commit that applied it before; then nothing is done. `None`: this batch applies it, if it commits.
    pub applied_by: Option<InstantTime>,
    /// The source's cursor in the newest commit.
    pub before: Option<Cursor>,
}

/// What reached the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Rows of the query's result.
    pub rows: u64,
    /// Rows that were not in the table before.
    pub inserts: u64,
    /// Rows that replaced a stored one.
    pub updates: u64,
    /// Files written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows left out because another row of their key in the batch won.
    #[serde(default)]
    pub combined: u64,
    /// Rows left out because the stored row of their key has the higher ordering.
    #[serde(default)]
    pub outdated: u64,
    /// Rows left out because their key is null.
    #[serde(default)]
    pub without_key: u64,
    /// Stored rows that were deleted.
    #[serde(default)]
    pub deletes: u64,
    /// Rows left out because the record that they delete is not in the table.
    #[serde(default)]
    pub absent: u64,
    /// File groups that were replaced as a whole.
    #[serde(default)]
    pub replaced_groups: u64,
}

/// Why a batch did not commit, as it is told to a caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind.
    pub code: Code,
    /// What to do.
    pub retry: Retry,
    /// Stable name.
    pub reason: String,
    /// The message with its causes.
    pub message: String,
}

/// What the next batch would do.
#[derive(Debug, Clone)]
pub struct PlannedBatch {
    /// Windows of the sources.
    pub sources: Vec<SourceStatus>,
    /// Cursors that it would set by hand.
    pub overrides: Vec<OverrideStatus>,
    /// Whether there is anything to do.
    pub has_news: bool,
    /// Logical and physical plan, and the result's schema, as text.
    pub logical_plan: String,
    /// The physical plan.
    pub physical_plan: String,
    /// Columns of the result: name and type.
    pub columns: Vec<(String, String)>,
}

/// The rows of a committed batch.
pub struct OpenedBatch {
    /// Schema of the rows.
    pub schema: arrow::datatypes::SchemaRef,
    /// The rows.
    pub rows: RowStream,
    /// The batch.
    pub status: BatchStatus,
}

/// Why a batch did not commit, or a request was not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pipeline is wrong.
    #[error("pipeline `{pipeline}`: {}", problems.join("; "))]
    Pipeline {
        /// The pipeline.
        pipeline: String,
        /// Every problem.
        problems: Vec<String>,
    },
    /// No such batch.
    #[error("there is no batch `{name}`")]
    NoBatch {
        /// What was asked for.
        name: String,
    },
    /// The request id stands for another pipeline.
    #[error(
        "request id `{request}` belongs to another definition of this pipeline, which it was used with before; nothing was \
         run. Use a new id, or ask with the definition as it was"
    )]
    RequestReused {
        /// The id.
        request: RequestId,
    },
    /// The request id is older than any that the target still remembers, so it may have been answered.
    #[error(
        "request id `{request}` is older than the oldest one that the target remembers, `{oldest}`: whether it was \
         answered is not known any more, so it is not run. If it was not, ask again with a new id"
    )]
    Expired {
        /// The id.
        request: RequestId,
        /// The oldest id that is remembered.
        oldest: RequestId,
    },
    /// The batch was cancelled.
    #[error("the batch was cancelled")]
    Cancelled,
    /// The batch's task ended without an outcome: a bug of ours, or its process ended.
    #[error("{what}; nothing of it is in the target, and the pipeline's next batch clears what it left: run it again")]
    Lost {
        /// What happened.
        what: String,
    },
    /// The target is not what the pipeline says.
    #[error("target `{url}`: {what}")]
    Target {
        /// The target.
        url: String,
        /// What differs, and what to do.
        what: String,
    },
    /// Positions are bound to other sources than in the last commit.
    #[error(
        "the sources are bound in another order than in commit {instant}: the SQL names them by position, so it would \
         read other tables. Restore the order, name them as `<SRC:name>`, or set `accept_binding_change = true` once"
    )]
    Binding {
        /// The last commit.
        instant: InstantTime,
    },
    /// Columns that have data are merged by other operators than in the last commit.
    #[error(
        "merge operators differ from those of commit {instant} of the target, and its values were made by these: {}. \
         Restore them, or set `accept_merge_change = true` once: what is stored stays, and is merged anew from then on",
        changes.join("; ")
    )]
    Operators {
        /// The last commit.
        instant: InstantTime,
        /// Each column with both operators.
        changes: Vec<String>,
    },
    /// A source has no cursor, and the pipeline does not say where to start.
    #[error(
        "source `{source_name}` has no cursor in the target and no `start`: say where to begin, for example \
         `start = \"snapshot\"`"
    )]
    NoStart {
        /// The source.
        source_name: SourceName,
    },
    /// The target's entry of a source cannot be read.
    #[error(
        "the cursor of source `{source_name}` in commit {instant} of the target is malformed: {detail}; no cursor moves. \
         Set it with `--override {source_name}=…`, restore that commit's file from a copy, or set `on_malformed_cursor = \"start\"` for the source: it then begins \
         at its `start`, as one that was never read"
    )]
    MalformedCursor {
        /// The source.
        source_name: SourceName,
        /// The commit.
        instant: InstantTime,
        /// What is wrong.
        detail: String,
    },
    /// Cursors cannot be set so.
    #[error("no cursor is set: {}", problems.join("; "))]
    Override {
        /// Every problem.
        problems: Vec<String>,
    },
    /// A source that the newest commit does not know, and an earlier one does.
    #[error(
        "source `{source_name}` has no cursor in the newest commit of the target, since the pipeline was run without it, but \
         commit {instant} has one: {cursor}. Set `start = \"resume\"` to go on from there, or run once with `--override \
         {source_name}=start` to begin at its `start`"
    )]
    KnownBefore {
        /// The source.
        source_name: SourceName,
        /// The newest commit that has a cursor of it.
        instant: InstantTime,
        /// That cursor.
        cursor: Cursor,
    },
    /// A source is to go on from a cursor that no commit has.
    #[error(
        "source `{source_name}` has `start = \"resume\"`, and no commit of the target, archived ones included, has a \
         cursor of it; say where to begin, for example `start = \"snapshot\"`"
    )]
    NothingToResume {
        /// The source.
        source_name: SourceName,
    },
    /// The checkpoint that another program left cannot be taken over.
    #[error("the checkpoint in commit {instant} of target `{url}` cannot be adopted: {what}")]
    Legacy {
        /// The target.
        url: String,
        /// The commit.
        instant: InstantTime,
        /// Why, and what to do.
        what: String,
    },
    /// A source's table lies elsewhere than in the last commit, and is the same by name and first commit.
    #[error(
        "source `{source_name}` was read at `{before}` up to commit {instant} of the target, and its path is `{now}` now; \
         the table there has the same name and first commit, so it was moved or copied. If it is the table to go on \
         with, set `accept_binding_change = true` once; else restore the path, or give the source another name in the \
         pipeline and its SQL: it then begins at its `start`"
    )]
    Moved {
        /// The source.
        source_name: SourceName,
        /// The last commit.
        instant: InstantTime,
        /// Where the table was then.
        before: String,
        /// Where the pipeline says it is.
        now: String,
    },
    /// Somebody else was faster, or the target changed in between.
    #[error("conflict on target `{url}`: {what}")]
    Conflict {
        /// The target.
        url: String,
        /// What happened.
        what: String,
    },
    /// Another writer of a shared target did something that this batch cannot go together with.
    #[error(
        "conflict on target `{url}`: {action} {instant} of another writer {what}; nothing of this batch was committed. Run \
         again: the next batch is planned from what is there now"
    )]
    WriterConflict {
        /// The target.
        url: String,
        /// The other writer's instant.
        instant: InstantTime,
        /// Its operation, or its action.
        action: String,
        /// What it did or is going to do, and to what.
        what: String,
    },
    /// The commit was sent and it is not known whether it arrived.
    #[error("the outcome of commit {instant} on `{url}` is unknown; it is read back before anything else happens")]
    Unknown {
        /// The target.
        url: String,
        /// The instant.
        instant: InstantTime,
        /// The store's error.
        #[source]
        source: BoxedError,
    },
    /// A batch's rows can no longer be read.
    #[error("batch `{name}` can no longer be pulled: {what}")]
    Gone {
        /// The batch.
        name: String,
        /// Why.
        what: String,
    },
    /// The time limit ran out.
    #[error("the batch did not finish within {limit}; raise `limits.timeout`")]
    Timeout {
        /// The limit.
        limit: String,
    },
    /// The store of the target failed.
    #[error("the store of `{url}` failed while {doing}; see that it can be reached and used, then run again")]
    Store {
        /// The target.
        url: String,
        /// What was being attempted.
        doing: String,
        /// Its error.
        #[source]
        source: BoxedError,
    },
    /// A source failed.
    #[error(transparent)]
    Timeline(#[from] timeline::Error),
    /// The cursors failed.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The merge failed.
    #[error(transparent)]
    Merge(#[from] merge::Error),
    /// The writer failed.
    #[error(transparent)]
    Writer(#[from] writer::Error),
    /// The role itself could not be reached.
    #[error("the coordinator did not answer while {doing}")]
    Unreachable {
        /// What was being attempted.
        doing: String,
        /// The transport's error.
        #[source]
        source: BoxedError,
    },
    /// An answer of a remote coordinator whose kind this version does not know.
    #[error("{message}")]
    Other {
        /// What kind of failure.
        code: Code,
        /// What to do.
        retry: Retry,
        /// Its message.
        message: String,
    },
}

impl Fault for Error {
    fn code(&self) -> Code {
        match self {
            Error::Pipeline { .. }
            | Error::Target { .. }
            | Error::Binding { .. }
            | Error::Operators { .. }
            | Error::NoStart { .. }
            | Error::Override { .. }
            | Error::KnownBefore { .. }
            | Error::NothingToResume { .. }
            | Error::Legacy { .. }
            | Error::Moved { .. } => Code::Invalid,
            Error::MalformedCursor { .. } => Code::Corrupt,
            Error::NoBatch { .. } => Code::NotFound,
            Error::RequestReused { .. } => Code::Exists,
            Error::Expired { .. } => Code::Invalid,
            Error::Cancelled => Code::Cancelled,
            Error::Lost { .. } => Code::Internal,
            Error::Conflict { .. } | Error::WriterConflict { .. } => Code::Conflict,
            Error::Unknown { .. } | Error::Store { .. } | Error::Unreachable { .. } => Code::Unavailable,
            Error::Gone { .. } => Code::NotFound,
            Error::Timeout { .. } => Code::Timeout,
            Error::Timeline(error) => error.code(),
            Error::Checkpoint(error) => error.code(),
            Error::Merge(error) => error.code(),
            Error::Writer(error) => error.code(),
            Error::Other { code, .. } => *code,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Error::Unknown { .. } => Retry::ReadBack,
            Error::Lost { .. } | Error::Store { .. } | Error::Timeout { .. } => Retry::Again,
            // A run request that got no answer may have started a batch; its id makes asking again safe.
            Error::Unreachable { .. } => Retry::Again,
            Error::Conflict { .. } | Error::WriterConflict { .. } => Retry::Rebase,
            Error::Timeline(error) => error.retry(),
            Error::Checkpoint(error) => error.retry(),
            Error::Merge(error) => error.retry(),
            Error::Writer(error) => error.retry(),
            Error::Other { retry, .. } => *retry,
            _ => Retry::Never,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Error::Pipeline { .. } => "PIPELINE_INVALID",
            Error::NoBatch { .. } => "BATCH_NOT_FOUND",
            Error::RequestReused { .. } => "REQUEST_REUSED",
            Error::Expired { .. } => "REQUEST_EXPIRED",
            Error::Cancelled => "CANCELLED",
            Error::Lost { .. } => "BATCH_LOST",
            Error::Target { .. } => "TARGET_MISMATCH",
            Error::Binding { .. } => "BINDING_CHANGED",
            Error::Operators { .. } => "OPERATORS_CHANGED",
            Error::NoStart { .. } => "START_MISSING",
            Error::MalformedCursor { .. } => "CURSOR_MALFORMED",
            Error::Override { .. } => "OVERRIDE_INVALID",
            Error::KnownBefore { .. } => "CURSOR_KNOWN_BEFORE",
            Error::NothingToResume { .. } => "CURSOR_NOT_FOUND",
            Error::Legacy { .. } => "LEGACY_CHECKPOINT",
            Error::Moved { .. } => "SOURCE_MOVED",
            Error::Conflict { .. } => "TARGET_CONFLICT",
            Error::WriterConflict { .. } => "WRITER_CONFLICT",
            Error::Unknown { .. } => "COMMIT_UNKNOWN",
            Error::Gone { .. } => "BATCH_GONE",
            Error::Timeout { .. } => "TIMEOUT",
            Error::Store { .. } => "STORE_UNAVAILABLE",
            Error::Timeline(error) => error.reason(),
            Error::Checkpoint(error) => error.reason(),
            Error::Merge(error) => error.reason(),
            Error::Writer(error) => error.reason(),
            Error::Unreachable { .. } => "ROLE_UNREACHABLE",
            Error::Other { .. } => "OTHER",
        }
    }
}

impl Error {
    /// The reason of [`Error::WriterConflict`], by which records of earlier batches tell it.
    pub const WRITER_CONFLICT: &'static str = "WRITER_CONFLICT";

    /// How a batch that failed with this error ended.
    pub fn outcome(&self) -> Outcome {
        if self.retry() == Retry::ReadBack {
            return Outcome::Unknown;
        }
        match self.code() {
            Code::Invalid | Code::Unsupported | Code::Exists | Code::Unauthenticated | Code::Denied => {
                Outcome::Rejected
            }
            Code::Conflict | Code::Fenced => Outcome::Conflict,
            Code::Cancelled => Outcome::Cancelled,
            _ => Outcome::Failed,
        }
    }

    /// The error as it is told to a caller: the message with all its causes on one line.
    pub fn failure(&self) -> Failure {
        Failure {
            code: self.code(),
            retry: self.retry(),
            reason: self.reason().to_string(),
            message: with_causes(self),
        }
    }
}
