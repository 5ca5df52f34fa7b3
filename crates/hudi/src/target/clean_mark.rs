// SPDX-License-Identifier: Apache-2.0
//! How far a cleaner came, by the outcome that a clean left on the timeline.

use tributary_types::InstantTime;

use super::clean_records::MetadataRecord;
use crate::error::Result;
use crate::slices::BaseFile;
use crate::timeline::{Action, Timeline};

/// From where on a clean left every file version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CleanMark {
    /// The table as of this commit, and of any later one, is whole; so is what this commit found.
    From(InstantTime),
    /// The table is whole as of commits after this one: it deleted a file of it, by a policy that names no commit.
    After(InstantTime),
}

impl CleanMark {
    /// The file with the outcome of the newest completed clean, relative to the table.
    pub fn newest_file(timeline: &Timeline) -> Option<String> {
        let cleans = timeline.instants().iter().filter(|instant| instant.action == Action::Clean);
        timeline.completed_path(cleans.rev().find(|instant| !instant.is_pending())?)
    }

    /// Reads such a file; `None` when the clean deleted nothing and names no commit.
    pub fn decode(file: &str, bytes: &[u8]) -> Result<Option<Self>> {
        let record = MetadataRecord::decode(file, bytes)?;
        if let Ok(earliest) = record.earliest_commit_to_retain.parse() {
            return Ok(Some(CleanMark::From(earliest)));
        }
        let deleted = record.partition_metadata.values().flat_map(|partition| &partition.success_delete_files);
        let instants = deleted.filter_map(|file| BaseFile::from_path(file, 0).ok().flatten().map(|file| file.instant));
        Ok(instants.max().map(CleanMark::After))
    }

    /// Whether the table as of a commit is whole.
    pub fn keeps(&self, requested: &InstantTime) -> bool {
        match self {
            CleanMark::From(earliest) => requested >= earliest,
            CleanMark::After(deleted) => requested > deleted,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::clean_records::PartitionRecord;
    use super::*;

    const T1: &str = "20250101000000001";
    const T2: &str = "20250101000000002";
    const T3: &str = "20250101000000003";

    fn mark(earliest: &str, deleted: &[&str]) -> Option<CleanMark> {
        let names = deleted.iter().map(|instant| format!("f_0-0-0_{instant}.parquet")).collect();
        let partition = PartitionRecord { success_delete_files: names, ..PartitionRecord::default() };
        let record = MetadataRecord {
            earliest_commit_to_retain: earliest.to_string(),
            partition_metadata: BTreeMap::from([("p".to_string(), partition)]),
            ..MetadataRecord::default()
        };
        CleanMark::decode("f", &record.encode().unwrap()).unwrap()
    }

    #[test]
    fn a_clean_names_the_commit_it_keeps_or_the_files_it_deleted() {
        let at = |text: &str| text.parse::<InstantTime>().unwrap();
        let named = mark(T2, &[T1]).unwrap();
        assert_eq!(named, CleanMark::From(at(T2)));
        assert!(!named.keeps(&at(T1)) && named.keeps(&at(T2)));
        let deleted = mark("", &[T1, T2]).unwrap();
        assert_eq!(deleted, CleanMark::After(at(T2)));
        assert!(!deleted.keeps(&at(T2)) && deleted.keeps(&at(T3)));
        assert_eq!(mark("", &[]), None);
        assert!(CleanMark::decode("x.clean", b"").unwrap_err().to_string().contains("x.clean"));
    }

    #[test]
    fn the_newest_clean_is_the_last_one_that_completed() {
        let pending = format!("{T3}.clean.requested");
        let names = [format!("{T1}_{T2}.clean"), format!("{T2}_{T3}.clean"), pending];
        let timeline = Timeline::from_names("d", 2, names.iter().map(String::as_str));
        assert_eq!(CleanMark::newest_file(&timeline), Some(format!("d/{T2}_{T3}.clean")));
        assert_eq!(CleanMark::newest_file(&Timeline::from_names("d", 2, [])), None);
    }
}
