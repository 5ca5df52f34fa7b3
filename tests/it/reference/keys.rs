// SPDX-License-Identifier: Apache-2.0
//! The keys of a pipeline file: which there are, and their types and defaults, is asked of the code that reads files; what
//! they mean is what stands above them in the source.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};
use tributary_rpc::described;
use tributary_server::cli::JobArgs;
use tributary_server::properties_file;
use tributary_types::pipeline::{
    CsvOptions, FileOptions, Flatten, JsonOptions, KafkaOptions, Limits, MergeOperators, Pipeline, Services,
};

use super::rust::{self, Field};
use super::{cell, plain};

const HEAD: &str = "\n## Keys of a pipeline file\n\nA pipeline file is TOML, and the same as the message `Pipeline` of the \
                    coordinator's API ([api.md](api.md)). A key that is not known is refused with the nearest one. \
                    *Streamer* names the property of a Hudi Streamer job that means the same \
                    ([migration.md](migration.md)); every other key can be said there as `tributary.` and its name, such \
                    as `tributary.limits.memory`. Paths are relative to the pipeline file.\n";

/// A table of a pipeline file.
struct Section {
    title: &'static str,
    /// Where it is described.
    file: &'static str,
    name: &'static str,
    /// Where it is in a pipeline.
    place: &'static [&'static str],
    /// What its keys are in a pipeline that says nothing of them.
    defaults: fn() -> Value,
    /// Its message; or the field of a message that holds the whole table as JSON.
    message: Proto,
}

enum Proto {
    Message(&'static str),
    Json(&'static str, &'static str),
}

const SOURCE: &[&str] = &["source", "0"];

fn sections() -> Vec<Section> {
    let section = |title, file, name, place, defaults, message| Section { title, file, name, place, defaults, message };
    use Proto::{Json, Message};
    vec![
        section("at the top", "pipeline.rs", "Pipeline", &[], || json!(minimal()), Message("Pipeline")),
        section(
            "[[source]]",
            "pipeline/source.rs",
            "Source",
            SOURCE,
            || json!(&minimal().sources[0]),
            Message("Source"),
        ),
        section(
            "[source.files]",
            "pipeline/files.rs",
            "FileOptions",
            &["source", "0", "files"],
            || json!(FileOptions::default()),
            Json("Source", "files"),
        ),
        section(
            "[source.csv]",
            "pipeline/files.rs",
            "CsvOptions",
            &["source", "0", "csv"],
            || json!(CsvOptions::default()),
            Json("Source", "csv"),
        ),
        section(
            "[source.json]",
            "pipeline/files.rs",
            "JsonOptions",
            &["source", "0", "json"],
            || json!(JsonOptions::default()),
            Json("Source", "json"),
        ),
        section(
            "[source.kafka]",
            "pipeline/kafka.rs",
            "KafkaOptions",
            &["source", "0", "kafka"],
            || json!(KafkaOptions::default()),
            Json("Source", "kafka"),
        ),
        section(
            "[[transform]]",
            "pipeline/transforms.rs",
            "Transform",
            &["transform", "0"],
            || json!({}),
            Message("Transform"),
        ),
        section(
            "[transform.flatten]",
            "pipeline/transforms.rs",
            "Flatten",
            &["transform", "0", "flatten"],
            || json!(Flatten::default()),
            Message("Flatten"),
        ),
        section("[target]", "pipeline.rs", "Target", &["target"], || json!(minimal().target), Message("Target")),
        section(
            "[target.services]",
            "pipeline/services.rs",
            "Services",
            &["target", "services"],
            || json!(Services::default()),
            Message("Services"),
        ),
        section(
            "[target.merge]",
            "pipeline/merge.rs",
            "MergeOperators",
            &["target", "merge"],
            || json!(MergeOperators::default()),
            Json("Target", "merge"),
        ),
        section("[limits]", "pipeline.rs", "Limits", &["limits"], || json!(Limits::default()), Message("Limits")),
    ]
}

/// Keys whose fields have other names on the wire.
const OTHER_NAMES: [(&str, &str, &str); 6] = [
    ("Pipeline", "source", "sources"),
    ("Pipeline", "transform", "transforms"),
    ("Target", "small_file_limit", "small_file_bytes"),
    ("Target", "max_file_size", "max_file_bytes"),
    ("Limits", "memory", "memory_bytes"),
    ("Limits", "spill", "spill_bytes"),
];
/// Keys of a topic, which travel as one field.
const TOPIC_KEYS: [&str; 5] = ["brokers", "topic", "format", "tombstones", "kafka"];

/// Properties of Hudi Streamer that mean the same as a key, each with a value that changes it. `{}`: a source's name.
const STREAMER: [(&str, &str, &str); 24] = [
    ("source.path", "hoodie.streamer.source.hoodieincr.path", "/elsewhere"),
    ("source.num_instants", "hoodie.streamer.source.hoodieincr.num_instants", "7"),
    ("source.start", "hoodie.streamer.source.hoodieincr.missing.checkpoint.strategy", "READ_UPTO_LATEST_COMMIT"),
    ("source.on_hole", "hoodie.read.timeline.holes.resolution.policy", "FAIL"),
    ("source.skip_on_schema_failure", "hoodie.streamer.source.hudi.{}.skip_on_schema_failure", "true"),
    ("transform.sql", "hoodie.streamer.transformer.sql", "SELECT 2"),
    ("target.path", "hoodie.base.path", "/elsewhere"),
    ("target.table_name", "hoodie.table.name", "other"),
    ("target.table_type", "hoodie.datasource.write.table.type", "MERGE_ON_READ"),
    ("target.table_version", "hoodie.write.table.version", "8"),
    ("target.record_key", "hoodie.datasource.write.recordkey.field", "other"),
    ("target.partition_by", "hoodie.datasource.write.partitionpath.field", "day"),
    ("target.ordering", "hoodie.table.ordering.fields", "ts"),
    ("target.operation", "hoodie.datasource.write.operation", "INSERT"),
    ("target.hive_style", "hoodie.datasource.write.hive_style_partitioning", "true"),
    ("target.small_file_limit", "hoodie.parquet.small.file.limit", "1000000"),
    ("target.max_file_size", "hoodie.parquet.max.file.size", "200000000"),
    ("target.services.clean_commits", "hoodie.clean.commits.retained", "12"),
    ("target.services.archive_commits", "hoodie.keep.max.commits", "60"),
    ("target.services.compact_metadata_commits", "hoodie.metadata.compact.max.delta.commits", "7"),
    ("target.services.compact_delta_commits", "hoodie.compact.inline.max.delta.commits", "4"),
    ("limits.memory", "tributary.limits.memory", "512MiB"),
    ("consistency", "tributary.consistency", "aligned"),
    ("target.writers", "tributary.target.writers", "shared"),
];

fn base() -> Value {
    json!({
        "name": "p",
        "source": [{"name": "s", "path": "/s"}],
        "transform": [{"sql": "SELECT 1"}],
        "target": {"path": "/t", "table_name": "t", "record_key": ["id"]},
    })
}

fn read(value: Value) -> Result<Pipeline, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

fn minimal() -> Pipeline {
    read(base()).unwrap()
}

/// The object at a place of a pipeline, made where it is missing.
fn at<'a>(value: &'a mut Value, place: &[&str]) -> &'a mut serde_json::Map<String, Value> {
    let mut found = value;
    for step in place {
        found = match found {
            Value::Array(all) => &mut all[step.parse::<usize>().unwrap()],
            object => object.as_object_mut().unwrap().entry(*step).or_insert_with(|| json!({})),
        };
    }
    found.as_object_mut().unwrap()
}

