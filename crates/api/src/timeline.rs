// SPDX-License-Identifier: Apache-2.0
//! The readers: the timeline role, which reads Hudi tables, and the sources role, which reads directories of files.

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tributary_types::pipeline::{FileSource, OnHole, OnLate, OnStale, TableType};
use tributary_types::{Code, Cursor, Fault, FileState, InstantTime, MemoryBudget, Retry, SourceName, Zone};

use crate::predicate::Predicate;
use crate::{BoxedError, RowStream};

mod report;
mod split;

pub use report::{NAMES_REPORTED, WindowReport};
pub use split::{Blocks, FileSplit, LogFile, Logs, Split};

/// Reads Hudi tables, or directories of files: what they are, what changed in them, and the rows.
///
/// One implementation reads tables, another one files, and a third passes each request on to the right one: a request
/// with [`PlanRequest::files`] and a split with [`Split::file`] are about files.
///
/// Planning fixes everything a batch will read; reading a split later never looks at the timeline again, so what
/// was planned is what is delivered, whatever commits arrive in between.
#[async_trait]
pub trait Timeline: Send + Sync {
    /// What the table at `url` is, as of now.
    async fn describe(&self, url: &str) -> Result<TableInfo, Error>;

    /// Fixes the window of one source and pins its files. Safe to repeat.
    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, Error>;

    /// Streams the rows of one split. Safe to repeat: the same rows in the same order.
    async fn read(&self, request: ReadRequest) -> Result<RowStream, Error>;
}

/// What a table is.
#[derive(Debug, Clone)]
pub struct TableInfo {
    /// Base path or URL.
    pub url: String,
    /// `hoodie.table.name`.
    pub name: String,
    /// `hoodie.table.version`.
    pub version: u32,
    /// Copy-on-write or merge-on-read.
    pub table_type: TableType,
    /// The zone of its instants.
    pub zone: Zone,
    /// Identity of the table: another table at the same path has another.
    pub fingerprint: String,
    /// Record key columns.
    pub record_key: Vec<String>,
    /// Partition columns.
    pub partition_by: Vec<String>,
    /// Ordering columns.
    pub ordering: Vec<String>,
    /// Schema as of the newest commit, without meta columns. `None` for a table that never had a commit nor a
    /// schema of its own.
    pub schema: Option<SchemaRef>,
    /// Newest completed data commit; in a plan only where its window told it.
    pub newest: Option<InstantFact>,
}

/// One completed commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstantFact {
    /// Requested time, which is what `_hoodie_commit_time` holds.
    pub requested: InstantTime,
    /// Completion time; on tables of version 6, which have none, the requested time again.
    pub completed: InstantTime,
    /// `commit`, `replacecommit`, …
    pub action: String,
}

/// Where a window begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// After this cursor.
    After(Cursor),
    /// At the newest commit, which is delivered.
    Latest,
    /// At the first commit; refused when commits were archived.
    Earliest,
    /// With the whole table.
    Snapshot,
}

/// What of a source the query names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Views {
    /// `<SRC:x>`: rows changed in the window.
    pub changed: bool,
    /// `<SNAP:x>`: the table at the window's end.
    pub end: bool,
    /// `<PREV:x>`: the table at the window's beginning.
    pub begin: bool,
}

