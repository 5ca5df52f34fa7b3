// SPDX-License-Identifier: Apache-2.0
//! Whether a query keeps the deletes of its sources.
//!
//! A source that delivers deleted records says in `_hoodie_is_deleted` of the rows of `<SRC:x>` which these are. They
//! reach the target if that column of every such row flows into the result's column of that name. What makes one row of
//! several cannot be undone by the last row of a record, so it is refused over such a source: aggregates, DISTINCT, window
//! functions, LIMIT. A subquery after EXISTS or IN, and the other side of a semi-join, only choose rows, and may read what
//! they like.

use std::collections::BTreeSet;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinType, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator, TableScan};
use tributary_api::merge::Error;
use tributary_types::{IS_DELETED, SourceName};

use crate::engine::Job;
use crate::error::{internal, sql_error};
use crate::placeholders::View;

/// A relation of a source that delivers deleted records.
struct Relation<'a> {
    /// Its name inside the engine.
    table: &'a str,
    source: &'a SourceName,
    /// Whether deleted records are in it.
    changed: bool,
}

/// The relations whose deletes must not be lost.
pub(crate) struct Deletes<'a> {
    relations: Vec<Relation<'a>>,
}

/// What stands in the way; or the plan could not be walked.
enum Problem {
    Refused(String),
    Walk(DataFusionError),
}

impl From<DataFusionError> for Problem {
    fn from(error: DataFusionError) -> Self {
        Problem::Walk(error)
    }
}

type Found = Result<(), Problem>;

fn refuse(what: impl Into<String>) -> Found {
    Err(Problem::Refused(what.into()))
}

impl<'a> Deletes<'a> {
    /// Those that a job names.
    pub(crate) fn of(job: &'a Job) -> Self {
        let named = job.relations.iter().map(|named| (&job.sources[named.reference.source].0, &named.reference));
        let relations = named.filter(|(source, _)| job.deletes.contains(source)).map(|(source, reference)| Relation {
            table: &reference.table,
            source,
            changed: reference.view == View::Changed,
        });
        Deletes { relations: relations.collect() }
    }

    /// Refuses the result of step `number`, from 1, if deletes are lost on the way to it.
    pub(crate) fn check(&self, plan: &LogicalPlan, number: usize) -> Result<(), Error> {
        if self.relations.is_empty() {
            return Ok(());
        }
        match self.check_result(plan) {
            Ok(()) => Ok(()),
            Err(Problem::Refused(what)) => Err(sql_error(None, format!("step {number} {what}"))),
            Err(Problem::Walk(error)) => Err(internal(format!("the plan could not be checked for deletes: {error}"))),
        }
    }

    /// Refuses a step in Rust over a source that delivers deletes: nobody can tell what becomes of a row in it.
    pub(crate) fn check_rust(&self, name: &str) -> Result<(), Error> {
        let Some(relation) = self.relations.first() else { return Ok(()) };
        let source = relation.source;
        Err(sql_error(
            None,
            format!(
                "deletes of source `{source}` (`deletes = \"propagate\"`) cannot be followed through the Rust step `{name}`: \
                 leave `deletes` of `{source}` out, or say in SQL what the step does"
            ),
        ))
    }

