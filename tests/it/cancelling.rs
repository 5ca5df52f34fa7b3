// SPDX-License-Identifier: Apache-2.0
//! Batches that are ended early: by their caller, by their time limit, by a bug. What they have under way is waited for,
//! and then nothing of them is left.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tributary_api::coordinator::BatchStatus;
use tributary_api::merge::{Bound, CheckRequest, Checked, Error, Merge, MergeRequest, Merged};
use tributary_hudi::SystemStores;
use tributary_rpc::Dial;
use tributary_server::cli::{BatchesCommand, Output, ServerArgs};
use tributary_server::commands::batches::batches;
use tributary_server::embedded::{Embedded, Settings};
use tributary_server::roles::{Elsewhere, Hosted, Parts, Role, host};
use tributary_server::serve::Options;
use tributary_store::MemoryStore;
use tributary_testkit::{HeldStores, Hold};
use tributary_types::pipeline::{Pipeline, Span};
use tributary_types::{BatchName, Code, Outcome, Retry, SourceName, Stage, SystemClock, SystemEntropy};

use crate::support::{
    Lake, assert_sound, checkpoints, open, pipeline, request_of, roles, roles_with, run, value_table, values,
};

const SOON: Duration = Duration::from_secs(20);

async fn lake() -> (Lake, Pipeline) {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values((0..20).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    let pipeline = pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }));
    (lake, pipeline)
}

/// Roles whose writes of files that end so are held back.
fn held(suffix: &str, stop_within: Duration) -> (Embedded, Arc<Hold>) {
    let hold = Hold::of(suffix);
    let stores = Arc::new(HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold)));
    let roles = roles_with(stores, Arc::new(MemoryStore::default()), |settings| settings.stop_within = stop_within);
    (roles, hold)
}

async fn start(roles: &Embedded, pipeline: &Pipeline, request: &str) -> BatchName {
    roles.coordinator.run_batch(request_of(pipeline, request)).await.unwrap().name
}

async fn end(roles: &Embedded, name: &BatchName) -> BatchStatus {
    let mut watch = roles.coordinator.watch_batch(name).await.unwrap();
    tokio::time::timeout(SOON, watch.wait_for(|status| status.outcome.is_some())).await.unwrap().unwrap().clone()
}

/// Data files of the target and pending instants on it.
async fn left(lake: &Lake) -> (Vec<String>, usize) {
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let listed = storage.list("").await.unwrap();
    let data = listed.iter().filter(|e| e.path.ends_with(".parquet") && !e.path.starts_with(".hoodie"));
    let pending = timeline.instants().iter().filter(|instant| instant.is_pending()).count();
    (data.map(|entry| entry.path.clone()).collect(), pending)
}

