// SPDX-License-Identifier: Apache-2.0
//! How the result of a query fits the target's schema.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use tributary_types::pipeline::{Operation, Target};
use tributary_types::{IS_DELETED, nearest};

/// The schema that the table has after the batch: its own columns in their order, then new ones. The problems, each
/// as a sentence, where the result does not fit.
pub(crate) fn target_schema(
    target: &Target,
    stored: Option<&Schema>,
    result: &Schema,
) -> Result<SchemaRef, Vec<String>> {
    let mut problems = Vec::new();
    let operation = target.operation;
    // A delete asks for no ordering, and one of whole partitions for no key.
    let needed = [
        ("record_key", &target.record_key, operation != Operation::DeletePartition),
        ("partition_by", &target.partition_by, true),
        ("ordering", &target.ordering, !operation.only_deletes()),
    ];
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for (role, columns, _) in needed.into_iter().filter(|(_, _, is_needed)| *is_needed) {
        for column in columns.iter().filter(|column| result.column_with_name(column).is_none()) {
            // One that is told as a key is not told again as a column of the table.
            told.insert(column.as_str());
            problems.push(format!(
                "`target.{role}` names column `{column}`, which the query's result does not have: {}{}",
                names(result),
                meant(column, result)
            ));
        }
    }
    if let Some((_, flag)) =
        result.column_with_name(IS_DELETED).filter(|(_, flag)| flag.data_type() != &DataType::Boolean)
    {
        problems.push(format!(
            "column `{IS_DELETED}` marks rows that delete their record, but it is {}: cast it to BOOLEAN",
            flag.data_type()
        ));
    }
    let merged = match stored {
        Some(stored) if operation.only_deletes() => keep(stored, result, &mut problems),
        None if operation.only_deletes() => {
            problems.push(format!("`{}` deletes from a table that has no rows yet", operation.as_str().to_lowercase()));
            Vec::new()
        }
        Some(stored) => merge(stored, result, target.merge.is_some(), &told, &mut problems),
        None => result.fields().iter().map(|field| field.as_ref().clone()).collect(),
    };
    if problems.is_empty() { Ok(Arc::new(Schema::new(merged))) } else { Err(problems) }
}

/// The table's own columns, of which the result may have any, in a type that fits.
fn keep(stored: &Schema, result: &Schema, problems: &mut Vec<String>) -> Vec<Field> {
    for field in stored.fields() {
        let Some((_, given)) = result.column_with_name(field.name()) else { continue };
        if common_type(field.data_type(), given.data_type()).as_ref() != Some(field.data_type()) {
            problems.push(misfit(field, given));
        }
    }
    stored.fields().iter().map(|field| field.as_ref().clone()).collect()
}

fn misfit(stored: &Field, given: &Field) -> String {
    format!(
        "column `{}` is {} in the target and {} in the query's result: cast it",
        stored.name(),
        stored.data_type(),
        given.data_type()
    )
}

/// With merge operators the result may lack columns: what is stored stays.
fn merge(
    stored: &Schema,
    result: &Schema,
    may_lack: bool,
    told: &BTreeSet<&str>,
    problems: &mut Vec<String>,
) -> Vec<Field> {
    let mut merged = Vec::new();
    for field in stored.fields() {
        let Some((_, new)) = result.column_with_name(field.name()) else {
            if told.contains(field.name().as_str()) {
                continue;
            }
            if may_lack {
                merged.push(Field::new(field.name(), field.data_type().clone(), true));
                continue;
            }
            problems.push(format!(
                "the query's result lacks column `{}` of the target; give every column, or set merge operators \
                 (`[target.merge]`), with which a column that is not given keeps its stored value: {}{}",
                field.name(),
                names(result),
                meant(field.name(), result)
            ));
            continue;
        };
        match common_type(field.data_type(), new.data_type()) {
            Some(data_type) => merged.push(Field::new(field.name(), data_type, true)),
            None => problems.push(misfit(field, new)),
        }
    }
    let added = result.fields().iter().filter(|field| stored.column_with_name(field.name()).is_none());
    merged.extend(added.map(|field| Field::new(field.name(), field.data_type().clone(), true)));
    merged
}

