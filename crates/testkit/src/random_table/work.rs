// SPDX-License-Identifier: Apache-2.0
//! What a random table does next.

use std::collections::{BTreeMap, BTreeSet};

use tributary_hudi::GroupKey;
use tributary_types::InstantTime;
use tributary_types::pipeline::TableType;

use super::{Effects, RandomTable, Record};

/// What becomes of the row of a key: its record, with a commit time where it keeps an older one; `None`: it goes.
pub(super) type Change = Option<(Record, Option<InstantTime>)>;

/// One file that is written.
#[derive(Debug, Clone, Default)]
pub(super) struct Written {
    pub(super) group: GroupKey,
    /// A log of the changes alone; else a base file of every row of the group.
    pub(super) log: bool,
    pub(super) changes: BTreeMap<String, Change>,
}

/// A write or a table service.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) requested: InstantTime,
    pub(super) action: &'static str,
    pub(super) operation: &'static str,
    pub(super) files: Vec<Written>,
    pub(super) replaces: Vec<GroupKey>,
    pub(super) compacts: BTreeSet<GroupKey>,
    pub(super) effects: Effects,
    pub(super) notes: Vec<&'static str>,
}

impl Default for Work {
    fn default() -> Self {
        Work {
            requested: InstantTime::init(),
            action: "",
            operation: "",
            files: Vec::new(),
            replaces: Vec::new(),
            compacts: BTreeSet::new(),
            effects: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl Work {
    pub(super) fn is_service(&self) -> bool {
        matches!(self.operation, "CLUSTER" | "COMPACT")
    }

    /// Whether others may complete while it is under way.
    pub(super) fn may_wait(&self) -> bool {
        matches!(self.operation, "UPSERT" | "COMPACT")
    }

    /// Groups that no other write may touch meanwhile. What is compacted may be appended to.
    pub(super) fn touched(&self) -> impl Iterator<Item = &GroupKey> {
        let written = self.files.iter().map(|file| &file.group).filter(|group| !self.compacts.contains(*group));
        written.chain(&self.replaces)
    }
}

fn path_of(part: &str) -> String {
    format!("part={part}")
}

impl RandomTable {
    /// Updates, deletes and moves some records of some groups, and inserts some.
    pub(super) fn plan_write(&mut self, inserts: u64) -> Option<Work> {
        let mut files: BTreeMap<GroupKey, BTreeMap<String, Change>> = BTreeMap::new();
        let (mut effects, mut notes, mut moved) = (Vec::new(), vec!["write"], Vec::new());
        for group in self.free_groups(false) {
            if self.below(2) == 0 {
                continue;
            }
            let rows: Vec<Record> = self.groups[&group].rows.values().map(|(record, _)| record.clone()).collect();
            for old in rows {
                let change = match self.below(8) {
                    0 | 1 => Some(Some(self.record(&old.id, &old.part))),
                    2 => {
                        notes.push("delete");
                        Some(None)
                    }
                    3 => {
                        let part = self.partition();
                        if part == old.part {
                            continue;
                        }
                        notes.push("move");
                        moved.push(self.record(&old.id, &part));
                        Some(None)
                    }
                    _ => None,
                };
                let Some(change) = change else { continue };
                effects.push(((old.part.clone(), old.id.clone()), change.clone()));
                let row = change.map(|record| (record, None));
                files.entry(group.clone()).or_default().insert(old.id, row);
            }
        }
        let mut keys = self.free_keys();
        for _ in 0..inserts {
            let Some(id) = self.pick(&keys) else { break };
            keys.retain(|key| *key != id);
            let part = self.partition();
            moved.push(self.record(&id, &part));
        }
        let free = self.free_groups(false);
        for record in moved {
            let path = path_of(&record.part);
            effects.push(((record.part.clone(), record.id.clone()), Some(record.clone())));
            let open: Vec<GroupKey> = free.iter().chain(files.keys()).filter(|(p, _)| *p == path).cloned().collect();
            let group = match self.below(3) {
                0 => None,
                _ => self.pick(&open),
            };
            let group = group.unwrap_or_else(|| self.new_group(&path));
            files.entry(group).or_default().insert(record.id.clone(), Some((record, None)));
        }
        let append = self.table_type == TableType::MergeOnRead;
        let written = files.into_iter().map(|(group, changes)| {
            let log = append && self.groups.contains_key(&group);
            Written { group, log, changes }
        });
        let files: Vec<Written> = written.collect();
        let action = if append { "deltacommit" } else { "commit" };
        (!files.is_empty()).then(|| Work { action, operation: "UPSERT", files, effects, notes, ..Work::default() })
    }

    /// Replaces all that a partition has.
    pub(super) fn plan_overwrite(&mut self) -> Option<Work> {
        let mut work = self.replace_partition("INSERT_OVERWRITE", "overwrite")?;
        let part = work.replaces.first()?.0.trim_start_matches("part=").to_string();
        let mut keys = self.free_keys();
        // Some records come again.
        keys.extend(work.effects.iter().map(|((_, id), _)| id.clone()));
        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        for _ in 0..1 + self.below(4) {
            let id = self.pick(&keys)?;
            keys.retain(|key| *key != id);
            let record = self.record(&id, &part);
            work.effects.push(((part.clone(), id.clone()), Some(record.clone())));
            changes.insert(id, Some((record, None)));
        }
        let group = self.new_group(&path_of(&part));
        work.files.push(Written { group, log: false, changes });
        Some(work)
    }

    /// Takes a partition away.
    pub(super) fn plan_delete_partition(&mut self) -> Option<Work> {
        self.replace_partition("DELETE_PARTITION", "delete partition")
    }

    fn replace_partition(&mut self, operation: &'static str, note: &'static str) -> Option<Work> {
        let part = self.partition();
        let path = path_of(&part);
        let all: Vec<GroupKey> = self.groups.keys().filter(|(p, _)| *p == path).cloned().collect();
        let free = self.free_groups(true);
        if all.is_empty() || all.iter().any(|group| !free.contains(group)) {
            return None;
        }
        let rows = all.iter().flat_map(|group| self.groups[group].rows.keys());
        let effects = rows.map(|id| ((part.clone(), id.clone()), None)).collect();
        let notes = vec![note];
        Some(Work { action: "replacecommit", operation, replaces: all, effects, notes, ..Work::default() })
    }

    /// Puts the rows of some groups of a partition into new ones.
    pub(super) fn plan_clustering(&mut self) -> Option<Work> {
        let path = path_of(&self.partition());
        let mut groups: Vec<GroupKey> = self.free_groups(true).into_iter().filter(|(p, _)| *p == path).collect();
        groups.truncate(1 + self.below(3) as usize);
        let rows = groups.iter().flat_map(|group| self.groups[group].rows.clone());
        let rows: Vec<(String, Change)> = rows.map(|(id, (record, time))| (id, Some((record, Some(time))))).collect();
        if rows.is_empty() {
            return None;
        }
        let mut files: Vec<Written> = Vec::new();
        for _ in 0..1 + self.below(2) {
            files.push(Written { group: self.new_group(&path), ..Written::default() });
        }
        for (id, change) in rows {
            let at = self.below(files.len() as u64) as usize;
            files[at].changes.insert(id, change);
        }
        let notes = vec!["clustering"];
        Some(Work { action: "replacecommit", operation: "CLUSTER", files, replaces: groups, notes, ..Work::default() })
    }

    /// Makes a base file of a group and its logs.
    pub(super) fn plan_compaction(&mut self) -> Option<Work> {
        let mut groups = self.free_groups(true);
        groups.retain(|group| self.groups[group].logs > 0);
        let group = self.pick(&groups)?;
        let rows = self.groups[&group].rows.clone().into_iter();
        let changes = rows.map(|(id, (record, time))| (id, Some((record, Some(time))))).collect();
        let files = vec![Written { group: group.clone(), log: false, changes }];
        let (compacts, notes) = (BTreeSet::from([group]), vec!["compaction"]);
        Some(Work { action: "commit", operation: "COMPACT", files, compacts, notes, ..Work::default() })
    }

    fn new_group(&mut self, path: &str) -> GroupKey {
        self.fresh += 1;
        (path.to_string(), format!("00000000-0000-0000-0000-{:012}-0", self.fresh))
    }
}
