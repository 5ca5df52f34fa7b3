// SPDX-License-Identifier: Apache-2.0
//! Channels to other processes.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that vanished without closing its connection is noticed within the sum of both.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes on their way to a reader before it takes some: the default of 64 KiB waits for an answer after every few
/// messages of rows.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Details of an error travel in a header; see [`crate::fault`].
const HEADER_LIMIT: u32 = 64 << 10;

/// A text that is no address of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{address}` is not the address of a server: {what}; write it as http://HOST:PORT")]
pub struct AddressError {
    /// The refused text.
    pub address: String,
    /// What is wrong.
    pub what: String,
}

/// A channel to `address` (`http://HOST:PORT`) that connects with its first call, and again after a loss.
pub fn connect_lazily(address: &str) -> Result<Channel, AddressError> {
    let refuse = |what: &str| AddressError { address: address.to_string(), what: what.to_string() };
    if address.starts_with("https://") {
        return Err(refuse("TLS is not supported"));
    }
    if !address.starts_with("http://") {
        return Err(refuse("the scheme is missing"));
    }
    let endpoint: Endpoint = address.parse().map_err(|e: tonic::transport::Error| refuse(&e.to_string()))?;
    Ok(configure(endpoint).connect_lazy())
}

/// The settings of every channel.
pub(crate) fn configure(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_max_header_list_size(HEADER_LIMIT)
        .tcp_nodelay(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_scheme_or_with_tls_is_refused_with_the_form_it_should_have() {
        for bad in ["127.0.0.1:7373", "https://host:1", "http://", ""] {
            let refused = connect_lazily(bad).unwrap_err().to_string();
            assert!(refused.contains("http://HOST:PORT"), "{refused}");
        }
    }
}
