// SPDX-License-Identifier: Apache-2.0
//! Settings of the merge role.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What every merge of this process is held to, beside the limits that a batch brings itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Part of a batch's memory that its query may hold, in percent. The rest is left to the reading of files before it
    /// and to the writer behind it.
    pub query_share_percent: usize,
    /// Rows of a record batch.
    pub batch_rows: usize,
    /// Bytes in memory that one byte of a base file becomes, for choosing joins.
    pub expansion: usize,
    /// Length of a SQL text in bytes.
    pub max_sql_bytes: usize,
    /// How deep expressions and queries may nest.
    pub max_nesting: usize,
    /// Operators in a row in one expression, and set operations in a row in one query.
    pub max_chain: usize,
    /// Plan nodes and expressions of a query, views counted where they are used.
    pub max_plan_nodes: usize,
    /// Rows of a batch; absent: no limit.
    pub max_rows: Option<u64>,
    /// Where temporary files go; absent: the system's temporary directory.
    pub spill_dir: Option<PathBuf>,
    /// Whether queries compute on threads of their own, so that one that never pauses holds up nothing else. Off, they
    /// compute where their caller runs: where a test decides how time passes.
    pub own_threads: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            query_share_percent: 50,
            batch_rows: 8192,
            expansion: 5,
            max_sql_bytes: 1 << 20,
            max_nesting: 50,
            max_chain: 250,
            max_plan_nodes: 20_000,
            max_rows: None,
            spill_dir: None,
            own_threads: true,
        }
    }
}

impl Settings {
    /// Every problem, each as a sentence that names the key. Empty: none.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(10..=90).contains(&self.query_share_percent) {
            problems.push(format!(
                "`query_share_percent` is {}: the query and the writer both need memory, so it must be from 10 to 90",
                self.query_share_percent
            ));
        }
        let positive = [
            ("batch_rows", self.batch_rows),
            ("expansion", self.expansion),
            ("max_sql_bytes", self.max_sql_bytes),
            ("max_nesting", self.max_nesting),
            ("max_chain", self.max_chain),
            ("max_plan_nodes", self.max_plan_nodes),
        ];
        for (key, value) in positive {
            if value == 0 {
                problems.push(format!("`{key}` must be greater than 0"));
            }
        }
        if self.max_rows == Some(0) {
            problems.push("`max_rows` is 0: leave it out for no limit".to_string());
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound_and_every_problem_is_reported() {
        assert_eq!(Settings::default().validate(), Vec::<String>::new());
        let bad = Settings { query_share_percent: 100, batch_rows: 0, max_rows: Some(0), ..Settings::default() };
        let problems = bad.validate().join("\n");
        for key in ["query_share_percent", "batch_rows", "max_rows"] {
            assert!(problems.contains(key), "{key} missing in:\n{problems}");
        }
    }
}
