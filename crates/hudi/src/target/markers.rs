// SPDX-License-Identifier: Apache-2.0
//! Markers: one empty file per data file that an instant may have written, so that a rollback finds them all.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use tributary_types::InstantTime;

use crate::error::Result;
use crate::storage::{REQUESTS_AT_ONCE, Storage};

const TEMP: &str = ".hoodie/.temp";
const SUFFIX: &str = ".marker.";
/// Name of the file that makes a directory a partition for readers that list.
const PARTITION_METAFILE: &str = ".hoodie_partition_metadata";

/// Why a data file was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerKind {
    /// A new file group.
    Create,
    /// A new version of a file group.
    Merge,
}

/// A data file that an instant may have written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The data file, relative to the table.
    pub file: String,
    /// `CREATE`, `MERGE` or `APPEND`.
    pub kind: String,
}

/// Announces a data file; returns once the announcement is durable, so that the file may be written.
pub async fn write_marker(storage: &Storage, instant: &InstantTime, file: &str, kind: MarkerKind) -> Result<()> {
    let kind = match kind {
        MarkerKind::Create => "CREATE",
        MarkerKind::Merge => "MERGE",
    };
    storage.put(&format!("{TEMP}/{instant}/{file}{SUFFIX}{kind}"), Vec::new()).await
}

/// Every data file that an instant announced.
pub async fn list_markers(storage: &Storage, instant: &InstantTime) -> Result<Vec<Marker>> {
    let directory = format!("{TEMP}/{instant}");
    let listed = storage.list(&directory).await?;
    let mut markers: Vec<Marker> = listed
        .iter()
        .filter_map(|entry| entry.path.strip_prefix(&directory))
        .filter_map(|path| path.trim_start_matches('/').rsplit_once(SUFFIX))
        .map(|(file, kind)| Marker { file: file.to_string(), kind: kind.to_string() })
        .collect();
    markers.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(markers)
}

/// Instants that have markers, live or dead. Empty directories, which a local disk keeps, are not looked at.
pub async fn marked_instants(storage: &Storage) -> Result<Vec<InstantTime>> {
    let listed = storage.list(TEMP).await?;
    let directories =
        listed.iter().filter_map(|entry| entry.path.strip_prefix(TEMP)?.trim_start_matches('/').split('/').next());
    let instants: BTreeSet<InstantTime> = directories.filter_map(|name| name.parse().ok()).collect();
    Ok(instants.into_iter().collect())
}

/// Removes the markers of an instant that is over.
pub async fn delete_markers(storage: &Storage, instant: &InstantTime) -> Result<()> {
    let listed = storage.list(&format!("{TEMP}/{instant}")).await?;
    let deletions: Vec<_> = listed.iter().map(|entry| storage.delete(&entry.path)).collect();
    futures::stream::iter(deletions).buffer_unordered(REQUESTS_AT_ONCE).try_collect().await
}

/// Makes a directory a partition for readers that list directories. The first instant that wrote it stays named.
pub async fn write_partition_metafile(storage: &Storage, partition: &str, instant: &InstantTime) -> Result<()> {
    let (file, depth) = match partition {
        "" => (PARTITION_METAFILE.to_string(), 0),
        partition => (format!("{partition}/{PARTITION_METAFILE}"), partition.split('/').count()),
    };
    let text = format!("#partition metadata\ncommitTime={instant}\npartitionDepth={depth}\n");
    storage.put_new(&file, text.into_bytes()).await.map(drop)
}
