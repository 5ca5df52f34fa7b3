// SPDX-License-Identifier: Apache-2.0
//! Targets that other writers write too: `target.writers = "shared"`. What they do here they do while a batch of ours is
//! being staged: after it pinned the state that its keys are looked up in, before it asks the gate.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use serde_json::{Value, json};
use tributary_api::coordinator::BatchStatus;
use tributary_hudi::target::{
    Compaction, FileChange, Owner, begin_compaction, complete_instant, find_compactable, mint_instant, resume_rollback,
    rollback_instant, write_delta, write_heartbeat,
};
use tributary_hudi::{
    Action, BaseFile, CommitMetadata, LogFile, SystemStores, WriteStat, avro_schema, base_file_name, base_file_schema,
    current_file_slices, inflight_path, requested_path,
};
use tributary_server::bench::source::SourceTable;
use tributary_server::embedded::Embedded;
use tributary_store::MemoryStore;
use tributary_testkit::{Fault, FaultPlan, FaultyStores, HeldStores, Hold};
use tributary_types::pipeline::{InsertConflict, Operation, Pipeline, Writers};
use tributary_types::{Clock, InstantTime, MemoryBudget, Outcome, PipelineName, Retry, SystemClock};

use crate::support::{
    Lake, assert_sound, checkpoints, open, open_value_table, pipeline, roles, roles_over, roles_with, rows, run,
    value_table, values,
};

const SQL: &str = "SELECT id, value, CASE WHEN id < 'k50' THEN 'a' ELSE 'b' END AS part FROM <SRC>";
/// The lock of Hudi's `FileSystemBasedLockProvider`.
const LOCK: &str = ".hoodie/lock";
/// The first write of a batch that updates a group of files, and of one that only adds some.
const UPDATES: &str = ".marker.MERGE";
const ADDS: &str = ".marker.CREATE";

/// New keys always make new groups, and no table service comes in between.
fn job(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "transform": [{"sql": SQL}],
        "target": {
            "path": lake.path("out"), "table_name": "out", "record_key": ["id"], "partition_by": ["part"],
            "writers": "shared", "small_file_limit": 0,
            "services": {"clean_commits": 0, "archive_commits": 0, "compact_metadata_commits": 0,
                         "compact_delta_commits": 0},
        },
    }))
}

fn merge_on_read(lake: &Lake) -> Pipeline {
    let mut job = job(lake);
    job.target.table_type = tributary_types::pipeline::TableType::MergeOnRead;
    job
}

