// SPDX-License-Identifier: Apache-2.0
//! The writer role itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use tributary_api::RowStream;
use tributary_api::writer::{Error, StageRequest, Staged, StagedFile, TargetSlice, Writer};
use tributary_hudi::Stores;
use tributary_types::Entropy;
use tributary_types::pipeline::{Operation, TableType};

use crate::combine::{KeyedRows, RowAt, gather, text};
use crate::deletes::{Deletes, read_partitions, stored_rows};
use crate::delta::{Updates, append_logs, plan_logs};
use crate::files::{FileContext, NewGroup, Rewritten, rewrite_group, role_error, write_group};
use crate::fold::fold_rows;
use crate::ingest::{BY_IDENTITY, BY_PARTITION, Ingested, PARTITION, ingest, is_same, key_rules, keyed_schema};
use crate::metrics;
use crate::order::OrderingRule;
use crate::pack::{Packed, largest_in_memory, pack};
use crate::parallel::run_jobs;
use crate::settings::Settings;
use crate::spool::{Part, SpillSpace, Spool, Spooled};
use crate::tag::tag;

/// The writer role.
pub struct Service {
    stores: Arc<dyn Stores>,
    entropy: Arc<dyn Entropy>,
    settings: Settings,
}

impl Service {
    /// A writer of tables in `stores`; `entropy` names new file groups.
    pub fn new(stores: Arc<dyn Stores>, entropy: Arc<dyn Entropy>, settings: Settings) -> Self {
        metrics::register();
        Service { stores, entropy, settings }
    }
}

#[async_trait]
impl Writer for Service {
    #[tracing::instrument(name = "write", skip_all, fields(role = "writer", instant = %request.instant))]
    async fn stage(&self, request: StageRequest, rows: RowStream) -> Result<Staged, Error> {
        check_columns(&request)?;
        let storage = self.stores.open(&request.url).map_err(|e| role_error(&request.url, e))?;
        let staging = Staging {
            context: Arc::new(FileContext::new(storage, &request, self.settings.batch_rows)?),
            space: SpillSpace::new(request.spill_bytes)?,
            entropy: Arc::clone(&self.entropy),
            settings: &self.settings,
            tasks: AtomicUsize::new(0),
            deletes: Deletes::of(request.operation, &keyed_schema(&request.table_schema))
                .giving_way(request.deletes_give_way),
            request: &request,
        };
        let staged = staging.run(rows).await?;
        report(&staged, request.table_type, staging.space.used());
        Ok(staged)
    }
}

fn report(staged: &Staged, table_type: TableType, spilled: u64) {
    for file in &staged.files {
        let kind = match (&file.previous, Updates::of(table_type)) {
            (None, _) => "create",
            (Some(_), Updates::Rewrite) => "merge",
            (Some(_), Updates::Append) => "append",
        };
        ::metrics::counter!(metrics::FILES, "kind" => kind).increment(1);
        ::metrics::counter!(metrics::BYTES).increment(file.bytes);
        ::metrics::counter!(metrics::ROWS, "kind" => "insert").increment(file.inserts);
        ::metrics::counter!(metrics::ROWS, "kind" => "update").increment(file.updates);
    }
    ::metrics::counter!(metrics::SPILLED).increment(spilled);
}

/// One staging under way.
struct Staging<'a> {
    context: Arc<FileContext>,
    space: SpillSpace,
    entropy: Arc<dyn Entropy>,
    settings: &'a Settings,
    tasks: AtomicUsize,
    deletes: Deletes,
    request: &'a StageRequest,
}

/// Rows of a part by what is to be done with them.
struct Sorted {
    rows: Arc<KeyedRows>,
    new: Vec<RowAt>,
    /// Winners by the slice that holds their key.
    by_slice: BTreeMap<u32, Vec<u32>>,
}

