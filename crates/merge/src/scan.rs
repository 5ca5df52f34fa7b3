// SPDX-License-Identifier: Apache-2.0
//! Reads a pinned relation, split by split, from the timeline role.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch, RecordBatchOptions, UInt32Array};
use datafusion::arrow::compute::take_record_batch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Statistics, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions, SchedulingType};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties, StatisticsArgs,
};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tracing::Span;
use tributary_api::timeline::{ReadRequest, Split};
use tributary_api::{RowError, RowStream};
use tributary_types::{Code, Fault};

use crate::predicate::{Condition, from_physical};
use crate::relation::{Source, typical_width};

/// Memory that a batch may keep alive unseen without being copied.
const SLACK: usize = 64 << 10;

/// Scan of a relation: some of its columns, its splits dealt out to partitions.
#[derive(Debug, Clone)]
pub(crate) struct RelationExec {
    source: Arc<Source>,
    columns: Vec<usize>,
    schema: SchemaRef,
    groups: Vec<Vec<Split>>,
    condition: Condition,
    /// Filters that the rest of the query fills in while it runs, such as the keys on the other side of a join.
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RelationExec {
    pub(crate) fn try_new(
        source: Arc<Source>,
        columns: Vec<usize>,
        groups: Vec<Vec<Split>>,
        condition: Condition,
    ) -> Result<Self> {
        let schema = Arc::new(source.schema.project(&columns)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(groups.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Ok(RelationExec {
            source,
            columns,
            schema,
            groups,
            condition,
            dynamic: Vec::new(),
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// Bytes that all rows are estimated to take in memory, of the columns read only.
    pub(crate) fn estimated_bytes(&self) -> u64 {
        self.groups.iter().fold(0, |sum, group| sum.saturating_add(self.estimated_group_bytes(group)))
    }

    fn estimated_group_bytes(&self, group: &[Split]) -> u64 {
        let bytes = group.iter().fold(0u64, |sum, split| sum.saturating_add(split.total_bytes()));
        let read = self.row_width(&self.schema) as u64;
        let whole = self.row_width(&self.source.schema).max(1) as u64;
        // Divided first: a table may have petabytes.
        (bytes / whole).saturating_mul(read).saturating_mul(self.source.expansion as u64)
    }

    fn row_width(&self, schema: &SchemaRef) -> usize {
        schema.fields().iter().map(|field| typical_width(field.data_type())).sum()
    }

    fn estimated_statistics(&self, groups: &[Vec<Split>]) -> Statistics {
        let bytes = groups.iter().fold(0u64, |sum, group| sum.saturating_add(self.estimated_group_bytes(group)));
        let sizes_known = groups.iter().flatten().all(Split::sizes_known);
        let mut statistics = Statistics::new_unknown(&self.schema);
        if sizes_known {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let rows = bytes / self.row_width(&self.schema).max(1);
            statistics.num_rows = Precision::Inexact(rows);
            statistics.total_byte_size = Precision::Inexact(bytes);
        }
        statistics
    }
}

impl DisplayAs for RelationExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        let splits: usize = self.groups.iter().map(Vec::len).sum();
        write!(f, "RelationExec: {}, columns=[{}], splits={splits}", self.source.name, names.join(", "))?;
        write!(f, ", partitions={}", self.groups.len())?;
        match &self.condition {
            Condition::Always => {}
            Condition::Never => write!(f, ", predicate=never")?,
            Condition::Only(predicate) => write!(f, ", predicate={predicate:?}")?,
        }
        if !self.dynamic.is_empty() {
            let filters: Vec<String> = self.dynamic.iter().map(ToString::to_string).collect();
            write!(f, ", dynamic=[{}]", filters.join(", "))?;
        }
        Ok(())
    }
}

impl ExecutionPlan for RelationExec {
    fn name(&self) -> &'static str {
        "RelationExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for filter in &self.dynamic {
            if f(filter)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("a scan of a relation has no children") }
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("a scan of a relation has no children") }
    }

    fn statistics_from_inputs(&self, _inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let groups = match args.partition() {
            Some(partition) => self.groups.get(partition).map(std::slice::from_ref).unwrap_or_default(),
            None => self.groups.as_slice(),
        };
        Ok(Arc::new(self.estimated_statistics(groups)))
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        // A scan promises nothing: whatever is pushed down is filtered again above.
        let answers = vec![PushedDown::No; result.parent_filters.len()];
        let propagation = FilterPushdownPropagation::with_parent_pushdown_result(answers);
        if phase == FilterPushdownPhase::Pre || result.parent_filters.is_empty() {
            return Ok(propagation);
        }
        let mut scan = self.clone();
        scan.dynamic.extend(result.parent_filters.into_iter().map(|pushed| pushed.filter));
        Ok(propagation.with_updated_node(Arc::new(scan)))
    }

    fn execute(&self, partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(splits) = self.groups.get(partition).cloned() else {
            return internal_err!("a scan of {} partitions has no partition {partition}", self.groups.len());
        };
        let reader = Arc::new(SplitReader {
            source: Arc::clone(&self.source),
            columns: self.columns.clone(),
            schema: Arc::clone(&self.schema),
            condition: self.condition.clone(),
            dynamic: self.dynamic.clone(),
        });
        let output_rows = MetricBuilder::new(&self.metrics).output_rows(partition);
        let span = tracing::info_span!(
            parent: &self.source.span,
            "read",
            source = %self.source.source,
            relation = self.source.name,
            splits = splits.len(),
        );
        let batches = stream::iter(splits)
            .then(move |split| {
                let reader = Arc::clone(&reader);
                async move { reader.open(split).await }
            })
            .try_flatten()
            .inspect_ok(move |batch| output_rows.add(batch.num_rows()));
        let batches = within(span, batches);
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// Polls a stream within a span, which lasts as long as it.
fn within<S: Stream + Send + 'static>(span: Span, stream: S) -> impl Stream<Item = S::Item> + Send {
    let mut stream = Box::pin(stream);
    stream::poll_fn(move |context| span.in_scope(|| stream.poll_next_unpin(context)))
}

/// Opens the splits of one partition, one after the other.
struct SplitReader {
    source: Arc<Source>,
    columns: Vec<usize>,
    schema: SchemaRef,
    condition: Condition,
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
}

type Batches = futures::stream::BoxStream<'static, Result<RecordBatch>>;

impl SplitReader {
    /// A split is opened when its turn comes, not before, so that filters made meanwhile apply to it.
    async fn open(self: Arc<Self>, split: Split) -> Result<Batches> {
        let dynamic = self.dynamic.iter().map(|filter| from_physical(filter, &self.schema));
        let predicate = match Condition::and([self.condition.clone()].into_iter().chain(dynamic)) {
            Condition::Never => return Ok(stream::empty().boxed()),
            Condition::Always => None,
            Condition::Only(predicate) => Some(predicate),
        };
        let refused_by = self.source.refused_by.as_ref();
        let request = ReadRequest {
            split: split.clone(),
            schema: Arc::clone(refused_by.unwrap_or(&self.source.schema)),
            // What a refused record is told by has few columns, and all of them are wanted.
            projection: refused_by.is_none().then(|| self.columns_to_ask()),
            predicate: predicate.filter(|_| refused_by.is_none()),
            batch_rows: self.source.batch_rows,
            memory: self.source.memory.clone(),
        };
        let rows: RowStream =
            self.source.timeline.read(request).await.map_err(|error| external(RowError::new(error)))?;
        let batches = rows.map(move |batch| match batch {
            Ok(batch) => self.accept(batch, &split),
            Err(error) => Err(external(error)),
        });
        Ok(batches.boxed())
    }

    /// A query that only counts rows needs no column, but a stream without columns may not carry its row count over
    /// every transport: so the first column is asked for and dropped.
    fn columns_to_ask(&self) -> Vec<usize> {
        if self.columns.is_empty() && !self.source.schema.fields().is_empty() { vec![0] } else { self.columns.clone() }
    }

    fn accept(&self, batch: RecordBatch, split: &Split) -> Result<RecordBatch> {
        let batch = match &self.source.refused_by {
            Some(_) => batch.project(&self.columns_to_ask())?,
            None => batch,
        };
        let batch = compact(batch)?;
        let rows = batch.num_rows();
        self.source.read.add(rows as u64, batch.get_array_memory_size() as u64);
        let columns = if self.columns.is_empty() { Vec::new() } else { batch.columns().to_vec() };
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(|error| {
            external(RowError::new(ForeignRows {
                relation: self.source.name.clone(),
                path: split.name().to_string(),
                detail: error.to_string(),
            }))
        })
    }
}

/// Copies a batch that keeps much more memory alive than it shows, such as a slice of a whole file: every operator
/// that holds such slices would count the file once for each.
fn compact(batch: RecordBatch) -> Result<RecordBatch> {
    let mut shown = 0;
    for column in batch.columns() {
        // Types whose slices cannot be measured are left as they are.
        let Ok(bytes) = column.to_data().get_slice_memory_size() else {
            return Ok(batch);
        };
        shown += bytes;
    }
    if batch.get_array_memory_size() <= 2 * shown + SLACK {
        return Ok(batch);
    }
    let every_row = UInt32Array::from_iter_values(0..batch.num_rows() as u32);
    Ok(take_record_batch(&batch, &every_row)?)
}

fn external(error: RowError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Rows that do not have the schema of the relation they were read for.
#[derive(Debug, thiserror::Error)]
#[error("{relation}: rows of `{path}` do not have the planned schema: {detail}")]
struct ForeignRows {
    relation: String,
    path: String,
    detail: String,
}

impl Fault for ForeignRows {
    fn code(&self) -> Code {
        Code::Internal
    }

    fn reason(&self) -> &'static str {
        "SCHEMA_BROKEN"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::many;

    #[test]
    fn a_small_slice_of_a_large_batch_is_copied_and_a_whole_batch_is_not() {
        let whole = many(0, 10_000);
        let slice = compact(whole.slice(100, 10)).unwrap();
        assert_eq!(slice, whole.slice(100, 10));
        assert!(slice.get_array_memory_size() < 10_000);
        let kept = compact(whole.clone()).unwrap();
        assert_eq!(kept.get_array_memory_size(), whole.get_array_memory_size());
    }
}
