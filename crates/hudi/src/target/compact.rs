// SPDX-License-Identifier: Apache-2.0
//! Compacting the metadata table: the logs of each file group become one HFile, and what is older than the slice before
//! goes.
//!
//! Order: the requested and inflight compaction, the HFiles, the completed commit. An HFile whose instant did not
//! complete is read by nobody, so an interrupted compaction is undone by removing it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hudi_core::metadata::compaction::{CompactionOperation, CompactionPlan};
use tributary_types::InstantTime;

use super::clean::OWNER_KEY;
use super::metadata::{FILES, FILES_GROUP, METADATA_DIR, base_hfile, compacted_files, schema};
use super::statistics::{STATISTICS, read_statistics};
use crate::commit::{CommitMetadata, WriteStat};
use crate::error::{Error, Result};
use crate::mdt_read::{self, Slice, file_id, read_merged};
use crate::storage::{Entry, PutNew, Storage};
use crate::timeline::{Action, Timeline, completed_path, inflight_path, requested_path};

/// The metadata table's own timeline.
pub(super) const TIMELINE: &str = ".hoodie/metadata/.hoodie/timeline";
/// Its layout, in every table version that is written.
const LAYOUT: u32 = 2;
/// Slices that stay: the newest, and the one before it for readers that are under way.
const SLICES_KEPT: usize = 2;

/// A finished compaction of the metadata table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compacted {
    /// Log files that were taken in.
    pub logs: usize,
    /// Old files that were removed.
    pub removed: usize,
}

/// The metadata table's timeline as one listing shows it.
pub async fn metadata_timeline(storage: &Storage) -> Result<Timeline> {
    let (files, _) = storage.list_level(TIMELINE).await?;
    Ok(Timeline::from_names(TIMELINE, LAYOUT, files.iter().map(Entry::name)))
}

/// The newest completed compaction.
pub(super) fn latest_compaction(own: &Timeline) -> Option<InstantTime> {
    let completed = own.instants().iter().filter(|instant| !instant.is_pending() && instant.action == Action::Commit);
    completed.map(|instant| instant.requested.clone()).max()
}

/// Deltacommits since the newest compaction.
pub fn deltas_since_compaction(own: &Timeline) -> usize {
    let latest = latest_compaction(own);
    let since = own.instants().iter().filter(|instant| {
        !instant.is_pending()
            && instant.action == Action::DeltaCommit
            && latest.as_ref().is_none_or(|latest| &instant.requested > latest)
    });
    since.count()
}

/// A file group as it will be: its slice, and what that says.
struct Group {
    partition: &'static str,
    id: String,
    slice: Slice,
    records: Vec<(String, Vec<u8>)>,
}

impl Group {
    /// Its new base file, relative to the metadata table.
    fn path(&self, instant: &InstantTime) -> String {
        base_path(self.partition, &self.id, instant)
    }
}

fn base_path(partition: &str, id: &str, instant: &InstantTime) -> String {
    format!("{partition}/{id}_0-0-0_{instant}.hfile")
}

/// Compacts every file group that has logs. `instant` lies above every time of the table's timeline that is in use and
/// below every one to come, `completed` above it. The caller holds the table's lock and saw that no instant of the table
/// is pending: a delta that completes later than `instant` belongs to the new slices.
pub async fn compact_metadata(
    storage: &Storage,
    data: &Timeline,
    instant: &InstantTime,
    completed: &InstantTime,
    owner: &str,
) -> Result<Compacted> {
    let mut groups = Vec::new();
    let (listing, slice) = read_merged(storage, data).await?;
    groups.push(Group { partition: FILES, id: FILES_GROUP.to_string(), slice, records: compacted_files(listing)? });
    for partition in STATISTICS {
        for (id, slice, records) in read_statistics(storage, data, partition).await? {
            groups.push(Group { partition, id, slice, records });
        }
    }
    groups.retain(|group| !group.slice.logs.is_empty());
    if groups.is_empty() {
        return Ok(Compacted { logs: 0, removed: 0 });
    }
    let plan = plan_of(&groups, owner).to_avro_bytes().map_err(|e| Error::corrupt("compaction plan", e))?;
    let requested = requested_path(TIMELINE, instant, Action::Compaction);
    if storage.put_new(&requested, plan).await? == PutNew::Exists {
        return Err(Error::Conflict { what: format!("`{requested}` exists: another writer took the same instant") });
    }
    storage.put(&inflight_path(TIMELINE, instant, Action::Compaction), Vec::new()).await?;
    let mut stats = Vec::with_capacity(groups.len());
    for group in &groups {
        let hfile = base_hfile(&group.records)?;
        let bytes = hfile.len();
        let path = group.path(instant);
        storage.put(&format!("{METADATA_DIR}/{path}"), hfile).await?;
        stats.push(WriteStat {
            partition: group.partition.to_string(),
            file_id: group.id.clone(),
            path,
            previous: group.slice.base.as_deref().and_then(base_instant).map(|instant| instant.to_string()),
            rows: group.records.len() as i64,
            bytes: bytes as i64,
            ..WriteStat::default()
        });
    }
    let metadata = CommitMetadata {
        operation: "COMPACT".to_string(),
        compacted: true,
        stats,
        extra: BTreeMap::from([("schema".to_string(), schema()?.to_string())]),
        ..CommitMetadata::default()
    };
    storage.put_new(&completed_path(TIMELINE, instant, completed, Action::Commit), metadata.encode()?).await?;
    let logs = groups.iter().map(|group| group.slice.logs.len()).sum();
    let partitions: BTreeSet<&str> = groups.iter().map(|group| group.partition).collect();
    let mut removed = 0;
    for partition in partitions {
        removed += remove_old_slices(storage, partition).await?;
    }
    Ok(Compacted { logs, removed })
}

