// SPDX-License-Identifier: Apache-2.0
//! Planning: the windows of all sources, fixed together before the first row is read.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use futures::future::try_join_all;
use tributary_api::coordinator::{Error, SourceStatus};
use tributary_api::merge::{Bound, CheckRequest, Checked, MergeLimits, MergeSource, Step};
use tributary_api::timeline::{Begin, FilesRequest, PlanRequest, Relation, SourcePlan, Views};
use tributary_hudi::{arrow_schema, avro_schema};
use tributary_types::pipeline::{Consistency, OnUnused, Pipeline, ReadMode, Source, SourceKind, Transform};
use tributary_types::{CursorKind, FileState, SourceCheckpoint, SourceName, Window};

use crate::decide::{begin_of, check_binding, check_moved};
use crate::operators;
use crate::schema::target_schema;
use crate::service::Roles;
use crate::standing::Standing;
use crate::target::TargetState;

/// What a plan is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A batch.
    Batch,
    /// Only a look: no data file is opened.
    Look,
}

/// Everything that is fixed before the first row is read.
pub(crate) struct Opening {
    pub(crate) bound: Vec<Bound>,
    pub(crate) binding: String,
    pub(crate) plans: Plans,
    /// The query's result, planned.
    pub(crate) checked: Checked,
    /// Schema of the table after the batch.
    pub(crate) schema: SchemaRef,
}

/// Binds the SQL, plans the sources from where they stand, plans the SQL over them and fits its result into the
/// target. Writes nothing. `planned` sees the plans as soon as there are any.
pub(crate) async fn open(
    roles: &Roles,
    pipeline: &Pipeline,
    purpose: Purpose,
    target: Option<&TargetState>,
    standing: &Standing,
    limits: &MergeLimits,
    planned: impl Fn(&Plans) + Send,
) -> Result<Opening, Error> {
    let bound = bind(roles, pipeline).await?;
    let binding = check_binding(pipeline, &bound, standing)?;
    let plans = plan_sources(roles, pipeline, &bound, standing, Ends::Planned(purpose)).await?;
    check_moved(pipeline, standing)?;
    planned(&plans);
    let sources = merge_sources(pipeline, &plans)?;
    let checked = check_sql(roles, pipeline, &sources, limits).await?;
    let stored_schema = target.and_then(|target| target.schema.as_ref());
    let refuse = |problems: Vec<String>| Error::Target { url: pipeline.target.path.clone(), what: problems.join("; ") };
    let schema = target_schema(&pipeline.target, stored_schema, &checked.schema).map_err(refuse)?;
    let mut problems = operators::problems(&pipeline.target, &schema);
    problems.extend(target.map(|target| target.unkept_statistics(&schema)).unwrap_or_default());
    if !problems.is_empty() {
        return Err(refuse(problems));
    }
    operators::check_changes(pipeline, stored_schema, standing.newest())?;
    Ok(Opening { bound, binding, plans, checked, schema })
}

/// The plans of all sources, in pipeline order.
pub(crate) struct Plans {
    pub(crate) sources: Vec<SourcePlan>,
    /// The shared ceiling of an aligned batch.
    pub(crate) ceiling_millis: Option<i64>,
}

impl Plans {
    /// Whether any source has news. A look-up alone never makes a batch.
    pub(crate) fn has_news(&self, pipeline: &Pipeline) -> bool {
        let read = pipeline.sources.iter().zip(&self.sources);
        read.into_iter().any(|(source, plan)| source.read == ReadMode::Incremental && plan.has_news)
    }

    /// Whether every source that is read incrementally was left out: then there is nothing to commit, whatever was asked
    /// for.
    pub(crate) fn all_left_out(&self, pipeline: &Pipeline) -> bool {
        let mut read = pipeline.sources.iter().zip(&self.sources);
        read.all(|(source, plan)| source.read == ReadMode::Snapshot || plan.report.skipped.is_some())
    }

    /// The sources as a caller sees them.
    pub(crate) fn status(&self, pipeline: &Pipeline) -> Vec<SourceStatus> {
        let one = |(source, plan): (&Source, &SourcePlan)| SourceStatus {
            source: source.name.clone(),
            window: window_of(source, plan),
            report: plan.report.clone(),
            rows: 0,
        };
        pipeline.sources.iter().zip(&self.sources).map(one).collect()
    }
}

