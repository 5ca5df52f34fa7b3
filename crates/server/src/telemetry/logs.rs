// SPDX-License-Identifier: Apache-2.0
//! What the process logs, and what becomes of its spans.

use std::io::IsTerminal;
use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;
use tributary_trace::{JsonLines, Sampling, Sink, TextLines, Traces, is_ours};
use tributary_types::{SystemClock, SystemEntropy};

use super::bars::StandardError;

/// Sends logs to standard error: `TRIBUTARY_LOG` filters them (default: warnings), JSON lines when `json` is set. Each
/// line has the fields of the spans around it. Spans that are over go to `sink`.
pub(super) fn init(json: bool, sampling: Sampling, sink: Option<Arc<dyn Sink>>) {
    let wanted = EnvFilter::try_from_env("TRIBUTARY_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // Whatever is logged, its spans say what it is about.
    let spans = filter_fn(|metadata| metadata.is_span() && is_ours(metadata)).with_max_level_hint(LevelFilter::INFO);
    let filter = wanted.or(spans);
    let lines = tracing_subscriber::fmt::layer().with_writer(StandardError);
    let lines = match json {
        true => lines.with_ansi(false).event_format(JsonLines).with_filter(filter).boxed(),
        false => lines.with_ansi(std::io::stderr().is_terminal()).event_format(TextLines).with_filter(filter).boxed(),
    };
    let traces = Traces::new(Arc::new(SystemClock), Arc::new(SystemEntropy), sampling, sink);
    let traces = traces.with_filter(filter_fn(is_ours).with_max_level_hint(LevelFilter::INFO));
    // A second initialisation, as in tests, keeps the first.
    let _ = Registry::default().with(traces).with(lines).try_init();
}
