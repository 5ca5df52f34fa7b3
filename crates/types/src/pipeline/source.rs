// SPDX-License-Identifier: Apache-2.0
//! One source of a pipeline.

use serde::{Deserialize, Serialize};

use super::{
    CsvOptions, Deletes, FileFormat, FileOptions, FileSource, JsonOptions, KafkaFormat, KafkaOptions, OnHole, OnLate,
    OnMalformedCursor, OnStale, Start, Tombstones,
};
use crate::checkpoint::location_of;
use crate::cursor::Cursor;
use crate::names::SourceName;

/// One source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name in SQL (`<SRC:name>`) and in the cursors.
    pub name: SourceName,
    /// What it was called before: its cursor is taken over, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed_from: Option<SourceName>,
    /// Kind of source.
    #[serde(default)]
    pub kind: SourceKind,
    /// Base path or URL of the table, root of the directory. A topic has none.
    #[serde(default)]
    pub path: String,
    /// What the source contributes to a batch.
    #[serde(default)]
    pub read: ReadMode,
    /// Where to start when the target knows no cursor of it.
    #[serde(default)]
    pub start: Option<Start>,
    /// At most this many commits in one window.
    #[serde(default = "default_num_instants")]
    pub num_instants: usize,
    /// What to do when the next commits were archived or their files cleaned.
    #[serde(default)]
    pub on_stale: OnStale,
    /// What to do when commits follow one that is pending, on tables that are read in the order of requests (version 6).
    #[serde(default)]
    pub on_hole: OnHole,
    /// What to do when a commit that completed inside a window already read shows up.
    #[serde(default)]
    pub on_late_instant: OnLate,
    /// What to do when the target's entry for the source cannot be read.
    #[serde(default)]
    pub on_malformed_cursor: OnMalformedCursor,
    /// Leave the source out of a batch, its cursor where it is, when its files do not fit the table's schema.
    #[serde(default)]
    pub skip_on_schema_failure: bool,
    /// Show the five `_hoodie_*` columns to SQL.
    #[serde(default)]
    pub meta_columns: bool,
    /// What becomes of records that are deleted in the table. Absent: they are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletes: Option<Deletes>,
    /// What to do when no placeholder uses the source.
    #[serde(default)]
    pub unused: OnUnused,
    /// Which files, where the source is a directory of files.
    #[serde(default, skip_serializing_if = "is_default")]
    pub files: FileOptions,
    /// Brokers to ask first, where the source is a Kafka topic: `host:port`, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brokers: Option<String>,
    /// The topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// What its messages hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<KafkaFormat>,
    /// What messages without a value are. Absent: deletes where `kafka.key_columns` is given, else an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tombstones: Option<Tombstones>,
    /// What else there is to say of the topic.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kafka: KafkaOptions,
    /// What their bytes mean, where they are CSV.
    #[serde(default, skip_serializing_if = "is_default")]
    pub csv: CsvOptions,
    /// What their bytes mean, where they are JSON.
    #[serde(default, skip_serializing_if = "is_default")]
    pub json: JsonOptions,
}

impl Source {
    /// What is particular to files and topics; `None` for a table.
    pub fn file_source(&self) -> Option<FileSource> {
        let format = match self.kind {
            SourceKind::Hudi => return None,
            SourceKind::Csv => FileFormat::Csv(Box::new(self.csv.clone())),
            SourceKind::Json => FileFormat::Json(self.json.clone()),
            SourceKind::Parquet => FileFormat::Parquet,
            SourceKind::Kafka => match self.format {
                Some(KafkaFormat::Csv) => FileFormat::Csv(Box::new(self.csv.clone())),
                Some(KafkaFormat::Json) | None => FileFormat::Json(self.json.clone()),
            },
        };
        let topic = self.topic_source();
        let files = match &topic {
            Some(topic) => FileOptions {
                schema: topic.options.schema.clone(),
                sample_rows: topic.options.sample_events,
                unknown_columns: topic.options.unknown_columns,
                ..FileOptions::default()
            },
            None => self.files.clone(),
        };
        Some(FileSource { files, format, topic })
    }

    /// Where it is, for messages: its path, or brokers and topic.
    pub fn url(&self) -> String {
        match self.topic_source() {
            Some(topic) => format!("kafka://{}/{}", topic.brokers, topic.topic),
            None => self.path.clone(),
        }
    }

    /// Where it is, for its cursor. Brokers come and go: a topic is told by its name and its identity.
    pub fn location(&self) -> String {
        match self.topic_source() {
            Some(topic) => format!("kafka:{}", topic.topic),
            None => location_of(&self.path).to_string(),
        }
    }
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    value == &T::default()
}

pub(super) fn default_num_instants() -> usize {
    5
}

/// Kind of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// An Apache Hudi table.
    #[default]
    Hudi,
    /// A directory of CSV files.
    Csv,
    /// A directory of JSON files.
    Json,
    /// A directory of Parquet files.
    Parquet,
    /// A Kafka topic.
    Kafka,
}

impl SourceKind {
    /// The name in checkpoints.
    pub fn as_str(self) -> &'static str {
        match self {
            SourceKind::Hudi => "hudi",
            SourceKind::Csv => "csv",
            SourceKind::Json => "json",
            SourceKind::Parquet => "parquet",
            SourceKind::Kafka => "kafka",
        }
    }

    /// Whether it is a directory of files.
    pub fn is_files(self) -> bool {
        matches!(self, SourceKind::Csv | SourceKind::Json | SourceKind::Parquet)
    }

    /// Whether a cursor can be a place in such a source.
    pub fn fits(self, cursor: &Cursor) -> bool {
        match cursor {
            Cursor::Requested(_) | Cursor::Completed(_) => self == SourceKind::Hudi,
            Cursor::File(_) => self.is_files(),
            Cursor::Offsets(_) => self == SourceKind::Kafka,
        }
    }
}

/// What a source contributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadMode {
    /// The rows changed since the cursor.
    #[default]
    Incremental,
    /// The whole table as of the batch, for look-ups. Alone it never makes a batch.
    Snapshot,
}

/// What to do when no placeholder uses a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnused {
    /// Refuse the pipeline: the source's cursor would move unseen.
    #[default]
    Fail,
    /// Let the cursor move all the same.
    Allow,
}

/// What only the start of a topic can be, and what of another topic it cannot.
pub(super) fn start_problem(source: &Source) -> Option<String> {
    match &source.start {
        Some(Start::Timestamp(_)) if source.kind != SourceKind::Kafka => Some(format!(
            "source `{}`: `start = \"timestamp:…\"` means nothing to `kind = \"{}\"`",
            source.name,
            source.kind.as_str()
        )),
        Some(Start::At(Cursor::Offsets(offsets))) if source.topic.as_ref() != Some(&offsets.topic) => Some(format!(
            "source `{}`: `start` has offsets of topic `{}`, another one than `topic` names",
            source.name, offsets.topic
        )),
        _ => None,
    }
}
