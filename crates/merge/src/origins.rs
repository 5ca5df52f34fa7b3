// SPDX-License-Identifier: Apache-2.0
//! Which columns of which source each column of a query's result is made of, as far as its plan shows.
//!
//! What only decides which rows there are, such as a filter or the keys of a join, is no origin of a column.

use std::collections::BTreeSet;

use datafusion::logical_expr::{Expr, LogicalPlan};

/// What one column is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origins {
    /// Source by position, and its column.
    pub(crate) columns: BTreeSet<(usize, String)>,
    /// Whether it is one of them as it is.
    pub(crate) copied: bool,
}

/// The origins of each column of a plan. `source_of` tells which source a relation is of. Walks the plan to its leaves, so
/// it needs a stack as deep as that.
pub(crate) fn origins(plan: &LogicalPlan, source_of: &dyn Fn(&str) -> Option<usize>) -> Vec<Origins> {
    let columns = plan.schema().fields().len();
    let found = match plan {
        LogicalPlan::TableScan(scan) => {
            let source = source_of(scan.table_name.table());
            let scanned = scan.projected_schema.fields().iter();
            scanned.map(|field| scanned_column(source, field.name())).collect()
        }
        LogicalPlan::Projection(projection) => of_expressions(&projection.expr, &projection.input, source_of),
        LogicalPlan::Aggregate(aggregate) => {
            let mut found = of_expressions(&aggregate.group_expr, &aggregate.input, source_of);
            found.extend(of_expressions(&aggregate.aggr_expr, &aggregate.input, source_of));
            found
        }
        LogicalPlan::Window(window) => {
            let mut found = origins(&window.input, source_of);
            found.extend(of_expressions(&window.window_expr, &window.input, source_of));
            found
        }
        LogicalPlan::Join(join) => {
            let (mut left, right) = (origins(&join.left, source_of), origins(&join.right, source_of));
            // A semi join has the columns of one side only.
            if left.len() + right.len() == columns {
                left.extend(right);
                left
            } else if left.len() == columns {
                left
            } else {
                right
            }
        }
        LogicalPlan::Union(union) => {
            let mut found = vec![Origins { copied: true, ..Origins::default() }; columns];
            for input in &union.inputs {
                for (known, more) in found.iter_mut().zip(origins(input, source_of)) {
                    known.columns.extend(more.columns);
                    known.copied &= more.copied;
                }
            }
            found
        }
        other => match other.inputs().as_slice() {
            [input] => origins(input, source_of),
            _ => Vec::new(),
        },
    };
    // Of what is not known here nothing is said.
    if found.len() == columns { found } else { vec![Origins::default(); columns] }
}

fn scanned_column(source: Option<usize>, name: &str) -> Origins {
    Origins { columns: source.map(|source| (source, name.to_string())).into_iter().collect(), copied: source.is_some() }
}

fn of_expressions(
    expressions: &[Expr],
    input: &LogicalPlan,
    source_of: &dyn Fn(&str) -> Option<usize>,
) -> Vec<Origins> {
    let below = origins(input, source_of);
    let one = |expression: &Expr| {
        let mut made = Origins::default();
        let mut used = 0;
        for column in expression.column_refs() {
            let Ok(at) = input.schema().index_of_column(column) else { continue };
            made.columns.extend(below[at].columns.iter().cloned());
            made.copied = below[at].copied;
            used += 1;
        }
        made.copied &= used == 1 && matches!(unaliased(expression), Expr::Column(_));
        made
    };
    expressions.iter().map(one).collect()
}

fn unaliased(expression: &Expr) -> &Expr {
    match expression {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}
