// SPDX-License-Identifier: Apache-2.0
//! Results: joins, views, and where the SQL means what Spark means by it.

use super::super::*;
use crate::fixtures::{Bench, batch, in_order, schema};

fn bench() -> Bench {
    Bench::new()
        .source("orders", schema(), vec![batch(&[(1, "one", 10), (2, "two", 20)])])
        .source("users", schema(), vec![batch(&[(2, "zwei", 200)]), batch(&[(3, "drei", 300)])])
        .tables(vec![batch(&[(1, "eins", 100), (2, "zwei", 200), (3, "drei", 300)])], vec![batch(&[(1, "eins", 100)])])
}

#[tokio::test]
async fn a_full_outer_join_with_coalesce_keeps_both_sides() {
    let sql = "SELECT COALESCE(o.id, u.id) AS id, o.name, u.name AS user_name \
               FROM <SRC:orders> o FULL OUTER JOIN <SRC:users> u ON o.id = u.id";
    assert_eq!(bench().rows(sql).await, ["1|one|null", "2|two|zwei", "3|null|drei"]);
}

#[tokio::test]
async fn changed_rows_join_with_whole_tables() {
    let sql = "SELECT o.id, u.amount FROM <SRC:orders> o JOIN <SNAP:users> u ON o.id = u.id";
    assert_eq!(bench().rows(sql).await, ["1|100", "2|200"]);
    let vanished = "SELECT id FROM <SNAP:users> EXCEPT SELECT id FROM <PREV:users>";
    assert_eq!(bench().rows(vanished).await, ["2", "3"]);
}

#[tokio::test]
async fn views_build_on_each_other_and_a_replaced_one_keeps_its_users() {
    let sql = "CREATE TEMPORARY VIEW v AS SELECT id, amount FROM <SRC:orders>;\n\
               CREATE TEMPORARY VIEW w AS SELECT id, amount * 2 AS amount FROM v; -- uses the first v\n\
               CREATE OR REPLACE TEMPORARY VIEW v AS SELECT id, amount FROM <SRC:users>;\n\
               SELECT id, amount FROM v UNION ALL SELECT id, amount FROM w";
    assert_eq!(bench().rows(sql).await, ["1|20", "2|200", "2|40", "3|300"]);
}

