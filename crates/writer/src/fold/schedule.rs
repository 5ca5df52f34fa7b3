// SPDX-License-Identifier: Apache-2.0
//! In which pairs the rows of many keys are combined.
//!
//! Neighbours are combined in rounds, each of which halves the rows of a key, so that a key that came a million times
//! takes twenty calls and not a million. A key that is down to one row takes no part in later rounds.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::compute::{interleave, take};

use super::combine::{Combine, FoldError};

/// The rounds, the same for every column.
pub(super) struct Schedule {
    rounds: Vec<Round>,
    /// Where the result of each segment is: in which round, 0 for the rows themselves, and at which pair of it.
    places: Vec<(usize, usize)>,
}

struct Round {
    earlier: UInt32Array,
    later: UInt32Array,
    /// The segment of each pair.
    segments: Vec<usize>,
    /// The rows of the next round: (0, pair) of this one, or (1, row) that found no partner.
    next: Vec<(usize, usize)>,
}

impl Schedule {
    /// For rows of which each of `segments`, none empty, becomes one.
    pub(super) fn new(segments: &[Range<usize>]) -> Self {
        let mut places = vec![(0, 0); segments.len()];
        let mut open: Vec<(usize, Range<usize>)> = Vec::new();
        for (segment, range) in segments.iter().enumerate() {
            places[segment] = (0, range.start);
            if range.len() > 1 {
                open.push((segment, range.clone()));
            }
        }
        let mut rounds = Vec::new();
        while !open.is_empty() {
            let (mut earlier, mut later, mut of, mut next) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let mut still = Vec::new();
            for (segment, range) in open {
                let begin = next.len();
                let is_last = range.len() == 2;
                for row in range.clone().step_by(2).take(range.len() / 2) {
                    if is_last {
                        places[segment] = (rounds.len() + 1, of.len());
                    } else {
                        next.push((0, of.len()));
                    }
                    earlier.push(row as u32);
                    later.push(row as u32 + 1);
                    of.push(segment);
                }
                if range.len() % 2 == 1 {
                    next.push((1, range.end - 1));
                }
                if !is_last {
                    still.push((segment, begin..next.len()));
                }
            }
            rounds.push(Round { earlier: earlier.into(), later: later.into(), segments: of, next });
            open = still;
        }
        Schedule { rounds, places }
    }

    /// One row for each segment. The row of an error is the segment's number.
    pub(super) fn run(&self, column: &ArrayRef, combine: &Combine) -> Result<ArrayRef, FoldError> {
        let mut results: Vec<ArrayRef> = vec![Arc::clone(column)];
        let mut rows = Arc::clone(column);
        for round in &self.rounds {
            let earlier = take(&rows, &round.earlier, None)?;
            let later = take(&rows, &round.later, None)?;
            let combined = combine.combine(&earlier, &later).map_err(|error| match error {
                FoldError::Value { row, what } => FoldError::Value { row: round.segments[row], what },
                other => other,
            })?;
            if !round.next.is_empty() {
                rows = interleave(&[combined.as_ref(), rows.as_ref()], &round.next)?;
            }
            results.push(combined);
        }
        let results: Vec<&dyn Array> = results.iter().map(|result| result.as_ref()).collect();
        Ok(interleave(&results, &self.places)?)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, StringArray};

    use super::*;

    fn joined(lengths: &[usize]) -> Vec<String> {
        let mut segments = Vec::new();
        let mut texts = Vec::new();
        for length in lengths {
            segments.push(texts.len()..texts.len() + length);
            texts.extend((0..*length).map(|n| n.to_string()));
        }
        let column: ArrayRef = Arc::new(StringArray::from(texts));
        let folded = Schedule::new(&segments).run(&column, &Combine::Concat(" ".to_string())).unwrap();
        folded.as_string::<i32>().iter().flatten().map(ToString::to_string).collect()
    }

    #[test]
    fn every_row_of_a_segment_is_combined_once_and_in_its_order() {
        let lengths = [1, 2, 3, 4, 5, 7, 8, 9, 100, 1, 31];
        let expected: Vec<String> =
            lengths.iter().map(|length| (0..*length).map(|n| n.to_string()).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(joined(&lengths), expected);
    }

    #[test]
    fn a_key_that_came_very_often_takes_few_rounds() {
        let schedule = Schedule::new(&[0..1_000_000, 1_000_000..1_000_002]);
        assert_eq!(schedule.rounds.len(), 20);
        assert_eq!(schedule.rounds.iter().map(|round| round.segments.len()).sum::<usize>(), 999_999 + 1);
    }
}
