// SPDX-License-Identifier: Apache-2.0
//! The archived timeline as a whole. On layout 2 it is parquet files listed by a versioned manifest; log files of
//! layout 1 are read in `archive_v1`.
//!
//! Only times and actions are read here; the archived metadata itself stays where it is.

use std::collections::BTreeSet;

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::Deserialize;
use tributary_types::InstantTime;

use crate::archive_v1;
use crate::commit::CommitMetadata;
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::timeline::Action;

/// How often a version that is replaced while it is read is looked up again.
const ATTEMPTS: usize = 3;

/// An instant that left the active timeline.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArchivedInstant {
    /// Requested time.
    pub requested: InstantTime,
    /// Completion time, where the archive knows it.
    pub completed: Option<InstantTime>,
    /// What it did.
    pub action: Action,
}

#[derive(Deserialize)]
struct Manifest {
    files: Vec<ManifestEntry>,
}

#[derive(Deserialize)]
struct ManifestEntry {
    #[serde(rename = "fileName")]
    name: String,
}

/// Every archived instant, by requested time. Empty for a table that archived nothing yet.
///
/// A manifest or a file may be replaced between the reads of one pass, by an archiver that runs now; then the newer
/// version is read.
pub async fn load_history(storage: &Storage, config: &TableConfig) -> Result<Vec<ArchivedInstant>> {
    if config.layout == 1 {
        return load_logs(storage, config).await;
    }
    let directory = config.history_dir();
    for _attempt in 0..ATTEMPTS {
        let Some(version) = current_version(storage, &directory).await? else {
            return Ok(Vec::new());
        };
        if let Some(found) = load_version(storage, &directory, version).await? {
            return Ok(found);
        }
    }
    Err(changed(&directory))
}

/// Metadata of archived writes whose extra metadata has `key`, newest completion first.
///
/// Reads the whole archive, metadata included: for the rare case that a fact is not on the active timeline any more.
pub async fn find_archived_metadata(
    storage: &Storage,
    config: &TableConfig,
    key: &str,
) -> Result<Vec<(ArchivedInstant, CommitMetadata)>> {
    let directory = config.history_dir();
    if config.layout == 1 {
        return Err(Error::unsupported("metadata is looked for in the archive of table versions 8 and 9 only"));
    }
    for _attempt in 0..ATTEMPTS {
        let Some(version) = current_version(storage, &directory).await? else { return Ok(Vec::new()) };
        if let Some(mut found) = find_in_version(storage, &directory, version, key).await? {
            found.sort_by(|(a, _), (b, _)| b.completed.cmp(&a.completed));
            return Ok(found);
        }
    }
    Err(changed(&directory))
}

/// `None` when an archiver replaced this version meanwhile: a fact that is not found must not count as absent then.
async fn find_in_version(
    storage: &Storage,
    directory: &str,
    version: u64,
    key: &str,
) -> Result<Option<Vec<(ArchivedInstant, CommitMetadata)>>> {
    let Some(files) = manifest_files(storage, directory, version).await? else { return Ok(None) };
    let mut found = Vec::new();
    for file in files {
        let Some(bytes) = storage.get(&file).await? else { return Ok(None) };
        found.extend(read_metadata(&file, bytes, key)?);
    }
    Ok(Some(found))
}

fn changed(directory: &str) -> Error {
    Error::Conflict { what: format!("the archive in `{directory}` changed {ATTEMPTS} times while it was read") }
}

pub(crate) async fn current_version(storage: &Storage, directory: &str) -> Result<Option<u64>> {
    let file = format!("{directory}/_version_");
    let Some(bytes) = storage.get(&file).await? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    text.trim().parse().map(Some).map_err(|_| Error::corrupt(&file, format!("`{}` is no number", text.trim())))
}

pub(crate) async fn manifest_files(storage: &Storage, directory: &str, version: u64) -> Result<Option<Vec<String>>> {
    let manifest_file = format!("{directory}/manifest_{version}");
    let Some(bytes) = storage.get(&manifest_file).await? else {
        return Ok(None);
    };
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|e| Error::corrupt(&manifest_file, e))?;
    Ok(Some(manifest.files.into_iter().map(|entry| format!("{directory}/{}", entry.name)).collect()))
}

