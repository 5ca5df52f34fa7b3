// SPDX-License-Identifier: Apache-2.0
//! What is refused or reported before anything is read.

use tributary_api::timeline::Views;
use tributary_types::{Code, Fault};

use super::super::*;
use crate::fixtures::{Bench, batch, schema};

fn bench() -> Bench {
    let rows = || vec![batch(&[(1, "a", 10)])];
    Bench::new().source("db.orders", schema(), rows()).source("users", schema(), rows())
}

fn names(names: &[&str]) -> Vec<SourceName> {
    names.iter().map(|name| SourceName::new(*name).unwrap()).collect()
}

#[tokio::test]
async fn binding_reports_what_each_source_is_named_for() {
    let service = bench().service();
    let sql = "CREATE TEMP VIEW v AS SELECT * FROM <SRC:a>; SELECT v.* FROM v JOIN <SNAP:b> b ON v.id = b.id";
    let bound = service.bind(Some(sql.to_string()), names(&["a", "b", "c"])).await.unwrap();
    assert_eq!(bound[0].views, Views { changed: true, end: false, begin: false });
    assert_eq!(bound[1].views, Views { changed: false, end: true, begin: false });
    assert_eq!(bound[2].views, Views::default());
    assert!(bound.iter().all(|bound| !bound.by_position));
    let positional = service.bind(Some("SELECT * FROM <SRC_1>".to_string()), names(&["a", "b"])).await.unwrap();
    assert!(positional[1].by_position && !positional[0].by_position);
}

#[tokio::test]
async fn without_sql_one_source_passes_through_and_several_are_refused() {
    let service = bench().service();
    let bound = service.bind(None, names(&["a"])).await.unwrap();
    assert!(bound[0].views.changed && !bound[0].by_position);
    let refused = service.bind(None, names(&["a", "b"])).await.unwrap_err();
    assert!(refused.to_string().contains("2 sources"), "{refused}");
    assert_eq!(refused.code(), Code::Invalid);
}

#[tokio::test]
async fn binding_refuses_unknown_placeholders_and_foreign_statements() {
    let service = bench().service();
    let unknown = service.bind(Some("SELECT * FROM <SRC:usres>".to_string()), names(&["users"])).await.unwrap_err();
    assert!(matches!(unknown, Error::Placeholder { line: 1, column: 15, .. }), "{unknown:?}");
    assert!(unknown.to_string().contains("did you mean `<SRC:users>`?"), "{unknown}");
    let foreign = service.bind(Some("DROP TABLE <SRC>".to_string()), names(&["users"])).await.unwrap_err();
    assert!(foreign.to_string().contains("begins with `DROP`"), "{foreign}");
}

#[tokio::test]
async fn an_unknown_column_has_its_place_and_a_suggestion() {
    let refusal = bench().refusal("SELECT o.id,\n       o.nmae\nFROM <SRC:db.orders> o").await;
    assert!(refusal.starts_with("SQL at line 2, column 8:"), "{refusal}");
    assert!(refusal.contains("`o.nmae` does not exist; did you mean `o.name`?"), "{refusal}");
    assert!(refusal.contains("There are: o.id, o.name, o.amount"), "{refusal}");
    let unqualified = bench().refusal("SELECT amuont FROM <SRC:db.orders>").await;
    assert!(unqualified.contains("did you mean `<SRC:db.orders>.amount`?"), "{unqualified}");
    let hopeless = bench().refusal("SELECT zzzzzz FROM <SRC:db.orders>").await;
    assert!(hopeless.contains("`zzzzzz` does not exist. There are"), "{hopeless}");
}

#[tokio::test]
async fn an_ambiguous_column_lists_the_candidates() {
    let refusal = bench().refusal("SELECT id FROM <SRC:db.orders> o JOIN <SRC:users> u ON o.id = u.id").await;
    assert!(refusal.starts_with("SQL at line 1, column 8:"), "{refusal}");
    assert!(refusal.contains("`id` is ambiguous") && refusal.contains("o.id") && refusal.contains("u.id"), "{refusal}");
}

