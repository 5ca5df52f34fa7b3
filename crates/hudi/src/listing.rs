// SPDX-License-Identifier: Apache-2.0
//! Which data files a table has: from its metadata table where it keeps one, else from its directories.

use futures::{StreamExt, TryStreamExt};

use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::log_file::LogFile;
use crate::mdt_read::read_file_listing;
use crate::slices::BaseFile;
use crate::storage::{REQUESTS_AT_ONCE, Storage};
use crate::timeline::Timeline;

/// Where Hudi keeps everything that is no data.
const META_DIRECTORY: &str = ".hoodie";
/// The partition of the metadata table that lists files.
const FILES_PARTITION: &str = "files";

/// Data files of a table, committed or not, in no order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataFiles {
    /// Base files.
    pub bases: Vec<BaseFile>,
    /// Log files.
    pub logs: Vec<LogFile>,
}

impl DataFiles {
    /// Adds the file at a path relative to the table, unless it is none with rows.
    pub(crate) fn add(&mut self, path: &str, bytes: u64) -> Result<()> {
        match LogFile::from_path(path, bytes) {
            Some(log) => self.logs.push(log),
            None => self.bases.extend(BaseFile::from_path(path, bytes)?),
        }
        Ok(())
    }
}

/// Every data file of the table, committed or not.
///
/// A metadata table that holds something this version cannot interpret is passed over for the directories, which
/// tell the same at a higher price.
pub async fn list_files(storage: &Storage, config: &TableConfig, timeline: &Timeline) -> Result<DataFiles> {
    if !has_file_listing(config) {
        return list_directories(storage).await;
    }
    match read_file_listing(storage, timeline).await {
        Err(Error::Unsupported { what }) => {
            tracing::warn!(table = storage.url(), what, "metadata table not usable, listing directories instead");
            list_directories(storage).await
        }
        other => other,
    }
}

/// Whether the table's metadata table lists its files.
pub fn has_file_listing(config: &TableConfig) -> bool {
    config.metadata_partitions().iter().any(|partition| partition == FILES_PARTITION)
}

/// Every data file that is in a directory of the table.
pub async fn list_directories(storage: &Storage) -> Result<DataFiles> {
    let mut found = DataFiles::default();
    let mut level = vec![String::new()];
    // One level of directories after the other: a table has few levels and many partitions in the last one.
    while !level.is_empty() {
        let below = list_level(storage, level, &mut found).await?;
        level = below.into_iter().filter(|path| path != META_DIRECTORY).collect();
    }
    Ok(found)
}

/// Every data file in some partitions of the table, without the rest of it.
pub async fn list_partitions(storage: &Storage, partitions: Vec<String>) -> Result<DataFiles> {
    let mut found = DataFiles::default();
    list_level(storage, partitions, &mut found).await?;
    Ok(found)
}

/// Adds the files directly in some directories; answers the directories below them.
async fn list_level(storage: &Storage, directories: Vec<String>, found: &mut DataFiles) -> Result<Vec<String>> {
    let listed: Vec<_> = futures::stream::iter(directories)
        .map(|directory| async move { storage.list_level(&directory).await })
        .buffered(REQUESTS_AT_ONCE)
        .try_collect()
        .await?;
    let mut below = Vec::new();
    for (files, directories) in listed {
        for file in files {
            found.add(&file.path, file.bytes)?;
        }
        below.extend(directories);
    }
    Ok(below)
}