/// A target of two partitions with one group each: `k10` to `k19` in `a`, `k60` to `k69` in `b`.
async fn prepare(job: impl Fn(&Lake) -> Pipeline) -> (Lake, Pipeline) {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values((10..20).chain(60..70).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    let job = job(&lake);
    let first = run(&roles, &job, "first").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    (lake, job)
}

/// What the next batch brings.
async fn upsert(lake: &Lake, keys: &[&str], value: i64) {
    let table = open_value_table(&roles(), &lake.path("src")).await;
    table.upsert(vec![values(keys.iter().map(|key| ((*key).to_string(), value)))]).await.unwrap();
}

fn target_rows(keys: &[&str], value: i64) -> RecordBatch {
    let part = |key: &&str| if *key < "k50" { "a" } else { "b" };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(StringArray::from_iter_values(keys))),
        ("value", Arc::new(Int64Array::from(vec![value; keys.len()]))),
        ("part", Arc::new(StringArray::from_iter_values(keys.iter().map(part)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

/// Another writer's commit of rows; answers its instant.
async fn foreign_rows(lake: &Lake, keys: &[&str], value: i64, operation: Operation) -> InstantTime {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let rows = target_rows(keys, value);
    let writer = roles().writer.clone();
    let table = SourceTable::open(&SystemStores::new(), writer, clock, &lake.path("out"), rows.schema()).await.unwrap();
    table.commit(vec![rows], operation).await.unwrap().requested
}

/// An instant for another writer.
async fn fresh_instant(lake: &Lake) -> InstantTime {
    let (_, config, timeline) = open(&lake.path("out")).await;
    mint_instant(SystemClock.now_millis(), config.zone, timeline.latest_time())
}

/// Another writer's commit that is made by hand.
async fn foreign_commit(
    lake: &Lake,
    instant: &InstantTime,
    action: Action,
    metadata: CommitMetadata,
    changes: &[FileChange],
) {
    let (storage, config, _) = open(&lake.path("out")).await;
    let directory = config.timeline_dir();
    storage.put(&requested_path(&directory, instant, action), "").await.unwrap();
    storage.put(&inflight_path(&directory, instant, action), "").await.unwrap();
    let delta = instant.successor();
    write_delta(&storage, instant, &delta, changes).await.unwrap();
    let bytes = metadata.encode().unwrap();
    complete_instant(&storage, &directory, instant, &delta.successor(), action.completed(), bytes).await.unwrap();
}

/// The base files of a partition.
async fn bases(lake: &Lake, partition: &str) -> Vec<BaseFile> {
    let (storage, config, timeline) = open(&lake.path("out")).await;
    let slices = current_file_slices(&storage, &config, &timeline).await.unwrap();
    slices.into_iter().filter_map(|slice| slice.base).filter(|base| base.partition == partition).collect()
}

/// The rows of the target, `id` to value; a key that is there twice is there twice.
async fn target(lake: &Lake) -> Vec<(String, i64)> {
    let found = rows(&roles(), &lake.path("out")).await;
    let one = |row: &String| {
        let row: Value = serde_json::from_str(row).unwrap();
        (row["id"].as_str().unwrap().to_string(), row["value"].as_i64().unwrap())
    };
    found.iter().map(one).collect()
}

async fn value_of(lake: &Lake, key: &str) -> Vec<i64> {
    target(lake).await.into_iter().filter(|(id, _)| id == key).map(|(_, value)| value).collect()
}

/// Runs a batch with `event` while its first file of a kind is about to be announced.
async fn run_around<T>(job: &Pipeline, request: &str, at: &str, event: impl Future<Output = T>) -> (BatchStatus, T) {
    let hold = Hold::of(at);
    let held = roles_over(Arc::new(HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold))));
    let meanwhile = async {
        hold.reached(1).await;
        let happened = event.await;
        hold.release();
        happened
    };
    tokio::join!(run(&held, job, request), meanwhile)
}

fn assert_conflict(ended: &BatchStatus, parts: &[&str]) {
    assert_eq!(ended.outcome, Some(Outcome::Conflict), "{:?}", ended.error);
    let error = ended.error.as_ref().unwrap();
    assert_eq!((error.reason.as_str(), error.retry), ("WRITER_CONFLICT", Retry::Rebase));
    for part in parts {
        assert!(error.message.contains(part), "`{part}` missing in: {}", error.message);
    }
}

/// The batch is run again and commits; a further one finds nothing, and nothing is left over.
async fn assert_goes_on(lake: &Lake, job: &Pipeline) {
    let roles = roles();
    let again = run(&roles, job, "again").await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{:?}", again.error);
    assert_at_rest(lake, job).await;
}

async fn assert_at_rest(lake: &Lake, job: &Pipeline) {
    assert_eq!(run(&roles(), job, "idle").await.outcome, Some(Outcome::NoNewData));
    assert_sound(&lake.path("out"), "p").await;
    assert!(!Path::new(&lake.path("out")).join(LOCK).exists(), "the lock is given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn upserts_of_different_groups_both_stand() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60", "k61"], 600).await;
    let (ended, _) = run_around(&job, "r", UPDATES, foreign_rows(&lake, &["k10"], 100, Operation::Upsert)).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    let found: BTreeMap<String, i64> = target(&lake).await.into_iter().collect();
    assert_eq!((found["k10"], found["k11"], found["k60"], found["k62"]), (100, 11, 600, 62));
    assert_at_rest(&lake, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upserts_of_the_same_group_conflict_and_the_next_batch_goes_on() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60"], 600).await;
    let event = foreign_rows(&lake, &["k60", "k61"], 700, Operation::Upsert);
    let (ended, theirs) = run_around(&job, "r", UPDATES, event).await;
    assert_conflict(&ended, &[theirs.as_str(), "UPSERT", "file group `part=b/", "Run again"]);
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1, "no cursor moved");
    assert_eq!(value_of(&lake, "k60").await, [700]);
    assert_goes_on(&lake, &job).await;
    assert_eq!((value_of(&lake, "k60").await, value_of(&lake, "k61").await), (vec![600], vec![700]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_writer_committed_between_two_batches_is_no_conflict() {
    let (lake, job) = prepare(job).await;
    foreign_rows(&lake, &["k60", "k99"], 700, Operation::Upsert).await;
    upsert(&lake, &["k60", "k99"], 600).await;
    assert_goes_on(&lake, &job).await;
    assert_eq!((value_of(&lake, "k60").await, value_of(&lake, "k99").await), (vec![600], vec![600]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_of_both_is_a_conflict_or_there_twice_where_that_is_accepted() {
    let (lake, mut job) = prepare(job).await;
    upsert(&lake, &["k70"], 600).await;
    let event = foreign_rows(&lake, &["k70"], 700, Operation::Upsert);
    let (ended, theirs) = run_around(&job, "r", ADDS, event).await;
    assert_conflict(&ended, &[theirs.as_str(), "partition `part=b`", "target.insert_conflict"]);
    assert_goes_on(&lake, &job).await;
    assert_eq!(value_of(&lake, "k70").await, [600]);

    job.target.insert_conflict = InsertConflict::Allow;
    upsert(&lake, &["k80"], 600).await;
    let (ended, _) = run_around(&job, "r2", ADDS, foreign_rows(&lake, &["k80"], 700, Operation::Insert)).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    let mut twice = value_of(&lake, "k80").await;
    twice.sort_unstable();
    assert_eq!(twice, [600, 700]);
}

#[tokio::test(flavor = "multi_thread")]
async fn inserts_of_both_stand_where_no_key_is_looked_up() {
    let (lake, mut job) = prepare(job).await;
    job.target.operation = Operation::Insert;
    upsert(&lake, &["k70"], 600).await;
    let (ended, _) = run_around(&job, "r", ADDS, foreign_rows(&lake, &["k71"], 700, Operation::Insert)).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    assert_eq!((value_of(&lake, "k70").await, value_of(&lake, "k71").await), (vec![600], vec![700]));
    assert_at_rest(&lake, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_conflicts_with_rows_that_came_into_its_partition() {
    let (lake, mut job) = prepare(job).await;
    job.target.operation = Operation::InsertOverwrite;
    upsert(&lake, &["k61"], 600).await;
    let (ended, theirs) = run_around(&job, "r", ADDS, foreign_rows(&lake, &["k99"], 700, Operation::Insert)).await;
    assert_conflict(&ended, &[theirs.as_str(), "INSERT", "partition `part=b`"]);
    assert_eq!(value_of(&lake, "k99").await, [700]);
    assert_goes_on(&lake, &job).await;
    assert_eq!((value_of(&lake, "k99").await, value_of(&lake, "k61").await), (vec![], vec![600]));
}

async fn delete_partition(lake: &Lake, partition: &str) -> InstantTime {
    let groups = bases(lake, partition).await.into_iter().map(|base| base.file_id).collect();
    let metadata = CommitMetadata {
        operation: "DELETE_PARTITION".to_string(),
        replaced: [(partition.to_string(), groups)].into(),
        extra: [("schema".to_string(), schema())].into(),
        ..CommitMetadata::default()
    };
    let instant = fresh_instant(lake).await;
    foreign_commit(lake, &instant, Action::ReplaceCommit, metadata, &[]).await;
    instant
}

fn schema() -> String {
    avro_schema("out", &target_rows(&[], 0).schema()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_conflicts_with_the_delete_of_its_partition() {
    let (lake, mut job) = prepare(job).await;
    job.target.operation = Operation::Insert;
    upsert(&lake, &["k70"], 600).await;
    let (ended, theirs) = run_around(&job, "r", ADDS, delete_partition(&lake, "part=b")).await;
    assert_conflict(&ended, &[theirs.as_str(), "DELETE_PARTITION", "partition `part=b`"]);
    assert_goes_on(&lake, &job).await;
    assert_eq!((value_of(&lake, "k70").await, value_of(&lake, "k60").await), (vec![600], vec![]));
    assert_eq!(value_of(&lake, "k10").await, [10]);
}

/// Another writer's clustering: the rows of a partition move into a new group.
async fn cluster(lake: &Lake, partition: &str) -> InstantTime {
    let old = bases(lake, partition).await.remove(0);
    let (storage, _, _) = open(&lake.path("out")).await;
    let instant = fresh_instant(lake).await;
    let name = base_file_name("clustered-0", 0, 0, &instant);
    let path = format!("{partition}/{name}");
    storage.put(&path, storage.read(&old.path).await.unwrap()).await.unwrap();
    let stat = WriteStat {
        partition: partition.to_string(),
        file_id: "clustered-0".to_string(),
        path,
        rows: 10,
        inserts: 10,
        bytes: old.bytes as i64,
        ..WriteStat::default()
    };
    let metadata = CommitMetadata {
        operation: "CLUSTER".to_string(),
        stats: vec![stat],
        replaced: [(partition.to_string(), vec![old.file_id])].into(),
        extra: [("schema".to_string(), schema())].into(),
        ..CommitMetadata::default()
    };
    let change = FileChange { partition: partition.to_string(), name, bytes: old.bytes, deleted: false };
    foreign_commit(lake, &instant, Action::Clustering, metadata, &[change]).await;
    instant
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upsert_conflicts_with_the_clustering_of_its_group_and_of_no_other() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60"], 600).await;
    let (ended, theirs) = run_around(&job, "r", UPDATES, cluster(&lake, "part=b")).await;
    assert_conflict(&ended, &[theirs.as_str(), "CLUSTER", "replaced file group `part=b/"]);
    assert_goes_on(&lake, &job).await;
    assert_eq!((value_of(&lake, "k60").await, value_of(&lake, "k61").await), (vec![600], vec![61]));
    upsert(&lake, &["k60"], 601).await;
    let (ended, _) = run_around(&job, "r2", UPDATES, cluster(&lake, "part=a")).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    assert_eq!((value_of(&lake, "k60").await, value_of(&lake, "k10").await), (vec![601], vec![10]));
    assert_at_rest(&lake, &job).await;
}

/// A whole number as Avro writes it.
fn number(value: i64) -> Vec<u8> {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push((rest as u8 & 0x7f) | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

fn text(value: &str) -> Vec<u8> {
    [number(value.len() as i64), value.as_bytes().to_vec()].concat()
}

/// The plan of a clustering of one group, as much of `HoodieRequestedReplaceMetadata` as says so.
fn clustering_plan(partition: &str, file_id: &str) -> Vec<u8> {
    let nullable = |inner: Value| json!(["null", inner]);
    let record = |name: &str, fields: Value| json!({"type": "record", "name": name, "fields": fields});
    let array = |items: Value| nullable(json!({"type": "array", "items": items}));
    let optional = |name: &str| json!({"name": name, "type": ["null", "string"]});
    let slice = record("HoodieSliceInfo", json!([optional("fileId"), optional("partitionPath")]));
    let group = record("HoodieClusteringGroup", json!([{"name": "slices", "type": array(slice)}]));
    let plan = record("HoodieClusteringPlan", json!([{"name": "inputGroups", "type": array(group)}]));
    let whole = record("HoodieRequestedReplaceMetadata", json!([{"name": "clusteringPlan", "type": nullable(plan)}]));
    let (some, one, end) = (number(1), number(1), number(0));
    let data = [
        some.clone(),
        some.clone(),
        one.clone(),
        some.clone(),
        one.clone(),
        some.clone(),
        text(file_id),
        some,
        text(partition),
        end.clone(),
        end.clone(),
    ]
    .concat();
    let header = [number(1), text("avro.schema"), text(&whole.to_string()), end].concat();
    let sync = [7; 16].to_vec();
    [b"Obj\x01".to_vec(), header, sync.clone(), one, number(data.len() as i64), data, sync].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_clustering_keeps_updates_out_of_its_groups_until_it_is_gone() {
    let (lake, job) = prepare(job).await;
    let group = bases(&lake, "part=b").await.remove(0);
    let (storage, config, _) = open(&lake.path("out")).await;
    let instant = fresh_instant(&lake).await;
    let requested = requested_path(&config.timeline_dir(), &instant, Action::Clustering);
    storage.put(&requested, clustering_plan("part=b", &group.file_id)).await.unwrap();
    // Other groups, and new ones in the same partition, are free.
    upsert(&lake, &["k10", "k71"], 600).await;
    assert_eq!(run(&roles(), &job, "free").await.outcome, Some(Outcome::Committed));
    upsert(&lake, &["k60"], 601).await;
    for request in ["r1", "r2"] {
        let refused = run(&roles(), &job, request).await;
        assert_conflict(&refused, &[instant.as_str(), "clustering", "is going to rewrite file group `part=b/"]);
    }
    assert!(storage.head(&requested).await.unwrap().is_some(), "the plan is another writer's");
    storage.delete(&requested).await.unwrap();
    assert_goes_on(&lake, &job).await;
    assert_eq!((value_of(&lake, "k60").await, value_of(&lake, "k10").await), (vec![601], vec![600]));
}

fn foreign_owner() -> Owner {
    Owner { pipeline: PipelineName::new("other").unwrap(), epoch: 1, process: "other".to_string() }
}

/// A compaction that somebody else requests, and carries out.
async fn compact(lake: &Lake) -> InstantTime {
    let (storage, config, timeline) = open(&lake.path("out")).await;
    let own = |instant: &&tributary_hudi::Instant| instant.is_pending();
    assert_eq!(timeline.instants().iter().filter(own).count(), 1, "the batch is under way");
    let slices = find_compactable(&storage, &config, &timeline).await.unwrap();
    let instant = mint_instant(SystemClock.now_millis(), config.zone, timeline.latest_time());
    begin_compaction(&storage, &config.timeline_dir(), &instant, &slices, &foreign_owner()).await.unwrap();
    let (plain, memory) = (target_rows(&[], 0).schema(), MemoryBudget::new(64 << 20));
    let compaction = Compaction {
        storage: &storage,
        config: &config,
        instant: &instant,
        schema: base_file_schema(&plain),
        memory: &memory,
    };
    let mut stats = Vec::new();
    for (task, slice) in slices.iter().enumerate() {
        stats.push(compaction.compact(slice, task).await.unwrap());
    }
    assert!(!stats.is_empty());
    let delta = instant.successor();
    compaction.complete(stats, schema(), &delta, &delta.successor()).await.unwrap();
    instant
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_logs_lie_on_top_of_a_compaction_that_completed_meanwhile() {
    let (lake, job) = prepare(merge_on_read).await;
    upsert(&lake, &["k60", "k61"], 600).await;
    assert_eq!(run(&roles(), &job, "logs").await.outcome, Some(Outcome::Committed));
    upsert(&lake, &["k60", "k62"], 601).await;
    // Markers of log files are of the kind that new files have.
    let (ended, compacted) = run_around(&job, "r", ADDS, compact(&lake)).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    let (storage, config, timeline) = open(&lake.path("out")).await;
    let slices = current_file_slices(&storage, &config, &timeline).await.unwrap();
    let slice = slices.iter().find(|slice| slice.group.0 == "part=b").unwrap();
    assert_eq!(slice.base.as_ref().map(|base| &base.instant), Some(&compacted));
    let on_top: Vec<&InstantTime> = slice.logs.iter().map(|log: &LogFile| &log.instant).collect();
    assert_eq!(on_top, [ended.instant.as_ref().unwrap()]);
    let found = (value_of(&lake, "k60").await, value_of(&lake, "k61").await, value_of(&lake, "k62").await);
    assert_eq!(found, (vec![601], vec![600], vec![601]));
    assert_at_rest(&lake, &job).await;
}

/// What a writer does that rolls back every pending write when it begins, as a single writer may.
async fn roll_back_eagerly(lake: &Lake) -> InstantTime {
    let (storage, config, timeline) = open(&lake.path("out")).await;
    let dead = timeline.pending_writes().next().unwrap().clone();
    let rollback = mint_instant(SystemClock.now_millis(), config.zone, timeline.latest_time());
    let (directory, completed, owner) = (config.timeline_dir(), rollback.successor(), foreign_owner());
    rollback_instant(&storage, &directory, &dead.requested, dead.action, &rollback, &completed, &owner).await.unwrap();
    dead.requested
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_an_eager_writer_rolled_back_is_a_conflict_and_leaves_no_file() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60", "k75"], 600).await;
    let (ended, dead) = run_around(&job, "r", UPDATES, roll_back_eagerly(&lake)).await;
    assert_eq!(ended.outcome, Some(Outcome::Conflict), "{:?}", ended.error);
    let error = ended.error.unwrap();
    assert!(error.message.contains("rolled back by another writer") && error.message.contains("LAZY"), "{error:?}");
    let (storage, _, _) = open(&lake.path("out")).await;
    let left: Vec<String> = storage.list("").await.unwrap().into_iter().map(|entry| entry.path).collect();
    let written: Vec<&String> = left.iter().filter(|path| path.contains(&format!("_{dead}"))).collect();
    assert_eq!(written, Vec::<&String>::new(), "what was written after the rollback had looked is gone");
    assert_goes_on(&lake, &job).await;
    assert_eq!(value_of(&lake, "k60").await, [600]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_wrote_after_it_was_rolled_back_goes_with_the_next_batch() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60"], 600).await;
    // The process dies once its instant is rolled back and its files are written.
    let hold = Hold::of(UPDATES);
    let dying = roles_over(Arc::new(HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold))));
    let (ended, dead) = tokio::join!(run(&dying, &job, "r"), async {
        hold.reached(1).await;
        let dead = roll_back_eagerly(&lake).await;
        let (storage, _, _) = open(&lake.path("out")).await;
        let owner = foreign_owner();
        let old = bases(&lake, "part=b").await.remove(0);
        let path = format!("part=b/{}", base_file_name(&old.file_id, 9, 9, &dead));
        hold.release();
        (dead, storage, owner, old, path)
    });
    assert_eq!(ended.outcome, Some(Outcome::Conflict), "{:?}", ended.error);
    let (dead, storage, owner, old, path) = dead;
    // As if it had been killed there instead of clearing up.
    storage.put(&path, storage.read(&old.path).await.unwrap()).await.unwrap();
    write_heartbeat(&storage, &dead, &owner).await.unwrap();
    assert_goes_on(&lake, &job).await;
    assert!(storage.head(&path).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_instants_of_other_writers_are_left_alone() {
    let (lake, job) = prepare(job).await;
    let (storage, config, _) = open(&lake.path("out")).await;
    let directory = config.timeline_dir();
    let write = fresh_instant(&lake).await;
    let rollback = write.successor();
    let theirs = [
        requested_path(&directory, &write, Action::Commit),
        inflight_path(&directory, &write, Action::Commit),
        // Its plan is not written yet.
        requested_path(&directory, &rollback, Action::Rollback),
        format!(".hoodie/.temp/{write}/part=a/x_0-0-0_{write}.parquet.marker.CREATE"),
        format!(".hoodie/.heartbeat/{write}"),
    ];
    for file in &theirs {
        storage.put(file, "").await.unwrap();
    }
    upsert(&lake, &["k60"], 600).await;
    let mut exclusive = job.clone();
    exclusive.target.writers = Writers::Exclusive;
    let refused = run(&roles(), &exclusive, "alone").await;
    assert_eq!(refused.outcome, Some(Outcome::Failed), "a rollback without a plan: {:?}", refused.error);
    let ended = run(&roles(), &job, "beside").await;
    // What the rollback is about cannot be told: it may be our instant.
    assert_eq!(ended.outcome, Some(Outcome::Conflict), "{:?}", ended.error);
    storage.delete(&theirs[2]).await.unwrap();
    let ended = run(&roles(), &job, "again").await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    for (number, file) in theirs.iter().enumerate() {
        assert_eq!(storage.head(file).await.unwrap().is_some(), number != 2, "{file}");
    }
    assert_eq!(value_of(&lake, "k60").await, [600]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_instant_of_ours_that_another_writer_is_rolling_back_is_left_to_it() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60"], 600).await;
    let dying = FaultyStores::new(Arc::new(SystemStores::new()), FaultPlan::at(6, Fault::CrashAfter));
    assert_ne!(run(&roles_over(Arc::new(dying)), &job, "dead").await.outcome, Some(Outcome::Committed));
    // Their plan, as of a copy in which they carried it out.
    let elsewhere = lake.copy();
    let dead = roll_back_eagerly(&elsewhere).await;
    let (copy, config, timeline) = open(&elsewhere.path("out")).await;
    let done = timeline.instants().iter().find(|instant| instant.action == Action::Rollback).unwrap();
    let plan = requested_path(&config.timeline_dir(), &done.requested, Action::Rollback);
    let (storage, _, _) = open(&lake.path("out")).await;
    storage.put(&plan, copy.read(&plan).await.unwrap()).await.unwrap();

    let ended = run(&roles(), &job, "beside").await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    let (_, _, timeline) = open(&lake.path("out")).await;
    assert!(timeline.find(&dead).is_some_and(|instant| instant.is_pending()), "it is theirs to take away");
    assert!(timeline.find(&done.requested).is_some_and(|instant| instant.is_pending()));
    assert_eq!(value_of(&lake, "k60").await, [600]);
    // They finish it.
    let completed = fresh_instant(&lake).await;
    resume_rollback(&storage, &config.timeline_dir(), &done.requested, &completed).await.unwrap();
    assert_at_rest(&lake, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_holds_the_lock_of_all_writers_only_where_it_begins_and_commits() {
    let (lake, job) = prepare(job).await;
    let lock = Path::new(&lake.path("out")).join(LOCK);
    upsert(&lake, &["k60"], 600).await;
    let looked = async { lock.exists() };
    let (ended, was_held) = run_around(&job, "r", UPDATES, looked).await;
    assert_eq!((ended.outcome, was_held), (Some(Outcome::Committed), false), "{:?}", ended.error);
    upsert(&lake, &["k60"], 601).await;
    let looked = async { lock.exists() };
    let (ended, was_held) = run_around(&job, "r2", ".commit", looked).await;
    assert_eq!((ended.outcome, was_held), (Some(Outcome::Committed), true), "{:?}", ended.error);
    assert_at_rest(&lake, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_writer_is_waited_for_and_never_broken() {
    let (lake, job) = prepare(job).await;
    let lock = Path::new(&lake.path("out")).join(LOCK);
    let theirs = r#"{"lockCreateTime":"2025-01-01 00:00:00.000","lockThreadName":"main"}"#;
    std::fs::write(&lock, theirs).unwrap();
    upsert(&lake, &["k60"], 600).await;
    let impatient = roles_with(Arc::new(SystemStores::new()), Arc::new(MemoryStore::default()), |settings| {
        settings.lock_within = Duration::from_millis(100);
    });
    let refused = run(&impatient, &job, "early").await;
    assert_eq!(refused.outcome, Some(Outcome::Conflict), "{:?}", refused.error);
    let message = refused.error.unwrap().message;
    assert!(message.contains("`.hoodie/lock`") && message.contains("remove that file"), "{message}");
    assert_eq!(std::fs::read_to_string(&lock).unwrap(), theirs);
    std::fs::remove_file(&lock).unwrap();
    // What a process of ours left that was killed is no lock.
    std::fs::write(&lock, r#"{"lockThreadName":"tributary x","tributary":"x"}"#).unwrap();
    assert_goes_on(&lake, &job).await;
}

/// What a writer that died leaves, and a job over it in a process of its own that ends by its time limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_waits_for_the_lock_of_a_dead_writer_says_for_which_and_its_timeout_names_it() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60"], 600).await;
    let theirs = r#"{"lockCreateTime":"2025-01-01 00:00:00.000","lockThreadName":"spark-main"}"#;
    std::fs::write(Path::new(&lake.path("out")).join(LOCK), theirs).unwrap();
    let file = lake.path("job.toml");
    let mut job = serde_json::to_value(&job).unwrap();
    job["limits"] = json!({"timeout": "5s"});
    std::fs::write(&file, toml_of(&job)).unwrap();
    let ended =
        tokio::task::spawn_blocking(move || crate::process::tributary(&["run", "--pipeline", &file])).await.unwrap();
    assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
    for said in ["waiting for the target's lock", ".hoodie/lock", "spark-main", "s ago"] {
        assert!(ended.stderr.contains(said), "`{said}` in {}", ended.stderr);
    }
    for said in ["[TIMEOUT]", "`.hoodie/lock`, held by `spark-main`", "remove that file"] {
        assert!(ended.stdout.contains(said), "`{said}` in {}", ended.stdout);
    }
}

/// A pipeline file of a pipeline in JSON: arrays and tables are written inline.
fn toml_of(job: &Value) -> String {
    fn inline(value: &Value) -> String {
        match value {
            Value::Object(fields) => {
                let fields = fields.iter().filter(|(_, value)| !value.is_null());
                let fields: Vec<String> = fields.map(|(name, value)| format!("{name} = {}", inline(value))).collect();
                format!("{{{}}}", fields.join(", "))
            }
            Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
            other => other.to_string(),
        }
    }
    let fields = job.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
    fields.map(|(name, value)| format!("{name} = {}\n", inline(value))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_three_conflicts_a_batch_keeps_the_others_out() {
    let (lake, job) = prepare(job).await;
    let store = Arc::new(MemoryStore::default());
    let lock = Path::new(&lake.path("out")).join(LOCK);
    for round in 0..3 {
        upsert(&lake, &["k60"], 600 + round).await;
        let hold = Hold::of(UPDATES);
        let stores = HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold));
        // Each is a process of its own, as of a job that is started by the clock: the records tell how the others ended.
        let held = roles_with(Arc::new(stores), store.clone(), |_| {});
        let request = format!("r{round}");
        let (ended, ()) = tokio::join!(run(&held, &job, &request), async {
            hold.reached(1).await;
            assert!(!lock.exists(), "round {round}");
            foreign_rows(&lake, &["k61"], 700 + round, Operation::Upsert).await;
            hold.release();
        });
        assert_conflict(&ended, &["UPSERT"]);
    }
    let hold = Hold::of(UPDATES);
    let stores = HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold));
    let held = roles_with(Arc::new(stores), store, |_| {});
    let (ended, ()) = tokio::join!(run(&held, &job, "r3"), async {
        hold.reached(1).await;
        assert!(lock.exists(), "the others wait");
        hold.release();
    });
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    assert_eq!((value_of(&lake, "k60").await, value_of(&lake, "k61").await), (vec![602], vec![702]));
    assert_at_rest(&lake, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_coordinators_of_ours_follow_one_another() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60", "k70"], 600).await;
    let (first, second): (Embedded, Embedded) = (roles(), roles());
    let (a, b) = tokio::join!(run(&first, &job, "a"), run(&second, &job, "b"));
    let mut outcomes = [a.outcome.unwrap().as_str(), b.outcome.unwrap().as_str()];
    outcomes.sort_unstable();
    assert_eq!(outcomes, [Outcome::Committed.as_str(), Outcome::NoNewData.as_str()], "{:?} {:?}", a.error, b.error);
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 2);
    assert_at_rest(&lake, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_another_writer_added_is_not_taken_away_again() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60"], 600).await;
    let wider = async {
        let mut columns: Vec<(String, ArrayRef)> = Vec::new();
        let rows = target_rows(&["k10"], 100);
        for (field, array) in rows.schema().fields().iter().zip(rows.columns()) {
            columns.push((field.name().clone(), array.clone()));
        }
        columns.push(("note".to_string(), Arc::new(StringArray::from(vec!["new"]))));
        let rows = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let writer = roles().writer.clone();
        let out = lake.path("out");
        let table = SourceTable::open(&SystemStores::new(), writer, clock, &out, rows.schema()).await.unwrap();
        table.commit(vec![rows], Operation::Insert).await.unwrap().requested
    };
    let (ended, theirs) = run_around(&job, "r", UPDATES, wider).await;
    assert_conflict(&ended, &[theirs.as_str(), "schema", "`note`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_whose_indexes_another_writer_added_meanwhile_is_not_written() {
    let (lake, job) = prepare(job).await;
    upsert(&lake, &["k60"], 600).await;
    let properties = Path::new(&lake.path("out")).join(".hoodie/hoodie.properties");
    let before = std::fs::read_to_string(&properties).unwrap();
    let indexed = async {
        let text = before
            .replace("hoodie.table.metadata.partitions=files", "hoodie.table.metadata.partitions=files,record_index");
        assert_ne!(text, before);
        std::fs::write(&properties, text).unwrap();
    };
    let (ended, ()) = run_around(&job, "r", UPDATES, indexed).await;
    assert_eq!(ended.outcome, Some(Outcome::Conflict), "{:?}", ended.error);
    let message = ended.error.unwrap().message;
    assert!(message.contains("record_index"), "{message}");
    std::fs::write(&properties, &before).unwrap();
    assert_goes_on(&lake, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_writers_go_on_while_log_files_are_compacted() {
    let (lake, mut job) = prepare(merge_on_read).await;
    job.target.services.compact_delta_commits = 2;
    let lock = Path::new(&lake.path("out")).join(LOCK);
    upsert(&lake, &["k60", "k61"], 600).await;
    // The compaction makes a new base file of a known group; the batch itself writes logs.
    let event = async {
        assert!(!lock.exists(), "the lock is free");
        foreign_rows(&lake, &["k61", "k62"], 700, Operation::Upsert).await
    };
    let (ended, theirs) = run_around(&job, "r", UPDATES, event).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    let (storage, config, timeline) = open(&lake.path("out")).await;
    let compaction = timeline.instants().iter().find(|instant| instant.action == Action::Commit).unwrap();
    assert!(compaction.completed > timeline.find(&theirs).unwrap().completed, "it completed after them");
    let slices = current_file_slices(&storage, &config, &timeline).await.unwrap();
    let slice = slices.iter().find(|slice| slice.group.0 == "part=b").unwrap();
    assert_eq!(slice.base.as_ref().map(|base| &base.instant), Some(&compaction.requested));
    assert_eq!(slice.logs.iter().map(|log| &log.instant).collect::<Vec<_>>(), [&theirs], "theirs lie on top");
    let found = (value_of(&lake, "k60").await, value_of(&lake, "k61").await, value_of(&lake, "k62").await);
    assert_eq!(found, (vec![600], vec![700], vec![700]));
    assert_at_rest(&lake, &job).await;
}