#[tokio::test]
async fn views_are_gone_after_their_batch() {
    let bench = bench();
    let service = bench.service();
    let with_view = "CREATE TEMP VIEW v AS SELECT id FROM <SRC:orders>; SELECT id FROM v";
    service.run(bench.request(with_view).await.unwrap()).await.unwrap();
    let mut next = bench.request("SELECT id FROM <SRC:orders>").await.unwrap();
    next.sql = Some("SELECT id FROM v".to_string());
    let refused = service.run(next).await.unwrap_err();
    assert!(refused.to_string().contains("no relation or view `v`"), "{refused}");
    let failing = "CREATE TEMP VIEW v AS SELECT id FROM <SRC:orders>; SELECT CAST('x' AS INT) AS id FROM v";
    assert!(bench.run(failing).await.is_err());
    service.run(bench.request(with_view).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn nulls_sort_first_and_last_when_descending_as_in_spark() {
    let ascending = "SELECT x FROM (VALUES (1), (NULL), (2)) AS t(x) ORDER BY x";
    let bench = bench();
    bench.rows(ascending).await;
    assert_eq!(in_order(&bench.writer.batches()), ["null", "1", "2"]);
    bench.rows(&format!("{ascending} DESC")).await;
    assert_eq!(in_order(&bench.writer.batches()), ["2", "1", "null"]);
}

#[tokio::test]
async fn division_is_sparks() {
    let sql = "SELECT 1 / 2 AS half, 7 DIV 2 AS whole, 1 / 0 AS nothing, id / amount AS ratio \
               FROM <SRC:orders> WHERE id = 1";
    assert_eq!(bench().rows(sql).await, ["0.5|3|null|0.1"]);
    let grouped = "SELECT amount / id AS r, SUM(amount) / COUNT(*) AS mean FROM <SRC:users> GROUP BY amount / id";
    assert_eq!(bench().rows(grouped).await, ["100.0|250.0"]);
}

#[tokio::test]
async fn common_spark_functions_work_on_stored_types() {
    for (expression, expected) in [
        ("concat(name, '-', CAST(id AS STRING))", "one-1"),
        ("coalesce(NULL, name)", "one"),
        ("if(id > 0, 'y', 'n')", "y"),
        ("nvl(CAST(NULL AS STRING), name)", "one"),
        ("substring(name, 1, 2)", "on"),
        ("length(name)", "3"),
        ("upper(trim('  x '))", "X"),
        ("date_add(DATE '2024-01-31', 1)", "2024-02-01"),
        ("CAST('2024-01-01 10:00:00' AS TIMESTAMP)", "2024-01-01T10:00:00Z"),
        ("date_trunc('month', TIMESTAMP '2024-03-05 10:00:00')", "2024-03-01T00:00:00Z"),
        ("EXTRACT(YEAR FROM DATE '2024-03-05')", "2024"),
        ("regexp_replace(name, '\\\\w', 'x')", "xne"),
        ("CAST(id AS DECIMAL(10,2))", "1.00"),
        ("sha2(name, 256)", "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"),
        ("round(2.567, 2)", "2.57"),
        ("abs(-5)", "5"),
        ("greatest(id, 5)", "5"),
        ("CASE WHEN name LIKE 'o%' THEN 1 ELSE 0 END", "1"),
        ("size(ARRAY(1, 2, 3))", "3"),
        ("unix_seconds(CAST('1970-01-01 00:01:00' AS TIMESTAMP))", "60"),
        ("CAST('5' AS LONG)", "5"),
        ("\"double\"", "double"),
    ] {
        let sql = format!("SELECT {expression} AS x FROM <SRC:orders> WHERE id = 1");
        assert_eq!(bench().rows(&sql).await, [expected], "{expression}");
    }
}

#[tokio::test]
async fn the_latest_row_of_each_key_is_kept_by_the_usual_query() {
    let rows = batch(&[(1, "old", 1), (1, "new", 2), (2, "only", 1)]);
    let bench = Bench::new().source("s", schema(), vec![rows]);
    let sql = "SELECT id, name FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY amount DESC) AS rn \
               FROM <SRC>) t WHERE rn = 1";
    assert_eq!(bench.rows(sql).await, ["1|new", "2|only"]);
}

#[tokio::test]
async fn exploding_a_list_drops_empty_ones_unless_asked_for() {
    let lists = "(VALUES (1, ARRAY(10, 20)), (2, CAST(NULL AS ARRAY<BIGINT>))) AS t(id, list)";
    let rows = bench().rows(&format!("SELECT id, explode(list) AS e FROM {lists}")).await;
    assert_eq!(rows, ["1|10", "1|20"]);
    let rows = bench().rows(&format!("SELECT id, explode_outer(list) AS e FROM {lists}")).await;
    assert_eq!(rows, ["1|10", "1|20", "2|null"]);
}

#[tokio::test]
async fn now_is_one_time_for_the_whole_batch() {
    struct Fixed;
    impl Clock for Fixed {
        fn now_millis(&self) -> i64 {
            1_700_000_000_123
        }
    }
    let bench = bench();
    let sql = "SELECT now() AS a, current_timestamp AS b, current_date() AS d FROM <SRC:orders>";
    let request = bench.request(sql).await.unwrap();
    bench.service().with_clock(Arc::new(Fixed)).run(request).await.unwrap();
    let rows = crate::fixtures::shown(&bench.writer.batches());
    let expected = "2023-11-14T22:13:20.123Z|2023-11-14T22:13:20.123Z|2023-11-14";
    assert_eq!(rows, [expected, expected]);
}

#[tokio::test]
async fn stored_types_are_what_the_writer_gets() {
    let sql = "SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS rn, CAST(amount AS SMALLINT) AS small, \
               named_struct('a', name, 'b', ARRAY(id)) AS st, map('k', id) AS m FROM <SRC:orders>";
    let rows = bench().rows(sql).await;
    assert_eq!(rows, ["1|1|10|{a: one, b: [1]}|{k: 1}", "2|2|20|{a: two, b: [2]}|{k: 2}"]);
}
