// SPDX-License-Identifier: Apache-2.0
//! A small ordered key-value store with compare-and-swap, behind which roles keep what they can rebuild.
//!
//! Nothing in it is the only copy of anything: cursors live in the target's timeline. Losing a store loses history
//! and pending requests, never data.

mod memory;
mod sled_store;

use std::error::Error as StdError;

pub use memory::MemoryStore;
pub use sled_store::SledStore;

/// An ordered map from text keys to bytes.
///
/// An implementer owes: a write that returned is durable (for stores that survive a restart at all), reads see every
/// write that returned, and [`KeyValue::swap`] is atomic among all users of the same store.
pub trait KeyValue: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error>;

    /// Sets a key.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), Error>;

    /// Sets a key only if it holds `expected` now (`None`: only if it is absent); answers whether it was set.
    fn swap(&self, key: &str, expected: Option<&[u8]>, value: &[u8]) -> Result<bool, Error>;

    /// Removes a key; one that is absent is fine.
    fn delete(&self, key: &str) -> Result<(), Error>;

    /// Entries whose keys start with `prefix`, in order of the keys, from the end when `newest_first`, at most `limit`.
    fn scan(&self, prefix: &str, newest_first: bool, limit: usize) -> Result<Vec<(String, Vec<u8>)>, Error>;
}

/// Why the store did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the local store failed while {doing}")]
pub struct Error {
    /// What was being attempted.
    pub doing: String,
    /// Its own error.
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

impl Error {
    pub(crate) fn new(doing: impl Into<String>, source: impl StdError + Send + Sync + 'static) -> Self {
        Error { doing: doing.into(), source: Box::new(source) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaves(store: &dyn KeyValue) {
        assert_eq!(store.get("a").unwrap(), None);
        store.put("a/1", b"1").unwrap();
        store.put("a/2", b"2").unwrap();
        store.put("b/1", b"x").unwrap();
        assert_eq!(store.get("a/2").unwrap(), Some(b"2".to_vec()));
        let keys = |newest: bool, limit| {
            let found = store.scan("a/", newest, limit).unwrap();
            found.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(keys(false, 10), ["a/1", "a/2"]);
        assert_eq!(keys(true, 1), ["a/2"]);
        assert!(!store.swap("a/1", None, b"9").unwrap(), "it is there");
        assert!(!store.swap("a/1", Some(b"0"), b"9").unwrap(), "it holds something else");
        assert!(store.swap("a/1", Some(b"1"), b"9").unwrap());
        assert!(store.swap("c", None, b"n").unwrap());
        store.delete("a/1").unwrap();
        store.delete("a/1").unwrap();
        assert_eq!(keys(false, 10), ["a/2"]);
    }

    #[test]
    fn a_memory_store_behaves() {
        behaves(&MemoryStore::default());
    }

    #[test]
    fn a_sled_store_behaves_and_keeps_its_entries_over_a_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        behaves(&SledStore::open(&path).unwrap());
        let again = SledStore::open(&path).unwrap();
        assert_eq!(again.get("b/1").unwrap(), Some(b"x".to_vec()));
    }
}
