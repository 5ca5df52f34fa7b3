// SPDX-License-Identifier: Apache-2.0
//! Tables with expectations that Spark wrote beside them.

use std::collections::BTreeSet;

use serde_json::Value;
use tributary_hudi::{Stores, SystemStores, TableConfig, Timeline as HudiTimeline, current_slices};
use tributary_testkit::Fixture;

use super::*;

const TABLES: [&str; 25] = [
    "cow_v9_updates",
    "cow_v9_partitioned",
    "cow_v9_replace",
    "cow_v9_pending",
    "cow_v9_archived",
    "mor_v9_compaction",
    "mor_v9_typed",
    "mor_v9_commit_time",
    "mor_v9_log_compaction",
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
    "cow_v6_upgraded",
    "cow_v6_upgraded_metadata",
    "mor_v6_compaction",
    "mor_v6_nonpartitioned_rollback",
    "mor_v6_simplekeygen_nonhivestyle_overwritetable",
    "mor_v6_trips_8i1u",
];
/// Tables of which the first windows are gone.
const CLEANED: [&str; 4] = ["cow_v9_archived", "cow_v6_archived", "cow_v6_upgraded", "mor_v9_cleaned"];
/// Writes that change no row.
const SERVICES: [&str; 3] = ["CLUSTER", "COMPACT", "LOG_COMPACT"];

pub(super) fn is_service(window: &Value) -> bool {
    SERVICES.contains(&window["operationType"].as_str().unwrap())
}

pub(super) struct Oracle {
    pub(super) fixture: Fixture,
    pub(super) expected: Value,
    by_request: bool,
}

impl Oracle {
    pub(super) fn unpack(name: &str) -> Self {
        Self::unpack_from(if Fixture::exists("tables", name) { "tables" } else { "hudi" }, name)
    }

    pub(super) fn unpack_from(folder: &str, name: &str) -> Self {
        let expected = serde_json::from_str(&Fixture::expected(folder, name)).unwrap();
        let by_request = name.contains("_v6_") && !name.contains("upgraded");
        Oracle { fixture: Fixture::unpack(folder, name), expected, by_request }
    }

    /// A cursor in the table's clock.
    pub(super) fn cursor(&self, instant: &str) -> Cursor {
        if self.by_request { requested(instant) } else { completed(instant) }
    }

    pub(super) fn url(&self) -> String {
        self.fixture.url()
    }

    pub(super) fn windows(&self) -> &[Value] {
        self.expected["windows"].as_array().unwrap()
    }

    pub(super) fn snapshot(&self) -> Vec<Value> {
        sorted_rows(&self.expected["snapshot"])
    }

    /// Times of writes that changed rows, in the table's clock, with the rows of their windows.
    pub(super) fn changes(&self) -> Vec<(&str, &Value)> {
        let windows = self.windows().iter().filter(|window| !is_service(window));
        windows.map(|window| (window["end"].as_str().unwrap(), &window["rows"])).collect()
    }
}

pub(super) fn sorted_rows(rows: &Value) -> Vec<Value> {
    json::sorted(rows.as_array().unwrap().clone())
}

/// The columns that the expectation has; Spark shows columns of a later schema as null.
fn like(expected: &[Value], found: Vec<Value>) -> Vec<Value> {
    let Some(columns) = expected.first().and_then(Value::as_object) else { return found };
    let pick = |row: &Value| Value::Object(columns.keys().map(|name| (name.clone(), row[name].clone())).collect());
    json::sorted(found.iter().map(pick).collect())
}

pub(super) async fn check_rows(service: &Service, what: &str, relation: Option<&Relation>, expected: &[Value]) {
    let found = like(expected, rows(service, relation).await);
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{what}");
    }
}

#[tokio::test]
async fn snapshots_are_what_spark_reads_with_and_without_the_metadata_table() {
    for name in TABLES {
        let oracle = Oracle::unpack(name);
        for listing in ["metadata table", "directories"] {
            let service = service();
            let views = Views { changed: true, end: true, begin: true };
            let plan = service.plan(PlanRequest { views, ..request(&oracle.url(), Begin::Snapshot) }).await.unwrap();
            let what = format!("{name} by {listing}");
            check_rows(&service, &what, plan.changed.as_ref(), &oracle.snapshot()).await;
            check_rows(&service, &what, plan.at_end.as_ref(), &oracle.snapshot()).await;
            assert!(plan.at_begin.unwrap().splits.is_empty(), "{what}");
            drop_metadata_table(oracle.fixture.path());
        }
    }
}

