// SPDX-License-Identifier: Apache-2.0
//! What takes the place of a window that cannot be read any more: the whole table, without the rows that were read.
//!
//! A row is left out when its commit completed at or before the cursor, as the active timeline and the archive say. One of
//! a commit that neither knows is delivered: rather twice than never. What was deleted after the cursor is in no file, so
//! nobody learns of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use tributary_api::timeline::{Begin, Error, PlanRequest};
use tributary_types::{Cursor, CursorKind, InstantTime};

use super::{Decision, Facts, Limit, Step};

/// Decides what takes the place of the window of `request`, whose cursor is stale.
pub(crate) fn decide_gap(request: &PlanRequest, facts: &Facts<'_>) -> Result<Step, Error> {
    let decision = Decision { request, facts, limit: Limit::new(request, facts)? };
    decision.check_pinned()?;
    let cursor = match &request.begin {
        Begin::After(cursor) => cursor.clone(),
        // Only a window that begins somewhere can be stale.
        Begin::Latest | Begin::Earliest | Begin::Snapshot | Begin::Timestamp(_) => facts.kind.at(InstantTime::init()),
    };
    let read = decision.read_before(&cursor);
    let mut window = match decision.whole(true)? {
        Step::Decided(window) => window,
        // Of a window that is planned again: whether what was archived since changed rows.
        classify @ Step::Classify(_) => return Ok(classify),
    };
    let behind = cursor.kind() == facts.kind && cursor.instant().is_some_and(|begin| window.end <= *begin);
    if let (true, Some(begin)) = (behind, cursor.instant()) {
        // A ceiling before the cursor: the source waits, as it would with any other window.
        return Ok(Step::Decided(decision.window(begin.clone(), begin.clone(), Vec::new(), Vec::new(), false)));
    }
    window.begin = Some(cursor);
    window.unless = Some(Arc::new(read.into_iter().collect()));
    Ok(Step::Decided(window))
}

impl Decision<'_> {
    /// Requested times of everything that completed at or before a cursor, or was requested so, as it counts.
    fn read_before(&self, cursor: &Cursor) -> BTreeSet<InstantTime> {
        let Some(upto) = cursor.instant() else { return BTreeSet::new() };
        let by_request = cursor.kind() == CursorKind::Requested;
        let active = self.facts.writes.iter().map(|write| (&write.requested, Some(&write.completed)));
        let archived = self.facts.archived.iter().map(|it| (&it.requested, it.completed.as_ref()));
        let is_read = |(requested, completed): &(&InstantTime, Option<&InstantTime>)| match by_request {
            true => *requested <= upto,
            false => completed.is_some_and(|completed| completed <= upto),
        };
        active.chain(archived).filter(is_read).map(|(requested, _)| requested.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tributary_api::timeline::{InstantFact, Views};
    use tributary_hudi::{Action, ArchivedInstant};
    use tributary_types::{SourceName, Zone};

    use super::*;
    use crate::decide::Window;

    fn at(n: u32) -> InstantTime {
        format!("202501010000{n:02}000").parse().unwrap()
    }

    /// Commits by requested and completed second: the first ones archived.
    fn window(archived: &[(u32, Option<u32>)], active: &[(u32, u32)], request: PlanRequest) -> Window {
        let archived: Vec<ArchivedInstant> = archived
            .iter()
            .map(|(requested, completed)| ArchivedInstant {
                requested: at(*requested),
                completed: completed.map(at),
                action: Action::Commit,
            })
            .collect();
        let writes: Vec<InstantFact> = active
            .iter()
            .map(|(requested, completed)| InstantFact {
                requested: at(*requested),
                completed: at(*completed),
                action: "commit".to_string(),
            })
            .collect();
        let facts = Facts {
            version: 9,
            kind: CursorKind::Completed,
            zone: Zone::Utc,
            writes: &writes,
            pending: &[],
            archived: &archived,
            known: &HashMap::new(),
        };
        match decide_gap(&request, &facts).unwrap() {
            Step::Decided(window) => window,
            Step::Classify(wanted) => panic!("{wanted:?}"),
        }
    }

    fn request(cursor: &str) -> PlanRequest {
        let begin = Begin::After(cursor.parse().unwrap());
        PlanRequest { views: Views::default(), ..PlanRequest::window(SourceName::new("s").unwrap(), "/s", begin) }
    }

    #[test]
    fn rows_of_commits_that_completed_by_the_cursor_are_left_out_and_no_others() {
        // One that was requested before the cursor and completed after it; one whose completion nobody knows.
        let archived = [(1, Some(2)), (3, Some(9)), (4, None), (5, Some(6))];
        let window = window(&archived, &[(11, 12), (13, 14)], request(&format!("completed:{}", at(6))));
        assert!(window.whole && window.has_news);
        assert_eq!(window.unless.unwrap().as_slice(), [at(1), at(5)]);
        assert_eq!((window.begin, window.end), (Some(Cursor::Completed(at(6))), at(14)));
    }

    #[test]
    fn a_cursor_by_request_leaves_out_what_was_requested_by_then() {
        let archived = [(1, Some(2)), (3, Some(9)), (4, None), (5, Some(6))];
        let window = window(&archived, &[(11, 12)], request(&format!("requested:{}", at(4))));
        assert_eq!(window.unless.unwrap().as_slice(), [at(1), at(3), at(4)]);
    }

    #[test]
    fn behind_a_ceiling_nothing_is_read_and_the_cursor_stays() {
        let ceiling_millis = at(3).epoch_millis(Zone::Utc);
        let request = PlanRequest { ceiling_millis, ..request(&format!("completed:{}", at(6))) };
        let window = window(&[(1, Some(2)), (7, Some(8))], &[(11, 12)], request);
        assert_eq!((window.end, window.has_news, window.unless), (at(6), false, None));
    }
}
