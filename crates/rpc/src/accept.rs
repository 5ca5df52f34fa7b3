// SPDX-License-Identifier: Apache-2.0
//! Connections of a server: encrypted or not, bounded in number, and closed when they say nothing.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tributary_security::ServerTls;
use tributary_security::metrics::{Refused, refused};
use tributary_security::tls::{ServerStream, peer_names};

/// Bytes that a client says at least when it begins: the preface of HTTP/2. A request of HTTP/1.1 has more.
const FIRST_WORDS: usize = 24;
/// Pause after the system could not accept a connection, as when files ran out.
const PAUSE: Duration = Duration::from_millis(100);

/// How many connections a server holds, and how long it waits for their first words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptLimits {
    /// Connections at once; further ones are closed.
    pub connections: usize,
    /// Time for the handshake of TLS, and then for the first bytes of a request.
    pub handshake: Duration,
}

impl Default for AcceptLimits {
    fn default() -> Self {
        AcceptLimits { connections: 1024, handshake: Duration::from_secs(10) }
    }
}

/// What is known of a connection; in the extensions of each of its requests.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(crate) address: TcpConnectInfo,
    /// The names in the client's certificate; `None` when it showed none.
    pub(crate) certificate: Option<Arc<[String]>>,
}

/// The connections that come in. Dropping it closes the port.
pub struct Incoming {
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
    limits: AcceptLimits,
    slots: Arc<Semaphore>,
    beginning: JoinSet<Option<Accepted>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    /// Accepts from `listener`; without `tls` nothing is encrypted.
    pub fn new(listener: TcpListener, tls: Option<Arc<ServerTls>>, limits: AcceptLimits) -> Self {
        let slots = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
        Incoming { listener, tls, limits, slots, beginning: JoinSet::new(), pause: None }
    }

    fn begin(&mut self, tcp: TcpStream, remote: SocketAddr) {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            refused(Refused::Limit);
            tracing::info!(%remote, "a connection was closed: there are as many as the server holds");
            return;
        };
        // A connection that cannot be set up so still works.
        let _ = tcp.set_nodelay(true);
        self.beginning.spawn(begin(tcp, remote, self.tls.clone(), self.limits.handshake, slot));
    }
}

async fn begin(
    tcp: TcpStream,
    remote: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    within: Duration,
    slot: OwnedSemaphorePermit,
) -> Option<Accepted> {
    let address = TcpConnectInfo { local_addr: tcp.local_addr().ok(), remote_addr: Some(remote) };
    let (io, certificate) = match tls {
        None => (Io::Plain(tcp), None),
        Some(tls) => match tokio::time::timeout(within, tls.accept(tcp)).await {
            Ok(Ok(stream)) => {
                let names = peer_names(&stream).map(Arc::from);
                (Io::Encrypted(Box::new(stream)), names)
            }
            Ok(Err(error)) => {
                refused(Refused::Handshake);
                tracing::info!(%remote, %error, "a connection was closed: its handshake failed");
                return None;
            }
            Err(_) => {
                refused(Refused::Slow);
                tracing::info!(%remote, "a connection was closed: its handshake took too long");
                return None;
            }
        },
    };
    let patience = Some((Box::pin(tokio::time::sleep(within)), FIRST_WORDS));
    Some(Accepted { io, connection: Connection { address, certificate }, patience, _slot: slot })
}

impl Stream for Incoming {
    type Item = io::Result<Accepted>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(pause) = &mut this.pause {
                if pause.as_mut().poll(cx).is_pending() {
                    break;
                }
                this.pause = None;
            }
            match this.listener.poll_accept(cx) {
                Poll::Ready(Ok((tcp, remote))) => this.begin(tcp, remote),
                Poll::Ready(Err(error)) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    this.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
                Poll::Pending => break,
            }
        }
        loop {
            match ready!(this.beginning.poll_join_next(cx)) {
                Some(Ok(Some(accepted))) => return Poll::Ready(Some(Ok(accepted))),
                Some(_) => {}
                // Nothing begins; the listener wakes.
                None => return Poll::Pending,
            }
        }
    }
}

enum Io {
    Plain(TcpStream),
    Encrypted(Box<ServerStream<TcpStream>>),
}

/// A connection that was accepted.
pub struct Accepted {
    io: Io,
    connection: Connection,
    /// Until when the first words are waited for, and how many bytes of them are missing.
    patience: Option<(Pin<Box<Sleep>>, usize)>,
    _slot: OwnedSemaphorePermit,
}

impl Connected for Accepted {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        self.connection.clone()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = match &mut this.io {
            Io::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Io::Encrypted(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
        };
        if let Some((until, missing)) = &mut this.patience {
            let read = buf.filled().len() - before;
            if read >= *missing {
                this.patience = None;
                return polled;
            }
            *missing -= read;
            if polled.is_pending() && until.as_mut().poll(cx).is_ready() {
                refused(Refused::Slow);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was said in time")));
            }
        }
        polled
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Io::Encrypted(io) => Pin::new(io.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Plain(io) => Pin::new(io).poll_write_vectored(cx, bytes),
            Io::Encrypted(io) => Pin::new(io.as_mut()).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(io) => io.is_write_vectored(),
            Io::Encrypted(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(io) => Pin::new(io).poll_flush(cx),
            Io::Encrypted(io) => Pin::new(io.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Io::Encrypted(io) => Pin::new(io.as_mut()).poll_shutdown(cx),
        }
    }
}
