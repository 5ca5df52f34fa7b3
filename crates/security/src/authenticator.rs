// SPDX-License-Identifier: Apache-2.0
//! From a token or a certificate to a principal.

use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use tributary_types::Clock;

use crate::auth_file::AuthFile;
use crate::denied::Denied;
use crate::oidc::{Issuer, OidcSettings};
use crate::principal::{Grant, Principal, Role};
use crate::secret::ClusterKey;
use crate::watched::Watched;

/// What a client certificate says of who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificates {
    /// Nothing: none are asked for.
    Ignored,
    /// Whoever has one may do everything, the other processes of the server included: there is no file of principals.
    Everything,
    /// What the file of principals says.
    Listed,
}

/// Finds out who calls.
pub struct Authenticator {
    file: Option<Arc<Watched<AuthFile>>>,
    cluster: Option<ClusterKey>,
    certificates: Certificates,
    clock: Arc<dyn Clock>,
    /// Keys of the issuer, kept as long as its settings stay.
    issuer: Mutex<Option<(OidcSettings, Arc<Issuer>)>>,
}

impl Authenticator {
    /// Takes the principals of `file`, the processes that have the shared key, and certificates.
    pub fn new(
        file: Option<Arc<Watched<AuthFile>>>,
        cluster: Option<ClusterKey>,
        certificates: Certificates,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Authenticator { file, cluster, certificates, clock, issuer: Mutex::new(None) }
    }

    /// Who calls. A token goes before a certificate, and one that is no good is refused whatever the certificate is.
    pub async fn authenticate(&self, token: Option<&str>, certificate: Option<&[String]>) -> Result<Principal, Denied> {
        match (token, certificate) {
            (Some(token), _) => self.of_token(token).await,
            (None, Some(names)) => self.of_certificate(names),
            (None, None) => Err(Denied::NoCredentials),
        }
    }

    async fn of_token(&self, token: &str) -> Result<Principal, Denied> {
        if let Some(cluster) = &self.cluster
            && verify_slices_are_equal(cluster.token().expose().as_bytes(), token.as_bytes()).is_ok()
        {
            return Ok(Principal::peer());
        }
        let Some(file) = self.file.as_ref().map(|file| file.current()) else { return Err(Denied::UnknownToken) };
        if let Some(found) = file.of_token(token, self.clock.now_millis())? {
            return Ok(found);
        }
        match &file.oidc {
            // Only tokens of an issuer have three parts.
            Some(settings) if token.split('.').count() == 3 => self.issuer(settings)?.verify(token).await,
            _ => Err(Denied::UnknownToken),
        }
    }

    fn of_certificate(&self, names: &[String]) -> Result<Principal, Denied> {
        let named = |name: &str| names.first().map_or(name.to_string(), Clone::clone);
        match self.certificates {
            Certificates::Ignored => Err(Denied::NoCredentials),
            Certificates::Everything => Ok(Principal {
                name: named("a certificate without a name"),
                grants: vec![Grant::everywhere(Role::Admin), Grant::everywhere(Role::Peer)],
            }),
            Certificates::Listed => {
                let file = self.file.as_ref().map(|file| file.current());
                let found = file.and_then(|file| file.of_certificate(names, self.clock.now_millis()));
                found.ok_or_else(|| Denied::UnknownCertificate { names: names.join(", ") })
            }
        }
    }

    fn issuer(&self, settings: &OidcSettings) -> Result<Arc<Issuer>, Denied> {
        let mut issuer = self.issuer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, issuer)) = issuer.as_ref()
            && known == settings
        {
            return Ok(Arc::clone(issuer));
        }
        let made = Issuer::new(settings.clone(), Arc::clone(&self.clock));
        let made = Arc::new(made.map_err(|what| Denied::NoIssuer { what })?);
        *issuer = Some((settings.clone(), Arc::clone(&made)));
        Ok(made)
    }
}
