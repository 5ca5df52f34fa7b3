// SPDX-License-Identifier: Apache-2.0
//! `tributary table`: looking at a table.

use arrow::array::RecordBatch;
use futures::StreamExt;
use tributary_api::timeline::{PlanRequest, ReadRequest, Relation};
use tributary_hudi::{CommitMetadata, Stores, SystemStores, TableConfig, Timeline};
use tributary_types::SourceName;

use crate::cli::{Output, TableCommand};
use crate::commands::{Failed, roles};
use crate::embedded::Embedded;
use crate::output::{self, CommitLine, TableReport};

/// Runs the command; answers the exit code.
pub async fn table(command: TableCommand) -> Result<u8, Failed> {
    match command {
        TableCommand::Inspect { table, output } => inspect(&table, output).await,
        TableCommand::Read { table, columns, limit, meta_columns, output } => {
            read(&table, &columns, limit, meta_columns, output).await
        }
    }
}

async fn inspect(url: &str, output: Output) -> Result<u8, Failed> {
    let fail = |e: tributary_hudi::Error| Failed::new(&e, 1);
    let storage = SystemStores::new().open(url).map_err(fail)?;
    let config = TableConfig::load(&storage).await.map_err(fail)?;
    let timeline = Timeline::load(&storage, &config).await.map_err(fail)?;
    let mut commits = Vec::new();
    for instant in timeline.completed_writes() {
        let Some(path) = timeline.completed_path(instant) else { continue };
        let bytes = storage.read(&path).await.map_err(fail)?;
        let metadata = CommitMetadata::decode(&path, &bytes).map_err(fail)?;
        commits.push(CommitLine::new(timeline.layout(), instant, &metadata));
    }
    let pending = timeline.instants().iter().filter(|instant| instant.is_pending());
    let report = TableReport {
        url: url.to_string(),
        name: config.name.clone(),
        version: config.version,
        table_type: config.table_type.as_str().to_string(),
        record_key: config.record_key(),
        partition_by: config.partition_by(),
        ordering: config.ordering(),
        metadata_partitions: config.metadata_partitions(),
        pending: pending.map(|instant| format!("{} {}", instant.requested, instant.action.as_str())).collect(),
        commits,
    };
    output::print_table(&report, output);
    Ok(0)
}

async fn read(url: &str, columns: &[String], limit: usize, meta_columns: bool, output: Output) -> Result<u8, Failed> {
    let roles = roles(None)?;
    let relation = whole_table(&roles, url, meta_columns).await?;
    let projection = projection(&relation, columns)?;
    let rows = collect(&roles, &relation, projection, limit).await?;
    output::print_rows(&rows, output).map_err(|e| Failed::new(&e, 1))?;
    Ok(0)
}

async fn whole_table(roles: &Embedded, url: &str, meta_columns: bool) -> Result<Relation, Failed> {
    let source = SourceName::new("table").map_err(|e| Failed::new(&e, 2))?;
    let request = PlanRequest { meta_columns, ..PlanRequest::whole_table(source, url) };
    let plan = roles.timeline.plan(request).await.map_err(|e| Failed::new(&e, 1))?;
    plan.at_end.ok_or_else(|| Failed { message: format!("`{url}` has no rows yet"), exit_code: 1 })
}

fn projection(relation: &Relation, columns: &[String]) -> Result<Option<Vec<usize>>, Failed> {
    if columns.is_empty() {
        return Ok(None);
    }
    let find = |name: &String| {
        relation.schema.index_of(name).map_err(|_| {
            let names: Vec<&str> = relation.schema.fields().iter().map(|field| field.name().as_str()).collect();
            Failed { message: format!("there is no column `{name}`; there are: {}", names.join(", ")), exit_code: 2 }
        })
    };
    columns.iter().map(find).collect::<Result<Vec<_>, _>>().map(Some)
}

async fn collect(
    roles: &Embedded,
    relation: &Relation,
    projection: Option<Vec<usize>>,
    limit: usize,
) -> Result<Vec<RecordBatch>, Failed> {
    let mut found = Vec::new();
    let mut left = limit;
    for split in &relation.splits {
        let request = ReadRequest {
            split: split.clone(),
            schema: relation.schema.clone(),
            projection: projection.clone(),
            predicate: None,
            batch_rows: limit.clamp(1, 8192),
        };
        let mut rows = roles.timeline.read(request).await.map_err(|e| Failed::new(&e, 1))?;
        while left > 0 {
            let Some(batch) = rows.next().await else { break };
            let batch = batch.map_err(|e| Failed::new(&e, 1))?;
            let taken = batch.slice(0, batch.num_rows().min(left));
            left -= taken.num_rows();
            found.push(taken);
        }
        if left == 0 {
            break;
        }
    }
    Ok(found)
}
