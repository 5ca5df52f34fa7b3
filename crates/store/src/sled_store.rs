// SPDX-License-Identifier: Apache-2.0
//! A store on disk, in sled.

use std::path::Path;
use std::time::Duration;

use crate::{Error, KeyValue};

/// How often the directory's lock is asked for: whoever held it last gives it back on a thread of its own, a moment after
/// it was dropped.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Whether another one holds the directory; sled hides the kind of error in its text.
fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(io) if io.to_string().contains("could not acquire lock"))
}

/// A store in a directory that one process holds at a time.
#[derive(Debug)]
pub struct SledStore {
    database: sled::Db,
}

impl SledStore {
    /// Opens or makes the store in `directory`.
    #[allow(clippy::disallowed_methods)] // A process opens its store before it serves anybody, on a thread that has nothing else to do.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let mut tries = LOCK_TRIES;
        let database = loop {
            match sled::Config::new().path(directory).open() {
                Err(error) if tries > 1 && is_locked(&error) => {
                    tries -= 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                opened => break opened.map_err(|e| Error::new(format!("opening `{}`", directory.display()), e))?,
            }
        };
        Ok(SledStore { database })
    }

    fn flush(&self, doing: &str) -> Result<(), Error> {
        self.database.flush().map(drop).map_err(|e| Error::new(doing, e))
    }
}

impl KeyValue for SledStore {
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let found = self.database.get(key).map_err(|e| Error::new(format!("reading `{key}`"), e))?;
        Ok(found.map(|value| value.to_vec()))
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.database.insert(key, value).map_err(|e| Error::new(format!("writing `{key}`"), e))?;
        self.flush("writing to disk")
    }

    fn swap(&self, key: &str, expected: Option<&[u8]>, value: &[u8]) -> Result<bool, Error> {
        let swapped = self
            .database
            .compare_and_swap(key, expected, Some(value))
            .map_err(|e| Error::new(format!("swapping `{key}`"), e))?;
        self.flush("writing to disk")?;
        Ok(swapped.is_ok())
    }

    fn delete(&self, key: &str) -> Result<(), Error> {
        self.database.remove(key).map_err(|e| Error::new(format!("removing `{key}`"), e))?;
        self.flush("writing to disk")
    }

    fn scan(&self, prefix: &str, newest_first: bool, limit: usize) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let entries = self.database.scan_prefix(prefix);
        let entry = |found: sled::Result<(sled::IVec, sled::IVec)>| {
            let (key, value) = found.map_err(|e| Error::new(format!("listing `{prefix}`"), e))?;
            Ok((String::from_utf8_lossy(&key).into_owned(), value.to_vec()))
        };
        if newest_first {
            entries.rev().take(limit).map(entry).collect()
        } else {
            entries.take(limit).map(entry).collect()
        }
    }
}
