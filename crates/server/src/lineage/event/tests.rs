// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use arrow::datatypes::Schema;
use tributary_api::coordinator::{Failure, Written};
use tributary_api::merge::ColumnOrigins;
use tributary_api::timeline::WindowReport;
use tributary_types::{Code, RequestId, Retry, SourceName, Stage, Window};

use super::*;

fn pipeline() -> Pipeline {
    toml::from_str(
        "name = \"p\"\n[[source]]\nname = \"orders\"\npath = \"s3://key:secret@lake/orders\"\n[[source]]\nname = \"users\"\n\
         path = \"/lake/users\"\nread = \"snapshot\"\n[[transform]]\nsql = \"SELECT 1\"\n[target]\npath = \"/lake/out\"\n\
         table_name = \"t\"\nrecord_key = [\"id\"]\n",
    )
    .unwrap()
}

fn status(change: impl FnOnce(&mut BatchStatus)) -> BatchStatus {
    let window = Window { begin: None, end: "completed:20250101000000009".parse().unwrap() };
    let report = WindowReport { instants: 2, files: 3, bytes: 400, lag_instants: 1, ..WindowReport::default() };
    let source = SourceName::new("orders").unwrap();
    let mut status = BatchStatus {
        name: BatchName::new("p/r").unwrap(),
        pipeline: pipeline().name,
        request: RequestId::new("r").unwrap(),
        asked_by: "test".to_string(),
        stage: Stage::Done,
        outcome: None,
        instant: None,
        completed: None,
        seq: None,
        sources: vec![SourceStatus { source, window: Some(window), report, rows: 7, bytes_read: 0 }],
        overrides: Vec::new(),
        refused: tributary_api::coordinator::Refused::default(),
        written: Written::default(),
        timings: Vec::new(),
        peak_memory: 0,
        error: None,
        started_millis: 0,
    };
    change(&mut status);
    status
}

fn schemas() -> Schemas {
    let inner = Fields::from(vec![Field::new("city", DataType::Utf8, true)]);
    let columns = vec![Field::new("id", DataType::Int64, false), Field::new("address", DataType::Struct(inner), true)];
    let schema = Arc::new(Schema::new(columns));
    let orders = SourceName::new("orders").unwrap();
    let copied = ColumnOrigins { copied: true, columns: vec![(orders.clone(), "id".to_string())] };
    let made = ColumnOrigins {
        copied: false,
        columns: vec![(orders.clone(), "city".to_string()), (SourceName::new("users").unwrap(), "town".to_string())],
    };
    let origins = [("id", copied), ("address", made), ("n", ColumnOrigins::default())];
    let origins = origins.into_iter().map(|(name, origins)| (name.to_string(), origins)).collect();
    Schemas { sources: vec![(orders, Some(Arc::clone(&schema)))], target: schema, origins }
}

fn made(moment: Moment, status: &BatchStatus) -> Value {
    event("ns", 1_735_689_600_123, moment, &pipeline(), status, Some(&schemas()))
}

