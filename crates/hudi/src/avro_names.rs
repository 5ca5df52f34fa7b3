// SPDX-License-Identifier: Apache-2.0
//! Avro types that are used by name.
//!
//! A named type is defined once and may then be used by its name, which schemas from Java programs do and Spark does
//! not. The conversion to Arrow knows definitions only, so each use by name becomes a definition under a fresh name.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

const PRIMITIVES: [&str; 8] = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"];
const NAMED: [&str; 3] = ["record", "fixed", "enum"];

/// The schema with every use by name written out; `file` is for messages.
pub(crate) fn inline_names<'a>(file: &str, avro: &'a str) -> Result<Cow<'a, str>> {
    let schema: Value = serde_json::from_str(avro).map_err(|e| Error::corrupt(file, e))?;
    let mut names = Names { file, defined: HashMap::new(), open: Vec::new(), uses: 0 };
    let inlined = names.inline(&schema, "")?;
    // The text as it came where nothing had to be done.
    Ok(if names.uses == 0 { Cow::Borrowed(avro) } else { Cow::Owned(inlined.to_string()) })
}

struct Names<'a> {
    file: &'a str,
    defined: HashMap<String, Value>,
    open: Vec<String>,
    uses: usize,
}

impl Names<'_> {
    fn inline(&mut self, schema: &Value, namespace: &str) -> Result<Value> {
        match schema {
            Value::String(name) if PRIMITIVES.contains(&name.as_str()) => Ok(schema.clone()),
            Value::String(name) => self.use_name(name, namespace),
            Value::Array(branches) => branches
                .iter()
                .map(|branch| self.inline(branch, namespace))
                .collect::<Result<Vec<_>>>()
                .map(Value::Array),
            Value::Object(object) => self.inline_object(object, namespace),
            other => Err(Error::corrupt(self.file, format!("`{other}` is no Avro type"))),
        }
    }

    fn inline_object(&mut self, object: &Map<String, Value>, namespace: &str) -> Result<Value> {
        let mut inlined = object.clone();
        match object.get("type") {
            Some(Value::String(kind)) if NAMED.contains(&kind.as_str()) => return self.define(inlined, namespace),
            Some(Value::String(kind)) if kind == "array" => self.inline_member(&mut inlined, "items", namespace)?,
            Some(Value::String(kind)) if kind == "map" => self.inline_member(&mut inlined, "values", namespace)?,
            Some(_) => self.inline_member(&mut inlined, "type", namespace)?,
            None => return Err(Error::corrupt(self.file, "an Avro type without `type`")),
        }
        Ok(Value::Object(inlined))
    }

    fn inline_member(&mut self, object: &mut Map<String, Value>, member: &str, namespace: &str) -> Result<()> {
        if let Some(inner) = object.get(member) {
            let inlined = self.inline(inner, namespace)?;
            object.insert(member.to_string(), inlined);
        }
        Ok(())
    }

    fn define(&mut self, mut object: Map<String, Value>, namespace: &str) -> Result<Value> {
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        let (name, own) = (text("name"), text("namespace"));
        let full = if own.is_empty() { full_name(&name, namespace) } else { full_name(&name, &own) };
        let inner = full.rsplit_once('.').map_or("", |(namespace, _)| namespace).to_string();
        self.open.push(full.clone());
        if let Some(Value::Array(fields)) = object.get("fields").cloned() {
            let mut inlined = Vec::with_capacity(fields.len());
            for field in fields {
                let Value::Object(mut field) = field else {
                    return Err(Error::corrupt(self.file, format!("a field of `{full}` is no object")));
                };
                self.inline_member(&mut field, "type", &inner)?;
                inlined.push(Value::Object(field));
            }
            object.insert("fields".to_string(), Value::Array(inlined));
        }
        self.open.pop();
        self.defined.insert(full, Value::Object(object.clone()));
        Ok(Value::Object(object))
    }

    fn use_name(&mut self, name: &str, namespace: &str) -> Result<Value> {
        let full = full_name(name, namespace);
        if self.open.contains(&full) {
            return Err(Error::unsupported(format!(
                "`{}`: type `{full}` holds itself, which cannot be read",
                self.file
            )));
        }
        let Some(mut definition) = self.defined.get(&full).cloned() else {
            return Err(Error::corrupt(self.file, format!("Avro type `{full}` is used and not defined")));
        };
        self.uses += 1;
        rename(&mut definition, self.uses);
        Ok(definition)
    }
}

fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() { name.to_string() } else { format!("{namespace}.{name}") }
}

/// A name may be defined only once.
fn rename(definition: &mut Value, copy: usize) {
    match definition {
        Value::Array(branches) => branches.iter_mut().for_each(|branch| rename(branch, copy)),
        Value::Object(object) => {
            let named = object.get("type").and_then(Value::as_str).is_some_and(|kind| NAMED.contains(&kind));
            if let Some(Value::String(name)) = object.get_mut("name").filter(|_| named) {
                name.push_str(&format!("_copy{copy}"));
            }
            for member in ["type", "items", "values"] {
                object.get_mut(member).into_iter().for_each(|inner| rename(inner, copy));
            }
            if let Some(Value::Array(fields)) = object.get_mut("fields") {
                fields.iter_mut().for_each(|field| rename(field, copy));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::avro::arrow_schema;

    #[test]
    fn a_type_used_by_name_reads_like_its_definition() {
        let avro = r#"{"type":"record","name":"r","namespace":"n","fields":[
            {"name":"a","type":["null",{"type":"record","name":"p","fields":[
                {"name":"d","type":{"type":"fixed","name":"f","size":5,"logicalType":"decimal","precision":10,"scale":2}}]}]},
            {"name":"b","type":["null","p"]},
            {"name":"c","type":{"type":"array","items":"n.p"}},
            {"name":"d","type":"f"}]}"#;
        let schema = arrow_schema("x", avro).unwrap();
        assert_eq!(schema.field(0).data_type(), schema.field(1).data_type());
        assert!(schema.field(2).data_type().to_string().contains("Decimal128(10, 2)"), "{}", schema.field(2));
        assert_eq!(schema.field(3).data_type(), &arrow::datatypes::DataType::Decimal128(10, 2));
    }

    #[test]
    fn a_schema_without_uses_stays_as_it_is_and_a_recursive_one_is_refused() {
        let plain = r#"{"type":"record","name":"r","fields":[{"name":"a","type":"int"}]}"#;
        assert!(matches!(inline_names("x", plain).unwrap(), Cow::Borrowed(text) if text == plain));
        let recursive = r#"{"type":"record","name":"r","fields":[{"name":"a","type":["null","r"]}]}"#;
        assert!(inline_names("x", recursive).unwrap_err().to_string().contains("holds itself"));
        let undefined = r#"{"type":"record","name":"r","fields":[{"name":"a","type":"nope"}]}"#;
        assert!(inline_names("x", undefined).unwrap_err().to_string().contains("nope"));
    }
}
