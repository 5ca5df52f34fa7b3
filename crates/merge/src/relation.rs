// SPDX-License-Identifier: Apache-2.0
//! A pinned relation as a table of the engine.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use tracing::Span;
use tributary_api::ReadCounter;
use tributary_api::timeline::{Relation, Split, Timeline, balance};
use tributary_types::{MemoryBudget, SourceName};

use crate::predicate::{Condition, from_expr};
use crate::scan::RelationExec;

/// Bytes that a value of variable length is taken to have, for choosing joins.
const TYPICAL_TEXT: usize = 24;

/// What every scan of a relation needs.
#[derive(Clone)]
pub(crate) struct Source {
    /// The placeholder that names the relation, for plans.
    pub(crate) name: String,
    /// Full schema of the relation.
    pub(crate) schema: SchemaRef,
    /// Where what is asked for are refused records: the schema that their reader reads records by.
    pub(crate) refused_by: Option<SchemaRef>,
    /// Whoever reads it.
    pub(crate) timeline: Arc<dyn Timeline>,
    /// Counts the rows read of the relation's source.
    pub(crate) read: Arc<ReadCounter>,
    /// Rows of a record batch.
    pub(crate) batch_rows: usize,
    /// Bytes in memory of one byte in a file.
    pub(crate) expansion: usize,
    /// The batch's memory.
    pub(crate) memory: MemoryBudget,
    /// The source's name, and the span below which it is read: a scan may start on any task of the engine.
    pub(crate) source: SourceName,
    pub(crate) span: Span,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A relation that queries can name. It never changes: what was pinned is what is read.
#[derive(Debug)]
pub(crate) struct RelationTable {
    source: Arc<Source>,
    splits: Vec<Split>,
}

impl RelationTable {
    /// The relation behind `source`, made of `relation`'s splits.
    pub(crate) fn new(source: Source, relation: Relation) -> Self {
        RelationTable { source: Arc::new(source), splits: relation.splits }
    }
}

#[async_trait]
impl TableProvider for RelationTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.source.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let answers = filters.iter().map(|filter| match from_expr(filter, &self.source.schema) {
            Condition::Always => TableProviderFilterPushDown::Unsupported,
            // A scan may leave rows out or not, so the engine filters again.
            _ => TableProviderFilterPushDown::Inexact,
        });
        Ok(answers.collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let condition = Condition::and(filters.iter().map(|filter| from_expr(filter, &self.source.schema)));
        let columns = projection.cloned().unwrap_or_else(|| (0..self.source.schema.fields().len()).collect());
        let groups = balance(&self.splits, state.config().target_partitions());
        let scan = RelationExec::try_new(Arc::clone(&self.source), columns, groups, condition)?;
        Ok(Arc::new(scan))
    }
}

/// About how many bytes a value of `data_type` takes in memory.
pub(crate) fn typical_width(data_type: &DataType) -> usize {
    match data_type {
        DataType::Boolean | DataType::Null => 1,
        DataType::Struct(fields) => fields.iter().map(|field| typical_width(field.data_type())).sum(),
        DataType::List(inner) | DataType::Map(inner, _) => 4 * typical_width(inner.data_type()),
        other => other.primitive_width().unwrap_or(TYPICAL_TEXT),
    }
}
