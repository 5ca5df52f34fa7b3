// SPDX-License-Identifier: Apache-2.0
//! The target's files as the writer is told of them, and staged files as a commit and the metadata table name them.

use tributary_api::writer::{StagedFile, TargetSlice};
use tributary_hudi::target::FileChange;
use tributary_hudi::{FileSlice, WriteStat};

/// The slices that rows may belong to.
pub fn target_slices(slices: Vec<FileSlice>) -> Vec<TargetSlice> {
    let slice = |slice: FileSlice| {
        let (partition, file_id) = slice.group;
        let (path, bytes, base) = match slice.base {
            Some(base) => (base.path, base.bytes, Some(base.instant)),
            None => (String::new(), 0, None),
        };
        // A slice has a base file or a log.
        let instant = base.or_else(|| slice.logs.first().map(|log| log.instant.clone()))?;
        let logs = slice.logs.into_iter().map(|log| log.path).collect();
        Some(TargetSlice { partition, file_id, path, instant, bytes, logs })
    };
    slices.into_iter().filter_map(slice).collect()
}

/// The files' statistics in the metadata of their commit.
pub fn write_stats(files: &[StagedFile]) -> Vec<WriteStat> {
    let stat = |file: &StagedFile| WriteStat {
        partition: file.partition.clone(),
        file_id: file.file_id.clone(),
        path: file.path.clone(),
        previous: file.previous.as_ref().map(|(_, instant)| instant.to_string()),
        previous_base: file.previous.as_ref().map(|(name, _)| name.clone()),
        rows: file.rows as i64,
        inserts: file.inserts as i64,
        updates: file.updates as i64,
        deletes: 0,
        bytes: file.bytes as i64,
    };
    files.iter().map(stat).collect()
}

/// What the commit of the files changes in the metadata table's listing.
pub fn file_changes(files: &[StagedFile]) -> Vec<FileChange> {
    let change = |file: &StagedFile| FileChange {
        partition: file.partition.clone(),
        name: file.path.rsplit('/').next().unwrap_or(&file.path).to_string(),
        bytes: file.bytes,
        deleted: false,
    };
    files.iter().map(change).collect()
}
