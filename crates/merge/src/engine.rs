// SPDX-License-Identifier: Apache-2.0
//! One engine per attempt of a batch: its relations, its views, its memory and its temporary files, and nothing that
//! outlives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::temporal_conversions::timestamp_ms_to_datetime;
use datafusion::catalog::view::ViewTable;
use datafusion::datasource::provider_as_source;
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::execution::{SendableRecordBatchStream, SessionStateDefaults};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::SessionConfig;
use datafusion_spark::planner::SparkFunctionPlanner;
use tributary_api::merge::{Error, MergeLimits};
use tributary_api::timeline::{Relation, Timeline};
use tributary_types::SourceName;

use crate::error::{from_planning, internal, sql_error};
use crate::functions::Functions;
use crate::joins::Joins;
use crate::memory::QueryPool;
use crate::output;
use crate::placeholders::Reference;
use crate::planner::{SparkDivision, Tables, ZONE, plan_query};
use crate::relation::{RelationTable, Source};
use crate::sandbox;
use crate::script::Script;
use crate::settings::Settings;

/// Sorting keeps this much aside to merge what it spilled, unless the share is too small for it.
const SORT_RESERVATION: usize = 10 << 20;

/// A relation that the SQL names, with its pinned content.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) reference: Reference,
    pub(crate) relation: Relation,
}

/// What a batch asks to be run.
pub(crate) struct Job {
    pub(crate) script: Script,
    pub(crate) sources: Vec<SourceName>,
    pub(crate) relations: Vec<Named>,
    pub(crate) limits: MergeLimits,
    /// What `now()` is, milliseconds since the epoch.
    pub(crate) now_millis: i64,
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
    rows_read: Vec<Arc<AtomicU64>>,
}

/// Plans `job` with `joins`.
pub(crate) async fn plan(
    job: &Job,
    joins: Joins,
    timeline: &Arc<dyn Timeline>,
    functions: &Functions,
    settings: &Settings,
) -> Result<Attempt, Error> {
    let pool = Arc::new(QueryPool::new(job.limits.budget.clone(), settings.query_share_percent));
    let state = session(job, joins, &pool, functions, settings)?;
    let rows_read: Vec<Arc<AtomicU64>> = job.sources.iter().map(|_| Arc::default()).collect();
    let mut tables = relations(job, timeline, &rows_read, settings);
    for view in &job.script.views {
        let is_relation = job.relations.iter().any(|named| named.reference.table == view.name);
        if is_relation {
            return Err(sql_error(view.place, format!("view `{}` has the name of a relation", view.name)));
        }
        sandbox::check_query(&view.query, tables.keys(), functions)?;
        let planned = plan_query(&state, &tables, &view.query).map_err(|error| from_planning(&error))?;
        // Checked at each view: views of views could grow without bound before the query is seen.
        sandbox::check_plan(&planned, settings)?;
        let view_table = ViewTable::new(planned, None);
        tables.insert(view.name.clone(), provider_as_source(Arc::new(view_table)));
    }
    sandbox::check_query(&job.script.query, tables.keys(), functions)?;
    let planned = plan_query(&state, &tables, &job.script.query).map_err(|error| from_planning(&error))?;
    sandbox::check_plan(&planned, settings)?;
    let (normalised, schema) = output::normalise(planned)?;
    let logical = state.optimize(&normalised).map_err(|error| from_planning(&error))?;
    let physical = state
        .query_planner()
        .create_physical_plan(&logical, &state)
        .await
        .map_err(|error| from_planning(&error))?;
    Ok(Attempt { schema, pool, joins, logical, physical, state, rows_read })
}

impl Attempt {
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
        self.rows_read.iter().map(|rows| rows.load(Ordering::Relaxed)).collect()
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

fn relations(job: &Job, timeline: &Arc<dyn Timeline>, rows_read: &[Arc<AtomicU64>], settings: &Settings) -> Tables {
    let mut tables = Tables::new();
    for Named { reference, relation } in &job.relations {
        let source = Source {
            name: format!("<{}>", reference.table),
            schema: Arc::clone(&relation.schema),
            timeline: Arc::clone(timeline),
            rows: Arc::clone(&rows_read[reference.source]),
            batch_rows: settings.batch_rows,
            expansion: settings.expansion,
        };
        let table = RelationTable::new(source, relation.clone());
        tables.insert(reference.table.clone(), provider_as_source(Arc::new(table)));
    }
    tables
}

fn session(
    job: &Job,
    joins: Joins,
    pool: &Arc<QueryPool>,
    functions: &Functions,
    settings: &Settings,
) -> Result<SessionState, Error> {
    let mode = match &settings.spill_dir {
        Some(directory) => DiskManagerMode::Directories(vec![directory.clone()]),
        None => DiskManagerMode::OsTmpDirectory,
    };
    let disk = DiskManagerBuilder::default().with_mode(mode).with_max_temp_directory_size(job.limits.spill_bytes);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::clone(pool) as _)
        .with_disk_manager_builder(disk)
        .build_arc()
        .map_err(|error| internal(format!("no temporary directory for the query: {error}")))?;
    let mut planners: Vec<Arc<_>> = vec![Arc::new(SparkDivision) as _, Arc::new(SparkFunctionPlanner) as _];
    planners.extend(SessionStateDefaults::default_expr_planners());
    let builder = SessionStateBuilder::new()
        .with_config(config(job, joins, pool.share(), settings))
        .with_runtime_env(runtime)
        .with_expr_planners(planners);
    let mut state = functions.register(builder).build();
    state.mark_start_execution();
    let now = timestamp_ms_to_datetime(job.now_millis).map(|now| now.and_utc());
    state.execution_props_mut().query_execution_start_time = now;
    Ok(state)
}

fn config(job: &Job, joins: Joins, share: usize, settings: &Settings) -> SessionConfig {
    // The engine never plans a sort-merge join for a single partition.
    let partitions = match joins {
        Joins::Hash => job.limits.parallelism.max(1),
        Joins::SortMerge => job.limits.parallelism.max(2),
    };
    let mut config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(settings.batch_rows)
        .with_information_schema(false)
        .with_create_default_catalog_and_schema(false);
    let options = config.options_mut();
    options.execution.time_zone = Some(ZONE.to_string());
    options.execution.enable_recursive_ctes = false;
    options.execution.sort_spill_reservation_bytes = SORT_RESERVATION.min(share / (8 * partitions));
    options.optimizer.prefer_hash_join = joins == Joins::Hash;
    options.optimizer.repartition_joins = true;
    config
}
