// SPDX-License-Identifier: Apache-2.0
//! A look at the next batch: it shows everything, reads no data file and changes nothing.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tributary_api::coordinator::PlannedBatch;
use tributary_hudi::{Stores, SystemStores};
use tributary_server::embedded::{Embedded, Settings};
use tributary_server::roles::Parts;
use tributary_store::{KeyValue, MemoryStore};
use tributary_testkit::{Does, RecordedStores, Recording, all_files};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, SystemClock, SystemEntropy};

use crate::process::{Process, tributary};
use crate::support::{Lake, checkpoints, enriched, fixtures, has_table, pipeline, roles_with, run, spread};

/// Roles whose stores are recorded, and where they keep their records.
struct Watched {
    roles: Embedded,
    recording: Arc<Recording>,
    store: Arc<MemoryStore>,
}

impl Watched {
    fn new() -> Self {
        Watched::made(|stores, store| roles_with(stores, store, |_| {}))
    }

    /// The same with gRPC between all roles, and before the coordinator.
    fn over_grpc() -> Self {
        Watched::made(|stores, store| {
            let parts = Parts { stores, store, clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) };
            spread(parts, Settings::default())
        })
    }

    fn made(make: impl FnOnce(Arc<dyn Stores>, Arc<dyn KeyValue>) -> Embedded) -> Self {
        let recording = Recording::new();
        let stores = RecordedStores::new(Arc::new(SystemStores::new()), Arc::clone(&recording));
        let store = Arc::new(MemoryStore::default());
        let roles = make(Arc::new(stores), Arc::clone(&store) as Arc<dyn KeyValue>);
        Watched { roles, recording, store }
    }

    /// Plans; nothing may change by it, in no table and no record.
    async fn plan(&self, pipeline: &Pipeline) -> PlannedBatch {
        let before = self.state(pipeline).await;
        self.recording.take();
        let planned = self.roles.coordinator.plan_batch(pipeline.clone(), Vec::new()).await.unwrap();
        let operations = self.recording.take();
        assert!(operations.iter().any(|operation| operation.does == Does::List), "the stores are recorded");
        let wrong: Vec<_> = operations.iter().filter(|o| o.does == Does::Change || o.reads_data()).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(self.state(pipeline).await, before);
        planned
    }

    async fn state(&self, pipeline: &Pipeline) -> (Vec<(String, Vec<u8>)>, Vec<(String, Vec<u8>)>) {
        let records = self.store.scan("", false, usize::MAX).unwrap();
        let mut files = Vec::new();
        if has_table(&pipeline.target.path) {
            let storage = SystemStores::new().open(&pipeline.target.path).unwrap();
            files.extend(all_files(&storage).await.into_iter().map(|(path, bytes)| (path, bytes.to_vec())));
        }
        (records, files)
    }
}

