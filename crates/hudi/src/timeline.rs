// SPDX-License-Identifier: Apache-2.0
//! The active timeline: which instants there are and how far each came.
//!
//! One listing is one view. Completion times exist only in file names (layout 2), so no file is opened for it.

use std::collections::{BTreeMap, BTreeSet};

use tributary_types::InstantTime;

use crate::config::TableConfig;
use crate::error::Result;
use crate::storage::{Entry, Storage};

/// What an instant does to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A write of base files.
    Commit,
    /// A write that may leave log files.
    DeltaCommit,
    /// A write that replaces file groups: overwrites, partition deletes, clustering.
    ReplaceCommit,
    /// A pending compaction; completes as [`Action::Commit`].
    Compaction,
    /// A pending compaction of logs; completes as [`Action::DeltaCommit`].
    LogCompaction,
    /// A pending clustering; completes as [`Action::ReplaceCommit`].
    Clustering,
    /// Removal of old file versions.
    Clean,
    /// Removal of what a dead instant left.
    Rollback,
    /// Return to an earlier state.
    Restore,
    /// A state that the cleaner must keep.
    Savepoint,
    /// Building of an index.
    Indexing,
}

impl Action {
    /// The name in file names.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Commit => "commit",
            Action::DeltaCommit => "deltacommit",
            Action::ReplaceCommit => "replacecommit",
            Action::Compaction => "compaction",
            Action::LogCompaction => "logcompaction",
            Action::Clustering => "clustering",
            Action::Clean => "clean",
            Action::Rollback => "rollback",
            Action::Restore => "restore",
            Action::Savepoint => "savepoint",
            Action::Indexing => "indexing",
        }
    }

    /// The action of a name in a file name.
    pub fn parse(name: &str) -> Option<Self> {
        const ALL: [Action; 11] = [
            Action::Commit,
            Action::DeltaCommit,
            Action::ReplaceCommit,
            Action::Compaction,
            Action::LogCompaction,
            Action::Clustering,
            Action::Clean,
            Action::Rollback,
            Action::Restore,
            Action::Savepoint,
            Action::Indexing,
        ];
        ALL.into_iter().find(|action| action.as_str() == name)
    }

    /// What the action is called once it completed.
    pub fn completed(self) -> Self {
        match self {
            Action::Compaction => Action::Commit,
            Action::LogCompaction => Action::DeltaCommit,
            Action::Clustering => Action::ReplaceCommit,
            other => other,
        }
    }

    /// Whether it changes which files hold the table's rows, table services included.
    pub fn writes_files(self) -> bool {
        matches!(self.completed(), Action::Commit | Action::DeltaCommit | Action::ReplaceCommit)
    }
}

/// One instant of the active timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instant {
    /// Requested time: its identity.
    pub requested: InstantTime,
    /// What it does; the completed action once it completed.
    pub action: Action,
    /// When it completed; `None` while pending. On layout 1, which has no completion times, the requested time.
    pub completed: Option<InstantTime>,
    /// Whether its `.requested` file is there.
    pub has_requested: bool,
    /// Whether its `.inflight` file is there.
    pub has_inflight: bool,
}

impl Instant {
    /// Whether it is pending.
    pub fn is_pending(&self) -> bool {
        self.completed.is_none()
    }
}

/// The active timeline as one listing showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    directory: String,
    layout: u32,
    instants: Vec<Instant>,
    savepoints: Vec<InstantTime>,
}

impl Timeline {
    /// Lists the timeline of a table.
    pub async fn load(storage: &Storage, config: &TableConfig) -> Result<Self> {
        let directory = config.timeline_dir();
        let (files, _) = storage.list_level(&directory).await?;
        Ok(Self::from_names(&directory, config.layout, files.iter().map(Entry::name)))
    }

