// SPDX-License-Identifier: Apache-2.0
//! File slices: which base file is each file group's as of an instant, and which log files come on top of it.
//!
//! A file belongs to the table when its instant completed, or left the active timeline because it was archived. A
//! group's base file is its newest by completion. Groups that a completed replacecommit replaced are gone, even while
//! their files wait for the cleaner.
//!
//! A log file belongs to the slice of the newest base file whose instant is not after the log's completion. Logs that
//! were written since a compaction was requested will come on top of its base file; as long as it is not completed
//! they come on top of the old base file together with the logs that are being compacted. Before table version 8 the
//! log's name says the same by the instant of its base file, which is that of the compaction from its request on.

use std::collections::{BTreeMap, HashMap, HashSet};

use tributary_types::InstantTime;
use tributary_types::pipeline::TableType;

use crate::base_file::parse_base_file_name;
use crate::block_order::BlockInstants;
use crate::commit::CommitMetadata;
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::history::{ArchivedInstant, load_history};
use crate::listing::{DataFiles, list_files};
use crate::log_file::{LogFile, LogNames};
use crate::storage::Storage;
use crate::timeline::{Action, Instant, Timeline};

/// Suffix of files that were registered where they lie instead of being written by Hudi.
const EXTERNAL_SUFFIX: &str = "_hudiext";
/// Commit files that are held in memory at once.
const COMMITS_AT_ONCE: usize = 64;

/// A base file as its name and a listing describe it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BaseFile {
    /// Partition path, empty for a table without partitions.
    pub partition: String,
    /// File group.
    pub file_id: String,
    /// Requested time of the instant that wrote it.
    pub instant: InstantTime,
    /// Path relative to the table.
    pub path: String,
    /// Size in bytes, 0 where unknown.
    pub bytes: u64,
}

/// A live file group as of an instant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileSlice {
    /// Its partition and file id.
    pub group: GroupKey,
    /// Its newest base file; `None` where there are logs only.
    pub base: Option<BaseFile>,
    /// Log files on top of it, in the order in which they are merged.
    pub logs: Vec<LogFile>,
}

/// A file group: partition and file id.
pub type GroupKey = (String, String);

impl BaseFile {
    /// Interprets the path of a file, relative to the table: `<file id>_<write token>_<instant>.parquet`. `None` for
    /// a file that is no base file of Hudi's; an external file is refused, since leaving it out would lose rows.
    pub fn from_path(path: &str, bytes: u64) -> Result<Option<Self>> {
        let (partition, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name.ends_with(EXTERNAL_SUFFIX) {
            return Err(Error::unsupported(format!(
                "`{path}` is an external file (`{EXTERNAL_SUFFIX}`), which cannot be read yet"
            )));
        }
        let Some((file_id, instant)) = parse_base_file_name(name) else { return Ok(None) };
        Ok(Some(BaseFile {
            partition: partition.to_string(),
            file_id: file_id.to_string(),
            instant,
            path: path.to_string(),
            bytes,
        }))
    }

    /// The file's group.
    pub fn group(&self) -> GroupKey {
        (self.partition.clone(), self.file_id.clone())
    }
}

/// What became of an instant that a data file names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It completed; `None`: some time before what the active timeline tells, and nobody looked into the archive.
    Completed(Option<InstantTime>),
    /// It is pending, was rolled back, or came after this view of the timeline.
    NotThere,
    /// Neither on the active timeline nor before its start: archived past a savepoint, or left over by a rollback.
    /// Only the archive can tell.
    Unknown,
}

/// Which instants completed, and when: the active timeline and, where it was needed, the archive.
#[derive(Debug, Clone, Default)]
pub struct Completions {
    active: HashMap<InstantTime, Option<InstantTime>>,
    start: Option<InstantTime>,
    latest: Option<InstantTime>,
    archived: Option<HashMap<InstantTime, Option<InstantTime>>>,
}

