// SPDX-License-Identifier: Apache-2.0
//! The metadata table: its creation, one delta per instant of the data table, and undoing one.
//!
//! The metadata table is a merge-on-read Hudi table of its own under `.hoodie/metadata`, with HFiles as base files
//! and HFile blocks in its logs. A delta of instant `t` is invisible until `t` completes on the data timeline.

use std::collections::{BTreeMap, HashMap};

use hudi_core::file_group::log_file::log_block::{BlockMetadataKey, BlockType};
use hudi_core::file_group::log_file::writer::LogFileWriter;
use hudi_core::hfile::{HFileBuilder, HFileWriter};
use hudi_core::metadata::table::encode::{FilesMetadataEntry, encode_files_record, hoodie_metadata_schema_json};
use hudi_core::metadata::table::records::{FilesPartitionRecord, MetadataRecordType};
use tributary_types::InstantTime;

use crate::commit::{CommitMetadata, WriteStat};
use crate::config::table_checksum;
use crate::error::{Error, Result};
use crate::mdt_read::{ALL_PARTITIONS, Listing};
use crate::properties::format_property;
use crate::storage::{PutNew, Storage};
use crate::timeline::{Action, completed_path, inflight_path, requested_path};

/// The metadata table, relative to its data table.
pub const METADATA_DIR: &str = ".hoodie/metadata";
const TIMELINE: &str = ".hoodie/metadata/.hoodie/timeline";
pub(super) const FILES: &str = "files";
pub(super) const FILES_GROUP: &str = "files-0000-0";
/// Bytes of an HFile's block, as Java cuts them (`hoodie.hfile.block.size`).
const HFILE_BLOCK_BYTES: usize = 1 << 20;
/// The instant that initialises the `files` partition of a fresh table.
const INIT_INSTANT: &str = "00000000000000000";

/// A file that appears in, or disappears from, a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Partition path, empty for a table without partitions.
    pub partition: String,
    /// File name.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it disappears.
    pub deleted: bool,
}

/// Creates the metadata table of a fresh table. May be repeated after an interruption: every file but the last has a
/// fixed name and content.
pub(super) async fn create(storage: &Storage, table: &str, version: u32, completed: &InstantTime) -> Result<()> {
    let properties = table_properties(table, version);
    storage.put(&format!("{METADATA_DIR}/.hoodie/hoodie.properties"), properties.into_bytes()).await?;
    let instant: InstantTime = INIT_INSTANT.parse().map_err(|e| Error::corrupt(INIT_INSTANT, e))?;
    if super::find_completion(storage, TIMELINE, &instant).await?.is_some() {
        return Ok(());
    }
    let record = encode(FilesPartitionRecord::ALL_PARTITIONS_KEY, MetadataRecordType::AllPartitions, Vec::new())?;
    let records = vec![(FilesPartitionRecord::ALL_PARTITIONS_KEY.to_string(), record)];
    let hfile = hfile(&records)?;
    let path = format!("{FILES}/{FILES_GROUP}_0-0-0_{instant}.hfile");
    super::write_partition_metafile(storage, &format!("{METADATA_DIR}/{FILES}"), &instant).await?;
    let bytes = hfile.len();
    storage.put(&format!("{METADATA_DIR}/{path}"), hfile).await?;
    let part = Part { partition: FILES, group: FILES_GROUP.to_string(), records };
    complete_delta(storage, &instant, completed, vec![stat(&part, path, bytes)]).await
}

/// Records of one file group of the metadata table.
pub(super) struct Part {
    /// Partition of the metadata table.
    pub(super) partition: &'static str,
    /// The file group.
    pub(super) group: String,
    /// Keys, in the order of their bytes, with their encoded records.
    pub(super) records: Vec<(String, Vec<u8>)>,
}

/// Writes the delta of one instant of the data table, `files` alone. `changes` may be empty: every completed instant has a
/// delta.
///
/// A delta of the same instant that a lost answer left is replaced by equal content; its completion is kept.
pub async fn write_delta(
    storage: &Storage,
    instant: &InstantTime,
    completed: &InstantTime,
    changes: &[FileChange],
) -> Result<()> {
    write_parts(storage, instant, completed, files_part(changes)?.into_iter().collect()).await
}

/// What an instant changes in the `files` partition.
pub(super) fn files_part(changes: &[FileChange]) -> Result<Option<Part>> {
    if changes.is_empty() {
        return Ok(None);
    }
    Ok(Some(Part { partition: FILES, group: FILES_GROUP.to_string(), records: files_records(changes)? }))
}

