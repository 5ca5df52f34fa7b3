// SPDX-License-Identifier: Apache-2.0
//! Rows as they come in: schema checked, keys made, rows without a key refused or left out.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, StringArray, new_null_array};
use arrow::compute::{cast, filter_record_batch, is_not_null};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::StreamExt;
use tributary_api::RowStream;
use tributary_api::writer::{Error, StageRequest};
use tributary_hudi::{KeyError, KeyRules};
use tributary_types::pipeline::OnNullKey;

use crate::combine::{identity_hash, text};
use crate::spool::{Route, Spool};

/// Position of the record key in a keyed batch.
pub(crate) const KEY: usize = 0;
/// Position of the partition path in a keyed batch.
pub(crate) const PARTITION: usize = 1;
/// Columns in front of the data columns.
pub(crate) const KEY_COLUMNS: usize = 2;

/// Counts of what came in.
#[derive(Debug, Default)]
pub(crate) struct Ingested {
    pub(crate) rows: u64,
    pub(crate) null_keys: u64,
    /// Partitions that have rows.
    pub(crate) partitions: BTreeSet<String>,
}

/// The schema of keyed batches: record key and partition path, then the data columns.
pub(crate) fn keyed_schema(data: &Schema) -> SchemaRef {
    let keys = ["_hoodie_record_key", "_hoodie_partition_path"].map(|name| Field::new(name, DataType::Utf8, true));
    let own = data.fields().iter().map(|field| field.as_ref().clone());
    Arc::new(Schema::new(keys.into_iter().chain(own).collect::<Vec<_>>()))
}

/// Divides rows by identity, so that all rows of one key are in one part.
pub(crate) const BY_IDENTITY: Route = |batch, parts| {
    let (keys, partitions) = (text(batch, KEY), text(batch, PARTITION));
    (0..batch.num_rows())
        .map(|row| (identity_hash(partitions.value(row), keys.value(row)) % parts as u64) as usize)
        .collect()
};

/// Divides rows by partition, so that a part holds whole partitions.
pub(crate) const BY_PARTITION: Route = |batch, parts| {
    let partitions = text(batch, PARTITION);
    (0..batch.num_rows()).map(|row| (identity_hash(partitions.value(row), "") % parts as u64) as usize).collect()
};

/// Reads all rows into `spool`.
pub(crate) async fn ingest(request: &StageRequest, mut rows: RowStream, spool: &mut Spool) -> Result<Ingested, Error> {
    let rules = key_rules(request);
    let schema = keyed_schema(&request.table_schema);
    let mut seen = Ingested::default();
    loop {
        let next = tokio::select! {
            biased;
            () = request.stop.wait() => return Err(Error::Stopped),
            next = rows.next() => next,
        };
        let Some(batch) = next else { break };
        let batch = batch?;
        seen.rows += batch.num_rows() as u64;
        let keyed = keyed_batch(request, &rules, &schema, &batch)?;
        let kept = drop_null_keys(request, keyed, &mut seen)?;
        note_partitions(text(&kept, PARTITION), &mut seen.partitions);
        spool.push(kept)?;
    }
    Ok(seen)
}

/// The rules a request asks for.
pub(crate) fn key_rules(request: &StageRequest) -> KeyRules {
    let keys = &request.keys;
    KeyRules {
        record_key: keys.record_key.clone(),
        partition_by: keys.partition_by.clone(),
        complex: keys.complex,
        hive_style: keys.hive_style,
        url_encode: keys.url_encode,
    }
}

fn keyed_batch(
    request: &StageRequest,
    rules: &KeyRules,
    schema: &SchemaRef,
    batch: &RecordBatch,
) -> Result<RecordBatch, Error> {
    let batch = &aligned(request, batch)?;
    let made = rules.make(batch).map_err(key_error)?;
    let mut columns: Vec<ArrayRef> = vec![Arc::new(made.keys), Arc::new(made.partitions)];
    columns.extend(batch.columns().iter().cloned());
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|e| Error::Type {
        column: request.schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", "),
        found: "the rows as they came".to_string(),
        what: format!("do not fit the schema that was announced: {e}"),
    })
}

/// The rows in the table's column order and types, which may be wider than the query's.
fn aligned(request: &StageRequest, batch: &RecordBatch) -> Result<RecordBatch, Error> {
    let mut columns = Vec::with_capacity(request.schema.fields().len());
    for field in request.table_schema.fields() {
        let Some(column) = batch.column_by_name(field.name()) else {
            if request.operation.only_deletes() || request.merge.is_some() {
                columns.push(new_null_array(field.data_type(), batch.num_rows()));
                continue;
            }
            return Err(Error::MissingColumn {
                column: field.name().clone(),
                role: "schema",
                present: batch.schema().fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", "),
            });
        };
        if column.data_type() == field.data_type() {
            columns.push(Arc::clone(column));
            continue;
        }
        columns.push(cast(column, field.data_type()).map_err(|e| Error::Type {
            column: field.name().clone(),
            found: column.data_type().to_string(),
            what: format!("cannot be stored as {}: {e}", field.data_type()),
        })?);
    }
    RecordBatch::try_new(Arc::clone(&request.table_schema), columns).map_err(internal)
}

fn drop_null_keys(request: &StageRequest, keyed: RecordBatch, seen: &mut Ingested) -> Result<RecordBatch, Error> {
    let nulls = keyed.column(KEY).null_count();
    if nulls == 0 {
        return Ok(keyed);
    }
    if request.on_null_key == OnNullKey::Fail {
        return Err(Error::NullKey { column: request.keys.record_key.join(", "), rows: nulls });
    }
    seen.null_keys += nulls as u64;
    let keep: BooleanArray = is_not_null(keyed.column(KEY)).map_err(internal)?;
    filter_record_batch(&keyed, &keep).map_err(internal)
}

/// Remembers which partitions there are.
pub(crate) fn note_partitions(partitions: &StringArray, seen: &mut BTreeSet<String>) {
    let mut last: Option<&str> = None;
    for partition in partitions.iter().flatten() {
        if !last.is_some_and(|last| is_same(last, partition)) && !seen.contains(partition) {
            seen.insert(partition.to_string());
        }
        last = Some(partition);
    }
}

/// Whether two partition paths are equal. In a table without partitions all are empty, and comparing texts without a
/// byte is slow: it looks at addresses that nothing lies at, which a processor forgives only after a while.
pub(crate) fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}

pub(crate) fn key_error(error: KeyError) -> Error {
    match error {
        KeyError::Missing { column, role, present } => Error::MissingColumn { column, role, present },
        KeyError::Type { column, found, role } => {
            Error::Type { column, found, what: format!("cannot be part of a {role}: cast it to text in the SQL") }
        }
        KeyError::Empty { column } => Error::EmptyKey { column },
        KeyError::Path { path } => Error::Type {
            column: "partition path".to_string(),
            found: format!("`{path}`"),
            what: "it has an empty, `.` or `..` part, which cannot be a directory".to_string(),
        },
    }
}

pub(crate) fn internal(error: arrow::error::ArrowError) -> Error {
    Error::Other {
        code: tributary_types::Code::Internal,
        retry: tributary_types::Retry::Never,
        message: format!("arranging rows failed: {error}"),
    }
}
