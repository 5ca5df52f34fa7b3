// SPDX-License-Identifier: Apache-2.0
//! The checkpoint role itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tributary_api::boxed_error;
use tributary_api::checkpoint::{
    BatchRecord, Checkpoints, CommitFound, CursorCommit, Error, KnownCursor, LegacyCheckpoint, Resolved,
};
use tributary_hudi::{Action, CommitMetadata, Instant, Storage, Stores, TableConfig, Timeline};
use tributary_store::KeyValue;
use tributary_types::{
    Checkpoint, Clock, FLAT_KEY, FLAT_KEY_V2, InstantTime, PipelineName, RequestId, SourceName, pipeline_of_key,
};

use crate::archive::{Wanted, archived_writes};
use crate::decide::{Known, answer_of, known_cursors, newest, repair};
use crate::metrics;
use crate::records::{Records, cache_error};
use crate::settings::Settings;

const POSITIONS: &str = "position/";

/// The checkpoint role.
pub struct Service {
    stores: Arc<dyn Stores>,
    store: Arc<dyn KeyValue>,
    records: Records,
    clock: Arc<dyn Clock>,
    settings: Settings,
    // Cursors of completed commits, which never change: (target, completed file) -> cursor entries.
    remembered: Mutex<HashMap<(String, String), Arc<Cursors>>>,
}

/// The cursor entries of one commit: pipeline -> JSON.
type Cursors = BTreeMap<PipelineName, String>;

/// What a target says of one pipeline.
#[derive(Default)]
struct Read {
    commits: Vec<CursorCommit>,
    /// Whether another pipeline has commits there too.
    shared: bool,
    /// Completed restores on its active timeline.
    restores: Vec<InstantTime>,
    /// The newest commit that cannot be read, if no readable cursors of the pipeline follow it.
    unreadable: Option<(InstantTime, Error)>,
}

impl Service {
    /// A role that reads targets in `stores` and keeps its records in `store`.
    pub fn new(stores: Arc<dyn Stores>, store: Arc<dyn KeyValue>, clock: Arc<dyn Clock>, settings: Settings) -> Self {
        metrics::register();
        let records = Records::new(Arc::clone(&store), settings.history, settings.history_age);
        Service { stores, store, records, clock, settings, remembered: Mutex::new(HashMap::new()) }
    }

    /// Compares every position of the local store with its target and repairs what disagrees. Answers what was done, a
    /// sentence for each. Run once when a process starts; each resolve does the same for its own pipeline.
    pub async fn repair(&self) -> Result<Vec<String>, Error> {
        let mut said = Vec::new();
        for (key, _) in self.store.scan(POSITIONS, false, usize::MAX).map_err(cache_error)? {
            let Some((pipeline, target)) = key.strip_prefix(POSITIONS).and_then(|key| key.split_once('/')) else {
                continue;
            };
            let Ok(pipeline) = PipelineName::new(pipeline) else { continue };
            match self.compare(&pipeline, target).await {
                Ok((Resolved { repaired, .. }, _)) => {
                    said.extend(repaired.map(|what| format!("pipeline `{pipeline}`, target `{target}`: {what}")));
                }
                // Its next batch meets the same error, and fails with it.
                Err(error) => said.push(format!(
                    "pipeline `{pipeline}`, target `{target}`: its record cannot be compared with the target: {}",
                    tributary_types::with_causes(&error)
                )),
            }
        }
        Ok(said)
    }

    /// Reads the target, and repairs the local record where it disagrees.
    async fn compare(&self, pipeline: &PipelineName, target: &str) -> Result<(Resolved, Known), Error> {
        let recorded = self.known(pipeline, target)?.is_some();
        let (resolved, right) = self.look(pipeline, target).await?;
        if let Some(said) = &resolved.repaired {
            ::metrics::counter!(metrics::REPAIRS).increment(1);
            // A process without a data directory begins with no record each time.
            match recorded {
                true => tracing::warn!(%pipeline, target, said, "local checkpoint record repaired"),
                false => tracing::info!(%pipeline, target, said, "local checkpoint record made"),
            }
            self.keep(pipeline, target, &right)?;
        }
        Ok((resolved, right))
    }

