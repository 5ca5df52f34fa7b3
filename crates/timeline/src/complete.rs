// SPDX-License-Identifier: Apache-2.0
//! Whether the slices that were found as of an instant are whole.
//!
//! A cleaner removes files that later commits replaced: a base file with the logs on top of it, in no order. What is
//! missing altogether would go unnoticed, but the commits say what they found and what they wrote.

use std::collections::{HashMap, HashSet};

use tributary_hudi::{BaseFile, CommitMetadata, FileSlice, GroupKey, LogFile, LogNames, Result, replaced_groups};
use tributary_types::InstantTime;

use crate::readset::written_logs;

/// Looks for a group whose slice is not what later writes found: they are added one by one, in order of completion, so
/// that not all of them have to be in memory.
pub(crate) struct Search<'a, W, I> {
    slices: HashMap<&'a GroupKey, &'a FileSlice>,
    /// Answers for the instant of a file that a write replaced or appended to.
    was_there: W,
    /// Groups that are not of interest are not looked at.
    of_interest: I,
    /// Groups that were written or replaced, with the number of the first write that did.
    named: HashMap<GroupKey, usize>,
    seen: HashSet<GroupKey>,
    /// Groups that got a new base file or were replaced: a cleaner may remove what was before.
    pub(crate) superseded: HashSet<GroupKey>,
    added: usize,
}

impl<'a, W: Fn(&InstantTime) -> bool, I: Fn(&GroupKey) -> bool> Search<'a, W, I> {
    pub(crate) fn new(slices: &'a [FileSlice], was_there: W, of_interest: I) -> Self {
        Search {
            slices: slices.iter().map(|slice| (&slice.group, slice)).collect(),
            was_there,
            of_interest,
            named: HashMap::new(),
            seen: HashSet::new(),
            superseded: HashSet::new(),
            added: 0,
        }
    }

    /// Adds the next write. Answers the number of the first write that knows of a group that is not whole, if that is
    /// told by this one.
    pub(crate) fn add(&mut self, metadata: &CommitMetadata) -> Result<Option<usize>> {
        let number = self.added;
        self.added += 1;
        for stat in &metadata.stats {
            let base = BaseFile::from_path(&stat.path, 0)?.map(|file| file.group());
            self.superseded.extend(base.clone());
            let Some(group) = base.or_else(|| LogFile::from_path(&stat.path, 0).map(|log| log.group())) else {
                continue;
            };
            let first = *self.named.entry(group.clone()).or_insert(number);
            if self.seen.contains(&group) {
                continue;
            }
            let previous: Option<InstantTime> = stat.previous.as_ref().and_then(|text| text.parse().ok());
            match previous {
                // A log for a compaction that is under way says nothing of what was there before it.
                Some(previous) if !(self.was_there)(&previous) => continue,
                Some(previous)
                    if (self.of_interest)(&group)
                        && !self.slices.get(&group).is_some_and(|slice| has_instant(slice, &previous)) =>
                {
                    return Ok(Some(first));
                }
                _ => {}
            }
            self.seen.insert(group);
        }
        for group in replaced_groups(metadata) {
            self.superseded.insert(group.clone());
            // A group that was written since may be younger than the slices.
            if !self.named.contains_key(&group) {
                let gone = (self.of_interest)(&group) && !self.slices.contains_key(&group);
                self.named.insert(group, number);
                if gone {
                    return Ok(Some(number));
                }
            }
        }
        Ok(None)
    }
}

/// Whether the slice begins with the file of an instant: a base file, or a log where there is none.
fn has_instant(slice: &FileSlice, instant: &InstantTime) -> bool {
    match &slice.base {
        Some(base) => base.instant == *instant,
        None => slice.logs.iter().any(|log| log.instant == *instant),
    }
}

/// A log that one of the `earlier` writes, given with their completion times, left on top of a slice, and that is not
/// there.
pub(crate) fn first_missing_log<'a>(
    slices: &[&FileSlice],
    earlier: impl Iterator<Item = (&'a InstantTime, &'a CommitMetadata)>,
    names: LogNames,
) -> Option<LogFile> {
    let slices: HashMap<&GroupKey, &FileSlice> = slices.iter().map(|slice| (&slice.group, *slice)).collect();
    for (completed, metadata) in earlier {
        for log in written_logs(metadata) {
            let Some(slice) = slices.get(&log.group()) else { continue };
            let belongs = slice.base.as_ref().is_none_or(|base| match names {
                LogNames::OwnInstant => *completed >= base.instant,
                LogNames::BaseInstant => log.instant >= base.instant,
            });
            if belongs && !slice.logs.iter().any(|known| known.path == log.path) {
                return Some(log);
            }
        }
    }
    None
}

