// SPDX-License-Identifier: Apache-2.0
//! Updates of a merge-on-read table: one new log file for each file group that has any.
//!
//! Rows are written as they came, after rows of one key were combined: which of a stored row and a new one stays is
//! decided by whoever reads the slice. So a group's own files are not read, but for their keys. A delete operation leaves
//! no rows but delete blocks, which take away whatever came before them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use tributary_api::writer::{Error, StagedFile, TargetSlice};
use tributary_hudi::target::{MarkerKind, write_marker};
use tributary_hudi::{DeletedAt, DeletedKey, LogFileWriter, for_each_log_key, log_file_name, log_schema};
use tributary_types::pipeline::TableType;

use crate::combine::{KeyedRows, RowAt, gather};
use crate::deletes::Deletes;
use crate::files::{FileContext, hudi_error, repeated, sequence_numbers};
use crate::ingest::{KEY, KEY_COLUMNS, PARTITION, internal};
use crate::parallel::run_jobs;

/// The log file of one group.
pub(crate) struct NewLog {
    /// The slice that it comes on top of.
    pub(crate) slice: TargetSlice,
    /// Its rows, in the batches of the part.
    pub(crate) rows: Vec<RowAt>,
    /// Number in its name.
    pub(crate) task: usize,
}

/// How updates are stored.
pub(crate) enum Updates {
    /// Slices are written anew.
    Rewrite,
    /// Slices get a log file.
    Append,
}

impl Updates {
    pub(crate) fn of(table_type: TableType) -> Self {
        match table_type {
            TableType::CopyOnWrite => Updates::Rewrite,
            TableType::MergeOnRead => Updates::Append,
        }
    }
}

/// Writes log files, several at once.
pub(crate) async fn append_logs(
    context: &Arc<FileContext>,
    rows: &Arc<KeyedRows>,
    logs: Vec<NewLog>,
    parallelism: usize,
) -> Result<Vec<StagedFile>, Error> {
    let schema = log_schema(&context.table_name, &context.file_schema).map_err(|e| hudi_error(context, e))?;
    let schema = Arc::new(schema);
    let jobs = logs.into_iter().map(|log| {
        let (context, rows, schema) = (Arc::clone(context), Arc::clone(rows), Arc::clone(&schema));
        async move { append_log(&context, &rows, &schema, log).await }
    });
    // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
    let jobs: Vec<_> = jobs.collect();
    run_jobs(jobs, parallelism).await
}

/// The logs of a part: for each slice the rows of its winners.
pub(crate) fn plan_logs(
    slices: &[TargetSlice],
    rows: &KeyedRows,
    by_slice: BTreeMap<u32, Vec<u32>>,
    mut next_task: impl FnMut() -> usize,
) -> Vec<NewLog> {
    let logs = by_slice.into_iter().map(|(number, winners)| NewLog {
        slice: slices[number as usize].clone(),
        rows: winners.iter().map(|winner| rows.winners[*winner as usize]).collect(),
        task: next_task(),
    });
    logs.collect()
}

async fn append_log(context: &FileContext, rows: &KeyedRows, schema: &str, log: NewLog) -> Result<StagedFile, Error> {
    context.go_on()?;
    let failed = |e| hudi_error(context, e);
    let TargetSlice { partition, file_id, path: base, instant: base_instant, .. } = &log.slice;
    let name = log_file_name(file_id, log.task, context.attempt, &context.instant);
    let path = if partition.is_empty() { name } else { format!("{partition}/{name}") };
    // A log of table version 8 and later is created, never appended to.
    write_marker(&context.storage, &context.instant, &path, MarkerKind::Create).await.map_err(failed)?;
    let mut file = LogFileWriter::create(&context.storage, &path, &context.instant, schema).map_err(failed)?;
    let mut held = context.budget.reservation("a log file being written");
    let mut written = 0;
    for chunk in log.rows.chunks(context.batch_rows) {
        context.go_on()?;
        if rows.deletes == Deletes::Always {
            file.delete(&deleted_keys(rows, chunk)).await.map_err(failed)?;
        } else {
            let batch = with_meta(context, file_id, log.task, written, &gather(&rows.batches, chunk)?)?;
            file.write(&batch).await.map_err(failed)?;
        }
        written += chunk.len() as u64;
        // What the encoder holds cannot be refused any more; it is counted.
        let now = file.buffered_bytes();
        if now > held.held() {
            held.grow(now - held.held());
        } else {
            held.shrink(held.held() - now);
        }
    }
    context.go_on()?;
    let deletes = log.rows.iter().filter(|at| rows.is_delete(**at)).count() as u64;
    let (bytes, stored) = file.close().await.map_err(failed)?;
    let base = base.rsplit('/').next().unwrap_or(base).to_string();
    Ok(StagedFile {
        partition: partition.clone(),
        file_id: file_id.clone(),
        path,
        previous: Some((base, base_instant.clone())),
        rows: stored,
        inserts: 0,
        updates: written - deletes,
        deletes,
        bytes,
        columns: Vec::new(),
    })
}

/// The keys of rows that a delete operation names. They go whatever their ordering.
fn deleted_keys(rows: &KeyedRows, chunk: &[RowAt]) -> Vec<DeletedKey> {
    let keys = chunk.iter().map(|at| {
        let (partition, key) = rows.identity(*at);
        DeletedKey { key: key.to_string(), partition: partition.to_string(), at: DeletedAt::Place }
    });
    keys.collect()
}

/// Rows with meta columns. The file name of a log's row is its group, as Java has it.
fn with_meta(
    context: &FileContext,
    file_id: &str,
    task: usize,
    first: u64,
    keyed: &RecordBatch,
) -> Result<RecordBatch, Error> {
    let rows = keyed.num_rows();
    let instant = context.instant.as_str();
    let mut columns: Vec<ArrayRef> = vec![
        repeated(instant, rows),
        sequence_numbers(instant, task, first, rows),
        Arc::clone(keyed.column(KEY)),
        Arc::clone(keyed.column(PARTITION)),
        repeated(file_id, rows),
    ];
    columns.extend(keyed.columns()[KEY_COLUMNS..].iter().cloned());
    RecordBatch::try_new(Arc::clone(&context.file_schema), columns).map_err(internal)
}

/// Winners whose key a log of the slice names.
pub(crate) async fn search_logs(
    context: &FileContext,
    slice: &TargetSlice,
    rows: &KeyedRows,
) -> Result<Vec<u32>, Error> {
    let mut found = Vec::new();
    context.go_on()?;
    let see = |key: &str| found.extend(rows.find(&slice.partition, key).map(|winner| winner as u32));
    for_each_log_key(&context.storage, &slice.logs, &context.budget, see).await.map_err(|e| hudi_error(context, e))?;
    Ok(found)
}
