// SPDX-License-Identifier: Apache-2.0
//! Pipelines.

use std::time::Duration;

use tributary_types::pipeline::{
    ByteSize, ErrorTable, Flatten, Limits, Pipeline, Services, Source, Span, Start, Target, TopicKeys, Transform,
};
use tributary_types::{PipelineName, SourceName};

use super::{
    Malformed, WireEnum, count, cursor_from_proto, cursor_to_proto, json_from_proto, json_to_proto, required, text,
};
use crate::proto::coordinator as proto;

/// What absent fields mean; the same as in a pipeline file.
const DEFAULT_NUM_INSTANTS: u64 = 5;
const DEFAULT_TABLE_VERSION: u32 = 9;
const DEFAULT_SMALL_FILE: u64 = 100 << 20;
const DEFAULT_MAX_FILE: u64 = 120 << 20;
const DEFAULT_HIVE_STYLE: bool = true;
const DEFAULT_MULTI_CHECKPOINT: bool = true;

/// A pipeline for the wire.
pub fn pipeline_to_proto(pipeline: &Pipeline) -> proto::Pipeline {
    proto::Pipeline {
        name: pipeline.name.to_string(),
        consistency: pipeline.consistency.to_wire(),
        accept_binding_change: pipeline.accept_binding_change,
        adopt_legacy_checkpoint: pipeline.adopt_legacy_checkpoint,
        first_start: pipeline.first_start.as_ref().map(start_to_proto),
        accept_merge_change: pipeline.accept_merge_change,
        multi_checkpoint: Some(pipeline.multi_checkpoint),
        sources: pipeline.sources.iter().map(source_to_proto).collect(),
        transforms: pipeline.transforms.iter().map(transform_to_proto).collect(),
        target: Some(target_to_proto(&pipeline.target)),
        limits: Some(proto::Limits {
            memory_bytes: Some(pipeline.limits.memory.0),
            spill_bytes: Some(pipeline.limits.spill.0),
            timeout: prost_types::Duration::try_from(pipeline.limits.timeout.0).ok(),
        }),
        error_table: pipeline.error_table.as_ref().map(error_table_to_proto),
    }
}

/// A pipeline from the wire.
pub fn pipeline_from_proto(pipeline: proto::Pipeline) -> Result<Pipeline, Malformed> {
    let mut sources = Vec::with_capacity(pipeline.sources.len());
    for (position, source) in pipeline.sources.into_iter().enumerate() {
        sources.push(source_from_proto(source).map_err(|e| e.within(&format!("sources[{position}]")))?);
    }
    Ok(Pipeline {
        name: PipelineName::new(pipeline.name).map_err(|e| Malformed::new("name", e))?,
        consistency: WireEnum::from_wire(pipeline.consistency)?,
        accept_binding_change: pipeline.accept_binding_change,
        adopt_legacy_checkpoint: pipeline.adopt_legacy_checkpoint,
        first_start: pipeline.first_start.map(start_from_proto).transpose().map_err(|e| e.within("first_start"))?,
        accept_merge_change: pipeline.accept_merge_change,
        multi_checkpoint: pipeline.multi_checkpoint.unwrap_or(DEFAULT_MULTI_CHECKPOINT),
        sources,
        transforms: pipeline.transforms.into_iter().map(transform_from_proto).collect(),
        target: target_from_proto(required(pipeline.target, "target")?).map_err(|e| e.within("target"))?,
        limits: limits_from_proto(pipeline.limits.unwrap_or_default()).map_err(|e| e.within("limits"))?,
        error_table: pipeline.error_table.map(error_table_from_proto),
    })
}

fn error_table_to_proto(table: &ErrorTable) -> proto::ErrorTable {
    proto::ErrorTable {
        path: table.path.clone(),
        table_name: Some(table.table_name.clone()),
        max_rows: Some(table.max_rows),
    }
}

fn error_table_from_proto(table: proto::ErrorTable) -> ErrorTable {
    let defaults = ErrorTable::at(table.path);
    ErrorTable {
        table_name: table.table_name.unwrap_or(defaults.table_name),
        max_rows: table.max_rows.unwrap_or(defaults.max_rows),
        path: defaults.path,
    }
}

