// SPDX-License-Identifier: Apache-2.0
//! Sources that deliver deleted records: after every batch the target is what the query makes of the whole sources,
//! whatever happened in them.

use std::sync::Arc;

use serde_json::{Value, json};
use tributary_api::coordinator::BatchStatus;
use tributary_hudi::SystemStores;
use tributary_server::embedded::Embedded;
use tributary_testkit::{Happened, RandomTable, Record, Vanishing, VanishingStores};
use tributary_types::pipeline::{Operation, Pipeline, TableType};
use tributary_types::{InstantTime, Outcome};

use crate::support::{Lake, assert_sound, has_table, pipeline, roles, roles_over, rows, run, value_table, values};

const COPY_ON_WRITE: TableType = TableType::CopyOnWrite;
const MERGE_ON_READ: TableType = TableType::MergeOnRead;
const KINDS: [(TableType, u32); 6] = [
    (COPY_ON_WRITE, 9),
    (MERGE_ON_READ, 9),
    (COPY_ON_WRITE, 8),
    (MERGE_ON_READ, 8),
    (COPY_ON_WRITE, 6),
    (MERGE_ON_READ, 6),
];
/// Times that a table goes on and batches follow, in one history.
const ROUNDS: usize = 10;

/// Histories of each kind: more with `TRIBUTARY_TEST_HISTORIES`.
fn histories() -> u64 {
    std::env::var("TRIBUTARY_TEST_HISTORIES").ok().and_then(|text| text.parse().ok()).unwrap_or(2).max(2)
}

/// Runs a batch; `None` where nothing was new.
async fn batch(roles: &Embedded, job: &Pipeline, number: &mut usize) -> Option<BatchStatus> {
    *number += 1;
    let status = run(roles, job, &format!("r{number}")).await;
    match status.outcome {
        Some(Outcome::Committed) => Some(status),
        Some(Outcome::NoNewData) => None,
        other => panic!("batch {number}: {other:?}, {:?}", status.error),
    }
}

/// Where a source stands after a batch.
fn end_of(status: &BatchStatus, source: usize) -> InstantTime {
    let window = status.sources[source].window.as_ref().unwrap();
    window.end.instant().unwrap().clone()
}

/// The rows of a table as values, without the flag, which must be true of none.
async fn stored(roles: &Embedded, url: &str) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    for text in rows(roles, url).await {
        let mut row: Value = serde_json::from_str(&text).unwrap();
        let flag = row.as_object_mut().unwrap().remove("_hoodie_is_deleted");
        assert_ne!(flag, Some(Value::Bool(true)), "{row}");
        found.push(row);
    }
    sorted(found)
}

fn sorted(mut rows: Vec<Value>) -> Vec<Value> {
    rows.sort_by_key(Value::to_string);
    rows
}

/// A row-wise query, and what it makes of a record.
struct Query {
    sql: &'static str,
    of: fn(&Record) -> Option<Value>,
}

fn doubled(record: &Record) -> Option<Value> {
    Some(json!({"id": record.id, "part": record.part, "link": record.link, "n": 2 * record.n}))
}

const QUERIES: [Query; 2] = [
    Query { sql: "SELECT id, part, link, n * 2 AS n, _hoodie_is_deleted FROM <SRC:s>", of: doubled },
    // A row that no longer qualifies is deleted, so that a condition may be about columns that change.
    Query {
        sql: "SELECT id, part, link, n * 2 AS n, (_hoodie_is_deleted OR n % 3 = 0) AS _hoodie_is_deleted FROM <SRC:s>",
        of: |record| doubled(record).filter(|_| record.n % 3 != 0),
    },
];

