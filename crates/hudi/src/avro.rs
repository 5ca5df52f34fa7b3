// SPDX-License-Identifier: Apache-2.0
//! Table schemas between Avro, which commits carry, and Arrow.
//!
//! The Avro text follows what Spark writes: record `<table>_record` in namespace `hoodie.<table>`, nested types named
//! by their path so that no name is defined twice, nullable types as a union with null first.

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use serde_json::{Value, json};

use crate::avro_names::inline_names;
use crate::error::{Error, Result};

/// The five columns that Hudi keeps in front of every row.
pub const META_COLUMNS: [&str; 5] = [
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
];

/// Whether a column is one of [`META_COLUMNS`].
pub fn is_meta_column(name: &str) -> bool {
    META_COLUMNS.contains(&name)
}

/// The five meta columns as Arrow fields: nullable text.
pub fn meta_fields() -> Vec<Field> {
    META_COLUMNS.iter().map(|name| Field::new(*name, DataType::Utf8, true)).collect()
}

/// `schema` with the meta columns in front.
pub fn with_meta_columns(schema: &Schema) -> Schema {
    let own = schema.fields().iter().filter(|field| !is_meta_column(field.name())).map(|field| field.as_ref().clone());
    Schema::new(meta_fields().into_iter().chain(own).collect::<Vec<_>>())
}

/// `schema` without the meta columns.
pub fn without_meta_columns(schema: &Schema) -> Schema {
    let own = schema.fields().iter().filter(|field| !is_meta_column(field.name())).cloned();
    Schema::new(own.collect::<Vec<_>>())
}

/// The Arrow schema of an Avro record; `file` is for messages.
pub fn arrow_schema(file: &str, avro: &str) -> Result<Schema> {
    let found = hudi_core::schema::resolver::avro_json_to_arrow_schema(&inline_names(file, avro)?)
        .map_err(|e| Error::corrupt(file, e))?;
    // Field metadata of the conversion (Avro names, docs) would make equal schemas compare as different.
    Ok(Schema::new(found.fields().iter().map(|field| plain_field(field)).collect::<Vec<_>>()))
}

/// The Avro record of an Arrow schema, for table `table`.
pub fn avro_schema(table: &str, schema: &Schema) -> Result<String> {
    let table = avro_name(table);
    let namespace = format!("hoodie.{table}");
    let name = format!("{table}_record");
    let path = format!("{namespace}.{name}");
    let fields = schema.fields().iter().map(|field| avro_field(&path, field)).collect::<Result<Vec<_>>>()?;
    Ok(json!({"type": "record", "name": name, "namespace": namespace, "fields": fields}).to_string())
}

fn plain_field(field: &Field) -> Field {
    Field::new(field.name(), plain_type(field.data_type()), field.is_nullable())
}

fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::List(item) => {
            DataType::List(Field::new("element", plain_type(item.data_type()), item.is_nullable()).into())
        }
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|field| plain_field(field)).collect()),
        DataType::Map(entries, sorted) => match entries.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => {
                let key = Field::new("key", plain_type(pair[0].data_type()), false);
                let value = Field::new("value", plain_type(pair[1].data_type()), pair[1].is_nullable());
                let pair = DataType::Struct(vec![key, value].into());
                DataType::Map(Field::new("key_value", pair, false).into(), *sorted)
            }
            other => other.clone(),
        },
        // One zone name for one meaning: Avro says only "UTC-adjusted".
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some("UTC".into())),
        other => other.clone(),
    }
}

fn avro_field(path: &str, field: &Field) -> Result<Value> {
    check_name(field.name())?;
    let inner = avro_type(&format!("{path}.{}", field.name()), field)?;
    Ok(match field.is_nullable() {
        true => json!({"name": field.name(), "type": ["null", inner], "default": null}),
        false => json!({"name": field.name(), "type": inner}),
    })
}

fn avro_type(path: &str, field: &Field) -> Result<Value> {
    let (namespace, name) = path.rsplit_once('.').unwrap_or(("hoodie", path));
    Ok(match field.data_type() {
        DataType::Boolean => json!("boolean"),
        DataType::Int8 | DataType::Int16 | DataType::Int32 => json!("int"),
        DataType::Int64 => json!("long"),
        DataType::Float32 => json!("float"),
        DataType::Float64 => json!("double"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => json!("string"),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => json!("bytes"),
        DataType::Date32 => json!({"type": "int", "logicalType": "date"}),
        DataType::Timestamp(unit, zone) => {
            let unit = match unit {
                TimeUnit::Millisecond => "millis",
                TimeUnit::Microsecond => "micros",
                other => {
                    return Err(no_mapping(field, &format!("a time unit of {other:?}: cast it to microseconds")));
                }
            };
            let local = if zone.is_none() { "local-" } else { "" };
            json!({"type": "long", "logicalType": format!("{local}timestamp-{unit}")})
        }
        DataType::Decimal128(precision, scale) => json!({
            "type": "fixed", "name": "fixed", "namespace": path, "size": decimal_bytes(*precision),
            "logicalType": "decimal", "precision": precision, "scale": scale,
        }),
        DataType::List(item) | DataType::LargeList(item) => {
            json!({"type": "array", "items": avro_item(&format!("{path}.element"), item)?})
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) if pair.len() == 2 && is_text(pair[0].data_type()) => {
                json!({"type": "map", "values": avro_item(&format!("{path}.value"), &pair[1])?})
            }
            _ => return Err(no_mapping(field, "keys that are no text: a Hudi map has text keys")),
        },
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|child| avro_field(path, child)).collect::<Result<Vec<_>>>()?;
            json!({"type": "record", "name": name, "namespace": namespace, "fields": fields})
        }
        _ => return Err(no_mapping(field, "no place in a Hudi table: cast it in the SQL")),
    })
}

