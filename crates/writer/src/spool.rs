// SPDX-License-Identifier: Apache-2.0
//! Rows that wait: in memory while they are few, divided over temporary files once they are many.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use tempfile::TempDir;
use tributary_api::boxed_error;
use tributary_api::writer::Error;
use tributary_types::{MemoryBudget, Reservation};

use crate::combine::ROW_BYTES;

/// Temporary disk space of one staging; removed when the last user is gone.
#[derive(Debug, Clone)]
pub(crate) struct SpillSpace(Arc<Space>);

#[derive(Debug)]
struct Space {
    directory: TempDir,
    limit: u64,
    used: AtomicU64,
    files: AtomicU64,
}

impl SpillSpace {
    /// A fresh directory that may take `limit` bytes.
    pub(crate) fn new(limit: u64) -> Result<Self, Error> {
        let directory =
            TempDir::with_prefix("tributary-writer-").map_err(|e| disk("making a temporary directory", e))?;
        Ok(SpillSpace(Arc::new(Space { directory, limit, used: AtomicU64::new(0), files: AtomicU64::new(0) })))
    }

    /// Bytes written so far.
    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    fn next_path(&self) -> PathBuf {
        let number = self.0.files.fetch_add(1, Ordering::Relaxed);
        self.0.directory.path().join(format!("{number}.arrows"))
    }

    fn charge(&self, bytes: u64) -> Result<(), Error> {
        let used = self.0.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.0.limit { Err(Error::Spill { limit: self.0.limit }) } else { Ok(()) }
    }
}

/// Which part each row of a batch belongs to, below the number of parts.
pub(crate) type Route = fn(&RecordBatch, usize) -> Vec<usize>;

/// Collects rows of one schema.
pub(crate) struct Spool {
    schema: SchemaRef,
    route: Route,
    parts: usize,
    space: SpillSpace,
    threshold: usize,
    held: Reservation,
    memory: Vec<RecordBatch>,
    rows: usize,
    files: Option<Vec<PartFile>>,
}

struct PartFile {
    path: PathBuf,
    writer: StreamWriter<CountingWriter>,
    rows: usize,
}

/// What was collected.
pub(crate) enum Spooled {
    /// Everything, in memory, with the memory it holds.
    Memory(Vec<RecordBatch>, Reservation),
    /// Parts on disk; rows that route alike are in one part, in the order in which they came.
    Parts(Vec<Part>),
}

/// One part on disk.
pub(crate) struct Part {
    path: PathBuf,
    rows: usize,
    _space: SpillSpace,
}

impl Spool {
    /// An empty spool that holds rows in memory, until these and what combining them takes come to `threshold` bytes;
    /// then it divides them over `parts` files.
    pub(crate) fn new(
        schema: SchemaRef,
        budget: &MemoryBudget,
        threshold: usize,
        space: &SpillSpace,
        parts: usize,
        route: Route,
    ) -> Self {
        Spool {
            schema,
            route,
            parts,
            space: space.clone(),
            threshold,
            held: budget.reservation("rows waiting to be written"),
            memory: Vec::new(),
            rows: 0,
            files: None,
        }
    }

    /// Adds rows.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<(), Error> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if self.files.is_some() {
            return self.divide(&batch);
        }
        let bytes = batch_bytes(&batch);
        self.rows += batch.num_rows();
        let with_keys = self.held.held() + bytes + self.rows * ROW_BYTES;
        if with_keys > self.threshold || self.held.try_grow(bytes).is_err() {
            self.spill()?;
            return self.divide(&batch);
        }
        self.memory.push(batch);
        Ok(())
    }

    /// Ends the collection.
    pub(crate) fn finish(mut self) -> Result<Spooled, Error> {
        let Some(files) = self.files.take() else {
            return Ok(Spooled::Memory(self.memory, self.held));
        };
        let mut parts = Vec::with_capacity(files.len());
        for mut file in files {
            file.writer.finish().map_err(|e| spill_error(&self.space, "ending a temporary file", e))?;
            let part = Part { path: file.path, rows: file.rows, _space: self.space.clone() };
            parts.push(part);
        }
        Ok(Spooled::Parts(parts))
    }

    fn spill(&mut self) -> Result<(), Error> {
        tracing::debug!(bytes = self.held.held(), parts = self.parts, "rows spill to temporary files");
        let mut files = Vec::with_capacity(self.parts);
        for _ in 0..self.parts {
            let path = self.space.next_path();
            let file = File::create(&path).map_err(|e| disk("creating a temporary file", e))?;
            let counting =
                CountingWriter { inner: BufWriter::with_capacity(64 << 10, file), space: self.space.clone() };
            let writer = StreamWriter::try_new(counting, &self.schema)
                .map_err(|e| spill_error(&self.space, "beginning a temporary file", e))?;
            files.push(PartFile { path, writer, rows: 0 });
        }
        self.files = Some(files);
        for batch in std::mem::take(&mut self.memory) {
            self.divide(&batch)?;
        }
        self.held.shrink(self.held.held());
        Ok(())
    }

    fn divide(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        let mut rows_of: Vec<Vec<u32>> = vec![Vec::new(); self.parts];
        for (row, part) in (self.route)(batch, self.parts).into_iter().enumerate() {
            rows_of[part].push(row as u32);
        }
        let Some(files) = self.files.as_mut() else { return Ok(()) };
        for (file, rows) in files.iter_mut().zip(rows_of).filter(|(_, rows)| !rows.is_empty()) {
            let taken =
                take_record_batch(batch, &UInt32Array::from(rows)).map_err(|e| disk_arrow("dividing rows", e))?;
            file.writer.write(&taken).map_err(|e| spill_error(&self.space, "writing a temporary file", e))?;
            file.rows += taken.num_rows();
        }
        Ok(())
    }
}

