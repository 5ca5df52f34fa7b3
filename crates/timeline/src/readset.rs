// SPDX-License-Identifier: Apache-2.0
//! Which files hold the rows that a window's instants wrote, as of its end (W6).
//!
//! The files are those of the groups that the instants wrote, each group's newest as of the end. A group that a
//! clustering consumed lives on in the clustering's outputs; one that anything else replaced is gone.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tributary_hudi::{BaseFile, CommitMetadata, GroupKey, Result, replaced_groups};
use tributary_types::InstantTime;

const CLUSTER: &str = "CLUSTER";

/// A completed write between the first instant that is delivered and the window's end.
pub(crate) struct Write<'a> {
    /// Its requested time.
    pub(crate) requested: &'a InstantTime,
    /// What it says of itself.
    pub(crate) metadata: &'a CommitMetadata,
    /// Whether its rows are delivered.
    pub(crate) delivered: bool,
}

/// What to read.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    /// Each group's file.
    pub(crate) files: BTreeMap<GroupKey, BaseFile>,
    /// Clusterings whose outputs are read, with one output each: their rows must still say when they were written.
    pub(crate) clusterings: Vec<(InstantTime, BaseFile)>,
}

/// The files of `writes`, which are all the completed writes of that time, in order of completion.
pub(crate) fn read_set<'a>(writes: impl IntoIterator<Item = Write<'a>>) -> Result<ReadSet> {
    let mut set = ReadSet::default();
    for write in writes {
        let outputs = written_files(write.metadata)?;
        let replaced: HashSet<GroupKey> = replaced_groups(write.metadata).collect();
        if write.delivered {
            set.files.retain(|group, _| !replaced.contains(group));
            set.files.extend(outputs.into_iter().map(|file| (file.group(), file)));
        } else if write.metadata.operation == CLUSTER {
            follow_clustering(&mut set, write.requested, outputs, &replaced);
        } else {
            set.files.retain(|group, _| !replaced.contains(group));
            for file in outputs {
                // A rewrite of rows that are not delivered, around rows that are.
                if let Some(known) = set.files.get_mut(&file.group()) {
                    *known = file;
                }
            }
        }
    }
    Ok(set)
}

/// A group that was there before `later` writes, as these say themselves, and is not among `groups`; `was_there`
/// answers for the instant of a file that a write replaced.
pub(crate) fn first_missing_group<'a>(
    groups: &HashSet<GroupKey>,
    later: impl Iterator<Item = &'a CommitMetadata>,
    was_there: impl Fn(&InstantTime) -> bool,
) -> Result<Option<GroupKey>> {
    let mut seen: HashSet<GroupKey> = HashSet::new();
    for metadata in later {
        for stat in &metadata.stats {
            let Some(file) = BaseFile::from_path(&stat.path, 0)? else { continue };
            let group = file.group();
            let previous = stat.previous.as_ref().and_then(|text| text.parse().ok());
            let first = seen.insert(group.clone());
            if first && previous.is_some_and(|previous| was_there(&previous)) && !groups.contains(&group) {
                return Ok(Some(group));
            }
        }
        for group in replaced_groups(metadata) {
            if seen.insert(group.clone()) && !groups.contains(&group) {
                return Ok(Some(group));
            }
        }
    }
    Ok(None)
}

/// The base files that a write left.
pub(crate) fn written_files(metadata: &CommitMetadata) -> Result<Vec<BaseFile>> {
    let mut files = Vec::with_capacity(metadata.stats.len());
    for stat in &metadata.stats {
        files.extend(BaseFile::from_path(&stat.path, u64::try_from(stat.bytes).unwrap_or(0))?);
    }
    Ok(files)
}

fn follow_clustering(set: &mut ReadSet, requested: &InstantTime, outputs: Vec<BaseFile>, replaced: &HashSet<GroupKey>) {
    let consumed: Vec<&GroupKey> = replaced.iter().filter(|group| set.files.contains_key(group)).collect();
    let partitions: BTreeSet<&str> = consumed.iter().map(|(partition, _)| partition.as_str()).collect();
    // Rows stay in their partition, and which output of it took them in is not told.
    let outputs: Vec<BaseFile> =
        outputs.into_iter().filter(|file| partitions.contains(file.partition.as_str())).collect();
    if let Some(sample) = outputs.iter().min() {
        set.clusterings.push((requested.clone(), sample.clone()));
    }
    set.files.retain(|group, _| !replaced.contains(group));
    set.files.extend(outputs.into_iter().map(|file| (file.group(), file)));
}

#[cfg(test)]
mod tests {
    use tributary_hudi::WriteStat;

    use super::*;

    fn at(second: u32) -> InstantTime {
        format!("202501010000{second:02}000").parse().unwrap()
    }

