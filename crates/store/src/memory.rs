// SPDX-License-Identifier: Apache-2.0
//! A store in memory: for one batch of an embedded run, and for tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, KeyValue};

/// A store that ends with the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    entries: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl MemoryStore {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyValue for MemoryStore {
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.entries().get(key).cloned())
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.entries().insert(key.to_string(), value.to_vec());
        Ok(())
    }

    fn swap(&self, key: &str, expected: Option<&[u8]>, value: &[u8]) -> Result<bool, Error> {
        let mut entries = self.entries();
        if entries.get(key).map(Vec::as_slice) != expected {
            return Ok(false);
        }
        entries.insert(key.to_string(), value.to_vec());
        Ok(true)
    }

    fn delete(&self, key: &str) -> Result<(), Error> {
        self.entries().remove(key);
        Ok(())
    }

    fn scan(&self, prefix: &str, newest_first: bool, limit: usize) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let entries = self.entries();
        let found = entries.range(prefix.to_string()..).take_while(|(key, _)| key.starts_with(prefix));
        let owned = |(key, value): (&String, &Vec<u8>)| (key.clone(), value.clone());
        if newest_first {
            let all: Vec<_> = found.collect();
            return Ok(all.into_iter().rev().take(limit).map(owned).collect());
        }
        Ok(found.take(limit).map(owned).collect())
    }
}
