// SPDX-License-Identifier: Apache-2.0
//! Where queries run: on threads of their own.
//!
//! An operator may compute for long without a pause, and what never pauses cannot be stopped. On the threads of the
//! process it would take the place of everything else: answers to callers, heartbeats, the end of the process. These
//! threads end with the process, whatever runs on them.

use std::sync::OnceLock;

use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use futures::StreamExt;
use tokio::runtime::{Builder, Runtime};
use tracing::Instrument as _;

use crate::engine::Attempt;

/// Threads for each processor: a query that was given up and does not pause keeps at most one for each of its
/// partitions, and what comes after it finds others. The system shares the processors among them.
const THREADS_PER_PROCESSOR: usize = 4;

static THREADS: OnceLock<std::io::Result<Runtime>> = OnceLock::new();

/// Made once: a second runtime that lost a race would have to be dropped here, where blocking is not allowed.
fn threads() -> Result<&'static Runtime, DataFusionError> {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let made = THREADS.get_or_init(|| {
        let threads = THREADS_PER_PROCESSOR * processors;
        Builder::new_multi_thread().worker_threads(threads).thread_name("query").enable_all().build()
    });
    made.as_ref().map_err(|e| DataFusionError::IoError(std::io::Error::new(e.kind(), e.to_string())))
}

/// Starts an attempt; its rows are computed on the threads of queries, one batch ahead of the reader.
pub(crate) fn start(attempt: &Attempt) -> Result<SendableRecordBatchStream, DataFusionError> {
    let threads = threads()?;
    let _context = threads.enter();
    let mut query = attempt.start()?;
    let mut builder = RecordBatchReceiverStreamBuilder::new(query.schema(), 1);
    let sender = builder.tx();
    // Dropping the reader aborts the task, where it pauses.
    let running = async move {
        while let Some(batch) = query.next().await {
            if sender.send(batch).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    builder.spawn(running.in_current_span());
    Ok(builder.build())
}
