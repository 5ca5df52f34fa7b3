// SPDX-License-Identifier: Apache-2.0
//! Streams the rows of one base file in the table's types.
//!
//! Only the columns asked for are fetched. Row groups whose statistics say that no row can matter are left out, by
//! predicate and by commit time. Where every row of a row group was written by an instant that is asked for, no row
//! is looked at; elsewhere `_hoodie_commit_time` is decoded first, and the other columns only for rows that stay.
//! While one row group is decoded the next one is fetched, and never more than that. What is fetched and decoded counts
//! against the batch's memory.

use std::collections::{BTreeMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use futures::{Stream, StreamExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowFilter,
};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use tokio::sync::mpsc;
use tracing::Instrument as _;
use tributary_types::{InstantTime, MemoryBudget, MemoryExceeded, Reservation};

use crate::avro::META_COLUMNS;
use crate::error::{Error, Result};
use crate::parquet_file::{ParquetFile, open_file, read_error};
use crate::row_groups::{Prune, Wanted, plan_row_groups};
use crate::shape::Shape;
use crate::storage::Storage;

/// Row groups that are fetched ahead of the one being decoded.
const ROW_GROUPS_AHEAD: usize = 1;

/// What writers make of a page, and of a dictionary, at most: the default of Parquet libraries.
const PAGE_BYTES: usize = 1 << 20;

/// The column that says which instant wrote a row.
pub(crate) const COMMIT_TIME: &str = META_COLUMNS[0];

/// Record batches of one schema; ends at the first error.
pub type BatchStream = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// What to read of one base file.
#[derive(Clone)]
pub struct FileScan {
    /// The file, relative to the table.
    pub path: String,
    /// Its size in bytes, 0 where unknown.
    pub bytes: u64,
    /// The table's schema, with or without meta columns.
    pub schema: SchemaRef,
    /// Positions in `schema`, in the order wanted; `None`: all.
    pub projection: Option<Vec<usize>>,
    /// Values of columns that are in the partition's path and may be missing in the file.
    pub constants: BTreeMap<String, Option<String>>,
    /// Only rows written by these instants; `None`: all rows.
    pub instants: Option<Arc<Vec<InstantTime>>>,
    /// Instead, only rows written by none of them; those of an instant that nobody knows are among these.
    pub all_but: bool,
    /// Leaves out row groups.
    pub prune: Option<Arc<dyn Prune>>,
    /// Rows a batch holds at most.
    pub batch_rows: usize,
    /// What counts the row groups that are held. A row group larger than the whole of it is an error; a smaller one is
    /// counted and not refused, for a read that went on would be all that gives memory back.
    pub memory: MemoryBudget,
}

impl FileScan {
    /// The schema of the batches.
    pub fn output_schema(&self) -> Result<SchemaRef> {
        match &self.projection {
            None => Ok(Arc::clone(&self.schema)),
            Some(columns) => self.schema.project(columns).map(Arc::new).map_err(|e| Error::corrupt(&self.path, e)),
        }
    }
}

/// Opens a file: its footer is read before this answers, its rows when the stream is polled.
pub async fn open_scan(storage: &Storage, scan: FileScan) -> Result<BatchStream> {
    let file = open_file(storage, &scan.path, scan.bytes).await?;
    let output = scan.output_schema()?;
    let found = file.arrow_schema(&scan.path)?;
    let shape = Shape::new(&scan.path, &found, output, &scan.constants)?;
    let wanted = plan_row_groups(&scan, &file, &found)?;
    let source = RowGroupSource::new(scan, file, &found, &shape)?;
    Ok(stream_row_groups(source, wanted, shape))
}

/// Everything that is needed to open a stream over one of the file's row groups.
struct RowGroupSource {
    scan: FileScan,
    file: ParquetFile,
    metadata: ArrowReaderMetadata,
    columns: ProjectionMask,
    commit_time: Option<usize>,
}

impl RowGroupSource {
    fn new(scan: FileScan, file: ParquetFile, found: &SchemaRef, shape: &Shape) -> Result<Self> {
        let commit_time = found.index_of(COMMIT_TIME).ok();
        let columns = ProjectionMask::roots(file.metadata.file_metadata().schema_descr(), shape.roots().to_vec());
        // Comparing dictionary entries instead of rows is why the filter costs next to nothing. The type is the
        // whole reader's, so it is taken only when nobody wants the column itself.
        let as_dictionary = commit_time.filter(|root| !shape.roots().contains(root));
        let options = reader_options(found, as_dictionary);
        let metadata =
            ArrowReaderMetadata::try_new(Arc::clone(&file.metadata), options).map_err(|e| read_error(&scan.path, e))?;
        Ok(RowGroupSource { scan, file, metadata, columns, commit_time })
    }

    fn builder(&self, wanted: Wanted) -> ParquetRecordBatchStreamBuilder<ParquetFile> {
        let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(self.file.clone(), self.metadata.clone())
            .with_row_groups(vec![wanted.row_group])
            .with_projection(self.columns.clone())
            .with_batch_size(self.scan.batch_rows.max(1));
        if let (true, Some(root), Some(instants)) = (wanted.filtered, self.commit_time, &self.scan.instants) {
            let mask = ProjectionMask::roots(self.metadata.parquet_schema(), [root]);
            builder = builder.with_row_filter(commit_time_filter(mask, instants, self.scan.all_but));
        }
        builder
    }

    /// Counts what one row group takes while it is held.
    fn reserve(&self, wanted: Wanted) -> Result<Reservation> {
        let schema = self.metadata.parquet_schema();
        let is_read = |leaf: usize| {
            let root = schema.get_column_root_idx(leaf);
            self.columns.leaf_included(leaf) || (wanted.filtered && self.commit_time == Some(root))
        };
        let group = &self.file.metadata.row_groups()[wanted.row_group];
        let columns =
            group.columns().iter().enumerate().filter(|(leaf, _)| is_read(*leaf)).map(|(_, column)| {
                (column.compressed_size().max(0) as usize, column.uncompressed_size().max(0) as usize)
            });
        let bytes = held_bytes(columns, group.num_rows().max(1) as usize, self.scan.batch_rows);
        let what = format!("reading row group {} of `{}`", wanted.row_group, self.scan.path);
        let limit = self.scan.memory.limit();
        if bytes > limit {
            let source = MemoryExceeded { what, wanted: bytes, used: self.scan.memory.used(), limit };
            return Err(Error::TooLarge { group: self.scan.path.clone(), source });
        }
        let mut held = self.scan.memory.reservation(what);
        held.grow(bytes);
        Ok(held)
    }
}

/// Bytes that a row group takes while it is read: its columns as they are stored, and of each, decompressed, a page
/// with its dictionary and its part of one batch. `columns`: stored and decompressed size of each column that is read.
fn held_bytes(columns: impl Iterator<Item = (usize, usize)>, rows: usize, batch_rows: usize) -> usize {
    let of_column = |(stored, decompressed): (usize, usize)| {
        let batch = (decompressed as f64 / rows as f64 * rows.min(batch_rows) as f64) as usize;
        stored.saturating_add(decompressed.min(2 * PAGE_BYTES)).saturating_add(batch)
    };
    columns.map(of_column).fold(0, usize::saturating_add)
}

fn reader_options(found: &SchemaRef, as_dictionary: Option<usize>) -> ArrowReaderOptions {
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let Some(root) = as_dictionary.filter(|root| found.field(*root).data_type() == &DataType::Utf8) else {
        return options;
    };
    let fields: Vec<Field> = found
        .fields()
        .iter()
        .enumerate()
        .map(|(at, field)| match at == root {
            true => field
                .as_ref()
                .clone()
                .with_data_type(DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))),
            false => field.as_ref().clone(),
        })
        .collect();
    options.with_schema(Arc::new(Schema::new_with_metadata(fields, found.metadata().clone())))
}