    fn check_result(&self, plan: &LogicalPlan) -> Found {
        let sources: BTreeSet<&str> = self.relations.iter().map(|relation| relation.source.as_str()).collect();
        let whose = sources.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" and ");
        let fields = plan.schema().fields();
        let Some(flag) = fields.iter().position(|field| field.name() == IS_DELETED) else {
            // What loses it altogether is the better reason.
            self.follow(plan, None, &mut BTreeSet::new())?;
            return refuse(format!(
                "drops the column `{IS_DELETED}`, without which the deletes of source {whose} (`deletes = \"propagate\"`) \
                 are lost: add it to the SELECT"
            ));
        };
        if fields[flag].data_type() != &DataType::Boolean {
            return refuse(format!(
                "makes `{IS_DELETED}` {} instead of a BOOLEAN: it says which rows are deletes of source {whose}",
                fields[flag].data_type()
            ));
        }
        let mut carried = BTreeSet::new();
        self.follow(plan, Some(&BTreeSet::from([flag])), &mut carried)?;
        match sources.iter().find(|source| !carried.contains(**source)) {
            None => Ok(()),
            Some(source) => refuse(format!(
                "has no row of `<SRC:{source}>` in its result, or only those that are no deletes (`WHERE NOT {IS_DELETED}`), \
                 so the deletes of source `{source}` are lost: select from it, with its `{IS_DELETED}`, or leave `deletes = \
                 \"propagate\"` out"
            )),
        }
    }

    /// Follows rows from where they come out of `plan` back to the relations, and the columns `flags` with them, which
    /// flow into the result's flag; `None`: into nothing that anyone asks for. Sources whose deletes are carried are added to
    /// `carried`.
    fn follow(&self, plan: &LogicalPlan, flags: Option<&BTreeSet<usize>>, carried: &mut BTreeSet<&'a str>) -> Found {
        if let Some(what) = merges_rows(plan)
            && let Some(relation) = self.mentioned(plan, false)?
        {
            return refuse(format!(
                "has {what} over source `{0}`, whose deletes cannot be followed through it: leave `deletes = \
                 \"propagate\"` of `{0}` out, or let every row of it be a row of the result",
                relation.source
            ));
        }
        self.check_subqueries(plan)?;
        match plan {
            LogicalPlan::TableScan(scan) => self.reach(scan, flags, carried),
            LogicalPlan::Projection(projection) => {
                let below = projection.input.schema();
                let mut sources = BTreeSet::new();
                for expr in flags.into_iter().flatten().filter_map(|at| projection.expr.get(*at)) {
                    add_columns(expr, below, &mut sources)?;
                }
                self.follow(&projection.input, flags.map(|_| &sources), carried)
            }
            LogicalPlan::Unnest(unnest) => {
                let below = flags.into_iter().flatten();
                let below = below.filter_map(|at| unnest.dependency_indices.get(*at).copied()).collect();
                self.follow(&unnest.input, flags.map(|_| &below), carried)
            }
            LogicalPlan::Join(join) => self.follow_join(join, flags, carried),
            LogicalPlan::Union(union) => union.inputs.iter().try_for_each(|input| self.follow(input, flags, carried)),
            // What is below is looked at, and nothing of it counts as carried.
            LogicalPlan::Filter(filter) if drops_deletes(&filter.predicate, &filter.input, flags) => {
                self.follow(&filter.input, flags, &mut BTreeSet::new())
            }
            LogicalPlan::Filter(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Repartition(_)
            | LogicalPlan::Subquery(_)
            | LogicalPlan::SubqueryAlias(_) => {
                plan.inputs().into_iter().try_for_each(|input| self.follow(input, flags, carried))
            }
            // Nothing of such a source is below it, or it would have been refused.
            _ => match self.mentioned(plan, true)? {
                None => Ok(()),
                Some(relation) => refuse(format!(
                    "reads `<{}>` in a way in which its deletes cannot be followed: {}",
                    relation.table,
                    plan.display()
                )),
            },
        }
    }

    fn reach(&self, scan: &TableScan, flags: Option<&BTreeSet<usize>>, carried: &mut BTreeSet<&'a str>) -> Found {
        let name = scan.table_name.table();
        let Some(relation) = self.relations.iter().find(|relation| relation.table == name && relation.changed) else {
            return Ok(());
        };
        let Some(flags) = flags else { return Ok(()) };
        let flag = scan.projected_schema.fields().iter().position(|field| field.name() == IS_DELETED);
        if flag.is_some_and(|flag| flags.contains(&flag)) {
            carried.insert(relation.source.as_str());
            return Ok(());
        }
        refuse(format!(
            "takes rows of `<{0}>` without their `{IS_DELETED}`, so deletes of source `{1}` would be stored as rows: let \
             that column be, or be part of, `{IS_DELETED}` of the result (`x.{IS_DELETED}`, or `x.{IS_DELETED} OR …`)",
            relation.table, relation.source
        ))
    }

    fn follow_join(&self, join: &Join, flags: Option<&BTreeSet<usize>>, carried: &mut BTreeSet<&'a str>) -> Found {
        let width = join.left.schema().fields().len();
        let all = || flags.into_iter().flatten().copied();
        let left: BTreeSet<usize> = all().filter(|at| *at < width).collect();
        match join.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
                return self.follow(&join.left, flags.map(|_| &left), carried);
            }
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                return self.follow(&join.right, flags, carried);
            }
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {}
        }
        let filled = [
            (matches!(join.join_type, JoinType::Right | JoinType::Full), &join.left),
            (matches!(join.join_type, JoinType::Left | JoinType::Full), &join.right),
        ];
        for (_, side) in filled.into_iter().filter(|(filled, _)| *filled) {
            if let Some(relation) = self.mentioned(side, true)? {
                return refuse(format!(
                    "has `<{}>` on the side of an outer join that is filled with NULL, where rows without a partner \
                     would be stored over those with one: put it on the other side, or use an inner join",
                    relation.table
                ));
            }
        }
        if let (Some(one), Some(other)) = (self.mentioned(&join.left, true)?, self.mentioned(&join.right, true)?) {
            return refuse(format!(
                "joins `<{0}>` with `<{1}>`, which misses partners that did not change: join each with the other's \
                 `<SNAP:…>`, and put both together with UNION ALL",
                one.table, other.table
            ));
        }
        let right: BTreeSet<usize> = all().filter(|at| *at >= width).map(|at| at - width).collect();
        self.follow(&join.left, flags.map(|_| &left), carried)?;
        self.follow(&join.right, flags.map(|_| &right), carried)
    }

    /// Refuses values that are computed of such a source in a subquery.
    fn check_subqueries(&self, plan: &LogicalPlan) -> Found {
        let mut plans = Vec::new();
        plan.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarSubquery(subquery) = expr {
                    plans.push(std::sync::Arc::clone(&subquery.subquery));
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        for subquery in plans {
            if let Some(relation) = self.mentioned(&subquery, true)? {
                return refuse(format!(
                    "reads `<{}>` in a subquery for a value, where its deletes are lost: join it, or look the value up in \
                     `<SNAP:{}>`",
                    relation.table, relation.source
                ));
            }
            self.follow(&subquery, None, &mut BTreeSet::new())?;
        }
        Ok(())
    }

    /// A relation of such a source that rows of `plan` come from; with `changed`, one with deleted records in it.
    fn mentioned(&self, plan: &LogicalPlan, changed: bool) -> Result<Option<&Relation<'a>>, Problem> {
        let mut found = None;
        plan.apply(|node| {
            if let LogicalPlan::TableScan(scan) = node {
                let name = scan.table_name.table();
                let named = |relation: &&Relation<'a>| relation.table == name && (relation.changed || !changed);
                found = found.or_else(|| self.relations.iter().find(named));
            }
            Ok(match node {
                _ if found.is_some() => TreeNodeRecursion::Stop,
                _ => TreeNodeRecursion::Continue,
            })
        })?;
        Ok(found)
    }
}

