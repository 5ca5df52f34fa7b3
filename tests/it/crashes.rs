// SPDX-License-Identifier: Apache-2.0
//! Every changing storage operation of a batch fails once in every way; then the process restarts and runs again.
//!
//! Whatever happened, the target then has exactly the rows of an undisturbed run, one commit for the window, and
//! nothing left over.

use std::sync::Arc;

use serde_json::{Value, json};
use tributary_hudi::target::{delta_commits_since_compaction, deltas_since_compaction, metadata_timeline};
use tributary_hudi::{Action, SystemStores};
use tributary_server::embedded::Embedded;
use tributary_testkit::{FAULTS, Fault, FaultPlan, FaultyStores, HeldStores, Hold};
use tributary_types::pipeline::{Pipeline, Services};
use tributary_types::{Code, Outcome};

use crate::support::{
    Lake, assert_sound, checkpoints, open, open_value_table, pipeline, request_of, roles, roles_over, rows, run,
    value_table, values,
};

/// A batch to be disturbed: what is in the target before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// The target does not exist yet.
    First,
    /// Keys are updated and added.
    Upsert,
    /// Some rows are flagged as deleted, of keys that are stored and that are not.
    Deletes,
    /// The partitions that rows are in are replaced.
    Overwrite,
    /// A dead instant of an earlier process is rolled back on the way.
    AfterADeadBatch,
    /// The same, of a target that other writers write too.
    SharedAfterADeadBatch,
    /// Old file versions are cleaned after the commit.
    Clean,
    /// The metadata table is compacted after the commit, and an old slice of it goes.
    CompactMetadata,
    /// All table services run after the commit, and instants are archived.
    Archive,
    /// Keys of a merge-on-read target are updated, in log files, and added.
    MorUpsert,
    /// A dead delta commit of an earlier process is rolled back on the way.
    MorAfterADeadBatch,
    /// Log files are compacted after the commit.
    MorCompaction,
}

impl Scenario {
    /// The services of the target: clean, archive, compact the metadata table.
    fn services(self) -> Value {
        let (clean, archive, compact, compact_logs) = match self {
            Scenario::First | Scenario::Upsert | Scenario::Deletes | Scenario::Overwrite => (0, 0, 0, 0),
            Scenario::AfterADeadBatch | Scenario::SharedAfterADeadBatch => (0, 0, 0, 0),
            Scenario::MorUpsert | Scenario::MorAfterADeadBatch => (0, 0, 0, 0),
            Scenario::Clean => (1, 0, 0, 0),
            Scenario::CompactMetadata => (0, 0, 1, 0),
            Scenario::Archive => (1, 3, 1, 0),
            Scenario::MorCompaction => (0, 0, 0, 3),
        };
        json!({"clean_commits": clean, "archive_commits": archive, "compact_metadata_commits": compact,
               "compact_delta_commits": compact_logs})
    }

    /// Batches before the disturbed one.
    fn batches_before(self) -> usize {
        match self {
            Scenario::First => 0,
            Scenario::Upsert | Scenario::Deletes | Scenario::Overwrite | Scenario::AfterADeadBatch => 1,
            Scenario::MorUpsert | Scenario::MorAfterADeadBatch | Scenario::SharedAfterADeadBatch => 1,
            Scenario::Clean | Scenario::CompactMetadata | Scenario::MorCompaction => 2,
            Scenario::Archive => 3,
        }
    }

    /// What the disturbed batch does with its rows.
    fn operation(self) -> &'static str {
        if matches!(self, Scenario::Overwrite) { "insert_overwrite" } else { "upsert" }
    }

    fn sql(self) -> &'static str {
        match self {
            Scenario::Deletes => "SELECT id, value, value % 2 AS part, value % 3 = 0 AS _hoodie_is_deleted FROM <SRC>",
            // Only odd rows, so that one of the two partitions stays as it is.
            Scenario::Overwrite => "SELECT id, value, value % 2 AS part FROM <SRC> WHERE value % 2 = 1",
            _ => PLAIN,
        }
    }

    fn writers(self) -> &'static str {
        if matches!(self, Scenario::SharedAfterADeadBatch) { "shared" } else { "exclusive" }
    }

    fn has_services(self) -> bool {
        matches!(self, Scenario::Clean | Scenario::CompactMetadata | Scenario::Archive | Scenario::MorCompaction)
    }

    fn table_type(self) -> &'static str {
        match self {
            Scenario::MorUpsert | Scenario::MorAfterADeadBatch | Scenario::MorCompaction => "merge_on_read",
            _ => "copy_on_write",
        }
    }
}