fn transform_to_proto(step: &Transform) -> proto::Transform {
    let flatten = step.flatten.as_ref();
    proto::Transform {
        sql: step.sql.clone(),
        sql_file: step.sql_file.clone(),
        flatten: flatten.map(|flatten| proto::Flatten { separator: Some(flatten.separator.clone()) }),
        rust: step.rust.clone(),
    }
}

fn transform_from_proto(step: proto::Transform) -> Transform {
    let separator = |flatten: proto::Flatten| flatten.separator.unwrap_or_else(|| Flatten::default().separator);
    Transform {
        sql: step.sql,
        sql_file: step.sql_file,
        flatten: step.flatten.map(|flatten| Flatten { separator: separator(flatten) }),
        rust: step.rust,
    }
}

fn source_to_proto(source: &Source) -> proto::Source {
    proto::Source {
        name: source.name.to_string(),
        renamed_from: text(source.renamed_from.as_ref()),
        kind: source.kind.to_wire(),
        path: source.path.clone(),
        read: source.read.to_wire(),
        start: source.start.as_ref().map(start_to_proto),
        num_instants: Some(source.num_instants as u64),
        on_stale: source.on_stale.to_wire(),
        on_late_instant: source.on_late_instant.to_wire(),
        meta_columns: source.meta_columns,
        deletes: source.deletes.map(WireEnum::to_wire),
        unused: source.unused.to_wire(),
        on_hole: source.on_hole.to_wire(),
        on_malformed_cursor: source.on_malformed_cursor.to_wire(),
        skip_on_schema_failure: source.skip_on_schema_failure,
        files: unless_default(&source.files),
        csv: unless_default(&source.csv),
        json: unless_default(&source.json),
        kafka: unless_default(&source.topic_keys()),
    }
}

fn unless_default<T: Default + PartialEq + serde::Serialize>(options: &T) -> Option<String> {
    (options != &T::default()).then(|| json_to_proto(options))
}

fn source_from_proto(source: proto::Source) -> Result<Source, Malformed> {
    let TopicKeys { brokers, topic, format, tombstones, kafka } =
        json_from_proto(source.kafka, "kafka")?.unwrap_or_default();
    Ok(Source {
        name: SourceName::new(source.name).map_err(|e| Malformed::new("name", e))?,
        renamed_from: former_name(source.renamed_from)?,
        kind: WireEnum::from_wire(source.kind)?,
        path: source.path,
        read: WireEnum::from_wire(source.read)?,
        start: source.start.map(start_from_proto).transpose().map_err(|e| e.within("start"))?,
        num_instants: count(source.num_instants.unwrap_or(DEFAULT_NUM_INSTANTS)),
        on_stale: WireEnum::from_wire(source.on_stale)?,
        on_hole: WireEnum::from_wire(source.on_hole)?,
        on_late_instant: WireEnum::from_wire(source.on_late_instant)?,
        on_malformed_cursor: WireEnum::from_wire(source.on_malformed_cursor)?,
        skip_on_schema_failure: source.skip_on_schema_failure,
        meta_columns: source.meta_columns,
        deletes: source.deletes.map(WireEnum::from_wire).transpose()?,
        unused: WireEnum::from_wire(source.unused)?,
        files: json_from_proto(source.files, "files")?.unwrap_or_default(),
        csv: json_from_proto(source.csv, "csv")?.unwrap_or_default(),
        json: json_from_proto(source.json, "json")?.unwrap_or_default(),
        brokers,
        topic,
        format,
        tombstones,
        kafka,
    })
}

fn former_name(name: String) -> Result<Option<SourceName>, Malformed> {
    let name = Some(name).filter(|name| !name.is_empty()).map(SourceName::new);
    name.transpose().map_err(|e| Malformed::new("renamed_from", e))
}

fn start_to_proto(start: &Start) -> proto::Start {
    let policy = |policy: proto::StartPolicy| proto::start::At::Policy(policy as i32);
    let at = match start {
        Start::Latest => policy(proto::StartPolicy::Latest),
        Start::Earliest => policy(proto::StartPolicy::Earliest),
        Start::Snapshot => policy(proto::StartPolicy::Snapshot),
        Start::Resume => policy(proto::StartPolicy::Resume),
        Start::Fail => policy(proto::StartPolicy::Fail),
        Start::At(cursor) => proto::start::At::After(cursor_to_proto(cursor)),
        Start::Timestamp(millis) => proto::start::At::TimestampMillis(*millis),
    };
    proto::Start { at: Some(at) }
}

