// SPDX-License-Identifier: Apache-2.0
//! Kafka topics as sources, beside tables and files, in the same batch, commit and cursors.

use std::sync::Arc;

use serde_json::{Value, json};
use tributary_hudi::SystemStores;
use tributary_server::embedded::{Embedded, Settings};
use tributary_server::roles::Parts;
use tributary_store::MemoryStore;
use tributary_testkit::kafka::{Batch, Broker};
use tributary_testkit::{FAULTS, FaultPlan, FaultyStores};
use tributary_types::pipeline::Pipeline;
use tributary_types::{FLAT_KEY, Outcome, SystemClock, SystemEntropy};

use crate::support::{
    Lake, assert_sound, checkpoints, open, pipeline, roles, roles_over, rows, run, spread, value_table, values,
};

/// Clicks of a topic into a table of their own.
fn clicks(lake: &Lake, broker: &Broker, more: Value) -> Pipeline {
    let mut source = json!({
        "name": "clicks", "kind": "kafka", "brokers": broker.address(), "topic": "clicks", "format": "json",
        "start": "earliest",
    });
    source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pipeline(json!({
        "name": "clicks",
        "source": [source],
        "target": {"path": lake.path("out"), "table_name": "clicks", "record_key": ["id"]},
    }))
}

async fn started(partitions: usize) -> Broker {
    let broker = Broker::start().await;
    broker.create("clicks", partitions);
    broker
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_a_table_and_a_directory_are_merged_in_one_commit() {
    let (lake, broker, roles) = (Lake::new(), started(2).await, roles());
    let users = value_table(&roles, &lake.path("users")).await;
    users.upsert(vec![values([("ada".to_string(), 1), ("bob".to_string(), 2)])]).await.unwrap();
    let pages = lake.dir().join("pages");
    std::fs::create_dir_all(&pages).unwrap();
    std::fs::write(pages.join("1.csv"), "page,title\nhome,Home\nshop,\"The shop\"\n").unwrap();
    let mut job = clicks(&lake, &broker, json!({}));
    job.sources.extend(
        pipeline(json!({
            "name": "x",
            "source": [
                {"name": "users", "path": lake.path("users"), "start": "snapshot"},
                {"name": "pages", "kind": "csv", "path": lake.path("pages"), "read": "snapshot", "csv": {"header": true}},
            ],
            "target": {"path": "/t", "table_name": "t", "record_key": ["id"]},
        }))
        .sources,
    );
    let sql = "SELECT c.id, u.value AS user, p.title FROM <SRC:clicks> c JOIN <SNAP:users> u ON u.id = c.user \
               JOIN <SNAP:pages> p ON p.page = c.page";
    job.transforms = serde_json::from_value(json!([{"sql": sql}])).unwrap();
    broker.send("clicks", 0, &["{\"id\":1,\"user\":\"ada\",\"page\":\"home\"}"]);
    broker.send("clicks", 1, &["{\"id\":2,\"user\":\"bob\",\"page\":\"shop\"}"]);
    let first = run(&roles, &job, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    let expected = ["{\"id\":1,\"user\":1,\"title\":\"Home\"}", "{\"id\":2,\"user\":2,\"title\":\"The shop\"}"];
    assert_eq!(rows(&roles, &lake.path("out")).await, expected);
    let commits = checkpoints(&lake.path("out"), "clicks").await;
    let topic = commits[0].sources.values().find(|source| source.kind == "kafka").unwrap();
    assert_eq!(topic.cursor.as_ref().unwrap().to_string(), "offsets:clicks,0:1,1:1");
    assert_eq!(topic.path.as_deref(), Some("kafka:clicks"));
    assert_eq!(run(&roles, &job, "r2").await.outcome, Some(Outcome::NoNewData));
    assert_sound(&lake.path("out"), "clicks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_topic_leaves_the_checkpoint_that_hudi_streamer_would() {
    let (lake, broker, roles) = (Lake::new(), started(2).await, roles());
    broker.send("clicks", 0, &["{\"id\":1}", "{\"id\":2}"]);
    let batch = run(&roles, &clicks(&lake, &broker, json!({})), "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let (storage, _, timeline) = open(&lake.path("out")).await;
    let path = timeline.completed_path(timeline.completed_writes()[0]).unwrap();
    let metadata = tributary_hudi::CommitMetadata::decode(&path, &storage.read(&path).await.unwrap()).unwrap();
    assert_eq!(metadata.extra[FLAT_KEY], "clicks,0:2,1:0");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_messages_of_one_key_the_last_one_counts_and_one_without_a_value_deletes() {
    let (lake, broker, roles) = (Lake::new(), started(3).await, roles());
    let job = clicks(&lake, &broker, json!({"kafka": {"key_columns": ["id"]}}));
    for n in 0..40 {
        for partition in 0..3 {
            let key = partition.to_string();
            let value = format!("{{\"id\":{partition},\"n\":{n}}}");
            broker.append("clicks", partition, Batch::keyed(0, &[(Some(&key), Some(&value))]));
        }
    }
    broker.append("clicks", 2, Batch::keyed(0, &[(Some("2"), None)]));
    let first = run(&roles, &job, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    let stored = |id: i64, n: i64| format!("{{\"id\":{id},\"n\":{n},\"_hoodie_is_deleted\":false}}");
    assert_eq!(rows(&roles, &lake.path("out")).await, [stored(0, 39), stored(1, 39)]);
    broker.append("clicks", 0, Batch::keyed(0, &[(Some("0"), None)]));
    broker.append("clicks", 2, Batch::keyed(0, &[(Some("2"), Some("{\"id\":2,\"n\":41}"))]));
    let second = run(&roles, &job, "r2").await;
    assert_eq!((second.outcome, second.written.deletes), (Some(Outcome::Committed), 1), "{:?}", second.error);
    assert_eq!(rows(&roles, &lake.path("out")).await, [stored(1, 39), stored(2, 41)]);
    assert_sound(&lake.path("out"), "clicks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_read_from_now_on_loses_nothing_that_comes_between_two_batches() {
    let (lake, broker, roles) = (Lake::new(), started(1).await, roles());
    broker.send("clicks", 0, &["{\"id\":1}"]);
    let job = clicks(&lake, &broker, json!({"start": "latest"}));
    let first = run(&roles, &job, "r1").await;
    assert_eq!((first.outcome, first.written.rows), (Some(Outcome::Committed), 0), "{:?}", first.error);
    broker.send("clicks", 0, &["{\"id\":2}"]);
    let second = run(&roles, &job, "r2").await;
    assert_eq!((second.outcome, second.written.rows), (Some(Outcome::Committed), 1), "{:?}", second.error);
    assert_eq!(rows(&roles, &lake.path("out")).await, ["{\"id\":2}"]);
    assert_sound(&lake.path("out"), "clicks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_shows_the_window_and_how_far_it_is_behind() {
    let (lake, broker, roles) = (Lake::new(), started(2).await, roles());
    broker.send("clicks", 1, &["{\"id\":1}", "{\"id\":2}", "{\"id\":3}"]);
    let job = clicks(&lake, &broker, json!({"kafka": {"max_events": 2}}));
    let planned = roles.coordinator.plan_batch(job.clone(), Vec::new()).await.unwrap();
    let source = &planned.sources[0];
    assert_eq!(source.window.as_ref().unwrap().to_string(), "(offsets:clicks,0:0,1:0, offsets:clicks,0:0,1:2]");
    assert_eq!((source.report.instants, source.report.lag_instants), (2, 1));
    assert_eq!(planned.columns, [("id".to_string(), "Int64".to_string())]);
    assert!(!crate::support::has_table(&lake.path("out")));
    for (request, rows) in [("r1", 2), ("r2", 1)] {
        let batch = run(&roles, &job, request).await;
        assert_eq!((batch.outcome, batch.written.rows), (Some(Outcome::Committed), rows), "{:?}", batch.error);
    }
    assert_sound(&lake.path("out"), "clicks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_created_again_or_lost_messages_fails_the_batch_and_no_cursor_moves() {
    let (lake, broker, roles) = (Lake::new(), started(1).await, roles());
    let job = clicks(&lake, &broker, json!({}));
    broker.send("clicks", 0, &["{\"id\":1}"]);
    assert_eq!(run(&roles, &job, "r1").await.outcome, Some(Outcome::Committed));
    broker.send("clicks", 0, &["{\"id\":2}"]);
    broker.send("clicks", 0, &["{\"id\":3}"]);
    broker.expire("clicks", 0, 2);
    let failed = run(&roles, &job, "r2").await.error.unwrap();
    assert!(
        failed.reason == "OFFSETS_OUT_OF_RANGE" && failed.message.contains("partition 0: offsets 1 to 1"),
        "{failed:?}"
    );
    let lenient = clicks(&lake, &broker, json!({"kafka": {"on_out_of_range": "earliest"}}));
    let batch = run(&roles, &lenient, "r3").await;
    assert_eq!((batch.outcome, batch.written.rows), (Some(Outcome::Committed), 1), "{:?}", batch.error);
    assert_eq!(batch.sources[0].report.left_out, ["partition 0: offsets 1 to 1"]);
    broker.create("clicks", 1);
    let failed = run(&roles, &job, "r4").await.error.unwrap();
    assert!(failed.reason == "TOPIC_RECREATED" && failed.message.contains("source `clicks`"), "{failed:?}");
    assert_eq!(checkpoints(&lake.path("out"), "clicks").await.len(), 2);
    assert_sound(&lake.path("out"), "clicks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_message_fails_the_batch_with_its_place_with_every_role_behind_its_own_port() {
    let (lake, broker) = (Lake::new(), started(1).await);
    let parts = Parts {
        stores: Arc::new(SystemStores::new()),
        store: Arc::new(MemoryStore::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let apart = spread(parts, Settings::default());
    let job = clicks(&lake, &broker, json!({"kafka": {"timeout": "500ms"}}));
    broker.send("clicks", 0, &["{\"id\":1}"]);
    let first = run(&apart, &job, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    assert_eq!(first.sources[0].window.as_ref().unwrap().end.to_string(), "offsets:clicks,0:1");
    broker.send("clicks", 0, &["{\"id\":2}", "no"]);
    let failed = run(&apart, &job, "r2").await.error.unwrap();
    assert!(failed.reason == "BAD_MESSAGE" && failed.message.contains("partition 0, offset 2"), "{failed:?}");
    broker.set_down(true);
    let failed = run(&apart, &job, "r3").await.error.unwrap();
    assert_eq!((failed.reason.as_str(), failed.retry), ("BROKERS_UNAVAILABLE", tributary_types::Retry::Again));
    broker.set_down(false);
    let lenient = clicks(&lake, &broker, json!({"json": {"mode": "dropmalformed"}}));
    let batch = run(&apart, &lenient, "r4").await;
    assert_eq!((batch.outcome, batch.written.rows), (Some(Outcome::Committed), 1), "{:?}", batch.error);
    assert_eq!(rows(&roles(), &lake.path("out")).await, ["{\"id\":1}", "{\"id\":2}"]);
    assert_sound(&lake.path("out"), "clicks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aligned_batch_ends_a_topic_at_the_first_message_after_the_ceiling() {
    let (lake, broker, roles) = (Lake::demo(1), started(1).await, roles());
    let mut job = clicks(&lake, &broker, json!({}));
    job.consistency = tributary_types::pipeline::Consistency::Aligned;
    job.sources.push(
        serde_json::from_value(
            json!({"name": "orders", "path": lake.path("orders"), "start": "snapshot", "unused": "allow"}),
        )
        .unwrap(),
    );
    job.transforms = serde_json::from_value(json!([{"sql": "SELECT id FROM <SRC:clicks>"}])).unwrap();
    broker.append("clicks", 0, Batch::of(0, &["{\"id\":1}"]).stamped(1_000));
    broker.append("clicks", 0, Batch::of(0, &["{\"id\":2}"]).stamped(i64::MAX / 2));
    let batch = run(&roles, &job, "r1").await;
    assert_eq!((batch.outcome, batch.written.rows), (Some(Outcome::Committed), 1), "{:?}", batch.error);
    assert_eq!(batch.sources[0].window.as_ref().unwrap().end.to_string(), "offsets:clicks,0:1");
    assert!(!batch.sources[0].report.not_a_cut);
}

fn disturbed(plan: Arc<FaultPlan>) -> Embedded {
    roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), plan)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_messages_survives_every_fault_of_every_operation_and_is_committed_once() {
    let (template, broker) = (Lake::new(), started(1).await);
    let job = |lake: &Lake| Pipeline { accept_binding_change: true, ..clicks(lake, &broker, json!({})) };
    broker.send("clicks", 0, &["{\"id\":1,\"n\":1}", "{\"id\":2,\"n\":2}"]);
    let first = run(&roles(), &job(&template), "first").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    broker.transact("clicks", 0, 7, &["{\"id\":9,\"n\":9}"], false);
    broker.send("clicks", 0, &["{\"id\":2,\"n\":20}", "{\"id\":3,\"n\":30}"]);
    let plan = FaultPlan::none();
    let counted = run(&disturbed(Arc::clone(&plan)), &job(&template.copy()), "batch").await;
    assert_eq!(counted.outcome, Some(Outcome::Committed), "{:?}", counted.error);
    let operations = plan.operations();
    assert!(operations > 4, "a batch has more operations than {operations}");
    for number in 0..operations {
        for fault in FAULTS {
            let case = format!("operation {number} of {operations}, {fault:?}");
            let lake = template.copy();
            let plan = FaultPlan::at(number, fault);
            run(&disturbed(Arc::clone(&plan)), &job(&lake), "batch").await;
            assert!(plan.operations() > number, "{case}: the operation was not reached");
            let healthy = roles();
            let again = run(&healthy, &job(&lake), "batch").await;
            assert_eq!(again.outcome, Some(Outcome::Committed), "{case}: {:?}", again.error);
            let expected = ["{\"id\":1,\"n\":1}", "{\"id\":2,\"n\":20}", "{\"id\":3,\"n\":30}"];
            assert_eq!(rows(&healthy, &lake.path("out")).await, expected, "{case}");
            assert_eq!(checkpoints(&lake.path("out"), "clicks").await.len(), 2, "{case}: one commit for the window");
            assert_eq!(run(&healthy, &job(&lake), "after").await.outcome, Some(Outcome::NoNewData), "{case}");
            assert_sound(&lake.path("out"), "clicks").await;
        }
    }
}
