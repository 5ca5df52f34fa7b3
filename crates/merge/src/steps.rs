// SPDX-License-Identifier: Apache-2.0
//! Steps after the SQL that names the sources: each works on the result of the one before.

use std::collections::{HashMap, HashSet};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Column;
use datafusion::functions::core::expr_fn::get_field;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, when};
use tributary_api::merge::Error;

use crate::error::{from_planning, sql_error};

/// How deep structs may nest.
const DEEPEST: usize = 64;

/// Says which step an error is about; the first one is number 1.
pub(crate) fn in_step(error: Error, number: usize) -> Error {
    match error {
        Error::Sql { at, message } => Error::Sql { at: format!("{at} of step {number}"), message },
        other => other,
    }
}

/// Refuses a result that a further step could not name the columns of.
pub(crate) fn check_distinct(plan: &LogicalPlan) -> Result<(), Error> {
    let mut seen: HashSet<&str> = HashSet::new();
    for field in plan.schema().fields() {
        if !seen.insert(field.name()) {
            let name = field.name();
            let message = format!("the result before has two columns `{name}`: alias one of them (`AS another_name`)");
            return Err(sql_error(None, message));
        }
    }
    Ok(())
}

/// Makes a column of every field of a struct, at every depth, named by the path with `separator` between its parts. Where a
/// struct is null, its fields are. Arrays and maps stay as they are.
pub(crate) fn flatten(plan: LogicalPlan, separator: &str) -> Result<LogicalPlan, Error> {
    check_distinct(&plan)?;
    let mut paths: Vec<Vec<String>> = plan.schema().fields().iter().map(|field| vec![field.name().clone()]).collect();
    let mut plan = plan;
    // One level each round: what is inside a struct is a column then, so that no expression grows with the depth.
    for _ in 0..DEEPEST {
        if !plan.schema().fields().iter().any(|field| matches!(field.data_type(), DataType::Struct(_))) {
            return named(plan, &paths, separator);
        }
        (plan, paths) = open_structs(plan, &paths)?;
    }
    Err(sql_error(None, format!("structs nest deeper than the {DEEPEST} levels that can be flattened")))
}

/// Opens the structs that are columns. Columns are called by their position until all are there.
fn open_structs(plan: LogicalPlan, paths: &[Vec<String>]) -> Result<(LogicalPlan, Vec<Vec<String>>), Error> {
    let mut exprs: Vec<Expr> = Vec::new();
    let mut opened: Vec<Vec<String>> = Vec::new();
    let mut add = |value: Expr, path: Vec<String>| {
        exprs.push(value.alias(format!("column {}", opened.len())));
        opened.push(path);
    };
    for ((qualifier, field), path) in plan.schema().iter().zip(paths) {
        let column = Expr::Column(Column::from((qualifier, field)));
        let DataType::Struct(members) = field.data_type() else {
            add(column, path.clone());
            continue;
        };
        if members.is_empty() {
            return Err(sql_error(
                None,
                format!("struct `{}` has no field, so nothing of it can stay", path.join(".")),
            ));
        }
        for member in members {
            let value = get_field(column.clone(), member.name().as_str());
            // What lies in a field below a null need not be null.
            let value = match field.is_nullable() {
                true => when(column.clone().is_not_null(), value).end().map_err(|error| from_planning(&error))?,
                false => value,
            };
            add(value, path.iter().cloned().chain([member.name().clone()]).collect());
        }
    }
    let plan = LogicalPlanBuilder::from(plan).project(exprs).and_then(LogicalPlanBuilder::build);
    Ok((plan.map_err(|error| from_planning(&error))?, opened))
}

/// Names the columns by their paths.
fn named(plan: LogicalPlan, paths: &[Vec<String>], separator: &str) -> Result<LogicalPlan, Error> {
    let mut known: HashMap<String, &Vec<String>> = HashMap::new();
    let mut exprs = Vec::with_capacity(paths.len());
    for ((qualifier, field), path) in plan.schema().iter().zip(paths) {
        let name = path.join(separator);
        if let Some(other) = known.insert(name.clone(), path) {
            let message = format!(
                "flattened with `{separator}`, both `{}` and `{}` would be called `{name}`: choose another \
                 `flatten.separator`, or rename one of them in the step before",
                other.join("."),
                path.join(".")
            );
            return Err(sql_error(None, message));
        }
        exprs.push(Expr::Column(Column::from((qualifier, field))).alias(name));
    }
    let named = LogicalPlanBuilder::from(plan).project(exprs).and_then(LogicalPlanBuilder::build);
    named.map_err(|error| from_planning(&error))
}
