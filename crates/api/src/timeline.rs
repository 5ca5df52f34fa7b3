// SPDX-License-Identifier: Apache-2.0
//! The readers: the timeline role, which reads Hudi tables, and the sources role, which reads directories of files and
//! Kafka topics.

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tributary_types::pipeline::{FileSource, OnHole, OnLate, OnStale, TableType};
use tributary_types::{Cursor, FileState, InstantTime, MemoryBudget, SourceName, Zone};

use crate::RowStream;
use crate::predicate::Predicate;

mod balance;
mod error;
mod report;
mod split;

pub use balance::balance;
pub use error::Error;
pub use report::{NAMES_REPORTED, WindowReport};
pub use split::{Blocks, Deleted, FileSplit, LogFile, Logs, Split, TopicSplit};

/// Reads Hudi tables, directories of files, or topics: what they are, what changed in them, and the rows.
///
/// One implementation reads tables, another one files and topics, and a third passes each request on to the right one: a
/// request with [`PlanRequest::files`] and a split with [`Split::file`] are about files or topics.
///
/// Planning fixes everything a batch will read; reading a split later never looks at the timeline again, so what
/// was planned is what is delivered, whatever commits arrive in between.
#[async_trait]
pub trait Timeline: Send + Sync {
    /// What the table at `url` is, as of now.
    async fn describe(&self, url: &str) -> Result<TableInfo, Error>;

    /// Fixes the window of one source and pins its files. Safe to repeat.
    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, Error>;

    /// The instants of the table's active timeline, newest request first, those that were requested before `before`, at most
    /// `limit`. Readers of files and topics have none.
    async fn list_instants(
        &self,
        url: &str,
        before: Option<&InstantTime>,
        limit: usize,
    ) -> Result<Vec<InstantInfo>, Error> {
        let _ = (before, limit);
        Err(Error::Unsupported { url: url.to_string(), what: "the timeline role lists instants".to_string() })
    }

    /// Streams the rows of one split. Safe to repeat: the same rows in the same order.
    async fn read(&self, request: ReadRequest) -> Result<RowStream, Error>;

    /// Flight URIs at which others read splits from whoever implements this, `grpc://HOST:PORT`; empty: it has none of
    /// its own. Safe to repeat.
    async fn locations(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// Ends the streams that are read for a pull; answers how many those were. Safe to repeat.
    async fn cancel_pull(&self, _pull: &str) -> Result<u64, Error> {
        Ok(0)
    }
}

/// One instant of a timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstantInfo {
    /// Requested time.
    pub requested: InstantTime,
    /// Completion time, by the clock that the table keeps; `None`: it is pending.
    pub completed: Option<InstantTime>,
    /// What it does, as its file is named.
    pub action: String,
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
    /// With the first message of each partition that was stamped then or later, milliseconds since the epoch.
    Timestamp(i64),
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
    /// Deliver records that the window deleted as well: `<SRC:x>` has their last rows, and every relation says of its rows in
    /// `_hoodie_is_deleted` which these are.
    pub deletes: bool,
    /// Only a look: no data file is opened, so that what only a data file tells is not checked.
    pub look_only: bool,
    /// What a source that begins after a cursor is left out with when its files do not fit the table's schema: an empty
    /// relation of this schema (without meta columns). `None`: such a plan fails.
    pub fallback_schema: Option<SchemaRef>,
    /// What is particular to a directory of files, or to a topic; `None`: a table.
    pub files: Option<Box<FilesRequest>>,
}

/// What is particular to the window of a directory of files, or of a topic.
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
            deletes: false,
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
