// SPDX-License-Identifier: Apache-2.0
//! The role itself: bind, check, run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::MemoryPool;
use futures::StreamExt;
use tracing::{debug, info, warn};
use tributary_api::StopSource;
use tributary_api::merge::{
    Bound, CheckRequest, Checked, Error, Merge, MergeRequest, MergeSource, Merged, QueryNames, QueryRequest, QueryRows,
    Step,
};
use tributary_api::timeline::{Relation, Timeline};
use tributary_api::transform::Transforms;
use tributary_api::writer::{self, StageRequest, Writer};
use tributary_types::{Clock, SourceName, SystemClock};

use crate::engine::{Attempt, Engine, Job, Named};
use crate::error::{from_execution, internal, is_out_of_memory, sql_error};
use crate::functions::Functions;
use crate::handover::{Rows, StreamLimits};
use crate::joins::{Failure, Joins, choose, estimate_build_bytes, has_hash_join, should_sort_merge};
use crate::metrics::{self, SortMergeCause};
use crate::output;
use crate::placeholders::{Reference, View, bind, usage};
use crate::queries;
use crate::settings::Settings;

mod query;

/// How long a query that was given up may take to give its memory back before the next attempt starts regardless.
const RELEASE_TIME: Duration = Duration::from_secs(10);

/// What runs where a pipeline has no SQL.
const PASS_THROUGH: &str = "SELECT * FROM <SRC>";

/// The merge role.
pub struct Service {
    engine: Engine,
    writer: Arc<dyn Writer>,
    clock: Arc<dyn Clock>,
    max_rows: Option<u64>,
}

/// A query that delivered its first rows, or its end.
struct Started {
    attempt: Attempt,
    first: Option<RecordBatch>,
    query: SendableRecordBatchStream,
    /// Bytes that an attempt before it spilled.
    spilled_before: u64,
}

impl Service {
    /// The role, reading through `timeline` and handing its rows to `writer`.
    pub fn new(timeline: Arc<dyn Timeline>, writer: Arc<dyn Writer>, settings: Settings) -> Self {
        metrics::register();
        let max_rows = settings.max_rows;
        let (functions, settings) = (Arc::new(Functions::reviewed()), Arc::new(settings));
        let engine = Engine { timeline, functions, settings, transforms: Arc::default() };
        Service { engine, writer, clock: Arc::new(SystemClock), max_rows }
    }

    /// The same with another clock, which is what `now()` reads: once for a batch.
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The same with steps in Rust, which pipelines name.
    pub fn with_transforms(mut self, transforms: Transforms) -> Self {
        self.engine.transforms = Arc::new(transforms);
        self
    }

    async fn run_within(&self, request: MergeRequest) -> Result<(Merged, u64), Error> {
        let MergeRequest { sql, then, sources, stage, limits } = request;
        let stop = limits.stop.clone();
        let names: Vec<SourceName> = sources.iter().map(|source| source.source.clone()).collect();
        let (text, references) = what_to_read(sql.as_deref(), &then, &names)?;
        let job = Arc::new(Job {
            text,
            then,
            relations: pinned(references, &sources)?,
            // What would lose any was refused when the batch was planned.
            deletes: Vec::new(),
            sources: sources.into_iter().map(|source| (source.source, source.schema)).collect(),
            limits,
            now_millis: self.clock.now_millis(),
            query: None,
        });
        // Up to the first rows nothing is written, so that much can be dropped.
        let started = tokio::select! {
            started = Box::pin(self.start(&job, Some(&stage.schema))) => started?,
            () = stop.wait() => return Err(Error::Stopped),
        };
        self.stage(&job, started, stage).await
    }

