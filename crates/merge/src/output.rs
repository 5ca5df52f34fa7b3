// SPDX-License-Identifier: Apache-2.0
//! The schema of a batch: names and types that a Hudi table can hold, the same ones in every batch.
//!
//! The engine has types for its own comfort (string views, dictionaries, unsigned integers); each becomes the type
//! that is stored. Every column is nullable, keys too: whether a key is null is checked row by row where it is
//! written, and a nullability that the engine infers would flip from query to query.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use datafusion::common::Column;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, cast};
use tributary_api::merge::Error;
use tributary_types::IS_DELETED;

use crate::error::{from_planning, sql_error};

const META_PREFIX: &str = "_hoodie_";
const MAX_PRECISION: u8 = 38;

/// Adds the projection that turns the result of `plan` into what is stored.
pub(crate) fn normalise(plan: LogicalPlan) -> Result<(LogicalPlan, SchemaRef), Error> {
    let names: Vec<String> = plan.schema().fields().iter().map(|field| field.name().clone()).collect();
    check_names(&names)?;
    let mut fields = Vec::with_capacity(names.len());
    let mut exprs = Vec::with_capacity(names.len());
    for (qualifier, field) in plan.schema().iter() {
        let stored = stored_type(field.data_type()).map_err(|what| {
            let message = format!("column `{}` of type {} cannot be stored: {what}", field.name(), field.data_type());
            sql_error(None, message)
        })?;
        let column = Expr::Column(Column::from((qualifier, field)));
        let value = if &stored == field.data_type() { column } else { cast(column, stored.clone()) };
        exprs.push(value.alias(field.name()));
        fields.push(Field::new(field.name(), stored, true));
    }
    let projected = LogicalPlanBuilder::from(plan)
        .project(exprs)
        .and_then(LogicalPlanBuilder::build)
        .map_err(|error| from_planning(&error))?;
    Ok((projected, Arc::new(Schema::new(fields))))
}

/// Adds the projection that gives the result of a query to its puller: columns may have any name, each once, and what
/// cannot be stored keeps its type.
pub(crate) fn show(plan: LogicalPlan) -> Result<(LogicalPlan, SchemaRef), Error> {
    let mut seen = HashSet::new();
    let mut fields = Vec::new();
    let mut exprs = Vec::new();
    for (qualifier, field) in plan.schema().iter() {
        if !seen.insert(field.name().clone()) {
            let message =
                format!("the result has two columns `{0}`: alias one of them (`AS another_name`)", field.name());
            return Err(sql_error(None, message));
        }
        let shown = stored_type(field.data_type()).unwrap_or_else(|_| field.data_type().clone());
        let column = Expr::Column(Column::from((qualifier, field)));
        let value = if &shown == field.data_type() { column } else { cast(column, shown.clone()) };
        exprs.push(value.alias(field.name()));
        fields.push(Field::new(field.name(), shown, true));
    }
    let projected = LogicalPlanBuilder::from(plan)
        .project(exprs)
        .and_then(LogicalPlanBuilder::build)
        .map_err(|error| from_planning(&error))?;
    Ok((projected, Arc::new(Schema::new(fields))))
}

/// Compares the planned schema with the one the rows are announced with. `None`: they are the same.
pub(crate) fn difference(planned: &Schema, announced: &Schema) -> Option<String> {
    let shown = |schema: &Schema| {
        let columns: Vec<String> =
            schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
        columns.join(", ")
    };
    for (position, field) in planned.fields().iter().enumerate() {
        let Some(other) = announced.fields().get(position) else {
            break;
        };
        if field.name() != other.name() || field.data_type() != other.data_type() {
            return Some(format!(
                "column {position} is `{} {}` in the query's result and `{} {}` where it goes",
                field.name(),
                field.data_type(),
                other.name(),
                other.data_type()
            ));
        }
        if field.is_nullable() != other.is_nullable() {
            return Some(format!("column `{}` is not nullable on one side", field.name()));
        }
    }
    (planned.fields().len() != announced.fields().len())
        .then(|| format!("the query's result has ({}), where it goes ({})", shown(planned), shown(announced)))
}

