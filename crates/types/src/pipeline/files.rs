// SPDX-License-Identifier: Apache-2.0
//! Directories of files as sources: which files, in which order, and what their bytes mean.
//!
//! What a pipeline leaves out has the default of its preset, so every option of a format is optional here; the reader
//! resolves them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ByteSize, SourceKind, Span, TopicSource};

/// Which files of a directory a source reads, and in which order: `[source.files]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileOptions {
    /// Look into sub-directories.
    pub recursive: bool,
    /// Only files whose path below the root fits: `*`, `?`, `**` and `{a,b}`.
    pub glob: Option<String>,
    /// What orders the files, and so what the cursor is.
    pub order: FileOrder,
    /// Where the time is in a file's name, as a date pattern between literal text: `'orders_'yyyyMMddHHmmss'.csv'`.
    pub name_timestamp: Option<String>,
    /// Files in one window at most.
    pub max_files: u32,
    /// Bytes in one window at most; a single larger file is read all the same.
    pub max_bytes: ByteSize,
    /// How far before the cursor a file that appears later is still read.
    pub late_window: Span,
    /// What to do with a file that appears further back than that.
    pub on_late: OnLateFile,
    /// What to do with a file that was read and then changed.
    pub on_changed: OnChangedFile,
    /// How long a file must not have changed before it is read.
    pub quiet: Span,
    /// Only files of directories in which a file of this name is, such as `_SUCCESS`.
    pub marker: Option<String>,
    /// A file with names and types: an Avro schema, or Arrow's in JSON. Whoever loads the pipeline reads it into `schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_file: Option<String>,
    /// The schema itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Records from which types are inferred where no schema is given; 0: every column is text.
    pub sample_rows: u32,
    /// What to do with columns that the schema does not have.
    pub unknown_columns: UnknownColumns,
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions {
            recursive: true,
            glob: None,
            order: FileOrder::Modified,
            name_timestamp: None,
            max_files: 1000,
            max_bytes: ByteSize(10 << 30),
            late_window: Span(Duration::from_secs(3600)),
            on_late: OnLateFile::Fail,
            on_changed: OnChangedFile::Fail,
            quiet: Span(Duration::ZERO),
            marker: None,
            schema_file: None,
            schema: None,
            sample_rows: 1000,
            unknown_columns: UnknownColumns::Evolve,
        }
    }
}

/// What orders the files of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOrder {
    /// When they were last modified, then their paths.
    #[default]
    Modified,
    /// The time in their names where `name_timestamp` says where it is, then the bytes of their paths.
    Name,
}

impl fmt::Display for FileOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileOrder::Modified => "modified",
            FileOrder::Name => "name",
        })
    }
}

/// What to do with a file that appears before what was read, further back than the late window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLateFile {
    /// Fail, naming it.
    #[default]
    Fail,
    /// Leave it out, count it and name it in the report, once.
    Warn,
}

/// What to do with a file that was read and has other content now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnChangedFile {
    /// Fail, naming it.
    #[default]
    Fail,
    /// Read the whole file again.
    Reread,
    /// Leave it, and remember what it is now.
    Ignore,
}

/// What to do with columns that the schema does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownColumns {
    /// They become columns of the source, behind the others.
    #[default]
    Evolve,
    /// They are left out.
    Ignore,
    /// The file is refused.
    Fail,
}

