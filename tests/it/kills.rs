// SPDX-License-Identifier: Apache-2.0
//! `kill -9` at random moments, and two processes at once.
//!
//! The processes are this test binary itself, started again with one test and a pipeline file in the environment: so
//! no other binary has to be built or found.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tributary_testkit::SeededEntropy;
use tributary_types::Outcome;

use crate::support::{Lake, assert_sound, checkpoints, pipeline, roles, rows, run, value_table, values};

const PIPELINE: &str = "TRIBUTARY_TEST_PIPELINE";
const REQUEST: &str = "TRIBUTARY_TEST_REQUEST";

/// Runs one batch of a pipeline in JSON, as the child process does; prints the outcome.
async fn run_file(path: &str, request: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    let pipeline = pipeline(serde_json::from_str(&text).unwrap());
    let ended = run(&roles(), &pipeline, request).await;
    println!("outcome={}", ended.outcome.unwrap().as_str());
    if let Some(error) = ended.error {
        println!("error={}", error.message);
    }
}

/// Does nothing in a normal run; in a child process it is the process.
#[tokio::test(flavor = "multi_thread")]
async fn child_process() {
    if let Ok(path) = std::env::var(PIPELINE) {
        run_file(&path, &std::env::var(REQUEST).unwrap()).await;
    }
}

fn child(pipeline_file: &str, request: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::child_process", "--nocapture"])
        .env(PIPELINE, pipeline_file)
        .env(REQUEST, request)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

async fn lake_with_rows(rows: i64) -> (Lake, String) {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values((0..rows).map(|n| (format!("k{n:06}"), n)))]).await.unwrap();
    let file = lake.path("p.json");
    let pipeline = json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "transform": [{"sql": "SELECT id, value, value % 8 AS part FROM <SRC>"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"], "partition_by": ["part"]},
    });
    std::fs::write(&file, pipeline.to_string()).unwrap();
    (lake, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_at_twenty_random_moments_loses_and_doubles_nothing() {
    let (lake, file) = lake_with_rows(20_000).await;
    let roles = roles();
    let source = SourceUpdates { lake: &lake };
    let random = SeededEntropy::new(20_261_130);
    let mut killed = 0;
    for round in 0..20 {
        let mut child = child(&file, &format!("r{round}"));
        let millis = random.next_u64() % 600;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
        if round % 5 == 4 {
            source.change(&roles, round).await;
        }
    }
    assert_eq!(killed, 20);
    let pipeline = pipeline(serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap());
    let last = run(&roles, &pipeline, "last").await;
    assert!(matches!(last.outcome, Some(Outcome::Committed | Outcome::NoNewData)), "{:?}", last.error);
    assert_same_rows(&roles, &lake).await;
    assert_sound(&lake.path("out"), "p").await;
}

struct SourceUpdates<'a> {
    lake: &'a Lake,
}

impl SourceUpdates<'_> {
    /// A new commit in the source, between two kills.
    async fn change(&self, roles: &tributary_server::embedded::Embedded, round: i64) {
        let table = tributary_server::bench::source::SourceTable::open(
            &tributary_hudi::SystemStores::new(),
            roles.writer.clone(),
            std::sync::Arc::new(tributary_types::SystemClock),
            &self.lake.path("src"),
            values([]).schema(),
        )
        .await
        .unwrap();
        // Multiples of 8 leave every key in its partition.
        table.upsert(vec![values((0..100).map(|n| (format!("k{n:06}"), 1000 * round + n)))]).await.unwrap();
    }
}

async fn assert_same_rows(roles: &tributary_server::embedded::Embedded, lake: &Lake) {
    let strip = |row: &String| {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        (row["id"].as_str().unwrap().to_string(), row["value"].as_i64().unwrap())
    };
    let mut target: Vec<_> = rows(roles, &lake.path("out")).await.iter().map(strip).collect();
    target.sort();
    let mut expected: Vec<_> = rows(roles, &lake.path("src")).await.iter().map(strip).collect();
    expected.sort();
    assert_eq!(target, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_at_once_commit_once() {
    let (lake, file) = lake_with_rows(20_000).await;
    let children = [child(&file, "one"), child(&file, "two")];
    let mut outcomes: Vec<String> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).to_string();
            text.lines().find_map(|line| line.split("outcome=").nth(1).map(str::to_string)).unwrap_or(text)
        })
        .collect();
    outcomes.sort();
    assert_eq!(outcomes[0], "COMMITTED", "{outcomes:?}");
    assert!(matches!(outcomes[1].as_str(), "CONFLICT" | "NO_NEW_DATA"), "{outcomes:?}");
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1);
    assert_same_rows(&roles(), &lake).await;
    assert_sound(&lake.path("out"), "p").await;
}
