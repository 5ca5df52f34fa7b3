// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;
use tributary_api::timeline::Views;
use tributary_hudi::Action;
use tributary_types::SourceName;
use tributary_types::pipeline::{OnHole, OnStale};

use super::*;

fn at(second: u32) -> InstantTime {
    format!("20250101{:02}{:02}{:02}000", second / 3600, second / 60 % 60, second % 60).parse().unwrap()
}

fn seconds(time: &InstantTime) -> u32 {
    let number = |range: std::ops::Range<usize>| time.as_str()[range].parse::<u32>().unwrap();
    number(8..10) * 3600 + number(10..12) * 60 + number(12..14)
}

fn request(begin: Begin) -> PlanRequest {
    PlanRequest {
        source: SourceName::new("s").unwrap(),
        url: "u".to_string(),
        begin,
        lookup: false,
        num_instants: 5,
        ceiling_millis: None,
        pinned_end: None,
        by_hand: false,
        fingerprint: None,
        recent: Vec::new(),
        on_late: OnLate::Fail,
        on_stale: OnStale::Fail,
        on_hole: OnHole::Block,
        views: Views::default(),
        meta_columns: false,
        deletes: false,
        look_only: false,
        fallback_schema: None,
        files: None,
    }
}

fn resume(window: &Window, num_instants: usize) -> PlanRequest {
    PlanRequest {
        num_instants,
        fingerprint: Some("t".to_string()),
        recent: window.recent.clone(),
        on_late: OnLate::Deliver,
        ..request(Begin::After(Cursor::Completed(window.end.clone())))
    }
}

/// A table: requested, completed, whether it changed rows.
struct Table {
    kind: CursorKind,
    pending: Vec<(InstantTime, String)>,
    writes: Vec<InstantFact>,
    archived: Vec<ArchivedInstant>,
    classes: HashMap<InstantTime, bool>,
}

impl Table {
    fn new(commits: &[(u32, u32, bool)]) -> Self {
        let mut writes: Vec<InstantFact> = commits
            .iter()
            .map(|(requested, completed, _)| InstantFact {
                requested: at(*requested),
                completed: at(*completed),
                action: "commit".to_string(),
            })
            .collect();
        writes.sort_by(|a, b| (&a.completed, &a.requested).cmp(&(&b.completed, &b.requested)));
        let classes = commits.iter().map(|(requested, _, changes)| (at(*requested), *changes)).collect();
        Table { kind: CursorKind::Completed, pending: Vec::new(), writes, archived: Vec::new(), classes }
    }

    fn archive(mut self, commits: &[(u32, u32, bool)]) -> Self {
        for (requested, completed, changes) in commits {
            self.archived.push(ArchivedInstant {
                requested: at(*requested),
                completed: Some(at(*completed)),
                action: Action::Commit,
            });
            self.classes.insert(at(*requested), *changes);
        }
        self
    }

    /// Decides, reading only what is asked for.
    fn decide(&self, request: &PlanRequest) -> Result<(Window, usize), Error> {
        let mut known = HashMap::new();
        loop {
            let facts = Facts {
                version: if self.kind == CursorKind::Requested { 6 } else { 9 },
                kind: self.kind,
                zone: Zone::Utc,
                writes: &self.writes,
                pending: &self.pending,
                archived: &self.archived,
                known: &known,
            };
            match decide(request, &facts)? {
                Step::Decided(window) => return Ok((window, known.len())),
                Step::Classify(wanted) => {
                    assert!(!wanted.is_empty());
                    for write in wanted {
                        let before = known.insert(write.clone(), self.classes[&write]);
                        assert_eq!(before, None, "{write} was asked for twice");
                    }
                }
            }
        }
    }

    fn window(&self, request: &PlanRequest) -> Window {
        self.decide(request).unwrap().0
    }
}

fn delivered(window: &Window) -> Vec<u32> {
    window.instants.iter().map(|write| seconds(&write.requested)).collect()
}

fn after(second: u32) -> Begin {
    Begin::After(Cursor::Completed(at(second)))
}

#[test]
fn the_first_n_commits_in_completion_order_are_taken_with_their_ties() {
    let table = Table::new(&[(1, 20, true), (2, 10, true), (3, 11, true), (4, 11, true), (5, 12, true)]);
    let window = table.window(&PlanRequest { num_instants: 2, ..request(Begin::Earliest) });
    assert_eq!(delivered(&window), [2, 3, 4]);
    assert_eq!((window.end, window.limited, window.has_news), (at(11), true, true));
}

