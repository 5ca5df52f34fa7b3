// SPDX-License-Identifier: Apache-2.0
//! Memory, disk, rows and time.

use std::time::Duration;

use datafusion::arrow::datatypes::SchemaRef;
use tributary_api::transform::{Input, InputSchema, MultiTransform, TransformError};
use tributary_api::{RowStream, StopSource};
use tributary_types::{Code, Fault, Retry};

use super::super::*;
use crate::fixtures::{Bench, batch, in_order, limits, many, schema};

const ROWS: i64 = 60_000;

/// Two sources of about 6 MB each, whose ids overlap by half.
fn wide_bench(memory: usize, split_bytes: u64) -> Bench {
    let mut bench = Bench::new();
    bench.split_bytes = split_bytes;
    bench.limits = limits(memory);
    let halves = |first: i64| vec![many(first, ROWS / 2), many(first + ROWS / 2, ROWS / 2)];
    bench.source("a", schema(), halves(0)).source("b", schema(), halves(ROWS / 2))
}

const FULL_OUTER: &str = "SELECT COALESCE(a.id, b.id) AS id, a.name AS a_name, b.name AS b_name \
                          FROM <SRC:a> a FULL OUTER JOIN <SRC:b> b ON a.id = b.id";

fn assert_full_outer(bench: &Bench) {
    let rows = crate::fixtures::shown(&bench.writer.batches());
    assert_eq!(rows.len() as i64, ROWS + ROWS / 2);
    let only_a = rows.iter().filter(|row| row.ends_with("|null")).count() as i64;
    let only_b = rows.iter().filter(|row| row.contains("|null|")).count() as i64;
    assert_eq!((only_a, only_b), (ROWS / 2, ROWS / 2));
    let mut ids: Vec<i64> = rows.iter().map(|row| row.split('|').next().unwrap().parse().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..ROWS + ROWS / 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sort_that_does_not_fit_spills_and_is_right() {
    let bench = wide_bench(4 << 20, 1);
    let merged = bench.run("SELECT id, name FROM <SRC:a> ORDER BY name").await.unwrap();
    assert!(merged.spilled_bytes > 0);
    assert_eq!(merged.staged.rows_in as i64, ROWS);
    let rows = in_order(&bench.writer.batches());
    assert!(rows.iter().enumerate().all(|(at, row)| row.starts_with(&format!("{at}|"))));
    assert_eq!(bench.limits.budget.used(), 0, "everything is given back");
    assert!(bench.limits.budget.peak() <= 4 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_outer_join_that_fits_is_hashed() {
    let bench = wide_bench(256 << 20, 1);
    let merged = bench.run(FULL_OUTER).await.unwrap();
    assert_eq!(merged.spilled_bytes, 0);
    assert_full_outer(&bench);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_outer_join_whose_build_side_runs_out_of_memory_is_sorted_and_merged() {
    let bench = wide_bench(8 << 20, 1);
    let merged = bench.run(FULL_OUTER).await.unwrap();
    assert!(merged.spilled_bytes > 0);
    assert_full_outer(&bench);
    assert_eq!(merged.rows_read[0].1 as i64, ROWS, "only the attempt that counts is counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_fits_beside_one_that_does_not_is_no_obstacle_to_planning_again() {
    let bench = wide_bench(8 << 20, 1).source("none", schema(), vec![batch(&[(-5, "none", 0)])]);
    let sql = format!(
        "{FULL_OUTER} UNION ALL SELECT a.id, a.name AS a_name, n.name AS b_name FROM <SRC:a> a JOIN <SRC:none> n \
         ON a.id = n.id"
    );
    let merged = bench.run(&sql).await.unwrap();
    assert!(merged.spilled_bytes > 0);
    assert_full_outer(&bench);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_side_known_to_be_too_large_is_sorted_from_the_start() {
    let bench = wide_bench(8 << 20, 3 << 20);
    let merged = bench.run(FULL_OUTER).await.unwrap();
    assert!(merged.spilled_bytes > 0);
    assert_full_outer(&bench);
    assert_eq!(bench.timeline.requests().len(), 4, "each split was read once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_cannot_spill_fails_with_the_memory_error() {
    let bench = wide_bench(4 << 20, 1);
    let error = bench.run("SELECT COUNT(*) AS id, array_agg(name) AS names FROM <SRC:a>").await.unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error:?}");
    assert_eq!((error.code(), error.retry()), (Code::Overloaded, Retry::Never));
    assert!(error.to_string().contains("raise `limits.memory`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_spill_limit_has_its_own_error() {
    let mut bench = wide_bench(4 << 20, 1);
    bench.limits.spill_bytes = 64 << 10;
    let error = bench.run("SELECT id, name FROM <SRC:a> ORDER BY name").await.unwrap_err();
    assert!(matches!(error, Error::Limit { limit: "spill", .. }), "{error:?}");
    assert!(error.to_string().contains("raise `limits.spill`"), "{error}");
}

#[tokio::test]
async fn temporary_files_are_gone_after_the_batch() {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = wide_bench(4 << 20, 1);
    bench.settings.spill_dir = Some(directory.path().to_path_buf());
    let merged = bench.run("SELECT id, name FROM <SRC:a> ORDER BY name").await.unwrap();
    assert!(merged.spilled_bytes > 0);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn the_row_limit_has_its_own_error_and_cuts_the_stream() {
    let mut bench = Bench::new().source("s", schema(), vec![batch(&[(1, "a", 1), (2, "b", 2), (3, "c", 3)])]);
    bench.settings.max_rows = Some(2);
    let error = bench.run("SELECT id FROM <SRC>").await.unwrap_err();
    assert!(matches!(error, Error::Limit { limit: "rows", .. }), "{error:?}");
    assert_eq!(bench.writer.failures()[0].code, Code::Overloaded);
    bench.settings.max_rows = Some(3);
    assert_eq!(bench.rows("SELECT id FROM <SRC>").await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_has_its_own_error() {
    let mut bench = Bench::new().source("s", schema(), vec![batch(&[(1, "a", 1)])]);
    bench.limits.timeout = Duration::from_secs(5);
    bench.timeline.slow_down(Duration::from_secs(60));
    let error = bench.run("SELECT id FROM <SRC>").await.unwrap_err();
    assert!(matches!(error, Error::Limit { limit: "time", .. }), "{error:?}");
    assert_eq!((error.code(), error.retry()), (Code::Timeout, Retry::Again));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_told_to_stop_ends_as_stopped_before_its_rows_and_among_them() {
    for splits in [1, 4] {
        let mut bench = Bench::new().source("s", schema(), vec![batch(&[(1, "a", 1)]); splits]);
        bench.timeline.slow_down(Duration::from_secs(60));
        let stop = StopSource::new();
        bench.limits.stop = stop.listen();
        let request = bench.request("SELECT id FROM <SRC>").await.unwrap();
        let service = bench.service();
        let after = Duration::from_secs(if splits == 1 { 1 } else { 100 });
        let (ended, ()) = tokio::join!(service.run(request), async {
            tokio::time::sleep(after).await;
            stop.stop();
        });
        assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
        assert_eq!(bench.writer.batches().is_empty(), splits == 1);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(bench.limits.budget.used(), 0);
    }
}

#[tokio::test]
async fn query_and_a_writer_elsewhere_share_the_memory_of_the_batch() {
    let mut bench = Bench::new().source("s", schema(), vec![batch(&[(1, "a", 1)])]);
    bench.limits = limits(100 << 20);
    bench.run("SELECT id FROM <SRC>").await.unwrap();
    assert_eq!(bench.writer.shares(), [Some(50 << 20)], "the query's share is half of it");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_run_stops_it_and_gives_its_memory_back() {
    let bench = Bench::new().source("s", schema(), vec![batch(&[(1, "a", 1)]); 4]);
    bench.timeline.slow_down(Duration::from_secs(60));
    let request = bench.request("SELECT id, count(*) AS c FROM <SRC> GROUP BY id").await.unwrap();
    let service = bench.service();
    let mut run = Box::pin(service.run(request));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut run).await.is_err());
    let before = bench.timeline.requests().len();
    drop(run);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.timeline.requests().len(), before, "no split is opened any more");
    assert_eq!(bench.limits.budget.used(), 0);
}

#[tokio::test]
async fn a_call_that_asks_for_more_than_there_is_is_refused_before_it_is_made() {
    for call in [
        "repeat(name, 1000000000)",
        "repeat('x', 1000000000)",
        "repeat(name, id * 1000000000 + 1000000000)",
        "array_repeat(name, 1000000000)",
        "lpad(name, 1000000000, 'x')",
        "rpad(name, 1000000000)",
        "space(CAST(1000000000 AS INT))",
        "array_resize(array(id), 1000000000, id)",
    ] {
        let bench = Bench::new().source("a", schema(), vec![batch(&[(1, "one", 1), (2, "two", 2)])]);
        let sql = format!("SELECT id, {call} AS long FROM <SRC>");
        let refused = bench.run(&sql).await.unwrap_err();
        assert!(matches!(refused, Error::Memory { .. }), "{call}: {refused:?}");
        let function = call.split('(').next().unwrap();
        assert!(refused.to_string().contains(&format!("`{function}` would return")), "{call}: {refused}");
        assert_eq!(bench.limits.budget.used(), 0, "{call}");
    }
}

#[tokio::test]
async fn measured_functions_answer_as_before() {
    let bench = Bench::new().source("a", schema(), vec![batch(&[(1, "one", 1), (2, "two", 2)])]);
    let sql = "SELECT id, repeat(name, id) AS r, lpad(name, 5, '*') AS l, rpad(name, 4, '-') AS p, \
               concat('[', space(CAST(2 AS INT)), ']') AS s, cardinality(array_repeat(name, 3)) AS n, \
               repeat('ab', CAST(NULL AS BIGINT)) AS nothing FROM <SRC>";
    let rows = bench.rows(sql).await;
    assert_eq!(rows, ["1|one|**one|one-|[  ]|3|null", "2|twotwo|**two|two-|[  ]|3|null"]);
}

/// Passes its input on.
struct Same;

impl MultiTransform for Same {
    fn schema(&self, inputs: &[InputSchema]) -> Result<SchemaRef, TransformError> {
        Ok(Arc::clone(&inputs[0].schema))
    }

    fn apply(&self, mut inputs: Vec<Input>) -> Result<RowStream, TransformError> {
        Ok(inputs.remove(0).rows)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_runs_out_of_memory_before_a_step_in_rust_is_sorted_and_merged_as_well() {
    let mut bench = wide_bench(8 << 20, 1);
    bench.transforms = Transforms::new().register("same", Arc::new(Same)).unwrap();
    bench.then = vec![Step::Rust("same".to_string())];
    let merged = bench.run(FULL_OUTER).await.unwrap();
    assert!(merged.spilled_bytes > 0);
    assert_full_outer(&bench);
    assert_eq!(merged.rows_read.iter().map(|(_, rows)| *rows as i64).collect::<Vec<_>>(), [ROWS, ROWS]);
}
