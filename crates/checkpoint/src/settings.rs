// SPDX-License-Identifier: Apache-2.0
//! Settings of the checkpoint role.

/// What is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Batches whose records are kept per pipeline.
    pub history: usize,
    /// Commits of targets whose metadata is remembered, so that a resolve reads only new ones.
    pub remembered_commits: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { history: 1000, remembered_commits: 10_000 }
    }
}
