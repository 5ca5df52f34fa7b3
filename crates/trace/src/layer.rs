// SPDX-License-Identifier: Apache-2.0
//! The layer that makes traces of spans.

use std::sync::Arc;
use std::time::Instant;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, SpanRef};
use tributary_types::{Clock, Entropy};

use crate::context::{Baggage, SpanId, TraceContext, TraceId};
use crate::span::{Fields, FinishedSpan, Kind, Sink, SpanEvent, Value};

/// Events that are kept of one span.
const MOST_EVENTS: usize = 32;
/// Fields that say something of the span itself and are no attributes.
const KIND: &str = "otel.kind";
const NAME: &str = "otel.name";
/// A field that says that the span failed, and why.
const ERROR: &str = "error";

/// Which traces that begin here are kept. One that began elsewhere is kept where it was kept there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampling {
    /// All of them.
    All,
    /// This part, chosen by the id, so that every process chooses the same.
    Ratio(f64),
    /// None.
    Nothing,
}

impl Sampling {
    fn keeps(self, trace: TraceId) -> bool {
        match self {
            Sampling::All => true,
            Sampling::Nothing => false,
            // By the 56 bits that are random in every kind of id.
            Sampling::Ratio(part) => (trace.bits() as u64 & ((1 << 56) - 1)) < (part * (1u64 << 56) as f64) as u64,
        }
    }
}

/// Gives every span its place in a trace, and hands it on once it is over.
pub struct Traces {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    sampling: Sampling,
    sink: Option<Arc<dyn Sink>>,
}

/// A moment by both clocks: the spans of a trace in this process are placed by one, so that they fit into each other.
#[derive(Clone, Copy)]
struct Anchor {
    nanos: u64,
    at: Instant,
}

impl Anchor {
    fn nanos_of(&self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.at).as_nanos();
        self.nanos.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

/// A span that is open: kept beside it by the registry.
pub(crate) struct Open {
    pub(crate) context: TraceContext,
    parent: Option<SpanId>,
    anchor: Anchor,
    began: Instant,
    pub(crate) fields: Fields,
    events: Vec<SpanEvent>,
    dropped_events: u32,
    failed: Option<String>,
}

impl Traces {
    /// A layer whose ids come from `entropy`. Without a sink spans go nowhere, and log lines have their fields and ids.
    pub fn new(
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        sampling: Sampling,
        sink: Option<Arc<dyn Sink>>,
    ) -> Self {
        Traces { clock, entropy, sampling, sink }
    }

    fn new_span_id(&self) -> SpanId {
        loop {
            if let Some(id) = SpanId::new(self.entropy.next_u128() as u64) {
                return id;
            }
        }
    }

    fn new_trace(&self) -> TraceContext {
        loop {
            if let Some(trace) = TraceId::new(self.entropy.next_u128()) {
                return TraceContext { trace, span: self.new_span_id(), sampled: self.sampling.keeps(trace) };
            }
        }
    }

    fn open(&self, parent: Option<&Open>) -> Open {
        let now = Instant::now();
        let (context, parent, anchor) = match parent {
            Some(parent) => {
                let context = TraceContext { span: self.new_span_id(), ..parent.context };
                (context, Some(parent.context.span), parent.anchor)
            }
            None => {
                let nanos = u64::try_from(self.clock.now_millis()).unwrap_or(0).saturating_mul(1_000_000);
                (self.new_trace(), None, Anchor { nanos, at: now })
            }
        };
        Open {
            context,
            parent,
            anchor,
            began: now,
            fields: Fields::default(),
            events: Vec::new(),
            dropped_events: 0,
            failed: None,
        }
    }
}

impl Open {
    fn finish(mut self, name: &str) -> FinishedSpan {
        let kind = match self.fields.take(KIND) {
            Some(Value::Text(kind)) if kind == "server" => Kind::Server,
            Some(Value::Text(kind)) if kind == "client" => Kind::Client,
            _ => Kind::Internal,
        };
        let name = self.fields.take(NAME).map_or_else(|| name.to_string(), |name| name.to_string());
        let error = self.fields.get(ERROR).map(ToString::to_string).or(self.failed);
        FinishedSpan {
            context: self.context,
            parent: self.parent,
            name,
            kind,
            start_nanos: self.anchor.nanos_of(self.began),
            end_nanos: self.anchor.nanos_of(Instant::now()),
            attributes: self.fields.0,
            events: self.events,
            dropped_events: self.dropped_events,
            error,
        }
    }

    fn log(&mut self, mut fields: Fields, level: Level) {
        let name = fields.take("message").map(|message| message.to_string()).unwrap_or_default();
        if level == Level::ERROR && self.failed.is_none() {
            self.failed = Some(name.clone());
        }
        if self.events.len() == MOST_EVENTS {
            self.dropped_events += 1;
            return;
        }
        fields.put("level", Value::Text(level.to_string()));
        self.events.push(SpanEvent { at_nanos: self.anchor.nanos_of(Instant::now()), name, attributes: fields.0 });
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Traces {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut open = match span.parent() {
            Some(parent) => self.open(parent.extensions().get::<Open>()),
            None => self.open(None),
        };
        attributes.record(&mut open.fields);
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(&mut open.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if self.sink.is_none() {
            return;
        }
        let Some(span) = context.event_span(event) else { return };
        // Before the lock: what is recorded may log.
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            open.log(fields, *event.metadata().level());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let open = span.extensions_mut().remove::<Open>();
        if let (Some(open), Some(sink)) = (open, &self.sink)
            && open.context.sampled
        {
            sink.accept(open.finish(span.name()));
        }
    }
}

/// Where this thread is: its place in a trace, and the batch it works on. `None` outside of every span, and where nothing
/// makes traces.
pub fn current() -> Option<(TraceContext, Baggage)> {
    tracing::dispatcher::get_default(|dispatch| {
        let registry = dispatch.downcast_ref::<Registry>()?;
        let current = dispatch.current_span();
        let span = registry.span(current.id()?)?;
        let place = span.scope().find_map(|span| span.extensions().get::<Open>().map(|open| open.context))?;
        Some((place, baggage_of(&span)))
    })
}

/// The innermost value of each entry.
fn baggage_of(span: &SpanRef<'_, Registry>) -> Baggage {
    let mut baggage = Baggage::default();
    for span in span.scope() {
        let extensions = span.extensions();
        let Some(open) = extensions.get::<Open>() else { continue };
        for key in Baggage::KEYS {
            if baggage.get(key).is_none()
                && let Some(value) = open.fields.get(key)
            {
                baggage.set(key, value.to_string());
            }
        }
    }
    baggage
}

/// Puts a span that was just made below one of another process, and says in its fields which batch that works on.
pub fn join(span: &tracing::Span, parent: Option<TraceContext>, baggage: &Baggage) {
    span.with_subscriber(|(id, dispatch)| {
        let Some(registry) = dispatch.downcast_ref::<Registry>() else { return };
        let Some(span) = registry.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<Open>() else { return };
        if let Some(parent) = parent {
            open.context = TraceContext { span: open.context.span, ..parent };
            open.parent = Some(parent.span);
        }
        for key in Baggage::KEYS {
            if let Some(value) = baggage.get(key) {
                open.fields.put(key, Value::Text(value.to_string()));
            }
        }
    });
}

#[cfg(test)]
mod tests;
