// SPDX-License-Identifier: Apache-2.0
//! Logs, traces and metrics of the process.

pub(crate) mod bars;
mod logs;
mod otlp;
mod otlp_settings;

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tributary_trace::{Sampling, Sink};
use tributary_types::{Clock as _, Entropy as _, SystemClock, SystemEntropy};

use crate::cli::TelemetryArgs;

use self::otlp::Exporter;
use self::otlp_settings::OtlpSettings;

/// Upper bounds of durations, in seconds: from one quick call to the longest batch.
const SECONDS: [f64; 14] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0];
const UPKEEP: Duration = Duration::from_secs(5);
/// Always 1, with the label `version`.
const BUILD_INFO: &str = "tributary_build_info";
/// When it started.
const STARTED: &str = "tributary_process_start_timestamp_seconds";
/// Metrics of the process itself, whichever roles run in it.
const HELP: [(&str, &str); 2] = [
    (BUILD_INFO, "Always 1; the label says which version runs"),
    (STARTED, "When the process started, seconds since the epoch"),
];

/// Time that the spans of the last batch have to be sent when the process ends.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Logs and traces of the process, as long as it lives.
#[derive(Default)]
pub struct Telemetry {
    exporter: Option<Exporter>,
}

impl Telemetry {
    /// Begins to log, and to send traces where they are wanted. `command` is what runs. Must be called in a runtime.
    ///
    /// # Errors
    /// Says what is wrong with `--otlp-endpoint`. A wrong variable of the environment is said in the log, and no reason
    /// for a batch not to run.
    pub fn start(args: &TelemetryArgs, command: &str) -> Result<Self, String> {
        let own = [
            ("service.name", "tributary".to_string()),
            ("service.version", env!("CARGO_PKG_VERSION").to_string()),
            ("service.instance.id", format!("{:032x}", SystemEntropy.next_u128())),
            ("process.pid", std::process::id().to_string()),
            ("tributary.command", command.to_string()),
        ];
        let environment = |name: &str| std::env::var(name).ok();
        let settings = OtlpSettings::read(args.otlp_endpoint.as_deref(), &environment, &own);
        let (settings, trouble) = match settings {
            Err(problem) if args.otlp_endpoint.is_some() => return Err(problem),
            Err(problem) => (None, Some(problem)),
            Ok(settings) => (settings, None),
        };
        let sampling = settings.as_ref().map_or(Sampling::Nothing, |settings| settings.sampling);
        let (sink, exporter) = match settings.map(Exporter::start) {
            Some((queue, exporter)) => (Some(Arc::new(queue) as Arc<dyn Sink>), Some(exporter)),
            None => (None, None),
        };
        logs::init(args.log_json, sampling, sink);
        if let Some(problem) = trouble {
            tracing::warn!(problem, "no traces are sent");
        }
        Ok(Telemetry { exporter })
    }

    /// Sends the spans that are left.
    pub async fn finish(self) {
        if let Some(exporter) = self.exporter {
            exporter.finish(LAST_SPANS).await;
        }
    }
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
    metrics::gauge!(STARTED).set(SystemClock.now_millis() as f64 / 1000.0);
    otlp::register();
    crate::lineage::register();
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
        otlp::HELP.as_slice(),
        crate::lineage::HELP.as_slice(),
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