    /// Reads the target, and says what the local record should be.
    async fn look(&self, pipeline: &PipelineName, target: &str) -> Result<(Resolved, Known), Error> {
        let Read { commits, shared, restores, .. } =
            self.read_target(pipeline, target, false).await.inspect_err(|error| {
                if matches!(error, Error::Checkpoint(_)) {
                    ::metrics::counter!(metrics::MALFORMED).increment(1);
                }
            })?;
        let newest = newest(pipeline, target, commits)?;
        for (source, entry) in newest.iter().flat_map(|commit| &commit.checkpoint.malformed) {
            ::metrics::counter!(metrics::MALFORMED).increment(1);
            let instant = &newest.as_ref().map(|commit| commit.instant.to_string());
            tracing::warn!(%pipeline, target, source, commit = instant, detail = entry.detail, "malformed cursor");
        }
        let known = self.known(pipeline, target)?;
        let (right, repaired) = repair(known.as_ref(), newest.as_ref(), &restores);
        let resolved = Resolved { newest, shared_target: shared, next_epoch: right.epoch + 1, repaired };
        Ok((resolved, right))
    }

    /// Cursor commits of `pipeline` on the target: those on the active timeline, and those in the archive where there is
    /// none on it, or where `whole` asks for all.
    async fn read_target(&self, pipeline: &PipelineName, target: &str, whole: bool) -> Result<Read, Error> {
        let fail = |e| hudi_error(target, e);
        let storage = self.stores.open(target).map_err(fail)?;
        let config = match TableConfig::load(&storage).await {
            Ok(config) => config,
            Err(tributary_hudi::Error::NoTable { .. }) => return Ok(Read::default()),
            Err(e) => return Err(fail(e)),
        };
        let timeline = Timeline::load(&storage, &config).await.map_err(fail)?;
        let restores = timeline.instants().iter().filter(|i| i.action == Action::Restore && !i.is_pending());
        let mut read = Read { restores: restores.map(|i| i.requested.clone()).collect(), ..Read::default() };
        // Listed, and gone when it was to be read: archived in between.
        let mut gone = BTreeSet::new();
        for instant in timeline.completed_writes() {
            match self.cursors_of(&storage, &timeline, instant).await {
                Ok(Some(cursors)) => {
                    read.add(pipeline, &instant.requested, instant.completed.as_ref(), &cursors);
                }
                Ok(None) => {
                    gone.insert(instant.requested.clone());
                }
                Err(error @ Error::Corrupt { .. }) => read.unreadable = Some((instant.requested.clone(), error)),
                Err(error) => return Err(error),
            }
        }
        // What was archived is older than anything there, but for writes that a savepoint kept while later ones went.
        let newest = read.commits.iter().map(|commit| commit.instant.clone()).max().filter(|_| !whole);
        let wanted = newest.as_ref().map_or(Wanted::All, Wanted::After);
        let mut archived = archived_writes(&storage, &config, wanted).await.map_err(fail)?;
        if newest.is_some() && !gone.is_empty() {
            archived.extend(archived_writes(&storage, &config, Wanted::These(&gone)).await.map_err(fail)?);
            archived.sort_by(|(a, _), (b, _)| a.requested.cmp(&b.requested));
            archived.dedup_by(|(a, _), (b, _)| a.requested == b.requested);
        }
        let archived = archived.into_iter().map(|(instant, metadata)| {
            gone.remove(&instant.requested);
            (instant.requested, instant.completed, cursors_in(metadata))
        });
        read.add_archived(pipeline, newest.as_ref(), archived);
        read.refuse_unreadable()?;
        if let Some(lost) = gone.first() {
            // Restored or rolled back in between: another listing does not have it.
            let source = std::io::Error::other(format!("commit {lost} was listed and is in neither timeline"));
            return Err(Error::Store {
                target: target.to_string(),
                doing: "reading the cursors".to_string(),
                source: boxed_error(source),
            });
        }
        Ok(read)
    }

