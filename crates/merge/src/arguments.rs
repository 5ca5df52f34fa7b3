// SPDX-License-Identifier: Apache-2.0
//! Whole-number arguments of Spark's functions that only take a 32-bit one.
//!
//! A literal is 32 bits wide in Spark and 64 in the engine, which never narrows by itself: `date_add(day, 1)` would be
//! refused. So such arguments are cast in the parsed text; a number that does not fit fails the batch.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Query, VisitMut, VisitorMut,
};

/// Functions, each with the position of the argument.
const NARROW: [(&str, usize); 6] = [
    ("date_add", 1),
    ("dateadd", 1),
    ("date_sub", 1),
    ("factorial", 0),
    ("bitmap_bit_position", 0),
    ("bitmap_bucket_number", 0),
];

/// Casts the arguments in `query`.
pub(crate) fn narrow(query: &mut Query) {
    let _ = query.visit(&mut Narrow);
}

struct Narrow;

impl VisitorMut for Narrow {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let name = function.name.to_string().to_lowercase();
        let Some((_, position)) = NARROW.iter().find(|(known, _)| *known == name) else {
            return ControlFlow::Continue(());
        };
        let FunctionArguments::List(list) = &mut function.args else { return ControlFlow::Continue(()) };
        if let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))) = list.args.get_mut(*position) {
            if !matches!(argument, Expr::Cast { .. } | Expr::Interval(_)) {
                let inner = Box::new(argument.clone());
                *argument = Expr::Cast {
                    kind: CastKind::Cast,
                    expr: inner,
                    data_type: DataType::Int(None),
                    array: false,
                    format: None,
                };
            }
        }
        ControlFlow::Continue(())
    }
}
