// SPDX-License-Identifier: Apache-2.0
//! Whether a batch goes together with what other writers of a shared target did since the state that it was tagged
//! against, or are about to do.
//!
//! Both sides are told apart by what they touch: file groups, partitions that they replace by name, partitions that they
//! add rows to. A pure decision; whoever asks holds the lock that all writers take, from before the facts were read
//! until after the commit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tributary_api::writer::Staged;
use tributary_hudi::{Action, CommitMetadata, GroupKey, Instant, LogFile};
use tributary_types::InstantTime;
use tributary_types::pipeline::{InsertConflict, Operation};

/// What a batch is going to commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnWrite {
    /// File groups that it writes a file of, and whether that is a base file: one that takes the place of the slice
    /// before, where a log file lies on top of it.
    pub(crate) written: BTreeMap<GroupKey, bool>,
    /// File groups that it replaces.
    pub(crate) replaced: BTreeSet<GroupKey>,
    /// Partitions that it adds rows to under keys that it did not find.
    pub(crate) added: BTreeSet<String>,
    /// Partitions of which it replaces everything.
    pub(crate) overwritten: BTreeSet<String>,
    /// Whether it replaces everything in the table.
    pub(crate) whole_table: bool,
    /// Whether another writer's new rows in the same partition are accepted.
    pub(crate) accepts_inserts: bool,
}

impl OwnWrite {
    /// What was staged and what is to be replaced, as other writers may get in the way of.
    pub(crate) fn of(
        operation: Operation,
        staged: &Staged,
        replaced: &BTreeMap<String, Vec<String>>,
        inserts: InsertConflict,
    ) -> Self {
        let group = |partition: &str, id: &str| (partition.to_string(), id.to_string());
        let files = staged.files.iter();
        let written = files.clone().map(|file| {
            let is_base = LogFile::from_path(&file.path, file.bytes).is_none();
            (group(&file.partition, &file.file_id), is_base)
        });
        let mut all: BTreeMap<GroupKey, bool> = BTreeMap::new();
        for (key, is_base) in written {
            *all.entry(key).or_default() |= is_base;
        }
        // Rows of an insert are added without a look at the keys that are there, so nothing depends on that look.
        let looked_up = operation == Operation::Upsert;
        let added = files.filter(|file| looked_up && file.inserts > 0).map(|file| file.partition.clone());
        let replaces = operation.replaces_groups() && !staged.partitions.is_empty();
        OwnWrite {
            written: all,
            replaced: replaced.iter().flat_map(|(p, ids)| ids.iter().map(move |id| group(p, id))).collect(),
            added: added.collect(),
            overwritten: if replaces { staged.partitions.clone() } else { BTreeSet::new() },
            whole_table: replaces && operation == Operation::InsertOverwriteTable,
            accepts_inserts: inserts == InsertConflict::Allow,
        }
    }

    fn is_empty(&self) -> bool {
        self.written.is_empty() && self.replaced.is_empty() && self.overwritten.is_empty() && !self.whole_table
    }

    fn touches(&self, group: &GroupKey) -> bool {
        self.written.contains_key(group) || self.replaced.contains(group)
    }

    /// Whether a base file of it takes the place of a slice of the group, or it replaces the group.
    fn rewrites(&self, group: &GroupKey) -> bool {
        self.written.get(group).copied().unwrap_or(false) || self.replaced.contains(group)
    }

    fn writes_into(&self, partition: &str) -> bool {
        self.written.keys().chain(&self.replaced).any(|(own, _)| own == partition)
            || self.overwritten.contains(partition)
    }
}

/// What kind of thing another writer did or is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Rows were written.
    Rows,
    /// Everything in some partitions was replaced, by whatever was written there.
    Overwrite,
    /// Everything in the table was.
    OverwriteTable,
    /// Rows moved from the groups that it names into others.
    Clustering,
    /// The log files of the groups were put together; what is written on top later stays on top.
    Compaction,
}

/// A write of another writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherWrite {
    pub(crate) instant: InstantTime,
    /// Its operation, or its action where it is pending: for messages.
    pub(crate) action: String,
    pub(crate) kind: Kind,
    /// Whether it is still to come.
    pub(crate) pending: bool,
    /// File groups that it wrote or replaced, or is going to rewrite.
    pub(crate) groups: BTreeSet<GroupKey>,
    /// Partitions that it added rows to.
    pub(crate) added: BTreeSet<String>,
    /// Partitions that it has to do with.
    pub(crate) partitions: BTreeSet<String>,
}

