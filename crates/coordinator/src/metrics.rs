// SPDX-License-Identifier: Apache-2.0
//! Metrics of the coordinator role.

use tributary_api::coordinator::Written;
use tributary_types::Outcome;

/// Batches that ended, by `pipeline` and `outcome`.
pub const BATCHES: &str = "tributary_coordinator_batches_total";
/// Seconds a batch took, by `pipeline`.
pub const DURATION: &str = "tributary_coordinator_batch_duration_seconds";
/// Rows that batches brought into targets, by `pipeline`.
pub const ROWS: &str = "tributary_coordinator_rows_total";
/// Rows of queries' results that did not become rows of targets, by `pipeline` and `why`.
pub const LEFT_OUT: &str = "tributary_coordinator_rows_left_out_total";
/// Rows that were refused, by `pipeline`, `source` and `reason`, whatever became of their batch.
pub const REFUSED_ROWS: &str = "tributary_coordinator_refused_rows_total";
/// Refused rows that were committed to the error table, by `pipeline`.
pub const ERROR_ROWS: &str = "tributary_coordinator_error_rows_total";
/// Cursors that requests were to set by hand, by `pipeline` and `outcome`: `applied`, `already`, `rejected`, `failed`.
pub const OVERRIDES: &str = "tributary_coordinator_overrides_total";
/// Cursors that the last batch was to set by hand and did not, by `pipeline`.
pub const OVERRIDES_PENDING: &str = "tributary_coordinator_overrides_pending";
/// Dead instants that were rolled back.
pub const ROLLBACKS: &str = "tributary_coordinator_rollbacks_total";
/// Completing requests whose answer was lost, by what was `found` when the target was read back.
pub const READ_BACKS: &str = "tributary_coordinator_commit_read_backs_total";
/// Batches that did not go together with what another writer of their target did, by `pipeline` and by what both meet
/// `on`.
pub const WRITER_CONFLICTS: &str = "tributary_coordinator_writer_conflicts_total";
/// Batches that kept other writers of a shared target out from beginning to end, by `pipeline`.
pub const TURNS: &str = "tributary_coordinator_turns_total";
/// Runs of table services that did something or failed, by `service` and `outcome`.
pub const SERVICE_RUNS: &str = "tributary_service_runs_total";
/// What table services did, by `service`: files cleaned, log files compacted, instants archived.
pub const SERVICE_THINGS: &str = "tributary_service_items_total";
/// Seconds a table service took, by `service`.
pub const SERVICE_DURATION: &str = "tributary_service_duration_seconds";

/// When a batch last ended well, by `pipeline`, seconds since the epoch.
pub const LAST_SUCCESS: &str = "tributary_coordinator_last_success_timestamp_seconds";
/// When a batch last committed, by `pipeline`, seconds since the epoch.
pub const LAST_COMMIT: &str = "tributary_coordinator_last_commit_timestamp_seconds";
/// Batches in a row that did not end well, by `pipeline`.
pub const FAILURES: &str = "tributary_coordinator_failures_in_a_row";

/// Values of the label `service`.
pub(crate) const COMPACT: &str = "compact";
pub(crate) const CLEAN: &str = "clean";
pub(crate) const COMPACT_METADATA: &str = "compact-metadata";
pub(crate) const ARCHIVE: &str = "archive";

/// Name and help text of every metric of this role.
pub const HELP: [(&str, &str); 18] = [
    (BATCHES, "Batches that ended, by pipeline and outcome"),
    (DURATION, "Seconds a batch took, by pipeline"),
    (ROWS, "Rows that batches brought into targets, by pipeline"),
    (LEFT_OUT, "Rows of queries' results that did not become rows of targets, by pipeline and why"),
    (REFUSED_ROWS, "Rows that were refused, by pipeline, source and reason"),
    (ERROR_ROWS, "Refused rows that were committed to the error table, by pipeline"),
    (OVERRIDES, "Cursors that requests were to set by hand, by pipeline and outcome"),
    (OVERRIDES_PENDING, "Cursors that the last batch was to set by hand and did not, by pipeline"),
    (ROLLBACKS, "Dead instants that were rolled back"),
    (READ_BACKS, "Completing requests whose answer was lost, by what was found when the target was read back"),
    (WRITER_CONFLICTS, "Batches that met another writer of their target, by pipeline and by what both meet on"),
    (TURNS, "Batches that kept other writers of a shared target out from beginning to end, by pipeline"),
    (
        LAST_SUCCESS,
        "When a batch last committed or found nothing new, seconds since the epoch; 0: none did in this process",
    ),
    (LAST_COMMIT, "When a batch last committed, seconds since the epoch; 0: none did in this process"),
    (FAILURES, "Batches in a row that neither committed nor found nothing new, cancelled ones not counted"),
    (SERVICE_RUNS, "Runs of table services that did something or failed, by service and outcome"),
    (SERVICE_THINGS, "Files cleaned, log files compacted, instants archived, by service"),
    (SERVICE_DURATION, "Seconds a table service took, by service"),
];

