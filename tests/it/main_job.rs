// SPDX-License-Identifier: Apache-2.0
//! The main job on tables that Spark wrote: rounds of batches, the cursors in their commits, and the rows.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tributary_types::{FLAT_KEY, FLAT_KEY_V2, Outcome};

use crate::support::{
    Lake, assert_sound, checkpoints, enriched, fixtures, open, pipeline, roles, rows, run, value_table, values,
};

/// Rows of a demo table as Spark reads them, by key.
fn spark_rows(round: u32, table: &str, key: &str) -> BTreeMap<String, Value> {
    let file = fixtures().join(format!("demo/round{round}.expected.json"));
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let rows = expected[table]["snapshot"].as_array().unwrap();
    rows.iter().map(|row| (row[key].as_str().unwrap().to_string(), row.clone())).collect()
}

/// What `orders LEFT JOIN users` gives for orders that changed up to `round`, as JSON text; `users` as they were when
/// each order last changed.
fn expected_enriched(orders_of: u32, users_of: u32) -> BTreeMap<String, String> {
    let users = spark_rows(users_of, "users", "user_id");
    let enrich = |order: &Value| {
        let user = users.get(order["user_id"].as_str().unwrap());
        let mut row = json!({
            "order_id": order["order_id"], "user_id": order["user_id"], "amount": order["amount"],
            "status": order["status"], "order_date": order["order_date"], "updated_at": order["updated_at"],
        });
        if let Some(user) = user {
            row["user_name"] = user["name"].clone();
            row["tier"] = user["tier"].clone();
        }
        row
    };
    let orders = spark_rows(orders_of, "orders", "order_id");
    orders.iter().map(|(key, order)| (key.clone(), canonical(&enrich(order)))).collect()
}

/// JSON with sorted keys, numbers as text and nulls left out, so that both sides compare.
fn canonical(row: &Value) -> String {
    let fields: BTreeMap<&String, String> = row
        .as_object()
        .unwrap()
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            // A decimal is text on one side and a number on the other.
            let text = if key == "amount" { text.parse::<f64>().unwrap().to_string() } else { text };
            (key, text)
        })
        .collect();
    serde_json::to_string(&fields).unwrap()
}

