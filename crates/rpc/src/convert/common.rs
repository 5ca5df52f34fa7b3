// SPDX-License-Identifier: Apache-2.0
//! Cursors, windows and figures, and the small steps of every conversion.

use std::fmt::Display;

use tributary_api::timeline::WindowReport;
use tributary_types::{Cursor, InstantTime, Window};

use super::Malformed;
use crate::proto::common;

/// A field that must be there.
pub(crate) fn required<T>(value: Option<T>, field: &str) -> Result<T, Malformed> {
    value.ok_or_else(|| Malformed::new(field, "is missing"))
}

/// A text that is empty when there is none.
pub(crate) fn text<T: Display>(value: Option<&T>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// Parses a text that is empty when there is none.
pub(crate) fn optional<T: std::str::FromStr<Err: Display>>(text: &str, field: &str) -> Result<Option<T>, Malformed> {
    match text {
        "" => Ok(None),
        given => given.parse().map(Some).map_err(|e| Malformed::new(field, e)),
    }
}

/// A count of this machine's size; a greater one means "no limit" to every user of one.
pub(crate) fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Parses instants.
pub(crate) fn instants(texts: &[String], field: &str) -> Result<Vec<InstantTime>, Malformed> {
    texts.iter().map(|instant| instant.parse().map_err(|e| Malformed::new(field, e))).collect()
}

/// Milliseconds since the epoch for the wire.
pub(crate) fn millis_to_proto(millis: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: millis.div_euclid(1000), nanos: millis.rem_euclid(1000) as i32 * 1_000_000 }
}

/// Milliseconds since the epoch from the wire.
pub(crate) fn millis_from_proto(time: prost_types::Timestamp) -> i64 {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos) / 1_000_000)
}

/// A cursor for the wire.
pub fn cursor_to_proto(cursor: &Cursor) -> common::Cursor {
    let (clock, instant) = match cursor {
        Cursor::Requested(instant) => (common::Clock::Requested, instant.to_string()),
        Cursor::Completed(instant) => (common::Clock::Completed, instant.to_string()),
        Cursor::File(position) => (common::Clock::File, position.to_string()),
        Cursor::Offsets(offsets) => (common::Clock::Offsets, offsets.to_string()),
    };
    common::Cursor { clock: clock as i32, instant }
}

/// A cursor from the wire.
pub fn cursor_from_proto(cursor: common::Cursor) -> Result<Cursor, Malformed> {
    let instant = || cursor.instant.parse::<InstantTime>().map_err(|e| Malformed::new("instant", e));
    match common::Clock::try_from(cursor.clock) {
        Ok(common::Clock::Requested) => Ok(Cursor::Requested(instant()?)),
        Ok(common::Clock::Completed) => Ok(Cursor::Completed(instant()?)),
        Ok(common::Clock::File) => Ok(Cursor::File(cursor.instant.parse().map_err(|e| Malformed::new("instant", e))?)),
        Ok(common::Clock::Offsets) => {
            Ok(Cursor::Offsets(cursor.instant.parse().map_err(|e| Malformed::new("instant", e))?))
        }
        Ok(common::Clock::Unspecified) | Err(_) => {
            Err(Malformed::new("clock", "neither requested, completed, file nor offsets"))
        }
    }
}

/// A window for the wire.
pub fn window_to_proto(window: &Window) -> common::Window {
    common::Window { begin: window.begin.as_ref().map(cursor_to_proto), end: Some(cursor_to_proto(&window.end)) }
}

/// A window from the wire.
pub fn window_from_proto(window: common::Window) -> Result<Window, Malformed> {
    let begin = window.begin.map(cursor_from_proto).transpose().map_err(|e| e.within("begin"))?;
    let end = cursor_from_proto(required(window.end, "end")?).map_err(|e| e.within("end"))?;
    Ok(Window { begin, end })
}

/// Figures for the wire.
pub fn report_to_proto(report: &WindowReport) -> common::WindowReport {
    common::WindowReport {
        instants: report.instants as u64,
        files: report.files as u64,
        bytes: report.bytes,
        oldest_pending: text(report.oldest_pending.as_ref()),
        lag_instants: report.lag_instants as u64,
        lag_seconds: report.lag_seconds,
        headroom_instants: report.headroom_instants as u64,
        late_delivered: report.late_delivered.iter().map(ToString::to_string).collect(),
        begin_requested: text(report.begin_requested.as_ref()),
        end_requested: text(report.end_requested.as_ref()),
        not_a_cut: report.not_a_cut,
        waits_for: text(report.waits_for.as_ref()),
        skipped: report.skipped.clone().unwrap_or_default(),
        gap: report.gap,
        late_files: report.late_files.clone(),
        left_out: report.left_out.clone(),
        left_out_files: report.left_out_files,
        notice: report.notice.clone().unwrap_or_default(),
    }
}

/// Figures from the wire.
pub fn report_from_proto(report: common::WindowReport) -> Result<WindowReport, Malformed> {
    Ok(WindowReport {
        instants: count(report.instants),
        files: count(report.files),
        bytes: report.bytes,
        oldest_pending: optional(&report.oldest_pending, "oldest_pending")?,
        lag_instants: count(report.lag_instants),
        lag_seconds: report.lag_seconds,
        headroom_instants: count(report.headroom_instants),
        late_delivered: instants(&report.late_delivered, "late_delivered")?,
        begin_requested: optional(&report.begin_requested, "begin_requested")?,
        end_requested: optional(&report.end_requested, "end_requested")?,
        not_a_cut: report.not_a_cut,
        waits_for: optional(&report.waits_for, "waits_for")?,
        skipped: Some(report.skipped).filter(|why| !why.is_empty()),
        gap: report.gap,
        late_files: report.late_files,
        left_out: report.left_out,
        left_out_files: report.left_out_files,
        notice: Some(report.notice).filter(|what| !what.is_empty()),
    })
}

/// What is the same here, in a pipeline file and in a commit, as its JSON.
pub(crate) fn json_to_proto<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("what crosses as JSON has only text keys")
}

/// What [`json_to_proto`] wrote; unknown keys are refused.
pub(crate) fn json_from_proto<T: serde::de::DeserializeOwned>(
    text: Option<String>,
    field: &str,
) -> Result<Option<T>, Malformed> {
    text.map(|text| serde_json::from_str(&text).map_err(|e| Malformed::new(field, e))).transpose()
}
