// SPDX-License-Identifier: Apache-2.0
//! Merge operators: rows that come in are folded with those that are stored, column by column.

use std::sync::Arc;

use serde_json::{Value, json};
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_hudi::SystemStores;
use tributary_server::embedded::{Embedded, Settings};
use tributary_server::roles::Parts;
use tributary_store::MemoryStore;
use tributary_testkit::{FAULTS, FaultPlan, FaultyStores};
use tributary_types::pipeline::{ByteSize, Limits, Pipeline};
use tributary_types::{Fault, Outcome, SystemClock, SystemEntropy};

use crate::support::{
    Lake, assert_sound, checkpoints, pipeline, request_of, roles, roles_over, rows, run, spread, value_table, values,
};

/// Events in a directory of JSON files, one file a batch, into a target with operators.
struct Events {
    lake: Lake,
    target: Value,
    sql: Option<&'static str>,
}

impl Events {
    fn new(target: Value) -> Self {
        Events { lake: Lake::new(), target, sql: None }
    }

    /// Puts one file of events, one a line.
    fn put(&self, name: &str, events: &[Value]) {
        let path = self.lake.dir().join("events").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let lines: Vec<String> = events.iter().map(ToString::to_string).collect();
        std::fs::write(path, lines.join("\n")).unwrap();
    }

    fn job(&self) -> Pipeline {
        self.job_in(&self.lake, "out")
    }

    fn job_in(&self, lake: &Lake, target: &str) -> Pipeline {
        let mut described = json!({"path": lake.path(target), "table_name": "out", "record_key": ["A"]});
        described.as_object_mut().unwrap().extend(self.target.as_object().unwrap().clone());
        let mut job = json!({
            "name": "events",
            // A copy of a lake is a directory that moved, and its files are of another time.
            "accept_binding_change": true,
            "source": [{"name": "events", "kind": "json", "path": lake.path("events"), "start": "earliest",
                        "files": {"order": "name", "on_changed": "ignore"}}],
            "target": described,
        });
        if let Some(sql) = self.sql {
            job["transform"] = json!([{"sql": sql}]);
        }
        pipeline(job)
    }

    async fn commit(&self, roles: &Embedded, request: &str) {
        let batch = run(roles, &self.job(), request).await;
        assert_eq!(batch.outcome, Some(Outcome::Committed), "{request}: {:?}", batch.error);
        assert_sound(&self.lake.path("out"), "events").await;
    }

    /// The rows of the target by key.
    async fn stored(&self, roles: &Embedded) -> Vec<Value> {
        stored(roles, &self.lake.path("out")).await
    }
}

async fn stored(roles: &Embedded, url: &str) -> Vec<Value> {
    let found = rows(roles, url).await;
    let mut found: Vec<Value> = found.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
    found.sort_by_key(|row| row["A"].to_string());
    found
}

