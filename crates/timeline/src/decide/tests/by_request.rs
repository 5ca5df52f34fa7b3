// SPDX-License-Identifier: Apache-2.0
//! Tables without completion times.

use super::*;

impl Table {
    /// A table of version 6: requested, whether it changed rows; and what is pending.
    fn six(commits: &[(u32, bool)], pending: &[u32]) -> Self {
        let commits: Vec<(u32, u32, bool)> = commits.iter().map(|(at, changes)| (*at, *at, *changes)).collect();
        let pending = pending.iter().map(|second| (at(*second), "commit".to_string())).collect();
        Table { kind: CursorKind::Requested, pending, ..Table::new(&commits) }
    }
}

fn after(second: u32) -> Begin {
    Begin::After(Cursor::Requested(at(second)))
}

fn resume(window: &Window, num_instants: usize) -> PlanRequest {
    let begin = Begin::After(Cursor::Requested(window.end.clone()));
    PlanRequest { begin, ..super::resume(window, num_instants) }
}

#[test]
fn the_first_n_commits_in_the_order_of_requests_are_taken() {
    let table = Table::six(&[(1, true), (2, false), (3, true), (4, true)], &[]);
    let window = table.window(&PlanRequest { num_instants: 2, ..request(Begin::Earliest) });
    assert_eq!((delivered(&window), window.end.clone(), window.limited), (vec![1, 3], at(3), true));
    assert_eq!(window.begin, Some(Cursor::Requested(InstantTime::init())));
    let next = table.window(&resume(&window, 2));
    assert_eq!((delivered(&next), next.begin, next.end), (vec![4], Some(Cursor::Requested(at(3))), at(4)));
}

#[test]
fn a_window_ends_before_the_first_pending_commit() {
    let table = Table::six(&[(1, true), (2, true), (4, true), (6, true)], &[3, 5]);
    let window = table.window(&request(Begin::Earliest));
    assert_eq!((delivered(&window), window.end.clone(), window.limited), (vec![1, 2], at(2), false));
    let waiting = table.window(&resume(&window, 5));
    assert_eq!((waiting.has_news, waiting.end), (false, at(2)));
    // It completes: what waited behind it follows, up to the next one.
    let table = Table::six(&[(1, true), (2, true), (3, true), (4, true), (6, true)], &[5]);
    assert_eq!(delivered(&table.window(&resume(&window, 5))), [3, 4]);
}

#[test]
fn every_start_ends_before_the_first_pending_commit() {
    let table = Table::six(&[(1, true), (2, true), (4, true)], &[3]);
    let latest = table.window(&request(Begin::Latest));
    assert_eq!((delivered(&latest), latest.begin, latest.end), (vec![2], Some(Cursor::Requested(at(1))), at(2)));
    let whole = table.window(&request(Begin::Snapshot));
    assert_eq!((whole.end, whole.has_news, whole.recent), (at(2), true, vec![at(1), at(2)]));
    let lookup = table.window(&PlanRequest { lookup: true, on_hole: OnHole::Fail, ..request(Begin::Snapshot) });
    assert_eq!(lookup.end, at(2));
    let nothing = Table::six(&[(4, true)], &[3]);
    for begin in [Begin::Latest, Begin::Earliest, Begin::Snapshot] {
        let window = nothing.window(&request(begin));
        assert_eq!((window.has_news, window.end.clone()), (false, InstantTime::init()));
        assert_eq!(delivered(&Table::six(&[(3, true), (4, true)], &[]).window(&resume(&window, 5))), [3, 4]);
    }
}

#[test]
fn a_source_that_is_not_to_wait_fails_by_the_pending_commit_once_others_follow_it() {
    let fail = PlanRequest { on_hole: OnHole::Fail, ..request(Begin::Earliest) };
    assert_eq!(delivered(&Table::six(&[(1, true)], &[3]).window(&fail)), [1], "nothing follows it yet");
    match Table::six(&[(1, true), (4, true)], &[3]).decide(&fail) {
        Err(Error::Hole { instant, action, .. }) => assert_eq!((instant, action.as_str()), (at(3), "commit")),
        other => panic!("{other:?}"),
    }
    // In the order of completion a pending commit is harmless.
    let mut nine = Table::new(&[(1, 2, true), (4, 5, true)]);
    nine.pending = vec![(at(3), "commit".to_string())];
    assert_eq!(delivered(&nine.window(&fail)), [1, 4]);
}

