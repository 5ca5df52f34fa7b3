// SPDX-License-Identifier: Apache-2.0
//! Names of the metrics of a server's edge, with their help texts.

use crate::denied::REASONS;

/// Requests that were refused before any role saw them, by reason.
pub const DENIED: &str = "tributary_security_denied_total";
/// Connections that were closed before a request, by what was wrong.
pub const CONNECTIONS_REFUSED: &str = "tributary_security_connections_refused_total";
/// Times that changed files were read again, by result.
pub const RELOADS: &str = "tributary_security_reloads_total";

/// Every metric with its help text.
pub const HELP: [(&str, &str); 3] = [
    (DENIED, "Requests that were refused before any role saw them, by reason"),
    (CONNECTIONS_REFUSED, "Connections that were closed before they brought a request, by cause"),
    (RELOADS, "Times that files of certificates, keys or principals changed, by whether they could be read again"),
];

/// What ends a connection before it brings a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There are as many as the server holds.
    Limit,
    /// No handshake of TLS came about.
    Handshake,
    /// Nothing was said in time.
    Slow,
}

impl Refused {
    const ALL: [Refused; 3] = [Refused::Limit, Refused::Handshake, Refused::Slow];

    fn as_str(self) -> &'static str {
        match self {
            Refused::Limit => "limit",
            Refused::Handshake => "handshake",
            Refused::Slow => "slow",
        }
    }
}

/// Registers the series at zero.
pub fn register() {
    for reason in REASONS {
        ::metrics::counter!(DENIED, "reason" => reason).increment(0);
    }
    for cause in Refused::ALL {
        ::metrics::counter!(CONNECTIONS_REFUSED, "cause" => cause.as_str()).increment(0);
    }
    for result in ["done", "failed"] {
        ::metrics::counter!(RELOADS, "outcome" => result).increment(0);
    }
}

/// Counts a refused request.
pub fn denied(reason: &'static str) {
    ::metrics::counter!(DENIED, "reason" => reason).increment(1);
}

/// Counts a refused connection.
pub fn refused(cause: Refused) {
    ::metrics::counter!(CONNECTIONS_REFUSED, "cause" => cause.as_str()).increment(1);
}

pub(crate) fn reloaded(done: bool) {
    ::metrics::counter!(RELOADS, "outcome" => if done { "done" } else { "failed" }).increment(1);
}
