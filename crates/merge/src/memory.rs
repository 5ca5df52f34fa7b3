// SPDX-License-Identifier: Apache-2.0
//! The query's part of the batch's memory, as the pool that the engine's operators draw from.
//!
//! Query and writer count into one budget. The query is held to a share of it, so that the writer, which must go on
//! for the query to go on, is never starved. Inside the share an operator that can spill may always hold a fair part,
//! and more while at least half of the share is free: an operator that is alone need not spill, and one that comes
//! later finds room. A third of the share is never given to operators that can spill, because to merge what they
//! spilled they need memory that they cannot spill. Refused operators that can spill do; the others fail.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use tokio::sync::Notify;
use tributary_types::MemoryBudget;

/// How the engine names the memory of a hash join's build side.
const HASH_JOIN: &str = "HashJoinInput";

/// The memory pool of one query.
#[derive(Debug)]
pub(crate) struct QueryPool {
    budget: MemoryBudget,
    share: usize,
    held: Mutex<Held>,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Held {
    /// Consumers registered that can spill.
    spillers: usize,
    /// Bytes held by those.
    spillable: usize,
    /// Bytes held by the others.
    fixed: usize,
    /// Bytes held by build sides of hash joins, which are among the others.
    hash_joins: usize,
    /// The last request refused to a consumer that cannot spill.
    refusal: Option<Refusal>,
}

/// A refused request of a consumer that cannot spill, which fails its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// It was the build side of a hash join.
    pub(crate) by_hash_join: bool,
    /// Bytes that build sides of hash joins held at that moment.
    pub(crate) hash_join_bytes: usize,
    /// Bytes that the whole query held at that moment.
    pub(crate) query_bytes: usize,
}

impl QueryPool {
    /// A pool of `percent` of `budget`.
    pub(crate) fn new(budget: MemoryBudget, percent: usize) -> Self {
        let share = budget.limit() / 100 * percent.min(100);
        QueryPool { budget, share, held: Mutex::default(), emptied: Notify::new() }
    }

    /// Bytes the query may hold.
    pub(crate) fn share(&self) -> usize {
        self.share
    }

    /// The last request that was refused to a consumer that cannot spill.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.held().refusal.clone()
    }

    /// Waits until everything is given back: the tasks of a query that was dropped end a moment later.
    pub(crate) async fn wait_until_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.reserved() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Plain counters are never left half changed by a panic elsewhere.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn total(&self) -> usize {
        self.spillable + self.fixed
    }

    fn add(&mut self, consumer: &MemoryConsumer, bytes: usize) {
        if consumer.can_spill() {
            self.spillable += bytes;
            return;
        }
        self.fixed += bytes;
        if is_hash_join(consumer) {
            self.hash_joins += bytes;
        }
    }

    fn remove(&mut self, consumer: &MemoryConsumer, bytes: usize) {
        if consumer.can_spill() {
            self.spillable = self.spillable.saturating_sub(bytes);
            return;
        }
        self.fixed = self.fixed.saturating_sub(bytes);
        if is_hash_join(consumer) {
            self.hash_joins = self.hash_joins.saturating_sub(bytes);
        }
    }

    /// Whether a consumer that holds `held` bytes may hold `more`.
    fn allows(&self, can_spill: bool, held: usize, more: usize, share: usize) -> bool {
        let after = self.total().saturating_add(more);
        if !can_spill {
            return after <= share;
        }
        let room = share.saturating_sub(self.fixed.max(share / 3));
        let is_fair = held.saturating_add(more) <= room / self.spillers.max(1);
        self.spillable.saturating_add(more) <= room && (is_fair || after <= share / 2)
    }
}

