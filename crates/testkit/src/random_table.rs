// SPDX-License-Identifier: Apache-2.0
//! Tables with random histories, and what must be in them.
//!
//! Writes insert, update and delete records and move them to other partitions; partitions are overwritten and deleted;
//! groups are clustered and, where there are logs, compacted; writes are pending while others complete, and some die and
//! leave files behind. Every file is a real one, so that whoever reads the table reads it as any other.

mod files;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use tributary_hudi::{GroupKey, Storage, Stores};
use tributary_types::InstantTime;
use tributary_types::pipeline::TableType;

use work::Work;

/// Keys that there are in all: few, so that deleted ones come back.
const KEYS: u64 = 24;
/// Partitions.
const PARTITIONS: u64 = 3;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Its key.
    pub id: String,
    /// Its partition: the value of the column `part`.
    pub part: String,
    /// The key of some record, of this or another table.
    pub link: String,
    /// A number that no other record ever had.
    pub n: i64,
}

/// Where a record is.
pub(crate) type Place = (String, String);

/// What a write does to records; `None`: they go.
pub(crate) type Effects = Vec<(Place, Option<Record>)>;

/// A file group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Group {
    /// The instant of its newest base file.
    pub(crate) base: Option<InstantTime>,
    /// A compaction of it that is under way.
    pub(crate) compacting: Option<InstantTime>,
    /// How many log files it ever had.
    pub(crate) logs: u32,
    /// Its records with the commit times of their rows.
    pub(crate) rows: BTreeMap<String, (Record, InstantTime)>,
}

/// What happened, by how often.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Happened(pub BTreeMap<&'static str, usize>);

impl Happened {
    pub(crate) fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// Adds what happened to another table.
    pub fn add(&mut self, other: &Happened) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    /// How often `what` happened.
    pub fn times(&self, what: &str) -> usize {
        self.0.get(what).copied().unwrap_or_default()
    }
}

/// A table with a random history, the same for the same seed.
pub struct RandomTable {
    pub(crate) storage: Storage,
    pub(crate) table_type: TableType,
    pub(crate) version: u32,
    /// Whether the table has a column `_hoodie_is_deleted` of its own.
    pub(crate) flagged: bool,
    seed: u64,
    clock: u64,
    fresh: u64,
    pub(crate) groups: BTreeMap<GroupKey, Group>,
    pending: Vec<Work>,
    /// What each completed write did to records, by its time in the table's clock.
    effects: Vec<(InstantTime, Effects)>,
    happened: Happened,
}

impl RandomTable {
    /// Makes an empty table of version 6, 8 or 9 at `url`.
    ///
    /// # Panics
    /// When it cannot be written.
    pub async fn create(stores: &dyn Stores, url: &str, table_type: TableType, version: u32, seed: u64) -> Self {
        let storage = stores.open(url).expect("a place for a table");
        let mut table = RandomTable {
            storage,
            table_type,
            version,
            flagged: table_type == TableType::MergeOnRead && seed % 2 == 1,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(version),
            clock: 0,
            fresh: 0,
            groups: BTreeMap::new(),
            pending: Vec::new(),
            effects: Vec::new(),
            happened: Happened::default(),
        };
        table.put_properties().await;
        // What lies before the first instant of a timeline counts as archived, so no dead write may.
        let mut first = table.plan_write(6).unwrap_or_default();
        first.requested = table.now();
        table.begin(first).await;
        table.finish_all().await;
        table
    }

    /// Does something.
    pub async fn step(&mut self) {
        let work = match self.below(16) {
            0..=6 => {
                let inserts = self.below(4);
                self.plan_write(inserts)
            }
            7 => self.plan_overwrite(),
            8 if self.below(2) == 0 => self.plan_delete_partition(),
            9 | 10 => self.plan_clustering(),
            11 | 12 if self.table_type == TableType::MergeOnRead => self.plan_compaction(),
            _ => None,
        };
        match work {
            Some(mut work) => {
                work.requested = self.now();
                let dies = self.below(8) == 0 && !work.is_service();
                let waits = self.below(3) == 0 && work.may_wait();
                if dies {
                    self.put_files(&work).await;
                    self.happened.note("died");
                    return;
                }
                self.begin(work).await;
                if !waits {
                    let last = self.pending.len() - 1;
                    self.finish(last).await;
                }
            }
            None if !self.pending.is_empty() => {
                let at = self.below(self.pending.len() as u64) as usize;
                self.finish(at).await;
            }
            None => {}
        }
    }

