// SPDX-License-Identifier: Apache-2.0
//! What probes and collectors ask for over HTTP: `/livez`, `/readyz`, `/metrics`. Answers come from memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the server takes requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub(crate) fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::SeqCst);
    }

    fn is_ready(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The three paths.
pub(crate) fn routes(readiness: Readiness, metrics: Option<PrometheusHandle>) -> Router {
    let ready = move || async move {
        match readiness.is_ready() {
            true => (StatusCode::OK, "ready\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
        }
    };
    let render = move || async move {
        match metrics {
            Some(handle) => ([(header::CONTENT_TYPE, METRICS_TYPE)], handle.render()).into_response(),
            None => (StatusCode::NOT_FOUND, "metrics are not recorded in this process\n").into_response(),
        }
    };
    Router::new()
        .route("/livez", get(|| async { "live\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
}
