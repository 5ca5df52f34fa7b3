// SPDX-License-Identifier: Apache-2.0
//! What probes and collectors ask for over HTTP: `/livez`, `/readyz`, `/metrics`. Answers come from memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::roles::Role;

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the server takes requests and can serve them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    serving: bool,
    /// Roles elsewhere, each address with what keeps it from serving.
    peers: BTreeMap<&'static str, BTreeMap<String, Option<String>>>,
}

impl Readiness {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process takes requests.
    pub(crate) fn set_serving(&self, serving: bool) {
        self.state().serving = serving;
    }

    /// What keeps a role elsewhere from serving at an address. Of several addresses one that serves is enough.
    pub(crate) fn set_peer(&self, role: Role, address: &str, problem: Option<String>) {
        self.state().peers.entry(role.as_str()).or_default().insert(address.to_string(), problem);
    }

    /// What keeps the server from serving, a line for each; empty: nothing.
    fn problems(&self) -> String {
        let state = self.state();
        if !state.serving {
            return "stopping\n".to_string();
        }
        let down = state.peers.iter().filter(|(_, addresses)| addresses.values().all(Option::is_some));
        let problems = down.flat_map(|(role, addresses)| addresses.values().flatten().map(move |it| (role, it)));
        problems.map(|(role, problem)| format!("the {role} role is down: {problem}\n")).collect()
    }
}

/// The three paths.
pub(crate) fn routes(readiness: Readiness, metrics: Option<PrometheusHandle>) -> Router {
    let ready = move || async move {
        match readiness.problems() {
            none if none.is_empty() => (StatusCode::OK, "ready\n".to_string()),
            problems => (StatusCode::SERVICE_UNAVAILABLE, problems),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_addresses_of_a_role_one_that_serves_is_enough() {
        let readiness = Readiness::default();
        readiness.set_serving(true);
        let down = |address: &str| Some(format!("{address}: gone"));
        readiness.set_peer(Role::Timeline, "a", down("a"));
        readiness.set_peer(Role::Timeline, "b", None);
        assert_eq!(readiness.problems(), "");
        readiness.set_peer(Role::Timeline, "b", down("b"));
        assert_eq!(readiness.problems(), "the timeline role is down: a: gone\nthe timeline role is down: b: gone\n");
        readiness.set_peer(Role::Timeline, "a", None);
        assert_eq!(readiness.problems(), "");
    }
}
