// SPDX-License-Identifier: Apache-2.0
//! Deleted records of tables that Spark wrote: the records at the beginning of a window that are not there at its end.

use std::collections::BTreeSet;

use super::oracle::Oracle;
use super::*;

/// All tables with expectations but those whose commits wrote no rows of the same kind twice.
const TABLES: [&str; 21] = [
    "cow_v9_updates",
    "cow_v9_partitioned",
    "cow_v9_replace",
    "cow_v9_pending",
    "mor_v9_compaction",
    "mor_v9_typed",
    "mor_v9_commit_time",
    "mor_v9_log_only",
    "mor_v9_cleaned",
    "mor_v8_compaction",
    "mor_v8_trips_8i3u1d",
    "mor_v9_nonpartitioned_rollback",
    "mor_v9_txns_simple_meta",
    "cow_v6_updates",
    "cow_v6_partitioned",
    "cow_v6_replace",
    "cow_v6_archived",
    "mor_v6_compaction",
    "mor_v6_nonpartitioned_rollback",
    "mor_v6_simplekeygen_nonhivestyle_overwritetable",
    "mor_v6_trips_8i1u",
];

const FLAG: &str = "_hoodie_is_deleted";

fn with_deletes(url: &str, begin: Begin, end: Option<Cursor>) -> PlanRequest {
    PlanRequest {
        deletes: true,
        // Every cursor is a place that was read up to.
        by_hand: true,
        pinned_end: end,
        num_instants: 100,
        views: Views { changed: true, end: true, begin: true },
        ..request(url, begin)
    }
}

fn record(row: &Value) -> (String, String) {
    (row["_hoodie_partition_path"].to_string(), row["_hoodie_record_key"].to_string())
}

/// The rows, those that are flagged apart and without their flag.
fn divide(rows: Vec<Value>) -> (Vec<Value>, Vec<Value>) {
    let (mut kept, mut deleted) = (Vec::new(), Vec::new());
    for mut row in rows {
        match row.as_object_mut().unwrap().remove(FLAG) {
            Some(Value::Bool(true)) => deleted.push(row),
            Some(Value::Bool(false)) => kept.push(row),
            other => panic!("{other:?}"),
        }
    }
    (json::sorted(kept), json::sorted(deleted))
}

#[tokio::test]
async fn deleted_records_are_those_of_the_beginning_that_the_end_does_not_have() {
    let (mut windows, mut all_deleted) = (0, 0);
    for name in TABLES {
        let oracle = Oracle::unpack(name);
        let service = service();
        let ends: Vec<String> = oracle.changes().into_iter().map(|(end, _)| end.to_string()).collect();
        for (from, begin) in ends.iter().enumerate() {
            let later: BTreeSet<&String> = ends.get(from + 1).into_iter().chain(ends[from + 1..].last()).collect();
            for end in later {
                let (begin, end) = (oracle.cursor(begin), oracle.cursor(end));
                let plan =
                    service.plan(with_deletes(&oracle.url(), Begin::After(begin.clone()), Some(end.clone()))).await;
                let plan = match plan {
                    Err(Error::Stale { .. }) => continue,
                    plan => plan.unwrap(),
                };
                let (changed, deleted) = divide(rows(&service, plan.changed.as_ref()).await);
                let (at_begin, none) = divide(rows(&service, plan.at_begin.as_ref()).await);
                let (at_end, none_either) = divide(rows(&service, plan.at_end.as_ref()).await);
                assert!(none.is_empty() && none_either.is_empty());
                let kept: BTreeSet<_> = at_end.iter().map(record).collect();
                let gone: Vec<Value> = at_begin.into_iter().filter(|row| !kept.contains(&record(row))).collect();
                assert_eq!(deleted, gone, "{name} {begin} to {end}");
                // The other rows are those of a source that ignores deletes.
                let ignoring = PlanRequest {
                    deletes: false,
                    ..with_deletes(&oracle.url(), Begin::After(begin.clone()), Some(end.clone()))
                };
                let ignoring = service.plan(ignoring).await.unwrap();
                let mut others = rows(&service, ignoring.changed.as_ref()).await;
                // Some tables have such a column of their own.
                others.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove(FLAG)));
                assert_eq!(changed, json::sorted(others), "{name} {begin} to {end}");
                windows += 1;
                all_deleted += deleted.len();
            }
        }
    }
    assert!(windows > 50 && all_deleted > 30, "{windows} windows, {all_deleted} deletes");
}

#[tokio::test]
async fn a_first_window_has_no_deletes_and_says_so_of_every_row() {
    for name in ["cow_v9_replace", "mor_v9_compaction", "cow_v6_replace"] {
        let oracle = Oracle::unpack(name);
        let service = service();
        for begin in [Begin::Snapshot, Begin::Earliest] {
            let request = PlanRequest { deletes: true, num_instants: 100, ..request(&oracle.url(), begin) };
            let plan = service.plan(request).await.unwrap();
            let (kept, deleted) = divide(rows(&service, plan.changed.as_ref()).await);
            assert!(!kept.is_empty() && deleted.is_empty(), "{name}");
        }
    }
}

