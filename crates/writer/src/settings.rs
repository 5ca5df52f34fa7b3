// SPDX-License-Identifier: Apache-2.0
//! Settings of the writer role.

/// How files are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rows that a new base file gets at most.
    pub rows_per_file: usize,
    /// Files that are written, and slices that are searched, at once.
    pub parallelism: usize,
    /// Rows of a record batch on its way into a file.
    pub batch_rows: usize,
    /// Parts that spilled rows are divided into.
    pub spill_buckets: usize,
    /// Share of the batch's memory, in percent, that rows may take before they spill. The query's share, this one, and
    /// what files take while they are read and written make the whole.
    pub memory_percent: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rows_per_file: 500_000,
            parallelism: std::thread::available_parallelism().map_or(2, usize::from),
            batch_rows: 8192,
            spill_buckets: 64,
            memory_percent: 30,
        }
    }
}