/// A column of `theirs` that `ours` does not have, or not in a type that holds its values.
pub(crate) fn column_lacking(theirs: &Schema, ours: &Schema) -> Option<String> {
    let lacks = |field: &&Arc<Field>| {
        let own = ours.column_with_name(field.name()).map(|(_, own)| own.data_type());
        own.is_none_or(|own| common_type(own, field.data_type()).as_ref() != Some(own))
    };
    theirs.fields().iter().find(lacks).map(|field| field.name().clone())
}

fn names(schema: &Schema) -> String {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    format!("it has {}", names.join(", "))
}

/// `; did you mean …?`, where the result has a column of nearly that name.
fn meant(column: &str, result: &Schema) -> String {
    let near = nearest(column, result.fields().iter().map(|field| field.name().as_str()));
    near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

/// The type that holds both, if Hudi can evolve a column to it: int to long, either to float and double, float to
/// double.
fn common_type(stored: &DataType, new: &DataType) -> Option<DataType> {
    if same_type(stored, new) {
        return Some(stored.clone());
    }
    let rank = |data_type: &DataType| match data_type {
        DataType::Int8 | DataType::Int16 | DataType::Int32 => Some(0),
        DataType::Int64 => Some(1),
        DataType::Float32 => Some(2),
        DataType::Float64 => Some(3),
        _ => None,
    };
    let (Some(old_rank), Some(new_rank)) = (rank(stored), rank(new)) else { return None };
    Some(if new_rank > old_rank { new.clone() } else { stored.clone() })
}

/// Whether two types store the same values: names of list and map entries and nullability inside do not matter.
fn same_type(left: &DataType, right: &DataType) -> bool {
    match (left, right) {
        (DataType::List(l), DataType::List(r)) => same_type(l.data_type(), r.data_type()),
        (DataType::Map(l, _), DataType::Map(r, _)) => match (l.data_type(), r.data_type()) {
            (DataType::Struct(l), DataType::Struct(r)) if l.len() == 2 && r.len() == 2 => {
                same_type(l[0].data_type(), r[0].data_type()) && same_type(l[1].data_type(), r[1].data_type())
            }
            _ => false,
        },
        (DataType::Struct(l), DataType::Struct(r)) => {
            l.len() == r.len()
                && l.iter().zip(r).all(|(l, r)| l.name() == r.name() && same_type(l.data_type(), r.data_type()))
        }
        (DataType::Timestamp(l, lz), DataType::Timestamp(r, rz)) => l == r && lz.is_some() == rz.is_some(),
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(fields: &[(&str, DataType)]) -> Schema {
        Schema::new(
            fields.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect::<Vec<_>>(),
        )
    }

    fn target() -> Target {
        serde_json::from_value(serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]})).unwrap()
    }

    #[test]
    fn new_columns_go_behind_the_stored_ones_whose_order_stays() {
        let stored = schema(&[("id", DataType::Utf8), ("v", DataType::Int64)]);
        let result = schema(&[("w", DataType::Utf8), ("v", DataType::Int64), ("id", DataType::Utf8)]);
        let merged = target_schema(&target(), Some(&stored), &result).unwrap();
        let names: Vec<&str> = merged.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["id", "v", "w"]);
    }

    #[test]
    fn numbers_widen_in_either_direction_and_other_types_do_not_mix() {
        let stored = schema(&[("id", DataType::Utf8), ("a", DataType::Int32), ("b", DataType::Float64)]);
        let result = schema(&[("id", DataType::Utf8), ("a", DataType::Int64), ("b", DataType::Int32)]);
        let merged = target_schema(&target(), Some(&stored), &result).unwrap();
        assert_eq!(merged.field(1).data_type(), &DataType::Int64);
        assert_eq!(merged.field(2).data_type(), &DataType::Float64);
        let wrong = schema(&[("id", DataType::Int64), ("a", DataType::Int32), ("b", DataType::Float64)]);
        let problems = target_schema(&target(), Some(&stored), &wrong).unwrap_err();
        assert!(problems[0].contains("column `id` is Utf8 in the target and Int64"), "{problems:?}");
    }

    #[test]
    fn rows_that_only_delete_need_the_key_and_leave_the_schema_as_it_is() {
        let stored = schema(&[("id", DataType::Utf8), ("v", DataType::Int64), ("ts", DataType::Int64)]);
        let mut target = Target { operation: Operation::Delete, ordering: vec!["ts".to_string()], ..target() };
        let kept = target_schema(&target, Some(&stored), &schema(&[("id", DataType::Utf8)])).unwrap();
        assert_eq!(kept.as_ref(), &stored);
        let problems = target_schema(&target, Some(&stored), &schema(&[("v", DataType::Utf8)])).unwrap_err().join("\n");
        assert!(problems.contains("`id`") && problems.contains("column `v` is Int64"), "{problems}");
        let problems = target_schema(&target, None, &schema(&[("id", DataType::Utf8)])).unwrap_err();
        assert!(problems[0].contains("no rows yet"), "{problems:?}");
        target.operation = Operation::DeletePartition;
        target.partition_by = vec!["v".to_string()];
        target_schema(&target, Some(&stored), &schema(&[("v", DataType::Int64)])).unwrap();
    }

    #[test]
    fn a_schema_that_grew_elsewhere_is_told_by_its_column() {
        let ours = schema(&[("id", DataType::Utf8), ("v", DataType::Int64), ("w", DataType::Utf8)]);
        assert_eq!(column_lacking(&schema(&[("v", DataType::Int32), ("id", DataType::Utf8)]), &ours), None);
        assert_eq!(column_lacking(&schema(&[("v", DataType::Float64)]), &ours).as_deref(), Some("v"));
        assert_eq!(column_lacking(&schema(&[("x", DataType::Utf8)]), &ours).as_deref(), Some("x"));
    }

    #[test]
    fn a_delete_flag_that_is_no_boolean_is_refused() {
        let result = schema(&[("id", DataType::Utf8), (IS_DELETED, DataType::Utf8)]);
        let problems = target_schema(&target(), None, &result).unwrap_err();
        assert!(problems[0].contains("cast it to BOOLEAN"), "{problems:?}");
    }

    #[test]
    fn with_merge_operators_a_column_may_be_missing_and_the_keys_may_not() {
        let stored = schema(&[("id", DataType::Utf8), ("v", DataType::Int64), ("w", DataType::Utf8)]);
        let target = Target { merge: Some(tributary_types::pipeline::MergeOperators::default()), ..target() };
        let result = schema(&[("x", DataType::Utf8), ("id", DataType::Utf8), ("w", DataType::Utf8)]);
        let merged = target_schema(&target, Some(&stored), &result).unwrap();
        let names: Vec<&str> = merged.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["id", "v", "w", "x"]);
        let problems = target_schema(&target, Some(&stored), &schema(&[("v", DataType::Int64)])).unwrap_err();
        assert!(problems[0].contains("`target.record_key` names column `id`"), "{problems:?}");
    }

    #[test]
    fn a_key_that_the_result_lacks_is_told_once_with_the_column_that_was_meant() {
        let stored = schema(&[("id", DataType::Utf8), ("value", DataType::Int64)]);
        let result = schema(&[("Idd", DataType::Utf8), ("valeu", DataType::Int64)]);
        for stored in [None, Some(&stored)] {
            let problems = target_schema(&target(), stored, &result).unwrap_err();
            assert!(
                problems[0]
                    .starts_with("`target.record_key` names column `id`, which the query's result does not have")
                    && problems[0].ends_with("did you mean `Idd`?"),
                "{problems:?}"
            );
            assert!(!problems[1..].iter().any(|it| it.contains("`id`")), "{problems:?}");
        }
        let problems = target_schema(&target(), Some(&stored), &result).unwrap_err();
        assert!(problems[1].contains("lacks column `value`") && problems[1].ends_with("did you mean `valeu`?"));
    }

    #[test]
    fn a_missing_target_column_and_a_missing_key_are_both_named() {
        let stored = schema(&[("id", DataType::Utf8), ("v", DataType::Int64)]);
        let problems =
            target_schema(&target(), Some(&stored), &schema(&[("x", DataType::Utf8)])).unwrap_err().join("\n");
        assert!(problems.contains("`target.record_key` names column `id`"), "{problems}");
        assert!(problems.contains("lacks column `v`"), "{problems}");
    }
}
