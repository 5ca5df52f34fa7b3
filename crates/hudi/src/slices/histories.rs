// SPDX-License-Identifier: Apache-2.0
//! Slices of random histories against what their rows must be.
//!
//! Writes are requested and complete in any order, compactions and clusterings between them, and some writes die and
//! leave files behind. Files are told by what is in them, so that nothing needs to be read: a slice's rows are its
//! files' rows, of each key the one with the highest ordering value. What they must be as of an instant is the same
//! over all writes that had completed by then, wherever their rows went since.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::*;

/// Ordering value and value of a row; `None`: a delete.
type Image = (u64, Option<u64>);
/// The newest images by key.
type Rows = BTreeMap<u64, Image>;

const STEPS: usize = 120;
const HISTORIES: u64 = 40;

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[derive(Clone)]
enum Work {
    /// Appends to groups, or begins one with a base file.
    Write { logs: Vec<(String, Rows)>, base: Option<(String, Rows)> },
    /// Makes one base file of a group's slice.
    Compact { group: String, rows: Rows },
    /// Makes a new group of others.
    Cluster { groups: Vec<String>, output: String, rows: Rows },
}

#[derive(Default)]
struct History {
    clock: u64,
    fresh: u64,
    /// Requested, with what they do.
    pending: BTreeMap<u64, Work>,
    /// Requested and completed times, with what they did.
    completed: Vec<(u64, u64, Work)>,
    files: DataFiles,
    contents: BTreeMap<String, Rows>,
    /// Live groups with their keys.
    groups: BTreeMap<String, BTreeSet<u64>>,
}

fn instant(time: u64) -> InstantTime {
    format!("2025010100{:02}{:02}000", time / 60, time % 60).parse().unwrap()
}

fn add(rows: &mut Rows, more: &Rows) {
    for (key, image) in more {
        let known = rows.entry(*key).or_insert(*image);
        *known = (*known).max(*image);
    }
}

impl History {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn image(&mut self, numbers: &mut Numbers) -> Image {
        self.fresh += 1;
        // Late rows: ordering values are not those of time. The low digits keep them apart.
        let ordering = numbers.below(50) * 1_000_000 + self.fresh;
        (ordering, (numbers.below(5) > 0).then_some(self.fresh))
    }

    /// Groups that nothing under way writes to, apart from compactions.
    fn free_groups(&self, also_of_compactions: bool) -> Vec<String> {
        let mut taken: BTreeSet<&String> = BTreeSet::new();
        for work in self.pending.values() {
            match work {
                Work::Write { logs, .. } => taken.extend(logs.iter().map(|(group, _)| group)),
                Work::Compact { group, .. } if also_of_compactions => {
                    taken.insert(group);
                }
                Work::Compact { .. } => {}
                Work::Cluster { groups, .. } => taken.extend(groups),
            }
        }
        self.groups.keys().filter(|group| !taken.contains(group)).cloned().collect()
    }

    /// Groups without a compaction or clustering under way; writes may be.
    fn compactable(&self) -> Vec<String> {
        let taken = |group: &String| {
            self.pending.values().any(|work| match work {
                Work::Write { .. } => false,
                Work::Compact { group: taken, .. } => taken == group,
                Work::Cluster { groups, .. } => groups.contains(group),
            })
        };
        self.groups.keys().filter(|group| !taken(group)).cloned().collect()
    }

    fn slices(&self, as_of: u64) -> Vec<FileSlice> {
        let names: Vec<String> = self
            .completed
            .iter()
            .map(|(requested, completed, work)| {
                let action = match work {
                    Work::Write { .. } => "deltacommit",
                    Work::Compact { .. } => "commit",
                    Work::Cluster { .. } => "replacecommit",
                };
                format!("{}_{}.{action}", instant(*requested), instant(*completed))
            })
            .chain(self.pending.keys().map(|requested| format!("{}.deltacommit.inflight", instant(*requested))))
            .collect();
        let timeline = Timeline::from_names("d", 2, names.iter().map(String::as_str));
        let mut replaced: HashSet<GroupKey> = HashSet::new();
        for (_, completed, work) in &self.completed {
            if let (true, Work::Cluster { groups, .. }) = (*completed <= as_of, work) {
                replaced.extend(groups.iter().map(|group| ("p".to_string(), group.clone())));
            }
        }
        let completions = Completions::new(&timeline);
        select_slices(self.files.clone(), &completions, &replaced, Some(&instant(as_of)), LogNames::OwnInstant)
    }

    fn rows_of(&self, slice: &FileSlice) -> Rows {
        let mut rows = Rows::new();
        let paths = slice.base.iter().map(|base| &base.path).chain(slice.logs.iter().map(|log| &log.path));
        for path in paths {
            add(&mut rows, &self.contents[path]);
        }
        rows
    }

    fn slice_rows(&self, group: &str, as_of: u64) -> Rows {
        let slices = self.slices(as_of);
        slices.iter().find(|slice| slice.group.1 == group).map(|slice| self.rows_of(slice)).unwrap_or_default()
    }

    fn put(&mut self, path: String, rows: Rows) {
        self.files.add(&path, 1).unwrap();
        self.contents.insert(path, rows);
    }

