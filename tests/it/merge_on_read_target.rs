// SPDX-License-Identifier: Apache-2.0
//! Merge-on-read targets: updates go to log files, new keys to base files, and compactions put them together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::TryStreamExt;
use serde_json::{Value, json};
use tributary_hudi::target::delta_commits_since_compaction;
use tributary_hudi::{Action, CommitMetadata, FileSlice, SystemStores, TableConfig, WriteStat, current_file_slices};
use tributary_server::bench::source::SourceTable;
use tributary_server::embedded::{Embedded, Settings, embed};
use tributary_store::MemoryStore;
use tributary_testkit::{Fault, FaultPlan, FaultyStores};
use tributary_types::pipeline::Pipeline;
use tributary_types::{InstantTime, Outcome, SystemClock, SystemEntropy};

use crate::support::{
    Lake, assert_sound, checkpoints, fixtures, json_rows, open, pipeline, roles, roles_over, rows, run, value_table,
    values,
};

/// `part` follows from the key, so that no key moves; `ts` is no time, so that later rows may be late.
const ORDERED: &str =
    "SELECT id, value, value % 7 AS ts, CASE WHEN id < 'k20' THEN 'a' ELSE 'b' END AS part FROM <SRC>";
const NO_SERVICES: [(&str, u32); 4] =
    [("clean_commits", 0), ("archive_commits", 0), ("compact_metadata_commits", 0), ("compact_delta_commits", 0)];

fn services(of: &[(&str, u32)]) -> Value {
    let all = NO_SERVICES.iter().chain(of).map(|(key, value)| ((*key).to_string(), json!(value)));
    Value::Object(all.collect())
}

/// A pipeline of `ORDERED` rows into a partitioned merge-on-read target.
fn ordered(lake: &Lake, of: &[(&str, u32)]) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "accept_binding_change": true,
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "transform": [{"sql": ORDERED}],
        "target": {"path": lake.path("out"), "table_name": "out", "table_type": "merge_on_read",
                   "record_key": ["id"], "partition_by": ["part"], "ordering": ["ts"], "services": services(of)},
    }))
}

/// Rows as they came into an unpartitioned merge-on-read target, of which the later one of a key stays.
fn plain(lake: &Lake, of: &[(&str, u32)]) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "table_type": "merge_on_read",
                   "record_key": ["id"], "services": services(of)},
    }))
}

/// What an ordered target must hold, computed from what its source was given.
#[derive(Default)]
struct Expected(BTreeMap<String, i64>);

impl Expected {
    fn add(&mut self, rows: &[(String, i64)]) {
        for (key, value) in rows {
            let stored = self.0.entry(key.clone()).or_insert(*value);
            if value % 7 >= *stored % 7 {
                *stored = *value;
            }
        }
    }

    fn rows(&self) -> Vec<String> {
        let row = |(key, value): (&String, &i64)| {
            let part = if key.as_str() < "k20" { "a" } else { "b" };
            json!({"id": key, "value": value, "ts": value % 7, "part": part}).to_string()
        };
        let mut rows: Vec<String> = self.0.iter().map(row).collect();
        rows.sort();
        rows
    }
}

/// Rows of a round: some keys of two digits, some of them new, their values without any order.
fn round(number: i64) -> Vec<(String, i64)> {
    let keys: BTreeSet<i64> = (0..12).map(|n| 10 + (n * (number + 2) + number * 3) % 30).collect();
    keys.into_iter().map(|key| (format!("k{key}"), (key * 31 + number * 17) % 101)).collect()
}

fn normal(rows: Vec<String>) -> Vec<String> {
    let mut rows: Vec<String> =
        rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap().to_string()).collect();
    rows.sort();
    rows
}

async fn commit(roles: &Embedded, source: &SourceTable, job: &Pipeline, number: i64) -> Vec<(String, i64)> {
    let rows = round(number);
    source.upsert(vec![values(rows.clone())]).await.unwrap();
    let batch = run(roles, job, &format!("r{number}")).await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "batch {number}: {:?}", batch.error);
    rows
}

async fn slices(url: &str) -> Vec<FileSlice> {
    let (storage, config, timeline) = open(url).await;
    current_file_slices(&storage, &config, &timeline).await.unwrap()
}

