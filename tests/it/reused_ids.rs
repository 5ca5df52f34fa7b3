// SPDX-License-Identifier: Apache-2.0
//! Request ids that are used again with another pipeline: never answered with what the earlier one did.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tributary_api::coordinator::BatchStatus;
use tributary_hudi::SystemStores;
use tributary_store::MemoryStore;
use tributary_types::pipeline::{Pipeline, Transform};
use tributary_types::{Outcome, PipelineName, RequestId};

use crate::process::{Process, tributary};
use crate::support::{Lake, checkpoints, pipeline, rewrite_checkpoint, roles, roles_with, run, value_table, values};

async fn lake() -> Lake {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values((0..5).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    lake
}

fn job(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

fn changed(lake: &Lake) -> Pipeline {
    let mut changed = job(lake);
    let sql = "SELECT id, value + 1 AS value FROM <SRC>".to_string();
    changed.transforms = vec![Transform { sql: Some(sql), ..Transform::default() }];
    changed
}

fn assert_refused(status: &BatchStatus) {
    let error = status.error.as_ref().unwrap();
    assert_eq!((status.outcome, error.reason.as_str()), (Some(Outcome::Rejected), "REQUEST_REUSED"));
    assert!(error.message.contains("`r`") && error.message.contains("Use a new id"), "{}", error.message);
    assert_eq!(status.instant, None, "nothing of the earlier batch is told");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_another_definition_is_refused_from_the_target_alone() {
    let lake = lake().await;
    assert_eq!(run(&roles(), &job(&lake), "r").await.outcome, Some(Outcome::Committed));
    // Other roles without any record.
    assert_refused(&run(&roles(), &changed(&lake), "r").await);
    let same = run(&roles(), &job(&lake), "r").await;
    assert_eq!((same.outcome, same.seq), (Some(Outcome::Committed), Some(1)), "the same pipeline is answered as ever");
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1);
    assert_eq!(run(&roles(), &changed(&lake), "r2").await.outcome, Some(Outcome::NoNewData), "a new id is");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_another_definition_is_refused_from_the_record_of_an_earlier_process() {
    let lake = lake().await;
    let store = Arc::new(MemoryStore::default());
    let process = || roles_with(Arc::new(SystemStores::new()), Arc::clone(&store) as _, |_| {});
    assert_eq!(run(&process(), &job(&lake), "r").await.outcome, Some(Outcome::Committed));
    let mut elsewhere = changed(&lake);
    elsewhere.target.path = lake.path("elsewhere");
    let request = crate::support::request_of(&elsewhere, "r");
    let refused = process().coordinator.run_batch(request).await.unwrap_err().to_string();
    assert!(refused.contains("`r`") && refused.contains("Use a new id"), "{refused}");
    assert!(!Path::new(&elsewhere.target.path).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_whose_definition_is_not_known_is_answered_as_before() {
    let lake = lake().await;
    assert_eq!(run(&roles(), &job(&lake), "r").await.outcome, Some(Outcome::Committed));
    // As an earlier version wrote it.
    rewrite_checkpoint(&lake.path("out"), "p", |checkpoint| checkpoint.requests[0].definition = None).await;
    let answered = run(&roles(), &changed(&lake), "r").await;
    assert_eq!((answered.outcome, answered.seq), (Some(Outcome::Committed), Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_definition_of_an_answered_request_is_found_in_the_target() {
    let lake = lake().await;
    assert_eq!(run(&roles(), &job(&lake), "r").await.outcome, Some(Outcome::Committed));
    let (name, id) = (PipelineName::new("p").unwrap(), RequestId::new("r").unwrap());
    let found = roles().checkpoints.find_commit(&name, &lake.path("out"), &id).await.unwrap().unwrap();
    let kept = checkpoints(&lake.path("out"), "p").await[0].requests[0].definition.clone();
    assert!(kept.is_some() && found.definition == kept, "{found:?}");
}

const FILE: &str = "name = \"p\"\n[[source]]\nname = \"src\"\npath = \"src\"\nstart = \"snapshot\"\n[target]\npath = \
                    \"out\"\ntable_name = \"out\"\nrecord_key = [\"id\"]\n";

#[tokio::test(flavor = "multi_thread")]
async fn the_run_command_refuses_the_id_of_another_definition_here_and_on_a_server() {
    let lake = lake().await;
    let file = lake.path("p.toml");
    let server = Process::start(&[]);
    let here: &[&str] = &["run", "--pipeline", &file, "--request-id", "r"];
    let there = [here, &["--server", &server.url]].concat();
    std::fs::write(&file, FILE).unwrap();
    assert_eq!(tributary(here).code, 0);
    assert_eq!(tributary(&there).code, 0, "the same pipeline, wherever it runs");
    std::fs::write(&file, FILE.replace("start = \"snapshot\"", "start = \"latest\"")).unwrap();
    for arguments in [here, &there] {
        let refused = tributary(arguments);
        assert_eq!(refused.code, 2, "{refused:?}");
        let said = refused.stdout.clone() + &refused.stderr;
        assert!(said.contains("belongs to another definition") && !said.contains("COMMITTED"), "{refused:?}");
    }
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1);
}
