// SPDX-License-Identifier: Apache-2.0
//! What a plan says of each source, as metrics by `pipeline` and `source` (W16).
//!
//! Times are seconds since the epoch, 0 where there is none. A window's ends are given in both clocks, by the label
//! `clock`: `requested` and `completed`.

use tributary_api::timeline::SourcePlan;
use tributary_types::pipeline::Pipeline;
use tributary_types::{Cursor, CursorKind, InstantTime, SourceName, Zone};

use crate::plan::Plans;

/// Where the window planned last begins.
pub const BEGIN: &str = "tributary_coordinator_source_begin_timestamp_seconds";
/// Where the window planned last ends.
pub const END: &str = "tributary_coordinator_source_end_timestamp_seconds";
/// Oldest pending data instant of the table.
pub const OLDEST_PENDING: &str = "tributary_coordinator_source_oldest_pending_timestamp_seconds";
/// Commits in the window planned last.
pub const INSTANTS: &str = "tributary_coordinator_source_window_instants";
/// Files pinned by the plan made last.
pub const FILES: &str = "tributary_coordinator_source_window_files";
/// Their bytes.
pub const BYTES: &str = "tributary_coordinator_source_window_bytes";
/// Complete commits after the window's end.
pub const LAG_INSTANTS: &str = "tributary_coordinator_source_lag_instants";
/// Seconds between the window's end and the newest complete commit.
pub const LAG_SECONDS: &str = "tributary_coordinator_source_lag_seconds";
/// Commits that the archiver and the cleaner may still pass before the next batch could not be read.
pub const HEADROOM: &str = "tributary_coordinator_source_headroom_instants";
/// Seconds between the window's end and now.
pub const CURSOR_AGE: &str = "tributary_coordinator_source_cursor_age_seconds";
/// Batches that took the whole table for a stale cursor.
pub const GAPS: &str = "tributary_coordinator_source_stale_snapshots_total";
/// Rows read of the source.
pub const ROWS: &str = "tributary_coordinator_source_rows_total";
/// Batches that left the source out, since its files do not fit its table's schema.
pub const SKIPPED: &str = "tributary_coordinator_source_schema_skips_total";

/// Name and help text of every metric of a source.
pub const HELP: [(&str, &str); 13] = [
    (BEGIN, "Where the window planned last begins, seconds since the epoch by either clock; 0: nowhere or not known"),
    (END, "Where the window planned last ends, seconds since the epoch by either clock; 0: not known"),
    (OLDEST_PENDING, "Oldest pending data instant of the table, seconds since the epoch; 0: none"),
    (INSTANTS, "Commits in the window planned last; of a topic offsets"),
    (FILES, "Files pinned by the plan made last; of a topic partitions"),
    (BYTES, "Bytes of the files pinned by the plan made last"),
    (LAG_INSTANTS, "Complete commits after the window's end; of a topic offsets"),
    (LAG_SECONDS, "Seconds between the window's end and the newest complete commit"),
    (HEADROOM, "Commits that archiver and cleaner may still pass before the next batch could not be read"),
    (CURSOR_AGE, "Seconds between the end of the window planned last and the plan; 0: its cursor says no time"),
    (GAPS, "Batches that took the whole table in place of the window of a stale cursor"),
    (ROWS, "Rows read of the source"),
    (SKIPPED, "Batches that left the source out, since its files do not fit its table's schema"),
];

const GAUGES: [&str; 8] = [OLDEST_PENDING, INSTANTS, FILES, BYTES, LAG_INSTANTS, LAG_SECONDS, HEADROOM, CURSOR_AGE];
const CLOCKS: [(&str, CursorKind); 2] = [("requested", CursorKind::Requested), ("completed", CursorKind::Completed)];

