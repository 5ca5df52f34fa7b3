// SPDX-License-Identifier: Apache-2.0
//! The target.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Props, location};

pub(super) fn read(props: &mut Props, directory: &Path) -> Map<String, Value> {
    let mut target = Map::new();
    let mut put = |key: &str, value: Value| {
        target.insert(key.to_string(), value);
    };
    let path = props.first(&["hoodie.base.path", "hoodie.streamer.target.base.path"]);
    if path.is_none() {
        props.problem("the target's path is missing: give `--target-base-path`".to_string());
    }
    put("path", json!(location(directory, &path.unwrap_or_default())));
    let table = props.first(&["hoodie.table.name", "hoodie.datasource.write.table.name"]);
    if table.is_none() {
        props.problem("the target's name is missing: give `--target-table`, or `hoodie.table.name`".to_string());
    }
    put("table_name", json!(table.unwrap_or_default()));
    let keys = list(props.first(&["hoodie.datasource.write.recordkey.field", "hoodie.table.recordkey.fields"]));
    if keys.is_empty() {
        props.problem(
            "`hoodie.datasource.write.recordkey.field` is missing: rows without a key are not written".to_string(),
        );
    }
    put("record_key", json!(keys));
    let partitions =
        list(props.first(&["hoodie.datasource.write.partitionpath.field", "hoodie.table.partition.fields"]));
    let partitions: Vec<String> = partitions.iter().filter_map(|field| partition_column(props, field)).collect();
    let partitions = if is_partitioned(props) { partitions } else { Vec::new() };
    put("partition_by", json!(partitions));
    if let Some(kind) = props.first(&["hoodie.datasource.write.table.type", "hoodie.table.type"]) {
        put("table_type", json!(kind.to_lowercase()));
    }
    if let Some(operation) = props.take("hoodie.datasource.write.operation") {
        put("operation", json!(operation.to_lowercase()));
    }
    let Ordering { fields, merge } = ordering(props);
    put("ordering", json!(fields));
    if let Some(operator) = merge {
        put("merge", json!({"default": operator}));
    }
    // Not hive-style unless it is said: the default of Hudi, and not of a pipeline file.
    put("hive_style", json!(props.flag("hoodie.datasource.write.hive_style_partitioning")));
    if let Some(version) = props.number("hoodie.write.table.version") {
        put("table_version", json!(version));
    }
    for (key, field) in
        [("hoodie.parquet.small.file.limit", "small_file_limit"), ("hoodie.parquet.max.file.size", "max_file_size")]
    {
        if let Some(bytes) = props.number(key) {
            put(field, json!(bytes));
        }
    }
    put("services", Value::Object(services(props)));
    check_features(props);
    target
}

/// `day`, or `day:SIMPLE` of the custom key generator.
fn partition_column(props: &mut Props, field: &str) -> Option<String> {
    match field.split_once(':') {
        None => Some(field.to_string()),
        Some((column, kind)) if kind.eq_ignore_ascii_case("SIMPLE") => Some(column.to_string()),
        Some((_, kind)) => {
            props.problem(format!("partition column `{field}`: key generator {kind} is not there; SIMPLE is"));
            None
        }
    }
}

fn is_partitioned(props: &mut Props) -> bool {
    let class =
        props.first(&["hoodie.datasource.write.keygenerator.class", "hoodie.datasource.write.keygenerator.type"]);
    let Some(class) = class else { return true };
    match class.rsplit('.').next().unwrap_or(&class) {
        "SimpleKeyGenerator" | "ComplexKeyGenerator" | "CustomKeyGenerator" | "SIMPLE" | "COMPLEX" | "CUSTOM" => true,
        "NonpartitionedKeyGenerator" | "NON_PARTITION" => false,
        other => {
            props.problem(format!(
                "key generator `{other}` is not there; there are SimpleKeyGenerator, ComplexKeyGenerator, \
                 NonpartitionedKeyGenerator"
            ));
            true
        }
    }
}

/// How rows of one key are merged.
struct Ordering {
    /// Columns of which the greatest value wins; none where the later row does.
    fields: Vec<String>,
    /// What merges every column, where it is not the row that wins.
    merge: Option<&'static str>,
}

