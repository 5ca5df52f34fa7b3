// SPDX-License-Identifier: Apache-2.0
//! Subqueries whose result the engine would get wrong.
//!
//! When it makes a join of a subquery that refers to the query around it, the engine keeps the columns that are compared
//! across by their names alone. Two columns of one name, of two relations in the subquery, become one, and rows that have
//! a partner seem to have none. That is refused; another name for one of them is all that is needed.

use std::collections::BTreeMap;

use datafusion::common::Column;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};
use tributary_api::merge::Error;

use crate::error::{internal, sql_error};

/// Refuses a plan with such a subquery.
pub(crate) fn check(plan: &LogicalPlan) -> Result<(), Error> {
    let mut clash = None;
    let walked = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                let subquery = match expr {
                    Expr::Exists(exists) => &exists.subquery,
                    Expr::InSubquery(list) => &list.subquery,
                    Expr::ScalarSubquery(subquery) => subquery,
                    _ => return Ok(TreeNodeRecursion::Continue),
                };
                clash = clash.take().or(first_clash(&subquery.subquery)?);
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    walked.map_err(|error| internal(format!("the plan could not be checked for subqueries: {error}")))?;
    match clash {
        None => Ok(()),
        Some((one, other)) => Err(sql_error(
            None,
            format!(
                "a subquery compares `{one}` and `{other}`, two columns of one name, with the query around it, and the \
                 engine would take one for the other: give one of them another name in the subquery's FROM, as in \
                 `FROM (SELECT {one} AS other_name, … ) s`"
            ),
        )),
    }
}

/// Two columns of one name that conditions of a subquery compare with the query around it.
fn first_clash(subquery: &LogicalPlan) -> Result<Option<(Column, Column)>, DataFusionError> {
    let mut compared: BTreeMap<String, Column> = BTreeMap::new();
    let mut clash = None;
    subquery.apply(|node| {
        node.apply_expressions(|expr| {
            for condition in split_conjunction(expr).into_iter().filter(|condition| condition.contains_outer()) {
                condition.apply(|part| {
                    if let Expr::Column(column) = part {
                        let known = compared.entry(column.name.clone()).or_insert_with(|| column.clone());
                        if known.relation != column.relation && clash.is_none() {
                            clash = Some((known.clone(), column.clone()));
                        }
                    }
                    Ok(TreeNodeRecursion::Continue)
                })?;
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(clash)
}
