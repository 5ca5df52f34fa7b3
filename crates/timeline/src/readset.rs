// SPDX-License-Identifier: Apache-2.0
//! Which file groups hold the rows that a window's instants wrote, as of its end (W6).
//!
//! They are the groups that the instants wrote, each with its newest base file as of the end as far as the commits
//! since say so: a group that was only appended to has an older one. A group that a clustering consumed lives on in
//! the clustering's outputs, one that was compacted goes on under its own name, and one that anything else replaced
//! is gone.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tributary_hudi::{BaseFile, CommitMetadata, GroupKey, LogFile, Result, replaced_groups};
use tributary_types::InstantTime;

const CLUSTER: &str = "CLUSTER";
const LOG_COMPACT: &str = "LOG_COMPACT";

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
    /// Each group's newest base file; `None` where no commit of that time wrote one.
    pub(crate) groups: BTreeMap<GroupKey, Option<BaseFile>>,
    /// Clusterings and compactions whose outputs are read: their rows must still say when they were written.
    pub(crate) rewrites: Vec<Rewrite>,
    /// Log compactions of groups that are read, in order of completion: their rows do not say it.
    pub(crate) log_compactions: Vec<InstantTime>,
}

/// A table service that wrote rows anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rewrite {
    /// Its requested time.
    pub(crate) requested: InstantTime,
    /// Whether it is a clustering; else a compaction.
    pub(crate) clusters: bool,
    /// One of its outputs.
    pub(crate) sample: BaseFile,
}

/// The files of `writes`, which are all the completed writes of that time, in order of completion.
pub(crate) fn read_set<'a>(writes: impl IntoIterator<Item = Write<'a>>) -> Result<ReadSet> {
    let mut set = ReadSet::default();
    for write in writes {
        let outputs = written_files(write.metadata)?;
        let replaced: HashSet<GroupKey> = replaced_groups(write.metadata).collect();
        if write.delivered {
            set.groups.retain(|group, _| !replaced.contains(group));
            set.groups.extend(outputs.into_iter().map(|file| (file.group(), Some(file))));
            for log in written_logs(write.metadata) {
                set.groups.entry(log.group()).or_insert(None);
            }
        } else if write.metadata.operation == CLUSTER {
            follow_clustering(&mut set, write.requested, outputs, &replaced);
        } else if write.metadata.operation == LOG_COMPACT {
            let mut logs = written_logs(write.metadata);
            if logs.any(|log| set.groups.contains_key(&log.group())) {
                set.log_compactions.push(write.requested.clone());
            }
        } else {
            set.groups.retain(|group, _| !replaced.contains(group));
            let mut sample = None;
            for file in outputs {
                // A rewrite of rows that are not delivered, around rows that are.
                if let Some(known) = set.groups.get_mut(&file.group()) {
                    sample = Some(file.clone());
                    *known = Some(file);
                }
            }
            let compacted = sample.filter(|_| write.metadata.is_table_service());
            set.rewrites.extend(compacted.map(|sample| Rewrite {
                requested: write.requested.clone(),
                clusters: false,
                sample,
            }));
        }
    }
    Ok(set)
}

/// The log files that a write left.
pub(crate) fn written_logs(metadata: &CommitMetadata) -> impl Iterator<Item = LogFile> + '_ {
    metadata.stats.iter().filter_map(|stat| LogFile::from_path(&stat.path, u64::try_from(stat.bytes).unwrap_or(0)))
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
    let consumed: Vec<&GroupKey> = replaced.iter().filter(|group| set.groups.contains_key(group)).collect();
    let partitions: BTreeSet<&str> = consumed.iter().map(|(partition, _)| partition.as_str()).collect();
    // Rows stay in their partition, and which output of it took them in is not told.
    let outputs: Vec<BaseFile> =
        outputs.into_iter().filter(|file| partitions.contains(file.partition.as_str())).collect();
    if let Some(sample) = outputs.iter().min() {
        set.rewrites.push(Rewrite { requested: requested.clone(), clusters: true, sample: sample.clone() });
    }
    set.groups.retain(|group, _| !replaced.contains(group));
    set.groups.extend(outputs.into_iter().map(|file| (file.group(), Some(file))));
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

    fn set(writes: &[(u32, CommitMetadata, bool)]) -> ReadSet {
        let times: Vec<InstantTime> = writes.iter().map(|(second, ..)| at(*second)).collect();
        let writes = writes.iter().zip(&times);
        let set = read_set(writes.map(|((_, metadata, delivered), requested)| Write {
            requested,
            metadata,
            delivered: *delivered,
        }));
        set.unwrap()
    }

    fn files(writes: &[(u32, CommitMetadata, bool)]) -> Vec<String> {
        let second = |file: BaseFile| file.instant.as_str()[12..14].to_string();
        let groups = set(writes).groups.into_iter();
        groups.map(|((_, id), base)| format!("{id}@{}", base.map_or("-".to_string(), second))).collect()
    }

    /// A write that appended to groups.
    fn appended(operation: &str, second: u32, groups: &[&str]) -> CommitMetadata {
        let mut metadata = metadata(operation, second, groups, &[]);
        for stat in &mut metadata.stats {
            stat.path = format!("p/.{}_{}.log.1_0-0-0", stat.file_id, at(second));
        }
        metadata
    }

    #[test]
    fn a_group_that_was_appended_to_keeps_the_base_file_that_is_known() {
        let writes = [
            (1, metadata("UPSERT", 1, &["a"], &[]), true),
            (2, appended("UPSERT", 2, &["a", "b"]), true),
            (3, appended("UPSERT", 3, &["c"]), false),
        ];
        assert_eq!(files(&writes), ["a@01", "b@-"]);
    }

    #[test]
    fn compactions_are_followed_and_log_compactions_are_told() {
        let mut compacted = metadata("COMPACT", 3, &["a", "z"], &[]);
        compacted.compacted = true;
        let writes = [
            (1, appended("UPSERT", 1, &["a"]), true),
            (2, appended("LOG_COMPACT", 2, &["a", "z"]), false),
            (3, compacted, false),
            (4, appended("LOG_COMPACT", 4, &["z"]), false),
        ];
        assert_eq!(files(&writes), ["a@03"]);
        let set = set(&writes);
        assert_eq!(set.log_compactions, [at(2)]);
        let rewrites: Vec<_> = set.rewrites.iter().map(|r| (r.requested.clone(), r.clusters)).collect();
        assert_eq!(rewrites, [(at(3), false)]);
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
    fn a_clustering_names_an_output_to_look_at() {
        let (insert, cluster) = (metadata("INSERT", 1, &["a"], &[]), metadata("CLUSTER", 2, &["c", "b"], &["a"]));
        let (first, second) = (at(1), at(2));
        let set = read_set([
            Write { requested: &first, metadata: &insert, delivered: true },
            Write { requested: &second, metadata: &cluster, delivered: false },
        ]);
        let rewrites = set.unwrap().rewrites;
        assert_eq!(rewrites.len(), 1);
        assert_eq!((&rewrites[0].requested, rewrites[0].sample.file_id.as_str()), (&second, "b"));
    }
}
