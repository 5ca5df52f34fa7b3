// SPDX-License-Identifier: Apache-2.0
//! What can be set.

use serde::{Deserialize, Serialize};

/// Settings of the sources role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Bytes that one request for a part of a file asks for.
    pub part_bytes: u64,
    /// Files that a plan looks into at once.
    pub samples_at_once: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { part_bytes: 4 << 20, samples_at_once: 8 }
    }
}

impl Settings {
    /// Every problem with these settings, in words.
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.part_bytes == 0 {
            problems.push("`part_bytes` is 0: nothing could be read".to_string());
        }
        if self.samples_at_once == 0 {
            problems.push("`samples_at_once` is 0: no file could be looked into".to_string());
        }
        problems
    }
}
