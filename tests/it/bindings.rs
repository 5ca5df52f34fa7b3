// SPDX-License-Identifier: Apache-2.0
//! What ties a pipeline to its sources in the target's commits: cursors that were damaged, and tables that moved.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tributary_api::coordinator::BatchStatus;
use tributary_hudi::CommitMetadata;
use tributary_types::pipeline::{OnMalformedCursor, Pipeline};
use tributary_types::{Outcome, PipelineName, SourceName, checkpoint_key};

use crate::support::{
    Lake, assert_sound, checkpoints, open, open_value_table, pipeline, rewrite_checkpoint, roles, rows, run,
    value_table, values,
};

/// The rows of two tables, one below the other.
fn both(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [
            {"name": "a", "path": lake.path("a"), "start": "snapshot"},
            {"name": "b", "path": lake.path("b"), "start": "snapshot"},
        ],
        "transform": [{"sql": "SELECT id, value FROM <SRC:a> UNION ALL SELECT id, value FROM <SRC:b>"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

async fn add(lake: &Lake, name: &str, id: &str, value: i64) {
    let table = open_value_table(&roles(), &lake.path(name)).await;
    table.upsert(vec![values([(id.to_string(), value)])]).await.unwrap();
}

/// Two sources of one commit each, which one batch read; then one more commit in each.
async fn lake_after_one_batch() -> Lake {
    let lake = Lake::new();
    for name in ["a", "b"] {
        value_table(&roles(), &lake.path(name)).await;
        add(&lake, name, &format!("{name}1"), 1).await;
    }
    committed(&run(&roles(), &both(&lake), "r1").await);
    for name in ["a", "b"] {
        add(&lake, name, &format!("{name}2"), 2).await;
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

/// Changes the text of the cursors in the newest commit of the target.
async fn damage_cursors(lake: &Lake, from: &str, to: &str) {
    let key = checkpoint_key(&PipelineName::new("p").unwrap());
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let path = timeline.completed_path(timeline.completed_writes().last().unwrap()).unwrap();
    let mut metadata = CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
    let text = metadata.extra[&key].clone();
    assert!(text.contains(from), "{from} in {text}");
    metadata.extra.insert(key, text.replacen(from, to, 1));
    storage.put(&path, metadata.encode().unwrap()).await.unwrap();
}

/// The files of the target's completed commits, oldest first.
async fn commit_files(lake: &Lake) -> Vec<PathBuf> {
    let (_, _, timeline) = open(&lake.path("out")).await;
    let paths = timeline.completed_writes().into_iter().filter_map(|write| timeline.completed_path(write));
    paths.map(|path| Path::new(&lake.path("out")).join(path)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_entry_fails_the_batch_by_the_name_of_its_source_and_nothing_moves() {
    let lake = lake_after_one_batch().await;
    let before = checkpoints(&lake.path("out"), "p").await;
    let instant = open(&lake.path("out")).await.2.completed_writes()[0].requested.to_string();
    let cursor = before[0].sources[&SourceName::new("b").unwrap()].cursor.as_ref().unwrap().to_string();
    damage_cursors(&lake, &format!("\"cursor\":\"{cursor}\""), "\"cursor\":\"completed\"").await;

    let refused = run(&roles(), &both(&lake), "r2").await;
    assert_eq!(refused.outcome, Some(Outcome::Failed));
    assert_says(&refused, "CURSOR_MALFORMED", &["source `b`", &instant, "on_malformed_cursor = \"start\""]);
    assert_eq!(commit_files(&lake).await.len(), 1, "nothing was written");

    let mut pipeline = both(&lake);
    pipeline.sources[1].on_malformed_cursor = OnMalformedCursor::Start;
    let status = run(&roles(), &pipeline, "r3").await;
    committed(&status);
    let begins: Vec<_> = status.sources.iter().map(|it| it.window.as_ref().unwrap().begin.clone()).collect();
    let good = before[0].sources[&SourceName::new("a").unwrap()].cursor.clone();
    assert_eq!(begins, [good, None], "the good entry survives, the other source begins anew");
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 4);
    // What was damaged is whole again.
    add(&lake, "b", "b3", 3).await;
    committed(&run(&roles(), &both(&lake), "r4").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_commit_that_cannot_be_read_holds_nobody_up_once_newer_cursors_follow_it() {
    for damage in ["metadata", "cursors"] {
        let lake = lake_after_one_batch().await;
        if damage == "cursors" {
            damage_cursors(&lake, "{", "[").await;
            // As if the next commit had been there before the damage.
            let file = commit_files(&lake).await.pop().unwrap();
            let damaged = fs::read(&file).unwrap();
            damage_cursors(&lake, "[", "{").await;
            committed(&run(&roles(), &both(&lake), "r2").await);
            fs::write(&file, damaged).unwrap();
        } else {
            committed(&run(&roles(), &both(&lake), "r2").await);
            fs::write(&commit_files(&lake).await[0], "garbage").unwrap();
        }
        add(&lake, "a", "a3", 3).await;
        let status = run(&roles(), &both(&lake), "r3").await;
        assert_eq!(status.outcome, Some(Outcome::Committed), "{damage}: {:?}", status.error);
        assert_eq!(status.seq, Some(3), "{damage}");
        assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 5, "{damage}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_commit_that_cannot_be_read_is_named_with_a_way_on_that_works() {
    for damage in ["metadata", "cursors"] {
        let lake = lake_after_one_batch().await;
        committed(&run(&roles(), &both(&lake), "r2").await);
        add(&lake, "a", "a3", 3).await;
        let newest = commit_files(&lake).await.pop().unwrap();
        match damage {
            "metadata" => fs::write(&newest, "garbage").unwrap(),
            _ => damage_cursors(&lake, "{", "[").await,
        }
        let refused = run(&roles(), &both(&lake), "r3").await;
        assert!(!matches!(refused.outcome, Some(Outcome::Committed | Outcome::NoNewData)), "{damage}");
        let message = &refused.error.as_ref().unwrap().message;
        let name = newest.file_name().unwrap().to_string_lossy().into_owned();
        let instant = name.split('_').next().unwrap();
        let way_on = if damage == "metadata" { "another `target.path`" } else { "another name" };
        for part in [instant, "Restore", way_on] {
            assert!(message.contains(part), "{damage}: `{part}` is missing in: {message}");
        }
        let mut on = both(&lake);
        match damage {
            "metadata" => on.target.path = lake.path("out2"),
            _ => on.name = PipelineName::new("q").unwrap(),
        }
        let status = run(&roles(), &on, "r4").await;
        assert_eq!(status.outcome, Some(Outcome::Committed), "{damage}: {:?}", status.error);
        assert_eq!(rows(&roles(), &on.target.path).await.len(), 5, "{damage}");
    }
}

/// The path that the newest commit keeps for a source.
async fn kept_path(lake: &Lake, source: &str) -> Option<String> {
    let newest = checkpoints(&lake.path("out"), "p").await.pop().unwrap();
    newest.sources[&SourceName::new(source).unwrap()].path.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_moved_is_refused_by_name_until_it_is_accepted_once() {
    let lake = lake_after_one_batch().await;
    fs::rename(lake.path("a"), lake.path("elsewhere")).unwrap();
    let mut moved = both(&lake);
    moved.sources[0].path = lake.path("elsewhere");
    let refused = run(&roles(), &moved, "r2").await;
    assert_eq!(refused.outcome, Some(Outcome::Rejected));
    assert_says(
        &refused,
        "SOURCE_MOVED",
        &["source `a`", &lake.path("a"), &lake.path("elsewhere"), "accept_binding_change = true"],
    );
    assert_eq!(kept_path(&lake, "a").await, Some(lake.path("a")), "no commit");

    moved.accept_binding_change = true;
    committed(&run(&roles(), &moved, "r3").await);
    assert_eq!(kept_path(&lake, "a").await, Some(lake.path("elsewhere")));
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 4, "it went on from its cursor");
    moved.accept_binding_change = false;
    add(&lake, "elsewhere", "a3", 3).await;
    committed(&run(&roles(), &moved, "r4").await);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_files_that_moved_is_called_a_directory() {
    let lake = Lake::new();
    let mut job = pipeline(json!({
        "name": "p",
        "source": [{"name": "a", "kind": "csv", "path": lake.path("a"), "start": "earliest", "csv": {"header": true}}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }));
    fs::create_dir(lake.path("a")).unwrap();
    fs::write(lake.dir().join("a/1.csv"), "id\n1\n").unwrap();
    committed(&run(&roles(), &job, "r1").await);
    fs::rename(lake.path("a"), lake.path("b")).unwrap();
    job.sources[0].path = lake.path("b");
    let refused = run(&roles(), &job, "r2").await;
    assert_says(
        &refused,
        "SOURCE_MOVED",
        &["source `a`", &lake.path("b"), "a directory of files", "accept_binding_change"],
    );
    assert!(!refused.error.unwrap().message.contains("table there"));
    job.accept_binding_change = true;
    assert_eq!(run(&roles(), &job, "r3").await.outcome, Some(Outcome::NoNewData), "its file was read before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_written_another_way_is_the_same_and_a_commit_without_a_path_is_taken_as_it_is() {
    let lake = lake_after_one_batch().await;
    let mut pipeline = both(&lake);
    pipeline.sources[0].path = format!("file://{}/", lake.path("a"));
    committed(&run(&roles(), &pipeline, "r2").await);

    rewrite_checkpoint(&lake.path("out"), "p", |checkpoint| {
        for source in checkpoint.sources.values_mut() {
            source.path = None;
        }
    })
    .await;
    fs::rename(lake.path("a"), lake.path("elsewhere")).unwrap();
    pipeline.sources[0].path = lake.path("elsewhere");
    add(&lake, "b", "b3", 3).await;
    committed(&run(&roles(), &pipeline, "r3").await);
    assert_eq!(kept_path(&lake, "a").await, Some(lake.path("elsewhere")));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_table_is_refused_wherever_it_lies_and_whatever_is_accepted() {
    let lake = lake_after_one_batch().await;
    fs::create_dir(lake.path("x")).unwrap();
    value_table(&roles(), &lake.path("x/a")).await;
    add(&lake, "x/a", "other", 1).await;
    let mut pipeline = both(&lake);
    pipeline.accept_binding_change = true;
    for path in [lake.path("x/a"), lake.path("b")] {
        pipeline.sources[0].path.clone_from(&path);
        let refused = run(&roles(), &pipeline, &format!("r{}", path.len())).await;
        assert_eq!(refused.outcome, Some(Outcome::Rejected), "{path}");
        assert_says(&refused, "SOURCE_RECREATED", &["source `a`", &path]);
    }
}
