// SPDX-License-Identifier: Apache-2.0

use datafusion::arrow::datatypes::{Field, TimeUnit};
use datafusion::physical_expr::expressions::{case, in_list, is_null, lit as constant_of, not};
use datafusion::prelude::{col, lit};

use super::*;

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("id", DataType::Int64, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("open", DataType::Boolean, true),
        Field::new("day", DataType::Date32, true),
        Field::new("price", DataType::Float64, true),
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, None), true),
    ])
}

fn of(expr: Expr) -> Condition {
    from_expr(&expr, &schema())
}

fn int(column: &str, op: Op, value: i64) -> Predicate {
    Predicate::Compare { column: column.to_string(), op, literal: Literal::Int(value) }
}

#[test]
fn comparisons_cross_in_either_direction() {
    assert_eq!(of(col("id").gt(lit(5i64))), Condition::Only(int("id", Op::Gt, 5)));
    assert_eq!(of(lit(5i64).gt(col("id"))), Condition::Only(int("id", Op::Lt, 5)));
    let text = Predicate::Compare { column: "name".to_string(), op: Op::Eq, literal: Literal::Text("x".to_string()) };
    assert_eq!(of(col("name").eq(lit("x"))), Condition::Only(text));
    let day = lit(ScalarValue::Date32(Some(19_000)));
    assert_eq!(of(col("day").lt_eq(day)), Condition::Only(int("day", Op::LtEq, 19_000)));
}

#[test]
fn lists_nulls_flags_and_ranges_cross() {
    let list = Predicate::In { column: "id".to_string(), literals: vec![Literal::Int(1), Literal::Int(2)] };
    let with_null = vec![lit(1i64), lit(ScalarValue::Int64(None)), lit(2i64)];
    assert_eq!(of(col("id").in_list(with_null, false)), Condition::Only(list));
    let neither = Predicate::And(vec![int("id", Op::NotEq, 1), int("id", Op::NotEq, 2)]);
    assert_eq!(of(col("id").in_list(vec![lit(1i64), lit(2i64)], true)), Condition::Only(neither));
    assert_eq!(of(col("name").is_null()), Condition::Only(Predicate::IsNull("name".to_string())));
    assert_eq!(of(col("name").is_not_null()), Condition::Only(Predicate::IsNotNull("name".to_string())));
    let closed = Predicate::Compare { column: "open".to_string(), op: Op::Eq, literal: Literal::Bool(false) };
    assert_eq!(of(Expr::Not(Box::new(col("open")))), Condition::Only(closed));
    let range = Predicate::And(vec![int("id", Op::GtEq, 1), int("id", Op::LtEq, 9)]);
    assert_eq!(of(col("id").between(lit(1i64), lit(9i64))), Condition::Only(range));
}

#[test]
fn what_has_no_counterpart_weakens_an_and_and_voids_an_or() {
    let unknown = || (col("id") + lit(1i64)).eq(lit(2i64));
    let known = || col("id").eq(lit(1i64));
    assert_eq!(of(unknown()), Condition::Always);
    assert_eq!(of(known().and(unknown())), Condition::Only(int("id", Op::Eq, 1)));
    assert_eq!(of(known().or(unknown())), Condition::Always);
    assert_eq!(of(Expr::Not(Box::new(known().and(unknown())))), Condition::Always);
}

#[test]
fn types_that_a_scan_could_compare_otherwise_stay_here() {
    let at = lit(ScalarValue::TimestampMicrosecond(Some(1), None));
    assert_eq!(of(col("at").gt(at)), Condition::Always);
    assert_eq!(of(col("price").gt(lit(1.0f64))), Condition::Always, "NaN is greater");
    assert_eq!(of(col("price").lt(lit(0.0f64))), Condition::Always, "-0.0 is less");
    assert!(matches!(of(col("price").lt(lit(1.5f64))), Condition::Only(_)));
    assert_eq!(of(col("id").eq(lit("1"))), Condition::Always);
}

#[test]
fn comparing_with_null_keeps_nothing() {
    assert_eq!(of(col("id").eq(lit(ScalarValue::Int64(None)))), Condition::Never);
    assert_eq!(of(lit(false)), Condition::Never);
    assert_eq!(of(lit(true)), Condition::Always);
}

fn column(name: &str) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new_with_schema(name, &schema()).unwrap())
}

fn binary(left: Arc<dyn PhysicalExpr>, op: Operator, right: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    Arc::new(BinaryExpr::new(left, op, right))
}

#[test]
fn physical_filters_cross_as_logical_ones_do() {
    let bounds = binary(
        binary(column("id"), Operator::GtEq, constant_of(1i64)),
        Operator::And,
        binary(column("id"), Operator::LtEq, constant_of(9i64)),
    );
    let range = Predicate::And(vec![int("id", Op::GtEq, 1), int("id", Op::LtEq, 9)]);
    assert_eq!(from_physical(&bounds, &schema()), Condition::Only(range));
    let list = in_list(column("id"), vec![constant_of(1i64), constant_of(2i64)], &false, &schema()).unwrap();
    assert!(matches!(from_physical(&list, &schema()), Condition::Only(Predicate::In { .. })));
    assert!(matches!(from_physical(&is_null(column("id")).unwrap(), &schema()), Condition::Only(_)));
    assert!(matches!(from_physical(&not(column("open")).unwrap(), &schema()), Condition::Only(_)));
}

#[test]
fn a_routed_filter_is_one_of_its_branches() {
    let branch = |value: i64| binary(column("id"), Operator::Eq, constant_of(value));
    let routed = case(
        Some(column("id")),
        vec![(constant_of(0i64), branch(10)), (constant_of(1i64), branch(20))],
        Some(constant_of(false)),
    )
    .unwrap();
    let either = Predicate::Or(vec![int("id", Op::Eq, 10), int("id", Op::Eq, 20)]);
    assert_eq!(from_physical(&routed, &schema()), Condition::Only(either));
}

#[test]
fn a_filter_still_being_made_is_taken_as_it_is_now() {
    let dynamic = Arc::new(DynamicFilterPhysicalExpr::new(vec![column("id")], constant_of(true)));
    let filter: Arc<dyn PhysicalExpr> = Arc::clone(&dynamic) as Arc<dyn PhysicalExpr>;
    assert_eq!(from_physical(&filter, &schema()), Condition::Always);
    dynamic.update(binary(column("id"), Operator::Eq, constant_of(7i64))).unwrap();
    assert_eq!(from_physical(&filter, &schema()), Condition::Only(int("id", Op::Eq, 7)));
    dynamic.update(constant_of(false)).unwrap();
    assert_eq!(from_physical(&filter, &schema()), Condition::Never);
}
