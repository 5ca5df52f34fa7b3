// SPDX-License-Identifier: Apache-2.0
//! What a server knows of batches of an earlier process: from its records, and where those are lost from the target.

use std::sync::{Arc, Mutex};

use futures::TryStreamExt as _;
use serde_json::json;
use tributary_api::checkpoint::BatchRecord;
use tributary_api::coordinator::{BatchStatus, Error};
use tributary_api::{BatchObserver, Schemas};
use tributary_hudi::SystemStores;
use tributary_hudi::target::{LeaseSettings, LockOwner, acquire_lock};
use tributary_server::embedded::{Embedded, Settings, embed_observed};
use tributary_server::roles::{Elsewhere, Parts, Role, host};
use tributary_store::{KeyValue, MemoryStore, SledStore};
use tributary_testkit::{Fault, FaultPlan, FaultyStores};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Outcome, PipelineName, RequestId, Retry, Stage, SystemClock, SystemEntropy};

use crate::support::{Lake, json_rows, pipeline, request_of, roles, roles_with, run, value_table, values};

const SOON: std::time::Duration = std::time::Duration::from_secs(30);

fn job(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

async fn add_row(lake: &Lake, id: &str) {
    let roles = roles();
    let url = lake.path("src");
    let source = if lake.dir().join("src").exists() {
        let clock = Arc::new(SystemClock);
        let schema = values([]).schema();
        let stores = SystemStores::new();
        tributary_server::bench::source::SourceTable::open(&stores, roles.writer.clone(), clock, &url, schema)
            .await
            .unwrap()
    } else {
        value_table(&roles, &url).await
    };
    source.upsert(vec![values([(id.to_string(), 1)])]).await.unwrap();
}

/// A server over records that outlive it.
fn server(store: &Arc<MemoryStore>) -> Embedded {
    roles_with(Arc::new(SystemStores::new()), Arc::clone(store) as Arc<dyn KeyValue>, |_| {})
}

async fn listed(roles: &Embedded) -> Vec<BatchStatus> {
    roles.coordinator.list_batches(None, 100).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_batches_are_listed_got_and_followed_as_before() {
    let lake = Lake::new();
    add_row(&lake, "a").await;
    let store = Arc::new(MemoryStore::default());
    let before = server(&store);
    let mut ended = vec![run(&before, &job(&lake), "r1").await, run(&before, &job(&lake), "r2").await];
    let mut broken = job(&lake);
    broken.sources[0].path = lake.path("nowhere");
    ended.push(run(&before, &broken, "r3").await);
    ended.reverse();
    assert_eq!(
        ended.iter().map(|status| status.outcome.unwrap()).collect::<Vec<_>>(),
        [Outcome::Failed, Outcome::NoNewData, Outcome::Committed],
        "{:?}",
        ended[0].error
    );
    assert_eq!(listed(&before).await, ended);

    let after = server(&store);
    assert_eq!(listed(&after).await, ended);
    assert_eq!(after.coordinator.list_batches(None, 2).await.unwrap(), ended[..2]);
    let other = PipelineName::new("q").unwrap();
    assert!(after.coordinator.list_batches(Some(&other), 10).await.unwrap().is_empty());
    for status in &ended {
        assert_eq!(&after.coordinator.get_batch(&status.name).await.unwrap(), status);
        assert_eq!(&*after.coordinator.watch_batch(&status.name).await.unwrap().borrow(), status);
        assert_eq!(&after.coordinator.cancel_batch(&status.name).await.unwrap(), status, "it is over");
    }
    let committed = &ended[2];
    assert!(committed.asked_by.starts_with("a test"), "{}", committed.asked_by);
    assert!(committed.sources[0].window.is_some() && !committed.timings.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_answer_for_good_and_one_definition_also_after_a_restart() {
    let lake = Lake::new();
    add_row(&lake, "a").await;
    let store = Arc::new(MemoryStore::default());
    let before = server(&store);
    let committed = run(&before, &job(&lake), "r1").await;
    let idle = run(&before, &job(&lake), "r2").await;
    assert_eq!(idle.outcome, Some(Outcome::NoNewData));
    let mut broken = job(&lake);
    broken.target.record_key = vec!["nope".to_string()];
    assert_eq!(run(&before, &broken, "r3").await.outcome, Some(Outcome::Rejected));
    add_row(&lake, "b").await;

    let after = server(&store);
    assert_eq!(run(&after, &job(&lake), "r1").await, committed);
    assert_eq!(run(&after, &job(&lake), "r2").await, idle, "there is news now, but the request was answered");
    let refused = after.coordinator.run_batch(request_of(&broken, "r1")).await.unwrap_err();
    assert!(matches!(&refused, Error::RequestReused { request } if request.as_str() == "r1"), "{refused:?}");
    let again = run(&after, &broken, "r3").await;
    assert!(again.started_millis > idle.started_millis, "one that failed may be asked for again");
    let ids: Vec<String> = listed(&after).await.iter().map(|status| status.request.to_string()).collect();
    assert_eq!(ids, ["r3", "r2", "r1"], "each request is there once");
}

async fn pulled(roles: &Embedded, name: &BatchName) -> Result<Vec<String>, Error> {
    let opened = roles.coordinator.open_batch(name).await?;
    Ok(json_rows(&opened.rows.try_collect::<Vec<_>>().await.unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_a_batch_is_pulled_from_the_target_until_it_is_cleaned() {
    let lake = Lake::new();
    add_row(&lake, "a").await;
    let store = Arc::new(MemoryStore::default());
    let before = server(&store);
    let first = run(&before, &job(&lake), "r1").await;
    add_row(&lake, "b").await;
    let second = run(&before, &job(&lake), "r2").await;
    let idle = run(&before, &job(&lake), "r3").await;
    let expected = (pulled(&before, &first.name).await.unwrap(), pulled(&before, &second.name).await.unwrap());
    assert_eq!((expected.0.len(), expected.1.len()), (1, 1));

    let after = server(&store);
    assert_eq!(pulled(&after, &first.name).await.unwrap(), expected.0);
    assert_eq!(pulled(&after, &second.name).await.unwrap(), expected.1);
    let nothing = pulled(&after, &idle.name).await.unwrap_err();
    assert!(matches!(&nothing, Error::Gone { what, .. } if what.contains("committed nothing")), "{nothing:?}");
    for entry in std::fs::read_dir(lake.path("out")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "parquet") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let cleaned = server(&store);
    for name in [&first.name, &second.name] {
        let gone = cleaned.coordinator.open_batch(name).await.err().unwrap();
        assert!(matches!(&gone, Error::Gone { what, .. } if what.contains("cleaned")), "{gone:?}");
    }
}

/// Who is told of ends that were found out.
#[derive(Default)]
struct Found(Mutex<Vec<(String, BatchName, Option<Outcome>)>>);

impl BatchObserver for Found {
    fn began(&self, _: &Pipeline, _: &BatchStatus) {}

    fn planned(&self, _: &Pipeline, _: &BatchStatus, _: Schemas) {}

    fn ended(&self, _: &Pipeline, _: &BatchStatus) {}

    fn found_out(&self, target: &str, status: &BatchStatus) {
        self.0.lock().unwrap().push((target.to_string(), status.name.clone(), status.outcome));
    }
}

fn observed(store: &Arc<MemoryStore>, observer: &Arc<Found>) -> Embedded {
    let stores = Arc::new(SystemStores::new());
    let store = Arc::clone(store) as Arc<dyn KeyValue>;
    let observer = Arc::clone(observer) as Arc<dyn BatchObserver>;
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    embed_observed(stores, store, clock, entropy, Settings::default(), Some(observer))
}

/// The record of a batch that ran when its server died.
fn cut_off(lake: &Lake, like: &BatchRecord, request: &str) -> BatchRecord {
    let mut record = like.clone();
    record.status.name = BatchName::new(format!("p/{request}")).unwrap();
    record.status.request = RequestId::new(request).unwrap();
    record.status.stage = Stage::Merge;
    record.status.outcome = None;
    record.status.instant = None;
    record.status.completed = None;
    record.status.seq = None;
    record.target = lake.path("out");
    record.process = "another".to_string();
    record
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_was_cut_off_committed_where_the_target_says_so_and_else_failed() {
    let lake = Lake::new();
    add_row(&lake, "a").await;
    let store = Arc::new(MemoryStore::default());
    let before = server(&store);
    let committed = run(&before, &job(&lake), "r1").await;
    let name = PipelineName::new("p").unwrap();
    let known = before.checkpoints.find_request(&name, &committed.request).await.unwrap().unwrap();
    // The server died before it knew, and before another batch had begun its instant.
    before.checkpoints.record(cut_off(&lake, &known, "r1")).await.unwrap();
    before.checkpoints.record(cut_off(&lake, &known, "r9")).await.unwrap();

    let observer = Arc::new(Found::default());
    let after = observed(&store, &observer);
    let found = after.coordinator.get_batch(&committed.name).await.unwrap();
    assert_eq!((found.outcome, &found.instant, found.seq), (Some(Outcome::Committed), &committed.instant, Some(1)));
    assert_eq!(found.completed, committed.completed);
    let lost = after.coordinator.get_batch(&BatchName::new("p/r9").unwrap()).await.unwrap();
    assert_eq!((lost.outcome, lost.stage), (Some(Outcome::Failed), Stage::Done));
    let error = lost.error.unwrap();
    assert_eq!((error.reason.as_str(), error.retry), ("BATCH_LOST", Retry::Again));
    assert!(error.message.contains("run it again"), "{}", error.message);
    let kept = after.checkpoints.find_request(&name, &committed.request).await.unwrap().unwrap();
    assert_eq!(kept.status.outcome, Some(Outcome::Committed), "what was found out is kept");
    listed(&after).await;
    let told = observer.0.lock().unwrap().clone();
    let expected = [(committed.name, Outcome::Committed), (lost.name, Outcome::Failed)];
    assert_eq!(told, expected.map(|(name, outcome)| (lake.path("out"), name, Some(outcome))), "once each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_runs_in_another_process_is_not_called_lost() {
    let lake = Lake::new();
    add_row(&lake, "a").await;
    let store = Arc::new(MemoryStore::default());
    let before = server(&store);
    let committed = run(&before, &job(&lake), "r1").await;
    let name = PipelineName::new("p").unwrap();
    let known = before.checkpoints.find_request(&name, &committed.request).await.unwrap().unwrap();
    before.checkpoints.record(cut_off(&lake, &known, "r9")).await.unwrap();
    let (storage, _, _) = crate::support::open(&lake.path("out")).await;
    let owner = LockOwner { name: "other".to_string(), clock: Arc::new(SystemClock), leases: LeaseSettings::default() };
    let lock = acquire_lock(&storage, &owner, std::time::Duration::ZERO).await.unwrap();
    let after = server(&store);
    let r9 = BatchName::new("p/r9").unwrap();
    assert_eq!(after.coordinator.get_batch(&r9).await.unwrap().outcome, None, "its target's lock is held");
    let mut watch = after.coordinator.watch_batch(&r9).await.unwrap();
    assert!(watch.has_changed().is_ok(), "somebody tells how it goes on");
    drop(lock);
    let ended = tokio::time::timeout(SOON, watch.wait_for(|status| status.outcome.is_some())).await;
    assert_eq!(ended.unwrap().unwrap().outcome, Some(Outcome::Failed));
    assert!(watch.changed().await.is_err(), "it is over");
    assert_eq!(after.coordinator.get_batch(&r9).await.unwrap().outcome, Some(Outcome::Failed));
}

/// A server whose process dies at the operation that completes the commit, before it or after it.
async fn dies_committing(lake: &Lake, store: &Arc<MemoryStore>, fault: Fault) -> BatchStatus {
    let faulty = |plan: &Arc<FaultPlan>, store: Arc<MemoryStore>| {
        let stores = FaultyStores::new(Arc::new(SystemStores::new()), Arc::clone(plan));
        roles_with(Arc::new(stores), store, |_| {})
    };
    let plan = FaultPlan::none();
    let copy = lake.copy();
    let counted = run(&faulty(&plan, Arc::default()), &job(&copy), "counted").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed));
    // The last operations only tidy up: the one that completes the commit is the last whose failure leaves it unknown.
    for number in (0..plan.operations()).rev() {
        let copy = lake.copy();
        let ended = run(&faulty(&FaultPlan::at(number, fault), Arc::default()), &job(&copy), "trial").await;
        if ended.outcome == Some(Outcome::Unknown) {
            return run(&faulty(&FaultPlan::at(number, fault), Arc::clone(store)), &job(lake), "r1").await;
        }
    }
    panic!("no operation leaves the outcome unknown")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_commit_is_read_back_when_its_batch_is_asked_for() {
    for (fault, expected) in [(Fault::CrashAfter, Outcome::Committed), (Fault::CrashBefore, Outcome::Failed)] {
        let lake = Lake::new();
        add_row(&lake, "a").await;
        let store = Arc::new(MemoryStore::default());
        let unknown = dies_committing(&lake, &store, fault).await;
        assert_eq!(unknown.outcome, Some(Outcome::Unknown), "{:?}", unknown.error);
        let after = server(&store);
        let read_back = after.coordinator.get_batch(&unknown.name).await.unwrap();
        if fault == Fault::CrashBefore {
            assert_eq!(read_back.outcome, Some(Outcome::Unknown), "a completing request may still be on its way");
            // The next batch rolls its instant back.
            assert_eq!(run(&after, &job(&lake), "r2").await.outcome, Some(Outcome::Committed));
        }
        let found = after.coordinator.get_batch(&unknown.name).await.unwrap();
        assert_eq!(found.outcome, Some(expected), "{fault:?}");
        assert!(listed(&after).await.contains(&found));
    }
}

fn parts(store: Arc<dyn KeyValue>) -> Parts {
    Parts {
        stores: Arc::new(SystemStores::new()),
        store,
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn starting_up_repairs_stale_records_and_says_what_became_of_cut_off_batches() {
    let lake = Lake::new();
    add_row(&lake, "a").await;
    let disk = tempfile::tempdir().unwrap();
    let store: Arc<dyn KeyValue> = Arc::new(SledStore::open(disk.path()).unwrap());
    let all =
        |store: Arc<dyn KeyValue>| host(&Role::ALL, &Elsewhere::default(), &parts(store), Settings::default()).unwrap();
    let before = all(Arc::clone(&store));
    assert!(before.start_up().await.is_empty(), "nothing is known yet");
    let coordinator = before.coordinator.clone().unwrap();
    let started = coordinator.run_batch(request_of(&job(&lake), "r1")).await.unwrap();
    let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
    watch.wait_for(|status| status.outcome == Some(Outcome::Committed)).await.unwrap();
    let name = PipelineName::new("p").unwrap();
    let records = before.checkpoints.clone().unwrap();
    let known = records.find_request(&name, &started.request).await.unwrap().unwrap();
    records.record(cut_off(&lake, &known, "r9")).await.unwrap();
    drop((watch, coordinator, records, before, store));
    // Another process, with other records, went on meanwhile.
    add_row(&lake, "b").await;
    let elsewhere = run(&roles(), &job(&lake), "r2").await;
    assert_eq!(elsewhere.outcome, Some(Outcome::Committed));

    let again: Arc<dyn KeyValue> = Arc::new(SledStore::open(disk.path()).unwrap());
    let after = all(Arc::clone(&again));
    let said = after.start_up().await.join("\n");
    assert!(said.contains("pipeline `p`") && said.contains("is behind the target"), "{said}");
    assert!(said.contains("batch `p/r9`") && said.contains("FAILED"), "{said}");
    assert!(after.start_up().await.is_empty(), "all is repaired");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_lost_records_the_target_answers_a_request_with_its_commit() {
    let lake = Lake::new();
    add_row(&lake, "a").await;
    let committed = run(&roles(), &job(&lake), "r1").await;
    let fresh = roles();
    assert!(listed(&fresh).await.is_empty());
    let found = run(&fresh, &job(&lake), "r1").await;
    assert_eq!((found.outcome, &found.instant, found.seq), (Some(Outcome::Committed), &committed.instant, Some(1)));
    assert_eq!(found.sources[0].window, committed.sources[0].window);
    assert_eq!(pulled(&fresh, &found.name).await.unwrap().len(), 1);
}
