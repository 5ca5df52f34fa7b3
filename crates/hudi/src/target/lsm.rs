// SPDX-License-Identifier: Apache-2.0
//! Writing the archived timeline of layout 2: parquet files `<min>_<max>_<level>.parquet`, listed by `manifest_<n>`,
//! of which `_version_` says the newest.
//!
//! A version is published in that order, under the table's lock, so a reader sees the old version or the new one.
//! Where the lock is a lease, which may lapse while a request is on its way, both files are written only over what was
//! read. A
//! file that is in none of the last manifests is nobody's and is removed. When a level has as many files as Java
//! merges at once, they become one of the next level.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int32Array, RecordBatch, StringArray};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};
use tributary_types::InstantTime;

use crate::error::{Error, Result};
use crate::history::current_version;
use crate::storage::{Entry, Storage, Version};
use crate::target::LockKind;

/// Files of one level that become one of the next (`hoodie.timeline.compaction.batch.size`).
const MERGED_AT_ONCE: usize = 10;
/// Versions whose files stay for readers that are under way.
const VERSIONS_KEPT: u64 = 3;
/// `HoodieLSMTimelineInstant.version`.
const ROW_VERSION: i32 = 1;
/// The Avro form of a row, which Java's Parquet reader looks for.
const ROW_SCHEMA: &str = r#"{"type":"record","name":"HoodieLSMTimelineInstant","namespace":"org.apache.hudi.avro.model","fields":[{"name":"instantTime","type":["null",{"type":"string","avro.java.string":"String"}],"default":null},{"name":"completionTime","type":["null",{"type":"string","avro.java.string":"String"}],"default":null},{"name":"action","type":["null",{"type":"string","avro.java.string":"String"}],"default":null},{"name":"metadata","type":["null","bytes"],"default":null},{"name":"plan","type":["null","bytes"],"default":null},{"name":"version","type":"int","default":1}]}"#;

/// An instant as the archive keeps it.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) requested: InstantTime,
    pub(super) completed: InstantTime,
    pub(super) action: &'static str,
    pub(super) metadata: Bytes,
    pub(super) plan: Option<Bytes>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) files: Vec<ManifestEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ManifestEntry {
    pub(super) file_name: String,
    pub(super) file_len: u64,
}

impl ManifestEntry {
    /// Earliest and latest instant, and level; `None` for a name of another form.
    pub(super) fn range(&self) -> Option<(&str, &str, u32)> {
        let mut parts = self.file_name.strip_suffix(".parquet")?.split('_');
        let range = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(range)
    }
}

/// The newest manifest and its version, 0 while nothing was archived.
pub(super) async fn read_manifest(storage: &Storage, directory: &str) -> Result<(u64, Manifest)> {
    let Some(version) = current_version(storage, directory).await? else { return Ok((0, Manifest::default())) };
    Ok((version, parse_manifest(storage, directory, version).await?))
}

async fn parse_manifest(storage: &Storage, directory: &str, version: u64) -> Result<Manifest> {
    let path = format!("{directory}/manifest_{version}");
    serde_json::from_slice(&storage.read(&path).await?).map_err(|e| Error::corrupt(path, e))
}

/// Adds instants, by requested time, as a file of the lowest level, and publishes the new version.
pub(super) async fn append(storage: &Storage, directory: &str, rows: &[Row]) -> Result<()> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
    let seen_version = Seen::read(storage, format!("{directory}/_version_")).await?;
    let (version, mut manifest) = read_manifest(storage, directory).await?;
    let seen_manifest = Seen::read(storage, format!("{directory}/manifest_{}", version + 1)).await?;
    let name = format!("{}_{}_0.parquet", first.requested, last.requested);
    let bytes = encode(&[batch_of(rows)?])?;
    let file_len = bytes.len() as u64;
    storage.put(&format!("{directory}/{name}"), bytes).await?;
    manifest.files.retain(|entry| entry.file_name != name);
    manifest.files.push(ManifestEntry { file_name: name, file_len });
    merge_full_level(storage, directory, &mut manifest).await?;
    let json = serde_json::to_vec(&manifest).map_err(|e| Error::corrupt(&seen_manifest.path, e))?;
    seen_manifest.replace(storage, json).await?;
    seen_version.replace(storage, (version + 1).to_string().into_bytes()).await?;
    sweep(storage, directory, version + 1).await
}

