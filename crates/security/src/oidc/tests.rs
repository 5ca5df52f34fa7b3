// SPDX-License-Identifier: Apache-2.0
//! Against an issuer that runs in the test: discovery and keys over HTTP, tokens signed with its keys.

use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::principal::Scope;

const NOW: i64 = 1_800_000_000;

struct Hand(AtomicI64);

impl Clock for Hand {
    fn now_millis(&self) -> i64 {
        self.0.load(Ordering::SeqCst) * 1000
    }
}

enum Signer {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
}

impl Signer {
    fn rsa() -> Self {
        Signer::Rsa(RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap())
    }

    fn ec() -> Self {
        Signer::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    /// The public key as sets have it.
    fn public(&self, name: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Signer::Rsa(key) => {
                // PKCS#1: a sequence of two integers, the modulus of 257 bytes with its leading zero.
                let der = key.public_key().as_ref();
                let modulus = &der[9..9 + 256];
                let exponent = &der[9 + 256 + 2..];
                json!({"kty": "RSA", "kid": name, "use": "sig", "alg": "RS256", "n": text(modulus), "e": text(exponent)})
            }
            Signer::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": name, "x": text(&point[1..33]), "y": text(&point[33..])})
            }
        }
    }

    fn sign(&self, header: Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(claims));
        let random = SystemRandom::new();
        let signature = match self {
            Signer::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
                signature
            }
            Signer::Ec(key) => key.sign(&random, signed.as_bytes()).unwrap().as_ref().to_vec(),
        };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Signer::Rsa(_) => "RS256",
            Signer::Ec(_) => "ES256",
        }
    }

    fn token(&self, name: &str, claims: &Value) -> String {
        self.sign(json!({"alg": self.algorithm(), "kid": name, "typ": "JWT"}), claims)
    }
}

/// An issuer that answers over HTTP.
struct TestIssuer {
    url: String,
    keys: Arc<StdMutex<Value>>,
    asked: Arc<AtomicUsize>,
    away: Arc<std::sync::atomic::AtomicBool>,
}

impl TestIssuer {
    async fn start(keys: Vec<Value>) -> TestIssuer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let keys = Arc::new(StdMutex::new(json!({ "keys": keys })));
        let asked = Arc::new(AtomicUsize::new(0));
        let away = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let issuer = TestIssuer { url: url.clone(), keys: keys.clone(), asked: asked.clone(), away: away.clone() };
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if stream.read(&mut byte).await.unwrap() == 0 {
                        break;
                    }
                    request.push(byte[0]);
                }
                let (status, body) = match String::from_utf8(request).unwrap().split(' ').nth(1) {
                    _ if away.load(Ordering::SeqCst) => ("503 Service Unavailable", String::new()),
                    Some("/.well-known/openid-configuration") => {
                        ("200 OK", json!({"issuer": url, "jwks_uri": format!("{url}/keys")}).to_string())
                    }
                    Some("/keys") => {
                        asked.fetch_add(1, Ordering::SeqCst);
                        ("200 OK", keys.lock().unwrap().to_string())
                    }
                    _ => ("404 Not Found", String::new()),
                };
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
        });
        issuer
    }

    fn settings(&self) -> OidcSettings {
        let text = format!(
            "issuer = \"{}\"\naudience = \"tributary\"\n[[rule]]\nclaim = \"groups\"\nvalue = \"data\"\nrole = \"operator\"\n\
             pipelines = [\"orders_*\"]\n[[rule]]\nclaim = \"scope\"\nvalue = \"tributary.read\"\nrole = \"reader\"\n\
             [[rule]]\nclaim = \"realm.roles\"\nvalue = \"root\"\nrole = \"admin\"\n",
            self.url
        );
        let settings: OidcSettings = toml::from_str(&text).unwrap();
        assert_eq!(settings.problems(), Vec::<String>::new());
        settings
    }

    fn claims(&self) -> Value {
        json!({"iss": self.url, "aud": ["other", "tributary"], "sub": "ann", "exp": NOW + 300, "groups": ["data", "x"],
               "scope": "openid tributary.read"})
    }
}

async fn verifier(issuer: &TestIssuer) -> (Issuer, Arc<Hand>) {
    let clock = Arc::new(Hand(AtomicI64::new(NOW)));
    (Issuer::new(issuer.settings(), Arc::clone(&clock) as Arc<dyn Clock>).unwrap(), clock)
}

fn why(denied: &Denied) -> String {
    denied.to_string()
}

