// SPDX-License-Identifier: Apache-2.0
//! A source of version 6, which is read in the order of requests, beside one of version 9.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tributary_types::pipeline::{Consistency, Pipeline, Start};
use tributary_types::{FLAT_KEY, FLAT_KEY_V2, InstantTime, Outcome, Zone};

use crate::support::{Lake, assert_sound, checkpoints, fixtures, open, pipeline, roles, rows, run};

const SIX: &str = "cow_v6_updates";
const NINE: &str = "cow_v9_updates";

fn lake() -> Lake {
    let lake = Lake::new();
    for name in [SIX, NINE] {
        tributary_testkit::unpack_zip(&fixtures().join(format!("tables/{name}.zip")), lake.dir());
    }
    lake
}

/// What Spark says of a table.
fn spark(name: &str) -> Value {
    let file = fixtures().join(format!("tables/{name}.expected.json"));
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn instant(name: &str, number: usize, clock: &str) -> String {
    spark(name)["instants"][number][clock].as_str().unwrap().to_string()
}

fn joined(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "both",
        "source": [
            {"name": "six", "path": lake.path(SIX), "start": "snapshot"},
            {"name": "nine", "path": lake.path(NINE), "start": "snapshot"},
        ],
        "transform": [{"sql": "
            SELECT s.id, s.score AS six, n.score AS nine FROM <SRC:six> s JOIN <SNAP:nine> n ON s.id = n.id
            UNION
            SELECT s.id, s.score AS six, n.score AS nine FROM <SNAP:six> s JOIN <SRC:nine> n ON s.id = n.id"}],
        "target": {"path": lake.path("out"), "table_name": "both", "record_key": ["id"]},
    }))
}

/// Puts aside what the timelines have from the fifth commit on; answers how to bring it back.
fn turn_back(lake: &Lake) -> Vec<(PathBuf, PathBuf)> {
    let mut moves = Vec::new();
    for (name, directory) in [(SIX, ".hoodie"), (NINE, ".hoodie/timeline")] {
        let directory = lake.dir().join(name).join(directory);
        for number in [4, 5] {
            let requested = instant(name, number, "requested");
            for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
                let file = entry.file_name().to_string_lossy().to_string();
                if file.starts_with(&requested) {
                    let aside = lake.dir().join(format!("{name}-{file}"));
                    fs::rename(entry.path(), &aside).unwrap();
                    moves.push((aside, entry.path()));
                }
            }
        }
    }
    moves
}

