// SPDX-License-Identifier: Apache-2.0
//! What the commands say where something is wrong or missing: once, and with what to do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Builder, MapBuilder, RecordBatch, StringArray, StringBuilder};
use serde_json::{Value, json};
use tributary_hudi::SystemStores;
use tributary_server::bench::source::SourceTable;
use tributary_types::SystemClock;

use crate::process::{Process, tributary};
use crate::support::{Lake, roles, run, value_table, values};

/// No part of a message between two colons may stand in a later one.
fn assert_says_nothing_twice(message: &str) {
    let parts = message.trim().split(": ").map(str::trim);
    // Shorter ones are words.
    let parts: Vec<&str> = parts.filter(|part| part.len() > 12).collect();
    for (number, part) in parts.iter().enumerate() {
        let again = parts[number + 1..].iter().any(|other| other.contains(part));
        assert!(!again, "`{part}` is said twice in: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_a_file_or_may_not_be_read_is_said_once() {
    let lake = Lake::new();
    fs::write(lake.dir().join("file"), b"x").unwrap();
    let table = value_table(&roles(), &lake.path("closed")).await;
    table.upsert(vec![values([("k".to_string(), 1)])]).await.unwrap();
    let closed = lake.dir().join("closed/.hoodie");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let is_root = fs::read_dir(&closed).is_ok();
    for (name, part) in [("file", "file"), ("closed", "ermission denied")] {
        if name == "closed" && is_root {
            // Nothing is forbidden to root.
            continue;
        }
        for command in ["inspect", "read"] {
            let look = tributary(&["table", command, &lake.path(name)]);
            assert_eq!(look.code, 1, "{look:?}");
            assert!(look.stderr.contains(&lake.path(name)) && look.stderr.contains(part), "{look:?}");
            assert_says_nothing_twice(&look.stderr);
        }
        let pipeline = crate::support::pipeline(json!({
            "name": "p",
            "source": [{"name": "src", "path": lake.path(name), "start": "snapshot"}],
            "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
        }));
        let ended = run(&roles(), &pipeline, name).await;
        assert_says_nothing_twice(&ended.error.unwrap().message);
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    // A target below a file.
    let lake = Lake::demo(1);
    fs::write(lake.dir().join("blocked"), b"").unwrap();
    let mut pipeline = crate::support::enriched(&lake);
    pipeline.target.path = lake.path("blocked/out");
    let message = run(&roles(), &pipeline, "r").await.error.unwrap().message;
    assert!(message.contains("blocked/out"), "{message}");
    assert_says_nothing_twice(&message);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_of_batches_says_so() {
    let server = Process::start(&[]);
    let all = tributary(&["batches", "list", "--server", &server.url]);
    assert_eq!((all.code, all.stdout.as_str()), (0, ""), "{all:?}");
    assert!(all.stderr.contains(&format!("no batches at {} yet", server.url)), "{all:?}");
    let one = tributary(&["batches", "list", "--server", &server.url, "--pipeline", "p", "--output", "json"]);
    assert_eq!((one.code, one.stdout.as_str()), (0, ""), "{one:?}");
    assert!(one.stderr.contains("no batches of pipeline `p`"), "{one:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_as_json_keep_nulls_in_maps_and_numbers_that_json_does_not_know() {
    let lake = Lake::new();
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    map.keys().append_value("there");
    map.values().append_value(1);
    map.keys().append_value("gone");
    map.values().append_null();
    map.append(true).unwrap();
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(StringArray::from(vec!["k"]))),
        ("number", Arc::new(Float64Array::from(vec![f64::NAN]))),
        ("tags", Arc::new(map.finish())),
    ];
    let rows = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let (stores, url) = (SystemStores::new(), lake.path("t"));
    let made = SourceTable::create(&stores, roles().writer, Arc::new(SystemClock), &url, "id", rows.schema()).await;
    made.unwrap().upsert(vec![rows]).await.unwrap();
    let read = tributary(&["table", "read", &lake.path("t"), "--output", "json"]);
    assert_eq!(read.code, 0, "{read:?}");
    let row: Value = serde_json::from_str(read.stdout.trim()).unwrap();
    assert_eq!(row, json!({"id": "k", "number": "NaN", "tags": {"there": 1, "gone": null}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn advice_about_limits_of_sql_can_be_followed() {
    let lake = Lake::demo(1);
    let levels = 70;
    let deep = format!(
        "SELECT order_id, {}0{} AS n FROM <SRC:orders>",
        "CASE WHEN amount > 1 THEN ".repeat(levels),
        " END".repeat(levels)
    );
    let brackets = format!("SELECT order_id, {}0{} AS n FROM <SRC:orders>", "(".repeat(levels), ")".repeat(levels));
    let chain = format!("SELECT order_id, {} AS n FROM <SRC:orders>", vec!["1"; 400].join(" + "));
    let long = format!("SELECT order_id, '{}' AS n FROM <SRC:orders>", "x".repeat(2 << 20));
    let many = format!("SELECT {} FROM <SRC:orders>", vec!["1"; 30_000].join(", "));
    for (sql, part) in [
        (deep, "50 levels"),
        (brackets, "50 levels"),
        (chain, "more than 250 links"),
        (long, "bytes"),
        (many, "words and signs"),
    ] {
        let pipeline = crate::support::pipeline(json!({
            "name": "p",
            "source": [{"name": "orders", "path": lake.path("orders"), "start": "snapshot"}],
            "transform": [{"sql": sql}],
            "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["order_id"]},
        }));
        let error = run(&roles(), &pipeline, "r").await.error.unwrap();
        assert!(error.message.contains(part), "{part}: {}", error.message);
        assert!(!error.message.contains("merge."), "no file can set that: {}", error.message);
    }
}

#[test]
fn looking_at_what_is_no_table_names_the_path_and_no_source() {
    let lake = Lake::new();
    for command in ["inspect", "read"] {
        let look = tributary(&["table", command, &lake.path("nothing")]);
        assert_eq!(look.code, 1, "{look:?}");
        assert!(look.stderr.contains(&format!("no Hudi table at `{}`", lake.path("nothing"))), "{look:?}");
        assert!(!look.stderr.contains("source"), "{look:?}");
    }
}

#[test]
fn a_glob_that_fits_no_file_is_told_by_plan_and_run() {
    let lake = Lake::new();
    fs::create_dir(lake.path("clicks")).unwrap();
    fs::write(lake.dir().join("clicks/1.csv"), "id\n1\n").unwrap();
    let schema = r#"{"type":"record","name":"r","fields":[{"name":"id","type":["null","string"]}]}"#;
    fs::write(lake.dir().join("schema.json"), schema).unwrap();
    let text = "name = \"p\"\n[[source]]\nname = \"clicks\"\nkind = \"csv\"\npath = \"clicks\"\nstart = \"earliest\"\n\
                files = {glob = \"*.tsv\"SCHEMA}\n[target]\npath = \"out\"\ntable_name = \"out\"\nrecord_key = [\"id\"]\n";
    let file = lake.dir().join("p.toml");
    let path = file.display().to_string();
    for (schema, code) in [(", schema_file = \"schema.json\"", 0), ("", 2)] {
        fs::write(&file, text.replace("SCHEMA", schema)).unwrap();
        for command in ["plan", "run"] {
            let said = tributary(&[command, "--pipeline", &path]);
            assert_eq!(said.code, code, "{command}: {said:?}");
            let all = format!("{}{}", said.stdout, said.stderr);
            assert!(
                all.contains("one file is there, `1.csv` for one, and none fits `files.glob = \"*.tsv\"`"),
                "{said:?}"
            );
        }
    }
}
