// SPDX-License-Identifier: Apache-2.0
//! Columns of an older file in the table's newer types.
//!
//! Hudi lets a column's type grow (`SchemaChangeUtils`, `AvroSchemaUtils`): int to long, float and double, numbers,
//! dates and decimals to text, decimals to more digits. Columns and nested fields are matched by name: one that a
//! file does not have is null, one that the table no longer has is left out. The plan is made once per file, and a
//! column that fits as it is costs nothing.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, ListArray, MapArray, StringArray, StructArray, new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float32Type, Float64Type};
use arrow::error::ArrowError;

/// Two types that do not fit, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The column, nested fields after dots.
    pub column: String,
    /// Type in the file.
    pub found: String,
    /// Type in the table.
    pub expected: String,
}

/// How one column becomes the table's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Widening {
    /// It is of that type.
    Same,
    /// By value, with the engine's own conversion.
    Cast,
    /// Through its shortest decimal text, so that 0.1 stays 0.1 (`HoodieAvroUtils`).
    FloatToDouble,
    /// A floating point number as Java prints it.
    JavaText,
    /// Field by field: position in the file and how it is widened; `None`: null.
    Struct(Vec<Option<(usize, Widening)>>),
    /// Item by item.
    List(Box<Widening>),
    /// Entry by entry.
    Map(Box<Widening>, Box<Widening>),
}

/// Plans how a column of type `from` becomes `to`; `column` is for messages.
pub fn plan_widening(column: &str, from: &DataType, to: &DataType) -> Result<Widening, Mismatch> {
    if from == to {
        return Ok(Widening::Same);
    }
    match (from, to) {
        (DataType::Struct(from), DataType::Struct(to)) => plan_struct(column, from, to),
        (DataType::List(from) | DataType::LargeList(from), DataType::List(to)) => {
            let item = plan_widening(&format!("{column}.element"), from.data_type(), to.data_type())?;
            Ok(Widening::List(Box::new(item)))
        }
        (DataType::Map(from_entries, _), DataType::Map(to_entries, _)) => {
            match (from_entries.data_type(), to_entries.data_type()) {
                (DataType::Struct(from), DataType::Struct(to)) if from.len() == 2 && to.len() == 2 => {
                    let key = plan_widening(&format!("{column}.key"), from[0].data_type(), to[0].data_type())?;
                    let value = plan_widening(&format!("{column}.value"), from[1].data_type(), to[1].data_type())?;
                    Ok(Widening::Map(Box::new(key), Box::new(value)))
                }
                _ => Err(mismatch(column, from, to)),
            }
        }
        _ => plan_primitive(from, to).ok_or_else(|| mismatch(column, from, to)),
    }
}

fn plan_struct(column: &str, from: &Fields, to: &Fields) -> Result<Widening, Mismatch> {
    let mut fields = Vec::with_capacity(to.len());
    for field in to {
        let path = format!("{column}.{}", field.name());
        fields.push(match from.find(field.name()) {
            Some((at, found)) => Some((at, plan_widening(&path, found.data_type(), field.data_type())?)),
            None if field.is_nullable() => None,
            None => return Err(missing(&path, field)),
        });
    }
    Ok(Widening::Struct(fields))
}

/// A column that the file lacks and that may not be null.
pub(crate) fn missing(column: &str, expected: &Field) -> Mismatch {
    let expected = format!("{} (not null)", expected.data_type());
    Mismatch { column: column.to_string(), found: "missing".to_string(), expected }
}

fn mismatch(column: &str, from: &DataType, to: &DataType) -> Mismatch {
    Mismatch { column: column.to_string(), found: from.to_string(), expected: to.to_string() }
}

