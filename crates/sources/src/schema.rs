// SPDX-License-Identifier: Apache-2.0
//! Names and types of columns: as they are given, as they are kept, and how they grow.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, TimeUnit};
use serde_json::{Value, json};

/// Reads a schema that a pipeline gives: an Avro record, or Arrow's in JSON. `what` is for messages. Every column may
/// be null: a file may lack it.
pub(crate) fn given(what: &str, text: &str) -> Result<Schema, String> {
    let value: Value = serde_json::from_str(text).map_err(|e| format!("{what} is no JSON: {e}"))?;
    let schema = match value.get("type").and_then(Value::as_str) {
        Some("record") => tributary_hudi::arrow_schema(what, text).map_err(|e| e.to_string())?,
        _ => from_json(&value).map_err(|e| format!("{what}: {e}"))?,
    };
    Ok(Schema::new(schema.fields().iter().map(|field| nullable(field)).collect::<Vec<_>>()))
}

/// The same field, and what is in it, with every value optional but the keys of maps.
fn nullable(field: &Field) -> Field {
    let data_type = match field.data_type() {
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|field| nullable(field)).collect()),
        DataType::List(item) => DataType::List(Arc::new(nullable(item))),
        DataType::Map(entries, sorted) => match entries.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => {
                let pair: Fields = vec![pair[0].as_ref().clone(), nullable(&pair[1])].into();
                DataType::Map(Arc::new(Field::new(entries.name(), DataType::Struct(pair), false)), *sorted)
            }
            other => DataType::Map(Arc::new(Field::new(entries.name(), other.clone(), false)), *sorted),
        },
        other => other.clone(),
    };
    Field::new(field.name(), data_type, true)
}

/// A schema as a checkpoint keeps it: Arrow's in JSON.
pub(crate) fn to_json(schema: &Schema) -> String {
    json!({"fields": schema.fields().iter().map(|field| field_json(field)).collect::<Vec<_>>()}).to_string()
}

fn field_json(field: &Field) -> Value {
    let (data_type, children): (Value, Vec<&Field>) = match field.data_type() {
        DataType::Boolean => (json!({"name": "bool"}), Vec::new()),
        DataType::Int8 => (int(8), Vec::new()),
        DataType::Int16 => (int(16), Vec::new()),
        DataType::Int32 => (int(32), Vec::new()),
        DataType::Int64 => (int(64), Vec::new()),
        DataType::Float32 => (json!({"name": "floatingpoint", "precision": "SINGLE"}), Vec::new()),
        DataType::Float64 => (json!({"name": "floatingpoint", "precision": "DOUBLE"}), Vec::new()),
        DataType::Decimal128(precision, scale) => {
            (json!({"name": "decimal", "precision": precision, "scale": scale, "bitWidth": 128}), Vec::new())
        }
        DataType::Date32 => (json!({"name": "date", "unit": "DAY"}), Vec::new()),
        DataType::Timestamp(unit, zone) => {
            let unit = if *unit == TimeUnit::Millisecond { "MILLISECOND" } else { "MICROSECOND" };
            let mut data_type = json!({"name": "timestamp", "unit": unit});
            if let Some(zone) = zone {
                data_type["timezone"] = json!(zone);
            }
            (data_type, Vec::new())
        }
        DataType::Binary => (json!({"name": "binary"}), Vec::new()),
        DataType::List(item) => (json!({"name": "list"}), vec![item]),
        DataType::Struct(fields) => (json!({"name": "struct"}), fields.iter().map(AsRef::as_ref).collect()),
        DataType::Map(entries, sorted) => (json!({"name": "map", "keysSorted": sorted}), vec![entries]),
        // Every other type was refused, or widened, before.
        _ => (json!({"name": "utf8"}), Vec::new()),
    };
    json!({
        "name": field.name(), "nullable": field.is_nullable(), "type": data_type,
        "children": children.into_iter().map(field_json).collect::<Vec<_>>(),
    })
}

fn int(width: u8) -> Value {
    json!({"name": "int", "bitWidth": width, "isSigned": true})
}

