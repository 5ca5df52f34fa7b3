// SPDX-License-Identifier: Apache-2.0
//! Tables, windows and what they pin.

use std::collections::HashMap;
use std::sync::Arc;

use tributary_api::timeline::{
    Begin, Blocks, InstantFact, InstantInfo, LogFile, Logs, PlanRequest, ReadRequest, Relation, SourcePlan, Split,
    TableInfo, Views,
};
use tributary_types::{InstantTime, MemoryBudget, SourceName};

use super::{
    Malformed, WireEnum, count, cursor_from_proto, cursor_to_proto, instants, json_from_proto, json_to_proto, optional,
    predicate_from_proto, predicate_to_proto, report_from_proto, report_to_proto, required, schema_from_bytes,
    schema_to_bytes, text,
};
use crate::proto::timeline as proto;

/// A table for the wire.
pub fn table_to_proto(table: &TableInfo) -> proto::Table {
    proto::Table {
        url: table.url.clone(),
        name: table.name.clone(),
        version: table.version,
        table_type: table.table_type.to_wire(),
        zone: table.zone.to_wire(),
        fingerprint: table.fingerprint.clone(),
        record_key: table.record_key.clone(),
        partition_by: table.partition_by.clone(),
        ordering: table.ordering.clone(),
        schema: table.schema.as_ref().map(|schema| schema_to_bytes(schema)),
        newest: table.newest.as_ref().map(commit_to_proto),
    }
}

/// A table from the wire.
pub fn table_from_proto(table: proto::Table) -> Result<TableInfo, Malformed> {
    Ok(TableInfo {
        url: table.url,
        name: table.name,
        version: table.version,
        table_type: WireEnum::from_wire(table.table_type)?,
        zone: WireEnum::from_wire(table.zone)?,
        fingerprint: table.fingerprint,
        record_key: table.record_key,
        partition_by: table.partition_by,
        ordering: table.ordering,
        schema: table.schema.map(|bytes| schema_from_bytes(bytes, "schema")).transpose()?,
        newest: table.newest.map(commit_from_proto).transpose().map_err(|e| e.within("newest"))?,
    })
}

/// An instant for the wire.
pub fn instant_to_proto(instant: &InstantInfo) -> proto::Instant {
    proto::Instant {
        requested: instant.requested.to_string(),
        completed: text(instant.completed.as_ref()),
        action: instant.action.clone(),
    }
}

/// An instant from the wire.
pub fn instant_from_proto(instant: proto::Instant) -> Result<InstantInfo, Malformed> {
    let requested = instant.requested.parse().map_err(|e| Malformed::new("requested", e))?;
    Ok(InstantInfo { requested, completed: optional(&instant.completed, "completed")?, action: instant.action })
}

fn commit_to_proto(fact: &InstantFact) -> proto::Commit {
    proto::Commit {
        requested: fact.requested.to_string(),
        completed: fact.completed.to_string(),
        action: fact.action.clone(),
    }
}

fn commit_from_proto(commit: proto::Commit) -> Result<InstantFact, Malformed> {
    Ok(InstantFact {
        requested: commit.requested.parse().map_err(|e| Malformed::new("requested", e))?,
        completed: commit.completed.parse().map_err(|e| Malformed::new("completed", e))?,
        action: commit.action,
    })
}

/// A plan's request for the wire.
pub fn window_request_to_proto(request: &PlanRequest) -> proto::PlanWindowRequest {
    let policy = |policy: proto::BeginPolicy| proto::begin::At::Policy(policy as i32);
    let at = match &request.begin {
        Begin::After(cursor) => proto::begin::At::After(cursor_to_proto(cursor)),
        Begin::Latest => policy(proto::BeginPolicy::Latest),
        Begin::Earliest => policy(proto::BeginPolicy::Earliest),
        Begin::Snapshot => policy(proto::BeginPolicy::Snapshot),
        Begin::Timestamp(millis) => proto::begin::At::TimestampMillis(*millis),
    };
    proto::PlanWindowRequest {
        source: request.source.to_string(),
        url: request.url.clone(),
        begin: Some(proto::Begin { at: Some(at) }),
        lookup: request.lookup,
        num_instants: request.num_instants as u64,
        ceiling_millis: request.ceiling_millis,
        pinned_end: request.pinned_end.as_ref().map(cursor_to_proto),
        by_hand: request.by_hand,
        fingerprint: request.fingerprint.clone(),
        recent: request.recent.iter().map(ToString::to_string).collect(),
        on_late: request.on_late.to_wire(),
        on_stale: request.on_stale.to_wire(),
        views: Some(views_to_proto(request.views)),
        meta_columns: request.meta_columns,
        on_hole: request.on_hole.to_wire(),
        look_only: request.look_only,
        fallback_schema: request.fallback_schema.as_ref().map(|schema| schema_to_bytes(schema)),
        files: request.files.as_deref().map(json_to_proto),
    }
}

