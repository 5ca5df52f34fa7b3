// SPDX-License-Identifier: Apache-2.0
//! Settings of the checkpoint role.

use std::time::Duration;

/// What is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Batches whose records are kept, of all pipelines together.
    pub history: usize,
    /// How long the record of a batch is kept.
    pub history_age: Duration,
    /// Commits of targets whose metadata is remembered, so that a resolve reads only new ones.
    pub remembered_commits: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { history: 1000, history_age: Duration::from_secs(90 * 24 * 3600), remembered_commits: 10_000 }
    }
}
