// SPDX-License-Identifier: Apache-2.0
//! Sources whose files do not fit the table's schema (W9): what fails, and what is left out where that was asked for.

use std::fs;
use std::path::PathBuf;

use arrow::datatypes::{DataType, Schema, SchemaRef};

use super::oracle::Oracle;
use super::*;
use crate::schema::relation_schema;

const SCORE_IS_LONG: &str = r#"\"score\",\"type\":[\"null\",\"long\"]"#;
const SCORE_IS_FLAG: &str = r#"\"score\",\"type\":[\"null\",\"boolean\"]"#;

/// The newest write of a table of version 6, whose commits are text.
fn newest_commit(oracle: &Oracle) -> PathBuf {
    let last = oracle.windows().last().unwrap()["end"].as_str().unwrap();
    let directory = oracle.fixture.path().join(".hoodie");
    let named = |action: &str| directory.join(format!("{last}.{action}"));
    [named("commit"), named("deltacommit")].into_iter().find(|path| path.exists()).unwrap()
}

fn edit(file: &PathBuf, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from} in {text}");
    fs::write(file, text.replace(from, to)).unwrap();
}

/// All but the newest write, as a first batch read it.
async fn first_window(oracle: &Oracle) -> SourcePlan {
    let ends: Vec<&str> = oracle.windows().iter().map(|window| window["end"].as_str().unwrap()).collect();
    let pinned_end = Some(requested(ends[ends.len() - 2]));
    service().plan(PlanRequest { pinned_end, ..request(&oracle.url(), Begin::Earliest) }).await.unwrap()
}

fn with_fallback(first: &SourcePlan) -> PlanRequest {
    PlanRequest { fallback_schema: first.table.schema.clone(), ..resume(first, 5) }
}

/// What a source that is left out reads as.
fn assert_left_out(plan: &SourcePlan, first: &SourcePlan, schema: &SchemaRef, because: &str) {
    assert!(plan.report.skipped.as_ref().unwrap().contains(because), "{:?}", plan.report.skipped);
    assert_eq!((plan.begin.as_ref(), &plan.end), (Some(&first.end), &first.end), "its cursor stays");
    assert_eq!((plan.has_news, plan.limited), (false, true), "and there is more to read");
    assert_eq!((plan.instants.len(), &plan.recent), (0, &first.recent));
    let changed = plan.changed.as_ref().unwrap();
    assert_eq!((changed.splits.len(), &changed.schema), (0, schema));
    assert_eq!(plan.table.schema, first.table.schema);
    assert_eq!(plan.report.lag_instants, 1);
}

#[tokio::test]
async fn a_source_whose_files_do_not_fit_is_left_out_with_the_schema_it_had_before() {
    for name in ["cow_v6_updates", "mor_v6_compaction"] {
        let oracle = Oracle::unpack(name);
        let first = first_window(&oracle).await;
        let schema = relation_schema(first.table.schema.as_ref(), &request("/t", Begin::Earliest));
        let commit = newest_commit(&oracle);
        let intact = service().plan(with_fallback(&first)).await.unwrap();
        assert_eq!((intact.report.skipped.as_ref(), intact.has_news), (None, true), "{name}");

        edit(&commit, SCORE_IS_LONG, SCORE_IS_FLAG);
        let left_out = service().plan(with_fallback(&first)).await.unwrap();
        assert_left_out(&left_out, &first, &schema, "`score`");
        // Where it was not asked for, the batch fails when the file is opened.
        let failing = service().plan(resume(&first, 5)).await.unwrap();
        assert!(
            batches(&service(), failing.changed.as_ref().unwrap()).await.unwrap_err().contains("`score`"),
            "{name}"
        );
        // A first window has no cursor to stay at.
        let start =
            PlanRequest { fallback_schema: first.table.schema.clone(), ..request(&oracle.url(), Begin::Snapshot) };
        assert!(matches!(failure(service().plan(start).await), Error::Schema { .. }), "{name}");

        edit(&commit, SCORE_IS_FLAG, SCORE_IS_LONG);
        let mended = service().plan(with_fallback(&first)).await.unwrap();
        assert_eq!((mended.report.skipped, mended.end), (None, intact.end), "{name}");
    }
}

#[tokio::test]
async fn a_schema_that_cannot_be_read_or_evolves_on_read_leaves_a_source_out_too() {
    let oracle = Oracle::unpack("cow_v6_updates");
    let first = first_window(&oracle).await;
    let schema = relation_schema(first.table.schema.as_ref(), &request("/t", Begin::Earliest));
    let commit = newest_commit(&oracle);
    let text = fs::read_to_string(&commit).unwrap();
    for (from, to, because) in [
        (r#"{\"type\":\"record\""#, r#"{\"type\":\"recoil\""#, "cannot be read"),
        (r#""extraMetadata" : {"#, r#""extraMetadata" : { "latest_schema" : "{}","#, "evolves its schema on read"),
    ] {
        edit(&commit, from, to);
        let refused = failure(service().plan(resume(&first, 5)).await).to_string();
        assert!(refused.contains(because), "{refused}");
        let left_out = service().plan(with_fallback(&first)).await.unwrap();
        assert_left_out(&left_out, &first, &schema, because);
        fs::write(&commit, &text).unwrap();
    }
}

#[tokio::test]
async fn what_is_wrong_with_files_and_cursors_is_no_reason_to_leave_a_source_out() {
    let oracle = Oracle::unpack("cow_v6_updates");
    let first = first_window(&oracle).await;
    let other = PlanRequest { fingerprint: Some("other@-".to_string()), ..with_fallback(&first) };
    assert!(matches!(failure(service().plan(other).await), Error::Recreated { .. }));
    let newest = service().plan(with_fallback(&first)).await.unwrap();
    let file = oracle.fixture.path().join(&newest.changed.unwrap().splits[0].path);
    fs::remove_file(file).unwrap();
    let refused = failure(service().plan(with_fallback(&first)).await);
    assert!(matches!(refused, Error::FileGone { .. } | Error::Stale { .. }), "{refused}");
}

#[test]
fn the_schema_of_what_is_left_out_is_that_of_an_empty_window() {
    let own: SchemaRef = Arc::new(Schema::new(vec![arrow::datatypes::Field::new("id", DataType::Utf8, true)]));
    assert_eq!(
        relation_schema(Some(&own), &PlanRequest { meta_columns: false, ..request("/t", Begin::Earliest) }),
        own
    );
    assert_eq!(relation_schema(Some(&own), &request("/t", Begin::Earliest)).fields().len(), 6);
}
