// SPDX-License-Identifier: Apache-2.0
//! Cursors of pipelines and records of batches.

use tributary_api::checkpoint::{BatchRecord, CommitFound, CursorCommit, KnownCursor, LegacyCheckpoint, Resolved};
use tributary_types::{Checkpoint, InstantTime, PipelineName};

use super::timeline::source_name;
use super::{Malformed, batch_from_proto, batch_to_proto, json_from_proto, json_to_proto, optional, required, text};
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

/// A commit that answered a request, for the wire.
pub fn commit_found_to_proto(found: Option<&CommitFound>) -> proto::FindCommitResponse {
    proto::FindCommitResponse {
        instant: text(found.map(|found| &found.instant)),
        completed: text(found.and_then(|found| found.completed.as_ref())),
        seq: found.and_then(|found| found.seq),
        definition: found.and_then(|found| found.definition.clone()).unwrap_or_default(),
    }
}

/// A commit that answered a request, from the wire.
pub fn commit_found_from_proto(found: proto::FindCommitResponse) -> Result<Option<CommitFound>, Malformed> {
    let Some(instant) = optional(&found.instant, "instant")? else { return Ok(None) };
    let definition = Some(found.definition).filter(|definition| !definition.is_empty());
    Ok(Some(CommitFound { instant, completed: optional(&found.completed, "completed")?, seq: found.seq, definition }))
}

/// Cursors that commits have of sources, for the wire.
pub fn known_cursors_to_proto(found: &[KnownCursor]) -> proto::FindCursorsResponse {
    let one = |known: &KnownCursor| proto::KnownCursor {
        source: known.source.to_string(),
        instant: known.instant.to_string(),
        entry: json_to_proto(&known.entry),
    };
    proto::FindCursorsResponse { cursors: found.iter().map(one).collect() }
}

/// Cursors that commits have of sources, from the wire.
pub fn known_cursors_from_proto(found: proto::FindCursorsResponse) -> Result<Vec<KnownCursor>, Malformed> {
    let one = |known: proto::KnownCursor| {
        Ok(KnownCursor {
            source: source_name(known.source)?,
            instant: known.instant.parse().map_err(|e| Malformed::new("cursors.instant", e))?,
            entry: required(json_from_proto(Some(known.entry), "cursors.entry")?, "cursors.entry")?,
        })
    };
    found.cursors.into_iter().map(one).collect()
}

/// What another program left, for the wire.
pub fn legacy_to_proto(found: Option<&LegacyCheckpoint>) -> proto::FindLegacyResponse {
    proto::FindLegacyResponse {
        instant: text(found.map(|found| &found.instant)),
        key: found.map(|found| found.key.clone()).unwrap_or_default(),
        value: found.map(|found| found.value.clone()).unwrap_or_default(),
    }
}

/// What another program left, from the wire.
pub fn legacy_from_proto(found: proto::FindLegacyResponse) -> Result<Option<LegacyCheckpoint>, Malformed> {
    let Some(instant) = optional(&found.instant, "instant")? else { return Ok(None) };
    Ok(Some(LegacyCheckpoint { instant, key: found.key, value: found.value }))
}

/// A record for the wire.
pub fn record_to_proto(record: &BatchRecord) -> proto::BatchRecord {
    proto::BatchRecord {
        batch: Some(batch_to_proto(&record.status)),
        target: record.target.clone(),
        definition: record.definition.clone(),
        process: record.process.clone(),
    }
}

/// A record from the wire.
pub fn record_from_proto(record: proto::BatchRecord) -> Result<BatchRecord, Malformed> {
    let status = batch_from_proto(required(record.batch, "batch")?).map_err(|e| e.within("batch"))?;
    Ok(BatchRecord { status, target: record.target, definition: record.definition, process: record.process })
}
