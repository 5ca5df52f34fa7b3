// SPDX-License-Identifier: Apache-2.0
//! Compaction of a merge-on-read target: once enough delta commits followed the last one, the log files of every file
//! group become a new base file.

use std::sync::Arc;

use tributary_api::Stop;
use tributary_api::coordinator::Error;
use tributary_hudi::target::{
    Compaction, Owner, begin_compaction, delta_commits_since_compaction, find_compactable, write_heartbeat,
};
use tributary_hudi::{FileSlice, avro_schema, base_file_schema};
use tributary_types::pipeline::TableType;
use tributary_types::{InstantTime, MemoryBudget};

use crate::housekeeping::{delete_leftover_marks, mint};
use crate::locks::Pausable;
use crate::services::{Did, TableServices};
use crate::target::{TargetState, load_timeline, target_error};

/// What a compaction needs of the batch that it follows.
pub(crate) struct Means<'a> {
    /// Under whose name its instant is.
    pub(crate) owner: &'a Owner,
    /// The batch's memory.
    pub(crate) memory: &'a MemoryBudget,
    /// The target's locks.
    pub(crate) locks: &'a Pausable<'a>,
    /// For how much longer than a completing request takes the lock must hold, in all.
    pub(crate) commit_request: std::time::Duration,
}

impl TableServices<'_> {
    /// Compacts the target if it is due; answers how many log files went into base files. Told to stop, it begins no
    /// further file and leaves its instant to the next batch, which rolls it back.
    pub(crate) async fn compact_files(&self, means: &Means<'_>, stop: &Stop) -> Result<Did, Error> {
        let due = self.services.compact_delta_commits as usize;
        if self.target.config.table_type != TableType::MergeOnRead || due == 0 {
            return Ok(None);
        }
        let fail = |e| target_error(self.storage.url(), "compacting the target", e);
        let timeline = load_timeline(self.storage, &self.target.config).await?;
        if delta_commits_since_compaction(&timeline) < due {
            return Ok(None);
        }
        if timeline.pending_writes().next().is_some() {
            tracing::debug!("the target is not compacted while a write is pending");
            return Ok(None);
        }
        let slices = find_compactable(self.storage, &self.target.config, &timeline).await.map_err(fail)?;
        if slices.is_empty() {
            return Ok(None);
        }
        let instant = mint(self.clock, self.target, &timeline);
        let directory = self.target.config.timeline_dir();
        begin_compaction(self.storage, &directory, &instant, &slices, means.owner).await.map_err(fail)?;
        // What others write from here on lies on top of the new base files.
        means.locks.pause().await;
        self.compact_slices(&instant, &slices, means, stop).await?;
        delete_leftover_marks(self.storage, &instant).await.map_err(fail)?;
        let logs = slices.iter().map(|slice| slice.logs.len()).sum();
        tracing::info!(%instant, logs, groups = slices.len(), "log files compacted");
        Ok(Some(logs))
    }

    async fn compact_slices(
        &self,
        instant: &InstantTime,
        slices: &[FileSlice],
        means: &Means<'_>,
        stop: &Stop,
    ) -> Result<(), Error> {
        let url = self.storage.url();
        let fail = |e| target_error(url, "compacting the target", e);
        // As of the commit before, whose schema may be wider than what the batch found.
        let Some(TargetState { schema: Some(schema), config, .. }) = TargetState::load(self.storage).await? else {
            return Err(Error::Target { url: url.to_string(), what: "no commit of it says its schema".to_string() });
        };
        let compaction = Compaction {
            storage: self.storage,
            config: &config,
            instant,
            schema: Arc::clone(&base_file_schema(&schema)),
            memory: means.memory,
        };
        let mut stats = Vec::with_capacity(slices.len());
        for (task, slice) in slices.iter().enumerate() {
            if stop.is_set() {
                return Err(Error::Cancelled);
            }
            // Others may wait for a heartbeat to lapse.
            write_heartbeat(self.storage, instant, means.owner).await.map_err(fail)?;
            stats.push(compaction.compact(slice, task).await.map_err(fail)?);
        }
        means.locks.go_on().await?;
        // Others may have widened the schema meanwhile, which the newest commit says.
        let Some(TargetState { schema: Some(newest), timeline, .. }) = TargetState::load(self.storage).await? else {
            return Err(Error::Target { url: url.to_string(), what: "no commit of it says its schema".to_string() });
        };
        if !timeline.find(instant).is_some_and(|own| own.is_pending()) {
            let what = format!("compaction {instant} was rolled back by another writer");
            return Err(Error::Conflict { url: url.to_string(), what });
        }
        let delta = mint(self.clock, self.target, &timeline);
        let schema = avro_schema(&config.name, &newest).map_err(fail)?;
        if stop.is_set() || means.locks.left().await.is_some_and(|left| left <= means.commit_request) {
            return Err(Error::Cancelled);
        }
        compaction.complete(stats, schema, &delta, &delta.successor()).await.map_err(fail)
    }
}