/// A plan's request from the wire.
pub fn window_request_from_proto(request: proto::PlanWindowRequest) -> Result<PlanRequest, Malformed> {
    Ok(PlanRequest {
        source: source_name(request.source)?,
        url: request.url,
        begin: begin_from_proto(required(request.begin, "begin")?).map_err(|e| e.within("begin"))?,
        lookup: request.lookup,
        num_instants: count(request.num_instants),
        ceiling_millis: request.ceiling_millis,
        pinned_end: request.pinned_end.map(cursor_from_proto).transpose().map_err(|e| e.within("pinned_end"))?,
        by_hand: request.by_hand,
        fingerprint: request.fingerprint,
        recent: instants(&request.recent, "recent")?,
        on_late: WireEnum::from_wire(request.on_late)?,
        on_stale: WireEnum::from_wire(request.on_stale)?,
        on_hole: WireEnum::from_wire(request.on_hole)?,
        views: views_from_proto(request.views),
        meta_columns: request.meta_columns,
        look_only: request.look_only,
        fallback_schema: request
            .fallback_schema
            .map(|bytes| schema_from_bytes(bytes, "fallback_schema"))
            .transpose()?,
        files: json_from_proto(request.files, "files")?,
    })
}

fn begin_from_proto(begin: proto::Begin) -> Result<Begin, Malformed> {
    match required(begin.at, "at")? {
        proto::begin::At::After(cursor) => Ok(Begin::After(cursor_from_proto(cursor).map_err(|e| e.within("after"))?)),
        proto::begin::At::TimestampMillis(millis) => Ok(Begin::Timestamp(millis)),
        proto::begin::At::Policy(number) => match proto::BeginPolicy::try_from(number) {
            Ok(proto::BeginPolicy::Latest) => Ok(Begin::Latest),
            Ok(proto::BeginPolicy::Earliest) => Ok(Begin::Earliest),
            Ok(proto::BeginPolicy::Snapshot) => Ok(Begin::Snapshot),
            Ok(proto::BeginPolicy::Unspecified) | Err(_) => Err(Malformed::new("policy", "is no policy known here")),
        },
    }
}

pub(crate) fn views_to_proto(views: Views) -> proto::Views {
    proto::Views { changed: views.changed, end: views.end, begin: views.begin }
}

pub(crate) fn views_from_proto(views: Option<proto::Views>) -> Views {
    let views = views.unwrap_or_default();
    Views { changed: views.changed, end: views.end, begin: views.begin }
}

pub(crate) fn source_name(name: String) -> Result<SourceName, Malformed> {
    SourceName::new(name).map_err(|e| Malformed::new("source", e))
}

/// A source's plan for the wire.
pub fn source_plan_to_proto(plan: &SourcePlan) -> proto::SourcePlan {
    proto::SourcePlan {
        source: plan.source.to_string(),
        table: Some(table_to_proto(&plan.table)),
        begin: plan.begin.as_ref().map(cursor_to_proto),
        end: Some(cursor_to_proto(&plan.end)),
        instants: plan.instants.iter().map(commit_to_proto).collect(),
        has_news: plan.has_news,
        limited: plan.limited,
        frontier_millis: plan.frontier_millis,
        recent: plan.recent.iter().map(ToString::to_string).collect(),
        changed: plan.changed.as_ref().map(relation_to_proto),
        at_end: plan.at_end.as_ref().map(relation_to_proto),
        at_begin: plan.at_begin.as_ref().map(relation_to_proto),
        report: Some(report_to_proto(&plan.report)),
        files: plan.files.as_deref().map(json_to_proto),
    }
}

