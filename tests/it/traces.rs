// SPDX-License-Identifier: Apache-2.0
//! One trace per batch over all processes, and log lines that say which batch they are about.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use serde_json::Value;
use tributary_api::coordinator::Coordinator;
use tributary_rpc::{CoordinatorClient, connect_lazily};
use tributary_testkit::collector::{Collector, Received};
use tributary_types::Outcome;

use crate::answering::probe;
use crate::process::{Process, command, ended};
use crate::server_away::pipeline_file;
use crate::support::{Lake, enriched, request_of, roles, value_table, values};

/// The trace of whoever starts a batch.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const CALLERS_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLERS_SPAN: &str = "00f067aa0ba902b7";

/// A pipeline over one table.
pub(crate) async fn simple(lake: &Lake) -> String {
    let source = value_table(&roles(), &lake.path("src")).await;
    source.upsert(vec![values((0..5).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    pipeline_file(lake, "simple", "")
}

/// Every role as a process of its own, sending traces to `collector`.
fn apart(collector: &Collector, data: &str) -> Vec<Process> {
    let url = collector.url();
    let start = |arguments: &[&str]| Process::start(&[arguments, &["--otlp-endpoint", &url]].concat());
    let timeline = start(&["--roles", "timeline"]);
    let writer = start(&["--roles", "writer"]);
    let checkpoint = start(&["--roles", "checkpoint", "--data-dir", data]);
    let merge = start(&["--roles", "merge", "--timeline-address", &timeline.url, "--writer-address", &writer.url]);
    let coordinator = start(&[
        "--roles",
        "coordinator",
        "--timeline-address",
        &timeline.url,
        "--checkpoint-address",
        &checkpoint.url,
        "--merge-address",
        &merge.url,
    ]);
    vec![timeline, writer, checkpoint, merge, coordinator]
}

/// The spans of a trace by id.
fn of_trace<'a>(spans: &'a [Received], trace: &str) -> BTreeMap<&'a str, &'a Received> {
    spans.iter().filter(|span| span.trace == trace).map(|span| (span.id.as_str(), span)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_five_processes_is_one_trace_below_that_of_its_caller() {
    let lake = Lake::new();
    let file = simple(&lake).await;
    let collector = Collector::start().await;
    let cluster = apart(&collector, &lake.path("records"));
    let server = &cluster[4].url;

    let url = collector.url();
    let mut run = command(&["run", "--server", server, "--pipeline", &file, "--otlp-endpoint", &url]);
    run.env("TRACEPARENT", CALLER).env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=data");
    let run = tokio::task::spawn_blocking(move || ended(run)).await.unwrap();
    assert_eq!(run.code, 0, "{}", run.stderr);

    let all_roles = ["coordinator", "timeline", "checkpoint", "merge", "writer"];
    let role_of = |span: &Received| span.attributes.get("role").cloned();
    let spans = collector
        .wait_for(|spans| {
            let trace = of_trace(spans, CALLERS_TRACE);
            let roles: BTreeSet<String> = trace.values().filter_map(|span| role_of(span)).collect();
            // Every span is sent once it is over, so those above come last.
            let whole = trace.values().all(|s| s.parent == CALLERS_SPAN || trace.contains_key(s.parent.as_str()));
            whole && all_roles.iter().all(|role| roles.contains(*role))
        })
        .await;
    let trace = of_trace(&spans, CALLERS_TRACE);

    // Each role in a process of its own, and the client in another.
    let mut process_of: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for span in trace.values() {
        if let Some(role) = role_of(span) {
            process_of.entry(role).or_default().insert(&span.process["service.instance.id"]);
        }
        assert_eq!(span.process["service.name"], "tributary");
        assert!(span.time.0 > 0 && span.time.0 <= span.time.1, "{span:?}");
    }
    assert!(process_of.values().all(|processes| processes.len() == 1), "{process_of:?}");
    let processes: BTreeSet<&str> = process_of.values().flatten().copied().collect();
    assert_eq!(processes.len(), 5, "{process_of:?}");

    // From the caller down: run > RunBatch > batch > the stages, and each call below the stage that made it.
    let named = |name: &str| {
        let found = trace.values().find(|span| span.name == name);
        *found.unwrap_or_else(|| panic!("{name}: {:?}", trace.values().map(|s| &s.name).collect::<Vec<_>>()))
    };
    let above = |span: &Received| trace[span.parent.as_str()].name.clone();
    let run = named("run");
    assert_eq!(run.parent, CALLERS_SPAN);
    assert_eq!(run.headers["x-team"], "data");
    assert_eq!(above(named("tributary.coordinator.v1.CoordinatorService/RunBatch")), "run");
    let batch = named("batch");
    assert_eq!(above(batch), "tributary.coordinator.v1.CoordinatorService/RunBatch");
    assert_eq!(batch.attributes["outcome"], "COMMITTED");
    for stage in ["resolve", "plan", "begin", "merge", "commit", "table services"] {
        let found = trace.values().any(|span| span.name == stage && above(span) == "batch");
        assert!(found, "{stage} below batch");
    }
    for (work, call, stage) in [
        ("find the cursors", "tributary.checkpoint.v1.CheckpointService/Resolve", "resolve"),
        ("plan a window", "tributary.timeline.v1.TimelineService/PlanWindow", "plan"),
        ("merge", "tributary.merge.v1.MergeService/Run", "merge"),
        ("write", "arrow.flight.protocol.FlightService/DoPut", "merge"),
    ] {
        let found = trace
            .values()
            .any(|span| span.name == work && above(span) == call && above(trace[span.parent.as_str()]) == stage);
        assert!(found, "{work} below {call} below {stage}");
    }
    let read = named("read");
    assert_eq!((above(read).as_str(), read.attributes["source"].as_str()), ("merge", "src"));
    let fetched = trace.values().find(|span| span.name.ends_with("FlightService/DoGet")).unwrap();
    assert_eq!(above(fetched), "read");
    // What the caller's process does not tell, the headers do.
    assert_eq!(fetched.attributes["batch"], batch.attributes["batch"]);
    assert_eq!(fetched.attributes["source"], "src");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_costs_a_batch_nothing_and_what_is_lost_is_counted() {
    let lake = Lake::demo(1);
    let server = Process::start(&["--otlp-endpoint", "http://127.0.0.1:1", "--http-listen", "127.0.0.1:0"]);
    let http = server.http.clone().unwrap();
    let coordinator = CoordinatorClient::new(connect_lazily(&server.url).unwrap(), server.url.clone());
    let started = coordinator.run_batch(request_of(&enriched(&lake), "r")).await.unwrap();
    let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
    let ended = watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone();
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    loop {
        let metrics = probe(&http, "/metrics");
        let lost =
            metrics.lines().find_map(|l| l.strip_prefix("tributary_traces_dropped_spans_total{why=\"collector\"} "));
        if lost.is_some_and(|lost| lost != "0") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// The lines of JSON in what a process wrote to standard error.
fn json_lines(text: &str) -> Vec<Value> {
    text.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_line_within_a_batch_says_which_one() {
    let lake = Lake::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let file = runtime.block_on(simple(&lake));
    let mut run = command(&["--log-json", "run", "--pipeline", &file, "--request-id", "r1"]);
    run.env("TRIBUTARY_LOG", "tributary=debug").env("TRACEPARENT", CALLER);
    let run = ended(run);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let lines = json_lines(&run.stderr);
    let ended = lines.iter().find(|line| line["message"] == "batch ended").unwrap();
    assert_eq!(ended["outcome"], "COMMITTED");
    // Whatever comes between the first line that knows the batch and its end is of the batch.
    let first = lines.iter().position(|line| line["batch"] == "simple/r1").unwrap();
    let last = lines.iter().position(|line| line["message"] == "batch ended").unwrap();
    assert!(first < last, "{lines:?}");
    for line in &lines[first..=last] {
        assert_eq!((&line["pipeline"], &line["batch"]), (&"simple".into(), &"simple/r1".into()), "{line}");
        assert_eq!(line["trace_id"], CALLERS_TRACE, "{line}");
        assert_eq!(line["span_id"].as_str().map(str::len), Some(16), "{line}");
    }
    assert_eq!(ended["instant"].as_str().map(str::len), Some(17), "{ended}");
    let staged = lines.iter().find(|line| line["message"] == "merge staged").unwrap();
    assert_eq!(staged["instant"], ended["instant"], "{staged}");
}

/// A server whose standard error is read.
struct Logging {
    child: Child,
    url: String,
}

impl Logging {
    fn start(arguments: &[&str]) -> Logging {
        let mut command = command(&[&["--log-json", "serve", "--listen", "127.0.0.1:0"], arguments].concat());
        command.env("TRIBUTARY_LOG", "tributary=info").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let url =
            lines.into_iter().find_map(|line| line.strip_prefix("listening on ").map(|at| format!("http://{at}")));
        Logging { child, url: url.unwrap() }
    }

    /// What it logged up to its end, which this brings about.
    fn lines(mut self) -> Vec<Value> {
        self.child.kill().unwrap();
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        json_lines(&text)
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_line_of_another_process_says_which_batch_and_source_it_is_about() {
    let lake = Lake::new();
    std::fs::create_dir_all(lake.dir().join("notes")).unwrap();
    std::fs::write(lake.dir().join("notes/1.csv"), "id,note\n1,a\n").unwrap();
    std::fs::write(lake.dir().join("notes/2.csv"), "").unwrap();
    let file = lake.path("notes.toml");
    let text = "name = \"notes\"\n[[source]]\nname = \"notes\"\nkind = \"csv\"\npath = \"notes\"\nstart = \"earliest\"\n\
                [source.csv]\nheader = true\n[target]\npath = \"out\"\ntable_name = \"out\"\nrecord_key = [\"id\"]\n";
    std::fs::write(&file, text).unwrap();
    let sources = Logging::start(&["--roles", "sources"]);
    let server =
        Process::start(&["--roles", "timeline,checkpoint,merge,writer,coordinator", "--sources-address", &sources.url]);
    let mut run = command(&["run", "--server", &server.url, "--pipeline", &file, "--request-id", "r1"]);
    run.env("TRACEPARENT", CALLER);
    let run = ended(run);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let lines = sources.lines();
    let line = lines.iter().find(|line| line["message"] == "the file is empty").unwrap_or_else(|| panic!("{lines:?}"));
    for (name, value) in [
        ("pipeline", "notes"),
        ("batch", "notes/r1"),
        ("source", "notes"),
        ("file", "2.csv"),
        ("trace_id", CALLERS_TRACE),
    ] {
        assert_eq!(line[name], value, "{name} of {line}");
    }
    assert_eq!(line["instant"].as_str().map(str::len), Some(17), "{line}");
}
