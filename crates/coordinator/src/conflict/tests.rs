// SPDX-License-Identifier: Apache-2.0
//! The conflict matrix: what a batch does against what another writer did.

use tributary_api::writer::StagedFile;
use tributary_hudi::WriteStat;

use super::*;

fn at(text: &str) -> InstantTime {
    text.parse().unwrap()
}

fn group(partition: &str, id: &str) -> GroupKey {
    (partition.to_string(), id.to_string())
}

/// A staged base file; `known`: of a group that was there.
fn base(partition: &str, id: &str, known: bool, inserts: u64) -> StagedFile {
    StagedFile {
        partition: partition.to_string(),
        file_id: id.to_string(),
        path: format!("{partition}/{id}_0-0-0_20250101000000005.parquet"),
        previous: known.then(|| ("f.parquet".to_string(), at("20250101000000001"))),
        rows: 10,
        inserts,
        updates: u64::from(known),
        deletes: 0,
        bytes: 1,
        columns: Vec::new(),
    }
}

/// A staged log file of a group that was there.
fn log(partition: &str, id: &str) -> StagedFile {
    let path = format!("{partition}/.{id}_20250101000000005.log.1_0-0-0");
    StagedFile { path, ..base(partition, id, true, 0) }
}

fn staged(files: Vec<StagedFile>, partitions: &[&str]) -> Staged {
    let partitions = partitions.iter().map(|name| (*name).to_string()).collect();
    Staged { files, partitions, ..Staged::default() }
}

fn own(operation: Operation, files: Vec<StagedFile>) -> OwnWrite {
    OwnWrite::of(operation, &staged(files, &["d"]), &BTreeMap::new(), InsertConflict::Fail)
}

/// An update of one group, without a new key.
fn update(id: &str) -> OwnWrite {
    own(Operation::Upsert, vec![base("d", id, true, 0)])
}

/// New keys in a new group.
fn add(operation: Operation) -> OwnWrite {
    own(operation, vec![base("d", "new", false, 3)])
}

/// A batch that replaces a partition that held one group.
fn overwrite(operation: Operation, id: &str) -> OwnWrite {
    let replaced = BTreeMap::from([("d".to_string(), vec![id.to_string()])]);
    let files = match operation {
        Operation::DeletePartition => Vec::new(),
        _ => vec![base("d", "new", false, 3)],
    };
    OwnWrite::of(operation, &staged(files, &["d"]), &replaced, InsertConflict::Fail)
}

fn stat(partition: &str, id: &str, known: bool, inserts: i64) -> WriteStat {
    WriteStat {
        partition: partition.to_string(),
        file_id: id.to_string(),
        path: format!("{partition}/{id}"),
        previous: known.then(|| "20250101000000001".to_string()),
        inserts,
        ..WriteStat::default()
    }
}

fn other(operation: &str, action: Action, stats: Vec<WriteStat>, replaced: &[(&str, &[&str])]) -> OtherWrite {
    let instant = Instant {
        requested: at("20250101000000003"),
        action,
        completed: Some(at("20250101000000007")),
        has_requested: true,
        has_inflight: true,
    };
    let owned = |ids: &[&str]| -> Vec<String> { ids.iter().map(|id| (*id).to_string()).collect() };
    let replaced = replaced.iter().map(|(partition, groups)| ((*partition).to_string(), owned(groups))).collect();
    let metadata = CommitMetadata { operation: operation.to_string(), stats, replaced, ..CommitMetadata::default() };
    OtherWrite::completed(&instant, &metadata)
}

fn planned(action: Action, groups: &[GroupKey]) -> OtherWrite {
    let instant = Instant {
        // Of any age: before everything that the batch saw.
        requested: at("20240101000000000"),
        action,
        completed: None,
        has_requested: true,
        has_inflight: false,
    };
    OtherWrite::planned(&instant, groups.iter().cloned().collect())
}

fn upsert(id: &str) -> OtherWrite {
    other("UPSERT", Action::Commit, vec![stat("d", id, true, 0)], &[])
}

fn insert() -> OtherWrite {
    other("INSERT", Action::Commit, vec![stat("d", "theirs", false, 5)], &[])
}

fn met(own: &OwnWrite, other: &OtherWrite) -> Option<On> {
    find_conflict(own, std::slice::from_ref(other)).map(|conflict| conflict.on)
}