#[tokio::test]
async fn a_token_of_either_algorithm_says_who_calls_and_its_claims_what_that_allows() {
    let (rsa, ec) = (Signer::rsa(), Signer::ec());
    let encryption = json!({"kty": "RSA", "kid": "rsa", "use": "enc", "n": "AA", "e": "AQAB"});
    let issuer = TestIssuer::start(vec![encryption, rsa.public("rsa"), json!({"kty": "oct"}), ec.public("ec")]).await;
    let (verifier, _) = verifier(&issuer).await;
    for (signer, name) in [(&rsa, "rsa"), (&ec, "ec")] {
        let principal = verifier.verify(&signer.token(name, &issuer.claims())).await.unwrap();
        assert_eq!(principal.name, "ann");
        assert!(principal.may(Role::Operator, &Scope::Pipeline("orders_eu".into())));
        assert!(!principal.may(Role::Operator, &Scope::Pipeline("users".into())));
        assert!(principal.may(Role::Reader, &Scope::All) && !principal.may(Role::Admin, &Scope::Any));
    }
    let mut claims = issuer.claims();
    claims["realm"] = json!({"roles": ["root"]});
    let principal = verifier.verify(&ec.token("ec", &claims)).await.unwrap();
    assert!(principal.may(Role::Admin, &Scope::All));
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 1, "the keys are fetched once");
}

#[tokio::test]
async fn a_token_that_is_not_good_here_is_refused_with_what_is_wrong() {
    let (rsa, ec, other) = (Signer::rsa(), Signer::ec(), Signer::ec());
    let issuer = TestIssuer::start(vec![rsa.public("rsa"), ec.public("ec")]).await;
    let (verifier, _) = verifier(&issuer).await;
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut claims = issuer.claims();
        change(&mut claims);
        ec.token("ec", &claims)
    };
    let good = issuer.claims();
    let token = ec.token("ec", &good);
    let (head, signature) = token.rsplit_once('.').unwrap();
    let forged = URL_SAFE_NO_PAD
        .encode(json!({"iss": issuer.url, "aud": "tributary", "sub": "root", "exp": NOW + 9}).to_string());
    let header = head.split_once('.').unwrap().0;
    let none = URL_SAFE_NO_PAD.encode("{\"alg\":\"none\"}");
    // The public key as if it were a shared one.
    let shared = URL_SAFE_NO_PAD.encode("{\"alg\":\"HS256\",\"kid\":\"rsa\"}");
    for (token, told) in [
        (changed(&|claims| claims["iss"] = json!("https://elsewhere")), "another issuer"),
        (changed(&|claims| claims["aud"] = json!("tributary-2")), "somebody else"),
        (changed(&|claims| claims["aud"] = json!("tributary other")), "somebody else"),
        (changed(&|claims| drop(claims.as_object_mut().unwrap().remove("aud"))), "somebody else"),
        (changed(&|claims| drop(claims.as_object_mut().unwrap().remove("exp"))), "`exp`"),
        (changed(&|claims| claims["exp"] = json!("never")), "`exp`"),
        (changed(&|claims| claims["nbf"] = json!(NOW + 100)), "not valid yet"),
        (changed(&|claims| drop(claims.as_object_mut().unwrap().remove("sub"))), "names nobody"),
        (other.token("ec", &good), "signature is not of its issuer"),
        (format!("{header}.{forged}.{signature}"), "signature is not of its issuer"),
        (format!("{head}."), "signature is not of its issuer"),
        (format!("{none}.{forged}."), "another way than RS256"),
        (format!("{shared}.{forged}.{signature}"), "another way than RS256"),
        (ec.sign(json!({"alg": "RS256", "kid": "ec"}), &good), "a key that its issuer does not have"),
        (ec.sign(json!({"alg": "ES256", "kid": "ec", "crit": ["x"]}), &good), "extensions"),
        ("a.b.c".to_string(), "base64"),
        (format!("{}.b.c", "a".repeat(20_000)), "too long"),
    ] {
        let denied = verifier.verify(&token).await.unwrap_err();
        assert!(why(&denied).contains(told), "{told}: {denied}");
    }
}

#[tokio::test]
async fn a_token_is_no_good_once_it_expired() {
    let ec = Signer::ec();
    let issuer = TestIssuer::start(vec![ec.public("ec")]).await;
    let (verifier, clock) = verifier(&issuer).await;
    let token = ec.token("ec", &issuer.claims());
    clock.0.store(NOW + 300 + LEEWAY_SECONDS - 1, Ordering::SeqCst);
    assert!(verifier.verify(&token).await.is_ok());
    clock.0.store(NOW + 300 + LEEWAY_SECONDS, Ordering::SeqCst);
    assert_eq!(verifier.verify(&token).await.unwrap_err(), Denied::ExpiredToken { principal: "ann".into() });
}

