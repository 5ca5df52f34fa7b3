// SPDX-License-Identifier: Apache-2.0
//! Which file groups may hold other records at a window's end than at its beginning.
//!
//! They are the groups that a write of the window wrote or replaced. A clustering moves rows between groups and changes
//! none, so what it consumed and what it made belong together: they matter if a write touched any of them. A compaction
//! changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tributary_hudi::{CommitMetadata, GroupKey, Result, replaced_groups};
use tributary_types::InstantTime;

use crate::readset::{written_files, written_logs};

/// A completed write, those of the window among them.
pub(crate) struct Change<'a> {
    /// What it says of itself.
    pub(crate) metadata: &'a CommitMetadata,
    /// Whether it is between the two states that are compared.
    pub(crate) inside: bool,
}

/// Groups that may have lost records.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    /// All of them, at either end.
    pub(crate) groups: BTreeSet<GroupKey>,
    /// Those that are there at the end, with the instant of the newest base file that a write made; `None`: of none.
    pub(crate) live: BTreeMap<GroupKey, Option<InstantTime>>,
}

/// The groups that `changes`, in order of completion, touched.
pub(crate) fn touched<'a>(changes: impl IntoIterator<Item = Change<'a>>) -> Result<Touched> {
    let mut families = Families::default();
    let mut live: BTreeMap<GroupKey, Option<InstantTime>> = BTreeMap::new();
    for Change { metadata, inside } in changes {
        let bases = written_files(metadata)?;
        let replaced: BTreeSet<GroupKey> = replaced_groups(metadata).collect();
        live.retain(|group, _| !replaced.contains(group));
        if !inside {
            // It came before the beginning, on top of one that showed up late.
            for base in bases {
                if let Some(newest) = live.get_mut(&base.group()) {
                    *newest = Some(base.instant);
                }
            }
            continue;
        }
        let logs: Vec<GroupKey> = written_logs(metadata).map(|log| log.group()).collect();
        let service = metadata.is_table_service();
        if service && !replaced.is_empty() {
            families.join_by_partition(replaced.iter().cloned().chain(bases.iter().map(|base| base.group())));
        }
        if !service {
            families.touch(bases.iter().map(|base| base.group()));
            families.touch(logs.iter().cloned().chain(replaced));
        }
        live.extend(bases.into_iter().map(|base| (base.group(), Some(base.instant))));
        for group in logs {
            live.entry(group).or_insert(None);
        }
    }
    let groups = families.touched();
    live.retain(|group, _| groups.contains(group));
    Ok(Touched { groups, live })
}

/// Groups that exchanged rows.
#[derive(Default)]
struct Families {
    numbers: HashMap<GroupKey, usize>,
    /// Of each group, another one of its family, or itself.
    parents: Vec<usize>,
    touched: BTreeSet<usize>,
}

impl Families {
    fn number(&mut self, group: GroupKey) -> usize {
        let next = self.parents.len();
        let number = *self.numbers.entry(group).or_insert(next);
        if number == next {
            self.parents.push(next);
        }
        number
    }

    fn head(&self, mut number: usize) -> usize {
        while self.parents[number] != number {
            number = self.parents[number];
        }
        number
    }

    /// Rows stay in their partition, and which group of it took them in is not told.
    fn join_by_partition(&mut self, groups: impl Iterator<Item = GroupKey>) {
        let mut heads: HashMap<String, usize> = HashMap::new();
        for group in groups {
            let partition = group.0.clone();
            let number = self.number(group);
            let own = self.head(number);
            let head = *heads.entry(partition).or_insert(own);
            let head = self.head(head);
            self.parents[own] = head;
        }
    }

    fn touch(&mut self, groups: impl Iterator<Item = GroupKey>) {
        for group in groups {
            let number = self.number(group);
            self.touched.insert(number);
        }
    }