    /// Interprets the file names of a timeline directory; other files are passed over.
    pub fn from_names<'a>(directory: &str, layout: u32, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut found: BTreeMap<InstantTime, Instant> = BTreeMap::new();
        let mut savepoints = BTreeSet::new();
        for name in names {
            let Some(file) = parse_name(layout, name) else { continue };
            // A savepoint has the requested time of the write that it keeps, and must not hide it.
            if file.action == Action::Savepoint {
                savepoints.insert(file.requested);
                continue;
            }
            let instant = found.entry(file.requested.clone()).or_insert_with(|| Instant {
                requested: file.requested.clone(),
                action: file.action,
                completed: None,
                has_requested: false,
                has_inflight: false,
            });
            match file.state {
                FileState::Requested => instant.has_requested = true,
                FileState::Inflight => instant.has_inflight = true,
                FileState::Completed(at) => {
                    instant.completed = Some(at);
                    instant.action = file.action;
                }
            }
            // `<t>.inflight` alone does not say which action it is: the other files of the instant do.
            if instant.completed.is_none() && !file.bare_inflight {
                instant.action = file.action;
            }
        }
        Timeline {
            directory: directory.to_string(),
            layout,
            instants: found.into_values().collect(),
            savepoints: savepoints.into_iter().collect(),
        }
    }

    /// Requested times of the writes that a savepoint keeps, in order.
    pub fn savepoints(&self) -> &[InstantTime] {
        &self.savepoints
    }

    /// Every instant but savepoints, by requested time.
    pub fn instants(&self) -> &[Instant] {
        &self.instants
    }

    /// The instant of a requested time.
    pub fn find(&self, requested: &InstantTime) -> Option<&Instant> {
        self.instants.binary_search_by(|instant| instant.requested.cmp(requested)).ok().map(|at| &self.instants[at])
    }

    /// Completed instants that write files, in order of completion.
    pub fn completed_writes(&self) -> Vec<&Instant> {
        let mut writes: Vec<&Instant> =
            self.instants.iter().filter(|instant| !instant.is_pending() && instant.action.writes_files()).collect();
        writes.sort_by(|a, b| (&a.completed, &a.requested).cmp(&(&b.completed, &b.requested)));
        writes
    }

    /// Pending instants that write files, by requested time.
    pub fn pending_writes(&self) -> impl Iterator<Item = &Instant> {
        self.instants.iter().filter(|instant| instant.is_pending() && instant.action.writes_files())
    }

    /// The earliest instant of the active timeline, whatever its state.
    pub fn earliest(&self) -> Option<&InstantTime> {
        self.instants.first().map(|instant| &instant.requested)
    }

    /// The latest time on the timeline, requested or completed.
    pub fn latest_time(&self) -> Option<&InstantTime> {
        self.instants.iter().flat_map(|instant| instant.completed.iter().chain([&instant.requested])).max()
    }

    /// Whether a data file of this instant belongs to the table: the instant completed, or it is older than the
    /// active timeline and so was archived. Writes that a savepoint keeps there while later ones are archived are not where
    /// the timeline starts.
    pub fn is_committed(&self, requested: &InstantTime) -> bool {
        match self.find(requested) {
            Some(instant) => !instant.is_pending(),
            None => {
                let is_kept = |instant: &&Instant| self.savepoints.binary_search(&instant.requested).is_ok();
                let start = self.instants.iter().find(|instant| !is_kept(instant));
                start.is_none_or(|start| *requested < start.requested)
            }
        }
    }

    /// The layout: 1 up to table version 7, 2 from 8 on.
    pub fn layout(&self) -> u32 {
        self.layout
    }

    /// Path of the file that says what an instant is going to do.
    pub fn plan_path(&self, instant: &Instant) -> String {
        requested_path(&self.directory, &instant.requested, instant.action)
    }

    /// Path of the file that holds an instant's completed metadata.
    pub fn completed_path(&self, instant: &Instant) -> Option<String> {
        let completed = instant.completed.as_ref()?;
        let action = instant.action.as_str();
        Some(match self.layout {
            1 => format!("{}/{}.{action}", self.directory, instant.requested),
            _ => format!("{}/{}_{completed}.{action}", self.directory, instant.requested),
        })
    }
}

/// Path of an instant's `.requested` file, relative to the table.
pub fn requested_path(directory: &str, requested: &InstantTime, action: Action) -> String {
    format!("{directory}/{requested}.{}.requested", action.as_str())
}

/// Path of an instant's `.inflight` file, relative to the table: a commit's has no action in its name.
pub fn inflight_path(directory: &str, requested: &InstantTime, action: Action) -> String {
    match action {
        Action::Commit => format!("{directory}/{requested}.inflight"),
        other => format!("{directory}/{requested}.{}.inflight", other.as_str()),
    }
}

/// Path of a completed instant's file on layout 2, relative to the table.
pub fn completed_path(directory: &str, requested: &InstantTime, completed: &InstantTime, action: Action) -> String {
    format!("{directory}/{requested}_{completed}.{}", action.as_str())
}

enum FileState {
    Requested,
    Inflight,
    Completed(InstantTime),
}

struct InstantFile {
    requested: InstantTime,
    action: Action,
    state: FileState,
    bare_inflight: bool,
}

