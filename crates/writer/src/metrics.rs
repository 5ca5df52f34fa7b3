// SPDX-License-Identifier: Apache-2.0
//! Metrics of the writer role.

/// Rows that reached staged files, by `kind`: `insert` or `update`.
pub const ROWS: &str = "tributary_writer_rows_total";
/// Bytes of staged files.
pub const BYTES: &str = "tributary_writer_staged_bytes_total";
/// Staged files, by `kind`: `create`, `merge` or `append`.
pub const FILES: &str = "tributary_writer_staged_files_total";
/// Bytes of rows that went through temporary files.
pub const SPILLED: &str = "tributary_writer_spilled_bytes_total";

/// Name and help text of every metric of this role.
pub const HELP: [(&str, &str); 4] = [
    (ROWS, "Rows that reached staged files, by kind (insert, update)"),
    (BYTES, "Bytes of staged files"),
    (FILES, "Staged files, by kind (create, merge, append)"),
    (SPILLED, "Bytes of rows that went through temporary files"),
];

/// Registers every series at zero, so that none is missing before its first event.
pub fn register() {
    for kind in ["insert", "update"] {
        ::metrics::counter!(ROWS, "kind" => kind).increment(0);
    }
    for kind in ["create", "merge", "append"] {
        ::metrics::counter!(FILES, "kind" => kind).increment(0);
    }
    ::metrics::counter!(BYTES).increment(0);
    ::metrics::counter!(SPILLED).increment(0);
}
