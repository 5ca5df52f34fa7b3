// SPDX-License-Identifier: Apache-2.0
//! Metrics of pulls.

/// Streams of pulls that ended, by `outcome`.
pub const STREAMS: &str = "tributary_flight_streams_total";
/// Streams of pulls under way.
pub const OPEN: &str = "tributary_flight_streams_open";
/// Rows that pullers were sent.
pub const ROWS: &str = "tributary_flight_rows_total";

/// Values of the label `outcome`.
pub(crate) const DONE: &str = "done";
pub(crate) const FAILED: &str = "failed";
pub(crate) const CANCELLED: &str = "cancelled";
pub(crate) const DROPPED: &str = "dropped";

/// Name and help text of every metric of pulls.
pub const HELP: [(&str, &str); 3] = [
    (STREAMS, "Streams of pulls that ended, by outcome: read to the end, failed, cancelled, dropped by their client"),
    (OPEN, "Streams of pulls under way"),
    (ROWS, "Rows that pullers were sent"),
];

/// Registers the series at zero.
pub(crate) fn register() {
    for outcome in [DONE, FAILED, CANCELLED, DROPPED] {
        ::metrics::counter!(STREAMS, "outcome" => outcome).increment(0);
    }
    ::metrics::gauge!(OPEN).increment(0.0);
    ::metrics::counter!(ROWS).increment(0);
}

pub(crate) fn stream_began() {
    ::metrics::gauge!(OPEN).increment(1.0);
}

pub(crate) fn stream_ended(outcome: &'static str) {
    ::metrics::gauge!(OPEN).decrement(1.0);
    ::metrics::counter!(STREAMS, "outcome" => outcome).increment(1);
}

pub(crate) fn sent(rows: usize) {
    ::metrics::counter!(ROWS).increment(rows as u64);
}
