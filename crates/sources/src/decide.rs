// SPDX-License-Identifier: Apache-2.0
//! Which files a window holds: a pure function of a listing and what the last commit remembers.
//!
//! Files at or before the cursor are read, late, or changed:
//! - one that is remembered is read, unless its content differs from what is remembered;
//! - one that is not remembered is late. Within the late window it is read with this window, further back it is named
//!   and fails the plan or is left out, as the source says.
//!
//! After the cursor, whole files are taken in order, at least one, up to the limits. A file that was modified too
//! recently, or after the ceiling of an aligned batch, ends the window before it.

use std::collections::{HashMap, HashSet};

use tributary_api::timeline::{Begin, Error, FilesRequest, PlanRequest};
use tributary_types::pipeline::{FileOptions, FileOrder, OnChangedFile, OnLateFile};
use tributary_types::{Cursor, FILES_KEPT, FILES_KNOWN, FilePosition, FileState, Forgotten, ReadFile, path_hash};

use crate::listing::{Listed, Rules};

/// Names that an error lists.
const NAMES: usize = 10;

/// What is decided from.
pub(crate) struct Facts<'a> {
    /// The files, in order.
    pub(crate) listed: &'a [Listed],
    /// The time by the clock of this process, milliseconds since the epoch.
    pub(crate) now_millis: i64,
    pub(crate) rules: &'a Rules,
}

/// A window.
#[derive(Debug, Default)]
pub(crate) struct Window {
    pub(crate) begin: Option<FilePosition>,
    pub(crate) end: Option<FilePosition>,
    /// Files to read, in order, as positions in the listing.
    pub(crate) read: Vec<usize>,
    /// The directory at the end of the window, and at its beginning.
    pub(crate) at_end: Vec<usize>,
    pub(crate) at_begin: Vec<usize>,
    /// Files behind the cursor that are read.
    pub(crate) late: Vec<String>,
    /// Files behind the cursor that are left out.
    pub(crate) left_out: Vec<String>,
    /// A limit of the source ended the window.
    pub(crate) limited: bool,
    /// Files after the end.
    pub(crate) lag: usize,
    pub(crate) state: FileState,
}

/// Decides the window of `request`.
pub(crate) fn decide(request: &PlanRequest, files: &FilesRequest, facts: &Facts<'_>) -> Result<Window, Error> {
    let begin = begin_of(request, facts)?;
    let memory = Memory::new(files.state.as_ref(), &begin, facts);
    if request.lookup {
        return Ok(whole(request, files, facts));
    }
    let decision = Decision { request, files, options: &files.source.files, facts, begin, memory };
    match &files.pinned {
        Some(paths) => decision.pinned(paths),
        None => decision.decide(),
    }
}

fn begin_of(request: &PlanRequest, facts: &Facts<'_>) -> Result<FilePosition, Error> {
    let order = facts.rules.order();
    let unfit = |what: String| Error::Unsupported {
        url: request.url.clone(),
        what: format!(
            "source `{}`: {what}. Give the source another name in the pipeline and its SQL: it then begins at its `start`",
            request.source
        ),
    };
    match &request.begin {
        _ if request.lookup => Ok(FilePosition::start(order)),
        Begin::Earliest | Begin::Snapshot => Ok(FilePosition::start(order)),
        Begin::Latest => match facts.listed {
            [.., before, _] => Ok(before.at.clone()),
            _ => Ok(FilePosition::start(order)),
        },
        Begin::After(Cursor::File(position)) if position.order == order => {
            let stamped = facts.listed.first().map(|listed| listed.at.millis.is_some());
            if !position.is_start() && stamped.is_some_and(|stamped| stamped != position.millis.is_some()) {
                return Err(unfit(format!("its cursor {position} was made with another `files.name_timestamp`")));
            }
            Ok(position.clone())
        }
        Begin::After(Cursor::File(position)) => {
            Err(unfit(format!("its cursor {position} is in another order than `files.order = \"{order}\"`")))
        }
        Begin::After(cursor) => {
            Err(unfit(format!("its cursor {cursor} is one of a table or a topic, not of a directory of files")))
        }
        Begin::Timestamp(_) => Err(unfit("only a topic begins at a time of day".to_string())),
    }
}

