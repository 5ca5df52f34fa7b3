// SPDX-License-Identifier: Apache-2.0
//! Roles behind a port: gRPC, Flight, health and reflection on one, probes and metrics over HTTP on another.
//!
//! `/readyz` tells whether the roles that this process calls elsewhere serve. They are asked in the background, so that
//! the probe answers from memory.
//!
//! Stopping: health says NOT_SERVING and `/readyz` fails, new batches are turned away, those that run may finish within
//! the drain time. Those that did not are cancelled, and their instants rolled back; no cursor moved. Then the ports
//! close.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};
use tributary_api::coordinator::Coordinator;
use tributary_api::timeline::Timeline;
use tributary_rpc::{CheckpointServer, CoordinatorServer, FlightServer, Incoming, MergeServer, TimelineServer, proto};
use tributary_types::BatchName;

use crate::gate::Gate;
use crate::http::{self, Readiness};
use crate::peers::{Peer, Probing};
use crate::roles::{Hosted, Role};
use crate::security::Security;

/// Time that open connections have to end by themselves once nothing runs any more.
const CLOSING: Duration = Duration::from_secs(2);
/// Bytes of the headers of a request. A token of an issuer has a few thousand.
const HEADER_LIMIT: u32 = 32 << 10;
const COORDINATOR_SERVICE: &str = "tributary.coordinator.v1.CoordinatorService";
pub(crate) const FLIGHT_SERVICE: &str = "arrow.flight.protocol.FlightService";

/// Where to serve.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address of gRPC and Flight; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Address of the probes and metrics; `None`: not served.
    pub http: Option<SocketAddr>,
    /// Metrics of the process.
    pub metrics: Option<PrometheusHandle>,
    /// Roles elsewhere that those of this process call.
    pub peers: Vec<Peer>,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The descriptions of the services are unusable.
    #[error("the services cannot be described for reflection")]
    Reflection(#[source] tonic_reflection::server::Error),
}

/// A port that is served.
type Serving = JoinHandle<Result<(), tonic::transport::Error>>;

/// A running server.
pub struct Server {
    address: SocketAddr,
    http_address: Option<SocketAddr>,
    gate: Option<Arc<Gate>>,
    services: Vec<&'static str>,
    /// Whether calls of other processes run here that no batch of this one waits for.
    serves_others: bool,
    readiness: Readiness,
    health: HealthReporter,
    stop: watch::Sender<bool>,
    probing: Probing,
    grpc: Serving,
    http: Option<Serving>,
}

/// How a server stopped.
#[derive(Debug)]
pub struct Stopped {
    /// Batches that still ran when the drain time was over.
    pub unfinished: Vec<BatchName>,
}

/// Serves the roles of this process without asking anybody who they are. Requests are answered when this returns.
pub async fn start(hosted: Hosted, options: Options) -> Result<Server, Error> {
    start_secured(hosted, options, Security::default()).await
}

/// The same behind what `security` says.
pub async fn start_secured(hosted: Hosted, options: Options, security: Security) -> Result<Server, Error> {
    tributary_security::metrics::register();
    let (stop, stopped) = watch::channel(false);
    let gate = hosted.coordinator.clone().map(|coordinator| Arc::new(Gate::new(coordinator)));
    let readiness = Readiness::default();
    let serves_others = hosted.coordinator.is_none();
    let services = services_of(&hosted);
    let (health, health_service) = tonic_health::server::health_reporter();
    for service in &services {
        health.set_service_status(service, ServingStatus::Serving).await;
    }
    let routes = Routes::new(health_service).add_service(reflection(&services)?);
    let routes = add_roles(routes, hosted, gate.as_ref());

    let (address, listener) = bind(options.listen).await?;
    let incoming = Incoming::new(listener, security.tls.clone(), security.accept);
    let grpc = builder(&security)
        .layer(security.guard.clone())
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, told(stopped.clone()));
    let grpc = tokio::spawn(grpc);
    let (http_address, http) = match options.http {
        None => (None, None),
        Some(wanted) => {
            let (address, serving) = serve_http(wanted, &readiness, options.metrics, &security, stopped).await?;
            (Some(address), Some(serving))
        }
    };
    let probing = Probing::start(options.peers, readiness.clone());
    readiness.set_serving(true);
    Ok(Server { address, http_address, gate, services, serves_others, readiness, health, stop, probing, grpc, http })
}

