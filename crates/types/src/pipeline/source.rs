// SPDX-License-Identifier: Apache-2.0
//! One source of a pipeline: what it is, and where it starts.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    CsvOptions, FileFormat, FileOptions, FileSource, JsonOptions, KafkaFormat, KafkaOptions, OnHole, OnLate,
    OnMalformedCursor, OnStale, Tombstones,
};
use crate::checkpoint::location_of;
use crate::cursor::Cursor;
use crate::instant::InstantTime;
use crate::names::SourceName;

/// One source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name in SQL (`<SRC:name>`) and in the cursors.
    pub name: SourceName,
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

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    value == &T::default()
}

fn default_num_instants() -> usize {
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

/// Where a source starts when the target knows no cursor of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Start {
    /// Deliver the newest commit and nothing before it.
    Latest,
    /// Deliver every commit that is still on the timeline, and refuse if any is not.
    Earliest,
    /// Deliver the whole table.
    Snapshot,
    /// Deliver what came after this cursor.
    At(Cursor),
    /// Deliver the messages of a topic from this time on, milliseconds since the epoch.
    Timestamp(i64),
    /// Refuse: a cursor must exist.
    Fail,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Start::Latest => f.write_str("latest"),
            Start::Earliest => f.write_str("earliest"),
            Start::Snapshot => f.write_str("snapshot"),
            Start::At(cursor) => cursor.fmt(f),
            Start::Timestamp(millis) => write!(f, "timestamp:{millis}"),
            Start::Fail => f.write_str("fail"),
        }
    }
}

impl TryFrom<String> for Start {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "latest" => Ok(Start::Latest),
            "earliest" => Ok(Start::Earliest),
            "snapshot" => Ok(Start::Snapshot),
            "fail" => Ok(Start::Fail),
            timestamp if timestamp.starts_with("timestamp:") => read_timestamp(timestamp).map(Start::Timestamp),
            // A bare instant is a completion time, the clock of all table versions but 6.
            other => match other.parse::<InstantTime>() {
                Ok(instant) => Ok(Start::At(Cursor::Completed(instant))),
                Err(_) => other.parse::<Cursor>().map(Start::At).map_err(|_| {
                    format!(
                        "`start = \"{other}\"` is none of latest, earliest, snapshot, fail, an instant, \
                         `completed:<instant>`, `requested:<instant>`, `file:<position>`, \
                         `offsets:<topic>,<partition>:<next offset>,…` or `timestamp:<time>`"
                    )
                }),
            },
        }
    }
}

/// `timestamp:` and a time of RFC 3339, or milliseconds since the epoch. Seconds are refused rather than taken for
/// milliseconds.
fn read_timestamp(text: &str) -> Result<i64, String> {
    let time = text.trim_start_matches("timestamp:");
    let digits = time.len() >= MILLIS_DIGITS && time.bytes().all(|byte| byte.is_ascii_digit());
    let found = match digits {
        true => time.parse().ok(),
        false => chrono::DateTime::parse_from_rfc3339(time).ok().map(|time| time.timestamp_millis()),
    };
    found.ok_or_else(|| {
        format!(
            "`start = \"{text}\"` is no time: write it as 2025-01-31T10:00:00Z, or in milliseconds since the epoch, at \
             least {MILLIS_DIGITS} digits"
        )
    })
}

/// Digits of a time in milliseconds at least: those of 1973 and later, and of no time in seconds.
const MILLIS_DIGITS: usize = 12;

impl From<Start> for String {
    fn from(start: Start) -> Self {
        start.to_string()
    }
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
