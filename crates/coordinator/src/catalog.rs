// SPDX-License-Identifier: Apache-2.0
//! The pipelines that a coordinator keeps, in its local store.
//!
//! `pipeline/<name>` holds a pipeline, `change/<request id>` how a change was answered, so that it can be asked for again
//! after a lost reply. Whoever loses the store creates the pipelines again: their cursors are in the targets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tributary_api::boxed_error;
use tributary_api::coordinator::Error;
use tributary_api::pipelines::{Change, StoredPipeline};
use tributary_store::KeyValue;
use tributary_types::pipeline::Pipeline;
use tributary_types::{PipelineName, RequestId};

const PIPELINES: &str = "pipeline/";
const CHANGES: &str = "change/";
/// Changes whose answers are remembered.
const REMEMBERED: usize = 1000;
/// Answers that one new one removes at most.
const PRUNED_AT_ONCE: usize = 64;

/// Stored pipelines.
pub(crate) struct Catalog {
    store: Arc<dyn KeyValue>,
    /// One change at a time, so that what was read is still there when it is replaced.
    changing: Mutex<()>,
}

/// A pipeline as the store has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    pipeline: Pipeline,
    #[serde(default)]
    paused: bool,
    /// Counts the changes since it was created.
    revision: u64,
    created_millis: i64,
    updated_millis: i64,
}

impl Entry {
    /// Another one for each change, also of a pipeline that was deleted and created again.
    fn etag(&self) -> String {
        format!("{:x}-{:x}-{}", self.created_millis, self.updated_millis, self.revision)
    }

    fn stored(self) -> StoredPipeline {
        let etag = self.etag();
        let Entry { pipeline, paused, created_millis, updated_millis, .. } = self;
        StoredPipeline { pipeline, paused, etag, created_millis, updated_millis }
    }
}

/// A change that was answered.
#[derive(Debug, Serialize, Deserialize)]
struct Answered {
    /// What was asked for.
    asked: String,
    /// What was stored then; `None`: it was deleted.
    answer: Option<StoredPipeline>,
    at_millis: i64,
}

/// What is to become of one pipeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) enum Wanted {
    /// Store a definition under a name that is free.
    Create(Box<Pipeline>),
    /// Replace a definition.
    Update { pipeline: Box<Pipeline>, allow_missing: bool },
    /// Start no batch, or start batches again.
    Pause { name: PipelineName, paused: bool },
    /// Forget it.
    Delete { name: PipelineName, allow_missing: bool },
}

impl Wanted {
    pub(crate) fn name(&self) -> &PipelineName {
        match self {
            Wanted::Create(pipeline) | Wanted::Update { pipeline, .. } => &pipeline.name,
            Wanted::Pause { name, .. } | Wanted::Delete { name, .. } => name,
        }
    }
}

/// What a change comes to. `None` in the place of an entry: there is none afterwards.
fn decide(wanted: &Wanted, found: Option<Entry>, etag: Option<&str>, now_millis: i64) -> Result<Option<Entry>, Error> {
    let name = wanted.name();
    if let Some(expected) = etag {
        let now = found.as_ref().map(Entry::etag);
        if let Some(now) = now.filter(|now| now != expected) {
            return Err(Error::PipelineChanged { name: name.clone(), expected: expected.to_string(), found: now });
        }
    }
    let missing = || Error::NoPipeline { name: name.to_string() };
    let first = |pipeline: &Pipeline| Entry {
        pipeline: pipeline.clone(),
        paused: false,
        revision: 1,
        created_millis: now_millis,
        updated_millis: now_millis,
    };
    let changed = |before: Entry| Entry { revision: before.revision + 1, updated_millis: now_millis, ..before };
    match (wanted, found) {
        (Wanted::Create(pipeline), None) => Ok(Some(first(pipeline))),
        (Wanted::Create(_), Some(_)) => Err(Error::PipelineExists { name: name.clone() }),
        (Wanted::Update { pipeline, .. }, Some(before)) if **pipeline == before.pipeline => Ok(Some(before)),
        (Wanted::Update { pipeline, .. }, Some(before)) => {
            Ok(Some(Entry { pipeline: (**pipeline).clone(), ..changed(before) }))
        }
        (Wanted::Update { pipeline, allow_missing: true }, None) if etag.is_none() => Ok(Some(first(pipeline))),
        (Wanted::Update { .. } | Wanted::Pause { .. }, None) => Err(missing()),
        (Wanted::Pause { paused, .. }, Some(before)) if *paused == before.paused => Ok(Some(before)),
        (Wanted::Pause { paused, .. }, Some(before)) => Ok(Some(Entry { paused: *paused, ..changed(before) })),
        (Wanted::Delete { .. }, Some(_)) => Ok(None),
        (Wanted::Delete { allow_missing, .. }, None) if *allow_missing => Ok(None),
        (Wanted::Delete { .. }, None) => Err(missing()),
    }
}

impl Catalog {
    pub(crate) fn new(store: Arc<dyn KeyValue>) -> Self {
        Catalog { store, changing: Mutex::new(()) }
    }

