// SPDX-License-Identifier: Apache-2.0
//! What may go: which file versions no reader needs any more, and which instants may leave the active timeline.
//!
//! Pure decisions over facts already read.

use std::collections::{BTreeMap, HashMap, HashSet};

use tributary_types::InstantTime;

use crate::log_file::LogFile;
use crate::slices::{BaseFile, Completions, GroupKey, Standing};
use crate::timeline::{Action, Instant, Timeline};

/// What a clean is planned from.
#[derive(Debug, Clone)]
pub(super) struct CleanFacts<'a> {
    /// The active timeline.
    pub(super) timeline: &'a Timeline,
    /// Every base file that the table lists.
    pub(super) files: &'a [BaseFile],
    /// Every log file that the table lists, each of one instant (table version 8 and later).
    pub(super) logs: &'a [LogFile],
    /// What became of the instants that the files name.
    pub(super) completions: &'a Completions,
    /// When a completed replacecommit replaced a group.
    pub(super) replaced: &'a HashMap<GroupKey, InstantTime>,
    /// Commits whose readers must find every file, at least one.
    pub(super) keep: usize,
}

/// The files that a clean deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanPlan {
    /// The earliest commit that can still be read: requested time and action.
    pub earliest: (InstantTime, Action),
    /// The newest completed write then.
    pub last_completed: InstantTime,
    /// Base files that go.
    pub files: Vec<BaseFile>,
    /// Log files that go.
    pub logs: Vec<LogFile>,
}

/// Plans a clean; `None` when there is nothing to delete.
///
/// The last `keep` completed writes stay readable, from the state just before the earliest of them on. A version of a
/// group goes when a newer one was there by then, with the logs on top of it; all versions of a group go when it was
/// replaced by then. The newest version of a live group, and what a savepoint keeps, stays whatever its age. While a
/// write is pending nothing is planned: it may read what it pinned.
pub(super) fn plan_clean(facts: &CleanFacts<'_>) -> Option<CleanPlan> {
    let writes = facts.timeline.completed_writes();
    if facts.timeline.pending_writes().next().is_some() || writes.len() <= facts.keep.max(1) {
        return None;
    }
    let retained = &writes[writes.len() - facts.keep.max(1)..];
    let bound = retained.first()?.completed.as_ref()?;
    let earliest = retained.iter().min_by(|a, b| a.requested.cmp(&b.requested))?;
    let last = retained.iter().map(|instant| &instant.requested).max()?;
    let (mut files, mut logs) = (Vec::new(), Vec::new());
    for (group, mut found) in versions_by_group(facts) {
        found
            .bases
            .sort_by(|(a, left), (b, right)| (a, &left.instant, &left.path).cmp(&(b, &right.instant, &right.path)));
        let kept = kept_by_savepoints(facts.timeline, &found.bases);
        let gone = facts.replaced.get(&group).filter(|at| *at < bound);
        files.extend((0..found.bases.len()).filter(|at| found.base_goes(*at, gone, bound, &kept)).map(|at| {
            let (_, file) = &found.bases[at];
            (*file).clone()
        }));
        let saved = !facts.timeline.savepoints().is_empty();
        let goes = found.logs.iter().filter(|log| found.log_goes(log, gone, bound, &kept, saved));
        logs.extend(goes.map(|(_, log)| (*log).clone()));
    }
    files.sort();
    logs.sort();
    let earliest = (earliest.requested.clone(), earliest.action);
    let nothing = files.is_empty() && logs.is_empty();
    (!nothing).then(|| CleanPlan { earliest, last_completed: last.clone(), files, logs })
}

/// A version of a group and when it completed; archived ones, without a time, come first.
type Version<'a> = (Option<InstantTime>, &'a BaseFile);

/// The files of a group that completed instants wrote.
#[derive(Default)]
struct Found<'a> {
    bases: Vec<Version<'a>>,
    /// With the time that says which slice they belong to: their completion, where it is known.
    logs: Vec<(InstantTime, &'a LogFile)>,
}

impl Found<'_> {
    /// Whether a base file goes: its group was replaced, or a newer one was there before `bound`.
    fn base_goes(
        &self,
        position: usize,
        gone: Option<&InstantTime>,
        bound: &InstantTime,
        kept: &HashSet<&str>,
    ) -> bool {
        let (at, file) = &self.bases[position];
        let replaced = gone.is_some_and(|gone| at.as_ref().is_none_or(|at| at <= gone));
        let superseded = self.bases.get(position + 1).is_some_and(|(next, newer)| {
            newer.instant != file.instant && next.as_ref().is_none_or(|next| next < bound)
        });
        (replaced || superseded) && !kept.contains(file.path.as_str())
    }

    /// Whether a log file goes: with the base file that it is on top of, or, where there was none yet, once the first
    /// one was there before `bound`.
    fn log_goes(
        &self,
        (at, _): &(InstantTime, &LogFile),
        gone: Option<&InstantTime>,
        bound: &InstantTime,
        kept: &HashSet<&str>,
        saved: bool,
    ) -> bool {
        match self.bases.iter().rposition(|(_, base)| base.instant <= *at) {
            Some(base) => self.base_goes(base, gone, bound, kept),
            None => {
                let first = self.bases.first();
                let compacted = first.is_some_and(|(done, _)| done.as_ref().is_none_or(|done| done < bound));
                // Which of them a savepoint keeps is not worth telling.
                (compacted || gone.is_some_and(|gone| at <= gone)) && !saved
            }
        }
    }
}

