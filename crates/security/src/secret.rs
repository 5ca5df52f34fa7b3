// SPDX-License-Identifier: Apache-2.0
//! Secrets, and where they come from: a file or the environment, never the command line.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::{digest, hmac};

use crate::watched::{LoadError, Watched, read};

/// Shortest shared key: 32 characters, of random hexadecimal ones 128 bits.
const SHORTEST_KEY: usize = 32;

/// A text that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret of this text, without the white space around it.
    pub fn new(text: &str) -> Self {
        Secret(text.trim().to_string())
    }

    /// The text, for where it must be sent.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where a secret is.
#[derive(Clone)]
pub enum SecretSource {
    /// In a file, which is read again when it changes.
    File(Arc<Watched<Secret>>),
    /// Given once, as the environment does.
    Fixed(Secret),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl SecretSource {
    /// The secret in a file.
    pub fn file(file: &Path) -> Result<Self, LoadError> {
        let path = file.to_path_buf();
        let load = move || {
            let bytes = read(&path)?;
            let text = String::from_utf8(bytes).map_err(|_| LoadError::new(&path, "it is no text"))?;
            let secret = Secret::new(&text);
            match secret.expose() {
                "" => Err(LoadError::new(&path, "it is empty")),
                text if !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                    Err(LoadError::new(&path, "it holds more than one word of ASCII characters"))
                }
                _ => Ok(secret),
            }
        };
        Ok(SecretSource::File(Arc::new(Watched::open("a secret", vec![file.to_path_buf()], load)?)))
    }

    /// The secret as it is now.
    pub fn current(&self) -> Secret {
        match self {
            SecretSource::File(watched) => watched.current().as_ref().clone(),
            SecretSource::Fixed(secret) => secret.clone(),
        }
    }
}

/// A key that the processes of one server share. They know each other by a token that is made of it, and sign tickets
/// with another one, so that whoever sees the token cannot make tickets.
#[derive(Clone)]
pub struct ClusterKey {
    token: Secret,
    tickets: hmac::Key,
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl ClusterKey {
    /// The key that a shared text makes; `None` when it is too short to be one.
    pub fn new(shared: &Secret) -> Option<Self> {
        if shared.expose().len() < SHORTEST_KEY {
            return None;
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, shared.expose().as_bytes());
        let derive = |purpose: &str| hmac::sign(&key, purpose.as_bytes());
        Some(ClusterKey {
            token: Secret(format!("peer-{}", hex(derive("tributary peer token 1").as_ref()))),
            tickets: hmac::Key::new(hmac::HMAC_SHA256, derive("tributary tickets 1").as_ref()),
        })
    }

    /// What processes of the server send to each other.
    pub fn token(&self) -> &Secret {
        &self.token
    }

    /// What tickets are signed with.
    pub(crate) fn ticket_key(&self) -> &hmac::Key {
        &self.tickets
    }
}

/// The hash by which a token is kept. A token is random and long, so one round of a fast hash is enough: there is
/// nothing to guess.
pub fn token_hash(token: &str) -> String {
    hex(digest::digest(&digest::SHA256, token.as_bytes()).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_and_its_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "first-secret\n").unwrap();
        let source = SecretSource::file(&file).unwrap();
        assert_eq!(source.current().expose(), "first-secret");
        assert!(!format!("{source:?} {:?}", source.current()).contains("first"));
        std::fs::write(&file, "second-one\n").unwrap();
        assert_eq!(source.current().expose(), "second-one");
        for bad in ["", "\n", "two words", "ümlaut"] {
            std::fs::write(&file, bad).unwrap();
            let refused = SecretSource::file(&file).unwrap_err().to_string();
            assert!(bad.trim().is_empty() || !refused.contains(bad.trim()), "{refused}");
        }
    }

    #[test]
    fn a_shared_key_makes_a_token_that_does_not_tell_it() {
        assert!(ClusterKey::new(&Secret::new("short")).is_none());
        let shared = Secret::new("0123456789abcdef0123456789abcdef");
        let key = ClusterKey::new(&shared).unwrap();
        assert!(key.token().expose().starts_with("peer-") && !key.token().expose().contains(shared.expose()));
        assert_eq!(ClusterKey::new(&shared).unwrap().token(), key.token());
        assert_eq!(format!("{key:?}"), "***");
    }

    #[test]
    fn a_token_is_kept_as_its_sha256() {
        assert_eq!(token_hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