/// What a batch reads of a source; `None` for a look-up.
pub(crate) fn window_of(source: &Source, plan: &SourcePlan) -> Option<Window> {
    (source.read == ReadMode::Incremental).then(|| Window { begin: plan.begin.clone(), end: plan.end.clone() })
}

/// Which relations the SQL names, after refusing a source that it does not name.
async fn bind(roles: &Roles, pipeline: &Pipeline) -> Result<Vec<Bound>, Error> {
    let names = pipeline.sources.iter().map(|source| source.name.clone()).collect();
    let bound = roles.merge.bind(sql_of(pipeline), names).await?;
    for (source, bound) in pipeline.sources.iter().zip(&bound) {
        if bound.views == Views::default() && source.unused == OnUnused::Fail {
            return Err(tributary_api::merge::Error::Unused { source_name: source.name.clone() }.into());
        }
        if source.skip_on_schema_failure && (bound.views.end || bound.views.begin) {
            let problem = format!(
                "source `{0}`: `skip_on_schema_failure` does not go with `<SNAP:{0}>` and `<PREV:{0}>`: while it is left out, \
                 rows of the other sources would find nothing in it, and are not read again",
                source.name
            );
            return Err(Error::Pipeline { pipeline: pipeline.name.to_string(), problems: vec![problem] });
        }
    }
    Ok(bound)
}

/// The SQL that names the sources, loaded by whoever read the pipeline's file; `None`: the rows of the one source pass.
pub(crate) fn sql_of(pipeline: &Pipeline) -> Option<String> {
    pipeline.transforms.first().and_then(|transform| transform.sql.clone())
}

/// The steps after it.
pub(crate) fn steps_of(pipeline: &Pipeline) -> Vec<Step> {
    let first = usize::from(sql_of(pipeline).is_some());
    let step = |transform: &Transform| match &transform.flatten {
        Some(flatten) => Step::Flatten { separator: flatten.separator.clone() },
        None => Step::Sql(transform.sql.clone().unwrap_or_default()),
    };
    pipeline.transforms.iter().skip(first).map(step).collect()
}

/// Where windows end.
#[derive(Clone, Copy)]
pub(crate) enum Ends<'a> {
    /// Where planning says.
    Planned(Purpose),
    /// Where a batch that was planned before must keep them.
    Pinned(&'a Plans),
}

/// Plans every source, all at once.
pub(crate) async fn plan_sources(
    roles: &Roles,
    pipeline: &Pipeline,
    bound: &[Bound],
    standing: &Standing,
    ends: Ends<'_>,
) -> Result<Plans, Error> {
    let mut requests = Vec::with_capacity(pipeline.sources.len());
    for (number, (source, bound)) in pipeline.sources.iter().zip(bound).enumerate() {
        let mut request = plan_request(source, bound.views, standing)?;
        match ends {
            Ends::Planned(purpose) => request.look_only = purpose == Purpose::Look,
            Ends::Pinned(plans) => {
                request.pinned_end = Some(plans.sources[number].end.clone());
                // What the batch is to read must not turn into nothing: its cursor is fixed.
                request.fallback_schema = None;
                if let Some(files) = &mut request.files {
                    files.pinned = plans.sources[number].changed.as_ref().map(paths_of);
                }
            }
        }
        requests.push(request);
    }
    if let Ends::Pinned(pinned) = ends {
        let sources = plan_again(roles, &requests, &pinned.sources).await?;
        return Ok(Plans { sources, ceiling_millis: pinned.ceiling_millis });
    }
    let first = plan_all(roles, &requests).await?;
    if pipeline.consistency == Consistency::Independent {
        return Ok(Plans { sources: first, ceiling_millis: None });
    }
    align(roles, pipeline, requests, first).await
}

/// The files of a window.
fn paths_of(changed: &Relation) -> Vec<String> {
    changed.splits.iter().map(|split| split.path.clone()).collect()
}