#[tokio::test]
async fn the_beginning_must_be_readable_where_deletes_are_asked_for() {
    for name in ["cow_v9_updates", "cow_v6_updates"] {
        let oracle = Oracle::unpack(name);
        let service = service();
        let one = PlanRequest { num_instants: 1, ..request(&oracle.url(), Begin::Earliest) };
        let first = service.plan(one).await.unwrap();
        let file = oracle.fixture.path().join(&first.changed.as_ref().unwrap().splits[0].path);
        std::fs::remove_file(file).unwrap();
        let second = service.plan(resume(&first, 1)).await.unwrap();
        assert_eq!(second.changed.unwrap().splits.len(), 1, "{name}: without deletes the window can be read");
        let stale = failure(service.plan(PlanRequest { deletes: true, ..resume(&first, 1) }).await);
        match stale {
            Error::Stale { cursor, resume, .. } => {
                assert_eq!((cursor, resume), (first.end.clone(), second.end.to_string()), "{name}");
            }
            other => panic!("{other}"),
        }
        let snapshot = PlanRequest { deletes: true, on_stale: OnStale::Snapshot, ..resume(&first, 1) };
        let still = failure(service.plan(snapshot).await);
        assert!(matches!(still, Error::Stale { .. }), "what was deleted in the gap would be lost: {still}");
    }
}

#[tokio::test]
async fn a_first_window_needs_no_state_before_it_wherever_it_starts() {
    let oracle = Oracle::unpack("cow_v9_updates");
    let service = service();
    let one = PlanRequest { num_instants: 1, ..request(&oracle.url(), Begin::Earliest) };
    let first = service.plan(one).await.unwrap();
    // All that the newest commit found is gone, as if a cleaner kept one version only.
    let latest = service.plan(request(&oracle.url(), Begin::Latest)).await.unwrap();
    let newest: BTreeSet<&String> = latest.changed.as_ref().unwrap().splits.iter().map(|split| &split.path).collect();
    let all = PlanRequest { num_instants: 100, ..request(&oracle.url(), Begin::After(first.end.clone())) };
    let others =
        service.plan(PlanRequest { views: Views { changed: true, end: true, begin: true }, ..all }).await.unwrap();
    let old = others.at_begin.unwrap().splits.into_iter().map(|split| split.path);
    for path in old.filter(|path| !newest.contains(path)) {
        std::fs::remove_file(oracle.fixture.path().join(path)).unwrap();
    }
    for begin in [Begin::Latest, Begin::After(first.end.clone())] {
        let plan =
            service.plan(PlanRequest { deletes: true, num_instants: 100, ..request(&oracle.url(), begin) }).await;
        let changed = plan.unwrap().changed.unwrap();
        assert!(!changed.splits.is_empty());
        assert!(changed.splits.iter().all(|split| !matches!(split.deleted, Deleted::UnlessIn(_))));
    }
    let stale = failure(service.plan(PlanRequest { deletes: true, ..resume(&first, 100) }).await);
    assert!(matches!(stale, Error::Stale { .. }), "a later window needs it: {stale}");
}

#[tokio::test]
async fn the_state_that_deletes_need_counts_against_the_headroom() {
    let oracle = Oracle::unpack("cow_v9_updates");
    let service = service();
    let first = service.plan(PlanRequest { num_instants: 3, ..request(&oracle.url(), Begin::Earliest) }).await.unwrap();
    let without = service.plan(resume(&first, 1)).await.unwrap().report.headroom_instants;
    let with = service.plan(PlanRequest { deletes: true, ..resume(&first, 1) }).await.unwrap().report.headroom_instants;
    assert_eq!(with, without - 1);
}

#[tokio::test]
async fn keys_that_do_not_fit_the_memory_are_an_error_that_names_their_group() {
    let oracle = Oracle::unpack("cow_v9_replace");
    let service = service();
    let ends: Vec<String> = oracle.changes().into_iter().map(|(end, _)| end.to_string()).collect();
    let begin = Begin::After(oracle.cursor(&ends[0]));
    let plan = service.plan(with_deletes(&oracle.url(), begin, None)).await.unwrap();
    let changed = plan.changed.unwrap();
    let split = changed.splits.iter().find(|split| matches!(split.deleted, Deleted::UnlessIn(_))).unwrap();
    let memory = MemoryBudget::new(8 << 10);
    let read = ReadRequest {
        split: split.clone(),
        schema: Arc::clone(&changed.schema),
        projection: Some(vec![0]),
        predicate: None,
        batch_rows: 10,
        memory: memory.clone(),
    };
    let enough = ReadRequest { memory: MemoryBudget::new(1 << 20), ..read.clone() };
    let rows: Vec<RecordBatch> = service.read(enough).await.unwrap().try_collect().await.unwrap();
    assert!(rows.iter().all(|batch| batch.num_columns() == 1));
    // What others hold leaves too little for the keys.
    let others = memory.reservation("others");
    let mut others = others;
    others.try_grow((8 << 10) - 10).unwrap();
    let failed: Result<Vec<RecordBatch>, _> = service.read(read).await.unwrap().try_collect().await;
    let error = failed.unwrap_err().to_string();
    assert!(error.contains(&split.file_id) && error.contains("keys of file group"), "{error}");
    drop(others);
    assert_eq!(memory.used(), 0, "what was counted was given back");
}
