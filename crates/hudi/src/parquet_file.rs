// SPDX-License-Identifier: Apache-2.0
//! One parquet file behind a table's store: its footer in one request, its columns in as few as the store allows.

use std::error::Error as StdError;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::{AsyncFileReader, MetadataFetch};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use crate::error::{Error, Result};
use crate::scan::COMMIT_TIME;
use crate::storage::Storage;

/// Bytes at a file's end that are fetched at once: the footer, and all of a small file.
const TAIL_BYTES: u64 = 128 << 10;

/// A parquet file whose footer was read.
#[derive(Debug, Clone)]
pub(crate) struct ParquetFile {
    source: Source,
    /// Its footer.
    pub(crate) metadata: Arc<ParquetMetaData>,
}

/// Reads the footer of a file; `bytes` is its size, 0 where unknown.
pub(crate) async fn open_file(storage: &Storage, path: &str, bytes: u64) -> Result<ParquetFile> {
    let bytes = match bytes {
        0 => size_of(storage, path).await?,
        known => known,
    };
    let mut source = Source { store: storage.store(), path: storage.path(path)?, tail: Bytes::new(), bytes };
    match source.read_footer().await {
        Ok(metadata) => Ok(ParquetFile { source, metadata: Arc::new(metadata) }),
        Err(error) => Err(explain_footer(storage, path, bytes, read_error(path, error)).await),
    }
}

/// The end of a file, its footer included; all of a small file.
pub(crate) async fn footer_bytes(storage: &Storage, path: &str, bytes: u64) -> Result<Bytes> {
    let file = open_file(storage, path, bytes).await?;
    let tail = &file.source.tail;
    // The last 8 bytes: the length of the footer before them, little-endian, and the magic number.
    let length =
        tail.len().checked_sub(8).and_then(|at| tail.get(at..at + 4)).and_then(|length| length.try_into().ok());
    let Some(length) = length.map(|length| u64::from(u32::from_le_bytes(length)) + 8) else {
        return Err(Error::corrupt(path, "it is no Parquet file"));
    };
    if length <= tail.len() as u64 {
        return Ok(tail.clone());
    }
    let start = file.source.bytes.saturating_sub(length);
    file.source.get(start..file.source.bytes).await.map_err(|e| read_error(path, e))
}

/// A store answers a range past the end of a file in its own words; the file being another one is the reason.
async fn explain_footer(storage: &Storage, path: &str, bytes: u64, error: Error) -> Error {
    if matches!(error, Error::Gone { .. }) {
        return error;
    }
    match storage.head(path).await {
        Ok(None) => Error::Gone { file: path.to_string() },
        Ok(Some(entry)) if entry.bytes != bytes => {
            Error::corrupt(path, format!("it has {} bytes, the table says {bytes}", entry.bytes))
        }
        _ => error,
    }
}

async fn size_of(storage: &Storage, path: &str) -> Result<u64> {
    let entry = storage.head(path).await?;
    entry.map(|entry| entry.bytes).ok_or_else(|| Error::Gone { file: path.to_string() })
}

/// The bytes of a file; what lies in its tail comes from memory.
#[derive(Debug, Clone)]
struct Source {
    store: Arc<dyn ObjectStore>,
    path: Path,
    tail: Bytes,
    bytes: u64,
}

impl Source {
    async fn read_footer(&mut self) -> std::result::Result<ParquetMetaData, ParquetError> {
        let start = self.bytes.saturating_sub(TAIL_BYTES);
        self.tail = self.store.get_range(&self.path, start..self.bytes).await?;
        ParquetMetaDataReader::new().load_and_finish(&*self, self.bytes).await
    }

    fn held(&self, range: &Range<u64>) -> Option<Bytes> {
        let start = self.bytes.checked_sub(self.tail.len() as u64)?;
        if range.start < start || range.end > self.bytes || range.end < range.start {
            return None;
        }
        Some(self.tail.slice((range.start - start) as usize..(range.end - start) as usize))
    }

    async fn get(&self, range: Range<u64>) -> std::result::Result<Bytes, ParquetError> {
        match self.held(&range) {
            Some(bytes) => Ok(bytes),
            None => Ok(self.store.get_range(&self.path, range).await?),
        }
    }

