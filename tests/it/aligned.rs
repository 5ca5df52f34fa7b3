// SPDX-License-Identifier: Apache-2.0
//! Batches whose sources end at one time: the target holds the rows of exactly the commits that completed up to the ceiling,
//! whatever order the commits completed in, and the checkpoint for Java jobs may be that time alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tributary_hudi::{CommitMetadata, SystemStores};
use tributary_server::embedded::Embedded;
use tributary_testkit::{ManualClock, SeededEntropy};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Clock, FLAT_KEY, FLAT_KEY_V2, InstantTime, Outcome, SystemClock, Zone};

use crate::support::{
    Lake, assert_sound, checkpoints, fixtures, open, open_value_table, pipeline, request_of, roles, roles_at, rows,
    run, value_table, values,
};

const SOURCES: [&str; 2] = ["a", "b"];
/// How far completions lie apart, at most.
const SPREAD_MILLIS: u64 = 100_000;

/// A commit that brings one key.
struct Change {
    key: String,
    completed_millis: i64,
}

/// Tables of one commit for each key, which complete in any order.
async fn lake(random: &SeededEntropy, commits: usize) -> (Lake, Vec<Change>) {
    let lake = Lake::new();
    let mut changes = Vec::new();
    for name in SOURCES {
        value_table(&roles(), &lake.path(name)).await;
        let table = open_value_table(&roles(), &lake.path(name)).await;
        for n in 0..commits {
            let key = format!("{name}{n}");
            let fact = table.upsert(vec![values([(key.clone(), n as i64)])]).await.unwrap();
            let requested = fact.requested.epoch_millis(Zone::Utc).unwrap();
            let completed_millis = requested + 1000 + (random.next_u64() % SPREAD_MILLIS) as i64;
            complete_at(&lake.path(name), &fact.requested, completed_millis);
            changes.push(Change { key, completed_millis });
        }
    }
    (lake, changes)
}

/// Moves the completion of a commit.
fn complete_at(table: &str, requested: &InstantTime, millis: i64) {
    let timeline = Path::new(table).join(".hoodie/timeline");
    let completed = InstantTime::from_epoch_millis(millis, Zone::Utc);
    let name = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut all = std::fs::read_dir(&timeline).unwrap().flatten();
    let old = all.find(|entry| name(entry).starts_with(&format!("{requested}_"))).unwrap();
    std::fs::rename(old.path(), timeline.join(format!("{requested}_{completed}.commit"))).unwrap();
}

