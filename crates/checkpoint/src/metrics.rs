// SPDX-License-Identifier: Apache-2.0
//! Metrics of the checkpoint role.

/// Resolves whose local record disagreed with the target and was repaired.
pub const REPAIRS: &str = "tributary_checkpoint_repairs_total";
/// Stored cursors that were malformed.
pub const MALFORMED: &str = "tributary_checkpoint_malformed_entries_total";

/// Name and help text of every metric of this role.
pub const HELP: [(&str, &str); 2] = [
    (REPAIRS, "Resolves whose local record disagreed with the target and was repaired"),
    (MALFORMED, "Stored cursors that were malformed"),
];

/// Registers every series at zero.
pub fn register() {
    ::metrics::counter!(REPAIRS).increment(0);
    ::metrics::counter!(MALFORMED).increment(0);
}
