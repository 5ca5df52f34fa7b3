// SPDX-License-Identifier: Apache-2.0
//! Merges.

use std::time::Duration;

use tributary_api::merge::{
    Bound, CheckRequest, Checked, ColumnOrigins, Deleted, MergeLimits, MergeRequest, MergeSource, Merged, QueryNames,
    QueryRequest, QueryTable, Step,
};
use tributary_api::{Progress, SourceRead, Stop};
use tributary_types::{MemoryBudget, SourceName};

use super::timeline::{optional_relation, source_name, views_from_proto, views_to_proto};
use super::{
    Malformed, count, json_from_proto, json_to_proto, relation_to_proto, required, schema_from_bytes, schema_to_bytes,
    stage_from_proto, stage_to_proto, staged_from_proto, staged_to_proto,
};
use crate::flight::{rows_from_bytes, rows_to_bytes};
use crate::proto::merge as proto;

/// What a source is bound to, for the wire.
pub fn bound_to_proto(bound: &Bound) -> proto::Bound {
    proto::Bound {
        source: bound.source.to_string(),
        views: Some(views_to_proto(bound.views)),
        by_position: bound.by_position,
    }
}

/// What a source is bound to, from the wire.
pub fn bound_from_proto(bound: proto::Bound) -> Result<Bound, Malformed> {
    Ok(Bound {
        source: source_name(bound.source)?,
        views: views_from_proto(bound.views),
        by_position: bound.by_position,
    })
}

/// A check for the wire.
pub fn check_to_proto(request: &CheckRequest) -> proto::CheckRequest {
    let sources = request.sources.iter();
    proto::CheckRequest {
        sql: request.sql.clone(),
        then: request.then.iter().map(step_to_proto).collect(),
        sources: sources
            .map(|(source, schema)| proto::SourceSchema { source: source.to_string(), schema: schema_to_bytes(schema) })
            .collect(),
        limits: Some(limits_to_proto(&request.limits)),
        deletes: request.deletes.iter().map(ToString::to_string).collect(),
    }
}

/// A check from the wire.
pub fn check_from_proto(request: proto::CheckRequest) -> Result<CheckRequest, Malformed> {
    let mut sources = Vec::with_capacity(request.sources.len());
    for source in request.sources {
        sources.push((source_name(source.source)?, schema_from_bytes(source.schema, "sources.schema")?));
    }
    Ok(CheckRequest {
        sql: request.sql,
        then: steps_from_proto(request.then)?,
        sources,
        deletes: request.deletes.into_iter().map(source_name).collect::<Result<_, _>>()?,
        limits: limits_from_proto(request.limits)?,
    })
}

/// A planned SQL for the wire.
pub fn checked_to_proto(checked: &Checked) -> proto::CheckResponse {
    proto::CheckResponse {
        schema: schema_to_bytes(&checked.schema),
        logical_plan: checked.logical_plan.clone(),
        physical_plan: checked.physical_plan.clone(),
        origins: checked.origins.iter().map(origins_to_proto).collect(),
    }
}

fn origins_to_proto(origins: &ColumnOrigins) -> proto::ColumnOrigins {
    let one = |(source, column): &(SourceName, String)| proto::ColumnOrigin {
        source: source.to_string(),
        column: column.clone(),
    };
    proto::ColumnOrigins { copied: origins.copied, columns: origins.columns.iter().map(one).collect() }
}

fn origins_from_proto(origins: proto::ColumnOrigins) -> Result<ColumnOrigins, Malformed> {
    let columns = origins.columns.into_iter().map(|origin| Ok((source_name(origin.source)?, origin.column)));
    Ok(ColumnOrigins { copied: origins.copied, columns: columns.collect::<Result<_, _>>()? })
}

/// A planned SQL from the wire.
pub fn checked_from_proto(checked: proto::CheckResponse) -> Result<Checked, Malformed> {
    Ok(Checked {
        schema: schema_from_bytes(checked.schema, "schema")?,
        logical_plan: checked.logical_plan,
        physical_plan: checked.physical_plan,
        origins: checked.origins.into_iter().map(origins_from_proto).collect::<Result<_, _>>()?,
    })
}