    fn touched(&self) -> BTreeSet<GroupKey> {
        let heads: BTreeSet<usize> = self.touched.iter().map(|number| self.head(*number)).collect();
        let of_them = self.numbers.iter().filter(|(_, number)| heads.contains(&self.head(**number)));
        of_them.map(|(group, _)| group.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use tributary_hudi::WriteStat;

    use super::*;

    fn at(second: u32) -> InstantTime {
        format!("202501010000{second:02}000").parse().unwrap()
    }

    fn write(operation: &str, second: u32, wrote: &[&str], replaced: &[&str]) -> CommitMetadata {
        let stat = |id: &&str| WriteStat {
            partition: "p".to_string(),
            file_id: id.to_string(),
            path: format!("p/{id}_0-0-0_{}.parquet", at(second)),
            ..WriteStat::default()
        };
        CommitMetadata {
            operation: operation.to_string(),
            compacted: operation == "COMPACT",
            stats: wrote.iter().map(stat).collect(),
            replaced: BTreeMap::from([("p".to_string(), replaced.iter().map(ToString::to_string).collect())]),
            ..CommitMetadata::default()
        }
    }

    /// The groups, and those that are live with their instants' seconds.
    fn found(writes: &[CommitMetadata]) -> (String, String) {
        let touched = touched(writes.iter().map(|metadata| Change { metadata, inside: true })).unwrap();
        let groups: Vec<&str> = touched.groups.iter().map(|(_, id)| id.as_str()).collect();
        let live = touched.live.iter().map(|((_, id), newest)| {
            let newest = newest.as_ref().map_or("-".to_string(), |at| at.as_str()[12..14].to_string());
            format!("{id}@{newest}")
        });
        (groups.join(" "), live.collect::<Vec<_>>().join(" "))
    }

    fn both(groups: &str, live: &str) -> (String, String) {
        (groups.to_string(), live.to_string())
    }

    #[test]
    fn groups_that_were_written_or_replaced_are_touched_and_compacted_ones_are_not() {
        let writes = [
            write("UPSERT", 1, &["a"], &[]),
            write("INSERT_OVERWRITE", 2, &["c"], &["b"]),
            write("COMPACT", 3, &["z"], &[]),
        ];
        assert_eq!(found(&writes), both("a b c", "a@01 c@02"));
        let compacted = [write("UPSERT", 1, &["a"], &[]), write("COMPACT", 3, &["a"], &[])];
        assert_eq!(found(&compacted), both("a", "a@03"));
        assert_eq!(found(&[write("DELETE_PARTITION", 1, &[], &["a", "b"])]), both("a b", ""));
    }

    #[test]
    fn a_clustering_matters_where_a_write_touched_what_it_consumed_or_made() {
        let alone = write("CLUSTER", 2, &["c", "d"], &["a", "b"]);
        assert_eq!(found(std::slice::from_ref(&alone)), both("", ""));
        let before = [write("UPSERT", 1, &["a", "x"], &[]), alone.clone()];
        assert_eq!(found(&before), both("a b c d x", "c@02 d@02 x@01"));
        let after = [alone.clone(), write("UPSERT", 3, &["d"], &[])];
        assert_eq!(found(&after), both("a b c d", "c@02 d@03"));
        let twice = [alone, write("CLUSTER", 3, &["e"], &["d", "y"]), write("UPSERT", 4, &["e"], &[])];
        assert_eq!(found(&twice), both("a b c d e y", "c@02 e@04"));
    }

    #[test]
    fn clusterings_of_other_partitions_are_no_family() {
        let mut clustering = write("CLUSTER", 2, &["c"], &["a"]);
        clustering.replaced.insert("q".to_string(), vec!["a".to_string()]);
        clustering.stats.push(WriteStat { path: format!("q/d_0-0-0_{}.parquet", at(2)), ..WriteStat::default() });
        let touched_groups = touched(
            [clustering, write("UPSERT", 3, &["c"], &[])].iter().map(|metadata| Change { metadata, inside: true }),
        );
        let groups: Vec<GroupKey> = touched_groups.unwrap().groups.into_iter().collect();
        let expected = [("p", "a"), ("p", "c")].map(|(partition, id)| (partition.to_string(), id.to_string()));
        assert_eq!(groups, expected);
    }

    #[test]
    fn what_was_written_on_top_of_a_late_write_is_not_touched_by_itself() {
        let writes = [(write("UPSERT", 1, &["a", "b"], &[]), true), (write("UPSERT", 2, &["a", "z"], &[]), false)];
        let found = touched(writes.iter().map(|(metadata, inside)| Change { metadata, inside: *inside })).unwrap();
        assert_eq!(found.groups.len(), 2);
        let newest: Vec<_> = found.live.values().cloned().collect();
        assert_eq!(newest, [Some(at(2)), Some(at(1))]);
    }
}
