// SPDX-License-Identifier: Apache-2.0
//! Tokens of an OpenID Connect issuer.
//!
//! The issuer says in its discovery document where its keys are. They are fetched when a token first needs them, again
//! after an hour, and when a token names a key that is not known, which is how an issuer rotates its keys; but never
//! more often than a pause allows, so that made-up key names do not become requests to the issuer. While it does not
//! answer, the keys that are known stay in use.

mod fetch;
mod jwt;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tributary_types::Clock;

use crate::auth_file::everywhere;
use crate::denied::Denied;
use crate::pattern::Pattern;
use crate::principal::{Grant, Principal, Role};
use fetch::Documents;
use jwt::{Jwt, Key};

/// Keys are fetched again after this time.
const KEYS_LIVE: Duration = Duration::from_secs(3600);
/// Clocks of issuer and server may differ by this.
const LEEWAY_SECONDS: i64 = 60;

/// Whose tokens are taken, and what they allow.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcSettings {
    /// URL of the issuer, exactly as its tokens have it.
    pub issuer: String,
    /// What tokens must be made out to.
    pub audience: String,
    /// The claim that names the principal.
    #[serde(default = "subject")]
    pub principal_claim: String,
    /// Certificates of authorities that the issuer's own is checked with; those of the system when absent.
    pub ca: Option<std::path::PathBuf>,
    /// Seconds between two requests for unknown keys.
    #[serde(default = "pause")]
    pub refresh_pause_seconds: u64,
    /// What claims allow.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

fn subject() -> String {
    "sub".to_string()
}

fn pause() -> u64 {
    30
}

/// What a claim allows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the claim; dots lead into objects.
    pub claim: String,
    /// What the claim must be, or have in its list, or among its words.
    pub value: String,
    /// What that allows.
    pub role: Role,
    /// On which pipelines.
    #[serde(default = "everywhere")]
    pub pipelines: Vec<Pattern>,
}

impl OidcSettings {
    /// What is wrong, a sentence each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !fetch::is_safe(&self.issuer) {
            problems.push(format!(
                "oidc: `issuer` is `{}`: it must be an https:// URL (http:// on this machine)",
                self.issuer
            ));
        }
        if self.audience.trim().is_empty() {
            problems.push("oidc: `audience` is empty: any token of the issuer would be good here".to_string());
        }
        if self.rules.is_empty() {
            problems.push("oidc: there is no `[[oidc.rule]]`, so its tokens allow nothing".to_string());
        }
        if self.rules.iter().any(|rule| rule.role == Role::Peer) {
            problems.push("oidc: a rule gives the role `peer`, which is for the processes of the server".to_string());
        }
        problems
    }
}

/// An issuer, with the keys that are known of it.
pub struct Issuer {
    settings: OidcSettings,
    documents: Documents,
    clock: Arc<dyn Clock>,
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Keys {
    known: Vec<Key>,
    fetched_millis: Option<i64>,
    /// The last attempt, successful or not.
    tried_millis: Option<i64>,
    /// Why the last attempt failed.
    failure: Option<String>,
}

impl Issuer {
    /// Nothing is fetched yet.
    pub fn new(settings: OidcSettings, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let documents = Documents::new(settings.ca.as_deref())?;
        Ok(Issuer { settings, documents, clock, keys: Mutex::default() })
    }

    /// Who has the token.
    pub async fn verify(&self, token: &str) -> Result<Principal, Denied> {
        let bad = |what: String| Denied::BadToken { what };
        let jwt = Jwt::parse(token).map_err(|what| bad(what.to_string()))?;
        let key = self.key_of(&jwt).await?;
        key.verify(&jwt).map_err(|what| bad(what.to_string()))?;
        let claims = jwt.claims().map_err(|what| bad(what.to_string()))?;
        check(&claims, &self.settings, self.clock.now_millis() / 1000)
    }

