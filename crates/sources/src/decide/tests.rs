// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;
use tributary_api::timeline::Views;
use tributary_types::SourceName;
use tributary_types::pipeline::{FileFormat, FileSource};

use super::*;
use crate::fetch::Pinned;

/// A directory, and a source that reads it.
struct Directory {
    options: FileOptions,
    files: Vec<(String, u64, i64)>,
    now: i64,
}

impl Directory {
    fn new(options: serde_json::Value) -> Self {
        Directory { options: serde_json::from_value(options).unwrap(), files: Vec::new(), now: 1_000_000_000 }
    }

    fn put(&mut self, path: &str, bytes: u64, modified: i64) -> &mut Self {
        self.files.retain(|(known, ..)| known != path);
        self.files.push((path.to_string(), bytes, modified));
        self
    }

    fn remove(&mut self, path: &str) {
        self.files.retain(|(known, ..)| known != path);
    }

    fn plan(&self, request: &PlanRequest, state: Option<FileState>) -> Result<(Vec<String>, Window), Error> {
        self.plan_of(request, state, None)
    }

    fn plan_of(
        &self,
        request: &PlanRequest,
        state: Option<FileState>,
        pinned: Option<Vec<String>>,
    ) -> Result<(Vec<String>, Window), Error> {
        let rules = Rules::new(&self.options).unwrap();
        let mut listed: Vec<Listed> = self
            .files
            .iter()
            .map(|(path, bytes, modified)| Listed {
                at: rules.position(path, *modified).unwrap(),
                file: Pinned { path: path.clone(), bytes: *bytes, modified_millis: *modified, e_tag: None },
            })
            .collect();
        listed.sort_by(|a, b| (a.at.millis, &a.at.path).cmp(&(b.at.millis, &b.at.path)));
        let source = FileSource { files: self.options.clone(), format: FileFormat::Parquet, topic: None };
        let files = FilesRequest { source, state, pinned };
        let facts = Facts { listed: &listed, now_millis: self.now, rules: &rules };
        let window = decide(request, &files, &facts)?;
        let names = window.read.iter().map(|at| listed[*at].file.path.clone()).collect();
        Ok((names, window))
    }

    /// The window after an earlier one.
    fn next(&self, before: &Window) -> Result<(Vec<String>, Window), Error> {
        self.plan(&after(before), Some(before.state.clone()))
    }
}

fn request(begin: Begin) -> PlanRequest {
    let views = Views { changed: true, end: true, begin: true };
    PlanRequest { views, ..PlanRequest::window(SourceName::new("s").unwrap(), "/s", begin) }
}

fn after(window: &Window) -> PlanRequest {
    request(Begin::After(Cursor::File(window.end.clone().unwrap())))
}

fn at(text: &str) -> FilePosition {
    text.parse().unwrap()
}