/// Writes a delta: a log file for each part, then its place on the timeline.
pub(super) async fn write_parts(
    storage: &Storage,
    instant: &InstantTime,
    completed: &InstantTime,
    parts: Vec<Part>,
) -> Result<()> {
    let schema = schema()?.to_string();
    let mut written = Vec::with_capacity(parts.len());
    for part in parts {
        let header = HashMap::from([
            (BlockMetadataKey::InstantTime, instant.to_string()),
            (BlockMetadataKey::Schema, schema.clone()),
        ]);
        let block = LogFileWriter::write_log_block(BlockType::HfileData, header, &hfile(&part.records)?);
        let path = format!("{}/.{}_{instant}.log.1_0-0-0", part.partition, part.group);
        let bytes = block.len();
        storage.put(&format!("{METADATA_DIR}/{path}"), block).await?;
        written.push(stat(&part, path, bytes));
    }
    complete_delta(storage, instant, completed, written).await
}

/// Removes the delta of an instant that is rolled back: its log files first, then its place on the timeline, so that
/// an interruption leaves nothing that looks complete without its logs.
pub async fn undo_delta(storage: &Storage, instant: &InstantTime) -> Result<()> {
    let (_, partitions) = storage.list_level(METADATA_DIR).await?;
    let log = format!("_{instant}.log.");
    for partition in partitions.iter().filter(|path| !path.ends_with("/.hoodie")) {
        let (files, _) = storage.list_level(partition).await?;
        for file in files.iter().filter(|file| file.name().contains(&log)) {
            storage.delete(&file.path).await?;
        }
    }
    let (files, _) = storage.list_level(TIMELINE).await?;
    let completed = format!("{instant}_");
    for file in files.iter().filter(|file| file.name().starts_with(&completed)) {
        storage.delete(&file.path).await?;
    }
    storage.delete(&inflight_path(TIMELINE, instant, Action::DeltaCommit)).await?;
    storage.delete(&requested_path(TIMELINE, instant, Action::DeltaCommit)).await
}

async fn complete_delta(
    storage: &Storage,
    instant: &InstantTime,
    completed: &InstantTime,
    written: Vec<WriteStat>,
) -> Result<()> {
    if super::find_completion(storage, TIMELINE, instant).await?.is_some() {
        return Ok(());
    }
    let extra = BTreeMap::from([("schema".to_string(), schema()?.to_string())]);
    let mut metadata = CommitMetadata { operation: "UPSERT_PREPPED".to_string(), extra, ..CommitMetadata::default() };
    storage.put(&requested_path(TIMELINE, instant, Action::DeltaCommit), Vec::new()).await?;
    storage.put(&inflight_path(TIMELINE, instant, Action::DeltaCommit), metadata.encode()?).await?;
    metadata.stats = written;
    let path = completed_path(TIMELINE, instant, completed, Action::DeltaCommit);
    match storage.put_new(&path, metadata.encode()?).await? {
        PutNew::Created | PutNew::Exists => Ok(()),
    }
}

fn stat(part: &Part, path: String, bytes: usize) -> WriteStat {
    let records = part.records.len() as i64;
    WriteStat {
        partition: part.partition.to_string(),
        file_id: part.group.clone(),
        path,
        previous: None,
        previous_base: None,
        rows: records,
        inserts: 0,
        updates: records,
        deletes: 0,
        bytes: bytes as i64,
    }
}

/// One record per touched partition and one that lists the partitions; keys sorted as an HFile needs them.
fn files_records(changes: &[FileChange]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut by_partition: BTreeMap<&str, Vec<FilesMetadataEntry>> = BTreeMap::new();
    for change in changes {
        let key = partition_key(&change.partition);
        let size = if change.deleted { 0 } else { change.bytes as i64 };
        by_partition.entry(key).or_default().push(FilesMetadataEntry {
            name: change.name.clone(),
            size,
            is_deleted: change.deleted,
        });
    }
    let partitions =
        by_partition.keys().map(|key| FilesMetadataEntry { name: (*key).to_string(), size: 0, is_deleted: false });
    let all = FilesPartitionRecord::ALL_PARTITIONS_KEY;
    let mut records = vec![(all.to_string(), encode(all, MetadataRecordType::AllPartitions, partitions.collect())?)];
    for (key, entries) in by_partition {
        records.push((key.to_string(), encode(key, MetadataRecordType::Files, entries)?));
    }
    records.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
    Ok(records)
}

