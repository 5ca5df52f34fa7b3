// SPDX-License-Identifier: Apache-2.0
//! An event of OpenLineage: a pure function of what is known of a batch.

use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use serde_json::{Map, Value, json};
use tributary_api::Schemas;
use tributary_api::coordinator::{BatchStatus, SourceStatus};
use tributary_api::refused::error_schema;
use tributary_types::pipeline::{Pipeline, Transform};
use tributary_types::{BatchName, InstantTime, Outcome, Zone};
use uuid::{Builder, Variant, Version};

use super::dataset::Dataset;

const PRODUCER: &str = concat!("urn:x-tributary:", env!("CARGO_PKG_VERSION"));
const EVENT_SCHEMA: &str = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent";

/// When in its life a batch is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Began,
    Planned,
    Ended,
}

/// The event of a batch at a moment, told at `now_millis` since the epoch.
pub(super) fn event(
    namespace: &str,
    now_millis: i64,
    moment: Moment,
    pipeline: &Pipeline,
    status: &BatchStatus,
    schemas: Option<&Schemas>,
) -> Value {
    let mut event = envelope(namespace, now_millis, event_type(moment, status.outcome), status);
    event["job"]["facets"] = job_facets(pipeline);
    event["inputs"] = inputs(moment, pipeline, status, schemas).into();
    let outputs = [Some(output(pipeline, status, schemas)), refused_output(moment, pipeline, status)];
    event["outputs"] = outputs.into_iter().flatten().collect();
    event
}

/// The last event of a batch that could not send it: its end was found out at its target afterwards.
pub(super) fn found_out(namespace: &str, now_millis: i64, target: &str, status: &BatchStatus) -> Value {
    let mut event = envelope(namespace, now_millis, event_type(Moment::Ended, status.outcome), status);
    let dataset = Dataset::of_url(target);
    let mut facets = dataset_facets(&dataset, None);
    if let Some(instant) = status.instant.as_ref().filter(|_| status.outcome == Some(Outcome::Committed)) {
        facets["version"] = version(instant.as_str());
    }
    event["outputs"] =
        json!([{"namespace": dataset.namespace, "name": dataset.name, "facets": facets, "outputFacets": {}}]);
    event
}

/// What every event of a batch says.
fn envelope(namespace: &str, now_millis: i64, event_type: &str, status: &BatchStatus) -> Value {
    json!({
        "eventType": event_type,
        "eventTime": time(now_millis),
        "producer": PRODUCER,
        "schemaURL": EVENT_SCHEMA,
        "run": {"runId": run_id(&status.name), "facets": run_facets(status)},
        "job": {"namespace": namespace, "name": status.pipeline.as_str(), "facets": {}},
        "inputs": [],
        "outputs": [],
    })
}

fn event_type(moment: Moment, outcome: Option<Outcome>) -> &'static str {
    match (moment, outcome) {
        (Moment::Began, _) => "START",
        (Moment::Planned, _) => "RUNNING",
        (Moment::Ended, Some(Outcome::Committed | Outcome::NoNewData)) => "COMPLETE",
        (Moment::Ended, Some(Outcome::Cancelled)) => "ABORT",
        // The next batch finds out how it ended.
        (Moment::Ended, Some(Outcome::Unknown)) => "OTHER",
        (Moment::Ended, Some(Outcome::Rejected | Outcome::Conflict | Outcome::Failed) | None) => "FAIL",
    }
}

