// SPDX-License-Identifier: Apache-2.0
//! Writing base files: new file groups, and new versions of groups that have updates.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::row::Rows;
use futures::StreamExt;
use tributary_api::Stop;
use tributary_api::writer::{Error, StagedFile, TargetSlice};
use tributary_hudi::target::{MarkerKind, write_marker, write_partition_metafile};
use tributary_hudi::{BaseFileWriter, META_COLUMNS, Storage, base_file_name, base_file_schema};
use tributary_types::{InstantTime, MemoryBudget};

use crate::combine::{KeyedRows, RowAt, gather, pieces};
use crate::deletes::Deletes;
use crate::fold::{FoldPlan, Meeting};
use crate::ingest::{KEY, KEY_COLUMNS, PARTITION, internal};
use crate::order::OrderingRule;
use crate::tag::open_slice;

/// What every file of one staging shares.
pub(crate) struct FileContext {
    pub(crate) storage: Storage,
    pub(crate) instant: InstantTime,
    pub(crate) attempt: u32,
    pub(crate) table_name: String,
    /// The table's schema with meta columns.
    pub(crate) file_schema: SchemaRef,
    pub(crate) ordering: Vec<String>,
    pub(crate) batch_rows: usize,
    pub(crate) budget: MemoryBudget,
    /// How rows are folded with the stored ones; `None`: they replace them.
    pub(crate) fold: Option<FoldPlan>,
    stop: Stop,
}

impl FileContext {
    pub(crate) fn new(
        storage: Storage,
        request: &tributary_api::writer::StageRequest,
        batch_rows: usize,
    ) -> Result<Self, Error> {
        Ok(FileContext {
            storage,
            instant: request.instant.clone(),
            attempt: request.attempt,
            table_name: request.table_name.clone(),
            file_schema: base_file_schema(&request.table_schema),
            ordering: request.ordering.clone(),
            batch_rows,
            budget: request.budget.clone(),
            fold: FoldPlan::of(request)?,
            stop: request.stop.clone(),
        })
    }

    /// Fails once the staging was told to stop. Asked before anything is begun.
    pub(crate) fn go_on(&self) -> Result<(), Error> {
        if self.stop.is_set() { Err(Error::Stopped) } else { Ok(()) }
    }
}

/// A file being written, with the counters that its rows need.
struct OpenFile<'a> {
    context: &'a FileContext,
    name: String,
    path: String,
    task: usize,
    writer: BaseFileWriter,
    rows: u64,
    held: tributary_types::Reservation,
}

impl<'a> OpenFile<'a> {
    async fn create(
        context: &'a FileContext,
        partition: &str,
        file_id: &str,
        task: usize,
        kind: MarkerKind,
    ) -> Result<Self, Error> {
        context.go_on()?;
        let name = base_file_name(file_id, task, context.attempt, &context.instant);
        let path = if partition.is_empty() { name.clone() } else { format!("{partition}/{name}") };
        write_marker(&context.storage, &context.instant, &path, kind).await.map_err(|e| hudi_error(context, e))?;
        let writer = BaseFileWriter::create(&context.storage, &path, Arc::clone(&context.file_schema))
            .map_err(|e| hudi_error(context, e))?;
        let held = context.budget.reservation("a file being written");
        Ok(OpenFile { context, name, path, task, writer, rows: 0, held })
    }

    /// Rows of the batch, with fresh meta columns.
    async fn write_new(&mut self, keyed: &RecordBatch) -> Result<(), Error> {
        let batch = self.with_meta(keyed)?;
        self.write(&batch).await
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        self.context.go_on()?;
        self.writer.write(batch).await.map_err(|e| hudi_error(self.context, e))?;
        self.rows += batch.num_rows() as u64;
        // What the encoder holds cannot be refused any more; it is counted.
        let now = self.writer.buffered_bytes();
        if now > self.held.held() {
            self.held.grow(now - self.held.held());
        } else {
            self.held.shrink(self.held.held() - now);
        }
        Ok(())
    }

    fn with_meta(&self, keyed: &RecordBatch) -> Result<RecordBatch, Error> {
        let rows = keyed.num_rows();
        let instant = self.context.instant.as_str();
        let mut columns: Vec<ArrayRef> = vec![
            repeated(instant, rows),
            sequence_numbers(instant, self.task, self.rows, rows),
            Arc::clone(keyed.column(KEY)),
            Arc::clone(keyed.column(PARTITION)),
            repeated(&self.name, rows),
        ];
        // What is behind the table's own columns is for the writer.
        let own = self.context.file_schema.fields().len() - META_COLUMNS.len();
        columns.extend(keyed.columns()[KEY_COLUMNS..].iter().take(own).cloned());
        RecordBatch::try_new(Arc::clone(&self.context.file_schema), columns).map_err(internal)
    }

    async fn close(self) -> Result<(String, u64, u64), Error> {
        let OpenFile { context, path, writer, .. } = self;
        context.go_on()?;
        let (bytes, rows) = writer.close().await.map_err(|e| hudi_error(context, e))?;
        Ok((path, bytes, rows))
    }
}

