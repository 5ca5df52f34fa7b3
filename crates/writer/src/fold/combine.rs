// SPDX-License-Identifier: Apache-2.0
//! Two values of one column become one, a column at a time.
//!
//! Each is associative: values of one key may be combined pairwise in any grouping, as long as their order is kept. The
//! exceptions are those of the numbers themselves, sums of floating point numbers and sums that pass a type's limit
//! on the way.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::kernels::cmp;
use arrow::compute::kernels::zip::zip;
use arrow::compute::{cast, is_not_null, is_null, nullif, or_kleene};
use arrow::datatypes::{DataType, Decimal128Type, DecimalType, Float32Type, Float64Type, Int32Type, Int64Type};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;

use super::{nested, text};

/// Why two columns could not be combined.
#[derive(Debug)]
pub(crate) enum FoldError {
    /// The values of one row cannot.
    Value {
        /// The row, in the two columns.
        row: usize,
        /// What happened, and what to do.
        what: String,
    },
    /// The arrays could not be handled.
    Arrow(ArrowError),
}

impl From<ArrowError> for FoldError {
    fn from(error: ArrowError) -> Self {
        FoldError::Arrow(error)
    }
}

/// How the values of two equally long columns of one type become one column of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Combine {
    /// The later one, null included.
    Later,
    /// The later one, unless it is null.
    LaterNonNull,
    /// The earlier one, null included.
    Earlier,
    /// The earlier one, unless it is null.
    EarlierNonNull,
    Sum,
    Product,
    Min,
    Max,
    And,
    Or,
    /// Both texts with this between them.
    Concat(String),
    /// The parts of both texts between these, each once.
    ConcatDistinct(String),
    Collect,
    CollectSet,
    MapMerge,
    StructMerge,
}

impl Combine {
    /// Combines row by row. A type that an operator does not work on is an error; it was refused before.
    pub(crate) fn combine(&self, earlier: &ArrayRef, later: &ArrayRef) -> Result<ArrayRef, FoldError> {
        match self {
            Combine::Later => Ok(Arc::clone(later)),
            Combine::LaterNonNull => Ok(prefer(later, earlier)?),
            Combine::Earlier => Ok(Arc::clone(earlier)),
            Combine::EarlierNonNull => Ok(prefer(earlier, later)?),
            Combine::Sum => sum(earlier, later),
            Combine::Product => product(earlier, later),
            Combine::Min => Ok(choose(earlier, later, cmp::lt_eq(later, earlier)?)?),
            Combine::Max => Ok(choose(earlier, later, cmp::gt_eq(later, earlier)?)?),
            Combine::And => booleans(earlier, later, |a, b| a && b),
            Combine::Or => booleans(earlier, later, |a, b| a || b),
            Combine::Concat(delimiter) => text::concat(earlier, later, delimiter),
            Combine::ConcatDistinct(delimiter) => text::concat_distinct(earlier, later, delimiter),
            Combine::Collect => nested::collect(earlier, later),
            Combine::CollectSet => nested::collect_set(earlier, later),
            Combine::MapMerge => nested::map_merge(earlier, later),
            Combine::StructMerge => nested::struct_merge(earlier, later),
        }
    }
}

/// What is done with a column that comes in, before anything is combined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lift {
    /// Nothing.
    AsItIs,
    /// These texts are null.
    NullStrings(Vec<String>),
    /// One for each value, zero for null.
    Count,
    /// It is brought into the form that combining gives: what is in it twice is there once.
    Alone(Combine),
}

impl Lift {
    pub(crate) fn lift(&self, column: &ArrayRef) -> Result<ArrayRef, FoldError> {
        match self {
            Lift::NullStrings(texts) if !texts.is_empty() && column.data_type() == &DataType::Utf8 => {
                let is_one =
                    BooleanArray::from_unary(column.as_string::<i32>(), |text| texts.iter().any(|one| one == text));
                Ok(nullif(column, &is_one)?)
            }
            Lift::AsItIs | Lift::NullStrings(_) => Ok(Arc::clone(column)),
            Lift::Count => Ok(cast(&is_not_null(column)?, column.data_type())?),
            Lift::Alone(combine) => {
                let nothing = arrow::array::new_null_array(column.data_type(), column.len());
                combine.combine(column, &nothing)
            }
        }
    }
}

/// The rows of `first`, and where it is null those of `second`.
pub(super) fn prefer(first: &ArrayRef, second: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match first.null_count() {
        0 => Ok(Arc::clone(first)),
        nulls if nulls == first.len() => Ok(Arc::clone(second)),
        _ => zip(&is_not_null(first)?, first, second),
    }
}

