// SPDX-License-Identifier: Apache-2.0
//! `tributary bench`: what Tributary takes, as a ratio to what bounds it, both measured in turn in one run.
//!
//! Ratios and not seconds: a machine that is slow or busy is so for both sides.

pub mod latency;
pub mod planning;
pub mod pull;
mod resident;
pub mod source;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_api::timeline::{Begin, PlanRequest, ReadRequest, Relation};
use tributary_hudi::SystemStores;
use tributary_merge::baseline::{self, Files};
use tributary_types::pipeline::{Limits, Pipeline};
use tributary_types::{Clock, Cursor, MemoryBudget, Outcome, RequestId, SourceName, SystemClock};

use crate::embedded::Embedded;
use source::{BuildError, SourceTable};

/// Bytes that reading one file may take.
const READ_MEMORY: usize = 1 << 30;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Changed rows of each source.
    pub rows: usize,
    /// Counted pairs of runs.
    pub runs: usize,
    /// Partitions of queries, on both sides.
    pub parallelism: usize,
}

/// One measured ratio.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// What was measured.
    pub name: &'static str,
    /// What it is divided by.
    pub against: &'static str,
    /// Milliseconds of Tributary, one per run.
    pub ours_millis: Vec<u64>,
    /// Milliseconds of the other side, one per run.
    pub theirs_millis: Vec<u64>,
    /// Ratio of each pair, sorted.
    pub ratios: Vec<f64>,
    /// The bound that the ratio is held to.
    pub bound: f64,
    /// Most memory counted in any run of ours, in bytes; 0 where a stage counts none.
    pub peak_memory: u64,
    /// The budget of memory that a run of ours was given, in bytes; 0 where a stage counts none.
    pub memory_bound: u64,
    /// Most memory resident in a process that runs ours alone, in bytes; absent where it was not measured.
    pub resident_memory: Option<u64>,
}

/// Bytes that a process takes besides a batch's counted memory: code, threads, and what an allocator keeps.
const RESIDENT_BESIDES: u64 = 256 << 20;

impl Ratio {
    /// The middle of the pairs' ratios.
    pub fn median(&self) -> f64 {
        self.ratios.get(self.ratios.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Whether the ratio and the memory are within their bounds.
    pub fn holds(&self) -> bool {
        self.median() <= self.bound && self.holds_memory()
    }

    /// Whether the memory is within its bounds.
    pub fn holds_memory(&self) -> bool {
        let resident = self.resident_memory.unwrap_or(0) <= self.memory_bound + RESIDENT_BESIDES;
        self.peak_memory <= self.memory_bound && resident
    }

    fn new(name: &'static str, against: &'static str, bound: f64) -> Self {
        Ratio {
            name,
            against,
            ours_millis: Vec::new(),
            theirs_millis: Vec::new(),
            ratios: Vec::new(),
            bound,
            peak_memory: 0,
            memory_bound: 0,
            resident_memory: None,
        }
    }

    fn add(&mut self, ours: f64, theirs: f64) {
        self.ours_millis.push((ours * 1000.0) as u64);
        self.theirs_millis.push((theirs * 1000.0) as u64);
        self.ratios.push(ours / theirs);
        self.ratios.sort_by(f64::total_cmp);
    }
}

const SQL: &str = "SELECT o.id, o.a, o.b, o.c, o.d, u.e, u.f, u.g, u.h, u.i \
                   FROM {orders} o JOIN {users} u ON o.id = u.id";

/// Measures everything in a fresh directory.
pub async fn run(roles: &Embedded, directory: &Path, plan: &Plan) -> Result<Vec<Ratio>, BuildError> {
    let mut sources = Vec::new();
    for name in ["orders", "users"] {
        sources.push(make_source(roles, directory, name, plan.rows).await?);
    }
    Ok(vec![measure_window(roles, &sources[0], plan).await?, measure_batch(roles, directory, &sources, plan).await?])
}

struct Made {
    url: String,
    name: &'static str,
    /// Completion of the commit before the measured window.
    before: Cursor,
}

/// A table whose first commit is small and whose second one, the window, changes `rows` rows.
async fn make_source(roles: &Embedded, directory: &Path, name: &'static str, rows: usize) -> Result<Made, BuildError> {
    let url = directory.join(name).display().to_string();
    let schema = ten_columns(0, 0).schema();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let table = SourceTable::create(&SystemStores::new(), roles.writer.clone(), clock, &url, "id", schema).await?;
    let first = table.upsert(vec![ten_columns(usize::MAX - 10, 10)]).await?;
    let batches = (0..rows).step_by(8192).map(|start| ten_columns(start, 8192.min(rows - start))).collect();
    table.upsert(batches).await?;
    Ok(Made { url, name, before: Cursor::Completed(first.completed) })
}

/// `rows` rows of ten columns, the same for the same start.
fn ten_columns(start: usize, rows: usize) -> RecordBatch {
    // Spread out, so that neither keys nor values are sorted.
    let spread = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let numbers: Vec<u64> = (0..rows).map(|n| spread(start.wrapping_add(n))).collect();
    let long = |shift: u32| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(numbers.iter().map(|n| (n >> shift) as i64 % 1_000_000)))
    };
    let text = |prefix: &str, modulo: u64| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(numbers.iter().map(|n| format!("{prefix}{}", n % modulo))))
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(StringArray::from_iter_values(numbers.iter().map(|n| format!("key-{n:016x}"))))),
        ("a", long(3)),
        ("b", long(17)),
        ("c", text("city ", 1000)),
        ("d", Arc::new(Float64Array::from_iter_values(numbers.iter().map(|n| (n % 100_000) as f64 / 100.0)))),
        ("e", Arc::new(Int32Array::from_iter_values(numbers.iter().map(|n| (n % 100) as i32)))),
        ("f", Arc::new(BooleanArray::from_iter(numbers.iter().map(|n| Some(n % 3 == 0))))),
        ("g", Arc::new(Date32Array::from_iter_values(numbers.iter().map(|n| 19_000 + (n % 1000) as i32)))),
        ("h", text("a note of some length, number ", 100_000)),
        ("i", long(29)),
    ];
    let schema =
        columns.iter().map(|(name, array)| arrow::datatypes::Field::new(*name, array.data_type().clone(), true));
    let schema = Arc::new(arrow::datatypes::Schema::new(schema.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, array)| array).collect())
        .expect("ten columns of one length make a batch")
}

