// SPDX-License-Identifier: Apache-2.0
//! Operations other than upsert and insert: deletes, overwrites, and what they leave in the target.

use std::sync::Arc;

use futures::TryStreamExt;
use serde_json::{Value, json};
use tributary_api::coordinator::BatchStatus;
use tributary_hudi::{Action, SystemStores};
use tributary_server::embedded::Embedded;
use tributary_testkit::{Vanishing, VanishingStores};
use tributary_types::Outcome;
use tributary_types::pipeline::Pipeline;

use crate::support::{
    Lake, assert_sound, json_rows, open, open_value_table, pipeline, request_of, roles, roles_over, rows, run,
    value_table, values,
};

/// A target with keys `k0` to `k9`, divided by parity, that `p` made; the source has a second commit already: `k0`,
/// `k1` and `k20` with other values.
struct Table {
    lake: Lake,
    roles: Embedded,
}

impl Table {
    async fn new(sql: &str) -> Self {
        Self::with(json!({"operation": "upsert"}), sql).await
    }

    async fn with(first: Value, sql: &str) -> Self {
        let lake = Lake::new();
        let roles = roles();
        let source = value_table(&roles, &lake.path("src")).await;
        source.upsert(vec![values((0..10).map(|n| (format!("k{n}"), n)))]).await.unwrap();
        let table = Table { lake, roles };
        let first = table.run(first, sql, "first").await;
        assert_eq!(first.written.rows, 10, "{:?}", first.error);
        let more = [("k0".to_string(), 100), ("k1".to_string(), 101), ("k20".to_string(), 120)];
        source.upsert(vec![values(more)]).await.unwrap();
        table
    }

    fn job(&self, target: Value, sql: &str) -> Pipeline {
        let mut described = json!({
            "path": self.lake.path("out"), "table_name": "out", "record_key": ["id"], "partition_by": ["part"],
        });
        described.as_object_mut().unwrap().extend(target.as_object().unwrap().clone());
        pipeline(json!({
            "name": "p",
            "source": [{"name": "src", "path": self.lake.path("src"), "start": "snapshot", "num_instants": 1}],
            "transform": [{"sql": sql}],
            "target": described,
        }))
    }

    async fn run(&self, target: Value, sql: &str, request: &str) -> BatchStatus {
        let ended = run(&self.roles, &self.job(target, sql), request).await;
        assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
        assert_sound(&self.lake.path("out"), "p").await;
        ended
    }

    /// Keys and values of the target, in order of the keys' numbers.
    async fn values(&self) -> Vec<(String, i64)> {
        let mut found: Vec<(String, i64)> = rows(&self.roles, &self.lake.path("out"))
            .await
            .iter()
            .map(|row| serde_json::from_str::<Value>(row).unwrap())
            .map(|row| (row["id"].as_str().unwrap().to_string(), row["value"].as_i64().unwrap()))
            .collect();
        found.sort_by_key(|(key, _)| key[1..].parse::<u32>().unwrap());
        found
    }
}

fn keys(values: &[(String, i64)]) -> Vec<&str> {
    values.iter().map(|(key, _)| key.as_str()).collect()
}

const PLAIN: &str = "SELECT id, value, value % 2 AS part FROM <SRC>";
const FLAGGED: &str = "SELECT id, value, value % 2 AS part, value IN (100, 120) AS _hoodie_is_deleted FROM <SRC>";

