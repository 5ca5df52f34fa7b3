// SPDX-License-Identifier: Apache-2.0
//! One trace over several processes: the W3C headers `traceparent` and `baggage` go along with every call.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tonic::Request;
use tonic::codegen::http;
use tonic::metadata::{MetadataMap, MetadataValue};
use tracing::Span;
use tributary_trace::{Baggage, TraceContext, current, join};

const TRACEPARENT: &str = "traceparent";
const BAGGAGE: &str = "baggage";
/// Calls that only look; a client that polls with them begins no trace each time.
const LOOKS: [&str; 3] = ["Get", "List", "Watch"];

/// A request that takes its place in the current trace along.
pub(crate) fn traced<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some((place, baggage)) = current() {
        insert(request.metadata_mut(), TRACEPARENT, &place.to_header());
        if let Some(baggage) = baggage.to_header() {
            insert(request.metadata_mut(), BAGGAGE, &baggage);
        }
    }
    request
}

fn insert(metadata: &mut MetadataMap, name: &'static str, value: &str) {
    // Both are plain ASCII by how they are written.
    if let Ok(value) = MetadataValue::try_from(value) {
        metadata.insert(name, value);
    }
}

/// The span of a call that a server answers: a part of the caller's trace, where it has one.
pub fn server_span(request: &http::Request<()>) -> Span {
    let path = request.uri().path().trim_start_matches('/');
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let parent = header(TRACEPARENT).and_then(TraceContext::parse);
    let Some((service, method)) = path.split_once('/') else { return Span::none() };
    let only_looks = LOOKS.iter().any(|look| method.starts_with(look));
    if service.starts_with("grpc.") || (parent.is_none() && only_looks) {
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