impl Staging<'_> {
    async fn run(&self, rows: RowStream) -> Result<Staged, Error> {
        let operation = self.request.operation;
        if operation == Operation::DeletePartition {
            let seen = read_partitions(self.request, rows).await?;
            return Ok(Staged { rows_in: seen.rows, partitions: seen.partitions, ..Staged::default() });
        }
        let upsert = matches!(operation, Operation::Upsert | Operation::Delete);
        let route = if upsert { BY_IDENTITY } else { BY_PARTITION };
        let mut threshold = self.request.budget.limit() * self.settings.memory_percent / 100;
        if self.context.fold.is_some() {
            // Rows that are folded are there twice for a while.
            threshold /= 2;
        }
        let mut spool = self.spool(keyed_schema(&self.request.table_schema), route, threshold);
        let seen = ingest(self.request, rows, &mut spool).await?;
        let mut staged = Staged {
            rows_in: seen.rows,
            rows_null_key: seen.null_keys,
            partitions: seen.partitions.clone(),
            ..Staged::default()
        };
        match (spool.finish()?, upsert) {
            (Spooled::Memory(batches, _held), true) => self.upsert_all(batches, &seen, &mut staged).await?,
            (Spooled::Parts(parts), true) => self.upsert_parts(parts, &seen, &mut staged).await?,
            (Spooled::Memory(batches, _held), false) if operation == Operation::Insert => {
                // Nothing is looked up, so no stored row is replaced.
                let rows = Arc::new(KeyedRows::unkeyed(batches, &self.request.budget));
                let all = all_rows(&rows.batches);
                let (new, absent) = stored_rows(&rows.batches, all, self.deletes);
                staged.rows_absent += absent;
                self.place(&rows, &new, BTreeMap::new(), &seen.partitions, &mut staged).await?;
            }
            (Spooled::Memory(batches, _held), false) => {
                staged.files = self.insert_all(batches, &mut staged.rows_absent).await?;
            }
            (Spooled::Parts(parts), false) => {
                staged.files = self.insert_parts(parts, &mut staged.rows_absent).await?;
            }
        }
        staged.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(staged)
    }

    fn spool(&self, schema: SchemaRef, route: crate::spool::Route, threshold: usize) -> Spool {
        Spool::new(schema, &self.request.budget, threshold, &self.space, self.settings.spill_buckets, route)
    }

    /// Everything fits in memory.
    async fn upsert_all(&self, batches: Vec<RecordBatch>, seen: &Ingested, staged: &mut Staged) -> Result<(), Error> {
        let Sorted { rows, new, by_slice } = self.sort(batches, &seen.partitions, staged).await?;
        self.place(&rows, &new, by_slice, &seen.partitions, staged).await
    }

    /// Gives the winners of each slice to it, and the rows `new` to small groups and new ones.
    async fn place(
        &self,
        rows: &Arc<KeyedRows>,
        new: &[RowAt],
        by_slice: BTreeMap<u32, Vec<u32>>,
        partitions: &BTreeSet<String>,
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let new = by_partition(&rows.batches, new);
        if matches!(Updates::of(self.request.table_type), Updates::Append) {
            // A small base file would have to be rewritten, which is what logs are there to avoid.
            staged.files = self.insert_batches(&rows.batches, new).await?;
            return self.update(rows, by_slice, staged).await;
        }
        let slices = self.slices_in(partitions);
        let mut touched: BTreeSet<u32> = by_slice.into_keys().collect();
        let Packed { appended, rest } = pack(new, &slices, &touched, self.request.files, row_bytes(&rows.batches));
        staged.files = self.insert_batches(&rows.batches, rest).await?;
        touched.extend(appended.keys());
        self.rewrite(rows, touched, appended, staged).await
    }

    /// Rows are in parts by key. Each part is tagged alone; what it has for a stored slice waits in a second spool
    /// that is divided by slice, and its new rows in one that is divided by partition. Rows of one key are all in one
    /// part, so they are folded here and nowhere later.
    async fn upsert_parts(&self, parts: Vec<Part>, seen: &Ingested, staged: &mut Staged) -> Result<(), Error> {
        let threshold = self.request.budget.limit() * self.settings.memory_percent / 400;
        let schema = match &self.context.fold {
            Some(fold) => Arc::clone(fold.schema()),
            None => keyed_schema(&self.request.table_schema),
        };
        let mut updates = self.spool(Arc::clone(&schema), BY_IDENTITY, threshold);
        let mut inserts = self.spool(schema, BY_PARTITION, threshold);
        for part in parts.into_iter().filter(|part| part.rows() > 0) {
            self.context.go_on()?;
            let mut held = self.request.budget.reservation("one part of the batch");
            let sorted = self.sort(part.load(&mut held)?, &seen.partitions, staged).await?;
            let touched: BTreeSet<u32> = sorted.by_slice.values().flatten().copied().collect();
            let changed: Vec<RowAt> = touched.iter().map(|winner| sorted.rows.winners[*winner as usize]).collect();
            for (rows, spool) in [(&changed, &mut updates), (&sorted.new, &mut inserts)] {
                for chunk in rows.chunks(self.settings.batch_rows) {
                    spool.push(gather(&sorted.rows.batches, chunk)?)?;
                }
            }
        }
        staged.files = match inserts.finish()? {
            Spooled::Memory(batches, _held) => self.insert_all(batches, &mut staged.rows_absent).await?,
            Spooled::Parts(parts) => self.insert_parts(parts, &mut staged.rows_absent).await?,
        };
        self.rewrite_spooled(updates.finish()?, seen, staged).await
    }

    /// Updates of a batch that did not fit: as many slices at a time as their updates fit in memory.
    async fn rewrite_spooled(&self, updates: Spooled, seen: &Ingested, staged: &mut Staged) -> Result<(), Error> {
        let rule = OrderingRule::new(&self.request.ordering, &keyed_schema(&self.request.table_schema))?;
        match updates {
            Spooled::Memory(batches, _held) => {
                let rows = Arc::new(KeyedRows::combine(batches, rule.as_ref(), self.deletes, &self.request.budget)?);
                let by_slice = self.by_slice(&rows, &seen.partitions).await?;
                self.update(&rows, by_slice, staged).await
            }
            Spooled::Parts(parts) => {
                for (number, slice) in self.slices_in(&seen.partitions) {
                    let rows = Arc::new(self.updates_of(&slice, &parts, rule.as_ref()).await?);
                    if !rows.winners.is_empty() {
                        let all = (0..rows.winners.len() as u32).collect();
                        self.update(&rows, BTreeMap::from([(number, all)]), staged).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// The waiting updates whose keys one slice holds. A slice is bounded by the size of a base file, and so are its
    /// updates.
    async fn updates_of(
        &self,
        slice: &TargetSlice,
        parts: &[Part],
        rule: Option<&OrderingRule>,
    ) -> Result<KeyedRows, Error> {
        let mut kept = Vec::new();
        for part in parts.iter().filter(|part| part.rows() > 0) {
            self.context.go_on()?;
            let mut held = self.request.budget.reservation("one part of the updates");
            let rows = Arc::new(KeyedRows::combine(part.load(&mut held)?, rule, self.deletes, &self.request.budget)?);
            let tags = tag(&self.context, &[(0, slice.clone())], &rows, 1).await?;
            let picked: Vec<RowAt> = tags.iter().map(|(_, winner)| rows.winners[*winner as usize]).collect();
            for chunk in picked.chunks(self.settings.batch_rows) {
                kept.push(gather(&rows.batches, chunk)?);
            }
        }
        KeyedRows::combine(kept, rule, self.deletes, &self.request.budget)
    }

    async fn sort(
        &self,
        batches: Vec<RecordBatch>,
        partitions: &BTreeSet<String>,
        staged: &mut Staged,
    ) -> Result<Sorted, Error> {
        let rule = OrderingRule::new(&self.request.ordering, &keyed_schema(&self.request.table_schema))?;
        let (rule, budget) = (rule.as_ref(), &self.request.budget);
        let rows = Arc::new(match &self.context.fold {
            Some(fold) => fold_rows(fold, batches, rule, self.deletes, budget, self.settings.batch_rows)?,
            None => KeyedRows::combine(batches, rule, self.deletes, budget)?,
        });
        staged.rows_combined += rows.combined;
        let by_slice = self.by_slice(&rows, partitions).await?;
        let mut known = vec![false; rows.winners.len()];
        for winner in by_slice.values().flatten() {
            known[*winner as usize] = true;
        }
        let new = rows.winners.iter().zip(&known).filter(|(_, known)| !**known).map(|(at, _)| *at).collect();
        let (new, absent) = stored_rows(&rows.batches, new, self.deletes);
        staged.rows_absent += absent;
        Ok(Sorted { rows, new, by_slice })
    }

    async fn by_slice(
        &self,
        rows: &Arc<KeyedRows>,
        partitions: &BTreeSet<String>,
    ) -> Result<BTreeMap<u32, Vec<u32>>, Error> {
        let slices = self.slices_in(partitions);
        let tags = tag(&self.context, &slices, rows, self.settings.parallelism).await?;
        let mut by_slice: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (slice, winner) in tags {
            by_slice.entry(slice).or_default().push(winner);
        }
        Ok(by_slice)
    }

    /// Pinned slices of the partitions that have incoming rows.
    fn slices_in(&self, partitions: &BTreeSet<String>) -> Vec<(u32, TargetSlice)> {
        let slices = self.request.slices.iter().enumerate();
        let touched = slices.filter(|(_, slice)| partitions.contains(&slice.partition));
        touched.map(|(number, slice)| (number as u32, slice.clone())).collect()
    }

    /// Gives the winners of each slice to it.
    async fn update(
        &self,
        rows: &Arc<KeyedRows>,
        by_slice: BTreeMap<u32, Vec<u32>>,
        staged: &mut Staged,
    ) -> Result<(), Error> {
        match Updates::of(self.request.table_type) {
            Updates::Rewrite => self.rewrite(rows, by_slice.into_keys().collect(), BTreeMap::new(), staged).await,
            Updates::Append => {
                let logs = plan_logs(&self.request.slices, rows, by_slice, || self.next_task());
                staged.files.extend(append_logs(&self.context, rows, logs, self.settings.parallelism).await?);
                Ok(())
            }
        }
    }

    /// New versions of `slices`, with the rows that each takes besides.
    async fn rewrite(
        &self,
        rows: &Arc<KeyedRows>,
        slices: BTreeSet<u32>,
        mut appended: BTreeMap<u32, Vec<RowAt>>,
        staged: &mut Staged,
    ) -> Result<(), Error> {
        let jobs = slices.into_iter().map(|number| {
            let (context, rows) = (Arc::clone(&self.context), Arc::clone(rows));
            let (slice, task) = (self.request.slices[number as usize].clone(), self.next_task());
            let appended = appended.remove(&number).unwrap_or_default();
            async move { rewrite_group(&context, &slice, &rows, &appended, task).await }
        });
        let jobs: Vec<_> = jobs.collect();
        let done: Vec<Rewritten> = run_jobs(jobs, self.settings.parallelism).await?;
        for rewritten in done {
            staged.rows_outdated += rewritten.outdated;
            staged.files.extend(rewritten.file);
        }
        Ok(())
    }

    /// New file groups for rows in memory, which are given by partition.
    async fn insert_batches(
        &self,
        batches: &Arc<Vec<RecordBatch>>,
        rows: BTreeMap<String, Vec<RowAt>>,
    ) -> Result<Vec<StagedFile>, Error> {
        let per_row = row_bytes(batches);
        let per_file = (largest_in_memory(self.request.files) / per_row).clamp(1, self.settings.rows_per_file);
        let mut groups = Vec::new();
        for (partition, rows) in rows {
            let per_file = even(rows.len(), per_file, self.settings.parallelism);
            groups.extend(rows.chunks(per_file).map(|rows| NewGroup {
                batches: Arc::clone(batches),
                rows: rows.to_vec(),
                partition: partition.to_string(),
                file_id: self.new_file_id(),
                task: self.next_task(),
            }));
        }
        let jobs = groups.into_iter().map(|group| {
            let context = Arc::clone(&self.context);
            async move { write_group(&context, group).await }
        });
        let jobs: Vec<_> = jobs.collect();
        run_jobs(jobs, self.settings.parallelism).await
    }

    /// New file groups for rows on disk, which are divided by partition: a bounded chunk at a time.
    async fn insert_parts(&self, parts: Vec<Part>, absent: &mut u64) -> Result<Vec<StagedFile>, Error> {
        let chunk_bytes = self.request.budget.limit() * self.settings.memory_percent / 100;
        let mut files = Vec::new();
        for part in parts.into_iter().filter(|part| part.rows() > 0) {
            let mut held = self.request.budget.reservation("one part of the new rows");
            let mut chunk = Vec::new();
            for batch in part.read()? {
                self.context.go_on()?;
                let batch = batch?;
                held.try_grow(crate::spool::batch_bytes(&batch))?;
                chunk.push(batch);
                if held.held() >= chunk_bytes {
                    files.extend(self.insert_all(std::mem::take(&mut chunk), absent).await?);
                    held.shrink(held.held());
                }
            }
            files.extend(self.insert_all(chunk, absent).await?);
        }
        Ok(files)
    }

    /// New file groups for all rows of the batches but those that delete, which are counted as `absent`.
    async fn insert_all(&self, batches: Vec<RecordBatch>, absent: &mut u64) -> Result<Vec<StagedFile>, Error> {
        let (rows, deletes) = stored_rows(&batches, all_rows(&batches), self.deletes);
        *absent += deletes;
        let rows = by_partition(&batches, &rows);
        self.insert_batches(&Arc::new(batches), rows).await
    }

    fn next_task(&self) -> usize {
        self.tasks.fetch_add(1, Ordering::Relaxed)
    }

    fn new_file_id(&self) -> String {
        let random = uuid::Builder::from_random_bytes(self.entropy.next_u128().to_be_bytes()).into_uuid();
        format!("{random}-0")
    }
}

/// Rows of each of several files that together hold `rows`, `most` at most in each: files of one size, and where that
/// makes them no smaller than half, so many that all `writers` are busy to the end.
fn even(rows: usize, most: usize, writers: usize) -> usize {
    let files = rows.div_ceil(most).max(1);
    let busy = files.next_multiple_of(writers.max(1));
    let files = if files > 1 && busy <= 2 * files { busy } else { files };
    rows.div_ceil(files).max(1)
}

/// Bytes that a row takes in memory, at least one.
fn row_bytes(batches: &[RecordBatch]) -> usize {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let bytes: usize = batches.iter().map(crate::spool::batch_bytes).sum();
    (bytes / rows.max(1)).max(1)
}

fn by_partition(batches: &[RecordBatch], rows: &[RowAt]) -> BTreeMap<String, Vec<RowAt>> {
    let partition_of = |at: &RowAt| text(&batches[at.batch as usize], PARTITION).value(at.row as usize);
    let mut divided: BTreeMap<&str, Vec<RowAt>> = BTreeMap::new();
    for run in rows.chunk_by(|a, b| is_same(partition_of(a), partition_of(b))) {
        divided.entry(partition_of(&run[0])).or_default().extend_from_slice(run);
    }
    divided.into_iter().map(|(partition, rows)| (partition.to_string(), rows)).collect()
}

/// Fails if a column that is needed is missing, before anything is read.
fn check_columns(request: &StageRequest) -> Result<(), Error> {
    let mut rules = key_rules(request);
    if request.operation == Operation::DeletePartition {
        rules.record_key.clear();
    }
    // Rows that only delete need no other columns, and rows that are folded may lack some.
    let given = if request.operation.only_deletes() || request.merge.is_some() {
        &request.schema
    } else {
        &request.table_schema
    };
    rules.check(given).map_err(crate::ingest::key_error)?;
    let ordered = if request.operation.only_deletes() { &request.table_schema } else { given };
    OrderingRule::new(&request.ordering, ordered).map(drop)
}

fn all_rows(batches: &[RecordBatch]) -> Vec<RowAt> {
    let rows = |(batch, rows): (usize, &RecordBatch)| {
        (0..rows.num_rows() as u32).map(move |row| RowAt { batch: batch as u32, row })
    };
    batches.iter().enumerate().flat_map(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_of_one_size_and_keep_all_writers_busy() {
        assert_eq!(even(1_000_010, 500_000, 2), 250_003, "not two full files and one of ten rows");
        assert_eq!(even(1_000_000, 500_000, 2), 500_000);
        assert_eq!(even(1_000_000, 500_000, 16), 500_000, "sixteen files would be too small");
        assert_eq!(even(10, 500_000, 8), 10, "one small file stays one");
        assert_eq!(even(0, 500_000, 8), 1);
    }
}
