// SPDX-License-Identifier: Apache-2.0
//! What was planned moves before it is read: the batch plans the same windows once more, and then fails by name.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tributary_hudi::SystemStores;
use tributary_server::embedded::Embedded;
use tributary_testkit::{Vanishing, VanishingStores};
use tributary_types::Outcome;
use tributary_types::pipeline::Pipeline;

use crate::support::{
    Lake, assert_sound, checkpoints, open, pipeline, roles, roles_over, rows, run, value_table, values,
};

/// Reads of the source's data files.
const SOURCE: &str = "/src/";

fn job(lake: &Lake, start: &str) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": start}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

fn disturbed(vanishing: &Arc<Vanishing>) -> Embedded {
    roles_over(Arc::new(VanishingStores::new(Arc::new(SystemStores::new()), Arc::clone(vanishing))))
}

/// A source of two commits, the second of which is put aside; the files that must be moved for it to be there.
async fn source_with_a_commit_aside(lake: &Lake) -> Vec<(PathBuf, PathBuf)> {
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1), ("b".to_string(), 1)])]).await.unwrap();
    source.upsert(vec![values([("b".to_string(), 2), ("c".to_string(), 2)])]).await.unwrap();
    let moves = files_of_last_commit(lake).await.into_iter().enumerate();
    let moves: Vec<(PathBuf, PathBuf)> =
        moves.map(|(number, file)| (lake.dir().join(format!("aside{number}")), file)).collect();
    for (aside, file) in &moves {
        fs::rename(file, aside).unwrap();
    }
    moves
}

/// The timeline's files of the source's newest commit.
async fn files_of_last_commit(lake: &Lake) -> Vec<PathBuf> {
    let (_, config, timeline) = open(&lake.path("src")).await;
    let last = timeline.completed_writes().last().unwrap().requested.to_string();
    let directory = lake.dir().join("src").join(config.timeline_dir());
    let all = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let own = all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&last));
    own.map(|entry| entry.path()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_file_that_vanishes_makes_the_batch_plan_the_same_windows_again() {
    for start in ["snapshot", "earliest"] {
        let lake = Lake::new();
        let moves = source_with_a_commit_aside(&lake).await;
        // A commit arrives as the file goes: it is not part of what was planned.
        let vanishing = Vanishing::new(SOURCE, 1, move || {
            for (aside, file) in moves {
                fs::rename(aside, file).unwrap();
            }
        });
        let first = run(&disturbed(&vanishing), &job(&lake, start), "r1").await;
        assert_eq!(first.outcome, Some(Outcome::Committed), "{start}: {:?}", first.error);
        assert_eq!(vanishing.missed(), 1, "{start}");
        let roles = roles();
        let planned = [r#"{"id":"a","value":1}"#, r#"{"id":"b","value":1}"#];
        assert_eq!(rows(&roles, &lake.path("out")).await, planned, "{start}");
        let second = run(&roles, &job(&lake, start), "r2").await;
        assert_eq!(second.outcome, Some(Outcome::Committed), "{start}: {:?}", second.error);
        assert_eq!(rows(&roles, &lake.path("out")).await, rows(&roles, &lake.path("src")).await, "{start}");
        assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 2, "{start}");
        assert_sound(&lake.path("out"), "p").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_file_that_stays_away_fails_the_batch_by_its_instant_and_moves_no_cursor() {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    let (_, _, timeline) = open(&lake.path("src")).await;
    let instant = timeline.completed_writes()[0].requested.to_string();
    let vanishing = Vanishing::new(SOURCE, usize::MAX, || {});
    let failed = run(&disturbed(&vanishing), &job(&lake, "earliest"), "r1").await;
    let error = failed.error.unwrap();
    assert_eq!(error.reason, "FILE_GONE", "{}", error.message);
    assert!(error.message.contains(&instant), "{}", error.message);
    assert_eq!(vanishing.missed(), 2, "planned twice, read twice");
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 0);
    let again = run(&roles(), &job(&lake, "earliest"), "r2").await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{:?}", again.error);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_rolled_back_after_planning_fails_the_batch_by_name() {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    source.upsert(vec![values([("b".to_string(), 2)])]).await.unwrap();
    let (_, _, timeline) = open(&lake.path("src")).await;
    let completed = timeline.completed_writes().last().unwrap().completed.clone().unwrap();
    let files = files_of_last_commit(&lake).await;
    let vanishing = Vanishing::new(SOURCE, 1, move || {
        for file in files {
            fs::remove_file(file).unwrap();
        }
    });
    let failed = run(&disturbed(&vanishing), &job(&lake, "earliest"), "r1").await;
    let error = failed.error.unwrap();
    assert_eq!(error.reason, "SOURCE_RESTORED", "{}", error.message);
    assert!(error.message.contains(&format!("completed:{completed}")), "{}", error.message);
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 0);
}
