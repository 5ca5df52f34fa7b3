// SPDX-License-Identifier: Apache-2.0
//! What a query can name while it is planned: the relations and views of its batch and the reviewed functions.
//!
//! There is no catalog behind this. A file, a URL, a table of another batch or a table function cannot be planned,
//! because nothing here could find it.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{DFSchema, TableReference, plan_err};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner, PlannerResult, RawBinaryExpr, TypePlanner};
use datafusion::logical_expr::{
    AggregateUDF, BinaryExpr, Expr, ExprSchemable, HigherOrderUDF, LogicalPlan, Operator, ScalarUDF, TableSource,
    WindowUDF, cast, lit,
};
use datafusion::sql::planner::{NullOrdering, ParserOptions, SqlToRel};
use datafusion::sql::sqlparser::ast::{BinaryOperator, DataType as SqlType, Query, Statement, TimezoneInfo};

/// The zone of every timestamp that is a point in time.
pub(crate) const ZONE: &str = "UTC";

/// The relations and views of one batch, by name.
pub(crate) type Tables = BTreeMap<String, Arc<dyn TableSource>>;

/// Turns a checked query into a plan.
pub(crate) fn plan_query(state: &SessionState, tables: &Tables, query: &Query) -> Result<LogicalPlan> {
    let names = Names { state, tables };
    let options = ParserOptions::new()
        .with_enable_ident_normalization(false)
        .with_collect_spans(true)
        .with_map_string_types_to_utf8view(false)
        // As Spark: nulls come first, and last where the order descends. Which row wins in a "keep the latest" query
        // depends on it.
        .with_default_null_ordering(NullOrdering::NullsMin);
    SqlToRel::new_with_options(&names, options).sql_statement_to_plan(Statement::Query(Box::new(query.clone())))
}

struct Names<'a> {
    state: &'a SessionState,
    tables: &'a Tables,
}

impl ContextProvider for Names<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        match &name {
            TableReference::Bare { table } => match self.tables.get(table.as_ref()) {
                Some(source) => Ok(Arc::clone(source)),
                None => plan_err!("there is no relation or view `{table}` here"),
            },
            _ => plan_err!("`{name}` has a qualifier: only relations and views of this batch can be named"),
        }
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        self.state.expr_planners()
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(Arc::new(SparkTypes))
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.state.scalar_functions().get(name).cloned()
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.state.higher_order_functions().get(name).cloned()
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.state.aggregate_functions().get(name).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.state.window_functions().get(name).cloned()
    }

    fn get_variable_type(&self, _names: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        self.state.config_options()
    }

    fn udf_names(&self) -> Vec<String> {
        self.state.scalar_functions().keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        self.state.higher_order_functions().keys().cloned().collect()
    }

    fn udaf_names(&self) -> Vec<String> {
        self.state.aggregate_functions().keys().cloned().collect()
    }

    fn udwf_names(&self) -> Vec<String> {
        self.state.window_functions().keys().cloned().collect()
    }
}

/// Spark's `TIMESTAMP` is a point in time with microseconds, `TIMESTAMP_NTZ` is one without a zone; both are what a
/// Hudi table stores. The engine alone would take nanoseconds, which neither Hudi nor Spark has.
#[derive(Debug)]
struct SparkTypes;

impl TypePlanner for SparkTypes {
    fn plan_type_field(&self, sql_type: &SqlType) -> Result<Option<FieldRef>> {
        let zone = match sql_type {
            SqlType::Timestamp(_, TimezoneInfo::WithoutTimeZone) | SqlType::TimestampNtz(_) => None,
            SqlType::Timestamp(_, _) => Some(ZONE.into()),
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Field::new("", DataType::Timestamp(TimeUnit::Microsecond, zone), true))))
    }
}

/// Division as Spark does it: `/` of whole numbers is a fraction, `DIV` a whole number, and by zero it is null.
#[derive(Debug)]
pub(crate) struct SparkDivision;

impl ExprPlanner for SparkDivision {
    fn plan_binary_op(&self, raw: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let whole = |expr: &Expr| expr.get_type(schema).is_ok_and(|data_type| data_type.is_integer());
        if !whole(&raw.left) || !whole(&raw.right) {
            return Ok(PlannerResult::Original(raw));
        }
        let (operand, zero) = match raw.op {
            BinaryOperator::Divide => (DataType::Float64, lit(0.0f64)),
            BinaryOperator::MyIntegerDivide => (DataType::Int64, lit(0i64)),
            _ => return Ok(PlannerResult::Original(raw)),
        };
        let divisor = nullif(cast(raw.right, operand.clone()), zero);
        let quotient =
            Expr::BinaryExpr(BinaryExpr::new(Box::new(cast(raw.left, operand)), Operator::Divide, Box::new(divisor)));
        Ok(PlannerResult::Planned(quotient))
    }
}