/// The join of both tables as Spark reads them in the end.
fn expected_join() -> Vec<String> {
    let scores = |name: &str| -> std::collections::BTreeMap<String, Value> {
        let expected = spark(name);
        let rows = expected["snapshot"].as_array().unwrap().iter();
        rows.map(|row| (row["id"].as_str().unwrap().to_string(), row["score"].clone())).collect()
    };
    let nine = scores(NINE);
    let mut found: Vec<String> = scores(SIX)
        .iter()
        .filter_map(|(id, six)| {
            let fields = [("id", json!(id)), ("six", six.clone()), ("nine", nine.get(id)?.clone())];
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            let fields: Vec<String> = fields.map(|(name, value)| format!("\"{name}\":{value}")).collect();
            Some(format!("{{{}}}", fields.join(",")))
        })
        .collect();
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clocks_are_joined_round_by_round_and_both_cursors_are_in_each_commit() {
    let (lake, roles) = (lake(), roles());
    let pipeline = joined(&lake);
    let later = turn_back(&lake);
    let first = run(&roles, &pipeline, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    assert_eq!(rows(&roles, &lake.path("out")).await.len(), 7, "k3 and k4 were deleted in both");
    for (aside, file) in later {
        fs::rename(aside, file).unwrap();
    }
    let second = run(&roles, &pipeline, "r2").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    assert_eq!(second.sources.iter().map(|source| source.report.instants).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(rows(&roles, &lake.path("out")).await, expected_join());
    assert_eq!(run(&roles, &pipeline, "r3").await.outcome, Some(Outcome::NoNewData));

    let (six, nine) = (instant(SIX, 5, "requested"), instant(NINE, 5, "completed"));
    let stored = checkpoints(&lake.path("out"), "both").await;
    let cursors = |at: usize| -> Vec<String> {
        stored[at].sources.values().map(|source| source.cursor.as_ref().unwrap().to_string()).collect()
    };
    assert_eq!(cursors(1), [format!("completed:{nine}"), format!("requested:{six}")]);
    let before =
        [format!("completed:{}", instant(NINE, 3, "completed")), format!("requested:{}", instant(SIX, 3, "requested"))];
    assert_eq!(cursors(0), before);
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let path = timeline.completed_path(timeline.completed_writes()[1]).unwrap();
    let metadata = tributary_hudi::CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
    assert_eq!(metadata.extra[FLAT_KEY], format!("nine={nine},six={six}"));
    assert_sound(&lake.path("out"), "both").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_source_of_version_six_is_written_as_its_java_source_writes_it() {
    let (lake, roles) = (lake(), roles());
    let pipeline = pipeline(json!({
        "name": "p",
        "source": [{"name": "six", "path": lake.path(SIX), "start": "earliest"}],
        "target": {"path": lake.path("out"), "table_name": "t", "record_key": ["id"]},
    }));
    for (number, instants) in [(1, 5), (2, 1)] {
        let batch = run(&roles, &pipeline, &format!("r{number}")).await;
        assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
        let report = &batch.sources[0].report;
        assert_eq!((report.instants, report.not_a_cut), (instants, false));
        let end = batch.sources[0].window.as_ref().unwrap().end.instant().unwrap().clone();
        assert_eq!(report.end_requested, Some(end.clone()));
        let (storage, _, timeline) = open(&lake.path("out")).await;
        let path = timeline.completed_path(timeline.completed_writes().last().unwrap()).unwrap();
        let metadata = tributary_hudi::CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
        assert_eq!(metadata.extra[FLAT_KEY], end.to_string());
        assert!(!metadata.extra.contains_key(FLAT_KEY_V2), "that key says completion time");
    }
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aligned_over_both_clocks_takes_the_longest_prefix_and_says_that_it_is_no_cut() {
    let (lake, roles) = (lake(), roles());
    let mut pipeline = joined(&lake);
    pipeline.consistency = Consistency::Aligned;
    for source in &mut pipeline.sources {
        source.start = Some(Start::Earliest);
    }
    pipeline.sources[0].num_instants = 2;
    pipeline.sources[1].num_instants = 100;
    let batch = run(&roles, &pipeline, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let checkpoint = &checkpoints(&lake.path("out"), "both").await[0];
    let end: InstantTime = instant(SIX, 1, "requested").parse().unwrap();
    assert_eq!(checkpoint.ceiling_millis, end.epoch_millis(Zone::Utc));
    let uncut: Vec<bool> = batch.sources.iter().map(|source| source.report.not_a_cut).collect();
    assert_eq!(uncut, [true, false]);
    let nine = batch.sources[1].window.as_ref().unwrap().end.instant().unwrap();
    assert!(*nine <= end || nine.is_init(), "{nine}");
    let six = batch.sources[0].window.as_ref().unwrap();
    assert_eq!(six.end.to_string(), format!("requested:{end}"));
    // A pending commit lowers the ceiling to just before it.
    let commit = instant(SIX, 3, "requested");
    fs::remove_file(lake.dir().join(SIX).join(format!(".hoodie/{commit}.commit"))).unwrap();
    pipeline.sources[0].num_instants = 100;
    let batch = run(&roles, &pipeline, "r2").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let checkpoint = &checkpoints(&lake.path("out"), "both").await[1];
    let hole: InstantTime = commit.parse().unwrap();
    assert_eq!(checkpoint.ceiling_millis.unwrap(), hole.epoch_millis(Zone::Utc).unwrap() - 1);
    let six = batch.sources[0].window.as_ref().unwrap();
    assert_eq!(six.end.to_string(), format!("requested:{}", instant(SIX, 2, "requested")));
    assert_eq!(batch.sources[0].report.oldest_pending, Some(hole));
}
