// SPDX-License-Identifier: Apache-2.0
//! Which incoming rows delete a record instead of storing one, and which partitions rows name.

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Schema};
use futures::StreamExt;
use tributary_api::RowStream;
use tributary_api::writer::{Error, StageRequest};
use tributary_types::IS_DELETED;
use tributary_types::pipeline::Operation;

use crate::combine::RowAt;
use crate::ingest::{Ingested, key_error, key_rules, note_partitions};

/// Which rows of keyed batches delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deletes {
    /// None.
    Never,
    /// All: the operation is a delete. It asks for no ordering, as in Hudi.
    Always,
    /// Those in which the column at this position is true.
    Where(usize),
    /// The same, and such a row gives way to any other row of its key: it says what a record was, not what became of it.
    GiveWay(usize),
}

impl Deletes {
    /// What `operation` does with rows of a keyed schema.
    pub(crate) fn of(operation: Operation, keyed: &Schema) -> Deletes {
        if operation == Operation::Delete {
            return Deletes::Always;
        }
        let column = keyed.column_with_name(IS_DELETED);
        match column.filter(|(_, field)| field.data_type() == &DataType::Boolean) {
            Some((at, _)) => Deletes::Where(at),
            None => Deletes::Never,
        }
    }

    /// The same rows; with `give_way`, they give way to others of their key.
    pub(crate) fn giving_way(self, give_way: bool) -> Deletes {
        match self {
            Deletes::Where(at) if give_way => Deletes::GiveWay(at),
            other => other,
        }
    }

    /// Whether rows that delete give way to others of their key.
    pub(crate) fn give_way(self) -> bool {
        matches!(self, Deletes::GiveWay(_))
    }

    /// Whether a row deletes.
    pub(crate) fn holds(self, batches: &[RecordBatch], at: RowAt) -> bool {
        match self {
            Deletes::Never => false,
            Deletes::Always => true,
            Deletes::Where(column) | Deletes::GiveWay(column) => {
                is_true(&batches[at.batch as usize], column, at.row as usize)
            }
        }
    }
}

fn is_true(batch: &RecordBatch, column: usize, row: usize) -> bool {
    let flags: &BooleanArray = batch.column(column).as_boolean();
    flags.is_valid(row) && flags.value(row)
}

/// Rows of `batches` without those that delete, and how many these were.
pub(crate) fn stored_rows(batches: &[RecordBatch], rows: Vec<RowAt>, deletes: Deletes) -> (Vec<RowAt>, u64) {
    if deletes == Deletes::Never {
        return (rows, 0);
    }
    let all = rows.len();
    let stored: Vec<RowAt> = rows.into_iter().filter(|at| !deletes.holds(batches, *at)).collect();
    let left_out = (all - stored.len()) as u64;
    (stored, left_out)
}

/// Reads the partitions that all `rows` name; nothing else of them matters.
pub(crate) async fn read_partitions(request: &StageRequest, mut rows: RowStream) -> Result<Ingested, Error> {
    let rules = key_rules(request);
    let mut seen = Ingested::default();
    loop {
        let next = tokio::select! {
            biased;
            () = request.stop.wait() => return Err(Error::Stopped),
            next = rows.next() => next,
        };
        let Some(batch) = next else { return Ok(seen) };
        let batch = batch?;
        seen.rows += batch.num_rows() as u64;
        let partitions = rules.partitions(&batch).map_err(key_error)?;
        note_partitions(partitions.as_string::<i32>(), &mut seen.partitions);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray};
    use arrow::datatypes::Field;

    use super::*;

    fn rows(flags: Vec<Option<bool>>) -> RecordBatch {
        let ids: ArrayRef = Arc::new(StringArray::from_iter_values((0..flags.len()).map(|n| n.to_string())));
        let flags: ArrayRef = Arc::new(BooleanArray::from(flags));
        RecordBatch::try_from_iter_with_nullable([("id", ids, true), (IS_DELETED, flags, true)]).unwrap()
    }

    #[test]
    fn only_a_true_flag_deletes_and_a_delete_operation_always_does() {
        let batches = [rows(vec![Some(true), Some(false), None])];
        let all: Vec<RowAt> = (0..3).map(|row| RowAt { batch: 0, row }).collect();
        let flagged = Deletes::of(Operation::Upsert, &batches[0].schema());
        assert_eq!(flagged, Deletes::Where(1));
        assert_eq!(stored_rows(&batches, all.clone(), flagged), (all[1..].to_vec(), 1));
        let always = Deletes::of(Operation::Delete, &batches[0].schema());
        assert_eq!(stored_rows(&batches, all.clone(), always), (Vec::new(), 3));
        assert_eq!(stored_rows(&batches, all.clone(), Deletes::Never), (all, 0));
    }

    #[test]
    fn a_column_of_that_name_and_another_type_is_data() {
        let text = Schema::new(vec![Field::new(IS_DELETED, DataType::Utf8, true)]);
        assert_eq!(Deletes::of(Operation::Upsert, &text), Deletes::Never);
    }
}
