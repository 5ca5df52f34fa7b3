// SPDX-License-Identifier: Apache-2.0
//! From the columns that a file has to the columns that were asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray, new_null_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{Field, SchemaRef};

use crate::error::{Error, Result};
use crate::widen::{Mismatch, Widening, missing, plan_widening};

/// How batches of a file become batches of the table.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    output: SchemaRef,
    columns: Vec<Source>,
    roots: Vec<usize>,
}

/// Where a column comes from.
#[derive(Debug, Clone)]
enum Source {
    /// From the file: its position among the fetched columns.
    File(usize, Widening),
    /// From the partition's path.
    Constant(String),
    /// The file is older than the column.
    Null,
}

impl Shape {
    /// Plans each column of `output` over a file of schema `found`; `constants` are values in the partition's path.
    pub(crate) fn new(
        path: &str,
        found: &SchemaRef,
        output: SchemaRef,
        constants: &BTreeMap<String, Option<String>>,
    ) -> Result<Self> {
        let mut roots: Vec<usize> = output.fields().iter().filter_map(|f| found.index_of(f.name()).ok()).collect();
        roots.sort_unstable();
        roots.dedup();
        let mut columns = Vec::with_capacity(output.fields().len());
        for field in output.fields() {
            let source = source(found, field, constants, &roots);
            columns.push(source.map_err(|mismatch| type_error(path, mismatch))?);
        }
        Ok(Shape { output, columns, roots })
    }

    /// The file's root columns that are needed, ascending.
    pub(crate) fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// A batch of the fetched columns in the shape asked for.
    pub(crate) fn apply(&self, path: &str, batch: &RecordBatch) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for (source, field) in self.columns.iter().zip(self.output.fields()) {
            arrays.push(match source {
                Source::File(at, widening) => widening
                    .apply(batch.column(*at), field.data_type())
                    .map_err(|e| Error::corrupt(path, format!("column `{}`: {e}", field.name())))?,
                Source::Constant(text) => constant(path, field, text, rows)?,
                Source::Null => new_null_array(field.data_type(), rows),
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.output), arrays, &options)
            .map_err(|e| Error::corrupt(path, e))
    }
}

fn source(
    found: &SchemaRef,
    field: &Field,
    constants: &BTreeMap<String, Option<String>>,
    roots: &[usize],
) -> std::result::Result<Source, Mismatch> {
    if let Ok(root) = found.index_of(field.name()) {
        let widening = plan_widening(field.name(), found.field(root).data_type(), field.data_type())?;
        return Ok(Source::File(roots.partition_point(|other| *other < root), widening));
    }
    match constants.get(field.name()) {
        Some(Some(text)) => Ok(Source::Constant(text.clone())),
        _ if field.is_nullable() => Ok(Source::Null),
        _ => Err(missing(field.name(), field)),
    }
}

fn constant(path: &str, field: &Field, text: &str, rows: usize) -> Result<ArrayRef> {
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(std::iter::repeat_n(text, rows)));
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(&texts, field.data_type(), &options)
        .map_err(|e| Error::corrupt(path, format!("partition value `{text}` of column `{}`: {e}", field.name())))
}

fn type_error(path: &str, mismatch: Mismatch) -> Error {
    let Mismatch { column, found, expected } = mismatch;
    Error::Type { file: path.to_string(), column, found, expected }
}
