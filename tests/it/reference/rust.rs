// SPDX-License-Identifier: Apache-2.0
//! The fields of a struct and what is said of them, read from its source: documentation is nowhere else.

use std::fs;

use super::root;

/// A field as the source has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    /// Its key in files.
    pub(super) key: String,
    /// Its type.
    pub(super) kind: String,
    /// What is said of it.
    pub(super) help: String,
}

/// The fields of `pub struct name` in a file of `crates/types/src`.
pub(super) fn fields(file: &str, name: &str) -> Vec<Field> {
    let text = fs::read_to_string(root().join("crates/types/src").join(file)).unwrap();
    let begin = format!("pub struct {name} {{");
    let body = text.split_once(&begin).unwrap_or_else(|| panic!("{file} has no `{begin}`")).1;
    let body = body.split_once("\n}").unwrap().0;
    let (mut found, mut help, mut renamed) = (Vec::new(), Vec::new(), None);
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            help.push(text.trim().to_string());
        } else if line.starts_with("#[serde(") {
            renamed = line.split_once("rename = \"").map(|(_, rest)| rest.split('"').next().unwrap().to_string());
        } else if let Some((field, kind)) = line.strip_prefix("pub ").and_then(|rest| rest.split_once(": ")) {
            let key = renamed.take().unwrap_or_else(|| field.trim_start_matches("r#").to_string());
            let (kind, help) = (kind.trim_end_matches(',').to_string(), std::mem::take(&mut help).join(" "));
            found.push(Field { key, kind, help });
        }
    }
    found
}

#[test]
fn fields_are_read_with_their_keys_types_and_texts() {
    let found = fields("pipeline.rs", "Pipeline");
    let sources = found.iter().find(|field| field.key == "source").unwrap();
    assert_eq!((sources.kind.as_str(), sources.help.as_str()), ("Vec<Source>", "The tables that are read, in order."));
    let binding = found.iter().find(|field| field.key == "accept_binding_change").unwrap();
    assert!(binding.help.ends_with("elsewhere than it did then."), "{binding:?}");
}
