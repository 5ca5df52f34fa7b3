// SPDX-License-Identifier: Apache-2.0
//! Names of the metrics of the merge role, with their help texts.

use tributary_api::merge::{Error, Merged};
use tributary_types::Fault;

/// Rows read, by source.
pub const ROWS_READ: &str = "tributary_merge_rows_read_total";
/// Rows handed to the writer.
pub const ROWS_OUT: &str = "tributary_merge_rows_out_total";
/// Bytes written to temporary files.
pub const SPILLED_BYTES: &str = "tributary_merge_spilled_bytes_total";
/// Queries that ran with sort-merge joins because hash joins did not fit, by when that was known.
pub const SORT_MERGE: &str = "tributary_merge_sort_merge_total";
/// Finished merges.
pub const FINISHED: &str = "tributary_merge_finished_total";
/// Failed merges, by reason.
pub const FAILED: &str = "tributary_merge_failed_total";
/// Duration of a merge, staging included.
pub const DURATION: &str = "tributary_merge_duration_seconds";

/// Every metric with its help text.
pub const HELP: [(&str, &str); 7] = [
    (ROWS_READ, "Rows read from the relations of a source"),
    (ROWS_OUT, "Rows of query results handed to the writer"),
    (SPILLED_BYTES, "Bytes that queries wrote to temporary files"),
    (SORT_MERGE, "Queries that ran with sort-merge joins because hash joins did not fit into memory"),
    (FINISHED, "Merges that finished"),
    (FAILED, "Merges that failed, by reason"),
    (DURATION, "Seconds from the start of a merge to the end of its staging"),
];

/// Reasons of this role's own errors. Those of other roles are only passed on, and show up when they first happen.
const OWN_REASONS: [&str; 8] = [
    "SQL_INVALID",
    "PLACEHOLDER_UNKNOWN",
    "SOURCE_UNUSED",
    "LIMIT_REACHED",
    "MEMORY_EXCEEDED",
    "QUERY_FAILED",
    "STOPPED",
    "ROLE_UNREACHABLE",
];

/// Registers the series that exist before any merge ran, at zero.
pub fn register() {
    for counter in [ROWS_OUT, SPILLED_BYTES, FINISHED] {
        ::metrics::counter!(counter).increment(0);
    }
    for cause in [SortMergeCause::Estimate, SortMergeCause::Memory] {
        ::metrics::counter!(SORT_MERGE, "cause" => cause.as_str()).increment(0);
    }
    for reason in OWN_REASONS {
        ::metrics::counter!(FAILED, "reason" => reason).increment(0);
    }
    drop(::metrics::histogram!(DURATION));
}

/// Why a query ran with sort-merge joins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SortMergeCause {
    /// The files behind the build sides are larger than the query's memory.
    Estimate,
    /// A hash join ran out of memory.
    Memory,
}

impl SortMergeCause {
    fn as_str(self) -> &'static str {
        match self {
            SortMergeCause::Estimate => "estimate",
            SortMergeCause::Memory => "memory",
        }
    }
}

pub(crate) fn sort_merge_chosen(cause: SortMergeCause) {
    ::metrics::counter!(SORT_MERGE, "cause" => cause.as_str()).increment(1);
}

pub(crate) fn finished(outcome: &Result<(Merged, u64), Error>, seconds: f64) {
    ::metrics::histogram!(DURATION).record(seconds);
    match outcome {
        Ok((merged, rows_out)) => {
            ::metrics::counter!(FINISHED).increment(1);
            ::metrics::counter!(ROWS_OUT).increment(*rows_out);
            ::metrics::counter!(SPILLED_BYTES).increment(merged.spilled_bytes);
            for (source, rows) in &merged.rows_read {
                ::metrics::counter!(ROWS_READ, "source" => source.to_string()).increment(*rows);
            }
        }
        Err(error) => ::metrics::counter!(FAILED, "reason" => error.reason()).increment(1),
    }
}
