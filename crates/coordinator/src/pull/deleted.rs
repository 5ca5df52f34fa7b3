// SPDX-License-Identifier: Apache-2.0
//! Records that a batch took out of the target, for whoever pulls it: their last rows, flagged as deleted.
//!
//! A delete leaves nothing in the table that could be read. So the groups that lost records are read as they were
//! before the commit, and what the commit's own files still hold is left out.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::{StreamExt, TryStreamExt};
use tributary_api::coordinator::Error;
use tributary_api::timeline::{ReadRequest, Relation, Split, Timeline};
use tributary_api::{RowError, RowStream, writer};
use tributary_hudi::CommitMetadata;
use tributary_types::{Code, IS_DELETED, MemoryBudget, Reservation, Retry};

const RECORD_KEY: &str = "_hoodie_record_key";
const PARTITION_PATH: &str = "_hoodie_partition_path";
/// Bytes that a remembered key takes besides its text.
const KEY_BYTES: usize = 64;

/// File groups, by partition and file id, of which a commit may have taken records.
pub(super) type Groups = BTreeSet<(String, String)>;

/// The groups that lost records by a commit: those with deletes, and those that it replaced.
pub(super) fn groups_with_losses(metadata: &CommitMetadata) -> Groups {
    let deleted = metadata.stats.iter().filter(|stat| stat.deletes > 0);
    let deleted = deleted.map(|stat| (stat.partition.clone(), stat.file_id.clone()));
    let replaced = metadata
        .replaced
        .iter()
        .flat_map(|(partition, ids)| ids.iter().map(move |file_id| (partition.clone(), file_id.clone())));
    deleted.chain(replaced).collect()
}

/// The columns of a pulled batch that flags deletes.
pub(super) fn flagged_schema(schema: &SchemaRef) -> SchemaRef {
    if schema.column_with_name(IS_DELETED).is_some() {
        return Arc::clone(schema);
    }
    let flag = Field::new(IS_DELETED, DataType::Boolean, true);
    Arc::new(Schema::new(schema.fields().iter().map(|f| f.as_ref().clone()).chain([flag]).collect::<Vec<_>>()))
}

/// Rows in the columns of [`flagged_schema`], all deleted or none.
pub(super) fn flag(schema: &SchemaRef, batch: &RecordBatch, deleted: bool) -> Result<RecordBatch, RowError> {
    let flags = || -> ArrayRef { Arc::new(BooleanArray::from(vec![deleted; batch.num_rows()])) };
    let columns = schema.fields().iter().map(|field| match batch.column_by_name(field.name()) {
        Some(column) if !(deleted && field.name() == IS_DELETED) => Arc::clone(column),
        _ => flags(),
    });
    RecordBatch::try_new(Arc::clone(schema), columns.collect()).map_err(internal)
}

/// Keys of records, each with its partition, and the memory they take.
pub(super) struct Keys {
    keys: HashSet<(Arc<str>, Box<str>)>,
    _held: Reservation,
}

/// Reads the keys that are in files of `relation`.
pub(super) async fn read_keys(
    timeline: &Arc<dyn Timeline>,
    relation: &Relation,
    memory: &MemoryBudget,
) -> Result<Keys, Error> {
    // Only keys are wanted, but merging logs needs the columns that rows are ordered by.
    let schema = with_key(&relation.schema);
    let keys_alone = Some(vec![schema.fields().len() - 1]);
    let mut held = memory.reservation("keys of a batch that is pulled");
    let mut keys = HashSet::new();
    for split in &relation.splits {
        let partition: Arc<str> = split.partition.as_str().into();
        let wanted = ReadRequest { projection: keys_alone.clone(), ..request(whole(split), &schema, memory) };
        let mut rows = timeline.read(wanted).await?;
        while let Some(batch) = rows.next().await {
            let batch = batch.map_err(writer::Error::Rows)?;
            for key in batch.column(0).as_string::<i32>().iter().flatten() {
                held.try_grow(KEY_BYTES + key.len()).map_err(writer::Error::Memory)?;
                keys.insert((Arc::clone(&partition), key.into()));
            }
        }
    }
    Ok(Keys { keys, _held: held })
}

