// SPDX-License-Identifier: Apache-2.0
//! Streams the rows of a file slice that has log files.
//!
//! Why not hudi-core's own slice reader: it opens a store of its own, out of reach of our credentials and fault
//! injection; it bounds a read by requested times, not by what had completed; and its memory is not ours to count.
//!
//! The log files are read and decoded first, one after the other, and of each key only the row or delete that stays is
//! remembered. Then the base file is streamed as if it had no logs, less the rows that a log replaces or deletes; at
//! last come the rows of the logs. Only then rows are chosen by commit time: the image of a row is that of the whole
//! slice. All that the logs hold is counted against the batch's memory; a slice for which there is not enough is an
//! error.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, StringArray, UInt32Array};
use arrow::compute::{cast, filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use futures::{StreamExt, stream};
use tributary_types::{IS_DELETED, Reservation};

use crate::avro::META_COLUMNS;
use crate::block_order::{BlockInstants, order_blocks};
use crate::delete_block::read_deletes;
use crate::error::{Error, Result};
use crate::log_blocks::{BlockKind, LogBlock, Torn, read_blocks};
use crate::log_rows::read_rows;
use crate::merge_rules::MergeRules;
use crate::ordering::{OrderingColumns, Rank};
use crate::scan::{BatchStream, COMMIT_TIME, FileScan, open_scan, wanted_rows};
use crate::storage::Storage;

const RECORD_KEY: &str = META_COLUMNS[2];
/// What a change stream says of its row.
const OPERATION: &str = "_hoodie_operation";
/// Operations that take a row away: a delete, and the image before an update.
const DELETING: [&str; 2] = ["D", "-U"];
/// Bytes that a key takes besides its text.
const KEY_BYTES: usize = 96;

/// The log files of a slice.
#[derive(Clone)]
pub struct LogScan {
    /// File group, for messages.
    pub group: String,
    /// Paths relative to the table, in the order in which they are merged.
    pub files: Vec<String>,
    /// What a torn block in them means.
    pub torn: Torn,
    /// Which blocks count; `None`: all.
    pub counted: Option<Arc<BlockInstants>>,
    /// Which row of a key stays.
    pub rules: MergeRules,
}

/// Opens a slice: `scan` says what to read of it and which base file it has, if its path is not empty. The base
/// file's footer is read before this answers, the logs when the stream is polled.
pub async fn open_slice(storage: &Storage, scan: FileScan, logs: LogScan) -> Result<BatchStream> {
    let columns = Columns::new(&scan, &logs.rules)?;
    let base = match scan.path.is_empty() {
        true => stream::empty().boxed(),
        false => open_scan(storage, columns.base_scan(&scan, &logs.rules)).await?,
    };
    let opening = Opening { storage: storage.clone(), scan, logs, columns, base };
    Ok(stream::unfold(Some(Stage::Logs(Box::new(opening))), next_batch).boxed())
}

/// The columns that merging looks at, and where they are in the batches that are merged.
struct Columns {
    /// The columns asked for, then what merging needs besides.
    schema: SchemaRef,
    /// How many were asked for.
    outputs: usize,
    key: usize,
    commit_time: Option<usize>,
    ordering: Vec<usize>,
    is_deleted: Option<usize>,
    operation: usize,
    marker: Option<(usize, String)>,
}

impl Columns {
    fn new(scan: &FileScan, rules: &MergeRules) -> Result<Self> {
        let mut fields: Vec<FieldRef> = scan.output_schema()?.fields().iter().cloned().collect();
        let outputs = fields.len();
        let mut place = |field: FieldRef| match fields.iter().position(|known| known.name() == field.name()) {
            Some(at) => at,
            None => {
                fields.push(field);
                fields.len() - 1
            }
        };
        let of_table = |name: &str| scan.schema.fields().find(name).map(|(_, field)| Arc::clone(field));
        let text = |name: &str| -> FieldRef { Arc::new(Field::new(name, DataType::Utf8, true)) };
        let key = place(of_table(RECORD_KEY).unwrap_or_else(|| text(RECORD_KEY)));
        let commit_time = scan.instants.is_some();
        let commit_time = commit_time.then(|| place(of_table(COMMIT_TIME).unwrap_or_else(|| text(COMMIT_TIME))));
        let mut ordering = Vec::new();
        for column in rules.ordering.iter().flatten() {
            let Some(field) = of_table(column) else {
                return Err(Error::unsupported(format!("ordering column `{column}` is not in the table's schema")));
            };
            ordering.push(place(field));
        }
        let is_deleted = of_table(IS_DELETED).filter(|field| field.data_type() == &DataType::Boolean).map(&mut place);
        let operation = place(of_table(OPERATION).unwrap_or_else(|| text(OPERATION)));
        let marker = rules.delete_marker.as_ref().and_then(|(column, value)| {
            let at = place(of_table(column)?);
            Some((at, value.clone()))
        });
        let schema = Arc::new(Schema::new(fields));
        Ok(Columns { schema, outputs, key, commit_time, ordering, is_deleted, operation, marker })
    }

    /// The scan of the base file. Where the later row always stays, what is left out of the base file is not missed;
    /// elsewhere any row of it may be what a row of a log loses against.
    fn base_scan(&self, scan: &FileScan, rules: &MergeRules) -> FileScan {
        let later_wins = rules.ordering.is_none();
        FileScan {
            path: scan.path.clone(),
            bytes: scan.bytes,
            schema: Arc::clone(&self.schema),
            projection: None,
            constants: scan.constants.clone(),
            instants: scan.instants.clone().filter(|_| later_wins),
            all_but: scan.all_but,
            prune: scan.prune.clone().filter(|_| later_wins),
            batch_rows: scan.batch_rows,
            memory: scan.memory.clone(),
        }
    }

    fn keys<'a>(&self, path: &str, batch: &'a RecordBatch) -> Result<&'a StringArray> {
        let keys = batch.column(self.key).as_string_opt::<i32>();
        keys.ok_or_else(|| Error::corrupt(path, format!("column `{RECORD_KEY}` is no text")))
    }

    /// Which rows of a log's batch delete their key.
    fn deleting(&self, path: &str, batch: &RecordBatch) -> Result<Vec<bool>> {
        let mut deleting = vec![false; batch.num_rows()];
        if let Some(flags) = self.is_deleted.and_then(|at| batch.column(at).as_boolean_opt()) {
            mark(&mut deleting, |row| flags.is_valid(row) && flags.value(row));
        }
        if let Some(texts) = batch.column(self.operation).as_string_opt::<i32>() {
            mark(&mut deleting, |row| texts.is_valid(row) && DELETING.contains(&texts.value(row)));
        }
        if let Some((at, value)) = &self.marker {
            let texts = cast(batch.column(*at), &DataType::Utf8).map_err(|e| Error::corrupt(path, e))?;
            let texts = texts.as_string::<i32>();
            mark(&mut deleting, |row| texts.is_valid(row) && texts.value(row) == value);
        }
        Ok(deleting)
    }
}

