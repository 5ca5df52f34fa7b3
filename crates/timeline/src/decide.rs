// SPDX-License-Identifier: Apache-2.0
//! Which window a source gets: a pure function over what the timeline and the archive say.
//!
//! Whether a commit changed rows is in its metadata, which costs a read, so the function answers either with the
//! window or with the commits it has to know that of first.
//!
//! Rules:
//! - commits are taken in order of completion, those that completed together are not torn apart. Tables of version 6
//!   know no completion times: there the requested time stands for it, and nothing is taken after a pending commit;
//! - table services and commits without statistics are not delivered and do not count; the window's end passes them
//!   when it has delivered everything before them;
//! - a commit that completed inside a window read earlier is late when it is in the span of the instants that the
//!   cursor remembers and is not one of them;
//! - a cursor is stale when a commit after it that changed rows was archived.

mod limit;

use std::collections::{BTreeSet, HashMap, HashSet};

use tributary_api::timeline::{Begin, Error, InstantFact, PlanRequest};
use tributary_hudi::ArchivedInstant;
use tributary_types::pipeline::OnLate;
use tributary_types::{Cursor, CursorKind, InstantTime, RECENT_INSTANTS, Zone};

use self::limit::Limit;

/// Commits whose metadata is asked for at once, at least, where a window still takes some: one round of requests costs as
/// much as one request.
const CLASSIFY_AT_ONCE: usize = 4;
/// Commits whose metadata is asked for at once, at most, on the way back to one that changed rows.
const BACK_AT_ONCE: usize = 16;
/// Commits whose metadata is asked for at once, at most: what is read and not used is memory.
const CLASSIFY_AT_MOST: usize = 256;

/// What is known of a table.
pub(crate) struct Facts<'a> {
    /// Its version, for messages.
    pub(crate) version: u32,
    /// The clock that orders its commits.
    pub(crate) kind: CursorKind,
    /// The zone of its instants.
    pub(crate) zone: Zone,
    /// Completed writes on the active timeline, in order of completion.
    pub(crate) writes: &'a [InstantFact],
    /// Pending instants that will change rows, by requested time, with their actions.
    pub(crate) pending: &'a [(InstantTime, String)],
    /// Archived writes.
    pub(crate) archived: &'a [ArchivedInstant],
    /// Whether a write, by requested time, changed rows.
    pub(crate) known: &'a HashMap<InstantTime, bool>,
}

/// The next step towards a window.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Find out of these writes whether they changed rows, and ask again.
    Classify(Vec<InstantTime>),
    /// This is the window.
    Decided(Window),
}

/// What a source delivers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Window {
    /// Exclusive begin; `None`: from nothing.
    pub(crate) begin: Option<Cursor>,
    /// Inclusive end.
    pub(crate) end: InstantTime,
    /// The whole table as of the end, instead of single commits.
    pub(crate) whole: bool,
    /// Commits delivered, in order of completion; late ones come first.
    pub(crate) instants: Vec<InstantFact>,
    /// Those of them that are late.
    pub(crate) late: Vec<InstantTime>,
    /// Whether there is anything to deliver.
    pub(crate) has_news: bool,
    /// Whether `num_instants` left commits for the next window.
    pub(crate) limited: bool,
    /// The pending instant that completed commits after it wait for.
    pub(crate) waits_for: Option<InstantTime>,
    /// What the next cursor remembers.
    pub(crate) recent: Vec<InstantTime>,
}

