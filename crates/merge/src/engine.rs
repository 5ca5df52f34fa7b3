// SPDX-License-Identifier: Apache-2.0
//! One engine per attempt of a batch: its relations, its views, its memory and its temporary files, and nothing that
//! outlives it.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::temporal_conversions::timestamp_ms_to_datetime;
use datafusion::catalog::view::ViewTable;
use datafusion::common::TableReference;
use datafusion::datasource::provider_as_source;
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::execution::{SendableRecordBatchStream, SessionStateDefaults};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast::Query;
use datafusion_spark::planner::SparkFunctionPlanner;
use tokio::runtime::Handle;
use tributary_api::ReadCounter;
use tributary_api::merge::{ColumnOrigins, Error, MergeLimits, Step};
use tributary_api::refused::{RefusedRows, refused_schema};
use tributary_api::timeline::{Relation, Timeline};
use tributary_api::transform::Transforms;
use tributary_types::SourceName;

use crate::casing::Casing;
use crate::correlated;
use crate::deep::on_deep_stack;
use crate::deletes::Deletes;
use crate::error::{from_planning, internal, sql_error};
use crate::functions::Functions;
use crate::joins::Joins;
use crate::memory::{MERGE_FAN_IN, QueryPool};
use crate::origins::{Origins, origins};
use crate::output;
use crate::placeholders::{RESULT, Reference, bind_result};
use crate::planner::{SparkDivision, Tables, ZONE, plan_query};
use crate::query::Changes;
use crate::refused;
use crate::relation::{RelationTable, Source};
use crate::sandbox;
use crate::script::{self, Script};
use crate::settings::Settings;
use crate::steps::{check_distinct, flatten, in_step};
use crate::transform::{NamedPlan, RESULT_INPUT, TransformTable};

/// Sorting keeps this much aside to merge what it spilled, unless the share is too small for it.
const SORT_RESERVATION: usize = 10 << 20;
/// Memory below which a further partition makes a query fail rather than fast.
const PARTITION_MEMORY: usize = 16 << 20;
/// Memory of a partition that each row of a record batch is taken to need. Sorting holds two batches of every file it
/// merges, and a query sorts in several places.
const MEMORY_PER_BATCH_ROW: usize = 16 << 10;
const SMALLEST_BATCH: usize = 128;

/// In how many partitions a query runs, and how large its record batches are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    partitions: usize,
    batch_rows: usize,
}

/// Fits partitions and batches into the query's memory: each partition holds batches of its own in every operator.
fn fit(share: usize, joins: Joins, parallelism: usize, batch_rows: usize) -> Shape {
    let affordable = (share / PARTITION_MEMORY).clamp(1, parallelism.max(1));
    let partitions = match joins {
        Joins::Hash => affordable,
        // The engine never plans a sort-merge join for a single partition.
        Joins::SortMerge => affordable.max(2),
    };
    let affordable_rows = share / partitions / MEMORY_PER_BATCH_ROW;
    Shape { partitions, batch_rows: affordable_rows.clamp(SMALLEST_BATCH.min(batch_rows), batch_rows) }
}

/// A relation that the SQL names, with its pinned content.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) reference: Reference,
    pub(crate) relation: Relation,
}

/// What a batch asks to be run.
pub(crate) struct Job {
    /// The SQL, its placeholders bound; `None`: the first step takes its place.
    pub(crate) text: Option<String>,
    /// Steps after it.
    pub(crate) then: Vec<Step>,
    /// Sources in pipeline order, each with the schema of its relations.
    pub(crate) sources: Vec<(SourceName, SchemaRef)>,
    pub(crate) relations: Vec<Named>,
    /// Sources whose deletes must not be lost.
    pub(crate) deletes: Vec<SourceName>,
    pub(crate) limits: MergeLimits,
    /// What `now()` is, milliseconds since the epoch.
    pub(crate) now_millis: i64,
    /// What makes it a query of a puller, whose result need not be one that a table could hold.
    pub(crate) query: Option<Changes>,
}

