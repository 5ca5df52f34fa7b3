// SPDX-License-Identifier: Apache-2.0
//! The writer role: staging the files of one instant.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tributary_types::pipeline::{MergeOperators, OnNullKey, Operation, TableType};
use tributary_types::{Code, Fault, InstantTime, MemoryBudget, MemoryExceeded, Retry};

use crate::{BoxedError, RowError, RowStream, Stop};

/// Turns rows into files of one pending instant. It never completes an instant and never rolls one back.
///
/// Every key is tagged against exactly the file slices of [`StageRequest::slices`], never against what the table
/// looks like by now. Staged files are invisible until the coordinator completes the instant.
#[async_trait]
pub trait Writer: Send + Sync {
    /// Reads all of `rows` and stages them. On an error everything staged so far is left for the rollback of the
    /// instant: markers name every file that may exist. Whatever it answers, no operation of it is under way any more
    /// then; [`Error::Stopped`] acknowledges [`StageRequest::stop`].
    async fn stage(&self, request: StageRequest, rows: RowStream) -> Result<Staged, Error>;
}

/// One staging.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// Base path or URL of the target.
    pub url: String,
    /// Name of the table, which log files give to their schema.
    pub table_name: String,
    /// Layout of the table: where updates of a merge-on-read table go, there is a log file.
    pub table_type: TableType,
    /// The pending instant the files belong to.
    pub instant: InstantTime,
    /// Number of this attempt, part of every file name, so that two attempts never share a file.
    pub attempt: u32,
    /// Schema of the rows as they come.
    pub schema: SchemaRef,
    /// Schema of the table after the batch, without meta columns: the rows' columns in the table's order, in types
    /// that may be wider.
    pub table_schema: SchemaRef,
    /// How rows enter. Rows of an upsert or insert whose column `_hoodie_is_deleted` is true delete the record of their key.
    pub operation: Operation,
    /// How keys and partitions are made.
    pub keys: KeySettings,
    /// Columns of which the greatest value wins; empty: the later row wins.
    pub ordering: Vec<String>,
    /// How the values of an upsert are combined with those of the stored row and of other rows of the key. Columns of
    /// the table that the rows do not have keep their stored value then. `None`: rows have every column, and the
    /// newest one replaces the others.
    pub merge: Option<Arc<MergeOperators>>,
    /// A row that deletes gives way to any other row of its key, whatever their ordering and order: it is what a record was
    /// before the rows that come with it.
    pub deletes_give_way: bool,
    /// What to do with a null key.
    pub on_null_key: OnNullKey,
    /// How large files may be.
    pub files: FileSizes,
    /// The newest file slice of every group of the pinned state.
    pub slices: Arc<Vec<TargetSlice>>,
    /// The batch's memory, which a writer in the same process shares with the query.
    pub budget: MemoryBudget,
    /// What of it, in bytes, a writer in another process may count by itself: the query goes on counting here, and
    /// both together must not pass the batch's limit. `None`: all of it.
    pub share: Option<usize>,
    /// Temporary disk space in bytes.
    pub spill_bytes: u64,
    /// Says when to stop.
    pub stop: Stop,
}

/// How large base files may be, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSizes {
    /// A group whose base file is smaller takes new rows of an upsert or insert; 0: none does.
    pub small: u64,
    /// What a file is not to exceed, about.
    pub largest: u64,
}

/// How record keys and partition paths are made from a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySettings {
    /// Record key columns, in order.
    pub record_key: Vec<String>,
    /// Partition columns, in order.
    pub partition_by: Vec<String>,
    /// Keys are `field:value,…` even for a single column (Hudi's complex key generator).
    pub complex: bool,
    /// Partition paths are `column=value`.
    pub hive_style: bool,
    /// Partition values are percent-encoded.
    pub url_encode: bool,
}

/// A file slice of the target that rows may belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetSlice {
    /// Partition path.
    pub partition: String,
    /// File group.
    pub file_id: String,
    /// Base file, relative to the table; empty where there are log files only.
    pub path: String,
    /// Instant that wrote the base file; without one, the first log file's.
    pub instant: InstantTime,
    /// Size of the base file in bytes.
    pub bytes: u64,
    /// Log files on top of it, in the order in which they are merged, relative to the table.
    #[serde(default)]
    pub logs: Vec<String>,
}

/// What was staged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Staged {
    /// One per file.
    pub files: Vec<StagedFile>,
    /// Rows that came in.
    pub rows_in: u64,
    /// Rows left out because an equal key with a higher ordering (or a later row) was in the batch, or folded into
    /// another of their key by merge operators.
    pub rows_combined: u64,
    /// Rows left out because the stored row has the higher ordering.
    pub rows_outdated: u64,
    /// Rows left out because their key was null.
    pub rows_null_key: u64,
    /// Rows left out because the record that they delete is not in the table.
    #[serde(default)]
    pub rows_absent: u64,
    /// Partitions that rows came for.
    #[serde(default)]
    pub partitions: BTreeSet<String>,
}

