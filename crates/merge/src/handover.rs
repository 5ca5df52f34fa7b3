// SPDX-License-Identifier: Apache-2.0
//! The stream of rows from the query into the writer.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use futures::{Stream, StreamExt};
use tributary_api::RowError;
use tributary_api::merge::Error;

use crate::error::{for_the_writer, from_execution, internal};

/// What became of the rows, for the one who waits for the writer.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    rows: AtomicU64,
    ended: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl Progress {
    /// Rows handed over.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Whether the writer saw the end of the stream.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Why the stream ended early. The writer only passes on what it was told of it.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Limits that apply to the stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamLimits {
    /// Rows at most.
    pub(crate) max_rows: Option<u64>,
    /// The query's memory, for messages.
    pub(crate) share: usize,
    /// The query's temporary disk space, for messages.
    pub(crate) spill_bytes: u64,
}

/// Rows of a query. Ends at the first error.
pub(crate) struct Rows {
    first: Option<RecordBatch>,
    query: Option<SendableRecordBatchStream>,
    schema: SchemaRef,
    limits: StreamLimits,
    progress: Arc<Progress>,
}

impl Rows {
    /// `first` and then what `query` still has, as batches of `schema`.
    pub(crate) fn new(
        first: Option<RecordBatch>,
        query: SendableRecordBatchStream,
        schema: SchemaRef,
        limits: StreamLimits,
    ) -> (Self, Arc<Progress>) {
        let progress = Arc::new(Progress::default());
        (Rows { first, query: Some(query), schema, limits, progress: Arc::clone(&progress) }, progress)
    }

    fn accept(&self, batch: &RecordBatch) -> Result<RecordBatch, Error> {
        let before = self.progress.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        let rows = before + batch.num_rows() as u64;
        if let Some(max_rows) = self.limits.max_rows.filter(|max_rows| rows > *max_rows) {
            return Err(Error::Limit {
                limit: "rows",
                detail: format!(
                    "the query's result has more than {max_rows} rows, which this process was built to allow; take \
                     smaller windows (`source.num_instants`), or fewer rows with WHERE"
                ),
            });
        }
        // The engine's own schema may say "not null" where ours does not.
        RecordBatch::try_new(Arc::clone(&self.schema), batch.columns().to_vec())
            .map_err(|error| internal(format!("the query's rows do not have its planned schema: {error}")))
    }

    fn fail(&mut self, error: Error) -> RowError {
        // Dropped here, not with the stream: the writer may hold on to that.
        self.query = None;
        let told = for_the_writer(&error);
        *self.progress.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        told
    }
}

impl Stream for Rows {
    type Item = Result<RecordBatch, RowError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let next: Option<Result<RecordBatch, DataFusionError>> = match this.first.take() {
                Some(first) => Some(Ok(first)),
                None => match &mut this.query {
                    Some(query) => futures::ready!(query.poll_next_unpin(context)),
                    None => return Poll::Ready(None),
                },
            };
            let accepted = match next {
                None => {
                    this.query = None;
                    this.progress.ended.store(true, Ordering::Release);
                    return Poll::Ready(None);
                }
                Some(Ok(batch)) if batch.num_rows() == 0 => continue,
                Some(Ok(batch)) => this.accept(&batch),
                Some(Err(error)) => Err(from_execution(&error, this.limits.share, this.limits.spill_bytes)),
            };
            return Poll::Ready(Some(accepted.map_err(|error| this.fail(error))));
        }
    }
}
