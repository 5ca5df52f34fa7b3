// SPDX-License-Identifier: Apache-2.0
//! Pipelines that a server keeps: their batches by name, pauses, restarts, and the command line for them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tributary_api::coordinator::BatchStatus;
use tributary_api::pipelines::{Change, RunStored};
use tributary_hudi::SystemStores;
use tributary_server::embedded::Embedded;
use tributary_store::{KeyValue, MemoryStore};
use tributary_testkit::{HeldStores, Hold};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Fault as _, Outcome, PipelineName, RequestId};

use crate::process::{Ended, Process, tributary};
use crate::support::{Lake, pipeline, request_of, roles, roles_with, value_table, values};

const SOON: Duration = Duration::from_secs(30);

/// A lake with one source of one commit.
async fn lake() -> Lake {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values((0..5).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    lake
}

fn job(lake: &Lake, target: &str) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path(target), "table_name": "t", "record_key": ["id"]},
    }))
}

fn name() -> PipelineName {
    PipelineName::new("p").unwrap()
}

fn by_name(id: &str) -> RunStored {
    RunStored {
        name: name(),
        request: RequestId::new(id).unwrap(),
        allow_empty: false,
        overrides: Vec::new(),
        cursors_only: false,
        asked_by: "a test".to_string(),
    }
}

fn setting(id: &str) -> RunStored {
    RunStored { cursors_only: true, overrides: vec!["src=snapshot".parse().unwrap()], ..by_name(id) }
}

