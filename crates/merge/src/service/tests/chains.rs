// SPDX-License-Identifier: Apache-2.0
//! Steps that follow one another.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use tributary_api::merge::Step;

use crate::fixtures::{Bench, batch, schema};

fn sql(text: &str) -> Step {
    Step::Sql(text.to_string())
}

fn flatten(separator: &str) -> Step {
    Step::Flatten { separator: separator.to_string() }
}

fn orders(then: Vec<Step>) -> Bench {
    let rows = vec![batch(&[(1, "one", 10), (2, "two", 20), (3, "three", 30)])];
    let mut bench = Bench::new().source("orders", schema(), rows);
    bench.then = then;
    bench
}

const ORDERS: &str = "SELECT id, amount FROM <SRC:orders> WHERE id > 1";

#[tokio::test]
async fn each_step_works_on_the_result_of_the_one_before() {
    let bench = orders(vec![
        sql("CREATE TEMPORARY VIEW v AS SELECT id, amount * 2 AS amount FROM <SRC>; SELECT * FROM v WHERE AMOUNT > 40"),
        sql("SELECT s.id, s.amount + 1 AS amount FROM <SRC> s"),
    ]);
    assert_eq!(bench.rows(ORDERS).await, ["3|61"]);
}

#[tokio::test]
async fn only_the_first_step_names_sources_and_each_names_the_result_before_it() {
    let refused = orders(vec![sql("SELECT id FROM <SRC:orders>")]).refusal(ORDERS).await;
    assert!(refused.contains("`<SRC:orders>`") && refused.contains("only the first step names sources"), "{refused}");
    let refused = orders(vec![sql("SELECT 1 AS id")]).refusal(ORDERS).await;
    assert!(refused.contains("of step 2") && refused.contains("does not name `<SRC>`"), "{refused}");
    let view = "CREATE TEMP VIEW v AS SELECT id FROM <SRC:orders>; SELECT id FROM v";
    let refused = orders(vec![sql("SELECT id FROM <SRC> UNION ALL SELECT id FROM v")]).refusal(view).await;
    assert!(refused.contains("no relation or view `v`"), "views belong to their step: {refused}");
}

#[tokio::test]
async fn an_error_says_its_step_and_its_place_there() {
    let refused = orders(vec![flatten("_"), sql("SELECT id,\n  nope FROM <SRC>")]).refusal(ORDERS).await;
    assert!(refused.starts_with("SQL at line 2, column 3 of step 3") && refused.contains("nope"), "{refused}");
    let refused = orders(vec![sql("SELECT 1 FROM <SRC>; DROP TABLE t")]).refusal(ORDERS).await;
    assert!(refused.contains("of step 2"), "{refused}");
    let twice = "SELECT a.id, b.id FROM <SRC:orders> a JOIN <SRC:orders> b ON a.id = b.id";
    let refused = orders(vec![sql("SELECT * FROM <SRC>")]).refusal(twice).await;
    assert!(refused.contains("two columns `id`"), "{refused}");
}

/// `id`, and `address` as a struct of a city and a struct of coordinates; it is null for the second row, whose fields are
/// not.
fn nested() -> Bench {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["Bonn", "hidden", "Kiel"]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(50), Some(0), None]));
    let point_fields = Fields::from(vec![Field::new("lat", DataType::Int64, true)]);
    let point = StructArray::new(point_fields.clone(), vec![numbers], Some(NullBuffer::from(vec![true, true, false])));
    let fields = Fields::from(vec![
        Field::new("city", DataType::Utf8, true),
        Field::new("point", DataType::Struct(point_fields), true),
    ]);
    let nulls = NullBuffer::from(vec![true, false, true]);
    let address: ArrayRef = Arc::new(StructArray::new(fields, vec![texts, Arc::new(point)], Some(nulls)));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let columns = vec![("id", ids, true), ("address", address, true)];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    Bench::new().source("people", batch.schema(), vec![batch])
}

const PEOPLE: &str = "SELECT * FROM <SRC:people>";

#[tokio::test]
async fn structs_become_columns_at_every_depth_and_a_null_struct_has_null_fields() {
    let mut bench = nested();
    bench.then = vec![flatten("_")];
    let schema = bench.check(PEOPLE).await.unwrap().schema;
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["id", "address_city", "address_point_lat"]);
    assert_eq!(bench.rows(PEOPLE).await, ["1|Bonn|50", "2|null|null", "3|Kiel|null"]);
}

#[tokio::test]
async fn the_next_step_names_the_flattened_columns() {
    let mut bench = nested();
    bench.then = vec![flatten("__"), sql("SELECT id, address__city AS city FROM <SRC> WHERE address__point__lat = 50")];
    assert_eq!(bench.rows(PEOPLE).await, ["1|Bonn"]);
}

#[tokio::test]
async fn columns_that_would_have_one_name_are_refused_with_both_paths() {
    let mut bench = nested();
    bench.then = vec![flatten("_")];
    let refused = bench.refusal("SELECT id, address, 'x' AS address_city FROM <SRC:people>").await;
    for part in ["step 2", "`address.city`", "`address_city`", "flatten.separator"] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    bench.then = vec![flatten("__")];
    assert!(bench.check("SELECT id, address, 'x' AS address_city FROM <SRC:people>").await.is_ok());
}
