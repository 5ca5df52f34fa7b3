// SPDX-License-Identifier: Apache-2.0
//! Roles as processes of which some there are two of, and roles that go away in the middle of a batch.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::{CancelFlightInfoRequest, FlightInfo};
use futures::TryStreamExt;
use serde_json::json;
use tributary_api::coordinator::{BatchStatus, Coordinator};
use tributary_rpc::{CoordinatorClient, connect_lazily};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Outcome, Retry, Stage};

use crate::flights::{client, flight};
use crate::process::Process;
use crate::support::{
    Lake, assert_sound, checkpoints, enriched, has_table, json_rows, pipeline, request_of, roles, rows, run,
};

/// An address of loopback that nobody listens on.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// All roles, two of some, each a process.
struct Cluster {
    timelines: Vec<Process>,
    writers: Vec<Process>,
    sources: Process,
    checkpoint: Process,
    merge: Process,
    coordinator: Process,
}

impl Cluster {
    fn start(data: &Path) -> Cluster {
        let data = data.join("records").display().to_string();
        let timeline = |_| {
            let address = free_address();
            let advertised = format!("grpc://{address}");
            Process::start_at(&address, &["--roles", "timeline", "--advertise-address", &advertised])
        };
        let timelines: Vec<Process> = (0..2).map(timeline).collect();
        let writers: Vec<Process> = (0..2).map(|_| Process::start(&["--roles", "writer"])).collect();
        let sources = Process::start(&["--roles", "sources"]);
        let checkpoint = Process::start(&["--roles", "checkpoint", "--data-dir", &data]);
        let both = |processes: &[Process]| format!("{},{}", processes[0].url, processes[1].url);
        let (timeline, writer) = (both(&timelines), both(&writers));
        let readers = ["--timeline-address", &timeline, "--sources-address", &sources.url];
        let merge = Process::start(&[&["--roles", "merge", "--writer-address", &writer][..], &readers].concat());
        let others = ["--checkpoint-address", &checkpoint.url, "--merge-address", &merge.url];
        let coordinator = Process::start(&[&["--roles", "coordinator"][..], &readers, &others].concat());
        Cluster { timelines, writers, sources, checkpoint, merge, coordinator }
    }

    fn coordinator(&self) -> CoordinatorClient {
        CoordinatorClient::new(connect_lazily(&self.coordinator.url).unwrap(), self.coordinator.url.clone())
    }
}

async fn end_of(coordinator: &dyn Coordinator, name: &BatchName) -> BatchStatus {
    let mut watch = coordinator.watch_batch(name).await.unwrap();
    watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone()
}

async fn run_on(coordinator: &dyn Coordinator, pipeline: &Pipeline, request: &str) -> BatchStatus {
    let started = coordinator.run_batch(request_of(pipeline, request)).await.unwrap();
    end_of(coordinator, &started.name).await
}

