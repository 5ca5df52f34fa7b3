// SPDX-License-Identifier: Apache-2.0
//! Batches of earlier processes, from the records that the checkpoint role keeps.
//!
//! A record without an outcome is of a batch whose process ended before it did. What became of it says the target: the
//! commit carries the request id, and without that commit nothing of the batch is there.

use std::time::Duration;

use tributary_api::checkpoint::{BatchRecord, CommitFound};
use tributary_api::coordinator::{BatchStatus, Error, RunRequest};
use tributary_hudi::target::{TableLock, acquire_lock};
use tributary_hudi::{Action, Storage, TableConfig};
use tributary_types::pipeline::{ErrorTable, InsertConflict, Limits, Pipeline, Services, Writers};
use tributary_types::{BatchName, Outcome, PipelineName, RequestId, Stage};

use crate::locks::give_back;
use crate::service::Inner;
use crate::target::{load_timeline, target_error};

/// Fingerprint of a pipeline's definition: a request id answers for one definition only.
pub(crate) fn definition_of(pipeline: &Pipeline) -> String {
    let mut defining = pipeline.clone();
    // What a batch may use, what is done after it, who else writes, and an acknowledgement change nothing of what it gives:
    // whoever repeats a request with more memory means the same request.
    defining.limits = Limits::default();
    defining.target.services = Services::default();
    defining.accept_binding_change = false;
    defining.adopt_legacy_checkpoint = false;
    defining.target.writers = Writers::default();
    defining.target.insert_conflict = InsertConflict::default();
    defining.accept_merge_change = false;
    if let Some(merge) = &mut defining.target.merge {
        merge.acknowledge_images = false;
    }
    if let Some(table) = &mut defining.error_table {
        // A limit as well.
        table.max_rows = ErrorTable::at("").max_rows;
    }
    // A pipeline has only string keys, so it always serialises.
    let text = serde_json::to_string(&defining).unwrap_or_default();
    format!("{:08x}-{}", crc32fast::hash(text.as_bytes()), text.len())
}

/// The same of a request: with other cursors set by hand it is another request.
pub(crate) fn definition_of_request(request: &RunRequest) -> String {
    with_overrides(definition_of(&request.pipeline), request)
}

/// The same of a request by the name of a stored pipeline, which stands for whatever is stored under it.
pub(crate) fn definition_of_stored(request: &RunRequest) -> String {
    with_overrides(format!("stored:{}", request.pipeline.name), request)
}

fn with_overrides(definition: String, request: &RunRequest) -> String {
    if request.overrides.is_empty() && !request.cursors_only {
        return definition;
    }
    let text = serde_json::to_string(&(&request.overrides, request.cursors_only)).unwrap_or_default();
    format!("{definition}-{:08x}", crc32fast::hash(text.as_bytes()))
}

/// What is known of a batch whose process is gone, and of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// A commit of the target answers its request.
    Committed,
    /// Its instant is still pending, and a completing request may be on its way.
    Pending,
    /// Neither.
    Nothing,
}

/// How the batch of a record ended, by its fate; `None` while that is not certain.
fn conclude(outcome: Option<Outcome>, fate: Fate) -> Option<Outcome> {
    match (outcome, fate) {
        (_, Fate::Committed) => Some(Outcome::Committed),
        // Its commit was sent: only the rollback of its instant shows that it did not arrive.
        (Some(Outcome::Unknown), Fate::Pending) => None,
        (_, Fate::Pending | Fate::Nothing) => Some(Outcome::Failed),
    }
}

impl Inner {
    /// The record of a batch of an earlier process, found out how it ended.
    pub(crate) async fn find_record(&self, name: &BatchName) -> Result<Option<BatchRecord>, Error> {
        let Some((pipeline, request)) = name.as_str().split_once('/') else { return Ok(None) };
        let (Ok(pipeline), Ok(request)) = (PipelineName::new(pipeline), RequestId::new(request)) else {
            return Ok(None);
        };
        let Some(record) = self.roles.checkpoints.find_request(&pipeline, &request).await? else { return Ok(None) };
        Ok(Some(self.settle(record).await))
    }

