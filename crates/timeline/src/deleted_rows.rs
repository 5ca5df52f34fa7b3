// SPDX-License-Identifier: Apache-2.0
//! Streams the deleted records of one file group: the rows that it had at the beginning of a window, of keys that are in
//! none of the slices of its partition that the window left.
//!
//! The keys of the group are held, counted in the batch's memory, and those that are found again are dropped; the group's
//! own slice is looked through first, after which mostly none is left and nothing else is read. Only if some are left the
//! rows themselves are read.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt, stream};
use tributary_api::timeline::{Deleted, Error, ReadRequest, Split};
use tributary_api::{RowError, RowStream};
use tributary_hudi::{Bound, ColumnRange, META_COLUMNS, Prune, Storage};
use tributary_types::{Code, IS_DELETED, MemoryExceeded, Reservation, Retry};

use crate::fault::fault;
use crate::read::open;

const RECORD_KEY: &str = META_COLUMNS[2];
/// Bytes that a held key takes besides its text.
const KEY_BYTES: usize = 64;
/// Keys of which the range is looked for, so that row groups without any are left out.
const FEW_KEYS: usize = 4096;

/// Opens the stream. The footer of the group's base file is read before this answers, all else when it is polled.
pub(crate) async fn read(storage: Storage, request: ReadRequest, slices: Arc<Vec<Split>>) -> Result<RowStream, Error> {
    let (schema, key) = with_key(&request.schema);
    let outputs = request.projection.clone().unwrap_or_else(|| (0..request.schema.fields().len()).collect());
    let output = request.schema.project(&outputs).map_err(|error| malformed(&request.split, error))?;
    let mut columns = outputs.clone();
    let place = outputs.iter().position(|at| *at == key).unwrap_or_else(|| {
        columns.push(key);
        columns.len() - 1
    });
    let before = Split { instants: None, all_but: false, deleted: Deleted::Unsaid, ..request.split.clone() };
    // No predicate: what it says of `_hoodie_is_deleted` is not what the files say.
    let whole = ReadRequest { split: before, schema: Arc::clone(&schema), predicate: None, ..request };
    let rows = open(&storage, ReadRequest { projection: Some(columns), ..whole.clone() }, None).await?;
    let lost = async move {
        let keys = ReadRequest { projection: Some(vec![key]), ..whole };
        let lost = lost_keys(&storage, keys, &slices).await?;
        if lost.keys.is_empty() {
            return Ok(stream::empty().boxed());
        }
        let output: SchemaRef = Arc::new(output);
        let kept = rows.map(move |batch| keep(&batch?, place, &lost, &output));
        Ok::<RowStream, RowError>(kept.try_filter(|batch| std::future::ready(batch.num_rows() > 0)).boxed())
    };
    Ok(stream::once(lost).try_flatten().boxed())
}

/// The rows of a split that are not deleted: its flag says so where the files say nothing.
pub(crate) fn not_deleted(batch: RecordBatch) -> Result<RecordBatch, RowError> {
    let Some((at, _)) = batch.schema_ref().column_with_name(IS_DELETED) else { return Ok(batch) };
    let Some(flags) = batch.column(at).as_boolean_opt().filter(|flags| flags.null_count() > 0) else {
        return Ok(batch);
    };
    let flags: BooleanArray = flags.iter().map(|flag| Some(flag == Some(true))).collect();
    with_column(batch, at, Arc::new(flags))
}

/// The columns of a relation, and the position of the record key among them, which may come behind them.
fn with_key(schema: &SchemaRef) -> (SchemaRef, usize) {
    if let Ok(at) = schema.index_of(RECORD_KEY) {
        return (Arc::clone(schema), at);
    }
    let fields = schema.fields().iter().map(|field| field.as_ref().clone());
    let key = Field::new(RECORD_KEY, DataType::Utf8, true);
    (Arc::new(Schema::new(fields.chain([key]).collect::<Vec<_>>())), schema.fields().len())
}

/// Keys of a group at the beginning.
struct Keys {
    keys: HashSet<Box<str>>,
    url: String,
    group: String,
    held: Reservation,
}

/// The keys of a group that are in none of the slices. `request` asks for its keys.
async fn lost_keys(storage: &Storage, request: ReadRequest, slices: &[Split]) -> Result<Keys, RowError> {
    let group = format!("{}/{}", request.split.partition, request.split.file_id);
    let mut keys = Keys {
        keys: HashSet::new(),
        url: request.split.url.clone(),
        held: request.memory.reservation(format!("the keys of file group `{group}` at the beginning of the window")),
        group,
    };
    let mut rows = open(storage, request.clone(), None).await.map_err(RowError::new)?;
    while let Some(batch) = rows.next().await {
        for key in texts(&request.split, &batch?)?.iter().flatten() {
            keys.add(key)?;
        }
    }
    let (own, others): (Vec<&Split>, Vec<&Split>) =
        slices.iter().partition(|slice| slice.file_id == request.split.file_id);
    for slice in own.into_iter().chain(others) {
        if keys.keys.is_empty() {
            break;
        }
        let prune = keys.range().map(|range| Arc::new(range) as Arc<dyn Prune>);
        let split = Split { deleted: Deleted::Unsaid, ..slice.clone() };
        let mut rows = open(storage, ReadRequest { split, ..request.clone() }, prune).await.map_err(RowError::new)?;
        while let Some(batch) = rows.next().await {
            for key in texts(slice, &batch?)?.iter().flatten() {
                keys.remove(key);
            }
        }
    }
    Ok(keys)
}

