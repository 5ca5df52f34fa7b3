// SPDX-License-Identifier: Apache-2.0
//! Completing an instant: the gate, the metadata table's delta, one put-if-absent, and reading back what became of it.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt};
use tributary_api::boxed_error;
use tributary_api::coordinator::Error;
use tributary_api::writer::Staged;
use tributary_hudi::target::{
    complete_instant, find_completion, list_markers, pending_restores, pending_rollbacks, write_indexed_delta,
};
use tributary_hudi::{Action, CommitMetadata, PutNew, REQUESTS_AT_ONCE, Storage, TableConfig, avro_schema};
use tributary_types::pipeline::Operation;
use tributary_types::{
    Checkpoint, Clock, FLAT_KEY, FLAT_KEY_V2, InstantTime, PipelineName, RequestId, RequestRecord, checkpoint_key,
    flat_form, pipeline_of_key,
};

use crate::beside::{Ours, concerning_rollbacks};
use crate::decide::{GateFacts, NewerWrite, Others, Permit};
use crate::housekeeping::mint;
use crate::locks::Held;
use crate::metrics;
use crate::settings::Settings;
use crate::staged::{file_changes, write_stats};
use crate::target::{TargetState, load_timeline, read_metadata, target_error, write_action};

/// A commit that is ready but for its completion.
pub(crate) struct Proposal<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) target: &'a TargetState,
    pub(crate) pipeline: &'a PipelineName,
    /// Fingerprint of its definition.
    pub(crate) definition: &'a str,
    pub(crate) instant: &'a InstantTime,
    /// Completed writes as of before the cursors were looked up.
    pub(crate) seen: &'a BTreeSet<InstantTime>,
    /// The commit that the batch was planned from.
    pub(crate) base: Option<&'a InstantTime>,
    pub(crate) staged: &'a Staged,
    /// What the instant is: a commit, or a replacecommit.
    pub(crate) action: Action,
    /// The target's locks.
    pub(crate) lock: Held<'a>,
    pub(crate) settings: &'a Settings,
}

