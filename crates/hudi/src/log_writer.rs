// SPDX-License-Identifier: Apache-2.0
//! Writing log files: their names, their blocks, and the stream of blocks to the store.
//!
//! Rows go into Avro blocks, which is what Spark's own writers make, so that every reader of Hudi tables knows them. A
//! file belongs to one write and has number 1 (table version 8 and later). A write that is larger than a block makes
//! several blocks of one instant.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use object_store::buffered::BufWriter;
use tokio::io::AsyncWriteExt;
use tributary_types::InstantTime;

use crate::avro::{avro_schema, with_meta_columns};
use crate::avro_rows::AvroRows;
use crate::delete_encode::{DeletedKey, encode_deletes};
use crate::error::{Error, Result};
use crate::log_blocks::{INSTANT_TIME, SCHEMA, frame_block};
use crate::storage::Storage;

/// Number of a block of Avro rows.
const AVRO: u32 = 3;
/// Number of a block of deleted keys.
const DELETE: u32 = 1;
/// Version of the content of a block of rows.
const CONTENT_VERSION: u32 = 3;
/// Bytes of rows after which a block is closed: it is held in memory as a whole, here and by readers.
const BLOCK_BYTES: usize = 16 << 20;
/// Bytes that are collected before they are sent to the store.
const UPLOAD_BYTES: usize = 8 << 20;
/// Pieces of that size that are on their way at once.
const UPLOADS_AT_ONCE: usize = 2;

/// The name of a log file: `.<file id>_<instant>.log.1_<write token>`, the token being `<task>-<stage>-<attempt>`.
pub fn log_file_name(file_id: &str, task: usize, attempt: u32, instant: &InstantTime) -> String {
    format!(".{file_id}_{instant}.log.1_{task}-0-{attempt}")
}

/// The Avro schema of a table's log rows: the meta columns, then the table's, under the names that its commits use.
pub fn log_schema(table: &str, schema: &Schema) -> Result<String> {
    avro_schema(table, &with_meta_columns(schema))
}

/// Writes one log file, block after block.
pub struct LogFileWriter {
    path: String,
    instant: String,
    schema: String,
    sink: BufWriter,
    rows_in_block: u32,
    block: Vec<u8>,
    block_bytes: usize,
    written: u64,
    rows: u64,
}

impl LogFileWriter {
    /// Opens a file of a write's instant; `schema` is that of [`log_schema`]. Nothing is visible before
    /// [`LogFileWriter::close`].
    pub fn create(storage: &Storage, path: &str, instant: &InstantTime, schema: &str) -> Result<Self> {
        let sink = BufWriter::with_capacity(storage.store(), storage.path(path)?, UPLOAD_BYTES)
            .with_max_concurrency(UPLOADS_AT_ONCE);
        Ok(LogFileWriter {
            path: path.to_string(),
            instant: instant.to_string(),
            schema: schema.to_string(),
            sink,
            rows_in_block: 0,
            block: Vec::new(),
            block_bytes: BLOCK_BYTES,
            written: 0,
            rows: 0,
        })
    }

    /// Adds rows, whose columns are those of the schema in its order.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = AvroRows::new(batch)?;
        for row in 0..batch.num_rows() {
            let start = self.block.len();
            self.block.extend([0; 4]);
            rows.append(row, &mut self.block);
            let length = u32::try_from(self.block.len() - start - 4)
                .map_err(|_| Error::unsupported(format!("`{}`: a row of more than 4 GiB", self.path)))?;
            self.block[start..start + 4].copy_from_slice(&length.to_be_bytes());
            self.rows_in_block += 1;
            self.rows += 1;
            if self.block.len() >= self.block_bytes {
                self.end_block().await?;
            }
        }
        Ok(())
    }

    /// Deletes keys, in a block of their own.
    pub async fn delete(&mut self, deletes: &[DeletedKey]) -> Result<()> {
        self.end_block().await?;
        self.send(DELETE, &encode_deletes(deletes)).await
    }

    /// Bytes this writer holds in memory.
    pub fn buffered_bytes(&self) -> usize {
        // What was sent already is still held while it is on its way: at most one piece more than are under way.
        self.block.capacity() + (self.written as usize).min((UPLOADS_AT_ONCE + 1) * UPLOAD_BYTES)
    }

    /// Makes the file visible; answers its size in bytes and its rows.
    pub async fn close(mut self) -> Result<(u64, u64)> {
        self.end_block().await?;
        self.sink.shutdown().await.map_err(|e| store_error(&self.path, e))?;
        Ok((self.written, self.rows))
    }

    async fn end_block(&mut self) -> Result<()> {
        if self.rows_in_block == 0 {
            return Ok(());
        }
        let mut content = Vec::with_capacity(8 + self.block.len());
        content.extend(CONTENT_VERSION.to_be_bytes());
        content.extend(self.rows_in_block.to_be_bytes());
        content.append(&mut self.block);
        self.rows_in_block = 0;
        self.send(AVRO, &content).await
    }

    async fn send(&mut self, kind: u32, content: &[u8]) -> Result<()> {
        let header = [(INSTANT_TIME, self.instant.as_str()), (SCHEMA, self.schema.as_str())];
        let framed = frame_block(kind, &header, content);
        self.written += framed.len() as u64;
        self.sink.put(framed.into()).await.map_err(|source| Error::Store { doing: doing(&self.path), source })
    }
}

fn doing(path: &str) -> String {
    format!("writing `{path}`")
}

fn store_error(path: &str, error: std::io::Error) -> Error {
    let source = object_store::Error::Generic { store: "log file", source: Box::new(error) };
    Error::Store { doing: doing(path), source }
}

#[cfg(test)]
mod tests;