/// The rows of every endpoint, each from its first location that answers.
async fn pull(info: &FlightInfo) -> Vec<RecordBatch> {
    let mut pulled = Vec::new();
    for endpoint in &info.endpoint {
        let ticket = endpoint.ticket.clone().unwrap();
        let mut found = None;
        for location in &endpoint.location {
            let mut replica = client(&location.uri.replace("grpc://", "http://"));
            if let Ok(stream) = replica.do_get(ticket.clone()).await {
                found = Some(stream.try_collect::<Vec<_>>().await.unwrap());
                break;
            }
        }
        pulled.extend(found.expect("one of the locations serves it"));
    }
    pulled
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_timelines_and_two_writers_each_works_and_one_of_each_may_go() {
    let (apart, together) = (Lake::demo(1), Lake::demo(1));
    let mut cluster = Cluster::start(apart.dir());
    let (coordinator, local) = (cluster.coordinator(), roles());
    for round in 1..=2 {
        if round == 2 {
            apart.advance_demo(2);
            together.advance_demo(2);
            cluster.timelines[0].kill();
            cluster.writers[1].kill();
        }
        let expected = run(&local, &enriched(&together), &format!("r{round}")).await;
        let ended = run_on(&coordinator, &enriched(&apart), &format!("r{round}")).await;
        assert_eq!(ended.outcome, expected.outcome, "{:?}", ended.error);
        assert_eq!(rows(&local, &apart.path("out")).await, rows(&local, &together.path("out")).await);

        let mut asked = client(&cluster.coordinator.url);
        let info = asked.get_flight_info(flight(&format!("batch:orders_enriched/r{round}"))).await.unwrap();
        let here: Vec<_> =
            local.coordinator.open_batch(&expected.name).await.unwrap().rows.try_collect().await.unwrap();
        assert_eq!(json_rows(&pull(&info).await), json_rows(&here));
        let locations: std::collections::BTreeSet<&str> =
            info.endpoint.iter().flat_map(|e| &e.location).map(|location| location.uri.as_str()).collect();
        let serving = &cluster.timelines[round - 1..];
        let expected: std::collections::BTreeSet<String> =
            serving.iter().map(|process| process.url.replace("http://", "grpc://")).collect();
        assert_eq!(locations, expected.iter().map(String::as_str).collect(), "of all that serve");
    }
    assert_sound(&apart.path("out"), "orders_enriched").await;
    // The rest of both is needed.
    cluster.timelines[1].kill();
    let failed = run_on(&coordinator, &enriched(&apart), "none-left").await;
    let error = failed.error.unwrap();
    assert_eq!((error.reason.as_str(), error.retry), ("ROLE_UNREACHABLE", Retry::Again), "{}", error.message);
    drop((cluster.checkpoint, cluster.merge, cluster.sources));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_is_cancelled_where_it_was_planned_is_refused_where_its_rows_are() {
    let lake = Lake::demo(1);
    let cluster = Cluster::start(lake.dir());
    let ended = run_on(&cluster.coordinator(), &enriched(&lake), "r1").await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    let mut asked = client(&cluster.coordinator.url);
    let info = asked.get_flight_info(flight("table:orders_enriched")).await.unwrap();
    let endpoint = info.endpoint[0].clone();
    asked.cancel_flight_info(CancelFlightInfoRequest::new(info)).await.unwrap();
    for process in cluster.timelines.iter().chain([&cluster.coordinator]) {
        let refused = client(&process.url).do_get(endpoint.ticket.clone().unwrap()).await.err().unwrap();
        assert!(refused.to_string().contains("was cancelled"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_is_planned_by_the_coordinator_and_run_where_the_merge_role_is() {
    let lake = Lake::demo(1);
    let mut cluster = Cluster::start(lake.dir());
    let ended = run_on(&cluster.coordinator(), &enriched(&lake), "r1").await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    let count = rows(&roles(), &lake.path("out")).await.len();
    let inner = FlightServiceClient::new(connect_lazily(&cluster.coordinator.url).unwrap());
    let mut client = FlightSqlServiceClient::new_from_inner(inner);
    let sql = "SELECT count(*) AS n FROM tables.orders_enriched WHERE order_id <> ?";
    let mut prepared = client.prepare(sql.to_string(), None).await.unwrap();
    let nobody: ArrayRef = Arc::new(StringArray::from(vec!["nobody"]));
    prepared.set_parameters(RecordBatch::try_from_iter([("1", nobody)]).unwrap()).unwrap();
    let info = prepared.execute().await.unwrap();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let answer: Vec<_> = client.do_get(ticket.clone()).await.unwrap().try_collect().await.unwrap();
    assert_eq!(json_rows(&answer), [format!("{{\"n\":{count}}}")]);
    let wrong = client.execute("SELECT nobody FROM orders_enriched".to_string(), None).await.unwrap_err().to_string();
    assert!(wrong.contains("nobody") && wrong.contains("line 1"), "{wrong}");

    cluster.merge.kill();
    let down = client.do_get(ticket).await.err().unwrap().to_string();
    assert!(down.contains("the merge role did not answer"), "{down}");
}

/// Orders of the demo beside notes of a directory of many files.
fn annotated(lake: &Lake) -> Pipeline {
    std::fs::create_dir_all(lake.dir().join("notes")).unwrap();
    for file in 0..20 {
        let lines: String = (0..500).map(|n| format!("n-{file}-{n},note {n}\n")).collect();
        std::fs::write(lake.dir().join(format!("notes/{file:02}.csv")), format!("order_id,note\n{lines}")).unwrap();
    }
    pipeline(json!({
        "name": "annotated",
        "source": [
            {"name": "orders", "path": lake.path("orders"), "read": "snapshot"},
            {"name": "notes", "kind": "csv", "path": lake.path("notes"), "start": "earliest", "csv": {"header": true}},
        ],
        "transform": [{"sql": "SELECT n.order_id, o.amount, n.note FROM <SRC:notes> n \
                               LEFT JOIN <SNAP:orders> o ON o.order_id = n.order_id"}],
        "target": {"path": lake.path("out"), "table_name": "annotated", "record_key": ["order_id"]},
    }))
}

/// Kills a role once a batch is at `stage`, starts it again at its address, and sees that the batch went on or failed
/// cleanly, and that the next one is right.
async fn restarted_at(stage: Stage, role: fn(&mut Cluster) -> (&mut Process, &'static str)) {
    let lake = Lake::demo(1);
    let mut cluster = Cluster::start(lake.dir());
    let (coordinator, pipeline) = (cluster.coordinator(), annotated(&lake));
    let started = coordinator.run_batch(request_of(&pipeline, "cut")).await.unwrap();
    let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
    watch.wait_for(|status| status.stage >= stage || status.outcome.is_some()).await.unwrap();
    let (process, name) = role(&mut cluster);
    process.kill();
    *process = Process::start_at(&process.address(), &["--roles", name]);

    let ended = end_of(&coordinator, &started.name).await;
    match ended.outcome {
        Some(Outcome::Committed) => {}
        Some(Outcome::Failed) => {
            assert_eq!(ended.error.as_ref().unwrap().retry, Retry::Again, "{:?}", ended.error);
            let none = !has_table(&lake.path("out")) || checkpoints(&lake.path("out"), "annotated").await.is_empty();
            assert!(none, "nothing of it is in the target");
        }
        other => panic!("{other:?}: {:?}", ended.error),
    }
    // The same request: it is answered, or done now.
    let again = run_on(&coordinator, &pipeline, "cut").await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{:?}", again.error);
    let local = roles();
    assert_eq!(rows(&local, &lake.path("out")).await.len(), 20 * 500);
    assert_eq!(checkpoints(&lake.path("out"), "annotated").await.len(), 1, "once");
    std::fs::write(lake.dir().join("notes/20.csv"), "order_id,note\nlate,one more\n").unwrap();
    let next = run_on(&coordinator, &pipeline, "next").await;
    assert_eq!(next.outcome, Some(Outcome::Committed), "{:?}", next.error);
    assert_eq!(rows(&local, &lake.path("out")).await.len(), 20 * 500 + 1);
    assert_sound(&lake.path("out"), "annotated").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sources_role_that_is_restarted_in_the_middle_of_a_batch_loses_nothing() {
    restarted_at(Stage::Merge, |cluster| (&mut cluster.sources, "sources")).await;
    restarted_at(Stage::Plan, |cluster| (&mut cluster.sources, "sources")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_or_writer_that_is_restarted_in_the_middle_of_a_batch_loses_nothing() {
    restarted_at(Stage::Merge, |cluster| (&mut cluster.timelines[0], "timeline")).await;
    restarted_at(Stage::Merge, |cluster| (&mut cluster.writers[0], "writer")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_two_timelines_is_ready_while_one_of_them_serves() {
    let mut timelines = [Process::start(&["--roles", "timeline"]), Process::start(&["--roles", "timeline"])];
    let both = format!("{},{}", timelines[0].url, timelines[1].url);
    let roles = "sources,checkpoint,merge,writer,coordinator";
    let server = Process::start(&["--roles", roles, "--timeline-address", &both, "--http-listen", "127.0.0.1:0"]);
    let http = server.http.clone().unwrap();
    let ready = async |wanted: bool| {
        // Peers are asked every two seconds.
        for _ in 0..200 {
            if crate::answering::probe(&http, "/readyz").contains("200 OK") == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("/readyz did not become {wanted}: {}", crate::answering::probe(&http, "/readyz"));
    };
    ready(true).await;
    timelines[0].kill();
    ready(true).await;
    timelines[1].kill();
    ready(false).await;
    let said = crate::answering::probe(&http, "/readyz");
    assert!(timelines.iter().all(|timeline| said.contains(&timeline.url)), "{said}");
}
