// SPDX-License-Identifier: Apache-2.0
//! Locks on a table: the one that serialises our own batches, and the one that Hudi's own writers take too.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use tributary_types::Clock;

use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::target::lease::{self, LEASE_FILE, Lease, LeaseSettings, TURN_FILE};
use crate::target::lock_file::{self, LockFile};

pub(super) const LOCK_FILE: &str = ".hoodie/.locks/tributary.lock";
const POLL: Duration = Duration::from_millis(50);

/// How writers of a table exclude each other.
#[derive(Debug, Clone)]
pub enum LockKind {
    /// By a lock of the operating system on a file of the table, which ends with the process, however that ends. Beside
    /// writers that do not know it by a file that is there or not.
    File(PathBuf),
    /// By a lock inside this process: for stores that live in it.
    Process(Arc<Mutex<()>>),
    /// By a lease in a file of the table, which Hudi's own writers take too: for shared object stores.
    Lease,
    /// Not at all, for the reason given: tables of such a store are read only.
    Unavailable(&'static str),
}

/// Who takes a lock, and what leases are measured by.
#[derive(Clone)]
pub struct LockOwner {
    /// A name that nobody else has.
    pub name: String,
    /// What leases are measured by.
    pub clock: Arc<dyn Clock>,
    /// How leases are kept.
    pub leases: LeaseSettings,
}

/// A held lock. Dropping it frees a lock of the operating system, of the process or in a file at once; a lease that is
/// not released lapses by itself.
pub struct TableLock {
    held: Held,
}

enum Held {
    // Closing the file releases its lock.
    File {
        _file: File,
    },
    Process {
        _guard: OwnedMutexGuard<()>,
    },
    Lease(Lease),
    Beside(LockFile),
    /// Nobody else knows of the table.
    Alone,
}

impl TableLock {
    /// For how long it certainly still holds; `None`: until it is released.
    pub fn left(&self) -> Option<Duration> {
        match &self.held {
            Held::File { .. } | Held::Process { .. } | Held::Alone => None,
            Held::Lease(lease) => Some(lease.left()),
            Held::Beside(file) => (!file.is_held()).then_some(Duration::ZERO),
        }
    }

    /// Waits until it is lost; never, for a lock that cannot be.
    pub async fn lost(&self) {
        match &self.held {
            Held::File { .. } | Held::Process { .. } | Held::Alone => std::future::pending().await,
            Held::Lease(lease) => lease.lost().await,
            Held::Beside(file) => file.lost().await,
        }
    }

    /// Gives it back.
    pub async fn release(self) -> Result<()> {
        match self.held {
            Held::File { .. } | Held::Process { .. } | Held::Alone => Ok(()),
            Held::Lease(lease) => lease.release().await,
            Held::Beside(file) => file.release(),
        }
    }
}

/// Takes the lock that our own batches into a table follow one another by, waiting at most `wait`; `None` when another
/// one held it all that time. Other writers do not know it.
pub async fn acquire_lock(storage: &Storage, owner: &LockOwner, wait: Duration) -> Result<Option<TableLock>> {
    storage.check_writable()?;
    match storage.lock_kind() {
        LockKind::File(directory) => {
            let file = open_lock_file(directory.join(LOCK_FILE))?;
            acquire_file(file, wait).await
        }
        LockKind::Process(mutex) => {
            let held = tokio::time::timeout(wait, mutex.lock_owned()).await;
            Ok(held.ok().map(|guard| TableLock { held: Held::Process { _guard: guard } }))
        }
        LockKind::Lease => {
            let lease = lease::acquire(storage, TURN_FILE, &owner.clock, &owner.leases, &owner.name, wait).await?;
            Ok(lease.map(|lease| TableLock { held: Held::Lease(lease) }))
        }
        // Refused above.
        LockKind::Unavailable(_) => Ok(None),
    }
}

/// Takes the lock that Hudi's own writers take: in shared stores that of `StorageBasedLockProvider`, on local disks that
/// of `FileSystemBasedLockProvider` with its default path. Waits at most `wait`; `None` when somebody else held it all
/// that time. The caller holds the lock of [`acquire_lock`].
pub async fn acquire_shared_lock(storage: &Storage, owner: &LockOwner, wait: Duration) -> Result<Option<TableLock>> {
    match storage.lock_kind() {
        LockKind::File(directory) => {
            let file = lock_file::acquire(&directory, &owner.name, wait).await?;
            Ok(file.map(|file| TableLock { held: Held::Beside(file) }))
        }
        LockKind::Process(_) => Ok(Some(TableLock { held: Held::Alone })),
        // Whoever asks here holds the other lock, which such a store has none of.
        LockKind::Unavailable(_) => Ok(None),
        LockKind::Lease => {
            let lease = lease::acquire(storage, LEASE_FILE, &owner.clock, &owner.leases, &owner.name, wait).await?;
            Ok(lease.map(|lease| TableLock { held: Held::Lease(lease) }))
        }
    }
}

async fn acquire_file(file: File, wait: Duration) -> Result<Option<TableLock>> {
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(TableLock { held: Held::File { _file: file } })),
            Err(TryLockError::WouldBlock) if waited >= wait => return Ok(None),
            Err(TryLockError::WouldBlock) => {
                tokio::time::sleep(POLL).await;
                waited += POLL;
            }
            Err(TryLockError::Error(source)) => {
                return Err(Error::Disk { doing: format!("locking `{LOCK_FILE}`"), source });
            }
        }
    }
}

fn open_lock_file(path: PathBuf) -> Result<File> {
    let disk = |source| Error::Disk { doing: format!("opening `{}`", path.display()), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(disk)?;
    }
    OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(disk)
}