/// Reads Arrow's schema in JSON.
fn from_json(value: &Value) -> Result<Schema, String> {
    let fields = value.get("fields").or_else(|| value.get("schema").and_then(|schema| schema.get("fields")));
    let fields = fields.and_then(Value::as_array).ok_or("it is neither an Avro record nor has it `fields`")?;
    Ok(Schema::new(fields.iter().map(field_of).collect::<Result<Vec<_>, _>>()?))
}

fn field_of(value: &Value) -> Result<Field, String> {
    let name = value.get("name").and_then(Value::as_str).ok_or("a field has no `name`")?;
    let data_type = type_of(name, value)?;
    Ok(Field::new(name, data_type, value.get("nullable").and_then(Value::as_bool).unwrap_or(true)))
}

fn type_of(name: &str, value: &Value) -> Result<DataType, String> {
    let data_type = value.get("type").ok_or_else(|| format!("field `{name}` has no `type`"))?;
    let of = |key: &str| data_type.get(key);
    let text = |key: &str| of(key).and_then(Value::as_str);
    let number = |key: &str| of(key).and_then(Value::as_i64);
    let children = || -> Result<Vec<Field>, String> {
        let children = value.get("children").and_then(Value::as_array);
        children.map_or(Ok(Vec::new()), |children| children.iter().map(field_of).collect())
    };
    let only = |children: Vec<Field>| match <[Field; 1]>::try_from(children) {
        Ok([child]) => Ok(child),
        Err(_) => Err(format!("field `{name}` has not exactly one child")),
    };
    let unsupported = || format!("field `{name}`: type {data_type} is not supported");
    Ok(match text("name").or(data_type.as_str()).unwrap_or_default() {
        "bool" => DataType::Boolean,
        "int" if of("isSigned").and_then(Value::as_bool) != Some(false) => match number("bitWidth") {
            Some(8) => DataType::Int8,
            Some(16) => DataType::Int16,
            Some(32) => DataType::Int32,
            Some(64) => DataType::Int64,
            _ => return Err(unsupported()),
        },
        "floatingpoint" => match text("precision") {
            Some("SINGLE") => DataType::Float32,
            Some("DOUBLE") => DataType::Float64,
            _ => return Err(unsupported()),
        },
        "decimal" => match (number("precision"), number("scale")) {
            (Some(precision @ 1..=38), Some(scale)) if (0..=precision).contains(&scale) => {
                DataType::Decimal128(precision as u8, scale as i8)
            }
            _ => return Err(unsupported()),
        },
        "utf8" | "largeutf8" => DataType::Utf8,
        "binary" | "largebinary" => DataType::Binary,
        "date" => DataType::Date32,
        "timestamp" => {
            let zone = text("timezone").map(|_| Arc::from("UTC"));
            match text("unit") {
                Some("MILLISECOND") => DataType::Timestamp(TimeUnit::Millisecond, zone),
                Some("MICROSECOND") => DataType::Timestamp(TimeUnit::Microsecond, zone),
                _ => return Err(unsupported()),
            }
        }
        "list" => DataType::List(Arc::new(only(children()?)?)),
        "struct" => DataType::Struct(children()?.into()),
        "map" => DataType::Map(Arc::new(only(children()?)?.with_nullable(false)), false),
        _ => return Err(unsupported()),
    })
}

/// What the columns are as far as that is settled: those that are given under the key `what`, and those that earlier plans
/// kept. Where columns may be added, one that came once stays, whether what brought it is there or not.
pub(crate) fn settled(
    what: &str,
    given_text: Option<&str>,
    kept_text: Option<&str>,
    evolves: bool,
) -> Result<Option<Schema>, String> {
    let stated = given_text.map(|text| given(what, text)).transpose()?;
    let kept = kept_text.map(|text| given("the schema in its cursor", text)).transpose()?;
    Ok(match (stated, kept) {
        (Some(stated), Some(kept)) if evolves => {
            let more: Vec<Field> = kept.fields().iter().map(|field| field.as_ref().clone()).collect();
            Some(grown(&stated, &more))
        }
        (Some(stated), _) => Some(stated),
        (None, kept) => kept,
    })
}

/// A schema with the columns of another one that it lacks behind its own, and the same within structs. Columns are the
/// same whatever their case.
pub(crate) fn grown(schema: &Schema, other: &[Field]) -> Schema {
    Schema::new(grown_fields(schema.fields().iter().map(AsRef::as_ref), other))
}