/// Completed writes: requested time, action and metadata, in order of completion.
async fn writes(url: &str) -> Vec<(InstantTime, Action, CommitMetadata)> {
    let (storage, _, timeline) = open(url).await;
    let mut found = Vec::new();
    for instant in timeline.completed_writes() {
        let path = timeline.completed_path(instant).unwrap();
        let metadata = CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
        found.push((instant.requested.clone(), instant.action, metadata));
    }
    found
}

fn is_log(stat: &WriteStat) -> bool {
    stat.path.contains(".log.")
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_go_to_logs_and_new_keys_to_base_files() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let job = plain(&lake, &[]);
    source.upsert(vec![values([("a".to_string(), 1), ("b".to_string(), 1)])]).await.unwrap();
    assert_eq!(run(&roles, &job, "r1").await.outcome, Some(Outcome::Committed));
    source.upsert(vec![values([("b".to_string(), 2), ("c".to_string(), 2)])]).await.unwrap();
    let second = run(&roles, &job, "r2").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    assert_eq!((second.written.inserts, second.written.updates, second.written.files), (1, 1, 2));

    let writes = writes(&lake.path("out")).await;
    assert!(
        writes.iter().all(|(_, action, metadata)| *action == Action::DeltaCommit && metadata.operation == "UPSERT")
    );
    let (first, second) = (&writes[0].2.stats, &writes[1].2.stats);
    assert!(first.len() == 1 && !is_log(&first[0]), "{first:?}");
    let log = second.iter().find(|stat| is_log(stat)).unwrap();
    assert_eq!((log.rows, log.inserts, log.updates), (1, 0, 1));
    assert_eq!((&log.file_id, log.previous.as_deref()), (&first[0].file_id, Some(writes[0].0.as_str())));
    assert_eq!(log.previous_base.as_deref(), Some(first[0].path.as_str()));
    let new = second.iter().find(|stat| !is_log(stat)).unwrap();
    assert_eq!((new.rows, new.inserts, new.previous.as_deref()), (1, 1, None));
    let slices = slices(&lake.path("out")).await;
    let logs: Vec<usize> = slices.iter().map(|slice| slice.logs.len()).collect();
    assert_eq!((slices.len(), logs.iter().sum::<usize>()), (2, 1));
    assert_eq!(rows(&roles, &lake.path("out")).await, rows(&roles, &lake.path("src")).await);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_of_updates_and_late_rows_equal_the_recomputation_with_compactions_and_cleans_between() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let job = ordered(&lake, &[("compact_delta_commits", 3), ("clean_commits", 2), ("compact_metadata_commits", 4)]);
    let mut expected = Expected::default();
    let mut seen_logs = 0;
    for number in 1..=14 {
        expected.add(&commit(&roles, &source, &job, number).await);
        assert_eq!(normal(rows(&roles, &lake.path("out")).await), expected.rows(), "round {number}");
        assert_sound(&lake.path("out"), "p").await;
        seen_logs += slices(&lake.path("out")).await.iter().map(|slice| slice.logs.len()).sum::<usize>();
    }
    assert!(seen_logs > 10, "{seen_logs} logs were there after rounds");
    let writes = writes(&lake.path("out")).await;
    let compactions: Vec<_> = writes.iter().filter(|(_, action, _)| *action == Action::Commit).collect();
    assert_eq!(compactions.len(), 4, "after 3, 6, 9 and 12 delta commits");
    assert!(compactions.iter().all(|(_, _, metadata)| metadata.compacted && metadata.operation == "COMPACT"));
    let (storage, ..) = open(&lake.path("out")).await;
    let files = storage.list("").await.unwrap();
    let logs = files.iter().filter(|file| file.path.contains(".log.") && !file.path.starts_with(".hoodie")).count();
    let named = writes.iter().flat_map(|(_, _, metadata)| &metadata.stats).filter(|stat| is_log(stat)).count();
    assert!(logs < named / 2, "{logs} of {named} logs are left");
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 14);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_wait_on_disk_reach_the_same_logs() {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    let writer = tributary_server::embedded::Settings::default().writer;
    // Nothing may wait in memory.
    let settings = Settings {
        writer: tributary_server::embedded::WriterSettings { memory_percent: 0, spill_buckets: 3, ..writer },
        ..Settings::default()
    };
    let spilling = embed(
        Arc::new(SystemStores::new()),
        Arc::new(MemoryStore::default()),
        Arc::new(SystemClock),
        Arc::new(SystemEntropy),
        settings,
    );
    let job = ordered(&lake, &[]);
    let mut expected = Expected::default();
    for number in 1..=4 {
        expected.add(&commit(&spilling, &source, &job, number).await);
        assert_eq!(normal(rows(&spilling, &lake.path("out")).await), expected.rows(), "round {number}");
    }
    let last = &writes(&lake.path("out")).await[3].2.stats;
    let groups: BTreeSet<&String> = last.iter().filter(|stat| is_log(stat)).map(|stat| &stat.file_id).collect();
    assert_eq!(groups.len(), last.iter().filter(|stat| is_log(stat)).count(), "one log for each group");
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_only_logs_name_is_found_there() {
    // Spark wrote groups of which nothing but logs is left, and deletes in logs.
    let expected: Value = {
        let file = fixtures().join("tables/mor_v9_log_only.expected.json");
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    let lake = Lake::new();
    tributary_testkit::unpack_zip(&fixtures().join("tables/mor_v9_log_only.zip"), lake.dir());
    let url = lake.path("mor_v9_log_only");
    let log_only = slices(&url).await.into_iter().filter(|slice| slice.base.is_none()).count();
    assert!(log_only > 0);
    let groups = slices(&url).await.len();
    let roles = roles();
    let before = rows(&roles, &url).await;
    assert_eq!(before.len(), expected["snapshot"].as_array().unwrap().len());
    // The table's own rows once more, each with a higher ordering value.
    let (_, config, _) = open(&url).await;
    let select = "SELECT id, score, ts + 1000 AS ts, region FROM <SRC>";
    let job = pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("copy"), "start": "snapshot"}],
        "transform": [{"sql": select}],
        "target": target_like(&config, &url),
    }));
    let copy = lake.copy();
    std::fs::rename(copy.path("mor_v9_log_only"), lake.path("copy")).unwrap();
    let batch = run(&roles, &job, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    assert_eq!((batch.written.inserts, batch.written.updates), (0, before.len() as u64));
    let after = rows(&roles, &url).await;
    let lifted = |row: &String| {
        let mut row: Value = serde_json::from_str(row).unwrap();
        row["ts"] = json!(row["ts"].as_i64().unwrap() + 1000);
        row.to_string()
    };
    assert_eq!(normal(after), normal(before.iter().map(lifted).collect()));
    assert_eq!(slices(&url).await.len(), groups, "no key got a second group");
}