impl Completions {
    /// The view of one listing of the timeline.
    pub fn new(timeline: &Timeline) -> Self {
        let savepoints: HashSet<&InstantTime> = timeline.savepoints().iter().collect();
        let active = timeline.instants().iter();
        Completions {
            // An archiver may pass a savepoint and leave the instant behind, so it does not mark the start.
            start: active.clone().map(|i| &i.requested).find(|time| !savepoints.contains(time)).cloned(),
            latest: timeline.latest_time().cloned(),
            active: active.map(|i| (i.requested.clone(), i.completed.clone())).collect(),
            archived: None,
        }
    }

    /// Adds what the archive knows.
    #[must_use]
    pub fn with_archived(mut self, archived: &[ArchivedInstant]) -> Self {
        self.archived = Some(archived.iter().map(|i| (i.requested.clone(), i.completed.clone())).collect());
        self
    }

    /// What became of an instant.
    pub fn standing(&self, requested: &InstantTime) -> Standing {
        match self.active.get(requested) {
            Some(None) => return Standing::NotThere,
            Some(completed) => return Standing::Completed(completed.clone()),
            None => {}
        }
        // A table whose timeline is empty never completed anything: what lies there was left behind.
        let (Some(start), Some(latest)) = (&self.start, &self.latest) else {
            return Standing::NotThere;
        };
        let archived = self.archived.as_ref().and_then(|archived| archived.get(requested));
        if requested < start {
            return Standing::Completed(archived.cloned().flatten());
        }
        if requested > latest {
            return Standing::NotThere;
        }
        match (&self.archived, archived) {
            (None, _) => Standing::Unknown,
            (Some(_), Some(completed)) => Standing::Completed(completed.clone()),
            (Some(_), None) => Standing::NotThere,
        }
    }

    /// The instants whose blocks count as of `as_of`, in log files that hold blocks of several.
    pub fn counted_blocks(&self, as_of: Option<&InstantTime>) -> BlockInstants {
        let archived = self.archived.iter().flatten().filter(|(requested, _)| Some(*requested) >= self.start.as_ref());
        let known = self.active.keys().chain(archived.map(|(requested, _)| requested));
        let mut listed: Vec<InstantTime> =
            known.filter(|requested| self.completed_by(requested, as_of)).cloned().collect();
        listed.sort();
        listed.dedup();
        BlockInstants { before: self.start.clone(), listed }
    }

    /// Whether the active timeline has instants from before its start, which a savepoint keeps there: then what was archived
    /// is not older than all that is active, and only the archive tells when it completed.
    fn keeps_older(&self) -> bool {
        self.start.as_ref().is_some_and(|start| self.active.keys().any(|requested| requested < start))
    }

    /// Whether an instant completed at or before `as_of` (`None`: at any time).
    pub fn completed_by(&self, requested: &InstantTime, as_of: Option<&InstantTime>) -> bool {
        match self.standing(requested) {
            Standing::Completed(None) => true,
            Standing::Completed(Some(at)) => as_of.is_none_or(|limit| at <= *limit),
            Standing::NotThere | Standing::Unknown => false,
        }
    }
}

/// The slice of each live group as of `as_of`, by partition and group.
pub fn select_slices(
    files: DataFiles,
    completions: &Completions,
    replaced: &HashSet<GroupKey>,
    as_of: Option<&InstantTime>,
    names: LogNames,
) -> Vec<FileSlice> {
    let mut slices: BTreeMap<GroupKey, FileSlice> = BTreeMap::new();
    for (group, base) in newest_bases(files.bases, completions, replaced, as_of) {
        slices.insert(group.clone(), FileSlice { group, base: Some(base), logs: Vec::new() });
    }
    for log in files.logs {
        let group = log.group();
        if replaced.contains(&group) {
            continue;
        }
        let base = slices.get(&group).and_then(|slice| slice.base.as_ref()).map(|base| &base.instant);
        if is_on_top(&log, base, completions, as_of, names) {
            let slice = slices.entry(group.clone()).or_insert(FileSlice { group, base: None, logs: Vec::new() });
            slice.logs.push(log);
        }
    }
    let mut slices: Vec<FileSlice> = slices.into_values().collect();
    for slice in &mut slices {
        slice.logs.sort();
    }
    slices
}

