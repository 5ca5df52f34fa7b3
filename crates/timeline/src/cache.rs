// SPDX-License-Identifier: Apache-2.0
//! What was read before and cannot change: metadata of completed commits and files of the archive.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tributary_hudi::target::CleanMark;
use tributary_hudi::{ArchivedInstant, CommitMetadata, HistoryFile};
use tributary_types::InstantTime;

/// Tables whose archive is kept in memory.
const TABLES: usize = 64;
/// Bytes of extra metadata that count as much as one written file.
const BYTES_PER_FILE: usize = 256;

/// A table's archive as it was read last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Archive {
    /// Its version; `None` while there is none.
    pub(crate) version: Option<u64>,
    /// Where the active timeline started then.
    pub(crate) start: Option<InstantTime>,
    /// Its files.
    pub(crate) files: Vec<HistoryFile>,
    /// What is in each of them.
    pub(crate) contents: HashMap<HistoryFile, Arc<Vec<ArchivedInstant>>>,
    /// Archived writes, by requested time.
    pub(crate) writes: Arc<Vec<ArchivedInstant>>,
    /// Which of them changed rows, as far as anyone asked.
    pub(crate) classes: HashMap<InstantTime, bool>,
}

/// A bounded cache over all tables.
#[derive(Debug)]
pub(crate) struct Cache {
    commits: Mutex<Commits>,
    archives: Mutex<Archives>,
    // Table, file, and what it says; the table that was asked for last comes last.
    cleans: Mutex<VecDeque<(String, String, Option<CleanMark>)>>,
}

#[derive(Debug)]
struct Commits {
    limit: usize,
    weight: usize,
    known: HashMap<(String, String), Arc<CommitMetadata>>,
    // In the order in which they came: what is planned next is mostly newer.
    order: VecDeque<(String, String)>,
}

#[derive(Debug, Default)]
struct Archives {
    known: HashMap<String, Archive>,
    order: VecDeque<String>,
}

impl Cache {
    /// A cache of commits that together wrote at most `files` files.
    pub(crate) fn new(files: usize) -> Self {
        let commits = Commits { limit: files, weight: 0, known: HashMap::new(), order: VecDeque::new() };
        Cache { commits: Mutex::new(commits), archives: Mutex::default(), cleans: Mutex::default() }
    }

    /// The metadata in a completed file of a table.
    pub(crate) fn commit(&self, url: &str, file: &str) -> Option<Arc<CommitMetadata>> {
        lock(&self.commits).known.get(&(url.to_string(), file.to_string())).cloned()
    }

    /// Keeps the metadata of a completed file.
    pub(crate) fn keep_commit(&self, url: &str, file: &str, metadata: &Arc<CommitMetadata>) {
        let mut commits = lock(&self.commits);
        let key = (url.to_string(), file.to_string());
        if commits.known.insert(key.clone(), Arc::clone(metadata)).is_some() {
            return;
        }
        commits.weight += weight(metadata);
        commits.order.push_back(key);
        while commits.weight > commits.limit {
            let Some(oldest) = commits.order.pop_front() else { break };
            if let Some(dropped) = commits.known.remove(&oldest) {
                commits.weight -= weight(&dropped);
            }
        }
    }

    /// What the outcome of a clean says, if it was read before.
    pub(crate) fn clean_mark(&self, url: &str, file: &str) -> Option<Option<CleanMark>> {
        let cleans = lock(&self.cleans);
        cleans.iter().find(|(known, of, _)| known == url && of == file).map(|(_, _, mark)| mark.clone())
    }

    /// Keeps what the newest clean of a table says.
    pub(crate) fn keep_clean_mark(&self, url: &str, file: &str, mark: Option<CleanMark>) {
        let mut cleans = lock(&self.cleans);
        cleans.retain(|(known, _, _)| known != url);
        cleans.push_back((url.to_string(), file.to_string(), mark));
        if cleans.len() > TABLES {
            cleans.pop_front();
        }
    }

    /// The archive of a table as it was read last.
    pub(crate) fn archive(&self, url: &str) -> Archive {
        lock(&self.archives).known.get(url).cloned().unwrap_or_default()
    }

    /// Keeps a table's archive.
    pub(crate) fn keep_archive(&self, url: &str, archive: Archive) {
        let mut archives = lock(&self.archives);
        if archives.known.insert(url.to_string(), archive).is_none() {
            archives.order.push_back(url.to_string());
        }
        while archives.order.len() > TABLES {
            if let Some(oldest) = archives.order.pop_front() {
                archives.known.remove(&oldest);
            }
        }
    }
}

fn weight(metadata: &CommitMetadata) -> usize {
    let replaced: usize = metadata.replaced.values().map(Vec::len).sum();
    let extra: usize = metadata.extra.iter().map(|(key, value)| key.len() + value.len()).sum();
    1 + metadata.stats.len() + replaced + extra / BYTES_PER_FILE
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tributary_hudi::WriteStat;

    use super::*;

    fn commit(files: usize) -> Arc<CommitMetadata> {
        Arc::new(CommitMetadata { stats: vec![WriteStat::default(); files], ..CommitMetadata::default() })
    }

    #[test]
    fn the_oldest_commits_make_room() {
        let cache = Cache::new(10);
        for name in ["a", "b", "c"] {
            cache.keep_commit("u", name, &commit(3));
        }
        assert!(cache.commit("u", "a").is_none());
        assert!(cache.commit("u", "b").is_some() && cache.commit("u", "c").is_some());
        assert!(cache.commit("v", "b").is_none(), "another table");
        cache.keep_commit("u", "huge", &commit(100));
        assert!(cache.commit("u", "huge").is_none(), "larger than all of it");
    }

    #[test]
    fn only_the_newest_clean_of_each_of_the_last_tables_is_kept() {
        let cache = Cache::new(1);
        let mark = Some(CleanMark::From("20250101000000001".parse().unwrap()));
        cache.keep_clean_mark("u", "a", mark.clone());
        assert_eq!(cache.clean_mark("u", "a"), Some(mark));
        cache.keep_clean_mark("u", "b", None);
        assert_eq!((cache.clean_mark("u", "a"), cache.clean_mark("u", "b")), (None, Some(None)));
        for number in 0..TABLES {
            cache.keep_clean_mark(&number.to_string(), "c", None);
        }
        assert_eq!(cache.clean_mark("u", "b"), None);
    }
}