/// Describes `services` to clients that ask.
fn reflection(services: &[&'static str]) -> Result<ServerReflectionServer<impl ServerReflection + use<>>, Error> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let shown = services.iter().chain(["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"].iter());
    shown
        .filter(|service| **service != FLIGHT_SERVICE)
        .fold(builder, |builder, service| builder.with_service_name(*service))
        .build_v1()
        .map_err(Error::Reflection)
}

/// The services of the roles that run here; calls of the coordinator go through the gate.
fn add_roles(mut routes: Routes, hosted: Hosted, gate: Option<&Arc<Gate>>) -> Routes {
    let mut flight = FlightServer::new();
    if let Some(gate) = gate {
        let gated: Arc<dyn Coordinator> = Arc::clone(gate) as Arc<dyn Coordinator>;
        routes = routes.add_service(CoordinatorServer::new(Arc::clone(&gated)));
        flight = flight.with_coordinator(gated);
    }
    if let Some(readers) = hosted.readers() {
        let timeline: Arc<dyn Timeline> = Arc::new(readers);
        routes = routes.add_service(TimelineServer::new(Arc::clone(&timeline)));
        flight = flight.with_timeline(timeline);
    }
    if let Some(checkpoints) = hosted.checkpoints {
        routes = routes.add_service(CheckpointServer::new(checkpoints));
    }
    if let Some(merge) = hosted.merge {
        routes = routes.add_service(MergeServer::new(merge));
    }
    if let Some(writer) = hosted.writer {
        flight = flight.with_writer(writer);
    }
    routes.add_service(flight.into_service())
}

/// Serves probes and metrics.
async fn serve_http(
    wanted: SocketAddr,
    readiness: &Readiness,
    metrics: Option<PrometheusHandle>,
    security: &Security,
    stopped: watch::Receiver<bool>,
) -> Result<(SocketAddr, Serving), Error> {
    let (address, listener) = bind(wanted).await?;
    let routes = Routes::from(http::routes(readiness.clone(), metrics));
    let incoming = Incoming::new(listener, security.http_tls.clone(), security.accept);
    let serving =
        builder(security).accept_http1(true).add_routes(routes).serve_with_incoming_shutdown(incoming, told(stopped));
    Ok((address, tokio::spawn(serving)))
}

/// The gRPC services of the roles that run here.
fn services_of(hosted: &Hosted) -> Vec<&'static str> {
    let mut services: Vec<&'static str> = hosted.roles().into_iter().filter_map(service_of).collect();
    // Tables and files are read through one service.
    services.sort_unstable();
    services.dedup();
    services.push(FLIGHT_SERVICE);
    services
}

/// The gRPC service of a role. The writer has none: it is served over Flight.
pub(crate) fn service_of(role: Role) -> Option<&'static str> {
    match role {
        Role::Timeline | Role::Sources => Some("tributary.timeline.v1.TimelineService"),
        Role::Checkpoint => Some("tributary.checkpoint.v1.CheckpointService"),
        Role::Merge => Some("tributary.merge.v1.MergeService"),
        Role::Writer => None,
        Role::Coordinator => Some(COORDINATOR_SERVICE),
    }
}

/// The limits of every port.
fn builder(security: &Security) -> tonic::transport::Server {
    let builder = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_max_header_list_size(HEADER_LIMIT)
        .max_concurrent_streams(security.streams);
    match security.age {
        Some(age) => builder.max_connection_age(age),
        None => builder,
    }
}

async fn bind(address: SocketAddr) -> Result<(SocketAddr, TcpListener), Error> {
    let fail = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok((bound, listener))
}

async fn told(mut stopped: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stopped.wait_for(|stop| *stop).await;
}

impl Server {
    /// Where gRPC and Flight are served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where probes and metrics are served.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Waits for the server to end without having been told to, which it never should.
    pub async fn ended(&mut self) -> String {
        match (&mut self.grpc).await {
            Ok(Ok(())) => "the server ended".to_string(),
            Ok(Err(error)) => format!("the server failed: {error}"),
            Err(error) => format!("the server failed: {error}"),
        }
    }

    /// Stops: see the module's documentation.
    pub async fn stop(self, drain: Duration) -> Stopped {
        let began = Instant::now();
        for service in self.services.iter().chain([&""]) {
            self.health.set_service_status(service, ServingStatus::NotServing).await;
        }
        self.readiness.set_serving(false);
        drop(self.probing);
        let unfinished = match &self.gate {
            Some(gate) => {
                gate.close();
                gate.drain(drain).await
            }
            None => Vec::new(),
        };
        self.stop.send_replace(true);
        // What runs here for a batch of another process has the drain time too.
        let left = if self.serves_others { drain.saturating_sub(began.elapsed()).max(CLOSING) } else { CLOSING };
        for task in [Some(self.grpc), self.http].into_iter().flatten() {
            let abort = task.abort_handle();
            if tokio::time::timeout(left, task).await.is_err() {
                // Clients that watch health or reflection never hang up by themselves.
                abort.abort();
            }
        }
        Stopped { unfinished }
    }
}

#[cfg(test)]
mod tests;
