// SPDX-License-Identifier: Apache-2.0
//! Planning: the windows of all sources, fixed together before the first row is read.

use arrow::datatypes::SchemaRef;
use futures::future::try_join_all;
use tributary_api::checkpoint::Resolved;
use tributary_api::coordinator::{Error, SourceStatus};
use tributary_api::merge::{Bound, CheckRequest, Checked, MergeLimits, MergeSource};
use tributary_api::timeline::{Begin, FilesRequest, PlanRequest, Relation, SourcePlan, Views};
use tributary_types::pipeline::{Consistency, OnUnused, Pipeline, ReadMode, Source};
use tributary_types::{Checkpoint, CursorKind, Window};

use crate::decide::{begin_of, check_binding};
use crate::schema::target_schema;
use crate::service::Roles;
use crate::target::TargetState;

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

/// Binds the SQL, plans the sources from the cursors in `resolved`, plans the SQL over them and fits its result into the
/// target. Reads no data file and writes nothing. `planned` sees the plans as soon as there are any.
pub(crate) async fn open(
    roles: &Roles,
    pipeline: &Pipeline,
    target: Option<&TargetState>,
    resolved: &Resolved,
    limits: &MergeLimits,
    planned: impl Fn(&Plans) + Send,
) -> Result<Opening, Error> {
    let bound = bind(roles, pipeline).await?;
    let newest = resolved.newest.as_ref().map(|commit| (&commit.instant, &commit.checkpoint));
    let binding = check_binding(pipeline, &bound, newest)?;
    let stored = resolved.newest.as_ref().map(|commit| &commit.checkpoint);
    let plans = plan_sources(roles, pipeline, &bound, stored, None).await?;
    planned(&plans);
    let sources = merge_sources(pipeline, &plans)?;
    let checked = check_sql(roles, pipeline, &sources, limits).await?;
    let stored_schema = target.and_then(|target| target.schema.as_ref());
    let schema = target_schema(&pipeline.target, stored_schema, &checked.schema)
        .map_err(|problems| Error::Target { url: pipeline.target.path.clone(), what: problems.join("; ") })?;
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
    }
    Ok(bound)
}

/// The SQL of a pipeline, loaded by whoever read its file.
pub(crate) fn sql_of(pipeline: &Pipeline) -> Option<String> {
    pipeline.transforms.first().and_then(|transform| transform.sql.clone())
}

/// Plans every source, all at once. `pinned` are the plans of which the windows must be kept.
pub(crate) async fn plan_sources(
    roles: &Roles,
    pipeline: &Pipeline,
    bound: &[Bound],
    stored: Option<&Checkpoint>,
    pinned: Option<&Plans>,
) -> Result<Plans, Error> {
    let mut requests = Vec::with_capacity(pipeline.sources.len());
    for (number, (source, bound)) in pipeline.sources.iter().zip(bound).enumerate() {
        let mut request = plan_request(source, bound, stored)?;
        if let Some(planned) = pinned.map(|plans| &plans.sources[number]) {
            request.pinned_end = Some(planned.end.clone());
            if let Some(files) = &mut request.files {
                files.pinned = planned.changed.as_ref().map(paths_of);
            }
        }
        requests.push(request);
    }
    let first = plan_all(roles, &requests).await?;
    if pipeline.consistency == Consistency::Independent || pinned.is_some() {
        return Ok(Plans { sources: first, ceiling_millis: pinned.and_then(|plans| plans.ceiling_millis) });
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
    let mut plans = first;
    // Each round lowers the ceiling to the end of a source that stopped early, so it ends after one round a source.
    for _ in 0..=pipeline.sources.len() {
        for request in &mut requests {
            request.ceiling_millis = Some(ceiling);
        }
        plans = plan_all(roles, &requests).await?;
        let lower = plans
            .iter()
            .filter(|plan| plan.limited)
            .filter_map(|plan| plan.end.epoch_millis(plan.table.zone))
            .min()
            .filter(|end| *end < ceiling);
        match lower {
            Some(end) => ceiling = end,
            None => break,
        }
    }
    mark_uncut(&mut plans);
    Ok(Plans { sources: plans, ceiling_millis: Some(ceiling) })
}

/// A ceiling cuts through tables of one clock. Beside tables that are read in the order of completion, one that is read
/// in the order of requests takes the longest prefix up to the ceiling, which is no cut: what was requested before the
/// ceiling may have completed after it.
fn mark_uncut(plans: &mut [SourcePlan]) {
    let any = |kind: CursorKind| plans.iter().any(|plan| plan.end.kind() == kind);
    let mixed = any(CursorKind::Requested) && (any(CursorKind::Completed) || any(CursorKind::File));
    for plan in plans.iter_mut().filter(|plan| mixed && plan.end.kind() == CursorKind::Requested) {
        plan.report.not_a_cut = true;
    }
}

async fn plan_all(roles: &Roles, requests: &[PlanRequest]) -> Result<Vec<SourcePlan>, Error> {
    // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
    let plans: Vec<_> = requests.iter().map(|request| roles.timeline.plan(request.clone())).collect();
    Ok(try_join_all(plans).await?)
}

fn plan_request(source: &Source, bound: &Bound, stored: Option<&Checkpoint>) -> Result<PlanRequest, Error> {
    let known = stored.and_then(|checkpoint| checkpoint.sources.get(&source.name));
    let begin = begin_of(source, stored)?;
    let lookup = source.read == ReadMode::Snapshot;
    let mut views = bound.views;
    if lookup {
        // `<SRC:x>` of a look-up is the whole table, the same as `<SNAP:x>`.
        views.end |= views.changed;
        views.changed = false;
    }
    // An instant that a person wrote down need not be a commit; one from a checkpoint is.
    let stored_cursor = matches!(begin, Begin::After(_)) && known.is_some_and(|known| known.cursor.is_some());
    Ok(PlanRequest {
        source: source.name.clone(),
        url: source.path.clone(),
        begin,
        lookup,
        num_instants: source.num_instants,
        ceiling_millis: None,
        pinned_end: None,
        fingerprint: known.filter(|_| stored_cursor || lookup).map(|known| known.fingerprint.clone()),
        recent: known.map(|known| known.recent.clone()).unwrap_or_default(),
        on_late: source.on_late_instant,
        on_hole: source.on_hole,
        views,
        meta_columns: source.meta_columns,
        files: source.file_source().map(|files| {
            let state = known.and_then(|known| known.files.clone());
            Box::new(FilesRequest { source: files, state, pinned: None })
        }),
    })
}

/// The sources as the merge role reads them.
pub(crate) fn merge_sources(pipeline: &Pipeline, plans: &Plans) -> Result<Vec<MergeSource>, Error> {
    let mut sources = Vec::with_capacity(plans.sources.len());
    for (source, plan) in pipeline.sources.iter().zip(&plans.sources) {
        let relations = [&plan.changed, &plan.at_end, &plan.at_begin];
        let schema = relations.iter().find_map(|relation| relation.as_ref().map(|r| r.schema.clone()));
        let schema = schema.or_else(|| plan.table.schema.clone()).ok_or_else(|| Error::Target {
            url: source.path.clone(),
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
    match source.kind.is_files() {
        true => "no file of it was ever read; give one with `files.schema_file`",
        false => "it never had a commit",
    }
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
        sources: sources.iter().map(|source| (source.source.clone(), source.schema.clone())).collect(),
        limits: limits.clone(),
    };
    Ok(roles.merge.check(request).await?)
}