fn plan_primitive(from: &DataType, to: &DataType) -> Option<Widening> {
    use DataType::{
        Binary, BinaryView, Date32, Decimal32, Decimal64, Decimal128, Dictionary, FixedSizeBinary, Float32, Float64,
        Int8, Int16, Int32, Int64, LargeBinary, LargeUtf8, Null, Timestamp, UInt8, UInt16, Utf8, Utf8View,
    };
    let fits = match (from, to) {
        (Float32, Float64) => return Some(Widening::FloatToDouble),
        (Float32 | Float64, Utf8) => return Some(Widening::JavaText),
        (Dictionary(_, value), to) if value.as_ref() == to => true,
        (Null, _) => true,
        // Parquet says how wide an integer is; Avro knows only int and long.
        (Int8 | Int16 | UInt8 | UInt16, Int32 | Int64 | Float32 | Float64 | Utf8) => true,
        (Int32, Int64 | Float32 | Float64 | Utf8) | (Int64, Float32 | Float64 | Utf8) => true,
        (Int8 | Int16 | Int32 | Int64 | Float32 | Float64, Decimal128(_, _)) => true,
        (
            Decimal32(precision, scale) | Decimal64(precision, scale) | Decimal128(precision, scale),
            Decimal128(to_precision, to_scale),
        ) => {
            let digits = i16::from(*precision) - i16::from(*scale);
            to_scale >= scale && i16::from(*to_precision) - i16::from(*to_scale) >= digits
        }
        (Decimal32(_, _) | Decimal64(_, _) | Decimal128(_, _) | Date32, Utf8) => true,
        (Utf8, Date32 | Decimal128(_, _) | Binary) => true,
        (Utf8View | LargeUtf8 | Binary | LargeBinary | BinaryView, Utf8) => true,
        (FixedSizeBinary(_) | LargeBinary | BinaryView, Binary) => true,
        (Binary, FixedSizeBinary(_)) => true,
        // Spark writes INT96 (nanoseconds) unless told otherwise, and Hudi once left out the time annotation.
        (Timestamp(_, _) | Int64, Timestamp(_, _)) => true,
        _ => false,
    };
    fits.then_some(Widening::Cast)
}

impl Widening {
    /// The column in the type of `to`.
    pub fn apply(&self, column: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
        match (self, to) {
            (Widening::Same, _) => Ok(Arc::clone(column)),
            (Widening::FloatToDouble, _) => Ok(Arc::new(floats_to_doubles(column))),
            (Widening::JavaText, _) => Ok(Arc::new(java_texts(column))),
            (Widening::Struct(plan), DataType::Struct(fields)) => widen_struct(plan, column, fields),
            (Widening::List(plan), DataType::List(item)) => widen_list(plan, column, item),
            (Widening::Map(key, value), DataType::Map(entries, sorted)) => {
                widen_map(key, value, column, entries, *sorted)
            }
            _ => cast_with_options(column, to, &CastOptions { safe: false, ..CastOptions::default() }),
        }
    }
}

fn widen_struct(
    plan: &[Option<(usize, Widening)>],
    column: &ArrayRef,
    fields: &Fields,
) -> Result<ArrayRef, ArrowError> {
    let found = column.as_struct();
    let mut children = Vec::with_capacity(fields.len());
    for (step, field) in plan.iter().zip(fields) {
        children.push(match step {
            Some((at, widening)) => widening.apply(found.column(*at), field.data_type())?,
            None => new_null_array(field.data_type(), found.len()),
        });
    }
    if children.is_empty() {
        return Ok(Arc::new(StructArray::new_empty_fields(found.len(), found.nulls().cloned())));
    }
    Ok(Arc::new(StructArray::try_new(fields.clone(), children, found.nulls().cloned())?))
}

fn widen_list(plan: &Widening, column: &ArrayRef, item: &FieldRef) -> Result<ArrayRef, ArrowError> {
    let narrow: ArrayRef = match column.data_type() {
        DataType::LargeList(found) => cast_with_options(
            column,
            &DataType::List(Arc::clone(found)),
            &CastOptions { safe: false, ..CastOptions::default() },
        )?,
        _ => Arc::clone(column),
    };
    let (_, offsets, values, nulls) = narrow.as_list::<i32>().clone().into_parts();
    let values = plan.apply(&values, item.data_type())?;
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls)?))
}