#[test]
fn services_do_not_count_and_are_passed_by_the_end() {
    let table = Table::new(&[(1, 2, true), (3, 4, false), (5, 6, true), (7, 8, false)]);
    let window = table.window(&PlanRequest { num_instants: 2, ..request(Begin::Earliest) });
    assert_eq!(delivered(&window), [1, 5]);
    assert_eq!((window.end.clone(), window.limited), (at(8), false));
    let first = table.window(&PlanRequest { num_instants: 1, ..request(Begin::Earliest) });
    assert_eq!((delivered(&first), first.end.clone(), first.limited), (vec![1], at(2), true));
    let none = table.window(&resume(&window, 5));
    assert_eq!((delivered(&none), none.end, none.has_news), (vec![], at(8), false));
}

#[test]
fn only_services_are_no_news_but_are_passed() {
    let table = Table::new(&[(1, 2, true), (3, 4, false)]);
    let window = table.window(&request(after(2)));
    assert_eq!((window.has_news, window.end), (false, at(4)));
}

#[test]
fn latest_is_the_newest_commit_and_nothing_before_it() {
    let table = Table::new(&[(1, 2, true), (3, 4, true), (5, 6, false)]);
    let window = table.window(&request(Begin::Latest));
    assert_eq!(delivered(&window), [3]);
    assert_eq!((window.begin, window.end), (Some(Cursor::Completed(at(2))), at(6)));
}

#[test]
fn an_empty_table_starts_where_nothing_can_be_missed() {
    let empty = Table::new(&[]);
    for begin in [Begin::Latest, Begin::Earliest, Begin::Snapshot] {
        let window = empty.window(&request(begin));
        assert_eq!((window.end.clone(), window.has_news), (InstantTime::init(), false));
        let table = Table::new(&[(1, 2, true)]);
        assert_eq!(delivered(&table.window(&resume(&window, 5))), [1]);
    }
}

#[test]
fn a_snapshot_ends_at_the_newest_commit_whatever_the_limit() {
    let table = Table::new(&[(1, 2, true), (3, 4, true), (5, 6, true)]);
    let window = table.window(&PlanRequest { num_instants: 1, ..request(Begin::Snapshot) });
    assert_eq!((window.whole, window.begin, window.end), (true, None, at(6)));
    assert_eq!(window.recent, [at(1), at(3), at(5)]);
    let lookup = table.window(&PlanRequest { lookup: true, ..request(Begin::Latest) });
    assert_eq!((lookup.has_news, lookup.whole, lookup.end), (false, true, at(6)));
}

#[test]
fn a_ceiling_cuts_by_completion() {
    let table = Table::new(&[(1, 2, true), (3, 9, true), (4, 5, true)]);
    let ceiling_millis = at(5).epoch_millis(Zone::Utc);
    let window = table.window(&PlanRequest { ceiling_millis, ..request(Begin::Earliest) });
    assert_eq!((delivered(&window), window.end, window.limited), (vec![1, 4], at(5), false));
    let whole = table.window(&PlanRequest { ceiling_millis, ..request(Begin::Snapshot) });
    assert_eq!(whole.end, at(5));
    let latest = table.window(&PlanRequest { ceiling_millis, ..request(Begin::Latest) });
    assert_eq!(delivered(&latest), [4]);
}

#[test]
fn a_pinned_end_plans_the_same_window_again() {
    let table = Table::new(&[(1, 2, true), (3, 4, true), (5, 6, true), (7, 8, true)]);
    let first = table.window(&PlanRequest { num_instants: 2, ..request(after(2)) });
    let pinned_end = Some(Cursor::Completed(first.end.clone()));
    let again = table.window(&PlanRequest { pinned_end, num_instants: 1, ..request(after(2)) });
    assert_eq!((again.instants, again.end), (first.instants, first.end));
    let gone = PlanRequest { pinned_end: Some(Cursor::Completed(at(7))), ..request(after(2)) };
    assert!(matches!(table.decide(&gone), Err(Error::Restored { .. })));
}

#[test]
fn a_commit_that_appears_in_a_window_read_earlier_is_late() {
    let mut table = Table::new(&[(10, 20, true), (13, 21, true)]);
    let window = table.window(&request(Begin::Earliest));
    assert_eq!(window.recent, [at(10), at(13)]);
    table = Table::new(&[(10, 20, true), (11, 19, true), (12, 18, false), (13, 21, true), (14, 30, true)]);
    let fail = PlanRequest { on_late: OnLate::Fail, ..resume(&window, 5) };
    match table.decide(&fail) {
        Err(Error::Late { instant, completed, .. }) => assert_eq!((instant, completed), (at(11), at(19))),
        other => panic!("{other:?}"),
    }
    let next = table.window(&resume(&window, 5));
    assert_eq!((delivered(&next), next.late.clone()), (vec![11, 14], vec![at(11)]));
    assert_eq!(delivered(&table.window(&resume(&next, 5))), Vec::<u32>::new());
}