/// Asks for the window of one source.
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// Which source, for messages.
    pub source: SourceName,
    /// Base path or URL of the table.
    pub url: String,
    /// Where to begin.
    pub begin: Begin,
    /// A look-up: there is no window, only the table as of now or the ceiling.
    pub lookup: bool,
    /// At most this many data commits, ties included.
    pub num_instants: usize,
    /// Nothing that completed after this time (milliseconds since the epoch, UTC) is in the window. Tables of version 6
    /// measure it by requested time.
    pub ceiling_millis: Option<i64>,
    /// End exactly here: the plan of a batch that is planned again after its files moved.
    pub pinned_end: Option<Cursor>,
    /// The begin was set by hand: it must be a commit of the table, or a place among the files.
    pub by_hand: bool,
    /// Identity of the table that the cursor belongs to; another one is refused.
    pub fingerprint: Option<String>,
    /// Instants delivered by earlier batches, to notice late ones.
    pub recent: Vec<InstantTime>,
    /// What to do with late ones.
    pub on_late: OnLate,
    /// What to do when commits after the begin cannot be read any more.
    pub on_stale: OnStale,
    /// What to do when completed commits follow a pending one, on tables of version 6.
    pub on_hole: OnHole,
    /// Which relations to pin.
    pub views: Views,
    /// Whether relations show the five meta columns.
    pub meta_columns: bool,
    /// Only a look: no data file is opened, so that what only a data file tells is not checked.
    pub look_only: bool,
    /// What a source that begins after a cursor is left out with when its files do not fit the table's schema: an empty
    /// relation of this schema (without meta columns). `None`: such a plan fails.
    pub fallback_schema: Option<SchemaRef>,
    /// What is particular to a directory of files; `None`: a table.
    pub files: Option<Box<FilesRequest>>,
}

/// What is particular to the window of a directory of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesRequest {
    /// Which files, and what their bytes mean.
    pub source: FileSource,
    /// What the last commit remembers of them.
    pub state: Option<FileState>,
    /// Exactly these files, by path: the window of a batch that is planned again after its files moved.
    pub pinned: Option<Vec<String>>,
    /// The begin was set by hand: files at or before it count as read, and of the state only the schema holds.
    #[serde(default)]
    pub moved: bool,
}

impl PlanRequest {
    /// Asks for the whole table at `url` as of now, for a look at it: `<SNAP:x>` without meta columns.
    pub fn whole_table(source: SourceName, url: impl Into<String>) -> Self {
        PlanRequest {
            lookup: true,
            views: Views { end: true, ..Views::default() },
            ..PlanRequest::window(source, url, Begin::Snapshot)
        }
    }

    /// Asks for the window of the table at `url` that begins at `begin` and has no limit: `<SRC:x>` without meta
    /// columns.
    pub fn window(source: SourceName, url: impl Into<String>, begin: Begin) -> Self {
        PlanRequest {
            source,
            url: url.into(),
            begin,
            lookup: false,
            num_instants: usize::MAX,
            ceiling_millis: None,
            pinned_end: None,
            by_hand: false,
            fingerprint: None,
            recent: Vec::new(),
            on_late: OnLate::Deliver,
            on_stale: OnStale::Fail,
            on_hole: OnHole::Block,
            views: Views { changed: true, ..Views::default() },
            meta_columns: false,
            look_only: false,
            fallback_schema: None,
            files: None,
        }
    }
}

/// The fixed window of one source.
#[derive(Debug, Clone)]
pub struct SourcePlan {
    /// Which source.
    pub source: SourceName,
    /// What the table is.
    pub table: TableInfo,
    /// Exclusive begin; `None` for a first window that takes the whole table.
    pub begin: Option<Cursor>,
    /// Inclusive end: the cursor after the batch. For a look-up, the time it is as of.
    pub end: Cursor,
    /// Data commits in the window, in the cursor's order. Empty for a whole-table window and for a look-up.
    pub instants: Vec<InstantFact>,
    /// Whether the source has news for a batch: rows may be in the window.
    pub has_news: bool,
    /// Whether the window ends before the newest commit: by `num_instants`, or since the source was left out.
    pub limited: bool,
    /// Up to when (milliseconds since the epoch, UTC) this listing saw every commit that will ever complete. On tables
    /// of version 6 that ends before the earliest pending commit.
    pub frontier_millis: i64,
    /// Instants delivered lately, after this window: goes into the checkpoint.
    pub recent: Vec<InstantTime>,
    /// `<SRC:x>`.
    pub changed: Option<Relation>,
    /// `<SNAP:x>`.
    pub at_end: Option<Relation>,
    /// `<PREV:x>`.
    pub at_begin: Option<Relation>,
    /// Figures for the report.
    pub report: WindowReport,
    /// What is to be remembered of a directory of files: goes into the checkpoint.
    pub files: Option<Box<FileState>>,
}

