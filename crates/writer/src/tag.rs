// SPDX-License-Identifier: Apache-2.0
//! Which stored slice holds the key of an incoming row.
//!
//! Only the keys of slices in touched partitions are read, those of their logs too, and only against the slices that
//! were pinned.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use futures::{Stream, StreamExt, TryStreamExt};
use tributary_api::writer::{Error, TargetSlice};
use tributary_hudi::{FileScan, open_scan};

use crate::combine::KeyedRows;
use crate::delta::search_logs;
use crate::files::{FileContext, hudi_error};
use crate::parallel::run_jobs;

/// Rows of a stored slice.
pub(crate) type StoredRows = Pin<Box<dyn Stream<Item = Result<RecordBatch, Error>> + Send>>;

/// Winners whose key is stored, with the slice that holds it: (slice, winner), in that order.
///
/// A key is in more than one slice only where inserts put it there twice; then every copy is updated.
pub(crate) type Tags = Vec<(u32, u32)>;

/// Reads the whole rows of a slice, in the schema that files are written in.
pub(crate) async fn open_slice(context: &FileContext, slice: &TargetSlice) -> Result<StoredRows, Error> {
    open(context, slice, &context.file_schema).await
}

async fn open(context: &FileContext, slice: &TargetSlice, schema: &Arc<Schema>) -> Result<StoredRows, Error> {
    let url = context.storage.url().to_string();
    let scan = FileScan {
        path: slice.path.clone(),
        bytes: slice.bytes,
        schema: Arc::clone(schema),
        projection: None,
        // Tables that leave partition columns out of their files are refused as targets.
        constants: BTreeMap::new(),
        instants: None,
        all_but: false,
        prune: None,
        batch_rows: context.batch_rows,
        memory: context.budget.clone(),
    };
    let rows = open_scan(&context.storage, scan).await.map_err(|e| hudi_error(context, e))?;
    Ok(Box::pin(rows.map_err(move |e| crate::files::role_error(&url, e))))
}

/// Looks every stored key of `slices` up among the incoming rows.
pub(crate) async fn tag(
    context: &Arc<FileContext>,
    slices: &[(u32, TargetSlice)],
    rows: &Arc<KeyedRows>,
    parallelism: usize,
) -> Result<Tags, Error> {
    let searches = slices.iter().map(|(number, slice)| {
        let (number, slice, context, rows) = (*number, slice.clone(), Arc::clone(context), Arc::clone(rows));
        async move { Ok((number, search(&context, &slice, &rows).await?)) }
    });
    // Collected: a lazily mapped iterator held across an await is not known to be `Send`.
    let searches: Vec<_> = searches.collect();
    let mut tags = Tags::new();
    for (slice, found) in run_jobs(searches, parallelism).await? {
        tags.extend(found.into_iter().map(|winner| (slice, winner)));
    }
    // A slice may hold a key more than once.
    tags.sort_unstable();
    tags.dedup();
    Ok(tags)
}

async fn search(context: &FileContext, slice: &TargetSlice, rows: &KeyedRows) -> Result<Vec<u32>, Error> {
    let mut found = search_logs(context, slice, rows).await?;
    if slice.path.is_empty() {
        return Ok(found);
    }
    let schema = Arc::new(Schema::new(vec![Field::new("_hoodie_record_key", DataType::Utf8, true)]));
    let mut stored = open(context, slice, &schema).await?;
    while let Some(batch) = stored.next().await {
        context.go_on()?;
        let batch = batch?;
        let keys = batch.column(0).as_string::<i32>();
        for row in 0..keys.len() {
            if keys.is_null(row) {
                continue;
            }
            if let Some(winner) = rows.find(&slice.partition, keys.value(row)) {
                found.push(winner as u32);
            }
        }
    }
    Ok(found)
}
