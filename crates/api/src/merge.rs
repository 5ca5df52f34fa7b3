// SPDX-License-Identifier: Apache-2.0
//! The merge role: one SQL text over pinned relations, its result handed to the writer.

use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use tributary_types::{Code, Fault, MemoryBudget, Retry, SourceName};

pub use crate::pulls::QueryRows;
use crate::refused::RefusedRows;
use crate::timeline::{Relation, Views};
use crate::writer::{self, StageRequest, Staged};
use crate::{BoxedError, Progress, RowError, Stop};

/// Runs the SQL of a batch. It pulls the splits from the timeline role and pushes the result to the writer role, so
/// that no row passes through whoever asks.
#[async_trait]
pub trait Merge: Send + Sync {
    /// Parses the SQL and says which relations of which sources it names. Reads nothing.
    async fn bind(&self, sql: Option<String>, sources: Vec<SourceName>) -> Result<Vec<Bound>, Error>;

    /// Plans the SQL against the sources' schemas: unresolved names, forbidden statements and missing columns fail
    /// here. Reads nothing.
    async fn check(&self, request: CheckRequest) -> Result<Checked, Error>;

    /// Runs the SQL over the pinned relations and stages its rows. Whatever it answers, nothing of it is under way any
    /// more then; [`Error::Stopped`] acknowledges [`MergeLimits::stop`].
    async fn run(&self, request: MergeRequest) -> Result<Merged, Error>;

    /// Parses a query of somebody who pulls, and says what it names. Reads nothing.
    async fn read_query(&self, _sql: String) -> Result<QueryNames, Error> {
        Err(no_queries())
    }

    /// Plans a query: its schema. Reads nothing.
    async fn check_query(&self, _request: QueryRequest) -> Result<SchemaRef, Error> {
        Err(no_queries())
    }

    /// Runs a query; its rows are handed over as they come, and dropping them stops it.
    async fn query(&self, _request: QueryRequest) -> Result<QueryRows, Error> {
        Err(no_queries())
    }
}

fn no_queries() -> Error {
    let message = "this merge role runs batches only, no queries".to_string();
    Error::Other { code: Code::Unsupported, retry: Retry::Never, message }
}

/// What a query names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryNames {
    /// Each relation as it stands in the text, by its parts, once.
    pub relations: Vec<Vec<String>>,
    /// How many parameters it has.
    pub parameters: usize,
}

/// A query of somebody who pulls. Only what merges may say is allowed: it reads and computes.
#[derive(Debug, Clone)]
pub struct QueryRequest {
    /// The text.
    pub sql: String,
    /// What it may name.
    pub tables: Vec<QueryTable>,
    /// Values of its parameters: one row, a column each. `None`: all are null.
    pub parameters: Option<RecordBatch>,
    /// Limits of the run.
    pub limits: MergeLimits,
}

/// A relation that a query names.
#[derive(Debug, Clone)]
pub struct QueryTable {
    /// The name, by its parts, as [`QueryNames`] has it.
    pub name: Vec<String>,
    /// Its rows.
    pub relation: Relation,
    /// Where records were deleted: the rows get a flag, and those records are among them.
    pub deleted: Option<Deleted>,
}

/// Where the records are that a batch deleted: in `before` and not in `after`, told by record key and partition path. Both
/// have these two columns besides those of the relation itself.
#[derive(Debug, Clone)]
pub struct Deleted {
    /// The groups that lost records, before the batch.
    pub before: Relation,
    /// The keys of the batch's own files.
    pub after: Relation,
}

/// Which relations of one source the SQL names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The source.
    pub source: SourceName,
    /// What of it is named; all false: nothing.
    pub views: Views,
    /// Named by position (`<SRC_0>`), so that the order of the sources matters.
    pub by_position: bool,
}

/// A step over the result of the one before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A SQL text that names that result as `<SRC>`.
    Sql(String),
    /// Structs become columns, at every depth; arrays and maps stay.
    Flatten {
        /// What stands between the names of a struct and its field.
        separator: String,
    },
    /// A step that the program registered under a name. Without SQL and as the first step it gets the rows of every source.
    Rust(String),
    /// The rows that the batch refuses; always the last step. Without SQL and as the only step there is no result before.
    Refused(Box<RefusedRows>),
}

/// The SQL and what it may name.
#[derive(Debug, Clone)]
pub struct CheckRequest {
    /// `None`: the rows of the one source pass through.
    pub sql: Option<String>,
    /// Further steps over its result.
    pub then: Vec<Step>,
    /// Sources in pipeline order, each with the schema of its relations.
    pub sources: Vec<(SourceName, SchemaRef)>,
    /// Those of them that deliver deleted records: a query that would lose these is refused.
    pub deletes: Vec<SourceName>,
    /// Limits of the plan.
    pub limits: MergeLimits,
}

/// A planned SQL.
#[derive(Debug, Clone)]
pub struct Checked {
    /// Schema of the result.
    pub schema: SchemaRef,
    /// The logical plan, for people.
    pub logical_plan: String,
    /// The physical plan, for people.
    pub physical_plan: String,
    /// What each column of the result is made of, as far as the plan shows.
    pub origins: Vec<ColumnOrigins>,
}