async fn end(roles: &Embedded, started: &BatchStatus) -> BatchStatus {
    let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
    let ended = tokio::time::timeout(SOON, watch.wait_for(|status| status.outcome.is_some())).await;
    ended.unwrap().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_by_name_is_the_same_batch_whatever_became_of_the_pipeline_since() {
    let lake = lake().await;
    let roles = roles();
    let refused = roles.pipelines.run_stored(by_name("r1")).await.unwrap_err();
    assert_eq!(refused.reason(), "PIPELINE_NOT_FOUND");
    roles.pipelines.create_pipeline(job(&lake, "a"), Change::default()).await.unwrap();
    let started = roles.pipelines.run_stored(by_name("r1")).await.unwrap();
    let ended = end(&roles, &started).await;
    assert_eq!((ended.outcome, ended.written.rows), (Some(Outcome::Committed), 5), "{:?}", ended.error);

    roles.pipelines.update_pipeline(job(&lake, "b"), false, Change::default()).await.unwrap();
    assert_eq!(roles.pipelines.run_stored(by_name("r1")).await.unwrap(), ended, "the answer that was lost");
    let other = roles.coordinator.run_batch(request_of(&job(&lake, "a"), "r1")).await.unwrap_err();
    assert_eq!(other.reason(), "REQUEST_REUSED", "a definition is another request than a name");
    let next = end(&roles, &roles.pipelines.run_stored(by_name("r2")).await.unwrap()).await;
    assert_eq!((next.outcome, next.written.rows), (Some(Outcome::Committed), 5), "into the new target");
    assert!(lake.dir().join("b/.hoodie").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_pipeline_starts_no_batch_but_answers_for_those_before_and_lets_cursors_be_set() {
    let lake = lake().await;
    let roles = roles();
    roles.pipelines.create_pipeline(job(&lake, "a"), Change::default()).await.unwrap();
    let first = end(&roles, &roles.pipelines.run_stored(by_name("r1")).await.unwrap()).await;
    roles.pipelines.pause_pipeline(&name(), true, Change::default()).await.unwrap();
    for refused in [
        roles.pipelines.run_stored(by_name("r2")).await.unwrap_err(),
        roles.coordinator.run_batch(request_of(&job(&lake, "a"), "r3")).await.unwrap_err(),
    ] {
        assert_eq!((refused.reason(), refused.outcome()), ("PIPELINE_PAUSED", Outcome::Rejected), "{refused}");
    }
    assert_eq!(roles.pipelines.run_stored(by_name("r1")).await.unwrap(), first);
    let set = end(&roles, &roles.pipelines.run_stored(setting("set")).await.unwrap()).await;
    assert_eq!(set.outcome, Some(Outcome::Committed), "{:?}", set.error);
    roles.pipelines.pause_pipeline(&name(), false, Change::default()).await.unwrap();
    let again = end(&roles, &roles.pipelines.run_stored(by_name("r2")).await.unwrap()).await;
    assert_eq!((again.outcome, again.written.rows), (Some(Outcome::Committed), 5), "from the snapshot that was set");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_waits_for_its_turn_does_not_start_once_its_pipeline_is_paused_and_one_that_runs_goes_on() {
    let lake = lake().await;
    let hold = Hold::of(".commit");
    let stores = Arc::new(HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold)));
    let roles = roles_with(stores, Arc::new(MemoryStore::default()), |_| {});
    roles.pipelines.create_pipeline(job(&lake, "a"), Change::default()).await.unwrap();
    let runs = roles.pipelines.run_stored(by_name("r1")).await.unwrap();
    tokio::time::timeout(SOON, hold.reached(1)).await.unwrap();
    let waits = roles.pipelines.run_stored(by_name("r2")).await.unwrap();
    roles.pipelines.pause_pipeline(&name(), true, Change::default()).await.unwrap();
    hold.release();
    assert_eq!(end(&roles, &runs).await.outcome, Some(Outcome::Committed));
    let ended = end(&roles, &waits).await;
    assert_eq!(ended.outcome, Some(Outcome::Rejected));
    assert_eq!(ended.error.unwrap().reason, "PIPELINE_PAUSED");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_is_not_stored() {
    let lake = lake().await;
    let roles = roles();
    let mut wrong = job(&lake, "a");
    wrong.target.record_key.clear();
    wrong.sources[0].num_instants = 0;
    let refused = roles.pipelines.create_pipeline(wrong, Change::default()).await.unwrap_err().to_string();
    assert!(refused.contains("record_key") && refused.contains("num_instants"), "{refused}");
    let file = json!([{"sql_file": "merge.sql"}]);
    let mut from_file = serde_json::to_value(job(&lake, "a")).unwrap();
    from_file["transform"] = file;
    let refused =
        roles.pipelines.create_pipeline(pipeline(from_file), Change::default()).await.unwrap_err().to_string();
    assert!(refused.contains("merge.sql"), "{refused}");
    assert!(roles.pipelines.list_pipelines(None, 10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_whose_store_fails_says_so_and_that_asking_again_helps() {
    /// A disk that is full.
    struct Full;
    impl KeyValue for Full {
        fn get(&self, _: &str) -> Result<Option<Vec<u8>>, tributary_store::Error> {
            Ok(None)
        }
        fn put(&self, _: &str, _: &[u8]) -> Result<(), tributary_store::Error> {
            let source = Box::new(std::io::Error::other("no space left"));
            Err(tributary_store::Error { doing: "writing".to_string(), source })
        }
        fn swap(&self, _: &str, _: Option<&[u8]>, _: &[u8]) -> Result<bool, tributary_store::Error> {
            Ok(false)
        }
        fn delete(&self, _: &str) -> Result<(), tributary_store::Error> {
            Ok(())
        }
        fn scan(&self, _: &str, _: bool, _: usize) -> Result<Vec<(String, Vec<u8>)>, tributary_store::Error> {
            Ok(Vec::new())
        }
    }
    let lake = lake().await;
    let roles = roles_with(Arc::new(SystemStores::new()), Arc::new(Full), |_| {});
    let refused = roles.pipelines.create_pipeline(job(&lake, "a"), Change::default()).await.unwrap_err();
    assert_eq!((refused.reason(), refused.retry()), ("CATALOG_UNAVAILABLE", tributary_types::Retry::Again));
    let message = tributary_types::with_causes(&refused);
    assert!(message.contains("no space left"), "{message}");
}

/// Runs a command against a server; its JSON lines.
fn asked(server: &Process, arguments: &[&str]) -> (Ended, Vec<Value>) {
    let ended = tributary(&[arguments, &["--server", &server.url, "--output", "json"]].concat());
    let lines = ended.stdout.lines().filter(|line| line.starts_with('{'));
    let lines = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    (ended, lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_stores_changes_pauses_runs_and_forgets_pipelines_which_outlive_the_server() {
    let lake = lake().await;
    let file = lake.dir().join("p.toml");
    let text = "name = \"p\"\n[[source]]\nname = \"src\"\npath = \"src\"\nstart = \"snapshot\"\n\
                [[transform]]\nsql_file = \"p.sql\"\n[target]\npath = \"out\"\ntable_name = \"t\"\nrecord_key = [\"id\"]\n";
    std::fs::write(&file, text).unwrap();
    std::fs::write(lake.dir().join("p.sql"), "SELECT * FROM <SRC>").unwrap();
    let file = file.display().to_string();
    let data = lake.path("data");
    let mut server = Process::start(&["--data-dir", &data]);

    let (ended, looked) = asked(&server, &["pipelines", "create", "--pipeline", &file, "--dry-run"]);
    assert_eq!((ended.code, looked[0]["etag"].as_str()), (0, Some("")), "{}", ended.stderr);
    let (ended, created) = asked(&server, &["pipelines", "create", "--pipeline", &file, "--request-id", "c1"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let etag = created[0]["etag"].as_str().unwrap().to_string();
    assert_eq!(created[0]["definition"]["transform"][0]["sql"], "SELECT * FROM <SRC>", "the server reads no file");
    let (again, answered) = asked(&server, &["pipelines", "create", "--pipeline", &file, "--request-id", "c1"]);
    assert_eq!((again.code, &answered), (0, &created));
    let (twice, _) = asked(&server, &["pipelines", "create", "--pipeline", &file]);
    assert_eq!(twice.code, 2);
    assert!(twice.stderr.contains("is stored already"), "{}", twice.stderr);

    server.kill();
    let server = Process::start(&["--data-dir", &data]);
    let (_, listed) = asked(&server, &["pipelines", "list"]);
    assert_eq!(listed, created);
    let (ended, batch) = asked(&server, &["pipelines", "run", "p", "--request-id", "r1"]);
    assert_eq!((ended.code, batch[0]["outcome"].as_str(), batch[0]["rows"].as_u64()), (0, Some("COMMITTED"), Some(5)));

    std::fs::write(lake.dir().join("p.sql"), "SELECT * FROM <SRC> WHERE true").unwrap();
    let stale = ["pipelines", "update", "--pipeline", &file, "--etag", "0-0-1"];
    let (refused, _) = asked(&server, &stale);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains(&etag), "{}", refused.stderr);
    let (ended, updated) = asked(&server, &["pipelines", "update", "--pipeline", &file, "--etag", &etag]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_ne!(updated[0]["etag"], created[0]["etag"]);
    let (ended, _) = asked(&server, &["pipelines", "pause", "p"]);
    assert_eq!(ended.code, 0);
    let (refused, _) = asked(&server, &["pipelines", "run", "p"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("tributary pipelines resume p"), "{}", refused.stderr);
    let (ended, resumed) = asked(&server, &["pipelines", "resume", "p"]);
    assert_eq!((ended.code, resumed[0]["state"].as_str()), (0, Some("ACTIVE")));

    let shown = tributary(&["pipelines", "get", "p", "--server", &server.url]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    let definition: Pipeline = serde_json::from_value(resumed[0]["definition"].clone()).unwrap();
    assert!(shown.stdout.contains(&definition.target.path) && shown.stdout.contains("WHERE true"), "{}", shown.stdout);
    let (ended, gone) = asked(&server, &["pipelines", "delete", "p"]);
    assert_eq!((ended.code, gone[0]["deleted"].as_bool()), (0, Some(true)));
    let (missing, _) = asked(&server, &["pipelines", "get", "p"]);
    assert_eq!(missing.code, 1);
    let (ended, kept) = asked(&server, &["batches", "list"]);
    assert_eq!((ended.code, kept.len()), (0, 1), "its batches stay");
}
