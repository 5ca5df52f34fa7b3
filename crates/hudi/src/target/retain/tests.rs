// SPDX-License-Identifier: Apache-2.0
//! Tests of what may go.

use super::*;

fn at(second: u32) -> InstantTime {
    format!("202501010000{second:02}000").parse().unwrap()
}

fn file(file_id: &str, second: u32) -> BaseFile {
    BaseFile::from_path(&format!("p/{file_id}_0-0-0_{}.parquet", at(second)), 1).unwrap().unwrap()
}

fn timeline(names: &[String]) -> Timeline {
    Timeline::from_names("d", 2, names.iter().map(String::as_str))
}

fn done(requested: u32, completed: u32, action: &str) -> String {
    format!("{}_{}.{action}", at(requested), at(completed))
}

/// Commits requested at the even seconds from 2 on, each completed a second later.
fn commits(count: u32) -> Vec<String> {
    (1..=count).map(|number| done(2 * number, 2 * number + 1, "commit")).collect()
}

fn cleaned(
    names: &[String],
    files: &[BaseFile],
    replaced: &HashMap<GroupKey, InstantTime>,
    keep: usize,
) -> Vec<String> {
    let timeline = timeline(names);
    let completions = Completions::new(&timeline);
    let completions = &completions;
    let plan = plan_clean(&CleanFacts { timeline: &timeline, files, logs: &[], completions, replaced, keep });
    let files = plan.map(|plan| plan.files).unwrap_or_default();
    files.iter().map(|file| format!("{}@{}", file.file_id, &file.instant.as_str()[12..14])).collect()
}

#[test]
fn the_state_before_the_earliest_kept_commit_stays_and_older_versions_go() {
    // Kept: 6 and 8. The state before 6 is what 4 wrote.
    let files = [file("a", 2), file("a", 4), file("a", 6), file("a", 8), file("b", 2), file("b", 8), file("c", 2)];
    assert_eq!(cleaned(&commits(4), &files, &HashMap::new(), 2), ["a@02"]);
    assert_eq!(cleaned(&commits(4), &files, &HashMap::new(), 1), ["a@02", "a@04"]);
    assert_eq!(cleaned(&commits(4), &files, &HashMap::new(), 4), Vec::<String>::new());
}

/// `base` and `.log` files of one group by their seconds, cleaned over deltacommits at the even seconds but for
/// compactions, each completed a second later.
fn cleaned_logs(compactions: &[u32], bases: &[u32], logs: &[u32], keep: usize) -> Vec<String> {
    let action = |second: u32| if compactions.contains(&second) { "commit" } else { "deltacommit" };
    let names: Vec<String> = (1..=8).map(|n| done(2 * n, 2 * n + 1, action(2 * n))).collect();
    let timeline = timeline(&names);
    let files: Vec<BaseFile> = bases.iter().map(|second| file("a", *second)).collect();
    let log = |second: &u32| LogFile::from_path(&format!("p/.a_{}.log.1_0-0-0", at(*second)), 1).unwrap();
    let logs: Vec<LogFile> = logs.iter().map(log).collect();
    let (completions, replaced) = (Completions::new(&timeline), HashMap::new());
    let plan = plan_clean(&CleanFacts {
        timeline: &timeline,
        files: &files,
        logs: &logs,
        completions: &completions,
        replaced: &replaced,
        keep,
    });
    let Some(plan) = plan else { return Vec::new() };
    let second = |instant: &InstantTime| instant.as_str()[12..14].to_string();
    let bases = plan.files.iter().map(|file| second(&file.instant));
    bases.chain(plan.logs.iter().map(|log| format!(".{}", second(&log.instant)))).collect()
}

#[test]
fn logs_go_with_the_base_file_that_they_are_on_top_of() {
    // Compacted at 8; the state before 12 is what 10 left.
    let logs = [4, 6, 10, 12];
    assert_eq!(cleaned_logs(&[8], &[2, 8], &logs, 3), ["02", ".04", ".06"]);
    // The state before 8 needs the old slice.
    assert_eq!(cleaned_logs(&[8], &[2, 8], &logs, 5), Vec::<String>::new());
    assert_eq!(cleaned_logs(&[], &[2], &logs, 1), Vec::<String>::new(), "nothing was compacted");
}

#[test]
fn logs_of_a_group_without_a_base_file_go_once_there_is_one() {
    assert_eq!(cleaned_logs(&[8], &[8], &[4, 6, 10], 3), [".04", ".06"]);
    assert_eq!(cleaned_logs(&[8], &[8], &[4, 6, 10], 5), Vec::<String>::new());
}

#[test]
fn a_log_that_completes_after_a_compaction_was_requested_stays_with_what_it_made() {
    // 6 completes at 7: a compaction of 7 and later takes it in, one of 6 does not.
    assert_eq!(cleaned_logs(&[8], &[2, 8], &[6], 1), ["02", ".06"]);
    assert_eq!(cleaned_logs(&[4], &[2, 4], &[6], 1), ["02"]);
}

#[test]
fn the_newest_version_of_a_group_never_goes() {
    let files = [file("a", 2), file("b", 1)];
    assert_eq!(cleaned(&commits(9), &files, &HashMap::new(), 1), Vec::<String>::new());
}

