// SPDX-License-Identifier: Apache-2.0
//! File slices of table version 6, whose log files are named by their base file and hold blocks of several commits.
//!
//! Only what is below planning: slices as of an instant and the rows in them.

use std::collections::{BTreeMap, HashSet};

use arrow::datatypes::Schema;
use tributary_hudi::{
    CommitMetadata, FileScan, FileSlice, LogNames, LogScan, MergeRules, Storage, Stores, TableConfig,
    Timeline as HudiTimeline, Torn, arrow_schema, completed_replacements, completions_for, list_files, open_scan,
    open_slice, read_metadata, replaced_groups, select_slices, with_meta_columns, without_meta_columns,
};
use tributary_types::InstantTime;

use super::oracle::{Oracle, is_service, sorted_rows};
use super::*;

const TABLES: [&str; 4] = [
    "mor_v6_compaction",
    "mor_v6_nonpartitioned_rollback",
    "mor_v6_simplekeygen_nonhivestyle_overwritetable",
    "mor_v6_trips_8i1u",
];

struct Table {
    storage: Storage,
    config: TableConfig,
    timeline: HudiTimeline,
    schema: Schema,
}

impl Table {
    async fn open(oracle: &Oracle) -> Self {
        let storage = SystemStores::new().open(&oracle.url()).unwrap();
        let config = TableConfig::load(&storage).await.unwrap();
        let timeline = HudiTimeline::load(&storage, &config).await.unwrap();
        let newest = timeline.completed_path(timeline.completed_writes().last().unwrap()).unwrap();
        let newest = CommitMetadata::decode(&newest, &storage.read(&newest).await.unwrap()).unwrap();
        let schema = without_meta_columns(&arrow_schema("f", newest.schema().unwrap()).unwrap());
        Table { storage, config, timeline, schema: with_meta_columns(&schema) }
    }

    /// Rows as of an instant.
    async fn rows(&self, as_of: &InstantTime) -> Vec<Value> {
        let files = list_files(&self.storage, &self.config, &self.timeline).await.unwrap();
        let completions = completions_for(&self.storage, &self.config, &self.timeline, &files).await.unwrap();
        let replacements = completed_replacements(&self.timeline, Some(as_of));
        let metadata = read_metadata(&self.storage, &self.timeline, &replacements).await.unwrap();
        let replaced: HashSet<_> = metadata.iter().flat_map(replaced_groups).collect();
        let names = LogNames::of(&self.config);
        assert_eq!(names, LogNames::BaseInstant);
        let slices = select_slices(files, &completions, &replaced, Some(as_of), names);
        let counted = Arc::new(completions.counted_blocks(Some(as_of)));
        let mut found = Vec::new();
        for slice in slices {
            let logs = self.logs(&slice, Arc::clone(&counted));
            let scan = self.scan(&slice);
            let stream = match slice.logs.is_empty() {
                true => open_scan(&self.storage, scan).await.unwrap(),
                false => open_slice(&self.storage, scan, logs).await.unwrap(),
            };
            let batches: Vec<RecordBatch> = stream.try_collect().await.unwrap();
            found.extend(batches.iter().flat_map(json::rows));
        }
        json::sorted(found)
    }

    fn scan(&self, slice: &FileSlice) -> FileScan {
        FileScan {
            path: slice.base.as_ref().map(|base| base.path.clone()).unwrap_or_default(),
            bytes: 0,
            schema: Arc::new(self.schema.clone()),
            projection: None,
            constants: BTreeMap::new(),
            instants: None,
            all_but: false,
            prune: None,
            batch_rows: 100,
            memory: MemoryBudget::new(64 << 20),
        }
    }

    fn logs(&self, slice: &FileSlice, counted: Arc<tributary_hudi::BlockInstants>) -> LogScan {
        LogScan {
            group: slice.group.1.clone(),
            files: slice.logs.iter().map(|log| log.path.clone()).collect(),
            torn: Torn::PassedOver,
            counted: Some(counted),
            rules: MergeRules::of(&self.config).unwrap(),
        }
    }
}

/// The columns that Spark's answer has.
fn like(expected: &[Value], found: Vec<Value>) -> Vec<Value> {
    let Some(columns) = expected.first().and_then(Value::as_object) else { return found };
    let pick = |row: &Value| Value::Object(columns.keys().map(|name| (name.clone(), row[name].clone())).collect());
    json::sorted(found.iter().map(pick).collect())
}

#[tokio::test]
async fn snapshots_are_what_spark_reads() {
    for name in TABLES {
        let oracle = Oracle::unpack(name);
        let table = Table::open(&oracle).await;
        let now = table.timeline.latest_time().unwrap().clone();
        let expected = oracle.snapshot();
        assert_eq!(like(&expected, table.rows(&now).await), expected, "{name}");
    }
}

#[tokio::test]
async fn what_each_commit_left_is_what_spark_reads_as_of_it() {
    for name in TABLES {
        let oracle = Oracle::unpack(name);
        let table = Table::open(&oracle).await;
        // Completion times of layout 1 are those of files, which a copy has others of.
        for window in oracle.windows().iter().filter(|window| !is_service(window)) {
            let requested: InstantTime = window["requested"].as_str().unwrap().parse().unwrap();
            let mut found = table.rows(&requested).await;
            found.retain(|row| row["_hoodie_commit_time"] == requested.as_str());
            let expected = sorted_rows(&window["rows"]);
            assert_eq!(like(&expected, found), expected, "{name} at {requested}");
        }
    }
}

#[tokio::test]
async fn logs_since_a_pending_compaction_are_on_top_of_those_before_it() {
    let oracle = Oracle::unpack("mor_v6_compaction");
    let table = Table::open(&oracle).await;
    let files = list_files(&table.storage, &table.config, &table.timeline).await.unwrap();
    let completions = completions_for(&table.storage, &table.config, &table.timeline, &files).await.unwrap();
    let slices = select_slices(files, &completions, &HashSet::new(), None, LogNames::BaseInstant);
    let pending: InstantTime = oracle.expected["pending"][0]["requested"].as_str().unwrap().parse().unwrap();
    let slice = slices.iter().find(|slice| slice.logs.iter().any(|log| log.instant == pending)).unwrap();
    let base = &slice.base.as_ref().unwrap().instant;
    assert!(slice.logs.iter().any(|log| log.instant == *base) && base < &pending, "{slice:?}");
}
