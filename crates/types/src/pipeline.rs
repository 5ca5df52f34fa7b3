// SPDX-License-Identifier: Apache-2.0
//! What a pipeline is: the content of a pipeline file, with its defaults and its own rules.
//!
//! [`Pipeline::validate`] reports every problem of a pipeline at once. What needs a look at the tables themselves
//! is checked when the pipeline is planned.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::{PipelineName, SourceName};

mod deletes;
mod error_table;
mod files;
mod kafka;
mod meaningless;
mod merge;
mod operation;
mod policies;
mod services;
mod source;
mod start;
mod transforms;
mod units;
mod versions;

pub use error_table::ErrorTable;
pub use files::{
    BadRecords, CsvOptions, CsvPreset, DuplicateNames, FileFormat, FileOptions, FileOrder, FileSource, JsonOptions,
    LongRows, OnChangedFile, OnLateFile, ShortRows, UnknownColumns,
};
pub use kafka::{
    KafkaColumn, KafkaFormat, KafkaOptions, KeyFormat, OnOutOfRange, Tombstones, TopicKeys, TopicSource, topic_url,
};
pub use merge::{MergeOperators, Operator};
pub use operation::{Operation, TableType};
pub use policies::{Deletes, InsertConflict, OnHole, OnLate, OnMalformedCursor, OnStale, Writers};
pub use services::Services;
use source::is_default;
pub use source::{OnUnused, ReadMode, Source, SourceKind};
pub use start::Start;
pub use transforms::{Flatten, Transform};
pub use units::{ByteSize, Span};

/// A whole pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Name of the pipeline; its cursors are kept under it in the target.
    pub name: PipelineName,
    /// What holds between the sources of one batch.
    #[serde(default)]
    pub consistency: Consistency,
    /// Accept, once, that positions such as `<SRC_0>` are bound to other sources than in the last commit, and that a
    /// source's table lies elsewhere than it did then.
    #[serde(default)]
    pub accept_binding_change: bool,
    /// Go on, once, from the checkpoint that a Hudi Streamer job of one source left in the target.
    #[serde(default, skip_serializing_if = "is_default")]
    pub adopt_legacy_checkpoint: bool,
    /// Keep the checkpoint for Java jobs as `name=instant,…` where there are several sources; else as one plain timestamp.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub multi_checkpoint: bool,
    /// Where sources without a `start` begin in the very first batch of all. One that is added later must have a `start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_start: Option<Start>,
    /// Accept, once, that a column that has data is merged by another operator than in the last commit.
    #[serde(default, skip_serializing_if = "is_default")]
    pub accept_merge_change: bool,
    /// The tables that are read, in order.
    #[serde(default, rename = "source")]
    pub sources: Vec<Source>,
    /// The steps that merge them, each over the result of the one before. None: the rows of the one source pass through.
    #[serde(default, rename = "transform", skip_serializing_if = "Vec::is_empty")]
    pub transforms: Vec<Transform>,
    /// The table that is written.
    pub target: Target,
    /// What a batch may use.
    #[serde(default)]
    pub limits: Limits,
    /// Where rows go that are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_table: Option<ErrorTable>,
}

/// What holds between the windows of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// Each source ends at its own newest commit; all cursors move together or none does.
    #[default]
    Independent,
    /// All sources end at one shared commit-time ceiling.
    Aligned,
}

/// The target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Base path or URL of the table.
    pub path: String,
    /// Name of the table.
    pub table_name: String,
    /// Layout of the table.
    #[serde(default)]
    pub table_type: TableType,
    /// Version of the table, when it is created.
    #[serde(default = "default_table_version")]
    pub table_version: u32,
    /// Columns that make the record key.
    pub record_key: Vec<String>,
    /// Columns that make the partition path; empty for a table without partitions.
    #[serde(default)]
    pub partition_by: Vec<String>,
    /// Columns of which the greatest value wins among rows of one key; empty: the later row wins.
    #[serde(default)]
    pub ordering: Vec<String>,
    /// How rows enter the table.
    #[serde(default)]
    pub operation: Operation,
    /// Accept that `insert_overwrite_table` leaves only what the last window brought.
    #[serde(default)]
    pub acknowledge_window_only: bool,
    /// Who else writes the table.
    #[serde(default)]
    pub writers: Writers,
    /// What to do when another writer added rows to a partition that an upsert adds rows to as well.
    #[serde(default, skip_serializing_if = "is_default")]
    pub insert_conflict: InsertConflict,
    /// What to do with a row whose key is null.
    #[serde(default)]
    pub on_null_key: OnNullKey,
    /// Write partition paths as `column=value`.
    #[serde(default = "yes")]
    pub hive_style: bool,
    /// A file group whose base file is smaller takes new rows of an upsert or insert; 0: none does.
    #[serde(default = "default_small_file_limit")]
    pub small_file_limit: ByteSize,
    /// What a base file is not to exceed, about.
    #[serde(default = "default_max_file_size")]
    pub max_file_size: ByteSize,
    /// What keeps the table small.
    #[serde(default)]
    pub services: Services,
    /// How values that come in are combined with those that are stored. Absent: the row that comes in replaces the
    /// stored one, and has every column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<MergeOperators>,
}

