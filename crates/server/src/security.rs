// SPDX-License-Identifier: Apache-2.0
//! From flags, files and the environment to what a server lets in, and to how servers are called.
//!
//! Secrets come from files or the environment, never from the command line. Every problem is told at once, before
//! anything listens.

pub mod args;

mod fence;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tributary_rpc::guard::GuardLayer;
use tributary_rpc::{AcceptLimits, Dial, Guard, GuardLimits};
use tributary_security::tls::Identity;
use tributary_security::{
    AuthFile, Authenticator, Certificates, ClientFiles, ClientTls, ClusterKey, LoadError, Prefixes, Secret,
    SecretSource, ServerFiles, ServerTls, Tickets, Watched,
};
use tributary_types::{Clock, Entropy};

use crate::roles::Role;
pub use args::{ClientSecurity, ServeSecurity};
pub use fence::FencedStores;

/// The token of the command line, where no file gives it.
pub const TOKEN_VARIABLE: &str = "TRIBUTARY_TOKEN";
/// The key that processes of a server share, where no file gives it.
pub const CLUSTER_KEY_VARIABLE: &str = "TRIBUTARY_CLUSTER_KEY";

/// What stands around a server.
#[derive(Clone)]
pub struct Security {
    /// What gRPC and Flight are encrypted with.
    pub tls: Option<Arc<ServerTls>>,
    /// What probes and metrics are encrypted with.
    pub http_tls: Option<Arc<ServerTls>>,
    /// What each call passes.
    pub guard: GuardLayer,
    /// How connections are accepted.
    pub accept: AcceptLimits,
    /// Requests at once on one connection.
    pub streams: u32,
    /// Connections that are older are asked to begin anew.
    pub age: Option<Duration>,
}

impl Default for Security {
    fn default() -> Self {
        let guard = Guard::open(GuardLimits::default(), Prefixes::default()).layer();
        let accept = AcceptLimits::default();
        Security { tls: None, http_tls: None, guard, accept, streams: args::STREAMS, age: None }
    }
}

/// What a server is made of, as far as security goes.
pub struct Secured {
    /// What stands around it.
    pub security: Security,
    /// How it calls the roles elsewhere.
    pub dial: Dial,
    /// Where tables may lie.
    pub prefixes: Prefixes,
}

/// What a server is about to do.
pub struct Plan<'a> {
    /// Address of gRPC and Flight.
    pub listen: SocketAddr,
    /// Address of probes and metrics.
    pub http: Option<SocketAddr>,
    /// The roles that run here.
    pub roles: &'a [Role],
    /// Whether it was told to go on although nothing protects it.
    pub insecure: bool,
    /// Where pullers are sent to reach it.
    pub advertise: Option<&'a str>,
}

/// How commands call a server. `environment` looks up a variable.
pub fn client(given: &ClientSecurity, environment: impl Fn(&str) -> Option<String>) -> Result<Dial, String> {
    let mut problems = Vec::new();
    let token = secret(given.token_file.as_deref(), TOKEN_VARIABLE, environment).unwrap_or_else(|problem| {
        problems.push(problem);
        None
    });
    let tls = client_tls(given).unwrap_or_else(|problem| {
        problems.push(problem);
        None
    });
    match problems.is_empty() {
        true => Ok(Dial { tls, token, tickets: None }),
        false => Err(problems.join("\n")),
    }
}

fn identity(given: &ClientSecurity) -> Result<Option<Identity>, String> {
    match (&given.tls_cert, &given.tls_key) {
        (Some(certificate), Some(key)) => Ok(Some(Identity { certificate: certificate.clone(), key: key.clone() })),
        (None, None) => Ok(None),
        (Some(_), None) => {
            Err("--tls-cert is given without --tls-key: a certificate is of no use without its key".into())
        }
        (None, Some(_)) => Err("--tls-key is given without --tls-cert: say whose key it is".into()),
    }
}

fn client_tls(given: &ClientSecurity) -> Result<Option<Arc<ClientTls>>, String> {
    let identity = identity(given)?;
    if identity.is_none() && given.tls_ca.is_none() {
        return Ok(None);
    }
    let files = ClientFiles { ca: given.tls_ca.clone(), identity };
    ClientTls::open(files).map(|tls| Some(Arc::new(tls))).map_err(|e| e.to_string())
}

