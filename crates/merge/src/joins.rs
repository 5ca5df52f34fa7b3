// SPDX-License-Identifier: Apache-2.0
//! Which kind of join a query runs with.
//!
//! A hash join is the faster one, but its build side cannot spill. A sort-merge join spills. So queries run with hash
//! joins where those fit, and with sort-merge joins where they do not, which shows either before (from the sizes of
//! the files) or when a hash join runs out of memory.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;

use crate::memory::Refusal;
use crate::scan::RelationExec;

/// How the joins of a query run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joins {
    /// With hash tables in memory.
    Hash,
    /// By sorting both sides, on disk where needed.
    SortMerge,
}

/// A failed attempt to run a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// How its joins ran.
    pub(crate) joins: Joins,
    /// It ran out of memory.
    pub(crate) out_of_memory: bool,
    /// What it was refused, if that failed it.
    pub(crate) refusal: Option<Refusal>,
    /// The writer has rows of it.
    pub(crate) rows_handed_over: bool,
}

/// Chooses from what the build sides are estimated to take, all of them together: in a union of joins, which is how
/// both sides of a changed join are covered, they are held at the same time.
pub(crate) fn choose(build_bytes: u64, share: usize) -> Joins {
    if build_bytes > share as u64 { Joins::SortMerge } else { Joins::Hash }
}

/// Whether a failed query should be planned again with sort-merge joins.
pub(crate) fn should_sort_merge(failure: &Failure) -> bool {
    if failure.joins == Joins::SortMerge || !failure.out_of_memory {
        return false;
    }
    // The writer cannot take rows back, and running again would deliver them twice.
    if failure.rows_handed_over {
        return false;
    }
    // A sort may be the one that is refused, while it is the hash tables that leave it no room.
    failure
        .refusal
        .as_ref()
        .is_some_and(|refusal| refusal.by_hash_join || refusal.hash_join_bytes * 2 >= refusal.query_bytes.max(1))
}

/// Bytes that the build sides of all hash joins are estimated to take: everything that is read below them.
pub(crate) fn estimate_build_bytes(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let own = match plan.downcast_ref::<HashJoinExec>() {
        Some(join) => estimate_read_bytes(join.left()),
        None => 0,
    };
    let children = plan.children();
    children.into_iter().fold(own, |sum, child| sum.saturating_add(estimate_build_bytes(child)))
}

/// Whether a plan has a hash join at all.
pub(crate) fn has_hash_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<HashJoinExec>().is_some() || plan.children().into_iter().any(has_hash_join)
}

fn estimate_read_bytes(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    if let Some(scan) = plan.downcast_ref::<RelationExec>() {
        return scan.estimated_bytes();
    }
    plan.children().into_iter().fold(0, |sum, child| sum.saturating_add(estimate_read_bytes(child)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        let refusal = Refusal { by_hash_join: true, hash_join_bytes: 10, query_bytes: 100 };
        Failure { joins: Joins::Hash, out_of_memory: true, refusal: Some(refusal), rows_handed_over: false }
    }

    #[test]
    fn build_sides_beyond_the_share_are_sorted_from_the_start() {
        assert_eq!(choose(0, 100), Joins::Hash);
        assert_eq!(choose(100, 100), Joins::Hash);
        assert_eq!(choose(101, 100), Joins::SortMerge);
    }

    #[test]
    fn a_hash_join_out_of_memory_is_planned_again() {
        assert!(should_sort_merge(&failure()));
    }

    #[test]
    fn so_is_another_operator_that_hash_tables_leave_no_room() {
        let crowded = Refusal { by_hash_join: false, hash_join_bytes: 50, query_bytes: 100 };
        assert!(should_sort_merge(&Failure { refusal: Some(crowded), ..failure() }));
        let own_fault = Refusal { by_hash_join: false, hash_join_bytes: 49, query_bytes: 100 };
        assert!(!should_sort_merge(&Failure { refusal: Some(own_fault), ..failure() }));
    }

    #[test]
    fn nothing_is_planned_again_twice_or_after_rows_or_for_other_reasons() {
        assert!(!should_sort_merge(&Failure { joins: Joins::SortMerge, ..failure() }));
        assert!(!should_sort_merge(&Failure { rows_handed_over: true, ..failure() }));
        assert!(!should_sort_merge(&Failure { out_of_memory: false, ..failure() }));
        assert!(!should_sort_merge(&Failure { refusal: None, ..failure() }));
    }
}
