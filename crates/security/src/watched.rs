// SPDX-License-Identifier: Apache-2.0
//! What was read from files, read again when they change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics;

/// Files that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct LoadError {
    /// Which file.
    pub file: String,
    /// What is wrong, never with the file's content where that may be a secret.
    pub what: String,
}

impl LoadError {
    /// Something is wrong with `file`.
    pub fn new(file: &Path, what: impl ToString) -> Self {
        LoadError { file: file.display().to_string(), what: what.to_string() }
    }
}

/// Reads a whole file.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(file).map_err(|e| LoadError::new(file, format!("it cannot be read: {e}")))
}

/// What tells one writing of a file from another. Links are followed, so a directory that is swapped as a whole, as
/// mounted secrets are, is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

fn stamp(file: &Path) -> Option<Stamp> {
    let found = fs::metadata(file).ok()?;
    Some(Stamp {
        file: (found.dev(), found.ino()),
        bytes: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

type Load<T> = Box<dyn Fn() -> Result<T, LoadError> + Send + Sync>;

/// A value made of files. Looking whether they changed costs a system call for each.
pub struct Watched<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    load: Load<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    stamps: Vec<Option<Stamp>>,
    value: Arc<T>,
}

impl<T> Watched<T> {
    /// Reads the files for the first time; `what` is what they are, for the log.
    pub fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, LoadError> + Send + Sync + 'static,
    ) -> Result<Self, LoadError> {
        // Before reading: what changes in between is then read once more.
        let stamps = files.iter().map(|file| stamp(file)).collect();
        let value = Arc::new(load()?);
        Ok(Watched { what, files, load: Box::new(load), state: Mutex::new(State { stamps, value }) })
    }

    /// The value of the files as they are now; the one before when they cannot be used now.
    pub fn current(&self) -> Arc<T> {
        let stamps: Vec<Option<Stamp>> = self.files.iter().map(|file| stamp(file)).collect();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if stamps != state.stamps {
            // Each change is tried once, so that a broken file is told once.
            state.stamps = stamps;
            match (self.load)() {
                Ok(value) => {
                    state.value = Arc::new(value);
                    metrics::reloaded(true);
                    tracing::info!(what = self.what, "read again, since its files changed");
                }
                Err(error) => {
                    metrics::reloaded(false);
                    tracing::warn!(
                        what = self.what,
                        error = &error as &dyn std::error::Error,
                        "cannot be read again; what was read before stays in force"
                    );
                }
            }
        }
        Arc::clone(&state.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        fs::write(&file, "1").unwrap();
        let parsed = file.clone();
        let load = move || {
            let text = String::from_utf8(read(&parsed)?).unwrap();
            text.trim().parse::<u32>().map_err(|e| LoadError::new(&parsed, e))
        };
        let watched = Watched::open("a number", vec![file.clone()], load).unwrap();
        assert_eq!(*watched.current(), 1);
        fs::write(&file, "22").unwrap();
        assert_eq!(*watched.current(), 22);
        fs::write(&file, "no number").unwrap();
        assert_eq!(*watched.current(), 22);
        fs::remove_file(&file).unwrap();
        assert_eq!(*watched.current(), 22);
        fs::write(&file, "333").unwrap();
        assert_eq!(*watched.current(), 333);
    }

    #[test]
    fn a_folder_of_links_that_is_swapped_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        for (version, number) in [("v1", "1"), ("v2", "2")] {
            fs::create_dir(folder.path().join(version)).unwrap();
            fs::write(folder.path().join(version).join("number"), number).unwrap();
        }
        let link = folder.path().join("data");
        std::os::unix::fs::symlink("v1", &link).unwrap();
        let file = link.join("number");
        let parsed = file.clone();
        let load = move || Ok::<_, LoadError>(String::from_utf8(read(&parsed)?).unwrap());
        let watched = Watched::open("a number", vec![file], load).unwrap();
        let swapped = folder.path().join("swapped");
        std::os::unix::fs::symlink("v2", &swapped).unwrap();
        fs::rename(&swapped, &link).unwrap();
        assert_eq!(*watched.current(), "2");
    }

    #[test]
    fn a_file_that_is_not_there_at_first_is_named() {
        let file = PathBuf::from("/nonexistent/secret");
        let parsed = file.clone();
        let refused = Watched::open("a secret", vec![file], move || read(&parsed)).err().unwrap();
        assert!(refused.to_string().starts_with("/nonexistent/secret: it cannot be read"), "{refused}");
    }
}
