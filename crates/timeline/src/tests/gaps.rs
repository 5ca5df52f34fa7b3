// SPDX-License-Identifier: Apache-2.0
//! What takes the place of windows that cannot be read any more, on tables that Spark wrote.

use std::collections::BTreeSet;

use serde_json::Value;
use tributary_types::CursorKind;
use tributary_types::pipeline::OnStale;

use super::oracle::Oracle;
use super::*;

#[tokio::test]
async fn the_whole_table_takes_the_place_of_a_stale_window_without_the_rows_that_were_read() {
    for name in ["cow_v9_archived", "cow_v6_archived"] {
        let oracle = Oracle::unpack(name);
        let service = service();
        let instants = oracle.expected["instants"].as_array().unwrap();
        let whole = service.plan(request(&oracle.url(), Begin::Snapshot)).await.unwrap();
        let whole = rows(&service, whole.changed.as_ref()).await;
        let mut gaps = 0;
        for instant in instants {
            let clock = match oracle.cursor(instant["requested"].as_str().unwrap()).kind() {
                CursorKind::Requested => "requested",
                _ => "completed",
            };
            let Some(at) = instant[clock].as_str() else { continue };
            let begin = Begin::After(oracle.cursor(at));
            let asked = PlanRequest { num_instants: 100, ..request(&oracle.url(), begin) };
            let plan = match service.plan(PlanRequest { on_stale: OnStale::Snapshot, ..asked.clone() }).await {
                // A clean after the newest commit.
                Err(Error::Beyond { .. }) => continue,
                plan => plan.unwrap(),
            };
            let stale = matches!(service.plan(asked).await, Err(Error::Stale { .. }));
            assert_eq!(plan.report.gap, stale, "{name} {at}");
            if !stale {
                continue;
            }
            gaps += 1;
            let done = |it: &&Value| it[clock].as_str().is_some_and(|time| time <= at);
            let read: BTreeSet<&str> =
                instants.iter().filter(done).map(|it| it["requested"].as_str().unwrap()).collect();
            let is_new = |row: &&Value| !read.contains(row["_hoodie_commit_time"].as_str().unwrap());
            let expected: Vec<Value> = whole.iter().filter(is_new).cloned().collect();
            assert_eq!(rows(&service, plan.changed.as_ref()).await, expected, "{name} {at}");
            assert!(expected.len() < whole.len() || read.is_empty(), "{name} {at}: something was read");
            assert_eq!((plan.begin.clone(), plan.has_news), (Some(oracle.cursor(at)), true));
            let next = service.plan(resume(&plan, 5)).await.unwrap();
            assert!(!next.has_news && !next.report.gap, "{name} {at}: it goes on from the newest commit");
        }
        assert!(gaps > 0, "{name}");
    }
}

#[tokio::test]
async fn what_was_before_a_stale_cursor_cannot_be_had_instead() {
    let oracle = Oracle::unpack("cow_v9_archived");
    let first = oracle.expected["instants"][0]["completed"].as_str().unwrap();
    let views = Views { changed: true, end: true, begin: true };
    let begin = Begin::After(completed(first));
    let asked = PlanRequest { on_stale: OnStale::Snapshot, views, ..request(&oracle.url(), begin) };
    match service().plan(asked).await {
        Err(Error::Stale { .. }) => {}
        Ok(plan) => {
            // Nothing was cleaned: then it is there.
            let before = rows(&service(), plan.at_begin.as_ref()).await;
            assert!(plan.report.gap && !before.is_empty());
        }
        Err(other) => panic!("{other}"),
    }
}