    /// The newest records, each found out how it ended.
    pub(crate) async fn records(
        &self,
        pipeline: Option<&PipelineName>,
        limit: usize,
    ) -> Result<Vec<BatchRecord>, Error> {
        let mut settled = Vec::new();
        for record in self.roles.checkpoints.history(pipeline, limit).await? {
            settled.push(self.settle(record).await);
        }
        Ok(settled)
    }

    /// Finds out what became of batches whose process ended before they did. Answers what was found, a sentence each.
    pub(crate) async fn recover(&self) -> Result<Vec<String>, Error> {
        let mut said = Vec::new();
        for record in self.roles.checkpoints.history(None, usize::MAX).await? {
            if !self.is_open(&record) {
                continue;
            }
            let status = self.settle(record).await.status;
            said.push(match status.outcome {
                None => format!("batch `{}` may still run in another process", status.name),
                Some(outcome) => {
                    format!("batch `{}`, which a stop of the server cut off: {}", status.name, outcome.as_str())
                }
            });
        }
        Ok(said)
    }

    /// Whether a record leaves open how its batch ended, and no batch of this process will say it.
    fn is_open(&self, record: &BatchRecord) -> bool {
        matches!(record.status.outcome, None | Some(Outcome::Unknown))
            && self.registry.find(&record.status.name).is_none_or(|known| known.status.borrow().outcome.is_some())
    }

    /// Replaces a record that leaves open how its batch ended by one that says it, as far as that can be found out.
    async fn settle(&self, mut record: BatchRecord) -> BatchRecord {
        if !self.is_open(&record) {
            return record;
        }
        match self.find_out(&record).await {
            Ok(Some(ended)) => {
                let counted = record.status.outcome.is_some();
                record.status = ended;
                if let Err(error) = self.roles.checkpoints.record(record.clone()).await {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a batch's record could not be kept");
                }
                self.tell_found_out(&record.target, &record.status, counted);
            }
            Ok(None) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(batch = %record.status.name, error, "how a batch ended cannot be found out yet");
            }
        }
        record
    }

    /// How the batch of a record ended; `None` while it may still run in another process, or its commit is on its way.
    async fn find_out(&self, record: &BatchRecord) -> Result<Option<BatchStatus>, Error> {
        let mut status = record.status.clone();
        let storage = self.stores.open(&record.target).map_err(|e| target_error(&record.target, "opening it", e))?;
        let Some(fate) = self.fate_of(&storage, record, &mut status).await? else { return Ok(None) };
        let Some(outcome) = conclude(record.status.outcome, fate) else { return Ok(None) };
        status.stage = Stage::Done;
        status.outcome = Some(outcome);
        status.error = match outcome {
            Outcome::Committed => None,
            _ => Some(Error::Lost { what: "the server ended while the batch ran".to_string() }.failure()),
        };
        Ok(Some(status))
    }

    /// What the target says of a batch; `None` while its lock is held elsewhere. A commit that is found is filled in.
    async fn fate_of(
        &self,
        storage: &Storage,
        record: &BatchRecord,
        status: &mut BatchStatus,
    ) -> Result<Option<Fate>, Error> {
        let config = match TableConfig::load(storage).await {
            Ok(config) => config,
            Err(tributary_hudi::Error::NoTable { .. }) => return Ok(Some(Fate::Nothing)),
            Err(e) => return Err(target_error(storage.url(), "reading the target's properties", e)),
        };
        let lock = match self.lock_unless_ours(storage, &record.target).await? {
            Ok(lock) => lock,
            Err(Held) => return Ok(None),
        };
        let fate = self.fate_under_lock(storage, &config, &record.definition, status).await;
        if let Some(lock) = lock {
            give_back(lock).await;
        }
        fate.map(Some)
    }

    /// Whether a restore of the target took away what `status` says was committed. Such a batch may be run again: its
    /// commit is the only thing that a request must not make twice.
    pub(crate) async fn is_undone(&self, target: &str, status: &BatchStatus) -> Result<bool, Error> {
        let Some(instant) = status.instant.as_ref().filter(|_| status.outcome == Some(Outcome::Committed)) else {
            return Ok(false);
        };
        let storage = self.stores.open(target).map_err(|e| target_error(target, "opening it", e))?;
        let config = match TableConfig::load(&storage).await {
            Ok(config) => config,
            // A table that is gone: the next batch says what is wrong, or makes a new one.
            Err(tributary_hudi::Error::NoTable { .. }) => return Ok(true),
            Err(e) => return Err(target_error(target, "reading the target's properties", e)),
        };
        let timeline = load_timeline(&storage, &config).await?;
        if timeline.find(instant).is_some() {
            return Ok(false);
        }
        // Archived, or taken away. A restore is archived no earlier than what it followed.
        let restored = timeline
            .instants()
            .iter()
            .any(|other| other.action == Action::Restore && other.completed.is_some() && other.requested > *instant);
        Ok(restored && self.roles.checkpoints.find_commit(&status.pipeline, target, &status.request).await?.is_none())
    }

    async fn fate_under_lock(
        &self,
        storage: &Storage,
        config: &TableConfig,
        definition: &str,
        status: &mut BatchStatus,
    ) -> Result<Fate, Error> {
        let found = self.roles.checkpoints.find_commit(&status.pipeline, storage.url(), &status.request).await?;
        // The id may have been used for another definition of the pipeline, whose batch this record is not about.
        let own = |found: &CommitFound| found.definition.as_deref().is_none_or(|known| known == definition);
        if let Some(found) = found.filter(own) {
            status.instant = Some(found.instant);
            status.completed = found.completed;
            status.seq = found.seq;
            return Ok(Fate::Committed);
        }
        let timeline = load_timeline(storage, config).await?;
        let own = status.instant.as_ref().and_then(|instant| timeline.find(instant));
        Ok(if own.is_some_and(|own| own.is_pending()) { Fate::Pending } else { Fate::Nothing })
    }

    /// A batch that runs holds the lock among our own. Where a batch of this process does, no other process can.
    async fn lock_unless_ours(
        &self,
        storage: &Storage,
        target: &str,
    ) -> Result<Result<Option<TableLock>, Held>, Error> {
        if self.schedule.runs_into(&target_key(target)) {
            return Ok(Ok(None));
        }
        match acquire_lock(storage, &self.lock_owner("settle"), Duration::ZERO).await {
            Ok(Some(lock)) => Ok(Ok(Some(lock))),
            Ok(None) => Ok(Err(Held)),
            Err(e) => Err(target_error(storage.url(), "taking the target's lock", e)),
        }
    }
}

