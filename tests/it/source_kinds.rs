// SPDX-License-Identifier: Apache-2.0
//! What holds for sources of every kind alike.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field};
use serde_json::{Value, json};
use tributary_testkit::write_parquet;
use tributary_types::Outcome;
use tributary_types::pipeline::Pipeline;

use crate::support::{Lake, assert_sound, fixtures, open_value_table, pipeline, roles, rows, run, value_table, values};

fn job(lake: &Lake, source: Value, sql: Option<&str>, key: &str) -> Pipeline {
    let steps: Vec<Value> = sql.iter().map(|sql| json!({"sql": sql})).collect();
    let name = source["name"].as_str().unwrap().to_string();
    pipeline(json!({
        "name": name, "source": [source], "transform": steps,
        "target": {"path": lake.path(&format!("out_{name}_{}", sql.is_some())), "table_name": "out", "record_key": [key]},
    }))
}

/// Change events as a connector for databases writes them: names with underscores in front, a nested image.
fn events() -> RecordBatch {
    let ids: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let sequence: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let image: ArrayRef = Arc::new(StructArray::from(vec![
        (Arc::new(Field::new("id", DataType::Utf8, true)), Arc::clone(&ids)),
        (Arc::new(Field::new("__deleted", DataType::Utf8, true)), Arc::clone(&ids)),
    ]));
    let columns = [("id", ids), ("_change_operation_type", image), ("_event_seq", sequence)];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn selecting_everything_gives_what_no_sql_gives_for_every_kind_of_source() {
    let lake = Lake::new();
    for name in ["csv", "json", "parquet"] {
        std::fs::create_dir(lake.path(name)).unwrap();
    }
    let put = |path: &str, text: &str| std::fs::write(lake.dir().join(path), text).unwrap();
    put("csv/1.csv", "id,_change_operation_type,_event_seq\na,c,1\nb,u,2\n");
    let event =
        |id: &str| format!("{{\"id\":\"{id}\",\"_op\":{{\"id\":\"{id}\",\"__deleted\":false}},\"_event_seq\":1}}\n");
    put("json/1.json", &(event("a") + &event("b")));
    write_parquet(&lake.dir().join("parquet/1.parquet"), &events());
    let table = value_table(&roles(), &lake.path("table")).await;
    table.upsert(vec![values([("a".to_string(), 1), ("b".to_string(), 2)])]).await.unwrap();
    let tables = ["cow_v9_updates", "cow_v6_updates", "mor_v9_compaction", "mor_v6_compaction"];
    for name in tables {
        tributary_testkit::unpack_zip(&fixtures().join(format!("tables/{name}.zip")), lake.dir());
    }
    let mut sources = vec![
        json!({"name": "csv", "kind": "csv", "path": lake.path("csv"), "start": "earliest", "csv": {"header": true}}),
        json!({"name": "json", "kind": "json", "path": lake.path("json"), "start": "earliest"}),
        json!({"name": "parquet", "kind": "parquet", "path": lake.path("parquet"), "start": "earliest"}),
        json!({"name": "table", "path": lake.path("table"), "start": "snapshot"}),
    ];
    sources.extend(tables.map(|name| json!({"name": name, "path": lake.path(name), "start": "snapshot"})));
    for source in sources {
        let mut found = Vec::new();
        for sql in [None, Some("SELECT * FROM <SRC>")] {
            let job = job(&lake, source.clone(), sql, "id");
            let ended = run(&roles(), &job, "r1").await;
            assert_eq!(ended.outcome, Some(Outcome::Committed), "{source}: {:?}", ended.error);
            assert_eq!(run(&roles(), &job, "r2").await.outcome, Some(Outcome::NoNewData), "{source}");
            found.push(rows(&roles(), &job.target.path).await);
        }
        assert!(!found[0].is_empty(), "{source}");
        assert_eq!(found[0], found[1], "{source}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_upserted_unchanged_comes_again_and_leaves_the_target_as_it_was() {
    let lake = Lake::new();
    let table = value_table(&roles(), &lake.path("src")).await;
    table.upsert(vec![values([("a".to_string(), 1), ("b".to_string(), 2)])]).await.unwrap();
    let job = job(&lake, json!({"name": "src", "path": lake.path("src"), "start": "snapshot"}), None, "id");
    assert_eq!(run(&roles(), &job, "r1").await.outcome, Some(Outcome::Committed));
    let before = rows(&roles(), &job.target.path).await;
    let table = open_value_table(&roles(), &lake.path("src")).await;
    table.upsert(vec![values([("a".to_string(), 1)])]).await.unwrap();
    let again = run(&roles(), &job, "r2").await;
    assert_eq!((again.outcome, again.sources[0].rows), (Some(Outcome::Committed), 1), "{:?}", again.error);
    assert_eq!(rows(&roles(), &job.target.path).await, before);
    assert_sound(&job.target.path, "src").await;
}
