// SPDX-License-Identifier: Apache-2.0
//! What a clean leaves on the timeline: its plan and its outcome, in the schemas of Hudi's Java classes
//! `HoodieCleanerPlan` and `HoodieCleanMetadata`, whose order of fields and of unions readers rely on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::avro_file::{read_record, write_record};
use crate::error::Result;

/// The only policy there is here: enough file versions for the last commits.
pub(super) const POLICY: &str = "KEEP_LATEST_COMMITS";
/// Version of both records since files are named apart from their partition.
pub(super) const RECORD_VERSION: i32 = 2;

const PLAN_SCHEMA: &str = r#"{"type":"record","name":"HoodieCleanerPlan","namespace":"org.apache.hudi.avro.model","fields":[
{"name":"earliestInstantToRetain","type":["null",{"type":"record","name":"HoodieActionInstant","fields":[
 {"name":"timestamp","type":{"type":"string","avro.java.string":"String"}},
 {"name":"action","type":{"type":"string","avro.java.string":"String"}},
 {"name":"state","type":{"type":"string","avro.java.string":"String"}}]}],"default":null},
{"name":"lastCompletedCommitTimestamp","type":{"type":"string","avro.java.string":"String"},"default":""},
{"name":"policy","type":{"type":"string","avro.java.string":"String"}},
{"name":"filesToBeDeletedPerPartition","type":["null",{"type":"map","values":{"type":"array",
 "items":{"type":"string","avro.java.string":"String"}},"avro.java.string":"String"}],"default":null},
{"name":"version","type":["int","null"],"default":1},
{"name":"filePathsToBeDeletedPerPartition","type":["null",{"type":"map","values":{"type":"array",
 "items":{"type":"record","name":"HoodieCleanFileInfo","fields":[
  {"name":"filePath","type":["null",{"type":"string","avro.java.string":"String"}],"default":null},
  {"name":"isBootstrapBaseFile","type":["null","boolean"],"default":null}]}},"avro.java.string":"String"}],"default":null},
{"name":"partitionsToBeDeleted","type":["null",{"type":"array",
 "items":{"type":"string","avro.java.string":"String"}}],"default":null},
{"name":"extraMetadata","type":["null",{"type":"map","values":{"type":"string","avro.java.string":"String"},
 "avro.java.string":"String"}],"default":null}]}"#;

const METADATA_SCHEMA: &str = r#"{"type":"record","name":"HoodieCleanMetadata","namespace":"org.apache.hudi.avro.model","fields":[
{"name":"startCleanTime","type":{"type":"string","avro.java.string":"String"}},
{"name":"timeTakenInMillis","type":"long"},
{"name":"totalFilesDeleted","type":"int"},
{"name":"earliestCommitToRetain","type":{"type":"string","avro.java.string":"String"}},
{"name":"lastCompletedCommitTimestamp","type":{"type":"string","avro.java.string":"String"},"default":""},
{"name":"partitionMetadata","type":{"type":"map","values":{"type":"record","name":"HoodieCleanPartitionMetadata","fields":[
 {"name":"partitionPath","type":{"type":"string","avro.java.string":"String"}},
 {"name":"policy","type":{"type":"string","avro.java.string":"String"}},
 {"name":"deletePathPatterns","type":{"type":"array","items":{"type":"string","avro.java.string":"String"}}},
 {"name":"successDeleteFiles","type":{"type":"array","items":{"type":"string","avro.java.string":"String"}}},
 {"name":"failedDeleteFiles","type":{"type":"array","items":{"type":"string","avro.java.string":"String"}}},
 {"name":"isPartitionDeleted","type":["null","boolean"],"default":null}]},"avro.java.string":"String"}},
{"name":"version","type":["int","null"],"default":1},
{"name":"bootstrapPartitionMetadata","type":["null",{"type":"map","values":"HoodieCleanPartitionMetadata",
 "avro.java.string":"String"}],"default":null},
{"name":"extraMetadata","type":["null",{"type":"map","values":{"type":"string","avro.java.string":"String"},
 "avro.java.string":"String"}],"default":null}]}"#;

/// `HoodieCleanerPlan`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PlanRecord {
    pub(super) earliest_instant_to_retain: Option<ActionInstant>,
    pub(super) last_completed_commit_timestamp: String,
    pub(super) policy: String,
    pub(super) files_to_be_deleted_per_partition: Option<BTreeMap<String, Vec<String>>>,
    pub(super) version: Option<i32>,
    pub(super) file_paths_to_be_deleted_per_partition: Option<BTreeMap<String, Vec<FileRecord>>>,
    pub(super) partitions_to_be_deleted: Option<Vec<String>>,
    pub(super) extra_metadata: Option<BTreeMap<String, String>>,
}