/// What the bytes of a CSV file mean: `[source.csv]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CsvOptions {
    /// The defaults of all other keys.
    pub preset: CsvPreset,
    /// Between fields: one or more characters, `\t` and `\u0001` among them.
    pub sep: Option<String>,
    /// `UTF-8`, `UTF-16`, `UTF-16LE`, `UTF-16BE` or `ISO-8859-1`.
    pub encoding: Option<String>,
    /// Around fields that hold separators; empty: nothing is quoted.
    pub quote: Option<String>,
    /// Before a quote inside a quoted field; the quote itself: it is doubled.
    pub escape: Option<String>,
    /// Before an escape that stands for itself; empty: none.
    pub char_to_escape_quote_escaping: Option<String>,
    /// Begins lines that are skipped; empty: none are.
    pub comment: Option<String>,
    /// The first line of each file names the columns.
    pub header: Option<bool>,
    /// Columns are matched to a schema by position, whatever the header says.
    pub enforce_schema: Option<bool>,
    /// Infer types where no schema is given; else every column is text.
    pub infer_schema: Option<bool>,
    /// Leave out white space before a field that is not quoted.
    pub ignore_leading_white_space: Option<bool>,
    /// Leave out white space after a field that is not quoted.
    pub ignore_trailing_white_space: Option<bool>,
    /// What stands for NULL.
    pub null_value: Option<String>,
    /// What an empty quoted field is.
    pub empty_value: Option<String>,
    /// Not a number.
    pub nan_value: Option<String>,
    /// Infinity.
    pub positive_inf: Option<String>,
    /// Negative infinity.
    pub negative_inf: Option<String>,
    /// Pattern of dates.
    pub date_format: Option<String>,
    /// Pattern of timestamps.
    pub timestamp_format: Option<String>,
    /// Columns of a record at most.
    pub max_columns: Option<u32>,
    /// Characters of a field at most.
    pub max_chars_per_column: Option<u64>,
    /// Bytes of a record at most.
    pub max_record: Option<ByteSize>,
    /// What to do with a record that is no good.
    pub mode: Option<BadRecords>,
    /// A text column that holds the text of records that are no good.
    pub column_name_of_corrupt_record: Option<String>,
    /// A quoted field may hold line breaks.
    pub multi_line: Option<bool>,
    /// What a record with too few fields is.
    pub short_rows: Option<ShortRows>,
    /// What a record with too many fields is.
    pub long_rows: Option<LongRows>,
    /// What to do with columns of one name.
    pub duplicate_names: Option<DuplicateNames>,
    /// Leave out lines that repeat the header.
    pub drop_repeated_header: Option<bool>,
}

/// What the bytes of a JSON file mean: `[source.json]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JsonOptions {
    /// Bytes of a record at most.
    pub max_record: Option<ByteSize>,
    /// What to do with a record that is no good.
    pub mode: Option<BadRecords>,
    /// A text column that holds the text of records that are no good.
    pub column_name_of_corrupt_record: Option<String>,
    /// Pattern of dates.
    pub date_format: Option<String>,
    /// Pattern of timestamps.
    pub timestamp_format: Option<String>,
}

/// Whose defaults a CSV file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CsvPreset {
    /// RFC 4180: quotes are doubled, quoted fields may hold line breaks, and what does not fit is refused.
    #[default]
    Rfc4180,
    /// Apache Spark's reader, with its defaults.
    Spark,
}

/// What to do with a record that is no good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadRecords {
    /// What cannot be read is NULL; the record's text goes into the corrupt-record column.
    Permissive,
    /// The record is left out and counted.
    DropMalformed,
    /// The record goes to the error table.
    #[serde(rename = "error_table")]
    ErrorTable,
    /// The batch fails, saying where it is.
    #[default]
    FailFast,
}

impl BadRecords {
    /// Whether bad records are left out of the rows.
    pub fn leaves_out(self) -> bool {
        matches!(self, BadRecords::DropMalformed | BadRecords::ErrorTable)
    }
}

/// What a record with too few fields is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShortRows {
    /// No good.
    #[default]
    Bad,
    /// Good: the rest is NULL.
    Null,
}

/// What a record with too many fields is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LongRows {
    /// No good.
    #[default]
    Bad,
    /// Good: the rest is left out.
    Drop,
}

/// What to do with columns of one name, whatever their case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DuplicateNames {
    /// Refuse the file.
    #[default]
    Fail,
    /// Append each column's position to its name.
    Suffix,
}

