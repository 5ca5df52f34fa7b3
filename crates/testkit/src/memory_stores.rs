// SPDX-License-Identifier: Apache-2.0
//! A shared object store that lives in memory: conditional writes like S3, and leases instead of file locks.

use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path;
use tributary_hudi::target::LockKind;
use tributary_hudi::{Error, Result, Storage, Stores};

const SCHEME: &str = "memory://";

/// Opens `memory://…` locations, all in one store.
#[derive(Debug, Clone, Default)]
pub struct MemoryStores {
    store: Arc<InMemory>,
    unlocked: bool,
}

impl MemoryStores {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// A store of its own with the same content.
    #[must_use]
    pub fn fork(&self) -> Self {
        MemoryStores { store: Arc::new(self.store.fork()), ..self.clone() }
    }

    /// The same store with locks that keep nobody out: as if every lock lied.
    #[must_use]
    pub fn without_locks(&self) -> Self {
        MemoryStores { unlocked: true, ..self.clone() }
    }
}

impl Stores for MemoryStores {
    fn open(&self, url: &str) -> Result<Storage> {
        let Some(path) = url.strip_prefix(SCHEME) else {
            return Err(Error::Location { url: url.to_string(), detail: format!("it does not begin with {SCHEME}") });
        };
        let lock = if self.unlocked { LockKind::Process(Arc::default()) } else { LockKind::Lease };
        Ok(Storage::new(Arc::clone(&self.store) as _, Path::from(path), url, lock))
    }
}