/// Keeps rows whose commit time is one of `instants`, or, with `all_but`, none of them.
fn commit_time_filter(mask: ProjectionMask, instants: &[InstantTime], all_but: bool) -> RowFilter {
    let named: HashSet<String> = instants.iter().map(ToString::to_string).collect();
    let predicate = move |batch: RecordBatch| wanted_rows(batch.column(0).as_ref(), &named, all_but);
    RowFilter::new(vec![Box::new(ArrowPredicateFn::new(mask, predicate))])
}

/// Which rows were written by one of the `named` instants, or, with `all_but`, by none of them.
pub(crate) fn wanted_rows(
    column: &dyn Array,
    named: &HashSet<String>,
    all_but: bool,
) -> std::result::Result<BooleanArray, ArrowError> {
    if let Some(dictionary) = column.as_dictionary_opt::<Int32Type>() {
        let values = wanted_rows(dictionary.values().as_ref(), named, all_but)?;
        let keys = dictionary.keys();
        let keep = BooleanBuffer::collect_bool(keys.len(), |row| match keys.is_valid(row) {
            true => values.value(keys.value(row) as usize),
            false => all_but,
        });
        return Ok(BooleanArray::new(keep, None));
    }
    let Some(texts) = column.as_string_opt::<i32>() else {
        return Err(ArrowError::SchemaError(format!("`{COMMIT_TIME}` is {}, not text", column.data_type())));
    };
    // Rows of one instant lie together, so the answer is mostly that of the row before.
    let mut last: Option<(&str, bool)> = None;
    let keep = BooleanBuffer::collect_bool(texts.len(), |row| {
        if texts.is_null(row) {
            return all_but;
        }
        let text = texts.value(row);
        match last {
            Some((known, answer)) if known == text => answer,
            _ => {
                let answer = named.contains(text) != all_but;
                last = Some((text, answer));
                answer
            }
        }
    });
    Ok(BooleanArray::new(keep, None))
}