async fn assert_commits_next(lake: &Lake, pipeline: &Pipeline) {
    let next = run(&roles(), pipeline, "next").await;
    assert_eq!(next.outcome, Some(Outcome::Committed), "{:?}", next.error);
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_batch_waits_for_what_it_has_under_way_and_rolls_back_at_once() {
    let (lake, pipeline) = lake().await;
    let (roles, hold) = held(".parquet", SOON);
    let name = start(&roles, &pipeline, "r").await;
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    let told = roles.coordinator.cancel_batch(&name).await.unwrap();
    assert_eq!((told.outcome, told.stage), (None, Stage::Merge));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let waiting = roles.coordinator.get_batch(&name).await.unwrap();
    assert_eq!(waiting.outcome, None, "a file is on its way to the store");
    hold.release();
    let ended = end(&roles, &name).await;
    assert_eq!(ended.outcome, Some(Outcome::Cancelled));
    let error = ended.error.as_ref().unwrap();
    assert_eq!((error.code, error.retry, error.reason.as_str()), (Code::Cancelled, Retry::Never, "CANCELLED"));
    assert_eq!(left(&lake).await, (Vec::new(), 0), "rolled back at once");
    assert_eq!(roles.coordinator.cancel_batch(&name).await.unwrap(), ended, "cancelling again changes nothing");
    assert_commits_next(&lake, &pipeline).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_ran_out_of_time_waits_for_what_it_has_under_way_and_rolls_back_at_once() {
    let (lake, mut pipeline) = lake().await;
    let (roles, hold) = held(".parquet", SOON);
    pipeline.limits.timeout = Span(Duration::from_secs(3));
    let name = start(&roles, &pipeline, "r").await;
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(roles.coordinator.get_batch(&name).await.unwrap().outcome, None, "a file is on its way to the store");
    hold.release();
    let ended = end(&roles, &name).await;
    let error = ended.error.unwrap();
    assert_eq!((ended.outcome, error.code, error.retry), (Some(Outcome::Failed), Code::Timeout, Retry::Again));
    assert!(error.message.contains("limits.timeout"), "{}", error.message);
    assert_eq!(left(&lake).await, (Vec::new(), 0), "rolled back at once");
    pipeline.limits.timeout = Span(Duration::from_secs(3600));
    assert_commits_next(&lake, &pipeline).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_stages_do_not_acknowledge_the_stop_is_left_to_the_next_one() {
    let (lake, pipeline) = lake().await;
    let (roles, hold) = held(".parquet", Duration::from_millis(200));
    let name = start(&roles, &pipeline, "r").await;
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    roles.coordinator.cancel_batch(&name).await.unwrap();
    assert_eq!(end(&roles, &name).await.outcome, Some(Outcome::Cancelled));
    assert_eq!(left(&lake).await.1, 1, "its instant stays pending: a file may still land");
    hold.release();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(left(&lake).await.0.len(), 1, "and it does");
    assert_commits_next(&lake, &pipeline).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_commits_is_not_cancelled_any_more() {
    let (lake, pipeline) = lake().await;
    let (roles, hold) = held(".commit", SOON);
    let name = start(&roles, &pipeline, "r").await;
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    let told = roles.coordinator.cancel_batch(&name).await.unwrap();
    assert_eq!((told.outcome, told.stage), (None, Stage::Commit));
    hold.release();
    assert_eq!(end(&roles, &name).await.outcome, Some(Outcome::Committed));
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_command_line_cancelling_succeeds_and_following_exits_as_a_cancelled_run() {
    let (lake, pipeline) = lake().await;
    let (roles, hold) = held(".parquet", SOON);
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        http: None,
        metrics: None,
        peers: Vec::new(),
        pulls: Default::default(),
    };
    let server = tributary_server::serve::start(Hosted::from(roles.clone()), options).await.unwrap();
    let at = || ServerArgs { server: format!("http://{}", server.address()) };
    let (name, output) = (start(&roles, &pipeline, "r").await.to_string(), Output::Json);
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    let dial = Dial::default();
    let (watched, cancelled, ()) = tokio::join!(
        batches(BatchesCommand::Watch { name: name.clone(), server: at(), output }, &dial),
        batches(BatchesCommand::Cancel { name: name.clone(), server: at(), output }, &dial),
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            hold.release();
        }
    );
    assert_eq!((watched.unwrap(), cancelled.unwrap()), (Outcome::Cancelled.exit_code(), 0));
    let next = start(&roles, &pipeline, "next").await;
    assert_eq!(end(&roles, &next).await.outcome, Some(Outcome::Committed));
    let late = batches(BatchesCommand::Cancel { name: next.to_string(), server: at(), output }, &dial);
    let late = late.await.unwrap_err();
    assert_eq!(late.exit_code, 1);
    assert!(late.message.contains("was not cancelled: it ended COMMITTED"), "{}", late.message);
    assert_sound(&lake.path("out"), "p").await;
}

/// A merge role with a bug.
struct Panicking(Arc<dyn Merge>);

#[async_trait]
impl Merge for Panicking {
    async fn bind(&self, sql: Option<String>, sources: Vec<SourceName>) -> Result<Vec<Bound>, Error> {
        self.0.bind(sql, sources).await
    }

    async fn check(&self, request: CheckRequest) -> Result<Checked, Error> {
        self.0.check(request).await
    }

    async fn run(&self, request: MergeRequest) -> Result<Merged, Error> {
        self.0.run(request).await?;
        panic!("a bug of the merge")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_batch_ends_it_and_the_next_one_clears_up() {
    let (lake, pipeline) = lake().await;
    let inner = roles();
    let elsewhere = Elsewhere {
        timeline: Some(inner.timeline.clone()),
        sources: Some(inner.sources.clone()),
        checkpoints: Some(inner.checkpoints.clone()),
        writer: Some(inner.writer.clone()),
        merge: Some(Arc::new(Panicking(inner.merge.clone()))),
    };
    let parts = Parts {
        stores: Arc::new(SystemStores::new()),
        store: Arc::new(MemoryStore::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let hosted = host(&[Role::Coordinator], &elsewhere, &parts, Settings::default()).unwrap();
    let broken = Embedded { coordinator: hosted.coordinator.unwrap(), ..inner };
    let name = start(&broken, &pipeline, "r").await;
    let ended = end(&broken, &name).await;
    let error = ended.error.unwrap();
    assert_eq!((ended.outcome, ended.stage), (Some(Outcome::Failed), Stage::Done));
    assert_eq!((error.reason.as_str(), error.retry), ("BATCH_LOST", Retry::Again));
    assert!(error.message.contains("a bug of the merge"), "{}", error.message);
    assert_eq!(left(&lake).await.1, 1, "its instant is there");
    assert_commits_next(&lake, &pipeline).await;
}
