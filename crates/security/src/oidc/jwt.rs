// SPDX-License-Identifier: Apache-2.0
//! Signed tokens: three parts in base64, of which the last signs the first two.
//!
//! Only RS256 and ES256 are taken, and a key is used for the one algorithm that it is of: what a token says of itself
//! never chooses how it is checked. The primitives are those of the TLS library.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

/// Longest token that is looked at.
const LONGEST: usize = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Rs256,
    Es256,
}

/// A token whose signature was not looked at yet.
#[derive(Debug)]
pub(super) struct Jwt<'a> {
    algorithm: Algorithm,
    key: Option<String>,
    signed: &'a str,
    claims: Vec<u8>,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a reader must know; none are known here.
    crit: Option<Value>,
}

impl<'a> Jwt<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, &'static str> {
        if token.len() > LONGEST {
            return Err("it is too long");
        }
        let (signed, signature) = token.rsplit_once('.').ok_or("it is no signed token")?;
        let (header, claims) = signed.split_once('.').ok_or("it is no signed token")?;
        let part = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| "a part of it is no base64");
        let header: Header = serde_json::from_slice(&part(header)?).map_err(|_| "its header cannot be read")?;
        if header.crit.is_some() {
            return Err("it has extensions that are not known here");
        }
        let algorithm = match header.alg.as_str() {
            "RS256" => Algorithm::Rs256,
            "ES256" => Algorithm::Es256,
            _ => return Err("it is signed in another way than RS256 or ES256"),
        };
        Ok(Jwt { algorithm, key: header.kid, signed, claims: part(claims)?, signature: part(signature)? })
    }

    /// The key that it names. One without a name fits where there is only one key of its kind.
    pub(super) fn find<'k>(&self, keys: &'k [Key]) -> Option<&'k Key> {
        let mut fitting = keys.iter().filter(|key| key.algorithm == self.algorithm);
        match &self.key {
            Some(name) => fitting.find(|key| key.name.as_ref() == Some(name)),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }

    pub(super) fn claims(&self) -> Result<BTreeMap<String, Value>, &'static str> {
        serde_json::from_slice(&self.claims).map_err(|_| "its claims cannot be read")
    }
}

/// A public key of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    name: Option<String>,
    algorithm: Algorithm,
    /// Modulus and exponent, or both coordinates.
    numbers: [Vec<u8>; 2],
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct WireKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    used_for: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Key {
    /// The keys of a set that are of use here; sets have others, too.
    pub(super) fn of_set(text: &[u8]) -> Result<Vec<Key>, String> {
        let set: KeySet = serde_json::from_slice(text).map_err(|e| format!("the key set cannot be read: {e}"))?;
        let read = set.keys.into_iter().filter_map(|key| serde_json::from_value::<WireKey>(key).ok());
        Ok(read.filter_map(Key::of_wire).collect())
    }

    fn of_wire(key: WireKey) -> Option<Key> {
        if key.used_for.is_some_and(|used_for| used_for != "sig") {
            return None;
        }
        let (algorithm, first, second) = match (key.kty.as_str(), key.crv.as_deref(), key.alg.as_deref()) {
            ("RSA", _, None | Some("RS256")) => (Algorithm::Rs256, key.n?, key.e?),
            ("EC", Some("P-256"), None | Some("ES256")) => (Algorithm::Es256, key.x?, key.y?),
            _ => return None,
        };
        let numbers = [URL_SAFE_NO_PAD.decode(first).ok()?, URL_SAFE_NO_PAD.decode(second).ok()?];
        Some(Key { name: key.kid, algorithm, numbers })
    }

    /// Whether the token was signed with this key.
    pub(super) fn verify(&self, jwt: &Jwt<'_>) -> Result<(), &'static str> {
        const BAD: &str = "its signature is not of its issuer";
        if self.algorithm != jwt.algorithm {
            return Err(BAD);
        }
        let signed = jwt.signed.as_bytes();
        let [first, second] = &self.numbers;
        let verified = match self.algorithm {
            Algorithm::Rs256 => RsaPublicKeyComponents { n: first.as_slice(), e: second.as_slice() }.verify(
                &signature::RSA_PKCS1_2048_8192_SHA256,
                signed,
                &jwt.signature,
            ),
            Algorithm::Es256 => {
                let point = [&[4], first.as_slice(), second.as_slice()].concat();
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(signed, &jwt.signature)
            }
        };
        verified.map_err(|_| BAD)
    }
}
