// SPDX-License-Identifier: Apache-2.0
//! Who wants to know of the batches of a coordinator as they go.

use arrow::datatypes::SchemaRef;
use tributary_types::SourceName;
use tributary_types::pipeline::Pipeline;

use crate::coordinator::BatchStatus;
use crate::merge::ColumnOrigins;

/// Told about every batch that runs, in order, from its own task. An implementer must neither wait nor fail, and says so
/// to nobody: the batch goes on.
pub trait BatchObserver: Send + Sync + 'static {
    /// A batch begins.
    fn began(&self, pipeline: &Pipeline, status: &BatchStatus);

    /// The windows of a batch are fixed, and so is its result's schema. A batch without news is planned as well.
    fn planned(&self, pipeline: &Pipeline, status: &BatchStatus, schemas: Schemas);

    /// A batch is over.
    fn ended(&self, pipeline: &Pipeline, status: &BatchStatus);

    /// How a batch ended was found out afterwards: its process was killed, or did not learn whether its commit arrived.
    /// Its pipeline may be another one by now, so only its target is told.
    fn found_out(&self, target: &str, status: &BatchStatus);
}

/// The schemas of a batch.
#[derive(Debug, Clone)]
pub struct Schemas {
    /// Of each source, where it has one.
    pub sources: Vec<(SourceName, Option<SchemaRef>)>,
    /// Of the target after the batch.
    pub target: SchemaRef,
    /// What columns of the query's result are made of, where it is known.
    pub origins: Vec<(String, ColumnOrigins)>,
}
