// SPDX-License-Identifier: Apache-2.0
//! What is reported of each source besides its rows, as metrics of the process.

use std::fs;

use serde_json::json;
use tributary_types::{InstantTime, Outcome, Zone};

use crate::support::{Lake, fixtures, pipeline, roles, run, value_table, values};

const SIX: &str = "cow_v6_updates";
const NINE: &str = "cow_v9_updates";

/// Seconds since the epoch of an instant that Spark wrote.
fn seconds(name: &str, number: usize, clock: &str) -> f64 {
    let file = fixtures().join(format!("tables/{name}.expected.json"));
    let spark: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let instant: InstantTime = spark["instants"][number][clock].as_str().unwrap().parse().unwrap();
    instant.epoch_millis(Zone::Utc).unwrap() as f64 / 1000.0
}

#[tokio::test(flavor = "multi_thread")]
async fn begin_end_pending_lag_and_headroom_of_each_source_are_metrics_with_help_and_at_zero() {
    let Some(recorded) = tributary_server::telemetry::record_metrics() else {
        panic!("another test of this process records metrics");
    };
    let lake = Lake::new();
    for name in [SIX, NINE] {
        tributary_testkit::unpack_zip(&fixtures().join(format!("tables/{name}.zip")), lake.dir());
    }
    let pipeline = pipeline(json!({
        "name": "reported",
        "source": [
            {"name": "six", "path": lake.path(SIX), "start": "earliest", "num_instants": 2},
            {"name": "nine", "path": lake.path(NINE), "start": "earliest", "num_instants": 2},
        ],
        "transform": [{"sql": "SELECT s.id, s.score FROM <SRC:six> s LEFT JOIN <SRC:nine> n ON s.id = n.id"}],
        "target": {"path": lake.path("out"), "table_name": "t", "record_key": ["id"]},
    }));
    let roles = roles();
    let batch = run(&roles, &pipeline, "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let text = recorded.render();
    let value = |name: &str, source: &str, clock: Option<&str>| -> f64 {
        let all = [r#"pipeline="reported""#.to_string(), format!("source=\"{source}\"")];
        let labels: Vec<String> = all.into_iter().chain(clock.map(|clock| format!("clock=\"{clock}\""))).collect();
        let is_it = |line: &&str| {
            line.starts_with(&format!("tributary_coordinator_source_{name}{{"))
                && labels.iter().all(|label| line.contains(label.as_str()))
        };
        let found: Vec<&str> = text.lines().filter(is_it).collect();
        assert_eq!(found.len(), 1, "{name} {source} {clock:?}: {found:?}");
        found[0].rsplit(' ').next().unwrap().parse().unwrap()
    };
    for (name, expected) in [
        ("window_instants", 2.0),
        ("lag_instants", 4.0),
        ("headroom_instants", 2.0),
        ("oldest_pending_timestamp_seconds", 0.0),
        ("schema_skips_total", 0.0),
        ("stale_snapshots_total", 0.0),
    ] {
        for source in ["six", "nine"] {
            assert_eq!(value(name, source, None), expected, "{name} {source}");
        }
    }
    for (source, table, lag_clock) in [("six", SIX, "requested"), ("nine", NINE, "completed")] {
        assert!(value("rows_total", source, None) > 0.0 && value("window_bytes", source, None) > 0.0);
        let lag = seconds(table, 5, lag_clock) - seconds(table, 1, lag_clock);
        assert_eq!(value("lag_seconds", source, None), lag.floor(), "{source}");
        for clock in ["requested", "completed"] {
            assert_eq!(value("begin_timestamp_seconds", source, Some(clock)), 0.0, "from the first commit on");
        }
        assert_eq!(value("end_timestamp_seconds", source, Some("requested")), seconds(table, 1, "requested"));
    }
    assert_eq!(value("end_timestamp_seconds", "nine", Some("completed")), seconds(NINE, 1, "completed"));
    assert_eq!(value("end_timestamp_seconds", "six", Some("completed")), 0.0, "version 6 has no completion times");
    assert_skips_are_counted(|| recorded.render()).await;
    assert_overrides_are_counted(|| recorded.render()).await;
    for (name, help) in tributary_server::telemetry::source_metrics() {
        let described =
            text.lines().any(|line| line.starts_with(&format!("# HELP {name} ")) && line.len() > name.len() + 12);
        assert!(described, "{name} ({help}) has no help text");
    }
}

/// Cursors that are set by hand count by what became of them.
async fn assert_overrides_are_counted(render: impl Fn() -> String) {
    let lake = Lake::new();
    let table = value_table(&roles(), &lake.path("src")).await;
    table.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    let pipeline = pipeline(json!({
        "name": "moved",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "t", "record_key": ["id"]},
    }));
    for (id, place) in [("r1", "latest"), ("r2", "latest"), ("r3", "completed:29990101000000000")] {
        let overrides = vec![format!("src={place}").parse().unwrap()];
        let request = tributary_api::coordinator::RunRequest { overrides, ..crate::support::request_of(&pipeline, id) };
        let roles = roles();
        let started = roles.coordinator.run_batch(request).await.unwrap();
        let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
        watch.wait_for(|status| status.outcome.is_some()).await.unwrap();
    }
    let text = render();
    for line in [
        "tributary_coordinator_overrides_total{pipeline=\"moved\",outcome=\"applied\"} 1",
        "tributary_coordinator_overrides_total{pipeline=\"moved\",outcome=\"already\"} 1",
        "tributary_coordinator_overrides_total{pipeline=\"moved\",outcome=\"rejected\"} 1",
        "tributary_coordinator_overrides_total{pipeline=\"moved\",outcome=\"failed\"} 0",
        "tributary_coordinator_overrides_pending{pipeline=\"moved\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

/// One batch that leaves its source out counts as one.
async fn assert_skips_are_counted(render: impl Fn() -> String) {
    let lake = Lake::new();
    let table = value_table(&roles(), &lake.path("src")).await;
    let pipeline = pipeline(json!({
        "name": "skips",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot", "skip_on_schema_failure": true}],
        "target": {"path": lake.path("out"), "table_name": "t", "record_key": ["id"]},
    }));
    for (request, skips, outcome) in [("r1", 0, Outcome::Committed), ("r2", 1, Outcome::NoNewData)] {
        table.upsert(vec![values([(request.to_string(), 1)])]).await.unwrap();
        if skips > 0 {
            crate::schema_failures::damage(&lake, "src").await;
        }
        let batch = run(&roles(), &pipeline, request).await;
        assert_eq!(batch.outcome, Some(outcome), "{:?}", batch.error);
        let line =
            format!("tributary_coordinator_source_schema_skips_total{{pipeline=\"skips\",source=\"src\"}} {skips}");
        let text = render();
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}
