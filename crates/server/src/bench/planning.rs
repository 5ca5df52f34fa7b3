// SPDX-License-Identifier: Apache-2.0
//! What planning costs on a long timeline of wide commits, as a ratio to listing that timeline, and what the second plan
//! costs beside the first.

use std::path::Path;
use std::time::Instant;

use tributary_api::timeline::{Begin, PlanRequest, SourcePlan};
use tributary_hudi::TableConfig;
use tributary_hudi::target::{NewTable, create_table};
use tributary_hudi::{
    Action, CommitMetadata, Stores, SystemStores, Timeline, WriteStat, completed_path, inflight_path, requested_path,
};
use tributary_types::pipeline::TableType;
use tributary_types::{Cursor, InstantTime, SourceName, Zone};

use super::Ratio;
use super::source::BuildError;
use crate::embedded::Embedded;

const TIMELINE: &str = ".hoodie/timeline";
const SCHEMA: &str = r#"{"type":"record","name":"r","fields":[{"name":"id","type":["null","string"],"default":null}]}"#;
/// Commits of one window.
const WINDOW: usize = 5;
/// Windows that are planned one after the other.
const WINDOWS: i64 = 2;

/// How long the timeline is.
#[derive(Debug, Clone)]
pub struct Planning {
    /// Commits on it.
    pub instants: i64,
    /// Files that each commit wrote.
    pub files: i64,
    /// Counted pairs of runs.
    pub runs: usize,
}

fn requested(number: i64) -> InstantTime {
    InstantTime::from_epoch_millis(1_700_000_000_000 + number * 1000, Zone::Utc)
}

fn completed(number: i64) -> InstantTime {
    InstantTime::from_epoch_millis(1_700_000_000_500 + number * 1000, Zone::Utc)
}

/// What a commit says of itself: each of its files is a group of its own.
fn metadata(number: i64, files: i64) -> Result<CommitMetadata, BuildError> {
    let stat = |file: i64| WriteStat {
        file_id: format!("f{number}-{file}"),
        path: format!("f{number}-{file}_0-0-0_{}.parquet", requested(number)),
        rows: 1,
        bytes: 1,
        ..WriteStat::default()
    };
    let stats = (0..files).map(stat).collect();
    let mut metadata = CommitMetadata { operation: "UPSERT".to_string(), stats, ..CommitMetadata::default() };
    metadata.extra.insert("schema".to_string(), SCHEMA.to_string());
    Ok(metadata)
}

/// A table of that many commits. The data files of the windows that are planned are there, and of no others.
async fn make(directory: &Path, plan: &Planning) -> Result<String, BuildError> {
    let url = directory.join("many").display().to_string();
    let storage = SystemStores::new().open(&url)?;
    let table = NewTable {
        name: "many".to_string(),
        table_type: TableType::CopyOnWrite,
        version: 9,
        record_key: vec!["id".to_string()],
        partition_by: Vec::new(),
        ordering: Vec::new(),
        hive_style: true,
        url_encode: false,
    };
    create_table(&storage, &table, &requested(-1)).await?;
    let first = plan.instants - WINDOWS * WINDOW as i64 - 1;
    for number in 0..plan.instants {
        let at = requested(number);
        let metadata = metadata(number, plan.files)?;
        storage.put(&requested_path(TIMELINE, &at, Action::Commit), Vec::new()).await?;
        storage.put(&inflight_path(TIMELINE, &at, Action::Commit), Vec::new()).await?;
        let path = completed_path(TIMELINE, &at, &completed(number), Action::Commit);
        storage.put(&path, metadata.encode()?).await?;
        for stat in metadata.stats.iter().filter(|_| number > first) {
            storage.put(&stat.path, b"x".to_vec()).await?;
        }
    }
    Ok(url)
}

async fn plan_after(roles: &Embedded, url: &str, begin: Cursor) -> Result<SourcePlan, BuildError> {
    let request = PlanRequest::window(SourceName::new("many")?, url, Begin::After(begin));
    let request = PlanRequest { num_instants: WINDOW, look_only: true, ..request };
    Ok(roles.timeline.plan(request).await?)
}

async fn list(url: &str) -> Result<usize, BuildError> {
    let storage = SystemStores::new().open(url)?;
    let config = TableConfig::load(&storage).await?;
    Ok(Timeline::load(&storage, &config).await?.instants().len())
}

/// Measures the first plan and the next one, each beside a listing of the same timeline. `roles` makes fresh ones, that
/// remember nothing.
pub async fn run(
    roles: impl Fn() -> Result<Embedded, BuildError>,
    directory: &Path,
    plan: &Planning,
) -> Result<Vec<Ratio>, BuildError> {
    let url = make(directory, plan).await?;
    let begin = Cursor::Completed(completed(plan.instants - WINDOWS * WINDOW as i64 - 1));
    let against = "listing the same timeline";
    let mut first_ratio = Ratio::new("first plan", against, 3.0);
    let mut next_ratio = Ratio::new("next plan", against, 3.0);
    for run in 0..=plan.runs {
        let roles = roles()?;
        let began = Instant::now();
        let first = plan_after(&roles, &url, begin.clone()).await?;
        let first_took = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let next = plan_after(&roles, &url, first.end.clone()).await?;
        let next_took = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let listed = list(&url).await?;
        let list_took = began.elapsed().as_secs_f64();
        let planned = (first.instants.len(), next.instants.len(), listed as i64);
        if planned != (WINDOW, WINDOW, plan.instants) {
            return Err(format!("commits planned, planned next and listed: {planned:?}").into());
        }
        if run > 0 {
            first_ratio.add(first_took, list_took);
            next_ratio.add(next_took, list_took);
        }
    }
    Ok(vec![first_ratio, next_ratio])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn planning_is_measured_on_windows_of_whole_commits() {
        let directory = tempfile::tempdir().unwrap();
        let plan = Planning { instants: 12, files: 3, runs: 1 };
        let fresh = || crate::commands::roles(None, Arc::new(SystemStores::new())).map_err(|e| e.message.into());
        let ratios = run(fresh, directory.path(), &plan).await.unwrap();
        let told: Vec<(&str, usize)> = ratios.iter().map(|ratio| (ratio.name, ratio.ratios.len())).collect();
        assert_eq!(told, [("first plan", 1), ("next plan", 1)]);
    }
}
