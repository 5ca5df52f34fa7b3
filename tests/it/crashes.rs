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

/// What every case of a scenario starts from; each works on a copy.
struct Prepared {
    template: Lake,
    expected: Vec<String>,
    commits: usize,
}

fn job(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "transform": [{"sql": "SELECT id, value, value % 2 AS part FROM <SRC>"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"], "partition_by": ["part"]},
    }))
}

async fn prepare(scenario: Scenario) -> Prepared {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values((0..20).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    let mut commits = 1;
    if !matches!(scenario, Scenario::First) {
        assert_eq!(run(&roles, &job(&lake), "before").await.outcome, Some(Outcome::Committed));
        // Odd times odd stays odd: no key moves to another partition.
        source.upsert(vec![values((10..30).map(|n| (format!("k{n}"), n * 11)))]).await.unwrap();
        commits = 2;
    }
    if matches!(scenario, Scenario::AfterADeadBatch) {
        // Half-way through its operations, so that files and a pending instant are left.
        let dead = disturbed(FaultPlan::at(6, Fault::CrashAfter));
        assert_ne!(run(&dead, &job(&lake), "dead").await.outcome, Some(Outcome::Committed));
    }
    let with_part = |row: &String| {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        let value = row["value"].as_i64().unwrap();
        json!({"id": row["id"], "part": value % 2, "value": value}).to_string()
    };
    let mut expected: Vec<String> = rows(&roles, &lake.path("src")).await.iter().map(with_part).collect();
    expected.sort();
    Prepared { template: lake, expected, commits }
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

/// Runs one case on a copy: one fault, a restart, another run, and a look.
async fn explore_one(prepared: &Prepared, case: &str, number: u64, fault: Fault) {
    let lake = prepared.template.copy();
    let job = job(&lake);
    let plan = FaultPlan::at(number, fault);
    let first = run(&disturbed(Arc::clone(&plan)), &job, "batch").await;
    assert!(plan.operations() > number, "{case}: the operation was not reached");
    let healthy = roles();
    let again = run(&healthy, &job, "batch").await;
    assert_eq!(
        again.outcome,
        Some(Outcome::Committed),
        "{case}: first {:?} {:?}, then {:?}",
        first.outcome,
        first.error,
        again.error
    );
    if first.outcome == Some(Outcome::Committed) {
        assert_eq!(first.instant, again.instant, "{case}: the same request has the same answer");
    }
    assert_eq!(target_rows(&healthy, &lake).await, prepared.expected, "{case}");
    let commits = checkpoints(&lake.path("out"), "p").await;
    assert_eq!(commits.len(), prepared.commits, "{case}: one commit for the window");
    let idle = run(&healthy, &job, "after").await;
    assert_eq!(idle.outcome, Some(Outcome::NoNewData), "{case}: nothing is left to do");
    assert_sound(&lake.path("out"), "p").await;
}

async fn explore(scenario: Scenario) {
    let prepared = prepare(scenario).await;
    // An undisturbed run tells how many operations there are.
    let plan = FaultPlan::none();
    let counted = run(&disturbed(Arc::clone(&plan)), &job(&prepared.template.copy()), "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    let operations = plan.operations();
    let mut cases = 0;
    for number in 0..operations {
        for fault in FAULTS {
            let case = format!("{scenario:?}, operation {number} of {operations}, {fault:?}");
            explore_one(&prepared, &case, number, fault).await;
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
