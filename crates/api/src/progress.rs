// SPDX-License-Identifier: Apache-2.0
//! How far a merge is, told while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tributary_types::SourceName;

/// What was read of one source so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRead {
    /// The source.
    pub source: SourceName,
    /// Rows, all relations together.
    pub rows: u64,
    /// Their bytes in memory.
    pub bytes: u64,
}

/// Counts what is read of one source.
#[derive(Debug, Default)]
pub struct ReadCounter {
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl ReadCounter {
    /// Counts more rows.
    pub fn add(&self, rows: u64, bytes: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Sources in pipeline order, each with its counter.
type Counters = Vec<(SourceName, Arc<ReadCounter>)>;

/// How far a merge is. Cloning shares it: whoever runs the merge counts, whoever asked for it looks.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Counters>>);

impl Progress {
    /// Begins anew: a counter for each source, in this order.
    pub fn begin<'a>(&self, sources: impl IntoIterator<Item = &'a SourceName>) -> Vec<Arc<ReadCounter>> {
        let counters: Counters = sources.into_iter().map(|source| (source.clone(), Arc::default())).collect();
        let handed_out = counters.iter().map(|(_, counter)| Arc::clone(counter)).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counters;
        handed_out
    }

    /// Takes over what another process counted.
    pub fn set(&self, reads: &[SourceRead]) {
        let counters = self.begin(reads.iter().map(|read| &read.source));
        counters.iter().zip(reads).for_each(|(counter, read)| counter.add(read.rows, read.bytes));
    }

    /// What was read so far.
    pub fn reads(&self) -> Vec<SourceRead> {
        let counters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |(source, counter): &(SourceName, Arc<ReadCounter>)| SourceRead {
            source: source.clone(),
            rows: counter.rows(),
            bytes: counter.bytes(),
        };
        counters.iter().map(read).collect()
    }
}
