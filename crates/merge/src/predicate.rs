// SPDX-License-Identifier: Apache-2.0
//! From the engine's filters to the simple conditions that a scan understands.
//!
//! The engine filters again, so a condition may be weaker than the filter but never stronger: what has no counterpart
//! becomes "always", which drops out of an AND and takes an OR with it.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::logical_expr::{Between, Expr, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr, IsNullExpr,
    Literal as Constant, NotExpr,
};
use datafusion::physical_plan::PhysicalExpr;
use datafusion::scalar::ScalarValue;
use tributary_api::predicate::{Literal, Op, Predicate};

/// What is known about the rows that a filter keeps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Condition {
    /// Any row may be kept.
    Always,
    /// No row can be kept.
    Never,
    /// Only such rows can be kept.
    Only(Predicate),
}

impl Condition {
    /// Both hold.
    pub(crate) fn and(parts: impl IntoIterator<Item = Condition>) -> Condition {
        let mut kept = Vec::new();
        for part in parts {
            match part {
                Condition::Never => return Condition::Never,
                Condition::Always => {}
                Condition::Only(Predicate::And(inner)) => kept.extend(inner),
                Condition::Only(predicate) => kept.push(predicate),
            }
        }
        match kept.len() {
            0 => Condition::Always,
            1 => Condition::Only(kept.remove(0)),
            _ => Condition::Only(Predicate::And(kept)),
        }
    }

    /// At least one holds.
    fn or(parts: impl IntoIterator<Item = Condition>) -> Condition {
        let mut kept = Vec::new();
        for part in parts {
            match part {
                Condition::Always => return Condition::Always,
                Condition::Never => {}
                Condition::Only(Predicate::Or(inner)) => kept.extend(inner),
                Condition::Only(predicate) => kept.push(predicate),
            }
        }
        match kept.len() {
            0 => Condition::Never,
            1 => Condition::Only(kept.remove(0)),
            _ => Condition::Only(Predicate::Or(kept)),
        }
    }
}

/// What a filter of a logical plan says about the rows of a relation.
pub(crate) fn from_expr(expr: &Expr, schema: &Schema) -> Condition {
    match expr {
        Expr::BinaryExpr(binary) => match binary.op {
            Operator::And => Condition::and([from_expr(&binary.left, schema), from_expr(&binary.right, schema)]),
            Operator::Or => Condition::or([from_expr(&binary.left, schema), from_expr(&binary.right, schema)]),
            op => match (binary.left.as_ref(), binary.right.as_ref()) {
                (Expr::Column(column), Expr::Literal(value, _)) => compare(&column.name, op, value, schema),
                (Expr::Literal(value, _), Expr::Column(column)) => {
                    op.swap().map_or(Condition::Always, |op| compare(&column.name, op, value, schema))
                }
                _ => Condition::Always,
            },
        },
        Expr::Between(Between { expr, negated: false, low, high }) => {
            match (expr.as_ref(), low.as_ref(), high.as_ref()) {
                (Expr::Column(column), Expr::Literal(low, _), Expr::Literal(high, _)) => Condition::and([
                    compare(&column.name, Operator::GtEq, low, schema),
                    compare(&column.name, Operator::LtEq, high, schema),
                ]),
                _ => Condition::Always,
            }
        }
        Expr::InList(list) => {
            let values: Option<Vec<&ScalarValue>> = list
                .list
                .iter()
                .map(|item| match item {
                    Expr::Literal(value, _) => Some(value),
                    _ => None,
                })
                .collect();
            match (list.expr.as_ref(), values) {
                (Expr::Column(column), Some(values)) if list.negated => Condition::and(
                    values.into_iter().map(|value| compare(&column.name, Operator::NotEq, value, schema)),
                ),
                (Expr::Column(column), Some(values)) => one_of(&column.name, &values, schema),
                _ => Condition::Always,
            }
        }
        Expr::IsNull(inner) => null_test(inner, Predicate::IsNull),
        Expr::IsNotNull(inner) => null_test(inner, Predicate::IsNotNull),
        Expr::Column(column) => flag(&column.name, true, schema),
        Expr::Not(inner) => match inner.as_ref() {
            Expr::Column(column) => flag(&column.name, false, schema),
            Expr::IsNull(inner) => null_test(inner, Predicate::IsNotNull),
            Expr::IsNotNull(inner) => null_test(inner, Predicate::IsNull),
            _ => Condition::Always,
        },
        Expr::Literal(ScalarValue::Boolean(value), _) => constant(*value),
        _ => Condition::Always,
    }
}

