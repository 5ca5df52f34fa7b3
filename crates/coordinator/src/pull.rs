// SPDX-License-Identifier: Apache-2.0
//! Pulling a batch: the rows it changed, as they stand in the target at its instant, and the records it deleted,
//! flagged.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt};
use tributary_api::coordinator::{BatchStatus, Error, OpenedBatch};
use tributary_api::merge::Deleted;
use tributary_api::timeline::{Begin, PlanRequest, ReadRequest, Relation, Split, Timeline, Views};
use tributary_api::{RowError, RowStream};
use tributary_hudi::{REQUESTS_AT_ONCE, Storage};
use tributary_types::{Cursor, InstantTime, MemoryBudget, Outcome, SourceName};

use crate::target::{TargetState, read_metadata, target_error};

mod deleted;
mod digest;

use deleted::Groups;
pub(crate) use digest::{digest_key, digest_of};

/// Bytes that reading a split may take.
const SPLIT_MEMORY: usize = 256 << 20;

/// What a batch's rows are read from.
pub(crate) struct Pinned {
    /// The rows that it changed.
    pub(crate) relation: Relation,
    /// The groups that lost records, before it; without splits where none did.
    pub(crate) before: Relation,
    /// Whether it may have deleted records.
    pub(crate) has_losses: bool,
    /// SHA-256 of its SQL, as its commit says it.
    pub(crate) sql_digest: Option<String>,
}

impl Pinned {
    /// Schema of the rows as they are delivered.
    pub(crate) fn schema(&self) -> SchemaRef {
        match self.has_losses {
            true => deleted::flagged_schema(&self.relation.schema),
            false => Arc::clone(&self.relation.schema),
        }
    }

    /// Where a query finds the deleted records.
    pub(crate) fn deleted(&self) -> Deleted {
        let keyed = |relation: &Relation| Relation {
            schema: deleted::with_keys(&relation.schema),
            splits: relation.splits.iter().map(deleted::whole).collect(),
        };
        Deleted { before: keyed(&self.before), after: keyed(&self.relation) }
    }

    /// The records that it deleted, flagged.
    pub(crate) async fn deleted_rows(self, timeline: &Arc<dyn Timeline>) -> Result<RowStream, Error> {
        if !self.has_losses {
            return Ok(futures::stream::empty().boxed());
        }
        let memory = MemoryBudget::new(SPLIT_MEMORY);
        let after = deleted::read_keys(timeline, &self.relation, &memory).await?;
        let schema = self.schema();
        Ok(deleted::lost_rows(Arc::clone(timeline), self.before, after, schema, memory))
    }
}

/// Opens the rows of a committed batch: the window of the target that holds exactly its commit.
pub(crate) async fn open(
    timeline: &Arc<dyn Timeline>,
    target: &Storage,
    status: BatchStatus,
    batch_rows: usize,
) -> Result<OpenedBatch, Error> {
    let pinned = pin_batch(timeline, target, &status).await?;
    let schema = pinned.schema();
    let changed = rows(Arc::clone(timeline), pinned.relation.clone(), batch_rows);
    if !pinned.has_losses {
        return Ok(OpenedBatch { schema, rows: changed, status });
    }
    let lost = pinned.deleted_rows(timeline).await?;
    let flagged = Arc::clone(&schema);
    let changed = changed.map(move |batch| batch.and_then(|batch| deleted::flag(&flagged, &batch, false)));
    Ok(OpenedBatch { schema, rows: changed.chain(lost).boxed(), status })
}

/// Pins the files of a committed batch, or says why its rows are gone.
pub(crate) async fn pin_batch(
    timeline: &Arc<dyn Timeline>,
    target: &Storage,
    status: &BatchStatus,
) -> Result<Pinned, Error> {
    let (name, instant) = (status.name.to_string(), status.instant.clone());
    match (pin_now(timeline, target, status).await, instant) {
        (Err(Error::Gone { name, what }), _) => Err(Error::Gone { name, what }),
        // The archiver of a batch that runs at the same time takes commits away between two looks.
        (Err(error), Some(instant)) if left_the_timeline(target, &instant).await => {
            Err(Error::Gone { name, what: format!("its commit left the target's active timeline meanwhile ({error})") })
        }
        (pinned, _) => pinned,
    }
}

async fn left_the_timeline(target: &Storage, instant: &InstantTime) -> bool {
    let state = TargetState::load(target).await;
    state.is_ok_and(|state| state.is_some_and(|state| state.timeline.find(instant).is_none()))
}

