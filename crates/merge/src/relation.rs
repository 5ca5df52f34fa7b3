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
use tributary_api::ReadCounter;
use tributary_api::timeline::{Relation, Split, Timeline};
use tributary_types::MemoryBudget;

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

/// Deals splits out to at most `parts` groups of about the same size in bytes: the largest first, each to the group
/// that has least. Inside a group they keep their order. There is always one group, if an empty one.
pub(crate) fn balance(splits: &[Split], parts: usize) -> Vec<Vec<Split>> {
    let parts = parts.clamp(1, splits.len().max(1));
    let mut by_size: Vec<usize> = (0..splits.len()).collect();
    by_size.sort_by_key(|position| std::cmp::Reverse(splits[*position].total_bytes()));
    let mut groups: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new()); parts];
    for position in by_size {
        let lightest = groups.iter_mut().min_by_key(|(bytes, members)| (*bytes, members.len()));
        if let Some((bytes, members)) = lightest {
            *bytes = bytes.saturating_add(splits[position].total_bytes());
            members.push(position);
        }
    }
    groups
        .into_iter()
        .map(|(_, mut members)| {
            members.sort_unstable();
            members.into_iter().map(|position| splits[position].clone()).collect()
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn split(path: &str, bytes: u64) -> Split {
        Split {
            url: "/t".to_string(),
            partition: String::new(),
            file_id: path.to_string(),
            path: path.to_string(),
            bytes,
            logs: None,
            instants: None,
            all_but: false,
            file: None,
        }
    }

    fn paths(groups: &[Vec<Split>]) -> Vec<Vec<&str>> {
        groups.iter().map(|group| group.iter().map(|split| split.path.as_str()).collect()).collect()
    }

    #[test]
    fn splits_are_balanced_by_bytes_and_keep_their_order() {
        let splits = [split("a", 10), split("b", 90), split("c", 40), split("d", 45)];
        assert_eq!(paths(&balance(&splits, 2)), [vec!["b"], vec!["a", "c", "d"]]);
    }

    #[test]
    fn there_are_never_more_groups_than_splits_and_never_none() {
        assert_eq!(paths(&balance(&[], 4)), [Vec::<&str>::new()]);
        assert_eq!(paths(&balance(&[split("a", 0)], 4)), [vec!["a"]]);
        let unknown_sizes = [split("a", 0), split("b", 0), split("c", 0), split("d", 0)];
        assert_eq!(paths(&balance(&unknown_sizes, 2)), [vec!["a", "c"], vec!["b", "d"]]);
    }
}
