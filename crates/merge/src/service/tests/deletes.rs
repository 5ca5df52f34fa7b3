// SPDX-License-Identifier: Apache-2.0
//! Queries that keep the deletes of their sources, and queries that would lose them.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use tributary_api::RowStream;
use tributary_api::merge::Step;
use tributary_api::transform::{Input, InputSchema, MultiTransform, TransformError, Transforms};
use tributary_types::SourceName;

use crate::fixtures::Bench;

fn schema(columns: &[(&str, DataType)]) -> SchemaRef {
    let flag = [("_hoodie_is_deleted", DataType::Boolean)];
    let fields = columns.iter().cloned().chain(flag).map(|(name, kind)| Field::new(name, kind, true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Orders `a` and users `b`, which both deliver deletes, and `c`, which does not.
fn bench(then: Vec<Step>) -> Bench {
    let place = DataType::Struct(Fields::from(vec![Field::new("city", DataType::Utf8, true)]));
    let a = [("id", DataType::Int64), ("buyer", DataType::Int64), ("amount", DataType::Int64), ("place", place)];
    let b = [("buyer", DataType::Int64), ("name", DataType::Utf8)];
    let mut bench = Bench::new()
        .source("a", schema(&a), Vec::new())
        .tables(Vec::new(), Vec::new())
        .source("b", schema(&b), Vec::new())
        .tables(Vec::new(), Vec::new())
        .source("c", schema(&b), Vec::new())
        .tables(Vec::new(), Vec::new());
    bench.deletes = ["a", "b"].map(|name| SourceName::new(name).unwrap()).to_vec();
    bench.then = then;
    bench
}

/// The same where only `a` delivers deletes.
fn only_a(then: Vec<Step>) -> Bench {
    let mut bench = bench(then);
    bench.deletes.truncate(1);
    bench
}

fn sql(text: &str) -> Step {
    Step::Sql(text.to_string())
}

#[tokio::test]
async fn row_wise_queries_and_joins_with_whole_tables_keep_deletes() {
    for query in [
        "SELECT * FROM <SRC:a>",
        "SELECT id, amount + 1 AS amount, _hoodie_is_deleted FROM <SRC:a> WHERE id > 0 ORDER BY id",
        "SELECT id, (_hoodie_is_deleted OR amount <= 10) AS _hoodie_is_deleted FROM <SRC:a>",
        "CREATE TEMP VIEW v AS SELECT id AS k, _hoodie_is_deleted AS gone FROM <SRC:a>; \
         SELECT k, gone AS _hoodie_is_deleted FROM v",
        "WITH v AS (SELECT * FROM <SRC_0>) SELECT id, v._hoodie_is_deleted FROM v",
        "SELECT a.id, b.name, a._hoodie_is_deleted FROM <SRC:a> a LEFT JOIN <SNAP:c> b ON a.buyer = b.buyer",
        "SELECT a.id, a._hoodie_is_deleted FROM <SNAP:c> b RIGHT JOIN <SRC:a> a ON a.buyer = b.buyer",
        "SELECT a.id, b.n, a._hoodie_is_deleted FROM <SRC:a> a JOIN \
         (SELECT buyer, count(*) AS n FROM <SNAP:c> GROUP BY buyer) b ON a.buyer = b.buyer",
        "SELECT id, _hoodie_is_deleted FROM <SRC:a> WHERE buyer IN (SELECT DISTINCT buyer FROM <SRC:c>)",
        "SELECT id, (SELECT max(name) FROM <SNAP:c>) AS name, _hoodie_is_deleted FROM <SRC:a>",
    ] {
        if let Err(error) = only_a(Vec::new()).check(query).await {
            panic!("`{query}`: {error}");
        }
    }
    let joined = "SELECT a.id, b.name, a._hoodie_is_deleted FROM <SRC:a> a JOIN <SNAP:b> b ON a.buyer = b.buyer \
                  UNION ALL SELECT a.id, b.name, b._hoodie_is_deleted FROM <SNAP:a> a JOIN <SRC:b> b ON a.buyer = b.buyer \
                  UNION ALL SELECT p.id, q.name, true FROM <PREV:a> p JOIN <PREV:b> q ON p.buyer = q.buyer \
                  WHERE p.id IN (SELECT id FROM <SRC:a>) AND NOT EXISTS \
                  (SELECT 1 FROM <SNAP:a> a JOIN <SNAP:b> b ON a.buyer = b.buyer WHERE a.id = p.id)";
    if let Err(error) = bench(Vec::new()).check(joined).await {
        panic!("{error}");
    }
}

#[tokio::test]
async fn what_makes_one_row_of_several_is_refused_by_name() {
    for (query, what) in [
        (
            "SELECT buyer, sum(amount) AS s, bool_or(_hoodie_is_deleted) AS _hoodie_is_deleted FROM <SRC:a> GROUP BY buyer",
            "an aggregate",
        ),
        ("SELECT buyer, _hoodie_is_deleted FROM <SRC:a> GROUP BY buyer, _hoodie_is_deleted", "GROUP BY"),
        ("SELECT DISTINCT buyer, _hoodie_is_deleted FROM <SRC:a>", "DISTINCT"),
        ("SELECT buyer, _hoodie_is_deleted FROM <SRC:a> UNION SELECT buyer, false FROM <SNAP:c>", "UNION without ALL"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n, _hoodie_is_deleted FROM <SRC:a>", "a window function"),
        ("SELECT id, _hoodie_is_deleted FROM <SRC:a> LIMIT 3", "LIMIT"),
        ("SELECT id, _hoodie_is_deleted FROM (SELECT * FROM <SRC:a> ORDER BY id LIMIT 3) t", "LIMIT"),
        (
            "CREATE TEMP VIEW v AS SELECT max(id) AS id, false AS _hoodie_is_deleted FROM <SNAP:a>; \
          SELECT id, _hoodie_is_deleted FROM <SRC:a> UNION ALL SELECT * FROM v",
            "an aggregate",
        ),
    ] {
        let refused = only_a(Vec::new()).refusal(query).await;
        assert!(
            refused.contains("step 1 has") && refused.contains(what) && refused.contains("`a`"),
            "`{query}`: {refused}"
        );
    }
}

#[tokio::test]
async fn a_query_that_loses_the_flag_or_the_rows_of_a_source_is_refused() {
    for (query, what) in [
        ("SELECT id FROM <SRC:a>", "drops the column `_hoodie_is_deleted`"),
        ("SELECT id, _hoodie_is_deleted AS gone FROM <SRC:a>", "drops the column"),
        ("SELECT id, CAST(_hoodie_is_deleted AS STRING) AS _hoodie_is_deleted FROM <SRC:a>", "instead of a BOOLEAN"),
        ("SELECT id, false AS _hoodie_is_deleted FROM <SRC:a>", "takes rows of `<SRC:a>` without"),
        (
            "SELECT a.id, b._hoodie_is_deleted FROM <SRC:a> a JOIN <SNAP:c> b ON a.buyer = b.buyer",
            "takes rows of `<SRC:a>` without",
        ),
        (
            "SELECT id, _hoodie_is_deleted FROM <SRC:a> UNION ALL SELECT id, false FROM <SRC:a>",
            "takes rows of `<SRC:a>` without",
        ),
        ("SELECT id, false AS _hoodie_is_deleted FROM <SNAP:a>", "has no row of `<SRC:a>`"),
        ("SELECT * FROM <SNAP:a> WHERE id IN (SELECT id FROM <SRC:a>)", "has no row of `<SRC:a>`"),
        (
            "SELECT b.buyer, a._hoodie_is_deleted FROM <SNAP:c> b LEFT JOIN <SRC:a> a ON a.buyer = b.buyer",
            "filled with NULL",
        ),
        (
            "SELECT a.id, a._hoodie_is_deleted FROM <SRC:a> a FULL JOIN <SNAP:c> b ON a.buyer = b.buyer",
            "filled with NULL",
        ),
        ("SELECT x.id, x._hoodie_is_deleted FROM <SRC:a> x JOIN <SRC:a> y ON x.id = y.id", "misses partners"),
        ("SELECT id, (SELECT max(id) FROM <SRC:a>) AS m, _hoodie_is_deleted FROM <SRC:a>", "in a subquery for a value"),
    ] {
        let refused = only_a(Vec::new()).refusal(query).await;
        assert!(refused.contains("step 1") && refused.contains(what), "`{query}`: {refused}");
    }
    let joined = "SELECT a.id, (a._hoodie_is_deleted OR b._hoodie_is_deleted) AS _hoodie_is_deleted \
                  FROM <SRC:a> a JOIN <SRC:b> b ON a.buyer = b.buyer";
    let refused = bench(Vec::new()).refusal(joined).await;
    assert!(refused.contains("joins `<SRC:a>` with `<SRC:b>`"), "{refused}");
    let half = "SELECT a.id, a._hoodie_is_deleted FROM <SRC:a> a LEFT JOIN <SNAP:b> b ON a.buyer = b.buyer";
    let refused = bench(Vec::new()).refusal(half).await;
    assert!(refused.contains("has no row of `<SRC:b>`"), "{refused}");
}

#[tokio::test]
async fn every_step_must_keep_the_flag_and_the_one_that_does_not_is_named() {
    let flatten = || Step::Flatten { separator: "_".to_string() };
    let kept = only_a(vec![flatten(), sql("SELECT id, place_city, _hoodie_is_deleted FROM <SRC>")]);
    if let Err(error) = kept.check("SELECT * FROM <SRC:a>").await {
        panic!("{error}");
    }
    let dropped = only_a(vec![flatten(), sql("SELECT id FROM <SRC>"), sql("SELECT * FROM <SRC>")]);
    let refused = dropped.refusal("SELECT * FROM <SRC:a>").await;
    assert!(refused.contains("step 3 drops the column"), "{refused}");
    let summed =
        only_a(vec![sql("SELECT buyer, count(*) AS n, false AS _hoodie_is_deleted FROM <SRC> GROUP BY buyer")]);
    let refused = summed.refusal("SELECT * FROM <SRC:a>").await;
    assert!(refused.contains("step 2 has an aggregate over source `a`"), "{refused}");
    let reset = only_a(vec![sql("SELECT id, false AS _hoodie_is_deleted FROM <SRC>")]);
    let refused = reset.refusal("SELECT * FROM <SRC:a>").await;
    assert!(refused.contains("step 2 takes rows of `<SRC:a>` without"), "{refused}");
}

#[tokio::test]
async fn sources_that_ignore_deletes_may_be_queried_as_ever() {
    let mut bench = bench(Vec::new());
    bench.deletes.clear();
    assert!(bench.check("SELECT buyer, count(*) AS n FROM <SRC:a> GROUP BY buyer LIMIT 1").await.is_ok());
}

/// A step in Rust that says of no row that it is a delete.
struct Unflagged;

impl MultiTransform for Unflagged {
    fn schema(&self, inputs: &[InputSchema]) -> Result<SchemaRef, TransformError> {
        Ok(Arc::clone(&inputs[0].schema))
    }

    fn apply(&self, mut inputs: Vec<Input>) -> Result<RowStream, TransformError> {
        Ok(inputs.remove(0).rows)
    }
}

#[tokio::test]
async fn a_step_in_rust_over_a_source_that_delivers_deletes_is_refused_by_its_name() {
    let step = || vec![Step::Rust("unflagged".to_string())];
    let transforms = || Transforms::new().register("unflagged", Arc::new(Unflagged)).unwrap();
    let what = "deletes of source `a` (`deletes = \"propagate\"`) cannot be followed through the Rust step `unflagged`";
    for query in ["SELECT * FROM <SRC>", "SELECT * FROM <SRC:a>", "SELECT * FROM <SRC_0>"] {
        let mut bench = only_a(step());
        bench.transforms = transforms();
        let refused = bench.refusal(query).await;
        assert!(refused.contains("step 2") && refused.contains(what), "`{query}`: {refused}");
        bench.then.push(sql("SELECT *, false AS gone FROM <SRC>"));
        assert!(bench.refusal(query).await.contains(what), "`{query}`");
        bench.deletes.clear();
        if let Err(error) = bench.check(query).await {
            panic!("`{query}`: {error}");
        }
    }
}

#[tokio::test]
async fn the_result_of_a_step_in_rust_is_no_column_of_a_source() {
    let mut bench = bench(vec![Step::Rust("unflagged".to_string()), sql("SELECT id AS k FROM <SRC>")]);
    bench.deletes.clear();
    bench.transforms = Transforms::new().register("unflagged", Arc::new(Unflagged)).unwrap();
    let checked = bench.check("SELECT * FROM <SRC>").await.unwrap();
    assert!(checked.origins[0].columns.is_empty(), "{:?}", checked.origins);
}

#[tokio::test]
async fn a_condition_that_drops_every_delete_is_refused_and_one_part_of_a_union_may_have_it() {
    for condition in [
        "NOT _hoodie_is_deleted",
        "id > 0 AND NOT _hoodie_is_deleted",
        "_hoodie_is_deleted = false",
        "_hoodie_is_deleted IS NOT TRUE",
        "_hoodie_is_deleted IS FALSE",
        "_hoodie_is_deleted <> true",
    ] {
        let query = format!("SELECT id, _hoodie_is_deleted FROM <SRC:a> WHERE {condition}");
        let refused = only_a(Vec::new()).refusal(&query).await;
        assert!(refused.contains("only those that are no deletes"), "`{query}`: {refused}");
    }
    let divided = "SELECT id, amount, _hoodie_is_deleted FROM <SRC:a> WHERE NOT _hoodie_is_deleted \
                   UNION ALL SELECT id, 0, _hoodie_is_deleted FROM <SRC:a> WHERE _hoodie_is_deleted";
    if let Err(error) = only_a(Vec::new()).check(divided).await {
        panic!("{error}");
    }
}
