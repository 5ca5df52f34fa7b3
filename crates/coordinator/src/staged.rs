// SPDX-License-Identifier: Apache-2.0
//! The target's files as the writer is told of them, and staged files as a commit and the metadata table name them.

use std::collections::BTreeMap;

use tributary_api::writer::{Staged, StagedFile, TargetSlice};
use tributary_hudi::target::FileChange;
use tributary_hudi::{FileSlice, WriteStat};
use tributary_types::pipeline::Operation;

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
        deletes: file.deletes as i64,
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

/// File groups that a batch replaces as a whole, by partition: those of the partitions that its rows are in, or all.
/// A batch without a row replaces nothing, whatever its operation.
pub(crate) fn replaced_groups(
    operation: Operation,
    slices: &[TargetSlice],
    staged: &Staged,
) -> BTreeMap<String, Vec<String>> {
    let mut replaced: BTreeMap<String, Vec<String>> = BTreeMap::new();
    if !operation.replaces_groups() || staged.partitions.is_empty() {
        return replaced;
    }
    let everywhere = operation == Operation::InsertOverwriteTable;
    for slice in slices.iter().filter(|slice| everywhere || staged.partitions.contains(&slice.partition)) {
        replaced.entry(slice.partition.clone()).or_default().push(slice.file_id.clone());
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overwrite_replaces_the_groups_of_its_partitions_or_all_and_an_empty_batch_none() {
        let slice = |partition: &str, file_id: &str| TargetSlice {
            partition: partition.to_string(),
            file_id: file_id.to_string(),
            path: format!("{partition}/{file_id}"),
            instant: "20250606182826197".parse().unwrap(),
            bytes: 1,
            logs: Vec::new(),
        };
        let slices = [slice("p", "a"), slice("p", "b"), slice("q", "c")];
        let staged = Staged { partitions: ["p".to_string()].into(), ..Staged::default() };
        let of =
            |operation, staged: &Staged| replaced_groups(operation, &slices, staged).into_values().flatten().count();
        assert_eq!(of(Operation::InsertOverwrite, &staged), 2);
        assert_eq!(of(Operation::DeletePartition, &staged), 2);
        assert_eq!(of(Operation::InsertOverwriteTable, &staged), 3);
        assert_eq!(of(Operation::Upsert, &staged), 0);
        assert_eq!(of(Operation::InsertOverwriteTable, &Staged::default()), 0);
    }
}