fn secret(
    file: Option<&Path>,
    variable: &str,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<SecretSource>, String> {
    match (file, environment(variable)) {
        (Some(file), _) => SecretSource::file(file).map(Some).map_err(|e| e.to_string()),
        (None, Some(text)) if !text.trim().is_empty() => Ok(Some(SecretSource::Fixed(Secret::new(&text)))),
        (None, _) => Ok(None),
    }
}

/// Everything around a server.
pub fn server(
    client: &ClientSecurity,
    given: &ServeSecurity,
    plan: &Plan<'_>,
    clock: Arc<dyn Clock>,
    entropy: &dyn Entropy,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Secured, String> {
    let mut problems = Problems(Vec::new());
    let identity = problems.take(identity(client)).flatten();
    let cluster = problems.take(cluster_key(given.cluster_key_file.as_deref(), environment)).flatten();
    let file = given.auth_file.clone().map(|path| watched_file(&path));
    let file = file.and_then(|opened| problems.take(opened.map_err(|e| e.to_string())));
    let prefixes =
        problems.take(Prefixes::new(&given.allow_url_prefix).map_err(|e| format!("--allow-url-prefix: {e}")));
    problems.0.extend(contradictions(&Facts::of(client, given, plan, cluster.is_some())));
    let server_tls = |optional: bool, client_ca: Option<PathBuf>, alpn| {
        let identity = identity.clone()?;
        Some(ServerTls::open(ServerFiles { identity, client_ca, certificate_optional: optional }, alpn).map(Arc::new))
    };
    // With a file of principals or a shared key, a token will do where there is no certificate.
    let optional = given.auth_file.is_some() || cluster.is_some();
    let tls = server_tls(optional, given.tls_client_ca.clone(), &["h2"]);
    let tls = tls.and_then(|opened| problems.take(opened.map_err(|e| e.to_string())));
    // Probes have no certificate.
    let http_tls =
        server_tls(true, None, &["h2", "http/1.1"]).and_then(|opened| problems.take(opened.map_err(|e| e.to_string())));
    let peers_tls = problems.take(client_tls(client)).flatten();
    let (Some(prefixes), true) = (prefixes, problems.0.is_empty()) else { return Err(problems.0.join("\n")) };

    let lifetime = given.ticket_lifetime.0;
    let asks = given.auth_file.is_some() || given.tls_client_ca.is_some() || cluster.is_some();
    let tickets = match &cluster {
        Some(key) => Tickets::shared(key, lifetime, Arc::clone(&clock)),
        None => Tickets::of_process(seed(entropy), lifetime, Arc::clone(&clock)),
    };
    let certificates = match (&given.tls_client_ca, &given.auth_file) {
        (None, _) => Certificates::Ignored,
        (Some(_), None) => Certificates::Everything,
        (Some(_), Some(_)) => Certificates::Listed,
    };
    let dial = Dial {
        tls: peers_tls,
        token: cluster.as_ref().map(|key| SecretSource::Fixed(key.token().clone())),
        tickets: cluster.is_some().then(|| tickets.clone()),
    };
    let guard = Guard::open(given.guard_limits(), prefixes.clone());
    let guard = match asks {
        true => guard.asking(Authenticator::new(file, cluster, certificates, clock), tickets),
        false => guard,
    };
    let security = Security {
        tls,
        http_tls,
        guard: guard.layer(),
        accept: given.accept_limits(),
        streams: given.max_requests_per_connection,
        age: Some(given.max_connection_age.0).filter(|age| !age.is_zero()),
    };
    Ok(Secured { security, dial, prefixes })
}

struct Problems(Vec<String>);

impl Problems {
    fn take<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }
}

fn watched_file(path: &Path) -> Result<Arc<Watched<AuthFile>>, LoadError> {
    let file = path.to_path_buf();
    Watched::open("principals", vec![file.clone()], move || AuthFile::load(&file)).map(Arc::new)
}

fn cluster_key(
    file: Option<&Path>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<ClusterKey>, String> {
    let Some(source) = secret(file, CLUSTER_KEY_VARIABLE, environment)? else { return Ok(None) };
    let where_from = file.map_or(CLUSTER_KEY_VARIABLE.to_string(), |file| file.display().to_string());
    let short =
        || format!("{where_from}: the shared key is shorter than 32 characters: make one with `openssl rand -hex 32`");
    ClusterKey::new(&source.current()).map(Some).ok_or_else(short)
}

fn seed(entropy: &dyn Entropy) -> [u8; 32] {
    let mut seed = [0; 32];
    seed[..16].copy_from_slice(&entropy.next_u128().to_be_bytes());
    seed[16..].copy_from_slice(&entropy.next_u128().to_be_bytes());
    seed
}

/// What decides whether a server may start.
struct Facts<'a> {
    listen: SocketAddr,
    http: Option<SocketAddr>,
    encrypts: bool,
    /// Takes tokens.
    tokens: bool,
    /// Asks for certificates.
    certificates: bool,
    has_principals: bool,
    has_cluster_key: bool,
    roles: &'a [Role],
    insecure: bool,
    advertise: Option<&'a str>,
}

impl<'a> Facts<'a> {
    fn of(client: &ClientSecurity, given: &ServeSecurity, plan: &Plan<'a>, has_cluster_key: bool) -> Self {
        Facts {
            listen: plan.listen,
            http: plan.http,
            encrypts: client.tls_cert.is_some(),
            tokens: given.auth_file.is_some() || has_cluster_key,
            certificates: given.tls_client_ca.is_some(),
            has_principals: given.auth_file.is_some(),
            has_cluster_key,
            roles: plan.roles,
            insecure: plan.insecure,
            advertise: plan.advertise,
        }
    }
}

/// Why a server must not start like this, a sentence each.
fn contradictions(facts: &Facts<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let reachable = !facts.listen.ip().is_loopback();
    let asks = facts.tokens || facts.certificates;
    let apart = !Role::ALL.iter().all(|role| facts.roles.contains(role));
    if reachable && !facts.encrypts && facts.tokens {
        found.push(format!(
            "--listen {}: tokens would cross the network in the clear: encrypt with --tls-cert and --tls-key, or listen on \
             127.0.0.1 behind something that does; --insecure does not change this",
            facts.listen
        ));
    } else if reachable && !facts.insecure && !(facts.encrypts && asks) {
        found.push(format!(
            "--listen {}: other machines can reach this address, and the server neither {}, so anybody there could read and \
             write every table it can. Listen on 127.0.0.1; or encrypt with --tls-cert and --tls-key, and say who may call \
             with --auth-file, --tls-client-ca or --cluster-key-file; or add --insecure if the network in front of it takes \
             care of that",
            facts.listen,
            if facts.encrypts { "knows nor asks who calls" } else { "encrypts nor asks who calls" }
        ));
    }
    if let Some(http) = facts.http.filter(|http| !http.ip().is_loopback() && !facts.encrypts && !facts.insecure) {
        found.push(format!(
            "--http-listen {http}: other machines can reach this address, and nothing is encrypted: give --tls-cert and \
             --tls-key, listen on 127.0.0.1, or add --insecure"
        ));
    }
    if facts.certificates && !facts.encrypts {
        found.push(
            "--tls-client-ca is given without --tls-cert and --tls-key: only an encrypted port sees certificates"
                .into(),
        );
    }
    if asks && facts.roles.contains(&Role::Coordinator) && !facts.has_principals && !facts.certificates {
        found.push(
            "the coordinator runs here, and only other processes of the server could call it: say who may with --auth-file or \
             --tls-client-ca"
                .into(),
        );
    }
    if asks && apart && !facts.has_cluster_key {
        found.push(
            "the roles run in several processes, which sign the tickets that they give each other: give all of them the same \
             --cluster-key-file"
                .into(),
        );
    }
    if let Some(advertise) = facts.advertise {
        found.extend(contradictions_of_advertised(facts, asks, advertise));
    }
    found
}

/// Why pullers that are sent to an address would be turned away there.
fn contradictions_of_advertised(facts: &Facts<'_>, asks: bool, advertise: &str) -> Vec<String> {
    let mut found = Vec::new();
    // A coordinator here is told the same with its own words.
    if asks && !facts.has_principals && !facts.certificates && !facts.roles.contains(&Role::Coordinator) {
        found.push(format!(
            "--advertise-address {advertise}: pullers are sent here, and only other processes of the server are known here, \
             so all of them would be refused: add the --auth-file of the coordinator, or --tls-client-ca; or leave \
             --advertise-address out, then the coordinator reads the rows for them"
        ));
    }
    let (wanted, why) = match (advertise.starts_with("grpc+tls://"), facts.encrypts) {
        (true, false) => ("grpc://", "this port does not encrypt: give --tls-cert and --tls-key, or advertise"),
        (false, true) => ("grpc+tls://", "this port encrypts (--tls-cert), and pullers would not: advertise"),
        _ => return found,
    };
    let host = advertise.split_once("://").map_or(advertise, |(_, host)| host);
    found.push(format!("--advertise-address {advertise}: {why} {wanted}{host}"));
    found
}

#[cfg(test)]
mod tests;
