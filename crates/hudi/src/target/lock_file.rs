// SPDX-License-Identifier: Apache-2.0
//! The lock file that Hudi's `FileSystemBasedLockProvider` takes on a local disk: `.hoodie/lock`, held by whoever made
//! it and free once it is gone. It has no owner and, by default, no end.
//!
//! A Java writer looks whether the file is there and then creates it, and its file system may truncate one that came in
//! between. So the file is looked at once more after a moment, and whenever somebody asks whether it is still held.
//! Java deletes a file that nobody modified for `hoodie.write.lock.filesystem.expire` minutes, where that is set;
//! a held one is rewritten every few seconds.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::Instrument as _;

use crate::error::{Error, Result};

/// The lock, relative to the table.
pub(super) const LOCK_FILE: &str = ".hoodie/lock";
/// Under which name our content is written before it becomes the lock. Only the holder of the lock among our own batches
/// writes it.
const PREPARED_FILE: &str = ".hoodie/.locks/tributary.prepared";
const POLL: Duration = Duration::from_millis(50);
/// How long a Java writer may take between its look and its creation of the file.
const SETTLE: Duration = Duration::from_millis(25);
/// Well below a minute, the unit in which Java's writers count an idle lock.
const RENEW_EVERY: Duration = Duration::from_secs(15);

/// What is in the file: Java's writers show it to whoever waits for them.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    #[serde(rename = "lockThreadName")]
    thread: String,
    /// Whose of ours it is; a file without this is another writer's.
    tributary: String,
}

/// The lock, held. Released or dropped, its file is removed.
pub(super) struct LockFile {
    shared: Arc<Shared>,
    renewing: tokio::task::JoinHandle<()>,
}

struct Shared {
    path: PathBuf,
    content: Vec<u8>,
    lost: watch::Sender<bool>,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.renewing.abort();
        // A released one is gone already; of one that could not be removed the next batch knows that it was ours.
        let _ = self.shared.remove();
    }
}

impl LockFile {
    /// Whether the file is still the one that was made.
    pub(super) fn is_held(&self) -> bool {
        !*self.shared.lost.borrow() && self.shared.is_ours()
    }

    /// Waits until it is noticed that the file is another one, or gone.
    pub(super) async fn lost(&self) {
        let mut lost = self.shared.lost.subscribe();
        // The sender lives as long as this lock.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// Removes the file.
    pub(super) fn release(self) -> Result<()> {
        self.renewing.abort();
        self.shared.remove()
    }
}

impl Shared {
    fn is_ours(&self) -> bool {
        std::fs::read(&self.path).is_ok_and(|found| found == self.content)
    }

    fn remove(&self) -> Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(disk("removing", &self.path, source)),
            _ => Ok(()),
        }
    }

    /// Shows that it is still held; `false` when it is not.
    fn renew(&self) -> bool {
        if !self.is_ours() {
            return false;
        }
        // The same bytes over the same bytes: only the time of modification changes.
        let written =
            OpenOptions::new().write(true).open(&self.path).and_then(|mut file| file.write_all(&self.content));
        if let Err(error) = written {
            tracing::warn!(error = &error as &dyn std::error::Error, "the table's lock file could not be renewed");
        }
        true
    }
}

/// Takes the lock, waiting at most `wait`; `None` when other writers held it all that time. The caller holds the lock
/// among our own batches: a file of ours is then one that a process left which is gone.
pub(super) async fn acquire(table: &Path, owner: &str, wait: Duration) -> Result<Option<LockFile>> {
    let path = table.join(LOCK_FILE);
    let content = Content { thread: format!("tributary {owner}"), tributary: owner.to_string() };
    let content = serde_json::to_vec(&content).map_err(|e| Error::corrupt(LOCK_FILE, e))?;
    let shared = Shared { path, content, lost: watch::Sender::new(false) };
    let mut waited = Duration::ZERO;
    loop {
        if !shared.path.exists() && create(table, &shared.path, &shared.content)? {
            tokio::time::sleep(SETTLE).await;
            if shared.is_ours() {
                return Ok(Some(hold(shared)));
            }
        } else if is_of_ours(&shared.path) {
            tracing::warn!(file = LOCK_FILE, "a batch of an earlier process left the table's lock; it is taken over");
            match std::fs::remove_file(&shared.path) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    return Err(disk("removing", &shared.path, source));
                }
                _ => continue,
            }
        }
        if waited >= wait {
            return Ok(None);
        }
        tokio::time::sleep(POLL).await;
        waited += POLL;
    }
}

