// SPDX-License-Identifier: Apache-2.0
//! Targets on a shared object store, where a lease that others can see takes the place of the file lock.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tributary_api::coordinator::BatchStatus;
use tributary_hudi::{Storage, Stores};
use tributary_server::bench::source::SourceTable;
use tributary_server::embedded::Embedded;
use tributary_testkit::{FAULTS, Fault, FaultPlan, FaultyStores, HeldStores, Hold, ManualClock, MemoryStores};
use tributary_types::pipeline::{Pipeline, Writers};
use tributary_types::{Clock, Outcome, SystemClock};

use crate::support::{assert_sound_in, checkpoints_in, open_in, pipeline, roles_at, rows, run, value_table_in, values};

const SOURCE: &str = "memory://lake/src";
const TARGET: &str = "memory://lake/out";
const LOCK: &str = ".hoodie/.locks/table_lock.json";
/// Longer than any lease.
const LATER_MILLIS: i64 = 600_000;

fn job() -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": SOURCE, "start": "snapshot"}],
        "target": {"path": TARGET, "table_name": "out", "record_key": ["id"]},
    }))
}

/// The machine's time, moved: what a restart after some minutes sees.
fn clock_ahead(millis: i64) -> Arc<dyn Clock> {
    Arc::new(ManualClock::at(SystemClock.now_millis() + millis))
}

fn roles_in(stores: &MemoryStores) -> Embedded {
    roles_at(Arc::new(stores.clone()), Arc::new(SystemClock))
}