/// A merge for the wire.
pub fn merge_to_proto(request: &MergeRequest) -> proto::RunRequest {
    let source = |source: &MergeSource| proto::Source {
        source: source.source.to_string(),
        schema: schema_to_bytes(&source.schema),
        changed: source.changed.as_ref().map(relation_to_proto),
        at_end: source.at_end.as_ref().map(relation_to_proto),
        at_begin: source.at_begin.as_ref().map(relation_to_proto),
    };
    proto::RunRequest {
        sql: request.sql.clone(),
        then: request.then.iter().map(step_to_proto).collect(),
        sources: request.sources.iter().map(source).collect(),
        stage: Some(stage_to_proto(&request.stage)),
        limits: Some(limits_to_proto(&request.limits)),
    }
}

/// A merge from the wire, with one fresh budget for the query and the writer, and a stop that never comes.
pub fn merge_from_proto(request: proto::RunRequest) -> Result<MergeRequest, Malformed> {
    let mut sources = Vec::with_capacity(request.sources.len());
    for (position, source) in request.sources.into_iter().enumerate() {
        sources.push(source_from_proto(source).map_err(|e| e.within(&format!("sources[{position}]")))?);
    }
    let limits = limits_from_proto(request.limits)?;
    let mut stage = stage_from_proto(required(request.stage, "stage")?).map_err(|e| e.within("stage"))?;
    stage.budget = limits.budget.clone();
    Ok(MergeRequest { sql: request.sql, then: steps_from_proto(request.then)?, sources, stage, limits })
}

fn step_to_proto(step: &Step) -> proto::Step {
    let step = match step {
        Step::Sql(text) => proto::step::Step::Sql(text.clone()),
        Step::Flatten { separator } => proto::step::Step::Flatten(separator.clone()),
        Step::Rust(name) => proto::step::Step::Rust(name.clone()),
        Step::Refused(rows) => proto::step::Step::Refused(json_to_proto(rows.as_ref())),
    };
    proto::Step { step: Some(step) }
}

fn steps_from_proto(steps: Vec<proto::Step>) -> Result<Vec<Step>, Malformed> {
    let read = |step: proto::Step| match required(step.step, "then.step")? {
        proto::step::Step::Sql(text) => Ok(Step::Sql(text)),
        proto::step::Step::Flatten(separator) => Ok(Step::Flatten { separator }),
        proto::step::Step::Rust(name) => Ok(Step::Rust(name)),
        proto::step::Step::Refused(rows) => {
            let rows = required(json_from_proto(Some(rows), "then.refused")?, "then.refused")?;
            Ok(Step::Refused(Box::new(rows)))
        }
    };
    steps.into_iter().map(read).collect()
}

fn source_from_proto(source: proto::Source) -> Result<MergeSource, Malformed> {
    Ok(MergeSource {
        source: source_name(source.source)?,
        schema: schema_from_bytes(source.schema, "schema")?,
        changed: optional_relation(source.changed, "changed")?,
        at_end: optional_relation(source.at_end, "at_end")?,
        at_begin: optional_relation(source.at_begin, "at_begin")?,
    })
}

fn limits_to_proto(limits: &MergeLimits) -> proto::Limits {
    proto::Limits {
        memory_bytes: limits.budget.limit() as u64,
        spill_bytes: limits.spill_bytes,
        timeout: prost_types::Duration::try_from(limits.timeout).ok(),
        parallelism: u32::try_from(limits.parallelism).unwrap_or(u32::MAX),
    }
}

fn limits_from_proto(limits: Option<proto::Limits>) -> Result<MergeLimits, Malformed> {
    let limits = required(limits, "limits")?;
    let timeout = required(limits.timeout, "limits.timeout")?;
    Ok(MergeLimits {
        budget: MemoryBudget::new(count(limits.memory_bytes)),
        spill_bytes: limits.spill_bytes,
        timeout: Duration::try_from(timeout).map_err(|e| Malformed::new("limits.timeout", e))?,
        parallelism: (limits.parallelism as usize).max(1),
        stop: Stop::default(),
        progress: Progress::default(),
    })
}