fn avro_item(path: &str, field: &Field) -> Result<Value> {
    let inner = avro_type(path, field)?;
    Ok(if field.is_nullable() { json!(["null", inner]) } else { inner })
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn no_mapping(field: &Field, what: &str) -> Error {
    Error::unsupported(format!("column `{}` of type {} has {what}", field.name(), field.data_type()))
}

/// Refuses a column name that Avro, and so a Hudi commit, cannot hold.
pub fn check_name(name: &str) -> Result<()> {
    let mut chars = name.chars();
    let first = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if first && chars.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "column name `{name}` cannot be stored: a name starts with a letter or `_` and goes on with letters, digits \
         and `_`; rename it with AS"
    )))
}

fn avro_name(table: &str) -> String {
    let clean: String = table.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    match clean.chars().next() {
        Some(c) if c.is_ascii_digit() => format!("_{clean}"),
        Some(_) => clean,
        None => "table".to_string(),
    }
}

/// Bytes of the smallest two's-complement number that holds `precision` decimal digits.
pub(crate) fn decimal_bytes(precision: u8) -> u32 {
    let bits = (f64::from(precision) * std::f64::consts::LOG2_10).ceil() as u32 + 1;
    bits.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_types() -> Schema {
        let item = Field::new("element", DataType::Int32, true);
        let pair = DataType::Struct(
            vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Float64, true)].into(),
        );
        let nested = vec![Field::new("a", DataType::Utf8, true), Field::new("b", DataType::Decimal128(5, 2), true)];
        Schema::new(vec![
            Field::new("t_bool", DataType::Boolean, true),
            Field::new("t_int", DataType::Int32, true),
            Field::new("t_long", DataType::Int64, false),
            Field::new("t_float", DataType::Float32, true),
            Field::new("t_double", DataType::Float64, true),
            Field::new("t_string", DataType::Utf8, true),
            Field::new("t_bytes", DataType::Binary, true),
            Field::new("t_date", DataType::Date32, true),
            Field::new("t_ts", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
            Field::new("t_ntz", DataType::Timestamp(TimeUnit::Microsecond, None), true),
            Field::new("t_dec", DataType::Decimal128(10, 2), true),
            Field::new("t_list", DataType::List(item.into()), true),
            Field::new("t_map", DataType::Map(Field::new("key_value", pair, false).into(), false), true),
            Field::new("t_struct", DataType::Struct(nested.into()), true),
        ])
    }

    #[test]
    fn every_storable_type_round_trips_through_avro() {
        let schema = all_types();
        let avro = avro_schema("t", &schema).unwrap();
        assert_eq!(arrow_schema("f", &avro).unwrap(), schema);
    }

    #[test]
    fn decimal_sizes_are_those_of_spark() {
        let sizes: Vec<u32> = [1, 2, 3, 5, 9, 10, 18, 19, 38].into_iter().map(decimal_bytes).collect();
        assert_eq!(sizes, [1, 1, 2, 3, 4, 5, 8, 9, 16]);
    }

    #[test]
    fn a_name_avro_cannot_hold_is_refused_with_a_remedy() {
        let schema = Schema::new(vec![Field::new("count(*)", DataType::Int64, true)]);
        let refused = avro_schema("t", &schema).unwrap_err().to_string();
        assert!(refused.contains("count(*)") && refused.contains("AS"), "{refused}");
    }

    #[test]
    fn a_type_without_a_place_is_refused_by_column() {
        let schema = Schema::new(vec![Field::new("u", DataType::UInt64, true)]);
        assert!(avro_schema("t", &schema).unwrap_err().to_string().contains("column `u`"));
    }

    #[test]
    fn a_table_name_that_avro_cannot_hold_is_masked_in_the_record_name() {
        assert_eq!(avro_name("a-b.c"), "a_b_c");
        assert_eq!(avro_name("1x"), "_1x");
    }
}