/// What a filter of a physical plan says about the rows of a relation. A filter that is still being made, by the
/// other side of a join, is taken as it is now: it only ever becomes narrower.
pub(crate) fn from_physical(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Condition {
    let expr = expr.as_ref();
    if let Some(dynamic) = expr.downcast_ref::<DynamicFilterPhysicalExpr>() {
        return dynamic.current().map_or(Condition::Always, |current| from_physical(&current, schema));
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return from_physical_binary(binary, schema);
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        let values: Option<Vec<&ScalarValue>> =
            list.list().iter().map(|item| item.downcast_ref::<Constant>().map(Constant::value)).collect();
        return match (list.expr().downcast_ref::<Column>(), values) {
            (Some(column), Some(values)) if !list.negated() => one_of(column.name(), &values, schema),
            _ => Condition::Always,
        };
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        // Whichever branch is taken, its own condition holds. This is how a join routes its keys to partitions.
        let otherwise = case.else_expr().map_or(Condition::Never, |branch| from_physical(branch, schema));
        let branches = case.when_then_expr().iter().map(|(_, branch)| from_physical(branch, schema));
        return Condition::or(branches.chain([otherwise]));
    }
    if let Some(test) = expr.downcast_ref::<IsNullExpr>() {
        return physical_null_test(test.arg(), Predicate::IsNull);
    }
    if let Some(test) = expr.downcast_ref::<IsNotNullExpr>() {
        return physical_null_test(test.arg(), Predicate::IsNotNull);
    }
    if let Some(column) = expr.downcast_ref::<Column>() {
        return flag(column.name(), true, schema);
    }
    if let Some(not) = expr.downcast_ref::<NotExpr>() {
        return match not.arg().downcast_ref::<Column>() {
            Some(column) => flag(column.name(), false, schema),
            None => Condition::Always,
        };
    }
    match expr.downcast_ref::<Constant>().map(Constant::value) {
        Some(ScalarValue::Boolean(value)) => constant(*value),
        _ => Condition::Always,
    }
}

fn from_physical_binary(binary: &BinaryExpr, schema: &Schema) -> Condition {
    let both = || [from_physical(binary.left(), schema), from_physical(binary.right(), schema)];
    match binary.op() {
        Operator::And => return Condition::and(both()),
        Operator::Or => return Condition::or(both()),
        _ => {}
    }
    let (left, right) = (binary.left(), binary.right());
    if let (Some(column), Some(value)) = (left.downcast_ref::<Column>(), right.downcast_ref::<Constant>()) {
        return compare(column.name(), *binary.op(), value.value(), schema);
    }
    if let (Some(value), Some(column)) = (left.downcast_ref::<Constant>(), right.downcast_ref::<Column>()) {
        let swapped = binary.op().swap();
        return swapped.map_or(Condition::Always, |op| compare(column.name(), op, value.value(), schema));
    }
    Condition::Always
}

fn constant(value: Option<bool>) -> Condition {
    // A filter keeps a row only where it is true; null keeps none.
    if value == Some(true) { Condition::Always } else { Condition::Never }
}

fn null_test(inner: &Expr, test: fn(String) -> Predicate) -> Condition {
    match inner {
        Expr::Column(column) => Condition::Only(test(column.name.clone())),
        _ => Condition::Always,
    }
}

fn physical_null_test(inner: &Arc<dyn PhysicalExpr>, test: fn(String) -> Predicate) -> Condition {
    match inner.downcast_ref::<Column>() {
        Some(column) => Condition::Only(test(column.name().to_string())),
        None => Condition::Always,
    }
}

fn flag(column: &str, value: bool, schema: &Schema) -> Condition {
    compare(column, Operator::Eq, &ScalarValue::Boolean(Some(value)), schema)
}

fn compare(column: &str, op: Operator, value: &ScalarValue, schema: &Schema) -> Condition {
    let op = match op {
        Operator::Eq => Op::Eq,
        Operator::NotEq => Op::NotEq,
        Operator::Lt => Op::Lt,
        Operator::LtEq => Op::LtEq,
        Operator::Gt => Op::Gt,
        Operator::GtEq => Op::GtEq,
        _ => return Condition::Always,
    };
    if value.is_null() {
        // Comparing with null is never true.
        return Condition::Never;
    }
    let Ok(field) = schema.field_with_name(column) else {
        return Condition::Always;
    };
    match literal(value, field.data_type()) {
        Some(Literal::Float(number)) if !float_is_safe(op, number) => Condition::Always,
        Some(literal) => Condition::Only(Predicate::Compare { column: column.to_string(), op, literal }),
        None => Condition::Always,
    }
}

fn one_of(column: &str, values: &[&ScalarValue], schema: &Schema) -> Condition {
    let Ok(field) = schema.field_with_name(column) else {
        return Condition::Always;
    };
    let mut literals = Vec::with_capacity(values.len());
    // A null in the list matches no row.
    for value in values.iter().filter(|value| !value.is_null()) {
        match literal(value, field.data_type()) {
            Some(Literal::Float(number)) if !float_is_safe(Op::Eq, number) => return Condition::Always,
            Some(literal) => literals.push(literal),
            None => return Condition::Always,
        }
    }
    if literals.is_empty() {
        return Condition::Never;
    }
    Condition::Only(Predicate::In { column: column.to_string(), literals })
}

/// The engine orders floats totally: NaN is the greatest, and -0.0 is less than 0.0. A scan need not, so only those
/// comparisons cross on which every order agrees.
fn float_is_safe(op: Op, number: f64) -> bool {
    number.is_finite() && number != 0.0 && matches!(op, Op::Eq | Op::Lt | Op::LtEq)
}

/// The literal that compares with a column of type `column` as `value` does, if there is one.
fn literal(value: &ScalarValue, column: &DataType) -> Option<Literal> {
    if let ScalarValue::Dictionary(_, inner) = value {
        return literal(inner, column);
    }
    match column {
        DataType::Boolean => match value {
            ScalarValue::Boolean(value) => value.map(Literal::Bool),
            _ => None,
        },
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => integer(value).map(Literal::Int),
        DataType::Date32 => match value {
            ScalarValue::Date32(days) => days.map(|days| Literal::Int(i64::from(days))),
            _ => None,
        },
        DataType::Float32 | DataType::Float64 => match value {
            ScalarValue::Float32(number) => number.map(|number| Literal::Float(f64::from(number))),
            ScalarValue::Float64(number) => number.map(Literal::Float),
            _ => None,
        },
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => match value {
            ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => {
                text.clone().map(Literal::Text)
            }
            _ => None,
        },
        _ => None,
    }
}

fn integer(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Int8(value) => value.map(i64::from),
        ScalarValue::Int16(value) => value.map(i64::from),
        ScalarValue::Int32(value) => value.map(i64::from),
        ScalarValue::Int64(value) => *value,
        ScalarValue::UInt8(value) => value.map(i64::from),
        ScalarValue::UInt16(value) => value.map(i64::from),
        ScalarValue::UInt32(value) => value.map(i64::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