fn newest_bases(
    bases: Vec<BaseFile>,
    completions: &Completions,
    replaced: &HashSet<GroupKey>,
    as_of: Option<&InstantTime>,
) -> BTreeMap<GroupKey, BaseFile> {
    let mut newest: BTreeMap<GroupKey, (Option<InstantTime>, BaseFile)> = BTreeMap::new();
    for file in bases {
        let Standing::Completed(at) = completions.standing(&file.instant) else {
            continue;
        };
        if at.as_ref().zip(as_of).is_some_and(|(at, limit)| at > limit) {
            continue;
        }
        let group = file.group();
        if replaced.contains(&group) {
            continue;
        }
        // Archived instants (no completion time here) come before all others, in the order they were requested.
        let older = newest
            .get(&group)
            .is_none_or(|(known_at, known)| (known_at, &known.instant, &known.path) < (&at, &file.instant, &file.path));
        if older {
            newest.insert(group, (at, file));
        }
    }
    newest.into_iter().map(|(group, (_, file))| (group, file)).collect()
}

/// Whether a log file belongs to the slice of a base file of instant `base`, or of no base file, as of `as_of`.
fn is_on_top(
    log: &LogFile,
    base: Option<&InstantTime>,
    completions: &Completions,
    as_of: Option<&InstantTime>,
    names: LogNames,
) -> bool {
    match names {
        // Which of its blocks count is told by their own instants.
        LogNames::BaseInstant => {
            base.is_none_or(|base| log.instant >= *base) && as_of.is_none_or(|limit| log.instant <= *limit)
        }
        LogNames::OwnInstant => match completions.standing(&log.instant) {
            Standing::Completed(at) => {
                let at = at.unwrap_or_else(|| log.instant.clone());
                base.is_none_or(|base| at >= *base) && as_of.is_none_or(|limit| at <= *limit)
            }
            Standing::NotThere | Standing::Unknown => false,
        },
    }
}

/// Completed replacecommits of the active timeline as of `as_of`: they decide which groups are gone.
///
/// Archived ones need no look: the archiver leaves a replacecommit on the timeline until its files were cleaned.
pub fn completed_replacements<'a>(timeline: &'a Timeline, as_of: Option<&InstantTime>) -> Vec<&'a Instant> {
    let mut writes = timeline.completed_writes();
    writes.retain(|instant| {
        instant.action == Action::ReplaceCommit
            && instant.completed.as_ref().is_some_and(|at| as_of.is_none_or(|limit| at <= limit))
    });
    writes
}

/// The groups that a replacecommit replaced.
pub fn replaced_groups(metadata: &CommitMetadata) -> impl Iterator<Item = GroupKey> + '_ {
    let by_partition = metadata.replaced.iter();
    by_partition.flat_map(|(partition, ids)| ids.iter().map(move |id| (partition.clone(), id.clone())))
}

/// Reads the metadata of completed instants, a bounded number at once; the order is that of the instants.
pub async fn read_metadata(
    storage: &Storage,
    timeline: &Timeline,
    instants: &[&Instant],
) -> Result<Vec<CommitMetadata>> {
    let mut found = Vec::with_capacity(instants.len());
    for chunk in instants.chunks(COMMITS_AT_ONCE) {
        let files = chunk.iter().filter_map(|instant| timeline.completed_path(instant)).collect::<Vec<_>>();
        for (file, bytes) in files.iter().zip(storage.read_all(&files).await?) {
            let bytes = bytes.ok_or_else(|| Error::Gone { file: file.clone() })?;
            found.push(CommitMetadata::decode(file, &bytes)?);
        }
    }
    Ok(found)
}

/// What completed, with the archive asked if any of the files needs it.
pub async fn completions_for(
    storage: &Storage,
    config: &TableConfig,
    timeline: &Timeline,
    files: &DataFiles,
) -> Result<Completions> {
    let completions = Completions::new(timeline);
    // An archiver may pass a savepoint: then only the archive knows of blocks since the one it keeps.
    let hidden = LogNames::of(config) == LogNames::BaseInstant && !timeline.savepoints().is_empty();
    if (hidden && !files.logs.is_empty()) || needs_archive(&completions, files, LogNames::of(config)) {
        return Ok(completions.with_archived(&load_history(storage, config).await?));
    }
    Ok(completions)
}

