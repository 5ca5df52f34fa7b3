// SPDX-License-Identifier: Apache-2.0
//! Streams the rows of one split. Looks at the split's files and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use tributary_api::timeline::{Blocks, Deleted, Error, Logs, ReadRequest, Split};
use tributary_api::{RowError, RowStream};
use tributary_hudi::{
    BlockInstants, FileScan, LogScan, MergeRules, Prune, Storage, Stores, TableConfig, Torn, open_scan, open_slice,
};
use tributary_types::IS_DELETED;

use crate::deleted_rows;
use crate::fault::fault;
use crate::prune::PredicatePrune;

/// What a partition path says where a value is null or empty (`PartitionPathEncodeUtils`).
const NULL_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// Opens the stream of a split's rows.
pub(crate) async fn read(stores: &dyn Stores, request: ReadRequest) -> Result<RowStream, Error> {
    let storage = stores.open(&request.split.url).map_err(fault(&request.split.url))?;
    let deleted = request.split.deleted.clone();
    if let Deleted::UnlessIn(slices) = deleted {
        return deleted_rows::read(storage, request, slices).await;
    }
    // What a file leaves open in the flag is not what the row says.
    let told = request.predicate.clone().filter(|predicate| deleted == Deleted::Unsaid || !predicate.names(IS_DELETED));
    let prune = told.map(|predicate| Arc::new(PredicatePrune(predicate)) as Arc<dyn Prune>);
    let rows = open(&storage, request, prune).await?;
    Ok(match deleted {
        Deleted::Unsaid => rows,
        _ => rows.map(|batch| batch.and_then(deleted_rows::not_deleted)).boxed(),
    })
}

/// Opens the rows of a split's slice, whatever they say of deletes.
pub(crate) async fn open(
    storage: &Storage,
    request: ReadRequest,
    prune: Option<Arc<dyn Prune>>,
) -> Result<RowStream, Error> {
    let url = request.split.url.clone();
    let constants = partition_values(storage, &request).await?;
    let group = format!("{}/{}", request.split.partition, request.split.file_id);
    let Split { path, bytes, logs, instants, all_but, .. } = request.split;
    let scan = FileScan {
        path,
        bytes,
        schema: request.schema,
        projection: request.projection,
        constants,
        instants,
        all_but,
        prune,
        batch_rows: request.batch_rows,
        memory: request.memory,
    };
    let batches = match logs {
        None => open_scan(storage, scan).await,
        Some(logs) => open_slice(storage, scan, log_scan(group, logs)).await,
    };
    let batches = batches.map_err(fault(&url))?;
    Ok(batches.map(move |batch| batch.map_err(|error| RowError::new(fault(&url)(error)))).boxed())
}

fn log_scan(group: String, logs: Logs) -> LogScan {
    let counted = |blocks: Arc<Blocks>| {
        let Blocks { before, listed } = blocks.as_ref().clone();
        Arc::new(BlockInstants { before, listed })
    };
    LogScan {
        group: group.trim_start_matches('/').to_string(),
        files: logs.files.into_iter().map(|file| file.path).collect(),
        torn: Torn::of_layout(logs.layout),
        counted: logs.blocks.map(counted),
        rules: MergeRules { ordering: logs.ordering, delete_marker: logs.delete_marker },
    }
}

/// Values that the partition's path holds for columns of the relation. They are used only where the file leaves the
/// column out (`hoodie.datasource.write.drop.partition.columns`).
async fn partition_values(storage: &Storage, request: &ReadRequest) -> Result<BTreeMap<String, Option<String>>, Error> {
    let mut values = hive_values(&request.split.partition);
    values.retain(|column, _| request.schema.field_with_name(column).is_ok());
    let escaped = values.values().flatten().any(|value| value.contains('%'));
    // Only the table's configuration tells whether a percent sign is one.
    if escaped && TableConfig::load(storage).await.map_err(fault(&request.split.url))?.url_encode() {
        for value in values.values_mut().flatten() {
            *value = unescape(value);
        }
    }
    Ok(values)
}

fn hive_values(partition: &str) -> BTreeMap<String, Option<String>> {
    let pairs = partition.split('/').filter_map(|part| part.split_once('='));
    pairs.map(|(column, value)| (column.to_string(), (value != NULL_PARTITION).then(|| value.to_string()))).collect()
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        match after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            // Only characters below 128 are ever escaped.
            Some(code) => {
                out.push(char::from(code));
                rest = &after[2..];
            }
            None => {
                out.push('%');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hive_style_paths_hold_values() {
        let values = hive_values("region=a=b/kind=__HIVE_DEFAULT_PARTITION__/plain");
        assert_eq!(values["region"].as_deref(), Some("a=b"));
        assert_eq!(values["kind"], None);
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn escapes_are_undone_and_other_percent_signs_stay() {
        assert_eq!(unescape("50%25 off%3A%2Fü"), "50% off:/ü");
        assert_eq!(unescape("100%"), "100%");
        assert_eq!(unescape("%zz"), "%zz");
    }
}
