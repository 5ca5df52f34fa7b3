// SPDX-License-Identifier: Apache-2.0
//! What a completed write says of itself: files, replaced groups, operation and extra metadata.
//!
//! Table versions 8 and 9 store it as an Avro file, version 6 as JSON; an Avro file starts with `Obj\u{1}`.

use std::collections::{BTreeMap, HashMap};

use hudi_core::metadata::commit::{HoodieCommitMetadata, HoodieWriteStat};
use hudi_core::metadata::replace_commit::HoodieReplaceCommitMetadata;

use crate::error::{Error, Result};
use crate::log_file::LogFile;

const AVRO_MAGIC: &[u8] = b"Obj\x01";
/// What Java writes as the previous commit of a file group that had none.
pub const NO_PREVIOUS_COMMIT: &str = "null";

/// Operations whose commit is a replacecommit, which Java reads as a record of its own, even if it replaced nothing.
const REPLACING: [&str; 3] = ["INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE", "DELETE_PARTITION"];

/// Metadata of a completed write.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CommitMetadata {
    /// `WriteOperationType`, such as `UPSERT`, `CLUSTER`, `COMPACT`; empty where absent.
    pub operation: String,
    /// Whether it is a completed compaction.
    pub compacted: bool,
    /// Files written, in no order.
    pub stats: Vec<WriteStat>,
    /// Replaced file groups, by partition.
    pub replaced: BTreeMap<String, Vec<String>>,
    /// Extra metadata: schema, cursors and whatever else a writer keeps there.
    pub extra: BTreeMap<String, String>,
}

/// One written file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteStat {
    /// Partition path.
    pub partition: String,
    /// File group.
    pub file_id: String,
    /// Path relative to the table.
    pub path: String,
    /// Instant of the slice it replaces; `None` for a new group.
    pub previous: Option<String>,
    /// Base file that it replaces, or that it is a log of, where known.
    pub previous_base: Option<String>,
    /// Rows in the file.
    pub rows: i64,
    /// New rows among them.
    pub inserts: i64,
    /// Replaced rows among them.
    pub updates: i64,
    /// Rows removed.
    pub deletes: i64,
    /// Size in bytes.
    pub bytes: i64,
}

impl CommitMetadata {
    /// Reads the content of a completed commit, deltacommit or replacecommit; `file` is for messages.
    pub fn decode(file: &str, bytes: &[u8]) -> Result<Self> {
        let raw = if bytes.starts_with(AVRO_MAGIC) {
            HoodieCommitMetadata::from_avro_bytes(bytes)
        } else if bytes.is_empty() {
            return Err(Error::corrupt(file, "it is empty: the write was cut off, or the file was damaged"));
        } else {
            HoodieCommitMetadata::from_json_bytes(bytes)
        };
        let raw = raw.map_err(|e| Error::corrupt(file, e))?;
        // Every field is optional to the decoder; a commit that says nothing of its files is none.
        if raw.partition_to_write_stats.is_none() {
            return Err(Error::corrupt(file, "it says nothing of the files that were written"));
        }
        Ok(Self::from_raw(raw))
    }

    /// The content of a completed commit of table version 8 or 9.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut by_partition: HashMap<String, Vec<HoodieWriteStat>> = HashMap::new();
        for stat in &self.stats {
            by_partition.entry(stat.partition.clone()).or_default().push(stat.to_raw());
        }
        let extra = Some(self.extra.clone().into_iter().collect());
        let replaces = !self.replaced.is_empty() || REPLACING.contains(&self.operation.as_str());
        let encoded = if !replaces {
            let raw = HoodieCommitMetadata {
                partition_to_write_stats: Some(by_partition),
                compacted: Some(self.compacted),
                extra_metadata: extra,
                version: Some(1),
                operation_type: Some(self.operation.clone()),
                partition_to_replace_file_ids: None,
            };
            raw.to_avro_bytes()
        } else {
            let raw = HoodieReplaceCommitMetadata {
                partition_to_write_stats: Some(by_partition),
                compacted: Some(self.compacted),
                extra_metadata: extra,
                version: Some(1),
                operation_type: Some(self.operation.clone()),
                partition_to_replace_file_ids: Some(self.replaced.clone().into_iter().collect()),
            };
            raw.to_avro_bytes()
        };
        encoded.map_err(|e| Error::corrupt("commit metadata", e))
    }

    /// Whether the write is a table service: rows move between files, none changes.
    pub fn is_table_service(&self) -> bool {
        self.compacted || matches!(self.operation.as_str(), "CLUSTER" | "COMPACT" | "LOG_COMPACT")
    }

    /// Whether it changed any row: table services and writes without statistics did not.
    pub fn changes_rows(&self) -> bool {
        !self.is_table_service() && (!self.stats.is_empty() || !self.replaced.is_empty())
    }

    /// The Avro schema of the table as of this write, if it says so.
    pub fn schema(&self) -> Option<&str> {
        self.extra.get("schema").map(String::as_str).filter(|text| !text.is_empty())
    }

    pub(crate) fn from_raw(raw: HoodieCommitMetadata) -> Self {
        let mut stats = Vec::new();
        for (partition, entries) in raw.partition_to_write_stats.unwrap_or_default() {
            stats.extend(entries.into_iter().map(|stat| WriteStat::from_raw(&partition, stat)));
        }
        CommitMetadata {
            operation: raw.operation_type.unwrap_or_default(),
            compacted: raw.compacted.unwrap_or_default(),
            stats,
            replaced: raw.partition_to_replace_file_ids.unwrap_or_default().into_iter().collect(),
            extra: raw.extra_metadata.unwrap_or_default().into_iter().collect(),
        }
    }
}

