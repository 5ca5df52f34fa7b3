// SPDX-License-Identifier: Apache-2.0
//! The checkpoint role itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tributary_api::boxed_error;
use tributary_api::checkpoint::{BatchRecord, Checkpoints, CommitFound, CursorCommit, Error, Resolved};
use tributary_hudi::{Action, CommitMetadata, Instant, Storage, Stores, TableConfig, Timeline};
use tributary_store::KeyValue;
use tributary_types::{Checkpoint, Clock, InstantTime, PipelineName, RequestId, pipeline_of_key};

use crate::archive::archived_writes;
use crate::decide::{Known, answer_of, newest, repair};
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
        let (resolved, right) = self.look(pipeline, target).await?;
        if let Some(said) = &resolved.repaired {
            ::metrics::counter!(metrics::REPAIRS).increment(1);
            tracing::warn!(%pipeline, target, said, "local checkpoint record repaired");
            self.keep(pipeline, target, &right)?;
        }
        Ok((resolved, right))
    }

    /// Reads the target, and says what the local record should be.
    async fn look(&self, pipeline: &PipelineName, target: &str) -> Result<(Resolved, Known), Error> {
        let Read { commits, shared, restores, .. } = self.read_target(pipeline, target).await.inspect_err(|error| {
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

    /// Cursor commits of `pipeline` on the target.
    async fn read_target(&self, pipeline: &PipelineName, target: &str) -> Result<Read, Error> {
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
        // The whole archive only when the active timeline has nothing: what was archived is older than anything there.
        let archived = if read.commits.is_empty() {
            archived_writes(&storage, &config, None).await.map_err(fail)?
        } else if gone.is_empty() {
            Vec::new()
        } else {
            archived_writes(&storage, &config, Some(&gone)).await.map_err(fail)?
        };
        for (instant, metadata) in archived {
            gone.remove(&instant.requested);
            read.add(pipeline, &instant.requested, instant.completed.as_ref(), &cursors_in(metadata));
        }
        // What was found in the archive is older than anything on the active timeline.
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
        Ok(answer_of(&self.read_target(pipeline, target).await?.commits, request))
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
