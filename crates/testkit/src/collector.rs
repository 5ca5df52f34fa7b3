// SPDX-License-Identifier: Apache-2.0
//! A collector of traces, as OpenTelemetry's is: a gRPC server on a port of its own that keeps what it is sent.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tributary_rpc::proto::otlp;
use tributary_rpc::proto::otlp::any_value::Value;
use tributary_rpc::proto::otlp::trace_service_server::{TraceService, TraceServiceServer};
use tributary_rpc::{AcceptLimits, Incoming};
use tributary_security::ServerTls;

/// A span that a collector got; ids are hexadecimal.
#[derive(Debug, Clone)]
pub struct Received {
    /// Its trace.
    pub trace: String,
    /// The span itself.
    pub id: String,
    /// The span above it; empty: none.
    pub parent: String,
    /// What was done.
    pub name: String,
    /// What the process says of itself.
    pub process: BTreeMap<String, String>,
    /// What the span says.
    pub attributes: BTreeMap<String, String>,
    /// Messages logged within it.
    pub events: Vec<String>,
    /// When it began and ended, nanoseconds since the epoch.
    pub time: (u64, u64),
    /// Why it failed; empty: it did not.
    pub error: String,
    /// Headers of the request it came with.
    pub headers: BTreeMap<String, String>,
}

/// A collector. Stops when its runtime does.
pub struct Collector {
    address: SocketAddr,
    encrypted: bool,
    spans: Arc<Mutex<Vec<Received>>>,
    count: watch::Receiver<usize>,
}

struct Service {
    spans: Arc<Mutex<Vec<Received>>>,
    count: watch::Sender<usize>,
}

impl Collector {
    /// Begins to collect on a free port.
    pub async fn start() -> Self {
        Collector::start_with(None).await
    }

    /// The same, encrypted where `tls` is given.
    pub async fn start_with(tls: Option<Arc<ServerTls>>) -> Self {
        let encrypted = tls.is_some();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let (count, counted) = watch::channel(0);
        let spans = Arc::new(Mutex::new(Vec::new()));
        let service = Service { spans: Arc::clone(&spans), count };
        let serving = Server::builder()
            .add_service(TraceServiceServer::new(service).max_decoding_message_size(64 << 20))
            .serve_with_incoming(Incoming::new(listener, tls, AcceptLimits::default()));
        tokio::spawn(serving);
        Collector { address, encrypted, spans, count: counted }
    }

    /// What `--otlp-endpoint` takes.
    pub fn url(&self) -> String {
        let scheme = if self.encrypted { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// What came so far.
    pub fn spans(&self) -> Vec<Received> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until what came so far is enough, and answers it.
    pub async fn wait_for(&self, mut enough: impl FnMut(&[Received]) -> bool) -> Vec<Received> {
        let mut count = self.count.clone();
        loop {
            count.mark_unchanged();
            let spans = self.spans();
            if enough(&spans) {
                return spans;
            }
            count.changed().await.expect("the collector runs as long as the test");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(attributes: &[otlp::KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &otlp::KeyValue| match value.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::BoolValue(truth)) => truth.to_string(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        None => String::new(),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

#[async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<otlp::ExportTraceServiceRequest>,
    ) -> Result<Response<otlp::ExportTraceServiceResponse>, Status> {
        let headers = request.metadata().clone().into_headers();
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap_or("").to_string()));
        let headers: BTreeMap<String, String> = headers.collect();
        let mut got = Vec::new();
        for resource in request.into_inner().resource_spans {
            let process = resource.resource.map(|resource| texts(&resource.attributes)).unwrap_or_default();
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                got.push(Received {
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    name: span.name,
                    process: process.clone(),
                    attributes: texts(&span.attributes),
                    events: span.events.into_iter().map(|event| event.name).collect(),
                    time: (span.start_time_unix_nano, span.end_time_unix_nano),
                    error: span.status.map(|status| status.message).unwrap_or_default(),
                    headers: headers.clone(),
                });
            }
        }
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.extend(got);
        self.count.send_replace(spans.len());
        Ok(Response::new(otlp::ExportTraceServiceResponse { partial_success: None }))
    }
}