fn needs_archive(completions: &Completions, files: &DataFiles, names: LogNames) -> bool {
    let kept = completions.keeps_older();
    let asks = |instant: &InstantTime| match completions.standing(instant) {
        Standing::Unknown => true,
        Standing::Completed(None) => kept,
        Standing::Completed(Some(_)) | Standing::NotThere => false,
    };
    if files.bases.iter().any(|file| asks(&file.instant)) {
        return true;
    }
    if names == LogNames::BaseInstant {
        return false;
    }
    let mut newest: HashMap<GroupKey, &InstantTime> = HashMap::new();
    for file in &files.bases {
        newest.entry(file.group()).and_modify(|known| *known = (*known).max(&file.instant)).or_insert(&file.instant);
    }
    files.logs.iter().any(|log| match completions.standing(&log.instant) {
        _ if asks(&log.instant) => true,
        // Requested before a base file of its group: only its completion says on which side of it it belongs.
        Standing::Completed(None) => newest.get(&log.group()).is_some_and(|base| **base > log.instant),
        _ => false,
    })
}

/// The live slices of a table as of this view of its timeline.
pub async fn current_file_slices(
    storage: &Storage,
    config: &TableConfig,
    timeline: &Timeline,
) -> Result<Vec<FileSlice>> {
    let files = list_files(storage, config, timeline).await?;
    let completions = completions_for(storage, config, timeline, &files).await?;
    let replacements = completed_replacements(timeline, None);
    let metadata = read_metadata(storage, timeline, &replacements).await?;
    let replaced = metadata.iter().flat_map(replaced_groups).collect();
    let slices = select_slices(files, &completions, &replaced, None, LogNames::of(config));
    match slices.iter().find_map(|slice| slice.logs.first()) {
        Some(log) if config.table_type == TableType::CopyOnWrite => {
            Err(Error::corrupt(&log.path, "a log file in a COPY_ON_WRITE table"))
        }
        _ => Ok(slices),
    }
}

/// The base files of a copy-on-write table as of this view of its timeline: the newest committed one of each group.
pub async fn current_slices(storage: &Storage, config: &TableConfig, timeline: &Timeline) -> Result<Vec<BaseFile>> {
    let slices = current_file_slices(storage, config, timeline).await?;
    Ok(slices.into_iter().filter_map(|slice| slice.base).collect())
}

