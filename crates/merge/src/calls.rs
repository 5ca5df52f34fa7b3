// SPDX-License-Identifier: Apache-2.0
//! Calls that Spark's SQL writes in one way and the engine takes in another, rewritten in the parsed text.
//!
//! A whole number is 32 bits wide in Spark and 64 in the engine, which never narrows by itself and would refuse
//! `date_add(day, 1)`: such arguments are cast, and a number that does not fit fails the batch. `explode` makes a row
//! of each element of a list, which the engine calls `unnest`.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectNamePart, Query,
    VisitMut, VisitorMut,
};

/// Functions that take a 32-bit number, each with its position.
const NARROW: [(&str, usize); 6] = [
    ("date_add", 1),
    ("dateadd", 1),
    ("date_sub", 1),
    ("factorial", 0),
    ("bitmap_bit_position", 0),
    ("bitmap_bucket_number", 0),
];

/// Functions of the same meaning and another name.
const RENAMED: [(&str, &str); 2] = [("explode", "unnest"), ("explode_outer", "unnest_outer")];

/// Rewrites the calls in `query`.
pub(crate) fn rewrite(query: &mut Query) {
    let _ = query.visit(&mut Calls);
}

struct Calls;

impl VisitorMut for Calls {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            rename(function);
            narrow(function);
        }
        ControlFlow::Continue(())
    }
}

fn rename(function: &mut Function) {
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_mut_slice() else {
        return;
    };
    let renamed = RENAMED.iter().find(|(known, _)| name.value.eq_ignore_ascii_case(known));
    if let Some((_, engine)) = renamed {
        *name = Ident { value: engine.to_string(), ..name.clone() };
    }
}

fn narrow(function: &mut Function) {
    let name = function.name.to_string();
    let Some((_, position)) = NARROW.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)) else {
        return;
    };
    let FunctionArguments::List(list) = &mut function.args else {
        return;
    };
    let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))) = list.args.get_mut(*position) else {
        return;
    };
    if matches!(argument, Expr::Cast { .. } | Expr::Interval(_)) {
        return;
    }
    let expr = Box::new(argument.clone());
    *argument = Expr::Cast { kind: CastKind::Cast, expr, data_type: DataType::Int(None), array: false, format: None };
}
