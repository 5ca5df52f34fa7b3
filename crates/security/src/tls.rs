// SPDX-License-Identifier: Apache-2.0
//! Encrypted connections. Certificates and keys are read again when their files change; connections that are open keep
//! what they began with.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::watched::{LoadError, Watched, read};

pub use client::TlsStream as ClientStream;
pub use server::TlsStream as ServerStream;

/// A certificate with its key, both in PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// File of the certificate, with those between it and its authority.
    pub certificate: PathBuf,
    /// File of the key.
    pub key: PathBuf,
}

/// What a server needs.
#[derive(Debug, Clone)]
pub struct ServerFiles {
    /// Who it is.
    pub identity: Identity,
    /// Authorities of clients' certificates; none are asked for when absent.
    pub client_ca: Option<PathBuf>,
    /// Whether clients may come without a certificate, since a token will do.
    pub certificate_optional: bool,
}

/// What a client needs.
#[derive(Debug, Clone, Default)]
pub struct ClientFiles {
    /// Authorities of servers' certificates; those of the system when absent.
    pub ca: Option<PathBuf>,
    /// Who it is, for servers that ask.
    pub identity: Option<Identity>,
}

/// The encrypting side of a server.
pub struct ServerTls(Watched<Arc<ServerConfig>>);

/// The encrypting side of a client.
pub struct ClientTls(Watched<Arc<ClientConfig>>);

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let pem = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(LoadError::new(file, "it holds no certificate in PEM")),
        Ok(found) => Ok(found),
        Err(error) => Err(LoadError::new(file, format!("it is no PEM: {error}"))),
    }
}

fn key(file: &Path) -> Result<PrivateKeyDer<'static>, LoadError> {
    // The error names what is missing, never what is there.
    PrivateKeyDer::from_pem_slice(&read(file)?).map_err(|_| LoadError::new(file, "it holds no private key in PEM"))
}

fn authorities(file: &Path) -> Result<RootCertStore, LoadError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|e| LoadError::new(file, format!("it holds no usable authority: {e}")))?;
    }
    Ok(roots)
}

fn system_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // Some of what systems have is not usable; what is missing shows when a server cannot be verified.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn protocols(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect()
}

impl ServerTls {
    /// Reads the files. `alpn` are the protocols that are offered, the preferred one first.
    pub fn open(files: ServerFiles, alpn: &'static [&'static str]) -> Result<Self, LoadError> {
        let mut watched = vec![files.identity.certificate.clone(), files.identity.key.clone()];
        watched.extend(files.client_ca.clone());
        Watched::open("certificate and key", watched, move || server_config(&files, alpn)).map(ServerTls)
    }

    /// The handshake of one connection.
    pub async fn accept<IO>(&self, io: IO) -> io::Result<server::TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.0.current().as_ref().clone()).accept(io).await
    }
}

fn server_config(files: &ServerFiles, alpn: &[&str]) -> Result<Arc<ServerConfig>, LoadError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| LoadError::new(&files.identity.certificate, e))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(ca)?), provider());
            let verifier = if files.certificate_optional { verifier.allow_unauthenticated() } else { verifier };
            builder.with_client_cert_verifier(verifier.build().map_err(|e| LoadError::new(ca, e))?)
        }
    };
    let Identity { certificate, key: key_file } = &files.identity;
    let mut config = builder
        .with_single_cert(certificates(certificate)?, key(key_file)?)
        .map_err(|e| LoadError::new(certificate, format!("it does not go with {}: {e}", key_file.display())))?;
    config.alpn_protocols = protocols(alpn);
    // A resumed session would not look at the client's certificate again, which may have expired since.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The names in the certificate that a client showed; `None` when it showed none. Names are those of the extension for
/// alternative names, DNS names and URIs: that of the subject is free text.
pub fn peer_names<IO>(stream: &server::TlsStream<IO>) -> Option<Vec<String>> {
    let shown = stream.get_ref().1.peer_certificates()?.first()?;
    let Ok(parsed) = webpki::EndEntityCert::try_from(shown) else { return Some(Vec::new()) };
    Some(parsed.valid_dns_names().chain(parsed.valid_uri_names()).map(ToString::to_string).collect())
}

impl ClientTls {
    /// Reads the files.
    pub fn open(files: ClientFiles) -> Result<Self, LoadError> {
        Self::speaking(files, &["h2"])
    }

    /// The same for other protocols than gRPC's.
    pub fn speaking(files: ClientFiles, alpn: &'static [&'static str]) -> Result<Self, LoadError> {
        let identity = files.identity.iter().flat_map(|own| [own.certificate.clone(), own.key.clone()]);
        let watched = files.ca.iter().cloned().chain(identity).collect();
        Watched::open("certificate and key", watched, move || client_config(&files, alpn)).map(ClientTls)
    }

    /// The handshake of one connection to `host`, whose certificate must have that name or address.
    pub async fn connect<IO>(&self, host: &str, io: IO) -> io::Result<client::TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_string()).map_err(io::Error::other)?;
        TlsConnector::from(self.0.current().as_ref().clone()).connect(name, io).await
    }
}

fn client_config(files: &ClientFiles, alpn: &[&str]) -> Result<Arc<ClientConfig>, LoadError> {
    let roots = match &files.ca {
        Some(ca) => authorities(ca)?,
        None => system_authorities(),
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| LoadError::new(Path::new("TLS"), e))?
        .with_root_certificates(roots);
    let mut config = match &files.identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificate, key: key_file }) => builder
            .with_client_auth_cert(certificates(certificate)?, key(key_file)?)
            .map_err(|e| LoadError::new(certificate, format!("it does not go with {}: {e}", key_file.display())))?,
    };
    config.alpn_protocols = protocols(alpn);
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
