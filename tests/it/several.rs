// SPDX-License-Identifier: Apache-2.0
//! Several pipelines on one server.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_hudi::SystemStores;
use tributary_server::embedded::{CoordinatorSettings, Embedded};
use tributary_store::MemoryStore;
use tributary_testkit::{HeldStores, Hold};
use tributary_types::pipeline::{ByteSize, Pipeline};
use tributary_types::{BatchName, InstantTime, Outcome, Stage};

use crate::support::{Lake, checkpoints, pipeline, request_of, roles, roles_with, rows, value_table, values};

const SOON: Duration = Duration::from_secs(30);

/// A lake with one source of one commit.
async fn lake() -> Lake {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values((0..20).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    lake
}

fn into(lake: &Lake, name: &str, target: &str) -> Pipeline {
    pipeline(json!({
        "name": name,
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path(target), "table_name": target, "record_key": ["id"]},
    }))
}

/// A server on which no commit gets through until it is let.
fn held(change: impl FnOnce(&mut CoordinatorSettings)) -> (Embedded, Arc<Hold>) {
    let hold = Hold::of(".commit");
    let stores = Arc::new(HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold)));
    (roles_with(stores, Arc::new(MemoryStore::default()), change), hold)
}

async fn start(roles: &Embedded, pipeline: &Pipeline, request: &str) -> BatchName {
    // Each batch commits, also where the one before it left nothing to do.
    let request = RunRequest { allow_empty: true, ..request_of(pipeline, request) };
    roles.coordinator.run_batch(request).await.unwrap().name
}

async fn stage(roles: &Embedded, name: &BatchName) -> Stage {
    roles.coordinator.get_batch(name).await.unwrap().stage
}

async fn end(roles: &Embedded, name: &BatchName) -> BatchStatus {
    let mut watch = roles.coordinator.watch_batch(name).await.unwrap();
    tokio::time::timeout(SOON, watch.wait_for(|status| status.outcome.is_some())).await.unwrap().unwrap().clone()
}

async fn committed(roles: &Embedded, name: &BatchName) -> InstantTime {
    let ended = end(roles, name).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{name}: {:?}", ended.error);
    ended.instant.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_into_different_targets_run_at_once() {
    let lake = lake().await;
    let (roles, hold) = held(|_| {});
    let one = start(&roles, &into(&lake, "one", "a"), "r").await;
    let two = start(&roles, &into(&lake, "two", "b"), "r").await;
    tokio::time::timeout(SOON, hold.reached(2)).await.expect("both are about to commit");
    hold.release();
    for name in [&one, &two] {
        committed(&roles, name).await;
    }
    assert_eq!(rows(&roles, &lake.path("a")).await, rows(&roles, &lake.path("b")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_into_one_target_follow_one_another_and_each_keeps_its_cursors() {
    let lake = lake().await;
    let (roles, hold) = held(|_| {});
    let one = start(&roles, &into(&lake, "one", "t"), "r").await;
    let two = start(&roles, &into(&lake, "two", "t"), "r").await;
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(stage(&roles, &two).await, Stage::Pending, "the other one holds the target");
    hold.release();
    let (first, second) = (committed(&roles, &one).await, committed(&roles, &two).await);
    assert!(first < second);
    for name in ["one", "two"] {
        assert_eq!(checkpoints(&lake.path("t"), name).await.len(), 1, "{name}");
    }
    assert_eq!(rows(&roles, &lake.path("t")).await, rows(&roles, &lake.path("src")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_pipelines_wait_and_take_turns_in_order() {
    let lake = lake().await;
    let (roles, hold) = held(|settings| settings.batches_at_once = 1);
    let first = start(&roles, &into(&lake, "first", "first"), "r").await;
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    let mut waiting = Vec::new();
    for (name, request) in [("big", "1"), ("big", "2"), ("big", "3"), ("small", "1"), ("other", "1")] {
        waiting.push(start(&roles, &into(&lake, name, name), request).await);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for name in &waiting {
        assert_eq!(stage(&roles, name).await, Stage::Pending, "{name}");
    }
    hold.release();
    committed(&roles, &first).await;
    let mut order = Vec::new();
    for name in waiting {
        order.push((committed(&roles, &name).await, name.to_string()));
    }
    order.sort();
    let order: Vec<&str> = order.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(order, ["big/1", "small/1", "other/1", "big/2", "big/3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_shared_out_among_the_batches_that_run() {
    let lake = lake().await;
    let (roles, hold) = held(|settings| settings.memory = Some(1000 << 20));
    let sized = |name: &str, mib: u64| {
        let mut pipeline = into(&lake, name, name);
        pipeline.limits.memory = ByteSize(mib << 20);
        pipeline
    };
    let one = start(&roles, &sized("one", 600), "r").await;
    let two = start(&roles, &sized("two", 300), "r").await;
    let three = start(&roles, &sized("three", 300), "r").await;
    tokio::time::timeout(SOON, hold.reached(2)).await.expect("two of them fit");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(stage(&roles, &three).await, Stage::Pending);
    hold.release();
    for name in [&one, &two, &three] {
        committed(&roles, name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_waits_is_cancelled_at_once_and_a_failing_one_gives_its_slot_back() {
    let lake = lake().await;
    let (roles, hold) = held(|settings| settings.batches_at_once = 1);
    let first = start(&roles, &into(&lake, "first", "first"), "r").await;
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    let cancelled = start(&roles, &into(&lake, "second", "second"), "r").await;
    let mut broken = into(&lake, "broken", "broken");
    broken.sources[0].path = lake.path("nowhere");
    let failing = start(&roles, &broken, "r").await;
    let last = start(&roles, &into(&lake, "last", "last"), "r").await;
    roles.coordinator.cancel_batch(&cancelled).await.unwrap();
    assert_eq!(end(&roles, &cancelled).await.outcome, Some(Outcome::Cancelled));
    assert!(!lake.dir().join("second").exists(), "it never began");
    hold.release();
    committed(&roles, &first).await;
    assert_ne!(end(&roles, &failing).await.outcome, Some(Outcome::Committed));
    committed(&roles, &last).await;
}