fn parse_name(layout: u32, name: &str) -> Option<InstantFile> {
    let (stem, rest) = name.split_once('.')?;
    if let Some((requested, completed)) = stem.split_once('_') {
        if layout == 1 {
            return None;
        }
        let state = FileState::Completed(completed.parse().ok()?);
        let action = Action::parse(rest)?;
        return Some(InstantFile { requested: requested.parse().ok()?, action, state, bare_inflight: false });
    }
    let requested: InstantTime = stem.parse().ok()?;
    let (action, state, bare_inflight) = match rest.split_once('.') {
        None if rest == "inflight" => (Action::Commit, FileState::Inflight, true),
        None if layout == 1 => (Action::parse(rest)?, FileState::Completed(requested.clone()), false),
        None => return None,
        Some((action, "requested")) => (Action::parse(action)?, FileState::Requested, false),
        Some((action, "inflight")) => (Action::parse(action)?, FileState::Inflight, false),
        Some(_) => return None,
    };
    Some(InstantFile { requested, action, state, bare_inflight })
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: &str = "20250101000000001";
    const T2: &str = "20250101000000002";
    const T3: &str = "20250101000000003";
    const T9: &str = "20250101000000009";

    fn timeline(names: &[&str]) -> Timeline {
        Timeline::from_names("d", 2, names.iter().copied())
    }

    fn at(text: &str) -> InstantTime {
        text.parse().unwrap()
    }

    #[test]
    fn an_instant_is_completed_once_its_completed_file_is_there() {
        let timeline = timeline(&[
            "20250101000000001.commit.requested",
            "20250101000000001.inflight",
            "20250101000000001_20250101000000009.commit",
            "20250101000000002.commit.requested",
            "20250101000000002.inflight",
            "hoodie.properties",
            "history",
        ]);
        let first = timeline.find(&at(T1)).unwrap();
        assert_eq!(first.completed, Some(at(T9)));
        assert_eq!(timeline.completed_path(first).unwrap(), format!("d/{T1}_{T9}.commit"));
        assert!(timeline.find(&at(T2)).unwrap().is_pending());
        assert_eq!(timeline.latest_time(), Some(&at(T9)));
    }

    #[test]
    fn what_was_archived_past_a_savepoint_belongs_to_the_table() {
        let kept = ["20250101000000001_20250101000000002.commit", "20250101000000001_20250101000000009.savepoint"];
        let later = "20250101000000009_20250101000000010.commit";
        let past = timeline(&[kept[0], kept[1], later]);
        assert!(past.is_committed(&at(T1)) && past.is_committed(&at(T3)), "archived, though an earlier one is there");
        assert!(past.is_committed(&at(T9)) && !past.is_committed(&at("20250101000000011")));
        assert!(!timeline(&[kept[0], later]).is_committed(&at(T3)), "nothing kept the first one there");
    }

    #[test]
    fn a_clustering_completes_as_a_replacecommit() {
        let timeline = timeline(&[
            "20250101000000001.clustering.requested",
            "20250101000000001.clustering.inflight",
            "20250101000000001_20250101000000009.replacecommit",
        ]);
        assert_eq!(timeline.instants()[0].action, Action::ReplaceCommit);
        assert_eq!(Action::Clustering.completed(), Action::ReplaceCommit);
    }

    #[test]
    fn a_savepoint_does_not_hide_the_write_it_keeps() {
        let timeline = timeline(&[
            "20250101000000001_20250101000000002.savepoint",
            "20250101000000001_20250101000000009.commit",
            "20250101000000001.savepoint.inflight",
        ]);
        assert_eq!(timeline.savepoints(), [at(T1)]);
        assert_eq!(timeline.completed_writes().len(), 1);
        assert_eq!(timeline.instants()[0].completed, Some(at(T9)));
    }

    #[test]
    fn completed_writes_come_in_order_of_completion() {
        let timeline = timeline(&[
            "20250101000000001_20250101000000009.commit",
            "20250101000000002_20250101000000003.commit",
            "20250101000000004_20250101000000005.clean",
        ]);
        let order: Vec<&str> = timeline.completed_writes().iter().map(|i| i.requested.as_str()).collect();
        assert_eq!(order, [T2, T1]);
    }

    #[test]
    fn a_file_is_committed_when_its_instant_completed_or_is_older_than_the_timeline() {
        let timeline = timeline(&["20250101000000002_20250101000000009.commit", "20250101000000003.commit.requested"]);
        assert!(timeline.is_committed(&at(T1)));
        assert!(timeline.is_committed(&at(T2)));
        assert!(!timeline.is_committed(&at(T3)));
        assert!(!timeline.is_committed(&at(T9)));
    }

    #[test]
    fn layout_one_has_no_completion_time_but_the_requested_one() {
        let timeline =
            Timeline::from_names("d", 1, ["20250101000000001.commit", "20250101000000002.deltacommit.inflight"]);
        assert_eq!(timeline.instants()[0].completed, Some(at(T1)));
        assert_eq!(timeline.completed_path(&timeline.instants()[0]).unwrap(), format!("d/{T1}.commit"));
        assert!(timeline.instants()[1].is_pending());
    }

    #[test]
    fn layout_one_names_a_pending_replacement_by_its_action() {
        let names = ["20250101000000001.replacecommit.requested", "20250101000000001.replacecommit.inflight"];
        let timeline = Timeline::from_names("d", 1, names);
        let instant = &timeline.instants()[0];
        assert_eq!((instant.action, instant.is_pending()), (Action::ReplaceCommit, true));
        assert_eq!(timeline.plan_path(instant), format!("d/{T1}.replacecommit.requested"));
    }

    #[test]
    fn the_inflight_of_a_commit_has_no_action_in_its_name() {
        assert_eq!(inflight_path("d", &at(T1), Action::Commit), format!("d/{T1}.inflight"));
        assert_eq!(inflight_path("d", &at(T1), Action::DeltaCommit), format!("d/{T1}.deltacommit.inflight"));
        assert_eq!(requested_path("d", &at(T1), Action::Commit), format!("d/{T1}.commit.requested"));
    }
}