#[test]
fn what_was_never_meant_to_be_delivered_is_not_late() {
    // 12 completed before the newest commit, 11, was requested earlier.
    let table = Table::new(&[(10, 15, true), (12, 16, true), (11, 20, true)]);
    let window = table.window(&request(Begin::Latest));
    assert_eq!(delivered(&window), [11]);
    let next = table.decide(&PlanRequest { on_late: OnLate::Fail, ..resume(&window, 5) });
    assert_eq!(delivered(&next.unwrap().0), Vec::<u32>::new());
}

#[test]
fn an_archived_commit_after_the_cursor_makes_it_stale_unless_it_changed_nothing() {
    let table = Table::new(&[(7, 8, true)]).archive(&[(1, 2, true), (3, 4, true), (5, 6, false)]);
    match table.decide(&request(after(2))) {
        Err(Error::Stale { earliest, resume, .. }) => {
            assert_eq!((earliest, resume), (at(7).to_string(), Cursor::Completed(at(4)).to_string()));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(table.decide(&request(Begin::Earliest)), Err(Error::Stale { .. })));
    assert_eq!(delivered(&table.window(&request(after(4)))), [7]);
}

#[test]
fn an_archived_commit_that_completed_late_makes_a_cursor_on_the_timeline_stale() {
    let table = Table::new(&[(2, 3, true)]).archive(&[(1, 10, true)]);
    assert!(matches!(table.decide(&request(after(3))), Err(Error::Stale { .. })));
}

#[test]
fn commits_archived_past_one_that_a_savepoint_keeps_are_taken_by_their_time() {
    // The first is still on the timeline, the three after it are not.
    let table = || Table::new(&[(1, 2, true), (9, 10, true)]).archive(&[(3, 4, true), (5, 6, true), (7, 8, true)]);
    for begin in [Begin::Earliest, after(2), after(4), after(6)] {
        match table().decide(&request(begin.clone())) {
            Err(Error::Stale { earliest, resume, .. }) => {
                assert_eq!((earliest, resume), (at(9).to_string(), Cursor::Completed(at(8)).to_string()));
            }
            other => panic!("{begin:?}: {other:?}"),
        }
    }
    assert_eq!(delivered(&table().window(&request(after(8)))), [9]);
    let whole = table().window(&request(Begin::Snapshot));
    assert_eq!((whole.whole, whole.end.clone()), (true, at(10)));
    assert_eq!(delivered(&table().window(&resume(&whole, 5))), Vec::<u32>::new());
    let by_request = request(Begin::After(Cursor::Requested(at(7))));
    assert_eq!(delivered(&table().window(&by_request)), [9], "translated by the archive");
}

#[test]
fn a_checkpointed_cursor_must_name_a_commit_and_a_written_one_must_not_lie_ahead() {
    let table = Table::new(&[(3, 4, true), (5, 6, true)]).archive(&[(1, 2, true)]);
    let with = |second, fingerprint: Option<&str>| PlanRequest {
        fingerprint: fingerprint.map(str::to_string),
        ..request(after(second))
    };
    assert!(table.decide(&with(4, Some("t"))).is_ok());
    assert!(table.decide(&with(2, Some("t"))).is_ok(), "archived");
    assert!(matches!(table.decide(&with(3, Some("t"))), Err(Error::Restored { .. })));
    assert!(matches!(table.decide(&with(9, Some("t"))), Err(Error::Restored { .. })));
    assert_eq!(delivered(&table.window(&with(3, None))), [3, 5]);
    assert!(matches!(table.decide(&with(9, None)), Err(Error::Beyond { .. })));
}

#[test]
fn a_cursor_that_was_set_by_hand_must_name_a_commit_and_is_told_the_nearest_ones() {
    let table = Table::new(&[(3, 4, true), (5, 6, true)]).archive(&[(1, 2, false)]);
    let set = |cursor: Cursor| table.decide(&PlanRequest { by_hand: true, ..request(Begin::After(cursor)) });
    assert_eq!(delivered(&set(Cursor::Completed(at(4))).unwrap().0), [5]);
    assert_eq!(delivered(&set(Cursor::Requested(at(3))).unwrap().0), [5]);
    assert!(set(Cursor::Completed(at(2))).is_ok(), "archived, and nothing after it is gone");
    assert!(set(Cursor::Completed(InstantTime::init())).is_ok());
    for (cursor, parts) in [
        (Cursor::Completed(at(5)), [format!("completed:{}", at(4)), format!("completed:{}", at(6))]),
        (Cursor::Requested(at(4)), [format!("requested:{}", at(3)), format!("requested:{}", at(5))]),
        (Cursor::Completed(at(1)), ["before the first commit".to_string(), format!("completed:{}", at(2))]),
        (Cursor::Requested(at(9)), ["after the newest commit".to_string(), format!("requested:{}", at(5))]),
    ] {
        let refused = set(cursor).unwrap_err();
        assert!(matches!(refused, Error::NoCommit { .. }), "{refused:?}");
        let said = refused.to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
    assert!(matches!(set(Cursor::Completed(at(9))), Err(Error::Beyond { .. })));
}

#[test]
fn a_requested_cursor_takes_everything_requested_later() {
    let table = Table::new(&[(1, 2, true), (3, 10, true), (4, 5, true), (6, 7, true), (11, 12, true)]);
    let begin = Begin::After(Cursor::Requested(at(3)));
    let window = table.window(&PlanRequest { num_instants: 1, ..request(begin) });
    assert_eq!((delivered(&window), window.end.clone()), (vec![4, 6, 11], at(12)));
    // What was requested up to the cursor was delivered, whenever it completed.
    let window = table.window(&PlanRequest { num_instants: 1, ..request(Begin::After(Cursor::Requested(at(4)))) });
    assert_eq!((delivered(&window), window.end.clone()), (vec![6, 11], at(12)));
    assert_eq!(delivered(&table.window(&resume(&window, 5))), Vec::<u32>::new());
    let unknown = request(Begin::After(Cursor::Requested(at(2))));
    assert!(matches!(table.decide(&unknown), Err(Error::Clock { .. })));
}

#[test]
fn a_small_window_of_a_long_backlog_reads_few_commits() {
    let commits: Vec<(u32, u32, bool)> = (0..10_000).map(|n| (2 * n + 1, 2 * n + 2, true)).collect();
    let table = Table::new(&commits);
    let (window, read) = table.decide(&request(Begin::Earliest)).unwrap();
    assert_eq!(window.instants.len(), 5);
    assert_eq!(read, 6, "the window's commits, and one that says that there are more");
    let (_, read) = table.decide(&request(Begin::Snapshot)).unwrap();
    assert_eq!(read, 0);
}

mod by_request;
mod ceilings;

proptest! {
    /// Commits are requested in order, complete after a while, and some become visible only later. Windows of random
    /// sizes deliver each commit that changed rows once.
    #[test]
    fn windows_tile_whatever_completes_when(
        commits in prop::collection::vec((1u32..30, 0u32..3, prop::bool::weighted(0.7)), 1..60),
        sizes in prop::collection::vec(1usize..5, 1..40),
    ) {
        // (requested, completed, changes rows, visible from)
        let history: Vec<(u32, u32, bool, u32)> = commits
            .iter()
            .enumerate()
            .map(|(n, (takes, hides, changes))| {
                let requested = 10 + 3 * n as u32;
                // A completion is published late only by some writers; most are seen at once.
                let hides = if n > 0 && *hides == 0 { 25 } else { 0 };
                (requested, requested + takes, *changes, requested + takes + hides)
            })
            .collect();
        let mut window: Option<Window> = None;
        let mut seen: Vec<u32> = Vec::new();
        let mut missed: BTreeSet<u32> = BTreeSet::new();
        let last = history.iter().map(|(.., visible)| *visible).max().unwrap_or(0);
        let mut sizes = sizes.into_iter().cycle();
        for now in (0..=last + 1).step_by(7).chain(std::iter::repeat_n(last + 1, history.len() + 1)) {
            let visible: Vec<(u32, u32, bool)> = history
                .iter()
                .filter(|(.., visible)| *visible <= now)
                .map(|(requested, completed, changes, _)| (*requested, *completed, *changes))
                .collect();
            let table = Table::new(&visible);
            let size = sizes.next().unwrap_or(1);
            let next = match &window {
                None => table.window(&PlanRequest { num_instants: size, ..request(Begin::Earliest) }),
                Some(window) => {
                    // What completed inside a window before the oldest remembered instant cannot be told from
                    // what was delivered.
                    let oldest = window.recent.iter().min().map(seconds);
                    for (requested, completed, changes) in &visible {
                        let inside = at(*completed) <= window.end && !seen.contains(requested);
                        if *changes && inside && oldest.is_none_or(|oldest| *requested < oldest) {
                            missed.insert(*requested);
                        }
                    }
                    table.window(&resume(window, size))
                }
            };
            if let Some(before) = &window {
                prop_assert_eq!(&next.begin, &Some(Cursor::Completed(before.end.clone())));
                prop_assert!(next.end >= before.end);
            }
            seen.extend(delivered(&next));
            window = Some(next);
        }
        let mut once = seen.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), seen.len(), "delivered twice: {:?}", seen);
        let wanted: BTreeSet<u32> = history.iter().filter(|c| c.2).map(|c| c.0).collect();
        let got: BTreeSet<u32> = once.into_iter().chain(missed.iter().copied()).collect();
        prop_assert_eq!(got, wanted);
    }
}