fn hfile_instant(name: &str) -> Option<InstantTime> {
    mdt_read::hfile_instant(name)?.parse().ok()
}

fn log_instant(name: &str) -> Option<InstantTime> {
    mdt_read::log_instant(name)?.0.parse().ok()
}

fn base_instant(path: &str) -> Option<InstantTime> {
    hfile_instant(path.rsplit('/').next().unwrap_or(path))
}

fn plan_of(groups: &[Group], owner: &str) -> CompactionPlan {
    let name = |path: &String| path.rsplit('/').next().unwrap_or(path).to_string();
    let operations = groups.iter().map(|group| {
        let slice = &group.slice;
        let first_log = slice.logs.first().map(name).and_then(|log| log_instant(&log));
        let base = slice.base.as_deref().and_then(base_instant).or(first_log);
        CompactionOperation {
            base_instant_time: base.map(|instant| instant.to_string()),
            delta_file_paths: Some(slice.logs.iter().map(name).collect()),
            data_file_path: slice.base.as_ref().map(name),
            file_id: Some(group.id.clone()),
            partition_path: Some(group.partition.to_string()),
            metrics: None,
            bootstrap_file_path: None,
        }
    });
    CompactionPlan {
        operations: Some(operations.collect()),
        extra_metadata: Some(HashMap::from([(OWNER_KEY.to_string(), owner.to_string())])),
        version: Some(CompactionPlan::LATEST_VERSION),
        strategy: None,
        preserve_hoodie_metadata: Some(false),
        missing_schedule_partitions: None,
    }
}