#[test]
fn an_event_says_which_run_of_which_pipeline_read_what_and_wrote_what() {
    let committed = status(|status| {
        status.outcome = Some(Outcome::Committed);
        status.instant = "20250101000000011".parse().ok();
        status.seq = Some(4);
        status.written = Written { inserts: 3, updates: 2, files: 1, bytes: 99, ..Written::default() };
    });
    let event = made(Moment::Ended, &committed);
    assert_eq!((&event["eventType"], &event["eventTime"]), (&"COMPLETE".into(), &"2025-01-01T00:00:00.123Z".into()));
    assert_eq!((&event["job"]["namespace"], &event["job"]["name"]), (&"ns".into(), &"p".into()));
    assert_eq!(event["job"]["facets"]["sql"]["query"], "SELECT 1");
    let run = &event["run"]["facets"]["tributary_batch"];
    assert_eq!((&run["batch"], &run["instant"], &run["seq"]), (&"p/r".into(), &"20250101000000011".into(), &4.into()));

    let orders = &event["inputs"][0];
    assert_eq!((&orders["namespace"], &orders["name"]), (&"s3://lake".into(), &"orders".into()));
    assert_eq!(orders["facets"]["version"]["datasetVersion"], "completed:20250101000000009");
    let columns = &orders["facets"]["schema"]["fields"];
    assert_eq!((&columns[0]["name"], &columns[0]["type"]), (&"id".into(), &"Int64".into()));
    assert_eq!(columns[1]["fields"][0]["name"], "city");
    let statistics = &orders["inputFacets"]["inputStatistics"];
    assert_eq!(
        (&statistics["rowCount"], &statistics["size"], &statistics["fileCount"]),
        (&7.into(), &400.into(), &3.into())
    );
    assert_eq!(orders["inputFacets"]["tributary_window"]["end"], "completed:20250101000000009");
    let users = &event["inputs"][1];
    assert_eq!((&users["namespace"], &users["name"]), (&"file".into(), &"/lake/users".into()));
    assert!(users["facets"].get("version").is_none(), "nothing is known of it");

    let output = &event["outputs"][0];
    assert_eq!(output["name"], "/lake/out");
    assert_eq!(output["facets"]["version"]["datasetVersion"], "20250101000000011");
    let statistics = &output["outputFacets"]["outputStatistics"];
    assert_eq!((&statistics["rowCount"], &statistics["size"]), (&5.into(), &99.into()));
}

#[test]
fn refused_rows_that_were_committed_are_a_second_output_of_the_last_event() {
    let mut pipeline = pipeline();
    pipeline.error_table = Some(tributary_types::pipeline::ErrorTable::at("s3://lake/errors"));
    let status = status(|status| {
        status.outcome = Some(Outcome::Committed);
        status.refused.add("orders", "BAD_RECORD", 3);
        status.refused.instant = "20250101000000012".parse().ok();
    });
    let outputs = |moment, status: &BatchStatus| event("ns", 0, moment, &pipeline, status, None)["outputs"].clone();
    let told = outputs(Moment::Ended, &status);
    assert_eq!(told.as_array().unwrap().len(), 2);
    assert_eq!((&told[1]["namespace"], &told[1]["name"]), (&"s3://lake".into(), &"errors".into()));
    assert_eq!(told[1]["facets"]["version"]["datasetVersion"], "20250101000000012");
    assert_eq!(told[1]["outputFacets"]["outputStatistics"]["rowCount"], 3);
    assert!(!told[1]["facets"]["schema"]["fields"].as_array().unwrap().is_empty());
    let none = BatchStatus { refused: tributary_api::coordinator::Refused::default(), ..status.clone() };
    assert_eq!(outputs(Moment::Ended, &none).as_array().unwrap().len(), 1, "none were refused");
    let failed = BatchStatus { outcome: Some(Outcome::Failed), ..status };
    assert_eq!(outputs(Moment::Ended, &failed).as_array().unwrap().len(), 1);
}

#[test]
fn an_end_that_was_found_out_is_told_of_the_same_run_and_job() {
    let ended = |outcome| {
        status(|status| {
            status.outcome = Some(outcome);
            status.instant = "20250101000000011".parse().ok();
        })
    };
    let began = made(Moment::Began, &status(|_| {}));
    for (outcome, wanted) in
        [(Outcome::Committed, "COMPLETE"), (Outcome::Failed, "FAIL"), (Outcome::Cancelled, "ABORT")]
    {
        let event = found_out("ns", 1_735_689_600_123, "/lake/out", &ended(outcome));
        assert_eq!(event["eventType"], wanted);
        assert_eq!(event["run"]["runId"], began["run"]["runId"]);
        assert_eq!((&event["job"]["namespace"], &event["job"]["name"]), (&"ns".into(), &"p".into()));
        assert_eq!(event["outputs"][0]["name"], began["outputs"][0]["name"]);
        assert_eq!(event["outputs"][0]["facets"].get("version").is_some(), outcome == Outcome::Committed);
    }
}