fn mark(rows: &mut [bool], is_marked: impl Fn(usize) -> bool) {
    for (row, marked) in rows.iter_mut().enumerate() {
        *marked |= is_marked(row);
    }
}

/// What is left of one key after all logs.
struct Entry {
    /// Where its row is: batch and row. `None`: it is deleted, or the base file's row stays.
    at: Option<(u32, u32)>,
    rank: Rank,
    /// Whether the base file had the key already: Hudi merges the first of several rows of one key.
    met: bool,
}

/// A slice whose logs were read.
struct Merge {
    path: String,
    columns: Columns,
    by_event_time: bool,
    instants: Option<HashSet<String>>,
    all_but: bool,
    batch_rows: usize,
    batches: Vec<RecordBatch>,
    entries: HashMap<Box<str>, Entry>,
    held: Reservation,
}

struct Opening {
    storage: Storage,
    scan: FileScan,
    logs: LogScan,
    columns: Columns,
    base: BatchStream,
}

enum Stage {
    Logs(Box<Opening>),
    Base(Box<Merge>, BatchStream),
    Rest(Box<Merge>, VecDeque<(usize, Vec<u32>)>),
}

async fn next_batch(stage: Option<Stage>) -> Option<(Result<RecordBatch>, Option<Stage>)> {
    let mut stage = stage?;
    loop {
        let (batch, next) = match stage {
            Stage::Logs(opening) => match read_logs(*opening).await {
                Ok((merge, base)) => (Ok(None), Stage::Base(Box::new(merge), base)),
                Err(error) => return Some((Err(error), None)),
            },
            Stage::Base(mut merge, mut base) => match base.next().await {
                Some(Ok(batch)) => (merge.keep(&batch), Stage::Base(merge, base)),
                Some(Err(error)) => return Some((Err(error), None)),
                None => {
                    let rest = merge.rest();
                    (Ok(None), Stage::Rest(merge, rest))
                }
            },
            Stage::Rest(merge, mut rest) => {
                let (batch, rows) = rest.pop_front()?;
                (merge.take(batch, rows), Stage::Rest(merge, rest))
            }
        };
        match batch {
            Ok(Some(batch)) if batch.num_rows() > 0 => return Some((Ok(batch), Some(next))),
            Ok(_) => stage = next,
            Err(error) => return Some((Err(error), None)),
        }
    }
}

