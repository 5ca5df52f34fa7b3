// SPDX-License-Identifier: Apache-2.0
//! Rows by key: one winner for each key of a part, found again by the key.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::compute::{concat_batches, interleave_record_batch};
use arrow::row::Rows;
use foldhash::quality::FixedState;
use hashbrown::HashTable;
use tributary_api::writer::Error;
use tributary_types::{MemoryBudget, Reservation};

use crate::deletes::Deletes;
use crate::ingest::{KEY, PARTITION, internal};
use crate::order::OrderingRule;

/// Bytes that bookkeeping takes for each row of a part while it is combined, tagged and written, besides the rows: its
/// winner and place in the table, and its place in the lists of what is to be done.
pub(crate) const ROW_BYTES: usize = 40;
/// Rows in a row of one batch from which on they are copied as a piece.
const LONG_RUN: usize = 32;
/// Rows in a row, on average, from which on each run is a piece of its own: a piece costs as much as many rows.
const SHARED_RUN: usize = 1024;

/// A row of a part: which batch, which row of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowAt {
    pub(crate) batch: u32,
    pub(crate) row: u32,
}

/// Rows of a part, held in memory, with one winner per key.
pub(crate) struct KeyedRows {
    pub(crate) batches: Arc<Vec<RecordBatch>>,
    pub(crate) winners: Vec<RowAt>,
    /// Comparable ordering values of each batch, where the table orders.
    pub(crate) ordering: Option<Vec<Rows>>,
    /// Rows that lost against another row of the part.
    pub(crate) combined: u64,
    /// Which rows delete their record.
    pub(crate) deletes: Deletes,
    table: HashTable<u32>,
    held: Reservation,
}

/// The hash of a record's identity: partition and key.
pub(crate) fn identity_hash(partition: &str, key: &str) -> u64 {
    // A fixed seed: a part must be found again in a spilled file.
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(partition.as_bytes());
    hasher.write_u8(0xff);
    hasher.write(key.as_bytes());
    hasher.finish()
}

impl KeyedRows {
    /// Finds the winner of every key. What that takes besides the rows themselves is counted in `memory`.
    pub(crate) fn combine(
        batches: Vec<RecordBatch>,
        rule: Option<&OrderingRule>,
        deletes: Deletes,
        memory: &MemoryBudget,
    ) -> Result<Self, Error> {
        Self::combine_each(batches, rule, deletes, memory, |_| ())
    }

    /// As [`KeyedRows::combine`], with the number of each row's key, which is its position in [`KeyedRows::winners`].
    pub(crate) fn combine_numbered(
        batches: Vec<RecordBatch>,
        rule: Option<&OrderingRule>,
        deletes: Deletes,
        memory: &MemoryBudget,
    ) -> Result<(Self, Vec<u32>), Error> {
        let mut numbers = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
        let rows = Self::combine_each(batches, rule, deletes, memory, |number| numbers.push(number))?;
        Ok((rows, numbers))
    }

    fn combine_each(
        batches: Vec<RecordBatch>,
        rule: Option<&OrderingRule>,
        deletes: Deletes,
        memory: &MemoryBudget,
        mut note: impl FnMut(u32),
    ) -> Result<Self, Error> {
        let ordering = match rule {
            Some(rule) => Some(batches.iter().map(|batch| rule.rows(batch)).collect::<Result<Vec<_>, _>>()?),
            None => None,
        };
        let total = batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        // Room for it was left when the rows were let into memory.
        let mut held = memory.reservation("keys of the rows");
        held.grow(total * ROW_BYTES + ordering.iter().flatten().map(Rows::size).sum::<usize>());
        let mut rows = KeyedRows {
            winners: Vec::with_capacity(total),
            table: HashTable::with_capacity(total),
            batches: Arc::new(batches),
            ordering,
            combined: 0,
            deletes,
            held,
        };
        for (number, batch) in Arc::clone(&rows.batches).iter().enumerate() {
            let (partitions, keys) = (text(batch, PARTITION), text(batch, KEY));
            for row in 0..batch.num_rows() {
                let at = RowAt { batch: number as u32, row: row as u32 };
                note(rows.insert(at, partitions.value(row), keys.value(row)));
            }
        }
        Ok(rows)
    }

