// SPDX-License-Identifier: Apache-2.0
//! Subqueries that refer to the query around them.

use crate::fixtures::{Bench, batch, schema};

fn bench() -> Bench {
    let pairs = vec![batch(&[(1, "x", 10), (2, "y", 20), (3, "z", 30)])];
    let others = vec![batch(&[(10, "x", 1), (20, "y", 2)])];
    Bench::new().source("p", schema(), pairs).source("q", schema(), others)
}

#[tokio::test]
async fn columns_of_one_name_in_a_subquery_are_refused_where_they_would_be_mixed_up() {
    let pairs = "SELECT p.id, q.id AS other FROM <SRC:p> p JOIN <SRC:q> q ON p.name = q.name";
    let mixed = format!(
        "{pairs} WHERE NOT EXISTS (SELECT 1 FROM <SRC:p> a JOIN <SRC:q> b ON a.name = b.name \
         WHERE a.id = p.id AND b.id = q.id)"
    );
    let refused = bench().refusal(&mixed).await;
    assert!(refused.contains("`a.id` and `b.id`") && refused.contains("another name"), "{refused}");
    let named = format!(
        "{pairs} WHERE NOT EXISTS (SELECT 1 FROM (SELECT a.id AS a_id, b.id AS b_id FROM <SRC:p> a JOIN <SRC:q> b \
         ON a.name = b.name WHERE a.id > 1) s WHERE s.a_id = p.id AND s.b_id = q.id)"
    );
    assert_eq!(bench().rows(&named).await, ["1|10"]);
}

#[tokio::test]
async fn a_subquery_may_compare_several_columns_of_one_relation_or_one_of_each() {
    let query = "SELECT p.id, p.amount FROM <SRC:p> p WHERE EXISTS \
                 (SELECT 1 FROM <SRC:q> q WHERE q.id = p.amount AND q.amount = p.id)";
    assert_eq!(bench().rows(query).await, ["1|10", "2|20"]);
    let query = "SELECT p.id FROM <SRC:p> p WHERE p.amount IN (SELECT q.id FROM <SRC:q> q WHERE q.name = p.name)";
    assert_eq!(bench().rows(query).await, ["1", "2"]);
}
