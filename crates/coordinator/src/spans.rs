// SPDX-License-Identifier: Apache-2.0
//! The spans of a batch: what a trace shows of it, and what its log lines say.

use tracing::Span;
use tracing::field::Empty;
use tributary_api::coordinator::BatchStatus;
use tributary_types::{Outcome, Stage};

/// The span of a whole batch. Whoever asked for it may have begun the trace.
pub(crate) fn batch_span(first: &BatchStatus) -> Span {
    tracing::info_span!(
        "batch",
        role = "coordinator",
        pipeline = %first.pipeline,
        batch = %first.name,
        instant = Empty,
        outcome = Empty,
        rows = Empty,
        reason = Empty,
        error = Empty,
    )
}

/// Says in the batch's span, which is the current one, how the batch ended.
pub(crate) fn close_span(ended: &BatchStatus) {
    let span = Span::current();
    span.record("outcome", ended.outcome.unwrap_or(Outcome::Failed).as_str());
    span.record("rows", ended.written.rows);
    if let Some(failure) = &ended.error {
        span.record("reason", failure.reason.as_str());
        span.record("error", failure.message.as_str());
    }
}

/// The span of a stage; its name is that of the stage.
pub(crate) fn stage_span(stage: Stage) -> Span {
    tracing::info_span!("stage", otel.name = stage.as_str().to_lowercase())
}