/// As Hudi's `hoodie.parquet.small.file.limit`.
fn default_small_file_limit() -> ByteSize {
    ByteSize(100 << 20)
}

/// As Hudi's `hoodie.parquet.max.file.size`.
fn default_max_file_size() -> ByteSize {
    ByteSize(120 << 20)
}

fn default_table_version() -> u32 {
    9
}

fn yes() -> bool {
    true
}

// Serde wants a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_true(value: &bool) -> bool {
    *value
}

/// What to do with a row whose key is null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNullKey {
    /// Fail the batch, naming the column.
    #[default]
    Fail,
    /// Leave the row out and count it.
    Drop,
    /// Write the row to the error table instead.
    ErrorTable,
}

/// What a batch may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Counted memory of a batch.
    pub memory: ByteSize,
    /// Temporary disk space of a batch.
    pub spill: ByteSize,
    /// Time of a batch, from its plan to its commit.
    pub timeout: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory: ByteSize(1 << 30), spill: ByteSize(20 << 30), timeout: Span(Duration::from_secs(3600)) }
    }
}

impl Pipeline {
    /// Every problem that the pipeline has in itself, each as a sentence that names the key. Empty: none.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        self.check_sources(&mut problems);
        problems.extend(transforms::problems(self));
        problems.extend(plain_checkpoint_problem(self));
        problems.extend(error_table::problems(self));
        self.check_target(&mut problems);
        if self.limits.memory.0 < 64 << 20 {
            problems.push(format!("`limits.memory` is {}: at least 64MiB are needed", self.limits.memory));
        }
        problems
    }

    fn check_sources(&self, problems: &mut Vec<String>) {
        if self.sources.is_empty() {
            problems.push("no `[[source]]` is given: a pipeline reads at least one table".to_string());
        }
        if !self.sources.is_empty() && self.sources.iter().all(|source| source.read == ReadMode::Snapshot) {
            problems.push(
                "every source has `read = \"snapshot\"`: at least one must be incremental, a look-up alone never \
                 makes a batch"
                    .to_string(),
            );
        }
        let mut folded: BTreeMap<String, &SourceName> = BTreeMap::new();
        for source in &self.sources {
            match folded.insert(source.name.folded(), &source.name) {
                Some(other) if other == &source.name => {
                    problems.push(format!("two sources are named `{other}`: give each its own name"));
                }
                Some(other) => problems.push(format!(
                    "sources `{other}` and `{}` fold to one properties key `{}`: rename one of them",
                    source.name,
                    source.name.folded()
                )),
                None => {}
            }
            if source.kind != SourceKind::Kafka && source.path.trim().is_empty() {
                problems.push(format!("source `{}` has no `path`", source.name));
            }
            if source.num_instants == 0 {
                problems.push(format!("source `{}`: `num_instants` must be greater than 0", source.name));
            }
            if source.skip_on_schema_failure && source.read == ReadMode::Snapshot {
                problems.push(format!(
                    "source `{}`: `skip_on_schema_failure` does not go with `read = \"snapshot\"`: a look-up that is left \
                     out would look as if its table were empty",
                    source.name
                ));
            }
            if let Some(old) = &source.renamed_from
                && self.sources.iter().any(|other| {
                    &other.name == old || other.name != source.name && other.renamed_from.as_ref() == Some(old)
                })
            {
                problems.push(format!(
                    "source `{}`: `renamed_from = \"{old}\"` is the name, or the former name, of another source of the \
                     pipeline, or its own: a cursor goes to one source",
                    source.name
                ));
            }
            let Source { name, kind, files, csv, json, .. } = source;
            problems.extend(files::problems(name.as_str(), *kind, files, csv, json));
            problems.extend(kafka::problems(source));
            problems.extend(meaningless::problems(source));
            problems.extend(source::start_problem(source));
            problems.extend(deletes::problems(source, self));
            if let Some(Start::At(cursor)) = &source.start
                && !kind.fits(cursor)
            {
                problems.push(format!(
                    "source `{name}`: `start = \"{cursor}\"` is no place in a source of `kind = \"{}\"`",
                    kind.as_str()
                ));
            }
        }
    }

    fn check_target(&self, problems: &mut Vec<String>) {
        let target = &self.target;
        if target.path.trim().is_empty() {
            problems.push("`target.path` is empty".to_string());
        }
        if target.table_name.trim().is_empty() {
            problems.push("`target.table_name` is empty".to_string());
        }
        if target.record_key.is_empty() {
            problems.push("`target.record_key` is empty: name the columns that make the record key".to_string());
        }
        if target.table_type == TableType::MergeOnRead {
            problems.extend(target.services.merge_on_read_problem());
        }
        problems.extend(versions::problem(target));
        for (key, columns) in
            [("record_key", &target.record_key), ("partition_by", &target.partition_by), ("ordering", &target.ordering)]
        {
            for (position, column) in columns.iter().enumerate() {
                if columns[..position].contains(column) {
                    problems.push(format!("`target.{key}` names column `{column}` twice"));
                }
                if column.starts_with("_hoodie_") {
                    problems.push(format!("`target.{key}` names `{column}`: meta columns are written by Tributary"));
                }
            }
        }
        self.check_operation(problems);
        problems.extend(merge::problems(self));
        if target.max_file_size.0 < 1 << 20 || target.small_file_limit > target.max_file_size {
            problems.push(format!(
                "`target.max_file_size` is {}: it must be at least 1MiB and not below `target.small_file_limit`, which is {}",
                target.max_file_size, target.small_file_limit
            ));
        }
        problems.extend(target.services.problems());
        let is_target = |source: &Source| source.kind != SourceKind::Kafka && same_path(&source.path, &target.path);
        if self.sources.iter().any(is_target) {
            problems.push(format!("`target.path` `{}` is also a source: a batch would read itself", target.path));
        }
    }
}

