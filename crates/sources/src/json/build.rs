// SPDX-License-Identifier: Apache-2.0
//! Columns of values, nested ones too.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::builder::NullBufferBuilder;
use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Float32Builder, Float64Builder,
    Int8Builder, Int16Builder, Int32Builder, Int64Builder, ListArray, MapArray, StringBuilder, StructArray,
    TimestampMicrosecondBuilder, TimestampMillisecondBuilder,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, FieldRef, Fields, TimeUnit};

use crate::cells::{Formats, decimal, integer};
use crate::json::value::Value;

/// A column that values are appended to.
pub(crate) enum Builder {
    Bool(BooleanBuilder),
    Int8(Int8Builder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal(Decimal128Builder, u8, i8),
    Date(Date32Builder),
    Micros(TimestampMicrosecondBuilder),
    Millis(TimestampMillisecondBuilder),
    Text(StringBuilder),
    Binary(BinaryBuilder),
    Struct(Box<Record>),
    List {
        field: FieldRef,
        item: Box<Builder>,
        offsets: Vec<i32>,
        count: i32,
        nulls: NullBufferBuilder,
    },
    Map {
        entries: FieldRef,
        key: StringBuilder,
        value: Box<Builder>,
        offsets: Vec<i32>,
        count: i32,
        nulls: NullBufferBuilder,
    },
}

/// Fields of an object, by name.
pub(crate) struct Record {
    fields: Fields,
    columns: Vec<Builder>,
    exact: HashMap<String, usize>,
    lower: HashMap<String, usize>,
    nulls: NullBufferBuilder,
    rows: usize,
    /// Which columns the current row has.
    present: Vec<bool>,
}

/// What is found out while values are appended.
#[derive(Default)]
pub(crate) struct Findings {
    /// The first value that is none of its type.
    pub(crate) problem: Option<String>,
    /// Keys without a column.
    pub(crate) unknown: u64,
    /// Keys that were there twice.
    pub(crate) duplicates: u64,
    /// One of the keys without a column.
    pub(crate) unknown_key: Option<String>,
}

impl Findings {
    fn refuse(&mut self, what: &str, value: &Value<'_>, path: &str) {
        let is = match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(..) => "a list",
            Value::Object(..) => "an object",
        };
        self.problem.get_or_insert_with(|| format!("`{path}` is {is} that is not {what}"));
    }
}

