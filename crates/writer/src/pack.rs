// SPDX-License-Identifier: Apache-2.0
//! Which new rows go into file groups that are small still, so that many small batches do not leave many small files.
//!
//! As in Hudi (`UpsertPartitioner`): a group whose base file is smaller than a limit takes new rows of its partition
//! until it would be as large as files may become. Groups that are rewritten anyway take rows first, since that costs
//! nothing; then the largest ones, which are full soonest.

use std::collections::{BTreeMap, BTreeSet};

use tributary_api::writer::{FileSizes, TargetSlice};

use crate::combine::RowAt;

/// Bytes of rows in memory that one byte of a base file becomes, as a guess: what a file will take is known only once
/// it is written. A wrong guess makes a file somewhat larger or smaller than asked for.
const EXPANSION: u64 = 3;

/// Bytes of rows in memory that make a file as large as files may become.
pub(crate) fn largest_in_memory(sizes: FileSizes) -> usize {
    usize::try_from(sizes.largest.saturating_mul(EXPANSION)).unwrap_or(usize::MAX)
}

/// New rows, and where they go.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Rows that stored slices take, by the number of the slice.
    pub(crate) appended: BTreeMap<u32, Vec<RowAt>>,
    /// Rows for new groups, by partition.
    pub(crate) rest: BTreeMap<String, Vec<RowAt>>,
}

/// Divides new rows among the slices of their partitions and new groups. `rewritten` are the slices that get a new
/// version anyway; `row_bytes` is what a row takes in memory.
pub(crate) fn pack(
    new: BTreeMap<String, Vec<RowAt>>,
    slices: &[(u32, TargetSlice)],
    rewritten: &BTreeSet<u32>,
    sizes: FileSizes,
    row_bytes: usize,
) -> Packed {
    let mut packed = Packed::default();
    let row_in_file = (row_bytes as u64 / EXPANSION).max(1);
    let mut small: BTreeMap<&str, Vec<&(u32, TargetSlice)>> = BTreeMap::new();
    for slice in slices.iter().filter(|(_, slice)| slice.bytes > 0 && slice.bytes < sizes.small) {
        small.entry(slice.1.partition.as_str()).or_default().push(slice);
    }
    for group in small.values_mut() {
        group.sort_by_key(|(number, slice)| (!rewritten.contains(number), std::cmp::Reverse(slice.bytes), *number));
    }
    for (partition, mut rows) in new {
        for (number, slice) in small.get(partition.as_str()).into_iter().flatten() {
            let room = (sizes.largest.saturating_sub(slice.bytes) / row_in_file) as usize;
            let taken = rows.split_off(rows.len().saturating_sub(room));
            if !taken.is_empty() {
                packed.appended.insert(*number, taken);
            }
            if rows.is_empty() {
                break;
            }
        }
        if !rows.is_empty() {
            packed.rest.insert(partition, rows);
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: FileSizes = FileSizes { small: 100, largest: 120 };

    fn slice(number: u32, partition: &str, bytes: u64) -> (u32, TargetSlice) {
        let slice = TargetSlice {
            partition: partition.to_string(),
            file_id: format!("f{number}"),
            path: format!("{partition}/f{number}"),
            instant: "20250606182826197".parse().unwrap(),
            bytes,
            logs: Vec::new(),
        };
        (number, slice)
    }

    fn rows(partition: &str, count: u32) -> BTreeMap<String, Vec<RowAt>> {
        [(partition.to_string(), (0..count).map(|row| RowAt { batch: 0, row }).collect())].into()
    }

    fn counts(packed: &Packed) -> (Vec<(u32, usize)>, usize) {
        let appended = packed.appended.iter().map(|(number, rows)| (*number, rows.len())).collect();
        (appended, packed.rest.values().map(Vec::len).sum())
    }

    #[test]
    fn a_small_file_takes_rows_until_it_is_full_and_the_rest_makes_new_groups() {
        // 30 bytes in memory are 10 in a file: the file of 90 bytes has room for three, that of 50 for seven.
        let slices = [slice(0, "p", 50), slice(1, "p", 90), slice(2, "p", 100), slice(3, "q", 10)];
        let packed = pack(rows("p", 12), &slices, &BTreeSet::new(), SIZES, 30);
        assert_eq!(counts(&packed), (vec![(0, 7), (1, 3)], 2));
        let mut all: Vec<u32> =
            packed.appended.values().chain(packed.rest.values()).flatten().map(|at| at.row).collect();
        all.sort_unstable();
        assert_eq!(all, (0..12).collect::<Vec<u32>>(), "each row goes to one place");
    }

    #[test]
    fn files_that_are_rewritten_anyway_take_rows_first() {
        let slices = [slice(0, "p", 90), slice(1, "p", 20)];
        let packed = pack(rows("p", 5), &slices, &BTreeSet::from([1]), SIZES, 30);
        assert_eq!(counts(&packed), (vec![(1, 5)], 0));
    }

    #[test]
    fn with_a_limit_of_zero_or_an_unknown_size_nothing_is_appended() {
        let none = FileSizes { small: 0, ..SIZES };
        assert_eq!(counts(&pack(rows("p", 5), &[slice(0, "p", 20)], &BTreeSet::new(), none, 30)), (vec![], 5));
        assert_eq!(counts(&pack(rows("p", 5), &[slice(0, "p", 0)], &BTreeSet::new(), SIZES, 30)), (vec![], 5));
    }
}
