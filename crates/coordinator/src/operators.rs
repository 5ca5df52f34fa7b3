// SPDX-License-Identifier: Apache-2.0
//! Merge operators of the target against its schema, and against those that its values were made by.

use std::collections::BTreeMap;

use arrow::datatypes::Schema;
use tributary_api::coordinator::Error;
use tributary_api::operator_problem;
use tributary_types::pipeline::{Operation, Operator, Pipeline, Target};
use tributary_types::{Checkpoint, InstantTime, nearest};

/// How many changed columns a refusal names.
const CHANGES_NAMED: usize = 5;

/// What is wrong with the operators for a table of this schema, each as a sentence that names the column.
pub(crate) fn problems(target: &Target, schema: &Schema) -> Vec<String> {
    let Some(merge) = target.merge.as_ref().filter(|_| target.operation == Operation::Upsert) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    for column in merge.columns.keys().filter(|column| schema.column_with_name(column).is_none()) {
        let names = || schema.fields().iter().map(|field| field.name().as_str());
        let near = nearest(column, names()).map(|near| format!("; did you mean `{near}`?"));
        let hint = near.unwrap_or_else(|| ".".to_string());
        problems.push(format!(
            "`target.merge.columns` names column `{column}`, which the target does not have{hint} It has {}",
            names().collect::<Vec<_>>().join(", ")
        ));
    }
    for field in schema.fields() {
        let operator = operator_of(target, field.name());
        if let Some(problem) = operator_problem(&operator, field.data_type()) {
            let remedy = match merge.columns.contains_key(field.name()) {
                true => String::new(),
                false => format!(
                    "; it is the default: give the column one of its own in `target.merge.columns.{}`",
                    field.name()
                ),
            };
            problems.push(format!("column `{}`: {problem}{remedy}", field.name()));
        }
    }
    problems
}

/// Refuses other operators of columns that have data than those of the last commit, unless the pipeline accepts it.
/// `stored` is the target's schema before the batch. Operations that combine nothing have none to compare.
pub(crate) fn check_changes(
    pipeline: &Pipeline,
    stored: Option<&Schema>,
    newest: Option<(&InstantTime, &Checkpoint)>,
) -> Result<(), Error> {
    let target = &pipeline.target;
    let (Some(schema), Some((instant, checkpoint))) = (stored, newest) else { return Ok(()) };
    if target.operation != Operation::Upsert || pipeline.accept_merge_change {
        return Ok(());
    }
    let mut changes = Vec::new();
    for field in schema.fields() {
        let before = checkpoint.operators.get(field.name()).map_or(Operator::Last.name(), String::as_str);
        let now = operator_of(target, field.name()).to_string();
        if before != now {
            changes.push(format!("column `{}` by `{before}`, and `{now}` is asked for", field.name()));
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    let more = changes.len().saturating_sub(CHANGES_NAMED);
    changes.truncate(CHANGES_NAMED);
    if more > 0 {
        changes.push(format!("and {more} more"));
    }
    Err(Error::Operators { instant: instant.clone(), changes })
}

/// The operators that a commit carries: those of the table's columns after it, without `last`. A batch that combined
/// nothing passes on what was there `before`.
pub(crate) fn kept(target: &Target, schema: &Schema, before: BTreeMap<String, String>) -> BTreeMap<String, String> {
    if target.operation != Operation::Upsert {
        return before;
    }
    let operators = schema.fields().iter().map(|field| (field.name().clone(), operator_of(target, field.name())));
    operators.filter(|(_, op)| *op != Operator::Last).map(|(name, op)| (name, op.to_string())).collect()
}

fn operator_of(target: &Target, column: &str) -> Operator {
    let fixed: [&[String]; 3] = [&target.record_key, &target.partition_by, &target.ordering];
    target.merge.as_ref().map(|merge| merge.of(column, fixed).clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};
    use serde_json::{Value, json};

    use super::*;

    fn schema() -> Schema {
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        Schema::new(vec![field("id", DataType::Utf8), field("email", DataType::Utf8), field("n", DataType::Int64)])
    }

    fn pipeline(merge: Value) -> Pipeline {
        serde_json::from_value(json!({
            "name": "p",
            "target": {"path": "/t", "table_name": "t", "record_key": ["id"], "merge": merge},
        }))
        .unwrap()
    }

    fn target(merge: Value) -> Target {
        pipeline(merge).target
    }

    #[test]
    fn an_unknown_column_is_refused_with_the_nearest_one() {
        let problems = problems(&target(json!({"columns": {"emial": "last_non_null"}})), &schema());
        assert!(problems.len() == 1 && problems[0].contains("did you mean `email`?"), "{problems:?}");
    }

    #[test]
    fn an_operator_that_does_not_work_on_its_column_is_refused_and_the_key_takes_none() {
        let problems = problems(&target(json!({"default": "sum"})), &schema());
        assert!(problems.len() == 1, "{problems:?}");
        for part in ["column `email`", "`sum` does not work on Utf8", "`target.merge.columns.email`"] {
            assert!(problems[0].contains(part), "{part} missing in {problems:?}");
        }
        assert_eq!(super::problems(&target(json!({"columns": {"n": "sum"}})), &schema()), Vec::<String>::new());
    }

    #[test]
    fn a_commit_carries_the_operators_that_are_not_the_default() {
        let summed = target(json!({"default": "last_non_null", "columns": {"n": "sum"}}));
        let kept_by = |target: &Target, before| kept(target, &schema(), before);
        let expected: BTreeMap<String, String> =
            [("email", "last_non_null"), ("n", "sum")].map(|(c, o)| (c.to_string(), o.to_string())).into();
        assert_eq!(kept_by(&summed, BTreeMap::new()), expected);
        assert_eq!(kept_by(&target(json!({})), expected.clone()), BTreeMap::new());
        let delete = Target { operation: Operation::Delete, ..target(json!({})) };
        assert_eq!(kept_by(&delete, expected.clone()), expected);
    }

    #[test]
    fn an_operator_that_changes_is_refused_until_it_is_accepted() {
        let summed = pipeline(json!({"columns": {"n": "sum"}}));
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.operators = kept(&summed.target, &schema(), BTreeMap::new());
        let instant: InstantTime = "20250606182826197".parse().unwrap();
        let newest = Some((&instant, &checkpoint));
        check_changes(&summed, Some(&schema()), newest).unwrap();
        check_changes(&summed, None, newest).unwrap();
        let mut plain = summed.clone();
        plain.target.merge = None;
        let refused = check_changes(&plain, Some(&schema()), newest).unwrap_err().to_string();
        for part in ["20250606182826197", "column `n` by `sum`", "`last`", "accept_merge_change = true"] {
            assert!(refused.contains(part), "{part} missing in {refused}");
        }
        plain.accept_merge_change = true;
        check_changes(&plain, Some(&schema()), newest).unwrap();
        let delete = Target { operation: Operation::Delete, ..plain.target.clone() };
        check_changes(&Pipeline { target: delete, accept_merge_change: false, ..plain }, Some(&schema()), newest)
            .unwrap();
        // A column without data may have any.
        let more = pipeline(json!({"columns": {"n": "sum", "new": "max"}}));
        check_changes(&more, Some(&schema()), newest).unwrap();
    }
}