fn on_group(id: &str) -> Option<On> {
    Some(On::Group(group("d", id)))
}

fn on_partition() -> Option<On> {
    Some(On::Partition("d".to_string()))
}

#[test]
fn append_and_append() {
    // Neither looks for keys, so one after the other would give the same.
    assert_eq!(met(&add(Operation::Insert), &insert()), None);
    assert_eq!(met(&add(Operation::BulkInsert), &insert()), None);
    // Both filling the same small file up is another matter.
    let packed = own(Operation::Insert, vec![base("d", "a", true, 3)]);
    assert_eq!(met(&packed, &other("INSERT", Action::Commit, vec![stat("d", "a", true, 5)], &[])), on_group("a"));
}

#[test]
fn upsert_and_upsert_of_the_same_group() {
    assert_eq!(met(&update("a"), &upsert("a")), on_group("a"));
    // A group is a group of its partition.
    let elsewhere = other("UPSERT", Action::Commit, vec![stat("e", "a", true, 0)], &[]);
    assert_eq!(met(&update("a"), &elsewhere), None);
    let logs = own(Operation::Upsert, vec![log("d", "a")]);
    assert_eq!(met(&logs, &other("UPSERT", Action::DeltaCommit, vec![stat("d", "a", true, 0)], &[])), on_group("a"));
}

#[test]
fn upsert_and_upsert_of_different_groups() {
    assert_eq!(met(&update("a"), &upsert("b")), None);
}

#[test]
fn overwrite_and_insert() {
    let expected = on_partition();
    assert_eq!(met(&overwrite(Operation::InsertOverwrite, "a"), &insert()), expected);
    assert_eq!(met(&overwrite(Operation::InsertOverwriteTable, "a"), &insert()), Some(On::Table));
    let elsewhere = other("INSERT", Action::Commit, vec![stat("e", "theirs", false, 5)], &[]);
    assert_eq!(met(&overwrite(Operation::InsertOverwrite, "a"), &elsewhere), None);
}

#[test]
fn delete_partition_and_insert() {
    assert_eq!(met(&overwrite(Operation::DeletePartition, "a"), &insert()), on_partition());
    let theirs = other("DELETE_PARTITION", Action::ReplaceCommit, Vec::new(), &[("d", &["a"])]);
    assert_eq!(met(&add(Operation::Insert), &theirs), on_partition());
    // Even of a partition that had no file.
    let of_nothing = other("DELETE_PARTITION", Action::ReplaceCommit, Vec::new(), &[("d", &[])]);
    assert_eq!(met(&add(Operation::BulkInsert), &of_nothing), on_partition());
    let elsewhere = other("DELETE_PARTITION", Action::ReplaceCommit, Vec::new(), &[("e", &["a"])]);
    assert_eq!(met(&add(Operation::Upsert), &elsewhere), None);
}

#[test]
fn clustering_and_upsert() {
    let clustering = other("CLUSTER", Action::ReplaceCommit, vec![stat("d", "c", false, 9)], &[("d", &["a"])]);
    assert_eq!(met(&update("a"), &clustering), on_group("a"));
    assert_eq!(met(&update("b"), &clustering), None);
    // It moves rows, and adds none.
    assert_eq!(met(&add(Operation::Upsert), &clustering), None);
    assert_eq!(met(&overwrite(Operation::InsertOverwrite, "a"), &clustering), on_group("a"));
}

#[test]
fn compaction_and_upsert() {
    let compaction = other("COMPACT", Action::Commit, vec![stat("d", "a", true, 0)], &[]);
    let logs = own(Operation::Upsert, vec![log("d", "a")]);
    assert_eq!(met(&logs, &compaction), None, "a log that completes later lies on top of the new base file");
    // A base file would hide what the compaction took in.
    assert_eq!(met(&update("a"), &compaction), on_group("a"));
    assert_eq!(met(&update("b"), &compaction), None);
    assert_eq!(met(&logs, &planned(Action::Compaction, &[group("d", "a")])), None);
    assert_eq!(met(&update("a"), &planned(Action::LogCompaction, &[group("d", "a")])), on_group("a"));
}