    /// The files of a write, which are there before it completes.
    fn put_files(&mut self, requested: u64, work: &Work) {
        let base = |group: &str| format!("p/{group}_0-0-0_{}.parquet", instant(requested));
        match work.clone() {
            Work::Write { logs, base: first } => {
                for (group, rows) in logs {
                    self.put(format!("p/.{group}_{}.log.1_0-0-0", instant(requested)), rows);
                }
                if let Some((group, rows)) = first {
                    self.put(base(&group), rows);
                }
            }
            Work::Compact { group, rows } => self.put(base(&group), rows),
            Work::Cluster { output, rows, .. } => self.put(base(&output), rows),
        }
    }

    fn request(&mut self, numbers: &mut Numbers) {
        let work = match numbers.below(8) {
            0..=3 => {
                let mut logs = Vec::new();
                for group in self.free_groups(false) {
                    if numbers.below(2) == 0 {
                        let keys: Vec<u64> = self.groups[&group].iter().copied().collect();
                        let key = keys[numbers.below(keys.len() as u64) as usize];
                        logs.push((group, Rows::from([(key, self.image(numbers))])));
                    }
                }
                Work::Write { logs, base: None }
            }
            4 => {
                self.fresh += 1;
                let (group, first) = (format!("g{}", self.fresh), self.fresh * 100);
                let rows = (first..first + 3).map(|key| (key, self.image(numbers))).collect();
                Work::Write { logs: Vec::new(), base: Some((group, rows)) }
            }
            5 | 6 => {
                let groups = self.compactable();
                if groups.is_empty() {
                    return;
                }
                let group = groups[numbers.below(groups.len() as u64) as usize].clone();
                // What had completed when it was requested; a write under way will come on top of it.
                let requested = self.clock + 1;
                let rows = self.slice_rows(&group, requested);
                Work::Compact { group, rows }
            }
            _ => {
                let groups: Vec<String> = self.free_groups(true).into_iter().take(2).collect();
                if groups.is_empty() {
                    return;
                }
                self.fresh += 1;
                let mut rows = Rows::new();
                for group in &groups {
                    add(&mut rows, &self.slice_rows(group, self.clock + 1));
                }
                Work::Cluster { groups, output: format!("g{}", self.fresh), rows }
            }
        };
        let requested = self.tick();
        self.put_files(requested, &work);
        self.pending.insert(requested, work);
    }

    fn finish(&mut self, numbers: &mut Numbers) {
        let times: Vec<u64> = self.pending.keys().copied().collect();
        if times.is_empty() {
            return;
        }
        let requested = times[numbers.below(times.len() as u64) as usize];
        let Some(work) = self.pending.remove(&requested) else { return };
        // It died: its files stay, and its instant is rolled back.
        if numbers.below(6) == 0 {
            return;
        }
        match &work {
            Work::Write { base: Some((group, rows)), .. } => {
                self.groups.insert(group.clone(), rows.keys().copied().collect());
            }
            Work::Cluster { groups, output, .. } => {
                let keys = groups.iter().filter_map(|group| self.groups.remove(group)).flatten().collect();
                self.groups.insert(output.clone(), keys);
            }
            _ => {}
        }
        let completed = self.tick();
        self.completed.push((requested, completed, work));
    }

    /// What the table holds as of a time, by its writes alone.
    fn expected(&self, as_of: u64) -> Rows {
        let mut rows = Rows::new();
        for (_, completed, work) in &self.completed {
            if let (true, Work::Write { logs, base }) = (*completed <= as_of, work) {
                for (_, written) in logs.iter().chain(base) {
                    add(&mut rows, written);
                }
            }
        }
        rows
    }
}

#[test]
fn slices_of_any_history_hold_the_rows_that_had_completed() {
    let (mut compactions, mut clusterings, mut beside) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let mut numbers = Numbers(seed);
        // What lies before the first instant of a timeline counts as archived, so nothing of a history may.
        let nothing = Work::Write { logs: Vec::new(), base: None };
        let mut history = History { clock: 2, completed: vec![(1, 2, nothing)], ..History::default() };
        for _ in 0..STEPS {
            match numbers.below(2) {
                0 => history.request(&mut numbers),
                _ => history.finish(&mut numbers),
            }
        }
        for as_of in 2..=history.clock {
            let mut found = Rows::new();
            for slice in history.slices(as_of) {
                add(&mut found, &history.rows_of(&slice));
            }
            assert_eq!(found, history.expected(as_of), "seed {seed} as of {as_of}");
        }
        for (requested, completed, work) in &history.completed {
            match work {
                Work::Compact { group, .. } => {
                    compactions += 1;
                    beside += history
                        .completed
                        .iter()
                        .filter(|(_, at, work)| {
                            let inside = at > requested && at < completed;
                            inside && matches!(work, Work::Write { logs, .. } if logs.iter().any(|(g, _)| g == group))
                        })
                        .count();
                }
                Work::Cluster { .. } => clusterings += 1,
                Work::Write { .. } => {}
            }
        }
    }
    // The histories are worth something.
    assert!(compactions > 100 && clusterings > 50 && beside > 50, "{compactions} {clusterings} {beside}");
}