fn canonical_rows(rows: &[String]) -> BTreeMap<String, String> {
    let parsed = rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap());
    parsed.map(|row| (row["order_id"].as_str().unwrap().to_string(), canonical(&row))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_rounds_and_one_that_finds_nothing_give_the_rows_that_spark_gives() {
    let lake = Lake::demo(1);
    let roles = roles();
    let pipeline = enriched(&lake);
    let first = run(&roles, &pipeline, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    assert_eq!(canonical_rows(&rows(&roles, &lake.path("out")).await), expected_enriched(1, 1));

    lake.advance_demo(2);
    let second = run(&roles, &pipeline, "r2").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    // Orders that did not change keep the user they were joined with.
    let mut expected = expected_enriched(1, 1);
    let unchanged = spark_rows(1, "orders", "order_id");
    let changed = expected_enriched(2, 2);
    for (key, order) in spark_rows(2, "orders", "order_id") {
        if unchanged.get(&key).map(canonical) != Some(canonical(&order)) {
            expected.insert(key.clone(), changed[&key].clone());
        }
    }
    assert_eq!(canonical_rows(&rows(&roles, &lake.path("out")).await), expected);
    assert_eq!((second.written.inserts, second.written.updates), (8, 4));

    let third = run(&roles, &pipeline, "r3").await;
    assert_eq!(third.outcome, Some(Outcome::NoNewData), "{:?}", third.error);
    assert_eq!(checkpoints(&lake.path("out"), "orders_enriched").await.len(), 2, "no commit for nothing");
    assert_sound(&lake.path("out"), "orders_enriched").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_outer_join_with_a_coalesced_key_equals_its_recomputation() {
    let lake = Lake::demo(1);
    let roles = roles();
    let pipeline = pipeline(json!({
        "name": "activity",
        "source": [
            {"name": "orders", "path": lake.path("orders"), "start": "snapshot"},
            {"name": "users", "path": lake.path("users"), "start": "snapshot"},
        ],
        "transform": [{"sql": "
            CREATE TEMPORARY VIEW touched AS
            SELECT user_id FROM <SRC:orders> UNION SELECT user_id FROM <SRC:users>;
            CREATE TEMPORARY VIEW totals AS
            SELECT o.user_id, count(*) AS orders FROM <SNAP:orders> o JOIN touched t ON o.user_id = t.user_id
            GROUP BY o.user_id;
            CREATE TEMPORARY VIEW profiles AS
            SELECT u.* FROM <SNAP:users> u JOIN touched t ON u.user_id = t.user_id;
            SELECT COALESCE(t.user_id, p.user_id) AS user_id, p.name, p.tier, t.orders
            FROM totals t FULL OUTER JOIN profiles p ON t.user_id = p.user_id"}],
        "target": {"path": lake.path("out"), "table_name": "activity", "record_key": ["user_id"]},
    }));
    for round in [1, 2] {
        lake.advance_demo(round);
        let batch = run(&roles, &pipeline, &format!("r{round}")).await;
        assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
        assert_eq!(activity(&rows(&roles, &lake.path("out")).await), expected_activity(round));
    }
    assert_sound(&lake.path("out"), "activity").await;
}

type Activity = BTreeMap<String, (Option<String>, Option<String>, Option<u64>)>;

fn activity(rows: &[String]) -> Activity {
    let parsed = rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap());
    let text = |row: &Value, key: &str| row.get(key).and_then(Value::as_str).map(str::to_string);
    parsed
        .map(|row| {
            (
                row["user_id"].as_str().unwrap().to_string(),
                (text(&row, "name"), text(&row, "tier"), row["orders"].as_u64()),
            )
        })
        .collect()
}

fn expected_activity(round: u32) -> Activity {
    let mut expected = Activity::new();
    for (id, user) in spark_rows(round, "users", "user_id") {
        let text = |key: &str| user[key].as_str().map(str::to_string);
        expected.insert(id, (text("name"), text("tier"), None));
    }
    for order in spark_rows(round, "orders", "order_id").values() {
        let entry = expected.entry(order["user_id"].as_str().unwrap().to_string()).or_default();
        entry.2 = Some(entry.2.unwrap_or(0) + 1);
    }
    expected
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_and_all_cursors_are_in_one_commit_in_both_forms() {
    let lake = Lake::demo(1);
    let roles = roles();
    let mut two_cursors = enriched(&lake);
    two_cursors.sources[1].read = tributary_types::pipeline::ReadMode::Incremental;
    two_cursors.sources[1].start = Some(tributary_types::pipeline::Start::Snapshot);
    let batch = run(&roles, &two_cursors, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let commits = timeline.completed_writes();
    assert_eq!(commits.len(), 1);
    let path = timeline.completed_path(commits[0]).unwrap();
    let metadata = tributary_hudi::CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
    let orders = "20261130023800465";
    let users = "20261130023808599";
    assert_eq!(metadata.extra[FLAT_KEY], format!("orders={orders},users={users}"));
    assert!(!metadata.extra.contains_key(FLAT_KEY_V2));
    let checkpoint = &checkpoints(&lake.path("out"), "orders_enriched").await[0];
    let cursors: Vec<String> = checkpoint.sources.values().map(|s| s.cursor.as_ref().unwrap().to_string()).collect();
    assert_eq!(cursors, [format!("completed:{orders}"), format!("completed:{users}")]);
    assert_eq!(checkpoint.requests.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_twice_commits_once_also_after_a_restart() {
    let lake = Lake::demo(1);
    let pipeline = enriched(&lake);
    let one = roles();
    let first = run(&one, &pipeline, "same").await;
    let again = run(&one, &pipeline, "same").await;
    assert_eq!(first, again);
    lake.advance_demo(2);
    // A new process with an empty local store: only the target knows the request.
    let after_restart = run(&roles(), &pipeline, "same").await;
    assert_eq!(after_restart.outcome, Some(Outcome::Committed));
    assert_eq!(after_restart.instant, first.instant);
    assert_eq!(checkpoints(&lake.path("out"), "orders_enriched").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_holds_at_most_num_instants_and_the_rest_follows() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    for commit in 0..7 {
        source.upsert(vec![values([(format!("k{commit}"), commit), ("shared".to_string(), commit)])]).await.unwrap();
    }
    let pipeline = pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "earliest", "num_instants": 3}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }));
    for (number, (commits, seen)) in [(3, 2), (3, 5), (1, 6)].into_iter().enumerate() {
        let batch = run(&roles, &pipeline, &format!("r{number}")).await;
        assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
        assert_eq!(batch.sources[0].report.instants, commits);
        let rows = rows(&roles, &lake.path("out")).await;
        assert!(rows.contains(&format!("{{\"id\":\"shared\",\"value\":{seen}}}")), "{rows:?}");
    }
    assert_eq!(run(&roles, &pipeline, "r9").await.outcome, Some(Outcome::NoNewData));
    assert_eq!(rows(&roles, &lake.path("out")).await, rows(&roles, &lake.path("src")).await);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn insert_keeps_every_row_and_upsert_one_per_key() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    for (operation, expected) in [("insert", 2), ("bulk_insert", 2), ("upsert", 1)] {
        let pipeline = pipeline(json!({
            "name": operation,
            "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
            "transform": [{"sql": "SELECT * FROM <SRC> UNION ALL SELECT id, value + 1 FROM <SRC>"}],
            "target": {"path": lake.path(operation), "table_name": "t", "record_key": ["id"], "operation": operation},
        }));
        let batch = run(&roles, &pipeline, "r1").await;
        assert_eq!(batch.outcome, Some(Outcome::Committed), "{operation}: {:?}", batch.error);
        assert_eq!(rows(&roles, &lake.path(operation)).await.len(), expected, "{operation}");
        assert_sound(&lake.path(operation), operation).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn news_whose_query_returns_no_row_still_move_the_cursor() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    let pipeline = pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "transform": [{"sql": "SELECT * FROM <SRC> WHERE value > 10"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }));
    let batch = run(&roles, &pipeline, "r1").await;
    assert_eq!((batch.outcome, batch.written.files), (Some(Outcome::Committed), 0), "{:?}", batch.error);
    assert_eq!(run(&roles, &pipeline, "r2").await.outcome, Some(Outcome::NoNewData));
    source.upsert(vec![values([("b".to_string(), 11)])]).await.unwrap();
    let batch = run(&roles, &pipeline, "r3").await;
    assert_eq!((batch.outcome, batch.written.inserts), (Some(Outcome::Committed), 1), "{:?}", batch.error);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aligned_windows_end_at_one_ceiling() {
    let lake = Lake::demo(1);
    let roles = roles();
    let mut aligned = enriched(&lake);
    aligned.consistency = tributary_types::pipeline::Consistency::Aligned;
    aligned.sources[1].read = tributary_types::pipeline::ReadMode::Incremental;
    aligned.sources[1].start = Some(tributary_types::pipeline::Start::Earliest);
    aligned.sources[0].start = Some(tributary_types::pipeline::Start::Earliest);
    aligned.sources[0].num_instants = 1;
    let batch = run(&roles, &aligned, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let checkpoint = &checkpoints(&lake.path("out"), "orders_enriched").await[0];
    // `orders` stops after its first commit, at 02:37:35.960; no commit of `users` completed by then.
    let orders = checkpoint.sources.values().next().unwrap();
    assert_eq!(orders.cursor.as_ref().unwrap().to_string(), "completed:20261130023735960");
    let ceiling = "20261130023735960".parse::<tributary_types::InstantTime>().unwrap();
    assert_eq!(checkpoint.ceiling_millis, ceiling.epoch_millis(tributary_types::Zone::Utc));
    let users = checkpoint.sources.values().nth(1).unwrap();
    assert!(users.cursor.as_ref().unwrap().instant().unwrap() <= &ceiling, "{users:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metadata_table_that_spark_wrote_lists_what_the_directories_hold() {
    let lake = Lake::demo(2);
    let tables = [
        "cow_v9_updates",
        "cow_v9_partitioned",
        "cow_v9_replace",
        "cow_v6_updates",
        "cow_v6_partitioned",
        "cow_v6_replace",
        "cow_v6_upgraded_metadata",
    ];
    for name in tables {
        tributary_testkit::unpack_zip(&fixtures().join(format!("tables/{name}.zip")), lake.dir());
    }
    for name in tables.into_iter().chain(["orders"]) {
        let (storage, config, timeline) = open(&lake.path(name)).await;
        assert!(config.metadata_partitions().contains(&"files".to_string()), "{name} has a metadata table");
        // Asked directly: the planner would fall back to directories and hide a failure.
        let kept = tributary_hudi::read_file_listing(&storage, &timeline).await.unwrap().bases;
        let kept: std::collections::BTreeSet<String> = kept.into_iter().map(|file| file.path).collect();
        let listed = storage.list("").await.unwrap();
        let data = listed.iter().filter(|e| e.path.ends_with(".parquet") && !e.path.starts_with(".hoodie"));
        assert_eq!(kept, data.map(|entry| entry.path.clone()).collect(), "{name}");
    }
}