/// A look-up: every file, and no window.
fn whole(request: &PlanRequest, files: &FilesRequest, facts: &Facts<'_>) -> Window {
    let quiet = i64::try_from(files.source.files.quiet.0.as_millis()).unwrap_or(i64::MAX);
    let settled = facts.now_millis.saturating_sub(quiet);
    let all = facts.listed.iter().enumerate().filter(|(_, listed)| {
        let modified = listed.file.modified_millis;
        (quiet == 0 || modified <= settled) && request.ceiling_millis.is_none_or(|ceiling| modified <= ceiling)
    });
    let at_end: Vec<usize> = all.map(|(at, _)| at).collect();
    let end = at_end.last().map(|at| facts.listed[*at].at.clone());
    let schema = files.state.as_ref().and_then(|state| state.schema.clone());
    Window {
        end: Some(end.unwrap_or_else(|| FilePosition::start(facts.rules.order()))),
        at_end,
        state: FileState { schema, ..FileState::default() },
        ..Window::default()
    }
}

/// What is remembered of files at or before the begin.
struct Memory<'a> {
    read: HashMap<&'a str, &'a ReadFile>,
    older: HashSet<u64>,
    forgotten: Option<&'a Forgotten>,
    seen_millis: Option<i64>,
}

impl<'a> Memory<'a> {
    /// Without a memory, as after a `start` at a place, everything that is there by then counts as read.
    fn new(state: Option<&'a FileState>, begin: &FilePosition, facts: &'a Facts<'_>) -> Self {
        let Some(state) = state else {
            let before = facts.listed.iter().filter(|listed| listed.at <= *begin);
            return Memory {
                read: HashMap::new(),
                older: before.map(|listed| path_hash(&listed.file.path)).collect(),
                forgotten: None,
                seen_millis: None,
            };
        };
        Memory {
            read: state.read.iter().map(|file| (file.path.as_str(), file)).collect(),
            older: state.older.iter().copied().collect(),
            forgotten: state.forgotten.as_ref(),
            seen_millis: Some(state.seen_millis),
        }
    }

    fn knows(&self, path: &str) -> bool {
        self.read.contains_key(path) || self.older.contains(&path_hash(path))
    }
}

/// What a file is to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Read,
    New,
    Late,
    Changed,
}

struct Decision<'a> {
    request: &'a PlanRequest,
    files: &'a FilesRequest,
    options: &'a FileOptions,
    facts: &'a Facts<'a>,
    begin: FilePosition,
    memory: Memory<'a>,
}

