// SPDX-License-Identifier: Apache-2.0
//! The lock that serialises our writers of one table.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::error::{Error, Result};
use crate::storage::Storage;

const LOCK_FILE: &str = ".hoodie/.locks/tributary.lock";
const POLL: Duration = Duration::from_millis(50);

/// How writers of a table exclude each other.
#[derive(Debug, Clone)]
pub enum LockKind {
    /// By a lock of the operating system on a file of the table. It ends with the process, however that ends.
    File(PathBuf),
    /// By a lock inside this process: for stores that live in it.
    Process(Arc<Mutex<()>>),
    /// Not at all: the store is shared and has no lock we speak.
    None,
}

/// A held lock, released on drop.
#[derive(Debug)]
pub struct TableLock {
    _held: Held,
}

#[derive(Debug)]
enum Held {
    // Closing the file releases its lock.
    File { _file: File },
    Process { _guard: OwnedMutexGuard<()> },
}

/// Takes the table's lock, waiting at most `wait`; `None` when somebody else held it all that time.
///
/// # Errors
/// [`Error::Unsupported`] where the store has no lock we speak.
pub async fn acquire_lock(storage: &Storage, wait: Duration) -> Result<Option<TableLock>> {
    match storage.lock_kind() {
        LockKind::File(directory) => {
            let file = open_lock_file(directory.join(LOCK_FILE))?;
            acquire_file(file, wait).await
        }
        LockKind::Process(mutex) => {
            let held = tokio::time::timeout(wait, mutex.lock_owned()).await;
            Ok(held.ok().map(|guard| TableLock { _held: Held::Process { _guard: guard } }))
        }
        LockKind::None => Err(Error::unsupported(format!(
            "`{}` is on a shared object store, where writers need a storage lock that is not supported yet: use a \
             local disk",
            storage.url()
        ))),
    }
}

async fn acquire_file(file: File, wait: Duration) -> Result<Option<TableLock>> {
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(TableLock { _held: Held::File { _file: file } })),
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
