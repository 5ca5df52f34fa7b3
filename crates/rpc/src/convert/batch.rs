// SPDX-License-Identifier: Apache-2.0
//! Batches and plans.

use std::time::Duration;

use tributary_api::coordinator::{BatchStatus, Failure, PlannedBatch, Refused, RefusedCount, SourceStatus, Written};
use tributary_types::{BatchName, Outcome, PipelineName, RequestId, SourceName, Stage};

use super::{
    Malformed, WireEnum, millis_from_proto, millis_to_proto, optional, override_statuses_from_proto,
    override_statuses_to_proto, report_from_proto, report_to_proto, required, text, window_from_proto, window_to_proto,
};
use crate::proto::{common, coordinator as proto};

/// A batch for the wire.
pub fn batch_to_proto(status: &BatchStatus) -> proto::Batch {
    proto::Batch {
        name: status.name.to_string(),
        pipeline: status.pipeline.to_string(),
        request_id: status.request.to_string(),
        stage: status.stage.to_wire(),
        outcome: status.outcome.map(WireEnum::to_wire).unwrap_or(common::Outcome::Unspecified as i32),
        instant: text(status.instant.as_ref()),
        completed: text(status.completed.as_ref()),
        seq: status.seq,
        sources: status.sources.iter().map(source_to_proto).collect(),
        written: Some(written_to_proto(&status.written)),
        timings: status.timings.iter().map(|(stage, millis)| stage_time(*stage, *millis)).collect(),
        peak_memory_bytes: status.peak_memory,
        error: status.error.as_ref().map(failure_to_proto),
        start_time: Some(millis_to_proto(status.started_millis)),
        asked_by: status.asked_by.clone(),
        overrides: override_statuses_to_proto(&status.overrides),
        refused: refused_to_proto(&status.refused),
    }
}

fn refused_to_proto(refused: &Refused) -> Option<proto::Refused> {
    let count = |count: &RefusedCount| proto::RefusedCount {
        source: count.source.clone(),
        reason: count.reason.clone(),
        rows: count.rows,
    };
    (refused != &Refused::default()).then(|| proto::Refused {
        counts: refused.counts.iter().map(count).collect(),
        instant: text(refused.instant.as_ref()),
    })
}

fn refused_from_proto(refused: proto::Refused) -> Result<Refused, Malformed> {
    let count =
        |count: proto::RefusedCount| RefusedCount { source: count.source, reason: count.reason, rows: count.rows };
    Ok(Refused {
        counts: refused.counts.into_iter().map(count).collect(),
        instant: optional(&refused.instant, "refused.instant")?,
    })
}

/// A batch from the wire.
pub fn batch_from_proto(batch: proto::Batch) -> Result<BatchStatus, Malformed> {
    let outcome = match batch.outcome {
        0 => None,
        number => Some(Outcome::from_wire(number)?),
    };
    let mut timings = Vec::with_capacity(batch.timings.len());
    for timing in batch.timings {
        let time = Duration::try_from(timing.time.unwrap_or_default()).map_err(|e| Malformed::new("timings", e))?;
        timings.push((Stage::from_wire(timing.stage)?, time.as_millis() as u64));
    }
    Ok(BatchStatus {
        name: BatchName::new(batch.name).map_err(|e| Malformed::new("name", e))?,
        pipeline: PipelineName::new(batch.pipeline).map_err(|e| Malformed::new("pipeline", e))?,
        request: RequestId::new(batch.request_id).map_err(|e| Malformed::new("request_id", e))?,
        asked_by: batch.asked_by,
        stage: Stage::from_wire(batch.stage)?,
        outcome,
        instant: optional(&batch.instant, "instant")?,
        completed: optional(&batch.completed, "completed")?,
        seq: batch.seq,
        sources: sources_from_proto(batch.sources)?,
        overrides: override_statuses_from_proto(batch.overrides)?,
        written: written_from_proto(batch.written.unwrap_or_default()),
        refused: refused_from_proto(batch.refused.unwrap_or_default())?,
        timings,
        peak_memory: batch.peak_memory_bytes,
        error: batch.error.map(failure_from_proto).transpose().map_err(|e| e.within("error"))?,
        started_millis: millis_from_proto(required(batch.start_time, "start_time")?),
    })
}

