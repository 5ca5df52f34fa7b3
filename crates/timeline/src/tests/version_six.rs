// SPDX-License-Identifier: Apache-2.0
//! Tables of version 6: no completion times, a timeline of JSON files, and pending commits that hold readers up.

use std::collections::BTreeSet;
use std::path::Path;

use tributary_hudi as hudi;
use tributary_hudi::{Stores, TableConfig};
use tributary_testkit::Fixture;
use tributary_types::{InstantTime, Zone};

use super::oracle::{Oracle, check_rows, sorted_rows};
use super::*;

const PUBLIC: [&str; 3] =
    ["cow_v6_nonpartitioned", "cow_v6_simplekeygen_nonhivestyle", "cow_v6_simplekeygen_nonhivestyle_overwritetable"];

#[tokio::test]
async fn public_tables_of_version_six_are_what_spark_reads() {
    for name in PUBLIC {
        let oracle = Oracle::unpack_from("hudi", name);
        let service = service();
        let plan = service.plan(request(&oracle.url(), Begin::Snapshot)).await.unwrap();
        assert_eq!((plan.table.version, plan.table.zone), (6, Zone::Local), "{name}");
        assert_eq!(plan.table.ordering, ["longField"], "{name}");
        check_rows(&service, name, plan.changed.as_ref(), &oracle.snapshot()).await;
        let mut plan =
            service.plan(PlanRequest { num_instants: 1, ..request(&oracle.url(), Begin::Earliest) }).await.unwrap();
        for (end, expected) in oracle.changes() {
            assert_eq!(plan.end, requested(end), "{name}");
            check_rows(&service, &format!("{name} up to {end}"), plan.changed.as_ref(), &sorted_rows(expected)).await;
            plan = service.plan(resume(&plan, 1)).await.unwrap();
        }
        assert!(!plan.has_news, "{name}");
    }
}

#[tokio::test]
async fn an_empty_table_of_version_six_has_a_schema_and_a_requested_cursor() {
    let (table, service) = (Fixture::unpack("hudi", "cow_v6_empty"), service());
    for begin in [Begin::Latest, Begin::Earliest, Begin::Snapshot] {
        let plan = service.plan(request(&table.url(), begin)).await.unwrap();
        assert_eq!(plan.end, Cursor::Requested(InstantTime::init()));
        assert!(!plan.has_news);
        assert_eq!(plan.changed.unwrap().schema.fields().len(), 8);
        assert!(!service.plan(request(&table.url(), Begin::After(plan.end))).await.unwrap().has_news);
    }
}

/// Requested time of the commit that never completed.
fn hole(oracle: &Oracle) -> &str {
    let pending = oracle.expected["pending"].as_array().unwrap();
    pending.iter().find(|instant| instant["action"] == "commit").unwrap()["requested"].as_str().unwrap()
}

#[tokio::test]
async fn a_window_ends_before_the_first_pending_commit_and_a_pending_clustering_holds_nobody_up() {
    let oracle = Oracle::unpack("cow_v6_pending");
    let end = oracle.expected["blocked"]["end"].as_str().unwrap();
    let clustering = oracle.expected["pending"].as_array().unwrap().iter().find(|it| it["action"] == "replacecommit");
    assert!(clustering.unwrap()["requested"].as_str().unwrap() < end, "the fixture has one before the end");
    let before: Vec<_> = oracle.changes().into_iter().filter(|(at, _)| *at <= end).collect();
    for listing in ["metadata table", "directories"] {
        let service = service();
        let mut plan =
            service.plan(PlanRequest { num_instants: 1, ..request(&oracle.url(), Begin::Earliest) }).await.unwrap();
        for (at, rows) in &before {
            assert_eq!(plan.end, requested(at), "{listing}");
            check_rows(&service, &format!("{at} by {listing}"), plan.changed.as_ref(), &sorted_rows(rows)).await;
            plan = service.plan(resume(&plan, 1)).await.unwrap();
        }
        assert_eq!((plan.has_news, plan.limited, plan.end), (false, false, requested(end)), "{listing}");
        assert_eq!(plan.report.oldest_pending.unwrap().as_str(), hole(&oracle));
        assert_eq!(plan.report.lag_instants, 1, "the commit behind it");
        let before_it = hole(&oracle).parse::<InstantTime>().unwrap().epoch_millis(Zone::Utc).unwrap() - 1;
        assert_eq!(plan.frontier_millis, before_it);

        // The whole table and its look-up end there too: their cursor must not pass what is still to come.
        let expected = sorted_rows(&oracle.expected["blocked"]["rows"]);
        let views = Views { changed: true, end: true, begin: false };
        let whole = service.plan(PlanRequest { views, ..request(&oracle.url(), Begin::Snapshot) }).await.unwrap();
        assert_eq!(whole.end, requested(end));
        check_rows(&service, listing, whole.changed.as_ref(), &expected).await;
        let lookup = PlanRequest { lookup: true, views, ..request(&oracle.url(), Begin::Snapshot) };
        check_rows(&service, listing, service.plan(lookup).await.unwrap().at_end.as_ref(), &expected).await;
        drop_metadata_table(oracle.fixture.path());
    }
}