/// The target of a pipeline that writes into a table as it is.
fn target_like(config: &TableConfig, url: &str) -> Value {
    json!({
        "path": url, "table_name": config.name, "table_type": "merge_on_read",
        "record_key": config.record_key(), "partition_by": config.partition_by(), "ordering": config.ordering(),
        "services": services(&[]),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_rows_is_a_delta_commit_of_cursors_alone() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let mut job = plain(&lake, &[("compact_delta_commits", 1)]);
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    assert_eq!(run(&roles, &job, "r1").await.outcome, Some(Outcome::Committed));
    source.upsert(vec![values([("a".to_string(), 2)])]).await.unwrap();
    job.transforms = serde_json::from_value(json!([{"sql": "SELECT * FROM <SRC> WHERE value < 0"}])).unwrap();
    let batch = run(&roles, &job, "r2").await;
    assert_eq!((batch.outcome, batch.written.rows), (Some(Outcome::Committed), 0), "{:?}", batch.error);
    let writes = writes(&lake.path("out")).await;
    let (_, action, metadata) = &writes[1];
    assert_eq!((*action, metadata.stats.len()), (Action::DeltaCommit, 0));
    assert!(metadata.schema().is_some());
    assert_eq!(writes.len(), 2, "there was nothing to compact");
    assert_eq!(run(&roles, &job, "r3").await.outcome, Some(Outcome::NoNewData));
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pulled_batch_is_its_rows_as_they_are_stored_late_ones_left_out() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let job = ordered(&lake, &[("compact_delta_commits", 2)]);
    let row = |key: &str, value: i64| (key.to_string(), value);
    source.upsert(vec![values([row("k11", 6), row("k12", 1)])]).await.unwrap();
    assert_eq!(run(&roles, &job, "r1").await.outcome, Some(Outcome::Committed));
    // `k11` is late, `k12` is newer, `k13` is new; the batch is followed by a compaction.
    source.upsert(vec![values([row("k11", 1), row("k12", 3), row("k13", 2)])]).await.unwrap();
    let second = run(&roles, &job, "r2").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    let opened = roles.coordinator.open_batch(&second.name).await.unwrap();
    let pulled = json_rows(&opened.rows.try_collect::<Vec<_>>().await.unwrap());
    let mut expected = Expected::default();
    expected.add(&[row("k12", 3), row("k13", 2)]);
    assert_eq!(normal(pulled), expected.rows());
    // A batch whose log is gone can not be pulled any more, and is not pulled in part.
    let writes = writes(&lake.path("out")).await;
    assert_eq!(writes[2].1, Action::Commit, "a compaction followed");
    let log = writes[1].2.stats.iter().find(|stat| is_log(stat)).unwrap();
    std::fs::remove_file(lake.dir().join("out").join(&log.path)).unwrap();
    let gone = roles.coordinator.open_batch(&second.name).await.err().unwrap();
    assert!(gone.to_string().contains("cleaned"), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_pipeline_follows_the_target_through_compactions_and_cleans() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let job = ordered(
        &lake,
        &[("compact_delta_commits", 3), ("clean_commits", 6), ("archive_commits", 10), ("compact_metadata_commits", 3)],
    );
    let follower = pipeline(json!({
        "name": "follower",
        "source": [{"name": "out", "path": lake.path("out"), "start": "snapshot"}],
        "target": {"path": lake.path("copy"), "table_name": "copy", "table_type": "merge_on_read",
                   "record_key": ["id"], "partition_by": ["part"], "ordering": ["ts"],
                   "services": services(&[("compact_delta_commits", 2)])},
    }));
    let mut expected = Expected::default();
    for number in 1..=24 {
        expected.add(&commit(&roles, &source, &job, number).await);
        // Two or three commits at a time, a compaction among them.
        if number % 3 != 1 {
            let batch = run(&roles, &follower, &format!("f{number}")).await;
            assert_eq!(batch.outcome, Some(Outcome::Committed), "round {number}: {:?}", batch.error);
            assert_eq!(normal(rows(&roles, &lake.path("copy")).await), expected.rows(), "round {number}");
        }
    }
    assert_eq!(normal(rows(&roles, &lake.path("out")).await), expected.rows());
    let (_, _, timeline) = open(&lake.path("out")).await;
    assert!(timeline.completed_writes().len() <= 10, "it is archived");
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 24);
    assert_sound(&lake.path("out"), "p").await;
    assert_sound(&lake.path("copy"), "follower").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_logs_of_a_dead_delta_commit_are_deleted_by_a_plan_that_names_them() {
    let lake = Lake::new();
    let healthy = roles();
    let source = value_table(&healthy, &lake.path("src")).await;
    let job = plain(&lake, &[]);
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    assert_eq!(run(&healthy, &job, "r1").await.outcome, Some(Outcome::Committed));
    source.upsert(vec![values([("a".to_string(), 2)])]).await.unwrap();
    // Heartbeat, requested, inflight, marker, log: then the process is gone.
    let plan = FaultPlan::at(4, Fault::CrashAfter);
    let dying = roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), plan)));
    let dead = run(&dying, &job, "dead").await;
    assert_ne!(dead.outcome, Some(Outcome::Committed));
    let dead = dead.instant.unwrap();
    let logs = |url: String| {
        let entries = std::fs::read_dir(url).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains(".log.")).collect::<Vec<String>>()
    };
    let left = logs(lake.path("out"));
    assert!(left.len() == 1 && left[0].contains(&format!("_{dead}.log.1_")), "{left:?}");
    assert_eq!(rows(&healthy, &lake.path("out")).await, [json!({"id": "a", "value": 1}).to_string()]);

    let again = run(&healthy, &job, "r2").await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{:?}", again.error);
    let found = logs(lake.path("out"));
    assert!(found.len() == 1 && !found[0].contains(dead.as_str()), "{found:?}");
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let rollback = timeline.instants().iter().find(|instant| instant.action == Action::Rollback).unwrap();
    let planned = storage.read(&timeline.plan_path(rollback)).await.unwrap();
    let planned = String::from_utf8_lossy(&planned);
    assert!(planned.contains(&left[0]) && planned.contains("deltacommit"));
    assert_eq!(rows(&healthy, &lake.path("out")).await, rows(&healthy, &lake.path("src")).await);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inserts_into_a_merge_on_read_target_are_delta_commits_of_base_files() {
    for operation in ["insert", "bulk_insert"] {
        let lake = Lake::new();
        let roles = roles();
        let source = value_table(&roles, &lake.path("src")).await;
        let mut job = plain(&lake, &[("compact_delta_commits", 1)]);
        job.target.operation = serde_json::from_value(json!(operation)).unwrap();
        for number in 1..=2 {
            source.upsert(vec![values([("a".to_string(), number)])]).await.unwrap();
            assert_eq!(run(&roles, &job, &format!("r{number}")).await.outcome, Some(Outcome::Committed));
        }
        let writes = writes(&lake.path("out")).await;
        assert_eq!(writes.len(), 2);
        let base_files = |metadata: &CommitMetadata| metadata.stats.len() == 1 && !is_log(&metadata.stats[0]);
        assert!(writes.iter().all(|(_, action, metadata)| *action == Action::DeltaCommit && base_files(metadata)));
        assert_eq!(rows(&roles, &lake.path("out")).await.len(), 2, "{operation} adds a key once more");
        assert_sound(&lake.path("out"), "p").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_fails_does_not_fail_its_batch_and_is_made_up_for() {
    let lake = Lake::new();
    let healthy = roles();
    let source = value_table(&healthy, &lake.path("src")).await;
    let job = ordered(&lake, &[("compact_delta_commits", 2)]);
    let mut expected = Expected::default();
    expected.add(&commit(&healthy, &source, &job, 1).await);
    let counting = FaultPlan::none();
    let stores = |plan: &Arc<FaultPlan>| Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), Arc::clone(plan)));
    let second = round(2);
    source.upsert(vec![values(second.clone())]).await.unwrap();
    expected.add(&second);
    let copy = lake.copy();
    let of_copy = ordered(&copy, &[("compact_delta_commits", 2)]);
    assert_eq!(run(&roles_over(stores(&counting)), &of_copy, "r2").await.outcome, Some(Outcome::Committed));
    // Markers and the heartbeat go last; before them the commit.
    let failing = FaultPlan::at(counting.operations() - 8, Fault::FailOnce);
    let batch = run(&roles_over(stores(&failing)), &job, "r2").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let (_, _, timeline) = open(&lake.path("out")).await;
    let pending: Vec<Action> = timeline.pending_writes().map(|instant| instant.action).collect();
    assert_eq!(pending, [Action::Compaction]);
    assert_eq!(normal(rows(&healthy, &lake.path("out")).await), expected.rows());
    expected.add(&commit(&healthy, &source, &job, 3).await);
    let (_, _, timeline) = open(&lake.path("out")).await;
    assert_eq!((timeline.pending_writes().count(), delta_commits_since_compaction(&timeline)), (0, 0));
    assert_eq!(normal(rows(&healthy, &lake.path("out")).await), expected.rows());
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_and_widened_columns_reach_logs_and_compacted_files() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let mut job = plain(&lake, &[("compact_delta_commits", 3)]);
    let selects = [
        "SELECT id, CAST(value AS INT) AS value FROM <SRC>",
        "SELECT id, value, 'new' AS note FROM <SRC>",
        "SELECT id, value, 'newer' AS note FROM <SRC>",
    ];
    for (number, select) in selects.iter().enumerate() {
        job.transforms = serde_json::from_value(json!([{"sql": select}])).unwrap();
        let key = |n: usize| (format!("k{n}"), n as i64 * 10 + number as i64);
        source.upsert(vec![values([key(0), key(number)])]).await.unwrap();
        let batch = run(&roles, &job, &format!("r{number}")).await;
        assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    }
    let expected = [
        json!({"id": "k0", "value": 2, "note": "newer"}),
        json!({"id": "k1", "value": 11, "note": "new"}),
        json!({"id": "k2", "value": 22, "note": "newer"}),
    ];
    assert_eq!(normal(rows(&roles, &lake.path("out")).await), normal(expected.map(|row| row.to_string()).to_vec()));
    let logs: usize = slices(&lake.path("out")).await.iter().map(|slice| slice.logs.len()).sum();
    assert_eq!(logs, 0, "they are compacted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_the_other_type_is_refused_by_name() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    let job = plain(&lake, &[]);
    assert_eq!(run(&roles, &job, "r1").await.outcome, Some(Outcome::Committed));
    let mut other = job.clone();
    other.target.table_type = tributary_types::pipeline::TableType::CopyOnWrite;
    let refused = run(&roles, &other, "r2").await;
    let message = refused.error.unwrap().message;
    assert!(message.contains("MERGE_ON_READ") && message.contains("COPY_ON_WRITE"), "{message}");
}