    /// Plans the job and runs it up to its first rows, with hash joins where they fit and else without.
    /// `target`: the columns of where the rows go, if they go somewhere.
    async fn start(&self, job: &Arc<Job>, target: Option<&SchemaRef>) -> Result<Started, Error> {
        let mut attempt = self.engine.plan(job, Joins::Hash).await?;
        if let Some(difference) = target.and_then(|schema| output::difference(&attempt.schema, schema)) {
            let message = format!("the target was prepared for other columns than the query delivers: {difference}");
            return Err(sql_error(None, message));
        }
        let build_bytes = estimate_build_bytes(attempt.physical());
        if choose(build_bytes, attempt.pool.share()) == Joins::SortMerge {
            info!(build_bytes, share = attempt.pool.share(), "hash joins would not fit, joining by sort and merge");
            metrics::sort_merge_chosen(SortMergeCause::Estimate);
            attempt = self.engine.plan(job, Joins::SortMerge).await?;
        }
        let error = match first_rows(&attempt, self.engine.settings.own_threads).await {
            Ok((first, query)) => {
                return Ok(Started { attempt, first, query, spilled_before: 0 });
            }
            Err(error) => error,
        };
        let failure = Failure {
            joins: attempt.joins,
            out_of_memory: is_out_of_memory(&error),
            refusal: attempt.pool.refusal(),
            rows_handed_over: false,
        };
        let classified = from_execution(&error, attempt.pool.share(), job.limits.spill_bytes);
        if !should_sort_merge(&failure) || !has_hash_join(attempt.physical()) {
            return Err(classified);
        }
        info!(share = attempt.pool.share(), "hash joins did not fit, joining by sort and merge");
        metrics::sort_merge_chosen(SortMergeCause::Memory);
        let spilled_before = attempt.spilled_bytes();
        let pool = Arc::clone(&attempt.pool);
        // The plan keeps the hash tables that did fit.
        drop(attempt);
        if tokio::time::timeout(RELEASE_TIME, pool.wait_until_empty()).await.is_err() {
            warn!(bytes = pool.reserved(), "a query that was given up still holds memory");
        }
        let attempt = self.engine.plan(job, Joins::SortMerge).await?;
        match first_rows(&attempt, self.engine.settings.own_threads).await {
            Ok((first, query)) => Ok(Started { attempt, first, query, spilled_before }),
            Err(error) => Err(from_execution(&error, attempt.pool.share(), job.limits.spill_bytes)),
        }
    }

    async fn stage(&self, job: &Job, started: Started, mut request: StageRequest) -> Result<(Merged, u64), Error> {
        let Started { attempt, first, query, spilled_before } = started;
        let limits =
            StreamLimits { max_rows: self.max_rows, share: attempt.pool.share(), spill_bytes: job.limits.spill_bytes };
        let (rows, progress) = Rows::new(first, query, Arc::clone(&attempt.schema), limits);
        request.stop = job.limits.stop.clone();
        // A writer in another process cannot count into this budget: it gets what the query leaves of it.
        request.share = Some(job.limits.budget.limit().saturating_sub(attempt.pool.share()));
        // Never dropped: the writer may have an operation on its way. It returns once told to stop.
        let staged = self.writer.stage(request, Box::pin(rows)).await;
        if let Err(lost @ writer::Error::Unreachable { .. }) = staged {
            // Whether it stopped is not known, which matters more than why it should.
            return Err(lost.into());
        }
        if job.limits.stop.is_set() {
            return Err(Error::Stopped);
        }
        // The stream's own error first: what the writer makes of it is the same thing at second hand.
        if let Some(failure) = progress.take_failure() {
            return Err(failure);
        }
        let staged = staged?;
        if !progress.ended() {
            return Err(internal("the writer finished before it had read all rows"));
        }
        let names = job.sources.iter().map(|(name, _)| name.clone());
        let rows_read = names.zip(attempt.rows_read()).collect();
        let spilled_bytes = spilled_before + attempt.spilled_bytes();
        debug!(rows = progress.rows(), spilled_bytes, "merge staged");
        Ok((Merged { staged, rows_read, spilled_bytes }, progress.rows()))
    }
}

#[async_trait]
impl Merge for Service {
    async fn bind(&self, sql: Option<String>, sources: Vec<SourceName>) -> Result<Vec<Bound>, Error> {
        let bound = bind(text_of(sql.as_deref(), &sources)?, &sources)?;
        let mut used = usage(&bound.references, &sources);
        self.engine.read(bound.text).await?;
        if sql.is_none() {
            // The pass-through names its only source by position, but nobody else does.
            used.iter_mut().for_each(|bound| bound.by_position = false);
        }
        Ok(used)
    }

    #[tracing::instrument(name = "plan the query", skip_all, fields(role = "merge"))]
    async fn check(&self, request: CheckRequest) -> Result<Checked, Error> {
        let CheckRequest { sql, then, sources, deletes, limits } = request;
        let names: Vec<SourceName> = sources.iter().map(|(name, _)| name.clone()).collect();
        let (text, references) = what_to_read(sql.as_deref(), &then, &names)?;
        let relations = references.into_iter().map(|reference| {
            let schema = Arc::clone(&sources[reference.source].1);
            Named { reference, relation: Relation { schema, splits: Vec::new() } }
        });
        let job = Job {
            text,
            then,
            relations: relations.collect(),
            deletes,
            sources,
            limits,
            now_millis: self.clock.now_millis(),
            query: None,
        };
        let attempt = self.engine.plan(&Arc::new(job), Joins::Hash).await?;
        let (logical_plan, physical_plan) = attempt.describe();
        let origins = attempt.origins();
        Ok(Checked { schema: attempt.schema, logical_plan, physical_plan, origins })
    }