fn grown_fields<'a>(own: impl Iterator<Item = &'a Field>, other: &[Field]) -> Vec<Field> {
    let mut fields: Vec<Field> = own.cloned().collect();
    for field in other {
        let lower = field.name().to_lowercase();
        match fields.iter_mut().find(|own| own.name().to_lowercase() == lower) {
            Some(own) => *own = own.clone().with_data_type(grown_type(own.data_type(), field.data_type())),
            None => fields.push(nullable(field)),
        }
    }
    fields
}

fn grown_type(own: &DataType, other: &DataType) -> DataType {
    match (own, other) {
        (DataType::Struct(own), DataType::Struct(other)) => {
            let other: Vec<Field> = other.iter().map(|field| field.as_ref().clone()).collect();
            DataType::Struct(grown_fields(own.iter().map(AsRef::as_ref), &other).into())
        }
        (DataType::List(own), DataType::List(other)) => {
            let item = grown_type(own.data_type(), other.data_type());
            DataType::List(Arc::new(own.as_ref().clone().with_data_type(item)))
        }
        (own, _) => own.clone(),
    }
}

/// Whether there is a column of this name, whatever its case.
pub(crate) fn has(fields: &[Field], name: &str) -> bool {
    let lower = name.to_lowercase();
    fields.iter().any(|field| field.name().to_lowercase() == lower)
}

/// The schema with a text column for records that are no good, where one is asked for.
pub(crate) fn with_corrupt(schema: Schema, corrupt: Option<&str>) -> Schema {
    match corrupt {
        Some(name) if schema.field_with_name(name).is_err() => {
            grown(&schema, &[Field::new(name, DataType::Utf8, true)])
        }
        _ => schema,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested() -> Schema {
        let item = Arc::new(Field::new("element", DataType::Int32, true));
        let inner: Fields =
            vec![Field::new("a", DataType::Utf8, true), Field::new("l", DataType::List(item), true)].into();
        let pair: Fields =
            vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Struct(inner.clone()), true)]
                .into();
        let entries = Arc::new(Field::new("key_value", DataType::Struct(pair), false));
        Schema::new(vec![
            Field::new("a name with blanks", DataType::Int64, true),
            Field::new("d", DataType::Decimal128(10, 2), true),
            Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
            Field::new("s", DataType::Struct(inner), true),
            Field::new("m", DataType::Map(entries, false), true),
        ])
    }

    #[test]
    fn a_kept_schema_reads_back_with_names_that_avro_cannot_hold() {
        let schema = nested();
        assert_eq!(given("it", &to_json(&schema)).unwrap(), schema);
    }

    #[test]
    fn an_avro_record_and_an_arrow_schema_give_the_same_columns() {
        let avro = r#"{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}], "default": null}]}"#;
        let arrow = r#"{"fields": [{"name": "id", "type": {"name": "int", "bitWidth": 64, "isSigned": true}},
            {"name": "at", "type": {"name": "timestamp", "unit": "MICROSECOND", "timezone": "Z"}}]}"#;
        assert_eq!(given("avro", avro).unwrap(), given("arrow", arrow).unwrap());
        assert!(given("avro", avro).unwrap().fields().iter().all(|field| field.is_nullable()), "a file may lack it");
    }

    #[test]
    fn a_schema_that_is_none_is_refused_with_what_is_wrong() {
        for (text, part) in [
            ("x", "no JSON"),
            ("{}", "neither an Avro record"),
            (r#"{"fields": [{"name": "a", "type": {"name": "int", "bitWidth": 64, "isSigned": false}}]}"#, "field `a`"),
            (r#"{"fields": [{"type": {"name": "utf8"}}]}"#, "no `name`"),
        ] {
            let refused = given("the schema", text).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }

    #[test]
    fn a_schema_grows_by_columns_it_lacks_whatever_their_case() {
        let schema = Schema::new(vec![Field::new("Id", DataType::Int64, true)]);
        let more = [Field::new("id", DataType::Utf8, false), Field::new("b", DataType::Utf8, false)];
        let grown = grown(&schema, &more);
        assert_eq!(grown.fields().len(), 2);
        assert_eq!(grown.field(0), schema.field(0));
        assert!(grown.field(1).is_nullable());
    }
}