#[test]
fn a_commit_that_was_pending_behind_the_cursor_is_late_and_holds_nobody_up() {
    let table = Table::six(&[(2, true), (4, true), (5, true)], &[3]);
    let stored = PlanRequest {
        fingerprint: Some("t".to_string()),
        recent: vec![at(2), at(4)],
        on_late: OnLate::Deliver,
        on_hole: OnHole::Fail,
        ..request(after(4))
    };
    assert_eq!(delivered(&table.window(&stored)), [5]);
    let completed = Table::six(&[(2, true), (3, true), (4, true), (5, true)], &[]);
    let window = completed.window(&stored);
    assert_eq!((delivered(&window), window.late), (vec![3, 5], vec![at(3)]));
    let fail = PlanRequest { on_late: OnLate::Fail, ..stored };
    assert!(matches!(completed.decide(&fail), Err(Error::Late { instant, .. }) if instant == at(3)));
}

#[test]
fn a_pending_commit_is_waited_for_once_others_follow_it() {
    let waits_for =
        |done: &[(u32, bool)], pending: &[u32]| Table::six(done, pending).window(&request(Begin::Earliest)).waits_for;
    assert_eq!(waits_for(&[(1, true), (4, true)], &[3]), Some(at(3)));
    assert_eq!(waits_for(&[(1, true), (2, true)], &[3]), None, "nothing follows it");
    assert_eq!(waits_for(&[(1, true)], &[]), None);
}

#[test]
fn a_window_that_is_planned_again_ends_where_it_ended_whatever_is_pending_now() {
    let table = Table::six(&[(1, true), (2, true), (4, true)], &[]);
    let pinned = |end: Cursor| PlanRequest { pinned_end: Some(end), ..request(Begin::Earliest) };
    let late_request = Table { pending: vec![(at(3), "commit".to_string())], ..table };
    assert_eq!(delivered(&late_request.window(&pinned(Cursor::Requested(at(4))))), [1, 2, 4]);
    let refused = late_request.decide(&pinned(Cursor::Completed(at(4))));
    assert!(matches!(refused, Err(Error::Clock { .. })));
}

#[test]
fn a_snapshot_that_is_planned_again_is_stale_once_the_archive_passed_its_end() {
    let pinned = PlanRequest { pinned_end: Some(Cursor::Requested(at(2))), ..request(Begin::Snapshot) };
    let table = || Table::six(&[(5, true)], &[]);
    assert_eq!(table().archive(&[(1, 1, true), (2, 2, true), (3, 3, false)]).window(&pinned).end, at(2));
    let passed = table().archive(&[(1, 1, true), (2, 2, true), (3, 3, true)]);
    assert!(matches!(passed.decide(&pinned), Err(Error::Stale { .. })));
}

