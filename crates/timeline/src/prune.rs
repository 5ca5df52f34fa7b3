// SPDX-License-Identifier: Apache-2.0
//! Predicates against statistics: which row groups cannot hold a matching row.

use std::cmp::Ordering;

use tributary_api::predicate::{Literal, Op, Predicate};
use tributary_hudi::{Bound, ColumnRange, Prune};

/// Integers up to here are exact as floating point numbers.
const EXACT_IN_FLOAT: i64 = 1 << 53;

/// Leaves out row groups in which the predicate holds for no row.
pub(crate) struct PredicatePrune(pub(crate) Predicate);

impl Prune for PredicatePrune {
    fn keep(&self, range: &dyn Fn(&str) -> Option<ColumnRange>) -> bool {
        may_hold(&self.0, range)
    }
}

fn may_hold(predicate: &Predicate, range: &dyn Fn(&str) -> Option<ColumnRange>) -> bool {
    match predicate {
        Predicate::And(all) => all.iter().all(|part| may_hold(part, range)),
        Predicate::Or(any) => any.iter().any(|part| may_hold(part, range)),
        Predicate::Compare { column, op, literal } => {
            range(column).is_none_or(|range| has_value(&range) && may_compare(&range, *op, literal))
        }
        Predicate::In { column, literals } => range(column).is_none_or(|range| {
            has_value(&range) && literals.iter().any(|literal| may_compare(&range, Op::Eq, literal))
        }),
        Predicate::IsNull(column) => range(column).is_none_or(|range| range.nulls != Some(0)),
        Predicate::IsNotNull(column) => range(column).is_none_or(|range| has_value(&range)),
    }
}

fn has_value(range: &ColumnRange) -> bool {
    range.nulls.is_none_or(|nulls| nulls < range.rows)
}

fn may_compare(range: &ColumnRange, op: Op, literal: &Literal) -> bool {
    let min = range.min.as_ref().and_then(|min| compare(min, literal));
    let max = range.max.as_ref().and_then(|max| compare(max, literal));
    // Statistics leave NaN out, and NaN is larger than every number here: only equality can be judged.
    let float = matches!(range.min, Some(Bound::Float(_))) || matches!(range.max, Some(Bound::Float(_)));
    match op {
        Op::Eq => min != Some(Ordering::Greater) && max != Some(Ordering::Less),
        _ if float => true,
        Op::NotEq => (min, max) != (Some(Ordering::Equal), Some(Ordering::Equal)),
        Op::Lt => min.is_none_or(|min| min == Ordering::Less),
        Op::LtEq => min.is_none_or(|min| min != Ordering::Greater),
        Op::Gt => max.is_none_or(|max| max == Ordering::Greater),
        Op::GtEq => max.is_none_or(|max| max != Ordering::Less),
    }
}

/// How a bound compares with a literal; `None` where that cannot be said exactly.
fn compare(bound: &Bound, literal: &Literal) -> Option<Ordering> {
    match (bound, literal) {
        (Bound::Bool(bound), Literal::Bool(literal)) => Some(bound.cmp(literal)),
        (Bound::Int(bound), Literal::Int(literal)) => Some(bound.cmp(literal)),
        (Bound::Float(bound), Literal::Float(literal)) => bound.partial_cmp(literal),
        (Bound::Float(bound), Literal::Int(literal)) if literal.abs() < EXACT_IN_FLOAT => {
            bound.partial_cmp(&(*literal as f64))
        }
        (Bound::Text(bound), Literal::Text(literal)) => Some(bound.as_str().cmp(literal)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps(predicate: Predicate) -> bool {
        let range = |column: &str| match column {
            "i" => Some(ColumnRange { min: Some(Bound::Int(10)), max: Some(Bound::Int(20)), nulls: Some(0), rows: 5 }),
            "one" => Some(ColumnRange { min: Some(Bound::Int(7)), max: Some(Bound::Int(7)), nulls: Some(1), rows: 5 }),
            "f" => {
                Some(ColumnRange { min: Some(Bound::Float(1.0)), max: Some(Bound::Float(2.0)), nulls: None, rows: 5 })
            }
            "t" => Some(ColumnRange {
                min: Some(Bound::Text("b".into())),
                max: Some(Bound::Text("d".into())),
                nulls: Some(2),
                rows: 5,
            }),
            "null" => Some(ColumnRange { min: None, max: None, nulls: Some(5), rows: 5 }),
            _ => None,
        };
        PredicatePrune(predicate).keep(&range)
    }

    fn cmp(column: &str, op: Op, literal: Literal) -> Predicate {
        Predicate::Compare { column: column.to_string(), op, literal }
    }

    #[test]
    fn comparisons_outside_the_bounds_leave_a_row_group_out() {
        for (op, literal, kept) in [
            (Op::Eq, 9, false),
            (Op::Eq, 10, true),
            (Op::Eq, 21, false),
            (Op::Lt, 10, false),
            (Op::Lt, 11, true),
            (Op::LtEq, 10, true),
            (Op::Gt, 20, false),
            (Op::GtEq, 20, true),
            (Op::NotEq, 15, true),
        ] {
            assert_eq!(keeps(cmp("i", op, Literal::Int(literal))), kept, "{op:?} {literal}");
        }
        assert!(!keeps(cmp("one", Op::NotEq, Literal::Int(7))));
        assert!(!keeps(cmp("t", Op::Eq, Literal::Text("a".into()))));
        assert!(keeps(cmp("t", Op::Gt, Literal::Text("c".into()))));
    }

    #[test]
    fn what_is_not_known_is_kept() {
        assert!(keeps(cmp("missing", Op::Eq, Literal::Int(1))));
        assert!(keeps(cmp("i", Op::Eq, Literal::Text("9".into()))), "another family");
        assert!(keeps(cmp("f", Op::Gt, Literal::Float(5.0))), "NaN may hide");
        assert!(!keeps(cmp("f", Op::Eq, Literal::Float(5.0))));
        assert!(!keeps(cmp("f", Op::Eq, Literal::Int(3))));
    }

    #[test]
    fn nulls_match_only_where_they_are() {
        assert!(!keeps(Predicate::IsNull("i".into())));
        assert!(keeps(Predicate::IsNull("t".into())));
        assert!(!keeps(Predicate::IsNotNull("null".into())));
        assert!(!keeps(cmp("null", Op::NotEq, Literal::Int(1))));
    }

    #[test]
    fn and_or_and_in_follow_their_parts() {
        let no = || cmp("i", Op::Eq, Literal::Int(1));
        let yes = || cmp("i", Op::Eq, Literal::Int(15));
        assert!(!keeps(Predicate::And(vec![yes(), no()])));
        assert!(keeps(Predicate::Or(vec![yes(), no()])));
        assert!(!keeps(Predicate::Or(vec![no(), no()])));
        let literals = vec![Literal::Int(1), Literal::Int(30)];
        assert!(!keeps(Predicate::In { column: "i".into(), literals }));
    }
}
