// SPDX-License-Identifier: Apache-2.0
//! Ordering values: what decides which of two rows of one key stays.
//!
//! The rules are those of Java's `BufferedRecordMergerFactory`. The later row wins a tie, and wins where the two
//! values cannot be compared. A delete without an ordering value of its own (`OrderingValues.getDefault()`, an `int`
//! zero) counts by its place alone: it removes whatever came before, and whatever comes after stays.

use std::cmp::Ordering;

use arrow::array::{
    Array, AsArray, BinaryArray, BooleanArray, Decimal128Array, Float64Array, RecordBatch, StringArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type};

use crate::error::{Error, Result};

/// An ordering value, in the widest form of its family.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OrderingValue {
    /// There is none.
    Default,
    /// A boolean.
    Bool(bool),
    /// An integer, a date in days, a timestamp in the column's unit.
    Int(i64),
    /// A floating point number.
    Float(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A decimal: unscaled value and scale.
    Decimal(i128, i8),
    /// Values of several columns.
    Several(Vec<OrderingValue>),
}

/// What is compared of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rank {
    /// Its ordering value.
    pub(crate) ordering: OrderingValue,
    /// Whether it deletes its key.
    pub(crate) deletes: bool,
}

impl Rank {
    fn deletes_by_place(&self) -> bool {
        self.deletes && self.ordering == OrderingValue::Default
    }

    /// Whether this row stays when it comes after `earlier`.
    pub(crate) fn replaces(&self, earlier: &Rank) -> bool {
        if self.deletes_by_place() || earlier.deletes_by_place() {
            return true;
        }
        self.ordering.compare(&earlier.ordering).is_none_or(|order| order != Ordering::Less)
    }

    /// Whether this delete of a delete block stays when it comes after `earlier`.
    pub(crate) fn deletes_over(&self, earlier: &Rank) -> bool {
        // A delete by place is as good as any other, and what comes after it stays.
        !earlier.deletes_by_place() && self.replaces(earlier)
    }
}

impl OrderingValue {
    /// How two values compare; `None` when they are of different families.
    fn compare(&self, other: &Self) -> Option<Ordering> {
        use OrderingValue::{Bool, Bytes, Decimal, Default, Float, Int, Several, Text};
        match (self, other) {
            (Default, Default) => Some(Ordering::Equal),
            (Bool(a), Bool(b)) => Some(a.cmp(b)),
            (Int(a), Int(b)) => Some(a.cmp(b)),
            // Java orders NaN after every number.
            (Float(a), Float(b)) => Some(a.total_cmp(b)),
            (Text(a), Text(b)) => Some(a.cmp(b)),
            (Bytes(a), Bytes(b)) => Some(a.cmp(b)),
            (Decimal(a, scale), Decimal(b, other)) => compare_decimals((*a, *scale), (*b, *other)),
            (Several(a), Several(b)) if a.len() == b.len() => {
                for (a, b) in a.iter().zip(b) {
                    match a.compare(b) {
                        Some(Ordering::Equal) => {}
                        decided => return decided,
                    }
                }
                Some(Ordering::Equal)
            }
            _ => None,
        }
    }

    /// Bytes that the value holds besides itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            OrderingValue::Text(text) => text.len(),
            OrderingValue::Bytes(bytes) => bytes.len(),
            OrderingValue::Several(values) => {
                values.iter().map(|value| size_of::<Self>() + value.heap_bytes()).sum::<usize>()
            }
            _ => 0,
        }
    }
}

fn compare_decimals(a: (i128, i8), b: (i128, i8)) -> Option<Ordering> {
    let scale = a.1.max(b.1);
    let lift = |(value, own): (i128, i8)| {
        let factor = 10i128.checked_pow(u32::try_from(scale.checked_sub(own)?).ok()?)?;
        value.checked_mul(factor)
    };
    Some(lift(a)?.cmp(&lift(b)?))
}

/// One ordering column of a batch.
enum Column {
    Bool(BooleanArray),
    Int { values: arrow::array::Int64Array, of_int: bool },
    Float(Float64Array),
    Text(StringArray),
    Bytes(BinaryArray),
    Decimal(Decimal128Array, i8),
}

/// The ordering columns of a batch.
pub(crate) struct OrderingColumns(Vec<Column>);

impl OrderingColumns {
    /// Prepares the columns at `positions` of a batch; `path` is for messages.
    pub(crate) fn new(path: &str, batch: &RecordBatch, positions: &[usize]) -> Result<Self> {
        let columns = positions.iter().map(|at| {
            let column = batch.column(*at);
            prepare(column.as_ref()).map_err(|detail| {
                let name = batch.schema().field(*at).name().clone();
                Error::unsupported(format!("`{path}`: ordering column `{name}` {detail}"))
            })
        });
        columns.collect::<Result<Vec<_>>>().map(OrderingColumns)
    }

    /// The rank of a row.
    pub(crate) fn rank(&self, row: usize, deletes: bool) -> Rank {
        let ordering = match self.0.as_slice() {
            [] => OrderingValue::Default,
            [one] => one.value(row, deletes),
            several => OrderingValue::Several(several.iter().map(|column| column.value(row, false)).collect()),
        };
        Rank { ordering, deletes }
    }
}