impl Decision<'_> {
    fn standing(&self, listed: &Listed) -> Standing {
        let file = &listed.file;
        let behind = listed.at <= self.begin;
        if let Some(known) = self.memory.read.get(file.path.as_str()) {
            return if is_same(known, listed) { Standing::Read } else { Standing::Changed };
        }
        // Of a file that is known by its hash alone, only its time tells that it was written again.
        let after_all_seen = self.memory.seen_millis.is_some_and(|seen| file.modified_millis > seen);
        if self.memory.older.contains(&path_hash(&file.path)) {
            let written_again = if behind { after_all_seen } else { true };
            return if written_again { Standing::Changed } else { Standing::Read };
        }
        if !behind {
            return Standing::New;
        }
        let forgotten = self.memory.forgotten.is_some_and(|forgotten| listed.at <= forgotten.upto);
        if forgotten && !after_all_seen { Standing::Read } else { Standing::Late }
    }

    fn decide(self) -> Result<Window, Error> {
        let horizon = self.horizon();
        let (mut behind, mut ahead) = (Vec::new(), Vec::new());
        let (mut too_late, mut changed) = (Vec::new(), Vec::new());
        for (at, listed) in self.facts.listed.iter().enumerate() {
            match self.standing(listed) {
                Standing::Read => {}
                Standing::New => ahead.push(at),
                Standing::Changed if self.options.on_changed == OnChangedFile::Reread => behind.push(at),
                Standing::Changed => changed.push(at),
                Standing::Late if horizon.as_ref().is_none_or(|horizon| listed.at > *horizon) => behind.push(at),
                Standing::Late => too_late.push(at),
            }
        }
        let unseen = self.unseen();
        if (!too_late.is_empty() || unseen > 0) && self.options.on_late == OnLateFile::Fail {
            return Err(Error::LateFiles {
                source_name: self.request.source.clone(),
                files: too_late.len() as u64 + unseen,
                names: self.names(&too_late),
            });
        }
        if !changed.is_empty() && self.options.on_changed == OnChangedFile::Fail {
            return Err(Error::ChangedFiles {
                source_name: self.request.source.clone(),
                files: changed.len() as u64,
                names: self.names(&changed),
            });
        }
        let (taken_behind, taken_ahead, limited) = self.take(&behind, &ahead);
        let left_out: Vec<usize> = too_late.into_iter().chain(changed).collect();
        Ok(self.window(&taken_behind, &taken_ahead, &left_out, limited, ahead.len()))
    }

    /// The very files of an earlier plan. One that is gone was never read, so the window cannot be read.
    fn pinned(self, paths: &[String]) -> Result<Window, Error> {
        let listed: HashMap<&str, usize> =
            self.facts.listed.iter().enumerate().map(|(at, listed)| (listed.file.path.as_str(), at)).collect();
        let (mut behind, mut ahead) = (Vec::new(), Vec::new());
        for path in paths {
            let Some(at) = listed.get(path.as_str()).copied() else {
                return Err(Error::FileGone { url: self.request.url.clone(), file: path.clone() });
            };
            if self.facts.listed[at].at <= self.begin { behind.push(at) } else { ahead.push(at) }
        }
        let later = self.facts.listed.iter().filter(|listed| self.standing(listed) == Standing::New).count();
        let mut window = self.window(&behind, &ahead, &[], false, later.max(ahead.len()));
        if let Some(Cursor::File(end)) = &self.request.pinned_end
            && window.end.as_ref().is_some_and(|found| found < end)
        {
            window.end = Some(end.clone());
        }
        Ok(window)
    }

    /// Files that appeared where no file is remembered by name.
    fn unseen(&self) -> u64 {
        let Some(forgotten) = self.memory.forgotten else { return 0 };
        let upto = self.facts.listed.iter().filter(|listed| listed.at <= forgotten.upto);
        let quiet = upto.filter(|listed| self.standing(listed) == Standing::Read);
        (quiet.count() as u64).saturating_sub(forgotten.files)
    }

    fn names(&self, files: &[usize]) -> String {
        let mut names: Vec<&str> =
            files.iter().take(NAMES).map(|at| self.facts.listed[*at].file.path.as_str()).collect();
        if files.is_empty() {
            names.push("among files too many to remember by name");
        } else if files.len() > NAMES {
            names.push("…");
        }
        names.join(", ")
    }

    /// Up to where a file that appears is too late; `None`: nowhere.
    fn horizon(&self) -> Option<FilePosition> {
        if self.begin.is_start() {
            return None;
        }
        let window = i64::try_from(self.options.late_window.0.as_millis()).unwrap_or(i64::MAX);
        if let Some(millis) = self.begin.millis {
            let earliest = millis.saturating_sub(window);
            // Before every file of that time.
            return Some(FilePosition { order: self.begin.order, millis: Some(earliest), path: String::new() });
        }
        // Names without times: a place counts as old when a file after it was written that long ago.
        let known = self.memory.read.values();
        let newest = known.clone().map(|file| file.modified_millis).max()?;
        let old = known.clone().filter(|file| file.modified_millis < newest.saturating_sub(window));
        let place = |path: &str| FilePosition { order: self.begin.order, millis: None, path: path.to_string() };
        match old.map(|file| file.path.as_str()).max() {
            Some(path) => Some(place(path)),
            None if self.memory.older.is_empty() && self.memory.forgotten.is_none() => None,
            // What is older than all that is remembered in full is older than the window, too.
            None => known.map(|file| file.path.as_str()).min().map(place),
        }
    }

    /// Whole files up to the limits, those behind the cursor first: at least one, whatever its size. And whether a limit
    /// left any out.
    fn take(&self, behind: &[usize], ahead: &[usize]) -> (Vec<usize>, Vec<usize>, bool) {
        let quiet = i64::try_from(self.options.quiet.0.as_millis()).unwrap_or(i64::MAX);
        let settled = self.facts.now_millis.saturating_sub(quiet);
        let waits = |at: &usize| {
            let file = &self.facts.listed[*at];
            (quiet > 0 && file.file.modified_millis > settled)
                || self.request.ceiling_millis.is_some_and(|ceiling| time_of(file) > ceiling)
        };
        let mut bytes = 0u64;
        let mut count = 0u32;
        let mut fits = |at: &usize| {
            let size = self.facts.listed[*at].file.bytes;
            let fits = count == 0
                || (count < self.options.max_files && bytes.saturating_add(size) <= self.options.max_bytes.0);
            if fits {
                count += 1;
                bytes = bytes.saturating_add(size);
            }
            fits
        };
        let ready: Vec<usize> = behind.iter().copied().filter(|at| !waits(at)).collect();
        let taken_behind: Vec<usize> = ready.iter().copied().take_while(|at| fits(at)).collect();
        let mut limited = taken_behind.len() < ready.len();
        let mut taken_ahead = Vec::new();
        // Where a file waits, those after it wait too: the cursor must not pass it.
        for at in ahead.iter().copied().take_while(|at| !waits(at)) {
            if limited || !fits(&at) {
                limited = true;
                break;
            }
            taken_ahead.push(at);
        }
        (taken_behind, taken_ahead, limited)
    }

    fn window(&self, behind: &[usize], ahead: &[usize], left_out: &[usize], limited: bool, new_files: usize) -> Window {
        let listed = self.facts.listed;
        let mut read: Vec<usize> = behind.iter().chain(ahead).copied().collect();
        read.sort_unstable();
        let furthest = ahead.iter().max().map(|at| listed[*at].at.clone());
        let end = furthest.filter(|end| *end > self.begin).unwrap_or_else(|| self.begin.clone());
        let name = |at: &usize| listed[*at].file.path.clone();
        let taken: HashSet<usize> = read.iter().copied().collect();
        let ignored: HashSet<usize> = left_out.iter().copied().collect();
        let state = self.state(&end, &taken, &ignored);
        let known = Memory::new(Some(&state), &end, self.facts);
        let there = |at: &usize| listed[*at].at <= end && known.knows(&listed[*at].file.path) && !ignored.contains(at);
        let at_end: Vec<usize> = (0..listed.len()).filter(there).collect();
        let before = |at: &usize| listed[*at].at <= self.begin && !taken.contains(at);
        Window {
            begin: (!self.begin.is_start()).then(|| self.begin.clone()),
            at_begin: at_end.iter().copied().filter(before).collect(),
            at_end,
            late: behind.iter().map(name).collect(),
            left_out: left_out.iter().map(name).collect(),
            limited,
            lag: new_files.saturating_sub(ahead.len()),
            end: Some(end),
            read,
            state,
        }
    }

    /// What is remembered once the window was read.
    fn state(&self, end: &FilePosition, taken: &HashSet<usize>, ignored: &HashSet<usize>) -> FileState {
        let listed = self.facts.listed;
        let is_known = |(at, listed): &(usize, &Listed)| {
            taken.contains(at)
                || ignored.contains(at)
                || (listed.at <= *end && matches!(self.standing(listed), Standing::Read))
        };
        let mut known: Vec<&Listed> = listed.iter().enumerate().filter(is_known).map(|(_, listed)| listed).collect();
        // Places that are forgotten stay so.
        let mut forgotten = self.memory.forgotten.cloned();
        let upto = forgotten.as_ref().map(|forgotten| forgotten.upto.clone());
        known.retain(|listed| {
            upto.as_ref().is_none_or(|upto| listed.at > *upto || self.memory.knows(&listed.file.path))
        });
        if known.len() > FILES_KNOWN {
            let surplus = known.len() - FILES_KNOWN;
            let last = known[surplus - 1].at.clone();
            let upto = upto.filter(|upto| *upto > last).unwrap_or(last);
            known.drain(..surplus);
            forgotten = Some(Forgotten { upto, files: 0 });
        }
        if let Some(forgotten) = &mut forgotten {
            forgotten.files = listed.iter().filter(|listed| listed.at <= forgotten.upto).count() as u64;
        }
        let full = known.len().saturating_sub(FILES_KEPT);
        let mut older: Vec<u64> = known[..full].iter().map(|listed| path_hash(&listed.file.path)).collect();
        older.sort_unstable();
        let newest = listed.iter().map(|listed| listed.file.modified_millis).max().unwrap_or(0);
        FileState {
            read: self.with_vanished(&known[full..]),
            older,
            forgotten,
            seen_millis: newest.max(self.memory.seen_millis.unwrap_or(0)),
            schema: self.files.state.as_ref().and_then(|state| state.schema.clone()),
        }
    }

    /// Files near the cursor that are not in this listing stay remembered: one that is there again was read.
    fn with_vanished(&self, known: &[&Listed]) -> Vec<ReadFile> {
        let present: HashSet<&str> = self.facts.listed.iter().map(|listed| listed.file.path.as_str()).collect();
        let mut kept: Vec<(FilePosition, ReadFile)> =
            known.iter().map(|listed| (listed.at.clone(), read_file(listed))).collect();
        for file in self.files.state.iter().flat_map(|state| &state.read) {
            if present.contains(file.path.as_str()) {
                continue;
            }
            if let Some(at) = self.facts.rules.position(&file.path, file.modified_millis) {
                kept.push((at, file.clone()));
            }
        }
        kept.sort_by(|(a, _), (b, _)| (a.millis, &a.path).cmp(&(b.millis, &b.path)));
        let surplus = kept.len().saturating_sub(FILES_KEPT);
        // The oldest that are still there have to be known all the same.
        let mut kept: Vec<ReadFile> = kept.into_iter().map(|(_, file)| file).collect();
        let mut dropped = 0;
        kept.retain(|file| {
            let drop = dropped < surplus && !present.contains(file.path.as_str());
            dropped += usize::from(drop);
            !drop
        });
        kept
    }
}

/// When a file counts as written: the time in its name, or its modification.
fn time_of(listed: &Listed) -> i64 {
    listed.at.millis.unwrap_or(listed.file.modified_millis)
}

fn read_file(listed: &Listed) -> ReadFile {
    let file = listed.file.clone();
    ReadFile { path: file.path, bytes: file.bytes, modified_millis: file.modified_millis, e_tag: file.e_tag }
}

fn is_same(known: &ReadFile, listed: &Listed) -> bool {
    let now = &listed.file;
    known.bytes == now.bytes
        && match (&known.e_tag, &now.e_tag) {
            (Some(known), Some(now)) => known == now,
            _ => known.modified_millis == now.modified_millis,
        }
}

/// Whether a plan in this order is no cut at a ceiling: names say nothing of when files were written.
pub(crate) fn is_uncut(request: &PlanRequest, files: &FilesRequest) -> bool {
    let options = &files.source.files;
    request.ceiling_millis.is_some() && options.order == FileOrder::Name && options.name_timestamp.is_none()
}

#[cfg(test)]
mod tests;
