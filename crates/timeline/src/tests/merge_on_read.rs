// SPDX-License-Identifier: Apache-2.0
//! What only tables with log files do.

use futures::StreamExt;
use tributary_api::timeline::{LogFile, Split};
use tributary_testkit::Fixture;
use tributary_types::{Code, Fault, InstantTime, Retry};

use super::oracle::{Oracle, check_rows, is_service, sorted_rows};
use super::*;

fn with_logs(relation: &Relation) -> Split {
    relation.splits.iter().find(|split| split.logs.is_some()).unwrap().clone()
}

fn read_of(relation: &Relation, split: Split, memory: usize) -> ReadRequest {
    ReadRequest {
        split,
        schema: Arc::clone(&relation.schema),
        projection: None,
        predicate: None,
        batch_rows: 10,
        memory: MemoryBudget::new(memory),
    }
}

#[tokio::test]
async fn every_window_of_several_commits_shows_what_its_commits_left_at_its_end() {
    for name in ["mor_v9_compaction", "mor_v8_compaction", "mor_v9_commit_time", "mor_v9_log_only"] {
        let oracle = Oracle::unpack(name);
        let service = service();
        let windows = oracle.windows();
        let requested = |end: &Value| {
            let instants = oracle.expected["instants"].as_array().unwrap().iter();
            instants.clone().find(|instant| instant["completed"] == *end).unwrap()["requested"].clone()
        };
        for last in 0..windows.len() {
            for first in 0..=last {
                let begin = match windows[first]["begin"].as_str().unwrap() {
                    "000" => Begin::Earliest,
                    begin => Begin::After(completed(begin)),
                };
                let end = windows[last]["end"].as_str().unwrap();
                let views = Views { changed: true, end: true, begin: false };
                let plan = PlanRequest { pinned_end: Some(completed(end)), views, ..request(&oracle.url(), begin) };
                let plan = service.plan(plan).await.unwrap();
                // Of the table at the window's end, the rows that the window's commits wrote.
                let wrote: Vec<Value> = windows[first..=last]
                    .iter()
                    .filter(|window| !is_service(window))
                    .map(|window| requested(&window["end"]))
                    .collect();
                let at_end = rows(&service, plan.at_end.as_ref()).await;
                let expected: Vec<Value> =
                    at_end.into_iter().filter(|row| wrote.contains(&row["_hoodie_commit_time"])).collect();
                check_rows(&service, &format!("{name} {first}..={last}"), plan.changed.as_ref(), &expected).await;
            }
        }
    }
}

#[tokio::test]
async fn what_a_log_compaction_stamped_anew_is_delivered_once_by_the_commits_that_wrote_it() {
    let oracle = Oracle::unpack("mor_v9_log_compaction");
    let service = service();
    let windows = oracle.windows();
    let plan = async |first: usize, last: usize| {
        let begin = match windows[first]["begin"].as_str().unwrap() {
            "000" => Begin::Earliest,
            begin => Begin::After(completed(begin)),
        };
        let pinned_end = Some(completed(windows[last]["end"].as_str().unwrap()));
        service.plan(PlanRequest { pinned_end, ..request(&oracle.url(), begin) }).await
    };
    // Window 4 is the log compaction of 1 to 3, window 7 the compaction; k1 is written in 1 and 3, k2 in 1 and 5.
    let logs_there = plan(3, 6).await.unwrap();
    assert_eq!(column(&service, logs_there.changed.as_ref(), "id").await, ["k1", "k2", "k3", "k7"]);
    let all = plan(1, 8).await.unwrap();
    assert_eq!(column(&service, all.changed.as_ref(), "id").await, ["k1", "k2", "k3", "k6", "k7"]);
    let later = plan(5, 8).await.unwrap();
    assert_eq!(column(&service, later.changed.as_ref(), "id").await, ["k2", "k3", "k6", "k7"]);
    // Commit 3 and what was before it were put together, and only the compacted file is left to tell.
    let refused = failure(plan(3, 8).await);
    assert!(matches!(&refused, Error::Unsupported { what, .. } if what.contains("log compaction")), "{refused}");
}

