// SPDX-License-Identifier: Apache-2.0
//! Arguments of what tells others about batches.

use clap::Args;

/// What every command may be told about logs and traces.
#[derive(Debug, Default, Args)]
pub struct TelemetryArgs {
    /// Logs as JSON lines on standard error; `TRIBUTARY_LOG` filters them.
    #[arg(long, global = true)]
    pub log_json: bool,
    /// Send traces to the collector at this address, `http://HOST:4317`, by OTLP over gRPC. Nowhere when absent, unless
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` says where; the other variables of OpenTelemetry count as well.
    #[arg(long, global = true)]
    pub otlp_endpoint: Option<String>,
}

/// Where a process that runs batches tells of their lineage.
#[derive(Debug, Clone, Default, Args)]
pub struct LineageArgs {
    /// Tell of each batch in events of OpenLineage: to this URL, `http://HOST:PORT`, by POST, or into this file, one event
    /// a line. Nowhere when absent, unless `OPENLINEAGE_URL` says where. A token is read from `OPENLINEAGE_API_KEY`.
    #[arg(long)]
    pub lineage: Option<String>,
    /// The namespace of pipelines in these events.
    #[arg(long, env = "OPENLINEAGE_NAMESPACE", default_value = "tributary")]
    pub lineage_namespace: String,
}
