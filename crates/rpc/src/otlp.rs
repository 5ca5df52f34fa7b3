// SPDX-License-Identifier: Apache-2.0
//! Spans to a collector, by OpenTelemetry's protocol over gRPC.

use std::time::Duration;

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request};
use tributary_trace::{FinishedSpan, Kind, Value};

use crate::proto::otlp as proto;
use proto::trace_service_client::TraceServiceClient;

/// A header that goes along with every request, such as a token.
pub type Header = (AsciiMetadataKey, AsciiMetadataValue);

/// Why spans did not arrive.
#[derive(Debug, thiserror::Error)]
#[error("the collector did not take spans: {message}")]
pub struct ExportError {
    /// What it said.
    pub message: String,
    /// Whether the same spans may be taken later.
    pub again: bool,
}

/// A collector.
pub struct Collector {
    calls: TraceServiceClient<Channel>,
    headers: Vec<Header>,
    /// What is known of this process.
    resource: proto::Resource,
    timeout: Duration,
}

/// A header by its name and value; `None` when they are none.
pub fn header(name: &str, value: &str) -> Option<Header> {
    Some((name.to_ascii_lowercase().parse().ok()?, value.parse().ok()?))
}

impl Collector {
    /// The collector behind a channel. `resource` says what is known of this process.
    pub fn new(channel: Channel, headers: Vec<Header>, resource: &[(String, String)], timeout: Duration) -> Self {
        let attributes = resource.iter().map(|(name, value)| attribute(name, &Value::Text(value.clone())));
        let resource = proto::Resource { attributes: attributes.collect() };
        Collector { calls: TraceServiceClient::new(channel), headers, resource, timeout }
    }

    /// Sends spans; answers how many of them were refused.
    pub async fn export(&self, spans: &[FinishedSpan]) -> Result<u64, ExportError> {
        let scope = proto::InstrumentationScope {
            name: "tributary".to_string(),
            version: env!("CARGO_PKG_VERSION").to_string(),
        };
        let scoped = proto::ScopeSpans { scope: Some(scope), spans: spans.iter().map(span_to_proto).collect() };
        let resource = Some(self.resource.clone());
        let sent = proto::ResourceSpans { resource, scope_spans: vec![scoped] };
        let mut request = Request::new(proto::ExportTraceServiceRequest { resource_spans: vec![sent] });
        request.set_timeout(self.timeout);
        for (name, value) in &self.headers {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        let mut calls = self.calls.clone();
        let answer = tokio::time::timeout(self.timeout, calls.export(request)).await;
        let answer = answer.map_err(|_| {
            let message = format!("no answer within {:?}", self.timeout);
            ExportError { message, again: true }
        })?;
        match answer {
            Ok(answer) => {
                let refused = answer.into_inner().partial_success.map_or(0, |partial| partial.rejected_spans);
                Ok(u64::try_from(refused).unwrap_or(0))
            }
            Err(status) => {
                Err(ExportError { message: tributary_types::with_causes(&status), again: is_again(&status) })
            }
        }
    }
}

/// The codes after which the protocol has a client try again.
fn is_again(status: &tonic::Status) -> bool {
    matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted
    )
}

fn attribute(name: &str, value: &Value) -> proto::KeyValue {
    use proto::any_value::Value as Any;
    let value = match value {
        Value::Text(text) => Any::StringValue(text.clone()),
        Value::Bool(truth) => Any::BoolValue(*truth),
        Value::Int(number) => Any::IntValue(*number),
        Value::Float(number) => Any::DoubleValue(*number),
    };
    proto::KeyValue { key: name.to_string(), value: Some(proto::AnyValue { value: Some(value) }) }
}

fn attributes(fields: &[(&'static str, Value)]) -> Vec<proto::KeyValue> {
    fields.iter().map(|(name, value)| attribute(name, value)).collect()
}

fn span_to_proto(span: &FinishedSpan) -> proto::Span {
    let kind = match span.kind {
        Kind::Internal => proto::span::SpanKind::Internal,
        Kind::Server => proto::span::SpanKind::Server,
        Kind::Client => proto::span::SpanKind::Client,
    };
    let events = span.events.iter().map(|event| proto::span::Event {
        time_unix_nano: event.at_nanos,
        name: event.name.clone(),
        attributes: attributes(&event.attributes),
    });
    let status = span
        .error
        .as_ref()
        .map(|error| proto::Status { message: error.clone(), code: proto::status::StatusCode::Error.into() });
    proto::Span {
        trace_id: span.context.trace.to_bytes().to_vec(),
        span_id: span.context.span.to_bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.to_bytes().to_vec()).unwrap_or_default(),
        name: span.name.clone(),
        kind: kind.into(),
        start_time_unix_nano: span.start_nanos,
        end_time_unix_nano: span.end_nanos,
        attributes: attributes(&span.attributes),
        events: events.collect(),
        dropped_events_count: span.dropped_events,
        status,
        flags: u32::from(span.context.sampled),
    }
}