/// The rows of `later` where `is_later`, those of `earlier` elsewhere; a null gives way.
fn choose(earlier: &ArrayRef, later: &ArrayRef, is_later: BooleanArray) -> Result<ArrayRef, ArrowError> {
    // Where the earlier one is null the comparison is too, and null or true is true.
    zip(&or_kleene(&is_later, &is_null(earlier)?)?, later, earlier)
}

/// Valid where any of the two is.
pub(super) fn either(a: Option<&NullBuffer>, b: Option<&NullBuffer>) -> Option<NullBuffer> {
    Some(NullBuffer::new(a?.inner() | b?.inner()))
}

fn sum(earlier: &ArrayRef, later: &ArrayRef) -> Result<ArrayRef, FoldError> {
    match earlier.data_type() {
        DataType::Int32 => checked::<Int32Type>(earlier, later, "sum", |a, b| a.add_checked(b).ok()),
        DataType::Int64 => checked::<Int64Type>(earlier, later, "sum", |a, b| a.add_checked(b).ok()),
        DataType::Float32 => checked::<Float32Type>(earlier, later, "sum", |a, b| Some(a + b)),
        DataType::Float64 => checked::<Float64Type>(earlier, later, "sum", |a, b| Some(a + b)),
        DataType::Decimal128(precision, scale) => {
            let (precision, scale) = (*precision, *scale);
            checked::<Decimal128Type>(earlier, later, "sum", |a, b| {
                let sum = a.add_checked(b).ok()?;
                Decimal128Type::validate_decimal_precision(sum, precision, scale).ok().map(|()| sum)
            })
        }
        other => Err(unfit("sum", other)),
    }
}

fn product(earlier: &ArrayRef, later: &ArrayRef) -> Result<ArrayRef, FoldError> {
    match earlier.data_type() {
        DataType::Int32 => checked::<Int32Type>(earlier, later, "product", |a, b| a.mul_checked(b).ok()),
        DataType::Int64 => checked::<Int64Type>(earlier, later, "product", |a, b| a.mul_checked(b).ok()),
        DataType::Float32 => checked::<Float32Type>(earlier, later, "product", |a, b| Some(a * b)),
        DataType::Float64 => checked::<Float64Type>(earlier, later, "product", |a, b| Some(a * b)),
        other => Err(unfit("product", other)),
    }
}

pub(super) fn unfit(what: &str, data_type: &DataType) -> FoldError {
    ArrowError::InvalidArgumentError(format!("there is no {what} of {data_type}")).into()
}

/// Numbers of which a null is skipped and two become one, or do not fit.
fn checked<T: ArrowPrimitiveType>(
    earlier: &ArrayRef,
    later: &ArrayRef,
    what: &str,
    two: impl Fn(T::Native, T::Native) -> Option<T::Native>,
) -> Result<ArrayRef, FoldError> {
    let (a, b) = (earlier.as_primitive::<T>(), later.as_primitive::<T>());
    let mut values: Vec<T::Native> = Vec::with_capacity(a.len());
    for row in 0..a.len() {
        values.push(match (a.is_valid(row), b.is_valid(row)) {
            (true, true) => two(a.value(row), b.value(row)).ok_or_else(|| FoldError::Value {
                row,
                what: format!(
                    "the {what} of {} and {} does not fit into {}; store the column in a wider type",
                    shown(a, row),
                    shown(b, row),
                    a.data_type()
                ),
            })?,
            (true, false) => a.value(row),
            (false, _) => b.value(row),
        });
    }
    let folded = PrimitiveArray::<T>::new(values.into(), either(a.nulls(), b.nulls()));
    Ok(Arc::new(folded.with_data_type(a.data_type().clone())))
}

fn shown(array: &dyn Array, row: usize) -> String {
    array_value_to_string(array, row).unwrap_or_else(|_| "a number".to_string())
}

fn booleans(earlier: &ArrayRef, later: &ArrayRef, two: impl Fn(bool, bool) -> bool) -> Result<ArrayRef, FoldError> {
    let (Some(a), Some(b)) = (earlier.as_boolean_opt(), later.as_boolean_opt()) else {
        return Err(unfit("logical value", earlier.data_type()));
    };
    let values = BooleanBuffer::collect_bool(a.len(), |row| match (a.is_valid(row), b.is_valid(row)) {
        (true, true) => two(a.value(row), b.value(row)),
        (true, false) => a.value(row),
        (false, _) => b.value(row),
    });
    Ok(Arc::new(BooleanArray::new(values, either(a.nulls(), b.nulls()))))
}

#[cfg(test)]
mod tests;