fn versions_by_group<'a>(facts: &CleanFacts<'a>) -> BTreeMap<GroupKey, Found<'a>> {
    let mut groups: BTreeMap<GroupKey, Found<'a>> = BTreeMap::new();
    // A file of an instant that did not complete is a rollback's business.
    for file in facts.files {
        if let Standing::Completed(at) = facts.completions.standing(&file.instant) {
            groups.entry(file.group()).or_default().bases.push((at, file));
        }
    }
    for log in facts.logs {
        if let Standing::Completed(at) = facts.completions.standing(&log.instant) {
            let at = at.unwrap_or_else(|| log.instant.clone());
            groups.entry(log.group()).or_default().logs.push((at, log));
        }
    }
    groups
}

/// Files that a savepoint keeps: the newest version by then. Java goes by requested time, we read by completion; both
/// are kept.
fn kept_by_savepoints<'a>(timeline: &Timeline, versions: &[Version<'a>]) -> HashSet<&'a str> {
    let mut kept = HashSet::new();
    for savepoint in timeline.savepoints() {
        let by_request = versions.iter().filter(|(_, file)| &file.instant <= savepoint);
        kept.extend(by_request.max_by(|(_, a), (_, b)| a.instant.cmp(&b.instant)).map(|(_, file)| file.path.as_str()));
        let completed = timeline.find(savepoint).and_then(|instant| instant.completed.as_ref());
        let limit = completed.unwrap_or(savepoint);
        let by_completion = versions.iter().rfind(|(at, _)| at.as_ref().is_none_or(|at| at <= limit));
        kept.extend(by_completion.map(|(_, file)| file.path.as_str()));
    }
    kept
}

/// What archiving is planned from.
#[derive(Debug, Clone)]
pub(super) struct ArchiveFacts<'a> {
    /// The active timeline.
    pub(super) timeline: &'a Timeline,
    /// Completed writes above which something is archived.
    pub(super) max: usize,
    /// Completed writes that stay at least.
    pub(super) min: usize,
    /// Nothing from this instant on may go; `None`: no such limit.
    pub(super) before: Option<&'a InstantTime>,
    /// Instants that must stay on the timeline, or above its start.
    pub(super) held: &'a [Held],
}

/// Why an instant holds the archiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    /// A replacecommit whose replaced files are still listed: without it they would come back.
    Replacing(InstantTime),
    /// A rolled-back instant of which a file was found: below the start of the timeline it would look committed.
    RolledBack(InstantTime),
}

/// The instants to archive, by requested time: a prefix of the active timeline, all of it completed.
///
/// Never: the newest `min` writes, a pending instant or the last write before it, a savepoint or anything after it,
/// what is held. A completed instant that is not a write goes together with the writes around it.
pub(super) fn plan_archive(facts: &ArchiveFacts<'_>) -> Vec<Instant> {
    let instants = facts.timeline.instants();
    let writes: Vec<&InstantTime> = instants
        .iter()
        .filter(|instant| !instant.is_pending() && instant.action.writes_files())
        .map(|instant| &instant.requested)
        .collect();
    let min = facts.min.max(1);
    if writes.len() <= facts.max.max(min) {
        return Vec::new();
    }
    let mut bound = writes[writes.len() - min];
    let mut lower = |limit: &'_ InstantTime| {
        if let Some(limit) = instants.iter().map(|instant| &instant.requested).find(|time| *time >= limit)
            && limit < bound
        {
            bound = limit;
        }
    };
    // Readers take what lies below the earliest completed write for committed, so one write stays below what is not.
    let last_write_before = |limit: &InstantTime| writes.iter().rfind(|time| **time < limit).copied();
    let start = instants.first().map(|instant| &instant.requested);
    let pending = instants.iter().find(|instant| instant.is_pending()).map(|instant| &instant.requested);
    if let Some(pending) = pending {
        lower(last_write_before(pending).unwrap_or(pending));
    }
    for limit in facts.timeline.savepoints().iter().chain(facts.before) {
        lower(limit);
    }
    for held in facts.held {
        match held {
            Held::Replacing(instant) => lower(instant),
            Held::RolledBack(instant) => {
                if let Some(limit) = last_write_before(instant).or(start) {
                    lower(limit);
                }
            }
        }
    }
    let taken: Vec<Instant> = instants.iter().take_while(|instant| &instant.requested < bound).cloned().collect();
    if taken.iter().any(|instant| instant.action.writes_files()) { taken } else { Vec::new() }
}

#[cfg(test)]
mod tests;