/// Removes slices that nobody reads any more; what an interruption leaves goes with the next compaction.
async fn remove_old_slices(storage: &Storage, partition: &str) -> Result<usize> {
    let own = metadata_timeline(storage).await?;
    let (files, _) = storage.list_level(&format!("{METADATA_DIR}/{partition}")).await?;
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in &files {
        if let Some(group) = file_id(file.name()) {
            groups.entry(group).or_default().push(&file.path);
        }
    }
    let mut removed = 0;
    for paths in groups.into_values() {
        for path in old_files(paths.into_iter(), &own) {
            storage.delete(path).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// HFiles below the oldest kept one, and the logs that it took in.
fn old_files<'a>(paths: impl Iterator<Item = &'a str> + Clone, own: &Timeline) -> Vec<&'a str> {
    let name = |path: &'a str| path.rsplit('/').next().unwrap_or(path);
    let mut bases: Vec<InstantTime> = paths
        .clone()
        .filter_map(|path| hfile_instant(name(path)))
        .filter(|instant| own.is_committed(instant))
        .collect();
    bases.sort();
    let Some(oldest) = bases.len().checked_sub(SLICES_KEPT).and_then(|at| bases.get(at)) else { return Vec::new() };
    let old = paths.filter(|path| {
        if let Some(instant) = hfile_instant(name(path)) {
            return own.is_committed(&instant) && &instant < oldest;
        }
        log_instant(name(path)).is_some_and(|instant| {
            let completed = own.find(&instant).map_or(Some(&instant), |found| found.completed.as_ref());
            completed.is_some_and(|completed| completed < oldest)
        })
    });
    old.collect()
}

/// Undoes compactions of ours that a dead process left; answers how many. Those of other writers stay.
pub async fn undo_compactions(storage: &Storage, own: &Timeline) -> Result<usize> {
    let mut undone = 0;
    let pending = own.instants().iter().filter(|found| found.is_pending() && found.action == Action::Compaction);
    for instant in pending {
        let requested = requested_path(TIMELINE, &instant.requested, Action::Compaction);
        let plan = storage.get(&requested).await?.and_then(|bytes| CompactionPlan::from_avro_bytes(&bytes).ok());
        let ours = plan.filter(|plan| plan.extra_metadata.as_ref().is_some_and(|extra| extra.contains_key(OWNER_KEY)));
        let Some(plan) = ours else { continue };
        for operation in plan.operations.unwrap_or_default() {
            if let (Some(partition), Some(id)) = (operation.partition_path, operation.file_id) {
                let path = base_path(&partition, &id, &instant.requested);
                storage.delete(&format!("{METADATA_DIR}/{path}")).await?;
            }
        }
        storage.delete(&inflight_path(TIMELINE, &instant.requested, Action::Compaction)).await?;
        storage.delete(&requested).await?;
        undone += 1;
    }
    Ok(undone)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: &str = "20250101000001000";
    const T3: &str = "20250101000003000";
    const T5: &str = "20250101000005000";
    const T7: &str = "20250101000007000";
    const T9: &str = "20250101000009000";

    fn timeline(names: &[String]) -> Timeline {
        Timeline::from_names("d", LAYOUT, names.iter().map(String::as_str))
    }

    #[test]
    fn only_deltas_since_the_newest_compaction_count() {
        let mut names = vec![format!("{T1}_{T3}.deltacommit"), format!("{T5}_{T7}.deltacommit")];
        assert_eq!(deltas_since_compaction(&timeline(&names)), 2);
        names.push(format!("{T3}_20250101000004000.commit"));
        names.push(format!("{T9}.deltacommit.inflight"));
        assert_eq!(deltas_since_compaction(&timeline(&names)), 1);
        assert_eq!(latest_compaction(&timeline(&names)), T3.parse().ok());
    }

    #[test]
    fn the_newest_slice_and_the_one_before_it_stay() {
        let hfile = |instant: &str| format!("f/files-0000-0_0-0-0_{instant}.hfile");
        let log = |instant: &str| format!("f/.files-0000-0_{instant}.log.1_0-0-0");
        let init = "00000000000000000";
        let own = timeline(&[
            format!("{init}_{init}.deltacommit"),
            format!("{T1}_20250101000002000.deltacommit"),
            format!("{T3}_20250101000004000.commit"),
            format!("{T5}_20250101000006000.deltacommit"),
            format!("{T7}_20250101000008000.commit"),
        ]);
        let mut paths = vec![hfile(init), log(T1), hfile(T3), log(T5)];
        assert_eq!(old_files(paths.iter().map(String::as_str), &own), Vec::<&str>::new());
        paths.push(hfile(T7));
        assert_eq!(old_files(paths.iter().map(String::as_str), &own), [paths[0].as_str(), paths[1].as_str()]);
        // An HFile whose compaction did not complete is no slice.
        paths.push(hfile(T9));
        assert_eq!(old_files(paths.iter().map(String::as_str), &own), [paths[0].as_str(), paths[1].as_str()]);
    }

    mod over_a_store {
        use std::sync::Arc;

        use object_store::memory::InMemory;
        use object_store::path::Path;
        use tributary_types::pipeline::TableType;

        use super::*;

        const FILES_DIRECTORY: &str = ".hoodie/metadata/files";
        use crate::config::TableConfig;
        use crate::mdt_read::read_file_listing;
        use crate::target::{FileChange, LockKind, NewTable, complete_instant, create_table, write_delta};

        fn at(second: u32, milli: u32) -> InstantTime {
            format!("202501010000{second:02}{milli:03}").parse().unwrap()
        }

        async fn table() -> (Storage, TableConfig) {
            let lock = LockKind::Process(Arc::new(tokio::sync::Mutex::new(())));
            let storage = Storage::new(Arc::new(InMemory::new()), Path::from("t"), "memory://t", lock);
            let table = NewTable {
                name: "t".to_string(),
                table_type: TableType::CopyOnWrite,
                version: 9,
                record_key: vec!["id".to_string()],
                partition_by: Vec::new(),
                ordering: Vec::new(),
                hive_style: true,
                url_encode: false,
            };
            create_table(&storage, &table, &at(0, 0)).await.unwrap();
            let config = TableConfig::load(&storage).await.unwrap();
            (storage, config)
        }

        fn name(group: &str, second: u32) -> String {
            format!("{group}_0-0-0_{}.parquet", at(second, 0))
        }

        /// A commit that adds files to partitions and takes some away.
        async fn commit(storage: &Storage, config: &TableConfig, second: u32, changes: &[(&str, String, bool)]) {
            let changes: Vec<FileChange> = changes
                .iter()
                .map(|(partition, name, deleted)| FileChange {
                    partition: (*partition).to_string(),
                    name: name.clone(),
                    bytes: u64::from(second),
                    deleted: *deleted,
                })
                .collect();
            let (instant, delta, completed) = (at(second, 0), at(second, 500), at(second, 501));
            write_delta(storage, &instant, &delta, &changes).await.unwrap();
            let bytes = CommitMetadata::default().encode().unwrap();
            complete_instant(storage, &config.timeline_dir(), &instant, &completed, Action::Commit, bytes)
                .await
                .unwrap();
        }

        async fn listing(storage: &Storage, config: &TableConfig) -> Vec<String> {
            let timeline = Timeline::load(storage, config).await.unwrap();
            let files = read_file_listing(storage, &timeline).await.unwrap();
            files.bases.into_iter().map(|file| format!("{} {}", file.path, file.bytes)).collect()
        }

        async fn compact(storage: &Storage, config: &TableConfig) -> Compacted {
            let timeline = Timeline::load(storage, config).await.unwrap();
            let instant = timeline.latest_time().unwrap();
            compact_metadata(storage, &timeline, instant, &instant.successor(), "test").await.unwrap()
        }

        #[tokio::test]
        async fn base_and_later_logs_read_together_and_old_slices_go() {
            let (storage, config) = table().await;
            commit(&storage, &config, 1, &[("p", name("a", 1), false), ("q", name("b", 1), false)]).await;
            commit(&storage, &config, 2, &[("p", name("a", 2), false)]).await;
            let before = listing(&storage, &config).await;
            assert_eq!(compact(&storage, &config).await, Compacted { logs: 2, removed: 0 });
            assert_eq!(listing(&storage, &config).await, before);
            commit(&storage, &config, 3, &[("p", name("a", 1), true), ("q", name("b", 3), false)]).await;
            let expected =
                [format!("p/{} 2", name("a", 2)), format!("q/{} 1", name("b", 1)), format!("q/{} 3", name("b", 3))];
            assert_eq!(listing(&storage, &config).await, expected);
            // The first slice goes: its HFile and both logs.
            assert_eq!(compact(&storage, &config).await, Compacted { logs: 1, removed: 3 });
            assert_eq!(listing(&storage, &config).await, expected);
            let (merged, slice) =
                read_merged(&storage, &Timeline::load(&storage, &config).await.unwrap()).await.unwrap();
            assert!(slice.logs.is_empty());
            let partitions: Vec<&String> = merged[crate::mdt_read::ALL_PARTITIONS].keys().collect();
            assert_eq!(partitions, ["p", "q"]);
        }

        #[tokio::test]
        async fn a_listing_of_many_blocks_reads_back() {
            let (storage, config) = table().await;
            let partitions: Vec<String> = (0..100).map(|number| format!("day={number:03}")).collect();
            let files: Vec<(&str, String, bool)> = partitions
                .iter()
                .flat_map(|partition| {
                    (0..150).map(|file| (partition.as_str(), name(&format!("{:032}-{file}", 0), 1), false))
                })
                .collect();
            commit(&storage, &config, 1, &files).await;
            let before = listing(&storage, &config).await;
            assert_eq!(before.len(), 15_000);
            compact(&storage, &config).await;
            let (listed, _) = storage.list_level(FILES_DIRECTORY).await.unwrap();
            let largest = listed.iter().filter(|file| file.name().ends_with(".hfile")).map(|file| file.bytes).max();
            assert!(largest > Some(1 << 20), "more than one block of 1 MiB: {largest:?}");
            assert_eq!(listing(&storage, &config).await, before);
        }

        #[tokio::test]
        async fn an_interrupted_compaction_is_undone_and_one_of_another_writer_is_not_touched() {
            let (storage, config) = table().await;
            commit(&storage, &config, 1, &[("", name("a", 1), false)]).await;
            let before = listing(&storage, &config).await;
            assert_eq!(compact(&storage, &config).await.logs, 1);
            let own = metadata_timeline(&storage).await.unwrap();
            let instant = latest_compaction(&own).unwrap();
            storage.delete(&completed_path(TIMELINE, &instant, &instant.successor(), Action::Commit)).await.unwrap();
            assert_eq!(listing(&storage, &config).await, before, "an HFile without its commit does not count");
            let foreign = requested_path(TIMELINE, &at(9, 0), Action::Compaction);
            let plan = CompactionPlan { version: Some(CompactionPlan::LATEST_VERSION), ..CompactionPlan::default() };
            storage.put(&foreign, plan.to_avro_bytes().unwrap()).await.unwrap();
            let own = metadata_timeline(&storage).await.unwrap();
            assert_eq!(undo_compactions(&storage, &own).await.unwrap(), 1);
            assert!(storage.head(&foreign).await.unwrap().is_some());
            assert_eq!(listing(&storage, &config).await, before);
            let (files, _) = storage.list_level(FILES_DIRECTORY).await.unwrap();
            let bases = files.iter().filter(|file| file.name().ends_with(".hfile")).count();
            assert_eq!(bases, 1, "the HFile is gone, the first one stays");
        }
    }
}
