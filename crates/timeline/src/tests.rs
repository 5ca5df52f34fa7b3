// SPDX-License-Identifier: Apache-2.0
//! Real tables, written by Spark, against what Spark reads in them.

mod costs;
mod deletes;
mod gaps;
mod housekeeping;
mod json;
mod left_out;
mod merge_on_read;
mod merge_on_read_v6;
mod oracle;
mod rewrites;
mod tables;
mod version_six;

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use serde_json::Value;
use tributary_api::timeline::{Begin, Deleted, Error, PlanRequest, ReadRequest, Relation, SourcePlan, Timeline, Views};
use tributary_hudi::SystemStores;
use tributary_types::pipeline::{OnHole, OnLate, OnStale};
use tributary_types::{Clock, Cursor, MemoryBudget, SourceName};

use crate::{Service, Settings};

/// 2027-01-15, after every instant in the fixtures.
const NOW_MILLIS: i64 = 1_800_000_000_000;

struct FixedClock;

impl Clock for FixedClock {
    fn now_millis(&self) -> i64 {
        NOW_MILLIS
    }
}

fn service() -> Service {
    Service::new(Arc::new(SystemStores::new()), Arc::new(FixedClock), Settings::default())
}

fn request(url: &str, begin: Begin) -> PlanRequest {
    PlanRequest {
        source: SourceName::new("s").unwrap(),
        url: url.to_string(),
        begin,
        lookup: false,
        num_instants: 5,
        ceiling_millis: None,
        pinned_end: None,
        by_hand: false,
        fingerprint: None,
        recent: Vec::new(),
        on_late: OnLate::Fail,
        on_stale: OnStale::Fail,
        on_hole: OnHole::Block,
        views: Views { changed: true, end: false, begin: false },
        meta_columns: true,
        deletes: false,
        look_only: false,
        fallback_schema: None,
        files: None,
    }
}

fn resume(plan: &SourcePlan, num_instants: usize) -> PlanRequest {
    PlanRequest {
        num_instants,
        fingerprint: Some(plan.table.fingerprint.clone()),
        recent: plan.recent.clone(),
        ..request(&plan.table.url, Begin::After(plan.end.clone()))
    }
}

fn completed(instant: &str) -> Cursor {
    format!("completed:{instant}").parse().unwrap()
}

fn requested(instant: &str) -> Cursor {
    format!("requested:{instant}").parse().unwrap()
}

async fn batches(service: &Service, relation: &Relation) -> Result<Vec<RecordBatch>, String> {
    let mut found = Vec::new();
    for split in &relation.splits {
        let read = ReadRequest {
            split: split.clone(),
            schema: Arc::clone(&relation.schema),
            projection: None,
            predicate: None,
            batch_rows: 1000,
            memory: MemoryBudget::new(64 << 20),
        };
        let stream = service.read(read).await.map_err(|e| e.to_string())?;
        let read: Vec<RecordBatch> = stream.try_collect().await.map_err(|e| e.to_string())?;
        assert!(read.iter().all(|batch| batch.schema() == relation.schema), "{}", split.path);
        found.extend(read);
    }
    Ok(found)
}

/// Rows of a relation, sorted.
async fn rows(service: &Service, relation: Option<&Relation>) -> Vec<Value> {
    let batches = batches(service, relation.unwrap()).await.unwrap();
    json::sorted(batches.iter().flat_map(json::rows).collect())
}

/// Values of a column, as text, sorted.
async fn column(service: &Service, relation: Option<&Relation>, name: &str) -> Vec<String> {
    let mut values: Vec<String> = rows(service, relation).await.iter().map(|row| json::text(&row[name])).collect();
    values.sort();
    values
}

/// Takes the metadata table away from a table, so that its directories are listed.
fn drop_metadata_table(table: &Path) {
    let file = table.join(".hoodie/hoodie.properties");
    let text = std::fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("hoodie.table.metadata.partitions")).collect();
    std::fs::write(file, kept.join("\n")).unwrap();
    let _ = std::fs::remove_dir_all(table.join(".hoodie/metadata"));
}

fn set_property(table: &Path, line: &str) {
    let file = table.join(".hoodie/hoodie.properties");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, format!("{text}\n{line}\n")).unwrap();
}

fn failure(result: Result<SourcePlan, Error>) -> Error {
    match result {
        Ok(plan) => panic!("planned {:?} to {}", plan.begin, plan.end),
        Err(error) => error,
    }
}