async fn pin_now(timeline: &Arc<dyn Timeline>, target: &Storage, status: &BatchStatus) -> Result<Pinned, Error> {
    let gone = |what: String| Error::Gone { name: status.name.to_string(), what };
    let (Some(instant), Some(completed)) = (status.instant.clone(), status.completed.clone()) else {
        return Err(gone(match status.outcome {
            None => "it is still running".to_string(),
            Some(Outcome::Committed) => "its commit is not on the target's active timeline any more".to_string(),
            Some(_) => "it committed nothing".to_string(),
        }));
    };
    let (losses, sql_digest) = said_by_commit(target, &instant, status).await?;
    let pinned = pin(timeline, target.url(), &instant, &completed, !losses.is_empty()).await;
    let (relation, before) = pinned.map_err(|error| match error {
        tributary_api::timeline::Error::FileGone { file, .. } => gone(format!("its file `{file}` was cleaned")),
        tributary_api::timeline::Error::Stale { .. } => gone("the files of its commit were cleaned".to_string()),
        tributary_api::timeline::Error::Restored { .. } => {
            gone("the target was restored to before its commit".to_string())
        }
        other => Error::Timeline(other),
    })?;
    let before = Relation { splits: with_losses(before.splits, &losses), ..before };
    for relation in [&relation, &before] {
        if let Some(file) = first_missing(target, relation).await? {
            return Err(gone(format!("its file `{file}` was cleaned")));
        }
    }
    Ok(Pinned { relation, before, has_losses: !losses.is_empty(), sql_digest })
}

/// What the commit of a batch says: the groups of which it took records, and the digest of its SQL.
async fn said_by_commit(
    target: &Storage,
    instant: &InstantTime,
    status: &BatchStatus,
) -> Result<(Groups, Option<String>), Error> {
    let Some(state) = TargetState::load(target).await? else { return Ok((Groups::new(), None)) };
    let commit = state.timeline.find(instant).and_then(|commit| state.timeline.completed_path(commit));
    // What is not on the timeline any more cannot be planned either.
    let Some(path) = commit else { return Ok((Groups::new(), None)) };
    let metadata = read_metadata(target, &path).await?;
    let digest = metadata.extra.get(&digest_key(&status.pipeline)).cloned();
    Ok((deleted::groups_with_losses(&metadata), digest))
}

fn with_losses(splits: Vec<Split>, losses: &Groups) -> Vec<Split> {
    let lost = |split: &Split| losses.contains(&(split.partition.clone(), split.file_id.clone()));
    splits.into_iter().filter(lost).collect()
}

/// A file of the relation that the store does not have any more.
async fn first_missing(target: &Storage, relation: &Relation) -> Result<Option<String>, Error> {
    let logs = relation.splits.iter().flat_map(|split| split.logs.iter().flat_map(|logs| &logs.files));
    let bases = relation.splits.iter().map(|split| &split.path).filter(|path| !path.is_empty());
    let looks = bases.chain(logs.map(|log| &log.path)).map(|path| async move {
        let found = target.head(path).await;
        let found = found.map_err(|e| target_error(target.url(), "looking for the files of a batch", e))?;
        Ok::<_, Error>(found.is_none().then(|| path.clone()))
    });
    // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
    let looks: Vec<_> = looks.collect();
    let mut looks = futures::stream::iter(looks).buffer_unordered(REQUESTS_AT_ONCE);
    while let Some(missing) = looks.next().await {
        if let Some(file) = missing? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// The rows that a commit wrote, and, if asked for, the table before it.
async fn pin(
    timeline: &Arc<dyn Timeline>,
    target: &str,
    instant: &InstantTime,
    completed: &InstantTime,
    and_before: bool,
) -> Result<(Relation, Relation), tributary_api::timeline::Error> {
    let source = SourceName::new("batch").expect("a plain word is a source name");
    let begin = Begin::After(Cursor::Completed(before(completed)));
    let pinned_end = Some(Cursor::Completed(completed.clone()));
    let views = Views { changed: true, begin: and_before, end: false };
    let request = PlanRequest { pinned_end, views, ..PlanRequest::window(source, target, begin) };
    let plan = timeline.plan(request).await?;
    // A commit that only moved cursors has no files, and its rows, of which there are none, still have the table's schema.
    let table_schema = plan.table.schema;
    let table_schema = table_schema.unwrap_or_else(|| Arc::new(Schema::empty()));
    let none = || Relation { schema: Arc::clone(&table_schema), splits: Vec::new() };
    let before = plan.at_begin.unwrap_or_else(&none);
    let mut relation = plan.changed.unwrap_or_else(none);
    let only = Arc::new(vec![instant.clone()]);
    for split in &mut relation.splits {
        split.instants = Some(Arc::clone(&only));
    }
    Ok((relation, before))
}

/// The latest instant before `completed`. Completion times on a timeline are all different.
fn before(completed: &InstantTime) -> InstantTime {
    match completed.epoch_millis(tributary_types::Zone::Utc) {
        // The digits are moved back, whatever their zone.
        Some(millis) => InstantTime::from_epoch_millis(millis - 1, tributary_types::Zone::Utc),
        None => InstantTime::init(),
    }
}

fn rows(timeline: Arc<dyn Timeline>, relation: Relation, batch_rows: usize) -> RowStream {
    let schema = relation.schema;
    let streams = futures::stream::iter(relation.splits).then(move |split| {
        let timeline = Arc::clone(&timeline);
        let schema = Arc::clone(&schema);
        async move {
            let memory = MemoryBudget::new(SPLIT_MEMORY);
            let request = ReadRequest { split, schema, projection: None, predicate: None, batch_rows, memory };
            timeline.read(request).await.map_err(RowError::new)
        }
    });
    streams.try_flatten().boxed()
}