#[test]
fn replace_and_insert() {
    let replace = other("INSERT_OVERWRITE", Action::ReplaceCommit, vec![stat("d", "r", false, 5)], &[("d", &["a"])]);
    assert_eq!(met(&add(Operation::Insert), &replace), on_partition());
    let table =
        other("INSERT_OVERWRITE_TABLE", Action::ReplaceCommit, vec![stat("e", "r", false, 5)], &[("e", &["a"])]);
    assert_eq!(met(&add(Operation::Insert), &table), Some(On::Table));
    // Files that were registered replace a partition too.
    let registered = other("", Action::ReplaceCommit, vec![stat("d", "r", false, 5)], &[]);
    assert_eq!(met(&add(Operation::Insert), &registered), on_partition());
    assert_eq!(met(&OwnWrite::default(), &table), None, "a batch that only moves cursors meets nobody");
}

#[test]
fn pending_clustering_and_upsert() {
    let clustering = planned(Action::Clustering, &[group("d", "a"), group("d", "b")]);
    assert_eq!(met(&update("a"), &clustering), on_group("a"));
    assert_eq!(met(&own(Operation::Upsert, vec![log("d", "b")]), &clustering), on_group("b"));
    assert_eq!(met(&overwrite(Operation::InsertOverwrite, "b"), &clustering), on_group("b"));
    assert_eq!(met(&update("c"), &clustering), None);
    assert_eq!(met(&add(Operation::Upsert), &clustering), None);
}

#[test]
fn insert_of_the_same_new_key() {
    let expected = Some(On::NewRows("d".to_string()));
    assert_eq!(met(&add(Operation::Upsert), &insert()), expected);
    assert_eq!(
        met(&add(Operation::Upsert), &other("UPSERT", Action::Commit, vec![stat("d", "b", true, 1)], &[])),
        expected
    );
    // Who adds nothing cannot add the same key.
    assert_eq!(met(&update("a"), &insert()), None);
    assert_eq!(met(&add(Operation::Upsert), &upsert("b")), None);
    let files = staged(vec![base("d", "new", false, 3)], &["d"]);
    let accepting = OwnWrite::of(Operation::Upsert, &files, &BTreeMap::new(), InsertConflict::Allow);
    assert_eq!(met(&accepting, &insert()), None);
    let packed = staged(vec![base("d", "theirs", true, 3)], &["d"]);
    let accepting = OwnWrite::of(Operation::Upsert, &packed, &BTreeMap::new(), InsertConflict::Allow);
    assert_eq!(met(&accepting, &insert()), on_group("theirs"), "a shared file group is never accepted");
}

#[test]
fn whole_table_and_anything() {
    let table = overwrite(Operation::InsertOverwriteTable, "a");
    assert_eq!(met(&table, &other("UPSERT", Action::Commit, vec![stat("e", "b", true, 0)], &[])), Some(On::Table));
    assert_eq!(met(&table, &other("UPSERT", Action::Commit, Vec::new(), &[])), None);
}

#[test]
fn a_batch_without_a_row_replaces_nothing_whatever_its_operation() {
    let empty =
        OwnWrite::of(Operation::InsertOverwriteTable, &Staged::default(), &BTreeMap::new(), InsertConflict::Fail);
    assert_eq!(met(&empty, &insert()), None);
}

#[test]
fn a_conflict_says_who_did_what_to_what() {
    let conflict = find_conflict(&update("a"), &[upsert("b"), upsert("a")]).unwrap();
    assert_eq!((conflict.instant, conflict.action.as_str()), (at("20250101000000003"), "UPSERT"));
    let said = |own: &OwnWrite, other: OtherWrite| find_conflict(own, &[other]).unwrap().to_string();
    assert!(said(&update("a"), upsert("a")).contains("wrote file group `d/a`"));
    let clustering = planned(Action::Clustering, &[group("d", "a")]);
    assert!(said(&update("a"), clustering).contains("is going to rewrite file group `d/a`"));
    assert!(said(&add(Operation::Upsert), insert()).contains("target.insert_conflict"));
    let replace = other("INSERT_OVERWRITE", Action::ReplaceCommit, Vec::new(), &[("d", &["x"])]);
    assert!(said(&add(Operation::Insert), replace).contains("replaced what is in partition `d`"));
    assert!(said(&overwrite(Operation::InsertOverwrite, "a"), insert()).contains("wrote into partition `d`"));
}