/// A plan for the wire.
pub fn plan_to_proto(plan: &PlannedBatch) -> proto::BatchPlan {
    proto::BatchPlan {
        sources: plan.sources.iter().map(source_to_proto).collect(),
        has_news: plan.has_news,
        logical_plan: plan.logical_plan.clone(),
        physical_plan: plan.physical_plan.clone(),
        columns: plan
            .columns
            .iter()
            .map(|(name, type_name)| proto::Column { name: name.clone(), r#type: type_name.clone() })
            .collect(),
        overrides: override_statuses_to_proto(&plan.overrides),
    }
}

/// A plan from the wire.
pub fn plan_from_proto(plan: proto::BatchPlan) -> Result<PlannedBatch, Malformed> {
    Ok(PlannedBatch {
        sources: sources_from_proto(plan.sources)?,
        overrides: override_statuses_from_proto(plan.overrides)?,
        has_news: plan.has_news,
        logical_plan: plan.logical_plan,
        physical_plan: plan.physical_plan,
        columns: plan.columns.into_iter().map(|column| (column.name, column.r#type)).collect(),
    })
}

fn stage_time(stage: Stage, millis: u64) -> proto::StageTime {
    // A time too long for the message is none that a batch can take.
    let time = prost_types::Duration::try_from(Duration::from_millis(millis)).ok();
    proto::StageTime { stage: stage.to_wire(), time }
}

fn source_to_proto(source: &SourceStatus) -> proto::SourceStatus {
    proto::SourceStatus {
        source: source.source.to_string(),
        window: source.window.as_ref().map(window_to_proto),
        report: Some(report_to_proto(&source.report)),
        rows: source.rows,
        bytes_read: source.bytes_read,
    }
}

fn sources_from_proto(sources: Vec<proto::SourceStatus>) -> Result<Vec<SourceStatus>, Malformed> {
    let mut converted = Vec::with_capacity(sources.len());
    for (position, source) in sources.into_iter().enumerate() {
        converted.push(source_from_proto(source).map_err(|e| e.within(&format!("sources[{position}]")))?);
    }
    Ok(converted)
}

fn source_from_proto(source: proto::SourceStatus) -> Result<SourceStatus, Malformed> {
    Ok(SourceStatus {
        source: SourceName::new(source.source).map_err(|e| Malformed::new("source", e))?,
        window: source.window.map(window_from_proto).transpose().map_err(|e| e.within("window"))?,
        report: report_from_proto(source.report.unwrap_or_default()).map_err(|e| e.within("report"))?,
        rows: source.rows,
        bytes_read: source.bytes_read,
    })
}

fn written_to_proto(written: &Written) -> proto::Written {
    proto::Written {
        rows: written.rows,
        inserts: written.inserts,
        updates: written.updates,
        files: written.files,
        bytes: written.bytes,
        combined: written.combined,
        outdated: written.outdated,
        without_key: written.without_key,
        deletes: written.deletes,
        absent: written.absent,
        replaced_groups: written.replaced_groups,
    }
}

fn written_from_proto(written: proto::Written) -> Written {
    Written {
        rows: written.rows,
        inserts: written.inserts,
        updates: written.updates,
        files: written.files,
        bytes: written.bytes,
        combined: written.combined,
        outdated: written.outdated,
        without_key: written.without_key,
        deletes: written.deletes,
        absent: written.absent,
        replaced_groups: written.replaced_groups,
    }
}

fn failure_to_proto(failure: &Failure) -> proto::Failure {
    proto::Failure {
        code: failure.code.to_wire(),
        retry: failure.retry.to_wire(),
        reason: failure.reason.clone(),
        message: failure.message.clone(),
    }
}

fn failure_from_proto(failure: proto::Failure) -> Result<Failure, Malformed> {
    Ok(Failure {
        code: WireEnum::from_wire(failure.code)?,
        retry: WireEnum::from_wire(failure.retry)?,
        reason: failure.reason,
        message: failure.message,
    })
}