async fn load_logs(storage: &Storage, config: &TableConfig) -> Result<Vec<ArchivedInstant>> {
    for _attempt in 0..3 {
        match read_logs(storage, config).await {
            // Merged with others since it was listed.
            Err(Error::Gone { .. }) => {}
            other => return other,
        }
    }
    Err(Error::Conflict {
        what: format!("the archive in `{}` changed three times while it was read", config.history_dir()),
    })
}

async fn read_logs(storage: &Storage, config: &TableConfig) -> Result<Vec<ArchivedInstant>> {
    let mut found = BTreeSet::new();
    for file in archive_v1::list_files(storage, config).await? {
        found.extend(archive_v1::read_file(storage, &file).await?.into_iter().map(|entry| entry.instant));
    }
    Ok(found.into_iter().collect())
}

async fn load_version(storage: &Storage, directory: &str, version: u64) -> Result<Option<Vec<ArchivedInstant>>> {
    let Some(files) = manifest_files(storage, directory, version).await? else { return Ok(None) };
    let mut found = BTreeSet::new();
    for file in files {
        let Some(bytes) = storage.get(&file).await? else { return Ok(None) };
        found.extend(read_file(&file, bytes)?);
    }
    Ok(Some(found.into_iter().collect()))
}

fn read_metadata(file: &str, bytes: Bytes, key: &str) -> Result<Vec<(ArchivedInstant, CommitMetadata)>> {
    let instants = read_file(file, bytes.clone())?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(|e| Error::corrupt(file, e))?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), ["instantTime", "action", "metadata"]);
    let reader = builder.with_projection(mask).build().map_err(|e| Error::corrupt(file, e))?;
    let mut found = Vec::new();
    for batch in reader {
        let batch = batch.map_err(|e| Error::corrupt(file, e))?;
        let requested = text_column(file, &batch, "instantTime")?;
        let column = batch.column_by_name("metadata").ok_or_else(|| Error::corrupt(file, "no column `metadata`"))?;
        let metadata = cast(column, &DataType::Binary).map_err(|e| Error::corrupt(file, e))?;
        let metadata = metadata.as_binary::<i32>();
        for row in (0..batch.num_rows()).filter(|row| !metadata.is_null(*row)) {
            let instant = instants.iter().find(|instant| instant.requested.as_str() == requested.value(row));
            let Some(instant) = instant.filter(|instant| instant.action.writes_files()) else { continue };
            let decoded = CommitMetadata::decode(file, metadata.value(row))?;
            if decoded.extra.contains_key(key) {
                found.push((instant.clone(), decoded));
            }
        }
    }
    Ok(found)
}

fn read_file(file: &str, bytes: Bytes) -> Result<Vec<ArchivedInstant>> {
    let corrupt = |e: &dyn std::fmt::Display| Error::corrupt(file, e);
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(|e| corrupt(&e))?;
    let columns = ["instantTime", "completionTime", "action"];
    let mask = ProjectionMask::columns(builder.parquet_schema(), columns);
    let reader = builder.with_projection(mask).build().map_err(|e| corrupt(&e))?;
    let mut found = Vec::new();
    for batch in reader {
        let batch = batch.map_err(|e| corrupt(&e))?;
        let [requested, completed, action] = [
            text_column(file, &batch, columns[0])?,
            text_column(file, &batch, columns[1])?,
            text_column(file, &batch, columns[2])?,
        ];
        for row in 0..batch.num_rows() {
            // An action this version does not know changes no file it would have to find.
            let Some(action) = Action::parse(action.value(row)) else {
                continue;
            };
            let completed = (!completed.is_null(row)).then(|| completed.value(row)).filter(|text| !text.is_empty());
            found.push(ArchivedInstant {
                requested: requested.value(row).parse().map_err(|e| corrupt(&e))?,
                completed: completed.map(str::parse).transpose().map_err(|e| corrupt(&e))?,
                action,
            });
        }
    }
    Ok(found)
}

fn text_column(file: &str, batch: &RecordBatch, name: &str) -> Result<StringArray> {
    let column = batch.column_by_name(name).ok_or_else(|| Error::corrupt(file, format!("no column `{name}`")))?;
    let text = cast(column, &DataType::Utf8).map_err(|e| Error::corrupt(file, e))?;
    text.as_any().downcast_ref::<StringArray>().cloned().ok_or_else(|| Error::corrupt(file, "column is no text"))
}