/// Why a batch is refused, before it begins or in it.
async fn refusal(roles: &Embedded, job: &Pipeline, request: &str) -> (String, String) {
    let started = match roles.coordinator.run_batch(request_of(job, request)).await {
        Ok(started) => started,
        Err(error) => return (error.reason().to_string(), error.to_string()),
    };
    let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
    let batch = watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone();
    assert_eq!(batch.outcome, Some(Outcome::Rejected), "{:?}", batch.error);
    let error = batch.error.unwrap();
    (error.reason, error.message)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_an_event_does_not_have_keeps_its_value_without_a_schema_fixed_before() {
    let events = Events::new(json!({"merge": {"default": "last_non_null"}}));
    let roles = roles();
    events.put("1.json", &[json!({"A": "a1", "C": "c4", "D": "d6"}), json!({"A": "a9", "C": "other"})]);
    events.commit(&roles, "r1").await;
    events.put("2.json", &[json!({"A": "a1", "B": "b4"})]);
    events.commit(&roles, "r2").await;
    events.put("3.json", &[json!({"A": "a1", "B": "b5", "C": "c5"}), json!({"A": "a3", "B": "b5"})]);
    events.commit(&roles, "r3").await;
    assert_eq!(
        events.stored(&roles).await,
        [
            json!({"A": "a1", "C": "c5", "D": "d6", "B": "b5"}),
            json!({"A": "a3", "B": "b5"}),
            json!({"A": "a9", "C": "other"}),
        ]
    );
    let commits = checkpoints(&events.lake.path("out"), "events").await;
    let kept: Vec<(&str, &str)> = commits[2].operators.iter().map(|(c, o)| (c.as_str(), o.as_str())).collect();
    assert_eq!(kept, [("B", "last_non_null"), ("C", "last_non_null"), ("D", "last_non_null")]);
}

/// Operators of every kind, and events that meet in one batch and over several.
fn counted() -> Events {
    let columns = json!({
        "clicks": "sum", "seen": "count", "tags": "concat(', ')", "kinds": "concat_distinct(',')", "best": "max",
        "first": "first_non_null", "parts": "collect", "profile": "struct_merge",
    });
    let mut events =
        Events::new(json!({"ordering": ["ts"], "merge": {"default": "last_non_null", "columns": columns}}));
    events.sql = Some(
        "SELECT `A`, ts, clicks, ts AS seen, tags, tags AS kinds, clicks AS best, tags AS first, \
         CASE WHEN tags IS NOT NULL THEN make_array(tags) END AS parts, \
         named_struct('tag', tags, 'clicks', clicks) AS profile, gone AS _hoodie_is_deleted FROM <SRC>",
    );
    events
}

fn click(key: &str, ts: i64, clicks: Option<i64>, tags: Option<&str>) -> Value {
    json!({"A": key, "ts": ts, "clicks": clicks, "tags": tags, "gone": false})
}

fn gone(key: &str, ts: i64) -> Value {
    json!({"A": key, "ts": ts, "clicks": null, "tags": null, "gone": true})
}

fn stream() -> Vec<Value> {
    vec![
        click("a", 1, Some(1), Some("x")),
        click("b", 2, Some(5), None),
        click("a", 3, None, Some("y")),
        click("a", 4, Some(3), Some("x")),
        gone("b", 5),
        click("c", 6, Some(1), Some("z")),
        click("b", 7, Some(2), Some("q")),
        gone("c", 8),
        click("a", 9, Some(2), None),
    ]
}

fn folded_stream() -> Vec<Value> {
    vec![
        json!({
            "A": "a", "ts": 9, "clicks": 6, "seen": 4, "tags": "x, y, x", "kinds": "x,y", "best": 3, "first": "x",
            "parts": ["x", "y", "x"], "profile": {"tag": "x", "clicks": 2}, "_hoodie_is_deleted": false,
        }),
        json!({
            "A": "b", "ts": 7, "clicks": 2, "seen": 1, "tags": "q", "kinds": "q", "best": 2, "first": "q",
            "parts": ["q"], "profile": {"tag": "q", "clicks": 2}, "_hoodie_is_deleted": false,
        }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn events_in_one_batch_and_in_one_batch_each_are_stored_alike_and_deletes_are_barriers() {
    let at_once = counted();
    let roles = roles();
    at_once.put("1.json", &stream());
    at_once.commit(&roles, "r1").await;
    assert_eq!(at_once.stored(&roles).await, folded_stream());
    let divided = counted();
    let roles = self::roles();
    for (number, event) in stream().into_iter().enumerate() {
        divided.put(&format!("{number}.json"), &[event]);
        divided.commit(&roles, &format!("r{number}")).await;
    }
    assert_eq!(divided.stored(&roles).await, folded_stream());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_comes_late_is_folded_as_the_earlier_one_and_an_older_delete_takes_nothing_away() {
    let columns = json!({"n": "sum", "trace": "concat('>')", "v": "last"});
    let events = Events::new(json!({"ordering": ["ts"], "merge": {"default": "last", "columns": columns}}));
    let roles = roles();
    let row = |ts: i64, gone: bool| json!({"A": "a", "ts": ts, "n": 1, "trace": format!("t{ts}"), "v": ts, "_hoodie_is_deleted": gone});
    events.put("1.json", &[row(5, false)]);
    events.commit(&roles, "r1").await;
    events.put("2.json", &[row(3, false)]);
    events.commit(&roles, "r2").await;
    let mut expected = json!({"A": "a", "ts": 5, "n": 2, "trace": "t3>t5", "v": 5, "_hoodie_is_deleted": false});
    assert_eq!(events.stored(&roles).await, [expected.clone()]);
    // A delete that is older than the stored row, with rows before and behind it.
    events.put("3.json", &[row(2, false), row(4, true), row(6, false)]);
    events.commit(&roles, "r3").await;
    expected["ts"] = json!(6);
    expected["v"] = json!(6);
    expected["n"] = json!(3);
    expected["trace"] = json!("t3>t5>t6");
    assert_eq!(events.stored(&roles).await, [expected]);
    // One that is not.
    events.put("4.json", &[row(7, true), row(8, false)]);
    events.commit(&roles, "r4").await;
    let anew = json!({"A": "a", "ts": 8, "n": 1, "trace": "t8", "v": 8, "_hoodie_is_deleted": false});
    assert_eq!(events.stored(&roles).await, [anew]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_the_query_does_not_give_keeps_its_value() {
    let mut events = Events::new(json!({"merge": {"default": "last"}}));
    let roles = roles();
    events.put("1.json", &[json!({"A": "a", "email": "a@x", "n": 1}), json!({"A": "b", "email": "b@x", "n": 2})]);
    events.commit(&roles, "r1").await;
    events.put("2.json", &[json!({"A": "a", "email": null, "n": 10}), json!({"A": "c", "email": "c@x", "n": 3})]);
    events.sql = Some("SELECT `A`, n FROM <SRC>");
    let mut plain = events.job();
    plain.target.merge = None;
    let (reason, message) = refusal(&roles, &plain, "plain").await;
    assert!(reason == "TARGET_MISMATCH" && message.contains("lacks column `email`"), "{message}");
    events.commit(&roles, "r2").await;
    assert_eq!(
        events.stored(&roles).await,
        [
            json!({"A": "a", "email": "a@x", "n": 10}),
            json!({"A": "b", "email": "b@x", "n": 2}),
            json!({"A": "c", "n": 3}),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_spill_are_folded_once() {
    let merge = json!({"default": "last_non_null", "columns": {"n": "sum", "seen": "count"}});
    let mut events = Events::new(json!({"merge": merge}));
    events.sql = Some("SELECT CAST(k AS VARCHAR) AS `A`, n, n AS seen, filler FROM <SRC>");
    let roles = roles();
    let keys = 3000_i64;
    // Each key ten times in each of two batches; the second finds stored rows for two thirds of its keys.
    let many = |first: i64| -> Vec<Value> {
        let one = |n: i64| json!({"k": 100_000 + first + n % keys, "n": n / keys, "filler": "f".repeat(600)});
        (0..keys * 10).map(one).collect()
    };
    events.put("1.json", &many(0));
    events.put("2.json", &many(1000));
    let mut job = events.job();
    job.limits = Limits { memory: ByteSize(64 << 20), ..Limits::default() };
    job.sources[0].files.max_files = 1;
    // They do spill.
    let tight = Limits { spill: ByteSize(1000), ..job.limits.clone() };
    let failed = run(&roles, &Pipeline { limits: tight, ..job.clone() }, "r0").await;
    assert_eq!(failed.error.map(|error| error.reason).as_deref(), Some("SPILL_EXCEEDED"));
    for request in ["r1", "r2"] {
        let batch = run(&roles, &job, request).await;
        assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
        assert!(batch.peak_memory <= 80 << 20, "{} bytes", batch.peak_memory);
    }
    let found = events.stored(&roles).await;
    assert_eq!(found.len() as i64, keys + 1000);
    for row in &found {
        let key: i64 = row["A"].as_str().unwrap().parse().unwrap();
        let times = if (101_000..103_000).contains(&key) { 2 } else { 1 };
        assert_eq!((row["n"].as_i64(), row["seen"].as_i64()), (Some(45 * times), Some(10 * times)), "{key}");
    }
    assert_sound(&events.lake.path("out"), "events").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sum_that_does_not_fit_fails_the_batch_by_key_and_column_and_leaves_the_table_as_it_was() {
    let events = Events::new(json!({"merge": {"columns": {"n": "sum"}}}));
    let roles = roles();
    events.put("1.json", &[json!({"A": "a", "n": i64::MAX})]);
    events.commit(&roles, "r1").await;
    events.put("2.json", &[json!({"A": "b", "n": 1}), json!({"A": "a", "n": 1})]);
    let (reason, message) = refusal(&roles, &events.job(), "r2").await;
    assert_eq!(reason, "VALUES_UNMERGEABLE");
    for part in ["column `n` of key `a`", "`sum`", "Int64", "wider type"] {
        assert!(message.contains(part), "{part} not in {message}");
    }
    assert_eq!(events.stored(&roles).await, [json!({"A": "a", "n": i64::MAX})]);
    assert_sound(&events.lake.path("out"), "events").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_that_do_not_fit_the_table_are_refused_before_anything_is_written() {
    let events = Events::new(json!({"merge": {"columns": {"name": "sum", "clikcs": "sum"}}}));
    let roles = roles();
    events.put("1.json", &[json!({"A": "a", "name": "x", "clicks": 1})]);
    let (reason, message) = refusal(&roles, &events.job(), "r1").await;
    assert_eq!(reason, "TARGET_MISMATCH");
    for part in ["did you mean `clicks`?", "column `name`: `sum` does not work on Utf8"] {
        assert!(message.contains(part), "{part} not in {message}");
    }
    assert!(!crate::support::has_table(&events.lake.path("out")));
    let looked = roles.coordinator.plan_batch(events.job(), Vec::new()).await.unwrap_err().to_string();
    assert!(looked.contains("did you mean `clicks`?"), "{looked}");
    let mut logs = events.job();
    logs.target.table_type = tributary_types::pipeline::TableType::MergeOnRead;
    let (reason, message) = refusal(&roles, &logs, "r2").await;
    assert!(reason == "PIPELINE_INVALID" && message.contains("copy-on-write tables only"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_operator_for_a_column_that_has_data_is_refused_until_it_is_accepted_once() {
    let mut events = Events::new(json!({"merge": {"columns": {"n": "sum"}}}));
    let roles = roles();
    events.put("1.json", &[json!({"A": "a", "n": 1})]);
    events.commit(&roles, "r1").await;
    events.put("2.json", &[json!({"A": "a", "n": 5})]);
    events.target = json!({"merge": {"columns": {"n": "max"}}});
    let (reason, message) = refusal(&roles, &events.job(), "r2").await;
    assert_eq!(reason, "OPERATORS_CHANGED");
    for part in ["column `n` by `sum`", "`max`", "accept_merge_change = true"] {
        assert!(message.contains(part), "{part} not in {message}");
    }
    let accepted = Pipeline { accept_merge_change: true, ..events.job() };
    let batch = run(&roles, &accepted, "r3").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    assert_eq!(events.stored(&roles).await, [json!({"A": "a", "n": 5})]);
    // It is not asked for again.
    events.put("3.json", &[json!({"A": "a", "n": 4})]);
    events.commit(&roles, "r4").await;
    assert_eq!(events.stored(&roles).await, [json!({"A": "a", "n": 5})]);
}

#[tokio::test(flavor = "multi_thread")]
async fn going_back_over_what_was_counted_is_refused_until_it_is_acknowledged() {
    let mut events = Events::new(json!({"merge": {"columns": {"n": "sum"}}}));
    let roles = roles();
    events.put("1.json", &[json!({"A": "a", "n": 3})]);
    events.commit(&roles, "r1").await;
    let back = |job: Pipeline, id: &str, cursors_only: bool| {
        let overrides = vec!["events=earliest".parse().unwrap()];
        RunRequest { overrides, cursors_only, ..request_of(&job, id) }
    };
    for (id, cursors_only) in [("back", false), ("set", true)] {
        let refused = ask(&roles, back(events.job(), id, cursors_only)).await;
        let error = refused.error.unwrap();
        for part in ["`events`", "`target.merge.columns.n = \"sum\"`", "acknowledge_images = true"] {
            assert!(error.message.contains(part), "{part} not in {}", error.message);
        }
        assert_eq!(events.stored(&roles).await, [json!({"A": "a", "n": 3})], "{id}");
    }
    events.target = json!({"merge": {"columns": {"n": "sum"}, "acknowledge_images": true}});
    let again = ask(&roles, back(events.job(), "again", false)).await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{:?}", again.error);
    assert_eq!(events.stored(&roles).await, [json!({"A": "a", "n": 6})]);
}

async fn ask(roles: &Embedded, request: RunRequest) -> BatchStatus {
    let started = roles.coordinator.run_batch(request).await.unwrap();
    let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
    watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_table_are_images_and_counting_them_must_be_acknowledged() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let job = |merge: Value| {
        pipeline(json!({
            "name": "p",
            "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
            "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"], "merge": merge},
        }))
    };
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    let (reason, message) = refusal(&roles, &job(json!({"columns": {"value": "sum"}})), "r1").await;
    assert!(reason == "PIPELINE_INVALID" && message.contains("acknowledge_images = true"), "{message}");
    let acknowledged = job(json!({"columns": {"value": "sum"}, "acknowledge_images": true}));
    assert_eq!(run(&roles, &acknowledged, "r2").await.outcome, Some(Outcome::Committed));
    source.upsert(vec![values([("a".to_string(), 3), ("b".to_string(), 1)])]).await.unwrap();
    let batch = run(&roles, &acknowledged, "r3").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    assert_eq!((batch.written.updates, batch.written.inserts), (1, 1));
    assert_eq!(rows(&roles, &lake.path("out")).await, ["{\"id\":\"a\",\"value\":4}", "{\"id\":\"b\",\"value\":1}"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_folded_with_every_role_behind_its_own_port() {
    let parts = Parts {
        stores: Arc::new(SystemStores::new()),
        store: Arc::new(MemoryStore::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let apart = spread(parts, Settings::default());
    let events = counted();
    for (number, few) in stream().chunks(3).enumerate() {
        events.put(&format!("{number}.json"), few);
        events.commit(&apart, &format!("r{number}")).await;
    }
    assert_eq!(events.stored(&apart).await, folded_stream());
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_operation_fails_in_whatever_way_a_row_is_folded_once() {
    let template = Events::new(json!({"merge": {"columns": {"n": "sum"}}}));
    template.put("1.json", &[json!({"A": "a", "n": 1}), json!({"A": "b", "n": 1})]);
    template.commit(&roles(), "first").await;
    template.put("2.json", &[json!({"A": "a", "n": 10}), json!({"A": "c", "n": 10}), json!({"A": "a", "n": 100})]);
    let disturbed = |plan: Arc<FaultPlan>| roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), plan)));
    let plan = FaultPlan::none();
    let counted = run(&disturbed(Arc::clone(&plan)), &template.job_in(&template.lake.copy(), "out"), "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    let operations = plan.operations();
    for number in 0..operations {
        for fault in FAULTS {
            let case = format!("operation {number} of {operations}, {fault:?}");
            let lake = template.lake.copy();
            let job = template.job_in(&lake, "out");
            run(&disturbed(FaultPlan::at(number, fault)), &job, "batch").await;
            let healthy = roles();
            let again = run(&healthy, &job, "batch").await;
            assert_eq!(again.outcome, Some(Outcome::Committed), "{case}: {:?}", again.error);
            let found = stored(&healthy, &lake.path("out")).await;
            let expected = [json!({"A": "a", "n": 111}), json!({"A": "b", "n": 1}), json!({"A": "c", "n": 10})];
            assert_eq!(found, expected, "{case}");
            assert_sound(&lake.path("out"), "events").await;
        }
    }
}