#[test]
fn a_column_names_the_columns_that_it_is_made_of() {
    let event = made(Moment::Planned, &status(|_| {}));
    let fields = &event["outputs"][0]["facets"]["columnLineage"]["fields"];
    let id = &fields["id"]["inputFields"][0];
    assert_eq!((&id["namespace"], &id["name"], &id["field"]), (&"s3://lake".into(), &"orders".into(), &"id".into()));
    assert_eq!(id["transformations"][0]["subtype"], "IDENTITY");
    let address = &fields["address"]["inputFields"];
    assert_eq!((&address[1]["name"], &address[1]["field"]), (&"/lake/users".into(), &"town".into()));
    assert_eq!(address[1]["transformations"][0]["subtype"], "TRANSFORMATION");
    assert!(fields.get("n").is_none(), "nothing is known of it");
}

#[test]
fn every_outcome_has_its_type_and_only_a_commit_has_output() {
    let types = [
        (Outcome::Committed, "COMPLETE"),
        (Outcome::NoNewData, "COMPLETE"),
        (Outcome::Cancelled, "ABORT"),
        (Outcome::Unknown, "OTHER"),
        (Outcome::Rejected, "FAIL"),
        (Outcome::Conflict, "FAIL"),
        (Outcome::Failed, "FAIL"),
    ];
    for (outcome, wanted) in types {
        let ended = made(Moment::Ended, &status(|status| status.outcome = Some(outcome)));
        assert_eq!(ended["eventType"], wanted);
        let has_output = ended["outputs"][0]["outputFacets"].get("outputStatistics").is_some();
        assert_eq!(has_output, outcome == Outcome::Committed, "{outcome:?}");
    }
    assert_eq!(made(Moment::Began, &status(|_| {}))["eventType"], "START");
    let planned = made(Moment::Planned, &status(|_| {}));
    assert_eq!(planned["eventType"], "RUNNING");
    let statistics = &planned["inputs"][0]["inputFacets"]["inputStatistics"];
    assert!(statistics.get("rowCount").is_none(), "no row was read yet: {statistics}");
}

#[test]
fn a_failure_is_told_with_its_reason() {
    let failure = Failure {
        code: Code::Unavailable,
        retry: Retry::Again,
        reason: "ROLE_UNREACHABLE".to_string(),
        message: "the writer is away".to_string(),
    };
    let failed = status(|status| {
        status.outcome = Some(Outcome::Failed);
        status.error = Some(failure);
    });
    let event = made(Moment::Ended, &failed);
    let error = &event["run"]["facets"]["errorMessage"];
    assert_eq!(error["message"], "the writer is away [ROLE_UNREACHABLE]");
    assert_eq!(error["programmingLanguage"], "Rust");
}

#[test]
fn no_credential_of_an_address_is_told_and_every_facet_names_its_schema() {
    let event = made(Moment::Ended, &status(|_| {}));
    assert!(!event.to_string().contains("secret"), "{event}");
    let mut facets = Vec::new();
    for part in [&event["run"], &event["job"], &event["inputs"][0], &event["outputs"][0]] {
        for kind in ["facets", "inputFacets", "outputFacets"] {
            facets.extend(part.get(kind).and_then(Value::as_object).into_iter().flatten());
        }
    }
    assert!(facets.len() > 8, "{facets:?}");
    for (name, facet) in facets {
        assert!(facet["_schemaURL"].as_str().unwrap().starts_with("https://openlineage.io/spec/"), "{name}: {facet}");
        assert!(facet["_producer"].as_str().unwrap().contains("tributary"), "{name}: {facet}");
    }
}

#[test]
fn a_batch_has_the_same_run_in_every_process_and_another_than_any_other_batch() {
    let id = |name: &str| run_id(&BatchName::new(name).unwrap());
    assert_eq!(id("p/r"), id("p/r"));
    assert_ne!(id("p/r"), id("q/r"), "orchestrators may use one request id for several pipelines");
    let parsed: uuid::Uuid = id("p/r").parse().unwrap();
    assert_eq!((parsed.get_version_num(), parsed.get_variant()), (8, Variant::RFC4122));
}