    /// Rows that no stored row is looked up for.
    pub(crate) fn unkeyed(batches: Vec<RecordBatch>, memory: &MemoryBudget) -> Self {
        KeyedRows {
            batches: Arc::new(batches),
            winners: Vec::new(),
            ordering: None,
            combined: 0,
            deletes: Deletes::Never,
            table: HashTable::new(),
            held: memory.reservation("keys of the rows"),
        }
    }

    /// Counts `bytes` that the rows take besides; refused where they do not fit.
    pub(crate) fn hold(&mut self, bytes: usize) -> Result<(), Error> {
        Ok(self.held.try_grow(bytes)?)
    }

    /// Adds batches behind those that are there, and makes rows of them the winners of their keys.
    pub(crate) fn replace(
        &mut self,
        more: Vec<RecordBatch>,
        winners: Vec<(usize, RowAt)>,
        rule: Option<&OrderingRule>,
    ) -> Result<(), Error> {
        if let (Some(ordering), Some(rule)) = (&mut self.ordering, rule) {
            for batch in &more {
                let rows = rule.rows(batch)?;
                self.held.try_grow(rows.size())?;
                ordering.push(rows);
            }
        }
        self.batches = Arc::new(self.batches.iter().cloned().chain(more).collect());
        for (number, at) in winners {
            self.winners[number] = at;
        }
        Ok(())
    }

    /// The winner of a key, as its position in [`KeyedRows::winners`].
    pub(crate) fn find(&self, partition: &str, key: &str) -> Option<usize> {
        let hash = identity_hash(partition, key);
        self.table.find(hash, |at| self.identity(self.winners[*at as usize]) == (partition, key)).map(|at| *at as usize)
    }

    /// Whether a row deletes its record.
    pub(crate) fn is_delete(&self, at: RowAt) -> bool {
        self.deletes.holds(&self.batches, at)
    }

    /// Partition and key of a row.
    pub(crate) fn identity(&self, at: RowAt) -> (&str, &str) {
        let batch = &self.batches[at.batch as usize];
        let row = at.row as usize;
        (text(batch, PARTITION).value(row), text(batch, KEY).value(row))
    }

    /// Adds a row; answers the number of its key.
    fn insert(&mut self, at: RowAt, partition: &str, key: &str) -> u32 {
        let hash = identity_hash(partition, key);
        let found = self.table.find(hash, |other| self.identity(self.winners[*other as usize]) == (partition, key));
        match found.copied() {
            Some(winner) => {
                self.combined += 1;
                if self.beats(at, self.winners[winner as usize]) {
                    self.winners[winner as usize] = at;
                }
                winner
            }
            None => {
                let number = self.winners.len() as u32;
                self.winners.push(at);
                let (winners, batches) = (&self.winners, &self.batches);
                self.table.insert_unique(hash, number, |other| {
                    let at = winners[*other as usize];
                    let batch = &batches[at.batch as usize];
                    identity_hash(
                        text(batch, PARTITION).value(at.row as usize),
                        text(batch, KEY).value(at.row as usize),
                    )
                });
                number
            }
        }
    }

    fn beats(&self, later: RowAt, earlier: RowAt) -> bool {
        if self.deletes.give_way() {
            let was_delete = self.is_delete(earlier);
            if was_delete != self.is_delete(later) {
                return was_delete;
            }
        }
        match &self.ordering {
            None => true,
            Some(rows) => {
                rows[later.batch as usize].row(later.row as usize)
                    >= rows[earlier.batch as usize].row(earlier.row as usize)
            }
        }
    }
}

/// Rows of `batches` as one batch. Long runs, such as batches that stay whole, are shared or copied as a piece.
pub(crate) fn gather(batches: &[RecordBatch], rows: &[RowAt]) -> Result<RecordBatch, Error> {
    let runs: Vec<&[RowAt]> = rows.chunk_by(|a, b| a.batch == b.batch && a.row + 1 == b.row).collect();
    if !runs.is_empty() && rows.len() / runs.len() >= LONG_RUN {
        let pieces: Vec<RecordBatch> =
            runs.iter().map(|run| batches[run[0].batch as usize].slice(run[0].row as usize, run.len())).collect();
        return match pieces.as_slice() {
            [whole] => Ok(whole.clone()),
            _ => concat_batches(&batches[0].schema(), &pieces).map_err(internal),
        };
    }
    let sources: Vec<&RecordBatch> = batches.iter().collect();
    let picks: Vec<(usize, usize)> = rows.iter().map(|at| (at.batch as usize, at.row as usize)).collect();
    interleave_record_batch(&sources, &picks).map_err(internal)
}

