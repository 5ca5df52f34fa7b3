// SPDX-License-Identifier: Apache-2.0
//! What a script must not do, each with a message that names it.

use super::super::*;
use crate::fixtures::{Bench, batch, schema};

fn bench() -> Bench {
    Bench::new().source("s", schema(), vec![batch(&[(1, "a", 10)])])
}

#[tokio::test]
async fn each_forbidden_thing_is_refused_by_name() {
    let bench = bench();
    for (sql, expected) in [
        ("SELECT * FROM `/etc/passwd`", "looks like a file or URL"),
        ("SELECT * FROM `s3://bucket/file.parquet`", "looks like a file or URL"),
        ("SELECT * FROM '/etc/passwd'", "SQL"),
        ("SELECT * FROM parquet.`/tmp/x`", "has a qualifier"),
        ("SELECT * FROM information_schema.tables", "has a qualifier"),
        ("SELECT * FROM datafusion.public.t", "has a qualifier"),
        ("SELECT * FROM other_table", "no relation or view `other_table`"),
        ("SELECT * FROM read_csv('/etc/passwd')", "table function `read_csv`"),
        ("SELECT * FROM generate_series(1, 1000000)", "table function `generate_series`"),
        ("SELECT * FROM TABLE(range(10))", "not allowed after FROM"),
        ("SELECT version() AS v FROM <SRC>", "function `version` is not allowed"),
        ("SELECT current_user() AS v FROM <SRC>", "function `current_user` is not allowed"),
        ("SELECT current_database() AS v FROM <SRC>", "function `current_database` is not allowed"),
        ("SELECT input_file_name() AS v FROM <SRC>", "function `input_file_name` is not allowed"),
        ("SELECT random() AS v FROM <SRC>", "function `random` is not allowed"),
        ("SELECT uuid() AS v FROM <SRC>", "function `uuid` is not allowed"),
        ("SELECT shuffle(ARRAY(1, 2)) AS v FROM <SRC>", "function `shuffle` is not allowed"),
        ("SELECT reflect('java.lang.System', 'exit', 1) AS v FROM <SRC>", "function `reflect` is not allowed"),
        ("SELECT java_method('a', 'b') AS v FROM <SRC>", "function `java_method` is not allowed"),
        ("SELECT sleep(10) AS v FROM <SRC>", "function `sleep` is not allowed"),
        ("SELECT range(1, 1000000000) AS v FROM <SRC>", "function `range` is not allowed"),
        ("SELECT pg_catalog.version() AS v", "has a qualifier"),
        ("SELECT x.y(1) AS v FROM <SRC>", "has a qualifier"),
        ("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT n FROM t", "WITH RECURSIVE"),
        ("SELECT id FROM <SRC> LATERAL VIEW explode(ARRAY(1)) t AS e", "LATERAL VIEW is not supported"),
        ("SELECT * INTO t FROM <SRC>", "SELECT INTO"),
        ("SELECT * FROM <SRC> FOR UPDATE", "FOR UPDATE"),
        ("SELECT * FROM <SRC> TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("SELECT $1 AS v", "parameter"),
        ("WITH d AS (DELETE FROM t) SELECT 1 AS v", "SQL"),
        ("SELECT * FROM <SRC> WHERE id IN (SELECT version())", "function `version` is not allowed"),
        ("SELECT * FROM <SRC> WHERE EXISTS (SELECT 1 FROM hidden)", "no relation or view `hidden`"),
        ("SELECT name FROM <SRC> ORDER BY random()", "function `random` is not allowed"),
        ("SELECT COUNT(*) FILTER (WHERE random() > 0) AS c FROM <SRC>", "function `random` is not allowed"),
    ] {
        let refusal = bench.refusal(sql).await;
        assert!(refusal.contains(expected), "`{sql}` was refused with: {refusal}");
    }
}

#[tokio::test]
async fn a_view_is_held_to_the_same_rules() {
    let refusal = bench().refusal("CREATE TEMP VIEW v AS SELECT version() AS v; SELECT * FROM v").await;
    assert!(refusal.contains("SQL at line 1, column 30") && refusal.contains("`version`"), "{refusal}");
}

#[tokio::test]
async fn a_relation_can_only_be_named_where_a_placeholder_names_it() {
    let two = bench().source("t", schema(), Vec::new());
    let refusal = two.refusal("SELECT * FROM <SRC:s> JOIN `SRC:t` t USING (id)").await;
    assert!(refusal.contains("no relation or view `SRC:t`"), "{refusal}");
    let shadow = bench().refusal("CREATE TEMP VIEW `SRC` AS SELECT 1 AS id; SELECT * FROM <SRC>").await;
    assert!(shadow.contains("has the name of a relation"), "{shadow}");
}

#[tokio::test]
async fn what_only_computes_is_allowed() {
    let bench = bench();
    for sql in [
        "SELECT id FROM <SRC> UNION SELECT id + 1 AS id FROM <SRC>",
        "SELECT id FROM <SRC> EXCEPT SELECT 2 AS id",
        "SELECT id FROM <SRC> INTERSECT SELECT 1 AS id",
        "WITH a AS (SELECT * FROM <SRC>), b AS (SELECT * FROM a) SELECT b.id FROM a JOIN b ON a.id = b.id",
        "VALUES (1, 'a'), (2, 'b')",
        "SELECT column1 AS id FROM (VALUES (1), (2)) AS t",
        "SELECT id FROM <SRC> WHERE EXISTS (SELECT 1 FROM <SRC> x WHERE x.id = id)",
        "SELECT id, SUM(amount) OVER (PARTITION BY name ORDER BY id) AS total FROM <SRC>",
        "SELECT name, COUNT(*) AS c FROM <SRC> GROUP BY name HAVING COUNT(*) > 0",
        "SELECT id, CASE WHEN amount > 5 THEN 'big' ELSE 'small' END AS size FROM <SRC> ORDER BY id LIMIT 10",
        "SELECT id, unnest(ARRAY(1, 2)) AS element FROM <SRC>",
    ] {
        if let Err(error) = bench.check(sql).await {
            panic!("`{sql}` was refused: {error}");
        }
    }
}

#[tokio::test]
async fn a_plan_that_grows_view_by_view_meets_the_plan_limit() {
    let mut sql = "CREATE TEMP VIEW v0 AS SELECT id FROM <SRC>;\n".to_string();
    for level in 1..40 {
        let below = level - 1;
        sql.push_str(&format!(
            "CREATE TEMP VIEW v{level} AS SELECT id FROM v{below} UNION ALL SELECT id FROM v{below};\n"
        ));
    }
    sql.push_str("SELECT id FROM v39");
    let refused = bench().check(&sql).await.unwrap_err();
    assert!(matches!(refused, Error::Limit { limit: "plan size", .. }), "{refused:?}");
}

#[tokio::test]
async fn a_text_of_very_many_words_meets_the_plan_limit() {
    let list = vec!["1"; 20_000].join(", ");
    let refused = bench().check(&format!("SELECT id FROM <SRC> WHERE id IN ({list})")).await.unwrap_err();
    assert!(matches!(refused, Error::Limit { limit: "plan size", .. }), "{refused:?}");
}

#[tokio::test]
async fn the_longest_chains_allowed_run_without_overflow() {
    let chain = Settings::default().max_chain - 10;
    let sum = vec!["id"; chain].join(" + ");
    for sql in [
        format!("SELECT {sum} AS total FROM <SRC>"),
        format!("SELECT id FROM <SRC> WHERE {}", vec!["id = 1"; chain / 2].join(" OR ")),
        vec!["SELECT id FROM <SRC>"; chain].join(" UNION ALL "),
    ] {
        bench().run(&sql).await.unwrap();
    }
    let refused =
        bench().check(&format!("SELECT {} AS x FROM <SRC>", vec!["id"; 9_000].join(" + "))).await.unwrap_err();
    assert!(matches!(refused, Error::Limit { limit: "nesting", .. }), "{refused:?}");
}