/// Decides the window of `request`.
pub(crate) fn decide(request: &PlanRequest, facts: &Facts<'_>) -> Result<Step, Error> {
    let decision = Decision { request, facts, limit: Limit::new(request, facts)? };
    decision.check_pinned()?;
    if request.lookup {
        return decision.whole(false);
    }
    match &request.begin {
        Begin::Snapshot => decision.whole(true),
        Begin::Latest => Ok(decision.latest()),
        Begin::Earliest => decision.after(&InstantTime::init(), false),
        Begin::After(cursor @ (Cursor::Requested(instant) | Cursor::Completed(instant)))
            if cursor.kind() == facts.kind || instant.is_init() =>
        {
            decision.check_cursor(instant)?;
            decision.after(instant, request.fingerprint.is_some())
        }
        Begin::After(Cursor::Requested(requested)) => decision.after_requested(requested),
        Begin::After(cursor @ Cursor::Completed(_)) => Err(Error::Clock {
            source_name: request.source.clone(),
            url: request.url.clone(),
            cursor: cursor.clone(),
            version: facts.version,
            hint: "it keeps no completion times; give the cursor as `requested:<instant>`",
        }),
        Begin::After(cursor @ Cursor::File(_)) => Err(Error::Clock {
            source_name: request.source.clone(),
            url: request.url.clone(),
            cursor: cursor.clone(),
            version: facts.version,
            hint: "it is a place among files; give the source another name if it was a directory of files before",
        }),
        Begin::After(cursor @ Cursor::Offsets(_)) => Err(Error::Clock {
            source_name: request.source.clone(),
            url: request.url.clone(),
            cursor: cursor.clone(),
            version: facts.version,
            hint: "it counts messages of a topic; give the source another name if it was a topic before",
        }),
        Begin::Timestamp(_) => Err(Error::Unsupported {
            url: request.url.clone(),
            what: format!("source `{}`: only a topic begins at a time of day", request.source),
        }),
    }
}

struct Decision<'a> {
    request: &'a PlanRequest,
    facts: &'a Facts<'a>,
    limit: Limit,
}

/// How far a walk over commits came.
enum Walk {
    Classify(Vec<InstantTime>),
    Done { delivered: Vec<InstantFact>, end: InstantTime, limited: bool },
}

