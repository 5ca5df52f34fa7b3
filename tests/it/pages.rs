// SPDX-License-Identifier: Apache-2.0
//! Pages of the documentation that list what the code has: the metrics, and the reasons of errors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tributary_api::coordinator::Coordinator;
use tributary_rpc::{CoordinatorClient, connect_lazily};
use tributary_types::Outcome;
use tributary_types::pipeline::{BadRecords, ErrorTable, Pipeline};

use crate::answering::probe;
use crate::process::Process;
use crate::support::{Lake, pipeline, request_of};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The cells of the rows of a page's tables whose first cell is a name in backticks that `named` accepts.
fn rows(page: &str, named: fn(&str) -> bool) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_string());
        let name = cells.next().unwrap().trim_matches('`').to_string();
        if named(&name) {
            assert!(rows.insert(name.clone(), cells.collect()).is_none(), "docs/{page}: `{name}` is there twice");
        }
    }
    rows
}

/// A metric as the page describes it.
struct Described {
    kind: String,
    labels: BTreeSet<String>,
    from: String,
    help: String,
}

fn described_metrics() -> BTreeMap<String, Described> {
    let rows = rows("metrics.md", |name| name.starts_with("tributary_"));
    let described = |cells: Vec<String>| {
        let [kind, labels, from, help] = <[String; 4]>::try_from(cells).unwrap();
        let labels = labels.split(", ").filter(|label| *label != "none").map(ToString::to_string).collect();
        Described { kind, labels, from, help }
    };
    rows.into_iter().map(|(name, cells)| (name, described(cells))).collect()
}

#[test]
fn the_page_of_metrics_lists_every_metric_of_the_code_with_its_help_text_and_no_other() {
    let page = described_metrics();
    let code = tributary_server::telemetry::documented();
    for (name, help) in &code {
        let row = page.get(*name).unwrap_or_else(|| panic!("docs/metrics.md lacks `{name}`: {help}"));
        assert_eq!(row.help, *help, "docs/metrics.md, `{name}`");
    }
    let names: BTreeSet<&str> = code.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), code.len(), "a metric is described twice");
    let gone: Vec<&String> = page.keys().filter(|name| !names.contains(name.as_str())).collect();
    assert!(gone.is_empty(), "docs/metrics.md lists metrics that are gone: {gone:?}");
}

/// What `/metrics` said: the kind of each metric, and which labels its series have.
#[derive(Default)]
struct Exported {
    kinds: BTreeMap<String, String>,
    labels: BTreeMap<String, BTreeSet<BTreeSet<String>>>,
}

impl Exported {
    fn of(server: &Process) -> Exported {
        let answer = probe(server.http.as_ref().unwrap(), "/metrics");
        let mut exported = Exported::default();
        for line in answer.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (name, kind) = described.split_once(' ').unwrap();
                exported.kinds.insert(name.to_string(), kind.to_string());
            }
        }
        for line in answer.lines().filter(|line| line.starts_with("tributary_")) {
            let series = line.rsplit_once(' ').unwrap().0;
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let name = exported.metric_of(name);
            // No value of these tests holds a quote.
            let labels = labels.trim_end_matches('}').split("\",").filter_map(|pair| pair.split_once('='));
            let labels = labels.map(|(label, _)| label.to_string()).filter(|label| label != "le").collect();
            exported.labels.entry(name).or_default().insert(labels);
        }
        exported
    }

    /// The metric that a series is of: those of a histogram have names of their own.
    fn metric_of(&self, name: &str) -> String {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(*end));
        of_histogram.filter(|metric| self.kinds.contains_key(*metric)).unwrap_or(name).to_string()
    }

    /// Whether exactly the described metrics are there whose `from` is one of these, each of its kind, with its labels.
    fn assert_described(&self, from: &[&str]) {
        let page = described_metrics();
        let expected: BTreeSet<&String> =
            page.iter().filter(|(_, row)| from.contains(&row.from.as_str())).map(|(name, _)| name).collect();
        assert_eq!(self.labels.keys().collect::<BTreeSet<_>>(), expected, "series from {from:?}");
        for name in expected {
            let row = &page[name];
            assert_eq!(self.kinds[name], row.kind, "{name}");
            assert_eq!(self.labels[name], BTreeSet::from([row.labels.clone()]), "{name}");
        }
    }
}