    fn metadata(operation: &str, second: u32, wrote: &[&str], replaced: &[&str]) -> CommitMetadata {
        let stat = |id: &&str| WriteStat {
            partition: "p".to_string(),
            file_id: id.to_string(),
            path: format!("p/{id}_0-0-0_{}.parquet", at(second)),
            ..WriteStat::default()
        };
        CommitMetadata {
            operation: operation.to_string(),
            stats: wrote.iter().map(stat).collect(),
            replaced: BTreeMap::from([("p".to_string(), replaced.iter().map(ToString::to_string).collect())]),
            ..CommitMetadata::default()
        }
    }

    fn files(writes: &[(u32, CommitMetadata, bool)]) -> Vec<String> {
        let times: Vec<InstantTime> = writes.iter().map(|(second, ..)| at(*second)).collect();
        let writes = writes.iter().zip(&times);
        let set = read_set(writes.map(|((_, metadata, delivered), requested)| Write {
            requested,
            metadata,
            delivered: *delivered,
        }));
        let files = set.unwrap().files.into_values();
        files.map(|file| format!("{}@{}", file.file_id, &file.instant.as_str()[12..14])).collect()
    }

    #[test]
    fn a_group_written_twice_is_read_once_at_its_newest() {
        let writes =
            [(1, metadata("INSERT", 1, &["a", "b"], &[]), true), (2, metadata("UPSERT", 2, &["a", "c"], &[]), true)];
        assert_eq!(files(&writes), ["a@02", "b@01", "c@02"]);
    }

    #[test]
    fn overwritten_groups_are_gone_and_what_overwrote_them_is_there() {
        let writes = [
            (1, metadata("INSERT", 1, &["a", "b"], &[]), true),
            (2, metadata("INSERT_OVERWRITE", 2, &["c"], &["a", "z"]), true),
        ];
        assert_eq!(files(&writes), ["b@01", "c@02"]);
        let dropped = [writes[0].clone(), (2, metadata("DELETE_PARTITION", 2, &[], &["a", "b"]), true)];
        assert_eq!(files(&dropped), Vec::<String>::new());
    }

    #[test]
    fn clustering_is_followed_through_all_its_steps() {
        let writes = [
            (1, metadata("INSERT", 1, &["a", "b"], &[]), true),
            (2, metadata("CLUSTER", 2, &["c"], &["a"]), false),
            (3, metadata("UPSERT", 3, &["c"], &[]), true),
            (4, metadata("CLUSTER", 4, &["d", "e"], &["c"]), false),
        ];
        assert_eq!(files(&writes), ["b@01", "d@04", "e@04"]);
    }

    #[test]
    fn a_clustering_of_other_groups_is_not_read() {
        let writes =
            [(1, metadata("INSERT", 1, &["a"], &[]), true), (2, metadata("CLUSTER", 2, &["y"], &["x"]), false)];
        assert_eq!(files(&writes), ["a@01"]);
    }

    #[test]
    fn writes_around_a_late_one_only_move_its_groups() {
        let writes = [
            (1, metadata("UPSERT", 1, &["a", "b"], &[]), true),
            (2, metadata("UPSERT", 2, &["a", "x"], &[]), false),
            (3, metadata("INSERT_OVERWRITE", 3, &["y"], &["b"]), false),
            (4, metadata("UPSERT", 4, &["z"], &[]), true),
        ];
        assert_eq!(files(&writes), ["a@02", "z@04"]);
    }

    #[test]
    fn a_group_that_later_writes_found_there_must_not_be_missing() {
        let mut update = metadata("UPSERT", 5, &["a", "new"], &[]);
        update.stats[0].previous = Some(at(1).to_string());
        let replace = metadata("INSERT_OVERWRITE", 6, &["d"], &["b", "new"]);
        let later = [update, replace];
        let missing = |ids: &[&str]| {
            let groups = ids.iter().map(|id| ("p".to_string(), id.to_string())).collect();
            let found = first_missing_group(&groups, later.iter(), |time| *time <= at(4)).unwrap();
            found.map(|(_, id)| id)
        };
        assert_eq!(missing(&["a", "b"]), None);
        assert_eq!(missing(&["b"]).as_deref(), Some("a"));
        assert_eq!(missing(&["a"]).as_deref(), Some("b"));
    }

    #[test]
    fn a_clustering_names_an_output_to_look_at() {
        let (insert, cluster) = (metadata("INSERT", 1, &["a"], &[]), metadata("CLUSTER", 2, &["c", "b"], &["a"]));
        let (first, second) = (at(1), at(2));
        let set = read_set([
            Write { requested: &first, metadata: &insert, delivered: true },
            Write { requested: &second, metadata: &cluster, delivered: false },
        ]);
        let clusterings = set.unwrap().clusterings;
        assert_eq!(clusterings.len(), 1);
        assert_eq!((&clusterings[0].0, clusterings[0].1.file_id.as_str()), (&second, "b"));
    }
}