impl Keys {
    fn add(&mut self, key: &str) -> Result<(), RowError> {
        if self.keys.contains(key) {
            return Ok(());
        }
        let counted = self.held.try_grow(KEY_BYTES + key.len());
        counted.map_err(|source: MemoryExceeded| {
            RowError::new(fault(&self.url)(tributary_hudi::Error::TooLarge { group: self.group.clone(), source }))
        })?;
        self.keys.insert(key.into());
        Ok(())
    }

    fn remove(&mut self, key: &str) {
        if self.keys.remove(key) {
            self.held.shrink(KEY_BYTES + key.len());
        }
    }

    /// The least and the greatest key, if they are few.
    fn range(&self) -> Option<KeyRange> {
        if self.keys.len() > FEW_KEYS {
            return None;
        }
        let (least, greatest) = (self.keys.iter().min()?, self.keys.iter().max()?);
        Some(KeyRange { least: least.to_string(), greatest: greatest.to_string() })
    }
}

/// Leaves out row groups of which every key is out of a range.
struct KeyRange {
    least: String,
    greatest: String,
}

impl Prune for KeyRange {
    fn keep(&self, range: &dyn Fn(&str) -> Option<ColumnRange>) -> bool {
        let Some(ColumnRange { min: Some(Bound::Text(min)), max: Some(Bound::Text(max)), .. }) = range(RECORD_KEY)
        else {
            return true;
        };
        min <= self.greatest && max >= self.least
    }
}

/// The rows of lost keys, flagged; `key` is the position of the key.
fn keep(batch: &RecordBatch, key: usize, lost: &Keys, output: &SchemaRef) -> Result<RecordBatch, RowError> {
    let internal = |error| internal(&lost.group, error);
    let keys = batch.column(key).as_string::<i32>();
    let wanted: BooleanArray = keys.iter().map(|key| Some(key.is_some_and(|key| lost.keys.contains(key)))).collect();
    let kept = filter_record_batch(batch, &wanted).map_err(internal)?;
    let flags = || -> ArrayRef { Arc::new(BooleanArray::from(vec![true; kept.num_rows()])) };
    let columns = output.fields().iter().zip(kept.columns());
    let columns = columns.map(|(field, column)| if field.name() == IS_DELETED { flags() } else { Arc::clone(column) });
    let columns: Vec<ArrayRef> = columns.collect();
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(kept.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(output), columns, &options).map_err(internal)
}

fn texts<'a>(split: &Split, batch: &'a RecordBatch) -> Result<&'a StringArray, RowError> {
    let texts = batch.columns().last().and_then(|column| column.as_string_opt::<i32>());
    texts.ok_or_else(|| {
        let detail = format!("column `{RECORD_KEY}` is no text");
        RowError::new(Error::Corrupt { url: split.url.clone(), file: split.name().to_string(), detail })
    })
}

fn with_column(batch: RecordBatch, at: usize, column: ArrayRef) -> Result<RecordBatch, RowError> {
    let (schema, mut columns, _) = batch.into_parts();
    columns[at] = column;
    RecordBatch::try_new(schema, columns).map_err(|error| internal(IS_DELETED, error))
}

fn malformed(split: &Split, error: arrow::error::ArrowError) -> Error {
    Error::Corrupt { url: split.url.clone(), file: split.name().to_string(), detail: error.to_string() }
}

fn internal(what: &str, error: arrow::error::ArrowError) -> RowError {
    let message = format!("arranging the deleted rows of `{what}` failed: {error}");
    RowError::new(Error::Other { code: Code::Internal, retry: Retry::Never, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_groups_out_of_the_range_of_the_keys_are_left_out() {
        let range = KeyRange { least: "f".to_string(), greatest: "k".to_string() };
        let keeps = |min: &str, max: &str| {
            let text = |text: &str| Some(Bound::Text(text.to_string()));
            range.keep(&|_| Some(ColumnRange { min: text(min), max: text(max), nulls: None, rows: 1 }))
        };
        assert!(keeps("a", "f") && keeps("k", "z") && keeps("g", "h"));
        assert!(!keeps("a", "e") && !keeps("l", "z"));
        assert!(range.keep(&|_| None), "where nothing is known all is read");
    }

    #[test]
    fn a_flag_that_the_files_leave_open_says_no() {
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
        let batch = RecordBatch::try_from_iter_with_nullable([(IS_DELETED, flags, true)]).unwrap();
        let told = not_deleted(batch).unwrap();
        assert_eq!(told.column(0).as_boolean(), &BooleanArray::from(vec![true, false, false]));
    }
}