/// A finished merge for the wire.
pub fn merged_to_proto(merged: &Merged, peak_memory: usize) -> proto::RunResponse {
    let rows_read = merged.rows_read.iter();
    proto::RunResponse {
        staged: Some(staged_to_proto(&merged.staged)),
        rows_read: rows_read
            .map(|(source, rows)| proto::RowsRead { source: source.to_string(), rows: *rows, bytes: 0 })
            .collect(),
        spilled_bytes: merged.spilled_bytes,
        peak_memory_bytes: peak_memory as u64,
    }
}

/// A finished merge from the wire.
pub fn merged_from_proto(merged: proto::RunResponse) -> Result<Merged, Malformed> {
    let mut rows_read = Vec::with_capacity(merged.rows_read.len());
    for read in merged.rows_read {
        rows_read.push((source_name(read.source)?, read.rows));
    }
    let staged = required(merged.staged, "staged")?;
    Ok(Merged {
        staged: staged_from_proto(staged).map_err(|e| e.within("staged"))?,
        rows_read,
        spilled_bytes: merged.spilled_bytes,
    })
}

/// A query for the wire.
pub fn query_to_proto(request: &QueryRequest) -> proto::QueryRequest {
    let table = |table: &QueryTable| proto::QueryTable {
        name: table.name.clone(),
        relation: Some(relation_to_proto(&table.relation)),
        before: table.deleted.as_ref().map(|deleted| relation_to_proto(&deleted.before)),
        after: table.deleted.as_ref().map(|deleted| relation_to_proto(&deleted.after)),
    };
    proto::QueryRequest {
        sql: request.sql.clone(),
        tables: request.tables.iter().map(table).collect(),
        parameters: request.parameters.as_ref().map(rows_to_bytes),
        limits: Some(limits_to_proto(&request.limits)),
    }
}

/// A query from the wire, with a fresh budget.
pub fn query_from_proto(request: proto::QueryRequest) -> Result<QueryRequest, Malformed> {
    let mut tables = Vec::with_capacity(request.tables.len());
    for table in request.tables {
        let relation = required(optional_relation(table.relation, "tables.relation")?, "tables.relation")?;
        let before = optional_relation(table.before, "tables.before")?;
        let after = optional_relation(table.after, "tables.after")?;
        let deleted = before.zip(after).map(|(before, after)| Deleted { before, after });
        tables.push(QueryTable { name: table.name, relation, deleted });
    }
    Ok(QueryRequest {
        sql: request.sql,
        tables,
        parameters: request.parameters.map(|bytes| rows_from_bytes(&bytes)).transpose()?,
        limits: limits_from_proto(request.limits)?,
    })
}

/// What a query names, for the wire.
pub fn query_names_to_proto(names: &QueryNames) -> proto::ReadQueryResponse {
    proto::ReadQueryResponse {
        relations: names.relations.iter().map(|parts| proto::RelationName { parts: parts.clone() }).collect(),
        parameters: names.parameters as u32,
    }
}

/// What a query names, from the wire.
pub fn query_names_from_proto(names: proto::ReadQueryResponse) -> QueryNames {
    QueryNames {
        relations: names.relations.into_iter().map(|name| name.parts).collect(),
        parameters: names.parameters as usize,
    }
}

/// How far a merge is, for the wire.
pub fn reads_to_proto(reads: &[SourceRead]) -> Vec<proto::RowsRead> {
    let read =
        |read: &SourceRead| proto::RowsRead { source: read.source.to_string(), rows: read.rows, bytes: read.bytes };
    reads.iter().map(read).collect()
}

/// How far a merge is, from the wire.
pub fn reads_from_proto(reads: &[proto::RowsRead]) -> Result<Vec<SourceRead>, Malformed> {
    let mut converted = Vec::with_capacity(reads.len());
    for read in reads {
        converted.push(SourceRead { source: source_name(read.source.clone())?, rows: read.rows, bytes: read.bytes });
    }
    Ok(converted)
}
