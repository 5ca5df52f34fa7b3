// SPDX-License-Identifier: Apache-2.0
//! Directories of files: `CsvDFSSource`, `JsonDFSSource`, `ParquetDFSSource`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Props, location};

const ROOT: &str = "hoodie.streamer.source.dfs.root";
const CSV: &str = "hoodie.streamer.csv.";
/// The file of names and types that `FilebasedSchemaProvider` reads.
pub(super) const SCHEMA_FILE: &str = "hoodie.streamer.schemaprovider.source.schema.file";
const PROVIDER: &str = "FilebasedSchemaProvider";

/// Options of Spark's reader that `CsvDFSSource` passes on, and our names of them. Their defaults are Spark's.
const TEXTS: [(&str, &str); 15] = [
    ("sep", "sep"),
    ("encoding", "encoding"),
    ("quote", "quote"),
    ("escape", "escape"),
    ("charToEscapeQuoteEscaping", "char_to_escape_quote_escaping"),
    ("comment", "comment"),
    ("nullValue", "null_value"),
    ("emptyValue", "empty_value"),
    ("nanValue", "nan_value"),
    ("positiveInf", "positive_inf"),
    ("negativeInf", "negative_inf"),
    ("dateFormat", "date_format"),
    ("timestampFormat", "timestamp_format"),
    ("columnNameOfCorruptRecord", "column_name_of_corrupt_record"),
    ("mode", "mode"),
];
const FLAGS: [(&str, &str); 5] = [
    ("header", "header"),
    ("enforceSchema", "enforce_schema"),
    ("ignoreLeadingWhiteSpace", "ignore_leading_white_space"),
    ("ignoreTrailingWhiteSpace", "ignore_trailing_white_space"),
    ("multiLine", "multi_line"),
];

/// Whether the properties name a directory.
pub(super) fn has_root(props: &Props) -> bool {
    props.has(ROOT)
}

/// Whether they say how CSV is written.
pub(super) fn has_csv(props: &Props) -> bool {
    props.left.keys().any(|key| key.starts_with(CSV))
}

/// The source of a job over files of this kind.
pub(super) fn read(props: &mut Props, directory: &Path, kind: &str, provider: Option<&str>) -> Map<String, Value> {
    let root = props.take(ROOT);
    if root.is_none() {
        props.problem(format!("`{ROOT}` is missing: the directory that is read"));
    }
    let path = location(directory, &root.unwrap_or_default());
    let name = super::source::name_of(&path);
    // Without a checkpoint such a source reads whatever is there.
    let described = json!({"name": name, "kind": kind, "path": path, "start": "earliest"});
    let mut source = described.as_object().cloned().unwrap_or_default();
    let schema = schema_file(props, directory, provider);
    if kind == "csv" {
        source.insert("csv".to_string(), csv(props, schema.is_some()));
    } else if kind == "json" {
        source.insert("json".to_string(), json_options(props));
    }
    let mut files = Map::new();
    if let Some(schema) = schema {
        files.insert("schema_file".to_string(), json!(schema));
    }
    if let Some(bytes) = props.source_limit.take() {
        files.insert("max_bytes".to_string(), json!(bytes));
    }
    if !files.is_empty() {
        source.insert("files".to_string(), Value::Object(files));
    }
    let selector = props.take("hoodie.streamer.source.input.selector");
    if let Some(class) = selector.filter(|class| class.rsplit('.').next() != Some("DFSPathSelector")) {
        props.problem(format!(
            "`hoodie.streamer.source.input.selector={class}` is not there: files are read in the order of their \
             modification, as by DFSPathSelector; `tributary.source.{name}.files.glob` leaves files out"
        ));
    }
    source
}

/// The schema's file, by the class that provides it: without one, a file that is given names columns and types all the
/// same.
pub(super) fn schema_file(props: &mut Props, directory: &Path, provider: Option<&str>) -> Option<String> {
    let file = props.take(SCHEMA_FILE);
    let class = provider.map(|class| class.rsplit('.').next().unwrap_or(class));
    match class {
        None | Some(PROVIDER) => {}
        Some(other) => {
            props.problem(format!(
                "`--schemaprovider-class {other}` is not there: {PROVIDER} is, with `{SCHEMA_FILE}`; without any, types are \
                 inferred"
            ));
            return None;
        }
    }
    if class.is_some() && file.is_none() {
        props.problem(format!("`--schemaprovider-class {PROVIDER}` needs `{SCHEMA_FILE}`"));
    }
    file.map(|file| location(directory, &file))
}

fn csv(props: &mut Props, has_schema: bool) -> Value {
    let mut csv = Map::new();
    csv.insert("preset".to_string(), json!("spark"));
    for (theirs, ours) in TEXTS {
        // An empty text means something: no quotes, no comments.
        if let Some(text) = props.take_raw(&format!("{CSV}{theirs}")) {
            let text = if ours == "mode" { text.to_lowercase() } else { text };
            csv.insert(ours.to_string(), json!(text));
        }
    }
    for (theirs, ours) in FLAGS {
        let key = format!("{CSV}{theirs}");
        if props.has(&key) {
            csv.insert(ours.to_string(), json!(props.flag(&key)));
        }
    }
    if let Some(columns) = props.number(&format!("{CSV}maxColumns")) {
        csv.insert("max_columns".to_string(), json!(columns));
    }
    // -1 is no limit.
    if props.left.get(&format!("{CSV}maxCharsPerColumn")).is_some_and(|value| value.trim() == "-1") {
        props.take(&format!("{CSV}maxCharsPerColumn"));
    } else if let Some(chars) = props.number(&format!("{CSV}maxCharsPerColumn")) {
        csv.insert("max_chars_per_column".to_string(), json!(chars));
    }
    let infer = format!("{CSV}inferSchema");
    if props.has(&infer) && props.flag(&infer) == has_schema {
        props.note(format!(
            "`{infer}` is not used, as by Hudi Streamer: types are inferred exactly where no schema is given"
        ));
    }
    csv.insert("infer_schema".to_string(), json!(!has_schema));
    if props.take(&format!("{CSV}samplingRatio")).is_some() || !has_schema {
        props.note(
            "types of CSV columns are inferred once, from the first 1000 records, and then kept in the target; give a \
             schema, or `tributary.source.NAME.files.sample_rows`, where later records may not fit"
                .to_string(),
        );
    }
    Value::Object(csv)
}

/// What is to become of a record that is no good.
pub(super) fn json_options(props: &mut Props) -> Value {
    match props.flag("hoodie.streamer.source.json.skip.invalid.records") {
        true => json!({"mode": "dropmalformed"}),
        false => json!({}),
    }
}