/// Streams what `before` held and `after` does not hold any more.
pub(super) fn lost_rows(
    timeline: Arc<dyn Timeline>,
    before: Relation,
    after: Keys,
    schema: SchemaRef,
    memory: MemoryBudget,
) -> RowStream {
    let with_key = with_key(&before.schema);
    let after = Arc::new(after);
    let streams = futures::stream::iter(before.splits).then(move |split| {
        let (timeline, after, schema) = (Arc::clone(&timeline), Arc::clone(&after), Arc::clone(&schema));
        let partition: Arc<str> = split.partition.as_str().into();
        let request = request(split, &with_key, &memory);
        async move {
            let rows = timeline.read(request).await.map_err(RowError::new)?;
            Ok(rows.map(move |batch| batch.and_then(|batch| keep_lost(&batch, &partition, &after, &schema))))
        }
    });
    streams.try_flatten().try_filter(|batch| std::future::ready(batch.num_rows() > 0)).boxed()
}

/// All rows of a split: those of other instants are records that are still there.
pub(super) fn whole(split: &Split) -> Split {
    Split { instants: None, all_but: false, ..split.clone() }
}

/// The columns of a relation, and behind them record key and partition path.
pub(super) fn with_keys(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone());
    let keys = [RECORD_KEY, PARTITION_PATH].map(|name| Field::new(name, DataType::Utf8, true));
    Arc::new(Schema::new(fields.chain(keys).collect::<Vec<_>>()))
}

/// The columns of a relation, and behind them the record key.
fn with_key(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone());
    let key = Field::new(RECORD_KEY, DataType::Utf8, true);
    Arc::new(Schema::new(fields.chain([key]).collect::<Vec<_>>()))
}

fn keep_lost(
    batch: &RecordBatch,
    partition: &Arc<str>,
    after: &Keys,
    schema: &SchemaRef,
) -> Result<RecordBatch, RowError> {
    let keys = batch.column(batch.num_columns() - 1).as_string::<i32>();
    let is_lost = |key: &str| !after.keys.contains(&(Arc::clone(partition), key.into()));
    let lost: BooleanArray = (0..keys.len()).map(|row| Some(keys.is_valid(row) && is_lost(keys.value(row)))).collect();
    flag(schema, &filter_record_batch(batch, &lost).map_err(internal)?, true)
}

fn request(split: Split, schema: &SchemaRef, memory: &MemoryBudget) -> ReadRequest {
    let (schema, memory) = (Arc::clone(schema), memory.clone());
    ReadRequest { split, schema, projection: None, predicate: None, batch_rows: 8192, memory }
}

fn internal(error: arrow::error::ArrowError) -> RowError {
    RowError::new(writer::Error::Other {
        code: Code::Internal,
        retry: Retry::Never,
        message: format!("arranging the rows of a batch failed: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use tributary_hudi::WriteStat;

    use super::*;

    #[test]
    fn groups_lose_records_by_deletes_and_by_being_replaced() {
        let stat = |file_id: &str, deletes| WriteStat {
            partition: "p".to_string(),
            file_id: file_id.to_string(),
            deletes,
            ..WriteStat::default()
        };
        let metadata = CommitMetadata {
            stats: vec![stat("a", 0), stat("b", 2)],
            replaced: [("q".to_string(), vec!["c".to_string()])].into(),
            ..CommitMetadata::default()
        };
        let expected: Groups = [("p", "b"), ("q", "c")].map(|(p, f)| (p.to_string(), f.to_string())).into();
        assert_eq!(groups_with_losses(&metadata), expected);
    }

    #[test]
    fn a_flag_of_the_tables_own_is_used_and_otherwise_one_is_added() {
        let value: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let plain = RecordBatch::try_from_iter_with_nullable([("v", value, true)]).unwrap();
        let schema = flagged_schema(&plain.schema());
        assert_eq!(schema.field(1).name(), IS_DELETED);
        let kept = flag(&schema, &plain, false).unwrap();
        assert_eq!(flagged_schema(&schema), schema);
        assert!(!kept.column(1).as_boolean().value(0));
        // The stored row said false; as a delete it says true.
        assert!(flag(&schema, &kept, true).unwrap().column(1).as_boolean().value(1));
    }
}