/// The lock is held by another process.
struct Held;

/// A target as batches into it follow one another: however its directory is written.
pub(crate) fn target_key(target: &str) -> String {
    target.trim_end_matches('/').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_was_cut_off_committed_if_its_commit_is_there_and_failed_if_not() {
        assert_eq!(conclude(None, Fate::Committed), Some(Outcome::Committed));
        assert_eq!(conclude(None, Fate::Pending), Some(Outcome::Failed));
        assert_eq!(conclude(None, Fate::Nothing), Some(Outcome::Failed));
    }

    #[test]
    fn an_unknown_commit_stays_unknown_until_it_is_found_or_its_instant_is_rolled_back() {
        assert_eq!(conclude(Some(Outcome::Unknown), Fate::Committed), Some(Outcome::Committed));
        assert_eq!(conclude(Some(Outcome::Unknown), Fate::Pending), None);
        assert_eq!(conclude(Some(Outcome::Unknown), Fate::Nothing), Some(Outcome::Failed));
    }

    #[test]
    fn a_definition_differs_whatever_of_the_pipeline_changed() {
        let pipeline = |name: &str, path: &str| -> Pipeline {
            let target = serde_json::json!({"path": path, "table_name": "t", "record_key": ["id"]});
            serde_json::from_value(serde_json::json!({"name": name, "target": target})).unwrap()
        };
        assert_eq!(definition_of(&pipeline("p", "/t")), definition_of(&pipeline("p", "/t")));
        assert_ne!(definition_of(&pipeline("p", "/t")), definition_of(&pipeline("p", "/u")));
        let refusing = |max_rows: u64, path: &str| {
            let mut refusing = pipeline("p", "/t");
            refusing.error_table = Some(ErrorTable { max_rows, ..ErrorTable::at(path) });
            definition_of(&refusing)
        };
        assert_eq!(refusing(1, "/e"), refusing(1000, "/e"), "whoever raises the limit means the same request");
        assert_ne!(refusing(1, "/e"), refusing(1, "/f"));
        assert_eq!(target_key("/lake/t/"), "/lake/t");
    }
}