#[tokio::test]
async fn an_unknown_relation_has_its_place_and_a_suggestion() {
    let refusal = bench().refusal("SELECT * FROM\n <SRC:users> u JOIN userz z ON u.id = z.id").await;
    assert!(refusal.starts_with("SQL at line 2, column 21:"), "{refusal}");
    assert!(refusal.contains("no relation or view `userz`"), "{refusal}");
    assert!(refusal.contains("There are: <SRC:users>"), "{refusal}");
}

#[tokio::test]
async fn type_errors_are_refused_at_start_up() {
    let refusal = bench().refusal("SELECT id FROM <SRC:users> WHERE amount").await;
    assert!(refusal.starts_with("SQL"), "{refusal}");
}

#[tokio::test]
async fn the_output_has_stored_types_and_every_column_is_nullable() {
    let sql = "SELECT id, CAST(amount AS TINYINT) AS small, ROW_NUMBER() OVER (ORDER BY id) AS rn, \
               CAST('2024-01-01' AS TIMESTAMP) AS at, CAST('2024-01-01' AS TIMESTAMP_NTZ) AS wall, now() AS now, \
               CAST(1.5 AS DECIMAL(10, 2)) AS price, ARRAY(1, 2) AS list, named_struct('a', name) AS st \
               FROM <SRC:users>";
    let checked = bench().check(sql).await.unwrap();
    let shown: Vec<String> =
        checked.schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
    assert_eq!(
        shown,
        [
            "id Int64",
            "small Int32",
            "rn Int64",
            "at Timestamp(µs, \"UTC\")",
            "wall Timestamp(µs)",
            "now Timestamp(µs, \"UTC\")",
            "price Decimal128(10, 2)",
            "list List(Int64, field: 'element')",
            "st Struct(\"a\": Utf8)",
        ]
    );
    assert!(checked.schema.fields().iter().all(|field| field.is_nullable()));
}

#[tokio::test]
async fn names_that_cannot_be_stored_are_refused_with_what_to_do() {
    let bench = bench();
    assert!(bench.refusal("SELECT id, amount + 1 FROM <SRC>").await.contains("alias it"));
    assert!(bench.refusal("SELECT id, id AS ID2, name AS `my name` FROM <SRC>").await.contains("`my name`"));
    let join = bench.refusal("SELECT a.id, b.id FROM <SRC_0> a JOIN <SRC_1> b ON a.id = b.id").await;
    assert!(join.contains("two columns `id`"), "{join}");
    assert!(bench.refusal("SELECT id AS _hoodie_record_key FROM <SRC>").await.contains("reserved"));
    assert!(bench.check("SELECT id, true AS _hoodie_is_deleted FROM <SRC>").await.is_ok());
    assert!(bench.refusal("SELECT id, NULL AS nothing FROM <SRC>").await.contains("CAST(NULL AS STRING)"));
}

#[tokio::test]
async fn names_are_found_in_any_case_and_keep_theirs() {
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    let camel = Arc::new(Schema::new(vec![Field::new("orderId", DataType::Int64, true)]));
    let bench = Bench::new().source("s", camel, Vec::new());
    let checked = bench.check("SELECT ORDERID, T.orderid + 1 AS NextId FROM <SRC> t").await.unwrap();
    let names: Vec<&str> = checked.schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["orderId", "NextId"]);
    assert!(bench.check("SELECT `orderId` AS `x` FROM <SRC>").await.is_ok());
}

#[tokio::test]
async fn checking_gives_both_plans_and_reads_nothing() {
    let bench = bench();
    let checked = bench.check("SELECT id FROM <SRC:users> WHERE amount > 5").await.unwrap();
    assert!(checked.logical_plan.contains("TableScan: SRC:users"), "{}", checked.logical_plan);
    assert!(checked.physical_plan.contains("RelationExec: <SRC:users>"), "{}", checked.physical_plan);
    assert_eq!(bench.timeline.requests().len(), 0);
}