/// What plans jobs. Holds nothing of any of them.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) timeline: Arc<dyn Timeline>,
    pub(crate) functions: Arc<Functions>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) transforms: Arc<Transforms>,
}

/// A planned attempt to run a job.
pub(crate) struct Attempt {
    /// Schema of the rows.
    pub(crate) schema: SchemaRef,
    pub(crate) pool: Arc<QueryPool>,
    pub(crate) joins: Joins,
    logical: LogicalPlan,
    physical: Arc<dyn ExecutionPlan>,
    state: SessionState,
    reads: Vec<Arc<ReadCounter>>,
    /// What each column of the result is made of.
    origins: Vec<ColumnOrigins>,
}

impl Engine {
    /// Reads a script without planning it, so that wrong statements are found before any schema is known.
    pub(crate) async fn read(&self, text: String) -> Result<(), Error> {
        let settings = Arc::clone(&self.settings);
        on_deep_stack(move || script::parse(&text, Casing::default(), &settings).map(|_| ())).await
    }

    /// Plans `job` with `joins`.
    pub(crate) async fn plan(&self, job: &Arc<Job>, joins: Joins) -> Result<Attempt, Error> {
        let (engine, job, runtime) = (self.clone(), Arc::clone(job), Handle::current());
        on_deep_stack(move || {
            let _runtime = runtime.enter();
            // Waits for nothing: relations are pinned, so planning one reads nothing.
            futures::executor::block_on(engine.plan_here(&job, joins))
        })
        .await
    }

    async fn plan_here(&self, job: &Job, joins: Joins) -> Result<Attempt, Error> {
        let settings = self.settings.as_ref();
        let pool = Arc::new(QueryPool::new(job.limits.budget.clone(), settings.query_share_percent));
        let shape = fit(pool.share(), joins, job.limits.parallelism, settings.batch_rows);
        let mut state = self.session(job, config(shape, joins, reads_messages(job)), &pool)?;
        let reads = job.limits.progress.begin(job.sources.iter().map(|(name, _)| name));
        let planned = self.plan_steps(&state, job, &reads, shape)?;
        let (normalised, schema) = match job.query {
            None => output::normalise(planned)?,
            Some(_) => output::show(planned)?,
        };
        let logical = state.optimize(&normalised).map_err(|error| from_planning(&error))?;
        let origins = self.origins(job, &logical);
        let physical = state
            .query_planner()
            .create_physical_plan(&logical, &state)
            .await
            .map_err(|error| from_planning(&error))?;
        let reservation = sort_reservation(pool.share(), count_sorts(&physical));
        state.config_mut().options_mut().execution.sort_spill_reservation_bytes = reservation;
        Ok(Attempt { schema, pool, joins, logical, physical, state, reads, origins })
    }

    /// Plans the SQL and every step after it.
    fn plan_steps(
        &self,
        state: &SessionState,
        job: &Job,
        reads: &[Arc<ReadCounter>],
        shape: Shape,
    ) -> Result<LogicalPlan, Error> {
        let mut tables = self.relations(job, reads, shape);
        let deletes = Deletes::of(job);
        let mut planned = match &job.text {
            Some(text) => {
                let casing = Casing::of(job.sources.iter().map(|(_, schema)| schema.as_ref()));
                let mut script = script::parse(text, casing, &self.settings)?;
                if let Some(changes) = &job.query {
                    changes.apply(&mut script, &self.settings)?;
                }
                let planned = self.plan_script(state, &mut tables, &script)?;
                deletes.check(&planned, 1)?;
                Some(planned)
            }
            None => None,
        };
        let before = usize::from(job.text.is_some());
        for (number, step) in job.then.iter().enumerate() {
            let next = match (step, planned) {
                (Step::Rust(name), None) => deletes.check_rust(name).and_then(|()| self.plan_first(job, &tables, name)),
                (Step::Rust(name), Some(result)) => {
                    deletes.check_rust(name).and_then(|()| self.plan_rust_over(result, name))
                }
                (Step::Refused(rows), result) => self.plan_refused(job, rows, result, shape),
                (_, None) => Err(internal("there is neither SQL nor a step that takes its place")),
                (step, Some(result)) => self.plan_step(state, result, step),
            };
            let next = next.map_err(|error| in_step(error, number + 1 + before))?;
            // That step only takes rows without a key out, and nothing of it can be read.
            if !matches!(step, Step::Refused(_)) {
                deletes.check(&next, number + 1 + before)?;
            }
            planned = Some(next);
        }
        planned.ok_or_else(|| internal("there is neither SQL nor a step"))
    }