    /// The cursors in a completed commit; `None` when its file is gone.
    async fn cursors_of(
        &self,
        storage: &Storage,
        timeline: &Timeline,
        instant: &Instant,
    ) -> Result<Option<Arc<Cursors>>, Error> {
        let Some(path) = timeline.completed_path(instant) else { return Ok(Some(Arc::default())) };
        let key = (storage.url().to_string(), path.clone());
        if let Some(found) = self.remembered.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Some(Arc::clone(found)));
        }
        let bytes = storage.get(&path).await.map_err(|e| hudi_error(storage.url(), e))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let metadata = CommitMetadata::decode(&path, &bytes).map_err(|e| hudi_error(storage.url(), e))?;
        let cursors = Arc::new(cursors_in(metadata));
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= self.settings.remembered_commits {
            remembered.clear();
        }
        remembered.insert(key, Arc::clone(&cursors));
        Ok(Some(cursors))
    }

    fn known(&self, pipeline: &PipelineName, target: &str) -> Result<Option<Known>, Error> {
        let bytes = self.store.get(&known_key(pipeline, target)).map_err(cache_error)?;
        // A record that cannot be read is no record: the target says everything.
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn keep(&self, pipeline: &PipelineName, target: &str, known: &Known) -> Result<(), Error> {
        let bytes = serde_json::to_vec(known)
            .map_err(|e| Error::Cache { doing: "writing a position".to_string(), source: boxed_error(e) })?;
        self.store.put(&known_key(pipeline, target), &bytes).map_err(cache_error)
    }
}

impl Read {
    /// Adds the next commit, in order of completion. Cursors in it supersede those of every commit before it, so that
    /// what could not be read there does not matter any more.
    fn add(
        &mut self,
        pipeline: &PipelineName,
        instant: &InstantTime,
        completed: Option<&InstantTime>,
        cursors: &Cursors,
    ) {
        self.shared |= cursors.keys().any(|name| name != pipeline);
        let Some(text) = cursors.get(pipeline) else { return };
        match Checkpoint::from_json(pipeline, instant, text) {
            Ok(checkpoint) => {
                if let Some((before, error)) = self.unreadable.take() {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(%pipeline, commit = %before, error, "an old commit cannot be read; newer cursors hold");
                }
                self.commits.push(CursorCommit { instant: instant.clone(), completed: completed.cloned(), checkpoint });
            }
            Err(error) => self.unreadable = Some((instant.clone(), error.into())),
        }
    }

    /// Adds commits of the archive, which are older than anything on the active timeline: they supersede nothing that
    /// could not be read there, and what cannot be read of them does not matter where the active timeline has cursors. Those
    /// that are newer than its `newest` cursors, since a savepoint kept these there, matter.
    fn add_archived(
        &mut self,
        pipeline: &PipelineName,
        newest: Option<&InstantTime>,
        archived: impl Iterator<Item = (InstantTime, Option<InstantTime>, Cursors)>,
    ) {
        let active = self.unreadable.take();
        let active_tells = active.is_some() || !self.commits.is_empty();
        for (instant, completed, cursors) in archived {
            self.add(pipeline, &instant, completed.as_ref(), &cursors);
        }
        let matters = |(instant, _): &(InstantTime, Error)| newest.is_some_and(|newest| instant > newest);
        if active_tells {
            self.unreadable = self.unreadable.take().filter(matters).or(active);
        }
    }