#[tokio::test]
async fn a_group_may_have_log_files_only_and_the_report_counts_every_file() {
    let oracle = Oracle::unpack("mor_v9_log_only");
    let service = service();
    let plan = service.plan(request(&oracle.url(), Begin::Snapshot)).await.unwrap();
    let splits = &plan.changed.as_ref().unwrap().splits;
    let log_only: Vec<&Split> = splits.iter().filter(|split| split.path.is_empty()).collect();
    assert!(!log_only.is_empty() && log_only.iter().all(|split| split.partition == "region=b"), "{splits:?}");
    assert_eq!(plan.report.files, splits.iter().map(Split::files).sum::<usize>());
    assert!(plan.report.files > splits.len());
    let on_disk = |path: &String| std::fs::metadata(oracle.fixture.path().join(path)).unwrap().len();
    let bases = splits.iter().map(|split| &split.path).filter(|path| !path.is_empty());
    let logs = splits.iter().flat_map(|split| &split.logs).flat_map(|logs| &logs.files).map(|log| &log.path);
    assert_eq!(plan.report.bytes, bases.chain(logs).map(on_disk).sum::<u64>());
}

#[tokio::test]
async fn a_slice_that_does_not_fit_into_memory_says_its_group_and_what_to_do() {
    let oracle = Oracle::unpack("mor_v9_compaction");
    let service = service();
    let plan = service.plan(request(&oracle.url(), Begin::Snapshot)).await.unwrap();
    let relation = plan.changed.unwrap();
    let split = with_logs(&relation);
    let stream = service.read(read_of(&relation, split.clone(), 1000)).await.unwrap();
    let error = stream.try_collect::<Vec<RecordBatch>>().await.unwrap_err();
    assert_eq!((error.code(), error.retry(), error.reason()), (Code::Overloaded, Retry::Never, "SLICE_TOO_LARGE"));
    let text = error.to_string();
    assert!(text.contains(&split.file_id) && text.contains("limits.memory"), "{text}");
}

#[tokio::test]
async fn a_log_that_vanished_says_which_and_asks_for_a_new_plan() {
    let oracle = Oracle::unpack("mor_v9_compaction");
    let service = service();
    let plan = service.plan(request(&oracle.url(), Begin::Snapshot)).await.unwrap();
    let relation = plan.changed.unwrap();
    let split = with_logs(&relation);
    let LogFile { path, .. } = split.logs.as_ref().unwrap().files.last().unwrap().clone();
    std::fs::remove_file(oracle.fixture.path().join(&path)).unwrap();
    let stream = service.read(read_of(&relation, split, 1 << 20)).await.unwrap();
    let error = stream.try_collect::<Vec<RecordBatch>>().await.unwrap_err();
    assert_eq!((error.code(), error.retry(), error.reason()), (Code::Conflict, Retry::Rebase, "FILE_GONE"));
    assert!(error.to_string().contains(&path), "{error}");
}

#[tokio::test]
async fn a_window_of_which_a_log_or_a_base_file_is_gone_is_stale_before_anything_is_read() {
    // Window 2 ends before the compaction: its slice is one base file and two logs.
    for (name, is_gone) in [
        ("base", Box::new(|file: &str| file.ends_with(".parquet")) as Box<dyn Fn(&str) -> bool>),
        ("log", Box::new(|file: &str| file.contains(".log."))),
    ] {
        let oracle = Oracle::unpack("mor_v9_compaction");
        let (service, window) = (service(), &oracle.windows()[2]);
        let plan = |views| PlanRequest {
            pinned_end: Some(completed(window["end"].as_str().unwrap())),
            views,
            ..request(&oracle.url(), Begin::After(completed(window["begin"].as_str().unwrap())))
        };
        let changed = plan(Views { changed: true, end: false, begin: false });
        let planned = service.plan(changed.clone()).await.unwrap();
        let split = with_logs(planned.changed.as_ref().unwrap());
        let mut files = vec![split.path.clone()];
        files.extend(split.logs.unwrap().files.into_iter().map(|log| log.path));
        let gone = files.iter().find(|file| is_gone(file)).unwrap();
        std::fs::remove_file(oracle.fixture.path().join(gone)).unwrap();
        let stands_at = completed(window["begin"].as_str().unwrap());
        let names_the_cursor = |error| matches!(error, Error::Stale { cursor, .. } if cursor == stands_at);
        assert!(names_the_cursor(failure(service.plan(changed).await)), "{name}");
        drop_metadata_table(oracle.fixture.path());
        let at_end = plan(Views { changed: false, end: true, begin: false });
        assert!(names_the_cursor(failure(service.plan(at_end).await)), "{name}");
    }
}