    /// Plans a step in Rust over the rows of every source.
    fn plan_first(&self, job: &Job, tables: &Tables, name: &str) -> Result<LogicalPlan, Error> {
        let mut inputs = Vec::with_capacity(job.relations.len());
        for Named { reference, .. } in &job.relations {
            let Some(table) = tables.get(&reference.table) else { continue };
            let scan = LogicalPlanBuilder::scan(&reference.table, Arc::clone(table), None)
                .and_then(LogicalPlanBuilder::build)
                .map_err(|error| from_planning(&error))?;
            inputs.push((job.sources[reference.source].0.to_string(), scan));
        }
        self.plan_rust(name, inputs)
    }

    /// Plans a step in Rust over the result of the one before it.
    fn plan_rust_over(&self, before: LogicalPlan, name: &str) -> Result<LogicalPlan, Error> {
        check_distinct(&before)?;
        self.plan_rust(name, vec![(RESULT_INPUT.to_string(), before)])
    }

    fn plan_rust(&self, name: &str, inputs: Vec<NamedPlan>) -> Result<LogicalPlan, Error> {
        let transform = self.transforms.find(name).map_err(|error| sql_error(None, error.message))?;
        let table = TransformTable::plan(name, transform, inputs)?;
        // A name that no relation has: what is read of a step is nobody's column.
        let result = TableReference::bare(format!("result of Rust step {name}"));
        LogicalPlanBuilder::scan(result, provider_as_source(Arc::new(table)), None)
            .and_then(LogicalPlanBuilder::build)
            .map_err(|error| from_planning(&error))
    }

    /// Plans the rows that are refused, of the result before and of the splits that are named.
    fn plan_refused(
        &self,
        job: &Job,
        rows: &RefusedRows,
        result: Option<LogicalPlan>,
        shape: Shape,
    ) -> Result<LogicalPlan, Error> {
        let mut scans = Vec::with_capacity(rows.splits.len());
        for (name, splits) in &rows.splits {
            let Some((_, read_by)) = job.sources.iter().find(|(source, _)| source == name) else {
                return Err(internal(format!("records of `{name}` are refused, which is no source")));
            };
            let source = Source {
                name: format!("refused records of {name}"),
                schema: refused_schema(),
                refused_by: Some(Arc::clone(read_by)),
                timeline: Arc::clone(&self.timeline),
                read: Arc::default(),
                batch_rows: shape.batch_rows,
                expansion: self.settings.expansion,
                memory: job.limits.budget.clone(),
                source: name.clone(),
                span: tracing::Span::current(),
            };
            let relation = Relation { schema: refused_schema(), splits: splits.clone() };
            scans.push(provider_as_source(Arc::new(RelationTable::new(source, relation))));
        }
        let result = result.map(|result| output::normalise(result).map(|(result, _)| result)).transpose()?;
        refused::plan(rows, result, scans)
    }

    fn origins(&self, job: &Job, logical: &LogicalPlan) -> Vec<ColumnOrigins> {
        let relations: HashMap<&str, usize> =
            job.relations.iter().map(|named| (named.reference.table.as_str(), named.reference.source)).collect();
        let found = origins(logical, &|table| relations.get(table).copied());
        let named = |origins: Origins| ColumnOrigins {
            copied: origins.copied,
            columns: origins.columns.into_iter().map(|(at, column)| (job.sources[at].0.clone(), column)).collect(),
        };
        found.into_iter().map(named).collect()
    }

