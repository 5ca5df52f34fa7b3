// SPDX-License-Identifier: Apache-2.0
//! Parquet files that tests make.

use std::fs::File;
use std::path::Path;

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;

/// Writes one batch as a Parquet file.
///
/// # Panics
/// When the file cannot be written: a test cannot go on without it.
pub fn write_parquet(path: &Path, batch: &RecordBatch) {
    let file = File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let written = ArrowWriter::try_new(file, batch.schema(), None).and_then(|mut writer| {
        writer.write(batch)?;
        writer.close()
    });
    written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
