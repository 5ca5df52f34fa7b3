// SPDX-License-Identifier: Apache-2.0
//! Rows that are refused go to the error table: each once, before the batch commits, and final with its `seq`.

use std::sync::Arc;

use serde_json::{Value, json};
use tributary_api::refused::RESULT_SOURCE;
use tributary_hudi::SystemStores;
use tributary_server::embedded::{Embedded, Settings};
use tributary_server::roles::Parts;
use tributary_store::MemoryStore;
use tributary_testkit::kafka::Broker;
use tributary_testkit::{FAULTS, Fault, FaultPlan, FaultyStores};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, SystemClock, SystemEntropy};

use crate::support::{
    Lake, assert_sound, checkpoints, has_table, open, pipeline, roles, roles_over, rows, run, spread, value_table,
    values,
};

fn put(lake: &Lake, path: &str, text: impl AsRef<[u8]>) {
    let path = lake.dir().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// A schema of a text and a number.
fn schema(text: &str) -> String {
    json!({"fields": [
        {"name": text, "nullable": true, "type": {"name": "utf8"}, "children": []},
        {"name": "n", "nullable": true, "type": {"name": "int", "bitWidth": 64, "isSigned": true}, "children": []},
    ]})
    .to_string()
}

/// Notes of a directory of CSV files, which may be a copy, of which a line that says `none` becomes a row without a key.
fn notes(lake: &Lake, max_rows: u64) -> Pipeline {
    pipeline(json!({
        "name": "notes",
        "accept_binding_change": true,
        "source": [{"name": "notes", "kind": "csv", "path": lake.path("notes"), "start": "earliest",
                    "csv": {"header": true, "mode": "error_table"}, "files": {"order": "name", "on_changed": "ignore", "schema": schema("note")}}],
        "transform": [{"sql": "SELECT NULLIF(note, 'none') AS note, n FROM <SRC>"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["note"], "on_null_key": "error_table"},
        "error_table": {"path": lake.path("errors"), "max_rows": max_rows},
    }))
}

/// The rows of the error table, without the meta columns, in the order of source and position.
async fn errors(roles: &Embedded, lake: &Lake) -> Vec<Value> {
    let found = rows(roles, &lake.path("errors")).await;
    let mut found: Vec<Value> = found.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
    found.sort_by_key(|row| (row["source"].to_string(), row["position"].to_string()));
    found
}

fn column(rows: &[Value], name: &str) -> Vec<String> {
    rows.iter().map(|row| row[name].as_str().map_or_else(|| row[name].to_string(), str::to_string)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_records_and_rows_without_a_key_are_in_the_error_table_with_place_reason_and_text() {
    let (lake, roles) = (Lake::new(), roles());
    put(&lake, "notes/1.csv", "note,n\na,1\n\"b\",two\nnone,3\nnone,3\nc,4,5\n");
    let job = notes(&lake, 1000);
    let batch = run(&roles, &job, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    assert_eq!(rows(&roles, &lake.path("out")).await, ["{\"note\":\"a\",\"n\":1}"]);
    let counts: Vec<String> =
        batch.refused.counts.iter().map(|c| format!("{} {} {}", c.source, c.reason, c.rows)).collect();
    assert_eq!(counts, ["notes BAD_RECORD 2", "<result> NULL_KEY 2"]);
    assert_eq!((batch.written.rows, batch.written.without_key), (3, 2));

    let found = errors(&roles, &lake).await;
    let (of_result, of_notes): (Vec<Value>, Vec<Value>) =
        found.into_iter().partition(|row| row["source"] == RESULT_SOURCE);
    assert_eq!(column(&of_notes, "position"), ["1.csv:11", "1.csv:33"]);
    assert_eq!(column(&of_notes, "line"), ["3", "6"]);
    assert_eq!(column(&of_notes, "byte_offset"), ["11", "33"]);
    assert_eq!(column(&of_notes, "raw"), ["\"b\",two", "c,4,5"]);
    assert_eq!(column(&of_notes, "reason"), ["BAD_RECORD", "BAD_RECORD"]);
    assert!(of_notes[0]["message"].as_str().unwrap().contains("`n`"), "{of_notes:?}");
    assert_eq!(column(&of_result, "reason"), ["NULL_KEY", "NULL_KEY"]);
    assert_eq!(column(&of_result, "raw"), vec!["{\"note\":null,\"n\":3}"; 2]);
    assert_ne!(of_result[0]["position"], of_result[1]["position"], "equal rows are two rows");
    for row in of_notes.iter().chain(&of_result) {
        assert_eq!((row["pipeline"].as_str(), row["seq"].as_u64()), (Some("notes"), batch.seq));
        assert_eq!(row["instant"].as_str(), batch.instant.as_ref().map(|instant| instant.as_str()));
    }
    let (_, config, timeline) = open(&lake.path("errors")).await;
    assert_eq!(
        (config.name.as_str(), config.record_key()),
        ("errors", vec!["pipeline".into(), "source".into(), "position".into()])
    );
    assert_eq!(batch.refused.instant.as_ref(), timeline.completed_writes().last().map(|write| &write.requested));
    assert_sound(&lake.path("out"), "notes").await;
    assert_sound(&lake.path("errors"), "notes").await;

    // Nothing new, so nothing is written anew; then rows of a second batch stand beside those of the first.
    assert_eq!(run(&roles, &job, "r2").await.outcome, Some(Outcome::NoNewData));
    put(&lake, "notes/2.csv", "note,n\nd,x\n");
    let second = run(&roles, &job, "r3").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    let found = errors(&roles, &lake).await;
    // Equal rows of a later batch are further rows.
    put(&lake, "notes/3.csv", "note,n\nnone,3\n");
    let third = run(&roles, &job, "r4").await;
    assert_eq!((third.outcome, third.refused.rows()), (Some(Outcome::Committed), 1), "{:?}", third.error);
    let of_result = errors(&roles, &lake).await.into_iter().filter(|row| row["source"] == RESULT_SOURCE);
    assert_eq!(of_result.map(|row| row["seq"].to_string()).collect::<Vec<_>>(), ["1", "1", "3"]);
    let seqs: Vec<String> =
        found.iter().filter(|row| row["source"] == "notes").map(|row| row["seq"].to_string()).collect();
    assert_eq!((found.len(), seqs), (5, vec!["1".to_string(), "1".to_string(), "2".to_string()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_files_of_json_are_refused_beside_rows_of_a_table() {
    let (lake, broker, roles) = (Lake::new(), Broker::start().await, roles());
    broker.create("clicks", 2);
    broker.send("clicks", 0, &["{\"id\":\"a\",\"n\":1}", "{\"id\":", "{\"id\":\"b\",\"n\":2}"]);
    broker.send("clicks", 1, &["[]"]);
    put(&lake, "more/1.json", "{\"id\":\"c\",\"n\":3}\nno object\n{\"id\":\"d\",\"n\":\"x\"}\n");
    let users = value_table(&roles, &lake.path("users")).await;
    users.upsert(vec![values([("a".to_string(), 10), ("c".to_string(), 30)])]).await.unwrap();
    let schema = schema("id");
    let job = pipeline(json!({
        "name": "p",
        "source": [
            {"name": "clicks", "kind": "kafka", "brokers": broker.address(), "topic": "clicks", "format": "json",
             "start": "earliest", "json": {"mode": "error_table"}, "kafka": {"schema": schema}},
            {"name": "more", "kind": "json", "path": lake.path("more"), "start": "earliest",
             "json": {"mode": "error_table"}, "files": {"schema": schema}},
            {"name": "users", "path": lake.path("users"), "read": "snapshot"},
        ],
        // What is refused depends neither on which rows the query looks at, nor on how many.
        "transform": [{"sql": "SELECT c.id, u.value FROM <SRC:clicks> c JOIN <SNAP:users> u ON u.id = c.id WHERE c.n < 2 \
                               UNION ALL SELECT m.id, u.value FROM <SRC:more> m JOIN <SNAP:users> u ON u.id = m.id"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
        "error_table": {"path": lake.path("errors"), "table_name": "refused"},
    }));
    let batch = run(&roles, &job, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let expected = ["{\"id\":\"a\",\"value\":10}", "{\"id\":\"c\",\"value\":30}"];
    assert_eq!(rows(&roles, &lake.path("out")).await, expected);
    let found = errors(&roles, &lake).await;
    assert_eq!(column(&found, "position"), ["clicks/0:1", "clicks/1:0", "1.json:17", "1.json:27"]);
    assert_eq!(column(&found, "reason"), ["BAD_MESSAGE", "BAD_MESSAGE", "BAD_RECORD", "BAD_RECORD"]);
    assert_eq!(column(&found[..2], "topic"), ["clicks", "clicks"]);
    assert_eq!(
        (column(&found[..2], "topic_partition"), column(&found[..2], "topic_offset")),
        (vec!["0".into(), "1".into()], vec!["1".into(), "0".into()])
    );
    assert_eq!(column(&found, "raw"), ["{\"id\":", "[]", "no object", "{\"id\":\"d\",\"n\":\"x\"}"]);
    assert_sound(&lake.path("errors"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_refused_rows_than_allowed_fail_the_batch_and_nothing_is_committed() {
    let (lake, roles) = (Lake::new(), roles());
    put(&lake, "notes/1.csv", "note,n\na,1\nb,x\nc,y\n");
    for (rows, text) in [(2, "note,n\na,1\nb,x\nc,y\n"), (1, "note,n\na,1\nnone,1\nnone,2\n")] {
        put(&lake, "notes/1.csv", text);
        let failed = run(&roles, &notes(&lake, 1), &format!("r{rows}")).await;
        let error = failed.error.clone().unwrap();
        assert_eq!((failed.outcome, error.reason.as_str()), (Some(Outcome::Failed), "TOO_MANY_REFUSED"), "{error:?}");
        assert!(error.message.contains("`error_table.max_rows` is 1"), "{}", error.message);
        assert!(!has_table(&lake.path("errors")), "nothing is written there");
        assert!(checkpoints(&lake.path("out"), "notes").await.is_empty(), "no cursor moved");
    }
    put(&lake, "notes/1.csv", "note,n\na,1\nb,x\n");
    // Whoever raises the limit repeats the request.
    put(&lake, "notes/1.csv", "note,n\na,1\nb,x\nc,x\n");
    assert_eq!(run(&roles, &notes(&lake, 1), "r").await.outcome, Some(Outcome::Failed));
    let error = run(&roles, &notes(&lake, 2), "r").await;
    assert_eq!(error.outcome, Some(Outcome::Committed), "as many as allowed: {:?}", error.error);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_refuses_nothing_leaves_the_error_table_alone() {
    let (lake, roles) = (Lake::new(), roles());
    put(&lake, "notes/1.csv", "note,n\na,1\nb,2\n");
    let batch = run(&roles, &notes(&lake, 5), "r1").await;
    assert_eq!((batch.outcome, batch.refused.rows()), (Some(Outcome::Committed), 0), "{:?}", batch.error);
    assert!(!has_table(&lake.path("errors")));
    put(&lake, "notes/2.csv", "note,n\nc,x\n");
    assert_eq!(run(&roles, &notes(&lake, 5), "r2").await.refused.rows(), 1);
    put(&lake, "notes/3.csv", "note,n\nd,4\n");
    assert_eq!(run(&roles, &notes(&lake, 5), "r3").await.outcome, Some(Outcome::Committed));
    let (_, _, timeline) = open(&lake.path("errors")).await;
    assert_eq!(timeline.instants().len(), 1, "only the batch with refused rows has an instant there");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_table_that_is_another_table_is_refused_before_anything_is_read() {
    let (lake, roles) = (Lake::new(), roles());
    put(&lake, "notes/1.csv", "note,n\na,1\n");
    let other = value_table(&roles, &lake.path("errors")).await;
    other.upsert(vec![values([("k".to_string(), 1)])]).await.unwrap();
    let refused = run(&roles, &notes(&lake, 5), "r1").await;
    let error = refused.error.unwrap();
    assert_eq!((refused.outcome, error.reason.as_str()), (Some(Outcome::Rejected), "TARGET_MISMATCH"), "{error:?}");
    assert!(error.message.contains("it is no error table"), "{}", error.message);
    let planned = roles.coordinator.plan_batch(notes(&lake, 5), Vec::new()).await.unwrap_err();
    assert!(planned.to_string().contains("it is no error table"), "a plan says it as well: {planned}");
    let mut job = notes(&lake, 5);
    job.error_table.as_mut().unwrap().path = format!("{}/../out", lake.path("notes"));
    assert!(run(&roles, &job, "r2").await.error.is_some());
    assert!(!has_table(&lake.path("out")));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pipelines_share_an_error_table_and_each_keeps_its_rows() {
    let (lake, roles) = (Lake::new(), roles());
    put(&lake, "notes/1.csv", "note,n\na,x\n");
    for name in ["one", "two"] {
        let mut job = notes(&lake, 5);
        job.name = tributary_types::PipelineName::new(name).unwrap();
        job.target.path = lake.path(name);
        assert_eq!(run(&roles, &job, "r").await.outcome, Some(Outcome::Committed));
    }
    let mut pipelines = column(&errors(&roles, &lake).await, "pipeline");
    pipelines.sort();
    assert_eq!(pipelines, ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_refused_with_every_role_behind_its_own_port() {
    let lake = Lake::new();
    let parts = Parts {
        stores: Arc::new(SystemStores::new()),
        store: Arc::new(MemoryStore::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let apart = spread(parts, Settings::default());
    put(&lake, "notes/1.csv", "note,n\na,1\nb,two\nnone,3\n");
    let batch = run(&apart, &notes(&lake, 5), "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    assert_eq!((batch.refused.rows(), batch.refused.instant.is_some()), (2, true));
    assert_eq!(errors(&roles(), &lake).await.len(), 2);
    put(&lake, "notes/2.csv", "note,n\nc,x\nd,x\ne,x\nf,x\ng,x\nh,x\n");
    let failed = run(&apart, &notes(&lake, 5), "r2").await.error.unwrap();
    assert!(failed.reason == "TOO_MANY_REFUSED" && failed.message.contains("2.csv:7"), "{failed:?}");
}

fn disturbed(plan: Arc<FaultPlan>) -> Embedded {
    roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), plan)))
}

/// Runs a batch in which one changing operation of a store goes wrong, restarts, and runs it again: whatever happened,
/// each refused row is in the error table once, with the `seq` and the instant of the one commit there is.
async fn explore_one(template: &Lake, expected: &[Value], case: &str, number: u64, fault: Fault) {
    let lake = template.copy();
    let job = notes(&lake, 10);
    let plan = FaultPlan::at(number, fault);
    let first = run(&disturbed(Arc::clone(&plan)), &job, "batch").await;
    assert!(plan.operations() > number, "{case}: the operation was not reached");
    let healthy = roles();
    let again = run(&healthy, &job, "batch").await;
    let why = format!("{case}: first {:?} {:?}, then {:?}", first.outcome, first.error, again.error);
    assert_eq!(again.outcome, Some(Outcome::Committed), "{why}");
    assert_eq!(
        rows(&healthy, &lake.path("out")).await,
        ["{\"note\":\"a\",\"n\":1}", "{\"note\":\"z\",\"n\":1}"],
        "{why}"
    );
    let commits = checkpoints(&lake.path("out"), "notes").await;
    assert_eq!(commits.len(), 2, "{why}");
    let mut found = errors(&healthy, &lake).await;
    for row in found.iter_mut().filter(|row| row["seq"] == 2) {
        assert_eq!(row["instant"].as_str(), again.instant.as_ref().map(|instant| instant.as_str()), "{why}");
        row.as_object_mut().unwrap().remove("instant");
    }
    found.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("instant")));
    assert_eq!(found, expected, "{why}");
    assert_sound(&lake.path("out"), "notes").await;
    if !matches!(fault, Fault::CrashAfter | Fault::FailAlways) {
        return;
    }
    // What a batch left on the error table that died after its own commit there, the next one that writes there clears.
    put(&lake, "notes/3.csv", "note,n\ny,none\n");
    assert_eq!(run(&healthy, &job, "next").await.outcome, Some(Outcome::Committed), "{why}");
    assert_eq!(errors(&healthy, &lake).await.len(), expected.len() + 1, "{why}");
    assert_sound(&lake.path("errors"), "notes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refused_row_is_there_once_after_every_fault_of_every_operation() {
    let lake = Lake::new();
    put(&lake, "notes/1.csv", "note,n\nz,1\nq,one\n");
    let before = run(&roles(), &notes(&lake, 10), "before").await;
    assert_eq!(before.outcome, Some(Outcome::Committed), "{:?}", before.error);
    put(&lake, "notes/2.csv", "note,n\na,1\nb,two\nnone,3\nc,4,5\n");
    let (plan, undisturbed) = (FaultPlan::none(), lake.copy());
    let counted = run(&disturbed(Arc::clone(&plan)), &notes(&undisturbed, 10), "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    let mut expected = errors(&roles(), &undisturbed).await;
    assert_eq!(expected.len(), 4, "{expected:?}");
    expected.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("instant")));
    let (operations, mut cases) = (plan.operations(), 0);
    for number in 0..operations {
        for fault in FAULTS {
            let case = format!("operation {number} of {operations}, {fault:?}");
            explore_one(&lake, &expected, &case, number, fault).await;
            cases += 1;
        }
    }
    println!("refused rows: {operations} operations, {cases} cases, {cases} passed");
}