fn hold(shared: Shared) -> LockFile {
    let shared = Arc::new(shared);
    let renewed = Arc::clone(&shared);
    let renew = async move {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            if !renewed.renew() {
                tracing::error!(file = LOCK_FILE, "the table's lock was taken by another writer");
                renewed.lost.send_replace(true);
                return;
            }
        }
    };
    let renewing = tokio::spawn(renew.in_current_span());
    LockFile { shared, renewing }
}

/// Makes the file with its content at once, so that whoever finds it knows whose it is; `false` if it is there.
fn create(table: &Path, path: &Path, content: &[u8]) -> Result<bool> {
    let prepared = table.join(PREPARED_FILE);
    if let Some(parent) = prepared.parent() {
        std::fs::create_dir_all(parent).map_err(|source| disk("creating", parent, source))?;
    }
    std::fs::write(&prepared, content).map_err(|source| disk("writing", &prepared, source))?;
    let linked = std::fs::hard_link(&prepared, path);
    // One name only: what is prepared next must not change a lock that is held.
    std::fs::remove_file(&prepared).map_err(|source| disk("removing", &prepared, source))?;
    match linked {
        Ok(()) => Ok(true),
        Err(source) if source.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(disk("creating", path, source)),
    }
}

fn is_of_ours(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|found| serde_json::from_slice::<Content>(&found).is_ok())
}

fn disk(doing: &str, path: &Path, source: std::io::Error) -> Error {
    Error::Disk { doing: format!("{doing} `{}`", path.display()), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is removed again.
    struct Table(PathBuf);

    impl Table {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tributary-lock-{}-{name}", std::process::id()));
            std::fs::create_dir_all(path.join(".hoodie")).unwrap();
            Table(path)
        }

        fn lock(&self) -> PathBuf {
            self.0.join(LOCK_FILE)
        }

        async fn take(&self, owner: &str) -> Option<LockFile> {
            acquire(&self.0, owner, Duration::ZERO).await.unwrap()
        }
    }

    impl Drop for Table {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test]
    async fn the_file_is_there_while_the_lock_is_held_and_gone_after() {
        let table = Table::new("held");
        let held = table.take("a").await.unwrap();
        assert!(held.is_held() && table.lock().exists());
        assert!(!table.0.join(PREPARED_FILE).exists());
        held.release().unwrap();
        assert!(!table.lock().exists());
        drop(table.take("b").await.unwrap());
        assert!(!table.lock().exists(), "a dropped one is given back too");
    }

    #[tokio::test]
    async fn a_file_of_another_writer_keeps_us_out_whatever_is_in_it_and_stays() {
        let table = Table::new("foreign");
        for text in ["", r#"{"lockCreateTime":"2025-01-01","lockThreadName":"main"}"#] {
            std::fs::write(table.lock(), text).unwrap();
            assert!(table.take("a").await.is_none());
            assert_eq!(std::fs::read_to_string(table.lock()).unwrap(), text);
        }
        std::fs::remove_file(table.lock()).unwrap();
        assert!(table.take("a").await.is_some());
    }

    #[tokio::test]
    async fn what_a_dead_process_of_ours_left_is_taken_over() {
        let table = Table::new("left");
        std::fs::write(table.lock(), r#"{"lockThreadName":"tributary x","tributary":"x"}"#).unwrap();
        assert!(table.take("a").await.unwrap().is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_another_writer_made_anew_is_noticed_and_not_removed() {
        let table = Table::new("truncated");
        let held = table.take("a").await.unwrap();
        std::fs::write(table.lock(), "theirs").unwrap();
        assert!(!held.is_held());
        held.lost().await;
        held.release().unwrap();
        assert_eq!(std::fs::read_to_string(table.lock()).unwrap(), "theirs");
    }

    #[tokio::test]
    async fn renewing_changes_nothing_but_the_time() {
        let table = Table::new("renewed");
        let held = table.take("a").await.unwrap();
        let before = std::fs::read(table.lock()).unwrap();
        assert!(held.shared.renew());
        assert_eq!(std::fs::read(table.lock()).unwrap(), before);
        std::fs::remove_file(table.lock()).unwrap();
        assert!(!held.shared.renew());
        assert!(!table.lock().exists(), "a lock that is gone is not made again");
    }
}
