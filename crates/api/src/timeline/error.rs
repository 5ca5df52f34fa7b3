// SPDX-License-Identifier: Apache-2.0
//! Why a table, a directory or a topic cannot be read.

use tributary_types::{Code, Cursor, Fault, InstantTime, Retry, SourceName};

use crate::BoxedError;

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
    /// There is no directory of files.
    #[error(
        "source `{source_name}`: there is no directory at `{url}`, as the process that reads it sees it; check the path, \
         and that the disk is there"
    )]
    NoDirectory {
        /// The source.
        source_name: SourceName,
        /// Where it was looked for.
        url: String,
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
    /// Messages between the cursor and the end of a topic are gone.
    #[error(
        "source `{source_name}`: messages of `{url}` that were not read yet are gone, by retention or since they were deleted: \
         {gone}. Set `kafka.on_out_of_range = \"earliest\"` to go on in these partitions with what is there, or \
         \"latest\" to go on behind it: what is gone is lost"
    )]
    OutOfRange {
        /// The source.
        source_name: SourceName,
        /// Brokers and topic.
        url: String,
        /// Which partitions, and which offsets of each.
        gone: String,
    },
    /// Another topic has the name, or less is in it than was read.
    #[error(
        "source `{source_name}`: `{url}` is not the topic that its cursor belongs to any more: {why}; it was re-created, or lost \
         its end. To read it from its `start`, give the source another name in the pipeline and its SQL"
    )]
    TopicRecreated {
        /// The source.
        source_name: SourceName,
        /// Brokers and topic.
        url: String,
        /// What shows it.
        why: String,
    },
    /// Messages that were planned are gone.
    #[error("`{url}`: messages of partition {partition} from offset {offset} on were planned and are gone")]
    MessagesGone {
        /// Brokers and topic.
        url: String,
        /// The partition.
        partition: u32,
        /// The first offset that is gone.
        offset: u64,
    },
    /// A message is no good.
    #[error(
        "source `{source_name}`: `{url}` partition {partition}, offset {offset}: {reason}; it is `{record}`. Set `mode = \
         \"permissive\"` or \"dropmalformed\" for its format, or go on behind it with a source of another name and `start = \
         \"offsets:…\"`"
    )]
    BadMessage {
        /// The source.
        source_name: SourceName,
        /// Brokers and topic.
        url: String,
        /// The partition.
        partition: u32,
        /// The offset.
        offset: u64,
        /// What is wrong.
        reason: String,
        /// Its value, cut.
        record: String,
    },
    /// A broker did not answer.
    #[error("the brokers of `{url}` failed while {doing}; see that they can be reached and used, then run again")]
    Brokers {
        /// Brokers and topic.
        url: String,
        /// What was being attempted.
        doing: String,
        /// The connection's error.
        #[source]
        source: BoxedError,
    },
    /// A record of a file is no good.
    #[error(
        "source `{source_name}`: `{file}` line {line}, byte {offset}: {reason}; the record is `{record}`. Mend the file, \
         or set `mode = \"permissive\"`, \"dropmalformed\" or \"error_table\" for its format"
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
            Error::NoTable { .. } | Error::NoDirectory { .. } => Code::NotFound,
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
            | Error::OutOfRange { .. }
            | Error::TopicRecreated { .. }
            | Error::Schema { .. } => Code::Invalid,
            Error::FileGone { .. } | Error::FileChanged { .. } | Error::MessagesGone { .. } | Error::Hole { .. } => {
                Code::Conflict
            }
            Error::SliceTooLarge { .. } => Code::Overloaded,
            Error::Corrupt { .. } | Error::BadRecord { .. } | Error::BadMessage { .. } => Code::Corrupt,
            Error::Store { .. } | Error::Brokers { .. } | Error::Unreachable { .. } => Code::Unavailable,
            Error::Other { code, .. } => *code,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Error::FileGone { .. } | Error::FileChanged { .. } | Error::MessagesGone { .. } => Retry::Rebase,
            Error::Store { .. } | Error::Brokers { .. } | Error::Unreachable { .. } | Error::Hole { .. } => {
                Retry::Again
            }
            Error::Other { retry, .. } => *retry,
            _ => Retry::Never,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Error::NoTable { .. } => "TABLE_NOT_FOUND",
            Error::NoDirectory { .. } => "DIRECTORY_NOT_FOUND",
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
            Error::OutOfRange { .. } => "OFFSETS_OUT_OF_RANGE",
            Error::TopicRecreated { .. } => "TOPIC_RECREATED",
            Error::MessagesGone { .. } => "MESSAGES_GONE",
            Error::BadMessage { .. } => "BAD_MESSAGE",
            Error::Brokers { .. } => "BROKERS_UNAVAILABLE",
            Error::BadRecord { .. } => "BAD_RECORD",
            Error::SliceTooLarge { .. } => "SLICE_TOO_LARGE",
            Error::Corrupt { .. } => "TABLE_CORRUPT",
            Error::Store { .. } => "STORE_UNAVAILABLE",
            Error::Unreachable { .. } => "ROLE_UNREACHABLE",
            Error::Other { .. } => "OTHER",
        }
    }
}
