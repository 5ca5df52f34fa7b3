// SPDX-License-Identifier: Apache-2.0
//! Table services: a pipeline that runs for long leaves its target as small as one that ran for a while, and nothing
//! that somebody still needs goes.

use std::sync::Arc;

use serde_json::{Value, json};
use tributary_hudi::target::{
    Keep, archive_timelines, compact_metadata, execute_clean, find_cleanable, metadata_timeline, request_clean,
};
use tributary_hudi::{SystemStores, Timeline, current_slices, load_history, read_file_listing};
use tributary_server::bench::source::SourceTable;
use tributary_server::embedded::Embedded;
use tributary_testkit::{Fault, FaultPlan, FaultyStores, MemoryStores};
use tributary_types::Outcome;
use tributary_types::pipeline::Pipeline;

use crate::support::{
    Lake, assert_sound, assert_sound_in, checkpoints, checkpoints_in, fixtures, open, open_in, pipeline, roles,
    roles_over, rows, run, value_table, value_table_in, values,
};

fn job(lake: &Lake, name: &str, sql: &str, services: Value) -> Pipeline {
    pipeline(json!({
        "name": name,
        // Copies of a lake are moved tables.
        "accept_binding_change": true,
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "transform": [{"sql": sql}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"], "services": services},
    }))
}

fn small() -> Value {
    json!({"clean_commits": 3, "archive_commits": 8, "compact_metadata_commits": 4})
}

const ALL: &str = "SELECT * FROM <SRC>";

async fn commit(roles: &Embedded, source: &SourceTable, job: &Pipeline, number: i64) {
    source.upsert(vec![values((0..5).map(|key| (format!("k{key}"), number * 10 + key)))]).await.unwrap();
    let batch = run(roles, job, &format!("r{number}")).await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "batch {number}: {:?}", batch.error);
}

/// What must not grow: files of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    timeline: usize,
    metadata_timeline: usize,
    history: usize,
    data: usize,
    metadata: usize,
    all: usize,
    operations: u64,
}

impl Size {
    async fn of(url: &str, operations: u64) -> Self {
        let (storage, ..) = open(url).await;
        let files: Vec<String> = storage.list("").await.unwrap().into_iter().map(|entry| entry.path).collect();
        let below = |directory: &str| {
            files.iter().filter(|path| path.rsplit_once('/').is_some_and(|(found, _)| found == directory)).count()
        };
        Size {
            timeline: below(".hoodie/timeline"),
            metadata_timeline: below(".hoodie/metadata/.hoodie/timeline"),
            history: below(".hoodie/timeline/history") + below(".hoodie/metadata/.hoodie/timeline/history"),
            data: files.iter().filter(|path| path.ends_with(".parquet") && !path.starts_with(".hoodie")).count(),
            metadata: below(".hoodie/metadata/files"),
            all: files.len(),
            operations,
        }
    }

