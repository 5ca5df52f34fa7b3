// SPDX-License-Identifier: Apache-2.0
//! Steps written in Rust, as tables of the engine: plans in, streams of rows through the step, one table out.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, TableType};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::distribution_requirements::InputDistributionRequirements;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions, SchedulingType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use tributary_api::merge::Error;
use tributary_api::transform::{Input, InputSchema, MultiTransform, TransformError};
use tributary_api::{RowError, RowStream};
use tributary_types::{Code, Fault, Retry};

use crate::error::{from_execution, sql_error};

/// What an input that is no source is called.
pub(crate) const RESULT_INPUT: &str = "SRC";

/// An input of a step: its name and its plan.
pub(crate) type NamedPlan = (String, LogicalPlan);

/// The result of a step over its inputs.
pub(crate) struct TransformTable {
    name: String,
    transform: Arc<dyn MultiTransform>,
    inputs: Vec<NamedPlan>,
    schema: SchemaRef,
}

impl TransformTable {
    /// Asks the step for the schema of its result.
    pub(crate) fn plan(
        name: &str,
        transform: Arc<dyn MultiTransform>,
        inputs: Vec<NamedPlan>,
    ) -> std::result::Result<Self, Error> {
        let schemas: Vec<InputSchema> = inputs
            .iter()
            .map(|(name, plan)| InputSchema { name: name.clone(), schema: Arc::new(plan.schema().as_arrow().clone()) })
            .collect();
        let refuse = |what: String| sql_error(None, format!("Rust step `{name}`: {what}"));
        let schema = transform.schema(&schemas).map_err(|error| refuse(error.message))?;
        if schema.fields().is_empty() {
            return Err(refuse("its result has no column".to_string()));
        }
        Ok(TransformTable { name: name.to_string(), transform, inputs, schema })
    }
}

impl fmt::Debug for TransformTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransformTable").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for TransformTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (name, plan) in &self.inputs {
            inputs.push((name.clone(), state.create_physical_plan(plan).await?));
        }
        let columns = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let step = Step { name: self.name.clone(), transform: Arc::clone(&self.transform), schema: self.schema() };
        Ok(Arc::new(TransformExec::new(step, inputs, columns)?))
    }
}

/// A step as it runs.
#[derive(Clone)]
struct Step {
    name: String,
    transform: Arc<dyn MultiTransform>,
    /// Schema of its result.
    schema: SchemaRef,
}

/// Runs a step: all of each input goes to it in one stream.
struct TransformExec {
    step: Step,
    names: Vec<String>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    /// Columns of the result that are wanted.
    columns: Vec<usize>,
    properties: Arc<PlanProperties>,
}

impl TransformExec {
    fn new(step: Step, inputs: Vec<(String, Arc<dyn ExecutionPlan>)>, columns: Vec<usize>) -> Result<Self> {
        let schema = Arc::new(step.schema.project(&columns)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::NonCooperative);
        let (names, inputs) = inputs.into_iter().unzip();
        Ok(TransformExec { step, names, inputs, columns, properties: Arc::new(properties) })
    }

    fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if inputs.len() != self.inputs.len() {
            return internal_err!("step `{}` has {} inputs, not {}", self.step.name, self.inputs.len(), inputs.len());
        }
        Ok(Arc::new(TransformExec {
            step: self.step.clone(),
            names: self.names.clone(),
            inputs,
            columns: self.columns.clone(),
            properties: Arc::clone(&self.properties),
        }))
    }
}

impl fmt::Debug for TransformExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransformExec").field("name", &self.step.name).field("inputs", &self.inputs).finish()
    }
}

impl DisplayAs for TransformExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransformExec: {}, inputs=[{}]", self.step.name, self.names.join(", "))
    }
}

impl ExecutionPlan for TransformExec {
    fn name(&self) -> &'static str {
        "TransformExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition; self.inputs.len()])
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_inputs(children)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_inputs(children)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("a step runs in one partition, there is no partition {partition}");
        }
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (name, plan) in self.names.iter().zip(&self.inputs) {
            let rows = plan.execute(0, Arc::clone(&context))?;
            let rows: RowStream = Box::pin(rows.map_err(as_input_error));
            inputs.push(Input { name: name.clone(), schema: plan.schema(), rows });
        }
        let rows = self.step.transform.apply(inputs).map_err(|error| external(RowError::new(error)))?;
        let (step, columns) = (self.step.clone(), self.columns.clone());
        let batches = rows.map(move |batch| match batch {
            Ok(batch) => accept(&step, batch).and_then(|batch| Ok(batch.project(&columns)?)),
            Err(error) => Err(external(error)),
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            Arc::clone(self.properties.equivalence_properties().schema()),
            batches,
        )))
    }
}

/// Rows must have the schema that the step announced; what a schema says beside names and types does not count.
fn accept(step: &Step, batch: RecordBatch) -> Result<RecordBatch> {
    let found = batch.schema();
    let same =
        found.fields().len() == step.schema.fields().len()
            && found.fields().iter().zip(step.schema.fields()).all(|(found, announced)| {
                found.name() == announced.name() && found.data_type() == announced.data_type()
            });
    let refuse =
        |what: String| external(RowError::new(TransformError::new(format!("Rust step `{}`: {what}", step.name))));
    if !same {
        let shown = |schema: &Schema| {
            let fields = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
            fields.collect::<Vec<_>>().join(", ")
        };
        let (found, announced) = (shown(&found), shown(&step.schema));
        return Err(refuse(format!("it announced the columns {announced} and delivers {found}")));
    }
    RecordBatch::try_new(Arc::clone(&step.schema), batch.columns().to_vec()).map_err(|error| refuse(error.to_string()))
}

fn external(error: RowError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// An error of a step's input as the step sees it: the classification it had, and the engine's own error behind it, by
/// which memory that ran out is still known for that.
fn as_input_error(error: DataFusionError) -> RowError {
    if let Some(found) = RowError::find(&error) {
        return found.clone();
    }
    let classified = from_execution(&error, 0, 0);
    RowError::new(InputFailed {
        code: classified.code(),
        retry: classified.retry(),
        reason: classified.reason(),
        message: classified.to_string(),
        source: error,
    })
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct InputFailed {
    code: Code,
    retry: Retry,
    reason: &'static str,
    message: String,
    #[source]
    source: DataFusionError,
}

impl Fault for InputFailed {
    fn code(&self) -> Code {
        self.code
    }

    fn retry(&self) -> Retry {
        self.retry
    }

    fn reason(&self) -> &'static str {
        self.reason
    }
}
