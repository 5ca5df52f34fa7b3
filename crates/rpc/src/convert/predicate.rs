// SPDX-License-Identifier: Apache-2.0
//! Predicates. Their depth is bounded by that of a message.

use tributary_api::predicate::{Literal, Predicate};

use super::{Malformed, WireEnum, required};
use crate::proto::timeline as proto;
use proto::literal::Value;
use proto::predicate::Kind;

/// A predicate for the wire.
pub fn predicate_to_proto(predicate: &Predicate) -> proto::Predicate {
    let all = |predicates: &[Predicate]| proto::Predicates {
        predicates: predicates.iter().map(predicate_to_proto).collect(),
    };
    let kind = match predicate {
        Predicate::And(predicates) => Kind::And(all(predicates)),
        Predicate::Or(predicates) => Kind::Or(all(predicates)),
        Predicate::Compare { column, op, literal } => Kind::Compare(proto::Comparison {
            column: column.clone(),
            op: op.to_wire(),
            literal: Some(literal_to_proto(literal)),
        }),
        Predicate::In { column, literals } => Kind::In(proto::InList {
            column: column.clone(),
            literals: literals.iter().map(literal_to_proto).collect(),
        }),
        Predicate::IsNull(column) => Kind::IsNull(column.clone()),
        Predicate::IsNotNull(column) => Kind::IsNotNull(column.clone()),
    };
    proto::Predicate { kind: Some(kind) }
}

/// A predicate from the wire. One that is not understood is refused and not left out: whoever sent it filters again,
/// but may count on a scan that it could have had.
pub fn predicate_from_proto(predicate: proto::Predicate) -> Result<Predicate, Malformed> {
    let all = |predicates: proto::Predicates| {
        predicates.predicates.into_iter().map(predicate_from_proto).collect::<Result<Vec<_>, _>>()
    };
    Ok(match required(predicate.kind, "kind")? {
        Kind::And(predicates) => Predicate::And(all(predicates)?),
        Kind::Or(predicates) => Predicate::Or(all(predicates)?),
        Kind::Compare(comparison) => Predicate::Compare {
            column: comparison.column,
            op: WireEnum::from_wire(comparison.op)?,
            literal: literal_from_proto(required(comparison.literal, "literal")?)?,
        },
        Kind::In(list) => Predicate::In {
            column: list.column,
            literals: list.literals.into_iter().map(literal_from_proto).collect::<Result<_, _>>()?,
        },
        Kind::IsNull(column) => Predicate::IsNull(column),
        Kind::IsNotNull(column) => Predicate::IsNotNull(column),
    })
}

fn literal_to_proto(literal: &Literal) -> proto::Literal {
    let value = match literal {
        Literal::Bool(value) => Value::BoolValue(*value),
        Literal::Int(value) => Value::IntValue(*value),
        Literal::Float(value) => Value::FloatValue(*value),
        Literal::Text(value) => Value::TextValue(value.clone()),
    };
    proto::Literal { value: Some(value) }
}

fn literal_from_proto(literal: proto::Literal) -> Result<Literal, Malformed> {
    Ok(match required(literal.value, "literal.value")? {
        Value::BoolValue(value) => Literal::Bool(value),
        Value::IntValue(value) => Literal::Int(value),
        Value::FloatValue(value) => Literal::Float(value),
        Value::TextValue(value) => Literal::Text(value),
    })
}
