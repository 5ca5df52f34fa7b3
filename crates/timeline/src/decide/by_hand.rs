// SPDX-License-Identifier: Apache-2.0
//! Cursors that were set by hand: each names a commit, or is told which ones it could name.

use tributary_api::timeline::Error;
use tributary_types::{Cursor, CursorKind, InstantTime};

use super::Decision;

impl Decision<'_> {
    /// The error about a cursor that no commit stands at.
    pub(super) fn no_commit(&self, cursor: Cursor) -> Error {
        let kind = cursor.kind();
        let of_kind = |requested: &InstantTime, completed: Option<&InstantTime>| match kind {
            CursorKind::Requested => Some(requested.clone()),
            _ => completed.cloned(),
        };
        let active = self.facts.writes.iter().map(|write| of_kind(&write.requested, Some(&write.completed)));
        let archived = self.facts.archived.iter().map(|it| of_kind(&it.requested, it.completed.as_ref()));
        let all: Vec<InstantTime> = active.chain(archived).flatten().collect();
        let before = all.iter().filter(|at| cursor.instant().is_some_and(|set| *at < set)).max();
        let after = all.iter().filter(|at| cursor.instant().is_some_and(|set| *at > set)).min();
        let shown = |at: &InstantTime| match kind {
            CursorKind::Requested => Cursor::Requested(at.clone()).to_string(),
            _ => Cursor::Completed(at.clone()).to_string(),
        };
        let nearest = match (before.map(shown), after.map(shown)) {
            (Some(before), Some(after)) => {
                format!("the commit before it is at {before}, after which the window would hold the one at {after}")
            }
            (Some(before), None) => format!("it is after the newest commit, which is at {before}"),
            (None, Some(after)) => {
                format!("it is before the first commit, which is at {after}; `earliest` begins with that one")
            }
            (None, None) => "the table has no commit".to_string(),
        };
        Error::NoCommit { source_name: self.request.source.clone(), url: self.request.url.clone(), cursor, nearest }
    }
}
