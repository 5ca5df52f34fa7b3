// SPDX-License-Identifier: Apache-2.0
//! The rows that a batch refuses, as a query: bad records as their reader tells them, and rows of the result without a key.
//!
//! It is planned, run and staged as any other query is, into the error table instead of the target.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::json::WriterBuilder;
use datafusion::arrow::json::writer::LineDelimited;
use datafusion::common::{Column, ScalarValue};
use datafusion::datasource::provider_as_source;
use datafusion::functions::crypto::md5;
use datafusion::functions::string::concat;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableSource, cast, lit};
use futures::TryStreamExt;
use tributary_api::merge::Error;
use tributary_api::refused::{NULL_KEY, RESULT_SOURCE, RefusedKey, RefusedRows, error_schema};
use tributary_api::transform::{Input, InputSchema, MultiTransform, TransformError};
use tributary_api::{RowError, RowStream};

use crate::error::{from_planning, internal};
use crate::transform::{RESULT_INPUT, TransformTable};

/// What a scan of refused records is called inside the engine.
const SCAN: &str = "refused";

/// The rows of [`error_schema`]: of each of `scans`, which deliver refused records, and of `result`, where rows without a
/// key are refused.
pub(crate) fn plan(
    rows: &RefusedRows,
    result: Option<LogicalPlan>,
    scans: Vec<Arc<dyn TableSource>>,
) -> Result<LogicalPlan, Error> {
    let mut parts: Vec<LogicalPlan> = Vec::new();
    for scan in scans {
        let scan = LogicalPlanBuilder::scan(SCAN, scan, None).map_err(|error| from_planning(&error))?;
        parts.push(as_errors(rows, scan, |name| Expr::Column(Column::from_name(name)))?);
    }
    if let Some(key) = &rows.key {
        let result = result.ok_or_else(|| internal("rows without a key are refused, and there is no result"))?;
        parts.push(without_key(rows, key, result)?);
    }
    let mut parts = parts.into_iter();
    let first = parts.next().ok_or_else(|| internal("nothing can be refused"))?;
    let mut all = LogicalPlanBuilder::from(first);
    for part in parts {
        all = all.union(part).map_err(|error| from_planning(&error))?;
    }
    let most = usize::try_from(rows.max_rows).unwrap_or(usize::MAX).saturating_add(1);
    all.limit(0, Some(most)).and_then(LogicalPlanBuilder::build).map_err(|error| from_planning(&error))
}

/// The columns of the error table, those that the batch does not give by `value`.
fn as_errors(rows: &RefusedRows, from: LogicalPlanBuilder, value: impl Fn(&str) -> Expr) -> Result<LogicalPlan, Error> {
    let schema = error_schema();
    let columns = schema.fields().iter().map(|field| {
        let value = match field.name().as_str() {
            "pipeline" => lit(rows.pipeline.clone()),
            "seq" => lit(i64::try_from(rows.seq).unwrap_or(i64::MAX)),
            "instant" => lit(rows.instant.to_string()),
            other => value(other),
        };
        cast(value, field.data_type().clone()).alias(field.name())
    });
    let columns: Vec<Expr> = columns.collect();
    from.project(columns).and_then(LogicalPlanBuilder::build).map_err(|error| from_planning(&error))
}

