// SPDX-License-Identifier: Apache-2.0
//! Directories of files as sources, beside tables, in the same batch, commit and cursors.

use std::sync::Arc;

use serde_json::{Value, json};
use tributary_hudi::SystemStores;
use tributary_server::embedded::{Embedded, Settings};
use tributary_server::roles::Parts;
use tributary_store::MemoryStore;
use tributary_testkit::{FAULTS, FaultPlan, FaultyStores};
use tributary_types::pipeline::Pipeline;
use tributary_types::{FLAT_KEY, Outcome, Retry, SystemClock, SystemEntropy};

use crate::support::{
    Lake, assert_sound, checkpoints, open, pipeline, roles, roles_over, rows, run, spread, value_table, values,
};

fn put(lake: &Lake, path: &str, text: impl AsRef<[u8]>) {
    let path = lake.dir().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Clicks of a directory of CSV files.
fn clicks(lake: &Lake, files: Value, csv: Value) -> Pipeline {
    pipeline(json!({
        "name": "clicks",
        "source": [{"name": "clicks", "kind": "csv", "path": lake.path("clicks"), "start": "earliest", "files": files,
                    "csv": csv}],
        "target": {"path": lake.path("out"), "table_name": "clicks", "record_key": ["id"]},
    }))
}

/// Orders of the demo's table, beside notes of a directory of CSV files.
fn annotated(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "annotated",
        "source": [
            {"name": "orders", "path": lake.path("orders"), "start": "snapshot"},
            {"name": "notes", "kind": "csv", "path": lake.path("notes"), "start": "earliest",
             "csv": {"header": true}},
        ],
        "transform": [{"sql": "SELECT o.order_id, o.amount, n.note FROM <SRC:notes> n \
                               JOIN <SNAP:orders> o ON o.order_id = n.order_id"}],
        "target": {"path": lake.path("out"), "table_name": "annotated", "record_key": ["order_id"]},
    }))
}