    fn max(self, other: Size) -> Size {
        Size {
            timeline: self.timeline.max(other.timeline),
            metadata_timeline: self.metadata_timeline.max(other.metadata_timeline),
            history: self.history.max(other.history),
            data: self.data.max(other.data),
            metadata: self.metadata.max(other.metadata),
            all: self.all.max(other.all),
            operations: self.operations.max(other.operations),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_batches_leave_the_target_no_larger_than_thirty_seven() {
    let lake = Lake::new();
    let plan = FaultPlan::none();
    let counted = roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), Arc::clone(&plan))));
    // Of its own roles, so that only the pipeline's operations are counted.
    let source = value_table(&roles(), &lake.path("src")).await;
    let job = job(&lake, "p", ALL, small());
    let mut sizes = Vec::new();
    for number in 1..=64 {
        let before = plan.operations();
        commit(&counted, &source, &job, number).await;
        sizes.push(Size::of(&lake.path("out"), plan.operations() - before).await);
    }
    let most = |range: std::ops::Range<usize>| sizes[range].iter().copied().fold(Size::default(), Size::max);
    let operations = |range: std::ops::Range<usize>| sizes[range].iter().map(|size| size.operations).sum::<u64>();
    let (early, late) = (most(10..37), most(37..64));
    // All services fall on one batch now and then, so it is the sum that tells.
    let (early_operations, late_operations) = (operations(10..37), operations(37..64));
    println!("up to 37 batches {early_operations} {early:?}, up to 64 {late_operations} {late:?}");
    assert!(late_operations <= early_operations + early_operations / 20, "a batch does not get dearer");
    for (what, early, late) in [
        ("timeline", early.timeline, late.timeline),
        ("timeline of the metadata table", early.metadata_timeline, late.metadata_timeline),
        ("data files", early.data, late.data),
        ("files of the metadata table", early.metadata, late.metadata),
    ] {
        assert!(late <= early, "{what}: {early} at most up to 37 batches, {late} up to 64");
    }
    // Files of the archive are merged by tens.
    assert!(late.history <= 2 * (4 + 20 + 20), "{late:?}");
    assert_eq!(rows(&counted, &lake.path("out")).await, rows(&counted, &lake.path("src")).await);
    let cursors = checkpoints(&lake.path("out"), "p").await;
    assert_eq!(cursors.len(), 64, "every commit is active or archived, none twice");
    assert_sound(&lake.path("out"), "p").await;
    // A process that knows nothing finds where the pipeline stands.
    assert_eq!(run(&roles(), &job, "idle").await.outcome, Some(Outcome::NoNewData));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_that_only_the_archive_holds_is_found() {
    let lake = Lake::new();
    let roles_of_now = roles();
    let source = value_table(&roles_of_now, &lake.path("src")).await;
    let rare = job(&lake, "rare", "SELECT concat('rare-', id) AS id, value FROM <SRC>", small());
    let busy = job(&lake, "busy", ALL, small());
    commit(&roles_of_now, &source, &rare, 1).await;
    for number in 2..=20 {
        commit(&roles_of_now, &source, &busy, number).await;
    }
    let (storage, config, timeline) = open(&lake.path("out")).await;
    let first = &checkpoints(&lake.path("out"), "rare").await[0].requests[0].instant;
    assert!(timeline.find(first).is_none(), "the only commit of `rare` has left the timeline");
    assert!(load_history(&storage, &config).await.unwrap().iter().any(|instant| &instant.requested == first));
    // A request that was answered long ago is still answered, and nothing is read twice.
    let again = run(&roles(), &rare, "r1").await;
    assert_eq!((again.outcome, again.instant.as_ref()), (Some(Outcome::Committed), Some(first)), "{:?}", again.error);
    let mut rare_once = rare.clone();
    rare_once.sources[0].num_instants = 100;
    let batch = run(&roles(), &rare_once, "r2").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    assert_eq!(batch.sources[0].report.instants, 19, "what came since, and only that");
    assert_eq!(checkpoints(&lake.path("out"), "rare").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_the_target_goes_on_within_what_is_kept_and_is_told_when_it_is_too_late() {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    let services = json!({"clean_commits": 4, "archive_commits": 8, "compact_metadata_commits": 4});
    let job = job(&lake, "p", ALL, services);
    let reader = |name: &str| {
        pipeline(json!({
            "name": name,
            "source": [{"name": "src", "path": lake.path("out"), "start": "earliest"}],
            "target": {"path": lake.path(name), "table_name": name, "record_key": ["id"]},
        }))
    };
    commit(&roles, &source, &job, 1).await;
    for name in ["steady", "late"] {
        let batch = run(&roles, &reader(name), "r1").await;
        assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    }
    for number in 2..=25 {
        commit(&roles, &source, &job, number).await;
        // Three commits behind at times: still among the four that are kept readable.
        if number % 3 == 0 {
            let batch = run(&roles, &reader("steady"), &format!("r{number}")).await;
            assert_eq!(batch.outcome, Some(Outcome::Committed), "batch {number}: {:?}", batch.error);
        }
    }
    run(&roles, &reader("steady"), "last").await;
    assert_eq!(rows(&roles, &lake.path("steady")).await, rows(&roles, &lake.path("out")).await);
    let late = run(&roles, &reader("late"), "r2").await;
    let error = late.error.unwrap();
    assert_eq!(error.reason, "CURSOR_STALE", "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_lease_the_archive_is_written_only_over_what_was_read() {
    let stores = MemoryStores::new();
    let roles = roles_over(Arc::new(stores.clone()));
    let (from, into) = ("memory://lake/src", "memory://lake/out");
    let source = value_table_in(&stores, &roles, from).await;
    let job = pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": from, "start": "snapshot"}],
        "target": {"path": into, "table_name": "out", "record_key": ["id"], "services": small()},
    }));
    for number in 1..=16 {
        commit(&roles, &source, &job, number).await;
    }
    let (storage, config, _) = open_in(&stores, into).await;
    assert!(load_history(&storage, &config).await.unwrap().len() > 8, "archived more than once");
    assert_eq!(checkpoints_in(&stores, into, "p").await.len(), 16);
    assert_sound_in(&stores, into, "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_fails_does_not_fail_its_batch_and_is_taken_up_by_the_next() {
    let lake = Lake::new();
    let healthy = roles();
    let source = value_table(&healthy, &lake.path("src")).await;
    let services = json!({"clean_commits": 1, "archive_commits": 0, "compact_metadata_commits": 0});
    let job = job(&lake, "p", ALL, services.clone());
    for number in 1..=2 {
        commit(&healthy, &source, &job, number).await;
    }
    // The last operations of the third batch are those of its clean.
    let counting = FaultPlan::none();
    source.upsert(vec![values([("k0".to_string(), 7)])]).await.unwrap();
    let stores = |plan: &Arc<FaultPlan>| Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), Arc::clone(plan)));
    let whole = lake.copy();
    let of_copy = self::job(&whole, "p", ALL, services.clone());
    assert_eq!(run(&roles_over(stores(&counting)), &of_copy, "r3").await.outcome, Some(Outcome::Committed));
    let last = counting.operations() - 1;
    let failing = FaultPlan::at(last, Fault::FailOnce);
    let batch = run(&roles_over(stores(&failing)), &job, "r3").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let (_, _, timeline) = open(&lake.path("out")).await;
    assert_eq!(timeline.instants().iter().filter(|instant| instant.is_pending()).count(), 1, "the clean is pending");
    assert_eq!(rows(&healthy, &lake.path("out")).await, rows(&healthy, &lake.path("src")).await);
    assert_eq!(run(&roles(), &job, "idle").await.outcome, Some(Outcome::NoNewData));
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_file_of_a_rolled_back_instant_keeps_the_archiver_below_it() {
    let lake = Lake::new();
    let healthy = roles();
    let source = value_table(&healthy, &lake.path("src")).await;
    let job = job(&lake, "p", ALL, small());
    commit(&healthy, &source, &job, 1).await;
    source.upsert(vec![values([("k0".to_string(), 7)])]).await.unwrap();
    let plan = FaultPlan::at(5, Fault::CrashAfter);
    let dying = roles_over(Arc::new(FaultyStores::new(Arc::new(SystemStores::new()), plan)));
    let dead = run(&dying, &job, "dead").await;
    assert_ne!(dead.outcome, Some(Outcome::Committed));
    let dead = dead.instant.unwrap();
    commit(&healthy, &source, &job, 2).await;
    let (storage, _, timeline) = open(&lake.path("out")).await;
    assert!(timeline.find(&dead).is_none(), "it was rolled back");
    // A write of the dead process that the store was still holding.
    let late = format!("late-0_0-0-0_{dead}.parquet");
    storage.put(&late, b"late".to_vec()).await.unwrap();
    for number in 3..=14 {
        commit(&healthy, &source, &job, number).await;
    }
    let start = open(&lake.path("out")).await.2.earliest().cloned();
    assert!(start.as_ref() < Some(&dead), "{dead} does not lie below the start {start:?}");
    storage.delete(&late).await.unwrap();
    commit(&healthy, &source, &job, 15).await;
    let start = open(&lake.path("out")).await.2.earliest().cloned();
    assert!(start.as_ref() > Some(&dead), "once the file is gone the archiver passes");
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_replaced_groups_go_before_the_replacecommit_is_archived() {
    let lake = Lake::new();
    let roles = roles();
    tributary_testkit::unpack_zip(&fixtures().join("tables/cow_v9_replace.zip"), lake.dir());
    let url = lake.path("cow_v9_replace");
    let before = rows(&roles, &url).await;
    let (storage, config, timeline) = open(&url).await;
    let keep = Keep { max: 1, min: 1 };
    let after = |instant: &tributary_types::InstantTime| instant.successor();
    let compact = async |timeline: &Timeline| {
        let instant = timeline.latest_time().unwrap().clone();
        compact_metadata(&storage, timeline, &instant, &after(&instant), "test").await.unwrap()
    };
    let listed = read_file_listing(&storage, &timeline).await.unwrap();
    let compacted = compact(&timeline).await;
    assert!(compacted.logs > 0);
    assert_eq!(read_file_listing(&storage, &timeline).await.unwrap(), listed, "a compaction changes no listing");
    let archived = archive_timelines(&storage, &config, &timeline, keep).await.unwrap();
    let timeline = Timeline::load(&storage, &config).await.unwrap();
    let first = timeline.completed_writes()[0];
    assert_eq!(first.action, tributary_hudi::Action::ReplaceCommit, "held while replaced files are listed");
    assert!(archived > 0);
    assert_eq!(rows(&roles, &url).await, before);

    let slices = current_slices(&storage, &config, &timeline).await.unwrap();
    let plan = find_cleanable(&storage, &config, &timeline, 1).await.unwrap().unwrap();
    let instant = after(timeline.latest_time().unwrap());
    request_clean(&storage, &config.timeline_dir(), &instant, &plan, "test").await.unwrap();
    let delta = after(&instant);
    execute_clean(&storage, &config, &instant, &delta, &after(&delta)).await.unwrap();
    let timeline = Timeline::load(&storage, &config).await.unwrap();
    assert_eq!(current_slices(&storage, &config, &timeline).await.unwrap(), slices, "no newest file went");
    assert_eq!(rows(&roles, &url).await, before);

    compact(&timeline).await;
    archive_timelines(&storage, &config, &timeline, keep).await.unwrap();
    let timeline = Timeline::load(&storage, &config).await.unwrap();
    assert_eq!(timeline.completed_writes().len(), 1);
    assert_eq!(rows(&roles, &url).await, before, "replaced rows did not come back");
    assert!(metadata_timeline(&storage).await.unwrap().instants().len() < 10);
}
