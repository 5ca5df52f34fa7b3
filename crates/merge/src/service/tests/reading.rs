// SPDX-License-Identifier: Apache-2.0
//! What reaches the timeline, and what comes back from it.

use tributary_api::predicate::{Literal, Op, Predicate};
use tributary_api::timeline::{FileSplit, TopicSplit};
use tributary_types::pipeline::{FileFormat, JsonOptions, KafkaOptions, Tombstones, TopicSource};
use tributary_types::{Code, Fault, Retry};

use super::super::*;
use crate::fixtures::{Bench, batch, schema};

fn bench() -> Bench {
    let splits = vec![batch(&[(1, "a", 10), (2, "b", 20)]), batch(&[(3, "c", 30)]), batch(&[(4, "d", 40)])];
    Bench::new().source("s", schema(), splits)
}

#[tokio::test]
async fn only_the_columns_and_rows_that_are_needed_are_asked_for() {
    let bench = bench();
    assert_eq!(bench.rows("SELECT amount FROM <SRC> WHERE id > 2").await, ["30", "40"]);
    let requests = bench.timeline.requests();
    assert_eq!(requests.len(), 3);
    for request in requests {
        assert_eq!(request.projection, Some(vec![0, 2]));
        let expected = Predicate::Compare { column: "id".to_string(), op: Op::Gt, literal: Literal::Int(2) };
        assert_eq!(request.predicate, Some(expected));
        assert_eq!(request.schema, schema());
        assert_eq!(request.batch_rows, 8192);
    }
}

#[tokio::test]
async fn filters_reach_a_relation_through_views() {
    let bench = bench();
    let sql = "CREATE TEMP VIEW v AS SELECT id, upper(name) AS n FROM <SRC>; SELECT * FROM v WHERE id IN (1, 4)";
    assert_eq!(bench.rows(sql).await, ["1|A", "4|D"]);
    assert!(bench.timeline.requests().iter().all(|request| request.predicate.is_some()));
}

#[tokio::test]
async fn counting_rows_asks_for_one_column_only() {
    let bench = bench();
    assert_eq!(bench.rows("SELECT count(*) AS c FROM <SRC>").await, ["4"]);
    assert!(bench.timeline.requests().iter().all(|request| request.projection == Some(vec![0])));
}

#[tokio::test]
async fn keys_of_a_small_side_narrow_the_scan_of_the_other() {
    let mut bench = Bench::new();
    bench.split_bytes = 10;
    let bench = bench.source("small", schema(), vec![batch(&[(3, "x", 1)])]);
    let mut bench = bench;
    bench.split_bytes = 100_000;
    let bench = bench.source("large", schema(), vec![batch(&[(1, "a", 1), (3, "c", 3)]), batch(&[(9, "z", 9)])]);
    let rows = bench.rows("SELECT l.id, l.name FROM <SRC:large> l JOIN <SRC:small> s ON l.id = s.id").await;
    assert_eq!(rows, ["3|c"]);
    let requests = bench.timeline.requests();
    let large: Vec<_> = requests.iter().filter(|request| request.split.path.starts_with("large")).collect();
    assert!(!large.is_empty());
    for request in large {
        let text = format!("{:?}", request.predicate);
        assert!(text.contains("Int(3)"), "the key was not pushed down: {text}");
    }
}

#[tokio::test]
async fn an_empty_relation_has_the_same_schema_as_a_full_one() {
    let sql = "SELECT id, upper(name) AS n, sum(amount) AS total FROM <SRC> GROUP BY id, name";
    let full = bench();
    let empty = Bench::new().source("s", schema(), Vec::new());
    assert_eq!(full.check(sql).await.unwrap().schema, empty.check(sql).await.unwrap().schema);
    assert_eq!(full.rows(sql).await.len(), 4);
    assert_eq!(empty.rows(sql).await, Vec::<String>::new());
}

#[tokio::test]
async fn without_sql_the_rows_pass_through() {
    let bench = bench();
    let mut request = bench.request("SELECT * FROM <SRC>").await.unwrap();
    request.sql = None;
    let merged = bench.service().run(request).await.unwrap();
    assert_eq!(crate::fixtures::shown(&bench.writer.batches()), ["1|a|10", "2|b|20", "3|c|30", "4|d|40"]);
    assert_eq!(merged.staged.rows_in, 4);
}

#[tokio::test]
async fn rows_read_are_counted_per_source() {
    let bench = bench()
        .source("t", schema(), vec![batch(&[(1, "x", 1)])])
        .tables(vec![batch(&[(1, "x", 1), (2, "y", 2)])], vec![batch(&[(2, "y", 2)])]);
    let sql = "SELECT id FROM <SRC:s> UNION ALL SELECT id FROM <SRC:t> UNION ALL SELECT id FROM <SNAP:t> \
               UNION ALL SELECT id FROM <PREV:t>";
    let merged = bench.run(sql).await.unwrap();
    let counts: Vec<(String, u64)> =
        merged.rows_read.iter().map(|(source, rows)| (source.to_string(), *rows)).collect();
    assert_eq!(counts, [("s".to_string(), 4), ("t".to_string(), 4)]);
}