    /// Completes whatever is pending.
    pub async fn finish_all(&mut self) {
        while !self.pending.is_empty() {
            self.finish(0).await;
        }
    }

    /// The records as of a time in the table's clock, which must not lie behind a pending write.
    pub fn records_at(&self, end: &InstantTime) -> Vec<Record> {
        let mut effects: Vec<_> = self.effects.iter().filter(|(at, _)| at <= end).collect();
        effects.sort_by(|a, b| a.0.cmp(&b.0));
        let mut records: BTreeMap<Place, Record> = BTreeMap::new();
        for (place, record) in effects.into_iter().flat_map(|(_, effects)| effects) {
            match record {
                Some(record) => records.insert(place.clone(), record.clone()),
                None => records.remove(place),
            };
        }
        records.into_values().collect()
    }

    /// What happened so far.
    pub fn happened(&self) -> &Happened {
        &self.happened
    }

    async fn begin(&mut self, work: Work) {
        self.put_files(&work).await;
        self.put_pending(&work).await;
        for group in &work.compacts {
            if let Some(group) = self.groups.get_mut(group) {
                group.compacting = Some(work.requested.clone());
            }
        }
        self.pending.push(work);
    }

    async fn finish(&mut self, at: usize) {
        let work = self.pending.remove(at);
        if self.pending.iter().any(|other| other.requested < work.requested) {
            self.happened.note("out of order");
        }
        let completed = self.now();
        self.put_completed(&work, &completed).await;
        for group in &work.replaces {
            self.groups.remove(group);
        }
        for written in &work.files {
            let group = self.groups.entry(written.group.clone()).or_default();
            if written.log {
                group.logs += 1;
            } else {
                group.base = Some(work.requested.clone());
            }
            if work.compacts.contains(&written.group) {
                group.compacting = None;
                continue;
            }
            for (id, row) in &written.changes {
                match row {
                    Some((record, time)) => {
                        let time = time.clone().unwrap_or_else(|| work.requested.clone());
                        group.rows.insert(id.clone(), (record.clone(), time));
                    }
                    None => {
                        group.rows.remove(id);
                    }
                }
            }
        }
        for what in &work.notes {
            self.happened.note(what);
        }
        let at = if self.version < 8 { work.requested.clone() } else { completed };
        if !work.effects.is_empty() {
            self.effects.push((at, work.effects));
        }
    }

    /// The next moment, a second later.
    fn now(&mut self) -> InstantTime {
        self.clock += 1;
        let (hour, minute, second) = (self.clock / 3600, self.clock / 60 % 60, self.clock % 60);
        format!("20250101{hour:02}{minute:02}{second:02}000").parse().expect("an instant")
    }

    /// A number that looks random.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % limit.max(1)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len() as u64) as usize;
        from.get(at).cloned()
    }

    fn partition(&mut self) -> String {
        format!("p{}", self.below(PARTITIONS))
    }

    fn record(&mut self, id: &str, part: &str) -> Record {
        self.fresh += 1;
        let link = format!("k{:02}", self.below(KEYS));
        Record { id: id.to_string(), part: part.to_string(), link, n: self.fresh as i64 }
    }

    /// Groups that nothing under way touches; those that are being compacted may be written to.
    fn free_groups(&self, to_replace: bool) -> Vec<GroupKey> {
        let taken: BTreeSet<&GroupKey> = self.pending.iter().flat_map(Work::touched).collect();
        let free = self
            .groups
            .iter()
            .filter(|(key, group)| !taken.contains(key) && (!to_replace || group.compacting.is_none()));
        free.map(|(key, _)| key.clone()).collect()
    }

    /// Keys of no record, and of none that a write under way makes.
    fn free_keys(&self) -> Vec<String> {
        let there = self.groups.values().flat_map(|group| group.rows.keys());
        let coming = self.pending.iter().flat_map(|work| work.effects.iter().map(|((_, id), _)| id));
        let taken: BTreeSet<&String> = there.chain(coming).collect();
        (0..KEYS).map(|number| format!("k{number:02}")).filter(|id| !taken.contains(id)).collect()
    }
}
