// SPDX-License-Identifier: Apache-2.0
//! What cleaners, archivers and compactions take away from under a reader, and writers that finish late: nothing of it is
//! passed over in silence, for either type of table.

use tributary_testkit::archive_instants;
use tributary_types::{InstantTime, Zone};

use super::oracle::{Oracle, check_rows, is_service, sorted_rows};
use super::*;

/// The window of one of the expected windows to another.
fn window(oracle: &Oracle, first: usize, last: usize) -> PlanRequest {
    let windows = oracle.windows();
    let begin = match windows[first]["begin"].as_str().unwrap() {
        "000" => Begin::Earliest,
        begin => Begin::After(oracle.cursor(begin)),
    };
    let pinned_end = Some(oracle.cursor(windows[last]["end"].as_str().unwrap()));
    PlanRequest { pinned_end, ..request(&oracle.url(), begin) }
}

#[tokio::test]
async fn a_cleaned_file_makes_the_window_stale_by_its_commit_in_both_types_of_tables() {
    for (name, at) in [("cow_v9_updates", 1), ("cow_v6_updates", 1), ("mor_v9_compaction", 1), ("mor_v6_compaction", 1)]
    {
        let service = service();
        let plan = service.plan(window(&Oracle::unpack(name), at, at)).await.unwrap();
        let mut files: Vec<String> = Vec::new();
        for split in &plan.changed.unwrap().splits {
            files.push(split.path.clone());
            // On version 6 the logs of later commits have the same base file, and the window does not need them.
            let logs = if name.contains("_v6_") { 1 } else { usize::MAX };
            files.extend(split.logs.iter().flat_map(|it| it.files.iter().take(logs)).map(|log| log.path.clone()));
        }
        assert!(!files.is_empty(), "{name}");
        for file in files {
            let oracle = Oracle::unpack(name);
            let service = super::service();
            std::fs::remove_file(oracle.fixture.path().join(&file)).unwrap();
            let Err(stale) = service.plan(window(&oracle, at, at)).await else { panic!("{name} without {file}") };
            assert!(matches!(stale, Error::Stale { .. }), "{name} without {file}: {stale}");
            let text = stale.to_string();
            assert!(text.contains("source `s`") && text.contains("\"snapshot\""), "{text}");
            // The newest state needs none of it, or says what is missing: never fewer rows.
            let last = oracle.windows().len() - 1;
            let newest = service.plan(window(&oracle, last, last)).await;
            assert!(newest.is_ok() || matches!(newest, Err(Error::Stale { .. })), "{name} without {file}");
        }
    }
}

#[tokio::test]
async fn logs_that_a_compaction_inside_the_window_took_in_may_be_cleaned() {
    for name in ["mor_v9_compaction", "mor_v8_compaction"] {
        for listing in ["metadata table", "directories"] {
            let oracle = Oracle::unpack(name);
            if listing == "directories" {
                drop_metadata_table(oracle.fixture.path());
            }
            let compaction = oracle.windows().iter().position(is_service).unwrap();
            let before = service().plan(window(&oracle, 1, compaction)).await.unwrap();
            let expected = rows(&service(), before.changed.as_ref()).await;
            assert!(!expected.is_empty(), "{name}");
            let instants = oracle.expected["instants"].as_array().unwrap();
            let at = instants.iter().find(|it| it["completed"] == oracle.windows()[compaction]["end"]).unwrap();
            let compacted = at["requested"].as_str().unwrap();
            let mut removed = 0;
            for entry in std::fs::read_dir(oracle.fixture.path()).unwrap().flatten() {
                let file = entry.file_name().to_string_lossy().into_owned();
                let time = file.split('_').nth(1).and_then(|rest| rest.split('.').next());
                if file.contains(".log.") && time.is_some_and(|time| time < compacted) {
                    std::fs::remove_file(entry.path()).unwrap();
                    removed += 1;
                }
            }
            assert!(removed > 1, "{name}");
            let after = service().plan(window(&oracle, 1, compaction)).await.unwrap();
            let what = format!("{name} by {listing}");
            check_rows(&service(), &what, after.changed.as_ref(), &expected).await;
        }
    }
}

