// SPDX-License-Identifier: Apache-2.0
//! Figures that this role reports, each with the label `source`. All are emitted with every plan, at zero too, but the
//! failures, which show up with the first one.

use tributary_api::timeline::SourcePlan;

/// Complete commits after the window's end.
pub const LAG_INSTANTS: &str = "tributary_timeline_lag_instants";
/// Seconds between the window's end and the newest complete commit.
pub const LAG_SECONDS: &str = "tributary_timeline_lag_seconds";
/// Commits that archiver and cleaner may still pass before the source becomes stale.
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

/// Name and help text of every metric of this role.
pub const HELP: [(&str, &str); 9] = [
    (LAG_INSTANTS, "Complete commits after the window's end"),
    (LAG_SECONDS, "Seconds between the window's end and the newest complete commit"),
    (HEADROOM_INSTANTS, "Commits that archiver and cleaner may still pass before the source becomes stale"),
    (WINDOW_INSTANTS, "Commits in the window planned last"),
    (WINDOW_FILES, "Files pinned by the plan made last"),
    (WINDOW_BYTES, "Bytes pinned by the plan made last"),
    (LATE_INSTANTS, "Instants that were delivered late"),
    (PLAN_FAILURES, "Plans that failed, by reason"),
    (COMMITS_READ, "Commit metadata files read, cached ones not counted"),
];

/// Registers the series that exist before any plan was made, at zero.
pub fn register() {
    ::metrics::counter!(COMMITS_READ).increment(0);
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