/// The id of a run: of the batch's whole name, since orchestrators may use one request id for several pipelines. The same
/// batch has the same id in every process.
pub(super) fn run_id(name: &BatchName) -> String {
    // FNV-1a of 128 bits.
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in name.as_str().bytes() {
        hash ^= u128::from(byte);
        hash = hash.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    let builder = Builder::from_u128(hash).with_variant(Variant::RFC4122).with_version(Version::Custom);
    builder.into_uuid().to_string()
}

/// A moment as ISO 8601 has it, in UTC.
fn time(millis: i64) -> String {
    let at = InstantTime::from_epoch_millis(millis, Zone::Utc);
    let text = at.as_str();
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or("00");
    format!(
        "{}-{}-{}T{}:{}:{}.{}Z",
        part(0, 4),
        part(4, 6),
        part(6, 8),
        part(8, 10),
        part(10, 12),
        part(12, 14),
        text.get(14..17).unwrap_or("000")
    )
}

/// A facet that OpenLineage defines, by the version and the name of its schema.
fn facet(schema: &str, mut content: Value) -> Value {
    let (version, name) = schema.split_once('/').unwrap_or(("1-0-0", schema));
    put_origin(&mut content, format!("https://openlineage.io/spec/facets/{version}/{name}.json#/$defs/{name}"));
    content
}

/// A facet of ours: any fields beside those that every facet has.
fn own_facet(kind: &str, mut content: Value) -> Value {
    put_origin(&mut content, format!("https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/{kind}"));
    content
}

fn put_origin(content: &mut Value, schema: String) {
    if let Some(fields) = content.as_object_mut() {
        fields.insert("_producer".to_string(), PRODUCER.into());
        fields.insert("_schemaURL".to_string(), schema.into());
    }
}

fn run_facets(status: &BatchStatus) -> Value {
    let mut facets = json!({
        "processing_engine": facet(
            "1-1-1/ProcessingEngineRunFacet",
            json!({"version": env!("CARGO_PKG_VERSION"), "name": "tributary"}),
        ),
        "tributary_batch": own_facet("RunFacet", json!({
            "batch": status.name.as_str(),
            "requestId": status.request.as_str(),
            "askedBy": status.asked_by,
            "outcome": status.outcome.map(Outcome::as_str),
            "instant": status.instant.as_ref().map(InstantTime::as_str),
            "completed": status.completed.as_ref().map(InstantTime::as_str),
            "seq": status.seq,
        })),
    });
    if let Some(error) = &status.error {
        let message = format!("{} [{}]", error.message, error.reason);
        facets["errorMessage"] =
            facet("1-0-1/ErrorMessageRunFacet", json!({"message": message, "programmingLanguage": "Rust"}));
    }
    facets
}

fn job_facets(pipeline: &Pipeline) -> Value {
    let mut facets = json!({
        "jobType": facet(
            "2-0-4/JobTypeJobFacet",
            json!({"processingType": "BATCH", "integration": "TRIBUTARY", "jobType": "PIPELINE"}),
        ),
    });
    let steps: Vec<&str> = pipeline.transforms.iter().filter_map(|Transform { sql, .. }| sql.as_deref()).collect();
    if !steps.is_empty() {
        facets["sql"] = facet("1-1-0/SQLJobFacet", json!({"query": steps.join(";\n")}));
    }
    facets
}

fn inputs(moment: Moment, pipeline: &Pipeline, status: &BatchStatus, schemas: Option<&Schemas>) -> Vec<Value> {
    let one = |source: &tributary_types::pipeline::Source| {
        let dataset = Dataset::of_source(source);
        let told = status.sources.iter().find(|known| known.source == source.name);
        let schema = schemas.and_then(|schemas| schemas.sources.iter().find(|(name, _)| *name == source.name));
        let mut facets = dataset_facets(&dataset, schema.and_then(|(_, schema)| schema.as_ref()));
        if let Some(window) = told.and_then(|told| told.window.as_ref()) {
            facets["version"] = version(&window.end.to_string());
        }
        let input = told.map_or_else(|| json!({}), |told| input_facets(moment, told));
        json!({"namespace": dataset.namespace, "name": dataset.name, "facets": facets, "inputFacets": input})
    };
    pipeline.sources.iter().map(one).collect()
}

fn input_facets(moment: Moment, told: &SourceStatus) -> Value {
    let report = &told.report;
    let mut statistics = Map::new();
    if moment == Moment::Ended {
        statistics.insert("rowCount".to_string(), told.rows.into());
    }
    statistics.insert("size".to_string(), report.bytes.into());
    statistics.insert("fileCount".to_string(), report.files.into());
    let window = told.window.as_ref();
    json!({
        "inputStatistics": facet("1-0-0/InputStatisticsInputDatasetFacet", Value::Object(statistics)),
        "tributary_window": own_facet("InputDatasetFacet", json!({
            "source": told.source.as_str(),
            "begin": window.and_then(|window| window.begin.as_ref()).map(ToString::to_string),
            "end": window.map(|window| window.end.to_string()),
            "beginRequested": report.begin_requested.as_ref().map(InstantTime::as_str),
            "endRequested": report.end_requested.as_ref().map(InstantTime::as_str),
            "instants": report.instants,
            "lagInstants": report.lag_instants,
            "lagSeconds": report.lag_seconds,
            "skipped": report.skipped,
        })),
    })
}

fn output(pipeline: &Pipeline, status: &BatchStatus, schemas: Option<&Schemas>) -> Value {
    let dataset = Dataset::of_url(&pipeline.target.path);
    let mut facets = dataset_facets(&dataset, schemas.map(|schemas| &schemas.target));
    let mut output = json!({});
    if let Some(lineage) = schemas.and_then(|schemas| column_lineage(pipeline, schemas)) {
        facets["columnLineage"] = lineage;
    }
    if status.outcome == Some(Outcome::Committed) {
        if let Some(instant) = &status.instant {
            facets["version"] = version(instant.as_str());
        }
        let written = &status.written;
        let statistics = json!({
            "rowCount": written.inserts + written.updates + written.deletes,
            "size": written.bytes,
            "fileCount": written.files,
        });
        output["outputStatistics"] = facet("1-0-2/OutputStatisticsOutputDatasetFacet", statistics);
    }
    json!({"namespace": dataset.namespace, "name": dataset.name, "facets": facets, "outputFacets": output})
}

/// The error table, where the batch committed refused rows to it.
fn refused_output(moment: Moment, pipeline: &Pipeline, status: &BatchStatus) -> Option<Value> {
    let committed = moment == Moment::Ended && status.outcome == Some(Outcome::Committed);
    let (table, instant) = (pipeline.error_table.as_ref()?, status.refused.instant.as_ref().filter(|_| committed)?);
    let dataset = Dataset::of_url(&table.path);
    let mut facets = dataset_facets(&dataset, Some(&error_schema()));
    facets["version"] = version(instant.as_str());
    let statistics = json!({"rowCount": status.refused.rows()});
    let output = json!({"outputStatistics": facet("1-0-2/OutputStatisticsOutputDatasetFacet", statistics)});
    Some(json!({"namespace": dataset.namespace, "name": dataset.name, "facets": facets, "outputFacets": output}))
}

/// Which columns of which inputs the columns of the output are made of; `None` where nothing is known.
fn column_lineage(pipeline: &Pipeline, schemas: &Schemas) -> Option<Value> {
    let mut fields = Map::new();
    for (name, origins) in schemas.origins.iter().filter(|(_, origins)| !origins.columns.is_empty()) {
        let how = if origins.copied { "IDENTITY" } else { "TRANSFORMATION" };
        let inputs = origins.columns.iter().filter_map(|(source, column)| {
            let source = pipeline.sources.iter().find(|known| known.name == *source)?;
            let Dataset { namespace, name } = Dataset::of_source(source);
            let transformations = json!([{"type": "DIRECT", "subtype": how}]);
            Some(json!({"namespace": namespace, "name": name, "field": column, "transformations": transformations}))
        });
        fields.insert(name.clone(), json!({"inputFields": inputs.collect::<Vec<_>>()}));
    }
    (!fields.is_empty()).then(|| facet("1-2-0/ColumnLineageDatasetFacet", json!({"fields": fields})))
}

fn version(version: &str) -> Value {
    facet("1-0-1/DatasetVersionDatasetFacet", json!({"datasetVersion": version}))
}

fn dataset_facets(dataset: &Dataset, schema: Option<&SchemaRef>) -> Value {
    let slash = if dataset.name.starts_with('/') { "" } else { "/" };
    let uri = match dataset.namespace.as_str() {
        "file" => format!("file://{}", dataset.name),
        namespace => format!("{namespace}{slash}{}", dataset.name),
    };
    let mut facets = json!({
        "dataSource": facet("1-0-1/DatasourceDatasetFacet", json!({"name": dataset.namespace, "uri": uri})),
    });
    if let Some(schema) = schema {
        facets["schema"] = facet("1-2-0/SchemaDatasetFacet", json!({"fields": fields(schema.fields())}));
    }
    facets
}

fn fields(columns: &Fields) -> Vec<Value> {
    columns.iter().map(|column| field(column)).collect()
}

fn field(column: &Field) -> Value {
    match column.data_type() {
        DataType::Struct(inner) => json!({"name": column.name(), "type": "struct", "fields": fields(inner)}),
        plain => json!({"name": column.name(), "type": plain.to_string()}),
    }
}

#[cfg(test)]
mod tests;
