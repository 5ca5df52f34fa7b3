// SPDX-License-Identifier: Apache-2.0
//! `tributary run --server` while its server is away: it says so once, and once when it is back.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use tributary_api::coordinator::Coordinator;
use tributary_api::pipelines::{Change, Pipelines};
use tributary_rpc::{CoordinatorClient, connect_lazily};
use tributary_types::{Outcome, PipelineName, Stage};

use crate::process::{Process, command, own_output, tributary};
use crate::support::{Lake, assert_sound, checkpoints, has_table, roles, value_table, values};

const AWAY: &str = "does not answer, asking again until it does";
const BACK: &str = "answers again";

/// Twenty rows, and a query over them that takes hours.
pub(crate) async fn endless(lake: &Lake) -> String {
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values((0..20).map(|n| (format!("k{n:02}"), n)))]).await.unwrap();
    let tables: Vec<String> = ('b'..='k').map(|alias| format!("<SNAP:src> {alias}")).collect();
    let sql = format!(
        "SELECT a.id, count(*) AS n, sum((b.value + k.value) % 7) AS s FROM <SRC:src> a, {} GROUP BY a.id",
        tables.join(", ")
    );
    pipeline_file(lake, "endless", &format!("[[transform]]\nsql = \"{sql}\"\n"))
}

/// A pipeline over the same rows, into a table of its own.
pub(crate) fn pipeline_file(lake: &Lake, name: &str, transform: &str) -> String {
    let file = lake.path(&format!("{name}.toml"));
    let text = format!(
        "name = \"{name}\"\n[[source]]\nname = \"src\"\npath = \"src\"\nstart = \"snapshot\"\n{transform}[target]\npath = \
         \"{name}\"\ntable_name = \"{name}\"\nrecord_key = [\"id\"]\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}

/// A `run` in a process of its own; killed when dropped.
struct Run {
    child: Child,
    errors: BufReader<ChildStderr>,
    said: Vec<String>,
}

impl Run {
    fn start(arguments: &[&str]) -> Run {
        let mut child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        Run { child, errors, said: Vec::new() }
    }

    /// Waits until it says this on standard error.
    fn wait_for(&mut self, what: &str) {
        let mut line = String::new();
        while self.errors.read_line(&mut line).unwrap() > 0 {
            self.said.push(std::mem::take(&mut line));
            if self.said.last().is_some_and(|said| said.contains(what)) {
                return;
            }
        }
        panic!("`{what}` was never said: {:?}", self.said);
    }

    fn count(&self, what: &str) -> usize {
        self.said.iter().filter(|line| line.contains(what)).count()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the server merges.
pub(crate) async fn until_it_merges(server: &Process) -> CoordinatorClient {
    let coordinator = CoordinatorClient::new(connect_lazily(&server.url).unwrap(), server.url.clone());
    while !coordinator.list_batches(None, 1).await.unwrap().iter().any(|batch| batch.stage == Stage::Merge) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    coordinator
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_whose_server_is_killed_says_so_once_and_follows_the_batch_once_it_is_back() {
    let lake = Lake::new();
    let file = endless(&lake).await;
    let data = lake.path("data");
    let mut server = Process::start(&["--data-dir", &data]);
    let mut run = Run::start(&["run", "--pipeline", &file, "--server", &server.url, "--request-id", "r"]);
    until_it_merges(&server).await;
    server.kill();
    let mut run = tokio::task::spawn_blocking(move || {
        run.wait_for(AWAY);
        run
    })
    .await
    .unwrap();
    // Long enough for several more attempts.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let server = Process::start_at(&server.address(), &["--data-dir", &data]);
    run.wait_for(BACK);
    assert_eq!((run.count(AWAY), run.count(BACK)), (1, 1), "{:?}", run.said);
    assert!(run.said.iter().any(|line| line.contains(&server.url)), "{:?}", run.said);
    let mut stdout = String::new();
    std::io::Read::read_to_string(&mut run.child.stdout.take().unwrap(), &mut stdout).unwrap();
    assert_eq!(run.child.wait().unwrap().code(), Some(1));
    let stdout = own_output(&stdout);
    assert!(stdout.contains("outcome  FAILED") && stdout.contains("BATCH_LOST"), "{stdout}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_continuous_run_without_a_server_says_so_once_and_goes_on_when_there_is_one() {
    let lake = Lake::new();
    endless(&lake).await;
    let file = pipeline_file(&lake, "light", "");
    let free = Process::start(&[]).address();
    let server = format!("http://{free}");
    let mut run = Run::start(&["run", "--pipeline", &file, "--server", &server, "--continuous", "--interval", "1s"]);
    run.wait_for(AWAY);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let server = Process::start_at(&free, &[]);
    run.wait_for(BACK);
    assert_eq!((run.count(AWAY), run.count(BACK)), (1, 1), "{:?}", run.said);
    let coordinator = CoordinatorClient::new(connect_lazily(&server.url).unwrap(), server.url.clone());
    while !coordinator.list_batches(None, 10).await.unwrap().iter().any(|b| b.outcome == Some(Outcome::Committed)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(run);
    assert!(has_table(&lake.path("light")));
    assert_eq!(checkpoints(&lake.path("light"), "light").await.len(), 1);
    assert_sound(&lake.path("light"), "light").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_continuous_run_waits_while_its_pipeline_is_paused_and_goes_on_once_it_is_resumed() {
    let lake = Lake::new();
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    let file = pipeline_file(&lake, "light", "");
    let server = Process::start(&[]);
    let pipelines = CoordinatorClient::new(connect_lazily(&server.url).unwrap(), server.url.clone());
    let stored = tributary(&["pipelines", "create", "--pipeline", &file, "--server", &server.url]);
    assert_eq!(stored.code, 0, "{}", stored.stderr);
    let name = PipelineName::new("light").unwrap();
    pipelines.pause_pipeline(&name, true, Change::default()).await.unwrap();

    let once = tributary(&["run", "--pipeline", &file, "--server", &server.url]);
    assert_eq!(once.code, 2, "a single run does not wait: {}", once.stderr);
    assert!(once.stderr.contains("is paused and starts no batch"), "{}", once.stderr);
    let arguments = ["run", "--pipeline", &file, "--server", &server.url, "--continuous", "--interval", "1s"];
    let mut run = Run::start(&arguments);
    run.wait_for("light: paused");
    // Long enough for several more attempts.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!has_table(&lake.path("light")));
    pipelines.pause_pipeline(&name, false, Change::default()).await.unwrap();
    run.wait_for("light: resumed");
    assert_eq!((run.count("light: paused"), run.count("light: resumed")), (1, 1), "{:?}", run.said);
    while !pipelines.list_batches(None, 10).await.unwrap().iter().any(|b| b.outcome == Some(Outcome::Committed)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(run);
    assert_eq!(checkpoints(&lake.path("light"), "light").await.len(), 1);
}