impl WriteStat {
    fn from_raw(partition: &str, raw: HoodieWriteStat) -> Self {
        WriteStat {
            partition: raw.partition_path.unwrap_or_else(|| partition.to_string()),
            file_id: raw.file_id.unwrap_or_default(),
            path: raw.path.unwrap_or_default(),
            previous: raw.prev_commit.filter(|text| text != NO_PREVIOUS_COMMIT && !text.is_empty()),
            previous_base: raw.prev_base_file.or(raw.base_file).filter(|text| !text.is_empty()),
            rows: raw.num_writes.unwrap_or_default(),
            inserts: raw.num_inserts.unwrap_or_default(),
            updates: raw.num_update_writes.unwrap_or_default(),
            deletes: raw.num_deletes.unwrap_or_default(),
            bytes: raw.file_size_in_bytes.unwrap_or_default(),
        }
    }

    fn to_raw(&self) -> HoodieWriteStat {
        let whole = self.to_raw_of_any();
        let Some(log) = LogFile::from_path(&self.path, 0) else { return whole };
        // `HoodieDeltaWriteStat`: since version 8 each write makes a file of its own, so it begins at its start.
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        HoodieWriteStat {
            prev_base_file: None,
            base_file: Some(self.previous_base.clone().unwrap_or_default()),
            log_files: Some(vec![name.to_string()]),
            log_version: Some(i32::try_from(log.version).unwrap_or(i32::MAX)),
            log_offset: Some(0),
            ..whole
        }
    }

    fn to_raw_of_any(&self) -> HoodieWriteStat {
        HoodieWriteStat {
            file_id: Some(self.file_id.clone()),
            path: Some(self.path.clone()),
            prev_commit: Some(self.previous.clone().unwrap_or_else(|| NO_PREVIOUS_COMMIT.to_string())),
            prev_base_file: self.previous_base.clone(),
            partition_path: Some(self.partition.clone()),
            num_writes: Some(self.rows),
            num_inserts: Some(self.inserts),
            num_update_writes: Some(self.updates),
            num_deletes: Some(self.deletes),
            total_write_bytes: Some(self.bytes),
            file_size_in_bytes: Some(self.bytes),
            total_write_errors: Some(0),
            total_log_records: Some(0),
            total_updated_records_compacted: Some(0),
            total_log_blocks: Some(0),
            total_corrupt_log_block: Some(0),
            total_rollback_blocks: Some(0),
            ..HoodieWriteStat::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat() -> WriteStat {
        WriteStat {
            partition: "d=1".to_string(),
            file_id: "f-0".to_string(),
            path: "d=1/f-0_0-0-0_20250101000000001.parquet".to_string(),
            previous: None,
            previous_base: None,
            rows: 3,
            inserts: 2,
            updates: 1,
            deletes: 0,
            bytes: 100,
        }
    }

    #[test]
    fn commit_metadata_reads_back_from_avro() {
        let metadata = CommitMetadata {
            operation: "UPSERT".to_string(),
            stats: vec![stat()],
            extra: BTreeMap::from([("schema".to_string(), "{}".to_string())]),
            ..CommitMetadata::default()
        };
        let bytes = metadata.encode().unwrap();
        assert!(bytes.starts_with(AVRO_MAGIC));
        assert_eq!(CommitMetadata::decode("f", &bytes).unwrap(), metadata);
    }

    #[test]
    fn replaced_groups_read_back_from_avro() {
        let metadata = CommitMetadata {
            operation: "INSERT_OVERWRITE".to_string(),
            stats: vec![stat()],
            replaced: BTreeMap::from([("d=1".to_string(), vec!["g-0".to_string(), "h-0".to_string()])]),
            extra: BTreeMap::from([("schema".to_string(), "{}".to_string())]),
            ..CommitMetadata::default()
        };
        assert_eq!(CommitMetadata::decode("f", &metadata.encode().unwrap()).unwrap(), metadata);
    }

    #[test]
    fn a_log_file_is_described_as_a_delta_and_reads_back() {
        let name = ".f-0_20250101000000005.log.1_0-0-0";
        let log = WriteStat {
            path: format!("d=1/{name}"),
            previous: Some("20250101000000001".to_string()),
            previous_base: Some("f-0_0-0-0_20250101000000001.parquet".to_string()),
            inserts: 0,
            ..stat()
        };
        let raw = log.to_raw();
        assert_eq!((raw.log_version, raw.log_offset), (Some(1), Some(0)));
        assert_eq!(raw.log_files.as_deref(), Some([name.to_string()].as_slice()));
        assert_eq!((&raw.base_file, &raw.prev_base_file), (&log.previous_base, &None));
        let metadata = CommitMetadata { stats: vec![log.clone(), stat()], ..CommitMetadata::default() };
        let bytes = metadata.encode().unwrap();
        assert_eq!(CommitMetadata::decode("f", &bytes).unwrap().stats, [log, stat()]);
        assert!(stat().to_raw().log_files.is_none());
    }

    #[test]
    fn garbage_is_corrupt_and_names_the_file() {
        let refused = CommitMetadata::decode("x.commit", b"{nope").unwrap_err().to_string();
        assert!(refused.contains("x.commit"), "{refused}");
        let refused = CommitMetadata::decode("x.commit", b"Obj\x01garbage").unwrap_err().to_string();
        assert!(refused.contains("x.commit"), "{refused}");
    }

    #[test]
    fn table_services_and_empty_writes_change_no_row() {
        let mut metadata = CommitMetadata { stats: vec![stat()], ..CommitMetadata::default() };
        assert!(metadata.changes_rows());
        metadata.operation = "CLUSTER".to_string();
        assert!(!metadata.changes_rows());
        assert!(!CommitMetadata::default().changes_rows());
    }
}