/// What every case of a scenario starts from; each works on a copy.
struct Prepared {
    scenario: Scenario,
    template: Lake,
    expected: Vec<String>,
    commits: usize,
}

const PLAIN: &str = "SELECT id, value, value % 2 AS part FROM <SRC>";

fn job(lake: &Lake, scenario: Scenario) -> Pipeline {
    job_of(lake, scenario, scenario.sql(), scenario.operation())
}

fn job_of(lake: &Lake, scenario: Scenario, sql: &str, operation: &str) -> Pipeline {
    pipeline(json!({
        "name": "p",
        // Each case runs on a copy, which is a moved table.
        "accept_binding_change": true,
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "transform": [{"sql": sql}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"], "partition_by": ["part"],
                   "operation": operation, "small_file_limit": 0, "table_type": scenario.table_type(),
                   "writers": scenario.writers(), "services": scenario.services()},
    }))
}

async fn prepare(scenario: Scenario) -> Prepared {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values((0..20).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    for number in 0..scenario.batches_before() {
        let before = job_of(&lake, scenario, PLAIN, "upsert");
        let before = run(&roles, &before, &format!("before{number}")).await;
        assert_eq!(before.outcome, Some(Outcome::Committed), "{:?}", before.error);
        // Odd times odd stays odd: no key moves to another partition.
        source.upsert(vec![values((10..30).map(|n| (format!("k{n}"), n * 11)))]).await.unwrap();
    }
    let after_a_dead_batch = [Scenario::AfterADeadBatch, Scenario::MorAfterADeadBatch, Scenario::SharedAfterADeadBatch];
    if after_a_dead_batch.contains(&scenario) {
        // Half-way through its operations, so that files and a pending instant are left.
        let dead = disturbed(FaultPlan::at(6, Fault::CrashAfter));
        assert_ne!(run(&dead, &job(&lake, scenario), "dead").await.outcome, Some(Outcome::Committed));
    }
    let with_part = |row: &String| {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        let value = row["value"].as_i64().unwrap();
        json!({"id": row["id"], "part": value % 2, "value": value}).to_string()
    };
    let mut expected: Vec<String> = rows(&roles, &lake.path("src")).await.iter().map(with_part).collect();
    expected.sort();
    if matches!(scenario, Scenario::Deletes | Scenario::Overwrite) {
        // What is left is not what the source has; `tests/it/operations.rs` says what these operations do.
        let undisturbed = lake.copy();
        let ended = run(&roles, &job(&undisturbed, scenario), "undisturbed").await;
        assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
        expected = target_rows(&roles, &undisturbed).await;
        assert!(expected.len() < 30, "{expected:?}");
    }
    Prepared { scenario, template: lake, expected, commits: scenario.batches_before() + 1 }
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
    let job = job(&lake, prepared.scenario);
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
    if prepared.scenario.has_services() {
        assert_services_go_on(&healthy, &lake, &job, case).await;
    }
}

/// The next batch does what an interrupted service did not, so that nothing piles up.
async fn assert_services_go_on(roles: &Embedded, lake: &Lake, job: &Pipeline, case: &str) {
    let source = open_value_table(roles, &lake.path("src")).await;
    source.upsert(vec![values([("k1".to_string(), 1)])]).await.unwrap();
    let next = run(roles, job, "next").await;
    assert_eq!(next.outcome, Some(Outcome::Committed), "{case}: {:?}", next.error);
    assert_sound(&lake.path("out"), "p").await;
    let services = &job.target.services;
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let own = metadata_timeline(&storage).await.unwrap();
    if services.clean_commits > 0 {
        let (files, _) = storage.list_level("part=1").await.unwrap();
        let versions = files.iter().filter(|file| file.name().ends_with(".parquet")).count();
        // Two of the group that `k1` is in, one of the group that later keys made.
        assert_eq!(versions, 3, "{case}");
    }
    if services.compact_metadata_commits > 0 {
        assert_eq!(deltas_since_compaction(&own), 0, "{case}");
        let (files, _) = storage.list_level(".hoodie/metadata/files").await.unwrap();
        let slices = files.iter().filter(|file| file.name().ends_with(".hfile")).count();
        assert_eq!(slices, 2, "{case}");
    }
    if services.compact_delta_commits > 0 {
        let since = delta_commits_since_compaction(&timeline);
        assert!(since < services.compact_delta_commits as usize, "{case}: {since} delta commits");
        assert!(timeline.instants().iter().any(|instant| instant.action == Action::Commit), "{case}: a compaction");
    }
    if services.archive_commits > 0 {
        let writes = timeline.completed_writes().len();
        assert!((2..=3).contains(&writes), "{case}: {writes} commits are active");
    }
}

async fn explore(scenario: Scenario) {
    let prepared = prepare(scenario).await;
    // An undisturbed run tells how many operations there are.
    let plan = FaultPlan::none();
    let counted = run(&disturbed(Arc::clone(&plan)), &job(&prepared.template.copy(), scenario), "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    let operations = plan.operations();
    // Up to what the scenario adds a batch is the same as one that another scenario explores.
    let first = if scenario.has_services() { operations_before_service(&prepared).await } else { 0 };
    let mut cases = 0;
    for number in first..operations {
        for fault in FAULTS {
            let case = format!("{scenario:?}, operation {number} of {operations}, {fault:?}");
            explore_one(&prepared, &case, number, fault).await;
            cases += 1;
        }
    }
    println!("{scenario:?}: operations {first} to {operations}, {cases} cases, {cases} passed");
    assert!(operations > first + 4, "a batch has more operations than {operations}");
}

async fn operations_before_service(prepared: &Prepared) -> u64 {
    let plan = FaultPlan::none();
    let lake = prepared.template.copy();
    let mut job = job(&lake, prepared.scenario);
    let without =
        Services { clean_commits: 0, archive_commits: 0, compact_metadata_commits: 0, compact_delta_commits: 0 };
    job.target.services = match prepared.scenario {
        Scenario::Archive => Services { archive_commits: 0, ..job.target.services },
        _ => without,
    };
    let counted = run(&disturbed(Arc::clone(&plan)), &job, "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    plan.operations()
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
async fn deletes_survive_every_fault_of_every_operation() {
    explore(Scenario::Deletes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_survives_every_fault_of_every_operation() {
    explore(Scenario::Overwrite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_survives_every_fault_of_every_operation() {
    explore(Scenario::AfterADeadBatch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_and_a_batch_beside_other_writers_survive_every_fault_of_every_operation() {
    explore(Scenario::SharedAfterADeadBatch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_survives_every_fault_of_every_operation() {
    explore(Scenario::Clean).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_of_the_metadata_table_survives_every_fault_of_every_operation() {
    explore(Scenario::CompactMetadata).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archiving_survives_every_fault_of_every_operation() {
    explore(Scenario::Archive).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upsert_into_logs_survives_every_fault_of_every_operation() {
    explore(Scenario::MorUpsert).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_of_logs_survives_every_fault_of_every_operation() {
    explore(Scenario::MorAfterADeadBatch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_of_logs_survives_every_fault_of_every_operation() {
    explore(Scenario::MorCompaction).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completing_request_that_lands_while_its_instant_is_rolled_back_is_reported_as_corruption() {
    let scenario = Scenario::AfterADeadBatch;
    let lake = prepare(scenario).await.template;
    let (_, _, timeline) = open(&lake.path("out")).await;
    let dead = timeline.instants().iter().find(|instant| instant.is_pending()).unwrap().requested.clone();
    let hold = Hold::of(".rollback");
    let roles = roles_over(Arc::new(HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold))));
    let started = roles.coordinator.run_batch(request_of(&job(&lake, scenario), "batch")).await.unwrap();
    hold.reached(1).await;
    // The rollback has looked for it already, and deleted what it names.
    let late = format!("{}/.hoodie/timeline/{dead}_{}.commit", lake.path("out"), dead.successor());
    std::fs::write(&late, b"{}").unwrap();
    hold.release();
    let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
    let ended = watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone();
    let error = ended.error.unwrap();
    assert_eq!(error.code, Code::Corrupt, "{}", error.message);
    assert!(
        error.message.contains(&format!("{dead}_")) && error.message.contains("remove this file"),
        "{}",
        error.message
    );
    drop(watch);
    drop(roles);

    std::fs::remove_file(&late).unwrap();
    let next = run(&self::roles(), &job(&lake, scenario), "batch").await;
    assert_eq!(next.outcome, Some(Outcome::Committed), "{:?}", next.error);
    assert_sound(&lake.path("out"), "p").await;
}
