// SPDX-License-Identifier: Apache-2.0
//! Targets whose archiver went past a savepoint (`hoodie.archive.beyond.savepoint`): a commit on the active timeline is older
//! than commits in the archive, and must not pass for the newest.

use std::path::Path;

use serde_json::json;
use tributary_hudi::SystemStores;
use tributary_server::bench::source::SourceTable;
use tributary_testkit::archive_instants;
use tributary_types::pipeline::{Operation, Pipeline};
use tributary_types::{InstantTime, Outcome, SystemClock};

use crate::support::{Lake, checkpoints, open, open_value_table, pipeline, roles, rows, run, value_table, values};

fn job(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {
            "path": lake.path("out"), "table_name": "out", "record_key": ["id"], "writers": "shared",
            "services": {"clean_commits": 0, "archive_commits": 0, "compact_metadata_commits": 0,
                         "compact_delta_commits": 0},
        },
    }))
}

async fn batch(lake: &Lake, id: &str) -> InstantTime {
    let table = open_value_table(&roles(), &lake.path("src")).await;
    table.upsert(vec![values([(id.to_string(), 1)])]).await.unwrap();
    let ended = run(&roles(), &job(lake), id).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    ended.instant.unwrap()
}

async fn savepoint(url: &str, instant: &InstantTime) {
    let (storage, _, timeline) = open(url).await;
    let at = timeline.latest_time().unwrap().successor();
    storage.put(&format!(".hoodie/timeline/{instant}.savepoint.inflight"), "").await.unwrap();
    storage.put(&format!(".hoodie/timeline/{instant}_{at}.savepoint"), "").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_that_were_archived_past_a_savepoint_are_newer_than_those_that_it_keeps() {
    let lake = Lake::new();
    value_table(&roles(), &lake.path("src")).await;
    let mut made = Vec::new();
    for n in 1..=3 {
        made.push(batch(&lake, &format!("r{n}")).await);
    }
    savepoint(&lake.path("out"), &made[0]).await;
    // Another writer's commit is the newest, so that all later ones of ours may go.
    let rows_of_another = values([("foreign".to_string(), 1)]);
    let writer = roles().writer.clone();
    let clock = std::sync::Arc::new(SystemClock);
    let stores = SystemStores::new();
    let other = SourceTable::open(&stores, writer, clock, &lake.path("out"), rows_of_another.schema()).await.unwrap();
    other.commit(vec![rows_of_another], Operation::Upsert).await.unwrap();
    archive_instants(Path::new(&lake.path("out")), &[made[1].as_str(), made[2].as_str()]);
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 4, "the test archives as it should");

    // A new process with empty records: the active timeline has cursors, but not the newest ones.
    let idle = run(&roles(), &job(&lake), "idle").await;
    assert_eq!(idle.outcome, Some(Outcome::NoNewData), "{:?}", idle.error);
    let again = run(&roles(), &job(&lake), "r3").await;
    assert_eq!(
        (again.outcome, again.instant.as_ref()),
        (Some(Outcome::Committed), Some(&made[2])),
        "{:?}",
        again.error
    );
    batch(&lake, "r4").await;
    let numbers: Vec<u64> = checkpoints(&lake.path("out"), "p").await.iter().map(|it| it.seq).collect();
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [1, 2, 3, 4]);
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 5);
}