impl Builder {
    /// A builder of a type; answers what is wrong with it.
    pub(crate) fn new(path: &str, data_type: &DataType) -> Result<Self, String> {
        Ok(match data_type {
            DataType::Boolean => Builder::Bool(BooleanBuilder::new()),
            DataType::Int8 => Builder::Int8(Int8Builder::new()),
            DataType::Int16 => Builder::Int16(Int16Builder::new()),
            DataType::Int32 => Builder::Int32(Int32Builder::new()),
            DataType::Int64 => Builder::Int64(Int64Builder::new()),
            DataType::Float32 => Builder::Float32(Float32Builder::new()),
            DataType::Float64 => Builder::Float64(Float64Builder::new()),
            DataType::Decimal128(precision, scale) => {
                let builder = Decimal128Builder::new().with_precision_and_scale(*precision, *scale);
                Builder::Decimal(builder.map_err(|e| e.to_string())?, *precision, *scale)
            }
            DataType::Date32 => Builder::Date(Date32Builder::new()),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                Builder::Micros(TimestampMicrosecondBuilder::new().with_timezone_opt(zone.clone()))
            }
            DataType::Timestamp(TimeUnit::Millisecond, zone) => {
                Builder::Millis(TimestampMillisecondBuilder::new().with_timezone_opt(zone.clone()))
            }
            DataType::Utf8 => Builder::Text(StringBuilder::new()),
            DataType::Binary => Builder::Binary(BinaryBuilder::new()),
            DataType::Struct(fields) => Builder::Struct(Box::new(Record::new(path, fields)?)),
            DataType::List(field) => Builder::List {
                item: Box::new(Builder::new(&format!("{path}.element"), field.data_type())?),
                field: Arc::clone(field),
                offsets: vec![0],
                count: 0,
                nulls: NullBufferBuilder::new(0),
            },
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(pair) if pair.len() == 2 && pair[0].data_type() == &DataType::Utf8 => Builder::Map {
                    entries: Arc::clone(entries),
                    key: StringBuilder::new(),
                    value: Box::new(Builder::new(&format!("{path}.value"), pair[1].data_type())?),
                    offsets: vec![0],
                    count: 0,
                    nulls: NullBufferBuilder::new(0),
                },
                _ => return Err(format!("`{path}` is a map whose keys are no text")),
            },
            other => return Err(format!("`{path}` is {other}, which no value of JSON is")),
        })
    }

    /// Appends a value; one that is none of the type is null, and the findings say so.
    pub(crate) fn append(&mut self, path: &str, value: &Value<'_>, formats: &Formats, findings: &mut Findings) {
        if matches!(value, Value::Null) {
            return self.append_null();
        }
        match self {
            Builder::Struct(record) => match value {
                Value::Object(_, fields, dropped) => {
                    findings.duplicates += u64::from(*dropped);
                    record.append(path, fields, formats, findings);
                }
                _ => {
                    findings.refuse("an object", value, path);
                    record.append_null();
                }
            },
            Builder::List { item, offsets, count, nulls, .. } => {
                if let Value::List(_, items) = value {
                    for value in items {
                        item.append(path, value, formats, findings);
                        *count += 1;
                    }
                    nulls.append_non_null();
                } else {
                    findings.refuse("a list", value, path);
                    nulls.append_null();
                }
                offsets.push(*count);
            }
            Builder::Map { key, value: inner, offsets, count, nulls, .. } => {
                if let Value::Object(_, fields, dropped) = value {
                    findings.duplicates += u64::from(*dropped);
                    for (name, value) in fields {
                        key.append_value(name);
                        inner.append(path, value, formats, findings);
                        *count += 1;
                    }
                    nulls.append_non_null();
                } else {
                    findings.refuse("an object", value, path);
                    nulls.append_null();
                }
                offsets.push(*count);
            }
            scalar => scalar.append_scalar(path, value, formats, findings),
        }
    }

    fn append_scalar(&mut self, path: &str, value: &Value<'_>, formats: &Formats, findings: &mut Findings) {
        macro_rules! append {
            ($builder:expr, $what:literal, $found:expr) => {{
                let found = $found;
                if found.is_none() {
                    findings.refuse($what, value, path);
                }
                $builder.append_option(found);
            }};
        }
        match self {
            Builder::Bool(builder) => {
                append!(builder, "a boolean", if let Value::Bool(found) = value { Some(*found) } else { None });
            }
            Builder::Int8(builder) => append!(builder, "an integer of 8 bits", whole(value)),
            Builder::Int16(builder) => append!(builder, "an integer of 16 bits", whole(value)),
            Builder::Int32(builder) => append!(builder, "an integer of 32 bits", whole(value)),
            Builder::Int64(builder) => append!(builder, "an integer of 64 bits", whole(value)),
            Builder::Float32(builder) => append!(builder, "a number", float(value, formats).map(|found| found as f32)),
            Builder::Float64(builder) => append!(builder, "a number", float(value, formats)),
            Builder::Decimal(builder, precision, scale) => {
                let found = match value {
                    Value::Number(text) => decimal(text, *precision, *scale),
                    Value::Text(text) => decimal(text.as_bytes(), *precision, *scale),
                    _ => None,
                };
                append!(builder, "a decimal of its type", found);
            }
            Builder::Date(builder) => {
                append!(builder, "a date", text(value).and_then(|text| formats.date(text.as_bytes())));
            }
            Builder::Micros(builder) => {
                let moment = text(value).and_then(|text| formats.moment(text.as_bytes()));
                append!(builder, "a timestamp", moment.map(|moment| moment.micros()));
            }
            Builder::Millis(builder) => {
                let moment = text(value).and_then(|text| formats.moment(text.as_bytes()));
                append!(builder, "a timestamp", moment.map(|moment| moment.micros().div_euclid(1000)));
            }
            // Whatever it is, its text says it.
            Builder::Text(builder) => match value {
                Value::Text(text) => builder.append_value(text),
                Value::Bool(found) => builder.append_value(if *found { "true" } else { "false" }),
                Value::Number(raw) | Value::List(raw, _) | Value::Object(raw, ..) => {
                    builder.append_value(String::from_utf8_lossy(raw));
                }
                Value::Null => builder.append_null(),
            },
            Builder::Binary(builder) => append!(builder, "bytes", text(value).map(str::as_bytes)),
            Builder::Struct(_) | Builder::List { .. } | Builder::Map { .. } => {}
        }
    }

    fn append_null(&mut self) {
        match self {
            Builder::Bool(builder) => builder.append_null(),
            Builder::Int8(builder) => builder.append_null(),
            Builder::Int16(builder) => builder.append_null(),
            Builder::Int32(builder) => builder.append_null(),
            Builder::Int64(builder) => builder.append_null(),
            Builder::Float32(builder) => builder.append_null(),
            Builder::Float64(builder) => builder.append_null(),
            Builder::Decimal(builder, ..) => builder.append_null(),
            Builder::Date(builder) => builder.append_null(),
            Builder::Micros(builder) => builder.append_null(),
            Builder::Millis(builder) => builder.append_null(),
            Builder::Text(builder) => builder.append_null(),
            Builder::Binary(builder) => builder.append_null(),
            Builder::Struct(record) => record.append_null(),
            Builder::List { offsets, count, nulls, .. } | Builder::Map { offsets, count, nulls, .. } => {
                nulls.append_null();
                offsets.push(*count);
            }
        }
    }

    /// The column so far; the builder is empty then.
    fn finish(&mut self) -> Result<ArrayRef, String> {
        Ok(match self {
            Builder::Bool(builder) => Arc::new(builder.finish()),
            Builder::Int8(builder) => Arc::new(builder.finish()),
            Builder::Int16(builder) => Arc::new(builder.finish()),
            Builder::Int32(builder) => Arc::new(builder.finish()),
            Builder::Int64(builder) => Arc::new(builder.finish()),
            Builder::Float32(builder) => Arc::new(builder.finish()),
            Builder::Float64(builder) => Arc::new(builder.finish()),
            Builder::Decimal(builder, ..) => Arc::new(builder.finish()),
            Builder::Date(builder) => Arc::new(builder.finish()),
            Builder::Micros(builder) => Arc::new(builder.finish()),
            Builder::Millis(builder) => Arc::new(builder.finish()),
            Builder::Text(builder) => Arc::new(builder.finish()),
            Builder::Binary(builder) => Arc::new(builder.finish()),
            Builder::Struct(record) => {
                let (columns, nulls, rows) = record.finish()?;
                let array = StructArray::try_new_with_length(record.fields.clone(), columns, nulls, rows);
                Arc::new(array.map_err(|e| e.to_string())?)
            }
            Builder::List { field, item, offsets, count, nulls } => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(offsets, vec![0])));
                *count = 0;
                let array = ListArray::try_new(Arc::clone(field), offsets, item.finish()?, nulls.finish());
                Arc::new(array.map_err(|e| e.to_string())?)
            }
            Builder::Map { entries, key, value, offsets, count, nulls } => {
                let DataType::Struct(pair) = entries.data_type().clone() else { return Err("no map".to_string()) };
                let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(offsets, vec![0])));
                *count = 0;
                let columns: Vec<ArrayRef> = vec![Arc::new(key.finish()), value.finish()?];
                let inner = StructArray::try_new(pair, columns, None).map_err(|e| e.to_string())?;
                let array = MapArray::try_new(Arc::clone(entries), offsets, inner, nulls.finish(), false);
                Arc::new(array.map_err(|e| e.to_string())?)
            }
        })
    }
}