fn ordering(props: &mut Props) -> Ordering {
    const KEYS: [&str; 4] = [
        "hoodie.table.ordering.fields",
        "hoodie.datasource.write.precombine.field",
        "hoodie.table.precombine.field",
        "hoodie.streamer.source.ordering.fields",
    ];
    let fields = list(props.first(&KEYS));
    let mode = props.first(&["hoodie.write.record.merge.mode", "hoodie.record.merge.mode"]);
    let payload = props.first(&["hoodie.datasource.write.payload.class", "hoodie.compaction.payload.class"]);
    let short = payload.as_deref().map(|class| class.rsplit('.').next().unwrap_or(class));
    let mut merge = None;
    let by_commit = match (mode.as_deref(), short) {
        (None, Some("PartialUpdateAvroPayload")) => {
            merge = Some("PartialUpdateAvroPayload");
            false
        }
        (None, Some("OverwriteNonDefaultsWithLatestAvroPayload")) => {
            merge = Some("OverwriteNonDefaultsWithLatestAvroPayload");
            true
        }
        (Some("EVENT_TIME_ORDERING"), _)
        | (None, None | Some("DefaultHoodieRecordPayload" | "EventTimeAvroPayload")) => false,
        (Some("COMMIT_TIME_ORDERING"), _) | (None, Some("OverwriteWithLatestAvroPayload")) => true,
        (Some(other), _) => {
            props.problem(format!(
                "merge mode `{other}` is not there; EVENT_TIME_ORDERING and COMMIT_TIME_ORDERING are"
            ));
            false
        }
        (None, Some(_)) => {
            props.problem(format!(
                "payload `{}` is not there; DefaultHoodieRecordPayload, EventTimeAvroPayload, \
                 OverwriteWithLatestAvroPayload, OverwriteNonDefaultsWithLatestAvroPayload and PartialUpdateAvroPayload are",
                payload.as_deref().unwrap_or_default()
            ));
            false
        }
    };
    if by_commit && !fields.is_empty() {
        props.note(format!(
            "`{}` is not used for ordering: the later row of a key stays, as merge mode or payload say",
            fields.join(",")
        ));
    }
    Ordering { fields: if by_commit { Vec::new() } else { fields }, merge }
}

fn services(props: &mut Props) -> Map<String, Value> {
    let mut services = Map::new();
    let keys: [(&[&str], &str); 4] = [
        (&["hoodie.clean.commits.retained", "hoodie.cleaner.commits.retained"], "clean_commits"),
        (&["hoodie.keep.max.commits"], "archive_commits"),
        (&["hoodie.compact.inline.max.delta.commits"], "compact_delta_commits"),
        (&["hoodie.metadata.compact.max.delta.commits"], "compact_metadata_commits"),
    ];
    for (keys, field) in keys {
        let Some(value) = props.first(keys) else { continue };
        match value.parse::<u32>() {
            Ok(number) => {
                services.insert(field.to_string(), json!(number));
            }
            Err(_) => props.problem(format!("`{}` is `{value}`, which is no whole number", keys[0])),
        }
    }
    services
}

/// What a writer of Hudi would do, and this one does not.
fn check_features(props: &mut Props) {
    props.refuse_unless("hoodie.metadata.enable", "true", "targets always have a metadata table");
    props.refuse_unless("hoodie.errortable.enable", "false", "a table of bad records is not there yet");
    props.refuse_unless("hoodie.table.cdc.enabled", "false", "a change log is not written");
    props.refuse_unless("hoodie.populate.meta.fields", "true", "keys are found by the meta columns");
    let sanitize = "names that Avro does not know are refused by name; alias them in the SQL";
    props.refuse_unless("hoodie.streamer.source.sanitize.invalid.schema.field.names", "false", sanitize);
    let drops = "partition columns stay in the files";
    props.refuse_unless("hoodie.datasource.write.drop.partition.columns", "false", drops);
}

fn list(value: Option<String>) -> Vec<String> {
    let value = value.unwrap_or_default();
    value.split(',').map(str::trim).filter(|part| !part.is_empty()).map(ToString::to_string).collect()
}
