// SPDX-License-Identifier: Apache-2.0
//! Cursors of pipelines and records of batches.

use std::time::Duration;

use tributary_api::checkpoint::{BatchRecord, CursorCommit, Resolved};
use tributary_types::{Checkpoint, InstantTime, PipelineName, RequestId};

use super::{
    Malformed, WireEnum, millis_from_proto, millis_to_proto, optional, required, text, window_from_proto,
    window_to_proto,
};
use crate::proto::checkpoint as proto;

/// Where a pipeline stands, for the wire.
pub fn resolved_to_proto(resolved: &Resolved) -> proto::ResolveResponse {
    let newest = resolved.newest.as_ref();
    proto::ResolveResponse {
        newest: newest.map(|commit| proto::CursorCommit {
            instant: commit.instant.to_string(),
            completed: text(commit.completed.as_ref()),
            checkpoint: commit.checkpoint.to_json(),
        }),
        shared_target: resolved.shared_target,
        next_epoch: resolved.next_epoch,
        repaired: resolved.repaired.clone(),
    }
}

/// Where `pipeline` stands, from the wire.
pub fn resolved_from_proto(pipeline: &PipelineName, resolved: proto::ResolveResponse) -> Result<Resolved, Malformed> {
    let newest = match resolved.newest {
        None => None,
        Some(commit) => {
            let instant: InstantTime = commit.instant.parse().map_err(|e| Malformed::new("newest.instant", e))?;
            let checkpoint = Checkpoint::from_json(pipeline, &instant, &commit.checkpoint);
            Some(CursorCommit {
                instant,
                completed: optional(&commit.completed, "newest.completed")?,
                checkpoint: checkpoint.map_err(|e| Malformed::new("newest.checkpoint", e))?,
            })
        }
    };
    Ok(Resolved {
        newest,
        shared_target: resolved.shared_target,
        next_epoch: resolved.next_epoch,
        repaired: resolved.repaired,
    })
}

/// A record for the wire.
pub fn record_to_proto(record: &BatchRecord) -> proto::BatchRecord {
    let windows = record.windows.iter();
    proto::BatchRecord {
        name: record.name.clone(),
        pipeline: record.pipeline.to_string(),
        request_id: record.request.to_string(),
        outcome: record.outcome.to_wire(),
        instant: text(record.instant.as_ref()),
        completed: text(record.completed.as_ref()),
        windows: windows
            .map(|(source, window)| proto::SourceWindow {
                source: source.clone(),
                window: Some(window_to_proto(window)),
            })
            .collect(),
        rows: record.rows,
        start_time: Some(millis_to_proto(record.started_millis)),
        took: prost_types::Duration::try_from(Duration::from_millis(record.took_millis)).ok(),
        error: record.error.clone(),
    }
}

/// A record from the wire.
pub fn record_from_proto(record: proto::BatchRecord) -> Result<BatchRecord, Malformed> {
    let mut windows = Vec::with_capacity(record.windows.len());
    for entry in record.windows {
        let window = window_from_proto(required(entry.window, "windows.window")?);
        windows.push((entry.source, window.map_err(|e| e.within("windows.window"))?));
    }
    let took = Duration::try_from(record.took.unwrap_or_default()).map_err(|e| Malformed::new("took", e))?;
    Ok(BatchRecord {
        name: record.name,
        pipeline: PipelineName::new(record.pipeline).map_err(|e| Malformed::new("pipeline", e))?,
        request: RequestId::new(record.request_id).map_err(|e| Malformed::new("request_id", e))?,
        outcome: WireEnum::from_wire(record.outcome)?,
        instant: optional(&record.instant, "instant")?,
        completed: optional(&record.completed, "completed")?,
        windows,
        rows: record.rows,
        started_millis: millis_from_proto(required(record.start_time, "start_time")?),
        took_millis: took.as_millis() as u64,
        error: record.error,
    })
}