impl Proposal<'_> {
    /// Reads what the gate looks at. The caller holds the lock. `ours`: what other writers are compared with, where there
    /// may be any.
    pub(crate) async fn facts(&self, heartbeat_age_millis: u64, ours: Option<Ours<'_>>) -> Result<GateFacts, Error> {
        let timeline = load_timeline(self.storage, &self.target.config).await?;
        let own = timeline.find(self.instant);
        let (mut newer, mut writes) = (Vec::new(), Vec::new());
        for instant in timeline.completed_writes() {
            if self.seen.contains(&instant.requested) || &instant.requested == self.instant {
                continue;
            }
            let Some(path) = timeline.completed_path(instant) else { continue };
            let metadata = read_metadata(self.storage, &path).await?;
            newer.push(self.newer_write(&instant.requested, &metadata)?);
            writes.push((instant, metadata));
        }
        let rollbacks = match &ours {
            Some(_) => concerning_rollbacks(self.storage, &self.target.config, &timeline, self.instant).await,
            None => pending_rollbacks(&timeline).chain(pending_restores(&timeline)).cloned().collect(),
        };
        let others = match ours {
            Some(ours) => ours.others(self.storage, &timeline, &writes).await?,
            None => Others::Excluded,
        };
        Ok(GateFacts {
            instant: self.instant.clone(),
            own_pending: own.is_some_and(|own| own.is_pending() && own.has_requested && own.has_inflight),
            own_completed: own.and_then(|own| own.completed.clone()),
            rollbacks,
            newer,
            others,
            base_present: self.base.is_none_or(|base| {
                // An archived commit is older than the timeline, and as good as there.
                timeline.is_committed(base)
            }),
            heartbeat_age_millis,
            heartbeat_valid_millis: self.settings.heartbeat_valid.as_millis() as u64,
            missing_files: self.missing_files().await?,
            // Last: what was read before took its time.
            lock_left_millis: self.lock.left().map(|left| left.as_millis() as u64),
            commit_request_millis: self.settings.commit_request.as_millis() as u64,
        })
    }

    fn newer_write(&self, instant: &InstantTime, metadata: &CommitMetadata) -> Result<NewerWrite, Error> {
        let pipelines = metadata.extra.keys().filter_map(|key| pipeline_of_key(key)).map(|name| name.to_string());
        let own = metadata.extra.get(&checkpoint_key(self.pipeline));
        let requests = match own {
            Some(text) => {
                let checkpoint = Checkpoint::from_json(self.pipeline, instant, text)
                    .map_err(tributary_api::checkpoint::Error::Checkpoint)?;
                // Only what this commit itself answered: older ids were there when the batch was planned. An id of
                // another definition is no answer; asked for again, it is refused.
                let answered = checkpoint.requests.into_iter().filter(|r| &r.instant == instant);
                answered.filter(|r| !r.is_of_another(self.definition)).map(|r| r.id).collect()
            }
            None => Vec::new(),
        };
        Ok(NewerWrite { instant: instant.clone(), pipelines: pipelines.collect(), requests })
    }

    async fn missing_files(&self) -> Result<Vec<String>, Error> {
        let checks = self.staged.files.iter().map(|file| async move {
            let found = self.storage.head(&file.path).await;
            let found = found.map_err(|e| target_error(self.storage.url(), "checking staged files", e))?;
            Ok::<_, Error>(match found {
                Some(entry) if entry.bytes == file.bytes => None,
                _ => Some(file.path.clone()),
            })
        });
        // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
        let checks: Vec<_> = checks.collect();
        let found: Vec<Option<String>> =
            futures::stream::iter(checks).buffer_unordered(REQUESTS_AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Deletes files that markers announce and the commit does not name: what a repeated or needless write left.
    pub(crate) async fn delete_unnamed(&self) -> Result<usize, Error> {
        let fail = |e| target_error(self.storage.url(), "deleting unnamed files", e);
        let named: BTreeSet<&str> = self.staged.files.iter().map(|file| file.path.as_str()).collect();
        let markers = list_markers(self.storage, self.instant).await.map_err(fail)?;
        let mut deleted = 0;
        for marker in markers.iter().filter(|marker| !named.contains(marker.file.as_str())) {
            self.storage.delete(&marker.file).await.map_err(fail)?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Completes the instant; answers its completion time.
    ///
    /// The name and the bytes of the completing file are the same at every try. An error of the store says nothing
    /// about whether it arrived, so the timeline is looked at before each further try, and at the end.
    pub(crate) async fn complete(
        &self,
        permit: &Permit,
        metadata: &CommitMetadata,
        clock: &dyn Clock,
    ) -> Result<InstantTime, Error> {
        let settings = self.settings;
        let url = self.storage.url();
        let fail = |e| target_error(url, "completing the commit", e);
        let directory = self.target.config.timeline_dir();
        let timeline = load_timeline(self.storage, &self.target.config).await?;
        let delta_completed = mint(clock, self.target, &timeline);
        let changes = file_changes(&self.staged.files);
        let config = &self.target.config;
        write_indexed_delta(self.storage, config, permit.instant(), &delta_completed, &changes).await.map_err(fail)?;
        let completed = delta_completed.successor();
        let bytes = metadata.encode().map_err(fail)?;
        let mut last = None;
        for attempt in 0..settings.commit_tries {
            if attempt > 0 {
                tokio::time::sleep(settings.commit_pause).await;
                match find_completion(self.storage, &directory, permit.instant()).await {
                    Ok(Some(found)) => {
                        ::metrics::counter!(metrics::READ_BACKS, "found" => "committed").increment(1);
                        return Ok(found);
                    }
                    Ok(None) => ::metrics::counter!(metrics::READ_BACKS, "found" => "absent").increment(1),
                    // Not even a look is possible: the next try may be.
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "a commit cannot be read back yet");
                    }
                }
            }
            if self.lock.left().is_some_and(|left| left <= settings.commit_request) {
                if attempt == 0 {
                    return Err(Error::Conflict {
                        url: url.to_string(),
                        what: "the target's lock ran out before the commit was completed".to_string(),
                    });
                }
                // Whoever takes the table next finds out what became of the tries before.
                break;
            }
            let instant = permit.instant();
            let put = complete_instant(self.storage, &directory, instant, &completed, self.action, bytes.clone());
            match tokio::time::timeout(settings.commit_request, put).await {
                Ok(Ok(PutNew::Created)) => return Ok(completed),
                // Our own name, so our own earlier try.
                Ok(Ok(PutNew::Exists)) => return Ok(completed),
                Ok(Err(error)) if error.outcome_unknown() => last = Some(boxed_error(error)),
                Ok(Err(error)) => return Err(fail(error)),
                Err(elapsed) => last = Some(boxed_error(elapsed)),
            }
        }
        ::metrics::counter!(metrics::READ_BACKS, "found" => "unknown").increment(1);
        let source = last.unwrap_or_else(|| boxed_error(std::io::Error::other("no answer")));
        Err(Error::Unknown { url: url.to_string(), instant: permit.instant().clone(), source })
    }
}

/// What the instant of an operation is.
pub(crate) fn action_of(operation: Operation, config: &TableConfig) -> Action {
    if operation.replaces_groups() { Action::ReplaceCommit } else { write_action(config) }
}

/// The metadata of the commit: files, replaced groups, schema and cursors in both forms.
#[allow(clippy::too_many_arguments)] // the parts of one record, passed once
pub(crate) fn commit_metadata(
    table: &str,
    schema: &arrow::datatypes::Schema,
    operation: Operation,
    staged: &Staged,
    replaced: BTreeMap<String, Vec<String>>,
    pipeline: &PipelineName,
    checkpoint: &Checkpoint,
    writes_flat_form: bool,
) -> Result<CommitMetadata, tributary_hudi::Error> {
    let mut extra = BTreeMap::from([
        ("schema".to_string(), avro_schema(table, schema)?),
        (checkpoint_key(pipeline), checkpoint.to_json()),
    ]);
    if let Some((key, value)) = flat_form(&checkpoint.sources).filter(|_| writes_flat_form) {
        debug_assert!(key == FLAT_KEY || key == FLAT_KEY_V2);
        extra.insert(key.to_string(), value);
    }
    let stats = write_stats(&staged.files);
    Ok(CommitMetadata { operation: operation.as_str().to_string(), stats, replaced, extra, compacted: false })
}

/// Adds the answered request, if it was not there before.
pub(crate) fn remember(checkpoint: &mut Checkpoint, request: &RequestId, instant: &InstantTime, definition: &str) {
    if checkpoint.answered(request).is_none() {
        checkpoint.remember_request(RequestRecord {
            id: request.clone(),
            instant: instant.clone(),
            definition: Some(definition.to_string()),
        });
    }
}
