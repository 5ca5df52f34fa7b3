// SPDX-License-Identifier: Apache-2.0
//! The checkpoint role itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tributary_api::boxed_error;
use tributary_api::checkpoint::{BatchRecord, Checkpoints, CursorCommit, Error, Resolved};
use tributary_hudi::{CommitMetadata, Instant, Storage, Stores, TableConfig, Timeline, find_archived_metadata};
use tributary_store::KeyValue;
use tributary_types::{Checkpoint, InstantTime, PipelineName, RequestId, checkpoint_key, pipeline_of_key};

use crate::decide::{Known, newest, repair};
use crate::metrics;
use crate::settings::Settings;

/// The checkpoint role.
pub struct Service {
    stores: Arc<dyn Stores>,
    store: Arc<dyn KeyValue>,
    settings: Settings,
    // Cursors of completed commits, which never change: (target, completed file) -> cursor entries.
    remembered: Mutex<HashMap<(String, String), Arc<Cursors>>>,
}

/// The cursor entries of one commit: pipeline -> JSON.
type Cursors = BTreeMap<PipelineName, String>;

impl Service {
    /// A role that reads targets in `stores` and keeps its records in `store`.
    pub fn new(stores: Arc<dyn Stores>, store: Arc<dyn KeyValue>, settings: Settings) -> Self {
        metrics::register();
        Service { stores, store, settings, remembered: Mutex::new(HashMap::new()) }
    }

    /// Cursor commits of `pipeline` on the target, and whether another pipeline has some.
    async fn read_target(&self, pipeline: &PipelineName, target: &str) -> Result<(Vec<CursorCommit>, bool), Error> {
        let storage = self.stores.open(target).map_err(|e| hudi_error(target, e))?;
        let config = match TableConfig::load(&storage).await {
            Ok(config) => config,
            Err(tributary_hudi::Error::NoTable { .. }) => return Ok((Vec::new(), false)),
            Err(e) => return Err(hudi_error(target, e)),
        };
        let timeline = Timeline::load(&storage, &config).await.map_err(|e| hudi_error(target, e))?;
        let mut commits = Vec::new();
        let mut shared = false;
        for instant in timeline.completed_writes() {
            let cursors = self.cursors_of(&storage, &timeline, instant).await?;
            shared |= cursors.keys().any(|name| name != pipeline);
            if let Some(text) = cursors.get(pipeline) {
                commits.push(cursor_commit(pipeline, &instant.requested, instant.completed.as_ref(), text)?);
            }
        }
        if commits.is_empty() {
            // Only when the active timeline has nothing: what was archived is older than anything active.
            let key = checkpoint_key(pipeline);
            let archived = find_archived_metadata(&storage, &config, &key).await.map_err(|e| hudi_error(target, e))?;
            for (instant, metadata) in archived {
                if let Some(text) = metadata.extra.get(&key) {
                    commits.push(cursor_commit(pipeline, &instant.requested, instant.completed.as_ref(), text)?);
                }
            }
        }
        Ok((commits, shared))
    }

    async fn cursors_of(
        &self,
        storage: &Storage,
        timeline: &Timeline,
        instant: &Instant,
    ) -> Result<Arc<Cursors>, Error> {
        let Some(path) = timeline.completed_path(instant) else { return Ok(Arc::default()) };
        let key = (storage.url().to_string(), path.clone());
        if let Some(found) = self.remembered.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(found));
        }
        // A file that was listed and is gone was archived meanwhile: a newer commit is on the timeline then.
        let bytes = storage.get(&path).await.map_err(|e| hudi_error(storage.url(), e))?.unwrap_or_default();
        let metadata = CommitMetadata::decode(&path, &bytes).map_err(|e| hudi_error(storage.url(), e))?;
        let cursors: Cursors = metadata
            .extra
            .into_iter()
            .filter_map(|(key, text)| pipeline_of_key(&key).map(|name| (name, text)))
            .collect();
        let cursors = Arc::new(cursors);
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= self.settings.remembered_commits {
            remembered.clear();
        }
        remembered.insert(key, Arc::clone(&cursors));
        Ok(cursors)
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