async fn plan_window(roles: &Embedded, made: &Made) -> Result<Relation, BuildError> {
    let begin = Begin::After(made.before.clone());
    let plan = roles.timeline.plan(PlanRequest::window(SourceName::new(made.name)?, &made.url, begin)).await?;
    plan.changed.ok_or_else(|| "the window is empty".into())
}

/// The window's files, as plain parquet.
async fn window_files(roles: &Embedded, made: &Made) -> Result<Files, BuildError> {
    let relation = plan_window(roles, made).await?;
    let paths = relation.splits.iter().map(|split| format!("{}/{}", made.url, split.path)).collect();
    Ok(Files { name: made.name.to_string(), paths })
}

async fn measure_window(roles: &Embedded, made: &Made, plan: &Plan) -> Result<Ratio, BuildError> {
    let files = vec![window_files(roles, made).await?];
    let sql = format!("SELECT id, a, b, c, d, e, f, g, h, i FROM {}", made.name);
    let mut ratio = Ratio::new("window read", "plain DataFusion scan of the same files and columns", 1.3);
    for run in 0..=plan.runs {
        let began = Instant::now();
        let relation = plan_window(roles, made).await?;
        let ours = read_all(roles, &relation, plan.parallelism).await?;
        let ours_took = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let theirs = baseline::scan(&files, &sql, plan.parallelism).await?;
        let theirs_took = began.elapsed().as_secs_f64();
        if ours != plan.rows as u64 || theirs < ours {
            return Err(format!("the window has {ours} rows, the files {theirs}, expected {}", plan.rows).into());
        }
        // The first pair only warms up.
        if run > 0 {
            ratio.add(ours_took, theirs_took);
        }
    }
    Ok(ratio)
}

async fn read_all(roles: &Embedded, relation: &Relation, parallelism: usize) -> Result<u64, BuildError> {
    let counts: Vec<_> = relation
        .splits
        .iter()
        .map(|split| {
            let (timeline, schema, split) = (Arc::clone(&roles.timeline), Arc::clone(&relation.schema), split.clone());
            let job = async move {
                let memory = MemoryBudget::new(READ_MEMORY);
                let request =
                    ReadRequest { split, schema, projection: None, predicate: None, batch_rows: 8192, memory };
                let mut rows = timeline.read(request).await?;
                let mut count = 0;
                while let Some(batch) = rows.next().await {
                    count += batch?.num_rows() as u64;
                }
                Ok::<u64, BuildError>(count)
            };
            async move { tokio::spawn(job).await? }
        })
        .collect();
    let counted: Vec<u64> = futures::stream::iter(counts).buffer_unordered(parallelism).try_collect().await?;
    Ok(counted.iter().sum())
}

