// SPDX-License-Identifier: Apache-2.0
//! Which base files a table has: from its metadata table where it keeps one, else from its directories.

use futures::{StreamExt, TryStreamExt};

use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::mdt_read::read_file_listing;
use crate::slices::BaseFile;
use crate::storage::{REQUESTS_AT_ONCE, Storage};
use crate::timeline::Timeline;

/// Where Hudi keeps everything that is no data.
const META_DIRECTORY: &str = ".hoodie";
/// The partition of the metadata table that lists files.
const FILES_PARTITION: &str = "files";

/// Every base file of the table, committed or not.
///
/// A metadata table that holds something this version cannot interpret is passed over for the directories, which
/// tell the same at a higher price.
pub async fn list_base_files(storage: &Storage, config: &TableConfig, timeline: &Timeline) -> Result<Vec<BaseFile>> {
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

/// Every base file that is in a directory of the table.
pub async fn list_directories(storage: &Storage) -> Result<Vec<BaseFile>> {
    let mut found = Vec::new();
    let mut level = vec![String::new()];
    // One level of directories after the other: a table has few levels and many partitions in the last one.
    while !level.is_empty() {
        let listed: Vec<_> = futures::stream::iter(level)
            .map(|directory| async move { storage.list_level(&directory).await })
            .buffered(REQUESTS_AT_ONCE)
            .try_collect()
            .await?;
        level = Vec::new();
        for (files, directories) in listed {
            for file in files {
                found.extend(BaseFile::from_path(&file.path, file.bytes)?);
            }
            level.extend(directories.into_iter().filter(|path| path != META_DIRECTORY));
        }
    }
    Ok(found)
}