/// Whether a slice of logs alone had a base file: where logs have the instant of the file that they are on top of, they look
/// the same as logs of a group that began with one. The write that made the file knows.
pub(crate) fn lacks_base<'a>(
    slices: &[&FileSlice],
    earlier: impl Iterator<Item = &'a CommitMetadata>,
    names: LogNames,
) -> Result<bool> {
    let without: HashMap<&GroupKey, &LogFile> =
        slices.iter().filter(|slice| slice.base.is_none()).filter_map(|s| Some((&s.group, s.logs.first()?))).collect();
    if names == LogNames::OwnInstant || without.is_empty() {
        return Ok(false);
    }
    for stat in earlier.flat_map(|metadata| &metadata.stats) {
        let Some(file) = BaseFile::from_path(&stat.path, 0)? else { continue };
        if without.get(&file.group()).is_some_and(|log| log.instant == file.instant) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tributary_hudi::WriteStat;

    use super::*;

    fn at(second: u32) -> InstantTime {
        format!("202501010000{second:02}000").parse().unwrap()
    }

    fn base(id: &str, second: u32) -> String {
        format!("p/{id}_0-0-0_{}.parquet", at(second))
    }

    fn log(id: &str, second: u32) -> String {
        format!("p/.{id}_{}.log.1_0-0-0", at(second))
    }

    fn slice(id: &str, base_at: Option<u32>, logs: &[u32]) -> FileSlice {
        FileSlice {
            group: ("p".to_string(), id.to_string()),
            base: base_at.map(|second| BaseFile::from_path(&base(id, second), 1).unwrap().unwrap()),
            logs: logs.iter().map(|second| LogFile::from_path(&log(id, *second), 1).unwrap()).collect(),
        }
    }

    fn write(stats: &[(String, Option<u32>)], replaced: &[&str]) -> CommitMetadata {
        let stat = |(path, previous): &(String, Option<u32>)| WriteStat {
            path: path.clone(),
            previous: previous.map(|second| at(second).to_string()),
            ..WriteStat::default()
        };
        CommitMetadata {
            stats: stats.iter().map(stat).collect(),
            replaced: BTreeMap::from([("p".to_string(), replaced.iter().map(ToString::to_string).collect())]),
            ..CommitMetadata::default()
        }
    }

    /// As of instant 4: the number of the first write that knows of a group that is not whole.
    fn missing(slices: &[FileSlice], later: &[CommitMetadata]) -> Option<usize> {
        let mut search = Search::new(slices, |time| *time <= at(4), |_| true);
        later.iter().find_map(|write| search.add(write).unwrap())
    }

    #[test]
    fn a_group_that_later_writes_found_there_must_not_be_missing() {
        let update = write(&[(base("a", 5), Some(1)), (base("new", 5), None), (log("log", 5), Some(5))], &[]);
        let replace = write(&[(base("d", 6), None)], &["b", "new", "log"]);
        let later = [update, replace];
        let (a, b) = (slice("a", Some(1), &[]), slice("b", Some(3), &[]));
        assert_eq!(missing(&[a.clone(), b.clone()], &later), None);
        assert_eq!(missing(&[b], &later), Some(0), "a, which the first one updated");
        assert_eq!(missing(&[a], &later), Some(1), "b, which the second one replaced");
    }

    #[test]
    fn a_slice_that_lost_its_base_file_is_not_whole() {
        // A log for the compaction of instant 5, then its base file over that of instant 1.
        let later = [write(&[(log("a", 6), Some(5))], &[]), write(&[(base("a", 5), Some(1))], &[])];
        assert_eq!(missing(&[slice("a", Some(1), &[2])], &later), None);
        assert_eq!(
            missing(&[slice("a", None, &[4])], &later),
            Some(0),
            "the first one knows of it, the second one tells"
        );
        let appended = [write(&[(log("a", 6), Some(2))], &[])];
        assert_eq!(missing(&[slice("a", None, &[2, 3])], &appended), None, "it began with a log");
    }

    #[test]
    fn logs_that_are_named_by_a_base_file_do_not_stand_for_it() {
        let made = [write(&[(base("a", 1), None)], &[]), write(&[(log("b", 2), None)], &[])];
        let lacks = |id: &str, second: u32, base: Option<u32>, names| {
            let slice = slice(id, base, &[second]);
            lacks_base(&[&slice], made.iter(), names).unwrap()
        };
        assert!(lacks("a", 1, None, LogNames::BaseInstant));
        assert!(!lacks("a", 1, Some(1), LogNames::BaseInstant), "it is there");
        assert!(!lacks("b", 2, None, LogNames::BaseInstant), "it began with a log");
        assert!(!lacks("a", 1, None, LogNames::OwnInstant), "the log is of another file");
    }

    #[test]
    fn groups_of_no_interest_are_not_looked_at() {
        let later = [write(&[(base("a", 5), Some(1))], &["b"])];
        let mut search = Search::new(&[], |_| true, |(_, id)| id == "c");
        assert_eq!(search.add(&later[0]).unwrap(), None);
        assert_eq!(search.superseded.len(), 2);
    }

    #[test]
    fn a_log_that_a_write_left_must_not_be_missing() {
        let whole = slice("a", Some(2), &[3]);
        let missing = |slice: &FileSlice, second: u32, completed: u32, names| {
            let metadata = write(&[(log("a", second), None), (log("other", 9), None)], &[]);
            let completed = at(completed);
            first_missing_log(&[slice], [(&completed, &metadata)].into_iter(), names).is_some()
        };
        assert!(!missing(&whole, 3, 4, LogNames::OwnInstant));
        assert!(missing(&slice("a", Some(2), &[]), 3, 4, LogNames::OwnInstant));
        assert!(!missing(&whole, 1, 1, LogNames::OwnInstant), "compacted");
        assert!(missing(&whole, 1, 3, LogNames::OwnInstant), "it completed after the compaction was requested");
        assert!(!missing(&whole, 1, 3, LogNames::BaseInstant));
        assert!(missing(&slice("a", Some(2), &[]), 2, 3, LogNames::BaseInstant));
    }
}