    fn one_change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &PipelineName) -> Result<Option<Entry>, Error> {
        let Some(bytes) = self.store.get(&key_of(name)).map_err(failed)? else { return Ok(None) };
        Ok(Some(read(&bytes, "reading a pipeline")?))
    }

    pub(crate) fn get(&self, name: &PipelineName) -> Result<StoredPipeline, Error> {
        let found = self.find(name)?.ok_or_else(|| Error::NoPipeline { name: name.to_string() })?;
        Ok(found.stored())
    }

    /// Whether a pipeline of this name is stored and paused.
    pub(crate) fn is_paused(&self, name: &PipelineName) -> Result<bool, Error> {
        Ok(self.find(name)?.is_some_and(|entry| entry.paused))
    }

    /// In the order of the names, from the one after `after`.
    pub(crate) fn list(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredPipeline>, Error> {
        let mut listed = Vec::new();
        for (key, bytes) in self.store.scan(PIPELINES, false, usize::MAX).map_err(failed)? {
            if listed.len() == limit {
                break;
            }
            if after.is_none_or(|after| &key[PIPELINES.len()..] > after) {
                listed.push(read::<Entry>(&bytes, "reading a pipeline")?.stored());
            }
        }
        Ok(listed)
    }

    /// Makes a change; answers what is stored then, or what was stored last where it is deleted.
    pub(crate) fn change(
        &self,
        wanted: &Wanted,
        change: &Change,
        now_millis: i64,
    ) -> Result<Option<StoredPipeline>, Error> {
        let asked = fingerprint(wanted, change.etag.as_deref());
        let _one = self.one_change();
        if let Some(request) = change.request.as_ref().filter(|_| !change.validate_only)
            && let Some(answered) = self.answer(request)?
        {
            if answered.asked != asked {
                return Err(Error::RequestTaken { request: request.clone() });
            }
            return Ok(answered.answer);
        }
        let name = wanted.name();
        let found = self.find(name)?;
        let before = found.as_ref().map(Entry::etag);
        let after = decide(wanted, found, change.etag.as_deref(), now_millis)?;
        let is_new = after.as_ref().map(Entry::etag) != before;
        if change.validate_only {
            let stored = after.map(Entry::stored);
            return Ok(stored.map(|stored| StoredPipeline { etag: String::new(), ..stored }));
        }
        match &after {
            Some(entry) if is_new => self.store.put(&key_of(name), &write(entry)?).map_err(failed)?,
            Some(_) => {}
            None => self.store.delete(&key_of(name)).map_err(failed)?,
        }
        let answer = after.map(Entry::stored);
        if let Some(request) = &change.request {
            let answered = Answered { asked, answer: answer.clone(), at_millis: now_millis };
            self.store.put(&format!("{CHANGES}{request}"), &write(&answered)?).map_err(failed)?;
            self.prune()?;
        }
        Ok(answer)
    }

    fn answer(&self, request: &RequestId) -> Result<Option<Answered>, Error> {
        let Some(bytes) = self.store.get(&format!("{CHANGES}{request}")).map_err(failed)? else { return Ok(None) };
        Ok(Some(read(&bytes, "reading how a change was answered")?))
    }

    /// Forgets the oldest answers beyond those that are remembered.
    fn prune(&self) -> Result<(), Error> {
        let kept = self.store.scan(CHANGES, false, usize::MAX).map_err(failed)?;
        let surplus = kept.len().saturating_sub(REMEMBERED).min(PRUNED_AT_ONCE);
        if surplus == 0 {
            return Ok(());
        }
        // One that cannot be read is of no use, and goes first.
        let age =
            |bytes: &[u8]| serde_json::from_slice::<Answered>(bytes).map_or(i64::MIN, |answered| answered.at_millis);
        let mut by_age: Vec<(i64, String)> = kept.into_iter().map(|(key, bytes)| (age(&bytes), key)).collect();
        by_age.sort();
        for (_, key) in by_age.iter().take(surplus) {
            self.store.delete(key).map_err(failed)?;
        }
        Ok(())
    }
}

/// What tells one change from another under the same request id.
fn fingerprint(wanted: &Wanted, etag: Option<&str>) -> String {
    // A pipeline has only string keys, so it always serialises.
    let text = serde_json::to_string(&(wanted, etag)).unwrap_or_default();
    format!("{:08x}-{}", crc32fast::hash(text.as_bytes()), text.len())
}

fn key_of(name: &PipelineName) -> String {
    format!("{PIPELINES}{name}")
}

fn failed(error: tributary_store::Error) -> Error {
    Error::Catalog { doing: "using the store of pipelines".to_string(), source: boxed_error(error) }
}

fn read<T: serde::de::DeserializeOwned>(bytes: &[u8], doing: &str) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Catalog { doing: doing.to_string(), source: boxed_error(error) })
}

fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let doing = || "writing a pipeline".to_string();
    serde_json::to_vec(value).map_err(|error| Error::Catalog { doing: doing(), source: boxed_error(error) })
}

#[cfg(test)]
mod tests;
