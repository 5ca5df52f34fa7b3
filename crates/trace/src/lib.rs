// SPDX-License-Identifier: Apache-2.0
//! One trace per batch, over all processes that work on it, and log lines that say which batch they are about.
//!
//! The code opens spans with `tracing`. [`Traces`] is the layer that gives each an id and a place in its trace, keeps its
//! fields, and hands it to a [`Sink`] once it is over. [`current`] is what goes along with a call to another process,
//! and [`join`] puts the span of that call below it there. [`JsonLines`] and [`TextLines`] write a log line with the fields
//! of all spans around it.
//!
//! Nothing in here waits or fails: a sink that has no room loses the span, and counts it.

mod context;
mod layer;
mod lines;
mod span;

pub use context::{Baggage, SpanId, TraceContext, TraceId, percent_decode};
pub use layer::{Sampling, Traces, current, join};
pub use lines::{JsonLines, TextLines};
pub use span::{FinishedSpan, Kind, Sink, SpanEvent, Value};

/// Begins the target of every span and event of ours: the name of the crate.
pub const OUR_TARGETS: &str = "tributary";

/// Whether a span or an event is one of ours, and of a level that traces and the fields of log lines are made of.
pub fn is_ours(metadata: &tracing::Metadata<'_>) -> bool {
    metadata.target().starts_with(OUR_TARGETS) && *metadata.level() <= tracing::Level::INFO
}