#[tokio::test]
async fn rotated_keys_are_fetched_and_made_up_ones_do_not_become_requests() {
    let (old, new) = (Signer::ec(), Signer::ec());
    let issuer = TestIssuer::start(vec![old.public("old")]).await;
    let (verifier, clock) = verifier(&issuer).await;
    assert!(verifier.verify(&old.token("old", &issuer.claims())).await.is_ok());
    *issuer.keys.lock().unwrap() = json!({"keys": [new.public("new")]});
    for n in 0..20 {
        assert!(verifier.verify(&new.token(&format!("made-up-{n}"), &issuer.claims())).await.is_err());
    }
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 1, "within the pause");
    clock.0.fetch_add(30, Ordering::SeqCst);
    assert!(verifier.verify(&new.token("new", &issuer.claims())).await.is_ok());
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 2);
    let gone = verifier.verify(&old.token("old", &issuer.claims())).await.unwrap_err();
    assert!(why(&gone).contains("a key that its issuer does not have"), "{gone}");
}

#[tokio::test]
async fn an_issuer_that_is_away_is_told_and_known_keys_stay_in_use() {
    let ec = Signer::ec();
    let issuer = TestIssuer::start(vec![ec.public("ec")]).await;
    let (verifier, clock) = verifier(&issuer).await;
    let token = |expires: i64| {
        let mut claims = issuer.claims();
        claims["exp"] = json!(expires);
        ec.token("ec", &claims)
    };
    issuer.away.store(true, Ordering::SeqCst);
    let denied = verifier.verify(&token(NOW + 300)).await.unwrap_err();
    assert!(matches!(&denied, Denied::NoIssuer { what } if what.contains("503")), "{denied}");
    issuer.away.store(false, Ordering::SeqCst);
    clock.0.fetch_add(30, Ordering::SeqCst);
    assert!(verifier.verify(&token(NOW + 300)).await.is_ok());
    issuer.away.store(true, Ordering::SeqCst);
    clock.0.fetch_add(2 * 3600, Ordering::SeqCst);
    assert!(verifier.verify(&token(NOW + 9000)).await.is_ok());
}

#[tokio::test]
async fn a_file_of_principals_lets_the_tokens_of_its_issuer_in_beside_those_that_it_lists() {
    let ec = Signer::ec();
    let issuer = TestIssuer::start(vec![ec.public("ec")]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth.toml");
    let listed = crate::secret::token_hash("a.listed.token");
    let write = |audience: &str| {
        let text = format!(
            "[[principal]]\nname = \"bob\"\nrole = \"admin\"\ntoken_sha256 = [\"{listed}\"]\n[oidc]\nissuer = \"{}\"\n\
             audience = \"{audience}\"\n[[oidc.rule]]\nclaim = \"groups\"\nvalue = \"data\"\nrole = \"reader\"\n",
            issuer.url
        );
        std::fs::write(&file, text).unwrap();
    };
    write("tributary");
    let path = file.clone();
    let load = move || crate::AuthFile::load(&path);
    let watched = Arc::new(crate::Watched::open("principals", vec![file.clone()], load).unwrap());
    let clock = Arc::new(Hand(AtomicI64::new(NOW)));
    let authenticator = crate::Authenticator::new(Some(watched), None, crate::Certificates::Ignored, clock);
    let token = ec.token("ec", &issuer.claims());
    for _ in 0..3 {
        assert_eq!(authenticator.authenticate(Some(&token), None).await.unwrap().name, "ann");
    }
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 1, "the keys are kept from call to call");
    assert_eq!(authenticator.authenticate(Some("a.listed.token"), None).await.unwrap().name, "bob");
    assert_eq!(authenticator.authenticate(Some("nobodys"), None).await.unwrap_err(), Denied::UnknownToken);
    write("somebody-else");
    let denied = authenticator.authenticate(Some(&token), None).await.unwrap_err();
    assert!(why(&denied).contains("somebody else"), "{denied}");
}

#[test]
fn settings_that_would_let_anybody_in_are_refused() {
    let settings = |text: &str| toml::from_str::<OidcSettings>(text).unwrap().problems().join("; ");
    let told = settings("issuer = \"http://login.example.com\"\naudience = \" \"\n");
    for part in ["https://", "`audience` is empty", "no `[[oidc.rule]]`"] {
        assert!(told.contains(part), "{told}");
    }
    let rule = "[[rule]]\nclaim = \"a\"\nvalue = \"b\"\nrole = \"peer\"\n";
    assert!(settings(&format!("issuer = \"https://x\"\naudience = \"y\"\n{rule}")).contains("`peer`"));
}
