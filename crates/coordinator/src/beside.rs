// SPDX-License-Identifier: Apache-2.0
//! Reading what other writers of a shared target did since a batch pinned its state, and what they plan.

use std::collections::BTreeSet;

use tributary_api::coordinator::Error;
use tributary_hudi::target::{pending_restores, pending_rollbacks, rolled_back_instant};
use tributary_hudi::{
    Action, CommitMetadata, Instant, Storage, TableConfig, Timeline, arrow_schema, planned_groups, without_meta_columns,
};
use tributary_types::InstantTime;
use tributary_types::pipeline::Target;

use crate::conflict::{Conflict, Kind, On, OtherWrite, OwnWrite};
use crate::decide::{Beside, Others};
use crate::schema::column_lacking;
use crate::target::{check_config, target_error};

/// What a batch of a shared target knows before it asks.
pub(crate) struct Ours<'a> {
    /// What it is going to commit.
    pub(crate) write: OwnWrite,
    /// Completed instants of the state that it was tagged against.
    pub(crate) pinned: &'a BTreeSet<InstantTime>,
    /// The schema that its commit will name.
    pub(crate) schema: &'a arrow::datatypes::Schema,
    /// The table as the pipeline describes it.
    pub(crate) target: &'a Target,
}

/// A write that completed since the batch looked at its cursors.
pub(crate) type Newer<'t> = (&'t Instant, CommitMetadata);

impl Ours<'_> {
    /// What of a fresh listing the gate judges. `newer` are the writes that completed since the cursors were looked up.
    pub(crate) async fn others(
        self,
        storage: &Storage,
        timeline: &Timeline,
        newer: &[Newer<'_>],
    ) -> Result<Others, Error> {
        let mut writes: Vec<OtherWrite> = newer
            .iter()
            // What completed before the state was pinned, the batch saw.
            .filter(|(instant, _)| !self.pinned.contains(&instant.requested))
            .map(|(instant, metadata)| OtherWrite::completed(instant, metadata))
            .collect();
        // Collected: a lazily filtered iterator held across an await is not known to be `Send`.
        for instant in timeline.pending_writes().filter(|instant| is_service(instant)).collect::<Vec<_>>() {
            let groups = planned_groups(storage, timeline, instant).await;
            let groups = groups.map_err(|e| target_error(storage.url(), "reading a pending plan of the target", e))?;
            writes.push(OtherWrite::planned(instant, groups));
        }
        let schema = self.wider_schema(storage, timeline, newer)?;
        let changed = self.changed_table(storage, timeline).await?;
        Ok(Others::Beside(Box::new(Beside { own: self.write, writes, schema, changed })))
    }

    /// A commit whose schema has what ours would take away again.
    fn wider_schema(
        &self,
        storage: &Storage,
        timeline: &Timeline,
        newer: &[Newer<'_>],
    ) -> Result<Option<Conflict>, Error> {
        for (instant, metadata) in newer {
            let (Some(text), Some(file)) = (metadata.schema(), timeline.completed_path(instant)) else { continue };
            let theirs = arrow_schema(&file, text).map_err(|e| target_error(storage.url(), "reading a schema", e))?;
            if let Some(column) = column_lacking(&without_meta_columns(&theirs), self.schema) {
                return Ok(Some(Conflict {
                    instant: instant.requested.clone(),
                    action: metadata.operation.clone(),
                    kind: Kind::Rows,
                    pending: false,
                    on: On::Schema(column),
                }));
            }
        }
        Ok(None)
    }

    /// What of the table itself another writer changed.
    async fn changed_table(&self, storage: &Storage, timeline: &Timeline) -> Result<Option<String>, Error> {
        let restore = timeline.instants().iter().find(|instant| {
            instant.action == Action::Restore && !instant.is_pending() && !self.pinned.contains(&instant.requested)
        });
        if let Some(restore) = restore {
            return Ok(Some(format!("it was restored by {}", restore.requested)));
        }
        let config = TableConfig::load(storage).await;
        let config = config.map_err(|e| target_error(storage.url(), "reading the target's properties", e))?;
        let problems = check_config(self.target, &config);
        Ok((!problems.is_empty()).then(|| problems.join("; ")))
    }
}

fn is_service(instant: &Instant) -> bool {
    matches!(instant.action, Action::Compaction | Action::LogCompaction | Action::Clustering)
}

/// Pending rollbacks and restores that concern a batch of a shared target: every restore, and rollbacks of its instant.
/// Which instant a rollback is about says its plan; one that cannot be read may be about any.
pub(crate) async fn concerning_rollbacks(
    storage: &Storage,
    config: &TableConfig,
    timeline: &Timeline,
    own: &InstantTime,
) -> Vec<InstantTime> {
    let mut found: Vec<InstantTime> = pending_restores(timeline).cloned().collect();
    let directory = config.timeline_dir();
    // Collected, as above.
    for rollback in pending_rollbacks(timeline).collect::<Vec<_>>() {
        match rolled_back_instant(storage, &directory, rollback).await {
            Ok((dead, _)) if &dead != own => {}
            Ok(_) => found.push(rollback.clone()),
            Err(error) => {
                tracing::warn!(%rollback, error = &error as &dyn std::error::Error, "a pending rollback cannot be read");
                found.push(rollback.clone());
            }
        }
    }
    found
}