/// Rows of the result that have no record key. Of equal rows each is kept; what names one is the batch's sequence number,
/// its content and its number among those that are equal, so that it is the same when the batch is tried again and another
/// one when a later batch refuses an equal row.
fn without_key(rows: &RefusedRows, key: &RefusedKey, result: LogicalPlan) -> Result<LogicalPlan, Error> {
    let fail = |error| from_planning(&error);
    let mut missing: Option<Expr> = None;
    for name in &key.columns {
        let field = result.schema().field_with_unqualified_name(name).map_err(fail)?;
        let column = Expr::Column(Column::from_name(name));
        let mut none = column.clone().is_null();
        if key.complex && matches!(field.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
            none = none.or(column.eq(lit("")));
        }
        missing = Some(match missing {
            Some(before) => before.and(none),
            None => none,
        });
    }
    let missing = missing.ok_or_else(|| internal("the target has no key"))?;
    let refused = LogicalPlanBuilder::from(result).filter(missing).and_then(LogicalPlanBuilder::build).map_err(fail)?;
    let texts = TransformTable::plan("texts of rows", Arc::new(Texts), vec![(RESULT_INPUT.to_string(), refused)])?;
    let texts = provider_as_source(Arc::new(texts));
    let texts = LogicalPlanBuilder::scan(SCAN, texts, None).map_err(fail)?;
    let named = key.columns.join("`, `");
    let column = |name: &str| Expr::Column(Column::from_name(name));
    as_errors(rows, texts, |name| match name {
        "source" => lit(RESULT_SOURCE),
        "position" => {
            let digest = cast(md5().call(vec![column("raw")]), DataType::Utf8);
            concat().call(vec![lit(format!("{}-", rows.seq)), digest, lit("-"), cast(column("number"), DataType::Utf8)])
        }
        "reason" => lit(NULL_KEY),
        "message" => lit(format!("record key column `{named}` is null")),
        "raw" => column("raw"),
        other => {
            let data_type = error_schema().field_with_name(other).map(|field| field.data_type().clone());
            let null = data_type.ok().and_then(|data_type| ScalarValue::try_from(&data_type).ok());
            Expr::Literal(null.unwrap_or(ScalarValue::Null), None)
        }
    })
}

/// Rows as texts of JSON, each with its number among equal ones.
struct Texts;

fn texts_schema() -> SchemaRef {
    let text = Field::new("raw", DataType::Utf8, true);
    Arc::new(Schema::new(vec![text, Field::new("number", DataType::Int64, true)]))
}

impl MultiTransform for Texts {
    fn schema(&self, _inputs: &[InputSchema]) -> Result<SchemaRef, TransformError> {
        Ok(texts_schema())
    }

    fn apply(&self, mut inputs: Vec<Input>) -> Result<RowStream, TransformError> {
        let input = inputs.pop().ok_or_else(|| TransformError::new("there is no input"))?;
        // As many as are refused, which is limited.
        let mut seen: HashMap<String, i64> = HashMap::new();
        let texts = input.rows.and_then(move |batch| {
            let made = texts_of(&batch, &mut seen);
            async move { made.map_err(RowError::new) }
        });
        Ok(Box::pin(texts))
    }
}

fn texts_of(batch: &RecordBatch, seen: &mut HashMap<String, i64>) -> Result<RecordBatch, TransformError> {
    let fail = |error: &dyn std::fmt::Display| TransformError::new(format!("a refused row cannot be shown: {error}"));
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
    writer.write(batch).map_err(|error| fail(&error))?;
    writer.finish().map_err(|error| fail(&error))?;
    let text = String::from_utf8(writer.into_inner()).map_err(|error| fail(&error))?;
    let mut numbers: Vec<i64> = Vec::with_capacity(batch.num_rows());
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines {
        let number = seen.entry((*line).to_string()).and_modify(|number| *number += 1).or_insert(0);
        numbers.push(*number);
    }
    let columns: Vec<ArrayRef> =
        vec![Arc::new(StringArray::from_iter_values(lines)), Arc::new(Int64Array::from(numbers))];
    RecordBatch::try_new(texts_schema(), columns).map_err(|error| fail(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_are_told_apart_by_a_number_that_goes_on_over_batches() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(1)]));
        let batch = RecordBatch::try_from_iter_with_nullable([("a", column, true)]).unwrap();
        let mut seen = HashMap::new();
        let shown = |batch: &RecordBatch, seen: &mut HashMap<String, i64>| {
            let texts = texts_of(batch, seen).unwrap();
            let raw = texts.column(0).as_any().downcast_ref::<StringArray>().unwrap().clone();
            let numbers = texts.column(1).as_any().downcast_ref::<Int64Array>().unwrap().clone();
            raw.iter().zip(&numbers).map(|(raw, n)| format!("{} {}", raw.unwrap(), n.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(shown(&batch, &mut seen), ["{\"a\":1} 0", "{\"a\":null} 0", "{\"a\":1} 1"]);
        assert_eq!(shown(&batch.slice(0, 1), &mut seen), ["{\"a\":1} 2"]);
    }
}