    #[tracing::instrument(name = "merge", skip_all, fields(role = "merge", instant = %request.stage.instant))]
    async fn run(&self, mut request: MergeRequest) -> Result<Merged, Error> {
        let started = Instant::now();
        let timeout = request.limits.timeout;
        let overtime = StopSource::new();
        request.limits.stop = request.limits.stop.or(&overtime.listen());
        let mut run = Box::pin(self.run_within(request));
        let mut outcome = tokio::select! {
            outcome = &mut run => outcome,
            () = tokio::time::sleep(timeout) => {
                overtime.stop();
                run.await
            }
        };
        if matches!(outcome, Err(Error::Stopped)) && overtime.is_stopped() {
            let detail = format!("the merge took longer than {timeout:?}; raise `limits.timeout`");
            outcome = Err(Error::Limit { limit: "time", detail });
        }
        metrics::finished(&outcome, started.elapsed().as_secs_f64());
        outcome.map(|(merged, _)| merged)
    }

    async fn read_query(&self, sql: String) -> Result<QueryNames, Error> {
        self.names_of_query(sql).await
    }

    async fn check_query(&self, request: QueryRequest) -> Result<SchemaRef, Error> {
        self.schema_of_query(request).await
    }

    async fn query(&self, request: QueryRequest) -> Result<QueryRows, Error> {
        self.run_query(request).await
    }
}

/// The SQL of a pipeline; a pipeline of one source need not have any.
fn text_of<'a>(sql: Option<&'a str>, sources: &[SourceName]) -> Result<&'a str, Error> {
    match sql {
        Some(sql) => Ok(sql),
        None if sources.len() == 1 => Ok(PASS_THROUGH),
        None => Err(sql_error(
            None,
            format!("there is none, and {} sources: only the rows of a single source can pass through", sources.len()),
        )),
    }
}

/// The SQL with its placeholders bound, if there is any, and the relations that are read.
fn what_to_read(
    sql: Option<&str>,
    then: &[Step],
    names: &[SourceName],
) -> Result<(Option<String>, Vec<Reference>), Error> {
    match (sql, then.first()) {
        (None, Some(Step::Rust(_))) => Ok((None, every_source(names))),
        // Its splits say what is read.
        (None, Some(Step::Refused(rows))) if rows.key.is_none() => Ok((None, Vec::new())),
        _ => {
            let bound = bind(text_of(sql, names)?, names)?;
            Ok((Some(bound.text), bound.references))
        }
    }
}

/// What a step in Rust gets that comes first: what changed in each source, in order.
fn every_source(names: &[SourceName]) -> Vec<Reference> {
    let reference = |(source, name): (usize, &SourceName)| Reference {
        table: format!("SRC:{name}"),
        source,
        view: View::Changed,
        by_position: true,
    };
    names.iter().enumerate().map(reference).collect()
}

/// The pinned relation behind each reference.
fn pinned(references: Vec<Reference>, sources: &[MergeSource]) -> Result<Vec<Named>, Error> {
    let mut relations = Vec::with_capacity(references.len());
    for reference in references {
        let source = &sources[reference.source];
        let relation = match reference.view {
            View::Changed => &source.changed,
            View::AtEnd => &source.at_end,
            View::AtBegin => &source.at_begin,
        };
        let Some(relation) = relation.clone() else {
            return Err(internal(format!("`<{}>` is named by the SQL, but was not planned", reference.table)));
        };
        if let Some(difference) = output::difference(&relation.schema, &source.schema) {
            let message = format!("`<{}>` was pinned with another schema than planned: {difference}", reference.table);
            return Err(internal(message));
        }
        relations.push(Named { reference, relation });
    }
    Ok(relations)
}

/// Starts an attempt and waits for its first rows: until then nothing is handed over, and it can be given up.
async fn first_rows(
    attempt: &Attempt,
    own_threads: bool,
) -> Result<(Option<RecordBatch>, SendableRecordBatchStream), DataFusionError> {
    let mut query = if own_threads { queries::start(attempt)? } else { attempt.start()? };
    loop {
        match query.next().await {
            Some(Ok(batch)) if batch.num_rows() == 0 => {}
            Some(Ok(batch)) => return Ok((Some(batch), query)),
            Some(Err(error)) => return Err(error),
            None => return Ok((None, query)),
        }
    }
}

#[cfg(test)]
mod tests;