/// Cuts all windows at one ceiling: the lowest frontier, or the end of a source that a limit stopped before it.
async fn align(
    roles: &Roles,
    pipeline: &Pipeline,
    mut requests: Vec<PlanRequest>,
    first: Vec<SourcePlan>,
) -> Result<Plans, Error> {
    let mut ceiling = first.iter().map(|plan| plan.frontier_millis).min().unwrap_or_default();
    let mut left_out: Vec<Option<String>> = vec![None; first.len()];
    let mut plans = first;
    // Each round lowers the ceiling to the end of a source that stopped early, so it ends after one round a source.
    for _ in 0..=pipeline.sources.len() {
        for request in &mut requests {
            request.ceiling_millis = Some(ceiling);
        }
        plans = plan_all(roles, &requests).await?;
        for (known, plan) in left_out.iter_mut().zip(&plans) {
            *known = plan.report.skipped.clone().or(known.take());
        }
        let lower = plans
            .iter()
            .filter(|plan| plan.limited)
            // A table that was empty and is left out stands before all time; files that are ordered by name have no time.
            .filter_map(|plan| plan.end.epoch_millis(plan.table.zone).or(plan.report.skipped.as_ref().map(|_| 0)))
            .min()
            .filter(|end| *end < ceiling);
        match lower {
            Some(end) => ceiling = end,
            None => break,
        }
    }
    // Once the ceiling is at its cursor a source that is left out has no more to read, and is left out all the same.
    for (plan, known) in plans.iter_mut().zip(left_out) {
        plan.report.skipped = known;
    }
    mark_uncut(&mut plans);
    Ok(Plans { sources: plans, ceiling_millis: Some(ceiling) })
}

/// A ceiling cuts through tables of one clock. Beside tables that are read in the order of completion, one that is read
/// in the order of requests takes the longest prefix up to the ceiling, which is no cut: what was requested before the
/// ceiling may have completed after it.
fn mark_uncut(plans: &mut [SourcePlan]) {
    let any = |kind: CursorKind| plans.iter().any(|plan| plan.end.kind() == kind);
    let mixed =
        any(CursorKind::Requested) && (any(CursorKind::Completed) || any(CursorKind::File) || any(CursorKind::Offsets));
    for plan in plans.iter_mut().filter(|plan| mixed && plan.end.kind() == CursorKind::Requested) {
        plan.report.not_a_cut = true;
    }
}

async fn plan_all(roles: &Roles, requests: &[PlanRequest]) -> Result<Vec<SourcePlan>, Error> {
    // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
    let plans: Vec<_> = requests.iter().map(|request| roles.timeline.plan(request.clone())).collect();
    Ok(try_join_all(plans).await?)
}

/// Of a source that is left out nothing is read, so nothing of it can have moved.
async fn plan_again(roles: &Roles, requests: &[PlanRequest], before: &[SourcePlan]) -> Result<Vec<SourcePlan>, Error> {
    let plans = requests.iter().zip(before).map(|(request, before)| async move {
        match before.report.skipped {
            Some(_) => Ok(before.clone()),
            None => roles.timeline.plan(request.clone()).await,
        }
    });
    // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
    let plans: Vec<_> = plans.collect();
    Ok(try_join_all(plans).await?)
}

/// Asks for the window of a source, of which the query names `views`.
pub(crate) fn plan_request(source: &Source, mut views: Views, standing: &Standing) -> Result<PlanRequest, Error> {
    let stored = standing.checkpoint();
    let moved = standing.moved(&source.name);
    let entry = stored.and_then(|checkpoint| checkpoint.sources.get(&source.name));
    // Whatever is remembered beside a cursor goes with it.
    let known = entry.filter(|_| moved.is_none());
    let begin = match moved {
        Some(moved) => moved.begin.clone(),
        None => match (begin_of(source, stored), standing.first_start()) {
            (Err(Error::NoStart { .. }), Some(begin)) => begin,
            (begin, _) => begin?,
        },
    };
    let lookup = source.read == ReadMode::Snapshot;
    if lookup {
        // `<SRC:x>` of a look-up is the whole table, the same as `<SNAP:x>`.
        views.end |= views.changed;
        views.changed = false;
    }
    // An instant that a person wrote down need not be a commit; one from a checkpoint is.
    let stored_cursor = matches!(begin, Begin::After(_)) && known.is_some_and(|known| known.cursor.is_some());
    Ok(PlanRequest {
        source: source.name.clone(),
        url: source.url(),
        begin,
        lookup,
        num_instants: source.num_instants,
        ceiling_millis: None,
        pinned_end: None,
        by_hand: moved.is_some_and(|moved| moved.by_hand),
        fingerprint: known.filter(|_| stored_cursor || lookup).map(|known| known.fingerprint.clone()),
        recent: known.map(|known| known.recent.clone()).unwrap_or_default(),
        on_late: source.on_late_instant,
        on_stale: source.on_stale,
        on_hole: source.on_hole,
        views,
        meta_columns: source.meta_columns,
        deletes: source.propagates_deletes(),
        look_only: false,
        fallback_schema: known.filter(|_| stored_cursor).and_then(|known| fallback_schema(source, known)),
        files: source.file_source().map(|files| {
            let state = entry.and_then(|entry| entry.files.clone());
            let state = state.map(|state| match moved {
                // Names and types are settled once.
                Some(_) => FileState { schema: state.schema, ..FileState::default() },
                None => state,
            });
            Box::new(FilesRequest { source: files, state, pinned: None, moved: moved.is_some() })
        }),
    })
}

