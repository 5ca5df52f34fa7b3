// SPDX-License-Identifier: Apache-2.0
//! What can be set.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of the timeline role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How far clocks of a table's writers may be apart (`hoodie.time.generator.max_expected_clock_skew_ms`), in
    /// milliseconds.
    pub skew_millis: u64,
    /// How long a writer may take from minting a completion time to publishing it, in milliseconds.
    pub publish_delay_millis: u64,
    /// How much commit metadata is kept in memory, counted in written files.
    pub cached_files: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { skew_millis: 200, publish_delay_millis: 10_000, cached_files: 200_000 }
    }
}

impl Settings {
    /// Every problem with these settings, in words.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.publish_delay() > Duration::from_secs(3600) {
            problems.push("`publish_delay_millis` is over an hour: an aligned batch would lag as much".to_string());
        }
        problems
    }

    /// How far clocks may be apart.
    pub fn skew(&self) -> Duration {
        Duration::from_millis(self.skew_millis)
    }

    /// How long publishing may take.
    pub fn publish_delay(&self) -> Duration {
        Duration::from_millis(self.publish_delay_millis)
    }

    /// Milliseconds before a listing, up to which it saw every commit that will ever complete.
    pub(crate) fn frontier_margin_millis(&self) -> i64 {
        i64::try_from(self.skew_millis.saturating_add(self.publish_delay_millis)).unwrap_or(i64::MAX)
    }
}
