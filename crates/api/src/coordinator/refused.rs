// SPDX-License-Identifier: Apache-2.0
//! What a batch says of the rows that it refused.

use serde::{Deserialize, Serialize};
use tributary_types::InstantTime;

/// Rows that a batch wrote to the error table instead of the target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// How many, by source and reason.
    pub counts: Vec<RefusedCount>,
    /// The error table's commit that has them; `None`: there were none, or it was not made.
    pub instant: Option<InstantTime>,
}

/// Rows of one source that were refused for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCount {
    /// The source, or what stands for the query's result.
    pub source: String,
    /// Why: a stable name.
    pub reason: String,
    /// How many.
    pub rows: u64,
}

impl Refused {
    /// All rows.
    pub fn rows(&self) -> u64 {
        self.counts.iter().map(|count| count.rows).sum()
    }

    /// Adds rows of a source and a reason.
    pub fn add(&mut self, source: &str, reason: &str, rows: u64) {
        match self.counts.iter_mut().find(|count| count.source == source && count.reason == reason) {
            Some(count) => count.rows += rows,
            None => self.counts.push(RefusedCount { source: source.to_string(), reason: reason.to_string(), rows }),
        }
    }
}
