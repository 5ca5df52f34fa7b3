// SPDX-License-Identifier: Apache-2.0
//! Up to where commits are taken.

use tributary_api::timeline::{Begin, Error, PlanRequest};
use tributary_types::pipeline::OnHole;
use tributary_types::{CursorKind, InstantTime, Zone};

use super::Facts;

/// Ends that a window must not pass.
pub(super) struct Limit {
    /// The end of a window that is planned again.
    pub(super) pinned: Option<InstantTime>,
    ceiling_millis: Option<i64>,
    /// The first pending instant after the begin: in the order of requests, nothing after it can be read before it.
    hole: Option<InstantTime>,
    zone: Zone,
}

impl Limit {
    pub(super) fn new(request: &PlanRequest, facts: &Facts<'_>) -> Result<Self, Error> {
        let pinned = match &request.pinned_end {
            None => None,
            Some(end) if end.kind() == facts.kind => end.instant().cloned(),
            Some(cursor) => {
                return Err(Error::Clock {
                    source_name: request.source.clone(),
                    url: request.url.clone(),
                    cursor: cursor.clone(),
                    version: facts.version,
                    hint: "the end of a window is in the table's own clock; if the table was upgraded just now, run the \
                           batch again",
                });
            }
        };
        let limit = Limit {
            hole: hole(request, facts).filter(|_| pinned.is_none()),
            pinned,
            ceiling_millis: request.ceiling_millis,
            zone: facts.zone,
        };
        limit.check_hole(request, facts)?;
        Ok(limit)
    }

    /// Whether a commit that stands at this time in the table's clock is taken.
    pub(super) fn admits(&self, at: &InstantTime) -> bool {
        if let Some(pinned) = &self.pinned {
            // A window that is planned again ends where it ended.
            return at <= pinned;
        }
        if self.hole.as_ref().is_some_and(|hole| at > hole) {
            return false;
        }
        self.ceiling_millis.is_none_or(|ceiling| at.epoch_millis(self.zone).is_none_or(|millis| millis <= ceiling))
    }

    /// The pending instant that ends the window although completed commits follow it.
    pub(super) fn waits_for(&self, facts: &Facts<'_>) -> Option<InstantTime> {
        let follows = |hole: &InstantTime| facts.writes.iter().any(|write| write.requested > *hole);
        self.hole.clone().filter(follows)
    }

    fn check_hole(&self, request: &PlanRequest, facts: &Facts<'_>) -> Result<(), Error> {
        if request.on_hole == OnHole::Block || request.lookup {
            return Ok(());
        }
        match self.waits_for(facts) {
            None => Ok(()),
            Some(hole) => Err(Error::Hole {
                source_name: request.source.clone(),
                url: request.url.clone(),
                action: facts.pending.iter().find(|(at, _)| *at == hole).map(|(_, it)| it.clone()).unwrap_or_default(),
                instant: hole,
            }),
        }
    }
}

/// Pending instants at or before the begin hold nobody up: when they complete they are late.
fn hole(request: &PlanRequest, facts: &Facts<'_>) -> Option<InstantTime> {
    if facts.kind == CursorKind::Completed {
        return None;
    }
    let begin = match &request.begin {
        Begin::After(cursor) if !request.lookup => cursor.instant(),
        _ => None,
    };
    let mut pending = facts.pending.iter().map(|(at, _)| at);
    pending.find(|at| begin.is_none_or(|begin| *at > begin)).cloned()
}
