// SPDX-License-Identifier: Apache-2.0
//! Rows by key: one winner for each key of a part, found again by the key.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::row::Rows;
use hashbrown::HashTable;
use tributary_api::writer::Error;

use crate::ingest::{KEY, PARTITION};
use crate::order::OrderingRule;

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
    table: HashTable<u32>,
}

/// The hash of a record's identity: partition and key.
pub(crate) fn identity_hash(partition: &str, key: &str) -> u64 {
    // Fixed keys: a part must be found again in a spilled file.
    let mut hasher = DefaultHasher::new();
    hasher.write(partition.as_bytes());
    hasher.write_u8(0xff);
    hasher.write(key.as_bytes());
    hasher.finish()
}

impl KeyedRows {
    /// Finds the winner of every key.
    pub(crate) fn combine(batches: Vec<RecordBatch>, rule: Option<&OrderingRule>) -> Result<Self, Error> {
        let ordering = match rule {
            Some(rule) => Some(batches.iter().map(|batch| rule.rows(batch)).collect::<Result<Vec<_>, _>>()?),
            None => None,
        };
        let total = batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        let mut rows = KeyedRows {
            winners: Vec::with_capacity(total),
            table: HashTable::with_capacity(total),
            batches: Arc::new(batches),
            ordering,
            combined: 0,
        };
        for batch in 0..rows.batches.len() {
            for row in 0..rows.batches[batch].num_rows() {
                rows.insert(RowAt { batch: batch as u32, row: row as u32 });
            }
        }
        Ok(rows)
    }

    /// The winner of a key, as its position in [`KeyedRows::winners`].
    pub(crate) fn find(&self, partition: &str, key: &str) -> Option<usize> {
        let hash = identity_hash(partition, key);
        self.table.find(hash, |at| self.identity(self.winners[*at as usize]) == (partition, key)).map(|at| *at as usize)
    }

    /// Partition and key of a row.
    pub(crate) fn identity(&self, at: RowAt) -> (&str, &str) {
        let batch = &self.batches[at.batch as usize];
        let row = at.row as usize;
        (text(batch, PARTITION).value(row), text(batch, KEY).value(row))
    }

    fn insert(&mut self, at: RowAt) {
        let (partition, key) = self.identity(at);
        let hash = identity_hash(partition, key);
        let found = self.table.find(hash, |other| self.identity(self.winners[*other as usize]) == (partition, key));
        match found.copied() {
            Some(winner) => {
                self.combined += 1;
                if self.beats(at, self.winners[winner as usize]) {
                    self.winners[winner as usize] = at;
                }
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
            }
        }
    }

    fn beats(&self, later: RowAt, earlier: RowAt) -> bool {
        match &self.ordering {
            None => true,
            Some(rows) => {
                rows[later.batch as usize].row(later.row as usize)
                    >= rows[earlier.batch as usize].row(earlier.row as usize)
            }
        }
    }
}

/// A text column by its position. Both key columns are text by construction.
pub(crate) fn text(batch: &RecordBatch, column: usize) -> &StringArray {
    batch.column(column).as_string::<i32>()
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};

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

    fn winner(rows: &KeyedRows, partition: &str, key: &str) -> (u32, u32) {
        let at = rows.winners[rows.find(partition, key).unwrap()];
        (at.batch, at.row)
    }

    #[test]
    fn without_ordering_the_later_row_of_a_key_wins() {
        let rows =
            KeyedRows::combine(vec![batch(&[("p", "a", None), ("p", "a", None)]), batch(&[("p", "b", None)])], None)
                .unwrap();
        assert_eq!((rows.winners.len(), rows.combined), (2, 1));
        assert_eq!(winner(&rows, "p", "a"), (0, 1));
        assert_eq!(rows.find("p", "c"), None);
    }

    #[test]
    fn the_greater_ordering_value_wins_the_later_row_on_a_tie_and_null_loses() {
        let first = batch(&[("", "a", Some(5)), ("", "b", Some(1)), ("", "c", Some(1)), ("", "d", None)]);
        let second = batch(&[("", "a", Some(4)), ("", "b", Some(1)), ("", "c", None), ("", "d", None)]);
        let rule = rule(&first);
        let rows = KeyedRows::combine(vec![first, second], rule.as_ref()).unwrap();
        assert_eq!(winner(&rows, "", "a"), (0, 0));
        assert_eq!(winner(&rows, "", "b"), (1, 1));
        assert_eq!(winner(&rows, "", "c"), (0, 2));
        assert_eq!(winner(&rows, "", "d"), (1, 3));
    }

    #[test]
    fn one_key_in_two_partitions_is_two_records() {
        let rows = KeyedRows::combine(vec![batch(&[("p", "a", None), ("q", "a", None)])], None).unwrap();
        assert_eq!((rows.winners.len(), rows.combined), (2, 0));
    }
}