/// A source's plan from the wire.
pub fn source_plan_from_proto(plan: proto::SourcePlan) -> Result<SourcePlan, Malformed> {
    let mut commits = Vec::with_capacity(plan.instants.len());
    for commit in plan.instants {
        commits.push(commit_from_proto(commit).map_err(|e| e.within("instants"))?);
    }
    Ok(SourcePlan {
        source: source_name(plan.source)?,
        table: table_from_proto(required(plan.table, "table")?).map_err(|e| e.within("table"))?,
        begin: plan.begin.map(cursor_from_proto).transpose().map_err(|e| e.within("begin"))?,
        end: cursor_from_proto(required(plan.end, "end")?).map_err(|e| e.within("end"))?,
        instants: commits,
        has_news: plan.has_news,
        limited: plan.limited,
        frontier_millis: plan.frontier_millis,
        recent: instants(&plan.recent, "recent")?,
        changed: optional_relation(plan.changed, "changed")?,
        at_end: optional_relation(plan.at_end, "at_end")?,
        at_begin: optional_relation(plan.at_begin, "at_begin")?,
        report: report_from_proto(plan.report.unwrap_or_default()).map_err(|e| e.within("report"))?,
        files: json_from_proto(plan.files, "files")?,
    })
}

/// A relation for the wire. The splits of a window share their sets of instants there as they do here.
pub fn relation_to_proto(relation: &Relation) -> proto::Relation {
    let mut sets: Vec<proto::Instants> = Vec::new();
    let mut positions: HashMap<&[InstantTime], u32> = HashMap::new();
    let mut splits = Vec::with_capacity(relation.splits.len());
    for split in &relation.splits {
        let [instants, blocks] = [split.instants.as_ref().map(|set| set.as_slice()), listed_blocks(split)].map(|set| {
            set.map(|set| {
                *positions.entry(set).or_insert_with(|| {
                    sets.push(instants_to_proto(set));
                    sets.len() as u32 - 1
                })
            })
        });
        splits.push(proto::PinnedSplit { split: Some(split_to_proto(split)), instants, blocks });
    }
    proto::Relation { schema: schema_to_bytes(&relation.schema), splits, instants: sets }
}

fn listed_blocks(split: &Split) -> Option<&[InstantTime]> {
    let blocks = split.logs.as_ref().and_then(|logs| logs.blocks.as_ref());
    blocks.map(|blocks| blocks.listed.as_slice())
}

/// A relation from the wire.
pub fn relation_from_proto(relation: proto::Relation) -> Result<Relation, Malformed> {
    let mut sets = Vec::with_capacity(relation.instants.len());
    for set in relation.instants {
        sets.push(Arc::new(instants(&set.requested, "instants")?));
    }
    let mut splits = Vec::with_capacity(relation.splits.len());
    let mut shared: HashMap<(u32, Option<String>), Arc<Blocks>> = HashMap::new();
    for pinned in relation.splits {
        let set = match pinned.instants {
            None => None,
            Some(position) => Some(Arc::clone(required(sets.get(position as usize), "splits.instants")?)),
        };
        let split = required(pinned.split, "splits.split")?;
        let blocks = match pinned.blocks {
            None => None,
            Some(position) => {
                let before = split.logs.as_ref().and_then(|logs| logs.blocks_before.clone());
                let listed = required(sets.get(position as usize), "splits.blocks")?;
                let known = shared.get(&(position, before.clone())).cloned();
                let blocks = match known {
                    Some(blocks) => blocks,
                    None => blocks_from_proto(before.as_deref(), listed.as_ref().clone())?,
                };
                shared.insert((position, before), Arc::clone(&blocks));
                Some(blocks)
            }
        };
        splits.push(split_from_proto(split, set, blocks).map_err(|e| e.within("splits.split"))?);
    }
    Ok(Relation { schema: schema_from_bytes(relation.schema, "schema")?, splits })
}

pub(crate) fn optional_relation(relation: Option<proto::Relation>, field: &str) -> Result<Option<Relation>, Malformed> {
    relation.map(relation_from_proto).transpose().map_err(|e| e.within(field))
}

fn instants_to_proto(set: &[InstantTime]) -> proto::Instants {
    proto::Instants { requested: set.iter().map(ToString::to_string).collect() }
}

