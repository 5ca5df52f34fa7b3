// SPDX-License-Identifier: Apache-2.0
//! Table services of a target: what keeps its files and its timeline few, batch after batch.

use serde::{Deserialize, Serialize};

/// When which service runs; 0 turns one off. They run after a commit, while the batch still holds the table's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Services {
    /// Commits whose readers find every file version; older versions are removed.
    pub clean_commits: u32,
    /// Commits on the active timeline at most; above that the oldest third is archived.
    pub archive_commits: u32,
    /// Commits of the metadata table after which its logs are compacted.
    pub compact_metadata_commits: u32,
    /// Delta commits of a merge-on-read table after which its log files are compacted into base files.
    pub compact_delta_commits: u32,
}

impl Default for Services {
    fn default() -> Self {
        Services { clean_commits: 10, archive_commits: 30, compact_metadata_commits: 10, compact_delta_commits: 5 }
    }
}

impl Services {
    /// Commits that stay on the active timeline when the others are archived: two thirds, and more than are kept
    /// readable, since a cleaner of another writer looks for those there.
    pub fn archive_down_to(&self) -> u32 {
        let two_thirds = (u64::from(self.archive_commits) * 2 / 3) as u32;
        two_thirds.max(self.clean_commits.saturating_add(1)).min(self.archive_commits)
    }

    /// After how many commits a clean is looked for: not each one is worth an instant of its own.
    pub fn clean_every(&self) -> u32 {
        self.clean_commits.clamp(1, 5)
    }

    /// What is wrong for a merge-on-read table besides, as a sentence that names the key.
    pub(super) fn merge_on_read_problem(&self) -> Option<String> {
        // Whether a compaction is due is counted on the active timeline.
        let short = self.archive_commits > 0 && self.archive_down_to() <= self.compact_delta_commits;
        short.then(|| {
            format!(
                "`target.services.archive_commits` is {}: {} commits would stay on the timeline, and more than \
                 `target.services.compact_delta_commits` ({}) must",
                self.archive_commits,
                self.archive_down_to(),
                self.compact_delta_commits
            )
        })
    }

    /// Everything that is wrong, each as a sentence that names the key.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.archive_commits > 0 && self.archive_commits < self.clean_commits.saturating_add(2) {
            problems.push(format!(
                "`target.services.archive_commits` is {}: at least {} are needed, two more than \
                 `target.services.clean_commits`",
                self.archive_commits,
                self.clean_commits.saturating_add(2)
            ));
        }
        if self.archive_commits > 0 && self.compact_metadata_commits == 0 {
            problems.push(
                "`target.services.compact_metadata_commits` is 0: nothing can be archived then; set \
                 `target.services.archive_commits = 0` too"
                    .to_string(),
            );
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archiving_leaves_more_commits_than_are_kept_readable() {
        assert_eq!(Services::default().archive_down_to(), 20);
        let tight = Services { clean_commits: 10, archive_commits: 12, ..Services::default() };
        assert_eq!((tight.archive_down_to(), tight.problems()), (11, Vec::new()));
        let tighter = Services { archive_commits: 11, ..tight };
        assert!(tighter.problems()[0].contains("at least 12"), "{:?}", tighter.problems());
        let off = Services { archive_commits: 0, ..tight };
        assert_eq!(off.problems(), Vec::<String>::new());
    }

    #[test]
    fn archiving_leaves_the_delta_commits_that_a_compaction_is_counted_by() {
        assert_eq!(Services::default().merge_on_read_problem(), None);
        let tight = Services { clean_commits: 2, archive_commits: 6, ..Services::default() };
        let problem = tight.merge_on_read_problem().unwrap();
        assert!(problem.contains("archive_commits") && problem.contains("compact_delta_commits"), "{problem}");
        assert_eq!(Services { compact_delta_commits: 3, ..tight }.merge_on_read_problem(), None);
        assert_eq!(Services { archive_commits: 0, ..tight }.merge_on_read_problem(), None);
    }

    #[test]
    fn archiving_needs_the_compaction_of_the_metadata_table() {
        let services = Services { compact_metadata_commits: 0, ..Services::default() };
        assert!(services.problems()[0].contains("compact_metadata_commits"));
    }
}
