// SPDX-License-Identifier: Apache-2.0
//! A MERGE_ON_READ source and a COPY_ON_WRITE source merged into one target.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tributary_types::Outcome;

use crate::support::{Lake, assert_sound, fixtures, pipeline, roles, rows, run};

/// Commits of the source that the first round takes; the second takes the rest, with a compaction among them.
const FIRST_ROUND: usize = 3;
const SERVICES: [&str; 3] = ["CLUSTER", "COMPACT", "LOG_COMPACT"];

fn expected(table: &str) -> Value {
    let file = fixtures().join(format!("tables/{table}.expected.json"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Rows of a snapshot, by key.
fn by_key(rows: &Value) -> BTreeMap<String, Value> {
    rows.as_array().unwrap().iter().map(|row| (row["id"].as_str().unwrap().to_string(), row.clone())).collect()
}

/// The image of each key as the last of `windows` found it, joined with the other table. Windows of several commits
/// show what the last of them left, which is what the rows of its own window and those of the ones before say.
fn joined(windows: &[&Value], other: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for window in windows {
        for (key, row) in by_key(&window["rows"]) {
            let joined = json!({
                "id": key, "name": row["name"], "score": row["score"], "ts": row["ts"],
                "other_name": other.get(&key).map(|other| other["name"].clone()),
            });
            found.insert(key, without_nulls(&joined));
        }
    }
    found
}

fn without_nulls(row: &Value) -> Value {
    let kept = row.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
    Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_rounds_over_a_compaction_give_the_rows_that_spark_gives() {
    let (source, other) = (expected("mor_v9_compaction"), expected("cow_v9_updates"));
    let lake = Lake::new();
    for name in ["mor_v9_compaction", "cow_v9_updates"] {
        tributary_testkit::unpack_zip(&fixtures().join(format!("tables/{name}.zip")), lake.dir());
    }
    let roles = roles();
    let merged = |num_instants: usize| {
        pipeline(json!({
            "name": "merged",
            "source": [
                {"name": "m", "path": lake.path("mor_v9_compaction"), "start": "earliest",
                 "num_instants": num_instants},
                {"name": "c", "path": lake.path("cow_v9_updates"), "read": "snapshot"},
            ],
            "transform": [{"sql": "SELECT m.id, m.name, m.score, m.ts, c.name AS other_name \
                                   FROM <SRC:m> m LEFT JOIN <SNAP:c> c ON m.id = c.id"}],
            "target": {"path": lake.path("out"), "table_name": "merged", "record_key": ["id"], "ordering": ["ts"]},
        }))
    };
    let other = by_key(&other["snapshot"]);
    let all = source["windows"].as_array().unwrap();
    let changes: Vec<&Value> =
        all.iter().filter(|window| !SERVICES.contains(&window["operationType"].as_str().unwrap())).collect();

    let first = run(&roles, &merged(FIRST_ROUND), "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    assert_eq!(first.sources[0].report.instants, FIRST_ROUND);
    assert_eq!(written(&rows(&roles, &lake.path("out")).await), joined(&changes[..FIRST_ROUND], &other));

    let second = run(&roles, &merged(100), "r2").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    assert_eq!(second.sources[0].report.instants, changes.len() - FIRST_ROUND);
    let mut expected = joined(&changes[..FIRST_ROUND], &other);
    // Rows that were deleted later in the window are not delivered: they stay in the target as they were.
    let mut last = joined(&changes[FIRST_ROUND..], &other);
    let left = by_key(&source["snapshot"]);
    last.retain(|key, _| left.contains_key(key));
    expected.extend(last);
    assert_eq!(written(&rows(&roles, &lake.path("out")).await), expected);
    assert_eq!(run(&roles, &merged(100), "r3").await.outcome, Some(Outcome::NoNewData));
    assert_sound(&lake.path("out"), "merged").await;
}

fn written(rows: &[String]) -> BTreeMap<String, Value> {
    let parsed = rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap());
    parsed.map(|row| (row["id"].as_str().unwrap().to_string(), without_nulls(&row))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_cleaned_between_planning_and_reading_fails_the_batch_by_name() {
    let lake = Lake::new();
    tributary_testkit::unpack_zip(&fixtures().join("tables/mor_v9_log_only.zip"), lake.dir());
    let table = lake.dir().join("mor_v9_log_only/region=b");
    let log = std::fs::read_dir(&table).unwrap().flatten().find(|file| {
        let name = file.file_name();
        name.to_string_lossy().contains(".log.")
    });
    let log = log.unwrap();
    let roles = roles();
    let whole = pipeline(json!({
        "name": "p",
        "source": [{"name": "m", "path": lake.path("mor_v9_log_only"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }));
    // The metadata table still lists it.
    std::fs::remove_file(log.path()).unwrap();
    let batch = run(&roles, &whole, "r1").await;
    let error = format!("{:?}", batch.error.unwrap());
    assert!(error.contains("FILE_GONE") && error.contains(&*log.file_name().to_string_lossy()), "{error}");
}