fn job(lake: &Lake, starts: [&str; 2], num_instants: usize) -> Pipeline {
    let source = |n: usize| json!({"name": SOURCES[n], "path": lake.path(SOURCES[n]), "start": starts[n], "num_instants": num_instants});
    pipeline(json!({
        "name": "p", "consistency": "aligned", "source": [source(0), source(1)],
        "transform": [{"sql": "SELECT id, value FROM <SRC:a> UNION ALL SELECT id, value FROM <SRC:b>"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

fn at(millis: i64) -> Embedded {
    roles_at(Arc::new(SystemStores::new()), Arc::new(ManualClock::at(millis)))
}

async fn keys(lake: &Lake) -> BTreeSet<String> {
    let rows = rows(&roles(), &lake.path("out")).await;
    rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap()["id"].as_str().unwrap().to_string()).collect()
}

async fn explore(seed: u64) {
    let random = SeededEntropy::new(seed);
    let pick = |below: u64| random.next_u64() % below;
    let (lake, changes) = lake(&random, 7).await;
    let starts = [0, 1].map(|_| if pick(2) == 0 { "earliest" } else { "snapshot" });
    let job = job(&lake, starts, 1 + pick(3) as usize);
    let last = changes.iter().map(|change| change.completed_millis).max().unwrap();
    let mut now = SystemClock.now_millis() + 5000;
    let mut highest = i64::MIN;
    for round in 0..40 {
        now = (now + pick(25_000) as i64).min(last + 60_000);
        let ended = run(&at(now), &job, &format!("r{round}")).await;
        let told = format!("seed {seed}, round {round}, {starts:?}: {ended:#?}");
        if ended.outcome == Some(Outcome::NoNewData) {
            if now == last + 60_000 {
                break;
            }
            continue;
        }
        assert_eq!(ended.outcome, Some(Outcome::Committed), "{told}");
        let ceiling = checkpoints(&lake.path("out"), "p").await.pop().unwrap().ceiling_millis.unwrap();
        assert!(ceiling <= now, "{told}");
        highest = highest.max(ceiling);
        let below = changes.iter().filter(|change| change.completed_millis <= highest);
        assert_eq!(keys(&lake).await, below.map(|change| change.key.clone()).collect(), "{told}");
        now += 1;
    }
    assert_eq!(keys(&lake).await, changes.iter().map(|change| change.key.clone()).collect(), "seed {seed}");
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_target_holds_exactly_the_rows_of_the_commits_up_to_the_ceiling() {
    for seed in 1..=3 {
        explore(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_dated_hours_ahead_are_delivered_in_their_order_and_cut_by_a_ceiling_until_their_time() {
    let lake = Lake::new();
    for name in SOURCES {
        value_table(&roles(), &lake.path(name)).await;
    }
    let hours = 3_600_000;
    let now = SystemClock.now_millis();
    let table = open_value_table(&roles(), &lake.path("b")).await;
    table.upsert(vec![values([("b1".to_string(), 1)])]).await.unwrap();
    let table = open_value_table(&roles(), &lake.path("a")).await;
    for (key, ahead) in [("a1", 5 * hours), ("a2", 2 * hours)] {
        let fact = table.upsert(vec![values([(key.to_string(), 1)])]).await.unwrap();
        complete_at(&lake.path("a"), &fact.requested, now + ahead);
    }
    let mut apart = job(&lake, ["earliest", "earliest"], 1);
    apart.consistency = tributary_types::pipeline::Consistency::Independent;
    apart.target.path = lake.path("apart");
    for key in ["a2", "a1"] {
        let ended = run(&roles(), &apart, key).await;
        assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
        let found = rows(&roles(), &lake.path("apart")).await;
        assert!(found.iter().any(|row| row.contains(key)), "{found:?}");
    }
    assert_eq!(rows(&roles(), &lake.path("apart")).await.len(), 3);
    let job = job(&lake, ["earliest", "earliest"], 5);
    assert_eq!(run(&roles(), &job, "now").await.outcome, Some(Outcome::NoNewData), "not even `b1` is old enough");
    let later = run(&at(now + 3 * hours), &job, "later").await;
    assert_eq!(later.outcome, Some(Outcome::Committed), "{:?}", later.error);
    assert_eq!(keys(&lake).await, BTreeSet::from(["a2".to_string(), "b1".to_string()]));
}

/// The checkpoint for Java jobs in the newest commit.
async fn flat(lake: &Lake) -> (Option<String>, Option<String>) {
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let path = timeline.completed_path(timeline.completed_writes().last().unwrap()).unwrap();
    let metadata = CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
    (metadata.extra.get(FLAT_KEY).cloned(), metadata.extra.get(FLAT_KEY_V2).cloned())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_timestamp_stands_for_all_aligned_tables_where_the_pipeline_says_so() {
    let lake = Lake::new();
    for name in SOURCES {
        value_table(&roles(), &lake.path(name)).await;
        let table = open_value_table(&roles(), &lake.path(name)).await;
        table.upsert(vec![values([(format!("{name}1"), 1)])]).await.unwrap();
    }
    let mut job = job(&lake, ["snapshot", "snapshot"], 5);
    let later = SystemClock.now_millis() + 60_000;
    assert_eq!(run(&at(later), &job, "r1").await.outcome, Some(Outcome::Committed));
    let (named, plain) = flat(&lake).await;
    assert!(named.unwrap().starts_with("a=2") && plain.is_none());

    job.multi_checkpoint = false;
    let table = open_value_table(&roles(), &lake.path("a")).await;
    table.upsert(vec![values([("a2".to_string(), 2)])]).await.unwrap();
    assert_eq!(run(&at(later + 60_000), &job, "r2").await.outcome, Some(Outcome::Committed));
    let kept = checkpoints(&lake.path("out"), "p").await.pop().unwrap();
    let ceiling = InstantTime::from_epoch_millis(kept.ceiling_millis.unwrap(), Zone::Utc);
    assert_eq!(flat(&lake).await, (None, Some(ceiling.to_string())));

    // Nothing else than a run moves it.
    let roles = roles();
    let set = "a=latest".parse().unwrap();
    let refused = roles.coordinator.check_overrides(job.clone(), vec![set]).await.unwrap_err().to_string();
    assert!(refused.contains("`multi_checkpoint = false`"), "{refused}");
    let mut apart = job.clone();
    apart.consistency = tributary_types::pipeline::Consistency::Independent;
    let refused = roles.coordinator.run_batch(request_of(&apart, "r3")).await.unwrap_err().to_string();
    assert!(refused.contains("only `consistency = \"aligned\"`"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_timestamp_is_refused_for_tables_of_local_times_and_of_requested_times() {
    let lake = Lake::new();
    for name in SOURCES {
        value_table(&roles(), &lake.path(name)).await;
        let table = open_value_table(&roles(), &lake.path(name)).await;
        table.upsert(vec![values([(format!("{name}1"), 1)])]).await.unwrap();
    }
    let properties = lake.dir().join("b/.hoodie/hoodie.properties");
    let text = std::fs::read_to_string(&properties).unwrap();
    let local: Vec<&str> =
        text.lines().filter(|line| !line.contains("timeline.timezone") && !line.contains("checksum")).collect();
    std::fs::write(&properties, local.join("\n") + "\nhoodie.table.timeline.timezone=LOCAL\n").unwrap();
    let mut job = job(&lake, ["snapshot", "snapshot"], 5);
    job.multi_checkpoint = false;
    let refused = run(&at(SystemClock.now_millis() + 60_000), &job, "r1").await;
    let failure = refused.error.unwrap();
    assert_eq!((refused.outcome, failure.reason.as_str()), (Some(Outcome::Rejected), "PIPELINE_INVALID"));
    assert!(
        failure.message.contains("source `b`") && failure.message.contains("local time zone"),
        "{}",
        failure.message
    );
    tributary_testkit::unpack_zip(&fixtures().join("tables/cow_v6_updates.zip"), lake.dir());
    job.sources[1].path = lake.path("cow_v6_updates");
    let refused = run(&at(SystemClock.now_millis() + 60_000), &job, "r2").await.error.unwrap().message;
    assert!(refused.contains("source `b`") && refused.contains("requested times (table version 6)"), "{refused}");
}
