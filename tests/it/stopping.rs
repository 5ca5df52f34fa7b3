// SPDX-License-Identifier: Apache-2.0
//! Servers that are told to stop: a batch that commits is let finish, one that does not is rolled back, and a second
//! signal ends the process at once.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tributary_api::coordinator::Coordinator;
use tributary_hudi::SystemStores;
use tributary_rpc::{CoordinatorClient, connect_lazily};
use tributary_server::embedded::Settings;
use tributary_server::roles::{Elsewhere, Parts, Role, host};
use tributary_server::serve::{self, Options, PullOptions};
use tributary_store::MemoryStore;
use tributary_testkit::{HeldStores, Hold};
use tributary_types::{Outcome, Stage, SystemClock, SystemEntropy};

use crate::process::command;
use crate::server_away::{endless, pipeline_file};
use crate::support::{Lake, assert_sound, checkpoints, enriched, open, request_of, roles, run};

/// A server whose standard error is read and which is told to stop by signals.
struct Stopping {
    child: Child,
    url: String,
}

impl Stopping {
    fn start(arguments: &[&str]) -> Stopping {
        let mut command = command(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let url = lines.find_map(|line| line.strip_prefix("listening on ").map(|at| format!("http://{at}"))).unwrap();
        Stopping { child, url }
    }

    fn terminate(&self) {
        assert!(Command::new("kill").arg(self.child.id().to_string()).status().unwrap().success());
    }

    /// Exit code, and what it said.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A batch of hours, once it merges.
async fn merging(server: &str, file: &str) -> CoordinatorClient {
    let coordinator = CoordinatorClient::new(connect_lazily(server).unwrap(), server);
    let pipeline = tributary_server::pipeline_file::load(Path::new(file)).unwrap();
    let started = coordinator.run_batch(request_of(&pipeline, "r")).await.unwrap();
    while coordinator.get_batch(&started.name).await.unwrap().stage != Stage::Merge {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    coordinator
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_outlasts_a_stop_is_rolled_back_and_the_next_one_commits() {
    let lake = Lake::new();
    let file = endless(&lake).await;
    let server = Stopping::start(&["--shutdown-timeout", "1s"]);
    merging(&server.url, &file).await;
    server.terminate();
    let (code, said) = tokio::task::spawn_blocking(move || server.ended()).await.unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("stopped while endless/r still ran"), "{said}");
    let (_, _, timeline) = open(&lake.path("endless")).await;
    assert_eq!(timeline.instants().iter().filter(|instant| instant.is_pending()).count(), 0, "rolled back at once");
    assert!(checkpoints(&lake.path("endless"), "endless").await.is_empty());

    let mut quick = tributary_server::pipeline_file::load(Path::new(&pipeline_file(&lake, "quick", ""))).unwrap();
    quick.target.path = lake.path("endless");
    quick.target.table_name = "endless".to_string();
    let next = run(&roles(), &quick, "next").await;
    assert_eq!(next.outcome, Some(Outcome::Committed), "{:?}", next.error);
    assert_sound(&lake.path("endless"), "quick").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_server_at_once_and_nothing_of_its_batch_is_seen() {
    let lake = Lake::new();
    let file = endless(&lake).await;
    let mut server = Stopping::start(&["--drain", "1h"]);
    merging(&server.url, &file).await;
    server.terminate();
    let mut errors = BufReader::new(server.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("a second signal stops at once") {
        line.clear();
        assert!(errors.read_line(&mut line).unwrap() > 0, "it never said that it stops");
    }
    server.terminate();
    let mut said = String::new();
    errors.read_to_string(&mut said).unwrap();
    assert!(said.contains("stopped at once"), "{said}");
    assert_eq!(server.child.wait().unwrap().code(), Some(1));
    assert!(checkpoints(&lake.path("endless"), "endless").await.is_empty(), "no cursor moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_commits_when_the_time_is_over_is_let_finish() {
    let lake = Lake::demo(1);
    let hold = Hold::of(".commit");
    let stores = Arc::new(HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold)));
    let parts = Parts {
        stores,
        store: Arc::new(MemoryStore::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    };
    let hosted = host(&Role::ALL, &Elsewhere::default(), &parts, Settings::default()).unwrap();
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        http: None,
        metrics: None,
        peers: Vec::new(),
        pulls: PullOptions::default(),
    };
    let server = serve::start(hosted, options).await.unwrap();
    let url = format!("http://{}", server.address());
    let coordinator = CoordinatorClient::new(connect_lazily(&url).unwrap(), url);
    let started = coordinator.run_batch(request_of(&enriched(&lake), "r")).await.unwrap();
    hold.reached(1).await;
    assert_eq!(coordinator.get_batch(&started.name).await.unwrap().stage, Stage::Commit);

    // No time at all: it is cancelled, which a commit does not mind.
    let stopping = tokio::spawn(server.stop(Duration::ZERO));
    while coordinator.run_batch(request_of(&enriched(&lake), "late")).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    hold.release();
    let stopped = stopping.await.unwrap();
    assert!(stopped.unfinished.is_empty(), "{:?}", stopped.unfinished);
    assert_eq!(checkpoints(&lake.path("out"), "orders_enriched").await.len(), 1, "the commit stands, once");
    assert_sound(&lake.path("out"), "orders_enriched").await;
}