/// Rows of `batches` in pieces of at most `most` rows: shared where the rows are in long runs, gathered elsewhere.
pub(crate) fn pieces<'a>(
    batches: &'a [RecordBatch],
    rows: &'a [RowAt],
    most: usize,
) -> Box<dyn Iterator<Item = Result<RecordBatch, Error>> + Send + 'a> {
    let runs = || rows.chunk_by(|a, b| a.batch == b.batch && a.row + 1 == b.row);
    if rows.len() / runs().count().max(1) < SHARED_RUN {
        return Box::new(rows.chunks(most).map(|chunk| gather(batches, chunk)));
    }
    let shared = runs().flat_map(move |run| run.chunks(most));
    Box::new(shared.map(|run| Ok(batches[run[0].batch as usize].slice(run[0].row as usize, run.len()))))
}

/// A text column by its position. Both key columns are text by construction.
pub(crate) fn text(batch: &RecordBatch, column: usize) -> &StringArray {
    batch.column(column).as_string::<i32>()
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, BooleanArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Schema};
    use tributary_types::IS_DELETED;
    use tributary_types::pipeline::Operation;

    use super::*;

    fn batch(rows: &[(&str, &str, Option<i64>)]) -> RecordBatch {
        let keys: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1)));
        let partitions: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)));
        let ts: ArrayRef = Arc::new(rows.iter().map(|row| row.2).collect::<Int64Array>());
        let columns = [("_hoodie_record_key", keys), ("_hoodie_partition_path", partitions), ("ts", ts)];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap()
    }

    fn rule(batch: &RecordBatch) -> Option<OrderingRule> {
        OrderingRule::new(&["ts".to_string()], &batch.schema()).unwrap()
    }

    fn combine(batches: Vec<RecordBatch>, rule: Option<&OrderingRule>) -> KeyedRows {
        KeyedRows::combine(batches, rule, Deletes::Never, &MemoryBudget::new(1 << 30)).unwrap()
    }

    fn winner(rows: &KeyedRows, partition: &str, key: &str) -> (u32, u32) {
        let at = rows.winners[rows.find(partition, key).unwrap()];
        (at.batch, at.row)
    }

    #[test]
    fn without_ordering_the_later_row_of_a_key_wins() {
        let rows = combine(vec![batch(&[("p", "a", None), ("p", "a", None)]), batch(&[("p", "b", None)])], None);
        assert_eq!((rows.winners.len(), rows.combined), (2, 1));
        assert_eq!(winner(&rows, "p", "a"), (0, 1));
        assert_eq!(rows.find("p", "c"), None);
    }

    #[test]
    fn the_greater_ordering_value_wins_the_later_row_on_a_tie_and_null_loses() {
        let first = batch(&[("", "a", Some(5)), ("", "b", Some(1)), ("", "c", Some(1)), ("", "d", None)]);
        let second = batch(&[("", "a", Some(4)), ("", "b", Some(1)), ("", "c", None), ("", "d", None)]);
        let rule = rule(&first);
        let rows = combine(vec![first, second], rule.as_ref());
        assert_eq!(winner(&rows, "", "a"), (0, 0));
        assert_eq!(winner(&rows, "", "b"), (1, 1));
        assert_eq!(winner(&rows, "", "c"), (0, 2));
        assert_eq!(winner(&rows, "", "d"), (1, 3));
    }

    #[test]
    fn a_delete_that_gives_way_loses_against_any_other_row_of_its_key() {
        let flagged = |rows: &[(&str, Option<i64>, bool)]| -> RecordBatch {
            let plain: Vec<(&str, &str, Option<i64>)> = rows.iter().map(|(key, ts, _)| ("", *key, *ts)).collect();
            let plain = batch(&plain);
            let flags: ArrayRef = Arc::new(BooleanArray::from(rows.iter().map(|row| row.2).collect::<Vec<_>>()));
            let fields = plain.schema().fields().iter().map(|f| f.as_ref().clone()).collect::<Vec<_>>();
            let fields = fields.into_iter().chain([Field::new(IS_DELETED, DataType::Boolean, true)]);
            let columns = plain.columns().iter().cloned().chain([flags]);
            RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns.collect()).unwrap()
        };
        let first = flagged(&[("a", Some(9), true), ("b", Some(1), false), ("c", Some(1), true)]);
        let second = flagged(&[("a", Some(2), false), ("b", Some(7), true), ("c", Some(2), true)]);
        let deletes = Deletes::of(Operation::Upsert, &first.schema());
        for rule in [rule(&first), None] {
            let rows = |deletes: Deletes| {
                let batches = vec![first.clone(), second.clone()];
                KeyedRows::combine(batches, rule.as_ref(), deletes, &MemoryBudget::new(1 << 30)).unwrap()
            };
            let gives_way = rows(deletes.giving_way(true));
            assert_eq!([winner(&gives_way, "", "a"), winner(&gives_way, "", "b")], [(1, 0), (0, 1)]);
            assert_eq!(winner(&gives_way, "", "c"), (1, 2), "of two deletes the later one stays");
            let counts = rows(deletes.giving_way(false));
            assert_eq!(winner(&counts, "", "b"), (1, 1), "an event that deletes is an event");
        }
    }

    #[test]
    fn one_key_in_two_partitions_is_two_records() {
        let rows = combine(vec![batch(&[("p", "a", None), ("q", "a", None)])], None);
        assert_eq!((rows.winners.len(), rows.combined), (2, 0));
    }

    #[test]
    fn what_combining_takes_is_counted_and_given_back() {
        let memory = MemoryBudget::new(1 << 30);
        let first = batch(&[("", "a", Some(5)), ("", "b", Some(1))]);
        let rows = KeyedRows::combine(vec![first.clone()], rule(&first).as_ref(), Deletes::Never, &memory).unwrap();
        assert!(memory.used() > 2 * ROW_BYTES, "the ordering values count too");
        drop(rows);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn gathered_rows_are_the_same_in_long_runs_and_alone() {
        let long: Vec<(String, String)> = (0..100).map(|n| (String::new(), format!("k{n}"))).collect();
        let rows: Vec<(&str, &str, Option<i64>)> =
            long.iter().map(|(p, k)| (p.as_str(), k.as_str(), Some(k.len() as i64))).collect();
        let batches = [batch(&rows), batch(&rows)];
        let at = |batch, row| RowAt { batch, row };
        let whole: Vec<RowAt> = (0..100).map(|row| at(1, row)).collect();
        assert_eq!(gather(&batches, &whole).unwrap(), batches[1]);
        let two_runs: Vec<RowAt> = (50..100).map(|row| at(0, row)).chain((0..50).map(|row| at(1, row))).collect();
        let joined = concat_batches(&batches[0].schema(), &[batches[0].slice(50, 50), batches[1].slice(0, 50)]);
        assert_eq!(gather(&batches, &two_runs).unwrap(), joined.unwrap());
        let scattered = gather(&batches, &[at(1, 3), at(0, 7)]).unwrap();
        assert_eq!((text(&scattered, KEY).value(0), text(&scattered, KEY).value(1)), ("k3", "k7"));
        assert_eq!(gather(&batches, &[]).unwrap().num_rows(), 0);
    }

    #[test]
    fn pieces_are_the_rows_in_order_whether_shared_or_gathered() {
        let long: Vec<(String, String)> = (0..3_000).map(|n| (String::new(), format!("k{n}"))).collect();
        let rows: Vec<(&str, &str, Option<i64>)> = long.iter().map(|(p, k)| (p.as_str(), k.as_str(), None)).collect();
        let batches = [batch(&rows)];
        let at = |row| RowAt { batch: 0, row };
        let whole: Vec<RowAt> = (0..3_000).map(at).collect();
        let every_other: Vec<RowAt> = (0..3_000).step_by(2).map(at).collect();
        for (picked, most) in [(&whole, 1_000), (&whole, 4_000), (&every_other, 700)] {
            let cut: Vec<RecordBatch> = pieces(&batches, picked, most).collect::<Result<_, _>>().unwrap();
            assert!(cut.iter().all(|piece| piece.num_rows() <= most));
            assert_eq!(concat_batches(&batches[0].schema(), &cut).unwrap(), gather(&batches, picked).unwrap());
        }
        assert_eq!(pieces(&batches, &[], 10).count(), 0);
    }
}
