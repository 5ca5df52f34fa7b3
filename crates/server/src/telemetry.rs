// SPDX-License-Identifier: Apache-2.0
//! Logs and metrics of the process.

use tracing_subscriber::EnvFilter;

/// Sends logs to standard error: `TRIBUTARY_LOG` filters them (default: warnings), JSON lines when `json` is set.
pub fn init_logs(json: bool) {
    let filter = EnvFilter::try_from_env("TRIBUTARY_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second initialisation, as in tests, keeps the first.
    let _ = if json { logs.json().try_init() } else { logs.try_init() };
}