#[tokio::test]
async fn each_window_is_what_spark_reads_with_and_without_the_metadata_table() {
    for name in TABLES {
        let oracle = Oracle::unpack(name);
        for listing in ["metadata table", "directories"] {
            let service = service();
            for window in oracle.windows() {
                let (begin, end) = (window["begin"].as_str().unwrap(), window["end"].as_str().unwrap());
                let begin = match begin {
                    "000" => Begin::Earliest,
                    begin => Begin::After(oracle.cursor(begin)),
                };
                let pinned_end = Some(oracle.cursor(end));
                let what = format!("{name} up to {end} by {listing}");
                let planned = service.plan(PlanRequest { pinned_end, ..request(&oracle.url(), begin) }).await;
                if window["rows"].is_null() && !is_service(window) {
                    assert!(matches!(failure(planned), Error::Stale { .. }), "{what}");
                    continue;
                }
                let plan = planned.unwrap();
                assert_eq!(plan.end, oracle.cursor(end), "{what}");
                assert_eq!(plan.has_news, !is_service(window), "{what}");
                let expected = if is_service(window) { Vec::new() } else { sorted_rows(&window["rows"]) };
                check_rows(&service, &what, plan.changed.as_ref(), &expected).await;
            }
            drop_metadata_table(oracle.fixture.path());
        }
    }
}

#[tokio::test]
async fn windows_of_one_commit_each_add_up_to_every_change() {
    for name in TABLES.into_iter().filter(|name| !CLEANED.contains(name)) {
        let oracle = Oracle::unpack(name);
        let service = service();
        let mut plan =
            service.plan(PlanRequest { num_instants: 1, ..request(&oracle.url(), Begin::Earliest) }).await.unwrap();
        for (end, expected) in oracle.changes() {
            let what = format!("{name} up to {end}");
            assert!(plan.has_news, "{what}");
            assert_eq!(plan.instants.last().unwrap().completed.as_str(), end, "{what}");
            check_rows(&service, &what, plan.changed.as_ref(), &sorted_rows(expected)).await;
            plan = service.plan(resume(&plan, 1)).await.unwrap();
        }
        assert!(!plan.has_news, "{name}");
        assert_eq!(plan.report.lag_instants, 0, "{name}");
        let empty = plan.changed.unwrap();
        assert_eq!(empty.splits, [], "{name}");
        assert_eq!(
            empty.schema,
            service.plan(request(&oracle.url(), Begin::Snapshot)).await.unwrap().changed.unwrap().schema
        );
    }
}

#[tokio::test]
async fn what_changed_in_a_window_is_what_differs_between_its_two_snapshots() {
    for name in [
        "cow_v9_updates",
        "cow_v9_partitioned",
        "cow_v6_updates",
        "cow_v6_partitioned",
        "mor_v9_compaction",
        "mor_v9_commit_time",
        "mor_v9_log_only",
        "mor_v6_compaction",
    ] {
        let oracle = Oracle::unpack(name);
        let service = service();
        let views = Views { changed: true, end: true, begin: true };
        for window in oracle.windows().windows(3) {
            let [first, last] = [0, 2].map(|at| window[at]["end"].as_str().unwrap());
            let pinned_end = Some(oracle.cursor(last));
            let begin = Begin::After(oracle.cursor(first));
            let plan = service.plan(PlanRequest { pinned_end, views, ..request(&oracle.url(), begin) }).await;
            let plan = match plan {
                Err(Error::Stale { .. }) => continue,
                plan => plan.unwrap(),
            };
            let text = |rows: Vec<Value>| rows.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
            let changed = text(rows(&service, plan.changed.as_ref()).await);
            let at_end = text(rows(&service, plan.at_end.as_ref()).await);
            let keys = |rows: &BTreeSet<String>| -> BTreeSet<String> {
                let parsed = rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap());
                parsed.map(|row| format!("{}{}", row["_hoodie_commit_time"], row["_hoodie_record_key"])).collect()
            };
            assert!(changed.is_subset(&at_end), "{name} up to {last}");
            let at_begin = text(rows(&service, plan.at_begin.as_ref()).await);
            let fresh: BTreeSet<String> = keys(&at_end).difference(&keys(&at_begin)).cloned().collect();
            assert_eq!(keys(&changed), fresh, "{name} up to {last}");
        }
    }
}