async fn measure_batch(roles: &Embedded, directory: &Path, sources: &[Made], plan: &Plan) -> Result<Ratio, BuildError> {
    let mut files = Vec::new();
    for made in sources {
        files.push(window_files(roles, made).await?);
    }
    let sql = SQL.replace("{orders}", "orders").replace("{users}", "users");
    let mut ratio = Ratio::new("batch", "DataFusion reading, joining and writing the same parquet", 1.6);
    for run in 0..=plan.runs {
        let began = Instant::now();
        let status = run_batch(roles, directory, sources, &joined(), run).await?;
        let ours_took = began.elapsed().as_secs_f64();
        let out = directory.join(format!("plain{run}")).display().to_string();
        let began = Instant::now();
        baseline::write(&files, &sql, &out, plan.parallelism).await?;
        let theirs_took = began.elapsed().as_secs_f64();
        ratio.peak_memory = ratio.peak_memory.max(status.peak_memory);
        ratio.memory_bound = Limits::default().memory.0;
        if run > 0 {
            ratio.add(ours_took, theirs_took);
        }
    }
    ratio.resident_memory =
        resident::resident_peak(&pipeline(directory, sources, &joined(), plan.runs + 1)?, directory).await?;
    Ok(ratio)
}

/// The query over both sources.
fn joined() -> String {
    SQL.replace("{orders}", "<SRC:orders>").replace("{users}", "<SRC:users>")
}

fn pipeline(directory: &Path, sources: &[Made], sql: &str, run: usize) -> Result<Pipeline, BuildError> {
    let target = directory.join(format!("target{run}")).display().to_string();
    let described: Vec<_> = sources
        .iter()
        .map(|made| serde_json::json!({"name": made.name, "path": made.url, "start": made.before.to_string()}))
        .collect();
    Ok(serde_json::from_value(serde_json::json!({
        "name": format!("bench{run}"),
        "source": described,
        "transform": [{"sql": sql}],
        "target": {"path": target, "table_name": "bench", "record_key": ["id"]},
    }))?)
}

async fn run_batch(
    roles: &Embedded,
    directory: &Path,
    sources: &[Made],
    sql: &str,
    run: usize,
) -> Result<BatchStatus, BuildError> {
    let request = RunRequest {
        pipeline: pipeline(directory, sources, sql, run)?,
        request: RequestId::new(format!("run{run}"))?,
        allow_empty: false,
        overrides: Vec::new(),
        cursors_only: false,
        asked_by: "bench".to_string(),
    };
    let started = roles.coordinator.run_batch(request).await?;
    let mut watch = roles.coordinator.watch_batch(&started.name).await?;
    let ended = watch.wait_for(|status| status.outcome.is_some()).await?.clone();
    match (ended.outcome, &ended.error) {
        (Some(Outcome::Committed), _) => Ok(ended),
        (_, Some(error)) => Err(error.message.clone().into()),
        (outcome, None) => Err(format!("the batch ended as {outcome:?}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_for_the_same_start_and_keys_are_unique() {
        assert_eq!(ten_columns(5, 100), ten_columns(5, 100));
        let batch = ten_columns(0, 10_000);
        let ids = batch.column(0).as_any().downcast_ref::<StringArray>().unwrap();
        let unique: std::collections::HashSet<_> = ids.iter().flatten().collect();
        assert_eq!(unique.len(), 10_000);
    }

    #[test]
    fn the_median_is_the_middle_of_the_pairs() {
        let mut ratio = Ratio::new("a", "b", 1.0);
        for (ours, theirs) in [(3.0, 1.0), (1.0, 1.0), (2.0, 1.0)] {
            ratio.add(ours, theirs);
        }
        assert!((ratio.median() - 2.0).abs() < f64::EPSILON);
        assert!(!ratio.holds(), "2 is over 1");
        ratio.bound = 2.0;
        assert!(ratio.holds());
        ratio.peak_memory = 1;
        assert!(!ratio.holds(), "more memory than was given");
        ratio.memory_bound = 1;
        assert!(ratio.holds());
        ratio.bound = 1.5;
        assert!(!ratio.holds() && ratio.holds_memory(), "a ratio over its bound is no matter of memory");
        ratio.bound = 2.0;
        ratio.resident_memory = Some(RESIDENT_BESIDES + 2);
        assert!(!ratio.holds(), "more is resident than is counted");
    }
}
