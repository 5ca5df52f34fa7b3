// SPDX-License-Identifier: Apache-2.0
//! What is told of a batch before it runs.

use serde::{Deserialize, Serialize};
use tributary_types::{Cursor, InstantTime, SourceName};

use super::SourceStatus;

/// A cursor that was to be set by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideStatus {
    /// The source.
    pub source: SourceName,
    /// Where to, as it was asked for.
    pub to: String,
    /// The commit that applied it before; then nothing is done. `None`: this batch applies it, if it commits.
    pub applied_by: Option<InstantTime>,
    /// The source's cursor in the newest commit.
    pub before: Option<Cursor>,
}

/// What the next batch would do.
#[derive(Debug, Clone)]
pub struct PlannedBatch {
    /// Windows of the sources.
    pub sources: Vec<SourceStatus>,
    /// Cursors that it would set by hand.
    pub overrides: Vec<OverrideStatus>,
    /// Whether there is anything to do.
    pub has_news: bool,
    /// Logical and physical plan, and the result's schema, as text.
    pub logical_plan: String,
    /// The physical plan.
    pub physical_plan: String,
    /// Columns of the result: name and type.
    pub columns: Vec<(String, String)>,
}