fn check_names(names: &[String]) -> Result<(), Error> {
    if names.is_empty() {
        return Err(sql_error(None, "the query's result has no column"));
    }
    let mut seen: HashMap<String, &String> = HashMap::new();
    for name in names {
        check_name(name)?;
        // Spark reads names without regard to case, so two such columns could not be told apart there.
        if let Some(other) = seen.insert(name.to_lowercase(), name) {
            let message = if other == name {
                format!("the query's result has two columns `{name}`: alias one of them (`AS another_name`)")
            } else {
                format!("columns `{other}` and `{name}` of the result differ by case only: alias one of them")
            };
            return Err(sql_error(None, message));
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), Error> {
    if !is_avro_name(name) {
        let message = format!(
            "column `{name}` of the query's result has a name that a Hudi table cannot hold: alias it (`AS name`) with \
             letters, digits and `_`, not beginning with a digit"
        );
        return Err(sql_error(None, message));
    }
    if name.starts_with(META_PREFIX) && name != IS_DELETED {
        let message = format!(
            "column `{name}` of the query's result has a reserved name: meta columns are written anew, so leave it out \
             or alias it (`{name} AS source{name}`)"
        );
        return Err(sql_error(None, message));
    }
    Ok(())
}

fn is_avro_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The type that `data_type` is stored as, or what to do instead.
fn stored_type(data_type: &DataType) -> Result<DataType, String> {
    let stored = match data_type {
        DataType::Boolean
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Date32
        | DataType::Utf8
        | DataType::Binary => data_type.clone(),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 | DataType::UInt16 => DataType::Int32,
        // What counts rows (`row_number`) is unsigned and never that large; a value that is fails the batch.
        DataType::UInt32 | DataType::UInt64 => DataType::Int64,
        DataType::Float16 => DataType::Float32,
        DataType::Date64 => DataType::Date32,
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale) => stored_decimal(*precision, *scale)?,
        DataType::Decimal256(precision, scale) => stored_decimal((*precision).min(MAX_PRECISION), *scale)?,
        DataType::Dictionary(_, values) => stored_type(values)?,
        DataType::RunEndEncoded(_, values) => stored_type(values.data_type())?,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => DataType::List(stored_member("element", item, true)?),
        DataType::Struct(fields) => DataType::Struct(stored_fields(fields)?),
        DataType::Map(entries, _) => stored_map(entries.data_type())?,
        DataType::Null => return Err("it has no type; give it one: `CAST(NULL AS STRING)`".to_string()),
        DataType::Time32(_) | DataType::Time64(_) => return Err("cast it to STRING or BIGINT".to_string()),
        DataType::Duration(_) | DataType::Interval(_) => {
            return Err("it is a span of time; cast it to BIGINT or STRING".to_string());
        }
        DataType::Union(_, _) => return Err("it is a union; select one of its members".to_string()),
    };
    Ok(stored)
}

fn stored_decimal(precision: u8, scale: i8) -> Result<DataType, String> {
    if scale < 0 || scale.unsigned_abs() > precision {
        return Err(format!("its scale {scale} does not fit precision {precision}; cast it to another DECIMAL"));
    }
    Ok(DataType::Decimal128(precision, scale))
}

/// A member whose name no query sees. Engines call it differently, so it gets the name that Parquet prescribes.
fn stored_member(name: &str, member: &FieldRef, nullable: bool) -> Result<FieldRef, String> {
    Ok(Arc::new(Field::new(name, stored_type(member.data_type())?, nullable)))
}

fn stored_fields(fields: &Fields) -> Result<Fields, String> {
    let mut stored = Vec::with_capacity(fields.len());
    for field in fields {
        if !is_avro_name(field.name()) {
            return Err(format!("its field `{}` has a name that a Hudi table cannot hold; rename it", field.name()));
        }
        let inner =
            stored_member(field.name(), field, true).map_err(|what| format!("field `{}`: {what}", field.name()))?;
        stored.push(inner);
    }
    Ok(Fields::from(stored))
}

fn stored_map(entries: &DataType) -> Result<DataType, String> {
    let DataType::Struct(pair) = entries else {
        return Err("it is a map without keys and values".to_string());
    };
    let [key, value] = pair.iter().as_slice() else {
        return Err("it is a map without keys and values".to_string());
    };
    if stored_type(key.data_type())? != DataType::Utf8 {
        return Err("a map can only have STRING keys; cast it".to_string());
    }
    let pair = Fields::from(vec![stored_member("key", key, false)?, stored_member("value", value, true)?]);
    Ok(DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(pair), false)), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_becomes_one_that_is_stored() {
        for (from, to) in [
            (DataType::Utf8View, DataType::Utf8),
            (DataType::LargeUtf8, DataType::Utf8),
            (DataType::BinaryView, DataType::Binary),
            (DataType::FixedSizeBinary(4), DataType::Binary),
            (DataType::Int8, DataType::Int32),
            (DataType::UInt16, DataType::Int32),
            (DataType::UInt32, DataType::Int64),
            (DataType::UInt64, DataType::Int64),
            (DataType::Date64, DataType::Date32),
            (DataType::Decimal256(50, 2), DataType::Decimal128(38, 2)),
            (DataType::Decimal64(9, 2), DataType::Decimal128(9, 2)),
            (
                DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
                DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            ),
            (DataType::Timestamp(TimeUnit::Second, None), DataType::Timestamp(TimeUnit::Microsecond, None)),
            (DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), DataType::Utf8),
        ] {
            assert_eq!(stored_type(&from), Ok(to), "{from}");
        }
    }

    #[test]
    fn nested_types_are_stored_with_nullable_members() {
        let inner =
            Field::new("item", DataType::Struct(vec![Field::new("a", DataType::Utf8View, false)].into()), false);
        let expected =
            Field::new("element", DataType::Struct(vec![Field::new("a", DataType::Utf8, true)].into()), true);
        assert_eq!(stored_type(&DataType::LargeList(Arc::new(inner))), Ok(DataType::List(Arc::new(expected))));
    }

    #[test]
    fn types_that_no_table_holds_say_what_to_do() {
        assert!(stored_type(&DataType::Null).unwrap_err().contains("CAST(NULL AS STRING)"));
        assert!(stored_type(&DataType::Duration(TimeUnit::Second)).unwrap_err().contains("BIGINT"));
        assert!(stored_type(&DataType::Time64(TimeUnit::Microsecond)).unwrap_err().contains("cast"));
        let named = DataType::Struct(vec![Field::new("a-b", DataType::Utf8, true)].into());
        assert!(stored_type(&named).unwrap_err().contains("`a-b`"));
    }

    #[test]
    fn names_are_checked_and_the_delete_marker_passes() {
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            check_names(&names).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["id", "_x", IS_DELETED]), Ok(()));
        assert!(check(&["id", "id"]).unwrap_err().contains("two columns `id`"));
        assert!(check(&["id", "ID"]).unwrap_err().contains("differ by case only"));
        assert!(check(&["count(*)"]).unwrap_err().contains("alias it"));
        assert!(check(&["1a"]).unwrap_err().contains("alias it"));
        assert!(check(&["_hoodie_record_key"]).unwrap_err().contains("_hoodie_record_key AS source_hoodie_record_key"));
        assert!(check(&[]).unwrap_err().contains("no column"));
    }

    #[test]
    fn a_schema_that_differs_from_the_announced_one_is_described() {
        let schema = |data_type: DataType, nullable: bool| Schema::new(vec![Field::new("a", data_type, nullable)]);
        assert_eq!(difference(&schema(DataType::Int32, true), &schema(DataType::Int32, true)), None);
        let types = difference(&schema(DataType::Int32, true), &schema(DataType::Int64, true)).unwrap();
        assert!(types.contains("`a Int32`") && types.contains("`a Int64`"), "{types}");
        assert!(difference(&schema(DataType::Int32, true), &schema(DataType::Int32, false)).is_some());
        assert!(difference(&schema(DataType::Int32, true), &Schema::empty()).unwrap().contains("(a Int32)"));
    }
}