    /// Plans the query of a script over `tables`, to which its views are added.
    fn plan_script(&self, state: &SessionState, tables: &mut Tables, script: &Script) -> Result<LogicalPlan, Error> {
        let relations: Vec<String> = tables.keys().cloned().collect();
        for view in &script.views {
            if relations.contains(&view.name) {
                return Err(sql_error(view.place, format!("view `{}` has the name of a relation", view.name)));
            }
            // Its plan is checked at once: views of views could grow without bound before the query is seen.
            let view_table = ViewTable::new(self.plan_logically(state, tables, &view.query)?, None);
            tables.insert(view.name.clone(), provider_as_source(Arc::new(view_table)));
        }
        self.plan_logically(state, tables, &script.query)
    }

    /// Plans a step over the result of the one before it.
    fn plan_step(&self, state: &SessionState, before: LogicalPlan, step: &Step) -> Result<LogicalPlan, Error> {
        let text = match step {
            Step::Flatten { separator } => return flatten(before, separator),
            Step::Sql(text) => bind_result(text)?,
            Step::Rust(name) => return self.plan_rust_over(before, name),
            Step::Refused(_) => return Err(internal("rows are refused in the last step only")),
        };
        check_distinct(&before)?;
        let casing = Casing::of([before.schema().as_arrow()]);
        let script = script::parse(&text, casing, &self.settings)?;
        let result = provider_as_source(Arc::new(ViewTable::new(before, None)));
        let mut tables = Tables::from([(RESULT.to_string(), result)]);
        self.plan_script(state, &mut tables, &script)
    }

    fn plan_logically(&self, state: &SessionState, tables: &Tables, query: &Query) -> Result<LogicalPlan, Error> {
        sandbox::check_query(query, tables.keys(), &self.functions)?;
        let planned = plan_query(state, tables, query).map_err(|error| from_planning(&error))?;
        sandbox::check_plan(&planned, &self.settings)?;
        correlated::check(&planned)?;
        Ok(planned)
    }

    fn relations(&self, job: &Job, reads: &[Arc<ReadCounter>], shape: Shape) -> Tables {
        let mut tables = Tables::new();
        for Named { reference, relation } in &job.relations {
            let source = Source {
                name: format!("<{}>", reference.table),
                schema: Arc::clone(&relation.schema),
                refused_by: None,
                timeline: Arc::clone(&self.timeline),
                read: Arc::clone(&reads[reference.source]),
                batch_rows: shape.batch_rows,
                expansion: self.settings.expansion,
                memory: job.limits.budget.clone(),
                source: job.sources[reference.source].0.clone(),
                span: tracing::Span::current(),
            };
            let table = RelationTable::new(source, relation.clone());
            tables.insert(reference.table.clone(), provider_as_source(Arc::new(table)));
        }
        tables
    }

    fn session(&self, job: &Job, config: SessionConfig, pool: &Arc<QueryPool>) -> Result<SessionState, Error> {
        let mode = match &self.settings.spill_dir {
            Some(directory) => DiskManagerMode::Directories(vec![directory.clone()]),
            None => DiskManagerMode::OsTmpDirectory,
        };
        let disk = DiskManagerBuilder::default()
            .with_mode(mode)
            .with_max_temp_directory_size(job.limits.spill_bytes)
            .with_max_spill_merge_fan_in(MERGE_FAN_IN);
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::clone(pool) as _)
            .with_disk_manager_builder(disk)
            .build_arc()
            .map_err(|error| internal(format!("no temporary directory for the query: {error}")))?;
        let mut planners: Vec<Arc<_>> = vec![Arc::new(SparkDivision) as _, Arc::new(SparkFunctionPlanner) as _];
        planners.extend(SessionStateDefaults::default_expr_planners());
        let builder =
            SessionStateBuilder::new().with_config(config).with_runtime_env(runtime).with_expr_planners(planners);
        let mut state = self.functions.register(builder, pool.share()).build();
        state.mark_start_execution();
        let now = timestamp_ms_to_datetime(job.now_millis).map(|now| now.and_utc());
        state.execution_props_mut().query_execution_start_time = now;
        Ok(state)
    }
}

impl Attempt {
    /// What each column of the result is made of.
    pub(crate) fn origins(&self) -> Vec<ColumnOrigins> {
        self.origins.clone()
    }