fn text<'a>(value: &'a Value<'_>) -> Option<&'a str> {
    if let Value::Text(text) = value { Some(text) } else { None }
}

/// An integer, written as one or as a decimal without a fraction.
fn whole<T: TryFrom<i64>>(value: &Value<'_>) -> Option<T> {
    let Value::Number(text) = value else { return None };
    let found = integer(text).or_else(|| decimal(text, 38, 0).and_then(|found| i64::try_from(found).ok()))?;
    T::try_from(found).ok()
}

fn float(value: &Value<'_>, formats: &Formats) -> Option<f64> {
    match value {
        Value::Number(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        Value::Text(text) if **text == *formats.nan => Some(f64::NAN),
        Value::Text(text) if **text == *formats.positive_inf => Some(f64::INFINITY),
        Value::Text(text) if **text == *formats.negative_inf => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

impl Record {
    /// Builders of the fields at `path`, which is empty for the record itself.
    pub(crate) fn new(path: &str, fields: &Fields) -> Result<Self, String> {
        let inner = |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
        let columns = fields.iter().map(|field| Builder::new(&inner(field.name()), field.data_type()));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let mut lower = HashMap::new();
        for (at, field) in fields.iter().enumerate() {
            lower.entry(field.name().to_lowercase()).or_insert(at);
        }
        Ok(Record {
            exact: fields.iter().enumerate().map(|(at, field)| (field.name().clone(), at)).collect(),
            lower,
            present: vec![false; columns.len()],
            fields: fields.clone(),
            columns,
            nulls: NullBufferBuilder::new(0),
            rows: 0,
        })
    }

    /// Rows so far.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Appends an object. A column is found by its name, else by its name in another case.
    pub(crate) fn append(
        &mut self,
        path: &str,
        fields: &[(std::borrow::Cow<'_, str>, Value<'_>)],
        formats: &Formats,
        findings: &mut Findings,
    ) {
        self.present.fill(false);
        for (key, value) in fields {
            let at = self.exact.get(key.as_ref()).or_else(|| self.lower.get(&key.to_lowercase())).copied();
            let Some(at) = at else {
                findings.unknown += 1;
                findings.unknown_key.get_or_insert_with(|| key.to_string());
                continue;
            };
            if self.present[at] {
                // The same name in two cases.
                findings.duplicates += 1;
                continue;
            }
            self.present[at] = true;
            let name = self.fields[at].name();
            match path {
                "" => self.columns[at].append(name, value, formats, findings),
                path => self.columns[at].append(&format!("{path}.{name}"), value, formats, findings),
            }
        }
        for (column, present) in self.columns.iter_mut().zip(&self.present) {
            if !present {
                column.append_null();
            }
        }
        self.nulls.append_non_null();
        self.rows += 1;
    }

    /// Appends a row of nothing.
    pub(crate) fn append_null(&mut self) {
        self.columns.iter_mut().for_each(Builder::append_null);
        self.nulls.append_null();
        self.rows += 1;
    }

    /// The columns so far, and how many rows they have; the record is empty then.
    pub(crate) fn finish(&mut self) -> Result<(Vec<ArrayRef>, Option<arrow::buffer::NullBuffer>, usize), String> {
        let columns = self.columns.iter_mut().map(Builder::finish).collect::<Result<Vec<_>, _>>()?;
        Ok((columns, self.nulls.finish(), std::mem::take(&mut self.rows)))
    }
}