/// The schema that a source was committed with last, where it may be left out.
fn fallback_schema(source: &Source, known: &SourceCheckpoint) -> Option<SchemaRef> {
    let text = known.schema.as_ref().filter(|_| source.skip_on_schema_failure)?;
    let schema = arrow_schema(&format!("the schema kept for source `{}`", source.name), text);
    // None that can be read is none that is known: then the batch fails.
    let warn = |error: &tributary_hudi::Error| {
        tracing::warn!(source = %source.name, error = error as &dyn std::error::Error, "it cannot be left out");
    };
    schema.inspect_err(warn).ok().map(Arc::new)
}

/// The schema of a source for its entry in the checkpoint; `None` where it has none, or one without a place in Avro.
pub(crate) fn kept_schema(source: &Source, plan: &SourcePlan) -> Option<String> {
    let schema = plan.table.schema.as_ref().filter(|_| source.read == ReadMode::Incremental)?;
    avro_schema(&plan.table.name, schema).ok()
}

/// The sources as the merge role reads them.
pub(crate) fn merge_sources(pipeline: &Pipeline, plans: &Plans) -> Result<Vec<MergeSource>, Error> {
    let mut sources = Vec::with_capacity(plans.sources.len());
    for (source, plan) in pipeline.sources.iter().zip(&plans.sources) {
        let relations = [&plan.changed, &plan.at_end, &plan.at_begin];
        let schema = relations.iter().find_map(|relation| relation.as_ref().map(|r| r.schema.clone()));
        let schema = schema.or_else(|| plan.table.schema.clone()).ok_or_else(|| Error::Target {
            url: source.url(),
            what: format!("source `{}` has no schema yet: {}", source.name, without_schema(source)),
        })?;
        let lookup = source.read == ReadMode::Snapshot;
        sources.push(MergeSource {
            source: source.name.clone(),
            schema,
            changed: if lookup { plan.at_end.clone() } else { plan.changed.clone() },
            at_end: plan.at_end.clone(),
            at_begin: plan.at_begin.clone(),
        });
    }
    Ok(sources)
}

fn without_schema(source: &Source) -> &'static str {
    match source.kind {
        SourceKind::Hudi => "it never had a commit",
        SourceKind::Kafka => "no message of it shows one; give one with `kafka.schema_file`",
        SourceKind::Csv | SourceKind::Json | SourceKind::Parquet => {
            "no file of it was ever read; give one with `files.schema_file`"
        }
    }
}

/// Sources that deliver deleted records.
fn propagating(pipeline: &Pipeline) -> Vec<SourceName> {
    let sources = pipeline.sources.iter().filter(|source| source.propagates_deletes());
    sources.map(|source| source.name.clone()).collect()
}

/// Plans the SQL over the sources' schemas.
async fn check_sql(
    roles: &Roles,
    pipeline: &Pipeline,
    sources: &[MergeSource],
    limits: &MergeLimits,
) -> Result<Checked, Error> {
    let request = CheckRequest {
        sql: sql_of(pipeline),
        then: steps_of(pipeline),
        sources: sources.iter().map(|source| (source.source.clone(), source.schema.clone())).collect(),
        deletes: propagating(pipeline),
        limits: limits.clone(),
    };
    Ok(roles.merge.check(request).await?)
}
