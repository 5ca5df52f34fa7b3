// SPDX-License-Identifier: Apache-2.0
//! Sources whose files do not fit their table's schema: the batch fails, or goes on without them where it may.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_hudi::{CommitMetadata, SystemStores};
use tributary_server::embedded::Embedded;
use tributary_testkit::ManualClock;
use tributary_types::pipeline::{Consistency, Pipeline};
use tributary_types::{Checkpoint, Clock, Outcome, SourceCheckpoint, SourceName, SystemClock};

use crate::support::{
    Lake, assert_sound, checkpoints, open, open_value_table, pipeline, request_of, rewrite_checkpoint, roles, roles_at,
    rows, run, value_table, values,
};

/// The rows of two tables, one below the other; `b` may be left out.
fn both(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [
            {"name": "a", "path": lake.path("a"), "start": "snapshot"},
            {"name": "b", "path": lake.path("b"), "start": "snapshot", "skip_on_schema_failure": true},
        ],
        "transform": [{"sql": "SELECT id, value FROM <SRC:a> UNION ALL SELECT id, value FROM <SRC:b>"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

async fn add(lake: &Lake, name: &str, id: &str) {
    let table = open_value_table(&roles(), &lake.path(name)).await;
    table.upsert(vec![values([(id.to_string(), 1)])]).await.unwrap();
}

async fn lake_of_two() -> Lake {
    let lake = Lake::new();
    for name in ["a", "b"] {
        value_table(&roles(), &lake.path(name)).await;
        add(&lake, name, &format!("{name}1")).await;
    }
    lake
}

/// The newest commit of a table says another type of `value` from now on: one that its files cannot be widened to.
async fn set_type(lake: &Lake, name: &str, from: &str, to: &str) {
    let (storage, _, timeline) = open(&lake.path(name)).await;
    let path = timeline.completed_path(timeline.completed_writes().last().unwrap()).unwrap();
    let mut metadata = CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
    let text = metadata.extra["schema"].clone();
    assert!(text.contains(from), "{text}");
    metadata.extra.insert("schema".to_string(), text.replace(from, to));
    storage.put(&path, metadata.encode().unwrap()).await.unwrap();
}

pub(crate) async fn damage(lake: &Lake, name: &str) {
    set_type(lake, name, "\"long\"", "\"int\"").await;
}

async fn mend(lake: &Lake, name: &str) {
    set_type(lake, name, "\"int\"", "\"long\"").await;
}

fn assert_outcome(status: &BatchStatus, outcome: Outcome) {
    assert_eq!(status.outcome, Some(outcome), "{:?}", status.error);
}

/// Which sources a batch left out.
fn left_out(status: &BatchStatus) -> Vec<&str> {
    let found = status.sources.iter().filter(|source| source.report.skipped.is_some());
    found.map(|source| source.source.as_str()).collect()
}

fn entry<'a>(checkpoint: &'a Checkpoint, name: &str) -> &'a SourceCheckpoint {
    &checkpoint.sources[&SourceName::new(name).unwrap()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_goes_on_without_a_source_that_may_be_left_out_and_reads_it_once_it_is_mended() {
    let (lake, roles) = (lake_of_two().await, roles());
    assert_outcome(&run(&roles, &both(&lake), "r1").await, Outcome::Committed);
    for name in ["a", "b"] {
        add(&lake, name, &format!("{name}2")).await;
    }
    damage(&lake, "b").await;
    let without = run(&roles, &both(&lake), "r2").await;
    assert_outcome(&without, Outcome::Committed);
    assert_eq!(left_out(&without), ["b"]);
    let why = without.sources[1].report.skipped.as_ref().unwrap();
    assert!(why.contains("`value`") && why.contains(&lake.path("b")), "{why}");
    let stored = checkpoints(&lake.path("out"), "p").await;
    let (before, after) = (entry(&stored[0], "b"), entry(&stored[1], "b"));
    assert_eq!((&after.cursor, &after.schema, &after.recent), (&before.cursor, &before.schema, &before.recent));
    assert!(before.schema.as_ref().unwrap().contains("\"long\""), "{before:?}");
    assert_eq!(after.window.as_ref().unwrap().begin, before.cursor, "from its cursor to its cursor");
    assert_ne!(entry(&stored[0], "a").cursor, entry(&stored[1], "a").cursor);
    assert_eq!(rows(&roles, &lake.path("out")).await.len(), 3);

    // Nothing else is new: no commit, and the batch says why.
    let idle = run(&roles, &both(&lake), "r3").await;
    assert_outcome(&idle, Outcome::NoNewData);
    assert_eq!(left_out(&idle), ["b"]);

    mend(&lake, "b").await;
    // A new process: what a commit says is remembered, since commits do not change.
    let roles = crate::support::roles();
    let mended = run(&roles, &both(&lake), "r4").await;
    assert_outcome(&mended, Outcome::Committed);
    assert_eq!(left_out(&mended), Vec::<&str>::new());
    assert_eq!(rows(&roles, &lake.path("out")).await.len(), 4);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leave_or_without_a_schema_from_before_the_batch_fails_and_nothing_moves() {
    let (lake, roles) = (lake_of_two().await, roles());
    let mut strict = both(&lake);
    strict.sources[1].skip_on_schema_failure = false;
    assert_outcome(&run(&roles, &strict, "r1").await, Outcome::Committed);
    for name in ["a", "b"] {
        add(&lake, name, &format!("{name}2")).await;
    }
    damage(&lake, "b").await;
    let failed = run(&roles, &strict, "r2").await;
    assert_outcome(&failed, Outcome::Rejected);
    assert_eq!(failed.error.as_ref().unwrap().reason, "SCHEMA_UNRESOLVABLE");
    // The schema was kept, so the leave may be given afterwards; without one there is nothing to read the source as.
    let forget = |checkpoint: &mut Checkpoint| {
        for source in checkpoint.sources.values_mut() {
            source.schema = None;
        }
    };
    rewrite_checkpoint(&lake.path("out"), "p", forget).await;
    let failed = run(&crate::support::roles(), &both(&lake), "r3").await;
    assert_outcome(&failed, Outcome::Rejected);
    assert_eq!(failed.error.as_ref().unwrap().reason, "SCHEMA_UNRESOLVABLE");
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_which_every_source_is_left_out_commits_nothing_even_when_asked_to() {
    let (lake, roles) = (lake_of_two().await, roles());
    let mut pipeline = both(&lake);
    pipeline.sources[0].skip_on_schema_failure = true;
    assert_outcome(&run(&roles, &pipeline, "r1").await, Outcome::Committed);
    for name in ["a", "b"] {
        add(&lake, name, &format!("{name}2")).await;
        damage(&lake, name).await;
    }
    let request = RunRequest { allow_empty: true, ..request_of(&pipeline, "r2") };
    let started = roles.coordinator.run_batch(request).await.unwrap();
    let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
    let ended = watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone();
    assert_outcome(&ended, Outcome::NoNewData);
    assert_eq!(left_out(&ended), ["a", "b"]);
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1);
}

/// Roles whose listings show what was committed just now as long settled.
fn later(by: Duration) -> Embedded {
    let now = SystemClock.now_millis() + by.as_millis() as i64;
    roles_at(Arc::new(SystemStores::new()), Arc::new(ManualClock::at(now)))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aligned_batch_waits_for_a_source_that_is_left_out() {
    let lake = lake_of_two().await;
    let mut pipeline = both(&lake);
    pipeline.consistency = Consistency::Aligned;
    let hour = Duration::from_secs(3600);
    let first = run(&later(hour), &pipeline, "r1").await;
    assert_outcome(&first, Outcome::Committed);
    for name in ["a", "b"] {
        add(&lake, name, &format!("{name}2")).await;
    }
    damage(&lake, "b").await;
    let waiting = run(&later(2 * hour), &pipeline, "r2").await;
    assert_outcome(&waiting, Outcome::NoNewData);
    assert_eq!(left_out(&waiting), ["b"]);
    for (before, after) in first.sources.iter().zip(&waiting.sources) {
        let (before, after) = (before.window.as_ref().unwrap(), after.window.as_ref().unwrap());
        assert_eq!(before.end, after.end, "what `a` has is after the ceiling now");
    }
    // Independent windows do not wait.
    let mut independent = pipeline.clone();
    independent.consistency = Consistency::Independent;
    assert_outcome(&run(&later(3 * hour), &independent, "r3").await, Outcome::Committed);
    mend(&lake, "b").await;
    assert_outcome(&run(&later(4 * hour), &pipeline, "r4").await, Outcome::Committed);
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 4);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_looked_up_cannot_be_left_out() {
    let lake = lake_of_two().await;
    let mut pipeline = both(&lake);
    let sql =
        "SELECT a.id, a.value FROM <SRC:a> a LEFT JOIN <SNAP:b> b ON a.id = b.id LEFT JOIN <SRC:b> c ON a.id = c.id";
    pipeline.transforms[0].sql = Some(sql.to_string());
    let refused = run(&roles(), &pipeline, "r1").await;
    assert_outcome(&refused, Outcome::Rejected);
    let message = &refused.error.as_ref().unwrap().message;
    assert!(message.contains("source `b`") && message.contains("<SNAP:b>"), "{message}");
}