pub(crate) fn repeated(text: &str, rows: usize) -> ArrayRef {
    let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(text.len(), rows));
    Arc::new(StringArray::new(offsets, Buffer::from_vec(text.repeat(rows).into_bytes()), None))
}

/// `<instant>_<task>_<row>`: unique in the instant.
pub(crate) fn sequence_numbers(instant: &str, task: usize, first: u64, rows: usize) -> ArrayRef {
    let prefix = format!("{instant}_{task}_");
    let mut digits = first.to_string().into_bytes();
    let mut text = Vec::with_capacity(rows * (prefix.len() + digits.len() + 1));
    let lengths: Vec<usize> = (0..rows)
        .map(|_| {
            text.extend_from_slice(prefix.as_bytes());
            text.extend_from_slice(&digits);
            let length = prefix.len() + digits.len();
            count_up(&mut digits);
            length
        })
        .collect();
    Arc::new(StringArray::new(OffsetBuffer::from_lengths(lengths), Buffer::from_vec(text), None))
}

/// The next number, in decimal digits. Formatting each anew takes as long as compressing it.
fn count_up(digits: &mut Vec<u8>) {
    for digit in digits.iter_mut().rev() {
        if *digit < b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
    digits.insert(0, b'1');
}

/// A file group to be made.
pub(crate) struct NewGroup {
    pub(crate) batches: Arc<Vec<RecordBatch>>,
    /// Its rows, in `batches`.
    pub(crate) rows: Vec<RowAt>,
    pub(crate) partition: String,
    pub(crate) file_id: String,
    pub(crate) task: usize,
}

/// Writes a new file group.
pub(crate) async fn write_group(context: &FileContext, group: NewGroup) -> Result<StagedFile, Error> {
    let NewGroup { batches, rows, partition, file_id, task } = group;
    context.go_on()?;
    write_partition_metafile(&context.storage, &partition, &context.instant)
        .await
        .map_err(|e| hudi_error(context, e))?;
    let mut file = OpenFile::create(context, &partition, &file_id, task, MarkerKind::Create).await?;
    for piece in pieces(&batches, &rows, context.batch_rows) {
        file.write_new(&piece?).await?;
    }
    let (path, bytes, rows) = file.close().await?;
    Ok(StagedFile {
        partition,
        file_id,
        path,
        previous: None,
        rows,
        inserts: rows,
        updates: 0,
        deletes: 0,
        bytes,
        columns: Vec::new(),
    })
}

/// A rewritten group: its file, and how many incoming rows lost against the stored ones.
pub(crate) struct Rewritten {
    pub(crate) file: Option<StagedFile>,
    pub(crate) outdated: u64,
}

/// Writes a new version of `slice` in which the rows of `updates` take the place of the stored rows of their keys, or
/// are folded with them, and behind them the rows `appended`, whose keys are new. Where nothing changes, no file is written.
pub(crate) async fn rewrite_group(
    context: &FileContext,
    slice: &TargetSlice,
    updates: &KeyedRows,
    appended: &[RowAt],
    task: usize,
) -> Result<Rewritten, Error> {
    let rules = Rules::of(context)?;
    let mut file = OpenFile::create(context, &slice.partition, &slice.file_id, task, MarkerKind::Merge).await?;
    let mut stored = open_slice(context, slice).await?;
    let mut counts = Counts::default();
    while let Some(batch) = stored.next().await {
        let batch = batch?;
        let merged = merge_batch(&file, updates, &rules, &slice.partition, &batch, &mut counts)?;
        file.write(&merged).await?;
    }
    for chunk in appended.chunks(context.batch_rows) {
        file.write_new(&gather(&updates.batches, chunk)?).await?;
    }
    let (path, bytes, rows) = file.close().await?;
    if counts.updates == 0 && counts.deletes == 0 && appended.is_empty() {
        // Nothing changed: the file is left to the markers, unnamed by the commit.
        return Ok(Rewritten { file: None, outdated: counts.outdated });
    }
    let previous = slice.path.rsplit('/').next().unwrap_or(&slice.path).to_string();
    let staged = StagedFile {
        partition: slice.partition.clone(),
        file_id: slice.file_id.clone(),
        path,
        previous: Some((previous, slice.instant.clone())),
        rows,
        inserts: appended.len() as u64,
        updates: counts.updates,
        deletes: counts.deletes,
        bytes,
        columns: Vec::new(),
    };
    Ok(Rewritten { file: Some(staged), outdated: counts.outdated })
}

#[derive(Default)]
struct Counts {
    updates: u64,
    deletes: u64,
    outdated: u64,
}

/// What orders rows.
struct Rules {
    /// The stored ones.
    stored: Option<OrderingRule>,
    /// The deletes that rows of a fold follow.
    barrier: Option<OrderingRule>,
}

impl Rules {
    fn of(context: &FileContext) -> Result<Self, Error> {
        Ok(Rules {
            stored: OrderingRule::new(&context.ordering, &context.file_schema)?,
            barrier: context.fold.as_ref().map(FoldPlan::barrier_rule).transpose()?.flatten(),
        })
    }

    /// Whether the row `at`, of a fold, follows a delete that the stored row does not outlive.
    fn starts_anew(
        &self,
        fold: &FoldPlan,
        updates: &KeyedRows,
        at: RowAt,
        stored: Option<arrow::row::Row<'_>>,
    ) -> Result<bool, Error> {
        let (batch, row) = (&updates.batches[at.batch as usize], at.row as usize);
        if !fold.follows_delete(batch, row) {
            return Ok(false);
        }
        let (Some(stored), Some(rule)) = (stored, &self.barrier) else { return Ok(true) };
        // Few rows follow a delete in the same batch.
        let delete = rule.rows(&batch.slice(row, 1))?;
        Ok(stored <= delete.row(0))
    }
}

/// Stored rows with the updates in place. Rows that stay keep their commit time and sequence number, and get the new
/// file's name.
fn merge_batch(
    file: &OpenFile<'_>,
    updates: &KeyedRows,
    rules: &Rules,
    partition: &str,
    stored: &RecordBatch,
    counts: &mut Counts,
) -> Result<RecordBatch, Error> {
    let keys = stored.column(2).as_string::<i32>();
    let stored_order: Option<Rows> = rules.stored.as_ref().map(|rule| rule.rows(stored)).transpose()?;
    let fold = file.context.fold.as_ref();
    let mut picks: Vec<(usize, usize)> = Vec::with_capacity(stored.num_rows());
    let mut chosen: Vec<RowAt> = Vec::new();
    let mut meetings: Vec<Meeting> = Vec::new();
    for row in 0..stored.num_rows() {
        let winner = if keys.is_null(row) { None } else { updates.find(partition, keys.value(row)) };
        let Some(at) = winner.map(|winner| updates.winners[winner]) else {
            picks.push((0, row));
            continue;
        };
        let is_late = match (&stored_order, &updates.ordering) {
            (Some(stored), Some(incoming)) if updates.deletes != Deletes::Always => {
                incoming[at.batch as usize].row(at.row as usize) < stored.row(row)
            }
            _ => false,
        };
        let is_delete = updates.is_delete(at);
        if is_late && (is_delete || !fold.is_some_and(FoldPlan::late_rows_matter)) {
            counts.outdated += 1;
            picks.push((0, row));
        } else if is_delete {
            counts.deletes += 1;
        } else {
            if let Some(fold) = fold
                && !rules.starts_anew(fold, updates, at, stored_order.as_ref().map(|rows| rows.row(row)))?
            {
                meetings.push(Meeting { incoming: chosen.len(), stored: row, is_late });
            }
            counts.updates += 1;
            picks.push((1, chosen.len()));
            chosen.push(at);
        }
    }
    let stored = renamed(file, stored)?;
    if chosen.is_empty() && picks.len() == stored.num_rows() {
        return Ok(stored);
    }
    let incoming = gather(&updates.batches, &chosen)?;
    let incoming = match fold {
        Some(fold) => fold.fold_stored(incoming, &stored, &meetings)?,
        None => incoming,
    };
    let incoming = file.with_meta(&incoming)?;
    interleave_record_batch(&[&stored, &incoming], &picks).map_err(internal)
}

fn renamed(file: &OpenFile<'_>, stored: &RecordBatch) -> Result<RecordBatch, Error> {
    let mut columns = stored.columns().to_vec();
    columns[META_COLUMNS.len() - 1] = repeated(&file.name, stored.num_rows());
    RecordBatch::try_new(Arc::clone(&file.context.file_schema), columns).map_err(internal)
}

/// A file error as this role tells it.
pub(crate) fn hudi_error(context: &FileContext, error: tributary_hudi::Error) -> Error {
    role_error(context.storage.url(), error)
}

/// A file error as this role tells it.
pub(crate) fn role_error(url: &str, error: tributary_hudi::Error) -> Error {
    use tributary_hudi::Error as Hudi;
    match error {
        Hudi::Corrupt { file, detail } => Error::Corrupt { url: url.to_string(), file, detail },
        Hudi::Type { file, column, found, expected } => Error::Corrupt {
            url: url.to_string(),
            file,
            detail: format!("column `{column}` is {found} and cannot be widened to {expected}"),
        },
        Hudi::Gone { file } => Error::Corrupt {
            url: url.to_string(),
            detail: "it is named by a completed commit and is gone".to_string(),
            file,
        },
        // The same batch meets the same limit.
        Hudi::TooLarge { source, .. } => Error::Memory(source),
        other => Error::Store {
            url: url.to_string(),
            doing: "staging files".to_string(),
            source: tributary_api::boxed_error(other),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_count_on_past_every_power_of_ten() {
        let made = sequence_numbers("20250101", 3, 8, 1_000);
        let expected: Vec<String> = (8..1_008).map(|row| format!("20250101_3_{row}")).collect();
        assert_eq!(made.as_string::<i32>().iter().flatten().collect::<Vec<_>>(), expected);
        let named = repeated("name", 3);
        assert_eq!(named.as_string::<i32>(), &StringArray::from(vec!["name"; 3]));
        assert_eq!(repeated("", 2).len(), 2);
    }
}