/// Follows one random history with batches of a few commits each.
async fn follow(kind: (TableType, u32), seed: u64) -> Happened {
    let (lake, roles) = (Lake::new(), roles());
    let (url, out) = (lake.path("source"), lake.path("out"));
    let mut table = RandomTable::create(&SystemStores::new(), &url, kind.0, kind.1, seed).await;
    let query = &QUERIES[seed as usize % QUERIES.len()];
    let mut target = json!({"path": out, "table_name": "out", "record_key": ["id"]});
    // Without partitions of its own the target has one record of a key that moved, with them two for a while.
    if !seed.is_multiple_of(3) {
        target["partition_by"] = json!(["part"]);
    }
    if seed % 4 >= 2 {
        target["table_type"] = json!("merge_on_read");
    }
    let job = pipeline(json!({
        "name": "p",
        "source": [{"name": "s", "path": url, "start": "snapshot", "deletes": "propagate", "num_instants": 1 + seed % 3}],
        "transform": [{"sql": query.sql}],
        "target": target,
    }));
    let (mut number, mut compared) = (0, 0);
    for round in 0..ROUNDS {
        for _ in 0..table.below(7) {
            table.step().await;
        }
        if round + 1 == ROUNDS {
            table.finish_all().await;
        }
        while let Some(status) = batch(&roles, &job, &mut number).await {
            let expected = table.records_at(&end_of(&status, 0)).iter().filter_map(query.of).collect();
            assert_eq!(stored(&roles, &out).await, sorted(expected), "{kind:?}, seed {seed}, batch {number}");
            compared += 1;
        }
    }
    assert!(compared > 2, "{kind:?}, seed {seed}: {compared}");
    assert_sound(&out, "p").await;
    table.happened().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_follows_any_history_of_a_copy_on_write_table() {
    let mut happened = Happened::default();
    for (number, kind) in KINDS.into_iter().filter(|kind| kind.0 == COPY_ON_WRITE).enumerate() {
        for seed in 0..histories() {
            happened.add(&follow(kind, 2 * number as u64 + seed).await);
        }
    }
    for what in ["write", "delete", "move", "overwrite", "delete partition", "clustering", "died", "out of order"] {
        assert!(happened.times(what) > 0, "{what}: {happened:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_follows_any_history_of_a_merge_on_read_table() {
    let mut happened = Happened::default();
    for (number, kind) in KINDS.into_iter().filter(|kind| kind.0 == MERGE_ON_READ).enumerate() {
        for seed in 0..histories() {
            happened.add(&follow(kind, 2 * number as u64 + seed).await);
        }
    }
    let all = ["write", "delete", "move", "overwrite", "delete partition", "clustering", "compaction", "died"];
    for what in all.into_iter().chain(["out of order"]) {
        assert!(happened.times(what) > 0, "{what}: {happened:?}");
    }
}

/// Both sides of a join change; pairs come, change and vanish. What was read of the sources says nothing of deletes.
const PAIRS: &str = "\
    SELECT a.id AS a_id, b.id AS b_id, a.n AS a_n, b.n AS b_n, false AS _hoodie_is_deleted \
    FROM <SRC:a> a JOIN <SNAP:b> b ON a.link = b.id \
    UNION ALL \
    SELECT a.id, b.id, a.n, b.n, false FROM <SNAP:a> a JOIN <SRC:b> b ON a.link = b.id \
    UNION ALL \
    SELECT p.id, q.id, p.n, q.n, true FROM <PREV:a> p JOIN <PREV:b> q ON p.link = q.id \
    WHERE NOT EXISTS (SELECT 1 FROM (SELECT a.id AS a_id, b.id AS b_id FROM <SNAP:a> a JOIN <SNAP:b> b ON a.link = b.id) s \
    WHERE s.a_id = p.id AND s.b_id = q.id)";

/// The same, where only pairs of records that the windows touched are looked through for ones that vanished.
const TOUCHED_PAIRS: &str = "\
    SELECT a.id AS a_id, b.id AS b_id, a.n AS a_n, b.n AS b_n, a._hoodie_is_deleted \
    FROM <SRC:a> a JOIN <SNAP:b> b ON a.link = b.id \
    UNION ALL \
    SELECT a.id, b.id, a.n, b.n, b._hoodie_is_deleted FROM <SNAP:a> a JOIN <SRC:b> b ON a.link = b.id \
    UNION ALL \
    SELECT p.id, q.id, p.n, q.n, true FROM <PREV:a> p JOIN <PREV:b> q ON p.link = q.id \
    WHERE (p.id IN (SELECT id FROM <SRC:a>) OR q.id IN (SELECT id FROM <SRC:b>)) AND NOT EXISTS \
    (SELECT 1 FROM (SELECT a.id AS a_id, b.id AS b_id FROM <SNAP:a> a JOIN <SNAP:b> b ON a.link = b.id) s \
    WHERE s.a_id = p.id AND s.b_id = q.id)";

fn pairs(a: &[Record], b: &[Record]) -> Vec<Value> {
    let partners = |record: &Record| {
        let (id, n) = (record.id.clone(), record.n);
        let found: Vec<&Record> = b.iter().filter(|other| other.id == record.link).collect();
        found.into_iter().map(move |b| json!({"a_id": id, "b_id": b.id, "a_n": n, "b_n": b.n})).collect::<Vec<_>>()
    };
    sorted(a.iter().flat_map(partners).collect())
}

/// Follows two random histories, whose commits come in any order, and compares with the whole join after every batch.
async fn follow_pairs(kinds: [(TableType, u32); 2], seed: u64, deletes: &str) -> Happened {
    let (lake, roles) = (Lake::new(), roles());
    let urls = [lake.path("a"), lake.path("b")];
    let stores = SystemStores::new();
    let mut a = RandomTable::create(&stores, &urls[0], kinds[0].0, kinds[0].1, seed).await;
    let mut b = RandomTable::create(&stores, &urls[1], kinds[1].0, kinds[1].1, seed + 100).await;
    let source = |name: &str, url: &str, most: u64| json!({"name": name, "path": url, "start": "snapshot", "num_instants": most, "deletes": deletes});
    let job = pipeline(json!({
        "name": "p",
        "source": [source("a", &urls[0], 1 + seed % 2), source("b", &urls[1], 2)],
        "transform": [{"sql": if deletes == "ignore" { PAIRS } else { TOUCHED_PAIRS }}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["a_id", "b_id"]},
    }));
    let (mut number, mut vanished) = (0, 0);
    let mut before: Vec<Value> = Vec::new();
    for _ in 0..ROUNDS {
        for _ in 0..a.below(5) {
            a.step().await;
        }
        for _ in 0..b.below(5) {
            b.step().await;
        }
        while let Some(status) = batch(&roles, &job, &mut number).await {
            let expected = pairs(&a.records_at(&end_of(&status, 0)), &b.records_at(&end_of(&status, 1)));
            let found = stored(&roles, &lake.path("out")).await;
            assert_eq!(found, expected, "{kinds:?}, {deletes}, seed {seed}, batch {number}");
            let key = |row: &Value| (row["a_id"].to_string(), row["b_id"].to_string());
            vanished += before.iter().filter(|row| !found.iter().any(|other| key(other) == key(row))).count();
            before = found;
        }
    }
    assert!(vanished > 0, "{kinds:?}, seed {seed}: no pair vanished");
    assert_sound(&lake.path("out"), "p").await;
    let mut happened = a.happened().clone();
    happened.add(b.happened());
    happened
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_with_both_sides_changing_is_what_the_whole_join_would_be() {
    let mut happened = Happened::default();
    for seed in 0..histories() {
        let kinds = [[KINDS[0], KINDS[1]], [KINDS[3], KINDS[4]]][seed as usize % 2];
        happened.add(&follow_pairs(kinds, seed, "ignore").await);
    }
    assert!(happened.times("delete") > 0 && happened.times("out of order") > 0, "{happened:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_of_sources_that_deliver_deletes_is_what_the_whole_join_would_be() {
    let mut happened = Happened::default();
    for seed in 0..histories() {
        let kinds = [[KINDS[1], KINDS[0]], [KINDS[2], KINDS[5]]][seed as usize % 2];
        happened.add(&follow_pairs(kinds, 10 + seed, "propagate").await);
    }
    assert!(happened.times("delete") > 0 && happened.times("move") > 0, "{happened:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_deletes_are_told_by_and_that_vanishes_is_planned_again_or_fails_the_batch() {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1), ("b".to_string(), 2)])]).await.unwrap();
    let job = pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot", "deletes": "propagate"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }));
    let first = run(&roles(), &job, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    source.commit(vec![values([("a".to_string(), 0)])], Operation::Delete).await.unwrap();
    let disturbed = |vanishing: &Arc<Vanishing>| {
        roles_over(Arc::new(VanishingStores::new(Arc::new(SystemStores::new()), Arc::clone(vanishing))))
    };
    let gone = Vanishing::new("/src/", usize::MAX, || {});
    let failed = run(&disturbed(&gone), &job, "r2").await;
    let error = failed.error.unwrap();
    assert_eq!((failed.outcome, error.reason.as_str()), (Some(Outcome::Conflict), "FILE_GONE"), "{}", error.message);
    assert_eq!(stored(&roles(), &lake.path("out")).await.len(), 2, "nothing moved");
    let once = Vanishing::new("/src/", 1, || {});
    let again = run(&disturbed(&once), &job, "r3").await;
    assert_eq!((again.outcome, once.missed()), (Some(Outcome::Committed), 1), "{:?}", again.error);
    assert_eq!((again.written.deletes, again.sources[0].rows), (1, 1));
    assert_eq!(stored(&roles(), &lake.path("out")).await, [json!({"id": "b", "value": 2})]);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_would_lose_deletes_is_refused_before_anything_is_written() {
    let (lake, roles) = (Lake::new(), roles());
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1), ("b".to_string(), 2)])]).await.unwrap();
    let job = |transforms: Value| {
        pipeline(json!({
            "name": "p",
            "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot", "deletes": "propagate"}],
            "transform": transforms,
            "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
        }))
    };
    let keep = json!({"sql": "SELECT * FROM <SRC>"});
    let refused = [
        (
            json!([{"sql": "SELECT id, max(value) AS value, false AS _hoodie_is_deleted FROM <SRC:src> GROUP BY id"}]),
            "step 1 has an aggregate over source `src`",
        ),
        (json!([{"sql": "SELECT * FROM <SRC:src> LIMIT 1"}]), "step 1 has LIMIT over source `src`"),
        (json!([keep, {"sql": "SELECT id, value FROM <SRC>"}, keep]), "step 2 drops the column `_hoodie_is_deleted`"),
    ];
    for (number, (transforms, why)) in refused.into_iter().enumerate() {
        let status = run(&roles, &job(transforms), &format!("refused{number}")).await;
        let error = status.error.unwrap();
        assert_eq!(
            (status.outcome, error.reason.as_str()),
            (Some(Outcome::Rejected), "SQL_INVALID"),
            "{}",
            error.message
        );
        assert!(error.message.contains(why), "{why}: {}", error.message);
        assert!(!has_table(&lake.path("out")), "nothing was begun");
    }
    let kept = run(&roles, &job(json!([keep, {"flatten": {}}])), "kept").await;
    assert_eq!(kept.outcome, Some(Outcome::Committed), "{:?}", kept.error);
    assert_eq!(
        stored(&roles, &lake.path("out")).await,
        [json!({"id": "a", "value": 1}), json!({"id": "b", "value": 2})]
    );
}
