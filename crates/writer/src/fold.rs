// SPDX-License-Identifier: Apache-2.0
//! Folding: rows of one key become one, column by column, by merge operators.
//!
//! Twice: first the rows of a batch among themselves, in the order of the ordering columns, those that came first first
//! where these are equal ([`inside`]); then what is left of each key with the stored row ([`stored`]). A row that
//! deletes is a barrier: of the rows before it nothing is left, and what follows begins anew. So a folded row carries,
//! in hidden columns behind the others, whether it follows a delete, and with which ordering: a stored row that is
//! older than that does not take part. Hidden columns are never written to the table.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, new_null_array};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use tributary_api::operator_problem;
use tributary_api::writer::{Error, StageRequest};
use tributary_types::pipeline::{Operation, Operator, TableType};

use crate::combine::RowAt;
use crate::ingest::{KEY_COLUMNS, internal, keyed_schema};
use crate::order::OrderingRule;

mod combine;
mod inside;
mod nested;
mod schedule;
mod stored;
mod text;

use combine::{Combine, FoldError, Lift};

pub(crate) use inside::fold_rows;
pub(crate) use stored::Meeting;

/// The hidden column that says whether a row follows a delete of its key in the batch.
const RESET: &str = "_tributary_reset";
/// Prefix of the hidden columns with the ordering of that delete.
const BARRIER: &str = "_tributary_barrier_";

/// How the columns of a table are folded.
#[derive(Debug)]
pub(crate) struct FoldPlan {
    /// One for each column of the table, in its order.
    columns: Vec<ColumnFold>,
    /// Keyed batches with hidden columns.
    schema: SchemaRef,
    /// Where the ordering columns are in them.
    ordering: Vec<usize>,
    /// Names of the hidden columns with a delete's ordering.
    barriers: Vec<String>,
}

/// How one column is folded.
#[derive(Debug)]
struct ColumnFold {
    name: String,
    operator: Operator,
    lift: Lift,
    /// Among the rows of a batch.
    inside: Combine,
    /// Of a batch's row with the stored one.
    across: Combine,
    /// Whether the stored value counts as the earlier one even where its row is the later one.
    stored_is_earlier: bool,
}

impl ColumnFold {
    fn new(name: &str, operator: &Operator) -> Self {
        let both = |lift, combine: Combine| (lift, combine.clone(), combine);
        let (lift, inside, across) = match operator {
            Operator::Last => both(Lift::AsItIs, Combine::Later),
            Operator::LastNonNull { null_strings } => {
                both(Lift::NullStrings(null_strings.clone()), Combine::LaterNonNull)
            }
            Operator::First => both(Lift::AsItIs, Combine::Earlier),
            Operator::FirstNonNull { null_strings } => {
                both(Lift::NullStrings(null_strings.clone()), Combine::EarlierNonNull)
            }
            Operator::Keep => both(Lift::AsItIs, Combine::EarlierNonNull),
            Operator::Sum => both(Lift::AsItIs, Combine::Sum),
            Operator::SumLast => (Lift::AsItIs, Combine::LaterNonNull, Combine::Sum),
            Operator::Count => both(Lift::Count, Combine::Sum),
            Operator::Min => both(Lift::AsItIs, Combine::Min),
            Operator::Max => both(Lift::AsItIs, Combine::Max),
            Operator::Product => both(Lift::AsItIs, Combine::Product),
            Operator::BoolAnd => both(Lift::AsItIs, Combine::And),
            Operator::BoolOr => both(Lift::AsItIs, Combine::Or),
            Operator::Concat { delimiter } => both(Lift::AsItIs, Combine::Concat(delimiter.clone())),
            Operator::ConcatLast { delimiter } => {
                (Lift::AsItIs, Combine::LaterNonNull, Combine::Concat(delimiter.clone()))
            }
            Operator::ConcatDistinct { delimiter } => {
                let combine = Combine::ConcatDistinct(delimiter.clone());
                both(Lift::Alone(combine.clone()), combine)
            }
            Operator::Collect => both(Lift::AsItIs, Combine::Collect),
            Operator::CollectSet => both(Lift::Alone(Combine::CollectSet), Combine::CollectSet),
            Operator::MapMerge => both(Lift::Alone(Combine::MapMerge), Combine::MapMerge),
            Operator::StructMerge => both(Lift::AsItIs, Combine::StructMerge),
        };
        ColumnFold {
            name: name.to_string(),
            operator: operator.clone(),
            lift,
            inside,
            across,
            stored_is_earlier: *operator == Operator::Keep,
        }
    }

    /// A column that the rows do not have: what is stored stays.
    fn absent(name: &str) -> Self {
        ColumnFold {
            name: name.to_string(),
            operator: Operator::Last,
            lift: Lift::AsItIs,
            inside: Combine::Later,
            across: Combine::Earlier,
            stored_is_earlier: true,
        }
    }

    /// The error of a column; `key` names the record of one of its rows.
    fn error<'k>(&self, error: FoldError, key: impl FnOnce(usize) -> &'k str) -> Error {
        match error {
            FoldError::Value { row, what } => Error::Fold {
                column: self.name.clone(),
                key: key(row).to_string(),
                operator: self.operator.to_string(),
                what,
            },
            FoldError::Arrow(error) => internal(error),
        }
    }
}