    async fn get_all(&self, ranges: Vec<Range<u64>>) -> std::result::Result<Vec<Bytes>, ParquetError> {
        let held: Vec<Option<Bytes>> = ranges.iter().map(|range| self.held(range)).collect();
        let missing: Vec<Range<u64>> =
            ranges.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(range, _)| range.clone()).collect();
        let fetched = match missing.is_empty() {
            true => Vec::new(),
            false => self.store.get_ranges(&self.path, &missing).await?,
        };
        let mut fetched = fetched.into_iter();
        let all: Vec<Bytes> = held.into_iter().filter_map(|held| held.or_else(|| fetched.next())).collect();
        if all.len() != ranges.len() {
            return Err(ParquetError::EOF(format!("the store left out {} ranges", ranges.len() - all.len())));
        }
        Ok(all)
    }
}

impl MetadataFetch for &Source {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, std::result::Result<Bytes, ParquetError>> {
        self.get(range).boxed()
    }
}

impl ParquetFile {
    /// The file's schema in Arrow types, by its Parquet types alone.
    pub(crate) fn arrow_schema(&self, path: &str) -> Result<SchemaRef> {
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = ArrowReaderMetadata::try_new(Arc::clone(&self.metadata), options);
        Ok(Arc::clone(metadata.map_err(|e| read_error(path, e))?.schema()))
    }
}

impl AsyncFileReader for ParquetFile {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, std::result::Result<Bytes, ParquetError>> {
        self.source.get(range).boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, std::result::Result<Vec<Bytes>, ParquetError>> {
        self.source.get_all(ranges).boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, std::result::Result<Arc<ParquetMetaData>, ParquetError>> {
        futures::future::ready(Ok(Arc::clone(&self.metadata))).boxed()
    }
}

/// What an error of the parquet reader means: a file that is gone, a store that failed, or a file that is no good.
pub(crate) fn read_error(path: &str, error: ParquetError) -> Error {
    match store_error(&error) {
        Some(StoreFailure::Gone) => Error::Gone { file: path.to_string() },
        Some(StoreFailure::Other) => {
            let source: Box<dyn StdError + Send + Sync> = Box::new(error);
            Error::Store {
                doing: format!("reading `{path}`"),
                source: object_store::Error::Generic { store: "parquet", source },
            }
        }
        None => Error::corrupt(path, error),
    }
}

enum StoreFailure {
    Gone,
    Other,
}

fn store_error(error: &(dyn StdError + 'static)) -> Option<StoreFailure> {
    let mut next = Some(error);
    while let Some(current) = next {
        match current.downcast_ref::<object_store::Error>() {
            Some(object_store::Error::NotFound { .. }) => return Some(StoreFailure::Gone),
            Some(_) => return Some(StoreFailure::Other),
            None => {}
        }
        // Both hand out what their error wraps, not the error itself.
        next = match (current.downcast_ref::<ParquetError>(), current.downcast_ref::<ArrowError>()) {
            (Some(ParquetError::External(inner)), _) => Some(inner.as_ref()),
            (_, Some(ArrowError::ExternalError(inner))) => Some(inner.as_ref()),
            _ => current.source(),
        };
    }
    None
}

/// Smallest and largest commit time in a file; `None` when its statistics do not say.
pub async fn commit_time_range(storage: &Storage, path: &str, bytes: u64) -> Result<Option<(String, String)>> {
    let file = open_file(storage, path, bytes).await?;
    let mut range: Option<(String, String)> = None;
    for group in file.metadata.row_groups() {
        let Some((min, max)) = crate::row_groups::text_range(group, COMMIT_TIME) else { return Ok(None) };
        range = Some(match range {
            None => (min, max),
            Some((low, high)) => (low.min(min), high.max(max)),
        });
    }
    Ok(range)
}

/// The schema of a file, meta columns included.
pub async fn file_schema(storage: &Storage, path: &str, bytes: u64) -> Result<SchemaRef> {
    open_file(storage, path, bytes).await?.arrow_schema(path)
}
