// SPDX-License-Identifier: Apache-2.0
//! Staged files as a commit and the metadata table name them.

use tributary_api::writer::StagedFile;
use tributary_hudi::WriteStat;
use tributary_hudi::target::FileChange;

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
