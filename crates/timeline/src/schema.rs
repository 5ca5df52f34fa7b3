// SPDX-License-Identifier: Apache-2.0
//! A table's schema as of an instant (W9).
//!
//! Commits carry the schema they wrote with; the newest one up to the instant decides. A table that never had a
//! commit may have been created with one. Files are widened to it when they are read.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use tributary_api::timeline::Error;
use tributary_hudi::{CommitMetadata, arrow_schema, file_schema, with_meta_columns, without_meta_columns};
use tributary_types::InstantTime;

use crate::cache::Cache;
use crate::facts::Table;
use crate::fault::fault;
use crate::readset::written_files;
use crate::refuse::check_schema_source;

const CREATE_SCHEMA: &str = "hoodie.table.create.schema";

/// The schema as of `end`, without meta columns; `None` when nothing says one.
pub(crate) async fn schema_as_of(table: &Table, cache: &Cache, end: &InstantTime) -> Result<Option<SchemaRef>, Error> {
    let (upto, after): (Vec<_>, Vec<_>) = table.writes.iter().partition(|write| write.completed <= *end);
    // After the end only when the commits before it were archived: the nearest one is the best guess left.
    for write in upto.iter().rev().chain(after.iter()) {
        for metadata in table.metadata(cache, [&write.requested]).await? {
            if let Some(schema) = schema_of(table, &write.requested, &metadata)? {
                return Ok(Some(schema));
            }
        }
    }
    if let Some(text) = table.config.get(CREATE_SCHEMA) {
        let schema = arrow_schema(tributary_hudi::PROPERTIES, text).map_err(fault(&table.url))?;
        return Ok(Some(Arc::new(without_meta_columns(&schema))));
    }
    from_footer(table, cache, upto.iter().rev().map(|write| &write.requested)).await
}

/// The schema of a relation.
pub(crate) fn relation_schema(schema: Option<&SchemaRef>, meta_columns: bool) -> SchemaRef {
    let own = schema.map_or_else(|| Arc::new(Schema::empty()), Arc::clone);
    if meta_columns { Arc::new(with_meta_columns(&own)) } else { own }
}

fn schema_of(table: &Table, requested: &InstantTime, metadata: &CommitMetadata) -> Result<Option<SchemaRef>, Error> {
    let Some(text) = metadata.schema() else { return Ok(None) };
    check_schema_source(&table.url, metadata)?;
    let schema = arrow_schema(&format!("commit {requested}"), text).map_err(fault(&table.url))?;
    Ok(Some(Arc::new(without_meta_columns(&schema))))
}

async fn from_footer(
    table: &Table,
    cache: &Cache,
    newest_first: impl Iterator<Item = &InstantTime>,
) -> Result<Option<SchemaRef>, Error> {
    for requested in newest_first {
        for metadata in table.metadata(cache, [requested]).await? {
            for file in written_files(&metadata).map_err(fault(&table.url))? {
                match file_schema(&table.storage, &file.path, file.bytes).await {
                    Ok(schema) => return Ok(Some(Arc::new(without_meta_columns(&schema)))),
                    // Cleaned; an older one was cleaned before it, a sibling may not be.
                    Err(tributary_hudi::Error::Gone { .. }) => {}
                    Err(error) => return Err(fault(&table.url)(error)),
                }
            }
        }
    }
    Ok(None)
}