    /// Starts the query. Dropping the stream stops it.
    pub(crate) fn start(&self) -> Result<SendableRecordBatchStream, DataFusionError> {
        execute_stream(Arc::clone(&self.physical), self.state.task_ctx())
    }

    pub(crate) fn physical(&self) -> &Arc<dyn ExecutionPlan> {
        &self.physical
    }

    /// The plans, for people.
    pub(crate) fn describe(&self) -> (String, String) {
        (self.logical.display_indent().to_string(), displayable(self.physical.as_ref()).indent(false).to_string())
    }

    /// Rows read of each source so far, in pipeline order.
    pub(crate) fn rows_read(&self) -> Vec<u64> {
        self.reads.iter().map(|read| read.rows()).collect()
    }

    /// Bytes spilled so far.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        spilled_bytes(&self.physical)
    }
}

fn spilled_bytes(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let own = plan.metrics().and_then(|metrics| metrics.spilled_bytes()).unwrap_or(0);
    plan.children().into_iter().fold(own as u64, |sum, child| sum + spilled_bytes(child))
}

/// Sorts that may hold memory at the same time, one for each partition of each.
fn count_sorts(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = match plan.downcast_ref::<SortExec>() {
        Some(sort) => sort.properties().output_partitioning().partition_count(),
        None => 0,
    };
    plan.children().into_iter().fold(own, |sum, child| sum + count_sorts(child))
}

/// What each sort keeps aside: together half of what the pool keeps for memory that cannot be spilled.
fn sort_reservation(share: usize, sorts: usize) -> usize {
    SORT_RESERVATION.min(share / 6 / sorts.max(1))
}

/// Whether the query reads messages of a topic. Of several messages of one key the last one counts, so their order is kept
/// as far as the query does not change it: rows of a partition are not dealt out to several threads.
fn reads_messages(job: &Job) -> bool {
    let mut splits = job.relations.iter().flat_map(|named| &named.relation.splits);
    splits.any(|split| split.file.as_ref().is_some_and(|file| file.topic.is_some()))
}

fn config(shape: Shape, joins: Joins, in_order: bool) -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_target_partitions(shape.partitions)
        .with_batch_size(shape.batch_rows)
        .with_information_schema(false)
        .with_create_default_catalog_and_schema(false);
    let options = config.options_mut();
    options.execution.time_zone = Some(ZONE.to_string());
    options.execution.enable_recursive_ctes = false;
    options.optimizer.prefer_hash_join = joins == Joins::Hash;
    options.optimizer.repartition_joins = true;
    options.optimizer.enable_round_robin_repartition = !in_order;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_enough_memory_a_query_gets_all_it_asks_for() {
        let shape = Shape { partitions: 8, batch_rows: 8192 };
        assert_eq!(fit(8 << 30, Joins::Hash, 8, 8192), shape);
        assert_eq!(fit(8 << 30, Joins::SortMerge, 8, 8192), shape);
    }

    #[test]
    fn with_little_memory_it_runs_in_fewer_partitions_and_smaller_batches() {
        assert_eq!(fit(38 << 20, Joins::Hash, 8, 8192), Shape { partitions: 2, batch_rows: 1216 });
        assert_eq!(fit(5 << 20, Joins::Hash, 8, 8192), Shape { partitions: 1, batch_rows: 320 });
        assert_eq!(fit(0, Joins::Hash, 0, 8192), Shape { partitions: 1, batch_rows: 128 });
        assert_eq!(fit(0, Joins::Hash, 1, 16), Shape { partitions: 1, batch_rows: 16 });
    }

    #[test]
    fn sorts_keep_a_sixth_of_the_share_aside_together() {
        assert_eq!(sort_reservation(600, 0), 100);
        assert_eq!(sort_reservation(600, 4), 25);
        assert_eq!(sort_reservation(8 << 30, 4), SORT_RESERVATION);
    }

    #[test]
    fn a_sort_merge_join_needs_two_partitions() {
        assert_eq!(fit(5 << 20, Joins::SortMerge, 1, 8192), Shape { partitions: 2, batch_rows: 160 });
    }
}
