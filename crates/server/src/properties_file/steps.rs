// SPDX-License-Identifier: Apache-2.0
//! Transformers: SQL texts, SQL files and flattenings, one after the other.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::{Props, location};

const CLASS: &str = "hoodie.streamer.transformer.class";
const SQL: &str = "hoodie.streamer.transformer.sql";
const SQL_FILE: &str = "hoodie.streamer.transformer.sql.file";

pub(super) fn read(props: &mut Props, directory: &Path) -> Vec<Value> {
    let Some(classes) = props.take(CLASS) else { return without_classes(props, directory) };
    let steps: Vec<(Option<&str>, &str)> = classes
        .split(',')
        .map(|step| match step.trim().split_once(':') {
            Some((id, class)) => (Some(id.trim()), class.trim()),
            None => (None, step.trim()),
        })
        .collect();
    let with_id = steps.iter().filter(|(id, _)| id.is_some()).count();
    let ids: BTreeSet<&str> = steps.iter().filter_map(|(id, _)| *id).collect();
    if with_id > 0 && (with_id < steps.len() || ids.len() < steps.len()) {
        props.problem(format!("`{CLASS}={classes}`: either each transformer has an id of its own, or none has one"));
        return Vec::new();
    }
    let mut read = Vec::new();
    let mut shared: BTreeSet<String> = BTreeSet::new();
    for (id, class) in steps {
        match class.rsplit('.').next().unwrap_or(class) {
            "SqlQueryBasedTransformer" | "SqlQueryBasedMultiDatasetTransformer" => {
                read.extend(value_of(props, id, SQL, class, &mut shared).map(|sql| json!({"sql": sql})));
            }
            "SqlFileBasedTransformer" | "SqlFileBasedMultiDatasetTransformer" => {
                let file = value_of(props, id, SQL_FILE, class, &mut shared);
                read.extend(file.map(|file| json!({"sql_file": location(directory, &file)})));
            }
            "FlatteningTransformer" => read.push(json!({"flatten": {}})),
            "IdentityTransformer" => {}
            _ => props.problem(format!(
                "transformer `{class}` is not there; there are SqlQueryBasedTransformer, SqlFileBasedTransformer, \
                 FlatteningTransformer"
            )),
        }
    }
    read
}

/// The property of a step: its own by `key.<id>`, or the one that all share. One that is shared is not used twice unseen.
fn value_of(
    props: &mut Props,
    id: Option<&str>,
    key: &str,
    class: &str,
    shared: &mut BTreeSet<String>,
) -> Option<String> {
    if let Some(own) = id.and_then(|id| props.take(&format!("{key}.{id}"))) {
        return Some(own);
    }
    let value = props.take(key);
    match &value {
        Some(_) => {
            shared.insert(key.to_string());
        }
        None if shared.contains(key) => props.problem(format!(
            "two transformers `{class}` would run the same `{key}`: give each an id (`a:{class},b:{class}`), and its own \
             `{key}.a`, `{key}.b`"
        )),
        None => props.problem(format!("transformer `{class}` has no `{key}`")),
    }
    value
}

/// The keys say as much as the classes, where there is one of them.
fn without_classes(props: &mut Props, directory: &Path) -> Vec<Value> {
    match (props.take(SQL), props.take(SQL_FILE)) {
        (Some(_), Some(_)) => {
            props.problem(format!("both `{SQL}` and `{SQL_FILE}` are given: say in which order with `{CLASS}`"));
            Vec::new()
        }
        (Some(sql), None) => vec![json!({"sql": sql})],
        (None, Some(file)) => vec![json!({"sql_file": location(directory, &file)})],
        (None, None) => Vec::new(),
    }
}