#[tokio::test]
async fn a_torn_log_of_a_completed_commit_is_an_error_and_no_missing_row() {
    for left in ["nothing", "all but a byte"] {
        let oracle = Oracle::unpack("mor_v9_compaction");
        let (service, window) = (service(), &oracle.windows()[2]);
        let begin = Begin::After(completed(window["begin"].as_str().unwrap()));
        let pinned_end = Some(completed(window["end"].as_str().unwrap()));
        let plan = service.plan(PlanRequest { pinned_end, ..request(&oracle.url(), begin) }).await.unwrap();
        let relation = plan.changed.unwrap();
        let split = with_logs(&relation);
        let log = oracle.fixture.path().join(&split.logs.as_ref().unwrap().files.last().unwrap().path);
        let bytes = std::fs::read(&log).unwrap();
        let kept = if left == "nothing" { 0 } else { bytes.len() - 1 };
        std::fs::write(&log, &bytes[..kept]).unwrap();
        let mut rows = service.read(read_of(&relation, split, 64 << 20)).await.unwrap();
        let mut failure = String::new();
        while let Some(batch) = rows.next().await {
            if let Err(error) = batch {
                failure = format!("{error:?}");
            }
        }
        assert!(failure.contains(".log.") && failure.contains("completed"), "{left}: {failure}");
    }
}

#[tokio::test]
async fn a_table_whose_logs_cannot_be_merged_is_refused_by_name() {
    for (property, named) in [
        ("hoodie.record.merge.mode=CUSTOM", "CUSTOM"),
        ("hoodie.table.partial.update.mode=FILL_UNAVAILABLE", "FILL_UNAVAILABLE"),
    ] {
        let table = Fixture::unpack("tables", "mor_v9_compaction");
        set_property(table.path(), property);
        let refused = failure(service().plan(request(&table.url(), Begin::Latest)).await).to_string();
        assert!(refused.contains(named), "{refused}");
    }
    let table = Fixture::unpack("tables", "mor_v9_compaction");
    set_property(table.path(), "hoodie.populate.meta.fields=false");
    let lookup = PlanRequest { lookup: true, meta_columns: false, ..request(&table.url(), Begin::Latest) };
    let refused = failure(service().plan(lookup).await).to_string();
    assert!(refused.contains("log files") && refused.contains("populate.meta.fields"), "{refused}");
}

#[tokio::test]
async fn rows_of_logs_have_the_columns_and_types_of_those_of_base_files() {
    let oracle = Oracle::unpack("mor_v9_typed");
    let service = service();
    let plan = service.plan(PlanRequest { meta_columns: false, ..request(&oracle.url(), Begin::Snapshot) });
    let relation = plan.await.unwrap().changed.unwrap();
    let position = |name: &str| relation.schema.index_of(name).unwrap();
    // Neither the key nor the ordering column is asked for.
    let projection = vec![position("added"), position("a_struct"), position("an_int")];
    let mut found = Vec::new();
    for split in &relation.splits {
        let read = ReadRequest { projection: Some(projection.clone()), ..read_of(&relation, split.clone(), 1 << 20) };
        let batches: Vec<RecordBatch> = service.read(read).await.unwrap().try_collect().await.unwrap();
        assert!(batches.iter().all(|batch| *batch.schema() == relation.schema.project(&projection).unwrap()));
        found.extend(batches.iter().flat_map(json::rows));
    }
    let columns = ["added", "a_struct", "an_int"];
    let pick = |row: &Value| Value::Object(columns.iter().map(|name| (name.to_string(), row[*name].clone())).collect());
    let expected = json::sorted(oracle.snapshot().iter().map(pick).collect());
    assert_eq!(json::sorted(found), expected);
}

#[tokio::test]
async fn a_pending_compaction_is_no_pending_write_and_the_rows_after_it_are_read() {
    let oracle = Oracle::unpack("mor_v9_compaction");
    let service = service();
    let plan = service.plan(request(&oracle.url(), Begin::Latest)).await.unwrap();
    assert_eq!(oracle.expected["pending"][0]["action"], "compaction");
    assert_eq!(plan.report.oldest_pending, None::<InstantTime>);
    let last = oracle.windows().last().unwrap();
    assert_eq!(plan.end, completed(last["end"].as_str().unwrap()));
    check_rows(&service, "latest", plan.changed.as_ref(), &sorted_rows(&last["rows"])).await;
}