/// A file as it was before a new version was made.
struct Seen {
    path: String,
    version: Option<Version>,
}

impl Seen {
    async fn read(storage: &Storage, path: String) -> Result<Self> {
        let found = storage.get_versioned(&path).await?;
        Ok(Seen { path, version: found.map(|(_, version)| version) })
    }

    async fn replace(self, storage: &Storage, bytes: Vec<u8>) -> Result<()> {
        if !matches!(storage.lock_kind(), LockKind::Lease) {
            return storage.put(&self.path, bytes).await;
        }
        match storage.put_over(&self.path, bytes, self.version).await? {
            Some(_) => Ok(()),
            None => Err(Error::Conflict { what: format!("another writer replaced `{}` meanwhile", self.path) }),
        }
    }
}

/// Removes manifests that are too old, and files that no kept manifest lists.
async fn sweep(storage: &Storage, directory: &str, version: u64) -> Result<()> {
    let oldest = (version + 1).saturating_sub(VERSIONS_KEPT).max(1);
    let (listed, _) = storage.list_level(directory).await?;
    let number = |entry: &Entry| entry.name().strip_prefix("manifest_").and_then(|text| text.parse::<u64>().ok());
    let mut named = BTreeSet::new();
    for kept in listed.iter().filter_map(number).filter(|number| *number >= oldest) {
        named.extend(parse_manifest(storage, directory, kept).await?.files.into_iter().map(|entry| entry.file_name));
    }
    for entry in &listed {
        let old_manifest = number(entry).is_some_and(|number| number < oldest);
        let unlisted = entry.name().ends_with(".parquet") && !named.contains(entry.name());
        if old_manifest || unlisted {
            storage.delete(&entry.path).await?;
        }
    }
    Ok(())
}

/// The files of the first level that is full, oldest first.
fn full_level(manifest: &Manifest) -> Option<(u32, Vec<ManifestEntry>)> {
    let levels: BTreeSet<u32> = manifest.files.iter().filter_map(|entry| Some(entry.range()?.2)).collect();
    levels.into_iter().find_map(|level| {
        let of_level = |entry: &&ManifestEntry| entry.range().is_some_and(|(.., found)| found == level);
        let mut files: Vec<ManifestEntry> = manifest.files.iter().filter(of_level).cloned().collect();
        files.sort_by(|a, b| a.file_name.cmp(&b.file_name));
        files.truncate(MERGED_AT_ONCE);
        (files.len() == MERGED_AT_ONCE).then_some((level, files))
    })
}

async fn merge_full_level(storage: &Storage, directory: &str, manifest: &mut Manifest) -> Result<()> {
    let Some((level, merged)) = full_level(manifest) else { return Ok(()) };
    let mut batches = Vec::new();
    for entry in &merged {
        let path = format!("{directory}/{}", entry.file_name);
        batches.extend(decode(&path, storage.read(&path).await?)?);
    }
    let ranges = || merged.iter().filter_map(ManifestEntry::range);
    let (Some(min), Some(max)) = (ranges().map(|(min, ..)| min).min(), ranges().map(|(_, max, _)| max).max()) else {
        return Ok(());
    };
    let name = format!("{min}_{max}_{}.parquet", level + 1);
    let bytes = encode(&batches)?;
    let file_len = bytes.len() as u64;
    storage.put(&format!("{directory}/{name}"), bytes).await?;
    manifest.files.retain(|entry| !merged.contains(entry) && entry.file_name != name);
    manifest.files.push(ManifestEntry { file_name: name, file_len });
    Ok(())
}

fn row_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("instantTime", DataType::Utf8, true),
        Field::new("completionTime", DataType::Utf8, true),
        Field::new("action", DataType::Utf8, true),
        Field::new("metadata", DataType::Binary, true),
        Field::new("plan", DataType::Binary, true),
        Field::new("version", DataType::Int32, false),
    ]))
}

fn batch_of(rows: &[Row]) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| Some(row.requested.as_str())).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| Some(row.completed.as_str())).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| Some(row.action)).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| Some(row.metadata.as_ref())).collect::<BinaryArray>()),
        Arc::new(rows.iter().map(|row| row.plan.as_deref()).collect::<BinaryArray>()),
        Arc::new(Int32Array::from(vec![ROW_VERSION; rows.len()])),
    ];
    RecordBatch::try_new(row_schema(), columns).map_err(|e| Error::corrupt("archived instants", e))
}

