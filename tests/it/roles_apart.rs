// SPDX-License-Identifier: Apache-2.0
//! Each role as a process of its own: `tributary serve --roles`, gRPC and Flight between them.
//!
//! See `process` for what the processes are.

use std::path::Path;
use std::time::Duration;

use futures::TryStreamExt as _;
use tributary_api::coordinator::{BatchStatus, Coordinator};
use tributary_rpc::{CoordinatorClient, connect_lazily};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Code, Outcome, Retry};

use crate::process::Process;
use crate::support::{Lake, assert_sound, enriched, json_rows, request_of, roles, rows, run};

/// All roles, each a process.
struct Cluster {
    timeline: Process,
    writer: Process,
    checkpoint: Process,
    merge: Process,
    coordinator: Process,
}

impl Cluster {
    fn start(data: &Path) -> Cluster {
        let data = data.join("records").display().to_string();
        let timeline = Process::start(&["--roles", "timeline"]);
        let writer = Process::start(&["--roles", "writer"]);
        let checkpoint = Process::start(&["--roles", "checkpoint", "--data-dir", &data]);
        let merge =
            Process::start(&["--roles", "merge", "--timeline-address", &timeline.url, "--writer-address", &writer.url]);
        let coordinator = Cluster::start_coordinator([&timeline, &checkpoint, &merge]);
        Cluster { timeline, writer, checkpoint, merge, coordinator }
    }

    fn start_coordinator([timeline, checkpoint, merge]: [&Process; 3]) -> Process {
        Process::start(&[
            "--roles",
            "coordinator",
            "--timeline-address",
            &timeline.url,
            "--checkpoint-address",
            &checkpoint.url,
            "--merge-address",
            &merge.url,
        ])
    }

    fn coordinator(&self) -> CoordinatorClient {
        CoordinatorClient::new(connect_lazily(&self.coordinator.url).unwrap(), self.coordinator.url.clone())
    }
}

async fn run_on(coordinator: &dyn Coordinator, pipeline: &Pipeline, request: &str) -> BatchStatus {
    let started = coordinator.run_batch(request_of(pipeline, request)).await.unwrap();
    let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
    watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn five_processes_commit_what_one_process_commits() {
    let (apart, together) = (Lake::demo(1), Lake::demo(1));
    let mut cluster = Cluster::start(apart.dir());
    let coordinator = cluster.coordinator();
    let local = roles();
    for round in 1..=3 {
        if round == 2 {
            apart.advance_demo(2);
            together.advance_demo(2);
        }
        let request = format!("r{round}");
        let expected = run(&local, &enriched(&together), &request).await;
        let ended = run_on(&coordinator, &enriched(&apart), &request).await;
        assert_eq!(ended.outcome, expected.outcome, "{:?}", ended.error);
        assert_eq!(ended.written.rows, expected.written.rows);
        assert_eq!(rows(&local, &apart.path("out")).await, rows(&local, &together.path("out")).await);
        if ended.outcome == Some(Outcome::Committed) {
            assert!(ended.peak_memory > 0, "what the other processes counted is reported");
            let pulled = coordinator.open_batch(&ended.name).await.unwrap();
            let pulled: Vec<_> = pulled.rows.try_collect().await.unwrap();
            let here = local.coordinator.open_batch(&expected.name).await.unwrap();
            let here: Vec<_> = here.rows.try_collect().await.unwrap();
            assert_eq!(json_rows(&pulled), json_rows(&here));
        }
    }
    assert_sound(&apart.path("out"), "orders_enriched").await;
    let quickly = Duration::from_secs(10);
    for process in [&mut cluster.coordinator, &mut cluster.merge, &mut cluster.writer] {
        assert!(process.terminate() < quickly, "nothing runs, so nothing is waited for");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_down_is_named_and_the_batch_succeeds_once_it_is_back() {
    let lake = Lake::demo(1);
    let pipeline = enriched(&lake);
    let mut cluster = Cluster::start(lake.dir());
    let coordinator = cluster.coordinator();

    cluster.writer.kill();
    let failed = run_on(&coordinator, &pipeline, "writer-down").await;
    assert_eq!(failed.outcome, Some(Outcome::Failed));
    let error = failed.error.unwrap();
    assert_eq!((error.code, error.retry, error.reason.as_str()), (Code::Unavailable, Retry::Again, "ROLE_UNREACHABLE"));
    assert!(error.message.contains("the writer role did not answer"), "{}", error.message);
    assert!(error.message.contains(&cluster.writer.url), "{}", error.message);

    cluster.writer = Process::start_at(&cluster.writer.address(), &["--roles", "writer"]);
    let again = run_on(&coordinator, &pipeline, "writer-down").await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{:?}", again.error);

    // In the opposite order in which a batch calls them, since those that were killed stay down.
    for (name, process) in
        [("timeline", &mut cluster.timeline), ("merge", &mut cluster.merge), ("checkpoint", &mut cluster.checkpoint)]
    {
        process.kill();
        let failed = run_on(&coordinator, &pipeline, &format!("{name}-down")).await;
        let error = failed.error.unwrap();
        assert_eq!((failed.outcome, error.retry), (Some(Outcome::Failed), Retry::Again));
        assert!(error.message.contains(&format!("the {name} role did not answer")), "{}", error.message);
        assert!(error.message.contains(&process.url), "{}", error.message);
    }
    assert_sound(&lake.path("out"), "orders_enriched").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_a_kill_of_the_coordinator_cut_off_is_found_out_after_its_restart() {
    let lake = Lake::demo(1);
    let mut cluster = Cluster::start(lake.dir());
    let coordinator = cluster.coordinator();
    let pipeline = enriched(&lake);
    let started = coordinator.run_batch(request_of(&pipeline, "cut-off")).await.unwrap();
    // Whatever it was doing by then.
    cluster.coordinator.kill();
    cluster.coordinator = Cluster::start_coordinator([&cluster.timeline, &cluster.checkpoint, &cluster.merge]);
    let coordinator = cluster.coordinator();
    let found = coordinator.get_batch(&started.name).await.unwrap();
    let committed = crate::support::has_table(&lake.path("out"))
        && !crate::support::checkpoints(&lake.path("out"), "orders_enriched").await.is_empty();
    let expected = if committed { Outcome::Committed } else { Outcome::Failed };
    assert_eq!(found.outcome, Some(expected), "{:?}", found.error);
    assert_eq!(coordinator.list_batches(None, 10).await.unwrap(), [found]);
    let again = run_on(&coordinator, &pipeline, "cut-off").await;
    assert_eq!(again.outcome, Some(Outcome::Committed), "{:?}", again.error);
    assert_eq!(crate::support::checkpoints(&lake.path("out"), "orders_enriched").await.len(), 1);
    assert_sound(&lake.path("out"), "orders_enriched").await;
    let shown = coordinator.get_batch(&started.name).await.unwrap();
    assert!(shown.asked_by.ends_with("from 127.0.0.1"), "{}", shown.asked_by);
}
