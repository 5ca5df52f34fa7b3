// SPDX-License-Identifier: Apache-2.0
//! Targets whose commits were archived: cursors and request ids are found there all the same.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tributary_api::coordinator::Failure;
use tributary_testkit::archive_instants;
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, PipelineName, REQUESTS_KEPT, RequestId};

use crate::support::{Lake, checkpoints, open, pipeline, roles, rows, run, value_table, values};

fn copy_of(lake: &Lake, name: &str, source: &str) -> Pipeline {
    pipeline(json!({
        "name": name,
        "source": [{"name": "src", "path": lake.path(source), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_in_an_archived_commit_are_gone_on_from() {
    let lake = Lake::new();
    let roles = roles();
    let (one, two) = (value_table(&roles, &lake.path("one")).await, value_table(&roles, &lake.path("two")).await);
    one.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    two.upsert(vec![values([("b".to_string(), 2)])]).await.unwrap();
    let first = run(&roles, &copy_of(&lake, "p", "one"), "p1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    let other = run(&roles, &copy_of(&lake, "q", "two"), "q1").await;
    assert_eq!(other.outcome, Some(Outcome::Committed), "{:?}", other.error);
    archive_instants(Path::new(&lake.path("out")), &[first.instant.as_ref().unwrap().as_str()]);
    let (_, _, timeline) = open(&lake.path("out")).await;
    assert!(timeline.find(first.instant.as_ref().unwrap()).is_none(), "the active timeline has no cursor of it");

    // A new process with empty records: only the archive knows.
    let roles = crate::support::roles();
    let idle = run(&roles, &copy_of(&lake, "p", "one"), "p2").await;
    assert_eq!(idle.outcome, Some(Outcome::NoNewData), "{:?}", idle.error);
    let again = run(&roles, &copy_of(&lake, "p", "one"), "p1").await;
    assert_eq!((again.outcome, &again.instant), (Some(Outcome::Committed), &first.instant), "{:?}", again.error);

    one.upsert(vec![values([("c".to_string(), 3)])]).await.unwrap();
    let second = run(&roles, &copy_of(&lake, "p", "one"), "p3").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    assert_eq!(second.seq, Some(2));
    let begin = second.sources[0].window.as_ref().unwrap().begin.as_ref();
    assert_eq!(begin, Some(&first.sources[0].window.as_ref().unwrap().end));
    assert_eq!(rows(&roles, &lake.path("out")).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_archived_between_its_listing_and_its_reading_is_found_in_the_history() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let job = copy_of(&lake, "p", "src");
    let mut instants = Vec::new();
    for n in 0..2 {
        source.upsert(vec![values([(format!("k{n}"), n)])]).await.unwrap();
        instants.push(run(&roles, &job, &format!("r{n}")).await.instant.unwrap());
    }
    // The store still lists the newest commit, and does not have it any more.
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let newest = timeline.find(&instants[1]).unwrap();
    let path = timeline.completed_path(newest).unwrap();
    let stores = Arc::new(stale::StaleStores::listing(&storage, &path).await);
    archive_instants(Path::new(&lake.path("out")), &[instants[1].as_str()]);
    let store = Arc::new(tributary_store::MemoryStore::default());
    let checkpoints = stale::checkpoint_role(stores, store);
    let name = PipelineName::new("p").unwrap();
    let resolved = checkpoints.resolve(&name, &lake.path("out")).await.unwrap();
    assert_eq!(resolved.newest.unwrap().instant, instants[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_older_than_what_the_target_remembers_is_refused_and_not_run() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    let job = copy_of(&lake, "p", "src");
    let id = |millis: i64| RequestId::at(1_700_000_000_000 + millis, 7).to_string();
    assert_eq!(run(&roles, &job, &id(100)).await.outcome, Some(Outcome::Committed));
    // As if further commits had pushed the id out of the newest one.
    crate::support::rewrite_checkpoint(&lake.path("out"), "p", |checkpoint| {
        checkpoint.seq = REQUESTS_KEPT as u64 + 50;
        checkpoint.requests[0].id = RequestId::new(id(500)).unwrap();
    })
    .await;
    source.upsert(vec![values([("b".to_string(), 2)])]).await.unwrap();
    let roles = crate::support::roles();
    let refused = run(&roles, &job, &id(100)).await;
    assert_eq!(refused.outcome, Some(Outcome::Rejected));
    let Failure { reason, message, .. } = refused.error.unwrap();
    assert_eq!(reason, "REQUEST_EXPIRED");
    assert!(message.contains(&id(100)) && message.contains(&id(500)), "{message}");
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1, "nothing ran");
    assert_eq!(run(&roles, &job, &id(600)).await.outcome, Some(Outcome::Committed));
}

/// A store whose listing of one directory is from before.
mod stale {
    use super::*;
    use tributary_api::checkpoint::Checkpoints;
    use tributary_hudi::{Storage, Stores, SystemStores};
    use tributary_server::embedded::Settings;
    use tributary_server::roles::{Elsewhere, Parts, Role, host};
    use tributary_store::KeyValue;
    use tributary_types::{SystemClock, SystemEntropy};

    pub(super) struct StaleStores(Arc<tributary_testkit::Ghost>);

    impl StaleStores {
        pub(super) async fn listing(storage: &Storage, path: &str) -> Self {
            StaleStores(tributary_testkit::Ghost::of(storage, path).await)
        }
    }

    impl Stores for StaleStores {
        fn open(&self, url: &str) -> tributary_hudi::Result<Storage> {
            Ok(self.0.haunt(SystemStores::new().open(url)?))
        }
    }

    pub(super) fn checkpoint_role(stores: Arc<dyn Stores>, store: Arc<dyn KeyValue>) -> Arc<dyn Checkpoints> {
        let parts = Parts { stores, store, clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) };
        host(&[Role::Checkpoint], &Elsewhere::default(), &parts, Settings::default()).unwrap().checkpoints.unwrap()
    }
}