fn encode(batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let failed = |e: &dyn std::fmt::Display| Error::corrupt("archived instants", e);
    let rows = concat_batches(&row_schema(), batches).map_err(|e| failed(&e))?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(concat!("tributary ", env!("CARGO_PKG_VERSION")).to_string())
        .set_key_value_metadata(Some(vec![KeyValue::new("parquet.avro.schema".to_string(), ROW_SCHEMA.to_string())]))
        .build();
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(Vec::new(), row_schema(), options).map_err(|e| failed(&e))?;
    writer.write(&rows).map_err(|e| failed(&e))?;
    writer.into_inner().map_err(|e| failed(&e))
}

/// The rows of a file, whoever wrote it, in our types.
fn decode(path: &str, bytes: Bytes) -> Result<Vec<RecordBatch>> {
    let corrupt = |e: &dyn std::fmt::Display| Error::corrupt(path, e);
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).and_then(|builder| builder.build());
    let mut batches = Vec::new();
    for batch in reader.map_err(|e| corrupt(&e))? {
        let batch = batch.map_err(|e| corrupt(&e))?;
        let mut columns = Vec::new();
        for field in row_schema().fields() {
            let column = batch.column_by_name(field.name());
            let column = column.ok_or_else(|| Error::corrupt(path, format!("no column `{}`", field.name())))?;
            columns.push(cast(column, field.data_type()).map_err(|e| corrupt(&e))?);
        }
        batches.push(RecordBatch::try_new(row_schema(), columns).map_err(|e| corrupt(&e))?);
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::path::Path;

    use super::*;

    fn storage() -> Storage {
        let lock = LockKind::Process(Arc::new(tokio::sync::Mutex::new(())));
        Storage::new(Arc::new(InMemory::new()), Path::from("t"), "memory://t", lock)
    }

    fn row(number: u32) -> Row {
        let requested: InstantTime = format!("2025010100{:02}{:02}000", number / 60, number % 60).parse().unwrap();
        Row {
            completed: requested.successor(),
            requested,
            action: if number.is_multiple_of(2) { "commit" } else { "clean" },
            metadata: Bytes::from(format!("metadata {number}")),
            plan: (!number.is_multiple_of(2)).then(|| Bytes::from(format!("plan {number}"))),
        }
    }

    async fn rows_in(storage: &Storage) -> usize {
        let (_, manifest) = read_manifest(storage, "h").await.unwrap();
        let mut rows = 0;
        for entry in manifest.files {
            let bytes = storage.read(&format!("h/{}", entry.file_name)).await.unwrap();
            assert_eq!(bytes.len() as u64, entry.file_len);
            rows += decode("f", bytes).unwrap().iter().map(RecordBatch::num_rows).sum::<usize>();
        }
        rows
    }

    #[tokio::test]
    async fn a_full_level_becomes_one_file_of_the_next_and_no_row_is_lost() {
        let storage = storage();
        for number in 0..120 {
            append(&storage, "h", &[row(number * 2), row(number * 2 + 1)]).await.unwrap();
            assert_eq!(rows_in(&storage).await, (number as usize + 1) * 2);
        }
        let (version, manifest) = read_manifest(&storage, "h").await.unwrap();
        assert_eq!(version, 120);
        assert!(manifest.files.len() < 20, "{} files", manifest.files.len());
        assert!(manifest.files.iter().any(|entry| entry.range().is_some_and(|(.., level)| level == 2)));
        let (listed, _) = storage.list_level("h").await.unwrap();
        // Three manifests, the version, the files of the last three versions.
        assert!(listed.len() <= 3 + 1 + manifest.files.len() + 2 * MERGED_AT_ONCE, "{} files stay", listed.len());
    }

    #[tokio::test]
    async fn what_an_interrupted_archiver_left_is_swept() {
        let storage = storage();
        storage.put("h/20250101000000000_20250101000000009_0.parquet", vec![1]).await.unwrap();
        append(&storage, "h", &[row(1)]).await.unwrap();
        let (listed, _) = storage.list_level("h").await.unwrap();
        let names: BTreeSet<&str> = listed.iter().map(Entry::name).collect();
        let written = "20250101000001000_20250101000001000_0.parquet";
        assert_eq!(names, BTreeSet::from(["_version_", "manifest_1", written]));
    }
}