fn widen_map(
    key: &Widening,
    value: &Widening,
    column: &ArrayRef,
    entries: &FieldRef,
    sorted: bool,
) -> Result<ArrayRef, ArrowError> {
    let DataType::Struct(pair) = entries.data_type() else {
        return Err(ArrowError::SchemaError(format!("a map of {}", entries.data_type())));
    };
    let (_, offsets, found, nulls, _) = column.as_map().clone().into_parts();
    let children =
        vec![key.apply(found.column(0), pair[0].data_type())?, value.apply(found.column(1), pair[1].data_type())?];
    let pairs = StructArray::try_new(pair.clone(), children, found.nulls().cloned())?;
    Ok(Arc::new(MapArray::try_new(Arc::clone(entries), offsets, pairs, nulls, sorted)?))
}

fn floats_to_doubles(column: &ArrayRef) -> Float64Array {
    column.as_primitive::<Float32Type>().iter().map(|value| value.map(float_to_double)).collect()
}

/// The double nearest to the shortest decimal text of a float, which is what Java's and Spark's readers deliver.
pub(crate) fn float_to_double(value: f32) -> f64 {
    // Whole numbers that a float holds exactly need no detour.
    if !value.is_finite() || (value.fract() == 0.0 && value.abs() < 16_777_216.0) {
        return f64::from(value);
    }
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

fn java_texts(column: &ArrayRef) -> StringArray {
    match column.data_type() {
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>().iter();
            values.map(|value| value.map(|v| java_text(&format!("{v:e}"), f64::from(v)))).collect()
        }
        _ => {
            let values = column.as_primitive::<Float64Type>().iter();
            values.map(|value| value.map(|v| java_text(&format!("{v:e}"), v))).collect()
        }
    }
}

/// `Double.toString`: plain between 10^-3 and 10^7, `d.dddE±n` outside, always with a digit after the point.
fn java_text(scientific: &str, value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_string();
    }
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific.to_string() };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if value == 0.0 {
        return format!("{sign}0.0");
    }
    if !(-3..7).contains(&exponent) {
        let rest = if digits.len() > 1 { &digits[1..] } else { "0" };
        return format!("{sign}{}.{rest}E{exponent}", &digits[..1]);
    }
    if exponent < 0 {
        let zeros = "0".repeat((-exponent - 1) as usize);
        return format!("{sign}0.{zeros}{digits}");
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        return format!("{sign}{digits}{}.0", "0".repeat(whole - digits.len()));
    }
    format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
}

#[cfg(test)]
mod tests {
    use arrow::array::{Date32Array, Decimal128Array, Float32Array, Int32Array, Int64Array};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn widen(column: ArrayRef, to: &DataType) -> ArrayRef {
        let plan = plan_widening("c", column.data_type(), to).unwrap();
        let widened = plan.apply(&column, to).unwrap();
        assert_eq!(widened.data_type(), to);
        widened
    }

    fn texts(column: ArrayRef) -> Vec<String> {
        let widened = widen(column, &DataType::Utf8);
        widened.as_string::<i32>().iter().map(|text| text.unwrap_or("null").to_string()).collect()
    }