#[cfg(test)]
mod histories;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u32) -> InstantTime {
        format!("202501010000{second:02}000").parse().unwrap()
    }

    fn file(file_id: &str, second: u32) -> BaseFile {
        BaseFile::from_path(&format!("p/{file_id}_0-0-0_{}.parquet", at(second)), 1).unwrap().unwrap()
    }

    fn log(file_id: &str, second: u32) -> LogFile {
        LogFile::from_path(&format!("p/.{file_id}_{}.log.1_0-0-0", at(second)), 1).unwrap()
    }

    fn timeline(names: &[String]) -> Timeline {
        Timeline::from_names("d", 2, names.iter().map(String::as_str))
    }

    fn commit(requested: u32, completed: u32) -> String {
        format!("{}_{}.commit", at(requested), at(completed))
    }

    /// `group@base:logs`, instants by their seconds.
    fn paths(slices: &[FileSlice]) -> Vec<String> {
        let second = |instant: &InstantTime| instant.as_str()[12..14].to_string();
        let name = |slice: &FileSlice| {
            let base = slice.base.as_ref().map_or("-".to_string(), |base| second(&base.instant));
            let logs: Vec<String> = slice.logs.iter().map(|log| second(&log.instant)).collect();
            format!("{}@{base}{}{}", slice.group.1, if logs.is_empty() { "" } else { ":" }, logs.join(","))
        };
        slices.iter().map(name).collect()
    }

    fn select(bases: Vec<BaseFile>, completions: &Completions, as_of: Option<&InstantTime>) -> Vec<String> {
        let files = DataFiles { bases, logs: Vec::new() };
        paths(&select_slices(files, completions, &HashSet::new(), as_of, LogNames::OwnInstant))
    }

    #[test]
    fn a_base_file_says_its_partition_group_and_instant() {
        let path = "a=1/b=2/9f0e-1_3-40-7_20250101000001000.parquet";
        let file = BaseFile::from_path(path, 7).unwrap().unwrap();
        assert_eq!((file.partition.as_str(), file.file_id.as_str()), ("a=1/b=2", "9f0e-1"));
        assert_eq!((file.instant, file.path.as_str(), file.bytes), (at(1), path, 7));
        assert_eq!(BaseFile::from_path("a=1/part-0.parquet", 7).unwrap(), None);
        assert_eq!(BaseFile::from_path("a=1/.hoodie_partition_metadata", 7).unwrap(), None);
    }

    #[test]
    fn what_was_archived_past_a_savepoint_is_newer_than_what_the_savepoint_keeps() {
        let names = [commit(1, 2), format!("{}_{}.savepoint", at(1), at(7)), commit(8, 9)];
        let completions = Completions::new(&timeline(&names));
        let files = || DataFiles { bases: vec![file("a", 1), file("a", 3), file("b", 8)], logs: Vec::new() };
        assert!(needs_archive(&completions, &files(), LogNames::OwnInstant), "only it says that 3 came after 1");
        let archived =
            ArchivedInstant { requested: at(3), completed: Some(at(4)), action: crate::timeline::Action::Commit };
        let told = completions.with_archived(&[archived]);
        assert_eq!(select(files().bases, &told, None), ["a@03", "b@08"]);
        let without = Completions::new(&timeline(&[commit(1, 2), commit(8, 9)]));
        let older = DataFiles { bases: vec![file("b", 8)], logs: Vec::new() };
        assert!(!needs_archive(&without, &older, LogNames::OwnInstant));
    }

    #[test]
    fn an_external_file_is_refused_by_name() {
        let refused = BaseFile::from_path("p/part-0.parquet_20250101000001000_hudiext", 1).unwrap_err();
        assert!(refused.to_string().contains("part-0.parquet"), "{refused}");
    }

    #[test]
    fn the_newest_file_by_completion_wins_and_pending_ones_do_not_count() {
        let names = [commit(2, 9), commit(3, 4), format!("{}.commit.requested", at(5))];
        let completions = Completions::new(&timeline(&names));
        let files = vec![file("a", 2), file("a", 3), file("a", 5), file("b", 1), file("b", 3), file("c", 1)];
        // Instant 2 was requested before 3 and completed after it.
        assert_eq!(select(files.clone(), &completions, None), ["a@02", "b@03", "c@01"]);
        assert_eq!(select(files, &completions, Some(&at(4))), ["a@03", "b@03", "c@01"]);
    }

    #[test]
    fn replaced_groups_are_gone() {
        let completions = Completions::new(&timeline(&[commit(2, 3)]));
        let replaced = HashSet::from([("p".to_string(), "a".to_string())]);
        let files = DataFiles { bases: vec![file("a", 2), file("b", 2)], logs: vec![log("a", 2)] };
        let slices = select_slices(files, &completions, &replaced, None, LogNames::OwnInstant);
        assert_eq!(paths(&slices), ["b@02"]);
    }

    /// Insert 1–2; delta 3–4; compaction requested at 5; deltas 6–7 and 8–20; the compaction completes at 10.
    fn compacted() -> (DataFiles, Completions) {
        let delta = |requested: u32, completed: u32| format!("{}_{}.deltacommit", at(requested), at(completed));
        let names = [delta(1, 2), delta(3, 4), commit(5, 10), delta(6, 7), delta(8, 20)];
        let logs = vec![log("a", 8), log("a", 3), log("a", 6), log("b", 6), log("a", 9)];
        (DataFiles { bases: vec![file("a", 1), file("a", 5)], logs }, Completions::new(&timeline(&names)))
    }

    #[test]
    fn logs_come_on_top_of_the_base_file_that_they_were_written_for() {
        let (files, completions) = compacted();
        let as_of = |second| {
            let limit = at(second);
            paths(&select_slices(files.clone(), &completions, &HashSet::new(), Some(&limit), LogNames::OwnInstant))
        };
        assert_eq!(as_of(2), ["a@01"]);
        assert_eq!(as_of(4), ["a@01:03"]);
        // The compaction is under way: what it takes in and what comes after it are both on top of the old file.
        assert_eq!(as_of(7), ["a@01:03,06", "b@-:06"]);
        assert_eq!(as_of(10), ["a@05:06", "b@-:06"]);
        // Instant 9 never was; instant 8 completed at 20.
        assert_eq!(as_of(20), ["a@05:06,08", "b@-:06"]);
    }

    #[test]
    fn before_version_eight_the_name_of_a_log_says_its_base_file() {
        let (files, completions) = compacted();
        let logs = vec![log("a", 1), log("a", 5)];
        let files = DataFiles { logs, ..files };
        let as_of = |second| {
            let limit = at(second);
            paths(&select_slices(files.clone(), &completions, &HashSet::new(), Some(&limit), LogNames::BaseInstant))
        };
        assert_eq!(as_of(4), ["a@01:01"]);
        assert_eq!(as_of(7), ["a@01:01,05"], "the compaction of instant 5 is under way");
        assert_eq!(as_of(10), ["a@05:05"]);
    }

    #[test]
    fn blocks_count_by_the_completion_of_their_own_instant() {
        let names = [commit(2, 9), commit(3, 4), format!("{}.commit.requested", at(5))];
        let completions = Completions::new(&timeline(&names));
        let counted = completions.counted_blocks(Some(&at(4)));
        assert_eq!((counted.before, counted.listed), (Some(at(2)), vec![at(3)]));
        assert_eq!(completions.counted_blocks(None).listed, [at(2), at(3)]);
    }

    #[test]
    fn an_archived_log_that_was_requested_before_a_base_file_needs_the_archive() {
        let completions = Completions::new(&timeline(&[commit(20, 21)]));
        let files = |logs| DataFiles { bases: vec![file("a", 5)], logs };
        assert!(!needs_archive(&completions, &files(vec![log("a", 6), log("b", 4)]), LogNames::OwnInstant));
        let older = files(vec![log("a", 4)]);
        assert!(needs_archive(&completions, &older, LogNames::OwnInstant));
        assert!(!needs_archive(&completions, &older, LogNames::BaseInstant));
        for (completed, expected) in [(4, "a@05"), (6, "a@05:04")] {
            let archived = ArchivedInstant {
                requested: at(4),
                completed: Some(at(completed)),
                action: crate::timeline::Action::DeltaCommit,
            };
            let completions = completions.clone().with_archived(&[archived]);
            let slices = select_slices(older.clone(), &completions, &HashSet::new(), None, LogNames::OwnInstant);
            assert_eq!(paths(&slices), [expected]);
        }
    }

    #[test]
    fn an_instant_past_a_savepoint_is_looked_up_in_the_archive() {
        let names = [commit(1, 2), format!("{}_{}.savepoint", at(1), at(3)), commit(7, 8), commit(20, 21)];
        let completions = Completions::new(&timeline(&names));
        // The savepoint holds instant 1; the timeline starts at 7.
        assert_eq!(completions.standing(&at(1)), Standing::Completed(Some(at(2))));
        assert_eq!(completions.standing(&at(4)), Standing::Completed(None));
        assert_eq!(completions.standing(&at(10)), Standing::Unknown);
        assert_eq!(completions.standing(&at(30)), Standing::NotThere);
        let archived =
            ArchivedInstant { requested: at(10), completed: Some(at(11)), action: crate::timeline::Action::Commit };
        let completions = completions.with_archived(&[archived]);
        assert_eq!(completions.standing(&at(10)), Standing::Completed(Some(at(11))));
        assert_eq!(completions.standing(&at(12)), Standing::NotThere);
    }

    #[test]
    fn a_table_without_instants_has_no_file() {
        let completions = Completions::new(&timeline(&[]));
        assert_eq!(completions.standing(&at(1)), Standing::NotThere);
        assert!(select(vec![file("a", 1)], &completions, None).is_empty());
    }
}
