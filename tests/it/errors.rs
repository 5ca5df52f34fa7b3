// SPDX-License-Identifier: Apache-2.0
//! Bad inputs, one test each: the message says what, where and what to do, and nothing was written.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tributary_api::coordinator::BatchStatus;
use tributary_server::bench::source::SourceTable;
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, SourceName};

use crate::support::{Lake, checkpoints, enriched, pipeline, request_of, roles, rows, run, value_table, values};

/// A pipeline over the demo with another SQL.
fn with_sql(lake: &Lake, sql: &str) -> Pipeline {
    let mut pipeline = enriched(lake);
    pipeline.transforms[0].sql = Some(sql.to_string());
    pipeline
}

async fn rejected(lake: &Lake, pipeline: &Pipeline) -> BatchStatus {
    let status = run(&roles(), pipeline, "r").await;
    assert_eq!(status.outcome, Some(Outcome::Rejected), "{:?}", status.error);
    assert!(!Path::new(&lake.path("out")).join(".hoodie/hoodie.properties").exists(), "nothing is written");
    status
}

fn message(status: &BatchStatus) -> &str {
    &status.error.as_ref().unwrap().message
}

fn assert_says(status: &BatchStatus, parts: &[&str]) {
    for part in parts {
        assert!(message(status).contains(part), "`{part}` is missing in: {}", message(status));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_sources_without_sql_are_refused() {
    let lake = Lake::demo(1);
    let mut pipeline = enriched(&lake);
    pipeline.transforms.clear();
    let refused = roles().coordinator.run_batch(request_of(&pipeline, "r")).await.unwrap_err().to_string();
    assert!(refused.contains("2 sources and no SQL"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_the_sql_does_not_use_is_refused_unless_allowed() {
    let lake = Lake::demo(1);
    let mut pipeline = with_sql(&lake, "SELECT * FROM <SRC:orders>");
    let status = rejected(&lake, &pipeline).await;
    assert_says(&status, &["`users` is not used", "<SRC:users>", "unused = \"allow\""]);
    pipeline.sources[1].unused = tributary_types::pipeline::OnUnused::Allow;
    assert_eq!(run(&roles(), &pipeline, "r2").await.outcome, Some(Outcome::Committed));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_placeholder_names_its_place_and_what_exists() {
    let lake = Lake::demo(1);
    let status = rejected(&lake, &with_sql(&lake, "SELECT *\nFROM <SRC:order>")).await;
    assert_says(&status, &["<SRC:order>", "line 2", "column 6", "orders", "users"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_column_names_its_place_and_a_likely_one() {
    let lake = Lake::demo(1);
    let sql = "SELECT o.order_idd FROM <SRC:orders> o JOIN <SNAP:users> u ON o.user_id = u.user_id";
    let status = rejected(&lake, &with_sql(&lake, sql)).await;
    assert_says(&status, &["order_idd", "order_id", "line 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_statement_that_is_no_query_is_refused() {
    let lake = Lake::demo(1);
    let sql = "CREATE TEMPORARY VIEW v AS SELECT o.* FROM <SRC:orders> o, <SNAP:users> u";
    let status = rejected(&lake, &with_sql(&lake, sql)).await;
    assert_says(&status, &["query"]);
    let status = rejected(&lake, &with_sql(&lake, "DROP TABLE x; SELECT 1 FROM <SRC:orders>, <SNAP:users>")).await;
    assert_says(&status, &["DROP"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_path_and_a_path_without_a_table_are_named() {
    let lake = Lake::demo(1);
    let mut pipeline = enriched(&lake);
    pipeline.sources[0].path = lake.path("nowhere");
    let status = run(&roles(), &pipeline, "r").await;
    assert_says(&status, &["no Hudi table at", "nowhere", "orders"]);
    fs::create_dir_all(lake.dir().join("empty")).unwrap();
    pipeline.sources[0].path = lake.path("empty");
    assert_says(&run(&roles(), &pipeline, "r2").await, &["no Hudi table at", "empty"]);
    pipeline.sources[0].path = "ftp://host/table".to_string();
    assert_says(&run(&roles(), &pipeline, "r3").await, &["ftp", "s3://"]);
}

fn edit_properties(table: &str, from: &str, to: &str) {
    let file = Path::new(table).join(".hoodie/hoodie.properties");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&file, text.replace(from, to)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsupported_table_version_is_named() {
    let lake = Lake::demo(1);
    edit_properties(&lake.path("orders"), "hoodie.table.version=9", "hoodie.table.version=5");
    assert_says(&rejected(&lake, &enriched(&lake)).await, &["version 5", "orders"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_key_and_a_missing_key_column_are_named() {
    let lake = Lake::demo(1);
    let sql = "SELECT o.*, u.tier FROM <SRC:orders> o LEFT JOIN <SNAP:users> u ON o.user_id = u.user_id";
    let mut pipeline = with_sql(&lake, sql);
    pipeline.target.record_key = vec!["tier".to_string()];
    let status = run(&roles(), &pipeline, "r").await;
    assert_eq!(status.outcome, Some(Outcome::Rejected));
    assert_says(&status, &["`tier` is null", "on_null_key"]);
    pipeline.target.record_key = vec!["nope".to_string()];
    assert_says(&run(&roles(), &pipeline, "r2").await, &["nope", "record_key", "order_id"]);
    assert!(checkpoints(&lake.path("out"), "orders_enriched").await.is_empty(), "no cursor moved");
}

fn single(lake: &Lake) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot"}],
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

async fn committed_lake() -> Lake {
    let lake = Lake::new();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    for n in 0..3 {
        source.upsert(vec![values([(format!("k{n}"), n)])]).await.unwrap();
    }
    assert_eq!(run(&roles, &single(&lake), "r1").await.outcome, Some(Outcome::Committed));
    lake
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_source_is_noticed() {
    let lake = committed_lake().await;
    fs::remove_dir_all(lake.path("src")).unwrap();
    let roles = roles();
    let source = value_table(&roles, &lake.path("src")).await;
    source.upsert(vec![values([("x".to_string(), 1)])]).await.unwrap();
    let status = run(&roles, &single(&lake), "r2").await;
    assert_eq!(status.outcome, Some(Outcome::Rejected));
    assert_says(&status, &["src", "re-created", "another name"]);
    assert_eq!(checkpoints(&lake.path("out"), "p").await.len(), 1, "no cursor moved");
    assert_remedy_works(&lake).await;
}

/// Completed commits of a table's timeline, oldest first.
fn commit_files(table: &str) -> Vec<std::path::PathBuf> {
    let timeline = Path::new(table).join(".hoodie/timeline");
    let mut files: Vec<_> = fs::read_dir(timeline)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "commit") && path.to_string_lossy().contains('_'))
        .collect();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_source_is_noticed() {
    let lake = committed_lake().await;
    let newest = commit_files(&lake.path("src")).pop().unwrap();
    let stem = newest.file_name().unwrap().to_string_lossy().split('_').next().unwrap().to_string();
    for entry in fs::read_dir(newest.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with(&stem) {
            fs::remove_file(path).unwrap();
        }
    }
    let status = run(&roles(), &single(&lake), "r2").await;
    assert_eq!(status.outcome, Some(Outcome::Rejected));
    assert_says(&status, &["src", "restored", "another name"]);
    assert_remedy_works(&lake).await;
}

/// What the messages advise: under another name the source begins at its `start`.
async fn assert_remedy_works(lake: &Lake) {
    let mut renamed = single(lake);
    renamed.sources[0].name = SourceName::new("again").unwrap();
    let status = run(&roles(), &renamed, "remedy").await;
    assert_eq!(status.outcome, Some(Outcome::Committed), "{:?}", status.error);
    let newest = checkpoints(&lake.path("out"), "p").await.pop().unwrap();
    let names: Vec<&str> = newest.sources.keys().map(SourceName::as_str).collect();
    assert_eq!(names, ["again"], "the cursor of the old name has left the commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_start_names_the_earliest_readable_instant() {
    let lake = Lake::new();
    tributary_testkit::unpack_zip(&crate::support::fixtures().join("tables/cow_v9_archived.zip"), lake.dir());
    let expected: Value = serde_json::from_str(
        &fs::read_to_string(crate::support::fixtures().join("tables/cow_v9_archived.expected.json")).unwrap(),
    )
    .unwrap();
    let first = expected["instants"][0]["completed"].as_str().unwrap();
    let table = fs::read_dir(lake.dir()).unwrap().next().unwrap().unwrap().path();
    let mut pipeline = single(&lake);
    pipeline.sources[0].path = table.display().to_string();
    pipeline.sources[0].start = Some(first.to_string().try_into().unwrap());
    let status = run(&roles(), &pipeline, "r").await;
    assert_eq!(status.outcome, Some(Outcome::Rejected), "{:?}", status.error);
    assert_says(&status, &["src", first, "no longer readable", "earliest", "snapshot"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_of_another_type_or_key_is_refused() {
    let lake = committed_lake().await;
    let roles = roles();
    let mut pipeline = single(&lake);
    pipeline.target.record_key = vec!["value".to_string()];
    let status = run(&roles, &pipeline, "r2").await;
    assert_eq!(status.outcome, Some(Outcome::Rejected));
    assert_says(&status, &["record key", "[id]", "[value]"]);
    edit_properties(&lake.path("out"), "COPY_ON_WRITE", "MERGE_ON_READ");
    let status = run(&roles, &single(&lake), "r3").await;
    assert_says(&status, &["MERGE_ON_READ", "COPY_ON_WRITE"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_misses_a_target_column_or_changes_its_type_is_refused() {
    let lake = committed_lake().await;
    let mut pipeline = single(&lake);
    for (request, sql, parts) in [
        ("r2", "SELECT id FROM <SRC>", ["lacks column `value`", "merge operators"]),
        ("r3", "SELECT id, CAST(value AS STRING) AS value FROM <SRC>", ["`value` is Int64", "Utf8"]),
    ] {
        pipeline.transforms =
            vec![tributary_types::pipeline::Transform { sql: Some(sql.to_string()), ..Default::default() }];
        let status = run(&roles(), &pipeline, request).await;
        assert_eq!(status.outcome, Some(Outcome::Rejected));
        assert_says(&status, &parts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_commit_on_an_exclusive_target_fails_the_batch_by_name() {
    let lake = committed_lake().await;
    let roles = roles();
    let foreign = tributary_server::bench::source::SourceTable::open(
        &tributary_hudi::SystemStores::new(),
        roles.writer.clone(),
        std::sync::Arc::new(tributary_types::SystemClock),
        &lake.path("out"),
        values([]).schema(),
    )
    .await
    .unwrap();
    let commit = foreign.upsert(vec![values([("foreign".to_string(), 1)])]).await.unwrap();
    let status = run(&roles, &single(&lake), "r2").await;
    assert_eq!(status.outcome, Some(Outcome::Conflict));
    assert_says(&status, &[commit.requested.as_str(), "exclusive"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_store_is_a_failure_that_may_be_tried_again() {
    let lake = Lake::demo(1);
    let mut pipeline = enriched(&lake);
    // The target's parent is a file: no directory can be made there.
    fs::write(lake.dir().join("blocked"), b"").unwrap();
    pipeline.target.path = lake.path("blocked/out");
    let status = run(&roles(), &pipeline, "r").await;
    assert_eq!(status.outcome, Some(Outcome::Failed), "{:?}", status.error);
    assert_says(&status, &["blocked"]);
}

/// What is left of a target of three rows after `damage`, and what a batch then says.
async fn damaged(damage: impl Fn(&Path)) -> (Lake, BatchStatus) {
    let lake = committed_lake().await;
    let roles = roles();
    let clock = std::sync::Arc::new(tributary_types::SystemClock);
    let stores = tributary_hudi::SystemStores::new();
    let schema = values([]).schema();
    let url = lake.path("src");
    let source = SourceTable::open(&stores, roles.writer.clone(), clock, &url, schema).await.unwrap();
    source.upsert(vec![values([("k9".to_string(), 9)])]).await.unwrap();
    damage(Path::new(&lake.path("out")));
    let status = run(&roles, &single(&lake), "after").await;
    (lake, status)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_of_which_a_part_is_gone_is_not_written_on() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 3] = [
        (".hoodie/metadata", |out| fs::remove_dir_all(out.join(".hoodie/metadata")).unwrap()),
        ("hoodie.properties", |out| fs::remove_file(out.join(".hoodie/hoodie.properties")).unwrap()),
        ("timeline is empty", |out| {
            fs::remove_dir_all(out.join(".hoodie/timeline")).unwrap();
            fs::create_dir(out.join(".hoodie/timeline")).unwrap();
        }),
    ];
    for (named, damage) in cases {
        let (lake, status) = damaged(damage).await;
        assert_eq!(status.outcome, Some(Outcome::Rejected), "{named}: {:?}", status.error);
        assert_says(&status, &["damaged", named, "restore"]);
        let files = fs::read_dir(lake.path("out")).unwrap().flatten();
        let files = files.filter(|file| file.path().extension().is_some_and(|e| e == "parquet")).count();
        assert_eq!(files, 1, "{named}: nothing was written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_cut_off_is_an_error_and_no_empty_commit() {
    for content in ["", "{}", "{\"a\":1}"] {
        let (_lake, status) = damaged(|out| {
            fs::write(commit_files(&out.display().to_string()).pop().unwrap(), content).unwrap();
        })
        .await;
        assert!(!matches!(status.outcome, Some(Outcome::Committed | Outcome::NoNewData)), "`{content}` was believed");
        assert_says(&status, &[".commit"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_a_source_by_another_name_is_refused() {
    let lake = committed_lake().await;
    std::os::unix::fs::symlink(lake.path("src"), lake.path("link")).unwrap();
    let mut pipeline = single(&lake);
    pipeline.target.path = lake.path("link");
    pipeline.target.table_name = "src".to_string();
    let status = run(&roles(), &pipeline, "self").await;
    assert_eq!(status.outcome, Some(Outcome::Rejected), "{:?}", status.error);
    assert_says(&status, &["would read itself"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_metadata_table_that_lost_a_log_is_not_believed() {
    for (name, damage) in [
        ("gone", (|path: &Path| fs::remove_file(path).unwrap()) as fn(&Path)),
        ("empty", |path| fs::write(path, b"").unwrap()),
        ("cut off", |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        }),
    ] {
        let lake = committed_lake().await;
        let files = Path::new(&lake.path("src")).join(".hoodie/metadata/files");
        let mut logs: Vec<_> = fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().path()).collect();
        logs.retain(|path| path.to_string_lossy().contains(".log."));
        logs.sort();
        damage(&logs.pop().unwrap());
        assert_eq!(rows(&roles(), &lake.path("src")).await.len(), 3, "{name}: the directories tell what it does not");
    }
}
