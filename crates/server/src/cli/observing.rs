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
