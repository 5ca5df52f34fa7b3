// SPDX-License-Identifier: Apache-2.0
//! Log lines that say which batch they are about: the fields of all spans around an event are on its line.

use std::fmt;

use serde_json::{Map, Value as Json};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::layer::Open;
use crate::span::{Fields, Value};

/// One JSON object a line, without nesting: `timestamp`, `level`, `target`, `message`, the fields of the event and of the
/// spans around it, `trace_id` and `span_id`. The innermost value of a name counts, and the event's own before all.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonLines;

/// A line for people: the message, then the same fields as `name=value`, without ids.
#[derive(Debug, Clone, Copy, Default)]
pub struct TextLines;

/// What a line says.
struct Line {
    message: String,
    /// The event's fields, then those of the spans, innermost first.
    fields: Fields,
    /// Trace and span.
    ids: Option<(String, String)>,
}

impl Line {
    fn of<S, N>(context: &FmtContext<'_, S, N>, event: &Event<'_>) -> Self
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
        N: for<'a> FormatFields<'a> + 'static,
    {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.take("message").map(|message| message.to_string()).unwrap_or_default();
        let mut ids = None;
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let Some(open) = extensions.get::<Open>() else { continue };
            if ids.is_none() {
                ids = Some((open.context.trace.to_string(), open.context.span.to_string()));
            }
            // What says something of the span itself is nothing for a log line.
            for (name, value) in open.fields.0.iter().filter(|(name, _)| !name.starts_with("otel.")) {
                if fields.get(name).is_none() {
                    fields.put(name, value.clone());
                }
            }
        }
        Line { message, fields, ids }
    }
}

fn timestamp() -> String {
    let mut text = String::new();
    // A clock that cannot be read leaves the place empty.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let line = Line::of(context, event);
        let mut object = Map::new();
        object.insert("timestamp".to_string(), timestamp().into());
        object.insert("level".to_string(), event.metadata().level().as_str().into());
        object.insert("target".to_string(), event.metadata().target().into());
        object.insert("message".to_string(), line.message.into());
        if let Some((trace, span)) = line.ids {
            object.insert("trace_id".to_string(), trace.into());
            object.insert("span_id".to_string(), span.into());
        }
        for (name, value) in line.fields.0 {
            // A field may be called like one of these, which stay.
            object.entry(name).or_insert_with(|| Json::from(value));
        }
        writeln!(out, "{}", Json::Object(object))
    }
}

impl<S, N> FormatEvent<S, N> for TextLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let line = Line::of(context, event);
        let level = *event.metadata().level();
        let colour = match level {
            Level::ERROR => 31,
            Level::WARN => 33,
            Level::INFO => 32,
            _ => 34,
        };
        match out.has_ansi_escapes() {
            true => write!(out, "\u{1b}[2m{}\u{1b}[0m \u{1b}[{colour}m{level:>5}\u{1b}[0m ", timestamp())?,
            false => write!(out, "{} {level:>5} ", timestamp())?,
        }
        write!(out, "{}: {}", event.metadata().target(), line.message)?;
        // Which call it is in is for programs.
        for (name, value) in line.fields.0.iter().filter(|(name, _)| !name.starts_with("rpc.")) {
            match value {
                Value::Text(text) if text.is_empty() || text.contains([' ', '"', '=', '\n', '\u{1b}']) => {
                    write!(out, " {name}={text:?}")?;
                }
                other => write!(out, " {name}={other}")?,
            }
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing::{info_span, subscriber};
    use tracing_subscriber::Registry;
    use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
    use tracing_subscriber::layer::{Layer, SubscriberExt};
    use tributary_types::{SystemClock, SystemEntropy};

    use super::*;
    use crate::{Sampling, Traces, is_ours};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is written of `work` as a process writes it: only warnings, with the fields of spans of ours.
    fn logged(json: bool, work: impl FnOnce()) -> String {
        let written = Written::default();
        let traces = Traces::new(Arc::new(SystemClock), Arc::new(SystemEntropy), Sampling::All, None);
        let out = written.clone();
        let spans = filter_fn(|metadata| metadata.is_span() && is_ours(metadata));
        let filter = EnvFilter::new("warn").or(spans);
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || out.clone());
        let lines = match json {
            true => lines.event_format(JsonLines).with_filter(filter).boxed(),
            false => lines.event_format(TextLines).with_filter(filter).boxed(),
        };
        subscriber::with_default(Registry::default().with(traces.with_filter(filter_fn(is_ours))).with(lines), work);
        let written = written.0.lock().unwrap();
        String::from_utf8(written.clone()).unwrap()
    }

    fn work() {
        let batch = info_span!("batch", pipeline = "p", batch = "p/r", instant = tracing::field::Empty);
        batch.in_scope(|| {
            tracing::info!("not wanted");
            batch.record("instant", "20250101000000001");
            info_span!("read", source = "orders", rows = 3u64, otel.kind = "client").in_scope(|| {
                tracing::warn!(file = "a b.csv", rows = 4u64, "a \"bad\"\nrecord");
            });
        });
        tracing::warn!("outside");
    }

    #[test]
    fn a_line_of_json_has_the_fields_of_all_spans_around_it_flattened() {
        let text = logged(true, work);
        let lines: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2, "{text}");
        let line = &lines[0];
        for (name, value) in [
            ("level", "WARN"),
            ("message", "a \"bad\"\nrecord"),
            ("pipeline", "p"),
            ("batch", "p/r"),
            ("instant", "20250101000000001"),
            ("source", "orders"),
            ("file", "a b.csv"),
        ] {
            assert_eq!(line[name], value, "{name} of {line}");
        }
        assert_eq!(line["rows"], 4, "the event's own value counts");
        assert_eq!((line["trace_id"].as_str().unwrap().len(), line["span_id"].as_str().unwrap().len()), (32, 16));
        assert!(line.get("otel.kind").is_none());
        assert_eq!(lines[1]["message"], "outside");
        assert!(lines[1].get("trace_id").is_none() && lines[1].get("batch").is_none(), "{}", lines[1]);
    }

    #[test]
    fn a_line_of_text_names_the_batch_and_stays_one_line() {
        let text = logged(false, work);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "the message keeps its own line break, fields have none: {text}");
        assert!(lines[0].contains(" WARN tributary_trace::lines::tests: a \"bad\""), "{text}");
        assert!(
            lines[1].ends_with(
                "record file=\"a b.csv\" rows=4 source=orders pipeline=p batch=p/r instant=20250101000000001"
            ),
            "{text}"
        );
        assert!(lines[2].ends_with("outside"), "{text}");
    }
}