#[tokio::test]
async fn what_overwrites_replaced_stays_away_once_they_are_cleaned_and_archived() {
    let oracle = Oracle::unpack("cow_v9_replace");
    drop_metadata_table(oracle.fixture.path());
    let views = Views { changed: true, end: true, begin: false };
    let snapshot = PlanRequest { views, ..request(&oracle.url(), Begin::Snapshot) };
    let live = service().plan(snapshot.clone()).await.unwrap().at_end.unwrap();
    let live: Vec<String> = live.splits.iter().map(|split| split.path.clone()).collect();
    // The cleaner comes before the archiver: a replacecommit stays on the timeline as long as its files are there.
    let mut cleaned = 0;
    for file in hudi_files(oracle.fixture.path()) {
        let relative = file.strip_prefix(oracle.fixture.path()).unwrap().display().to_string();
        if !live.contains(&relative) {
            std::fs::remove_file(&file).unwrap();
            cleaned += 1;
        }
    }
    assert!(cleaned > 0);
    let instants = oracle.expected["instants"].as_array().unwrap();
    let all: Vec<&str> = instants.iter().map(|instant| instant["requested"].as_str().unwrap()).collect();
    archive_instants(oracle.fixture.path(), &all[..all.len() - 1]);
    let plan = service().plan(snapshot).await.unwrap();
    check_rows(&service(), "changed", plan.changed.as_ref(), &oracle.snapshot()).await;
    check_rows(&service(), "at end", plan.at_end.as_ref(), &oracle.snapshot()).await;
    // The window behind the archive, and one that it reaches into.
    let last = oracle.windows().len() - 1;
    let newest = service().plan(window(&oracle, last, last)).await.unwrap();
    check_rows(&service(), "newest", newest.changed.as_ref(), &sorted_rows(&oracle.windows()[last]["rows"])).await;
    assert!(matches!(failure(service().plan(window(&oracle, 2, last)).await), Error::Stale { .. }));
}

/// Data files of a table, in its directory and the partitions below it.
fn hudi_files(table: &Path) -> Vec<std::path::PathBuf> {
    let below = std::fs::read_dir(table).unwrap().flatten().map(|entry| entry.path());
    let (directories, files): (Vec<_>, Vec<_>) = below.partition(|path| path.is_dir());
    let partitions = directories.into_iter().filter(|path| !path.ends_with(".hoodie"));
    let mut found: Vec<_> = partitions.flat_map(|path| hudi_files(&path)).collect();
    found.extend(files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "parquet")));
    found
}

#[tokio::test]
async fn a_commit_in_flight_between_completed_ones_follows_once_it_completes() {
    let oracle = Oracle::unpack("cow_v9_updates");
    let second = &oracle.expected["instants"][1];
    let (requested, done) = (second["requested"].as_str().unwrap(), second["completed"].as_str().unwrap());
    let timeline = oracle.fixture.path().join(".hoodie/timeline");
    let aside = oracle.fixture.root().join("aside");
    std::fs::rename(timeline.join(format!("{requested}_{done}.commit")), &aside).unwrap();
    let all = PlanRequest { num_instants: 100, ..request(&oracle.url(), Begin::Earliest) };
    let first = service().plan(all).await.unwrap();
    assert_eq!(first.report.oldest_pending.as_ref().unwrap().as_str(), requested);
    // It completes after all that were read.
    let newest = first.end.instant().unwrap().epoch_millis(Zone::Utc).unwrap();
    let late = InstantTime::from_epoch_millis(newest + 1000, Zone::Utc);
    std::fs::rename(&aside, timeline.join(format!("{requested}_{late}.commit"))).unwrap();
    let next = service().plan(resume(&first, 5)).await.unwrap();
    let delivered: Vec<&str> = next.instants.iter().map(|instant| instant.requested.as_str()).collect();
    assert_eq!((delivered, next.end.instant().unwrap()), (vec![requested], &late));
    assert!(!service().plan(resume(&next, 5)).await.unwrap().has_news);
}