#[tokio::test]
async fn latest_is_the_newest_commit_before_the_pending_one() {
    let oracle = Oracle::unpack("cow_v6_pending");
    let end = oracle.expected["blocked"]["end"].as_str().unwrap();
    let plan = service().plan(request(&oracle.url(), Begin::Latest)).await.unwrap();
    let delivered: Vec<&str> = plan.instants.iter().map(|instant| instant.requested.as_str()).collect();
    assert_eq!((delivered, plan.end.clone()), (vec![end], requested(end)));
    assert_eq!(plan.report.end_requested.unwrap().as_str(), end);
}

#[tokio::test]
async fn a_pipeline_that_does_not_wait_fails_at_the_pending_commit_by_name() {
    let oracle = Oracle::unpack("cow_v6_pending");
    let service = service();
    let fail = PlanRequest { on_hole: OnHole::Fail, ..request(&oracle.url(), Begin::Earliest) };
    let error = failure(service.plan(fail.clone()).await);
    assert!(
        matches!(&error, Error::Hole { instant, action, .. } if instant.as_str() == hole(&oracle) && action == "commit")
    );
    let text = error.to_string();
    assert!(text.contains("source `s`") && text.contains(hole(&oracle)) && text.contains("on_hole"), "{text}");
    // A pending commit that nothing follows is a commit under way.
    let behind = oracle.changes().last().unwrap().0.to_string();
    std::fs::remove_file(oracle.fixture.path().join(format!(".hoodie/{behind}.commit"))).unwrap();
    assert!(service.plan(fail).await.unwrap().has_news);
}

#[tokio::test]
async fn what_waited_behind_a_pending_commit_follows_once_that_is_rolled_back() {
    let oracle = Oracle::unpack("cow_v6_pending");
    let service = service();
    let first = service.plan(request(&oracle.url(), Begin::Earliest)).await.unwrap();
    let timeline = oracle.fixture.path().join(".hoodie");
    // It is rolled back: the one behind it is next.
    for file in [format!("{}.commit.requested", hole(&oracle)), format!("{}.inflight", hole(&oracle))] {
        std::fs::remove_file(timeline.join(file)).unwrap();
    }
    let next = service.plan(resume(&first, 5)).await.unwrap();
    let behind = oracle.changes().last().unwrap().0;
    let delivered: Vec<&str> = next.instants.iter().map(|instant| instant.requested.as_str()).collect();
    assert_eq!(delivered, [behind]);
    assert_eq!((next.begin, next.end), (Some(first.end), requested(behind)));
}

#[tokio::test]
async fn a_completed_cursor_does_not_fit_a_table_without_completion_times() {
    let table = Fixture::unpack("hudi", "cow_v6_nonpartitioned");
    let begin = Begin::After(completed("20240418173550988"));
    let refused = failure(service().plan(request(&table.url(), begin)).await).to_string();
    assert!(refused.contains("version 6") && refused.contains("requested:<instant>"), "{refused}");
}

