// SPDX-License-Identifier: Apache-2.0
//! The pieces that a relation is read in: file slices of tables, files of directories, spans of partitions of topics.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tributary_types::pipeline::{FileFormat, TopicSource};
use tributary_types::{InstantTime, SourceName};

/// One file slice of a pinned relation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// Base path or URL of the table.
    pub url: String,
    /// Partition path, empty for a table without partitions.
    pub partition: String,
    /// File group.
    pub file_id: String,
    /// Base file, relative to the table; empty where the group has log files only.
    pub path: String,
    /// Size of the base file in bytes, 0 where unknown.
    pub bytes: u64,
    /// Log files on top of it; `None` where there are none.
    pub logs: Option<Logs>,
    /// Only rows whose `_hoodie_commit_time` is one of these; `None`: all rows.
    pub instants: Option<Arc<Vec<InstantTime>>>,
    /// Instead, only rows whose `_hoodie_commit_time` is none of them.
    #[serde(default)]
    pub all_but: bool,
    /// What is particular to a file of a directory, or to a partition of a topic; `None`: a file slice of a table.
    pub file: Option<FileSplit>,
    /// What its rows say of deletes.
    #[serde(default)]
    pub deleted: Deleted,
}

/// What the rows of a split say in the column `_hoodie_is_deleted` of its relation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deleted {
    /// What the files say, as of any other column.
    #[default]
    Unsaid,
    /// False where the files say nothing: the source delivers deleted records, and these are the others.
    No,
    /// True: of the split's rows, only those whose record key is in none of these slices, which are of the same partition.
    UnlessIn(Arc<Vec<Split>>),
}

/// What is particular to a file of a directory, or to a partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSplit {
    /// Which source, for messages and figures.
    pub source: SourceName,
    /// What its bytes mean.
    pub format: Arc<FileFormat>,
    /// When it was last modified, milliseconds since the epoch. A file that changed since is not read.
    pub modified_millis: i64,
    /// What the store calls this content, where it says.
    pub e_tag: Option<String>,
    /// Keys without a column make a record of JSON bad.
    pub strict: bool,
    /// Which messages, where it is no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<TopicSplit>,
    /// What is asked for are the records that are refused: rows of [`crate::refused::refused_schema`], whatever columns are
    /// asked for. The schema asked for is still the one that records are read by.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
}

/// Messages of one partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicSplit {
    /// The topic, and what its messages mean.
    pub source: Arc<TopicSource>,
    /// Identity of the topic, where its brokers tell one.
    pub topic_id: Option<String>,
    /// The partition.
    pub partition: i32,
    /// The first offset.
    pub begin: i64,
    /// The offset after the last one.
    pub end: i64,
    /// How many of the relation's columns are those of the messages' values; they are the first ones.
    pub value_columns: usize,
}

/// The log files of a slice, and how they are merged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logs {
    /// The files, in the order in which they are merged.
    pub files: Vec<LogFile>,
    /// Layout of the table's timeline: on layout 1 a block in them may be torn.
    pub layout: u32,
    /// Columns whose values say which of two rows of one key stays, the later one winning a tie; `None`: the later
    /// row always stays.
    pub ordering: Option<Vec<String>>,
    /// A column and the value in it that marks a row as deleted, besides Hudi's own marks.
    pub delete_marker: Option<(String, String)>,
    /// Instants whose blocks count; `None`: all, since each file is of one instant.
    pub blocks: Option<Arc<Blocks>>,
}

/// One log file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFile {
    /// Path relative to the table.
    pub path: String,
    /// Size in bytes, 0 where unknown.
    pub bytes: u64,
}

/// Instants whose log blocks count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Every instant before this one.
    pub before: Option<InstantTime>,
    /// These besides.
    pub listed: Vec<InstantTime>,
}

impl Split {
    /// How many files it has.
    pub fn files(&self) -> usize {
        usize::from(!self.path.is_empty()) + self.log_files().count()
    }

    /// Size of all its files in bytes, as far as it is known.
    pub fn total_bytes(&self) -> u64 {
        self.log_files().fold(self.bytes, |sum, log| sum.saturating_add(log.bytes))
    }

    /// Whether the size of every file is known.
    pub fn sizes_known(&self) -> bool {
        (self.path.is_empty() || self.bytes > 0) && self.log_files().all(|log| log.bytes > 0)
    }

    /// A file of it, for messages.
    pub fn name(&self) -> &str {
        match self.log_files().next() {
            Some(log) if self.path.is_empty() => &log.path,
            _ => &self.path,
        }
    }

    /// The same split, of which only the refused records are asked for. A file slice of a table has none.
    #[must_use]
    pub fn refused_only(mut self) -> Self {
        if let Some(file) = &mut self.file {
            file.refused = true;
        }
        self
    }

    /// Whether only the refused records are asked for.
    pub fn is_refused_only(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.refused)
    }

    fn log_files(&self) -> impl Iterator<Item = &LogFile> {
        self.logs.iter().flat_map(|logs| &logs.files)
    }
}