#[tokio::test]
async fn current_slices_are_the_same_from_the_metadata_table_and_from_directories() {
    for name in TABLES.into_iter().filter(|name| name.starts_with("cow")) {
        let oracle = Oracle::unpack(name);
        let mut found = Vec::new();
        for _ in 0..2 {
            let storage = SystemStores::new().open(&oracle.url()).unwrap();
            let config = TableConfig::load(&storage).await.unwrap();
            let timeline = HudiTimeline::load(&storage, &config).await.unwrap();
            found.push(current_slices(&storage, &config, &timeline).await.unwrap());
            drop_metadata_table(oracle.fixture.path());
        }
        assert_eq!(found[0], found[1], "{name}");
        assert!(!found[0].is_empty(), "{name}");
    }
}

#[tokio::test]
async fn a_cursor_below_the_archive_is_stale_and_says_where_to_go_on() {
    for (name, clock) in [("cow_v9_archived", "completed"), ("cow_v6_archived", "requested")] {
        let oracle = Oracle::unpack(name);
        let service = service();
        let instants = oracle.expected["instants"].as_array().unwrap();
        let commits: Vec<(&str, &str, bool)> = instants
            .iter()
            .filter(|instant| instant["action"] == "commit")
            .map(|instant| {
                let text = |key: &str| instant[key].as_str().unwrap();
                (text(clock), text("requested"), instant["archived"].as_bool().unwrap())
            })
            .collect();
        let last_archived = commits.iter().rfind(|(.., archived)| *archived).unwrap().0;
        let first_active = commits.iter().find(|(.., archived)| !archived).unwrap().1;
        let first = oracle.cursor(commits[0].0);
        let stale = failure(service.plan(request(&oracle.url(), Begin::After(first.clone()))).await);
        match &stale {
            Error::Stale { earliest, resume, .. } => {
                assert_eq!((earliest.as_str(), resume), (first_active, &oracle.cursor(last_archived).to_string()));
            }
            other => panic!("{other}"),
        }
        let text = stale.to_string();
        for part in ["source `s`", &first.to_string(), first_active, "= \"snapshot\"", last_archived, "the gap is lost"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        let earliest = failure(service.plan(request(&oracle.url(), Begin::Earliest)).await);
        assert!(matches!(earliest, Error::Stale { .. }));
        let text = earliest.to_string();
        assert!(text.contains("the table's first moment") && !text.contains("00000000"), "{text}");
        let follow = Begin::After(oracle.cursor(last_archived));
        let plan = service.plan(PlanRequest { num_instants: 100, ..request(&oracle.url(), follow) }).await.unwrap();
        let active: Vec<&str> = commits.iter().filter(|(.., archived)| !archived).map(|(_, at, _)| *at).collect();
        let found: Vec<&str> = plan.instants.iter().map(|instant| instant.requested.as_str()).collect();
        assert_eq!(found, active, "{name}");
        let first_commit = instants[0]["requested"].as_str().unwrap();
        assert_eq!(plan.table.fingerprint, format!("{}@{first_commit}", plan.table.name), "the archive keeps it");
        assert!(service.plan(resume(&plan, 5)).await.is_ok(), "the cursor of the last window exists");
    }
}

#[tokio::test]
async fn a_pending_commit_is_reported_and_not_read() {
    let oracle = Oracle::unpack("cow_v9_pending");
    let service = service();
    let plan = service.plan(request(&oracle.url(), Begin::Earliest)).await.unwrap();
    let pending = oracle.expected["pending"][0]["requested"].as_str().unwrap();
    assert_eq!(plan.report.oldest_pending.as_ref().unwrap().as_str(), pending);
    assert_eq!(plan.instants.len(), 2);
    assert_eq!(plan.frontier_millis, NOW_MILLIS - 10_200);
}

#[tokio::test]
async fn a_commit_that_shows_up_late_is_refused_or_delivered_as_asked() {
    let oracle = Oracle::unpack("cow_v9_updates");
    let service = service();
    let second = &oracle.expected["instants"][1];
    let (requested, done) = (second["requested"].as_str().unwrap(), second["completed"].as_str().unwrap());
    let file = oracle.fixture.path().join(format!(".hoodie/timeline/{requested}_{done}.commit"));
    let aside = oracle.fixture.root().join("aside");
    std::fs::rename(&file, &aside).unwrap();
    let all = PlanRequest { num_instants: 100, ..request(&oracle.url(), Begin::Earliest) };
    let first = service.plan(all).await.unwrap();
    assert_eq!(first.instants.len(), 5);
    assert_eq!(first.report.oldest_pending.as_ref().unwrap().as_str(), requested);

    std::fs::rename(&aside, &file).unwrap();
    match failure(service.plan(resume(&first, 5)).await) {
        Error::Late { instant, .. } => assert_eq!(instant.as_str(), requested),
        other => panic!("{other}"),
    }
    let deliver = PlanRequest { on_late: OnLate::Deliver, ..resume(&first, 5) };
    let late = service.plan(deliver.clone()).await.unwrap();
    assert!(late.has_news);
    assert_eq!((late.end.clone(), late.report.late_delivered.len()), (first.end.clone(), 1));
    let snapshot = oracle.snapshot();
    let expected: Vec<Value> =
        snapshot.iter().filter(|row| row["_hoodie_commit_time"] == *requested).cloned().collect();
    assert!(!expected.is_empty());
    check_rows(&service, "late", late.changed.as_ref(), &expected).await;
    let next = service.plan(PlanRequest { recent: late.recent, on_late: OnLate::Fail, ..deliver }).await.unwrap();
    assert!(!next.has_news);
}

#[tokio::test]
async fn a_window_whose_files_were_cleaned_is_stale_before_anything_is_read() {
    let oracle = Oracle::unpack("cow_v9_updates");
    let service = service();
    let first = service.plan(PlanRequest { num_instants: 1, ..request(&oracle.url(), Begin::Earliest) }).await.unwrap();
    let file = oracle.fixture.path().join(&first.changed.as_ref().unwrap().splits[0].path);
    std::fs::remove_file(file).unwrap();
    let again = service.plan(PlanRequest { num_instants: 1, ..request(&oracle.url(), Begin::Earliest) }).await;
    // The second commit is the first one whose own files are there.
    let second = oracle.expected["instants"][1]["requested"].as_str().unwrap();
    match failure(again) {
        Error::Stale { earliest, resume, .. } => {
            assert_eq!((earliest.as_str(), resume), (second, first.end.to_string()));
        }
        other => panic!("{other}"),
    }
    // The same for the table as of then, whose file group would otherwise just be missing.
    drop_metadata_table(oracle.fixture.path());
    let views = Views { changed: false, end: true, begin: false };
    let as_of = PlanRequest { num_instants: 1, views, ..request(&oracle.url(), Begin::Earliest) };
    assert!(matches!(failure(service.plan(as_of).await), Error::Stale { .. }));
}

#[tokio::test]
async fn a_beginning_whose_files_were_cleaned_is_stale_when_the_query_asks_for_it() {
    for name in ["cow_v9_updates", "cow_v6_updates"] {
        let oracle = Oracle::unpack(name);
        let service = service();
        let one = PlanRequest { num_instants: 1, ..request(&oracle.url(), Begin::Earliest) };
        let first = service.plan(one).await.unwrap();
        let file = oracle.fixture.path().join(&first.changed.as_ref().unwrap().splits[0].path);
        std::fs::remove_file(file).unwrap();
        drop_metadata_table(oracle.fixture.path());
        // The window itself can be read: what it needs is the second commit's file.
        let second = service.plan(resume(&first, 1)).await.unwrap();
        assert_eq!(second.changed.unwrap().splits.len(), 1, "{name}");
        let views = Views { changed: true, end: false, begin: true };
        let stale = failure(service.plan(PlanRequest { views, ..resume(&first, 1) }).await);
        match stale {
            Error::Stale { cursor, resume, .. } => {
                assert_eq!((cursor, resume), (first.end, second.end.to_string()), "{name}");
            }
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn headroom_is_how_many_states_the_cleaner_left_whole() {
    for name in ["cow_v9_archived", "cow_v6_archived", "mor_v9_cleaned"] {
        let oracle = Oracle::unpack(name);
        let service = service();
        let clock = if name.contains("_v6_") { "requested" } else { "completed" };
        let writes = oracle.expected["instants"].as_array().unwrap().iter();
        let writes = writes.filter(|it| it["action"] != "clean" && it["archived"] == false);
        let (mut wholes, mut ends) = (0, 0);
        for end in writes.map(|write| write[clock].as_str().unwrap()) {
            // Nothing is delivered: only where the source stands then.
            let at = |begin| PlanRequest {
                pinned_end: Some(oracle.cursor(end)),
                views: Views { changed: true, end: false, begin },
                ..request(&oracle.url(), Begin::After(oracle.cursor(end)))
            };
            let plan = service.plan(at(false)).await.unwrap();
            let with_begin = service.plan(at(true)).await;
            wholes += usize::from(with_begin.is_ok());
            ends += 1;
            assert_eq!(plan.report.headroom_instants, wholes, "{name} at {end}: {with_begin:?}");
            if let Ok(plan) = with_begin {
                assert_eq!(plan.report.headroom_instants, wholes - 1, "{name} at {end}, with its beginning");
            }
        }
        assert!(wholes >= 3 && wholes < ends, "{name}: the cleaner, not the archiver, is nearer");
    }
}