impl Decision<'_> {
    fn admitted(&self) -> impl DoubleEndedIterator<Item = &InstantFact> {
        self.facts.writes.iter().filter(|write| self.limit.admits(&write.completed))
    }

    fn changes_rows(&self, write: &InstantTime) -> Option<bool> {
        self.facts.known.get(write).copied()
    }

    /// The whole table as of the newest commit.
    fn whole(&self, news: bool) -> Result<Step, Error> {
        // What the archive took in since the window was planned can no longer be told from what was there.
        if let Some(pinned) = &self.limit.pinned
            && let Some(step) = self.check_archived(&self.facts.kind.at(pinned.clone()), |archived| {
                archived.completed.as_ref().is_none_or(|completed| completed > pinned)
            })?
        {
            return Ok(step);
        }
        let newest = self.admitted().next_back().map(|write| write.completed.clone());
        let archived = self.facts.archived.iter().filter_map(|instant| instant.completed.clone());
        let archived = archived.filter(|completed| self.limit.admits(completed)).max();
        let has_commits = newest.is_some() || archived.is_some();
        let found = newest.or(archived).unwrap_or_else(InstantTime::init);
        let end = self.limit.pinned.clone().unwrap_or(found);
        let recent = match news {
            true => newest_by_request(self.admitted().filter(|write| self.may_change_rows(write)).cloned()),
            false => Vec::new(),
        };
        Ok(Step::Decided(Window {
            begin: None,
            end,
            whole: true,
            instants: Vec::new(),
            late: Vec::new(),
            has_news: news && has_commits,
            limited: false,
            waits_for: self.limit.waits_for(self.facts),
            recent,
        }))
    }

    /// The newest commit that changed rows, and nothing before it.
    fn latest(&self) -> Step {
        let writes: Vec<&InstantFact> = self.admitted().collect();
        let mut newest = None;
        for (at, write) in writes.iter().enumerate().rev() {
            match self.changes_rows(&write.requested) {
                None => {
                    let older = writes[..=at].iter().rev().copied();
                    // Mostly the newest one decides; the more table services follow it, the longer the steps back.
                    let passed = writes.len() - 1 - at;
                    return Step::Classify(unknown(self.facts.known, older, (passed + 1).min(BACK_AT_ONCE)));
                }
                Some(true) => {
                    newest = Some(write.completed.clone());
                    break;
                }
                Some(false) => {}
            }
        }
        let last = writes.last().map_or_else(InstantTime::init, |write| write.completed.clone());
        let Some(newest) = newest else {
            return Step::Decided(self.window(last.clone(), last, Vec::new(), Vec::new(), false));
        };
        let tied = writes.iter().filter(|write| write.completed == newest);
        if let Some(step) = self.classify_all(tied.clone().copied()) {
            return step;
        }
        let delivered = tied.filter(|write| self.changes_rows(&write.requested) == Some(true));
        let delivered = delivered.map(|write| (*write).clone()).collect();
        let before = writes.iter().rev().find(|write| write.completed < newest);
        let begin = before.map_or_else(InstantTime::init, |write| write.completed.clone());
        Step::Decided(self.window(begin, last, delivered, Vec::new(), false))
    }

    /// Commits that completed after `begin`.
    fn after(&self, begin: &InstantTime, remembers: bool) -> Result<Step, Error> {
        if let Some(step) = self.check_archived(&self.facts.kind.at(begin.clone()), |archived| {
            archived.completed.as_ref().is_none_or(|completed| completed > begin)
        })? {
            return Ok(step);
        }
        let late = match remembers {
            false => Vec::new(),
            true => match self.late(|write| write.completed <= *begin)? {
                Ok(late) => late,
                Err(step) => return Ok(step),
            },
        };
        let candidates: Vec<&InstantFact> = self.admitted().filter(|write| write.completed > *begin).collect();
        Ok(match self.walk(begin, &candidates) {
            Walk::Classify(unknown) => Step::Classify(unknown),
            Walk::Done { delivered, end, limited } => {
                Step::Decided(self.window(begin.clone(), end, delivered, late, limited))
            }
        })
    }

    /// Commits requested after an instant, whatever their completion: the first window after a cursor that counts
    /// requested times (W2). The window begins where everything up to that instant is complete, so that what follows it
    /// in the order of completion was not delivered by request before.
    fn after_requested(&self, requested: &InstantTime) -> Result<Step, Error> {
        let active = self.facts.writes.iter().map(|write| (&write.requested, Some(&write.completed)));
        let archived = self.facts.archived.iter().map(|instant| (&instant.requested, instant.completed.as_ref()));
        let known = active.chain(archived);
        if !known.clone().any(|(at, completed)| at == requested && completed.is_some()) {
            return Err(self.no_such_request(requested));
        }
        let begin = known.filter(|(at, _)| *at <= requested).filter_map(|(_, completed)| completed).max();
        let Some(begin) = begin else { return Err(self.no_such_request(requested)) };
        let cursor = Cursor::Requested(requested.clone());
        if let Some(step) = self.check_archived(&cursor, |archived| archived.requested > *requested)? {
            return Ok(step);
        }
        let late = match self.request.fingerprint.is_some() {
            false => Vec::new(),
            true => match self.late(|write| write.requested <= *requested)? {
                Ok(late) => late,
                Err(step) => return Ok(step),
            },
        };
        let candidates: Vec<&InstantFact> = self.admitted().filter(|write| write.requested > *requested).collect();
        Ok(match self.walk(begin, &candidates) {
            Walk::Classify(unknown) => Step::Classify(unknown),
            Walk::Done { delivered, end, limited } => {
                Step::Decided(self.window(begin.clone(), end, delivered, late, limited))
            }
        })
    }

    /// Takes commits until there are enough. Commits that completed at or before `begin` are taken and not counted,
    /// since the end cannot lie before them.
    fn walk(&self, begin: &InstantTime, candidates: &[&InstantFact]) -> Walk {
        let wanted = match self.limit.pinned {
            Some(_) => usize::MAX,
            None => self.request.num_instants.max(1),
        };
        let mut delivered: Vec<InstantFact> = Vec::new();
        let (mut counted, mut end) = (0, begin.clone());
        let mut passed: Option<&InstantTime> = None;
        for (at, write) in candidates.iter().enumerate() {
            match self.changes_rows(&write.requested) {
                None => {
                    // As many as the window still takes, and one that says whether it is the last.
                    let missing = wanted.saturating_sub(counted).saturating_add(1);
                    let at_once = missing.clamp(CLASSIFY_AT_ONCE, CLASSIFY_AT_MOST);
                    return Walk::Classify(unknown(self.facts.known, candidates[at..].iter().copied(), at_once));
                }
                Some(false) => passed = Some(&write.completed),
                Some(true) => {
                    if counted >= wanted && write.completed > end {
                        return Walk::Done { delivered, end, limited: true };
                    }
                    if write.completed > *begin {
                        counted += 1;
                        end = write.completed.clone();
                    }
                    delivered.push((*write).clone());
                }
            }
        }
        if let Some(passed) = passed.filter(|passed| **passed > end) {
            end = passed.clone();
        }
        Walk::Done { delivered, end, limited: false }
    }

    /// Commits that appeared inside windows read earlier; `read` says whether a commit lies in them.
    fn late(&self, read: impl Fn(&InstantFact) -> bool) -> Result<Result<Vec<InstantFact>, Step>, Error> {
        let recent = &self.request.recent;
        let Some(oldest) = recent.iter().min() else { return Ok(Ok(Vec::new())) };
        let delivered: HashSet<&InstantTime> = recent.iter().collect();
        let suspects: Vec<&InstantFact> = self
            .facts
            .writes
            .iter()
            .filter(|write| read(write) && write.requested >= *oldest)
            .filter(|write| !delivered.contains(&write.requested))
            .collect();
        if let Some(step) = self.classify_all(suspects.iter().copied()) {
            return Ok(Err(step));
        }
        let late = suspects.into_iter().filter(|write| self.changes_rows(&write.requested) == Some(true));
        let late: Vec<InstantFact> = late.cloned().collect();
        match (late.first(), self.request.on_late) {
            (Some(first), OnLate::Fail) => Err(Error::Late {
                source_name: self.request.source.clone(),
                instant: first.requested.clone(),
                completed: first.completed.clone(),
            }),
            _ => Ok(Ok(late)),
        }
    }

    /// Refuses a cursor when a commit after it, that changed rows, is no longer on the timeline.
    fn check_archived(&self, cursor: &Cursor, after: impl Fn(&ArchivedInstant) -> bool) -> Result<Option<Step>, Error> {
        let mut suspects: Vec<&ArchivedInstant> =
            self.facts.archived.iter().filter(|archived| after(archived)).collect();
        // From the newest back: the first one that changed rows decides, and an archive may be long.
        suspects.sort_by(|a, b| (&b.completed, &b.requested).cmp(&(&a.completed, &a.requested)));
        for (at, archived) in suspects.iter().enumerate() {
            match self.changes_rows(&archived.requested) {
                Some(false) => {}
                None => {
                    let older = suspects[at..].iter().map(|archived| &archived.requested);
                    let unknown = older.filter(|requested| self.changes_rows(requested).is_none());
                    return Ok(Some(Step::Classify(unknown.take(BACK_AT_ONCE).cloned().collect())));
                }
                Some(true) => {
                    // Whoever starts after the last commit that is gone finds everything that is left.
                    let last = archived.completed.as_ref().unwrap_or(&archived.requested);
                    let readable = self.facts.writes.iter().find(|write| write.completed > *last);
                    return Err(Error::Stale {
                        source_name: self.request.source.clone(),
                        url: self.request.url.clone(),
                        cursor: cursor.clone(),
                        earliest: readable.map_or("the next one".to_string(), |write| write.requested.to_string()),
                        resume: self.facts.kind.at(last.clone()).to_string(),
                    });
                }
            }
        }
        Ok(None)
    }

    /// A cursor from a checkpoint names a commit that must exist; one that a user wrote must not lie in the future.
    fn check_cursor(&self, begin: &InstantTime) -> Result<(), Error> {
        if begin.is_init() {
            return Ok(());
        }
        let archived = self.facts.archived.iter().filter_map(|instant| instant.completed.as_ref());
        let mut all = self.facts.writes.iter().map(|write| &write.completed).chain(archived);
        let (source_name, url) = (self.request.source.clone(), self.request.url.clone());
        let cursor = self.facts.kind.at(begin.clone());
        if self.request.fingerprint.is_some() {
            return match all.any(|completed| completed == begin) {
                true => Ok(()),
                false => Err(Error::Restored { source_name, url, cursor }),
            };
        }
        match all.max() {
            Some(newest) if begin <= newest => Ok(()),
            newest => {
                let newest = newest.map_or("-", InstantTime::as_str).to_string();
                Err(Error::Beyond { source_name, url, cursor, newest })
            }
        }
    }

    /// A window is planned again only up to a commit that is still there.
    fn check_pinned(&self) -> Result<(), Error> {
        let Some(pinned) = self.limit.pinned.as_ref().filter(|pinned| !pinned.is_init()) else { return Ok(()) };
        let begin = match &self.request.begin {
            Begin::After(cursor) => cursor.instant(),
            _ => None,
        };
        let archived = self.facts.archived.iter().filter_map(|instant| instant.completed.as_ref());
        let mut all = self.facts.writes.iter().map(|write| &write.completed).chain(archived);
        if begin == Some(pinned) || all.any(|completed| completed == pinned) {
            return Ok(());
        }
        Err(Error::Restored {
            source_name: self.request.source.clone(),
            url: self.request.url.clone(),
            cursor: self.facts.kind.at(pinned.clone()),
        })
    }

    fn no_such_request(&self, requested: &InstantTime) -> Error {
        let (source_name, url) = (self.request.source.clone(), self.request.url.clone());
        let cursor = Cursor::Requested(requested.clone());
        if self.request.fingerprint.is_some() {
            return Error::Restored { source_name, url, cursor };
        }
        let hint = "no commit was requested then; name one, or give a time as `completed:<instant>`";
        Error::Clock { source_name, url, cursor, version: self.facts.version, hint }
    }

    fn classify_all<'b>(&self, writes: impl Iterator<Item = &'b InstantFact>) -> Option<Step> {
        let unknown: Vec<InstantTime> = writes
            .filter(|write| self.changes_rows(&write.requested).is_none())
            .map(|write| write.requested.clone())
            .collect();
        (!unknown.is_empty()).then_some(Step::Classify(unknown))
    }

    fn may_change_rows(&self, write: &InstantFact) -> bool {
        self.changes_rows(&write.requested) != Some(false)
    }

    fn window(
        &self,
        begin: InstantTime,
        end: InstantTime,
        delivered: Vec<InstantFact>,
        late: Vec<InstantFact>,
        limited: bool,
    ) -> Window {
        let end = self.limit.pinned.clone().unwrap_or(end);
        let late_times: Vec<InstantTime> = late.iter().map(|write| write.requested.clone()).collect();
        let instants: Vec<InstantFact> = late.into_iter().chain(delivered).collect();
        let recent = self.recent(&begin, &instants);
        Window {
            begin: Some(self.facts.kind.at(begin)),
            end,
            whole: false,
            has_news: !instants.is_empty(),
            instants,
            late: late_times,
            limited,
            waits_for: self.limit.waits_for(self.facts),
            recent,
        }
    }

    /// What the next cursor remembers: the newest instants by request, so that every delivered one in their span is
    /// among them. Commits before the window that were never meant to be delivered (the source started after them)
    /// are remembered as well where the span reaches over them, or they would look late.
    fn recent(&self, begin: &InstantTime, delivered: &[InstantFact]) -> Vec<InstantTime> {
        let old: &[InstantTime] = if self.request.fingerprint.is_some() { &self.request.recent } else { &[] };
        let span = delivered.iter().map(|write| &write.requested).min();
        let passed = self.facts.writes.iter().filter(|write| {
            write.completed <= *begin
                && span.is_some_and(|oldest| write.requested >= *oldest)
                && old.iter().min().is_none_or(|oldest| write.requested < *oldest)
                && self.may_change_rows(write)
        });
        let passed = passed.map(|write| write.requested.clone());
        let mut all: BTreeSet<InstantTime> = old.iter().cloned().chain(passed).collect();
        all.extend(delivered.iter().map(|write| write.requested.clone()));
        let surplus = all.len().saturating_sub(RECENT_INSTANTS);
        all.into_iter().skip(surplus).collect()
    }
}

fn newest_by_request(writes: impl Iterator<Item = InstantFact>) -> Vec<InstantTime> {
    let all: BTreeSet<InstantTime> = writes.map(|write| write.requested).collect();
    let surplus = all.len().saturating_sub(RECENT_INSTANTS);
    all.into_iter().skip(surplus).collect()
}

fn unknown<'b>(
    known: &HashMap<InstantTime, bool>,
    writes: impl Iterator<Item = &'b InstantFact>,
    at_once: usize,
) -> Vec<InstantTime> {
    let unknown = writes.map(|write| &write.requested).filter(|requested| !known.contains_key(requested));
    unknown.take(at_once).cloned().collect()
}

#[cfg(test)]
mod tests;