#[test]
fn stale_restored_and_foreign_cursors_are_named_in_their_own_clock() {
    let table = Table::six(&[(7, true), (8, true)], &[]).archive(&[(1, 1, true), (3, 3, true), (5, 5, false)]);
    match table.decide(&request(after(1))) {
        Err(Error::Stale { cursor, earliest, resume, .. }) => {
            assert_eq!((cursor, earliest), (Cursor::Requested(at(1)), at(7).to_string()));
            assert_eq!(resume, Cursor::Requested(at(3)).to_string());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(delivered(&table.window(&request(after(3)))), [7, 8], "what is archived after it changed nothing");
    let stored = |second| PlanRequest { fingerprint: Some("t".to_string()), ..request(after(second)) };
    assert!(table.decide(&stored(3)).is_ok(), "archived");
    match table.decide(&stored(4)) {
        Err(Error::Restored { cursor, .. }) => assert_eq!(cursor, Cursor::Requested(at(4))),
        other => panic!("{other:?}"),
    }
    assert!(matches!(table.decide(&request(after(9))), Err(Error::Beyond { .. })));
    let completed = request(Begin::After(Cursor::Completed(at(7))));
    assert!(matches!(table.decide(&completed), Err(Error::Clock { version: 6, .. })));
}

#[test]
fn a_cursor_from_before_an_upgrade_delivers_nothing_twice_and_reports_what_came_late() {
    // Requested 1 to 4 were delivered by request; 2 completed after 5 did. 6 was requested before the upgrade.
    let table = Table::new(&[(1, 10, true), (2, 30, true), (4, 12, true), (5, 20, true), (6, 40, true)]);
    let stored = PlanRequest {
        fingerprint: Some("t".to_string()),
        recent: vec![at(1), at(2), at(4)],
        num_instants: 1,
        ..request(after(4))
    };
    let window = table.window(&stored);
    assert_eq!((delivered(&window), window.end.clone()), (vec![5, 6], at(40)));
    assert_eq!(window.begin, Some(Cursor::Completed(at(30))));
    assert_eq!(delivered(&table.window(&super::resume(&window, 5))), Vec::<u32>::new());
    // 3 was pending then.
    let with_three = Table::new(&[(1, 10, true), (3, 15, true), (4, 12, true), (5, 20, true)]);
    let stored = PlanRequest { recent: vec![at(1), at(4)], ..stored };
    assert!(matches!(with_three.decide(&stored), Err(Error::Late { instant, .. }) if instant == at(3)));
    let archived = Table::new(&[(5, 20, true)]).archive(&[(1, 10, true), (4, 12, true)]);
    assert_eq!(delivered(&archived.window(&stored)), [5], "translated through the history");
}

proptest! {
    /// Commits are requested in order and complete after a while. Windows of random sizes deliver each commit that
    /// changed rows once, in the order of requests.
    #[test]
    fn windows_by_request_tile(
        commits in prop::collection::vec((1u32..30, prop::bool::weighted(0.7)), 1..60),
        sizes in prop::collection::vec(1usize..5, 1..40),
    ) {
        let history: Vec<(u32, u32, bool)> = commits
            .iter()
            .enumerate()
            .map(|(n, (takes, changes))| (10 + 3 * n as u32, 10 + 3 * n as u32 + takes, *changes))
            .collect();
        let last = history.iter().map(|(_, completed, _)| *completed).max().unwrap_or(0);
        let mut sizes = sizes.into_iter().cycle();
        let mut window: Option<Window> = None;
        let mut seen: Vec<u32> = Vec::new();
        for now in (0..=last + 1).step_by(7).chain(std::iter::repeat_n(last + 1, history.len() + 1)) {
            let (done, pending): (Vec<_>, Vec<_>) =
                history.iter().filter(|(requested, ..)| *requested <= now).partition(|(_, at, _)| *at <= now);
            let done: Vec<(u32, bool)> = done.iter().map(|(requested, _, changes)| (*requested, *changes)).collect();
            let pending: Vec<u32> = pending.iter().map(|(requested, ..)| *requested).collect();
            let table = Table::six(&done, &pending);
            let size = sizes.next().unwrap_or(1);
            let next = match &window {
                None => table.window(&PlanRequest { num_instants: size, ..request(Begin::Earliest) }),
                Some(window) => table.window(&PlanRequest { on_late: OnLate::Fail, ..resume(window, size) }),
            };
            prop_assert!(pending.first().is_none_or(|hole| next.end < at(*hole)));
            prop_assert!(delivered(&next).len() <= size);
            seen.extend(delivered(&next));
            window = Some(next);
        }
        let wanted: Vec<u32> = history.iter().filter(|commit| commit.2).map(|commit| commit.0).collect();
        prop_assert_eq!(seen, wanted);
    }
}
