// SPDX-License-Identifier: Apache-2.0
//! Windows of aligned batches: what lies up to a ceiling, and nothing else.

use super::*;

/// A commit of a history: requested, completed, whether it changes rows.
#[derive(Debug, Clone, Copy)]
struct Commit {
    requested: u32,
    completed: u32,
    changes: bool,
}

impl Commit {
    /// Where it stands in its table's own order.
    fn order(&self, kind: CursorKind) -> u32 {
        if kind == CursorKind::Requested { self.requested } else { self.completed }
    }
}

fn history(takes: &[(u32, bool)]) -> Vec<Commit> {
    let one = |(n, (takes, changes)): (usize, &(u32, bool))| {
        let requested = 10 + 3 * n as u32;
        Commit { requested, completed: requested + takes, changes: *changes }
    };
    takes.iter().enumerate().map(one).collect()
}

/// The table as a listing at `now` shows it.
fn listed(history: &[Commit], kind: CursorKind, now: u32) -> Table {
    let known = history.iter().filter(|commit| commit.requested <= now);
    let (done, pending): (Vec<&Commit>, Vec<&Commit>) = known.partition(|commit| commit.completed <= now);
    let facts: Vec<(u32, u32, bool)> =
        done.iter().map(|commit| (commit.requested, commit.order(kind), commit.changes)).collect();
    let pending = pending.iter().map(|commit| (at(commit.requested), "commit".to_string())).collect();
    Table { kind, pending, ..Table::new(&facts) }
}

/// Up to where such a listing shows every commit that there will be: by request, before the first pending one.
fn admitted(history: &[Commit], kind: CursorKind, now: u32, ceiling: u32) -> u32 {
    let pending = history.iter().filter(|commit| commit.requested <= now && commit.completed > now);
    let hole = pending.map(|commit| commit.requested).min().filter(|_| kind == CursorKind::Requested);
    hole.map_or(ceiling, |hole| ceiling.min(hole - 1))
}

/// The first `size` of some commits in the order of the table, with those that tie with the last of them.
fn first_with_ties(mut wanted: Vec<Commit>, kind: CursorKind, size: usize) -> (Vec<u32>, bool) {
    wanted.sort_by_key(|commit| (commit.order(kind), commit.requested));
    let last = wanted.get(size - 1).map(|commit| commit.order(kind));
    let taken: Vec<u32> = wanted
        .iter()
        .filter(|commit| last.is_none_or(|last| commit.order(kind) <= last))
        .map(|commit| commit.requested)
        .collect();
    let limited = taken.len() < wanted.len();
    (taken, limited)
}

proptest! {
    /// Whatever completes when, in both layouts, with ceilings that rise and fall: a window holds exactly the unread commits
    /// up to the ceiling (by request, up to the first pending one), or the first of them where a limit ends it; a first
    /// window of the whole table stands for exactly those; and in the end each commit was delivered once.
    #[test]
    fn windows_under_ceilings_hold_exactly_what_lies_below_them(
        takes in prop::collection::vec((1u32..30, prop::bool::weighted(0.7)), 1..50),
        steps in prop::collection::vec((0u32..14, 0u32..12, 1usize..5), 1..40),
        by_request in any::<bool>(),
        whole in any::<bool>(),
    ) {
        let kind = if by_request { CursorKind::Requested } else { CursorKind::Completed };
        let history = history(&takes);
        let last = history.iter().map(|commit| commit.completed).max().unwrap_or(0) + 1;
        let mut read: BTreeSet<u32> = BTreeSet::new();
        let mut before: Option<Window> = None;
        let mut now = 5;
        let rising = steps.iter().map(|(advance, back, size)| (*advance, *back, *size));
        // In the end all is there, and enough windows follow.
        let rest = std::iter::repeat_n((last, 0, 3), history.len() + 1);
        for (advance, back, size) in rising.chain(rest) {
            now = (now + advance).min(last);
            let ceiling = now.saturating_sub(back).max(1);
            let ceiling_millis = at(ceiling).epoch_millis(Zone::Utc);
            let table = listed(&history, kind, now);
            let begin = if whole { Begin::Snapshot } else { Begin::Earliest };
            let wanted = match &before {
                None => request(begin),
                Some(window) => {
                    let begin = Begin::After(kind.at(window.end.clone()));
                    PlanRequest { begin, on_late: OnLate::Fail, ..resume(window, size) }
                }
            };
            let window = table.window(&PlanRequest { ceiling_millis, num_instants: size, ..wanted });
            let limit = admitted(&history, kind, now, ceiling);
            let unread = history.iter().filter(|commit| {
                commit.changes && commit.completed <= now && commit.order(kind) <= limit && !read.contains(&commit.requested)
            });
            let unread: Vec<Commit> = unread.copied().collect();
            if window.whole {
                prop_assert!(whole && before.is_none());
                read.extend(unread.iter().map(|commit| commit.requested));
                prop_assert_eq!(window.has_news, !window.end.is_init());
            } else {
                let (expected, limited) = first_with_ties(unread, kind, size);
                let got = delivered(&window);
                prop_assert_eq!(&got, &expected, "at {} under {}", now, ceiling);
                prop_assert_eq!(window.limited, limited);
                prop_assert_eq!(window.has_news, !expected.is_empty());
                read.extend(got);
            }
            // Never above the ceiling, unless the cursor stood there before.
            let stood = before.as_ref().map(|window| window.end.clone()).filter(|end| !end.is_init());
            let highest = stood.map_or(at(limit), |stood| stood.max(at(limit)));
            prop_assert!(window.end.is_init() || window.end <= highest, "{} above {}", window.end, highest);
            before = Some(window);
        }
        let all: BTreeSet<u32> = history.iter().filter(|commit| commit.changes).map(|commit| commit.requested).collect();
        prop_assert_eq!(read, all);
    }
}
