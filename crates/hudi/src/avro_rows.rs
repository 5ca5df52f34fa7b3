// SPDX-License-Identifier: Apache-2.0
//! Rows of record batches as Avro data, as the schema of [`crate::avro_schema`] describes them: a nullable value is a
//! union with null first, a decimal is fixed, everything else is what Avro calls it.

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int32Array,
    Int64Array, RecordBatch, StringArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Field, Float32Type, Float64Type, Int32Type, Int64Type};

use crate::avro::decimal_bytes;
use crate::error::{Error, Result};

/// A batch whose rows can be appended one by one.
pub(crate) struct AvroRows(Vec<Column>);

/// One column: whether its values are in a union with null, which of them are null, and the values.
struct Column {
    nullable: bool,
    nulls: Option<NullBuffer>,
    values: Values,
}

enum Values {
    Bool(BooleanArray),
    Int(Int32Array),
    Long(Int64Array),
    Float(Float32Array),
    Double(Float64Array),
    Text(StringArray),
    Bytes(BinaryArray),
    /// With the size of its fixed type.
    Decimal(Decimal128Array, usize),
    List(OffsetBuffer<i32>, Box<Column>),
    Map(OffsetBuffer<i32>, StringArray, Box<Column>),
    Record(Vec<Column>),
}

impl AvroRows {
    /// Prepares the columns of a batch.
    pub(crate) fn new(batch: &RecordBatch) -> Result<Self> {
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns()).map(|(field, array)| column(field, array));
        columns.collect::<Result<Vec<_>>>().map(AvroRows)
    }

    /// Appends a row.
    pub(crate) fn append(&self, row: usize, out: &mut Vec<u8>) {
        for column in &self.0 {
            column.append(row, out);
        }
    }
}

fn column(field: &Field, array: &ArrayRef) -> Result<Column> {
    let values = values(field, array)?;
    Ok(Column { nullable: field.is_nullable(), nulls: array.logical_nulls(), values })
}

fn values(field: &Field, array: &ArrayRef) -> Result<Values> {
    let as_type = |to: &DataType| -> Result<ArrayRef> {
        cast(array, to).map_err(|e| Error::unsupported(format!("column `{}` cannot be logged: {e}", field.name())))
    };
    Ok(match array.data_type() {
        DataType::Boolean => Values::Bool(array.as_boolean().clone()),
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Date32 => {
            Values::Int(as_type(&DataType::Int32)?.as_primitive::<Int32Type>().clone())
        }
        DataType::Int64 | DataType::Timestamp(_, _) => {
            Values::Long(as_type(&DataType::Int64)?.as_primitive::<Int64Type>().clone())
        }
        DataType::Float32 => Values::Float(array.as_primitive::<Float32Type>().clone()),
        DataType::Float64 => Values::Double(array.as_primitive::<Float64Type>().clone()),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            Values::Text(as_type(&DataType::Utf8)?.as_string::<i32>().clone())
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            Values::Bytes(as_type(&DataType::Binary)?.as_binary::<i32>().clone())
        }
        DataType::Decimal128(precision, _) => {
            Values::Decimal(array.as_primitive::<Decimal128Type>().clone(), decimal_bytes(*precision) as usize)
        }
        DataType::List(item) => {
            let list = array.as_list::<i32>();
            Values::List(list.offsets().clone(), Box::new(column(item, list.values())?))
        }
        DataType::LargeList(item) => {
            let list = as_type(&DataType::List(item.clone()))?;
            let list = list.as_list::<i32>();
            Values::List(list.offsets().clone(), Box::new(column(item, list.values())?))
        }
        DataType::Map(entries, _) => {
            let map = array.as_map();
            let DataType::Struct(pair) = entries.data_type() else { return Err(no_place(field)) };
            let keys = cast(map.keys(), &DataType::Utf8).map_err(|_| no_place(field))?;
            let value = column(&pair[1], map.values())?;
            Values::Map(map.offsets().clone(), keys.as_string::<i32>().clone(), Box::new(value))
        }
        DataType::Struct(fields) => {
            let inner = array.as_struct();
            let columns = fields.iter().zip(inner.columns()).map(|(field, array)| column(field, array));
            Values::Record(columns.collect::<Result<Vec<_>>>()?)
        }
        _ => return Err(no_place(field)),
    })
}