/// Registers the series that exist before any batch ran, at zero.
pub fn register() {
    ::metrics::counter!(ROLLBACKS).increment(0);
    for found in ["committed", "absent", "unknown"] {
        ::metrics::counter!(READ_BACKS, "found" => found).increment(0);
    }
    for service in [COMPACT, CLEAN, COMPACT_METADATA, ARCHIVE] {
        for outcome in ["done", "failed"] {
            ::metrics::counter!(SERVICE_RUNS, "service" => service, "outcome" => outcome).increment(0);
        }
        ::metrics::counter!(SERVICE_THINGS, "service" => service).increment(0);
        drop(::metrics::histogram!(SERVICE_DURATION, "service" => service));
    }
}

/// Registers the series of a pipeline at zero, when it first shows up.
pub(crate) fn register_pipeline(pipeline: &str, refusing: Vec<(String, &'static str)>) {
    const OUTCOMES: [Outcome; 7] = [
        Outcome::Committed,
        Outcome::NoNewData,
        Outcome::Rejected,
        Outcome::Conflict,
        Outcome::Cancelled,
        Outcome::Failed,
        Outcome::Unknown,
    ];
    for outcome in OUTCOMES {
        let labels = [("pipeline", pipeline.to_string()), ("outcome", outcome.as_str().to_string())];
        ::metrics::counter!(BATCHES, &labels).increment(0);
    }
    drop(::metrics::histogram!(DURATION, "pipeline" => pipeline.to_string()));
    ::metrics::counter!(ROWS, "pipeline" => pipeline.to_string()).increment(0);
    ::metrics::counter!(ERROR_ROWS, "pipeline" => pipeline.to_string()).increment(0);
    for (source, reason) in refusing {
        let labels = [("pipeline", pipeline.to_string()), ("source", source), ("reason", reason.to_string())];
        ::metrics::counter!(REFUSED_ROWS, &labels).increment(0);
    }
    for gauge in [LAST_SUCCESS, LAST_COMMIT, FAILURES] {
        ::metrics::gauge!(gauge, "pipeline" => pipeline.to_string()).set(0.0);
    }
    record_overrides(pipeline, [0; 4]);
    for on in crate::conflict::On::LABELS {
        ::metrics::counter!(WRITER_CONFLICTS, "pipeline" => pipeline.to_string(), "on" => on).increment(0);
    }
    ::metrics::counter!(TURNS, "pipeline" => pipeline.to_string()).increment(0);
    for (why, _) in left_out(&Written::default()) {
        ::metrics::counter!(LEFT_OUT, "pipeline" => pipeline.to_string(), "why" => why).increment(0);
    }
}

/// Tells a pipeline that has nothing to do from one that is stuck.
pub(crate) fn record_found_out(pipeline: &str, outcome: Outcome) {
    let labels = [("pipeline", pipeline.to_string()), ("outcome", outcome.as_str().to_string())];
    ::metrics::counter!(BATCHES, &labels).increment(1);
}

pub(crate) fn record_end(pipeline: &str, outcome: Outcome, now_millis: i64) {
    let gauge = |name: &'static str| ::metrics::gauge!(name, "pipeline" => pipeline.to_string());
    let now = now_millis as f64 / 1000.0;
    match outcome {
        Outcome::Committed | Outcome::NoNewData => {
            gauge(LAST_SUCCESS).set(now);
            gauge(FAILURES).set(0.0);
            if outcome == Outcome::Committed {
                gauge(LAST_COMMIT).set(now);
            }
        }
        Outcome::Cancelled => {}
        Outcome::Rejected | Outcome::Conflict | Outcome::Failed | Outcome::Unknown => gauge(FAILURES).increment(1.0),
    }
}

/// Counts cursors that were to be set by hand: those applied now, those applied before, rejected ones, and those of a batch
/// that failed.
pub(crate) fn record_overrides(pipeline: &str, counts: [u64; 4]) {
    for (outcome, count) in ["applied", "already", "rejected", "failed"].into_iter().zip(counts) {
        let labels = [("pipeline", pipeline.to_string()), ("outcome", outcome.to_string())];
        ::metrics::counter!(OVERRIDES, &labels).increment(count);
    }
    let [_, _, rejected, failed] = counts;
    ::metrics::gauge!(OVERRIDES_PENDING, "pipeline" => pipeline.to_string()).set((rejected + failed) as f64);
}

/// The rows left out, by the label `why`.
pub(crate) fn left_out(written: &Written) -> [(&'static str, u64); 4] {
    [
        ("combined", written.combined),
        ("outdated", written.outdated),
        ("without-key", written.without_key),
        ("absent", written.absent),
    ]
}
