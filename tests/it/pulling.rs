// SPDX-License-Identifier: Apache-2.0
//! The rows of a batch, pulled: here, and over Flight from a server.

use futures::TryStreamExt;
use serde_json::json;
use tributary_api::coordinator::{Coordinator, Error};
use tributary_rpc::{CoordinatorClient, connect_lazily};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Fault, Outcome};

use crate::process::{Process, tributary};
use crate::support::{
    Lake, assert_sound, checkpoints, enriched, open, open_value_table, pipeline, request_of, roles, run, value_table,
    values,
};

fn with_sql(mut pipeline: Pipeline, sql: &str) -> Pipeline {
    pipeline.transforms[0].sql = Some(sql.to_string());
    pipeline
}

async fn run_on(coordinator: &dyn Coordinator, pipeline: &Pipeline, request: &str) -> BatchName {
    let started = coordinator.run_batch(request_of(pipeline, request)).await.unwrap();
    let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
    let ended = watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone();
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    ended.name
}

/// Columns of a batch and how many rows it has.
async fn pulled(coordinator: &dyn Coordinator, name: &BatchName) -> (Vec<(String, String)>, usize) {
    let opened = coordinator.open_batch(name).await.unwrap();
    let fields = opened.schema.fields().iter();
    let columns = fields.map(|field| (field.name().clone(), field.data_type().to_string())).collect();
    let rows: Vec<_> = opened.rows.try_collect().await.unwrap();
    (columns, rows.iter().map(|batch| batch.num_rows()).sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_only_moved_cursors_is_pulled_as_an_empty_stream_of_the_tables_columns() {
    let lake = Lake::demo(1);
    let server = Process::start(&["--data-dir", &lake.path("data")]);
    let remote = CoordinatorClient::new(connect_lazily(&server.url).unwrap(), server.url.clone());
    let pipeline = enriched(&lake);
    // The very first commit of a table, too, may have no rows.
    let sql = pipeline.transforms[0].sql.clone().unwrap();
    let empty = with_sql(pipeline.clone(), &format!("{sql} WHERE o.order_id = 'nobody'"));
    let first = run_on(&remote, &empty, "empty-1").await;
    let (columns, rows) = pulled(&remote, &first).await;
    assert_eq!(rows, 0);
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["order_id", "user_id", "user_name", "tier", "amount", "status", "order_date", "updated_at"];
    assert_eq!(names, expected);

    lake.advance_demo(2);
    let full = run_on(&remote, &pipeline, "full").await;
    let (full_columns, rows) = pulled(&remote, &full).await;
    assert!(rows > 0);
    assert_eq!(full_columns, columns, "an empty batch has the columns of a full one, with their types");
    assert_eq!(pulled(&remote, &first).await, (columns.clone(), 0), "also once others followed");

    let shown = tributary(&["batches", "pull", "--server", &server.url, first.as_str()]);
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.stdout.contains("| order_id | user_id |"), "{shown:?}");
    assert!(shown.stderr.contains("0 rows of"), "{shown:?}");

    // The same by other roles, which know nothing but the target.
    let local = roles();
    let again = run(&local, &empty, "empty-1").await;
    assert_eq!(again.outcome, Some(Outcome::Committed));
    assert_eq!(pulled(local.coordinator.as_ref(), &again.name).await, (columns, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_files_were_cleaned_or_whose_commit_was_archived_can_no_longer_be_pulled() {
    let lake = Lake::new();
    let local = roles();
    let source = value_table(&local, &lake.path("src")).await;
    let pipeline = pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"],
                   "services": {"clean_commits": 1, "archive_commits": 6, "compact_metadata_commits": 2}},
    }));
    let server = Process::start(&["--data-dir", &lake.path("data")]);
    let remote = CoordinatorClient::new(connect_lazily(&server.url).unwrap(), server.url.clone());
    source.upsert(vec![values([("k".to_string(), 0)])]).await.unwrap();
    let first = run_on(&remote, &pipeline, "r0").await;
    assert_eq!(pulled(&remote, &first).await.1, 1);
    let mut reasons = Vec::new();
    for n in 1..=12 {
        open_value_table(&local, &lake.path("src")).await.upsert(vec![values([("k".to_string(), n)])]).await.unwrap();
        let newest = run_on(&remote, &pipeline, &format!("r{n}")).await;
        assert_eq!(pulled(&remote, &newest).await.1, 1, "the newest batch can be pulled");
        match remote.open_batch(&first).await {
            Ok(opened) => drop(opened),
            Err(error) => {
                assert!(matches!(error, Error::Gone { .. }), "{error:?}");
                assert_eq!(error.reason(), "BATCH_GONE");
                reasons.push(error.to_string());
            }
        }
    }
    assert!(reasons.first().is_some_and(|reason| reason.contains("cleaned")), "{reasons:?}");
    let (_, _, timeline) = open(&lake.path("out")).await;
    let instant = &checkpoints(&lake.path("out"), "p").await[0].requests[0].instant;
    assert!(timeline.find(instant).is_none(), "its commit was archived meanwhile");
    let pull = tributary(&["batches", "pull", "--server", &server.url, first.as_str()]);
    assert_eq!(pull.code, 1, "{pull:?}");
    assert!(pull.stderr.contains("can no longer be pulled"), "{pull:?}");
    assert_sound(&lake.path("out"), "p").await;
}