/// A pinned relation: its schema and every file that makes it.
#[derive(Debug, Clone)]
pub struct Relation {
    /// Schema of every batch that its splits deliver, before projection.
    pub schema: SchemaRef,
    /// The pieces it can be read in, in parallel.
    pub splits: Vec<Split>,
}

/// Asks for the rows of one split.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The split.
    pub split: Split,
    /// Full schema of the relation.
    pub schema: SchemaRef,
    /// Columns wanted, as positions in `schema`, in the order wanted; `None`: all.
    pub projection: Option<Vec<usize>>,
    /// Rows that cannot match may be left out.
    pub predicate: Option<Predicate>,
    /// Rows a batch holds at most.
    pub batch_rows: usize,
    /// What merging log files may take. Of a budget only the limit travels to another process.
    pub memory: MemoryBudget,
}

/// Why a table cannot be read so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no Hudi table.
    #[error("no Hudi table at `{url}`: `.hoodie/hoodie.properties` is missing; check the path of {what}")]
    NoTable {
        /// Where it was looked for.
        url: String,
        /// What named it.
        what: String,
    },
    /// A table version that is not read.
    #[error("table `{url}` has version {version}: versions {supported} can be read")]
    Version {
        /// The table.
        url: String,
        /// Its version.
        version: u32,
        /// What can be read.
        supported: &'static str,
    },
    /// Something about the table that is not supported, by name.
    #[error("table `{url}`: {what}")]
    Unsupported {
        /// The table.
        url: String,
        /// What is not supported, and what to do.
        what: String,
    },
    /// Another table is at the path now.
    #[error(
        "source `{source_name}`: `{url}` is not the table its cursor belongs to (fingerprint {found}, expected \
         {expected}); it was re-created. To read the new table, run once with `--override {source_name}=start`, or give the source another \
         name in the pipeline and its SQL: it then begins at its `start`"
    )]
    Recreated {
        /// The source.
        source_name: SourceName,
        /// The table.
        url: String,
        /// Fingerprint found.
        found: String,
        /// Fingerprint in the cursor.
        expected: String,
    },
    /// The cursor's own commit is gone: the table was restored to an earlier state.
    #[error(
        "source `{source_name}`: cursor {cursor} names a commit that `{url}` no longer has, in its timeline or its \
         history; the table was restored below it. Run once with `--override {source_name}=…`, or give the source another name in \
         the pipeline and its SQL: it then begins at its `start`"
    )]
    Restored {
        /// The source.
        source_name: SourceName,
        /// The table.
        url: String,
        /// The cursor.
        cursor: Cursor,
    },
    /// Commits after the cursor are archived or cleaned.
    #[error(
        "source `{source_name}`: commits after {} are no longer readable in `{url}` (archived or cleaned); the earliest \
         readable one is {earliest}. Set `on_stale = \"snapshot\"` to take the whole table without the rows that were read \
         (deletes in the gap are lost), or run once with `--override {source_name}={resume}` to go on from there, and the \
         gap is lost",
        stood_at(cursor)
    )]
    Stale {
        /// The source.
        source_name: SourceName,
        /// The table.
        url: String,
        /// The cursor.
        cursor: Cursor,
        /// Requested time of the earliest commit that can still be read.
        earliest: String,
        /// The cursor just before it.
        resume: String,
    },
    /// Completed commits follow a pending one, and the source is not to wait for it.
    #[error(
        "source `{source_name}`: {action} {instant} of `{url}` is pending while later commits are complete; wait until it \
         completes or is rolled back, or set `on_hole = \"block\"` to read up to it"
    )]
    Hole {
        /// The source.
        source_name: SourceName,
        /// The table.
        url: String,
        /// Requested time of the pending instant.
        instant: InstantTime,
        /// What it does.
        action: String,
    },
    /// A commit completed inside a window that was read already.
    #[error(
        "source `{source_name}`: commit {instant} completed at {completed}, inside a window already read, and was \
         not delivered; set `on_late_instant = \"deliver\"` to read it with the next batch"
    )]
    Late {
        /// The source.
        source_name: SourceName,
        /// Its requested time.
        instant: InstantTime,
        /// Its completion time.
        completed: InstantTime,
    },
    /// The cursor is in a clock that this table version does not keep.
    #[error("source `{source_name}`: cursor {cursor} does not fit table `{url}` of version {version}: {hint}")]
    Clock {
        /// The source.
        source_name: SourceName,
        /// The table.
        url: String,
        /// The cursor.
        cursor: Cursor,
        /// The table's version.
        version: u32,
        /// What to do.
        hint: &'static str,
    },
    /// The cursor lies after everything the table ever did.
    #[error("source `{source_name}`: cursor {cursor} is after the newest commit {newest} of `{url}`")]
    Beyond {
        /// The source.
        source_name: SourceName,
        /// The table.
        url: String,
        /// The cursor.
        cursor: Cursor,
        /// The newest completion time.
        newest: String,
    },
    /// A cursor that was set by hand names no commit.
    #[error(
        "source `{source_name}`: cursor {cursor} was set by hand and names no commit of `{url}`, in its timeline or its \
         history; {nearest}"
    )]
    NoCommit {
        /// The source.
        source_name: SourceName,
        /// The table.
        url: String,
        /// The cursor.
        cursor: Cursor,
        /// Commits that it could name.
        nearest: String,
    },
    /// The schema of a file cannot be widened to the table's.
    #[error("table `{url}`, file `{file}`: column `{column}` is {found}, the table's schema says {expected}: {hint}")]
    Schema {
        /// The table.
        url: String,
        /// The file, or the commit.
        file: String,
        /// The column.
        column: String,
        /// Type in the file.
        found: String,
        /// Type in the table.
        expected: String,
        /// What to do.
        hint: &'static str,
    },
    /// A pinned file is gone.
    #[error("table `{url}`: file `{file}` was pinned by the plan and is gone (cleaned or rolled back since)")]
    FileGone {
        /// The table.
        url: String,
        /// The file.
        file: String,
    },
    /// A file of a directory changed between the plan and the read.
    #[error("`{url}`: file `{file}` changed after it was planned: {detail}")]
    FileChanged {
        /// The directory.
        url: String,
        /// The file.
        file: String,
        /// What was planned, and what is there.
        detail: String,
    },
    /// Files appeared before the cursor, further back than the late window.
    #[error(
        "source `{source_name}`: {files} file(s) appeared before the cursor, further back than `files.late_window`, and \
         were not read: {names}. Raise `files.late_window` to read them, or set `files.on_late = \"warn\"` to go on \
         without them"
    )]
    LateFiles {
        /// The source.
        source_name: SourceName,
        /// How many.
        files: u64,
        /// Some of them.
        names: String,
    },
    /// A file that was read has other content now.
    #[error(
        "source `{source_name}`: {files} file(s) changed after they were read: {names}. Set `files.on_changed = \
         \"reread\"` to read them whole again, or \"ignore\" to leave them; new content belongs into a new file"
    )]
    ChangedFiles {
        /// The source.
        source_name: SourceName,
        /// How many.
        files: u64,
        /// Some of them.
        names: String,
    },
    /// A record of a file is no good.
    #[error(
        "source `{source_name}`: `{file}` line {line}, byte {offset}: {reason}; the record is `{record}`. Mend the file, \
         or set `mode = \"permissive\"` or \"dropmalformed\" for its format"
    )]
    BadRecord {
        /// The source.
        source_name: SourceName,
        /// The file, relative to the directory.
        file: String,
        /// Line where the record begins, from 1.
        line: u64,
        /// Where the record begins, in bytes of the text: after decompression, and after the conversion to UTF-8.
        offset: u64,
        /// What is wrong.
        reason: String,
        /// The record, cut.
        record: String,
    },
    /// A file group whose log files do not fit into memory.
    #[error("table `{url}`: {detail}; raise `limits.memory`, or compact the table")]
    SliceTooLarge {
        /// The table.
        url: String,
        /// Which group, what it needs and what there is.
        detail: String,
    },
    /// A file of the table is not what its format says.
    #[error("table `{url}`: `{file}` cannot be read: {detail}")]
    Corrupt {
        /// The table.
        url: String,
        /// The file.
        file: String,
        /// What is wrong.
        detail: String,
    },
    /// The store did not answer.
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
    /// The role itself could not be reached.
    #[error("the timeline role did not answer while {doing}")]
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