    /// A commit that cannot be read may hold the newest cursors, where no others follow it.
    fn refuse_unreadable(&mut self) -> Result<(), Error> {
        match self.unreadable.take() {
            Some((instant, Error::Corrupt { target, detail })) => Err(Error::Corrupt {
                target,
                detail: format!(
                    "commit {instant} cannot be read, and may hold the newest cursors: {detail}. Restore its file from a \
                     copy, or write a new target: at another `target.path` every source begins at its `start`"
                ),
            }),
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Checkpoints for Service {
    #[tracing::instrument(name = "find the cursors", skip_all, fields(role = "checkpoint", pipeline = %pipeline))]
    async fn resolve(&self, pipeline: &PipelineName, target: &str) -> Result<Resolved, Error> {
        let (resolved, mut right) = self.compare(pipeline, target).await?;
        right.epoch = resolved.next_epoch;
        self.keep(pipeline, target, &right)?;
        Ok(resolved)
    }

    async fn look_up(&self, pipeline: &PipelineName, target: &str) -> Result<Resolved, Error> {
        Ok(self.look(pipeline, target).await?.0)
    }

    async fn find_commit(
        &self,
        pipeline: &PipelineName,
        target: &str,
        request: &RequestId,
    ) -> Result<Option<CommitFound>, Error> {
        Ok(answer_of(&self.read_target(pipeline, target, false).await?.commits, request))
    }

    async fn find_cursors(
        &self,
        pipeline: &PipelineName,
        target: &str,
        sources: &[SourceName],
    ) -> Result<Vec<KnownCursor>, Error> {
        Ok(known_cursors(self.read_target(pipeline, target, true).await?.commits, sources))
    }

    async fn find_legacy(&self, target: &str) -> Result<Option<LegacyCheckpoint>, Error> {
        let fail = |e| hudi_error(target, e);
        let storage = self.stores.open(target).map_err(fail)?;
        let config = match TableConfig::load(&storage).await {
            Ok(config) => config,
            Err(tributary_hudi::Error::NoTable { .. }) => return Ok(None),
            Err(e) => return Err(fail(e)),
        };
        let timeline = Timeline::load(&storage, &config).await.map_err(fail)?;
        let mut active = None;
        for instant in timeline.completed_writes().into_iter().rev() {
            let Some(path) = timeline.completed_path(instant) else { continue };
            // One that is gone was archived in between, and is looked at there.
            let Some(bytes) = storage.get(&path).await.map_err(fail)? else { continue };
            let metadata = CommitMetadata::decode(&path, &bytes).map_err(fail)?;
            if let Some(found) = legacy_in(&instant.requested, &metadata) {
                active = Some((instant.requested.clone(), found));
                break;
            }
        }
        let wanted = active.as_ref().map_or(Wanted::All, |(instant, _)| Wanted::After(instant));
        let mut archived = archived_writes(&storage, &config, wanted).await.map_err(fail)?;
        archived.sort_by(|(a, _), (b, _)| (&b.completed, &b.requested).cmp(&(&a.completed, &a.requested)));
        let found = archived.iter().find_map(|(instant, metadata)| legacy_in(&instant.requested, metadata));
        Ok(found.or(active.map(|(_, found)| found)).flatten())
    }

    async fn record(&self, record: BatchRecord) -> Result<(), Error> {
        self.records.put(&record, self.clock.now_millis())
    }

    async fn history(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchRecord>, Error> {
        self.records.newest(pipeline, limit)
    }

    async fn find_request(&self, pipeline: &PipelineName, request: &RequestId) -> Result<Option<BatchRecord>, Error> {
        self.records.find(pipeline, request)
    }
}

/// What a commit says of checkpoints of other programs; `None`: nothing. The inner `None`: it has cursors of ours, and what
/// was before them was taken over, or was not to be.
fn legacy_in(instant: &InstantTime, metadata: &CommitMetadata) -> Option<Option<LegacyCheckpoint>> {
    if metadata.extra.keys().any(|key| pipeline_of_key(key).is_some()) {
        return Some(None);
    }
    // The second one first, as Hudi Streamer does; an empty text is no checkpoint.
    let key =
        [FLAT_KEY_V2, FLAT_KEY].into_iter().find(|key| metadata.extra.get(*key).is_some_and(|v| !v.is_empty()))?;
    let value = metadata.extra.get(key).cloned().unwrap_or_default();
    Some(Some(LegacyCheckpoint { instant: instant.clone(), key: key.to_string(), value }))
}

fn cursors_in(metadata: CommitMetadata) -> Cursors {
    let entries = metadata.extra.into_iter();
    entries.filter_map(|(key, text)| pipeline_of_key(&key).map(|name| (name, text))).collect()
}

fn known_key(pipeline: &PipelineName, target: &str) -> String {
    format!("{POSITIONS}{pipeline}/{target}")
}

fn hudi_error(target: &str, error: tributary_hudi::Error) -> Error {
    let target = target.to_string();
    match error.into_store_failure() {
        Ok((step, source)) => Error::Store { target, doing: format!("reading the cursors ({step})"), source },
        Err(error) => Error::Corrupt { target, detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u32) -> InstantTime {
        format!("2025010100000000{n}").parse().unwrap()
    }

    fn pipeline() -> PipelineName {
        PipelineName::new("p").unwrap()
    }

    fn cursors(text: &str) -> Cursors {
        BTreeMap::from([(pipeline(), text.to_string())])
    }

    fn good(seq: u64) -> Cursors {
        let mut checkpoint = Checkpoint::first(String::new());
        checkpoint.seq = seq;
        cursors(&checkpoint.to_json())
    }

    #[test]
    fn the_archive_does_not_stand_in_for_a_newer_commit_that_cannot_be_read() {
        let mut read = Read::default();
        read.add(&pipeline(), &at(5), None, &cursors("["));
        read.add_archived(&pipeline(), None, [(at(1), None, good(1))].into_iter());
        assert_eq!(read.commits.len(), 1);
        assert!(read.refuse_unreadable().unwrap_err().to_string().contains(at(5).as_str()));
    }

    #[test]
    fn what_cannot_be_read_in_the_archive_matters_only_where_the_active_timeline_tells_nothing() {
        let damaged = || [(at(1), None, cursors("["))].into_iter();
        let mut read = Read::default();
        read.add(&pipeline(), &at(5), None, &good(2));
        read.add_archived(&pipeline(), Some(&at(5)), damaged());
        assert!(read.refuse_unreadable().is_ok());
        let mut read = Read::default();
        read.add_archived(&pipeline(), None, damaged());
        assert!(read.refuse_unreadable().is_err());
        // Archived past a savepoint that keeps the older one on the timeline.
        let mut read = Read::default();
        read.add(&pipeline(), &at(5), None, &good(2));
        read.add_archived(&pipeline(), Some(&at(5)), [(at(9), None, cursors("["))].into_iter());
        assert!(read.refuse_unreadable().is_err());
    }

    fn commit(extra: &[(&str, &str)]) -> CommitMetadata {
        let extra = extra.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        CommitMetadata { extra, ..CommitMetadata::default() }
    }

    #[test]
    fn a_checkpoint_of_another_program_counts_only_where_no_cursors_of_ours_stand() {
        let found =
            |extra: &[(&str, &str)]| legacy_in(&at(1), &commit(extra)).map(|it| it.map(|it| (it.key, it.value)));
        let second = (FLAT_KEY_V2.to_string(), "2".to_string());
        assert_eq!(found(&[(FLAT_KEY, "1"), (FLAT_KEY_V2, "2")]), Some(Some(second)));
        assert_eq!(found(&[(FLAT_KEY, "1"), (FLAT_KEY_V2, "")]), Some(Some((FLAT_KEY.to_string(), "1".to_string()))));
        assert_eq!(found(&[(FLAT_KEY, "")]), None, "an empty text is no checkpoint");
        assert_eq!(found(&[("schema", "{}")]), None, "a table service is passed over");
        let name = tributary_types::checkpoint_key(&PipelineName::new("q").unwrap());
        assert_eq!(found(&[(FLAT_KEY, "1"), (&name, "{}")]), Some(None));
    }
}
