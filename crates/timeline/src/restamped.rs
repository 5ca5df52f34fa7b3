// SPDX-License-Identifier: Apache-2.0
//! Rows that a log compaction stamped with its own commit time.
//!
//! As long as the logs it put together are in the slice, they are read instead. Once a compaction made a base file of
//! its result, the file says the log compaction's time of rows that any of its originals wrote. If all of these are
//! in a window, or none, that is enough to tell; else it is not.

use std::collections::{BTreeSet, HashMap};

use tributary_hudi::{FileSlice, GroupKey};
use tributary_types::InstantTime;

/// A completed log compaction.
#[derive(Debug, Clone)]
pub(crate) struct LogCompaction {
    /// Its requested time, which its rows bear.
    pub(crate) requested: InstantTime,
    /// Its completion time.
    pub(crate) completed: InstantTime,
    /// Instants of the logs that it put together, by group; `None`: names of logs do not tell.
    pub(crate) originals: Option<HashMap<GroupKey, Vec<InstantTime>>>,
}

/// What to make of a slice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stamps {
    /// Rows of these instants are wanted.
    Wanted(Vec<InstantTime>),
    /// This log compaction hides which rows are.
    Hidden(InstantTime),
}

/// Which commit times the wanted rows of `slice` bear; `compactions` are in order of completion.
pub(crate) fn stamps(slice: &FileSlice, wanted: &[InstantTime], compactions: &[LogCompaction]) -> Stamps {
    let mut stamps: BTreeSet<InstantTime> = wanted.iter().cloned().collect();
    for compaction in compactions {
        // Its log is in the slice still, and so are its originals.
        let in_base = slice.base.as_ref().is_some_and(|base| compaction.completed < base.instant);
        if !in_base {
            continue;
        }
        let originals = match &compaction.originals {
            Some(by_group) => match by_group.get(&slice.group) {
                Some(originals) => originals,
                None => continue,
            },
            None => return Stamps::Hidden(compaction.requested.clone()),
        };
        let delivered = originals.iter().filter(|original| stamps.contains(original)).count();
        if delivered == originals.len() {
            stamps.insert(compaction.requested.clone());
        } else if delivered > 0 {
            return Stamps::Hidden(compaction.requested.clone());
        }
    }
    Stamps::Wanted(stamps.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use tributary_hudi::BaseFile;

    use super::*;

    fn at(second: u32) -> InstantTime {
        format!("202501010000{second:02}000").parse().unwrap()
    }

    fn group() -> GroupKey {
        ("p".to_string(), "a".to_string())
    }

    fn slice(base_at: u32) -> FileSlice {
        let path = format!("p/a_0-0-0_{}.parquet", at(base_at));
        FileSlice { group: group(), base: BaseFile::from_path(&path, 1).unwrap(), logs: Vec::new() }
    }

    fn compaction(second: u32, originals: &[u32]) -> LogCompaction {
        let originals = originals.iter().map(|original| at(*original)).collect();
        let originals = Some(HashMap::from([(group(), originals)]));
        LogCompaction { requested: at(second), completed: at(second + 1), originals }
    }

    fn wanted(seconds: &[u32]) -> Stamps {
        Stamps::Wanted(seconds.iter().map(|second| at(*second)).collect())
    }

    #[test]
    fn rows_of_a_log_compaction_are_wanted_if_all_it_put_together_is() {
        let compactions = [compaction(5, &[2, 3])];
        assert_eq!(stamps(&slice(8), &[at(2), at(3), at(4)], &compactions), wanted(&[2, 3, 4, 5]));
        assert_eq!(stamps(&slice(8), &[at(4)], &compactions), wanted(&[4]));
        assert_eq!(stamps(&slice(8), &[at(3)], &compactions), Stamps::Hidden(at(5)));
    }

    #[test]
    fn a_log_compaction_of_log_compactions_is_followed() {
        let compactions = [compaction(5, &[2, 3]), compaction(7, &[5, 6])];
        assert_eq!(stamps(&slice(9), &[at(2), at(3), at(6)], &compactions), wanted(&[2, 3, 5, 6, 7]));
        assert_eq!(stamps(&slice(9), &[at(2), at(3)], &compactions), Stamps::Hidden(at(7)));
    }

    #[test]
    fn logs_that_are_still_there_and_other_groups_need_no_look() {
        assert_eq!(stamps(&slice(1), &[at(3)], &[compaction(5, &[2, 3])]), wanted(&[3]));
        let other = LogCompaction { originals: Some(HashMap::new()), ..compaction(5, &[]) };
        assert_eq!(stamps(&slice(8), &[at(3)], &[other]), wanted(&[3]));
        let untold = LogCompaction { originals: None, ..compaction(5, &[]) };
        assert_eq!(stamps(&slice(8), &[at(3)], &[untold]), Stamps::Hidden(at(5)));
    }
}
