// SPDX-License-Identifier: Apache-2.0
//! The cursors that a batch commits: those after its windows, or those that were set by hand.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::{Schema, SchemaRef};
use tributary_api::checkpoint::Resolved;
use tributary_api::coordinator::Error;
use tributary_api::timeline::{Begin, SourcePlan, Views};
use tributary_types::pipeline::{Pipeline, ReadMode, Source, Start};
use tributary_types::{Checkpoint, InstantTime, RECENT_INSTANTS, SourceCheckpoint, SourceName};

use super::{Batch, Ended, Preparation, Prepared, Work};
use crate::commit::remember;
use crate::flat::check_set_apart;
use crate::operators;
use crate::overrides::Move;
use crate::plan::{Plans, kept_schema, plan_request, window_of};
use crate::service::Roles;
use crate::standing::Standing;
use crate::target::TargetState;

/// Cursors that a commit without rows sets.
pub(super) struct SetCursors {
    /// The entries that change.
    entries: BTreeMap<SourceName, SourceCheckpoint>,
    /// The table's schema, which every commit carries.
    schema: SchemaRef,
}

impl Work {
    /// Schema of the table after the batch.
    pub(super) fn schema(&self) -> &Schema {
        match self {
            Work::Merge(opening) => &opening.schema,
            Work::SetCursors(set) => &set.schema,
        }
    }
}

impl Batch<'_> {
    /// Looks where the cursors that are set by hand lie. Without one that was not applied before there is nothing to do.
    pub(super) async fn prepare_cursors(
        &self,
        existing: Option<TargetState>,
        resolved: Resolved,
        standing: Standing,
        seen: BTreeSet<InstantTime>,
    ) -> Result<Preparation, Error> {
        if standing.tokens().is_empty() {
            return Ok(Preparation::Ended(Ended::NoNewData));
        }
        let pipeline = &self.request.pipeline;
        check_set_apart(pipeline)?;
        let (Some(target), true) = (existing, standing.newest().is_some()) else { return Err(never_committed()) };
        let schema = target.schema.clone().ok_or_else(never_committed)?;
        let entries = self.unless_stopped(place_cursors(&self.inner.roles, pipeline, &standing)).await?;
        let work = Work::SetCursors(SetCursors { entries, schema: schema.into() });
        Ok(Preparation::Ready(Box::new(Prepared { resolved, standing, work, target, seen })))
    }

    /// The cursors after this batch.
    pub(super) fn next_checkpoint(&self, prepared: &Prepared, instant: &InstantTime) -> Checkpoint {
        let pipeline = &self.request.pipeline;
        let stored = prepared.resolved.newest.as_ref().map(|commit| commit.checkpoint.clone());
        let mut next = stored.unwrap_or_else(|| Checkpoint::first(String::new()));
        next.seq += 1;
        next.epoch = prepared.resolved.next_epoch;
        match &prepared.work {
            Work::Merge(opening) => {
                let plans = self.replanned.as_ref().unwrap_or(&opening.plans);
                next.binding.clone_from(&opening.binding);
                next.ceiling_millis = plans.ceiling_millis;
                next.operators = operators::kept(&pipeline.target, &opening.schema, next.operators);
                next.malformed.clear();
                next.sources = entries_after(pipeline, plans);
            }
            Work::SetCursors(set) => {
                // The sources stand apart now.
                next.ceiling_millis = None;
                for (name, entry) in &set.entries {
                    next.malformed.remove(name.as_str());
                    next.sources.insert(name.clone(), entry.clone());
                }
                // What this commit read of the others: nothing.
                for (name, entry) in &mut next.sources {
                    if !set.entries.contains_key(name) {
                        entry.window = None;
                    }
                }
            }
        }
        next.tokens.extend(prepared.standing.tokens().iter().map(|token| (token.clone(), instant.clone())));
        remember(&mut next, &self.request.request, instant, &self.definition);
        next
    }
}

fn never_committed() -> Error {
    let problem =
        "the pipeline has no commit in the target yet, so it has no cursor to set: say where each source begins \
                   with `start`"
            .to_string();
    Error::Override { problems: vec![problem] }
}

/// The entries of all sources once their windows were read.
fn entries_after(pipeline: &Pipeline, plans: &Plans) -> BTreeMap<SourceName, SourceCheckpoint> {
    let one = |(source, plan): (&Source, &SourcePlan)| {
        let lookup = source.read == ReadMode::Snapshot;
        let recent = plan.recent.len().saturating_sub(RECENT_INSTANTS);
        let entry = SourceCheckpoint {
            kind: source.kind.as_str().to_string(),
            cursor: (!lookup).then(|| plan.end.clone()),
            restart: None,
            window: window_of(source, plan),
            as_of: lookup.then(|| plan.end.clone()),
            fingerprint: plan.table.fingerprint.clone(),
            path: Some(source.location()),
            schema: kept_schema(source, plan),
            recent: plan.recent[recent..].to_vec(),
            files: plan.files.as_deref().cloned(),
        };
        (source.name.clone(), entry)
    };
    pipeline.sources.iter().zip(&plans.sources).map(one).collect()
}

/// The entries of the sources whose cursors are set by hand. Each is planned like any window, so that a place that is none
/// is refused now; no data file is opened.
pub(crate) async fn place_cursors(
    roles: &Roles,
    pipeline: &Pipeline,
    standing: &Standing,
) -> Result<BTreeMap<SourceName, SourceCheckpoint>, Error> {
    let mut entries = BTreeMap::new();
    for source in &pipeline.sources {
        let Some(moved) = standing.moved(&source.name) else { continue };
        let mut request = plan_request(source, Views::default(), standing)?;
        request.look_only = true;
        if let Some(files) = &mut request.files {
            // What is remembered is what was read by then: nothing after it.
            files.pinned = Some(Vec::new());
        }
        let plan = roles.timeline.plan(request).await?;
        entries.insert(source.name.clone(), entry_at(source, moved, &plan, standing));
    }
    Ok(entries)
}

fn entry_at(source: &Source, moved: &Move, plan: &SourcePlan, standing: &Standing) -> SourceCheckpoint {
    let cursor = match &moved.begin {
        // As it was given: by request, it says more than the completion time it lies at.
        Begin::After(cursor) => Some(cursor.clone()),
        _ if source.kind.is_files() => Some(plan.end.clone()),
        _ => plan.begin.clone(),
    };
    let known = standing.checkpoint().and_then(|checkpoint| checkpoint.sources.get(&source.name));
    SourceCheckpoint {
        kind: source.kind.as_str().to_string(),
        restart: cursor.is_none().then_some(Start::Snapshot),
        cursor,
        window: None,
        as_of: None,
        fingerprint: plan.table.fingerprint.clone(),
        path: Some(source.location()),
        schema: known.and_then(|known| known.schema.clone()),
        recent: Vec::new(),
        files: plan.files.as_deref().cloned(),
    }
}
