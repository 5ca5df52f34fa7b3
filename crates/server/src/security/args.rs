// SPDX-License-Identifier: Apache-2.0
//! The flags of security.

use std::path::PathBuf;

use clap::Args;
use tributary_rpc::{AcceptLimits, GuardLimits};
use tributary_types::pipeline::{ByteSize, Span};

/// Requests at once on one connection.
pub(super) const STREAMS: u32 = 256;

/// How servers are called, and who this process is.
#[derive(Debug, Clone, Default, Args)]
pub struct ClientSecurity {
    /// File of the authorities (PEM) that the certificates of servers are checked with, for https:// addresses; those of
    /// the system when absent.
    #[arg(long, global = true, env = "TRIBUTARY_TLS_CA", value_name = "FILE", help_heading = "Security")]
    pub tls_ca: Option<PathBuf>,
    /// File of this process's certificate (PEM): of a server, or of a client where the server asks for one.
    #[arg(long, global = true, env = "TRIBUTARY_TLS_CERT", value_name = "FILE", help_heading = "Security")]
    pub tls_cert: Option<PathBuf>,
    /// File of the certificate's key (PEM).
    #[arg(long, global = true, env = "TRIBUTARY_TLS_KEY", value_name = "FILE", help_heading = "Security")]
    pub tls_key: Option<PathBuf>,
    /// File of the token that says to a server who calls; or the token itself in the variable TRIBUTARY_TOKEN.
    #[arg(long, global = true, env = "TRIBUTARY_TOKEN_FILE", value_name = "FILE", help_heading = "Security")]
    pub token_file: Option<PathBuf>,
}

/// What a server lets in.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Security")]
pub struct ServeSecurity {
    /// File of the authorities (PEM) that clients' certificates are checked with. Without --auth-file every client needs
    /// one, and may then do everything.
    #[arg(long, env = "TRIBUTARY_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// File that says who may do what (TOML): principals by token or certificate, and an issuer of tokens.
    #[arg(long, env = "TRIBUTARY_AUTH_FILE", value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// File of the key by which the processes of a server know each other and sign tickets; or the key itself in the
    /// variable TRIBUTARY_CLUSTER_KEY.
    #[arg(long, env = "TRIBUTARY_CLUSTER_KEY_FILE", value_name = "FILE")]
    pub cluster_key_file: Option<PathBuf>,
    /// A folder, on disk or by URL, below which tables and files may lie; topics are kafka://BROKERS/TOPIC. Can be given
    /// several times; in the variable they are separated by `;`. Everywhere when absent.
    #[arg(long, env = "TRIBUTARY_ALLOW_URL_PREFIX", value_name = "URL", value_delimiter = ';')]
    pub allow_url_prefix: Vec<String>,
    /// How long a ticket of Flight is good; the tickets of a pull can be renewed.
    #[arg(long, visible_alias = "tickets-valid", env = "TRIBUTARY_TICKET_LIFETIME", default_value = "1h", value_parser = span)]
    pub ticket_lifetime: Span,
    /// Connections at once, on each port.
    #[arg(long, env = "TRIBUTARY_MAX_CONNECTIONS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Requests under way at once, those that follow a batch or pull rows included.
    #[arg(long, env = "TRIBUTARY_MAX_REQUESTS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_requests: u32,
    /// Requests at once on one connection; further ones wait.
    #[arg(long, env = "TRIBUTARY_MAX_REQUESTS_PER_CONNECTION", default_value_t = STREAMS, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_requests_per_connection: u32,
    /// Size of a request of the control plane.
    #[arg(long, env = "TRIBUTARY_MAX_REQUEST_SIZE", default_value = "16MiB", value_parser = size)]
    pub max_request_size: ByteSize,
    /// Connections that are older begin anew, so that changed certificates take hold; what runs on them goes on, and a call
    /// that comes just then may have to be sent again. Never: 0s.
    #[arg(long, env = "TRIBUTARY_MAX_CONNECTION_AGE", default_value = "0s", value_parser = span)]
    pub max_connection_age: Span,
    /// Time for a handshake and the first words of a connection.
    #[arg(long, env = "TRIBUTARY_HANDSHAKE_TIMEOUT", default_value = "10s", value_parser = span)]
    pub handshake_timeout: Span,
    /// Time that rows wait for a client that does not read on.
    #[arg(long, env = "TRIBUTARY_STALL_TIMEOUT", default_value = "5m", value_parser = span)]
    pub stall_timeout: Span,
}

impl ServeSecurity {
    pub(super) fn guard_limits(&self) -> GuardLimits {
        GuardLimits {
            requests: self.max_requests as usize,
            request_size: usize::try_from(self.max_request_size.0).unwrap_or(usize::MAX),
            stall: self.stall_timeout.0,
            ..GuardLimits::default()
        }
    }

    pub(super) fn accept_limits(&self) -> AcceptLimits {
        AcceptLimits { connections: self.max_connections as usize, handshake: self.handshake_timeout.0 }
    }
}

fn span(text: &str) -> Result<Span, String> {
    text.parse()
}

fn size(text: &str) -> Result<ByteSize, String> {
    text.parse()
}