#[tokio::test(flavor = "multi_thread")]
async fn rows_flagged_as_deleted_take_their_record_away_and_the_others_are_upserted() {
    let table = Table::new(FLAGGED).await;
    let ended = table.run(json!({}), FLAGGED, "flagged").await;
    let written = ended.written;
    assert_eq!((written.updates, written.deletes, written.inserts, written.absent), (1, 1, 0, 1));
    let left = table.values().await;
    assert_eq!(keys(&left), ["k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"]);
    assert_eq!(left[0].1, 101);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flagged_row_that_is_older_than_the_stored_one_deletes_nothing() {
    let sql = "SELECT id, value, value % 2 AS part, value >= 100 AS _hoodie_is_deleted, -value AS ts FROM <SRC>";
    let table = Table::with(json!({"ordering": ["ts"]}), sql).await;
    let ended = table.run(json!({"ordering": ["ts"]}), sql, "older").await;
    assert_eq!((ended.written.deletes, ended.written.outdated, ended.written.absent), (0, 2, 1));
    assert_eq!(table.values().await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_takes_away_the_records_that_its_rows_name_and_needs_no_other_column() {
    let table = Table::new(PLAIN).await;
    let ended = table.run(json!({"operation": "delete"}), "SELECT id, value % 2 AS part FROM <SRC>", "delete").await;
    let written = ended.written;
    assert_eq!((written.rows, written.deletes, written.absent, written.inserts, written.updates), (3, 2, 1, 0, 0));
    assert_eq!(keys(&table.values().await), ["k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"]);
    // All of a partition: its file stays, without a row.
    let sql = "SELECT CAST('k' || column1 AS VARCHAR) AS id, CAST(0 AS BIGINT) AS part FROM (VALUES (2), (4), (6), (8)) \
               WHERE EXISTS (SELECT 1 FROM <SRC>) OR TRUE";
    let source = open_value_table(&table.roles, &table.lake.path("src")).await;
    source.upsert(vec![values([("k0".to_string(), 1)])]).await.unwrap();
    assert_eq!(table.run(json!({"operation": "delete"}), sql, "rest").await.written.deletes, 4);
    assert_eq!(keys(&table.values().await), ["k3", "k5", "k7", "k9"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_of_a_merge_on_read_table_are_keys_in_logs_which_go_whatever_their_ordering() {
    let logged = |operation: &str, compact: u32| {
        let services = json!({"compact_delta_commits": compact});
        json!({"table_type": "merge_on_read", "operation": operation, "ordering": ["value"], "services": services})
    };
    let table = Table::with(logged("upsert", 0), PLAIN).await;
    let sql = "SELECT id, value % 2 AS part FROM <SRC>";
    let ended = table.run(logged("delete", 0), sql, "delete").await;
    let written = ended.written;
    assert_eq!((written.rows, written.deletes, written.absent, written.inserts, written.updates), (3, 2, 1, 0, 0));
    assert_eq!(keys(&table.values().await), ["k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"]);
    assert_eq!(pulled(&table.roles, &ended).await, flagged(&[("k0", true), ("k1", true)]));
    let (storage, _, _) = open(&table.lake.path("out")).await;
    let files = storage.list("").await.unwrap();
    let logs = files.iter().filter(|file| file.path.starts_with("part=") && file.path.contains(".log.")).count();
    assert_eq!(logs, 2, "one for each group that lost a record");

    // What comes after a delete is stored; a compaction follows, and with it the deletes are done.
    let source = open_value_table(&table.roles, &table.lake.path("src")).await;
    source.upsert(vec![values([("k0".to_string(), 8)])]).await.unwrap();
    let again = table.run(logged("upsert", 1), PLAIN, "again").await.written;
    assert_eq!((again.inserts, again.updates), (0, 1), "its group knows the key by its delete");
    let (_, _, timeline) = open(&table.lake.path("out")).await;
    assert_eq!(timeline.completed_writes().last().unwrap().action, Action::Commit);
    let left = table.values().await;
    assert_eq!(keys(&left), ["k0", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"]);
    assert_eq!(left[0].1, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn insert_overwrite_replaces_the_partitions_that_its_rows_are_in() {
    let table = Table::new(PLAIN).await;
    let sql = "SELECT id, value, value % 2 AS part FROM <SRC> WHERE value % 2 = 0";
    let ended = table.run(json!({"operation": "insert_overwrite"}), sql, "overwrite").await;
    assert_eq!((ended.written.rows, ended.written.replaced_groups), (2, 1));
    let left = table.values().await;
    assert_eq!(keys(&left), ["k0", "k1", "k3", "k5", "k7", "k9", "k20"]);
    assert_eq!((left[0].1, left[1].1), (100, 1));
    let (_, _, timeline) = open(&table.lake.path("out")).await;
    assert_eq!(timeline.completed_writes().last().unwrap().action, Action::ReplaceCommit);
    // The next upsert finds the replaced groups gone.
    let source = open_value_table(&table.roles, &table.lake.path("src")).await;
    source.upsert(vec![values([("k2".to_string(), 2), ("k0".to_string(), 0)])]).await.unwrap();
    let after = table.run(json!({}), PLAIN, "after").await;
    assert_eq!((after.written.inserts, after.written.updates), (1, 1));
    assert_eq!(keys(&table.values().await), ["k0", "k1", "k2", "k3", "k5", "k7", "k9", "k20"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn insert_overwrite_table_leaves_the_window_alone_and_an_empty_one_replaces_nothing() {
    let table = Table::new(PLAIN).await;
    let refused = request_of(&table.job(json!({"operation": "insert_overwrite_table"}), PLAIN), "refused");
    let refused = table.roles.coordinator.run_batch(refused).await.unwrap_err().to_string();
    assert!(refused.contains("acknowledge_window_only"), "{refused}");
    let overwrite = json!({"operation": "insert_overwrite_table", "acknowledge_window_only": true});
    let empty = format!("{PLAIN} WHERE value < 0");
    let ended = table.run(overwrite.clone(), &empty, "empty").await;
    assert_eq!((ended.written.rows, ended.written.replaced_groups), (0, 0));
    assert_eq!(table.values().await.len(), 10);
    let source = open_value_table(&table.roles, &table.lake.path("src")).await;
    source.upsert(vec![values([("k7".to_string(), 7)])]).await.unwrap();
    let ended = table.run(overwrite, PLAIN, "overwrite").await;
    assert_eq!((ended.written.rows, ended.written.replaced_groups), (1, 2));
    assert_eq!(table.values().await, [("k7".to_string(), 7)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_partition_takes_away_what_is_in_the_partitions_that_its_rows_name() {
    let table = Table::new(PLAIN).await;
    let sql = "SELECT DISTINCT value % 2 AS part FROM <SRC> WHERE value % 2 = 1";
    let ended = table.run(json!({"operation": "delete_partition"}), sql, "partition").await;
    assert_eq!((ended.written.files, ended.written.replaced_groups), (0, 1));
    assert_eq!(keys(&table.values().await), ["k0", "k2", "k4", "k6", "k8"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_reads_and_writes_files_of_the_partitions_that_its_rows_are_in_and_no_others() {
    let table = Table::new(PLAIN).await;
    let sql = "SELECT id, value, value % 2 AS part FROM <SRC> WHERE value % 2 = 1";
    // Any look into the other partition's files would find nothing there, and fail the batch.
    let vanishing = Vanishing::new("part=0/", usize::MAX, || {});
    let stores = VanishingStores::new(Arc::new(SystemStores::new()), Arc::clone(&vanishing));
    let ended = run(&roles_over(Arc::new(stores)), &table.job(json!({}), sql), "odd").await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    assert_eq!((ended.written.files, ended.written.updates, vanishing.missed()), (1, 1, 0));
    assert_sound(&table.lake.path("out"), "p").await;
}

/// Key and flag of every row that is pulled, sorted.
async fn pulled(roles: &Embedded, batch: &BatchStatus) -> Vec<(String, bool)> {
    let opened = roles.coordinator.open_batch(&batch.name).await.unwrap();
    let batches: Vec<_> = opened.rows.try_collect().await.unwrap();
    assert!(batches.iter().all(|batch| batch.schema() == opened.schema));
    let mut found: Vec<(String, bool)> = json_rows(&batches)
        .iter()
        .map(|row| serde_json::from_str::<Value>(row).unwrap())
        .map(|row| (row["id"].as_str().unwrap().to_string(), row["_hoodie_is_deleted"].as_bool().unwrap_or(false)))
        .collect();
    found.sort();
    found
}

fn flagged(rows: &[(&str, bool)]) -> Vec<(String, bool)> {
    rows.iter().map(|(key, deleted)| (key.to_string(), *deleted)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pulled_batch_has_the_rows_it_changed_and_the_records_it_deleted_flagged() {
    let table = Table::new(FLAGGED).await;
    let ended = table.run(json!({}), FLAGGED, "flagged").await;
    assert_eq!(pulled(&table.roles, &ended).await, flagged(&[("k0", true), ("k1", false)]));

    let source = open_value_table(&table.roles, &table.lake.path("src")).await;
    source.upsert(vec![values([("k2".to_string(), 2), ("k4".to_string(), 40)])]).await.unwrap();
    let deleted = table.run(json!({"operation": "delete"}), "SELECT id, value % 2 AS part FROM <SRC>", "delete").await;
    assert_eq!(pulled(&table.roles, &deleted).await, flagged(&[("k2", true), ("k4", true)]));

    // What an overwrite writes again is no delete.
    source.upsert(vec![values([("k6".to_string(), 60)])]).await.unwrap();
    let sql = "SELECT id, value, value % 2 AS part, false AS _hoodie_is_deleted FROM <SRC>";
    let overwrite = table.run(json!({"operation": "insert_overwrite"}), sql, "overwrite").await;
    assert_eq!(pulled(&table.roles, &overwrite).await, flagged(&[("k6", false), ("k8", true)]));
}