async fn planning_shows_all_and_changes_nothing(watched: Watched) {
    let lake = Lake::demo(1);
    let pipeline = enriched(&lake);
    let first = watched.plan(&pipeline).await;
    assert!(first.has_news && first.sources[0].window.as_ref().unwrap().begin.is_none());
    assert!(!Path::new(&lake.path("out")).exists(), "the target is not made");
    assert_eq!(run(&watched.roles, &pipeline, "r1").await.outcome, Some(Outcome::Committed));

    let nothing = watched.plan(&pipeline).await;
    assert!(!nothing.has_news);

    lake.advance_demo(2);
    let next = watched.plan(&pipeline).await;
    assert!(next.has_news);
    let orders = &next.sources[0];
    let stored = checkpoints(&lake.path("out"), "orders_enriched").await.pop().unwrap();
    assert_eq!(orders.window.as_ref().unwrap().begin, stored.sources[&orders.source].cursor);
    assert_eq!(orders.report.instants, 2);
    assert!(orders.report.files > 0 && orders.report.bytes > 0, "{:?}", orders.report);
    assert!(next.sources[1].window.is_none(), "users are looked up");
    assert!(next.logical_plan.contains("Join") && next.physical_plan.contains("Exec"), "{next:?}");
    assert!(next.columns.contains(&("tier".to_string(), "Utf8".to_string())), "{:?}", next.columns);

    let ended = run(&watched.roles, &pipeline, "r2").await;
    assert_eq!(ended.sources[0].window, orders.window, "the batch reads what was shown");
    let epochs: Vec<u64> = checkpoints(&lake.path("out"), "orders_enriched").await.iter().map(|c| c.epoch).collect();
    assert_eq!(epochs, [1, 2], "a look takes no epoch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_shows_the_next_batch_reads_no_data_file_and_changes_nothing() {
    planning_shows_all_and_changes_nothing(Watched::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_over_grpc_shows_the_next_batch_reads_no_data_file_and_changes_nothing() {
    planning_shows_all_and_changes_nothing(Watched::over_grpc()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_reads_no_data_file_where_a_batch_looks_into_those_of_a_clustering_or_compaction() {
    for table in ["cow_v9_replace", "mor_v9_compaction", "cow_v6_replace"] {
        let lake = Lake::new();
        tributary_testkit::unpack_zip(&fixtures().join(format!("tables/{table}.zip")), lake.dir());
        let pipeline = pipeline(json!({
            "name": "p",
            "source": [{"name": "src", "path": lake.path(table), "start": "earliest", "num_instants": 100}],
            "transform": [{"sql": "SELECT id, ts FROM <SRC>"}],
            "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
        }));
        let watched = Watched::new();
        let planned = watched.plan(&pipeline).await;
        assert!(planned.sources[0].report.files > 0, "{table}: {planned:?}");
        watched.recording.take();
        let ended = run(&watched.roles, &pipeline, "r").await;
        assert_eq!(ended.outcome, Some(Outcome::Committed), "{table}: {:?}", ended.error);
        assert!(watched.recording.take().iter().any(|operation| operation.reads_data()), "a batch does read");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_whether_a_cursor_can_be_set_reads_no_data_file_and_changes_nothing() {
    for watched in [Watched::new(), Watched::over_grpc()] {
        let lake = Lake::demo(2);
        let pipeline = enriched(&lake);
        assert_eq!(run(&watched.roles, &pipeline, "r1").await.outcome, Some(Outcome::Committed));
        let before = watched.state(&pipeline).await;
        watched.recording.take();
        let wanted = vec!["orders=earliest".parse().unwrap()];
        let found = watched.roles.coordinator.check_overrides(pipeline.clone(), wanted).await.unwrap();
        assert_eq!((found.len(), &found[0].applied_by), (1, &None));
        let operations = watched.recording.take();
        let wrong: Vec<_> = operations.iter().filter(|o| o.does == Does::Change || o.reads_data()).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(watched.state(&pipeline).await, before);
    }
}

const FILE: &str = r#"
name = "orders_enriched"
[[source]]
name = "orders"
path = "orders"
start = "snapshot"
[[source]]
name = "users"
path = "users"
read = "snapshot"
[[transform]]
sql = "SELECT o.order_id, o.order_date, u.tier FROM <SRC:orders> o LEFT JOIN <SNAP:users> u ON o.user_id = u.user_id"
[target]
path = "out"
table_name = "out"
record_key = ["order_id"]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_plan_command_shows_windows_plans_and_columns_here_and_on_a_server() {
    let lake = Lake::demo(1);
    let file = lake.path("p.toml");
    std::fs::write(&file, FILE).unwrap();
    let here = tributary(&["plan", "--pipeline", &file]);
    assert_eq!(here.code, 0, "{here:?}");
    for part in
        ["news     yes", "orders: window (", "users: looked up", "order_id: Utf8", "logical plan", "physical plan"]
    {
        assert!(here.stdout.contains(part), "`{part}` is missing in {}", here.stdout);
    }
    let server = Process::start(&["--data-dir", &lake.path("data")]);
    let there = tributary(&["plan", "--pipeline", &file, "--server", &server.url, "--output", "json"]);
    assert_eq!(there.code, 0, "{there:?}");
    let planned: Value = serde_json::from_str(there.stdout.trim()).unwrap();
    assert_eq!(planned["has_news"], json!(true));
    assert_eq!((&planned["sources"][0]["name"], &planned["sources"][0]["begin"]), (&json!("orders"), &Value::Null));
    assert!(planned["sources"][0]["files"].as_u64().unwrap() > 0, "{planned}");
    assert_eq!(planned["columns"][0], json!({"name": "order_id", "type": "Utf8"}));
    assert!(planned["logical_plan"].as_str().unwrap().contains("Join"), "{planned}");
    assert!(!Path::new(&lake.path("out")).exists());
    let listed = tributary(&["batches", "list", "--server", &server.url]);
    assert_eq!((listed.code, listed.stdout.as_str()), (0, ""), "a plan is no batch");
    assert!(listed.stderr.contains("no batches at"), "{listed:?}");
}