/// The records of the `files` partition after a compaction: one per partition that has files, and one that lists the
/// partitions.
pub(super) fn compacted_files(mut listing: Listing) -> Result<Vec<(String, Vec<u8>)>> {
    let partitions: Vec<String> = match listing.remove(ALL_PARTITIONS) {
        Some(partitions) => partitions.into_keys().collect(),
        None => listing.keys().cloned().collect(),
    };
    let entry = |name: String, bytes: u64| FilesMetadataEntry { name, size: bytes as i64, is_deleted: false };
    let all = partitions.iter().map(|partition| entry(partition_key(partition).to_string(), 0)).collect();
    let mut records =
        vec![(ALL_PARTITIONS.to_string(), encode(ALL_PARTITIONS, MetadataRecordType::AllPartitions, all)?)];
    for (partition, files) in listing.into_iter().filter(|(_, files)| !files.is_empty()) {
        let key = partition_key(&partition);
        let files = files.into_iter().map(|(name, bytes)| entry(name, bytes)).collect();
        records.push((key.to_string(), encode(key, MetadataRecordType::Files, files)?));
    }
    records.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
    Ok(records)
}

/// The base file of a compaction; `records` are in the order of their keys' bytes.
pub(super) fn base_hfile(records: &[(String, Vec<u8>)]) -> Result<Vec<u8>> {
    let failed = |e: &dyn std::fmt::Display| Error::corrupt("metadata HFile", e);
    let mut info = BTreeMap::from([("schema".to_string(), schema()?.as_bytes().to_vec())]);
    for (name, record) in [("minRecordKey", records.first()), ("maxRecordKey", records.last())] {
        info.extend(record.map(|(key, _)| (name.to_string(), key.as_bytes().to_vec())));
    }
    let mut builder = HFileBuilder::new(HFILE_BLOCK_BYTES);
    for (key, value) in records {
        builder.append(key.as_bytes(), value).map_err(|e| failed(&e))?;
    }
    builder.finish(info).map_err(|e| failed(&e))
}

fn partition_key(partition: &str) -> &str {
    if partition.is_empty() { FilesPartitionRecord::NON_PARTITIONED_NAME } else { partition }
}

fn encode(key: &str, kind: MetadataRecordType, entries: Vec<FilesMetadataEntry>) -> Result<Vec<u8>> {
    encode_files_record(key, kind, entries).map_err(|e| Error::corrupt("metadata record", e))
}

fn hfile(records: &[(String, Vec<u8>)]) -> Result<Vec<u8>> {
    let info = BTreeMap::from([("schema".to_string(), schema()?.as_bytes().to_vec())]);
    HFileWriter::write(records, info).map_err(|e| Error::corrupt("metadata HFile", e))
}

pub(super) fn schema() -> Result<&'static str> {
    hoodie_metadata_schema_json().map_err(|e| Error::corrupt("metadata schema", e))
}

fn table_properties(table: &str, version: u32) -> String {
    let name = format!("{table}_metadata");
    let version = version.to_string();
    let checksum = table_checksum("", &name).to_string();
    let lines = [
        ("hoodie.table.name", name.as_str()),
        ("hoodie.table.type", "MERGE_ON_READ"),
        ("hoodie.table.version", &version),
        ("hoodie.table.initial.version", &version),
        ("hoodie.timeline.layout.version", "2"),
        ("hoodie.timeline.path", "timeline"),
        ("hoodie.timeline.history.path", "history"),
        ("hoodie.archivelog.folder", "history"),
        ("hoodie.table.base.file.format", "HFILE"),
        ("hoodie.table.recordkey.fields", "key"),
        ("hoodie.populate.meta.fields", "false"),
        ("hoodie.datasource.write.drop.partition.columns", "false"),
        ("hoodie.table.keygenerator.type", "HOODIE_TABLE_METADATA"),
        ("hoodie.compaction.payload.class", "org.apache.hudi.metadata.HoodieMetadataPayload"),
        ("hoodie.record.merge.mode", "CUSTOM"),
        ("hoodie.record.merge.strategy.id", "00000000-0000-0000-0000-000000000000"),
        ("hoodie.table.checksum", &checksum),
    ];
    lines.iter().map(|(key, value)| format!("{}\n", format_property(key, value))).collect()
}