/// A cursor in words: that of a source that starts with a table's first commit, or that met the table empty, names none.
fn stood_at(cursor: &Cursor) -> String {
    match cursor.instant().is_some_and(InstantTime::is_init) {
        true => "the table's first moment (`start = \"earliest\"`, or a cursor from when it was empty)".to_string(),
        false => format!("cursor {cursor}"),
    }
}

impl Fault for Error {
    fn code(&self) -> Code {
        match self {
            Error::NoTable { .. } => Code::NotFound,
            Error::Version { .. } | Error::Unsupported { .. } => Code::Unsupported,
            Error::Recreated { .. }
            | Error::Restored { .. }
            | Error::Stale { .. }
            | Error::Late { .. }
            | Error::Clock { .. }
            | Error::Beyond { .. }
            | Error::NoCommit { .. }
            | Error::LateFiles { .. }
            | Error::ChangedFiles { .. }
            | Error::Schema { .. } => Code::Invalid,
            Error::FileGone { .. } | Error::FileChanged { .. } | Error::Hole { .. } => Code::Conflict,
            Error::SliceTooLarge { .. } => Code::Overloaded,
            Error::Corrupt { .. } | Error::BadRecord { .. } => Code::Corrupt,
            Error::Store { .. } | Error::Unreachable { .. } => Code::Unavailable,
            Error::Other { code, .. } => *code,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Error::FileGone { .. } | Error::FileChanged { .. } => Retry::Rebase,
            Error::Store { .. } | Error::Unreachable { .. } | Error::Hole { .. } => Retry::Again,
            Error::Other { retry, .. } => *retry,
            _ => Retry::Never,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Error::NoTable { .. } => "TABLE_NOT_FOUND",
            Error::Version { .. } => "TABLE_VERSION_UNSUPPORTED",
            Error::Unsupported { .. } => "TABLE_UNSUPPORTED",
            Error::Recreated { .. } => "SOURCE_RECREATED",
            Error::Restored { .. } => "SOURCE_RESTORED",
            Error::Stale { .. } => "CURSOR_STALE",
            Error::Hole { .. } => "TIMELINE_HOLE",
            Error::Late { .. } => "LATE_INSTANT",
            Error::Clock { .. } => "CURSOR_CLOCK",
            Error::Beyond { .. } => "CURSOR_BEYOND",
            Error::NoCommit { .. } => "CURSOR_NO_COMMIT",
            Error::Schema { .. } => "SCHEMA_UNRESOLVABLE",
            Error::FileGone { .. } => "FILE_GONE",
            Error::FileChanged { .. } => "FILE_CHANGED",
            Error::LateFiles { .. } => "LATE_FILES",
            Error::ChangedFiles { .. } => "CHANGED_FILES",
            Error::BadRecord { .. } => "BAD_RECORD",
            Error::SliceTooLarge { .. } => "SLICE_TOO_LARGE",
            Error::Corrupt { .. } => "TABLE_CORRUPT",
            Error::Store { .. } => "STORE_UNAVAILABLE",
            Error::Unreachable { .. } => "ROLE_UNREACHABLE",
            Error::Other { .. } => "OTHER",
        }
    }
}