/// What a column of a result is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ColumnOrigins {
    /// Whether it is a column of a source as it is.
    pub copied: bool,
    /// Columns of sources that its values are made of. Empty: none, or not known.
    pub columns: Vec<(SourceName, String)>,
}

/// One source with its pinned relations.
#[derive(Debug, Clone)]
pub struct MergeSource {
    /// The source.
    pub source: SourceName,
    /// Schema of its relations.
    pub schema: SchemaRef,
    /// `<SRC:x>`.
    pub changed: Option<Relation>,
    /// `<SNAP:x>`.
    pub at_end: Option<Relation>,
    /// `<PREV:x>`.
    pub at_begin: Option<Relation>,
}

/// One merge.
#[derive(Debug, Clone)]
pub struct MergeRequest {
    /// `None`: the rows of the one source pass through.
    pub sql: Option<String>,
    /// Further steps over its result.
    pub then: Vec<Step>,
    /// Sources in pipeline order.
    pub sources: Vec<MergeSource>,
    /// Where the result goes.
    pub stage: StageRequest,
    /// Limits of the run.
    pub limits: MergeLimits,
}

/// What a merge may use.
#[derive(Debug, Clone)]
pub struct MergeLimits {
    /// The batch's memory.
    pub budget: MemoryBudget,
    /// Temporary disk space in bytes.
    pub spill_bytes: u64,
    /// Time.
    pub timeout: Duration,
    /// Partitions a query runs in.
    pub parallelism: usize,
    /// Says when to stop.
    pub stop: Stop,
    /// Where it is told how far the merge is.
    pub progress: Progress,
}

/// A finished merge.
#[derive(Debug, Clone, Default)]
pub struct Merged {
    /// What the writer staged.
    pub staged: Staged,
    /// Rows read of each source, all relations together.
    pub rows_read: Vec<(SourceName, u64)>,
    /// Bytes written to temporary disk space.
    pub spilled_bytes: u64,
}

/// Why a merge could not be planned or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The SQL text is wrong.
    #[error("SQL{at}: {message}")]
    Sql {
        /// ` at line L, column C`, or empty.
        at: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// A placeholder that names nothing.
    #[error("SQL at line {line}, column {column}: `{placeholder}` names no source; there are: {present}")]
    Placeholder {
        /// The placeholder.
        placeholder: String,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// What could be named.
        present: String,
    },
    /// A source no placeholder names.
    #[error(
        "source `{source_name}` is not used by the SQL: its cursor would move unseen. Name it as `<SRC:{source_name}>`, \
         remove it, or set `unused = \"allow\"`"
    )]
    Unused {
        /// The source.
        source_name: SourceName,
    },
    /// A limit other than memory.
    #[error("{limit} limit reached: {detail}")]
    Limit {
        /// Which limit.
        limit: &'static str,
        /// Figures, and what to raise.
        detail: String,
    },
    /// The memory limit.
    #[error("the query needs more than its memory: {detail}; raise `limits.memory`")]
    Memory {
        /// Figures.
        detail: String,
    },
    /// A source's rows failed.
    #[error(transparent)]
    Rows(#[from] RowError),
    /// The writer failed.
    #[error(transparent)]
    Writer(#[from] writer::Error),
    /// The engine failed on a value: a cast, an overflow, a division by zero.
    #[error("the query failed: {message}")]
    Execution {
        /// The engine's message.
        message: String,
    },
    /// It was told to stop, and has: nothing of it is under way any more.
    #[error("the merge was stopped before it was done")]
    Stopped,
    /// The role itself could not be reached.
    #[error("the merge role did not answer while {doing}")]
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
            Error::Sql { .. } | Error::Placeholder { .. } | Error::Unused { .. } | Error::Execution { .. } => {
                Code::Invalid
            }
            Error::Limit { limit: "time", .. } => Code::Timeout,
            Error::Limit { .. } | Error::Memory { .. } => Code::Overloaded,
            Error::Stopped => Code::Cancelled,
            Error::Rows(error) => error.code(),
            Error::Writer(error) => error.code(),
            Error::Unreachable { .. } => Code::Unavailable,
            Error::Other { code, .. } => *code,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Error::Rows(error) => error.retry(),
            Error::Writer(error) => error.retry(),
            Error::Limit { limit: "time", .. } | Error::Unreachable { .. } => Retry::Again,
            Error::Other { retry, .. } => *retry,
            _ => Retry::Never,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Error::Sql { .. } => "SQL_INVALID",
            Error::Placeholder { .. } => "PLACEHOLDER_UNKNOWN",
            Error::Unused { .. } => "SOURCE_UNUSED",
            Error::Limit { .. } => "LIMIT_REACHED",
            Error::Memory { .. } => "MEMORY_EXCEEDED",
            Error::Rows(error) => error.reason(),
            Error::Writer(error) => error.reason(),
            Error::Execution { .. } => "QUERY_FAILED",
            Error::Stopped => "STOPPED",
            Error::Unreachable { .. } => "ROLE_UNREACHABLE",
            Error::Other { .. } => "OTHER",
        }
    }
}