/// What of a node makes rows of several, or chooses among them, by its name in SQL.
fn merges_rows(plan: &LogicalPlan) -> Option<&'static str> {
    match plan {
        LogicalPlan::Aggregate(aggregate) if aggregate.aggr_expr.is_empty() => Some("GROUP BY or DISTINCT"),
        LogicalPlan::Aggregate(_) => Some("an aggregate"),
        LogicalPlan::Distinct(_) => Some("DISTINCT (UNION without ALL is one as well)"),
        LogicalPlan::Window(_) => Some("a window function"),
        LogicalPlan::Limit(_) => Some("LIMIT"),
        LogicalPlan::Sort(sort) if sort.fetch.is_some() => Some("LIMIT"),
        _ => None,
    }
}

/// Whether a condition keeps no row that is a delete: by the flag of a relation, as long as it has its name.
fn drops_deletes(predicate: &Expr, input: &LogicalPlan, flags: Option<&BTreeSet<usize>>) -> bool {
    let Some(flags) = flags else { return false };
    let is_flag = |expr: &Expr| match expr {
        Expr::Column(column) if column.name == IS_DELETED => {
            input.schema().maybe_index_of_column(column).is_some_and(|at| flags.contains(&at))
        }
        _ => false,
    };
    let is =
        |expr: &Expr, wanted: bool| matches!(expr, Expr::Literal(ScalarValue::Boolean(Some(it)), _) if *it == wanted);
    split_conjunction(predicate).into_iter().any(|part| match part {
        Expr::Not(flag) | Expr::IsFalse(flag) | Expr::IsNotTrue(flag) => is_flag(flag),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let told = match op {
                Operator::Eq => false,
                Operator::NotEq => true,
                _ => return false,
            };
            (is_flag(left) && is(right, told)) || (is_flag(right) && is(left, told))
        }
        _ => false,
    })
}

/// Adds the positions of the columns that an expression reads.
fn add_columns(expr: &Expr, schema: &DFSchema, positions: &mut BTreeSet<usize>) -> Result<(), DataFusionError> {
    expr.apply(|expr| {
        if let Expr::Column(column) = expr {
            positions.extend(schema.maybe_index_of_column(column));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}
