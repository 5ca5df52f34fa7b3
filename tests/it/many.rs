// SPDX-License-Identifier: Apache-2.0
//! Fifty pipelines on one server, one that always fails and one that takes all memory; and what is told while a batch runs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_hudi::SystemStores;
use tributary_server::embedded::Embedded;
use tributary_store::MemoryStore;
use tributary_types::pipeline::{ByteSize, Pipeline};
use tributary_types::{BatchName, Outcome, Stage};

use crate::support::{Lake, pipeline, request_of, roles, roles_with, value_table, values};

const PIPELINES: usize = 50;
const SLOTS: usize = 4;
/// All of them together take far less.
const SOON: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;

async fn lake() -> Lake {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values((0..5).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    lake
}

fn job(lake: &Lake, name: &str, source: &str, mib: u64) -> Pipeline {
    let mut job = pipeline(json!({
        "name": name,
        "source": [{"name": "src", "path": lake.path(source), "start": "snapshot"}],
        "target": {"path": lake.path(name), "table_name": "t", "record_key": ["id"]},
    }));
    job.limits.memory = ByteSize(mib * MIB);
    job
}

async fn start(roles: &Embedded, job: &Pipeline, id: &str) -> BatchName {
    let request = RunRequest { allow_empty: true, ..request_of(job, id) };
    roles.coordinator.run_batch(request).await.unwrap().name
}

async fn end(roles: &Embedded, name: &BatchName) -> BatchStatus {
    let mut watch = roles.coordinator.watch_batch(name).await.unwrap();
    let ended = tokio::time::timeout(SOON, watch.wait_for(|status| status.outcome.is_some())).await;
    ended.unwrap_or_else(|_| panic!("{name} never ended")).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_pipelines_share_a_server_with_one_that_always_fails_and_one_that_takes_all_memory() {
    let lake = lake().await;
    let roles = roles_with(Arc::new(SystemStores::new()), Arc::new(MemoryStore::default()), |settings| {
        settings.batches_at_once = SLOTS;
        settings.memory = Some(512 * MIB);
    });
    let failing = job(&lake, "failing", "nowhere", 64);
    let giant = job(&lake, "giant", "src", 512);
    let mut asked = Vec::new();
    // The failing one asks far more often than its turn comes.
    for round in 0..60 {
        asked.push((start(&roles, &failing, &format!("r{round}")).await, Outcome::Failed));
    }
    for round in 0..2 {
        asked.push((start(&roles, &giant, &format!("r{round}")).await, Outcome::Committed));
        for number in (2..PIPELINES).filter(|_| round == 0) {
            let small = job(&lake, &format!("small{number}"), "src", 64);
            asked.push((start(&roles, &small, &format!("r{round}")).await, Outcome::Committed));
        }
    }
    for (name, expected) in asked {
        let ended = end(&roles, &name).await;
        assert_eq!(ended.outcome, Some(expected), "{name}: {:?}", ended.error);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_and_bytes_read_of_each_source_are_told_while_a_batch_runs() {
    let lake = lake().await;
    let roles = roles();
    // Hours of work over five rows: what it reads is small, what it makes of them is not.
    let tables: Vec<String> = ('b'..='t').map(|alias| format!("<SNAP:src> {alias}")).collect();
    let sql = format!(
        "SELECT a.id, count(*) AS n, sum((b.value + t.value) % 7) AS s FROM <SRC:src> a, {} GROUP BY a.id",
        tables.join(", ")
    );
    let mut endless = serde_json::to_value(job(&lake, "endless", "src", 256)).unwrap();
    endless["transform"] = json!([{"sql": sql}]);
    let name = start(&roles, &pipeline(endless), "r").await;
    let mut watch = roles.coordinator.watch_batch(&name).await.unwrap();
    let told = |status: &BatchStatus| {
        status.outcome.is_some() || status.sources.iter().any(|source| source.rows > 0 && source.bytes_read > 0)
    };
    let running = tokio::time::timeout(SOON, watch.wait_for(told)).await.unwrap().unwrap().clone();
    assert_eq!((running.stage, running.outcome), (Stage::Merge, None), "{:?}", running.error);
    assert_eq!(running.sources[0].source.as_str(), "src");
    assert!(running.sources[0].report.bytes > 0, "the bytes of the files are known before a row is read");
    roles.coordinator.cancel_batch(&name).await.unwrap();
    assert_eq!(end(&roles, &name).await.outcome, Some(Outcome::Cancelled));
}
