// SPDX-License-Identifier: Apache-2.0
//! The archived timeline piece by piece, for readers that keep what they read: after an archiver ran only its new
//! files have to be read. Both layouts; the files of layout 1 are read in `archive_v1`.

use std::collections::BTreeSet;

use arrow::array::{Array, ArrayRef, BinaryArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use futures::TryStreamExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use tributary_types::InstantTime;

use crate::archive_v1;
use crate::commit::CommitMetadata;
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::history::{ArchivedInstant, current_version, manifest_files};
use crate::parquet_file::{open_file, read_error};
use crate::storage::Storage;
use crate::timeline::Action;

const REQUESTED: &str = "instantTime";
const COMPLETED: &str = "completionTime";
const ACTION: &str = "action";
const METADATA: &str = "metadata";

/// One file of the archive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryFile {
    /// Its path, relative to the table.
    pub path: String,
    /// Earliest and latest requested time in it, as its name says on layout 2: `<min>_<max>_<level>.parquet`.
    pub range: Option<(InstantTime, InstantTime)>,
    /// Its size in bytes where it tells one content from another (layout 1 appends to its files); else 0.
    pub bytes: u64,
}

impl HistoryFile {
    fn new(path: String) -> Self {
        let name = path.rsplit('/').next().unwrap_or(&path);
        let mut parts = name.split('_');
        let range = match (parts.next().map(str::parse), parts.next().map(str::parse)) {
            (Some(Ok(min)), Some(Ok(max))) => Some((min, max)),
            _ => None,
        };
        HistoryFile { path, range, bytes: 0 }
    }

    /// Whether it is a log file of layout 1.
    fn is_log(&self) -> bool {
        !self.path.ends_with(".parquet")
    }

    /// Whether an instant of this requested time can be in it.
    pub fn may_hold(&self, requested: &InstantTime) -> bool {
        self.range.as_ref().is_none_or(|(min, max)| min <= requested && requested <= max)
    }
}

/// The archive's version; `None` while nothing was archived.
pub async fn history_version(storage: &Storage, config: &TableConfig) -> Result<Option<u64>> {
    if config.layout == 1 {
        return Ok(archive_v1::version_of(&archive_v1::list_files(storage, config).await?));
    }
    current_version(storage, &config.history_dir()).await
}

/// The files of one version of the archive; `None` when that version is gone.
pub async fn history_files(storage: &Storage, config: &TableConfig, version: u64) -> Result<Option<Vec<HistoryFile>>> {
    if config.layout == 1 {
        let files = archive_v1::list_files(storage, config).await?;
        return Ok((archive_v1::version_of(&files) == Some(version)).then_some(files));
    }
    let files = manifest_files(storage, &config.history_dir(), version).await?;
    Ok(files.map(|files| files.into_iter().map(HistoryFile::new).collect()))
}

/// The instants in one file of the archive.
pub async fn read_history_file(storage: &Storage, file: &HistoryFile) -> Result<Vec<ArchivedInstant>> {
    if file.is_log() {
        let entries = archive_v1::read_file(storage, file).await?;
        return Ok(entries.into_iter().map(|entry| entry.instant).collect());
    }
    let path = file.path.clone();
    let mut found = Vec::new();
    for batch in read_columns(storage, &path, &[REQUESTED, COMPLETED, ACTION]).await? {
        let [requested, completed, action] =
            [text(&path, &batch, REQUESTED)?, text(&path, &batch, COMPLETED)?, text(&path, &batch, ACTION)?];
        for row in 0..batch.num_rows() {
            // An action this version does not know changes no file it would have to find.
            let Some(action) = Action::parse(action.value(row)) else { continue };
            let completed = (!completed.is_null(row)).then(|| completed.value(row)).filter(|text| !text.is_empty());
            found.push(ArchivedInstant {
                requested: instant(&path, requested.value(row))?,
                completed: completed.map(|text| instant(&path, text)).transpose()?,
                action,
            });
        }
    }
    Ok(found)
}

/// The metadata of archived writes, which is read only to tell writes of rows from other ones.
pub async fn archived_metadata(
    storage: &Storage,
    files: &[HistoryFile],
    wanted: &BTreeSet<InstantTime>,
) -> Result<Vec<(InstantTime, CommitMetadata)>> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| wanted.iter().any(|time| file.may_hold(time))) {
        if file.is_log() {
            for entry in archive_v1::read_file(storage, file).await? {
                if wanted.contains(&entry.instant.requested) && entry.instant.action.writes_files() {
                    found.push((entry.instant.requested.clone(), entry.metadata(&file.path)?));
                }
            }
            continue;
        }
        let path = file.path.clone();
        for batch in read_columns(storage, &path, &[REQUESTED, METADATA]).await? {
            let (requested, metadata) = (text(&path, &batch, REQUESTED)?, binary(&path, &batch, METADATA)?);
            for row in 0..batch.num_rows() {
                let time = instant(&path, requested.value(row))?;
                if wanted.contains(&time) {
                    let bytes = if metadata.is_null(row) { &[] } else { metadata.value(row) };
                    found.push((time, CommitMetadata::decode(&path, bytes)?));
                }
            }
        }
    }
    Ok(found)
}

async fn read_columns(storage: &Storage, path: &str, columns: &[&str]) -> Result<Vec<RecordBatch>> {
    let file = open_file(storage, path, 0).await?;
    let builder = ParquetRecordBatchStreamBuilder::new(file).await.map_err(|e| read_error(path, e))?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
    let stream = builder.with_projection(mask).build().map_err(|e| read_error(path, e))?;
    stream.try_collect().await.map_err(|e| read_error(path, e))
}

fn instant(path: &str, text: &str) -> Result<InstantTime> {
    text.parse().map_err(|e| Error::corrupt(path, e))
}

fn column(path: &str, batch: &RecordBatch, name: &str, data_type: &DataType) -> Result<ArrayRef> {
    let column = batch.column_by_name(name).ok_or_else(|| Error::corrupt(path, format!("no column `{name}`")))?;
    cast(column, data_type).map_err(|e| Error::corrupt(path, e))
}

fn text(path: &str, batch: &RecordBatch, name: &str) -> Result<StringArray> {
    let column = column(path, batch, name, &DataType::Utf8)?;
    column.as_any().downcast_ref().cloned().ok_or_else(|| Error::corrupt(path, format!("`{name}` is no text")))
}

fn binary(path: &str, batch: &RecordBatch, name: &str) -> Result<BinaryArray> {
    let column = column(path, batch, name, &DataType::Binary)?;
    column.as_any().downcast_ref().cloned().ok_or_else(|| Error::corrupt(path, format!("`{name}` is no bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_archive_says_which_instants_it_may_hold() {
        let file = HistoryFile::new("history/20250101000001000_20250101000005000_0.parquet".to_string());
        assert!(file.may_hold(&"20250101000003000".parse().unwrap()));
        assert!(!file.may_hold(&"20250101000006000".parse().unwrap()));
        assert!(HistoryFile::new("odd.parquet".to_string()).may_hold(&InstantTime::init()));
    }
}