fn prepare(column: &dyn Array) -> std::result::Result<Column, String> {
    let failed = |e: arrow::error::ArrowError| e.to_string();
    Ok(match column.data_type() {
        DataType::Boolean => Column::Bool(column.as_boolean().clone()),
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Date32 => {
            let ints = cast(column, &DataType::Int32).map_err(failed)?;
            let values = cast(&ints, &DataType::Int64).map_err(failed)?;
            Column::Int { values: values.as_primitive::<Int64Type>().clone(), of_int: true }
        }
        DataType::Int64 | DataType::Timestamp(_, _) => {
            let values = cast(column, &DataType::Int64).map_err(failed)?;
            Column::Int { values: values.as_primitive::<Int64Type>().clone(), of_int: false }
        }
        DataType::Float32 | DataType::Float64 => {
            let values = cast(column, &DataType::Float64).map_err(failed)?;
            Column::Float(values.as_primitive::<Float64Type>().clone())
        }
        DataType::Utf8 => Column::Text(column.as_string::<i32>().clone()),
        DataType::Binary => Column::Bytes(column.as_binary::<i32>().clone()),
        DataType::Decimal128(_, scale) => Column::Decimal(column.as_primitive::<Decimal128Type>().clone(), *scale),
        other => return Err(format!("is of type {other}, by which rows cannot be ordered")),
    })
}

impl Column {
    fn value(&self, row: usize, deletes: bool) -> OrderingValue {
        match self {
            Column::Bool(values) if values.is_valid(row) => OrderingValue::Bool(values.value(row)),
            // Java cannot tell the zero of an `int` column from a missing value.
            Column::Int { values, of_int } if values.is_valid(row) => match values.value(row) {
                0 if *of_int && deletes => OrderingValue::Default,
                value => OrderingValue::Int(value),
            },
            Column::Float(values) if values.is_valid(row) => OrderingValue::Float(values.value(row)),
            Column::Text(values) if values.is_valid(row) => OrderingValue::Text(values.value(row).to_string()),
            Column::Bytes(values) if values.is_valid(row) => OrderingValue::Bytes(values.value(row).to_vec()),
            Column::Decimal(values, scale) if values.is_valid(row) => OrderingValue::Decimal(values.value(row), *scale),
            _ => OrderingValue::Default,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Date32Array, Int32Array, Int64Array, ListArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn row(ordering: i64) -> Rank {
        Rank { ordering: OrderingValue::Int(ordering), deletes: false }
    }

    fn delete(ordering: OrderingValue) -> Rank {
        Rank { ordering, deletes: true }
    }

    #[test]
    fn the_higher_value_wins_and_a_tie_goes_to_the_later_row() {
        assert!(row(2).replaces(&row(1)) && row(2).replaces(&row(2)));
        assert!(!row(1).replaces(&row(2)));
        assert!(!delete(OrderingValue::Int(1)).replaces(&row(2)));
        assert!(delete(OrderingValue::Int(2)).deletes_over(&row(2)));
    }

    #[test]
    fn a_delete_without_a_value_counts_by_its_place() {
        let by_place = delete(OrderingValue::Default);
        assert!(by_place.deletes_over(&row(9)) && by_place.replaces(&row(9)));
        assert!(row(1).replaces(&by_place), "what comes after it stays");
        let late = delete(OrderingValue::Int(5));
        assert!(!late.deletes_over(&by_place), "or else a row of 3 after both would be gone");
    }

    #[test]
    fn values_that_cannot_be_compared_go_to_the_later_row() {
        let text = Rank { ordering: OrderingValue::Text("a".into()), deletes: false };
        let none = Rank { ordering: OrderingValue::Default, deletes: false };
        assert!(text.replaces(&row(5)) && row(5).replaces(&text));
        assert!(none.replaces(&row(5)) && row(5).replaces(&none));
    }

    #[test]
    fn several_columns_are_compared_one_after_the_other() {
        let several = |a: i64, b: &str| {
            let values = vec![OrderingValue::Int(a), OrderingValue::Text(b.to_string())];
            Rank { ordering: OrderingValue::Several(values), deletes: false }
        };
        assert!(!several(1, "z").replaces(&several(2, "a")));
        assert!(!several(2, "a").replaces(&several(2, "b")) && several(2, "b").replaces(&several(2, "a")));
    }

    #[test]
    fn decimals_of_different_scales_are_compared_by_value() {
        let decimal = |value, scale| OrderingValue::Decimal(value, scale);
        assert_eq!(decimal(15, 1).compare(&decimal(1_500, 3)), Some(Ordering::Equal));
        assert_eq!(decimal(15, 1).compare(&decimal(1_499, 3)), Some(Ordering::Greater));
    }

    fn ranks(column: ArrayRef) -> Result<OrderingColumns> {
        let batch = RecordBatch::try_from_iter([("o", column)]).unwrap();
        OrderingColumns::new("f", &batch, &[0])
    }

    #[test]
    fn columns_give_values_of_their_family_and_null_gives_none() {
        let longs = ranks(Arc::new(Int64Array::from(vec![Some(0), None]))).unwrap();
        assert_eq!(longs.rank(0, true).ordering, OrderingValue::Int(0));
        assert_eq!(longs.rank(1, false).ordering, OrderingValue::Default);
        let ints = ranks(Arc::new(Int32Array::from(vec![0, 7]))).unwrap();
        assert_eq!(ints.rank(0, true).ordering, OrderingValue::Default, "an int zero is Java's missing value");
        assert_eq!(ints.rank(0, false).ordering, OrderingValue::Int(0));
        let dates = ranks(Arc::new(Date32Array::from(vec![19_723]))).unwrap();
        assert_eq!(dates.rank(0, false).ordering, OrderingValue::Int(19_723));
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)])]);
        assert!(ranks(Arc::new(lists)).err().unwrap().to_string().contains("column `o`"));
    }
}