#[tokio::test]
async fn a_lost_file_keeps_its_classification_wherever_it_shows() {
    for sql in [
        "SELECT id FROM <SRC>",
        "SELECT id, sum(amount) AS a FROM <SRC> GROUP BY id ORDER BY id",
        "SELECT a.id FROM <SRC> a FULL OUTER JOIN <SRC> b ON a.id = b.id + 1",
    ] {
        let bench = bench();
        bench.timeline.lose("s/changed/0");
        let error = bench.run(sql).await.unwrap_err();
        let seen = (error.code(), error.retry(), error.reason());
        assert_eq!(seen, (Code::Conflict, Retry::Rebase, "FILE_GONE"), "{sql}: {error:?}");
        assert!(matches!(error, Error::Rows(_)));
    }
}

#[tokio::test]
async fn a_stream_that_fails_midway_ends_with_the_same_error_at_the_writer() {
    let bench = Bench::new().source("s", schema(), vec![batch(&[(1, "a", 1)]), batch(&[(2, "b", 2)])]);
    bench.timeline.lose("s/changed/1");
    let mut request = bench.request("SELECT id FROM <SRC>").await.unwrap();
    request.limits.parallelism = 1;
    let error = bench.service().run(request).await.unwrap_err();
    assert_eq!(error.reason(), "FILE_GONE");
    let failures = bench.writer.failures();
    assert_eq!(failures.len(), 1);
    assert_eq!((failures[0].code, failures[0].retry, failures[0].reason), (Code::Conflict, Retry::Rebase, "FILE_GONE"));
}

#[tokio::test]
async fn a_value_that_cannot_be_computed_fails_the_batch() {
    let error = bench().run("SELECT CAST(name AS BIGINT) AS id FROM <SRC>").await.unwrap_err();
    assert!(matches!(error, Error::Execution { .. }), "{error:?}");
    assert_eq!(error.code(), Code::Invalid);
}

#[tokio::test]
async fn a_writer_that_fails_or_stops_early_fails_the_merge() {
    let failing = bench();
    failing.writer.fill_up();
    let error = failing.run("SELECT id FROM <SRC>").await.unwrap_err();
    assert!(matches!(error, Error::Writer(_)), "{error:?}");
    let lazy = bench();
    lazy.writer.give_up_after(1);
    let mut request = lazy.request("SELECT id FROM <SRC>").await.unwrap();
    request.limits.parallelism = 1;
    let error = lazy.service().run(request).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal, "{error:?}");
}

#[tokio::test]
async fn a_target_prepared_for_other_columns_is_refused_before_reading() {
    let bench = bench();
    let mut request = bench.request("SELECT id FROM <SRC>").await.unwrap();
    request.sql = Some("SELECT id, name FROM <SRC>".to_string());
    let error = bench.service().run(request).await.unwrap_err();
    assert!(error.to_string().contains("other columns"), "{error}");
    assert_eq!(bench.timeline.requests().len(), 0);
}

#[tokio::test]
async fn a_relation_that_was_not_planned_is_a_bug_that_says_so() {
    let bench = bench();
    let mut request = bench.request("SELECT id FROM <SRC>").await.unwrap();
    request.sql = Some("SELECT id FROM <SNAP:s>".to_string());
    let error = bench.service().run(request).await.unwrap_err();
    assert!(error.to_string().contains("`<SNAP:s>` is named by the SQL, but was not planned"), "{error}");
}

/// The physical plan over the pinned splits of `bench`.
async fn planned(bench: &Bench) -> String {
    let names: Vec<SourceName> = bench.sources.iter().map(|source| source.source.clone()).collect();
    let bound = bind("SELECT id, amount + 1 AS amount FROM <SRC> WHERE amount > 0", &names).unwrap();
    let job = Job {
        text: Some(bound.text),
        then: Vec::new(),
        relations: pinned(bound.references, &bench.sources).unwrap(),
        deletes: Vec::new(),
        sources: bench.sources.iter().map(|source| (source.source.clone(), Arc::clone(&source.schema))).collect(),
        limits: bench.limits.clone(),
        now_millis: 0,
        query: None,
    };
    bench.service().engine.plan(&Arc::new(job), Joins::Hash).await.unwrap().describe().1
}

#[tokio::test]
async fn messages_of_a_partition_are_not_dealt_out_so_that_their_order_stays() {
    let mut bench = Bench { split_bytes: 1 << 30, ..Bench::new() }.source("s", schema(), vec![batch(&[(1, "a", 1)])]);
    assert!(planned(&bench).await.contains("RoundRobinBatch"), "rows of a table are dealt out");
    let topic = TopicSource {
        brokers: "localhost:9092".to_string(),
        topic: "t".to_string(),
        tombstones: Tombstones::Error,
        options: KafkaOptions::default(),
    };
    bench.sources[0].changed.as_mut().unwrap().splits[0].file = Some(FileSplit {
        source: SourceName::new("s").unwrap(),
        format: Arc::new(FileFormat::Json(JsonOptions::default())),
        modified_millis: 0,
        e_tag: None,
        strict: false,
        topic: Some(TopicSplit {
            source: Arc::new(topic),
            topic_id: None,
            partition: 0,
            begin: 0,
            end: 1,
            value_columns: 3,
        }),
        refused: false,
    });
    let plan = planned(&bench).await;
    assert!(!plan.contains("RoundRobinBatch"), "{plan}");
}