#[test]
fn versions_of_archived_commits_are_older_than_all_others() {
    // 1 and the init instant are below the start of the timeline.
    let files = [file("a", 1), file("a", 2), file("a", 8)];
    assert_eq!(cleaned(&commits(4), &files, &HashMap::new(), 2), ["a@01"]);
}

#[test]
fn files_of_instants_that_did_not_complete_are_left_alone() {
    let files = [file("a", 2), file("a", 5), file("a", 8)];
    assert_eq!(cleaned(&commits(4), &files, &HashMap::new(), 1), Vec::<String>::new());
    // A pending write may read what it pinned.
    let mut names = commits(4);
    names.push(format!("{}.commit.requested", at(20)));
    assert_eq!(cleaned(&names, &[file("a", 2), file("a", 4), file("a", 8)], &HashMap::new(), 1), Vec::<String>::new());
}

#[test]
fn a_replaced_group_goes_once_its_replacement_is_past_what_is_kept() {
    let names: Vec<String> =
        [done(2, 3, "commit"), done(4, 5, "replacecommit"), done(6, 7, "commit"), done(8, 9, "commit")].into();
    let replaced = HashMap::from([(("p".to_string(), "a".to_string()), at(5))]);
    let files = [file("a", 2), file("b", 4)];
    assert_eq!(cleaned(&names, &files, &replaced, 1), ["a@02"]);
    assert_eq!(cleaned(&names, &files, &replaced, 2), ["a@02"]);
    assert_eq!(cleaned(&names, &files, &replaced, 3), Vec::<String>::new(), "the replacement itself is kept readable");
}

#[test]
fn what_a_savepoint_keeps_stays() {
    let mut names = commits(5);
    names.push(done(4, 30, "savepoint"));
    let files = [file("a", 2), file("a", 4), file("a", 6), file("a", 8), file("b", 2), file("b", 6), file("b", 8)];
    assert_eq!(cleaned(&names, &files, &HashMap::new(), 1), ["a@02", "a@06", "b@06"]);
    let replaced = HashMap::from([(("p".to_string(), "a".to_string()), at(9))]);
    assert_eq!(cleaned(&names, &files[..4], &replaced, 1), ["a@02", "a@06", "a@08"]);
}

#[test]
fn the_plan_says_from_which_commit_on_everything_can_be_read() {
    let timeline = timeline(&commits(4));
    let completions = Completions::new(&timeline);
    let files = [file("a", 2), file("a", 4), file("a", 6)];
    let replaced = HashMap::new();
    let (completions, replaced) = (&completions, &replaced);
    let facts = CleanFacts { timeline: &timeline, files: &files, logs: &[], completions, replaced, keep: 2 };
    let plan = plan_clean(&facts).unwrap();
    assert_eq!((plan.earliest, plan.last_completed), ((at(6), Action::Commit), at(8)));
}

fn archived(names: &[String], min: usize, max: usize, before: Option<u32>, held: &[Held]) -> Vec<String> {
    let timeline = timeline(names);
    let before = before.map(at);
    let taken = plan_archive(&ArchiveFacts { timeline: &timeline, max, min, before: before.as_ref(), held });
    taken.iter().map(|instant| instant.requested.as_str()[12..14].to_string()).collect()
}

#[test]
fn above_the_most_the_oldest_go_down_to_the_least() {
    assert_eq!(archived(&commits(4), 2, 4, None, &[]), Vec::<String>::new());
    assert_eq!(archived(&commits(5), 2, 4, None, &[]), ["02", "04", "06"]);
}

#[test]
fn other_instants_go_with_the_writes_around_them() {
    let mut names = commits(5);
    names.push(format!("{}_{}.clean", "20250101000006500", "20250101000006700"));
    names.push(format!("{}_{}.rollback", "20250101000007500", "20250101000007700"));
    names.push(format!("{}_{}.clean", "20250101000009500", "20250101000009700"));
    assert_eq!(archived(&names, 2, 4, None, &[]), ["02", "04", "06", "06", "07"]);
}

#[test]
fn a_pending_instant_and_the_write_before_it_stay() {
    for action in ["clean", "commit", "rollback"] {
        let mut names = commits(6);
        names.push(format!("{}.{action}.requested", "20250101000006500"));
        assert_eq!(archived(&names, 1, 4, None, &[]), ["02", "04"], "{action}");
    }
    let mut names = commits(6);
    names.push(format!("{}.clean.requested", at(1)));
    assert_eq!(archived(&names, 1, 4, None, &[]), Vec::<String>::new());
}

#[test]
fn a_savepoint_and_a_limit_hold_what_is_after_them() {
    let mut names = commits(6);
    assert_eq!(archived(&names, 1, 4, Some(7), &[]), ["02", "04", "06"]);
    names.push(done(6, 40, "savepoint"));
    assert_eq!(archived(&names, 1, 4, None, &[]), ["02", "04"]);
}

#[test]
fn a_replacement_with_listed_files_stays() {
    assert_eq!(archived(&commits(6), 1, 4, None, &[Held::Replacing(at(6))]), ["02", "04"]);
}

#[test]
fn a_rolled_back_instant_with_files_stays_above_the_start() {
    let held = [Held::RolledBack(at(7))];
    assert_eq!(archived(&commits(6), 1, 4, None, &held), ["02", "04"]);
    let held = [Held::RolledBack(at(1))];
    assert_eq!(archived(&commits(6), 1, 4, None, &held), Vec::<String>::new());
}
