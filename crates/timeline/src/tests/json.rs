// SPDX-License-Identifier: Apache-2.0
//! Rows as the fixtures' expectations write them: decimals as text, bytes as hex, times as ISO in UTC.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int32Type, Int64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::{Map, Value, json};

pub(super) fn rows(batch: &RecordBatch) -> Vec<Value> {
    (0..batch.num_rows())
        .map(|row| {
            let fields = batch.schema();
            let cells = fields.fields().iter().zip(batch.columns());
            Value::Object(cells.map(|(field, column)| (field.name().clone(), value(column.as_ref(), row))).collect())
        })
        .collect()
}

/// Rows in an order of their own text.
pub(super) fn sorted(mut rows: Vec<Value>) -> Vec<Value> {
    rows.iter_mut().for_each(shorten_floats);
    rows.sort_by_key(ToString::to_string);
    rows
}

/// The parser of the expectations may miss a float's last bit.
fn shorten_floats(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            *value = json!(format!("{:.13e}", number.as_f64().unwrap_or(f64::NAN)));
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_floats),
        Value::Object(fields) => fields.values_mut().for_each(shorten_floats),
        _ => {}
    }
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

fn value(column: &dyn Array, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    match column.data_type() {
        DataType::Boolean => json!(column.as_boolean().value(row)),
        DataType::Int32 => json!(column.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => json!(column.as_primitive::<Int64Type>().value(row)),
        DataType::Float32 => json!(f64::from(column.as_primitive::<Float32Type>().value(row))),
        DataType::Float64 => json!(column.as_primitive::<Float64Type>().value(row)),
        DataType::Binary => {
            json!(column.as_binary::<i32>().value(row).iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        DataType::List(_) => {
            let items = column.as_list::<i32>().value(row);
            Value::Array((0..items.len()).map(|item| value(items.as_ref(), item)).collect())
        }
        DataType::Struct(fields) => {
            let children = fields.iter().zip(column.as_struct().columns());
            Value::Object(children.map(|(field, child)| (field.name().clone(), value(child.as_ref(), row))).collect())
        }
        DataType::Map(_, _) => {
            let entries = column.as_map().value(row);
            let (keys, values) = (entries.column(0), entries.column(1));
            let pairs = (0..entries.len()).map(|at| (text(&value(keys.as_ref(), at)), value(values.as_ref(), at)));
            Value::Object(pairs.collect::<Map<String, Value>>())
        }
        _ => {
            let options = FormatOptions::new()
                .with_timestamp_tz_format(Some("%Y-%m-%dT%H:%M:%S%.6fZ"))
                .with_timestamp_format(Some("%Y-%m-%dT%H:%M:%S%.6f"));
            json!(ArrayFormatter::try_new(column, &options).unwrap().value(row).to_string())
        }
    }
}