fn some_orders(rows: &[String]) -> Vec<String> {
    let parsed = rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap());
    parsed.map(|row| row["order_id"].as_str().unwrap().to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn csv_files_are_joined_with_a_table_that_spark_wrote_in_one_commit() {
    let lake = Lake::demo(1);
    let roles = roles();
    let orders = some_orders(&rows(&roles, &lake.path("orders")).await);
    put(&lake, "notes/1.csv", format!("order_id,note\n{},\"first, of all\"\n{},\n", orders[0], orders[1]));
    let job = annotated(&lake);
    let first = run(&roles, &job, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    let found = rows(&roles, &lake.path("out")).await;
    assert_eq!(found.len(), 2);
    assert!(found[0].contains("first, of all") && !found[1].contains("note"), "{found:?}");

    lake.advance_demo(2);
    put(&lake, "notes/2.csv", format!("note,order_id\nsecond,{}\n", orders[1]));
    let second = run(&roles, &job, "r2").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    assert_eq!((second.sources[1].report.files, second.sources[1].rows), (1, 1));
    let found = rows(&roles, &lake.path("out")).await;
    assert!(found.len() == 2 && found[1].contains("second"), "{found:?}");

    let third = run(&roles, &job, "r3").await;
    assert_eq!(third.outcome, Some(Outcome::NoNewData), "{:?}", third.error);
    let commits = checkpoints(&lake.path("out"), "annotated").await;
    assert_eq!(commits.len(), 2);
    let notes = commits[1].sources.values().find(|source| source.kind == "csv").unwrap();
    assert!(notes.cursor.as_ref().unwrap().to_string().starts_with("file:modified:"), "{notes:?}");
    let read: Vec<&str> = notes.files.as_ref().unwrap().read.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(read, ["1.csv", "2.csv"]);
    assert_sound(&lake.path("out"), "annotated").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_directory_leaves_the_checkpoint_that_hudi_streamer_would() {
    let lake = Lake::new();
    let roles = roles();
    put(&lake, "clicks/1.csv", "1,a\n2,b\n");
    let batch = run(&roles, &clicks(&lake, json!({}), json!({})), "r1").await;
    assert!(batch.error.is_some_and(|error| error.message.contains("`id`")), "no column is called so");
    let mut job = clicks(&lake, json!({}), json!({}));
    job.target.record_key = vec!["_c0".to_string()];
    let batch = run(&roles, &job, "r2").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    assert_eq!(rows(&roles, &lake.path("out")).await, ["{\"_c0\":1,\"_c1\":\"a\"}", "{\"_c0\":2,\"_c1\":\"b\"}"]);
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let commit = timeline.completed_writes()[0].clone();
    let path = timeline.completed_path(&commit).unwrap();
    let metadata = tributary_hudi::CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
    let modified = std::fs::metadata(lake.dir().join("clicks/1.csv")).unwrap().modified().unwrap();
    let millis = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    assert_eq!(metadata.extra[FLAT_KEY], millis.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_record_fails_the_batch_with_its_place_and_no_cursor_moves() {
    let lake = Lake::new();
    let roles = roles();
    put(&lake, "clicks/1.csv", "id,n\n1,1\n");
    let job = clicks(&lake, json!({}), json!({"header": true}));
    assert_eq!(run(&roles, &job, "r1").await.outcome, Some(Outcome::Committed));
    put(&lake, "clicks/2.csv", "id,n\n2,2\n3,three\n");
    let failed = run(&roles, &job, "r2").await;
    let error = failed.error.unwrap();
    assert_eq!(
        (failed.outcome, error.reason.as_str(), error.retry),
        (Some(Outcome::Failed), "BAD_RECORD", Retry::Never)
    );
    for part in ["source `clicks`", "`2.csv` line 3, byte 9", "column `n` is not an integer", "`3,three`"] {
        assert!(error.message.contains(part), "{part} not in {}", error.message);
    }
    assert_eq!(checkpoints(&lake.path("out"), "clicks").await.len(), 1);
    assert_sound(&lake.path("out"), "clicks").await;
    let lenient = clicks(&lake, json!({}), json!({"header": true, "mode": "dropmalformed"}));
    let batch = run(&roles, &lenient, "r3").await;
    assert_eq!((batch.outcome, batch.written.rows), (Some(Outcome::Committed), 1), "{:?}", batch.error);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_file_is_read_or_named_and_never_lost() {
    let lake = Lake::new();
    let roles = roles();
    put(&lake, "clicks/20250102.csv", "id\n1\n");
    let files = |window: &str, on_late: &str| json!({"order": "name", "name_timestamp": "yyyyMMdd", "late_window": window, "on_late": on_late});
    let job = |window: &str, on_late: &str| clicks(&lake, files(window, on_late), json!({"header": true}));
    assert_eq!(run(&roles, &job("0s", "fail"), "r1").await.outcome, Some(Outcome::Committed));
    put(&lake, "clicks/20250101.csv", "id\n2\n");
    let failed = run(&roles, &job("0s", "fail"), "r2").await;
    let error = failed.error.unwrap();
    assert!(error.reason == "LATE_FILES" && error.message.contains("20250101.csv"), "{error:?}");
    let read = run(&roles, &job("24h", "fail"), "r3").await;
    assert_eq!((read.outcome, read.written.rows), (Some(Outcome::Committed), 1), "{:?}", read.error);
    assert_eq!(read.sources[0].report.late_files, ["20250101.csv"]);
    put(&lake, "clicks/20240101.csv", "id\n3\n");
    put(&lake, "clicks/20250103.csv", "id\n4\n");
    let warned = run(&roles, &job("24h", "warn"), "r4").await;
    assert_eq!((warned.outcome, warned.written.rows), (Some(Outcome::Committed), 1), "{:?}", warned.error);
    assert_eq!(warned.sources[0].report.left_out, ["20240101.csv"]);
    assert_eq!(run(&roles, &job("24h", "fail"), "r5").await.outcome, Some(Outcome::NoNewData), "it was reported");
    assert_sound(&lake.path("out"), "clicks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_json_is_looked_up_beside_a_table() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1), ("b".to_string(), 2)])]).await.unwrap();
    put(&lake, "names/1.json", "{\"id\":\"a\",\"about\":{\"name\":\"Ada\"}}\n{\"id\":\"b\",\"about\":null}\n");
    let job = pipeline(json!({
        "name": "named",
        "source": [
            {"name": "src", "path": lake.path("src"), "start": "snapshot"},
            {"name": "names", "kind": "json", "path": lake.path("names"), "read": "snapshot"},
        ],
        "transform": [{"sql": "SELECT s.id, s.value, n.about.name AS name FROM <SRC:src> s \
                               LEFT JOIN <SNAP:names> n ON n.id = s.id"}],
        "target": {"path": lake.path("out"), "table_name": "named", "record_key": ["id"]},
    }));
    let batch = run(&roles, &job, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let found = rows(&roles, &lake.path("out")).await;
    assert_eq!(found, ["{\"id\":\"a\",\"value\":1,\"name\":\"Ada\"}", "{\"id\":\"b\",\"value\":2}"]);
    assert_eq!(run(&roles, &job, "r2").await.outcome, Some(Outcome::NoNewData));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aligned_batch_cuts_files_and_tables_at_one_ceiling() {
    let lake = Lake::demo(1);
    let roles = roles();
    put(&lake, "notes/1.csv", "order_id,note\nnone,x\n");
    let mut job = annotated(&lake);
    job.consistency = tributary_types::pipeline::Consistency::Aligned;
    let batch = run(&roles, &job, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let commits = checkpoints(&lake.path("out"), "annotated").await;
    let ceiling = commits[0].ceiling_millis.unwrap();
    let notes = commits[0].sources.values().find(|source| source.kind == "csv").unwrap();
    // The file is younger than the margin that the table's frontier keeps, so it waits for the next batch.
    let end = notes.cursor.as_ref().unwrap().epoch_millis(tributary_types::Zone::Utc);
    assert!(end.is_none_or(|end| end <= ceiling), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_with_every_role_behind_its_own_port() {
    let lake = Lake::new();
    let parts = Parts {
        stores: Arc::new(SystemStores::new()),
        store: Arc::new(MemoryStore::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let apart = spread(parts, Settings::default());
    put(&lake, "clicks/1.csv", "id,n\n1,1\n");
    let job = clicks(&lake, json!({"order": "name"}), json!({"header": true}));
    let first = run(&apart, &job, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    put(&lake, "clicks/2.csv", "id,n\n2,x\n");
    let failed = run(&apart, &job, "r2").await.error.unwrap();
    assert!(failed.reason == "BAD_RECORD" && failed.message.contains("`2.csv` line 2, byte 5"), "{failed:?}");
    put(&lake, "clicks/2.csv", "id,n\n2,2\n");
    let second = run(&apart, &job, "r3").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    assert_eq!(second.sources[0].window.as_ref().unwrap().end.to_string(), "file:name:-:2.csv");
    assert_eq!(rows(&roles(), &lake.path("out")).await, ["{\"id\":1,\"n\":1}", "{\"id\":2,\"n\":2}"]);
    assert_sound(&lake.path("out"), "clicks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_not_there_is_no_directory_without_news() {
    let lake = Lake::new();
    let roles = roles();
    let schema = r#"{"type":"record","name":"r","fields":[{"name":"id","type":"long"},{"name":"n","type":"long"}]}"#;
    put(&lake, "schema.avsc", schema);
    let files = json!({"order": "name", "schema_file": lake.path("schema.avsc")});
    let job = clicks(&lake, files, json!({"header": true}));
    let missing = |error: tributary_api::coordinator::Failure| {
        assert_eq!(error.reason, "DIRECTORY_NOT_FOUND");
        let clicks = lake.path("clicks");
        assert!(error.message.contains(&format!("no directory at `{clicks}`")), "{}", error.message);
        assert!(error.message.contains("source `clicks`"), "{}", error.message);
    };
    missing(run(&roles, &job, "mistyped").await.error.unwrap());
    assert!(roles.coordinator.plan_batch(job.clone(), Vec::new()).await.is_err());
    put(&lake, "clicks/1.csv", "id,n\n1,1\n");
    assert_eq!(run(&roles, &job, "r1").await.outcome, Some(Outcome::Committed));
    std::fs::rename(lake.path("clicks"), lake.path("elsewhere")).unwrap();
    missing(run(&roles, &job, "gone").await.error.unwrap());
    std::fs::rename(lake.path("elsewhere"), lake.path("clicks")).unwrap();
    assert_eq!(run(&roles, &job, "back").await.outcome, Some(Outcome::NoNewData));
}

/// A copy of a lake has files of another time, so a source that goes on in it must not mind.
fn explored(lake: &Lake) -> Pipeline {
    let described = clicks(lake, json!({"order": "name", "on_changed": "ignore"}), json!({"header": true}));
    // Each case runs on a copy, which is a moved directory.
    Pipeline { accept_binding_change: true, ..described }
}

fn disturbed(plan: Arc<FaultPlan>) -> Embedded {
    roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), plan)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_files_survives_every_fault_of_every_operation() {
    let template = Lake::new();
    put(&template, "clicks/1.csv", "id,n\n1,1\n2,2\n");
    let first = run(&roles(), &explored(&template), "first").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    put(&template, "clicks/2.csv", "id,n\n2,20\n3,30\n");
    let plan = FaultPlan::none();
    let counted = run(&disturbed(Arc::clone(&plan)), &explored(&template.copy()), "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    let operations = plan.operations();
    assert!(operations > 4, "a batch has more operations than {operations}");
    for number in 0..operations {
        for fault in FAULTS {
            let case = format!("operation {number} of {operations}, {fault:?}");
            let lake = template.copy();
            let plan = FaultPlan::at(number, fault);
            run(&disturbed(Arc::clone(&plan)), &explored(&lake), "batch").await;
            assert!(plan.operations() > number, "{case}: the operation was not reached");
            let healthy = roles();
            let again = run(&healthy, &explored(&lake), "batch").await;
            assert_eq!(again.outcome, Some(Outcome::Committed), "{case}: {:?}", again.error);
            let expected = ["{\"id\":1,\"n\":1}", "{\"id\":2,\"n\":20}", "{\"id\":3,\"n\":30}"];
            assert_eq!(rows(&healthy, &lake.path("out")).await, expected, "{case}");
            assert_eq!(checkpoints(&lake.path("out"), "clicks").await.len(), 2, "{case}: one commit for the window");
            let idle = run(&healthy, &explored(&lake), "after").await;
            assert_eq!(idle.outcome, Some(Outcome::NoNewData), "{case}: nothing is left to do");
            assert_sound(&lake.path("out"), "clicks").await;
        }
    }
}
