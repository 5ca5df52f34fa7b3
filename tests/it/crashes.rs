// SPDX-License-Identifier: Apache-2.0
//! Every changing storage operation of a batch fails once in every way; then the process restarts and runs again.
//!
//! Whatever happened, the target then has exactly the rows of an undisturbed run, one commit for the window, and
//! nothing left over.

use std::sync::Arc;

use serde_json::json;
use tributary_hudi::SystemStores;
use tributary_server::embedded::Embedded;
use tributary_testkit::{FAULTS, Fault, FaultPlan, FaultyStores};
use tributary_types::Outcome;
use tributary_types::pipeline::Pipeline;

use crate::support::{Lake, assert_sound, checkpoints, pipeline, roles, roles_over, rows, run, value_table, values};

/// A batch to be disturbed: what is in the target before it.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// The target does not exist yet.
    First,
    /// Keys are updated and added.
    Upsert,
    /// A dead instant of an earlier process is rolled back on the way.
    AfterADeadBatch,
}

struct Prepared {
    lake: Lake,
    pipeline: Pipeline,
    expected: Vec<String>,
    commits: usize,
}

async fn prepare(scenario: Scenario) -> Prepared {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values((0..20).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    let pipeline = pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "transform": [{"sql": "SELECT id, value, value % 2 AS part FROM <SRC>"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"], "partition_by": ["part"]},
    }));
    let mut commits = 1;
    if !matches!(scenario, Scenario::First) {
        assert_eq!(run(&roles, &pipeline, "before").await.outcome, Some(Outcome::Committed));
        // Odd times odd stays odd: no key moves to another partition.
        source.upsert(vec![values((10..30).map(|n| (format!("k{n}"), n * 11)))]).await.unwrap();
        commits = 2;
    }
    if matches!(scenario, Scenario::AfterADeadBatch) {
        // Half-way through its operations, so that files and a pending instant are left.
        let dead = disturbed(FaultPlan::at(6, Fault::CrashAfter));
        assert_ne!(run(&dead, &pipeline, "dead").await.outcome, Some(Outcome::Committed));
    }
    let all = rows(&roles, &lake.path("src")).await;
    let mut expected: Vec<String> = all
        .iter()
        .map(|row| {
            let row: serde_json::Value = serde_json::from_str(row).unwrap();
            let value = row["value"].as_i64().unwrap();
            json!({"id": row["id"], "part": value % 2, "value": value}).to_string()
        })
        .collect();
    expected.sort();
    Prepared { lake, pipeline, expected, commits }
}

fn disturbed(plan: Arc<FaultPlan>) -> Embedded {
    roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), plan)))
}

async fn target_rows(roles: &Embedded, lake: &Lake) -> Vec<String> {
    let mut found: Vec<String> = rows(roles, &lake.path("out"))
        .await
        .iter()
        .map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap().to_string())
        .collect();
    found.sort();
    found
}

/// Runs a scenario with one fault, restarts, runs again and looks.
async fn explore_one(scenario: Scenario, number: u64, fault: Fault) -> bool {
    let prepared = prepare(scenario).await;
    let plan = FaultPlan::at(number, fault);
    let disturbed_run = run(&disturbed(Arc::clone(&plan)), &prepared.pipeline, "batch").await;
    let reached = plan.operations() > number;
    let healthy = roles();
    let again = run(&healthy, &prepared.pipeline, "batch").await;
    let case = format!("{scenario:?}, operation {number}, {fault:?}");
    assert_eq!(
        again.outcome,
        Some(Outcome::Committed),
        "{case}: first {:?} {:?}, then {:?}",
        disturbed_run.outcome,
        disturbed_run.error,
        again.error
    );
    if disturbed_run.outcome == Some(Outcome::Committed) {
        assert_eq!(disturbed_run.instant, again.instant, "{case}: the same request has the same answer");
    }
    assert_eq!(target_rows(&healthy, &prepared.lake).await, prepared.expected, "{case}");
    let commits = checkpoints(&prepared.lake.path("out"), "p").await;
    assert_eq!(commits.len(), prepared.commits, "{case}: one commit for the window");
    let idle = run(&healthy, &prepared.pipeline, "after").await;
    assert_eq!(idle.outcome, Some(Outcome::NoNewData), "{case}: nothing is left to do");
    assert_sound(&prepared.lake.path("out"), "p").await;
    reached
}

async fn explore(scenario: Scenario) {
    // An undisturbed run tells how many operations there are.
    let prepared = prepare(scenario).await;
    let plan = FaultPlan::none();
    let counted = run(&disturbed(Arc::clone(&plan)), &prepared.pipeline, "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    let operations = plan.operations();
    let mut cases = 0;
    for number in 0..operations {
        for fault in FAULTS {
            assert!(explore_one(scenario, number, fault).await, "{scenario:?}: operation {number} was not reached");
            cases += 1;
        }
    }
    println!("{scenario:?}: {operations} operations, {cases} cases, {cases} passed");
    assert!(operations > 10, "a batch has more operations than {operations}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_batch_survives_every_fault_of_every_operation() {
    explore(Scenario::First).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upsert_survives_every_fault_of_every_operation() {
    explore(Scenario::Upsert).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_survives_every_fault_of_every_operation() {
    explore(Scenario::AfterADeadBatch).await;
}