/// One staged base file or log file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StagedFile {
    /// Partition path.
    pub partition: String,
    /// File group.
    pub file_id: String,
    /// Path relative to the table.
    pub path: String,
    /// Base file of the slice that it replaces, or that it is a log of, and the instant that wrote that; `None` for a
    /// new group.
    pub previous: Option<(String, InstantTime)>,
    /// Rows in the file.
    pub rows: u64,
    /// Rows of the batch that were not in the table.
    pub inserts: u64,
    /// Rows of the batch that replaced a stored one.
    pub updates: u64,
    /// Stored rows of the slice before that were deleted.
    #[serde(default)]
    pub deletes: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Statistics of each column, for the metadata table where it keeps them.
    #[serde(default)]
    pub columns: Vec<ColumnStats>,
}

/// Statistics of one column of one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnStats {
    /// Column name.
    pub column: String,
    /// Rows with a null.
    pub nulls: u64,
    /// All rows.
    pub values: u64,
}

/// Why rows could not be staged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key or partition column is null or missing.
    #[error(
        "record key column `{column}` is null in {rows} row(s) of the batch; set `target.on_null_key = \"drop\"` to leave such rows \
         out, or \"error_table\" to keep them there"
    )]
    NullKey {
        /// The column.
        column: String,
        /// How many rows of the record batch at hand.
        rows: usize,
    },
    /// A key column is empty, which Hudi refuses too.
    #[error("record key column `{column}` holds an empty string: a record key must not be empty")]
    EmptyKey {
        /// The column.
        column: String,
    },
    /// A column that keys, partitions or ordering need is not in the rows.
    #[error("the query's result has no column `{column}`, which `target.{role}` names; it has: {present}")]
    MissingColumn {
        /// The column.
        column: String,
        /// `record_key`, `partition_by` or `ordering`.
        role: &'static str,
        /// What there is.
        present: String,
    },
    /// A type that cannot be a key or a partition, or cannot be stored in a Hudi table.
    #[error("column `{column}` of type {found}: {what}")]
    Type {
        /// The column.
        column: String,
        /// Its type.
        found: String,
        /// What does not work, and what to do.
        what: String,
    },
    /// Values of a column cannot be combined by its merge operator.
    #[error("column `{column}` of key `{key}` cannot be merged by `{operator}`: {what}")]
    Fold {
        /// The column.
        column: String,
        /// The record key.
        key: String,
        /// The operator.
        operator: String,
        /// What happened, and what to do.
        what: String,
    },
    /// The rows themselves failed.
    #[error(transparent)]
    Rows(#[from] RowError),
    /// The memory budget is used up.
    #[error(transparent)]
    Memory(#[from] MemoryExceeded),
    /// The spill limit is used up.
    #[error("the batch needs more than {limit} bytes of temporary disk space; raise `limits.spill`")]
    Spill {
        /// The limit in bytes.
        limit: u64,
    },
    /// A file of the target is not what its format says.
    #[error("target `{url}`: `{file}` cannot be read: {detail}")]
    Corrupt {
        /// The table.
        url: String,
        /// The file.
        file: String,
        /// What is wrong.
        detail: String,
    },
    /// The store or the local disk did not answer.
    #[error("the store of `{url}` failed while {doing}; see that it can be reached and used, then run again")]
    Store {
        /// The table.
        url: String,
        /// What was being attempted.
        doing: String,
        /// Its error.
        #[source]
        source: BoxedError,
    },
    /// It was told to stop, and has: nothing of it is under way any more.
    #[error("the staging was stopped before it was done")]
    Stopped,
    /// The role itself could not be reached; what it staged is unknown.
    #[error("the writer role did not answer while {doing}")]
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
            Error::NullKey { .. }
            | Error::EmptyKey { .. }
            | Error::MissingColumn { .. }
            | Error::Type { .. }
            | Error::Fold { .. } => Code::Invalid,
            Error::Rows(error) => error.code(),
            Error::Memory(_) | Error::Spill { .. } => Code::Overloaded,
            Error::Stopped => Code::Cancelled,
            Error::Corrupt { .. } => Code::Corrupt,
            Error::Store { .. } | Error::Unreachable { .. } => Code::Unavailable,
            Error::Other { code, .. } => *code,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Error::Rows(error) => error.retry(),
            // The same batch meets the same limit.
            Error::Memory(_) | Error::Spill { .. } => Retry::Never,
            Error::Store { .. } | Error::Unreachable { .. } => Retry::Again,
            Error::Other { retry, .. } => *retry,
            _ => Retry::Never,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Error::NullKey { .. } => "NULL_KEY",
            Error::EmptyKey { .. } => "EMPTY_KEY",
            Error::MissingColumn { .. } => "COLUMN_MISSING",
            Error::Type { .. } => "TYPE_UNSUPPORTED",
            Error::Fold { .. } => "VALUES_UNMERGEABLE",
            Error::Rows(error) => error.reason(),
            Error::Memory(_) => "MEMORY_EXCEEDED",
            Error::Spill { .. } => "SPILL_EXCEEDED",
            Error::Corrupt { .. } => "TABLE_CORRUPT",
            Error::Store { .. } => "STORE_UNAVAILABLE",
            Error::Stopped => "STOPPED",
            Error::Unreachable { .. } => "ROLE_UNREACHABLE",
            Error::Other { .. } => "OTHER",
        }
    }
}
