// SPDX-License-Identifier: Apache-2.0
//! Logs and metrics of the process.

use std::io::IsTerminal;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

/// Upper bounds of durations, in seconds: from one quick call to the longest batch.
const SECONDS: [f64; 14] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0];
const UPKEEP: Duration = Duration::from_secs(5);
/// Always 1, with the label `version`.
const BUILD_INFO: &str = "tributary_build_info";
/// Metrics of the process itself, whichever roles run in it.
const HELP: [(&str, &str); 1] = [(BUILD_INFO, "Always 1; the label says which version runs")];

/// Sends logs to standard error: `TRIBUTARY_LOG` filters them (default: warnings), JSON lines when `json` is set.
pub fn init_logs(json: bool) {
    let filter = EnvFilter::try_from_env("TRIBUTARY_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let logs = logs.with_ansi(std::io::stderr().is_terminal());
    // A second initialisation, as in tests, keeps the first.
    let _ = if json { logs.json().try_init() } else { logs.try_init() };
}

/// Records metrics from now on; roles that are made later register theirs. `None` when another recorder is there
/// already. Must be called in a runtime.
pub fn record_metrics() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_string()), &SECONDS);
    let handle = match builder.map_err(|e| e.to_string()).and_then(|b| b.install_recorder().map_err(|e| e.to_string()))
    {
        Ok(handle) => handle,
        Err(error) => {
            tracing::warn!(error, "metrics are not recorded");
            return None;
        }
    };
    for (name, help) in documented() {
        // The exporter keeps help texts by name, whatever the kind.
        metrics::describe_counter!(name, help);
    }
    metrics::gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Some(handle)
}

/// Name and help text of every metric that a process can have, role by role. A page of the documentation lists them.
pub fn documented() -> Vec<(&'static str, &'static str)> {
    let roles = [
        HELP.as_slice(),
        tributary_security::metrics::HELP.as_slice(),
        tributary_coordinator::metrics::HELP.as_slice(),
        tributary_coordinator::source_metrics::HELP.as_slice(),
        tributary_timeline::metrics::HELP.as_slice(),
        tributary_sources::metrics::HELP.as_slice(),
        tributary_checkpoint::metrics::HELP.as_slice(),
        tributary_merge::metrics::HELP.as_slice(),
        tributary_writer::metrics::HELP.as_slice(),
        tributary_rpc::flight::metrics::HELP.as_slice(),
    ];
    roles.into_iter().flatten().copied().collect()
}

/// Name and help text of each metric that is kept for every source of a pipeline.
pub fn source_metrics() -> &'static [(&'static str, &'static str)] {
    &tributary_coordinator::source_metrics::HELP
}