/// Everything that is particular to a source of files, or of messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSource {
    /// Which files; of a topic, its schema and what it is inferred from.
    #[serde(default)]
    pub files: FileOptions,
    /// What their bytes mean.
    pub format: FileFormat,
    /// The topic; `None`: files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<TopicSource>,
}

/// What the bytes of a file mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileFormat {
    /// Separated values.
    Csv(Box<CsvOptions>),
    /// Objects, one a line or in arrays.
    Json(JsonOptions),
    /// Apache Parquet.
    Parquet,
}

/// What is wrong with the options of source `name`, each as a sentence that names the key.
pub(super) fn problems(
    name: &str,
    kind: SourceKind,
    files: &FileOptions,
    csv: &CsvOptions,
    json: &JsonOptions,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut refuse = |what: String| problems.push(format!("source `{name}`: {what}"));
    if !kind.is_files() && files != &FileOptions::default() {
        refuse(format!("`files` means nothing to `kind = \"{}\"`", kind.as_str()));
    }
    if !matches!(kind, SourceKind::Csv | SourceKind::Kafka) && csv != &CsvOptions::default() {
        refuse(format!("`csv` means nothing to `kind = \"{}\"`", kind.as_str()));
    }
    if !matches!(kind, SourceKind::Json | SourceKind::Kafka) && json != &JsonOptions::default() {
        refuse(format!("`json` means nothing to `kind = \"{}\"`", kind.as_str()));
    }
    if files.max_files == 0 {
        refuse("`files.max_files` must be greater than 0".to_string());
    }
    if files.name_timestamp.is_some() && files.order != FileOrder::Name {
        refuse(
            "`files.name_timestamp` orders files by the time in their names: set `files.order = \"name\"`".to_string(),
        );
    }
    if files.marker.as_ref().is_some_and(|marker| marker.is_empty() || marker.contains('/')) {
        refuse("`files.marker` is the name of a file, without directories".to_string());
    }
    if files.schema.is_some() && files.schema_file.is_some() {
        refuse("both `files.schema` and `files.schema_file` are given: give one".to_string());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: SourceKind, files: serde_json::Value) -> Vec<String> {
        let files = serde_json::from_value(files).unwrap();
        problems("s", kind, &files, &CsvOptions::default(), &JsonOptions::default())
    }

    #[test]
    fn a_directory_without_options_has_no_problem_and_the_documented_defaults() {
        assert_eq!(found(SourceKind::Csv, serde_json::json!({})), Vec::<String>::new());
        let files = FileOptions::default();
        assert_eq!((files.max_files, files.max_bytes.to_string()), (1000, "10GiB".to_string()));
        assert_eq!((files.order, files.late_window.to_string()), (FileOrder::Modified, "1h".to_string()));
    }

    #[test]
    fn options_of_another_kind_of_source_are_refused() {
        let problems = found(SourceKind::Hudi, serde_json::json!({"glob": "*.csv"}));
        assert!(problems[0].contains("`files` means nothing to `kind = \"hudi\"`"), "{problems:?}");
        let csv = CsvOptions { header: Some(true), ..CsvOptions::default() };
        let problems = super::problems("s", SourceKind::Json, &FileOptions::default(), &csv, &JsonOptions::default());
        assert!(problems[0].contains("`csv` means nothing"), "{problems:?}");
    }

    #[test]
    fn each_contradiction_is_named() {
        let problems = found(
            SourceKind::Csv,
            serde_json::json!({"max_files": 0, "name_timestamp": "yyyy", "marker": "a/b", "schema": "x", "schema_file": "y"}),
        );
        for (part, problem) in ["max_files", "name_timestamp", "marker", "schema_file"].iter().zip(&problems) {
            assert!(problem.contains(part), "{part} not in {problem}");
        }
        assert_eq!(problems.len(), 4);
    }
}
