// SPDX-License-Identifier: Apache-2.0
//! Figures that this role reports, each with the label `source`. All are emitted with every plan, at zero too.

use tributary_api::timeline::SourcePlan;

/// Complete commits after the window's end.
pub const LAG_INSTANTS: &str = "tributary_timeline_lag_instants";
/// Seconds between the window's end and the newest complete commit.
pub const LAG_SECONDS: &str = "tributary_timeline_lag_seconds";
/// Commits that may be archived before the source becomes stale.
pub const HEADROOM_INSTANTS: &str = "tributary_timeline_headroom_instants";
/// Commits in the window.
pub const WINDOW_INSTANTS: &str = "tributary_timeline_window_instants";
/// Files pinned by the plan.
pub const WINDOW_FILES: &str = "tributary_timeline_window_files";
/// Bytes pinned by the plan.
pub const WINDOW_BYTES: &str = "tributary_timeline_window_bytes";
/// Instants that were delivered late.
pub const LATE_INSTANTS: &str = "tributary_timeline_late_instants_total";
/// Plans that failed, with the label `reason`.
pub const PLAN_FAILURES: &str = "tributary_timeline_plan_failures_total";
/// Commit metadata files read, cached ones not counted.
pub const COMMITS_READ: &str = "tributary_timeline_commits_read_total";

/// Registers help texts with the recorder of the process.
pub fn describe() {
    metrics::describe_gauge!(LAG_INSTANTS, "complete commits after the window's end");
    metrics::describe_gauge!(LAG_SECONDS, "seconds between the window's end and the newest complete commit");
    metrics::describe_gauge!(HEADROOM_INSTANTS, "commits that may be archived before the source becomes stale");
    metrics::describe_gauge!(WINDOW_INSTANTS, "commits in the window planned last");
    metrics::describe_gauge!(WINDOW_FILES, "files pinned by the plan made last");
    metrics::describe_gauge!(WINDOW_BYTES, "bytes pinned by the plan made last");
    metrics::describe_counter!(LATE_INSTANTS, "instants that were delivered late");
    metrics::describe_counter!(PLAN_FAILURES, "plans that failed, by reason");
    metrics::describe_counter!(COMMITS_READ, "commit metadata files read");
}

pub(crate) fn record_plan(plan: &SourcePlan) {
    let source = plan.source.to_string();
    let gauge = |name: &'static str, value: f64| metrics::gauge!(name, "source" => source.clone()).set(value);
    gauge(LAG_INSTANTS, plan.report.lag_instants as f64);
    gauge(LAG_SECONDS, plan.report.lag_seconds as f64);
    gauge(HEADROOM_INSTANTS, plan.report.headroom_instants as f64);
    gauge(WINDOW_INSTANTS, plan.report.instants as f64);
    gauge(WINDOW_FILES, plan.report.files as f64);
    gauge(WINDOW_BYTES, plan.report.bytes as f64);
    metrics::counter!(LATE_INSTANTS, "source" => source).increment(plan.report.late_delivered.len() as u64);
}

pub(crate) fn record_failure(source: &str, reason: &'static str) {
    metrics::counter!(PLAN_FAILURES, "source" => source.to_string(), "reason" => reason).increment(1);
}

pub(crate) fn record_commits_read(count: usize) {
    metrics::counter!(COMMITS_READ).increment(count as u64);
}
