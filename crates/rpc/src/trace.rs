// SPDX-License-Identifier: Apache-2.0
//! One trace over several processes: the W3C headers `traceparent` and `baggage` go along with every call.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tonic::codegen::http::{self, HeaderMap, HeaderValue};
use tracing::Span;
use tributary_trace::{Baggage, TraceContext, current, join};

const TRACEPARENT: &str = "traceparent";
const BAGGAGE: &str = "baggage";
/// Calls that only look; a client that polls with them begins no trace each time.
const LOOKS: [&str; 6] = ["Get", "List", "Locate", "Poll", "Wait", "Watch"];

/// Has a call take its place in the current trace along. Every call of a [`crate::Channel`] does.
pub(crate) fn take_along(headers: &mut HeaderMap) {
    if let Some((place, baggage)) = current() {
        insert(headers, TRACEPARENT, &place.to_header());
        if let Some(baggage) = baggage.to_header() {
            insert(headers, BAGGAGE, &baggage);
        }
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    // Both are plain ASCII by how they are written.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Whether a method only looks.
fn only_looks(method: &str) -> bool {
    LOOKS.iter().any(|look| method.starts_with(look))
}

/// The span of a call that a server answers: a part of the caller's trace, where it has one.
pub fn server_span(request: &http::Request<()>) -> Span {
    let path = request.uri().path().trim_start_matches('/');
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let parent = header(TRACEPARENT).and_then(TraceContext::parse);
    let Some((service, method)) = path.split_once('/') else { return Span::none() };
    if service.starts_with("grpc.") || (parent.is_none() && only_looks(method)) {
        return Span::none();
    }
    let span = tracing::info_span!(
        "call",
        otel.kind = "server",
        otel.name = path,
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = method,
    );
    let baggage = header(BAGGAGE).map(Baggage::parse).unwrap_or_default();
    join(&span, parent, &baggage);
    span
}

/// A stream that is polled within a span, which lasts as long as the stream.
pub(crate) struct Within<S> {
    stream: S,
    span: Span,
}

/// Polls `stream` within the current span.
pub(crate) fn within_current<S>(stream: S) -> Within<S> {
    Within { stream, span: Span::current() }
}

impl<S: Stream + Unpin> Stream for Within<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let span = self.span.clone();
        let _entered = span.enter();
        Pin::new(&mut self.stream).poll_next(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_polls_begins_no_trace_and_one_that_does_something_does() {
        for method in ["GetBatch", "ListBatches", "WatchBatch", "WaitBatch", "PollFlightInfo", "Locate"] {
            assert!(only_looks(method), "{method}");
        }
        for method in ["RunBatch", "CancelBatch", "PausePipeline", "DoGet", "PlanWindow"] {
            assert!(!only_looks(method), "{method}");
        }
    }
}