    /// The key that a token names. Whoever comes while keys are fetched waits for the one request.
    async fn key_of(&self, jwt: &Jwt<'_>) -> Result<Key, Denied> {
        let mut keys = self.keys.lock().await;
        let now = self.clock.now_millis();
        let older = |since: Option<i64>, than: Duration| since.is_none_or(|at| now - at >= than.as_millis() as i64);
        let pause = Duration::from_secs(self.settings.refresh_pause_seconds);
        let wanted = jwt.find(&keys.known).is_none() || older(keys.fetched_millis, KEYS_LIVE);
        if wanted && older(keys.tried_millis, pause) {
            keys.tried_millis = Some(now);
            match self.documents.keys_of(&self.settings.issuer).await {
                Ok(found) => {
                    *keys = Keys { known: found, fetched_millis: Some(now), tried_millis: Some(now), failure: None };
                }
                Err(what) => {
                    tracing::warn!(issuer = self.settings.issuer, what, "the keys of the issuer cannot be fetched");
                    keys.failure = Some(what);
                }
            }
        }
        match (jwt.find(&keys.known), &keys.failure) {
            (Some(key), _) => Ok(key.clone()),
            (None, Some(what)) => Err(Denied::NoIssuer { what: what.clone() }),
            (None, None) => {
                Err(Denied::BadToken { what: "it is signed with a key that its issuer does not have".to_string() })
            }
        }
    }
}

/// What the claims allow.
fn check(claims: &BTreeMap<String, Value>, settings: &OidcSettings, now: i64) -> Result<Principal, Denied> {
    let bad = |what: &str| Err(Denied::BadToken { what: what.to_string() });
    if claims.get("iss").and_then(Value::as_str) != Some(settings.issuer.as_str()) {
        return bad("it is of another issuer");
    }
    let audience = claims.get("aud");
    if !audience.is_some_and(|audience| has(audience, &settings.audience, false)) {
        return bad("it is made out to somebody else (`aud`)");
    }
    let Some(name) = at(claims, &settings.principal_claim).and_then(Value::as_str).filter(|name| !name.is_empty())
    else {
        return bad(&format!("it names nobody (`{}`)", settings.principal_claim));
    };
    let seconds = |claim: &str| claims.get(claim).and_then(Value::as_f64).map(|seconds| seconds as i64);
    match seconds("exp") {
        None => return bad("it does not say until when it is valid (`exp`)"),
        Some(expires) if now >= expires.saturating_add(LEEWAY_SECONDS) => {
            return Err(Denied::ExpiredToken { principal: name.to_string() });
        }
        Some(_) => {}
    }
    match (claims.get("nbf"), seconds("nbf")) {
        (Some(_), None) => return bad("it does not say since when it is valid (`nbf`)"),
        (_, Some(begins)) if now.saturating_add(LEEWAY_SECONDS) < begins => return bad("it is not valid yet (`nbf`)"),
        _ => {}
    }
    let applies = |rule: &&Rule| at(claims, &rule.claim).is_some_and(|value| has(value, &rule.value, true));
    let granted = settings.rules.iter().filter(applies);
    let grants = granted.map(|rule| Grant { role: rule.role, pipelines: rule.pipelines.clone() }).collect();
    Ok(Principal { name: name.to_string(), grants })
}

/// The claim of this name, or, with dots in it, the one inside of objects.
fn at<'a>(claims: &'a BTreeMap<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(found) = claims.get(name) {
        return Some(found);
    }
    let mut parts = name.split('.');
    let mut value = claims.get(parts.next()?)?;
    for part in parts {
        value = value.get(part)?;
    }
    Some(value)
}

/// Whether a claim is `wanted`, or a list that has it, or (as scopes are written) words of which it is one.
fn has(value: &Value, wanted: &str, words: bool) -> bool {
    match value {
        Value::String(text) => text == wanted || (words && text.split(' ').any(|word| word == wanted)),
        Value::Array(all) => all.iter().any(|one| one.as_str() == Some(wanted)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
