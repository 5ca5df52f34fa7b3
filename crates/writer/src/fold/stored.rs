// SPDX-License-Identifier: Apache-2.0
//! The row of a key in a batch is folded with the stored one.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{interleave, take};
use tributary_api::writer::Error;
use tributary_hudi::META_COLUMNS;

use super::combine::{Combine, FoldError};
use super::{ColumnFold, FoldPlan};
use crate::combine::text;
use crate::ingest::{KEY, KEY_COLUMNS, internal};

/// A row of a batch and the stored row of its key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meeting {
    /// Row among those that come in.
    pub(crate) incoming: usize,
    /// Row among the stored ones.
    pub(crate) stored: usize,
    /// Whether the row that comes in is older than the stored one, by the ordering columns.
    pub(crate) is_late: bool,
}

impl FoldPlan {
    /// The keyed rows `incoming`, those of `meetings` folded with the row of `stored` that they meet. Of two rows the one
    /// with the greater ordering is the later, whichever came first.
    pub(crate) fn fold_stored(
        &self,
        incoming: RecordBatch,
        stored: &RecordBatch,
        meetings: &[Meeting],
    ) -> Result<RecordBatch, Error> {
        if meetings.is_empty() {
            return Ok(incoming);
        }
        let met = Met::new(meetings, incoming.num_rows());
        let keys = text(&incoming, KEY);
        let mut columns = incoming.columns().to_vec();
        for (at, fold) in self.columns.iter().enumerate() {
            if fold.across == Combine::Later && met.late.is_none() {
                continue;
            }
            let (new, old) = (incoming.column(KEY_COLUMNS + at), stored.column(META_COLUMNS.len() + at));
            let folded = met.fold(fold, new, old);
            columns[KEY_COLUMNS + at] = folded.map_err(|e| fold.error(e, |row| keys.value(meetings[row].incoming)))?;
        }
        RecordBatch::try_new(incoming.schema(), columns).map_err(internal)
    }
}

/// Which rows meet.
struct Met {
    stored: UInt32Array,
    /// Rows that come in and where they go to afterwards; `None`: all of them do, in their order.
    some: Option<(UInt32Array, Vec<(usize, usize)>)>,
    /// Which of them are late, if any is.
    late: Option<BooleanArray>,
}

impl Met {
    fn new(meetings: &[Meeting], rows: usize) -> Self {
        let some: Option<(UInt32Array, Vec<(usize, usize)>)> = (meetings.len() < rows).then(|| {
            let mut picks: Vec<(usize, usize)> = (0..rows).map(|row| (0, row)).collect();
            for (number, meeting) in meetings.iter().enumerate() {
                picks[meeting.incoming] = (1, number);
            }
            (meetings.iter().map(|meeting| Some(meeting.incoming as u32)).collect(), picks)
        });
        let any_late = meetings.iter().any(|meeting| meeting.is_late);
        Met {
            stored: meetings.iter().map(|meeting| Some(meeting.stored as u32)).collect(),
            some,
            late: any_late.then(|| meetings.iter().map(|meeting| Some(meeting.is_late)).collect()),
        }
    }

    fn fold(&self, fold: &ColumnFold, incoming: &ArrayRef, stored: &ArrayRef) -> Result<ArrayRef, FoldError> {
        let old = take(stored, &self.stored, None)?;
        let new = match &self.some {
            Some((rows, _)) => take(incoming, rows, None)?,
            None => Arc::clone(incoming),
        };
        let folded = match self.late.as_ref().filter(|_| !fold.stored_is_earlier) {
            Some(late) => fold.across.combine(&zip(late, &new, &old)?, &zip(late, &old, &new)?)?,
            None => fold.across.combine(&old, &new)?,
        };
        match &self.some {
            Some((_, picks)) => Ok(interleave(&[incoming.as_ref(), folded.as_ref()], picks)?),
            None => Ok(folded),
        }
    }
}
