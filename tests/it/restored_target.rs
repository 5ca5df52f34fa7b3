// SPDX-License-Identifier: Apache-2.0
//! A target that was restored to a savepoint: the cursors go back with it, and what it lost is delivered again.

use std::sync::Arc;

use serde_json::json;
use tributary_api::coordinator::Error;
use tributary_hudi::target::{undo_delta, write_delta};
use tributary_hudi::{CommitMetadata, SystemStores};
use tributary_store::{KeyValue, MemoryStore};
use tributary_types::pipeline::Pipeline;
use tributary_types::{InstantTime, Outcome, PipelineName};

use crate::support::{Lake, assert_sound, checkpoints, open, pipeline, roles_with, rows, run, value_table, values};

const TIMELINE: &str = ".hoodie/timeline";

fn job(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

fn time(text: &str, later_millis: i64) -> InstantTime {
    let millis = text.parse::<InstantTime>().unwrap().epoch_millis(tributary_types::Zone::Utc).unwrap();
    InstantTime::from_epoch_millis(millis + later_millis, tributary_types::Zone::Utc)
}

/// Does what Hudi's restore to the savepoint of a commit of the active timeline does, counted from the oldest: takes every
/// later commit away, newest first, with its files and its place in the metadata table, and completes a restore instant.
/// Answers its time.
pub(crate) async fn restore_to(url: &str, kept: usize) -> InstantTime {
    let (storage, _, timeline) = open(url).await;
    let writes: Vec<_> = timeline.completed_writes().into_iter().cloned().collect();
    let (kept, lost) = (&writes[kept], &writes[kept + 1..]);
    let at = time(timeline.latest_time().unwrap().as_str(), 1);
    // Nobody reads what is in the instants of savepoints and restores.
    let inflight = format!("{TIMELINE}/{}.savepoint.inflight", kept.requested);
    if storage.head(&inflight).await.unwrap().is_none() {
        storage.put(&inflight, "").await.unwrap();
        storage.put(&format!("{TIMELINE}/{}_{at}.savepoint", kept.requested), "").await.unwrap();
    }
    let (restore, completed) = (time(at.as_str(), 1), time(at.as_str(), 3));
    storage.put(&format!("{TIMELINE}/{restore}.restore.requested"), "").await.unwrap();
    storage.put(&format!("{TIMELINE}/{restore}.restore.inflight"), "").await.unwrap();
    for commit in lost.iter().rev() {
        let path = timeline.completed_path(commit).unwrap();
        let metadata = CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
        for stat in &metadata.stats {
            storage.delete(&stat.path).await.unwrap();
        }
        undo_delta(&storage, &commit.requested).await.unwrap();
        for file in storage.list(TIMELINE).await.unwrap() {
            if file.name().starts_with(commit.requested.as_str()) {
                storage.delete(&file.path).await.unwrap();
            }
        }
    }
    write_delta(&storage, &restore, &time(at.as_str(), 2), &[]).await.unwrap();
    storage.put(&format!("{TIMELINE}/{restore}_{completed}.restore"), "").await.unwrap();
    restore
}

async fn upsert(lake: &Lake, rows: std::ops::Range<i64>) {
    let table = crate::support::open_value_table(&crate::support::roles(), &lake.path("src")).await;
    table.upsert(vec![values(rows.map(|n| (format!("k{n}"), n)))]).await.unwrap();
}

/// Three batches, and then a restore to the first.
async fn restored(store: Arc<MemoryStore>) -> (Lake, InstantTime) {
    let lake = Lake::new();
    let roles = roles_with(Arc::new(SystemStores::new()), store, |_| {});
    value_table(&roles, &lake.path("src")).await;
    for round in 0..3 {
        upsert(&lake, round * 10..round * 10 + 10).await;
        let ended = run(&roles, &job(&lake), &format!("r{round}")).await;
        assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    }
    let restore = restore_to(&lake.path("out"), 0).await;
    assert_eq!(rows(&roles, &lake.path("out")).await.len(), 10, "the test restores as it should");
    (lake, restore)
}

async fn goes_on(lake: &Lake, restore: &InstantTime, store: Arc<MemoryStore>, lowest_epoch: u64) {
    let roles = roles_with(Arc::new(SystemStores::new()), store, |_| {});
    let name = PipelineName::new("p").unwrap();
    let said = roles.checkpoints.look_up(&name, &lake.path("out")).await.unwrap().repaired.unwrap();
    for part in [format!("restored at {restore}").as_str(), "cursors went back with it", "delivered again"] {
        assert!(said.contains(part), "`{part}` is missing in: {said}");
    }
    // Nothing is new in the source: what is delivered is what was lost.
    let ended = run(&roles, &job(lake), "again").await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    assert_eq!(ended.sources[0].rows, 20, "{ended:?}");
    assert_eq!(rows(&roles, &lake.path("out")).await, rows(&roles, &lake.path("src")).await);
    let kept = checkpoints(&lake.path("out"), "p").await;
    assert_eq!(kept.iter().map(|checkpoint| checkpoint.seq).collect::<Vec<_>>(), [1, 2]);
    assert!(kept[1].epoch >= lowest_epoch, "{}", kept[1].epoch);
    assert_eq!(run(&roles, &job(lake), "nothing").await.outcome, Some(Outcome::NoNewData));
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_of_the_target_the_next_batch_delivers_again_what_was_lost() {
    let store = Arc::new(MemoryStore::default());
    let (lake, restore) = restored(Arc::clone(&store)).await;
    goes_on(&lake, &restore, store, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_of_the_target_it_goes_on_also_where_no_record_is_left() {
    let (lake, restore) = restored(Arc::new(MemoryStore::default())).await;
    goes_on(&lake, &restore, Arc::new(MemoryStore::default()), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_a_restore_took_away_can_no_longer_be_pulled() {
    let store = Arc::new(MemoryStore::default());
    let (lake, _) = restored(Arc::clone(&store)).await;
    let roles = roles_with(Arc::new(SystemStores::new()), store.clone(), |_| {});
    assert!(!store.scan("batch/", false, 10).unwrap().is_empty());
    let name = tributary_types::BatchName::new("p/r2").unwrap();
    let refused = roles.coordinator.open_batch(&name).await.map(|_| ()).unwrap_err();
    assert!(matches!(&refused, Error::Gone { what, .. } if what.contains("restored")), "{refused:?}");
    drop(lake);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_commit_a_restore_took_away_may_be_made_again_and_commits_once() {
    let store = Arc::new(MemoryStore::default());
    let (lake, _) = restored(Arc::clone(&store)).await;
    let roles = roles_with(Arc::new(SystemStores::new()), store, |_| {});
    let kept = run(&roles, &job(&lake), "r0").await;
    assert_eq!(kept.outcome, Some(Outcome::Committed));
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1, "what the restore left answers for itself");
    let again = run(&roles, &job(&lake), "r2").await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{:?}", again.error);
    assert_eq!(again.sources[0].rows, 20, "{again:?}");
    assert_eq!(rows(&roles, &lake.path("out")).await, rows(&roles, &lake.path("src")).await);
    assert_eq!(run(&roles, &job(&lake), "r2").await.instant, again.instant);
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 2);
    assert_sound(&lake.path("out"), "p").await;
}
