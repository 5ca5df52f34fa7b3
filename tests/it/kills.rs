// SPDX-License-Identifier: Apache-2.0
//! `kill -9` at random moments, and two processes at once.
//!
//! The processes are this test binary itself, started again as `tributary run` with its arguments in the environment:
//! so no other binary has to be built or found.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tributary_hudi::SystemStores;
use tributary_server::bench::source::SourceTable;
use tributary_server::cli::{self, Cli};
use tributary_server::embedded::Embedded;
use tributary_testkit::SeededEntropy;
use tributary_types::{InstantTime, Outcome, SystemClock};

use crate::support::{Lake, assert_sound, checkpoints, has_table, open, roles, rows, run, value_table, values};

const ARGUMENTS: &str = "TRIBUTARY_TEST_RUN";

/// Does nothing in a normal run; in a child process it is `tributary run`.
#[test]
fn child_process() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let _ = cli::main(Cli::parse_from(arguments.split('\u{1f}')));
    }
}

fn child(pipeline_file: &str, request: &str) -> Child {
    let arguments =
        ["tributary", "run", "--pipeline", pipeline_file, "--request-id", request, "--output", "json"].join("\u{1f}");
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::child_process", "--nocapture"])
        .env(ARGUMENTS, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Two sources that are joined, and a pipeline over them.
async fn lake_with_rows(rows: i64) -> (Lake, String) {
    let lake = Lake::new();
    for name in ["left", "right"] {
        let source = value_table(&roles(), &lake.path(name)).await;
        source.upsert(vec![values((0..rows).map(|n| (format!("k{n:06}"), n)))]).await.unwrap();
    }
    let file = lake.path("p.toml");
    std::fs::write(&file, PIPELINE).unwrap();
    (lake, file)
}

const PIPELINE: &str = r#"
name = "p"
[[source]]
name = "left"
path = "left"
start = "snapshot"
num_instants = 1000
[[source]]
name = "right"
path = "right"
start = "snapshot"
num_instants = 1000
[[transform]]
sql = """
    SELECT l.id, l.value, r.value AS other, l.value % 8 AS part
    FROM <SNAP:left> l JOIN <SNAP:right> r ON l.id = r.id
    WHERE l.id IN (SELECT id FROM <SRC:left>) OR r.id IN (SELECT id FROM <SRC:right>)"""
[target]
path = "out"
table_name = "out"
record_key = ["id"]
partition_by = ["part"]
"#;

/// Instants of the target that are open: a batch got as far as that and no further.
async fn open_instants(lake: &Lake) -> BTreeSet<InstantTime> {
    if !has_table(&lake.path("out")) {
        return BTreeSet::new();
    }
    let (_, _, timeline) = open(&lake.path("out")).await;
    timeline.instants().iter().filter(|instant| instant.is_pending()).map(|i| i.requested.clone()).collect()
}

async fn wait_for_a_new_instant(lake: &Lake, before: &BTreeSet<InstantTime>) {
    for _ in 0..1000 {
        if !open_instants(lake).await.is_subset(before) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_at_twenty_random_moments_of_a_batch_loses_and_doubles_nothing() {
    let (lake, file) = lake_with_rows(2_000).await;
    let roles = roles();
    let random = SeededEntropy::new(20_261_130);
    let (mut killed, mut rounds) = (0, 0);
    // Only a kill that leaves an open instant of its own behind hit a batch at work.
    while killed < 20 {
        assert!(rounds < 100, "only {killed} of {rounds} kills hit a batch at work");
        change(&roles, &lake, rounds).await;
        let before = open_instants(&lake).await;
        let mut child = child(&file, &format!("r{rounds}"));
        wait_for_a_new_instant(&lake, &before).await;
        tokio::time::sleep(Duration::from_millis(random.next_u64() % 300)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        killed += usize::from(!open_instants(&lake).await.is_subset(&before));
        rounds += 1;
    }
    println!("{killed} of {rounds} kills hit a batch at work");
    let pipeline = tributary_server::pipeline_file::load(Path::new(&file)).unwrap();
    let last = run(&roles, &pipeline, "last").await;
    assert!(matches!(last.outcome, Some(Outcome::Committed | Outcome::NoNewData)), "{:?}", last.error);
    // An undisturbed run over the same sources, into a table of its own.
    let mut undisturbed = pipeline.clone();
    undisturbed.target.path = lake.path("undisturbed");
    assert_eq!(run(&roles, &undisturbed, "whole").await.outcome, Some(Outcome::Committed));
    assert_eq!(rows(&roles, &lake.path("out")).await, rows(&roles, &lake.path("undisturbed")).await);
    assert_sound(&lake.path("out"), "p").await;
}

/// A new commit in each source, between two kills.
async fn change(roles: &Embedded, lake: &Lake, round: i64) {
    for (name, first) in [("left", 0), ("right", 50)] {
        let clock = Arc::new(SystemClock);
        let schema = values([]).schema();
        let stores = SystemStores::new();
        let table = SourceTable::open(&stores, roles.writer.clone(), clock, &lake.path(name), schema).await.unwrap();
        // Multiples of 8 leave every key in its partition.
        let changed = (first..first + 100).map(|n| (format!("k{n:06}"), 8000 * (round + 1) + n));
        table.upsert(vec![values(changed)]).await.unwrap();
    }
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
            let answer = text.split_once('{').unwrap_or_else(|| panic!("no answer in {text}")).1;
            let answer: serde_json::Value =
                serde_json::Deserializer::from_str(&format!("{{{answer}")).into_iter().next().unwrap().unwrap();
            answer["outcome"].as_str().unwrap().to_string()
        })
        .collect();
    outcomes.sort();
    assert_eq!(outcomes[0], "COMMITTED", "{outcomes:?}");
    assert!(matches!(outcomes[1].as_str(), "CONFLICT" | "NO_NEW_DATA"), "{outcomes:?}");
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1);
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 20_000);
    assert_sound(&lake.path("out"), "p").await;
}
