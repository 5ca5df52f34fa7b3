// SPDX-License-Identifier: Apache-2.0
//! Reads what is decided upon: configuration, timeline, archive and commit metadata of one table.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use tributary_api::timeline::{Error, InstantFact};
use tributary_hudi as hudi;
use tributary_hudi::{CommitMetadata, HistoryFile, Storage, Stores, TableConfig};
use tributary_types::{Clock, CursorKind, InstantTime};

use crate::cache::{Archive, Cache};
use crate::fault::fault;
use crate::{identity, metrics};

/// Commit files that are held undecoded at once.
pub(crate) const COMMITS_AT_ONCE: usize = 64;
/// Files of the archive that are read at once.
const ARCHIVES_AT_ONCE: usize = 4;
/// How often an archive that changes while it is read is read again.
const ATTEMPTS: usize = 3;

/// One table as one listing of its timeline showed it.
pub(crate) struct Table {
    /// Where it is.
    pub(crate) url: String,
    /// Its files.
    pub(crate) storage: Storage,
    /// What it says of itself.
    pub(crate) config: TableConfig,
    /// Its active timeline.
    pub(crate) timeline: hudi::Timeline,
    /// Completed writes on it, in order of completion.
    pub(crate) writes: Vec<InstantFact>,
    /// Pending instants that will change rows, by requested time, with their actions.
    pub(crate) pending: Vec<(InstantTime, String)>,
    /// Its archive.
    pub(crate) archive: Archive,
    /// Just before the timeline was listed, milliseconds since the epoch.
    pub(crate) listed_millis: i64,
}

impl Table {
    /// Opens the table at `url`; `what` names who asks for it.
    pub(crate) async fn open(
        stores: &dyn Stores,
        cache: &Cache,
        clock: &dyn Clock,
        url: &str,
        what: &str,
    ) -> Result<Self, Error> {
        let failed = |error| match fault(url)(error) {
            Error::NoTable { url, .. } => Error::NoTable { url, what: what.to_string() },
            other => other,
        };
        let storage = stores.open(url).map_err(failed)?;
        let config = TableConfig::load(&storage).await.map_err(failed)?;
        crate::refuse::check_table(url, &config)?;
        let listed_millis = clock.now_millis();
        let timeline = hudi::Timeline::load(&storage, &config).await.map_err(failed)?;
        // After the timeline: an instant leaves it only once the archive has it, so none falls between the two.
        let archive = load_archive(&storage, &config, cache, url, timeline.earliest()).await.map_err(failed)?;
        let writes = timeline.completed_writes().into_iter().filter_map(write_fact).collect();
        let pending = hudi::pending_changes(&storage, &timeline).await.map_err(failed)?.into_iter();
        let pending = pending.map(|it| (it.requested.clone(), it.action.as_str().to_string())).collect();
        Ok(Table { url: url.to_string(), storage, config, timeline, writes, pending, archive, listed_millis })
    }

    /// The clock that orders the table's commits.
    pub(crate) fn kind(&self) -> CursorKind {
        CursorKind::of_layout(self.config.layout)
    }

    /// Up to when (milliseconds since the epoch) the listing shows every commit that there will ever be: completion
    /// times lie ahead of it; in the order of requests it ends before the earliest pending commit.
    pub(crate) fn frontier_millis(&self, margin_millis: i64) -> i64 {
        let listed = self.listed_millis.saturating_sub(margin_millis);
        let hole = match self.kind() {
            CursorKind::Completed | CursorKind::File | CursorKind::Offsets => None,
            CursorKind::Requested => self.pending.first().and_then(|(at, _)| at.epoch_millis(self.config.zone)),
        };
        hole.map_or(listed, |hole| listed.min(hole - 1))
    }

    /// The table's identity.
    pub(crate) fn fingerprint(&self) -> String {
        let active = self.writes.iter().map(|write| &write.requested);
        let archived = self.archive.writes.iter().map(|instant| &instant.requested);
        identity::fingerprint(&self.config.name, active.chain(archived).min())
    }

