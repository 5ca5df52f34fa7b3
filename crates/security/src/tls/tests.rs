// SPDX-License-Identifier: Apache-2.0

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[path = "certificates.rs"]
mod certificates;

use certificates::Authority;

const VALID: (i32, i32) = (2020, 2120);
const EXPIRED: (i32, i32) = (2020, 2021);

fn identity((certificate, key): (PathBuf, PathBuf)) -> Identity {
    Identity { certificate, key }
}

struct Pair {
    server: ServerTls,
    client: ClientTls,
}

impl Pair {
    /// Both handshakes over a pipe, then a word from the client: the names that the server saw.
    async fn talk(&self) -> Result<Option<Vec<String>>, String> {
        let (near, far) = tokio::io::duplex(16 << 10);
        let serve = async {
            let mut stream = self.server.accept(far).await.map_err(|e| format!("server: {e}"))?;
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.map_err(|e| format!("server: {e}"))?;
            stream.write_all(&word).await.map_err(|e| format!("server: {e}"))?;
            Ok::<_, String>(peer_names(&stream))
        };
        let ask = async {
            let mut stream = self.client.connect("localhost", near).await.map_err(|e| format!("client: {e}"))?;
            stream.write_all(b"hello").await.map_err(|e| format!("client: {e}"))?;
            let mut word = [0; 5];
            // In TLS 1.3 a client learns here that its certificate was refused.
            stream.read_exact(&mut word).await.map_err(|e| format!("client: {e}"))?;
            Ok::<_, String>(())
        };
        match tokio::join!(serve, ask) {
            (Ok(names), Ok(())) => Ok(names),
            (served, asked) => Err(format!("{served:?}, {asked:?}")),
        }
    }
}

struct Setup {
    folder: tempfile::TempDir,
    ca: Authority,
}

impl Setup {
    fn new() -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let ca = Authority::new(folder.path(), "ca");
        Setup { folder, ca }
    }

    fn server(&self, years: (i32, i32), client_ca: Option<PathBuf>, certificate_optional: bool) -> ServerTls {
        let identity = identity(self.ca.issue("server", &["localhost"], years));
        ServerTls::open(ServerFiles { identity, client_ca, certificate_optional }, &["h2"]).unwrap()
    }

    fn client(&self, ca: &Authority, identity: Option<Identity>) -> ClientTls {
        ClientTls::open(ClientFiles { ca: Some(ca.file()), identity }).unwrap()
    }
}

#[tokio::test]
async fn a_server_of_another_authority_or_name_or_time_is_not_talked_to() {
    let setup = Setup::new();
    let other = Authority::new(setup.folder.path(), "other");
    let good = Pair { server: setup.server(VALID, None, false), client: setup.client(&setup.ca, None) };
    assert_eq!(good.talk().await, Ok(None));
    let wrong = Pair { server: setup.server(VALID, None, false), client: setup.client(&other, None) };
    assert!(wrong.talk().await.unwrap_err().contains("UnknownIssuer"));
    let expired = Pair { server: setup.server(EXPIRED, None, false), client: setup.client(&setup.ca, None) };
    assert!(expired.talk().await.unwrap_err().to_lowercase().contains("expired"));
    let elsewhere = identity(setup.ca.issue("elsewhere", &["other.example"], VALID));
    let files = ServerFiles { identity: elsewhere, client_ca: None, certificate_optional: false };
    let named = Pair { server: ServerTls::open(files, &["h2"]).unwrap(), client: setup.client(&setup.ca, None) };
    assert!(named.talk().await.unwrap_err().contains("not valid for name"));
}

#[tokio::test]
async fn a_client_needs_a_certificate_of_the_authority_that_is_valid_now() {
    let setup = Setup::new();
    let other = Authority::new(setup.folder.path(), "other");
    let ca = || Some(setup.ca.file());
    let own = |names: &[&str], years| Some(identity(setup.ca.issue("client", names, years)));
    let client = |identity| setup.client(&setup.ca, identity);
    let mutual = Pair {
        server: setup.server(VALID, ca(), false),
        client: client(own(&["airflow.example", "two.example"], VALID)),
    };
    assert_eq!(mutual.talk().await.unwrap().unwrap(), ["airflow.example", "two.example"]);
    let without = Pair { server: setup.server(VALID, ca(), false), client: client(None) };
    assert!(without.talk().await.unwrap_err().contains("peer sent no certificates"));
    let optional = Pair { server: setup.server(VALID, ca(), true), client: client(None) };
    assert_eq!(optional.talk().await, Ok(None));
    let expired = Pair { server: setup.server(VALID, ca(), true), client: client(own(&["a.example"], EXPIRED)) };
    assert!(expired.talk().await.unwrap_err().to_lowercase().contains("expired"));
    let foreign = Some(identity(other.issue("foreign", &["airflow.example"], VALID)));
    let foreign = Pair { server: setup.server(VALID, ca(), true), client: client(foreign) };
    assert!(
        foreign.talk().await.unwrap_err().contains("UnknownCA")
            || foreign.talk().await.unwrap_err().contains("UnknownIssuer")
    );
}

#[tokio::test]
async fn certificates_are_read_again_when_their_files_change_and_old_ones_stay_in_force_until_they_fit() {
    let setup = Setup::new();
    let pair = Pair { server: setup.server(VALID, None, false), client: setup.client(&setup.ca, None) };
    assert_eq!(pair.talk().await, Ok(None));
    // Renewed by another authority: the client does not know it until its own file is replaced.
    let other = Authority::new(setup.folder.path(), "other");
    other.issue("server", &["localhost"], VALID);
    assert!(pair.talk().await.unwrap_err().contains("UnknownIssuer"));
    std::fs::copy(other.file(), setup.ca.file()).unwrap();
    assert_eq!(pair.talk().await, Ok(None));
    // A key that does not go with the certificate.
    let key = setup.folder.path().join("server.key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert_eq!(pair.talk().await, Ok(None));
    std::fs::write(&key, "no key").unwrap();
    assert_eq!(pair.talk().await, Ok(None));
    std::fs::write(&key, kept).unwrap();
    assert_eq!(pair.talk().await, Ok(None));
}

#[test]
fn files_that_cannot_be_used_are_named_and_their_content_is_not_shown() {
    let setup = Setup::new();
    let (certificate, key) = setup.ca.issue("server", &["localhost"], VALID);
    let text = setup.folder.path().join("text");
    std::fs::write(&text, "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n").unwrap();
    let open = |certificate: &PathBuf, key: &PathBuf| {
        let identity = Identity { certificate: certificate.clone(), key: key.clone() };
        let files = ServerFiles { identity, client_ca: None, certificate_optional: false };
        ServerTls::open(files, &["h2"]).err().unwrap().to_string()
    };
    assert!(open(&text, &key).contains("text"), "{}", open(&text, &key));
    let refused = open(&certificate, &text);
    assert!(refused.contains("no private key in PEM") && !refused.contains("c2VjcmV0"), "{refused}");
    assert!(open(&PathBuf::from("/nonexistent.pem"), &key).contains("/nonexistent.pem"));
}