/// A source of two commits, of which the target has the first.
async fn prepare() -> (MemoryStores, Vec<String>) {
    let stores = MemoryStores::new();
    let roles = roles_in(&stores);
    let source = value_table_in(&stores, &roles, SOURCE).await;
    source.upsert(vec![values((0..20).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    assert_eq!(run(&roles, &job(), "before").await.outcome, Some(Outcome::Committed));
    source.upsert(vec![values((10..30).map(|n| (format!("k{n}"), n * 11)))]).await.unwrap();
    let expected = rows(&roles, SOURCE).await;
    (stores, expected)
}

async fn lock_file(stores: &MemoryStores) -> serde_json::Value {
    let (storage, _, _) = open_in(stores, TARGET).await;
    serde_json::from_slice(&storage.read(LOCK).await.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_gives_the_lease_back() {
    let (stores, expected) = prepare().await;
    let roles = roles_in(&stores);
    assert_eq!(run(&roles, &job(), "batch").await.outcome, Some(Outcome::Committed));
    assert_eq!(rows(&roles, TARGET).await, expected);
    assert_eq!(lock_file(&stores).await["expired"], json!(true));
    assert_sound_in(&stores, TARGET, "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_another_writer_keeps_the_batch_out_until_its_time_is_up() {
    let (stores, _) = prepare().await;
    let (storage, _, _) = open_in(&stores, TARGET).await;
    let until = SystemClock.now_millis() + 60_000;
    let foreign = json!({"expired": false, "validUntil": until, "owner": "a Spark writer"});
    storage.put(LOCK, foreign.to_string().into_bytes()).await.unwrap();
    let mut impatient = job();
    impatient.limits.timeout = "1s".parse().unwrap();
    let refused = run(&roles_in(&stores), &impatient, "early").await;
    assert_eq!(refused.outcome, Some(Outcome::Conflict), "{:?}", refused.error);
    assert!(refused.error.unwrap().message.contains("held the target's lock"));
    let later = roles_at(Arc::new(stores.clone()), clock_ahead(LATER_MILLIS));
    assert_eq!(run(&later, &impatient, "late").await.outcome, Some(Outcome::Committed));
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_other_writers_their_lease_is_free_while_rows_are_staged_and_ours_is_held() {
    let (stores, expected) = prepare().await;
    let mut shared = job();
    shared.target.writers = Writers::Shared;
    let hold = Hold::of(".marker.MERGE");
    let held = HeldStores::new(Arc::new(stores.clone()), Arc::clone(&hold));
    let held = roles_at(Arc::new(held), Arc::new(SystemClock));
    let (ended, ()) = tokio::join!(run(&held, &shared, "batch"), async {
        hold.reached(1).await;
        assert_eq!(lock_file(&stores).await["expired"], json!(true));
        let (storage, _, _) = open_in(&stores, TARGET).await;
        let ours = storage.read(".hoodie/.locks/tributary_lock.json").await.unwrap();
        let ours: serde_json::Value = serde_json::from_slice(&ours).unwrap();
        assert_eq!(ours["expired"], json!(false));
        hold.release();
    });
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    assert_eq!(rows(&held, TARGET).await, expected);
    assert_eq!(lock_file(&stores).await["expired"], json!(true));
    assert_sound_in(&stores, TARGET, "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_at_once_commit_one_batch() {
    let (stores, expected) = prepare().await;
    let (first, second) = (roles_in(&stores), roles_in(&stores));
    let (job_a, job_b) = (job(), job());
    let (a, b) = tokio::join!(run(&first, &job_a, "a"), run(&second, &job_b, "b"));
    let mut outcomes = [a.outcome.unwrap().as_str(), b.outcome.unwrap().as_str()];
    outcomes.sort_unstable();
    assert_eq!(outcomes, [Outcome::Committed.as_str(), Outcome::NoNewData.as_str()]);
    assert_eq!(rows(&first, TARGET).await, expected);
    assert_sound_in(&stores, TARGET, "p").await;
}

/// One fault, a restart after the dead process's lease is over, another run, and a look.
async fn explore_one(template: &MemoryStores, expected: &[String], case: &str, number: u64, fault: Fault) {
    let stores = template.fork();
    let plan = FaultPlan::at(number, fault);
    let faulty: Arc<dyn Stores> = Arc::new(FaultyStores::new(Arc::new(stores.clone()), Arc::clone(&plan)));
    let mut hurried = job();
    hurried.limits.timeout = "2s".parse().unwrap();
    let first = run(&roles_at(faulty, Arc::new(SystemClock)), &hurried, "batch").await;
    assert!(plan.operations() > number, "{case}: the operation was not reached");
    let restarted = roles_at(Arc::new(stores.clone()), clock_ahead(LATER_MILLIS));
    let again = run(&restarted, &job(), "batch").await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{case}: first {:?}, then {:?}", first.error, again.error);
    if first.outcome == Some(Outcome::Committed) {
        assert_eq!(first.instant, again.instant, "{case}: the same request has the same answer");
    }
    assert_eq!(rows(&restarted, TARGET).await, expected, "{case}");
    assert_eq!(checkpoints_in(&stores, TARGET, "p").await.len(), 2, "{case}: one commit for the window");
    assert_sound_in(&stores, TARGET, "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_under_a_lease_survives_every_fault_of_every_operation() {
    let (template, expected) = prepare().await;
    let plan = FaultPlan::none();
    let faulty: Arc<dyn Stores> = Arc::new(FaultyStores::new(Arc::new(template.fork()), Arc::clone(&plan)));
    let counted = run(&roles_at(faulty, Arc::new(SystemClock)), &job(), "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    let operations = plan.operations();
    for number in 0..operations {
        for fault in FAULTS {
            let case = format!("operation {number} of {operations}, {fault:?}");
            tokio::time::timeout(Duration::from_secs(60), explore_one(&template, &expected, &case, number, fault))
                .await
                .unwrap_or_else(|_| panic!("{case}: no end"));
        }
    }
    println!("under a lease: {operations} operations, {} cases passed", operations * FAULTS.len() as u64);
}

/// Stores in which something happens when the source is looked at next: after the cursors were looked up, before the
/// instant is begun.
struct Meanwhile {
    stores: MemoryStores,
    looks: AtomicUsize,
    event: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Stores for Meanwhile {
    fn open(&self, url: &str) -> tributary_hudi::Result<Storage> {
        // The first look only finds out where the source is.
        let looked = url == SOURCE && self.looks.fetch_add(1, Ordering::SeqCst) == 1;
        let event = looked.then(|| self.event.lock().unwrap().take()).flatten();
        if let Some(event) = event {
            event();
        }
        self.stores.open(url)
    }
}

/// Runs a batch whose lock keeps nobody out, with `event` between its look at the cursors and its begin.
async fn run_around(stores: &MemoryStores, event: impl Future<Output = ()> + Send + 'static) -> BatchStatus {
    let handle = tokio::runtime::Handle::current();
    let event = move || tokio::task::block_in_place(|| handle.block_on(event));
    let event: Box<dyn FnOnce() + Send> = Box::new(event);
    let (looks, event) = (AtomicUsize::new(0), Mutex::new(Some(event)));
    let meanwhile = Meanwhile { stores: stores.without_locks(), looks, event };
    let meanwhile = Arc::new(meanwhile);
    let ended = run(&roles_at(Arc::clone(&meanwhile) as _, Arc::new(SystemClock)), &job(), "slow").await;
    assert!(meanwhile.event.lock().unwrap().is_none(), "it happened");
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_lock_lies_the_gate_sees_a_commit_that_moved_the_cursors_before_the_batch_began() {
    let (stores, expected) = prepare().await;
    let other = stores.without_locks();
    let quick = async move {
        let roles = roles_at(Arc::new(other), Arc::new(SystemClock));
        assert_eq!(run(&roles, &job(), "quick").await.outcome, Some(Outcome::Committed));
    };
    let slow = run_around(&stores, quick).await;
    assert_eq!(slow.outcome, Some(Outcome::Conflict), "{:?}", slow.error);
    assert!(slow.error.unwrap().message.contains("moved this pipeline's cursors"));
    assert_eq!(rows(&roles_in(&stores), TARGET).await, expected);
    assert_sound_in(&stores, TARGET, "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_lock_lies_the_gate_sees_a_foreign_commit_from_before_the_batch_began() {
    let (stores, _) = prepare().await;
    let other = stores.without_locks();
    let foreign = async move {
        let roles = roles_at(Arc::new(other.clone()), Arc::new(SystemClock));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let schema = values([]).schema();
        let table = SourceTable::open(&other, roles.writer.clone(), clock, TARGET, schema).await.unwrap();
        table.upsert(vec![values([("foreign".to_string(), 1)])]).await.unwrap();
    };
    let slow = run_around(&stores, foreign).await;
    assert_eq!(slow.outcome, Some(Outcome::Conflict), "{:?}", slow.error);
    assert!(slow.error.unwrap().message.contains("exclusive"));
    assert_eq!(checkpoints_in(&stores, TARGET, "p").await.len(), 1, "no cursor moved");
}
