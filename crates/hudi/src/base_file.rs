// SPDX-License-Identifier: Apache-2.0
//! Base files: their names and how they are written.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use object_store::buffered::BufWriter;
use parquet::arrow::AsyncArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use tributary_types::InstantTime;

use crate::error::{Error, Result};
use crate::storage::Storage;

/// Rows of a row group at most: bounds what a reader holds and what a writer buffers.
const ROW_GROUP_ROWS: usize = 128 * 1024;
/// Bytes of distinct values up to which a column of a row group is written through a dictionary. A row group is short,
/// so with the usual 1 MiB nearly every column of distinct numbers would fill a dictionary and gain nothing by it.
const DICTIONARY_BYTES: usize = 256 << 10;
/// Bytes that are collected before they are sent to the store.
const UPLOAD_BYTES: usize = 8 << 20;
/// Pieces of that size that are on their way at once.
const UPLOADS_AT_ONCE: usize = 2;

/// The name of a base file: `<file id>_<write token>_<instant>.parquet`, the token being
/// `<task>-<stage>-<attempt>`.
pub fn base_file_name(file_id: &str, task: usize, attempt: u32, instant: &InstantTime) -> String {
    format!("{file_id}_{task}-0-{attempt}_{instant}.parquet")
}

/// File group and instant of a base file's name; `None` for a name that is no base file's.
pub fn parse_base_file_name(name: &str) -> Option<(&str, InstantTime)> {
    let stem = name.strip_suffix(".parquet")?;
    let (rest, instant) = stem.rsplit_once('_')?;
    let (file_id, _token) = rest.rsplit_once('_')?;
    Some((file_id, instant.parse().ok()?))
}

/// Writes one base file, streaming row groups to the store.
pub struct BaseFileWriter {
    path: String,
    writer: AsyncArrowWriter<BufWriter>,
    rows: u64,
}

impl BaseFileWriter {
    /// Opens a file of `schema`, which has the meta columns. Nothing is visible before [`BaseFileWriter::close`].
    pub fn create(storage: &Storage, path: &str, schema: SchemaRef) -> Result<Self> {
        let sink = BufWriter::with_capacity(storage.store(), storage.path(path)?, UPLOAD_BYTES)
            .with_max_concurrency(UPLOADS_AT_ONCE);
        let options =
            ArrowWriterOptions::new().with_properties(properties(path.contains('/'))).with_skip_arrow_metadata(true);
        let writer = AsyncArrowWriter::try_new_with_options(sink, schema, options).map_err(|e| store_error(path, e))?;
        Ok(BaseFileWriter { path: path.to_string(), writer, rows: 0 })
    }

    /// Adds rows.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        self.writer.write(batch).await.map_err(|e| store_error(&self.path, e))
    }

    /// Bytes this writer holds in memory.
    pub fn buffered_bytes(&self) -> usize {
        // What was sent already is still held while it is on its way: at most one piece more than are under way.
        let sent = self.writer.bytes_written().min((UPLOADS_AT_ONCE + 1) * UPLOAD_BYTES);
        self.writer.memory_size() + sent
    }

    /// Makes the file visible; answers its size in bytes and its rows.
    pub async fn close(self) -> Result<(u64, u64)> {
        let mut writer = self.writer;
        writer.finish().await.map_err(|e| store_error(&self.path, e))?;
        Ok((writer.bytes_written() as u64, self.rows))
    }
}

fn store_error(path: &str, error: parquet::errors::ParquetError) -> Error {
    let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
    Error::Store {
        doing: format!("writing `{path}`"),
        source: object_store::Error::Generic { store: "parquet", source: boxed },
    }
}

fn properties(is_partitioned: bool) -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_created_by(concat!("tributary ", env!("CARGO_PKG_VERSION")).to_string())
        // List and map fields get the names that the Parquet format asks for, which Spark relies on.
        .set_coerce_types(true);
    // Every value is another one: a dictionary would be built only to be thrown away.
    for column in ["_hoodie_commit_seqno", "_hoodie_record_key"] {
        builder = builder.set_column_dictionary_enabled(ColumnPath::from(column), false);
    }
    // A dictionary of nothing but an empty text costs more than the lengths of empty texts.
    if !is_partitioned {
        builder = builder.set_column_dictionary_enabled(ColumnPath::from("_hoodie_partition_path"), false);
    }
    // Their least and greatest values help nobody: they are the file's own name and place, or numbers in a row.
    for column in ["_hoodie_commit_seqno", "_hoodie_partition_path", "_hoodie_file_name"] {
        builder = builder.set_column_statistics_enabled(ColumnPath::from(column), EnabledStatistics::None);
    }
    builder.build()
}

/// The schema of a base file: the meta columns, then the table's.
pub fn base_file_schema(table: &arrow::datatypes::Schema) -> SchemaRef {
    Arc::new(crate::avro::with_meta_columns(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_file_name_reads_back() {
        let instant: InstantTime = "20250606182826197".parse().unwrap();
        let name = base_file_name("9662b285-f483-4914-8ccb-6396bcd7e83f-0", 3, 1, &instant);
        assert_eq!(name, "9662b285-f483-4914-8ccb-6396bcd7e83f-0_3-0-1_20250606182826197.parquet");
        assert_eq!(parse_base_file_name(&name), Some(("9662b285-f483-4914-8ccb-6396bcd7e83f-0", instant)));
    }

    #[test]
    fn other_files_are_no_base_files() {
        for name in ["part-0.parquet", "x.log", "a_b_c.parquet", ".hoodie_partition_metadata", "a_0-0-0_2025.parquet"] {
            assert_eq!(parse_base_file_name(name), None, "{name}");
        }
    }
}
