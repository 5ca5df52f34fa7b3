// SPDX-License-Identifier: Apache-2.0
//! How the SQL is read: as Spark reads it, since the people who merge Hudi tables wrote their SQL for Spark.
//!
//! Identifiers are quoted with backticks, double quotes are string literals, a backslash escapes inside both, types
//! are Spark's (`STRING`, `LONG`). The parser's Spark dialect knows all of that but the backslash.

use std::any::TypeId;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::dialect::{Dialect, SparkSqlDialect};
use datafusion::sql::sqlparser::parser::{Parser, ParserError};

/// Spark's SQL, with its backslash escapes.
///
/// The parser asks its dialect at each expression, so here is also where too much work ends: where a call or a query
/// inside others cannot be read, the parser tries each of those around it in several ways, twice as many with each
/// level.
#[derive(Debug)]
pub(crate) struct SqlDialect {
    /// How many more expressions may be looked at.
    left: AtomicUsize,
}

impl Default for SqlDialect {
    fn default() -> Self {
        SqlDialect::within(usize::MAX)
    }
}

impl SqlDialect {
    /// For a parser that looks at no more than `expressions`, counted as often as it looks at each.
    pub(crate) fn within(expressions: usize) -> Self {
        SqlDialect { left: AtomicUsize::new(expressions) }
    }

    /// Whether the parser ended because it had looked at too many.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// One look more; the refusal, when there were too many.
    fn look(&self) -> Option<ParserError> {
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        (before.is_err() || before == Ok(1)).then_some(ParserError::RecursionLimitExceeded)
    }
}

const SPARK: SparkSqlDialect = SparkSqlDialect {};

impl Dialect for SqlDialect {
    fn dialect(&self) -> TypeId {
        SPARK.dialect()
    }

    fn supports_string_literal_backslash_escape(&self) -> bool {
        true
    }

    // `LIKE '10\%'` must reach the engine with its backslash.
    fn ignores_wildcard_escapes(&self) -> bool {
        true
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        SPARK.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        SPARK.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        SPARK.is_identifier_part(ch)
    }

    fn supports_filter_during_aggregation(&self) -> bool {
        SPARK.supports_filter_during_aggregation()
    }

    fn supports_group_by_expr(&self) -> bool {
        SPARK.supports_group_by_expr()
    }

    fn supports_group_by_with_modifier(&self) -> bool {
        SPARK.supports_group_by_with_modifier()
    }

    fn supports_lambda_functions(&self) -> bool {
        SPARK.supports_lambda_functions()
    }

    fn supports_select_wildcard_except(&self) -> bool {
        SPARK.supports_select_wildcard_except()
    }

    fn supports_struct_literal(&self) -> bool {
        SPARK.supports_struct_literal()
    }

    fn supports_nested_comments(&self) -> bool {
        SPARK.supports_nested_comments()
    }

    fn supports_create_table_using(&self) -> bool {
        SPARK.supports_create_table_using()
    }

    fn supports_long_type_as_bigint(&self) -> bool {
        SPARK.supports_long_type_as_bigint()
    }

    fn supports_values_as_table_factor(&self) -> bool {
        SPARK.supports_values_as_table_factor()
    }

    fn require_interval_qualifier(&self) -> bool {
        SPARK.require_interval_qualifier()
    }

    fn supports_bang_not_operator(&self) -> bool {
        SPARK.supports_bang_not_operator()
    }

    fn supports_select_item_multi_column_alias(&self) -> bool {
        SPARK.supports_select_item_multi_column_alias()
    }

    fn supports_cte_without_as(&self) -> bool {
        SPARK.supports_cte_without_as()
    }

    fn supports_map_literal_with_angle_brackets(&self) -> bool {
        SPARK.supports_map_literal_with_angle_brackets()
    }

    fn parse_prefix(&self, _parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
        self.look().map(Err)
    }

    fn parse_infix(&self, parser: &mut Parser, expr: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
        SPARK.parse_infix(parser, expr, precedence)
    }
}