impl Pipeline {
    fn check_operation(&self, problems: &mut Vec<String>) {
        let target = &self.target;
        let incremental = self.sources.iter().any(|source| source.read == ReadMode::Incremental);
        if target.operation == Operation::InsertOverwriteTable && incremental && !target.acknowledge_window_only {
            problems.push(
                "`target.operation = \"insert_overwrite_table\"` leaves only the rows of the last window in the table; set \
                 `target.acknowledge_window_only = true` if that is meant"
                    .to_string(),
            );
        }
        if target.table_type == TableType::MergeOnRead && target.operation.replaces_groups() {
            problems.push(format!(
                "`target.operation = \"{}\"` is not there for merge-on-read tables yet: delete records with \
                 `target.operation = \"delete\"`",
                target.operation.as_str().to_lowercase()
            ));
        }
        if target.insert_conflict != InsertConflict::Fail && target.writers != Writers::Shared {
            problems.push(
                "`target.insert_conflict` is about other writers: it goes with `target.writers = \"shared\"` only"
                    .to_string(),
            );
        }
        if target.operation == Operation::DeletePartition && target.partition_by.is_empty() {
            problems.push("`target.operation = \"delete_partition\"` needs `target.partition_by`".to_string());
        }
    }
}

/// What one plain timestamp cannot be the checkpoint of; more is known once the tables are looked at.
fn plain_checkpoint_problem(pipeline: &Pipeline) -> Option<String> {
    let read = || pipeline.sources.iter().filter(|source| source.read == ReadMode::Incremental);
    if pipeline.multi_checkpoint || read().count() < 2 {
        return None;
    }
    let why = match read().find(|source| source.kind != SourceKind::Hudi) {
        Some(source) => format!("source `{}` is no Hudi table: its place is no instant", source.name),
        None if pipeline.consistency != Consistency::Aligned => {
            "only `consistency = \"aligned\"` ends them at one time".to_string()
        }
        None => return None,
    };
    Some(format!("`multi_checkpoint = false` writes one timestamp for all sources, and {why}"))
}

