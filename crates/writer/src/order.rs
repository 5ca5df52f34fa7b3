// SPDX-License-Identifier: Apache-2.0
//! Which of two rows of one key wins: the greater value of the ordering columns, the later row where they are equal.
//! A null is less than every value.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::Schema;
use arrow::row::{RowConverter, Rows, SortField};
use tributary_api::writer::Error;

/// Turns ordering columns into rows that compare byte by byte.
pub(crate) struct OrderingRule {
    columns: Vec<usize>,
    converter: RowConverter,
}

impl OrderingRule {
    /// The rule of `ordering` over batches of `schema`; `None` when no column orders: then the later row wins.
    pub(crate) fn new(ordering: &[String], schema: &Schema) -> Result<Option<Self>, Error> {
        if ordering.is_empty() {
            return Ok(None);
        }
        let mut columns = Vec::with_capacity(ordering.len());
        let mut fields = Vec::with_capacity(ordering.len());
        for name in ordering {
            let (at, field) = schema.column_with_name(name).ok_or_else(|| Error::MissingColumn {
                column: name.clone(),
                role: "ordering",
                present: schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", "),
            })?;
            columns.push(at);
            fields.push(SortField::new(field.data_type().clone()));
        }
        let converter = RowConverter::new(fields).map_err(|e| Error::Type {
            column: ordering.join(", "),
            found: "an ordering column".to_string(),
            what: e.to_string(),
        })?;
        Ok(Some(OrderingRule { columns, converter }))
    }

    /// The comparable rows of a batch.
    pub(crate) fn rows(&self, batch: &RecordBatch) -> Result<Rows, Error> {
        let columns: Vec<ArrayRef> = self.columns.iter().map(|at| batch.column(*at).clone()).collect();
        self.converter.convert_columns(&columns).map_err(|e| Error::Type {
            column: "ordering".to_string(),
            found: "its value".to_string(),
            what: e.to_string(),
        })
    }
}
