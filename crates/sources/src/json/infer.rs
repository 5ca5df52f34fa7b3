// SPDX-License-Identifier: Apache-2.0
//! Types of JSON values from a sample.

use arrow::datatypes::{DataType, Field};

use crate::json::decoder::{Place, Walk};
use crate::json::value::{Value, read};
use crate::sniff::Numbers;

/// What the values of a place could be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Nothing but null was seen.
    Nothing,
    Bool,
    Number(Numbers),
    Text,
    List(Box<Shape>),
    /// In the order in which keys appear.
    Object(Vec<(String, Shape)>),
}

impl Shape {
    fn of(value: &Value<'_>) -> Self {
        match value {
            Value::Null => Shape::Nothing,
            Value::Bool(_) => Shape::Bool,
            Value::Number(text) => {
                let mut numbers = Numbers::default();
                numbers.add(text);
                Shape::Number(numbers)
            }
            Value::Text(_) => Shape::Text,
            Value::List(_, items) => {
                let mut shape = Shape::Nothing;
                items.iter().for_each(|item| shape.merge(Shape::of(item)));
                Shape::List(Box::new(shape))
            }
            Value::Object(_, fields, _) => {
                Shape::Object(fields.iter().map(|(key, value)| (key.to_string(), Shape::of(value))).collect())
            }
        }
    }

    /// What can hold both; values of several kinds are kept as their text.
    pub(crate) fn merge(&mut self, other: Shape) {
        match (&mut *self, other) {
            (_, Shape::Nothing) | (Shape::Bool, Shape::Bool) | (Shape::Text, _) => {}
            (Shape::Nothing, other) => *self = other,
            (Shape::Number(numbers), Shape::Number(other)) => numbers.merge(&other),
            (Shape::List(item), Shape::List(other)) => item.merge(*other),
            (Shape::Object(fields), Shape::Object(other)) => {
                for (key, shape) in other {
                    match fields.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, known)) => known.merge(shape),
                        None => fields.push((key, shape)),
                    }
                }
            }
            _ => *self = Shape::Text,
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Shape::Nothing | Shape::Text => DataType::Utf8,
            Shape::Bool => DataType::Boolean,
            Shape::Number(numbers) => numbers.data_type(),
            Shape::List(item) => DataType::List(Field::new("element", item.data_type(), true).into()),
            // A struct has at least one field.
            Shape::Object(fields) if fields.is_empty() => DataType::Utf8,
            Shape::Object(_) => DataType::Struct(self.columns().into()),
        }
    }

    /// The columns of records of this shape. Of keys that differ only in case the first one is a column.
    pub(crate) fn columns(&self) -> Vec<Field> {
        let Shape::Object(fields) = self else { return Vec::new() };
        let mut columns: Vec<Field> = Vec::with_capacity(fields.len());
        for (name, shape) in fields {
            if !crate::schema::has(&columns, name) {
                columns.push(Field::new(name, shape.data_type(), true));
            }
        }
        columns
    }
}

/// Learns the shape of the first records while the text comes.
pub(crate) struct JsonSampler {
    rows: usize,
    seen: usize,
    shape: Shape,
    walk: Walk,
    buf: Vec<u8>,
    at: usize,
    limit: usize,
}

impl JsonSampler {
    /// Looks at up to `rows` records of at most `limit` bytes.
    pub(crate) fn new(rows: usize, limit: usize) -> Self {
        JsonSampler { rows, seen: 0, shape: Shape::Nothing, walk: Walk::default(), buf: Vec::new(), at: 0, limit }
    }

    /// Takes more text; `true`: enough was seen.
    pub(crate) fn push(&mut self, text: &[u8], last: bool) -> bool {
        self.buf.drain(..self.at);
        self.at = 0;
        self.buf.extend_from_slice(text);
        let mut line = 0;
        while self.seen < self.rows {
            match self.walk.go(&self.buf, &mut self.at, &mut line, last) {
                Place::More => return false,
                // Whoever reads the file says what is wrong with it.
                Place::End | Place::Other | Place::Broken(_) => return true,
                Place::Object => match read(&self.buf, self.at) {
                    Ok((value, end)) => {
                        self.shape.merge(Shape::of(&value));
                        self.seen += 1;
                        self.at = end;
                    }
                    Err(crate::json::value::Fail::More) if !last && self.buf.len() - self.at <= self.limit => {
                        self.walk.again();
                        return false;
                    }
                    Err(_) => return true,
                },
            }
        }
        true
    }

    /// The shape of what was seen.
    pub(crate) fn finish(self) -> Shape {
        self.shape
    }
}