    #[test]
    fn numbers_grow_as_hudi_promotes_them() {
        let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(7), None]));
        assert_eq!(widen(ints.clone(), &DataType::Int64).as_ref(), &Int64Array::from(vec![Some(7), None]));
        let floats: ArrayRef = Arc::new(Float32Array::from(vec![0.1f32, -3.0, 1.0e10, f32::MAX]));
        let doubles = widen(floats, &DataType::Float64);
        assert_eq!(doubles.as_ref(), &Float64Array::from(vec![0.1, -3.0, 1.0e10, 3.4028235e38]));
        assert_eq!(texts(ints), ["7", "null"]);
    }

    #[test]
    fn floating_point_text_is_what_java_prints() {
        let doubles = vec![0.0, -0.0, 1.0, -2.5, 0.001, 0.0001, 9_999_999.0, 1.0e7, 1.5e10, 1.0e-10, f64::NAN];
        let expected =
            ["0.0", "-0.0", "1.0", "-2.5", "0.001", "1.0E-4", "9999999.0", "1.0E7", "1.5E10", "1.0E-10", "NaN"];
        assert_eq!(texts(Arc::new(Float64Array::from(doubles))), expected);
        let floats = vec![0.1f32, 123.456, f32::INFINITY];
        assert_eq!(texts(Arc::new(Float32Array::from(floats))), ["0.1", "123.456", "Infinity"]);
    }

    #[test]
    fn dates_and_decimals_become_text() {
        assert_eq!(texts(Arc::new(Date32Array::from(vec![0, 19_723]))), ["1970-01-01", "2024-01-01"]);
        let decimals = Decimal128Array::from(vec![120, -5]).with_precision_and_scale(10, 2).unwrap();
        assert_eq!(texts(Arc::new(decimals)), ["1.20", "-0.05"]);
    }

    #[test]
    fn a_decimal_widens_but_never_loses_a_digit() {
        let wide = plan_widening("c", &DataType::Decimal128(10, 2), &DataType::Decimal128(12, 4));
        assert_eq!(wide, Ok(Widening::Cast));
        let refused = plan_widening("c", &DataType::Decimal128(10, 2), &DataType::Decimal128(10, 4)).unwrap_err();
        assert_eq!(refused.column, "c");
        assert!(plan_widening("c", &DataType::Decimal128(10, 2), &DataType::Decimal128(12, 1)).is_err());
    }

    #[test]
    fn what_cannot_be_widened_names_the_nested_column() {
        let inner = |data_type| DataType::Struct(vec![Field::new("b", data_type, true)].into());
        let refused = plan_widening("a", &inner(DataType::Int64), &inner(DataType::Int32)).unwrap_err();
        assert_eq!(refused, Mismatch { column: "a.b".into(), found: "Int64".into(), expected: "Int32".into() });
        assert!(plan_widening("a", &DataType::Utf8, &DataType::Int64).is_err());
    }

    #[test]
    fn nested_fields_are_matched_by_name() {
        let old = Fields::from(vec![Field::new("x", DataType::Int32, true), Field::new("gone", DataType::Int32, true)]);
        let new = Fields::from(vec![Field::new("y", DataType::Utf8, true), Field::new("x", DataType::Int64, true)]);
        let ints: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
        let nulls = NullBuffer::from(vec![true, false, true]);
        let rows: ArrayRef = Arc::new(StructArray::new(old, vec![ints.clone(), ints], Some(nulls.clone())));
        let widened = widen(rows, &DataType::Struct(new));
        let widened = widened.as_struct();
        assert_eq!(widened.nulls(), Some(&nulls));
        assert_eq!(widened.column(0).null_count(), 3);
        assert_eq!(widened.column(1).as_ref(), &Int64Array::from(vec![1, 2, 3]));
        let strict = Fields::from(vec![Field::new("z", DataType::Int64, false)]);
        let refused = plan_widening("s", &DataType::Struct(Fields::empty()), &DataType::Struct(strict)).unwrap_err();
        assert_eq!((refused.column.as_str(), refused.found.as_str()), ("s.z", "missing"));
    }

    #[test]
    fn lists_and_maps_take_the_tables_names_and_types() {
        let list: ArrayRef =
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None]));
        let element = Field::new("element", DataType::Int64, true);
        let widened = widen(list, &DataType::List(element.into()));
        assert_eq!(widened.as_list::<i32>().value(0).as_ref(), &Int64Array::from(vec![Some(1), None]));
        assert!(widened.is_null(1));

        let pair = |value: DataType, key: &str| {
            Fields::from(vec![Field::new(key, DataType::Utf8, false), Field::new("value", value, true)])
        };
        let entries = StructArray::new(
            pair(DataType::Int32, "map_key"),
            vec![Arc::new(StringArray::from(vec!["a"])), Arc::new(Int32Array::from(vec![5]))],
            None,
        );
        let field = Field::new("entries", entries.data_type().clone(), false);
        let map: ArrayRef =
            Arc::new(MapArray::new(field.into(), OffsetBuffer::from_lengths([1]), entries, None, false));
        let to =
            DataType::Map(Field::new("key_value", DataType::Struct(pair(DataType::Int64, "key")), false).into(), false);
        assert_eq!(widen(map, &to).as_map().values().as_ref(), &Int64Array::from(vec![5]));
    }
}
