// SPDX-License-Identifier: Apache-2.0
//! Cursors that are set by hand, and where a pipeline stands.

use tributary_api::checkpoint::CursorCommit;
use tributary_api::coordinator::OverrideStatus;
use tributary_types::{Checkpoint, InstantTime, Override, PipelineName, SourceCheckpoint, SourceName};

use super::timeline::source_name;
use super::{Malformed, cursor_from_proto, cursor_to_proto, optional, text, window_to_proto};
use crate::proto::coordinator as proto;

/// Overrides for the wire.
pub fn overrides_to_proto(overrides: &[Override]) -> Vec<proto::Override> {
    let one = |wanted: &Override| proto::Override {
        source: text(wanted.source.as_ref()),
        to: wanted.to.to_string(),
        token: wanted.token.clone().unwrap_or_default(),
    };
    overrides.iter().map(one).collect()
}

/// Overrides from the wire.
pub fn overrides_from_proto(overrides: Vec<proto::Override>) -> Result<Vec<Override>, Malformed> {
    let one = |(position, wanted): (usize, proto::Override)| {
        let within = |e: Malformed| e.within(&format!("overrides[{position}]"));
        let source = Some(wanted.source).filter(|name| !name.is_empty()).map(source_name);
        let source = source.transpose().map_err(within)?;
        let to = wanted.to.parse().map_err(|e| within(Malformed::new("to", e)))?;
        let read = Override { source, to, token: None };
        match wanted.token.as_str() {
            "" => Ok(read),
            token => read.with_token(token).map_err(|e| within(Malformed::new("token", e))),
        }
    };
    overrides.into_iter().enumerate().map(one).collect()
}

/// What becomes of overrides, for the wire.
pub fn override_statuses_to_proto(statuses: &[OverrideStatus]) -> Vec<proto::OverrideStatus> {
    let one = |status: &OverrideStatus| proto::OverrideStatus {
        source: status.source.to_string(),
        to: status.to.clone(),
        applied_by: text(status.applied_by.as_ref()),
        before: status.before.as_ref().map(cursor_to_proto),
    };
    statuses.iter().map(one).collect()
}

/// What becomes of overrides, from the wire.
pub fn override_statuses_from_proto(statuses: Vec<proto::OverrideStatus>) -> Result<Vec<OverrideStatus>, Malformed> {
    let one = |status: proto::OverrideStatus| {
        Ok(OverrideStatus {
            source: source_name(status.source)?,
            to: status.to,
            applied_by: optional(&status.applied_by, "overrides.applied_by")?,
            before: status.before.map(cursor_from_proto).transpose().map_err(|e| e.within("overrides.before"))?,
        })
    };
    statuses.into_iter().map(one).collect()
}

/// Where a pipeline stands, for the wire.
pub fn cursors_to_proto(found: Option<&CursorCommit>) -> proto::Cursors {
    let Some(commit) = found else { return proto::Cursors::default() };
    let checkpoint = &commit.checkpoint;
    let applied = |(token, instant): (&String, &InstantTime)| proto::AppliedOverride {
        token: token.clone(),
        instant: instant.to_string(),
    };
    proto::Cursors {
        instant: commit.instant.to_string(),
        completed: text(commit.completed.as_ref()),
        seq: checkpoint.seq,
        epoch: checkpoint.epoch,
        sources: checkpoint.sources.iter().map(source_to_proto).collect(),
        overrides: checkpoint.tokens.iter().map(applied).collect(),
        checkpoint: checkpoint.to_json(),
    }
}

fn source_to_proto((name, source): (&SourceName, &SourceCheckpoint)) -> proto::SourceCursor {
    proto::SourceCursor {
        source: name.to_string(),
        kind: source.kind.clone(),
        cursor: source.cursor.as_ref().map(cursor_to_proto),
        restart: text(source.restart.as_ref()),
        window: source.window.as_ref().map(window_to_proto),
        path: source.path.clone().unwrap_or_default(),
        fingerprint: source.fingerprint.clone(),
    }
}

/// Where `pipeline` stands, from the wire. The cursors are read from the form in which they stand in the commit.
pub fn cursors_from_proto(pipeline: &PipelineName, cursors: proto::Cursors) -> Result<Option<CursorCommit>, Malformed> {
    let Some(instant) = optional::<InstantTime>(&cursors.instant, "instant")? else { return Ok(None) };
    let checkpoint = Checkpoint::from_json(pipeline, &instant, &cursors.checkpoint);
    Ok(Some(CursorCommit {
        completed: optional(&cursors.completed, "completed")?,
        checkpoint: checkpoint.map_err(|e| Malformed::new("checkpoint", e))?,
        instant,
    }))
}