impl Part {
    /// Rows in it.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Reads it from its beginning.
    pub(crate) fn read(&self) -> Result<impl Iterator<Item = Result<RecordBatch, Error>> + use<>, Error> {
        let file = File::open(&self.path).map_err(|e| disk("opening a temporary file", e))?;
        let reader = StreamReader::try_new(BufReader::with_capacity(256 << 10, file), None)
            .map_err(|e| disk_arrow("reading a temporary file", e))?;
        Ok(reader.map(|batch| batch.map_err(|e| disk_arrow("reading a temporary file", e))))
    }

    /// All of it, counted in `held`. Refused when it does not fit in the budget.
    pub(crate) fn load(&self, held: &mut Reservation) -> Result<Vec<RecordBatch>, Error> {
        let mut batches = Vec::new();
        for batch in self.read()? {
            let batch = batch?;
            held.try_grow(batch_bytes(&batch))?;
            batches.push(batch);
        }
        Ok(batches)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // The directory goes with the last part; an early removal only frees the disk sooner.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Bytes that the rows of a batch take. Batches are often slices of one larger buffer, which together make it up, so
/// the slices are counted and not the buffer of each.
pub(crate) fn batch_bytes(batch: &RecordBatch) -> usize {
    // A type whose slices cannot be measured is counted whole: too much rather than too little.
    let of =
        |array: &ArrayRef| array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size());
    batch.columns().iter().map(of).sum()
}

struct CountingWriter {
    inner: BufWriter<File>,
    space: SpillSpace,
}

impl Write for CountingWriter {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.space.charge(written as u64).map_err(|_| std::io::Error::other("spill limit"))?;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

fn spill_error(space: &SpillSpace, doing: &str, error: arrow::error::ArrowError) -> Error {
    if space.used() > space.0.limit {
        return Error::Spill { limit: space.0.limit };
    }
    disk_arrow(doing, error)
}

fn disk(doing: &str, error: std::io::Error) -> Error {
    Error::Store {
        url: std::env::temp_dir().display().to_string(),
        doing: doing.to_string(),
        source: boxed_error(error),
    }
}

fn disk_arrow(doing: &str, error: arrow::error::ArrowError) -> Error {
    Error::Store {
        url: std::env::temp_dir().display().to_string(),
        doing: doing.to_string(),
        source: boxed_error(error),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};

    use super::*;

    fn by_value(batch: &RecordBatch, parts: usize) -> Vec<usize> {
        batch.column(0).as_primitive::<Int64Type>().values().iter().map(|v| *v as usize % parts).collect()
    }

    fn batch(values: std::ops::Range<i64>) -> RecordBatch {
        let schema = Schema::new(vec![Field::new("v", DataType::Int64, false)]);
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from_iter_values(values))]).unwrap()
    }

    fn spool(threshold: usize, limit: u64) -> Spool {
        let budget = MemoryBudget::new(1 << 30);
        Spool::new(batch(0..1).schema(), &budget, threshold, &SpillSpace::new(limit).unwrap(), 4, by_value)
    }

    #[test]
    fn few_rows_stay_in_memory() {
        let mut spool = spool(1 << 20, 1 << 20);
        spool.push(batch(0..10)).unwrap();
        let Spooled::Memory(batches, held) = spool.finish().unwrap() else { panic!("spilled") };
        assert_eq!(batches.len(), 1);
        assert!(held.held() > 0);
    }

    #[test]
    fn many_rows_are_divided_and_none_is_lost() {
        let mut spool = spool(1000, 1 << 20);
        for start in 0..10 {
            spool.push(batch(start * 100..start * 100 + 100)).unwrap();
        }
        let Spooled::Parts(parts) = spool.finish().unwrap() else { panic!("in memory") };
        assert_eq!(parts.iter().map(Part::rows).sum::<usize>(), 1000);
        for (number, part) in parts.iter().enumerate() {
            let mut last = -1;
            for batch in part.read().unwrap() {
                for value in batch.unwrap().column(0).as_primitive::<Int64Type>().values() {
                    assert_eq!(*value as usize % 4, number);
                    assert!(*value > last, "order is kept");
                    last = *value;
                }
            }
        }
    }

    #[test]
    fn the_spill_limit_is_an_error_of_its_own() {
        let mut spool = spool(10, 20_000);
        let refused = (0..100).find_map(|n| spool.push(batch(n * 1000..n * 1000 + 1000)).err());
        assert!(matches!(refused, Some(Error::Spill { limit: 20_000 })), "{refused:?}");
    }

    #[test]
    fn a_spill_limit_that_is_reached_before_the_first_row_is_told_as_such() {
        let refused = spool(10, 100).push(batch(0..1000)).unwrap_err();
        assert!(matches!(refused, Error::Spill { limit: 100 }), "{refused:?}");
    }
}