type Labels = [(&'static str, String); 2];

fn labels(pipeline: &Pipeline, source: &SourceName) -> Labels {
    [("pipeline", pipeline.name.to_string()), ("source", source.to_string())]
}

fn by_clock(labels: &Labels, clock: &str) -> Vec<(&'static str, String)> {
    labels.iter().cloned().chain([("clock", clock.to_string())]).collect()
}

/// Registers the series of a pipeline's sources at zero, when it first shows up.
pub(crate) fn register(pipeline: &Pipeline) {
    for source in &pipeline.sources {
        let labels = labels(pipeline, &source.name);
        for gauge in GAUGES {
            ::metrics::gauge!(gauge, &labels).increment(0.0);
        }
        for (clock, _) in CLOCKS {
            ::metrics::gauge!(BEGIN, &by_clock(&labels, clock)).increment(0.0);
            ::metrics::gauge!(END, &by_clock(&labels, clock)).increment(0.0);
        }
        ::metrics::counter!(ROWS, &labels).increment(0);
        ::metrics::counter!(SKIPPED, &labels).increment(0);
        ::metrics::counter!(GAPS, &labels).increment(0);
    }
}

/// Records what was planned for a batch at `now_millis` since the epoch.
pub(crate) fn record(pipeline: &Pipeline, plans: &Plans, now_millis: i64) {
    for plan in &plans.sources {
        let labels = labels(pipeline, &plan.source);
        let report = &plan.report;
        let pending = report.oldest_pending.as_ref().map_or(0.0, |at| seconds(at, plan.table.zone));
        let values = [
            (OLDEST_PENDING, pending),
            (INSTANTS, report.instants as f64),
            (FILES, report.files as f64),
            (BYTES, report.bytes as f64),
            (LAG_INSTANTS, report.lag_instants as f64),
            (LAG_SECONDS, report.lag_seconds as f64),
            (HEADROOM, report.headroom_instants as f64),
            (CURSOR_AGE, cursor_age(plan, now_millis)),
        ];
        for (gauge, value) in values {
            ::metrics::gauge!(gauge, &labels).set(value);
        }
        for (clock, kind) in CLOCKS {
            let (begin, end) = ends(plan, kind);
            ::metrics::gauge!(BEGIN, &by_clock(&labels, clock)).set(begin);
            ::metrics::gauge!(END, &by_clock(&labels, clock)).set(end);
        }
        ::metrics::counter!(SKIPPED, &labels).increment(u64::from(report.skipped.is_some()));
        ::metrics::counter!(GAPS, &labels).increment(u64::from(report.gap));
        if report.gap {
            let (pipeline, source) = (&pipeline.name, &plan.source);
            tracing::warn!(%pipeline, %source, "its cursor is stale: the whole table is read, deletes since then are lost");
        }
        if let Some(what) = &report.notice {
            tracing::warn!(pipeline = %pipeline.name, source = %plan.source, what, "nothing is read of a source");
        }
        if let Some(why) = &report.skipped {
            tracing::warn!(pipeline = %pipeline.name, source = %plan.source, why, "a source is left out");
        }
    }
}

/// Records the rows that a merge read.
pub(crate) fn record_rows(pipeline: &Pipeline, rows: &[(SourceName, u64)]) {
    for (source, rows) in rows {
        ::metrics::counter!(ROWS, &labels(pipeline, source)).increment(*rows);
    }
}

/// The window's ends in one clock: as the cursors say them, or as the report translates them.
fn ends(plan: &SourcePlan, kind: CursorKind) -> (f64, f64) {
    let in_clock = |cursor: Option<&Cursor>, requested: Option<&InstantTime>| {
        let own = cursor.filter(|cursor| cursor.kind() == kind).and_then(Cursor::instant);
        let translated = requested.filter(|_| kind == CursorKind::Requested);
        own.or(translated).map_or(0.0, |at| seconds(at, plan.table.zone))
    };
    let begin = in_clock(plan.begin.as_ref(), plan.report.begin_requested.as_ref());
    (begin, in_clock(Some(&plan.end), plan.report.end_requested.as_ref()))
}

fn cursor_age(plan: &SourcePlan, now_millis: i64) -> f64 {
    let end = plan.end.epoch_millis(plan.table.zone);
    end.map_or(0.0, |end| now_millis.saturating_sub(end).max(0) as f64 / 1000.0)
}

fn seconds(at: &InstantTime, zone: Zone) -> f64 {
    at.epoch_millis(zone).map_or(0.0, |millis| millis as f64 / 1000.0)
}