fn start_from_proto(start: proto::Start) -> Result<Start, Malformed> {
    match required(start.at, "at")? {
        proto::start::At::After(cursor) => Ok(Start::At(cursor_from_proto(cursor).map_err(|e| e.within("after"))?)),
        proto::start::At::TimestampMillis(millis) => Ok(Start::Timestamp(millis)),
        proto::start::At::Policy(number) => match proto::StartPolicy::try_from(number) {
            Ok(proto::StartPolicy::Latest) => Ok(Start::Latest),
            Ok(proto::StartPolicy::Earliest) => Ok(Start::Earliest),
            Ok(proto::StartPolicy::Snapshot) => Ok(Start::Snapshot),
            Ok(proto::StartPolicy::Resume) => Ok(Start::Resume),
            Ok(proto::StartPolicy::Fail) => Ok(Start::Fail),
            Ok(proto::StartPolicy::Unspecified) | Err(_) => Err(Malformed::new("policy", "is no policy known here")),
        },
    }
}

fn target_to_proto(target: &Target) -> proto::Target {
    proto::Target {
        path: target.path.clone(),
        table_name: target.table_name.clone(),
        table_type: target.table_type.to_wire(),
        table_version: Some(target.table_version),
        record_key: target.record_key.clone(),
        partition_by: target.partition_by.clone(),
        ordering: target.ordering.clone(),
        operation: target.operation.to_wire(),
        acknowledge_window_only: target.acknowledge_window_only,
        writers: target.writers.to_wire(),
        insert_conflict: target.insert_conflict.to_wire(),
        on_null_key: target.on_null_key.to_wire(),
        hive_style: Some(target.hive_style),
        small_file_bytes: Some(target.small_file_limit.0),
        max_file_bytes: Some(target.max_file_size.0),
        services: Some(proto::Services {
            clean_commits: Some(target.services.clean_commits),
            archive_commits: Some(target.services.archive_commits),
            compact_metadata_commits: Some(target.services.compact_metadata_commits),
            compact_delta_commits: Some(target.services.compact_delta_commits),
        }),
        merge: target.merge.as_ref().map(json_to_proto),
    }
}

fn target_from_proto(target: proto::Target) -> Result<Target, Malformed> {
    Ok(Target {
        path: target.path,
        table_name: target.table_name,
        table_type: WireEnum::from_wire(target.table_type)?,
        table_version: target.table_version.unwrap_or(DEFAULT_TABLE_VERSION),
        record_key: target.record_key,
        partition_by: target.partition_by,
        ordering: target.ordering,
        operation: WireEnum::from_wire(target.operation)?,
        acknowledge_window_only: target.acknowledge_window_only,
        writers: WireEnum::from_wire(target.writers)?,
        insert_conflict: WireEnum::from_wire(target.insert_conflict)?,
        on_null_key: WireEnum::from_wire(target.on_null_key)?,
        hive_style: target.hive_style.unwrap_or(DEFAULT_HIVE_STYLE),
        small_file_limit: ByteSize(target.small_file_bytes.unwrap_or(DEFAULT_SMALL_FILE)),
        max_file_size: ByteSize(target.max_file_bytes.unwrap_or(DEFAULT_MAX_FILE)),
        services: services_from_proto(target.services.unwrap_or_default()),
        merge: json_from_proto(target.merge, "merge")?,
    })
}

fn services_from_proto(services: proto::Services) -> Services {
    let defaults = Services::default();
    Services {
        clean_commits: services.clean_commits.unwrap_or(defaults.clean_commits),
        archive_commits: services.archive_commits.unwrap_or(defaults.archive_commits),
        compact_metadata_commits: services.compact_metadata_commits.unwrap_or(defaults.compact_metadata_commits),
        compact_delta_commits: services.compact_delta_commits.unwrap_or(defaults.compact_delta_commits),
    }
}

fn limits_from_proto(limits: proto::Limits) -> Result<Limits, Malformed> {
    let defaults = Limits::default();
    let timeout = match limits.timeout {
        Some(timeout) => Span(Duration::try_from(timeout).map_err(|e| Malformed::new("timeout", e))?),
        None => defaults.timeout,
    };
    Ok(Limits {
        memory: limits.memory_bytes.map_or(defaults.memory, ByteSize),
        spill: limits.spill_bytes.map_or(defaults.spill, ByteSize),
        timeout,
    })
}