#[async_trait]
impl Checkpoints for Service {
    async fn resolve(&self, pipeline: &PipelineName, target: &str) -> Result<Resolved, Error> {
        let (commits, shared_target) = self.read_target(pipeline, target).await.inspect_err(|error| {
            if matches!(error, Error::Checkpoint(_)) {
                ::metrics::counter!(metrics::MALFORMED).increment(1);
            }
        })?;
        let newest = newest(pipeline, target, commits)?;
        let known = self.known(pipeline, target)?;
        let (mut right, repaired) = repair(known.as_ref(), newest.as_ref());
        if let Some(said) = &repaired {
            ::metrics::counter!(metrics::REPAIRS).increment(1);
            tracing::info!(%pipeline, target, said, "local checkpoint record repaired");
        }
        right.epoch += 1;
        self.keep(pipeline, target, &right)?;
        Ok(Resolved { newest, shared_target, next_epoch: right.epoch, repaired })
    }

    async fn record(&self, record: BatchRecord) -> Result<(), Error> {
        let bytes = serde_json::to_vec(&record)
            .map_err(|e| Error::Cache { doing: "writing a batch".to_string(), source: boxed_error(e) })?;
        let prefix = format!("batch/{}/", record.pipeline);
        // Started first in the key, so that the order of keys is the order of batches.
        let key = format!("{prefix}{:020}/{}", record.started_millis, record.request);
        self.store.put(&key, &bytes).map_err(cache_error)?;
        self.store.put(&request_key(&record.pipeline, &record.request), key.as_bytes()).map_err(cache_error)?;
        let kept = self.store.scan(&prefix, true, self.settings.history + 16).map_err(cache_error)?;
        for (old, bytes) in kept.into_iter().skip(self.settings.history) {
            if let Ok(record) = serde_json::from_slice::<BatchRecord>(&bytes) {
                self.store.delete(&request_key(&record.pipeline, &record.request)).map_err(cache_error)?;
            }
            self.store.delete(&old).map_err(cache_error)?;
        }
        Ok(())
    }

    async fn history(&self, pipeline: &PipelineName, limit: usize) -> Result<Vec<BatchRecord>, Error> {
        let found = self.store.scan(&format!("batch/{pipeline}/"), true, limit).map_err(cache_error)?;
        Ok(found.iter().filter_map(|(_, bytes)| serde_json::from_slice(bytes).ok()).collect())
    }

    async fn find_request(&self, pipeline: &PipelineName, request: &RequestId) -> Result<Option<BatchRecord>, Error> {
        let Some(key) = self.store.get(&request_key(pipeline, request)).map_err(cache_error)? else { return Ok(None) };
        let bytes = self.store.get(&String::from_utf8_lossy(&key)).map_err(cache_error)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}

fn cursor_commit(
    pipeline: &PipelineName,
    instant: &InstantTime,
    completed: Option<&InstantTime>,
    text: &str,
) -> Result<CursorCommit, Error> {
    let checkpoint = Checkpoint::from_json(pipeline, instant, text)?;
    Ok(CursorCommit { instant: instant.clone(), completed: completed.cloned(), checkpoint })
}

fn known_key(pipeline: &PipelineName, target: &str) -> String {
    format!("position/{pipeline}/{target}")
}

fn request_key(pipeline: &PipelineName, request: &RequestId) -> String {
    format!("request/{pipeline}/{request}")
}

fn cache_error(error: tributary_store::Error) -> Error {
    Error::Cache { doing: error.doing.clone(), source: boxed_error(error) }
}

fn hudi_error(target: &str, error: tributary_hudi::Error) -> Error {
    if error.outcome_unknown() {
        return Error::Store {
            target: target.to_string(),
            doing: "reading the cursors".to_string(),
            source: boxed_error(error),
        };
    }
    Error::Corrupt { target: target.to_string(), detail: error.to_string() }
}
