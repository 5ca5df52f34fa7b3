// SPDX-License-Identifier: Apache-2.0
//! Rows of a query's result that do not become rows of the target: each is counted under its reason.

use serde_json::json;
use tributary_types::Outcome;

use crate::support::{Lake, assert_sound, pipeline, roles, rows, run, value_table, values};

const SQL: &str =
    "SELECT NULLIF(id, 'k0') AS id, value FROM <SRC> UNION ALL SELECT id, value - 1 FROM <SRC> WHERE id = 'k1'";

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_a_key_are_dropped_on_request_and_every_row_left_out_is_counted() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values((0..4).map(|n| (format!("k{n}"), 10 * n)))]).await.unwrap();
    let job = |on_null_key: &str| {
        pipeline(json!({
            "name": "p",
            "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
            "transform": [{"sql": SQL}],
            "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"], "ordering": ["value"],
                       "on_null_key": on_null_key},
        }))
    };
    let failed = run(&roles, &job("fail"), "a").await;
    let error = failed.error.unwrap();
    assert_eq!((failed.outcome, error.reason.as_str()), (Some(Outcome::Rejected), "NULL_KEY"), "{}", error.message);
    assert!(error.message.contains("on_null_key"), "{}", error.message);

    let dropped = run(&roles, &job("drop"), "b").await;
    assert_eq!(dropped.outcome, Some(Outcome::Committed), "{:?}", dropped.error);
    let written = dropped.written;
    assert_eq!((written.rows, written.inserts, written.updates), (5, 3, 0));
    assert_eq!((written.combined, written.outdated, written.without_key), (1, 0, 1));
    let expected: Vec<String> = (1..4).map(|n| json!({"id": format!("k{n}"), "value": 10 * n}).to_string()).collect();
    assert_eq!(rows(&roles, &lake.path("out")).await, expected);

    // A smaller value than the stored one loses.
    source.upsert(vec![values([("k2".to_string(), 5), ("k3".to_string(), 35)])]).await.unwrap();
    let later = run(&roles, &job("drop"), "c").await;
    let written = later.written;
    assert_eq!((written.rows, written.updates, written.outdated, written.combined), (2, 1, 1, 0), "{:?}", later.error);
    assert!(rows(&roles, &lake.path("out")).await.contains(&json!({"id": "k2", "value": 20}).to_string()));
    assert_sound(&lake.path("out"), "p").await;
}
