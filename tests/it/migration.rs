// SPDX-License-Identifier: Apache-2.0
//! Chains of steps, and jobs of Hudi Streamer run from their properties files.

use serde_json::json;
use tributary_types::Outcome;

use crate::process::tributary;
use crate::support::{Lake, checkpoints, open_value_table, pipeline, roles, rows, run, value_table, values};

#[tokio::test(flavor = "multi_thread")]
async fn nested_records_are_flattened_between_two_steps_of_sql() {
    let lake = Lake::new();
    std::fs::create_dir_all(lake.path("people")).unwrap();
    let put = |file: &str, text: &str| std::fs::write(lake.dir().join("people").join(file), text).unwrap();
    put("1.json", "{\"id\":\"x\",\"home\":{\"city\":\"Bonn\",\"geo\":{\"lat\":50}}}\n{\"id\":\"y\",\"home\":null}\n");
    let job = pipeline(json!({
        "name": "people",
        "source": [{"name": "people", "kind": "json", "path": lake.path("people"), "start": "earliest"}],
        "transform": [
            {"sql": "SELECT id, home FROM <SRC:people>"},
            {"flatten": {}},
            {"sql": "SELECT id, home_city AS city, home_geo_lat AS lat FROM <SRC>"},
        ],
        "target": {"path": lake.path("out"), "table_name": "people", "record_key": ["id"]},
    }));
    let first = run(&roles(), &job, "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    let found = rows(&roles(), &lake.path("out")).await;
    assert_eq!(found, ["{\"id\":\"x\",\"city\":\"Bonn\",\"lat\":50}", "{\"id\":\"y\"}"]);
    put("2.json", "{\"id\":\"y\",\"home\":{\"city\":\"Kiel\",\"geo\":null}}\n");
    let second = run(&roles(), &job, "r2").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    assert!(rows(&roles(), &lake.path("out")).await.contains(&"{\"id\":\"y\",\"city\":\"Kiel\"}".to_string()));
    let mut wrong = job.clone();
    wrong.transforms[2].sql = Some("SELECT id, home.city FROM <SRC>".to_string());
    let refused = run(&roles(), &wrong, "r3").await;
    let failure = refused.error.unwrap();
    assert_eq!(failure.reason, "SQL_INVALID");
    assert!(failure.message.contains("of step 3"), "{}", failure.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_java_job_over_two_tables_runs_from_its_properties_and_begins_with_the_newest_commits() {
    let lake = Lake::new();
    for table in ["orders", "users"] {
        let made = value_table(&roles(), &lake.path(table)).await;
        made.upsert(vec![values([(format!("{table}1"), 1)])]).await.unwrap();
        made.upsert(vec![values([(format!("{table}2"), 2)])]).await.unwrap();
    }
    let text = format!(
        "hoodie.deltastreamer.source.multi.hudi.tables=db.orders,users\n\
         hoodie.streamer.source.hudi.db_orders.path={0}\n\
         hoodie.streamer.source.hudi.users.path={1}\n\
         hoodie.streamer.transformer.sql.file=merge.sql\n\
         hoodie.datasource.write.recordkey.field=id\n\
         hoodie.index.type=BLOOM\n",
        lake.path("orders"),
        lake.path("users")
    );
    std::fs::write(lake.dir().join("job.properties"), text).unwrap();
    let sql = "SELECT id, value FROM <SRC_0> UNION ALL SELECT id, value FROM <SRC_1>;";
    std::fs::write(lake.dir().join("merge.sql"), sql).unwrap();
    let (props, out) = (lake.path("job.properties"), lake.path("out"));
    let job =
        ["run", "--props", &props, "--target-base-path", &out, "--target-table", "merged", "--op", "UPSERT", "--brief"];
    let first = tributary(&job);
    assert_eq!(first.code, 0, "{first:?}");
    assert!(first.stderr.contains("`hoodie.index.type` is not used by Tributary"), "{first:?}");
    assert_eq!(rows(&roles(), &out).await.len(), 2, "the newest commit of each table");
    let orders = open_value_table(&roles(), &lake.path("orders")).await;
    orders.upsert(vec![values([("orders3".to_string(), 3)])]).await.unwrap();
    assert_eq!(tributary(&job).code, 0);
    assert_eq!(rows(&roles(), &out).await.len(), 3);
    assert_eq!(checkpoints(&out, "merged").await.len(), 2);
    let refused = tributary(&[&job[..], &["--hoodie-conf", "hoodie.streamer.checkpoint.force.skip=true"]].concat());
    assert!(refused.code == 2 && refused.stderr.contains("force.skip"), "{refused:?}");
}
