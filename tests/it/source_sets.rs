// SPDX-License-Identifier: Apache-2.0
//! Sources that come, go, come back and are renamed; and a checkpoint that another program left.

use std::path::Path;

use serde_json::{Value, json};
use tributary_api::coordinator::BatchStatus;
use tributary_hudi::CommitMetadata;
use tributary_testkit::archive_instants;
use tributary_types::pipeline::Pipeline;
use tributary_types::{Cursor, FLAT_KEY, FLAT_KEY_V2, Outcome, SourceName};

use crate::support::{Lake, checkpoints, open, open_value_table, pipeline, roles, rows, run, value_table, values};

/// A pipeline over these sources, each given with what is said of it besides its name and path.
fn job(lake: &Lake, sources: &[(&str, Value)]) -> Pipeline {
    let described = sources.iter().map(|(name, more)| {
        let table = more.get("table").and_then(Value::as_str).unwrap_or(name);
        let mut source = json!({"name": name, "path": lake.path(table)});
        for (key, value) in more.as_object().unwrap().iter().filter(|(key, _)| *key != "table") {
            source[key] = value.clone();
        }
        source
    });
    let parts: Vec<String> = sources.iter().map(|(name, _)| format!("SELECT id, value FROM <SRC:{name}>")).collect();
    pipeline(json!({
        "name": "p",
        "source": described.collect::<Vec<_>>(),
        "transform": [{"sql": parts.join(" UNION ALL ")}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

async fn add(lake: &Lake, table: &str, id: &str) {
    let table = open_value_table(&roles(), &lake.path(table)).await;
    table.upsert(vec![values([(id.to_string(), 1)])]).await.unwrap();
}

async fn lake_of(tables: &[&str]) -> Lake {
    let lake = Lake::new();
    for table in tables {
        value_table(&roles(), &lake.path(table)).await;
        add(&lake, table, &format!("{table}1")).await;
    }
    lake
}

fn committed(status: &BatchStatus) {
    assert_eq!(status.outcome, Some(Outcome::Committed), "{:?}", status.error);
}

fn assert_says(status: &BatchStatus, reason: &str, parts: &[&str]) {
    let failure = status.error.as_ref().unwrap();
    assert_eq!(failure.reason, reason, "{}", failure.message);
    for part in parts {
        assert!(failure.message.contains(part), "`{part}` is missing in: {}", failure.message);
    }
}

fn begin(status: &BatchStatus, source: usize) -> Option<Cursor> {
    status.sources[source].window.as_ref().unwrap().begin.clone()
}

async fn cursor_of(lake: &Lake, source: &str) -> Option<Cursor> {
    let newest = checkpoints(&lake.path("out"), "p").await.pop().unwrap();
    newest.sources.get(&SourceName::new(source).unwrap()).and_then(|entry| entry.cursor.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_added_must_say_where_it_starts_even_after_a_first_start_of_all() {
    let lake = lake_of(&["a", "b"]).await;
    let mut first = job(&lake, &[("a", json!({}))]);
    assert_says(&run(&roles(), &first, "r1").await, "START_MISSING", &["source `a`"]);
    first.first_start = Some(tributary_types::pipeline::Start::Latest);
    committed(&run(&roles(), &first, "r2").await);
    let mut more = job(&lake, &[("a", json!({})), ("b", json!({}))]);
    more.first_start = first.first_start.clone();
    assert_says(&run(&roles(), &more, "r3").await, "START_MISSING", &["source `b`"]);
    let status = run(&roles(), &job(&lake, &[("a", json!({})), ("b", json!({"start": "snapshot"}))]), "r4").await;
    committed(&status);
    assert_eq!((status.sources[0].rows, status.sources[1].rows), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_was_left_out_and_is_back_is_found_in_older_commits_archived_ones_too() {
    for archived in [false, true] {
        let lake = lake_of(&["a", "b"]).await;
        let snapshot = || json!({"start": "snapshot"});
        let both = || job(&lake, &[("a", snapshot()), ("b", snapshot())]);
        let first = run(&roles(), &both(), "r1").await;
        committed(&first);
        let b = cursor_of(&lake, "b").await;
        add(&lake, "a", "a2").await;
        committed(&run(&roles(), &job(&lake, &[("a", snapshot())]), "r2").await);
        assert_eq!(cursor_of(&lake, "b").await, None, "it leaves the next commit");
        if archived {
            archive_instants(Path::new(&lake.path("out")), &[first.instant.as_ref().unwrap().as_str()]);
        }
        add(&lake, "b", "b2").await;
        // It is known, so it is never taken for one that was never read.
        let refused = run(&roles(), &both(), "r3").await;
        let parts =
            ["source `b`", first.instant.as_ref().unwrap().as_str(), "start = \"resume\"", "--override b=start"];
        assert_says(&refused, "CURSOR_KNOWN_BEFORE", &parts);
        let resumed = run(&roles(), &job(&lake, &[("a", snapshot()), ("b", json!({"start": "resume"}))]), "r4").await;
        committed(&resumed);
        assert_eq!((begin(&resumed, 1), resumed.sources[1].rows), (b, 1), "archived: {archived}");
        assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resuming_what_no_commit_knows_is_refused() {
    let lake = lake_of(&["a", "b"]).await;
    let resume = || json!({"start": "resume"});
    let first = run(&roles(), &job(&lake, &[("a", resume())]), "r1").await;
    assert_says(&first, "CURSOR_NOT_FOUND", &["source `a`"]);
    committed(&run(&roles(), &job(&lake, &[("a", json!({"start": "latest"}))]), "r2").await);
    let both = job(&lake, &[("a", resume()), ("b", resume())]);
    assert_says(&run(&roles(), &both, "r3").await, "CURSOR_NOT_FOUND", &["source `b`", "archived ones included"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_source_takes_its_cursor_with_it_once() {
    let lake = lake_of(&["a", "b"]).await;
    let by_position = |mut job: Pipeline| {
        job.transforms[0].sql =
            Some("SELECT id, value FROM <SRC_0> UNION ALL SELECT id, value FROM <SRC_1>".to_string());
        job
    };
    let snapshot = || json!({"start": "snapshot"});
    committed(&run(&roles(), &by_position(job(&lake, &[("a", snapshot()), ("b", snapshot())])), "r1").await);
    let a = cursor_of(&lake, "a").await;
    add(&lake, "a", "a2").await;
    let renamed = by_position(job(&lake, &[("orders", json!({"table": "a", "renamed_from": "a"})), ("b", snapshot())]));
    let status = run(&roles(), &renamed, "r2").await;
    committed(&status);
    assert_eq!((begin(&status, 0), status.sources[0].rows), (a, 1), "a new name is no other order of the sources");
    assert_eq!(cursor_of(&lake, "a").await, None);
    add(&lake, "a", "a3").await;
    let next = run(&roles(), &renamed, "r3").await;
    committed(&next);
    assert_eq!(next.sources[0].rows, 1);
}

/// Leaves in the target what a job of Hudi Streamer would: a commit whose metadata has a checkpoint, and none of ours.
async fn leave_checkpoint(lake: &Lake, key: &str, value: &str) {
    value_table(&roles(), &lake.path("out")).await;
    add(lake, "out", "java").await;
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let path = timeline.completed_path(timeline.completed_writes()[0]).unwrap();
    let mut metadata = CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
    metadata.extra.insert(key.to_string(), value.to_string());
    storage.put(&path, metadata.encode().unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_a_java_job_left_is_taken_over_once_if_the_pipeline_says_so() {
    for (key, by_request) in [(FLAT_KEY, true), (FLAT_KEY_V2, false)] {
        let lake = lake_of(&["a"]).await;
        add(&lake, "a", "a2").await;
        let (_, _, timeline) = open(&lake.path("a")).await;
        let first = timeline.completed_writes()[0].clone();
        let at = if by_request { first.requested.clone() } else { first.completed.clone().unwrap() };
        leave_checkpoint(&lake, key, at.as_str()).await;
        let mut job = job(&lake, &[("a", json!({"start": "snapshot"}))]);
        job.target.table_name = open(&lake.path("out")).await.1.name;
        job.adopt_legacy_checkpoint = true;
        let status = run(&roles(), &job, "r1").await;
        committed(&status);
        assert_eq!(status.sources[0].rows, 1, "a2 only");
        assert!(status.overrides[0].to.contains("adopted from commit"), "{:?}", status.overrides);
        assert_eq!(run(&roles(), &job, "r2").await.outcome, Some(Outcome::NoNewData), "our own cursors hold now");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_cannot_be_taken_over_is_refused_and_none_is_not_made_up() {
    let lake = lake_of(&["a"]).await;
    let adopting = |lake: &Lake| {
        let mut job = job(lake, &[("a", json!({"start": "snapshot"}))]);
        job.adopt_legacy_checkpoint = true;
        job
    };
    let none = run(&roles(), &adopting(&lake), "r1").await;
    assert_says(&none, "TARGET_MISMATCH", &["adopt_legacy_checkpoint"]);
    leave_checkpoint(&lake, FLAT_KEY, "a=20250101000000000,b=20250101000000000").await;
    let mut job = adopting(&lake);
    job.target.table_name = open(&lake.path("out")).await.1.name;
    assert_says(&run(&roles(), &job, "r2").await, "LEGACY_CHECKPOINT", &["several sources", "--override a="]);
}
