// SPDX-License-Identifier: Apache-2.0
//! Who keeps others from a lock, as far as its file tells: for whoever waits, and looks for a writer that died.

use std::fmt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::Deserialize;

use crate::storage::Storage;
use crate::target::lease::{self, LEASE_FILE, TURN_FILE};
use crate::target::lock::{LOCK_FILE as TURN_LOCK, LockKind};
use crate::target::lock_file::LOCK_FILE;

/// A lock that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// Its file, relative to the table.
    pub file: &'static str,
    /// Who holds it, as it says itself.
    pub owner: Option<String>,
    /// Milliseconds since it was taken or renewed last.
    pub age_millis: Option<i64>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.file)?;
        match &self.owner {
            Some(owner) => write!(f, ", held by `{owner}`")?,
            None => f.write_str(", which does not say who holds it")?,
        }
        match self.age_millis {
            Some(age) => write!(f, ", written {} s ago", age.max(0) / 1000),
            None => Ok(()),
        }
    }
}

/// What a Java writer, or one of ours, writes into the file of its lock.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    lock_thread_name: Option<String>,
}

/// Who holds the lock that every writer takes (`shared`), or the one among our own batches. What cannot be found out is
/// left out: nothing depends on it.
pub async fn lock_holder(storage: &Storage, shared: bool, now_millis: i64) -> LockHolder {
    match (storage.lock_kind(), shared) {
        (LockKind::File(table), true) => of_file(&table, now_millis),
        (LockKind::Lease, shared) => {
            let file = if shared { LEASE_FILE } else { TURN_FILE };
            let (owner, age_millis) = lease::holder(storage, file, now_millis).await.unwrap_or_default();
            LockHolder { file, owner, age_millis }
        }
        // The system does not tell who holds a lock of its own.
        (LockKind::File(_) | LockKind::Process(_) | LockKind::Unavailable(_), _) => {
            LockHolder { file: TURN_LOCK, owner: None, age_millis: None }
        }
    }
}

fn of_file(table: &Path, now_millis: i64) -> LockHolder {
    let path = table.join(LOCK_FILE);
    let text = std::fs::read(&path).unwrap_or_default();
    let owner = serde_json::from_slice::<Written>(&text).ok().and_then(|written| written.lock_thread_name);
    let modified = std::fs::metadata(&path).and_then(|file| file.modified()).ok();
    let modified = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let age_millis = modified.and_then(|at| i64::try_from(at.as_millis()).ok()).map(|at| now_millis - at);
    LockHolder { file: LOCK_FILE, owner, age_millis }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_lock_says_who_holds_it_and_since_when() {
        let table = std::env::temp_dir().join(format!("tributary-holder-{}", std::process::id()));
        std::fs::create_dir_all(table.join(".hoodie")).unwrap();
        let lock = table.join(LOCK_FILE);
        std::fs::write(&lock, r#"{"lockCreateTime":"2025-01-01","lockThreadName":"main"}"#).unwrap();
        let file = std::fs::File::options().write(true).open(&lock).unwrap();
        file.set_modified(UNIX_EPOCH + std::time::Duration::from_secs(100)).unwrap();
        let holder = of_file(&table, 160_500);
        assert_eq!((holder.owner.as_deref(), holder.age_millis), (Some("main"), Some(60_500)));
        assert_eq!(holder.to_string(), "`.hoodie/lock`, held by `main`, written 60 s ago");
        std::fs::write(&lock, "").unwrap();
        assert_eq!(of_file(&table, 0).owner, None, "older writers leave it empty");
        std::fs::remove_dir_all(&table).unwrap();
        let gone = of_file(&table, 0).to_string();
        assert_eq!(gone, "`.hoodie/lock`, which does not say who holds it");
    }
}
