// SPDX-License-Identifier: Apache-2.0
//! A span that is over, and where it goes.

use std::error::Error;
use std::fmt;

use tracing::field::{Field, Visit};
use tributary_types::with_causes;

use crate::context::{SpanId, TraceContext};

/// Where spans go once they are over.
pub trait Sink: Send + Sync + 'static {
    /// Takes a span. Must neither wait nor fail: a batch is under way.
    fn accept(&self, span: FinishedSpan);
}

/// A span that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedSpan {
    /// Which it is.
    pub context: TraceContext,
    /// The span that it is a part of; `None`: it begins its trace.
    pub parent: Option<SpanId>,
    /// What was done.
    pub name: String,
    /// Which side of a call it is.
    pub kind: Kind,
    /// Nanoseconds since the epoch.
    pub start_nanos: u64,
    /// Nanoseconds since the epoch.
    pub end_nanos: u64,
    /// What is known of it.
    pub attributes: Vec<(&'static str, Value)>,
    /// What was logged in it.
    pub events: Vec<SpanEvent>,
    /// Events that are left out.
    pub dropped_events: u32,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// Which side of a call a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Neither.
    #[default]
    Internal,
    /// The side that answers.
    Server,
    /// The side that asks.
    Client,
}

/// Something logged within a span.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanEvent {
    /// Nanoseconds since the epoch.
    pub at_nanos: u64,
    /// The message.
    pub name: String,
    /// What else it says.
    pub attributes: Vec<(&'static str, Value)>,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A truth.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
}

impl From<Value> for serde_json::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Text(text) => text.into(),
            Value::Bool(truth) => truth.into(),
            Value::Int(number) => number.into(),
            Value::Float(number) => number.into(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Bool(truth) => truth.fmt(f),
            Value::Int(number) => number.fmt(f),
            Value::Float(number) => number.fmt(f),
        }
    }
}

/// The fields of a span or an event, in the order in which they were given; a later value takes the place of an earlier.
#[derive(Debug, Default)]
pub(crate) struct Fields(pub(crate) Vec<(&'static str, Value)>);

impl Fields {
    pub(crate) fn put(&mut self, name: &'static str, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.remove(at).1)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), Value::Float(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), Value::Int(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let value = i64::try_from(value).map_or_else(|_| Value::Text(value.to_string()), Value::Int);
        self.put(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), Value::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), Value::Text(value.to_string()));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.put(field.name(), Value::Text(with_causes(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), Value::Text(format!("{value:?}")));
    }
}