/// Orders of the demo's table beside notes of a directory of CSV files.
fn annotated(lake: &Lake, name: &str, orders: &str, files: Value) -> Pipeline {
    pipeline(json!({
        "name": name,
        "source": [
            {"name": "orders", "path": lake.path(orders), "read": "snapshot"},
            {"name": "notes", "kind": "csv", "path": lake.path("notes"), "start": "earliest", "files": files,
             "csv": {"header": true}},
        ],
        "transform": [{"sql": "SELECT n.order_id, o.amount, n.note FROM <SRC:notes> n \
                               LEFT JOIN <SNAP:orders> o ON o.order_id = n.order_id"}],
        "target": {"path": lake.path(name), "table_name": name, "record_key": ["order_id"]},
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_exports_every_described_metric_at_zero_too_and_no_other() {
    let lake = Lake::demo(1);
    fs::create_dir_all(lake.dir().join("notes")).unwrap();
    fs::write(lake.dir().join("notes/1.csv"), "order_id,note\nnobody,none\n").unwrap();
    let server = Process::start(&["--http-listen", "127.0.0.1:0"]);
    Exported::of(&server).assert_described(&["start"]);

    let coordinator = CoordinatorClient::new(connect_lazily(&server.url).unwrap(), server.url.clone());
    let run = async |pipeline: Pipeline| {
        let started = coordinator.run_batch(request_of(&pipeline, "r")).await.unwrap();
        let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
        watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone()
    };
    let ended = run(annotated(&lake, "annotated", "orders", json!({}))).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    Exported::of(&server).assert_described(&["start", "batch"]);

    // A table that is not there, and a name without the time that it should begin with.
    let nowhere = run(annotated(&lake, "nowhere", "nothing", json!({}))).await;
    assert_eq!(nowhere.error.unwrap().reason, "TABLE_NOT_FOUND");
    let timed = json!({"order": "name", "name_timestamp": "'notes_'yyyyMMdd"});
    let untimed = run(annotated(&lake, "untimed", "orders", timed)).await;
    assert_eq!(untimed.error.unwrap().reason, "TABLE_UNSUPPORTED");
    Exported::of(&server).assert_described(&["start", "batch", "event"]);

    let mut refusing = annotated(&lake, "refusing", "orders", json!({}));
    refusing.sources[1].csv.mode = Some(BadRecords::ErrorTable);
    refusing.error_table = Some(ErrorTable::at(lake.path("errors")));
    assert_eq!(run(refusing).await.outcome, Some(Outcome::Committed));
    Exported::of(&server).assert_described(&["start", "batch", "event", "refusing"]);
}

/// The Rust files of the crates, without tests and helpers for tests.
fn sources() -> Vec<PathBuf> {
    let mut folders = vec![root().join("crates")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !matches!(name.as_str(), "tests" | "testkit" | "target") {
                folders.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                files.push(path);
            }
        }
    }
    files
}

fn is_reason(text: &str) -> bool {
    text.len() > 2 && text.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// The block that begins with the first brace of `text`.
fn block(text: &str) -> &str {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c == '}' && depth == 0 {
            return &text[..at];
        }
    }
    text
}

/// Every text in capitals that the code gives as a reason.
fn reasons_in_the_code() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in sources() {
        let whole = fs::read_to_string(&file).unwrap();
        let text = whole.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
        // The declaration in the trait ends with a semicolon and has no block.
        let methods = text.split("fn reason(&self) -> &'static str ").skip(1).map(block);
        found.extend(methods.flat_map(|body| body.split('"').skip(1).step_by(2)).map(ToString::to_string));
        let given = ["reason: \"", "part(Self::ROLE, \""].iter().flat_map(|before| text.split(*before).skip(1));
        found.extend(given.map(|rest| rest.split('"').next().unwrap().to_string()));
    }
    found.into_iter().filter(|text| is_reason(text)).collect()
}

#[test]
fn the_error_catalogue_has_every_reason_of_the_code_and_no_other() {
    let code = reasons_in_the_code();
    // One of each way to give a reason.
    for known in ["CURSOR_STALE", "STREAM_CUT", "SCHEMA_BROKEN", "REQUEST_MALFORMED", "FORMAT"] {
        assert!(code.contains(known), "{known} is not found in the code: {code:?}");
    }
    let page: BTreeSet<String> = rows("errors.md", is_reason).into_keys().collect();
    assert_eq!(page, code, "docs/errors.md, and the reasons in the code");
}
