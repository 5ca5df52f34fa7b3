// SPDX-License-Identifier: Apache-2.0
//! Figures that this role reports, each with the label `source`.

use tributary_api::timeline::SourcePlan;

use crate::record::Tally;

/// Files after the window's end.
pub const LAG_FILES: &str = "tributary_sources_lag_files";
/// Seconds between the window's end and the newest file.
pub const LAG_SECONDS: &str = "tributary_sources_lag_seconds";
/// Files that the last listing saw.
pub const LISTED_FILES: &str = "tributary_sources_listed_files";
/// Files in the window.
pub const WINDOW_FILES: &str = "tributary_sources_window_files";
/// Bytes in the window.
pub const WINDOW_BYTES: &str = "tributary_sources_window_bytes";
/// Files that appeared or changed behind the cursor, with the label `outcome`: `read` or `left_out`.
pub const LATE_FILES: &str = "tributary_sources_late_files_total";
/// Plans that failed, with the label `reason`.
pub const PLAN_FAILURES: &str = "tributary_sources_plan_failures_total";
/// Records that were no good.
pub const BAD_RECORDS: &str = "tributary_sources_bad_records_total";
/// Of those, the ones that were left out.
pub const DROPPED_RECORDS: &str = "tributary_sources_dropped_records_total";
/// Fields that the schema has no place for.
pub const UNKNOWN_FIELDS: &str = "tributary_sources_unknown_fields_total";
/// Keys that an object of JSON had twice.
pub const DUPLICATE_KEYS: &str = "tributary_sources_duplicate_keys_total";

/// Offsets of a topic after the window's end.
pub const LAG_MESSAGES: &str = "tributary_sources_lag_messages";
/// Offsets of a topic in the window: as many messages at most.
pub const WINDOW_MESSAGES: &str = "tributary_sources_window_messages";
/// Offsets of a topic that were gone before they were read, and were passed over.
pub const LOST_MESSAGES: &str = "tributary_sources_lost_messages_total";
/// Messages without a value, with the label `outcome`: `deleted` or `ignored`.
pub const TOMBSTONES: &str = "tributary_sources_tombstones_total";

/// Registers help texts with the recorder of the process.
pub fn describe() {
    metrics::describe_gauge!(LAG_FILES, "files after the window's end");
    metrics::describe_gauge!(LAG_SECONDS, "seconds between the window's end and the newest file");
    metrics::describe_gauge!(LISTED_FILES, "files that the last listing saw");
    metrics::describe_gauge!(WINDOW_FILES, "files in the window planned last");
    metrics::describe_gauge!(WINDOW_BYTES, "bytes in the window planned last");
    metrics::describe_counter!(LATE_FILES, "files that appeared or changed behind the cursor, by outcome");
    metrics::describe_counter!(PLAN_FAILURES, "plans that failed, by reason");
    metrics::describe_counter!(BAD_RECORDS, "records that were no good");
    metrics::describe_counter!(DROPPED_RECORDS, "records that were no good and left out");
    metrics::describe_counter!(UNKNOWN_FIELDS, "fields that the schema has no place for");
    metrics::describe_counter!(DUPLICATE_KEYS, "keys that an object of JSON had twice");
    metrics::describe_gauge!(LAG_MESSAGES, "offsets of a topic after the window's end");
    metrics::describe_gauge!(WINDOW_MESSAGES, "offsets of a topic in the window planned last");
    metrics::describe_counter!(
        LOST_MESSAGES,
        "offsets of a topic that were gone before they were read, and passed over"
    );
    metrics::describe_counter!(TOMBSTONES, "messages without a value, by outcome");
}

pub(crate) fn record_plan(plan: &SourcePlan, listed: usize, late_files: u64) {
    let source = plan.source.to_string();
    let gauge = |name: &'static str, value: f64| metrics::gauge!(name, "source" => source.clone()).set(value);
    gauge(LAG_FILES, plan.report.lag_instants as f64);
    gauge(LAG_SECONDS, plan.report.lag_seconds as f64);
    gauge(LISTED_FILES, listed as f64);
    gauge(WINDOW_FILES, plan.report.instants as f64);
    gauge(WINDOW_BYTES, plan.report.bytes as f64);
    let late = |outcome: &'static str, files: u64| {
        metrics::counter!(LATE_FILES, "source" => source.clone(), "outcome" => outcome).increment(files);
    };
    late("read", late_files);
    late("left_out", plan.report.left_out_files);
}

/// Records the plan of a topic.
pub(crate) fn record_topic(plan: &SourcePlan) {
    let source = plan.source.to_string();
    metrics::gauge!(LAG_MESSAGES, "source" => source.clone()).set(plan.report.lag_instants as f64);
    metrics::gauge!(WINDOW_MESSAGES, "source" => source.clone()).set(plan.report.instants as f64);
    metrics::counter!(LOST_MESSAGES, "source" => source).increment(plan.report.left_out_files);
}

pub(crate) fn record_tombstones(source: &str, deleted: u64, ignored: u64) {
    let count = |outcome: &'static str, value: u64| {
        metrics::counter!(TOMBSTONES, "source" => source.to_string(), "outcome" => outcome).increment(value);
    };
    count("deleted", deleted);
    count("ignored", ignored);
}

pub(crate) fn record_failure(source: &str, reason: &'static str) {
    metrics::counter!(PLAN_FAILURES, "source" => source.to_string(), "reason" => reason).increment(1);
}

pub(crate) fn record_tally(source: &str, tally: &Tally) {
    let count = |name: &'static str, value: u64| {
        metrics::counter!(name, "source" => source.to_string()).increment(value);
    };
    count(BAD_RECORDS, tally.bad);
    count(DROPPED_RECORDS, tally.dropped);
    count(UNKNOWN_FIELDS, tally.unknown_fields);
    count(DUPLICATE_KEYS, tally.duplicate_keys);
}
