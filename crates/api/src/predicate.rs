// SPDX-License-Identifier: Apache-2.0
//! Simple predicates that cross from the query to the scan.
//!
//! A predicate may only be used to leave out rows that cannot match: whoever sent it filters again. A scan that
//! ignores it is correct, only slower.

use serde::{Deserialize, Serialize};

/// A condition on the columns of one relation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Predicate {
    /// All hold.
    And(Vec<Predicate>),
    /// At least one holds.
    Or(Vec<Predicate>),
    /// The column compares so with the literal.
    Compare {
        /// Column name.
        column: String,
        /// Comparison.
        op: Op,
        /// Right-hand side.
        literal: Literal,
    },
    /// The column equals one of the literals.
    In {
        /// Column name.
        column: String,
        /// The accepted values.
        literals: Vec<Literal>,
    },
    /// The column is null.
    IsNull(String),
    /// The column is not null.
    IsNotNull(String),
}

impl Predicate {
    /// Whether it says anything about a column.
    pub fn names(&self, name: &str) -> bool {
        match self {
            Predicate::And(parts) | Predicate::Or(parts) => parts.iter().any(|part| part.names(name)),
            Predicate::Compare { column, .. } | Predicate::In { column, .. } => column == name,
            Predicate::IsNull(column) | Predicate::IsNotNull(column) => column == name,
        }
    }
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// `=`
    Eq,
    /// `<>`
    NotEq,
    /// `<`
    Lt,
    /// `<=`
    LtEq,
    /// `>`
    Gt,
    /// `>=`
    GtEq,
}

/// A value to compare with, in the widest form of its family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Literal {
    /// A boolean.
    Bool(bool),
    /// Any signed integer, and dates as days since the epoch.
    Int(i64),
    /// Any floating point number.
    Float(f64),
    /// Text.
    Text(String),
}