fn is_hash_join(consumer: &MemoryConsumer) -> bool {
    consumer.name().starts_with(HASH_JOIN)
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        "query share"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        if consumer.can_spill() {
            self.held().spillers += 1;
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if consumer.can_spill() {
            let mut held = self.held();
            held.spillers = held.spillers.saturating_sub(1);
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.budget.grow(additional);
        self.held().add(reservation.consumer(), additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.budget.shrink(shrink);
        let mut held = self.held();
        held.remove(reservation.consumer(), shrink);
        if held.total() == 0 {
            self.emptied.notify_waiters();
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let consumer = reservation.consumer();
        let mut held = self.held();
        let counted = held.allows(consumer.can_spill(), reservation.size(), additional, self.share)
            && self.budget.try_grow(consumer.name(), additional).is_ok();
        if counted {
            held.add(consumer, additional);
            return Ok(());
        }
        if !consumer.can_spill() {
            held.refusal = Some(Refusal {
                by_hash_join: is_hash_join(consumer),
                hash_join_bytes: held.hash_joins,
                query_bytes: held.total(),
            });
        }
        Err(DataFusionError::ResourcesExhausted(format!(
            "`{}` holds {} bytes and needs {additional} more, while the query holds {} and the batch {} of {}",
            consumer.name(),
            reservation.size(),
            held.total(),
            self.budget.used(),
            self.budget.limit(),
        )))
    }

    fn reserved(&self) -> usize {
        self.held().total()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.share)
    }
}

impl fmt::Display for QueryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "query share of {} bytes", self.share)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Fixture {
        budget: MemoryBudget,
        query: Arc<QueryPool>,
        pool: Arc<dyn MemoryPool>,
    }

    fn fixture(limit: usize, percent: usize) -> Fixture {
        let budget = MemoryBudget::new(limit);
        let query = Arc::new(QueryPool::new(budget.clone(), percent));
        Fixture { budget, pool: Arc::clone(&query) as Arc<dyn MemoryPool>, query }
    }

    fn consumer(fixture: &Fixture, name: &str, can_spill: bool) -> MemoryReservation {
        MemoryConsumer::new(name).with_can_spill(can_spill).register(&fixture.pool)
    }

    #[test]
    fn the_query_is_held_to_its_share_and_counts_into_the_budget() {
        let fixture = fixture(1000, 60);
        let join = consumer(&fixture, "HashJoinInput[0]", false);
        join.try_grow(600).unwrap();
        assert_eq!(fixture.budget.used(), 600);
        let refused = join.try_grow(1).unwrap_err();
        assert!(matches!(refused, DataFusionError::ResourcesExhausted(_)));
        drop(join);
        assert_eq!(fixture.budget.used(), 0);
    }

    #[test]
    fn what_the_writer_holds_is_not_there_for_the_query() {
        let fixture = fixture(1000, 60);
        fixture.budget.try_grow("writer", 900).unwrap();
        let sort = consumer(&fixture, "ExternalSorter[0]", true);
        assert!(sort.try_grow(200).is_err());
        sort.try_grow(100).unwrap();
        assert_eq!(fixture.query.reserved(), 100);
    }

    #[test]
    fn spillers_get_a_fair_part_and_more_only_while_half_is_free() {
        let fixture = fixture(1000, 80);
        let first = consumer(&fixture, "ExternalSorter[0]", true);
        let second = consumer(&fixture, "ExternalSorter[1]", true);
        let third = consumer(&fixture, "ExternalSorter[2]", true);
        let _fourth = consumer(&fixture, "ExternalSorter[3]", true);
        first.try_grow(400).unwrap();
        assert!(first.try_grow(1).is_err(), "beyond half of the share only a fair part is left");
        second.try_grow(133).unwrap();
        assert!(second.try_grow(1).is_err());
        assert!(third.try_grow(2).is_err(), "what is left is less than a fair part");
        first.shrink(300);
        third.try_grow(133).unwrap();
    }

    #[test]
    fn a_third_of_the_share_is_kept_for_what_cannot_spill() {
        let fixture = fixture(1000, 80);
        let sort = consumer(&fixture, "ExternalSorter[0]", true);
        sort.try_grow(534).unwrap();
        assert!(sort.try_grow(1).is_err());
        let merge = consumer(&fixture, "ExternalSorterMerge[0]", false);
        merge.try_grow(266).unwrap();
        assert!(merge.try_grow(1).is_err());
    }

    #[test]
    fn only_a_refusal_that_fails_the_query_is_remembered() {
        let fixture = fixture(1000, 50);
        let sort = consumer(&fixture, "ExternalSorter[0]", true);
        assert!(sort.try_grow(501).is_err());
        assert_eq!(fixture.query.refusal(), None);
        let join = consumer(&fixture, "HashJoinInput", false);
        join.try_grow(450).unwrap();
        assert!(join.try_grow(100).is_err());
        let expected = Refusal { by_hash_join: true, hash_join_bytes: 450, query_bytes: 450 };
        assert_eq!(fixture.query.refusal(), Some(expected));
    }

    #[tokio::test]
    async fn waiting_ends_when_everything_is_given_back() {
        let fixture = fixture(1000, 50);
        let join = consumer(&fixture, "HashJoinInput", false);
        join.grow(10);
        let query = Arc::clone(&fixture.query);
        let waiting = tokio::spawn(async move { query.wait_until_empty().await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(join);
        waiting.await.unwrap();
    }
}
