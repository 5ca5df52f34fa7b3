// SPDX-License-Identifier: Apache-2.0
//! What a merge script may say: queries over this batch's relations and views, with reviewed functions.
//!
//! Checked twice. First on the parsed text, where every refusal has its place; then on the finished plan, which may
//! only hold the kinds of nodes that read and compute. The planner in between knows nothing else to begin with.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, Query, Select, SetExpr, Spanned, TableFactor, Value, ValueWithSpan, Visit, Visitor,
};
use tributary_api::merge::Error;

use crate::error::{internal, sql_error};
use crate::functions::Functions;
use crate::placeholders::{Place, nearest, placeholder_of};
use crate::script::place_of;
use crate::settings::Settings;

/// Checks a parsed query. `tables` are the relations and views made so far.
pub(crate) fn check_query<'a>(
    query: &Query,
    tables: impl IntoIterator<Item = &'a String>,
    functions: &Functions,
) -> Result<(), Error> {
    let mut known: HashSet<String> = tables.into_iter().cloned().collect();
    let mut names = CommonTables(&mut known);
    let _ = query.visit(&mut names);
    let mut check = Check { known: &known, functions };
    match query.visit(&mut check) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(*error),
    }
}

/// Checks a finished plan: its kinds of nodes, and how many nodes and expressions it has.
pub(crate) fn check_plan(plan: &LogicalPlan, settings: &Settings) -> Result<(), Error> {
    let mut size: usize = 0;
    let mut foreign: Option<String> = None;
    let walked = plan.apply_with_subqueries(|node| {
        if !is_allowed(node) {
            foreign = Some(node.display().to_string());
            return Ok(TreeNodeRecursion::Stop);
        }
        size += 1;
        node.apply_expressions(|expr| {
            expr.apply(|_| {
                size += 1;
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        let next = if size > settings.max_plan_nodes { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue };
        Ok::<_, DataFusionError>(next)
    });
    walked.map_err(|error| internal(format!("the plan could not be checked: {error}")))?;
    if let Some(node) = foreign {
        return Err(sql_error(None, format!("`{node}` is not allowed: a merge only reads and computes")));
    }
    if size > settings.max_plan_nodes {
        return Err(Error::Limit {
            limit: "plan size",
            detail: format!(
                "the query has more than {} plan nodes and expressions, views counted where they are used; a view \
                 that is used often counts as often, so use it once, or split the pipeline in two",
                settings.max_plan_nodes
            ),
        });
    }
    Ok(())
}

fn is_allowed(node: &LogicalPlan) -> bool {
    matches!(
        node,
        LogicalPlan::Projection(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::Window(_)
            | LogicalPlan::Aggregate(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Join(_)
            | LogicalPlan::Repartition(_)
            | LogicalPlan::Union(_)
            | LogicalPlan::TableScan(_)
            | LogicalPlan::EmptyRelation(_)
            | LogicalPlan::Subquery(_)
            | LogicalPlan::SubqueryAlias(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::Values(_)
            | LogicalPlan::Distinct(_)
            | LogicalPlan::Unnest(_)
    )
}

/// Collects the names of common table expressions, wherever they are: whether one is in scope is the planner's to say.
struct CommonTables<'a>(&'a mut HashSet<String>);

impl Visitor for CommonTables<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let Some(with) = &query.with {
            self.0.extend(with.cte_tables.iter().map(|table| table.alias.name.value.clone()));
        }
        ControlFlow::Continue(())
    }
}

struct Check<'a> {
    known: &'a HashSet<String>,
    functions: &'a Functions,
}

type Checked = ControlFlow<Box<Error>>;

fn refuse(place: Option<Place>, message: impl Into<String>) -> Checked {
    ControlFlow::Break(Box::new(sql_error(place, message)))
}

impl Visitor for Check<'_> {
    type Break = Box<Error>;

    fn pre_visit_query(&mut self, query: &Query) -> Checked {
        if let Some(with) = query.with.as_ref().filter(|with| with.recursive) {
            let place = place_of(with.with_token.0.span);
            return refuse(place, "WITH RECURSIVE is not allowed: how long it runs depends on the rows alone");
        }
        let place = start_of(&query.body);
        if !query.locks.is_empty() {
            return refuse(place, "FOR UPDATE and FOR SHARE are not allowed: relations never change");
        }
        if query.for_clause.is_some() || query.settings.is_some() || query.format_clause.is_some() {
            return refuse(place, "FOR XML, FOR JSON, SETTINGS and FORMAT are not allowed");
        }
        if !query.pipe_operators.is_empty() {
            return refuse(place, "pipe operators (`|>`) are not supported");
        }
        check_body(&query.body)
    }

    fn pre_visit_select(&mut self, select: &Select) -> Checked {
        let place = place_of(select.select_token.0.span);
        if select.into.is_some() {
            return refuse(place, "SELECT INTO is not allowed: the result is the batch");
        }
        if !select.lateral_views.is_empty() {
            return refuse(place, "LATERAL VIEW is not supported: write `SELECT explode(column) AS element`");
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> Checked {
        match factor {
            TableFactor::Table { args: Some(_), name, .. } => refuse(
                place_of(name.span()),
                format!("table function `{name}` is not allowed: only relations of this batch can be read"),
            ),
            TableFactor::Table { version: Some(_), name, .. } => refuse(
                place_of(name.span()),
                "time travel is not allowed: a batch reads what was pinned; use `<SNAP:name>` or `<PREV:name>`",
            ),
            TableFactor::Table { sample: Some(_), .. } | TableFactor::Derived { sample: Some(_), .. } => {
                refuse(None, "TABLESAMPLE is not allowed: a retried batch must deliver the same rows")
            }
            TableFactor::Table { .. } | TableFactor::Derived { .. } | TableFactor::NestedJoin { .. } => {
                ControlFlow::Continue(())
            }
            other => refuse(None, format!("`{other}` is not allowed after FROM")),
        }
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> Checked {
        let place = place_of(relation.span());
        let name = match relation.0.as_slice() {
            [part] => part.as_ident().map(|ident| ident.value.as_str()),
            _ => None,
        };
        match name {
            Some(name) if self.known.contains(name) => ControlFlow::Continue(()),
            Some(name) => refuse(place, self.describe_unknown(name)),
            None => refuse(
                place,
                format!(
                    "`{relation}` has a qualifier: a query names the relations of its batch (there are: {}), no tables \
                     of a catalog, files or URLs",
                    self.present()
                ),
            ),
        }
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> Checked {
        let Expr::Function(function) = expr else {
            return ControlFlow::Continue(());
        };
        let place = place_of(function.name.span());
        match function.name.0.as_slice() {
            [part] => match part.as_ident().and_then(|ident| self.functions.refusal(&ident.value)) {
                Some(message) => refuse(place, message),
                None => ControlFlow::Continue(()),
            },
            _ => refuse(place, format!("function `{}` has a qualifier: functions have a name only", function.name)),
        }
    }

    fn pre_visit_value(&mut self, value: &ValueWithSpan) -> Checked {
        match &value.value {
            Value::Placeholder(parameter) => {
                refuse(place_of(value.span), format!("`{parameter}` is a parameter: a merge script has none"))
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

impl Check<'_> {
    fn describe_unknown(&self, name: &str) -> String {
        if name.contains('/') || name.contains("://") || name.contains('\\') {
            return format!("`{name}` looks like a file or URL: a query can only name the relations of its batch");
        }
        let hint = nearest(name, self.known.iter().map(String::as_str));
        let hint = hint.map_or(".".to_string(), |known| format!("; did you mean `{}`?", shown(known)));
        format!("there is no relation or view `{name}`{hint} There are: {}", self.present())
    }

    fn present(&self) -> String {
        let mut names: Vec<String> = self.known.iter().map(|name| shown(name)).collect();
        names.sort_unstable();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    }
}

fn shown(table: &str) -> String {
    placeholder_of(table).unwrap_or_else(|| table.to_string())
}

/// Where a query begins. Only its first token is looked at: the parser's own spans walk whole expressions, as deep as
/// those go.
fn start_of(body: &SetExpr) -> Option<Place> {
    let mut next = body;
    loop {
        match next {
            SetExpr::Select(select) => return place_of(select.select_token.0.span),
            SetExpr::Query(query) => next = &query.body,
            SetExpr::SetOperation { left, .. } => next = left,
            _ => return None,
        }
    }
}

fn check_body(body: &SetExpr) -> Checked {
    let mut next = body;
    loop {
        match next {
            SetExpr::Select(_) | SetExpr::Query(_) | SetExpr::Values(_) => return ControlFlow::Continue(()),
            SetExpr::SetOperation { left, right, .. } => {
                check_body(right)?;
                next = left;
            }
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                return refuse(None, "INSERT, UPDATE, DELETE and MERGE are not allowed inside a query");
            }
            SetExpr::Table(_) => return refuse(None, "TABLE is not allowed: write SELECT * FROM"),
        }
    }
}