impl FoldPlan {
    /// How a request folds; `None` where the newest row of a key replaces the others as a whole.
    pub(crate) fn of(request: &StageRequest) -> Result<Option<Self>, Error> {
        let Some(merge) = request.merge.as_ref().filter(|_| request.operation == Operation::Upsert) else {
            return Ok(None);
        };
        let table = &request.table_schema;
        let fixed: [&[String]; 3] = [&request.keys.record_key, &request.keys.partition_by, &request.ordering];
        let mut columns = Vec::with_capacity(table.fields().len());
        for field in table.fields() {
            if request.schema.column_with_name(field.name()).is_none() {
                columns.push(ColumnFold::absent(field.name()));
                continue;
            }
            let operator = merge.of(field.name(), fixed);
            if let Some(what) = operator_problem(operator, field.data_type()) {
                return Err(Error::Type { column: field.name().clone(), found: field.data_type().to_string(), what });
            }
            columns.push(ColumnFold::new(field.name(), operator));
        }
        if columns.iter().all(|column| column.across == Combine::Later) {
            return Ok(None);
        }
        if request.table_type != TableType::CopyOnWrite {
            return Err(Error::Type {
                column: "target.merge".to_string(),
                found: request.table_type.as_str().to_string(),
                what: "merge operators are there for copy-on-write tables only".to_string(),
            });
        }
        let keyed = keyed_schema(table);
        let mut ordering = Vec::with_capacity(request.ordering.len());
        let mut hidden = vec![Field::new(RESET, DataType::Boolean, true)];
        let mut barriers = Vec::with_capacity(request.ordering.len());
        for name in &request.ordering {
            // That it is there was checked before.
            let Some((at, field)) = keyed.column_with_name(name) else { continue };
            barriers.push(format!("{BARRIER}{}", ordering.len()));
            hidden.push(Field::new(format!("{BARRIER}{}", ordering.len()), field.data_type().clone(), true));
            ordering.push(at);
        }
        let fields = keyed.fields().iter().map(|field| field.as_ref().clone()).chain(hidden);
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Ok(Some(FoldPlan { columns, schema, ordering, barriers }))
    }

    /// The schema of keyed batches with hidden columns.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Whether a row that is older than the stored one changes anything.
    pub(crate) fn late_rows_matter(&self) -> bool {
        self.columns.iter().any(|column| column.operator != Operator::Last)
    }

    /// A keyed batch with each column as it is combined, and no row behind a delete.
    fn lift(&self, batch: &RecordBatch) -> Result<RecordBatch, Error> {
        let keys = crate::combine::text(batch, crate::ingest::KEY);
        let mut columns: Vec<ArrayRef> = batch.columns()[..KEY_COLUMNS].to_vec();
        for (column, fold) in batch.columns()[KEY_COLUMNS..].iter().zip(&self.columns) {
            columns.push(fold.lift.lift(column).map_err(|e| fold.error(e, |row| keys.value(row)))?);
        }
        let hidden = &self.schema.fields()[columns.len()..];
        columns.extend(hidden.iter().map(|field| new_null_array(field.data_type(), batch.num_rows())));
        RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(internal)
    }

    /// Bytes of what [`FoldPlan::lift`] made: the other columns are shared with the batch that came.
    fn added_bytes(&self, lifted: &RecordBatch) -> usize {
        let data = lifted.columns()[KEY_COLUMNS..].iter();
        let made =
            data.enumerate().filter(|(at, _)| self.columns.get(*at).is_none_or(|fold| fold.lift != Lift::AsItIs));
        made.map(|(_, column)| column.get_array_memory_size()).sum()
    }

    /// The hidden columns of rows, each of which follows the row of a delete in `batches`, or none.
    fn hidden(&self, batches: &[RecordBatch], deletes: &[Option<RowAt>]) -> Result<Vec<ArrayRef>, Error> {
        let resets: BooleanArray = deletes.iter().map(|at| Some(at.is_some())).collect();
        let mut columns: Vec<ArrayRef> = vec![Arc::new(resets)];
        let picks: Vec<(usize, usize)> =
            deletes.iter().map(|at| at.map_or((0, 0), |at| (at.batch as usize + 1, at.row as usize))).collect();
        for at in &self.ordering {
            let none = new_null_array(self.schema.field(*at).data_type(), 1);
            let mut sources: Vec<&dyn Array> = vec![none.as_ref()];
            sources.extend(batches.iter().map(|batch| batch.column(*at).as_ref()));
            columns.push(interleave(&sources, &picks).map_err(internal)?);
        }
        Ok(columns)
    }

    /// Whether a row follows a delete of its key.
    pub(crate) fn follows_delete(&self, batch: &RecordBatch, row: usize) -> bool {
        let resets = batch.column(KEY_COLUMNS + self.columns.len()).as_boolean();
        resets.is_valid(row) && resets.value(row)
    }

    /// The ordering of the deletes that rows follow.
    pub(crate) fn barrier_rule(&self) -> Result<Option<OrderingRule>, Error> {
        OrderingRule::new(&self.barriers, &self.schema)
    }
}

#[cfg(test)]
mod tests;