async fn read_logs(opening: Opening) -> Result<(Merge, BatchStream)> {
    let Opening { storage, scan, logs, columns, base } = opening;
    let mut merge = Merge {
        path: logs.group.clone(),
        columns,
        by_event_time: logs.rules.ordering.is_some(),
        instants: scan.instants.as_ref().map(|instants| instants.iter().map(ToString::to_string).collect()),
        all_but: scan.all_but,
        batch_rows: scan.batch_rows.max(1),
        batches: Vec::new(),
        entries: HashMap::new(),
        held: scan.memory.reservation(format!("merging the log files of file group `{}`", logs.group)),
    };
    let mut blocks: Vec<(&str, Option<LogBlock>)> = Vec::new();
    let mut file_bytes = 0;
    for file in &logs.files {
        let bytes = storage.read(file).await?;
        merge.hold(bytes.len())?;
        file_bytes += bytes.len();
        let found = read_blocks(file, &bytes, logs.torn)?;
        blocks.extend(found.into_iter().map(|block| (file.as_str(), Some(block))));
    }
    let all: Vec<&LogBlock> = blocks.iter().filter_map(|(_, block)| block.as_ref()).collect();
    let order = order_blocks(&all, logs.counted.as_deref(), scan.instants.is_some());
    for at in order {
        // Taken out, so that a file's bytes go as soon as its last block was applied.
        let (file, block) = &mut blocks[at];
        if let Some(block) = block.take() {
            merge.apply(file, &block, &scan)?;
        }
    }
    drop(blocks);
    merge.held.shrink(file_bytes);
    Ok((merge, base))
}

impl Merge {
    fn hold(&mut self, bytes: usize) -> Result<()> {
        self.held.try_grow(bytes).map_err(|source| Error::TooLarge { group: self.path.clone(), source })
    }

    fn apply(&mut self, file: &str, block: &LogBlock, scan: &FileScan) -> Result<()> {
        if block.kind == BlockKind::Delete {
            for (key, ordering) in read_deletes(file, &block.content)? {
                let rank = Rank { ordering, deletes: true };
                self.put(&key, rank, None, Rank::deletes_over)?;
            }
            return Ok(());
        }
        for batch in read_rows(file, block, &self.columns.schema, &scan.constants)? {
            self.hold(batch.get_array_memory_size())?;
            let number = self.batches.len() as u32;
            let ordering = OrderingColumns::new(file, &batch, &self.columns.ordering)?;
            let deleting = self.columns.deleting(file, &batch)?;
            let keys = self.columns.keys(file, &batch)?;
            for (row, key) in keys.iter().enumerate() {
                let Some(key) = key else {
                    return Err(Error::corrupt(file, format!("a row without `{RECORD_KEY}`")));
                };
                let deletes = deleting[row];
                let at = (!deletes).then_some((number, row as u32));
                self.put(key, ordering.rank(row, deletes), at, Rank::replaces)?;
            }
            self.batches.push(batch);
        }
        Ok(())
    }

