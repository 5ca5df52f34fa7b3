// SPDX-License-Identifier: Apache-2.0
//! Cursors that are set by hand: applied once, checked against the table, kept in the target's commits.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_hudi::SystemStores;
use tributary_server::embedded::Embedded;
use tributary_testkit::{Fault, FaultPlan, FaultyStores, archive_instants};
use tributary_types::pipeline::{OnStale, Pipeline, Start, TableType};
use tributary_types::{Checkpoint, Cursor, Outcome, Override, PipelineName, SourceName};

use crate::process::tributary;
use crate::support::{
    Lake, assert_sound, checkpoints, open, open_value_table, pipeline, request_of, roles, roles_over, rows, run,
    value_table, values,
};

/// The rows of two tables, one below the other.
fn both(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [
            {"name": "a", "path": lake.path("a"), "start": "snapshot"},
            {"name": "b", "path": lake.path("b"), "start": "snapshot"},
        ],
        "transform": [{"sql": "SELECT id, value FROM <SRC:a> UNION ALL SELECT id, value FROM <SRC:b>"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

fn name(text: &str) -> SourceName {
    SourceName::new(text).unwrap()
}

async fn add(lake: &Lake, table: &str, id: &str, value: i64) {
    let table = open_value_table(&roles(), &lake.path(table)).await;
    table.upsert(vec![values([(id.to_string(), value)])]).await.unwrap();
}

/// Two tables with two commits each, which one batch read.
async fn lake_after_one_batch() -> Lake {
    let lake = Lake::new();
    for table in ["a", "b"] {
        value_table(&roles(), &lake.path(table)).await;
        add(&lake, table, &format!("{table}1"), 1).await;
        add(&lake, table, &format!("{table}2"), 2).await;
    }
    committed(&run(&roles(), &both(&lake), "first").await);
    lake
}

/// The cursors at which a table's commits stand, oldest first.
async fn cursors(lake: &Lake, table: &str) -> Vec<Cursor> {
    let (_, _, timeline) = open(&lake.path(table)).await;
    let writes = timeline.completed_writes();
    writes.iter().map(|write| Cursor::Completed(write.completed.clone().unwrap())).collect()
}

async fn requested(lake: &Lake, table: &str) -> Vec<String> {
    let (_, _, timeline) = open(&lake.path(table)).await;
    timeline.completed_writes().iter().map(|write| write.requested.to_string()).collect()
}

fn with(pipeline: &Pipeline, id: &str, overrides: &[&str]) -> RunRequest {
    let overrides = overrides.iter().map(|text| text.parse::<Override>().unwrap()).collect();
    RunRequest { overrides, ..request_of(pipeline, id) }
}

async fn ask(roles: &Embedded, request: RunRequest) -> BatchStatus {
    let started = roles.coordinator.run_batch(request).await.unwrap();
    let mut watch = roles.coordinator.watch_batch(&started.name).await.unwrap();
    watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone()
}

async fn override_run(pipeline: &Pipeline, id: &str, overrides: &[&str]) -> BatchStatus {
    ask(&roles(), with(pipeline, id, overrides)).await
}

async fn set(pipeline: &Pipeline, id: &str, overrides: &[&str]) -> BatchStatus {
    ask(&roles(), RunRequest { cursors_only: true, ..with(pipeline, id, overrides) }).await
}

fn committed(status: &BatchStatus) {
    assert_eq!(status.outcome, Some(Outcome::Committed), "{:?}", status.error);
}

fn assert_refused(status: &BatchStatus, reason: &str, parts: &[&str]) {
    let failure = status.error.as_ref().unwrap();
    assert_eq!((status.outcome, failure.reason.as_str()), (Some(Outcome::Rejected), reason), "{}", failure.message);
    for part in parts {
        assert!(failure.message.contains(part), "`{part}` is missing in: {}", failure.message);
    }
}

fn begin(status: &BatchStatus, source: usize) -> Option<Cursor> {
    status.sources[source].window.as_ref().unwrap().begin.clone()
}

async fn newest(lake: &Lake) -> Checkpoint {
    checkpoints(&lake.path("out"), "p").await.pop().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_moves_its_source_once_however_often_it_is_given() {
    let lake = lake_after_one_batch().await;
    let (a, b) = (cursors(&lake, "a").await, cursors(&lake, "b").await);
    let flag = format!("a={}", a[0]);
    let moved = override_run(&both(&lake), "r1", &[&flag]).await;
    committed(&moved);
    assert_eq!((begin(&moved, 0), begin(&moved, 1)), (Some(a[0].clone()), Some(b[1].clone())), "the other one stays");
    assert_eq!((moved.sources[0].rows, moved.sources[1].rows), (1, 0), "a2 is delivered again");
    let told = &moved.overrides[0];
    assert_eq!((&told.before, &told.applied_by), (&Some(a[1].clone()), &None));

    // The flag stays where it is. Each commit passes its token on.
    let idle = override_run(&both(&lake), "r2", &[&flag]).await;
    assert_eq!(idle.outcome, Some(Outcome::NoNewData), "{:?}", idle.error);
    assert_eq!(idle.overrides[0].applied_by, moved.instant);
    for n in 0..3 {
        add(&lake, "b", &format!("b{}", n + 3), n).await;
        let next = override_run(&both(&lake), &format!("r3-{n}"), &[&flag]).await;
        committed(&next);
        assert_eq!(begin(&next, 0), Some(a[1].clone()), "it is not applied again");
        assert_eq!(next.overrides[0].applied_by, moved.instant);
    }
    // With a token of its own it is another one.
    let mut again = with(&both(&lake), "r4", &[&flag]);
    again.overrides[0] = again.overrides[0].clone().with_token("once-more").unwrap();
    let again = ask(&roles(), again).await;
    committed(&again);
    assert_eq!(begin(&again, 0), Some(a[0].clone()));
    let tokens: Vec<String> = newest(&lake).await.tokens.into_keys().collect();
    assert_eq!(tokens, [flag.clone(), format!("once-more/{flag}")]);
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 7, "upserts: nothing is there twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_is_committed_even_where_nothing_is_left_to_read() {
    let lake = lake_after_one_batch().await;
    add(&lake, "a", "a3", 3).await;
    add(&lake, "a", "a4", 4).await;
    let newest_cursor = cursors(&lake, "a").await.pop().unwrap();
    let skipped = override_run(&both(&lake), "r1", &[&format!("a={newest_cursor}")]).await;
    committed(&skipped);
    assert_eq!((skipped.sources[0].rows, skipped.written.files), (0, 0));
    let idle = run(&roles(), &both(&lake), "r2").await;
    assert_eq!(idle.outcome, Some(Outcome::NoNewData), "what was skipped stays skipped without the flag");
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_place_is_where_the_window_begins() {
    let lake = lake_after_one_batch().await;
    let (completed, requested) = (cursors(&lake, "a").await, requested(&lake, "a").await);
    for (id, place, rows) in [
        ("r1", format!("requested:{}", requested[0]), 1),
        ("r2", "latest".to_string(), 1),
        ("r3", "earliest".to_string(), 2),
        ("r4", "snapshot".to_string(), 2),
        ("r5", "start".to_string(), 2),
        ("r6", format!("resumeFromInstantCompletionTime:{}", completed[0].instant().unwrap()), 1),
    ] {
        let status = override_run(&both(&lake), id, &[&format!("a={place}")]).await;
        committed(&status);
        assert_eq!(status.sources[0].rows, rows, "{place}");
        assert_eq!(status.sources[0].window.as_ref().unwrap().end, completed[1], "{place}");
    }
    let mut only = both(&lake);
    only.sources.truncate(1);
    only.transforms.clear();
    only.name = PipelineName::new("q").unwrap();
    committed(&run(&roles(), &only, "q1").await);
    let bare = override_run(&only, "q2", &[completed[0].instant().unwrap().as_str()]).await;
    committed(&bare);
    assert_eq!(begin(&bare, 0), Some(completed[0].clone()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_none_is_refused_with_what_would_be_one_and_nothing_moves() {
    let lake = lake_after_one_batch().await;
    let (a, before) = (cursors(&lake, "a").await, newest(&lake).await);
    let after = a[1].instant().unwrap().successor();
    let between = a[0].instant().unwrap().successor();
    let job = both(&lake);
    let beyond = override_run(&job, "r1", &[&format!("a=completed:{after}")]).await;
    assert_refused(&beyond, "CURSOR_BEYOND", &["source `a`", a[1].instant().unwrap().as_str()]);
    let nowhere = override_run(&job, "r2", &[&format!("a=completed:{between}")]).await;
    assert_refused(&nowhere, "CURSOR_NO_COMMIT", &["source `a`", &a[0].to_string(), &a[1].to_string()]);
    let unknown = override_run(&job, "r3", &["x=latest", "20250101000000000"]).await;
    assert_refused(&unknown, "OVERRIDE_INVALID", &["no source `x`", "there are: a, b", "2 sources"]);
    let foreign = override_run(&job, "r4", &["a=file:modified:1735689600123:x"]).await;
    assert_refused(&foreign, "OVERRIDE_INVALID", &["no place in source `a`"]);
    assert_eq!(newest(&lake).await, before);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_to_what_was_archived_names_the_earliest_readable_commit() {
    let lake = lake_after_one_batch().await;
    for n in 3..6 {
        add(&lake, "a", &format!("a{n}"), n).await;
    }
    committed(&run(&roles(), &both(&lake), "second").await);
    let (a, times) = (cursors(&lake, "a").await, requested(&lake, "a").await);
    archive_instants(Path::new(&lake.path("a")), &[&times[0], &times[1], &times[2]]);
    let job = both(&lake);
    let stale = override_run(&job, "r1", &[&format!("a={}", a[0])]).await;
    assert_refused(&stale, "CURSOR_STALE", &["source `a`", &a[0].to_string(), &times[3]]);
    let before_it = override_run(&job, "r2", &[&format!("a={}", a[2])]).await;
    committed(&before_it);
    assert_eq!(before_it.sources[0].rows, 2, "archived itself, and all after it is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_are_set_in_a_commit_without_rows_and_the_next_batch_goes_on_from_there() {
    let lake = lake_after_one_batch().await;
    let a = cursors(&lake, "a").await;
    let first = newest(&lake).await;
    let done = set(&both(&lake), "s1", &[&format!("a={}", a[0])]).await;
    committed(&done);
    assert_eq!((done.written.rows, done.seq), (0, Some(2)));
    let after = newest(&lake).await;
    assert_eq!(after.sources[&name("a")].cursor, Some(a[0].clone()));
    assert_eq!(after.sources[&name("b")].cursor, first.sources[&name("b")].cursor);
    // The same request is the same batch, and another request does it again.
    assert_eq!(set(&both(&lake), "s1", &[&format!("a={}", a[0])]).await.instant, done.instant);
    let next = run(&roles(), &both(&lake), "r1").await;
    committed(&next);
    assert_eq!((begin(&next, 0), next.sources[0].rows, next.seq), (Some(a[0].clone()), 1, Some(3)));
    committed(&set(&both(&lake), "s2", &[&format!("a={}", a[0])]).await);

    let whole = set(&both(&lake), "s3", &["a=start", "b=earliest"]).await;
    committed(&whole);
    let after = newest(&lake).await;
    let (reset, earliest) = (&after.sources[&name("a")], &after.sources[&name("b")]);
    assert_eq!((reset.cursor.clone(), reset.restart.clone()), (None, Some(Start::Snapshot)));
    assert!(earliest.cursor.as_ref().unwrap().instant().unwrap().is_init());
    let next = run(&roles(), &both(&lake), "r2").await;
    committed(&next);
    assert_eq!((begin(&next, 0), next.sources[0].rows, next.sources[1].rows), (None, 2, 2));
    assert_eq!(newest(&lake).await.sources[&name("a")].restart, None);
    assert_eq!(rows(&roles(), &lake.path("out")).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_commit_there_is_no_cursor_to_set() {
    let lake = Lake::new();
    for table in ["a", "b"] {
        value_table(&roles(), &lake.path(table)).await;
        add(&lake, table, "k", 1).await;
    }
    assert_refused(&set(&both(&lake), "s1", &["a=latest"]).await, "OVERRIDE_INVALID", &["no commit in the target yet"]);
    assert!(!crate::support::has_table(&lake.path("out")));
    // A batch begins where it is told to all the same.
    let first = override_run(&both(&lake), "r1", &["a=latest"]).await;
    committed(&first);
    assert_eq!(newest(&lake).await.tokens.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_setting_would_do_is_said_without_doing_it() {
    let lake = lake_after_one_batch().await;
    let (roles, job) = (roles(), both(&lake));
    let a = cursors(&lake, "a").await;
    let wanted = |text: &str| vec![text.parse::<Override>().unwrap()];
    let found = roles.coordinator.check_overrides(job.clone(), wanted(&format!("a={}", a[0]))).await.unwrap();
    assert_eq!((&found[0].before, &found[0].applied_by), (&Some(a[1].clone()), &None));
    let after = a[1].instant().unwrap().successor();
    let refused = roles.coordinator.check_overrides(job.clone(), wanted(&format!("a=completed:{after}"))).await;
    assert_eq!(tributary_types::Fault::reason(&refused.unwrap_err()), "CURSOR_BEYOND");
    let planned = roles.coordinator.plan_batch(job.clone(), wanted(&format!("a={}", a[0]))).await.unwrap();
    assert_eq!((planned.has_news, planned.sources[0].report.instants), (true, 1));
    let pipeline = PipelineName::new("p").unwrap();
    let stands = roles.coordinator.get_cursors(&pipeline, &lake.path("out")).await.unwrap().unwrap();
    assert_eq!(stands.checkpoint, newest(&lake).await);
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1, "nothing was done");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_heals_a_table_that_was_made_anew_and_a_damaged_entry() {
    let lake = lake_after_one_batch().await;
    std::fs::remove_dir_all(lake.path("a")).unwrap();
    value_table(&roles(), &lake.path("a")).await;
    add(&lake, "a", "new", 9).await;
    let refused = run(&roles(), &both(&lake), "r1").await;
    assert_refused(&refused, "SOURCE_RECREATED", &["--override a="]);
    let healed = override_run(&both(&lake), "r2", &["a=start"]).await;
    committed(&healed);
    assert_eq!(healed.sources[0].rows, 1);
    assert_eq!(run(&roles(), &both(&lake), "r3").await.outcome, Some(Outcome::NoNewData));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_cursor_reads_the_whole_table_but_for_what_was_read_where_the_source_says_so() {
    let lake = lake_after_one_batch().await;
    for n in 3..5 {
        add(&lake, "a", &format!("a{n}"), n).await;
    }
    add(&lake, "a", "a1", 11).await;
    let times = requested(&lake, "a").await;
    archive_instants(Path::new(&lake.path("a")), &[&times[0], &times[1], &times[2]]);
    let mut job = both(&lake);
    assert_refused(&run(&roles(), &job, "r1").await, "CURSOR_STALE", &["on_stale = \"snapshot\""]);
    job.sources[0].on_stale = OnStale::Snapshot;
    let planned = roles().coordinator.plan_batch(job.clone(), Vec::new()).await.unwrap();
    assert!(planned.sources[0].report.gap);
    let status = run(&roles(), &job, "r2").await;
    committed(&status);
    assert!(status.sources[0].report.gap && !status.sources[1].report.gap);
    assert_eq!(status.sources[0].rows, 3, "a3, a4 and the changed a1; a2 was read");
    let found = rows(&roles(), &lake.path("out")).await;
    assert_eq!(found.len(), 6);
    assert!(found.iter().any(|row| row.contains("a1") && row.contains("11")), "{found:?}");
    assert_sound(&lake.path("out"), "p").await;
    let idle = run(&roles(), &job, "r3").await;
    assert_eq!((idle.outcome, idle.sources[0].report.gap), (Some(Outcome::NoNewData), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_a_directory_of_files_is_set_by_hand_too() {
    let lake = Lake::new();
    let put = |file: &str, id: &str| {
        std::fs::create_dir_all(lake.path("clicks")).unwrap();
        std::fs::write(Path::new(&lake.path("clicks")).join(file), format!("id,value\n{id},1\n")).unwrap();
    };
    for (file, id) in [("1.csv", "x"), ("2.csv", "y"), ("3.csv", "z")] {
        put(file, id);
    }
    let job = pipeline(json!({
        "name": "p",
        "source": [{"name": "clicks", "kind": "csv", "path": lake.path("clicks"), "start": "earliest",
                    "files": {"order": "name"}, "csv": {"header": true}}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }));
    committed(&run(&roles(), &job, "r1").await);
    let back = override_run(&job, "r2", &["clicks=file:name:-:1.csv"]).await;
    committed(&back);
    assert_eq!((back.sources[0].report.files, back.sources[0].rows), (2, 2));
    assert_eq!(run(&roles(), &job, "r3").await.outcome, Some(Outcome::NoNewData));
    committed(&set(&job, "s1", &["clicks=file:name:-:2.csv"]).await);
    let next = run(&roles(), &job, "r4").await;
    committed(&next);
    assert_eq!(next.sources[0].report.files, 1, "only 3.csv: what is before the place counts as read");
    let beyond = override_run(&job, "r5", &["clicks=file:name:-:9.csv"]).await;
    assert_refused(&beyond, "CURSOR_BEYOND", &["3.csv"]);
    let foreign = override_run(&job, "r6", &["clicks=completed:20250101000000000"]).await;
    assert_refused(&foreign, "OVERRIDE_INVALID", &["`kind = \"csv\"`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_stands_for_its_overrides_too() {
    let lake = lake_after_one_batch().await;
    committed(&override_run(&both(&lake), "r1", &["a=snapshot"]).await);
    let other = override_run(&both(&lake), "r1", &["a=latest"]).await;
    assert_refused_as(&other, "REQUEST_REUSED");
    let without = run(&roles(), &both(&lake), "r1").await;
    assert_refused_as(&without, "REQUEST_REUSED");
    assert_eq!(newest(&lake).await.seq, 2);
}

fn assert_refused_as(status: &BatchStatus, reason: &str) {
    assert_eq!(status.error.as_ref().map(|failure| failure.reason.as_str()), Some(reason), "{status:?}");
}

/// The rows of one table.
fn only_a(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        // Copies of the lake lie elsewhere.
        "accept_binding_change": true,
        "source": [{"name": "a", "path": lake.path("a"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

fn disturbed(plan: Arc<FaultPlan>) -> Embedded {
    roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), plan)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_is_set_is_set_once_whatever_operation_fails() {
    let template = Lake::new();
    value_table(&roles(), &template.path("a")).await;
    add(&template, "a", "a1", 1).await;
    add(&template, "a", "a2", 2).await;
    committed(&run(&roles(), &only_a(&template), "first").await);
    let place = format!("a={}", cursors(&template, "a").await[0]);
    let request = |lake: &Lake| RunRequest { cursors_only: true, ..with(&only_a(lake), "set", &[&place]) };
    let plan = FaultPlan::none();
    let counted = template.copy();
    committed(&ask(&disturbed(Arc::clone(&plan)), request(&counted)).await);
    let operations = plan.operations();
    assert!(operations > 4, "a commit has more operations than {operations}");
    for number in 0..operations {
        for fault in [Fault::CrashAfter, Fault::ReplyLost, Fault::FailAlways] {
            let case = format!("operation {number} of {operations}, {fault:?}");
            let lake = template.copy();
            ask(&disturbed(FaultPlan::at(number, fault)), request(&lake)).await;
            let again = ask(&roles(), request(&lake)).await;
            assert_eq!(again.outcome, Some(Outcome::Committed), "{case}: {:?}", again.error);
            let all = checkpoints(&lake.path("out"), "p").await;
            assert_eq!((all.len(), all[1].tokens.len()), (2, 1), "{case}: one commit");
            assert_eq!(format!("a={}", all[1].sources[&name("a")].cursor.as_ref().unwrap()), place, "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_of_merge_on_read_targets_are_set_and_stale_ones_over_merge_on_read_sources_read_the_whole_table() {
    let lake = Lake::new();
    value_table(&roles(), &lake.path("a")).await;
    let mut feed = only_a(&lake);
    feed.target.path = lake.path("feed");
    feed.target.table_type = TableType::MergeOnRead;
    feed.target.services = serde_json::from_value(json!({
        "clean_commits": 0, "archive_commits": 0, "compact_delta_commits": 0, "compact_metadata_commits": 0,
    }))
    .unwrap();
    let mut follow = only_a(&lake);
    follow.sources[0].path = lake.path("feed");
    for (number, rows) in [[("k1", 1), ("k2", 2)], [("k1", 11), ("k1", 11)], [("k3", 3), ("k3", 3)]].iter().enumerate()
    {
        for (id, value) in rows {
            add(&lake, "a", id, *value).await;
        }
        committed(&run(&roles(), &feed, &format!("f{number}")).await);
        if number == 0 {
            committed(&run(&roles(), &follow, "first").await);
        }
    }
    let times = requested(&lake, "feed").await;
    archive_instants(Path::new(&lake.path("feed")), &[&times[0], &times[1]]);
    assert_refused(&run(&roles(), &follow, "r1").await, "CURSOR_STALE", &["source `a`"]);
    follow.sources[0].on_stale = OnStale::Snapshot;
    let status = run(&roles(), &follow, "r2").await;
    committed(&status);
    assert!(status.sources[0].report.gap);
    assert_eq!(status.sources[0].rows, 2, "k1 as its log has it, and k3; k2 was read");
    assert_eq!(rows(&roles(), &lake.path("out")).await, rows(&roles(), &lake.path("feed")).await);

    let first = cursors(&lake, "a").await[0].clone();
    committed(&set(&feed, "s1", &[&format!("a={first}")]).await);
    let again = run(&roles(), &feed, "f9").await;
    committed(&again);
    assert_eq!(begin(&again, 0), Some(first));
    assert_eq!(rows(&roles(), &lake.path("out")).await, rows(&roles(), &lake.path("feed")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_gets_sets_resets_and_says_what_was_applied_before() {
    let lake = lake_after_one_batch().await;
    let a = cursors(&lake, "a").await;
    let file = lake.dir().join("p.toml");
    std::fs::write(&file, toml_of(&lake)).unwrap();
    let file = file.display().to_string();
    let flag = format!("a={}", a[0]);
    let run = || tributary(&["run", "--pipeline", &file, "--override", &flag, "--brief"]);
    let first = run();
    assert_eq!(first.code, 0, "{first:?}");
    assert!(first.stdout.contains(&format!("override a = {}: applied (was {})", a[0], a[1])), "{first:?}");
    let second = run();
    assert!(second.stdout.contains("already applied by") && second.stdout.contains("NO_NEW_DATA"), "{second:?}");
    let dry = tributary(&["cursors", "set", "--pipeline", &file, "--dry-run", "b=latest"]);
    assert!(dry.code == 0 && dry.stdout.contains("would be applied"), "{dry:?}");
    let reset = tributary(&["cursors", "reset", "--pipeline", &file, "b", "--output", "json"]);
    assert_eq!(reset.code, 0, "{reset:?}");
    assert!(reset.stdout.contains("\"state\":\"applied\"") && reset.stdout.contains("\"rows\":0"), "{reset:?}");
    let got = tributary(&["cursors", "get", "--pipeline", &file]);
    assert!(got.stdout.contains(&format!("a: {}", a[1])) && got.stdout.contains("b: set by hand"), "{got:?}");
    assert!(got.stdout.contains(&format!("override {flag}: applied by")), "{got:?}");
    let refused = tributary(&["cursors", "set", "--pipeline", &file, "x=latest"]);
    assert!(refused.code == 2 && (refused.stdout + &refused.stderr).contains("no source `x`"));
    let nowhere = tributary(&["cursors", "history", "--pipeline", &file]);
    assert!(nowhere.code == 2 && nowhere.stderr.contains("--data-dir"), "{nowhere:?}");
    let data = lake.path("data");
    assert_eq!(tributary(&["run", "--pipeline", &file, "--data-dir", &data]).code, 0);
    let history = tributary(&["cursors", "history", "--pipeline", &file, "--data-dir", &data]);
    assert!(
        history.stdout.contains("b: start -> ") && history.stdout.contains("asked by tributary run"),
        "{history:?}"
    );
}

fn toml_of(lake: &Lake) -> String {
    format!(
        "name = \"p\"\n[[source]]\nname = \"a\"\npath = \"{0}\"\nstart = \"snapshot\"\n[[source]]\nname = \"b\"\npath = \
         \"{1}\"\nstart = \"snapshot\"\n[[transform]]\nsql = \"SELECT id, value FROM <SRC:a> UNION ALL SELECT id, value \
         FROM <SRC:b>\"\n[target]\npath = \"{2}\"\ntable_name = \"out\"\nrecord_key = [\"id\"]\n",
        lake.path("a"),
        lake.path("b"),
        lake.path("out")
    )
}