/// What reading a pipeline says with a key set to a value.
fn asked(section: &Section, key: &str, value: Value) -> Result<Pipeline, String> {
    let mut pipeline = base();
    at(&mut pipeline, section.place).insert(key.to_string(), value);
    read(pipeline)
}

/// The names in a message after `expected`.
fn expected(message: &str) -> Vec<String> {
    let listed = message.split_once("expected").map_or("", |(_, rest)| rest);
    listed.split('`').skip(1).step_by(2).map(ToString::to_string).collect()
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// What a key can be set to.
fn kind(section: &Section, field: &Field, sections: &[Section]) -> String {
    let bare = field.kind.trim_start_matches("Option<").trim_start_matches("Vec<").trim_end_matches('>');
    if let Some(other) = sections.iter().find(|other| other.name == bare) {
        return format!("{}, see {}", if field.kind.starts_with("Vec<") { "tables" } else { "table" }, other.title);
    }
    let known = match bare {
        "bool" => "`true`, `false`",
        "u32" | "u64" | "usize" => "number",
        "ByteSize" => "size, `512MiB`",
        "Span" => "time, `90s`",
        "PipelineName" | "SourceName" => "name",
        "Start" => "`latest`, `earliest`, `snapshot`, `resume`, `fail`, `timestamp:…`, or a cursor",
        "Operator" => "merge operator",
        "BTreeMap<String, Operator" => "merge operators by column",
        _ => "",
    };
    if !known.is_empty() {
        return known.to_string();
    }
    let nonsense = match field.kind.starts_with("Vec<") {
        true => json!(["\u{1}"]),
        false => json!("\u{1}"),
    };
    let variants = match asked(section, &field.key, nonsense) {
        Err(message) if message.starts_with("unknown variant") => expected(&message),
        _ => Vec::new(),
    };
    match (field.kind.starts_with("Vec<"), variants.is_empty()) {
        (true, true) => "list of texts".to_string(),
        (true, false) => format!("list of {}", listed(&variants)),
        (false, true) => "text".to_string(),
        (false, false) => listed(&variants),
    }
}

fn default(section: &Section, field: &Field) -> String {
    let mut without = base();
    at(&mut without, section.place).remove(&field.key);
    if read(without).is_err_and(|message| message.contains(&format!("missing field `{}`", field.key))) {
        return "must be given".to_string();
    }
    match (section.defaults)().get(&field.key) {
        Some(Value::Null) => "none".to_string(),
        Some(Value::Object(_)) => String::new(),
        Some(Value::Array(all)) if all.iter().any(Value::is_object) => String::new(),
        Some(Value::String(text)) if text.is_empty() => "none".to_string(),
        Some(value) => format!("`{value}`"),
        None if field.kind == "bool" => "`false`".to_string(),
        None => "none".to_string(),
    }
}

fn wire(section: &Section, field: &Field) -> String {
    let (message, name) = match section.message {
        Proto::Json(message, of) => return format!("in `{message}.{of}`"),
        Proto::Message(message) => {
            let other = OTHER_NAMES.iter().find(|(of, key, _)| *of == message && *key == field.key);
            (message, other.map_or(field.key.as_str(), |(_, _, name)| name))
        }
    };
    if message == "Source" && TOPIC_KEYS.contains(&name) {
        return "in `Source.kafka`".to_string();
    }
    let whole = format!("tributary.coordinator.v1.{message}");
    let files = described::files();
    let all = files.iter().flat_map(|file| &file.messages);
    let known = all.filter(|one| one.name == whole).any(|one| one.fields.iter().any(|field| field.name == name));
    assert!(known, "`{}` of {} is no field of {whole}", field.key, section.title);
    format!("`{message}.{name}`")
}

/// The name of a key from the top, without positions.
fn path(section: &Section, key: &str) -> String {
    let steps = section.place.iter().filter(|step| **step != "0").copied().chain([key]);
    steps.collect::<Vec<_>>().join(".")
}

pub(super) fn write(text: &mut String) {
    text.push_str(HEAD);
    let sections = sections();
    for section in &sections {
        writeln!(text, "\n### {}\n\n| key | type | default | meaning | Streamer | API |", section.title).unwrap();
        writeln!(text, "|---|---|---|---|---|---|").unwrap();
        for field in rust::fields(section.file, section.name) {
            let own = path(section, &field.key);
            let alias = STREAMER.iter().find(|(key, property, _)| *key == own && !property.starts_with("tributary."));
            let alias = alias.map_or(String::new(), |(_, property, _)| format!("`{}`", property.replace("{}", "NAME")));
            let (kind, default) = (kind(section, &field, &sections), default(section, &field));
            let (help, wire) = (cell(&plain(&field.help)), wire(section, &field));
            writeln!(text, "| `{}` | {} | {default} | {help} | {alias} | {wire} |", field.key, cell(&kind)).unwrap();
        }
    }
}

#[test]
fn the_source_has_exactly_the_keys_that_files_are_read_with() {
    for section in sections() {
        let message = asked(&section, "\u{1}", json!(1)).unwrap_err();
        let read: BTreeSet<String> = expected(&message).into_iter().collect();
        let documented: BTreeSet<String> =
            rust::fields(section.file, section.name).into_iter().map(|field| field.key).collect();
        assert_eq!(documented, read, "{}", section.title);
    }
}

/// A job from properties, as a pipeline.
fn job(properties: &[(&str, &str)]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("job.properties");
    let lines: Vec<String> = properties.iter().map(|(key, value)| format!("{key}={value}")).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let read = properties_file::load(&file, &JobArgs::default()).unwrap_or_else(|refused| panic!("{refused}"));
    serde_json::to_value(read.pipeline).unwrap()
}

#[test]
fn each_property_of_hudi_streamer_sets_the_key_that_it_stands_beside_and_no_other() {
    let one = [
        // Else it is that of the table.
        ("tributary.name", "p"),
        ("hoodie.streamer.source.hoodieincr.path", "/lake/s"),
        ("hoodie.streamer.transformer.sql", "SELECT 1"),
        ("hoodie.base.path", "/t"),
        ("hoodie.table.name", "t"),
        ("hoodie.datasource.write.recordkey.field", "id"),
    ];
    let many = [
        ("hoodie.streamer.source.multi.hudi.tables", "s"),
        ("hoodie.streamer.source.hudi.s.path", "/lake/s"),
        one[0],
        one[2],
        one[3],
        one[4],
        one[5],
    ];
    for (key, property, value) in STREAMER {
        let base: &[(&str, &str)] = if property.contains("{}") { &many } else { &one };
        let named = property.replace("{}", "s");
        let kept: Vec<(&str, &str)> = base.iter().copied().filter(|(known, _)| *known != named).collect();
        let (before, after) = (job(base), job(&[&kept[..], &[(named.as_str(), value)]].concat()));
        let mut changed = BTreeSet::new();
        differences(&before, &after, "", &mut changed);
        // One source is named as the last part of its path.
        changed.remove("source.name");
        assert_eq!(changed, BTreeSet::from([key.to_string()]), "{property}");
    }
}

fn differences(before: &Value, after: &Value, path: &str, changed: &mut BTreeSet<String>) {
    match (before, after) {
        (Value::Object(one), Value::Object(other)) => {
            for key in one.keys().chain(other.keys()) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                differences(&of(one), &of(other), &path, changed);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.iter().chain(other).all(Value::is_object) => {
            for (one, other) in one.iter().zip(other) {
                differences(one, other, path, changed);
            }
        }
        _ if before != after => drop(changed.insert(path.to_string())),
        _ => {}
    }
}
