// SPDX-License-Identifier: Apache-2.0
//! Data files whose rows say another commit time: what a table service leaves that does not keep it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const COMMIT_TIME: &str = "_hoodie_commit_time";

/// Writes the base file at `file` anew, every row of it stamped with `commit_time`. Its size changes.
///
/// # Panics
/// When the file cannot be read, has no commit times, or cannot be written: a test cannot go on without it.
pub fn restamp_rows(file: &Path, commit_time: &str) {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}", file.display()) };
    let opened = File::open(file).unwrap_or_else(|e| fail(&e));
    let reader = ParquetRecordBatchReaderBuilder::try_new(opened).and_then(|builder| builder.build());
    let batches: Vec<RecordBatch> =
        reader.unwrap_or_else(|e| fail(&e)).collect::<Result<_, _>>().unwrap_or_else(|e| fail(&e));
    let schema = batches.first().map(RecordBatch::schema).unwrap_or_else(|| fail(&"it has no rows"));
    let at = schema.index_of(COMMIT_TIME).unwrap_or_else(|e| fail(&e));
    let created = File::create(file).unwrap_or_else(|e| fail(&e));
    let mut writer = ArrowWriter::try_new(created, schema.clone(), None).unwrap_or_else(|e| fail(&e));
    for batch in batches {
        let mut columns = batch.columns().to_vec();
        let stamps: ArrayRef = Arc::new(StringArray::from_iter_values(vec![commit_time; batch.num_rows()]));
        columns[at] = stamps;
        let stamped = RecordBatch::try_new(schema.clone(), columns).unwrap_or_else(|e| fail(&e));
        writer.write(&stamped).unwrap_or_else(|e| fail(&e));
    }
    writer.close().unwrap_or_else(|e| fail(&e));
}