impl OtherWrite {
    /// A completed write.
    pub(crate) fn completed(instant: &Instant, metadata: &CommitMetadata) -> Self {
        let replaces = instant.action == Action::ReplaceCommit;
        let kind = match metadata.operation.as_str() {
            "CLUSTER" => Kind::Clustering,
            "COMPACT" | "LOG_COMPACT" => Kind::Compaction,
            _ if metadata.compacted => Kind::Compaction,
            "INSERT_OVERWRITE_TABLE" => Kind::OverwriteTable,
            // Deletes of partitions, registrations, and whatever else replaces groups.
            _ if replaces || !metadata.replaced.is_empty() => Kind::Overwrite,
            _ => Kind::Rows,
        };
        let written = metadata.stats.iter().map(|stat| (stat.partition.clone(), stat.file_id.clone()));
        let replaced = metadata.replaced.iter().flat_map(|(p, ids)| ids.iter().map(move |id| (p.clone(), id.clone())));
        let added = metadata.stats.iter().filter(|stat| stat.inserts > 0 || stat.previous.is_none());
        let added = added.map(|stat| stat.partition.clone());
        let named = metadata.stats.iter().map(|stat| &stat.partition).chain(metadata.replaced.keys());
        let action = match metadata.operation.as_str() {
            "" => instant.action.as_str().to_string(),
            operation => operation.to_string(),
        };
        OtherWrite {
            instant: instant.requested.clone(),
            action,
            kind,
            pending: false,
            groups: written.chain(replaced).collect(),
            added: if kind == Kind::Rows { added.collect() } else { BTreeSet::new() },
            partitions: named.cloned().collect(),
        }
    }

    /// A table service that is pending, by the groups in its plan.
    pub(crate) fn planned(instant: &Instant, groups: BTreeSet<GroupKey>) -> Self {
        let kind = if instant.action == Action::Clustering { Kind::Clustering } else { Kind::Compaction };
        OtherWrite {
            instant: instant.requested.clone(),
            action: instant.action.as_str().to_string(),
            kind,
            pending: true,
            partitions: groups.iter().map(|(partition, _)| partition.clone()).collect(),
            groups,
            added: BTreeSet::new(),
        }
    }

    /// What a batch and this write cannot both do; `None` where they go together.
    fn against(&self, own: &OwnWrite) -> Option<On> {
        // A compaction and rows in log files go together: whichever completes first, the log lies on top.
        let collides = |group: &&GroupKey| match self.kind {
            Kind::Compaction => own.rewrites(group),
            _ => own.touches(group),
        };
        if let Some(group) = self.groups.iter().find(collides) {
            return Some(On::Group(group.clone()));
        }
        if self.pending || self.kind == Kind::Compaction {
            return None;
        }
        let overwritten = self.kind == Kind::OverwriteTable && !own.is_empty();
        if overwritten || (own.whole_table && !self.partitions.is_empty()) {
            return Some(On::Table);
        }
        let by_name = |partition: &&String| match self.kind {
            Kind::Overwrite => own.writes_into(partition),
            _ => own.overwritten.contains(*partition),
        };
        if let Some(partition) = self.partitions.iter().find(by_name) {
            return Some(On::Partition(partition.clone()));
        }
        if own.accepts_inserts {
            return None;
        }
        self.added.intersection(&own.added).next().map(|partition| On::NewRows(partition.clone()))
    }
}

/// On what two writes meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum On {
    Group(GroupKey),
    Partition(String),
    Table,
    NewRows(String),
    /// Columns of the table that the batch does not know, or that it knows otherwise.
    Schema(String),
}

impl On {
    /// Every label.
    pub(crate) const LABELS: [&'static str; 5] = ["file-group", "partition", "table", "new-rows", "schema"];

    /// The label of the metric.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            On::Group(_) => "file-group",
            On::Partition(_) => "partition",
            On::Table => "table",
            On::NewRows(_) => "new-rows",
            On::Schema(_) => "schema",
        }
    }
}

/// A write of another writer that this batch does not go together with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) instant: InstantTime,
    pub(crate) action: String,
    pub(crate) kind: Kind,
    pub(crate) pending: bool,
    pub(crate) on: On,
}

/// What the other writer did, as the end of a sentence that names it.
impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.on, self.pending) {
            (On::Group(group), true) => write!(
                f,
                "is going to rewrite file group `{}`, which this batch changes; let it complete, or cancel it, first",
                name(group)
            ),
            (On::Group(group), false) => {
                let did = if self.kind == Kind::Rows { "wrote" } else { "replaced" };
                write!(f, "{did} file group `{}`, which this batch changes", name(group))
            }
            (On::Partition(partition), _) if self.kind == Kind::Overwrite => {
                write!(f, "replaced what is in partition `{partition}`, which this batch writes into")
            }
            (On::Partition(partition), _) => {
                write!(f, "wrote into partition `{partition}`, which this batch replaces")
            }
            (On::Table, _) if self.kind == Kind::OverwriteTable => {
                f.write_str("replaced the whole table, which this batch writes into")
            }
            (On::Table, _) => f.write_str("wrote into the table, which this batch replaces"),
            (On::NewRows(partition), _) => write!(
                f,
                "added rows to partition `{partition}`, which this batch adds rows to as well: a key that is new to both \
                 would be there twice (`target.insert_conflict = \"allow\"` accepts that)"
            ),
            (On::Schema(column), _) => {
                write!(f, "changed the table's schema: column `{column}` is not what this batch was planned with")
            }
        }
    }
}

fn name((partition, id): &GroupKey) -> String {
    if partition.is_empty() { id.clone() } else { format!("{partition}/{id}") }
}

/// The first write of another writer that a batch does not go together with.
pub(crate) fn find_conflict(own: &OwnWrite, others: &[OtherWrite]) -> Option<Conflict> {
    others.iter().find_map(|other| {
        let on = other.against(own)?;
        Some(Conflict {
            instant: other.instant.clone(),
            action: other.action.clone(),
            kind: other.kind,
            pending: other.pending,
            on,
        })
    })
}

#[cfg(test)]
mod tests;