    /// Whether this is the table that a fingerprint was taken from.
    pub(crate) fn is_table_of(&self, fingerprint: &str) -> bool {
        identity::is_same_table(fingerprint, &self.config.name, |first| {
            self.writes.iter().any(|write| write.requested == *first)
                || self.archive.writes.iter().any(|instant| instant.requested == *first)
        })
    }

    /// Completed writes in a range of completion times, in order.
    pub(crate) fn writes_between<'a>(
        &'a self,
        first: &'a InstantTime,
        last: &'a InstantTime,
    ) -> impl Iterator<Item = &'a InstantFact> {
        self.writes.iter().filter(move |write| write.completed >= *first && write.completed <= *last)
    }

    /// Metadata of completed writes; the order is that of the instants.
    pub(crate) async fn metadata<'a>(
        &self,
        cache: &Cache,
        requested: impl IntoIterator<Item = &'a InstantTime>,
    ) -> Result<Vec<Arc<CommitMetadata>>, Error> {
        let failed = fault(&self.url);
        let files: Vec<String> = requested.into_iter().filter_map(|time| self.completed_file(time)).collect();
        let mut found: Vec<Option<Arc<CommitMetadata>>> =
            files.iter().map(|file| cache.commit(&self.url, file)).collect();
        let missing: Vec<usize> = (0..files.len()).filter(|at| found[*at].is_none()).collect();
        for chunk in missing.chunks(COMMITS_AT_ONCE) {
            let names: Vec<String> = chunk.iter().map(|at| files[*at].clone()).collect();
            let contents = self.storage.read_all(&names).await.map_err(&failed)?;
            metrics::record_commits_read(contents.len());
            for (at, bytes) in chunk.iter().zip(contents) {
                let file = &files[*at];
                let bytes = bytes.ok_or_else(|| failed(hudi::Error::Gone { file: file.clone() }))?;
                let metadata = Arc::new(CommitMetadata::decode(file, &bytes).map_err(&failed)?);
                cache.keep_commit(&self.url, file, &metadata);
                found[*at] = Some(metadata);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Finds out of each write, active or archived, whether it changed rows.
    pub(crate) async fn classify(
        &mut self,
        cache: &Cache,
        wanted: &[InstantTime],
        known: &mut HashMap<InstantTime, bool>,
    ) -> Result<(), Error> {
        let (active, archived): (Vec<&InstantTime>, Vec<&InstantTime>) =
            wanted.iter().partition(|time| self.completed_file(time).is_some());
        let metadata = self.metadata(cache, active.iter().copied()).await?;
        known.extend(active.into_iter().cloned().zip(metadata.iter().map(|metadata| metadata.changes_rows())));
        let unknown: BTreeSet<InstantTime> =
            archived.iter().filter(|time| !self.archive.classes.contains_key(**time)).map(|t| (*t).clone()).collect();
        if !unknown.is_empty() {
            let found = hudi::archived_metadata(&self.storage, &self.archive.files, &unknown).await;
            for (time, metadata) in found.map_err(fault(&self.url))? {
                self.archive.classes.insert(time, metadata.changes_rows());
            }
            cache.keep_archive(&self.url, self.archive.clone());
        }
        for time in archived {
            // Whatever the archive does not explain must be taken for a change.
            known.insert(time.clone(), self.archive.classes.get(time).copied().unwrap_or(true));
        }
        Ok(())
    }

    /// The newest completed write that changed rows, as far as that is known without a look.
    pub(crate) fn newest_known_change(&self, known: &HashMap<InstantTime, bool>) -> Option<&InstantFact> {
        let mut newest = self.writes.iter().rev().skip_while(|write| known.get(&write.requested) == Some(&false));
        newest.next().filter(|write| known.contains_key(&write.requested))
    }

    /// The newest completed write that changed rows.
    pub(crate) async fn newest_change(&self, cache: &Cache) -> Result<Option<InstantFact>, Error> {
        for write in self.writes.iter().rev() {
            let metadata = self.metadata(cache, [&write.requested]).await?;
            if metadata.iter().any(|metadata| metadata.changes_rows()) {
                return Ok(Some(write.clone()));
            }
        }
        Ok(None)
    }

    fn completed_file(&self, requested: &InstantTime) -> Option<String> {
        self.timeline.find(requested).and_then(|instant| self.timeline.completed_path(instant))
    }
}

fn write_fact(instant: &hudi::Instant) -> Option<InstantFact> {
    Some(InstantFact {
        requested: instant.requested.clone(),
        completed: instant.completed.clone()?,
        action: instant.action.as_str().to_string(),
    })
}

/// The archive of a table: what is new in it is read, the rest is known.
async fn load_archive(
    storage: &Storage,
    config: &TableConfig,
    cache: &Cache,
    url: &str,
    start: Option<&InstantTime>,
) -> hudi::Result<Archive> {
    let known = cache.archive(url);
    for _attempt in 0..ATTEMPTS {
        let Some(version) = hudi::history_version(storage, config).await? else { return Ok(Archive::default()) };
        // The start of the timeline moves with every run of the archiver, and tells a re-created table.
        if known.version == Some(version) && known.start.as_ref() == start {
            return Ok(known);
        }
        let Some(files) = hudi::history_files(storage, config, version).await? else { continue };
        match read_archive(storage, files, &known).await {
            Ok(mut archive) => {
                archive.version = Some(version);
                archive.start = start.cloned();
                cache.keep_archive(url, archive.clone());
                return Ok(archive);
            }
            // The archiver merged files meanwhile.
            Err(hudi::Error::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(hudi::Error::Conflict { what: format!("the archive changed {ATTEMPTS} times while it was read") })
}

async fn read_archive(storage: &Storage, files: Vec<HistoryFile>, known: &Archive) -> hudi::Result<Archive> {
    let mut archive = Archive { classes: known.classes.clone(), ..Archive::default() };
    let contents: Vec<_> = futures::stream::iter(files.iter().cloned())
        .map(|file| async move {
            match known.contents.get(&file) {
                Some(contents) => Ok(Arc::clone(contents)),
                None => hudi::read_history_file(storage, &file).await.map(Arc::new),
            }
        })
        .buffered(ARCHIVES_AT_ONCE)
        .try_collect()
        .await?;
    let writes: BTreeSet<_> = contents
        .iter()
        .flat_map(|instants| instants.iter())
        .filter(|instant| instant.action.writes_files())
        .cloned()
        .collect();
    archive.files = files.iter().cloned().zip(&contents).map(|(file, contents)| with_range(file, contents)).collect();
    archive.contents = files.into_iter().zip(contents).collect();
    archive.writes = Arc::new(writes.into_iter().collect());
    Ok(archive)
}

/// The range of what a file holds. Its name is not to be believed: the files that an upgrade from version 6 leaves are
/// named by the first and the last of their rows, which are in no order.
fn with_range(file: HistoryFile, contents: &[hudi::ArchivedInstant]) -> HistoryFile {
    let times = || contents.iter().map(|instant| &instant.requested);
    let range = times().min().cloned().zip(times().max().cloned());
    HistoryFile { range, ..file }
}

#[cfg(test)]
mod tests {
    use tributary_hudi::{Action, ArchivedInstant};

    use super::*;

    #[test]
    fn a_file_of_the_archive_ranges_over_what_it_holds_whatever_its_name_says() {
        let at = |second: u32| format!("202501010000{second:02}000").parse::<InstantTime>().unwrap();
        let held = [7, 2, 5].map(|n| ArchivedInstant { requested: at(n), completed: None, action: Action::Commit });
        let named = HistoryFile { path: "h/x.parquet".to_string(), range: Some((at(7), at(5))), bytes: 0 };
        let file = with_range(named.clone(), &held);
        assert!(!named.may_hold(&at(2)) && file.may_hold(&at(2)) && file.may_hold(&at(7)));
        assert!(!file.may_hold(&at(8)));
    }
}
