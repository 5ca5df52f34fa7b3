// SPDX-License-Identifier: Apache-2.0
//! Steps of a merge that are written in Rust.

mod stacked;

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, SchemaRef};
use futures::StreamExt;
use serde_json::{Value, json};
use tributary_api::transform::{Input, InputSchema, MultiTransform, TransformError, Transforms};
use tributary_api::{RowError, RowStream};
use tributary_hudi::SystemStores;
use tributary_server::embedded::{Embedded, Settings, embed};
use tributary_server::roles::Parts;
use tributary_store::MemoryStore;
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, SystemClock, SystemEntropy};

use crate::support::{Lake, assert_sound, pipeline, roles, rows, run, spread, value_table, values};

/// Refuses a value that is negative; delivers another schema than it announces where one is 99.
struct Checked;

impl MultiTransform for Checked {
    fn schema(&self, inputs: &[InputSchema]) -> Result<SchemaRef, TransformError> {
        Ok(Arc::clone(&inputs[0].schema))
    }

    fn apply(&self, mut inputs: Vec<Input>) -> Result<RowStream, TransformError> {
        let rows = inputs.remove(0).rows.map(|batch| {
            let batch = batch?;
            let values = batch["value"].as_primitive::<Int64Type>();
            if values.iter().flatten().any(|value| value < 0) {
                return Err(RowError::new(TransformError::new("a value is negative")));
            }
            match values.iter().flatten().any(|value| value == 99) {
                true => Ok(batch.project(&[0]).unwrap()),
                false => Ok(batch),
            }
        });
        Ok(rows.boxed())
    }
}

fn transforms() -> Transforms {
    stacked::transforms().unwrap().register("checked", Arc::new(Checked)).unwrap()
}

fn parts() -> Parts {
    Parts {
        stores: Arc::new(SystemStores::new()),
        store: Arc::new(MemoryStore::default()),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy),
    }
}

fn with_steps() -> Embedded {
    let Parts { stores, store, clock, entropy } = parts();
    embed(stores, store, clock, entropy, Settings { transforms: transforms(), ..Settings::default() })
}

async fn lake() -> Lake {
    let (lake, roles) = (Lake::new(), roles());
    for (name, first) in [("a", 0), ("b", 10)] {
        let table = value_table(&roles, &lake.path(name)).await;
        table.upsert(vec![values((first..first + 2).map(|n| (format!("{name}{n}"), n)))]).await.unwrap();
    }
    lake
}

fn job(lake: &Lake, transforms: Value) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "b", "path": lake.path("b"), "start": "snapshot"},
                   {"name": "a", "path": lake.path("a"), "start": "snapshot"}],
        "transform": transforms,
        "target": {"path": lake.path("out"), "table_name": "out", "record_key": ["id"]},
    }))
}

async fn check(roles: &Embedded, lake: &Lake) {
    let sql = "SELECT id, value * 2 AS value, input FROM <SRC> WHERE value <> 1";
    let batch = run(roles, &job(lake, json!([{"rust": "stacked"}, {"sql": sql}, {"rust": "checked"}])), "r1").await;
    assert_eq!(batch.outcome, Some(Outcome::Committed), "{:?}", batch.error);
    let expected = [
        "{\"id\":\"a0\",\"value\":0,\"input\":1}",
        "{\"id\":\"b10\",\"value\":20,\"input\":0}",
        "{\"id\":\"b11\",\"value\":22,\"input\":0}",
    ];
    assert_eq!(rows(roles, &lake.path("out")).await, expected);
    assert_eq!(batch.sources.iter().map(|source| source.rows).collect::<Vec<_>>(), [2, 2]);
    assert_sound(&lake.path("out"), "p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_step_gets_every_source_in_order_and_a_later_one_the_result_before() {
    check(&with_steps(), &lake().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_run_where_the_merge_role_runs() {
    check(&spread(parts(), Settings { transforms: transforms(), ..Settings::default() }), &lake().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_not_there_is_refused_with_those_that_are_before_anything_is_read() {
    let (lake, roles) = (lake().await, with_steps());
    let refused = run(&roles, &job(&lake, json!([{"rust": "stackd"}])), "r1").await;
    let error = refused.error.unwrap();
    assert_eq!((refused.outcome, error.reason.as_str()), (Some(Outcome::Rejected), "SQL_INVALID"), "{error:?}");
    assert!(error.message.contains("`stackd`") && error.message.contains("`checked`, `stacked`"), "{}", error.message);
    let planned = roles.coordinator.plan_batch(job(&lake, json!([{"rust": "stacked"}])), Vec::new()).await.unwrap();
    let columns: Vec<&str> = planned.columns.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(columns, ["id", "value", "input"]);
    assert!(planned.physical_plan.contains("TransformExec: stacked, inputs=[b, a]"), "{}", planned.physical_plan);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_step_refuses_ends_the_batch_with_its_words() {
    let (lake, roles) = (lake().await, with_steps());
    let sql = |select: &str| json!([{"sql": format!("SELECT id, {select} FROM <SRC:a> UNION ALL SELECT id, {select} FROM <SRC:b>")}, {"rust": "checked"}]);
    let failed = run(&roles, &job(&lake, sql("value - 1 AS value")), "r1").await.error.unwrap();
    assert_eq!(failed.reason, "TRANSFORM_FAILED", "{failed:?}");
    assert!(failed.message.contains("a value is negative"), "{failed:?}");
    let failed = run(&roles, &job(&lake, sql("CAST(99 AS BIGINT) AS value")), "r2").await.error.unwrap();
    assert!(
        failed.message.contains("it announced the columns id Utf8, value Int64 and delivers id Utf8"),
        "{failed:?}"
    );
    let other = job(&lake, json!([{"sql": "SELECT a.id FROM <SRC:a> a, <SRC:b> b"}, {"rust": "stacked"}]));
    let failed = run(&roles, &other, "r3").await.error.unwrap();
    assert!(
        failed.message.contains("step 2") && failed.message.contains("input `SRC` has no column `value`"),
        "{failed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_that_are_reordered_under_a_first_step_in_rust_are_refused() {
    let (lake, roles) = (lake().await, with_steps());
    let first = job(&lake, json!([{"rust": "stacked"}]));
    assert_eq!(run(&roles, &first, "r1").await.outcome, Some(Outcome::Committed));
    let mut swapped = first.clone();
    swapped.sources.reverse();
    assert_eq!(run(&roles, &swapped, "r2").await.error.unwrap().reason, "BINDING_CHANGED");
}

#[test]
fn the_page_about_steps_shows_the_step_that_these_tests_run() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../docs/rust-steps.md")).unwrap();
    let step = std::fs::read_to_string(root.join("it/rust_steps/stacked.rs")).unwrap();
    let step = step.strip_prefix("// SPDX-License-Identifier: Apache-2.0\n").unwrap();
    assert!(page.contains(&format!("```rust\n{step}```")), "docs/rust-steps.md does not show:\n{step}");
}