/// Ends the fetching when nobody reads any more.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A row group that was fetched, with the memory it takes.
struct Fetched {
    rows: ParquetRecordBatchReader,
    _held: Reservation,
}

struct Decoding {
    row_groups: mpsc::Receiver<Result<Fetched>>,
    current: Option<Fetched>,
    shape: Shape,
    path: String,
    _fetching: AbortOnDrop,
}

fn stream_row_groups(source: RowGroupSource, wanted: Vec<Wanted>, shape: Shape) -> BatchStream {
    let path = source.scan.path.clone();
    // Fetching starts with the first poll: a stream that is opened early holds no memory.
    let start = futures::stream::once(async move {
        let (sender, row_groups) = mpsc::channel(ROW_GROUPS_AHEAD);
        let fetching = AbortOnDrop(tokio::spawn(fetch_row_groups(source, wanted, sender).in_current_span()));
        Decoding { row_groups, current: None, shape, path, _fetching: fetching }
    });
    start.flat_map(|decoding| futures::stream::unfold(Some(decoding), next_batch)).boxed()
}

async fn fetch_row_groups(source: RowGroupSource, wanted: Vec<Wanted>, sender: mpsc::Sender<Result<Fetched>>) {
    if let Err(error) = try_fetch(&source, wanted, &sender).await {
        // The reader is gone when this fails, and so is whoever would want to know.
        let _ = sender.send(Err(error)).await;
    }
}

async fn try_fetch(source: &RowGroupSource, wanted: Vec<Wanted>, sender: &mpsc::Sender<Result<Fetched>>) -> Result<()> {
    for wanted in wanted {
        let failed = |e| read_error(&source.scan.path, e);
        // Room first: otherwise one more row group than said would be held.
        let Ok(room) = sender.reserve().await else { return Ok(()) };
        let held = source.reserve(wanted)?;
        let mut stream = source.builder(wanted).build().map_err(failed)?;
        // None: no row of it is wanted.
        if let Some(rows) = stream.next_row_group().await.map_err(failed)? {
            room.send(Ok(Fetched { rows, _held: held }));
        }
    }
    Ok(())
}

async fn next_batch(decoding: Option<Decoding>) -> Option<(Result<RecordBatch>, Option<Decoding>)> {
    let mut decoding = decoding?;
    loop {
        if let Some(row_group) = &mut decoding.current {
            match row_group.rows.next() {
                Some(Ok(batch)) if batch.num_rows() == 0 => continue,
                Some(batch) => {
                    let shaped = batch
                        .map_err(|e| read_error(&decoding.path, e.into()))
                        .and_then(|batch| decoding.shape.apply(&decoding.path, &batch));
                    let rest = shaped.is_ok().then_some(decoding);
                    return Some((shaped, rest));
                }
                None => decoding.current = None,
            }
        }
        match decoding.row_groups.recv().await? {
            Ok(row_group) => decoding.current = Some(row_group),
            Err(error) => return Some((Err(error), None)),
        }
    }
}

#[cfg(test)]
mod tests;
