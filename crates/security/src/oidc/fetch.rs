// SPDX-License-Identifier: Apache-2.0
//! What an issuer publishes, over HTTP.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tributary_types::with_causes;
use url::Url;

use super::jwt::Key;

/// Time that one answer may take.
const WITHIN: Duration = Duration::from_secs(10);
/// Largest document that is read.
const LARGEST: usize = 1 << 20;

/// Whether documents from there can be trusted: encrypted, or from this machine.
pub(super) fn is_safe(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let local = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => return false,
    };
    url.username().is_empty()
        && url.password().is_none()
        && (url.scheme() == "https" || (local && url.scheme() == "http"))
}

/// Fetches an issuer's documents.
pub(super) struct Documents(reqwest::Client);

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Documents {
    /// The issuer's certificate is checked with the authorities in `ca`; with those of the system without it.
    pub(super) fn new(ca: Option<&Path>) -> Result<Self, String> {
        // A redirection could lead to a place that was not looked at.
        let mut builder = reqwest::Client::builder().timeout(WITHIN).redirect(reqwest::redirect::Policy::none());
        if let Some(ca) = ca {
            builder = builder.tls_built_in_root_certs(false);
            let pem = std::fs::read(ca).map_err(|e| format!("{}: it cannot be read: {e}", ca.display()))?;
            let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|e| format!("{}: {e}", ca.display()))?;
            for certificate in found {
                builder = builder.add_root_certificate(certificate);
            }
        }
        builder.build().map(Documents).map_err(|e| with_causes(&e))
    }

    /// The keys that an issuer signs with now.
    pub(super) async fn keys_of(&self, issuer: &str) -> Result<Vec<Key>, String> {
        let at = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let found: Discovery =
            serde_json::from_slice(&self.get(&at).await?).map_err(|e| format!("{at} is no discovery document: {e}"))?;
        if found.issuer != issuer {
            return Err(format!("{at} is of another issuer, `{}`", found.issuer));
        }
        if !is_safe(&found.jwks_uri) {
            return Err(format!("`{}` is neither encrypted nor on this machine", found.jwks_uri));
        }
        let keys = Key::of_set(&self.get(&found.jwks_uri).await?)?;
        match keys.is_empty() {
            true => Err(format!("{} has no key for RS256 or ES256", found.jwks_uri)),
            false => Ok(keys),
        }
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let mut answer = self.0.get(url).send().await.map_err(|e| with_causes(&e))?;
        if !answer.status().is_success() {
            return Err(format!("{url} answers {}", answer.status()));
        }
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(|e| with_causes(&e))? {
            body.extend_from_slice(&part);
            if body.len() > LARGEST {
                return Err(format!("{url} answers with more than {LARGEST} bytes"));
            }
        }
        Ok(body)
    }
}