#[test]
fn windows_follow_one_another_and_a_third_finds_nothing() {
    let mut directory = Directory::new(serde_json::json!({}));
    directory.put("b", 1, 10).put("a", 1, 20);
    let (read, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    assert_eq!((read, first.begin.clone()), (vec!["b".to_string(), "a".to_string()], None));
    assert_eq!(first.end, Some(at("modified:20:a")));
    directory.put("c", 1, 30);
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!((read, second.begin.clone()), (vec!["c".to_string()], Some(at("modified:20:a"))));
    assert_eq!((second.at_end.len(), second.at_begin.len()), (3, 2));
    let (read, third) = directory.next(&second).unwrap();
    assert_eq!((read.len(), third.end.clone()), (0, second.end.clone()));
    assert_eq!(third.state, second.state);
}

#[test]
fn a_file_larger_than_the_limit_is_read_all_the_same() {
    let mut directory = Directory::new(serde_json::json!({"max_bytes": 10}));
    directory.put("huge", 1000, 1).put("next", 1, 2);
    let (read, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    assert_eq!((read, first.limited, first.lag), (vec!["huge".to_string()], true, 1));
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!((read, second.limited, second.lag), (vec!["next".to_string()], false, 0));
}

#[test]
fn limits_cut_between_whole_files_even_of_one_time() {
    let mut directory = Directory::new(serde_json::json!({"max_files": 2}));
    for name in ["a", "b", "c", "d", "e"] {
        directory.put(name, 1, 7);
    }
    let (read, first) = directory.plan(&request(Begin::Snapshot), None).unwrap();
    assert_eq!(read, ["a", "b"]);
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!(read, ["c", "d"]);
    assert_eq!(directory.next(&second).unwrap().0, ["e"]);
}

#[test]
fn a_file_that_appears_with_the_time_of_the_last_one_is_read() {
    let mut directory = Directory::new(serde_json::json!({"late_window": "0s"}));
    directory.put("b", 1, 10);
    let (_, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    directory.put("a", 1, 10).put("c", 1, 10);
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!((read, second.late.clone()), (vec!["a".to_string(), "c".to_string()], vec!["a".to_string()]));
    assert_eq!(directory.next(&second).unwrap().0, Vec::<String>::new());
}

#[test]
fn a_late_file_within_the_window_is_read_once() {
    let mut directory = Directory::new(serde_json::json!({"late_window": "100ms"}));
    directory.put("a", 1, 1000);
    let (_, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    directory.put("late", 1, 950);
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!((read, second.late.clone()), (vec!["late".to_string()], vec!["late".to_string()]));
    assert_eq!(second.end, first.end, "the cursor does not go back");
    assert_eq!(directory.next(&second).unwrap().0, Vec::<String>::new());
}

#[test]
fn a_late_file_beyond_the_window_fails_by_name_or_is_left_out_once() {
    let mut directory = Directory::new(serde_json::json!({"late_window": "100ms"}));
    directory.put("a", 1, 1000);
    let (_, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    directory.put("old", 1, 800).put("new", 1, 2000);
    let refused = directory.next(&first).unwrap_err();
    assert!(matches!(&refused, Error::LateFiles { files: 1, names, .. } if names == "old"), "{refused}");
    directory.options.on_late = OnLateFile::Warn;
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!((read, second.left_out.clone()), (vec!["new".to_string()], vec!["old".to_string()]));
    let (read, third) = directory.next(&second).unwrap();
    assert_eq!((read.len(), third.left_out.len()), (0, 0), "it was reported");
}

#[test]
fn a_late_name_is_judged_by_when_the_files_after_it_were_written() {
    let mut directory = Directory::new(serde_json::json!({"order": "name", "late_window": "100ms"}));
    directory.put("2", 1, 1000).put("4", 1, 2000).put("6", 1, 2050);
    let (_, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    directory.put("5", 1, 3000);
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!(read, ["5"], "its place was passed lately");
    let refused = directory.put("1", 1, 3000).next(&second).unwrap_err();
    assert!(matches!(refused, Error::LateFiles { files: 1, .. }), "its place was passed long ago: {refused}");
}

#[test]
fn a_changed_file_fails_is_read_again_or_is_left_as_the_source_says() {
    let mut directory = Directory::new(serde_json::json!({"order": "name"}));
    directory.put("a", 1, 1000).put("b", 1, 1000);
    let (_, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    directory.put("a", 2, 2000);
    let refused = directory.next(&first).unwrap_err();
    assert!(matches!(&refused, Error::ChangedFiles { files: 1, names, .. } if names == "a"), "{refused}");
    directory.options.on_changed = OnChangedFile::Reread;
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!((read, second.end.clone()), (vec!["a".to_string()], first.end.clone()));
    assert_eq!(directory.next(&second).unwrap().0.len(), 0);
    directory.options.on_changed = OnChangedFile::Ignore;
    let (read, ignored) = directory.next(&first).unwrap();
    assert_eq!((read.len(), ignored.left_out.clone()), (0, vec!["a".to_string()]));
    assert_eq!(directory.next(&ignored).unwrap().1.left_out.len(), 0, "what it is now is remembered");
}

#[test]
fn a_file_that_was_read_and_is_written_again_is_changed_and_not_new() {
    let mut directory = Directory::new(serde_json::json!({}));
    directory.put("a", 1, 1000);
    let (_, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    directory.put("a", 5, 2000);
    assert!(matches!(directory.next(&first), Err(Error::ChangedFiles { .. })));
}

#[test]
fn files_that_were_modified_too_recently_hold_up_those_after_them() {
    let mut directory = Directory::new(serde_json::json!({"order": "name", "quiet": "10ms"}));
    directory.now = 1000;
    directory.put("a", 1, 900).put("b", 1, 995).put("c", 1, 900);
    let (read, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    assert_eq!(read, ["a"], "c after b: the cursor must not pass b");
    directory.now = 1100;
    assert_eq!(directory.next(&first).unwrap().0, ["b", "c"]);
}

#[test]
fn an_aligned_window_ends_at_the_ceiling() {
    let mut directory = Directory::new(serde_json::json!({}));
    directory.put("a", 1, 10).put("b", 1, 20).put("c", 1, 30);
    let ceiling = PlanRequest { ceiling_millis: Some(20), ..request(Begin::Earliest) };
    assert_eq!(directory.plan(&ceiling, None).unwrap().0, ["a", "b"]);
    let mut named = Directory::new(serde_json::json!({"order": "name"}));
    named.put("a", 1, 30).put("b", 1, 10);
    assert_eq!(named.plan(&ceiling, None).unwrap().0.len(), 0, "the longest beginning in order");
}

#[test]
fn latest_delivers_the_newest_file_and_what_was_before_counts_as_read() {
    let mut directory = Directory::new(serde_json::json!({"late_window": "0s"}));
    directory.put("a", 1, 10).put("b", 1, 20).put("c", 1, 30);
    let (read, first) = directory.plan(&request(Begin::Latest), None).unwrap();
    assert_eq!((read, first.begin.clone()), (vec!["c".to_string()], Some(at("modified:20:b"))));
    assert_eq!(directory.next(&first).unwrap().0.len(), 0);
    let empty = Directory::new(serde_json::json!({}));
    let (read, first) = empty.plan(&request(Begin::Latest), None).unwrap();
    assert_eq!((read.len(), first.end), (0, Some(FilePosition::start(FileOrder::Modified))));
}

#[test]
fn a_start_at_the_time_that_hudi_streamer_kept_goes_on_after_it() {
    let mut directory = Directory::new(serde_json::json!({}));
    directory.put("a", 1, 10).put("b", 1, 20).put("c", 1, 20).put("d", 1, 30);
    let begin = Begin::After("file:modified:20:".parse().unwrap());
    let (read, first) = directory.plan(&request(begin), None).unwrap();
    assert_eq!(read, ["d"]);
    assert_eq!(directory.next(&first).unwrap().0.len(), 0, "files before the start are not late");
}

#[test]
fn a_cursor_of_another_order_or_of_a_table_is_refused() {
    let mut directory = Directory::new(serde_json::json!({"order": "name"}));
    directory.put("2025.csv", 1, 1);
    for cursor in ["file:modified:1:a", "completed:20250606182826197", "file:name:5:a"] {
        let refused = directory.plan(&request(Begin::After(cursor.parse().unwrap())), None).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{cursor}: {refused}");
    }
}

#[test]
fn a_window_that_is_planned_again_is_the_same_files_or_an_error() {
    let mut directory = Directory::new(serde_json::json!({}));
    directory.put("a", 1, 10).put("b", 1, 20);
    let first = request(Begin::Earliest);
    let (read, _) = directory.plan(&first, None).unwrap();
    directory.put("b", 5, 25).put("c", 1, 30);
    let (again, window) = directory.plan_of(&first, None, Some(read.clone())).unwrap();
    assert_eq!(again, read);
    let kept = window.state.read.iter().find(|file| file.path == "b").unwrap();
    assert_eq!(kept.bytes, 5, "as it was read in the end");
    assert_eq!(directory.next(&window).unwrap().0, ["c"]);
    directory.remove("a");
    let gone = directory.plan_of(&first, None, Some(read)).unwrap_err();
    assert!(matches!(&gone, Error::FileGone { file, .. } if file == "a"), "{gone}");
}

#[test]
fn a_look_up_sees_every_file_and_keeps_only_the_schema() {
    let mut directory = Directory::new(serde_json::json!({}));
    directory.put("a", 1, 10).put("b", 1, 20);
    let lookup = PlanRequest { lookup: true, ..request(Begin::Snapshot) };
    let state = FileState { schema: Some("{}".to_string()), ..FileState::default() };
    let (read, window) = directory.plan(&lookup, Some(state)).unwrap();
    assert_eq!((read.len(), window.at_end.len(), window.end.clone()), (0, 2, Some(at("modified:20:b"))));
    assert_eq!(window.state.schema.as_deref(), Some("{}"));
}

#[test]
fn files_that_vanish_after_they_were_read_are_no_matter_and_may_come_back() {
    let mut directory = Directory::new(serde_json::json!({}));
    directory.put("a", 1, 10).put("b", 1, 20);
    let (_, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    directory.remove("a");
    let (read, second) = directory.next(&first).unwrap();
    assert_eq!(read.len(), 0);
    directory.put("a", 1, 10);
    assert_eq!(directory.next(&second).unwrap().0.len(), 0);
}

#[test]
fn more_files_than_are_remembered_are_still_not_read_twice_and_late_ones_are_noticed() {
    let mut directory = Directory::new(serde_json::json!({"max_files": 100_000, "late_window": "0s"}));
    for number in 0..FILES_KNOWN + 500 {
        directory.put_new(&format!("{number:06}"), 1, number as i64);
    }
    let (read, first) = directory.plan(&request(Begin::Earliest), None).unwrap();
    assert_eq!(read.len(), FILES_KNOWN + 500);
    assert_eq!((first.state.read.len(), first.state.older.len()), (FILES_KEPT, FILES_KNOWN - FILES_KEPT));
    let forgotten = first.state.forgotten.clone().unwrap();
    assert_eq!((forgotten.upto, forgotten.files), (at("modified:499:000499"), 500));
    assert_eq!(directory.next(&first).unwrap().0.len(), 0);
    // Known by its hash alone: a late file beside it is noticed by name.
    directory.put_new("000700x", 1, 700);
    assert!(matches!(directory.next(&first), Err(Error::LateFiles { files: 1, .. })));
    directory.remove("000700x");
    // Where nothing is remembered by name, the number tells.
    directory.put_new("000001x", 1, 1);
    assert!(matches!(directory.next(&first), Err(Error::LateFiles { files: 1, .. })));
}

impl Directory {
    fn put_new(&mut self, path: &str, bytes: u64, modified: i64) {
        self.files.push((path.to_string(), bytes, modified));
    }
}

proptest! {
    /// Whatever appears between windows, each file is read exactly once while the late window holds it.
    #[test]
    fn every_file_is_read_once(
        rounds in prop::collection::vec(prop::collection::vec((0u8..40, 0i64..50), 0..6), 1..8),
        by_name in any::<bool>(),
        max_files in 1u32..4,
    ) {
        let order = if by_name { "name" } else { "modified" };
        let options = serde_json::json!({"order": order, "max_files": max_files, "late_window": "1h"});
        let mut directory = Directory::new(options);
        let mut seen: Vec<String> = Vec::new();
        let mut last: Option<Window> = None;
        for round in rounds {
            for (name, modified) in round {
                let name = format!("{name:02}");
                if directory.files.iter().all(|(known, ..)| *known != name) {
                    directory.put(&name, 1, modified);
                }
            }
            loop {
                let (read, window) = match &last {
                    None => directory.plan(&request(Begin::Earliest), None).unwrap(),
                    Some(window) => directory.next(window).unwrap(),
                };
                prop_assert!(read.len() <= max_files as usize);
                let done = read.is_empty();
                seen.extend(read);
                last = Some(window);
                if done {
                    break;
                }
            }
        }
        let mut expected: Vec<String> = directory.files.iter().map(|(name, ..)| name.clone()).collect();
        expected.sort();
        seen.sort();
        prop_assert_eq!(seen, expected);
    }
}
