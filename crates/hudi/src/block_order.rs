// SPDX-License-Identifier: Apache-2.0
//! Which blocks of a slice's log files count, and in which order they are applied.
//!
//! Blocks are applied in the order of their files. A rollback takes back what an earlier instant wrote. What a log
//! compaction put together stands where the last of its originals stood. Since a log compaction gives rows its own
//! commit time, whoever wants to know which instant wrote them takes the originals instead, which stay in the slice
//! as long as it has log files at all.

use std::collections::{HashMap, HashSet};

use tributary_types::InstantTime;

use crate::log_blocks::{BlockKind, LogBlock};

/// Instants whose blocks count, where one log file holds blocks of several (table version 6).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockInstants {
    /// Everything before this counts: it was archived.
    pub before: Option<InstantTime>,
    /// What counts besides.
    pub listed: Vec<InstantTime>,
}

impl BlockInstants {
    fn counts(&self, instant: &str) -> bool {
        self.before.as_ref().is_some_and(|before| instant < before.as_str())
            || self.listed.iter().any(|listed| listed.as_str() == instant)
    }
}

/// The blocks to apply, in order, as positions in `blocks`, which are those of the slice's files one after the other.
pub(crate) fn order_blocks(blocks: &[&LogBlock], counted: Option<&BlockInstants>, take_originals: bool) -> Vec<usize> {
    let mut live: Vec<usize> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        match (block.kind, block.instant()) {
            (BlockKind::Command, _) => {
                let target = block.target_instant();
                live.retain(|earlier| blocks[*earlier].instant() != target);
            }
            (_, Some(instant)) if counted.is_none_or(|counted| counted.counts(instant)) => live.push(at),
            _ => {}
        }
    }
    let compactions = compactions(blocks, &live, take_originals);
    let mut places: HashMap<usize, usize> = HashMap::new();
    let mut kept = Vec::new();
    for at in live {
        let Some(instant) = blocks[at].instant() else { continue };
        match compactions.stand_in(instant) {
            // The originals come one after the other; the last place of all is that of what replaces them.
            Some(compaction) => {
                for replacement in &compactions.blocks[compaction] {
                    places.insert(*replacement, at);
                }
            }
            None if compactions.left_out.contains(instant) => {}
            None => {
                places.entry(at).or_insert(at);
                kept.push(at);
            }
        }
    }
    kept.sort_by_key(|at| (places[at], *at));
    kept
}

/// What log compactions put together, among the blocks that count.
#[derive(Default)]
struct Compactions<'a> {
    /// Blocks of each compaction, by its instant.
    blocks: HashMap<&'a str, Vec<usize>>,
    /// The compaction that took an instant in.
    taken_in_by: HashMap<&'a str, &'a str>,
    /// Compactions whose originals are taken.
    left_out: HashSet<&'a str>,
}

impl<'a> Compactions<'a> {
    /// The compaction whose blocks stand for those of an instant.
    fn stand_in(&self, instant: &str) -> Option<&'a str> {
        let mut last = *self.taken_in_by.get(instant)?;
        while let Some(next) = self.taken_in_by.get(last) {
            last = next;
        }
        Some(last)
    }
}

fn compactions<'a>(blocks: &[&'a LogBlock], live: &[usize], take_originals: bool) -> Compactions<'a> {
    let mut found = Compactions::default();
    let there: HashSet<&str> = live.iter().filter_map(|at| blocks[*at].instant()).collect();
    for at in live {
        let Some(instant) = blocks[*at].instant() else { continue };
        let mut originals = blocks[*at].compacted_instants().filter(|original| *original != instant).peekable();
        if originals.peek().is_none() {
            continue;
        }
        let originals: Vec<&str> = originals.collect();
        if take_originals && originals.iter().all(|original| there.contains(original)) {
            found.left_out.insert(instant);
            continue;
        }
        found.blocks.entry(instant).or_default().push(*at);
        found.taken_in_by.extend(originals.into_iter().map(|original| (original, instant)));
    }
    found
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::log_blocks::tests::block_with;
    use crate::log_blocks::{Torn, read_blocks};

    const INSTANT: u32 = 0;
    const TARGET: u32 = 1;
    const COMPACTED: u32 = 4;

    fn rows(instant: &str) -> Vec<u8> {
        block_with(3, &[(INSTANT, instant)], b"")
    }

    fn rollback(instant: &str, target: &str) -> Vec<u8> {
        block_with(0, &[(INSTANT, instant), (TARGET, target)], b"")
    }

    fn compaction(instant: &str, originals: &str) -> Vec<u8> {
        block_with(3, &[(INSTANT, instant), (COMPACTED, originals)], b"")
    }

    /// Instants of the blocks that are applied, in order.
    fn applied(log: &[Vec<u8>], counted: Option<&BlockInstants>, take_originals: bool) -> Vec<String> {
        let blocks = read_blocks("f", &Bytes::from(log.concat()), Torn::PassedOver).unwrap();
        let blocks: Vec<&LogBlock> = blocks.iter().collect();
        let order = order_blocks(&blocks, counted, take_originals);
        order.into_iter().map(|at| blocks[at].instant().unwrap().to_string()).collect()
    }

    #[test]
    fn a_rollback_takes_back_earlier_blocks_of_its_target_only() {
        let log = [rows("1"), rows("2"), rows("2"), rollback("3", "2"), rows("4"), rows("2")];
        assert_eq!(applied(&log, None, false), ["1", "4", "2"]);
    }

    #[test]
    fn blocks_of_instants_that_do_not_count_are_passed_over() {
        let at = |second: u32| format!("202501010000{second:02}000");
        let log: Vec<Vec<u8>> = [1, 3, 4, 5].into_iter().map(|second| rows(&at(second))).collect();
        let counted = BlockInstants { before: at(3).parse().ok(), listed: vec![at(4).parse().unwrap()] };
        assert_eq!(applied(&log, Some(&counted), false), [at(1), at(4)]);
    }

    #[test]
    fn what_a_log_compaction_put_together_stands_where_the_last_original_stood() {
        // Instant 3 was written while 1 and 2 were compacted.
        let log = [rows("1"), rows("2"), rows("4"), compaction("3", "1,2"), compaction("3", "1,2"), rows("5")];
        assert_eq!(applied(&log, None, false), ["3", "3", "4", "5"]);
        assert_eq!(applied(&log, None, true), ["1", "2", "4", "5"], "the originals, by which instant wrote what");
    }

    #[test]
    fn a_log_compaction_of_log_compactions_stands_for_all() {
        let log = [rows("1"), rows("2"), compaction("3", "1,2"), rows("4"), compaction("5", "3,4")];
        assert_eq!(applied(&log, None, false), ["5"]);
        assert_eq!(applied(&log, None, true), ["1", "2", "4"]);
    }

    #[test]
    fn a_log_compaction_without_its_originals_is_all_there_is() {
        let log = [compaction("3", "1,2"), rows("4")];
        assert_eq!(applied(&log, None, true), ["3", "4"]);
        assert_eq!(applied(&log, None, false), ["3", "4"]);
    }
}
