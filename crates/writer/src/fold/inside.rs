// SPDX-License-Identifier: Apache-2.0
//! The rows of one key in a batch become one.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take;
use tributary_api::writer::Error;
use tributary_types::MemoryBudget;

use super::FoldPlan;
use super::combine::Combine;
use super::schedule::Schedule;
use crate::combine::{KeyedRows, RowAt, gather, text};
use crate::deletes::Deletes;
use crate::ingest::{KEY, KEY_COLUMNS, PARTITION, internal};
use crate::order::OrderingRule;
use crate::spool::batch_bytes;

/// Bytes of bookkeeping for a row while the rows of a part are folded: the number of its key, its place among the rows
/// of that, and what is noted of a key.
const FOLD_BYTES: usize = 56;

/// Keys that are folded together: their rows, key after key, each in its order.
#[derive(Default)]
struct Chunk {
    keys: Vec<usize>,
    rows: Vec<RowAt>,
    segments: Vec<Range<usize>>,
    /// The delete that a key's rows follow.
    deletes: Vec<Option<RowAt>>,
}

/// Lifts the columns of a part's rows, finds the rows of every key and folds them into one. About `batch_rows` rows are
/// copied at a time; the copies are counted in `memory` beside the rows.
pub(crate) fn fold_rows(
    plan: &FoldPlan,
    batches: Vec<RecordBatch>,
    rule: Option<&OrderingRule>,
    deletes: Deletes,
    memory: &MemoryBudget,
    batch_rows: usize,
) -> Result<KeyedRows, Error> {
    let total: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let mut held = memory.reservation("folding rows of one key");
    held.grow(total * FOLD_BYTES);
    let lifted = batches.iter().map(|batch| plan.lift(batch)).collect::<Result<Vec<_>, _>>()?;
    drop(batches);
    let added: usize = lifted.iter().map(|batch| plan.added_bytes(batch)).sum();
    let (mut rows, keys) = KeyedRows::combine_numbered(lifted, rule, deletes, memory)?;
    rows.hold(added)?;
    if rows.combined == 0 {
        return Ok(rows);
    }
    let (mut members, ranges) = members(&rows, &keys);
    let mut folded = Vec::new();
    let mut winners: Vec<(usize, RowAt)> = Vec::new();
    let mut chunk = Chunk::default();
    for (key, range) in ranges {
        let members = &mut members[range];
        if let Some(ordering) = &rows.ordering {
            let order = |at: &RowAt| ordering[at.batch as usize].row(at.row as usize);
            // Stable: of equal ones the first to come stays first.
            members.sort_by(|a, b| order(a).cmp(&order(b)));
        }
        let begin = chunk.rows.len();
        let delete = match deletes.give_way() {
            true => {
                chunk.rows.extend(members.iter().filter(|at| !rows.is_delete(**at)));
                None
            }
            false => {
                let delete = members.iter().rposition(|at| rows.is_delete(*at));
                chunk.rows.extend(&members[delete.map_or(0, |at| at + 1)..]);
                delete
            }
        };
        chunk.segments.push(begin..chunk.rows.len());
        chunk.deletes.push(delete.map(|at| members[at]));
        chunk.keys.push(key);
        if chunk.rows.len() >= batch_rows {
            flush(plan, &rows.batches, &mut chunk, &mut folded, &mut winners)?;
        }
    }
    flush(plan, &rows.batches, &mut chunk, &mut folded, &mut winners)?;
    for batch in &folded {
        rows.hold(batch_bytes(batch))?;
    }
    rows.replace(folded, winners, rule)?;
    Ok(rows)
}

/// The rows of every key that has several and does not end with a delete, one key after the other in the order in which
/// the rows came; and which rows are of which key.
fn members(rows: &KeyedRows, keys: &[u32]) -> (Vec<RowAt>, Vec<(usize, Range<usize>)>) {
    let mut counts = vec![0usize; rows.winners.len()];
    for key in keys {
        counts[*key as usize] += 1;
    }
    let mut ranges = Vec::new();
    // Where the next row of a key goes; keys that stay as they are have none.
    let mut next: Vec<Option<usize>> = vec![None; counts.len()];
    let mut total = 0;
    for (key, count) in counts.iter().enumerate() {
        if *count > 1 && !rows.is_delete(rows.winners[key]) {
            next[key] = Some(total);
            ranges.push((key, total..total + count));
            total += count;
        }
    }
    let mut members = vec![RowAt { batch: 0, row: 0 }; total];
    let mut keys = keys.iter();
    for (batch, held) in rows.batches.iter().enumerate() {
        for (row, key) in (0..held.num_rows()).zip(keys.by_ref()) {
            if let Some(place) = &mut next[*key as usize] {
                members[*place] = RowAt { batch: batch as u32, row: row as u32 };
                *place += 1;
            }
        }
    }
    (members, ranges)
}

/// Folds what is in `chunk` and empties it.
fn flush(
    plan: &FoldPlan,
    batches: &[RecordBatch],
    chunk: &mut Chunk,
    folded: &mut Vec<RecordBatch>,
    winners: &mut Vec<(usize, RowAt)>,
) -> Result<(), Error> {
    let chunk = std::mem::take(chunk);
    if chunk.keys.is_empty() {
        return Ok(());
    }
    let batch = fold_chunk(plan, batches, &chunk)?;
    let number = (batches.len() + folded.len()) as u32;
    winners.extend(chunk.keys.iter().enumerate().map(|(row, key)| (*key, RowAt { batch: number, row: row as u32 })));
    folded.push(batch);
    Ok(())
}

fn fold_chunk(plan: &FoldPlan, batches: &[RecordBatch], chunk: &Chunk) -> Result<RecordBatch, Error> {
    let rows = gather(batches, &chunk.rows)?;
    let first: UInt32Array = chunk.segments.iter().map(|range| Some(range.start as u32)).collect();
    let last: UInt32Array = chunk.segments.iter().map(|range| Some(range.end as u32 - 1)).collect();
    let schedule = Schedule::new(&chunk.segments);
    let mut columns = Vec::with_capacity(plan.schema.fields().len());
    for column in [KEY, PARTITION] {
        columns.push(take(rows.column(column), &last, None).map_err(internal)?);
    }
    for (fold, column) in plan.columns.iter().zip(&rows.columns()[KEY_COLUMNS..]) {
        columns.push(match &fold.inside {
            Combine::Later => take(column, &last, None).map_err(internal)?,
            Combine::Earlier => take(column, &first, None).map_err(internal)?,
            combine => schedule
                .run(column, combine)
                .map_err(|e| fold.error(e, |segment| text(&rows, KEY).value(chunk.segments[segment].start)))?,
        });
    }
    columns.extend(plan.hidden(batches, &chunk.deletes)?);
    RecordBatch::try_new(Arc::clone(&plan.schema), columns).map_err(internal)
}
