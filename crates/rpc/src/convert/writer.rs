// SPDX-License-Identifier: Apache-2.0
//! Stagings.

use std::sync::Arc;

use tributary_api::Stop;
use tributary_api::writer::{ColumnStats, FileSizes, KeySettings, StageRequest, Staged, StagedFile, TargetSlice};
use tributary_types::MemoryBudget;

use super::{Malformed, WireEnum, count, json_from_proto, json_to_proto, required, schema_from_bytes, schema_to_bytes};
use crate::proto::writer as proto;

/// A staging for the wire. Of the budget only the writer's share travels.
pub fn stage_to_proto(request: &StageRequest) -> proto::StageRequest {
    proto::StageRequest {
        url: request.url.clone(),
        table_name: request.table_name.clone(),
        table_type: request.table_type.to_wire(),
        instant: request.instant.to_string(),
        attempt: request.attempt,
        schema: schema_to_bytes(&request.schema),
        table_schema: schema_to_bytes(&request.table_schema),
        operation: request.operation.to_wire(),
        keys: Some(proto::KeySettings {
            record_key: request.keys.record_key.clone(),
            partition_by: request.keys.partition_by.clone(),
            complex: request.keys.complex,
            hive_style: request.keys.hive_style,
            url_encode: request.keys.url_encode,
        }),
        ordering: request.ordering.clone(),
        on_null_key: request.on_null_key.to_wire(),
        slices: request.slices.iter().map(slice_to_proto).collect(),
        memory_bytes: request.share.unwrap_or(request.budget.limit()) as u64,
        spill_bytes: request.spill_bytes,
        small_file_bytes: request.files.small,
        largest_file_bytes: request.files.largest,
        merge: request.merge.as_deref().map(json_to_proto),
        deletes_give_way: request.deletes_give_way,
    }
}

/// A staging from the wire, with a fresh budget of its share, and a stop that never comes.
pub fn stage_from_proto(request: proto::StageRequest) -> Result<StageRequest, Malformed> {
    let keys = required(request.keys, "keys")?;
    let mut slices = Vec::with_capacity(request.slices.len());
    for slice in request.slices {
        slices.push(slice_from_proto(slice).map_err(|e| e.within("slices"))?);
    }
    Ok(StageRequest {
        url: request.url,
        table_name: request.table_name,
        table_type: WireEnum::from_wire(request.table_type)?,
        instant: request.instant.parse().map_err(|e| Malformed::new("instant", e))?,
        attempt: request.attempt,
        schema: schema_from_bytes(request.schema, "schema")?,
        table_schema: schema_from_bytes(request.table_schema, "table_schema")?,
        operation: WireEnum::from_wire(request.operation)?,
        keys: KeySettings {
            record_key: keys.record_key,
            partition_by: keys.partition_by,
            complex: keys.complex,
            hive_style: keys.hive_style,
            url_encode: keys.url_encode,
        },
        ordering: request.ordering,
        merge: json_from_proto(request.merge, "merge")?.map(Arc::new),
        deletes_give_way: request.deletes_give_way,
        on_null_key: WireEnum::from_wire(request.on_null_key)?,
        files: FileSizes { small: request.small_file_bytes, largest: request.largest_file_bytes },
        slices: Arc::new(slices),
        budget: MemoryBudget::new(count(request.memory_bytes)),
        share: None,
        stop: Stop::default(),
        spill_bytes: request.spill_bytes,
    })
}

fn slice_to_proto(slice: &TargetSlice) -> proto::TargetSlice {
    proto::TargetSlice {
        partition: slice.partition.clone(),
        file_id: slice.file_id.clone(),
        path: slice.path.clone(),
        instant: slice.instant.to_string(),
        bytes: slice.bytes,
        logs: slice.logs.clone(),
    }
}

fn slice_from_proto(slice: proto::TargetSlice) -> Result<TargetSlice, Malformed> {
    Ok(TargetSlice {
        partition: slice.partition,
        file_id: slice.file_id,
        path: slice.path,
        instant: slice.instant.parse().map_err(|e| Malformed::new("instant", e))?,
        bytes: slice.bytes,
        logs: slice.logs,
    })
}

/// What was staged, for the wire.
pub fn staged_to_proto(staged: &Staged) -> proto::Staged {
    proto::Staged {
        files: staged.files.iter().map(file_to_proto).collect(),
        rows_in: staged.rows_in,
        rows_combined: staged.rows_combined,
        rows_outdated: staged.rows_outdated,
        rows_null_key: staged.rows_null_key,
        rows_absent: staged.rows_absent,
        partitions: staged.partitions.iter().cloned().collect(),
    }
}

/// What was staged, from the wire.
pub fn staged_from_proto(staged: proto::Staged) -> Result<Staged, Malformed> {
    let mut files = Vec::with_capacity(staged.files.len());
    for file in staged.files {
        files.push(file_from_proto(file).map_err(|e| e.within("files"))?);
    }
    Ok(Staged {
        files,
        rows_in: staged.rows_in,
        rows_combined: staged.rows_combined,
        rows_outdated: staged.rows_outdated,
        rows_null_key: staged.rows_null_key,
        rows_absent: staged.rows_absent,
        partitions: staged.partitions.into_iter().collect(),
    })
}

fn file_to_proto(file: &StagedFile) -> proto::StagedFile {
    let previous = file.previous.as_ref();
    proto::StagedFile {
        partition: file.partition.clone(),
        file_id: file.file_id.clone(),
        path: file.path.clone(),
        previous: previous
            .map(|(path, instant)| proto::PreviousFile { path: path.clone(), instant: instant.to_string() }),
        rows: file.rows,
        inserts: file.inserts,
        updates: file.updates,
        deletes: file.deletes,
        bytes: file.bytes,
        columns: file
            .columns
            .iter()
            .map(|stats| proto::ColumnStats { column: stats.column.clone(), nulls: stats.nulls, values: stats.values })
            .collect(),
    }
}

fn file_from_proto(file: proto::StagedFile) -> Result<StagedFile, Malformed> {
    let previous = match file.previous {
        None => None,
        Some(previous) => {
            let instant = previous.instant.parse().map_err(|e| Malformed::new("previous.instant", e))?;
            Some((previous.path, instant))
        }
    };
    Ok(StagedFile {
        partition: file.partition,
        file_id: file.file_id,
        path: file.path,
        previous,
        rows: file.rows,
        inserts: file.inserts,
        updates: file.updates,
        deletes: file.deletes,
        bytes: file.bytes,
        columns: file
            .columns
            .into_iter()
            .map(|stats| ColumnStats { column: stats.column, nulls: stats.nulls, values: stats.values })
            .collect(),
    })
}
