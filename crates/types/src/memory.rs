// SPDX-License-Identifier: Apache-2.0
//! The counted memory of one batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit in bytes that every stage of a batch draws from. Cloning shares the same limit.
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

/// A request that would have gone over the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} needs {wanted} bytes, but {used} of the batch's {limit} bytes are in use; raise `limits.memory`")]
pub struct MemoryExceeded {
    /// What asked.
    pub what: String,
    /// Bytes asked for.
    pub wanted: usize,
    /// Bytes in use at that moment.
    pub used: usize,
    /// The whole budget in bytes.
    pub limit: usize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        MemoryBudget(Arc::new(Counters { limit, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) }))
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Bytes counted now.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever counted at once.
    pub fn peak(&self) -> usize {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// Counts `bytes`, or refuses when that would pass the limit.
    pub fn try_grow(&self, what: &str, bytes: usize) -> Result<(), MemoryExceeded> {
        let grown = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let next = used.checked_add(bytes)?;
            (next <= self.0.limit).then_some(next)
        });
        match grown {
            Ok(before) => {
                self.0.peak.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(used) => Err(MemoryExceeded { what: what.to_string(), wanted: bytes, used, limit: self.0.limit }),
        }
    }

    /// Counts `bytes` even past the limit: for memory that is held already and cannot be refused.
    pub fn grow(&self, bytes: usize) {
        let before = self.0.used.fetch_add(bytes, Ordering::Relaxed);
        self.0.peak.fetch_max(before + bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` back.
    pub fn shrink(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An empty reservation that gives back what it holds when dropped.
    pub fn reservation(&self, what: impl Into<String>) -> Reservation {
        Reservation { budget: self.clone(), what: what.into(), held: 0 }
    }
}

/// Bytes held from a [`MemoryBudget`], given back on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    what: String,
    held: usize,
}

impl Reservation {
    /// Bytes held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Holds `bytes` more.
    pub fn try_grow(&mut self, bytes: usize) -> Result<(), MemoryExceeded> {
        self.budget.try_grow(&self.what, bytes)?;
        self.held += bytes;
        Ok(())
    }

    /// Holds `bytes` more even past the limit: for one batch that already is in memory.
    pub fn grow(&mut self, bytes: usize) {
        self.budget.grow(bytes);
        self.held += bytes;
    }

    /// Gives `bytes` back, at most what is held.
    pub fn shrink(&mut self, bytes: usize) {
        let given = bytes.min(self.held);
        self.budget.shrink(given);
        self.held -= given;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.shrink(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_over_the_limit_is_refused_and_counts_nothing() {
        let budget = MemoryBudget::new(100);
        budget.try_grow("a", 60).unwrap();
        let refused = budget.try_grow("b", 41).unwrap_err();
        assert_eq!((refused.wanted, refused.used, refused.limit), (41, 60, 100));
        assert_eq!(budget.used(), 60);
    }

    #[test]
    fn a_dropped_reservation_gives_everything_back_and_the_peak_stays() {
        let budget = MemoryBudget::new(100);
        let mut held = budget.reservation("rows");
        held.try_grow(70).unwrap();
        held.shrink(20);
        drop(held);
        assert_eq!((budget.used(), budget.peak()), (0, 70));
    }
}