#[tokio::test]
async fn a_table_of_version_six_that_was_restored_or_made_anew_is_refused() {
    let (table, service) = (Fixture::unpack("hudi", "cow_v6_nonpartitioned"), service());
    let plan = service.plan(request(&table.url(), Begin::Latest)).await.unwrap();
    let other =
        PlanRequest { fingerprint: Some("v6_nonpartitioned@20200101000000000".to_string()), ..resume(&plan, 5) };
    assert!(matches!(failure(service.plan(other).await), Error::Recreated { .. }));
    std::fs::remove_file(table.path().join(format!(".hoodie/{}.commit", plan.end.instant().unwrap()))).unwrap();
    for state in ["commit.requested", "inflight"] {
        std::fs::remove_file(table.path().join(format!(".hoodie/{}.{state}", plan.end.instant().unwrap()))).unwrap();
    }
    match failure(service.plan(resume(&plan, 5)).await) {
        Error::Restored { cursor, .. } => assert_eq!(cursor, plan.end),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_archive_that_grew_is_read_again() {
    let oracle = Oracle::unpack("cow_v6_archived");
    let service = service();
    let archive = archive_files(oracle.fixture.path());
    let oldest = archive.first().expect("the first commit is archived");
    let first = oracle.expected["instants"][0]["requested"].as_str().unwrap();
    let aside = oracle.fixture.root().join("aside");
    std::fs::rename(oldest, &aside).unwrap();
    let begin = Begin::After(requested(oracle.changes().last().unwrap().0));
    let without = service.plan(request(&oracle.url(), begin.clone())).await.unwrap();
    std::fs::rename(&aside, oldest).unwrap();
    let with = service.plan(request(&oracle.url(), begin)).await.unwrap();
    assert_eq!(with.table.fingerprint, format!("cow_v6_archived@{first}"));
    assert_ne!(without.table.fingerprint, with.table.fingerprint);
}

#[tokio::test]
async fn the_archive_of_log_files_tells_what_each_of_its_commits_did() {
    let oracle = Oracle::unpack("cow_v6_archived");
    let storage = SystemStores::new().open(&oracle.url()).unwrap();
    let config = TableConfig::load(&storage).await.unwrap();
    let version = hudi::history_version(&storage, &config).await.unwrap().unwrap();
    let files = hudi::history_files(&storage, &config, version).await.unwrap().unwrap();
    assert_eq!(hudi::history_files(&storage, &config, version + 1).await.unwrap(), None, "that version is gone");
    let instants = oracle.expected["instants"].as_array().unwrap();
    let text = |instant: &Value, key: &str| instant[key].as_str().unwrap().to_string();
    let archived: Vec<&Value> = instants.iter().filter(|instant| instant["archived"] == true).collect();
    let expected: BTreeSet<(String, String)> =
        archived.iter().map(|it| (text(it, "requested"), text(it, "action"))).collect();
    let all = hudi::load_history(&storage, &config).await.unwrap();
    let found = all.iter().map(|it| (it.requested.to_string(), it.action.as_str().to_string())).collect();
    assert_eq!(expected, found);
    let commits: BTreeSet<InstantTime> = archived
        .iter()
        .filter(|instant| instant["action"] == "commit")
        .map(|instant| text(instant, "requested").parse().unwrap())
        .collect();
    let metadata = hudi::archived_metadata(&storage, &files, &commits).await.unwrap();
    assert_eq!(metadata.len(), commits.len());
    for (requested, metadata) in metadata {
        assert_eq!((metadata.operation.as_str(), metadata.changes_rows()), ("UPSERT", true), "{requested}");
        assert!(metadata.stats[0].path.contains(requested.as_str()) && metadata.schema().is_some(), "{requested}");
    }
}

fn archive_files(table: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for directory in ["archived", "history"] {
        let Ok(entries) = std::fs::read_dir(table.join(".hoodie").join(directory)) else { continue };
        found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()));
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_cursor_from_before_an_upgrade_goes_on_with_everything_requested_later() {
    let oracle = Oracle::unpack("cow_v6_upgraded");
    let service = service();
    let instants = oracle.expected["instants"].as_array().unwrap();
    let commits: Vec<&Value> = instants.iter().filter(|instant| instant["action"] == "commit").collect();
    // The last four: one of version 6, and the three that were written after the upgrade.
    let cursor = commits[commits.len() - 4]["requested"].as_str().unwrap();
    let later: Vec<&str> = commits[commits.len() - 3..].iter().map(|it| it["requested"].as_str().unwrap()).collect();
    let fingerprint = Some(format!("cow_v6_upgraded@{}", instants[0]["requested"].as_str().unwrap()));
    let begin = Begin::After(requested(cursor));
    let stored = PlanRequest {
        fingerprint: fingerprint.clone(),
        recent: vec![cursor.parse().unwrap()],
        num_instants: 2,
        ..request(&oracle.url(), begin)
    };
    let first = service.plan(stored).await.unwrap();
    let delivered: Vec<&str> = first.instants.iter().map(|instant| instant.requested.as_str()).collect();
    assert_eq!(delivered, later[..2]);
    let at = |n: usize| completed(commits[commits.len() - n]["completed"].as_str().unwrap());
    assert_eq!((first.begin.clone(), first.end.clone()), (Some(at(4)), at(2)), "translated");
    assert_eq!(first.report.begin_requested.as_ref().unwrap().as_str(), cursor);
    let second = service.plan(resume(&first, 5)).await.unwrap();
    let delivered: Vec<&str> = second.instants.iter().map(|instant| instant.requested.as_str()).collect();
    assert_eq!((delivered, second.end.clone()), (vec![later[2]], at(1)));
    // One that the history holds, and that later commits of the history follow, is stale under its own name.
    let archived = commits[0]["requested"].as_str().unwrap();
    let stale = PlanRequest { fingerprint, ..request(&oracle.url(), Begin::After(requested(archived))) };
    match failure(service.plan(stale).await) {
        Error::Stale { cursor, .. } => assert_eq!(cursor, requested(archived)),
        other => panic!("{other}"),
    }
}