    /// Puts a row or a delete in place of an earlier one of its key, if it `stays` after that.
    fn put(&mut self, key: &str, rank: Rank, at: Option<(u32, u32)>, stays: fn(&Rank, &Rank) -> bool) -> Result<()> {
        match self.entries.get_mut(key) {
            Some(earlier) => {
                if !self.by_event_time || stays(&rank, &earlier.rank) {
                    *earlier = Entry { at, rank, met: false };
                }
            }
            None => {
                self.hold(KEY_BYTES + key.len() + rank.ordering.heap_bytes())?;
                self.entries.insert(key.into(), Entry { at, rank, met: false });
            }
        }
        Ok(())
    }

    /// The rows of a batch of the base file that stay.
    fn keep(&mut self, batch: &RecordBatch) -> Result<Option<RecordBatch>> {
        let keys = self.columns.keys(&self.path, batch)?;
        let mut ordering = None;
        let mut kept = Vec::with_capacity(batch.num_rows());
        for (row, key) in keys.iter().enumerate() {
            let entry = key.and_then(|key| self.entries.get_mut(key)).filter(|entry| !entry.met);
            let Some(entry) = entry else {
                kept.push(true);
                continue;
            };
            entry.met = true;
            let mut stays = false;
            if self.by_event_time {
                if ordering.is_none() {
                    ordering = Some(OrderingColumns::new(&self.path, batch, &self.columns.ordering)?);
                }
                let own = ordering.as_ref().map(|columns| columns.rank(row, false));
                stays = own.is_some_and(|own| !entry.rank.replaces(&own));
            }
            if stays {
                entry.at = None;
            }
            kept.push(stays);
        }
        let kept = BooleanArray::from(kept);
        let batch = filter_record_batch(batch, &kept).map_err(|e| Error::corrupt(&self.path, e))?;
        self.finish(&batch).map(Some)
    }

    /// The rows of the logs that stay, in their order.
    fn rest(&mut self) -> VecDeque<(usize, Vec<u32>)> {
        let mut places: Vec<(u32, u32)> =
            std::mem::take(&mut self.entries).into_values().filter_map(|e| e.at).collect();
        places.sort_unstable();
        let mut chunks: VecDeque<(usize, Vec<u32>)> = VecDeque::new();
        for (batch, row) in places {
            match chunks.back_mut() {
                Some((last, rows)) if *last == batch as usize && rows.len() < self.batch_rows => rows.push(row),
                _ => chunks.push_back((batch as usize, vec![row])),
            }
        }
        chunks
    }

    fn take(&self, batch: usize, rows: Vec<u32>) -> Result<Option<RecordBatch>> {
        let taken = take_record_batch(&self.batches[batch], &UInt32Array::from(rows));
        self.finish(&taken.map_err(|e| Error::corrupt(&self.path, e))?).map(Some)
    }

    /// The rows of the instants asked for, in the columns asked for.
    fn finish(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let failed = |e| Error::corrupt(&self.path, e);
        let outputs: Vec<usize> = (0..self.columns.outputs).collect();
        let (Some(at), Some(instants)) = (self.columns.commit_time, &self.instants) else {
            return batch.project(&outputs).map_err(failed);
        };
        let wanted = wanted_rows(batch.column(at).as_ref(), instants, self.all_but).map_err(failed)?;
        filter_record_batch(&batch.project(&outputs).map_err(failed)?, &wanted).map_err(failed)
    }
}

#[cfg(test)]
mod tests;