fn same_path(left: &str, right: &str) -> bool {
    left.trim_end_matches('/') == right.trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline() -> Pipeline {
        serde_json::from_value(serde_json::json!({
            "name": "p",
            "source": [
                {"name": "orders", "path": "/a", "start": "snapshot"},
                {"name": "users", "path": "/b", "read": "snapshot"},
            ],
            "transform": [{"sql": "SELECT 1"}],
            "target": {"path": "/t", "table_name": "t", "record_key": ["id"]},
        }))
        .unwrap()
    }

    #[test]
    fn a_sound_pipeline_has_no_problem_and_the_documented_defaults() {
        let pipeline = pipeline();
        assert_eq!(pipeline.validate(), Vec::<String>::new());
        assert_eq!(pipeline.sources[0].num_instants, 5);
        assert_eq!(pipeline.target.operation, Operation::Upsert);
        assert_eq!(pipeline.target.table_version, 9);
        assert_eq!(pipeline.limits.memory.to_string(), "1GiB");
        assert_eq!(pipeline.limits.timeout.to_string(), "1h");
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let mut pipeline = pipeline();
        pipeline.transforms.clear();
        pipeline.sources[0].num_instants = 0;
        pipeline.target.record_key.clear();
        pipeline.target.path = "/a/".to_string();
        pipeline.sources[1].skip_on_schema_failure = true;
        let problems = pipeline.validate().join("\n");
        for part in ["no SQL", "num_instants", "record_key", "would read itself", "skip_on_schema_failure"] {
            assert!(problems.contains(part), "{part} missing in:\n{problems}");
        }
    }

    #[test]
    fn an_overwrite_by_a_window_must_be_acknowledged_and_partitions_must_exist_to_be_deleted() {
        let mut pipeline = pipeline();
        pipeline.target.operation = Operation::InsertOverwriteTable;
        assert!(pipeline.validate()[0].contains("acknowledge_window_only"));
        pipeline.target.acknowledge_window_only = true;
        assert_eq!(pipeline.validate(), Vec::<String>::new());
        pipeline.target.operation = Operation::DeletePartition;
        assert!(pipeline.validate()[0].contains("`target.partition_by`"));
        pipeline.target.partition_by = vec!["day".to_string()];
        pipeline.target.table_type = TableType::MergeOnRead;
        assert!(pipeline.validate()[0].contains("not there for merge-on-read"));
        pipeline.target.operation = Operation::Delete;
        assert_eq!(pipeline.validate(), Vec::<String>::new());
    }

    #[test]
    fn versions_eight_and_nine_can_be_written_and_eight_only_where_it_says_how() {
        let mut pipeline = pipeline();
        pipeline.target.table_version = 8;
        assert_eq!(pipeline.validate(), Vec::<String>::new());
        pipeline.target.partition_by = vec!["day".to_string(), "hour".to_string()];
        assert!(pipeline.validate()[0].contains("use version 9"));
        pipeline.target.record_key.push("line".to_string());
        assert_eq!(pipeline.validate(), Vec::<String>::new());
        pipeline.target.table_type = TableType::MergeOnRead;
        assert!(pipeline.validate()[0].contains("copy-on-write"));
        pipeline.target.table_version = 6;
        assert!(pipeline.validate()[0].contains("versions 8 and 9 are supported"));
    }

    #[test]
    fn what_other_writers_may_insert_is_said_of_shared_targets_only() {
        let mut pipeline = pipeline();
        assert_eq!(
            (pipeline.target.writers, pipeline.target.insert_conflict),
            (Writers::Exclusive, InsertConflict::Fail)
        );
        pipeline.target.insert_conflict = InsertConflict::Allow;
        assert!(pipeline.validate()[0].contains("`target.insert_conflict`"));
        pipeline.target.writers = Writers::Shared;
        assert_eq!(pipeline.validate(), Vec::<String>::new());
    }

    #[test]
    fn names_that_fold_to_one_properties_key_are_refused() {
        let mut pipeline = pipeline();
        pipeline.sources[0].name = SourceName::new("db.orders").unwrap();
        pipeline.sources[1].name = SourceName::new("db_orders").unwrap();
        assert!(pipeline.validate()[0].contains("fold to one properties key `db_orders`"));
    }

    #[test]
    fn sizes_and_spans_need_a_unit_that_is_known() {
        assert_eq!("512MiB".parse::<ByteSize>().unwrap().0, 512 << 20);
        assert_eq!("2 GB".parse::<ByteSize>().unwrap().0, 2_000_000_000);
        assert!("1 gigabyte".parse::<ByteSize>().is_err());
        assert_eq!("90s".parse::<Span>().unwrap().0, Duration::from_secs(90));
        assert!("90".parse::<Span>().is_err());
        assert!("18446744073709551615h".parse::<Span>().is_err());
    }
}