/// `HoodieActionInstant`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ActionInstant {
    pub(super) timestamp: String,
    pub(super) action: String,
    pub(super) state: String,
}

/// `HoodieCleanFileInfo`; the path is absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileRecord {
    pub(super) file_path: Option<String>,
    pub(super) is_bootstrap_base_file: Option<bool>,
}

/// `HoodieCleanMetadata`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct MetadataRecord {
    pub(super) start_clean_time: String,
    pub(super) time_taken_in_millis: i64,
    pub(super) total_files_deleted: i32,
    pub(super) earliest_commit_to_retain: String,
    pub(super) last_completed_commit_timestamp: String,
    pub(super) partition_metadata: BTreeMap<String, PartitionRecord>,
    pub(super) version: Option<i32>,
    pub(super) bootstrap_partition_metadata: Option<BTreeMap<String, PartitionRecord>>,
    pub(super) extra_metadata: Option<BTreeMap<String, String>>,
}

/// `HoodieCleanPartitionMetadata`; files are bare names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PartitionRecord {
    pub(super) partition_path: String,
    pub(super) policy: String,
    pub(super) delete_path_patterns: Vec<String>,
    pub(super) success_delete_files: Vec<String>,
    pub(super) failed_delete_files: Vec<String>,
    pub(super) is_partition_deleted: Option<bool>,
}

impl PlanRecord {
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        write_record("clean plan", self, PLAN_SCHEMA)
    }

    pub(super) fn decode(file: &str, bytes: &[u8]) -> Result<Self> {
        read_record(file, bytes)
    }

    /// Names of the files to delete, by partition.
    pub(super) fn names(&self) -> BTreeMap<String, Vec<String>> {
        let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (partition, files) in self.file_paths_to_be_deleted_per_partition.iter().flatten() {
            // The table may have been moved or mounted elsewhere since: partition and name stay.
            let paths = files.iter().filter_map(|file| file.file_path.as_deref());
            let found = paths.map(|path| path.rsplit('/').next().unwrap_or(path).to_string());
            names.entry(partition.clone()).or_default().extend(found);
        }
        names
    }
}

impl MetadataRecord {
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        write_record("clean metadata", self, METADATA_SCHEMA)
    }

    pub(super) fn decode(file: &str, bytes: &[u8]) -> Result<Self> {
        read_record(file, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_reads_back() {
        let file =
            FileRecord { file_path: Some("/t/p/f_0_1.parquet".to_string()), is_bootstrap_base_file: Some(false) };
        let plan = PlanRecord {
            earliest_instant_to_retain: Some(ActionInstant {
                timestamp: "20250101000000001".to_string(),
                action: "commit".to_string(),
                state: "COMPLETED".to_string(),
            }),
            last_completed_commit_timestamp: "20250101000000002".to_string(),
            policy: POLICY.to_string(),
            files_to_be_deleted_per_partition: Some(BTreeMap::new()),
            version: Some(RECORD_VERSION),
            file_paths_to_be_deleted_per_partition: Some(BTreeMap::from([("p".to_string(), vec![file])])),
            partitions_to_be_deleted: Some(Vec::new()),
            extra_metadata: Some(BTreeMap::from([("k".to_string(), "v".to_string())])),
        };
        let read = PlanRecord::decode("f", &plan.encode().unwrap()).unwrap();
        assert_eq!(read, plan);
        assert_eq!(read.names(), BTreeMap::from([("p".to_string(), vec!["f_0_1.parquet".to_string()])]));
    }

    #[test]
    fn metadata_reads_back() {
        let partition = PartitionRecord {
            policy: POLICY.to_string(),
            delete_path_patterns: vec!["f".to_string()],
            success_delete_files: vec!["f".to_string()],
            is_partition_deleted: Some(false),
            ..PartitionRecord::default()
        };
        let metadata = MetadataRecord {
            start_clean_time: "20250101000000001".to_string(),
            total_files_deleted: 1,
            partition_metadata: BTreeMap::from([(String::new(), partition)]),
            version: Some(RECORD_VERSION),
            bootstrap_partition_metadata: Some(BTreeMap::new()),
            extra_metadata: Some(BTreeMap::new()),
            ..MetadataRecord::default()
        };
        assert_eq!(MetadataRecord::decode("f", &metadata.encode().unwrap()).unwrap(), metadata);
    }
}