fn split_to_proto(split: &Split) -> proto::Split {
    proto::Split {
        url: split.url.clone(),
        partition: split.partition.clone(),
        file_id: split.file_id.clone(),
        path: split.path.clone(),
        bytes: split.bytes,
        logs: split.logs.as_ref().map(logs_to_proto),
        all_but: split.all_but,
        file: split.file.as_ref().map(json_to_proto),
    }
}

fn split_from_proto(
    split: proto::Split,
    instants: Option<Arc<Vec<InstantTime>>>,
    blocks: Option<Arc<Blocks>>,
) -> Result<Split, Malformed> {
    Ok(Split {
        url: split.url,
        partition: split.partition,
        file_id: split.file_id,
        path: split.path,
        bytes: split.bytes,
        logs: split.logs.map(|logs| logs_from_proto(logs, blocks)),
        instants,
        all_but: split.all_but,
        file: json_from_proto(split.file, "file")?,
    })
}

fn logs_to_proto(logs: &Logs) -> proto::Logs {
    let file = |file: &LogFile| proto::LogFile { path: file.path.clone(), bytes: file.bytes };
    let marker = logs.delete_marker.clone();
    let before = logs.blocks.as_ref().and_then(|blocks| blocks.before.as_ref());
    proto::Logs {
        files: logs.files.iter().map(file).collect(),
        ordering: logs.ordering.clone().map(|columns| proto::Ordering { columns }),
        delete_marker: marker.map(|(column, value)| proto::DeleteMarker { column, value }),
        blocks_before: before.map(ToString::to_string),
        layout: logs.layout,
    }
}

fn logs_from_proto(logs: proto::Logs, blocks: Option<Arc<Blocks>>) -> Logs {
    Logs {
        files: logs.files.into_iter().map(|file| LogFile { path: file.path, bytes: file.bytes }).collect(),
        ordering: logs.ordering.map(|ordering| ordering.columns),
        layout: logs.layout,
        delete_marker: logs.delete_marker.map(|marker| (marker.column, marker.value)),
        blocks,
    }
}

fn blocks_from_proto(before: Option<&str>, listed: Vec<InstantTime>) -> Result<Arc<Blocks>, Malformed> {
    let before = before.map(str::parse).transpose().map_err(|e| Malformed::new("blocks_before", e))?;
    Ok(Arc::new(Blocks { before, listed }))
}

/// A request for rows for the wire.
pub fn read_to_proto(request: &ReadRequest) -> proto::ReadRequest {
    let projection = request.projection.as_ref();
    proto::ReadRequest {
        split: Some(split_to_proto(&request.split)),
        instants: request.split.instants.as_ref().map(|set| instants_to_proto(set)),
        schema: schema_to_bytes(&request.schema),
        projection: projection
            .map(|columns| proto::Projection { columns: columns.iter().map(|c| *c as u32).collect() }),
        predicate: request.predicate.as_ref().map(predicate_to_proto),
        batch_rows: request.batch_rows as u64,
        memory_bytes: request.memory.limit() as u64,
        blocks: listed_blocks(&request.split).map(instants_to_proto),
    }
}

/// A request for rows from the wire. Positions outside of the schema are refused here.
pub fn read_from_proto(request: proto::ReadRequest) -> Result<ReadRequest, Malformed> {
    let set = request.instants.map(|set| instants(&set.requested, "instants")).transpose()?.map(Arc::new);
    let schema = schema_from_bytes(request.schema, "schema")?;
    let projection = request.projection.map(|projection| {
        let columns = projection.columns.into_iter().map(|column| column as usize);
        columns.collect::<Vec<usize>>()
    });
    if let Some(outside) = projection.iter().flatten().find(|column| **column >= schema.fields().len()) {
        return Err(Malformed::new("projection", format!("column {outside} is not in the schema")));
    }
    let split = required(request.split, "split")?;
    let before = split.logs.as_ref().and_then(|logs| logs.blocks_before.as_deref());
    let blocks = match request.blocks {
        Some(blocks) => Some(blocks_from_proto(before, instants(&blocks.requested, "blocks")?)?),
        None => None,
    };
    Ok(ReadRequest {
        split: split_from_proto(split, set, blocks).map_err(|e| e.within("split"))?,
        schema,
        projection,
        predicate: request.predicate.map(predicate_from_proto).transpose().map_err(|e| e.within("predicate"))?,
        batch_rows: count(request.batch_rows),
        memory: MemoryBudget::new(count(request.memory_bytes)),
    })
}
