// SPDX-License-Identifier: Apache-2.0
//! File slices of a copy-on-write table: which base file is each file group's, as of an instant.
//!
//! A file belongs to the table when its instant completed, or left the active timeline because it was archived. A
//! group's file is its newest by completion. Groups that a completed replacecommit replaced are gone, even while
//! their files wait for the cleaner.

use std::collections::{BTreeMap, HashMap, HashSet};

use tributary_types::InstantTime;

use crate::base_file::parse_base_file_name;
use crate::commit::CommitMetadata;
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::history::{ArchivedInstant, load_history};
use crate::listing::list_base_files;
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

/// The newest base file of a live file group.
pub type FileSlice = BaseFile;

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
    /// It completed; `None`: before everything that is on the active timeline.
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
        if requested < start {
            return Standing::Completed(None);
        }
        if requested > latest {
            return Standing::NotThere;
        }
        match &self.archived {
            None => Standing::Unknown,
            Some(archived) if archived.contains_key(requested) => Standing::Completed(None),
            Some(_) => Standing::NotThere,
        }
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

/// The newest committed base file of each live group as of `as_of`, by partition and group.
pub fn select_slices(
    files: Vec<BaseFile>,
    completions: &Completions,
    replaced: &HashSet<GroupKey>,
    as_of: Option<&InstantTime>,
) -> Vec<FileSlice> {
    let mut newest: BTreeMap<GroupKey, (Option<InstantTime>, BaseFile)> = BTreeMap::new();
    for file in files {
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
    newest.into_values().map(|(_, file)| file).collect()
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
    files: &[BaseFile],
) -> Result<Completions> {
    let completions = Completions::new(timeline);
    if files.iter().any(|file| completions.standing(&file.instant) == Standing::Unknown) {
        return Ok(completions.with_archived(&load_history(storage, config).await?));
    }
    Ok(completions)
}

/// The table's file slices as of this view of its timeline: the newest committed base file of each live group.
pub async fn current_slices(storage: &Storage, config: &TableConfig, timeline: &Timeline) -> Result<Vec<FileSlice>> {
    let files = list_base_files(storage, config, timeline).await?;
    let completions = completions_for(storage, config, timeline, &files).await?;
    let replacements = completed_replacements(timeline, None);
    let metadata = read_metadata(storage, timeline, &replacements).await?;
    let replaced = metadata.iter().flat_map(replaced_groups).collect();
    Ok(select_slices(files, &completions, &replaced, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u32) -> InstantTime {
        format!("202501010000{second:02}000").parse().unwrap()
    }

    fn file(file_id: &str, second: u32) -> BaseFile {
        BaseFile::from_path(&format!("p/{file_id}_0-0-0_{}.parquet", at(second)), 1).unwrap().unwrap()
    }

    fn timeline(names: &[String]) -> Timeline {
        Timeline::from_names("d", 2, names.iter().map(String::as_str))
    }

    fn commit(requested: u32, completed: u32) -> String {
        format!("{}_{}.commit", at(requested), at(completed))
    }

    fn paths(slices: &[FileSlice]) -> Vec<String> {
        slices.iter().map(|slice| format!("{}@{}", slice.file_id, &slice.instant.as_str()[12..14])).collect()
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
    fn an_external_file_is_refused_by_name() {
        let refused = BaseFile::from_path("p/part-0.parquet_20250101000001000_hudiext", 1).unwrap_err();
        assert!(refused.to_string().contains("part-0.parquet"), "{refused}");
    }

    #[test]
    fn the_newest_file_by_completion_wins_and_pending_ones_do_not_count() {
        let names = [commit(2, 9), commit(3, 4), format!("{}.commit.requested", at(5))];
        let completions = Completions::new(&timeline(&names));
        let files = vec![file("a", 2), file("a", 3), file("a", 5), file("b", 1), file("b", 3), file("c", 1)];
        let now = select_slices(files.clone(), &completions, &HashSet::new(), None);
        assert_eq!(paths(&now), ["a@02", "b@03", "c@01"]);
        let before = select_slices(files, &completions, &HashSet::new(), Some(&at(4)));
        assert_eq!(paths(&before), ["a@03", "b@03", "c@01"]);
    }

    #[test]
    fn replaced_groups_are_gone() {
        let completions = Completions::new(&timeline(&[commit(2, 3)]));
        let replaced = HashSet::from([("p".to_string(), "a".to_string())]);
        let slices = select_slices(vec![file("a", 2), file("b", 2)], &completions, &replaced, None);
        assert_eq!(paths(&slices), ["b@02"]);
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
        assert_eq!(completions.standing(&at(10)), Standing::Completed(None));
        assert_eq!(completions.standing(&at(12)), Standing::NotThere);
    }

    #[test]
    fn a_table_without_instants_has_no_file() {
        let completions = Completions::new(&timeline(&[]));
        assert_eq!(completions.standing(&at(1)), Standing::NotThere);
        assert!(select_slices(vec![file("a", 1)], &completions, &HashSet::new(), None).is_empty());
    }
}
