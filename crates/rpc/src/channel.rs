// SPDX-License-Identifier: Apache-2.0
//! Channels to other processes: encrypted for `https://`, with a token and signed tickets where there are any.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_flight::{FlightData, Ticket};
use http::{HeaderValue, Request, Response, Uri, header};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::transport::{self, Endpoint};
use tower::Service;
use tributary_security::{Bound, ClientFiles, ClientTls, Role, Scope, SecretSource, Tickets};

use crate::guard::{DO_GET, DO_PUT, first_message, is_stage};

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

/// A text that is no address of a server, or one that must not be talked to as was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{address}` is not the address of a server: {what}; write it as http://HOST:PORT or https://HOST:PORT")]
pub struct AddressError {
    /// The refused text.
    pub address: String,
    /// What is wrong.
    pub what: String,
}

/// How servers are called.
#[derive(Clone, Default)]
pub struct Dial {
    /// What `https://` is spoken with; the authorities of the system when absent.
    pub tls: Option<Arc<ClientTls>>,
    /// What says who calls.
    pub token: Option<SecretSource>,
    /// What tickets between roles are signed with.
    pub tickets: Option<Tickets>,
}

/// A channel to `address` (`http://HOST:PORT`) that connects with its first call, and again after a loss.
pub fn connect_lazily(address: &str) -> Result<Channel, AddressError> {
    connect_with(address, &Dial::default())
}

/// The same, as `dial` says. A token is never sent to another machine in the clear.
pub fn connect_with(address: &str, dial: &Dial) -> Result<Channel, AddressError> {
    let refuse = |what: &str| AddressError { address: address.to_string(), what: what.to_string() };
    let encrypted = address.starts_with("https://");
    if !encrypted && !address.starts_with("http://") {
        return Err(refuse("the scheme is missing"));
    }
    let endpoint: Endpoint = address.parse().map_err(|e: transport::Error| refuse(&e.to_string()))?;
    let Some(host) = endpoint.uri().host().map(ToString::to_string) else { return Err(refuse("the host is missing")) };
    if endpoint.uri().authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(AddressError { address: "***".to_string(), what: "credentials do not belong into it".to_string() });
    }
    let endpoint = configure(endpoint);
    let inner = match encrypted {
        false if dial.token.is_some() && !is_this_machine(&host) => {
            return Err(refuse("a token would cross the network in the clear: use https://, or leave the token out"));
        }
        false => endpoint.connect_lazy(),
        true => {
            let tls = match &dial.tls {
                Some(tls) => Arc::clone(tls),
                None => Arc::new(ClientTls::open(ClientFiles::default()).map_err(|e| refuse(&e.to_string()))?),
            };
            endpoint.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| encrypt(Arc::clone(&tls), uri)))
        }
    };
    Ok(Channel { inner, token: dial.token.clone(), tickets: dial.tickets.clone() })
}

/// Whether what is sent there stays on this machine.
pub fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

async fn encrypt(
    tls: Arc<ClientTls>,
    uri: Uri,
) -> io::Result<TokioIo<tributary_security::tls::ClientStream<TcpStream>>> {
    let host = uri.host().unwrap_or_default().to_string();
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_string();
    let connect = async {
        let tcp = TcpStream::connect((bare.as_str(), uri.port_u16().unwrap_or(443))).await?;
        tcp.set_nodelay(true)?;
        tls.connect(&host, tcp).await
    };
    let within = || io::Error::new(io::ErrorKind::TimedOut, format!("no handshake within {CONNECT_TIMEOUT:?}"));
    Ok(TokioIo::new(tokio::time::timeout(CONNECT_TIMEOUT, connect).await.map_err(|_| within())??))
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

/// A channel to one process.
#[derive(Clone)]
pub struct Channel {
    inner: transport::Channel,
    token: Option<SecretSource>,
    tickets: Option<Tickets>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl From<transport::Channel> for Channel {
    fn from(inner: transport::Channel) -> Self {
        Channel { inner, token: None, tickets: None }
    }
}

impl Channel {
    /// The connection alone, for services that are not ours: neither token nor tickets go out on it.
    pub fn into_transport(self) -> transport::Channel {
        self.inner
    }

    /// The same channel, with what says who calls, and what signs tickets.
    #[must_use]
    pub fn with(mut self, token: Option<SecretSource>, tickets: Option<Tickets>) -> Self {
        (self.token, self.tickets) = (token, tickets);
        self
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, transport::Error>> + Send>>;

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), transport::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Answer {
        if let Some(token) = &self.token
            && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", token.current().expose()))
        {
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let path = request.uri().path();
        let tickets = self.tickets.clone().filter(|_| path == DO_GET || path == DO_PUT);
        let Some(tickets) = tickets else { return Box::pin(self.inner.call(request)) };
        // The one that is ready is the one that is called.
        let again = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, again);
        Box::pin(async move { inner.call(signed(request, &tickets).await).await })
    }
}

/// The request with what it redeems or brings signed, for a callee that knows the same key. What cannot be read goes as
/// it is: its callee says what is wrong.
async fn signed(request: Request<Body>, tickets: &Tickets) -> Request<Body> {
    let (parts, body) = request.into_parts();
    let bound = Bound { principal: "peer".to_string(), role: Role::Peer, scope: Scope::Any };
    let body = match first_message(body, crate::MESSAGE_LIMIT).await {
        Err(_) => Body::empty(),
        Ok((message, rest)) if parts.uri.path() == DO_GET => match Ticket::decode(message.clone()) {
            Ok(mut ticket) if !Tickets::is_signed(&ticket.ticket) => {
                ticket.ticket = tickets.sign(&bound, &ticket.ticket).into();
                rest.after(&ticket.encode_to_vec())
            }
            _ => rest.after(&message),
        },
        Ok((message, rest)) => match FlightData::decode(message.clone()) {
            Ok(mut first) if is_stage(&first) => {
                first.app_metadata = tickets.sign(&bound, &first.app_metadata).into();
                rest.after(&first.encode_to_vec())
            }
            _ => rest.after(&message),
        },
    };
    Request::from_parts(parts, body)
}

#[cfg(test)]
mod tests {
    use tributary_security::Secret;

    use super::*;

    #[test]
    fn an_address_without_a_scheme_or_host_is_refused_with_the_form_it_should_have() {
        for bad in ["127.0.0.1:7373", "https://", "http://", ""] {
            let refused = connect_lazily(bad).unwrap_err().to_string();
            assert!(refused.contains("http://HOST:PORT"), "{refused}");
        }
        let refused = connect_lazily("http://me:secretpw@host:1").unwrap_err().to_string();
        assert!(refused.contains("credentials") && !refused.contains("secretpw"), "{refused}");
    }

    #[tokio::test]
    async fn a_token_is_not_sent_to_another_machine_in_the_clear() {
        let dial = Dial { token: Some(SecretSource::Fixed(Secret::new("secret-token"))), ..Dial::default() };
        for good in ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://other.example:1"] {
            assert!(connect_with(good, &dial).is_ok(), "{good}");
        }
        for bad in ["http://other.example:1", "http://10.0.0.1:1", "http://localhost.example:1", "http://0.0.0.0:1"] {
            let refused = connect_with(bad, &dial).unwrap_err().to_string();
            assert!(refused.contains("in the clear") && !refused.contains("secret-token"), "{refused}");
        }
    }
}