fn no_place(field: &Field) -> Error {
    Error::unsupported(format!("column `{}` of type {} has no place in a log file", field.name(), field.data_type()))
}

impl Column {
    fn append(&self, row: usize, out: &mut Vec<u8>) {
        if self.nullable {
            let null = self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            put_long(out, i64::from(!null));
            if null {
                return;
            }
        }
        match &self.values {
            Values::Bool(values) => out.push(u8::from(values.value(row))),
            Values::Int(values) => put_long(out, i64::from(values.value(row))),
            Values::Long(values) => put_long(out, values.value(row)),
            Values::Float(values) => out.extend(values.value(row).to_le_bytes()),
            Values::Double(values) => out.extend(values.value(row).to_le_bytes()),
            Values::Text(values) => put_bytes(out, values.value(row).as_bytes()),
            Values::Bytes(values) => put_bytes(out, values.value(row)),
            Values::Decimal(values, size) => {
                let bytes = values.value(row).to_be_bytes();
                match bytes.len().checked_sub(*size) {
                    Some(skipped) => out.extend(&bytes[skipped..]),
                    // More than 16 bytes: what stands in front repeats the sign.
                    None => {
                        let sign = if values.value(row) < 0 { 0xff } else { 0 };
                        out.extend(std::iter::repeat_n(sign, size - bytes.len()));
                        out.extend(bytes);
                    }
                }
            }
            Values::List(offsets, items) => {
                put_items(out, offsets, row, |item, out| items.append(item, out));
            }
            Values::Map(offsets, keys, values) => put_items(out, offsets, row, |item, out| {
                put_bytes(out, keys.value(item).as_bytes());
                values.append(item, out);
            }),
            Values::Record(columns) => {
                for column in columns {
                    column.append(row, out);
                }
            }
        }
    }
}

/// An array or a map: one block of all items, then the empty one that ends it.
fn put_items(out: &mut Vec<u8>, offsets: &OffsetBuffer<i32>, row: usize, put: impl Fn(usize, &mut Vec<u8>)) {
    let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
    if end > start {
        put_long(out, (end - start) as i64);
        for item in start..end {
            put(item, out);
        }
    }
    put_long(out, 0);
}

/// A variable-length zigzag number.
pub(crate) fn put_long(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Bytes or text with their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_long(out, bytes.len() as i64);
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put_long(&mut out, value);
        out
    }

    #[test]
    fn numbers_are_zigzag_and_of_variable_length() {
        assert_eq!(long(0), [0]);
        assert_eq!(long(-1), [1]);
        assert_eq!(long(1), [2]);
        assert_eq!(long(-64), [0x7f]);
        assert_eq!(long(64), [0x80, 0x01]);
        assert_eq!(long(i64::MIN), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    }

    #[test]
    fn a_union_has_null_first_and_a_decimal_the_size_of_its_precision() {
        let decimals = Decimal128Array::from(vec![Some(-2), None]).with_precision_and_scale(5, 2).unwrap();
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("d", std::sync::Arc::new(decimals) as ArrayRef, true),
            ("n", std::sync::Arc::new(Int32Array::from(vec![7, 8])) as ArrayRef, false),
        ]);
        let rows = AvroRows::new(&batch.unwrap()).unwrap();
        let mut out = Vec::new();
        rows.append(0, &mut out);
        assert_eq!(out, [2, 0xff, 0xff, 0xfe, 14]);
        out.clear();
        rows.append(1, &mut out);
        assert_eq!(out, [0, 16]);
    }
}
