// SPDX-License-Identifier: Apache-2.0
//! A table's schema as of an instant (W9).
//!
//! Commits carry the schema they wrote with; the newest one up to the instant decides. A table that never had a
//! commit may have been created with one. Files are widened to it when they are read.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use tributary_api::timeline::{Error, PlanRequest};
use tributary_hudi::{CommitMetadata, arrow_schema, file_schema, with_meta_columns, without_meta_columns};
use tributary_types::{IS_DELETED, InstantTime};

use crate::cache::Cache;
use crate::facts::Table;
use crate::fault::fault;
use crate::readset::written_files;
use crate::refuse::check_schema_source;

const CREATE_SCHEMA: &str = "hoodie.table.create.schema";

/// A schema, or why it cannot be told.
pub(crate) type Resolved<T> = Result<T, Error>;

/// The schema as of `end`, without meta columns; `None` when nothing says one. The outer error is about the files and
/// their store, the inner one about the schema that they say.
///
/// `look_only` opens no data file: a table of which only the files tell a schema is then refused by name.
pub(crate) async fn schema_as_of(
    table: &Table,
    cache: &Cache,
    end: &InstantTime,
    look_only: bool,
) -> Result<Resolved<Option<SchemaRef>>, Error> {
    let schema = written_schema(table, cache, end, look_only).await?;
    Ok(schema.map(|schema| {
        schema.map(|schema| match table.config.drops_partition_columns() {
            true => with_partition_columns(schema, &table.config.partition_by()),
            false => schema,
        })
    }))
}

/// Files without the partition columns come with schemas without them; they are text then
/// (`TableSchemaResolver.appendPartitionColumns`).
fn with_partition_columns(schema: SchemaRef, partition_by: &[String]) -> SchemaRef {
    let missing = partition_by.iter().filter(|column| schema.field_with_name(column).is_err());
    let missing: Vec<FieldRef> = missing.map(|column| Field::new(column, DataType::Utf8, true).into()).collect();
    if missing.is_empty() {
        return schema;
    }
    Arc::new(Schema::new(schema.fields().iter().cloned().chain(missing).collect::<Vec<_>>()))
}

async fn written_schema(
    table: &Table,
    cache: &Cache,
    end: &InstantTime,
    look_only: bool,
) -> Result<Resolved<Option<SchemaRef>>, Error> {
    let (upto, after): (Vec<_>, Vec<_>) = table.writes.iter().partition(|write| write.completed <= *end);
    // After the end only when the commits before it were archived: the nearest one is the best guess left.
    for write in upto.iter().rev().chain(after.iter()) {
        for metadata in table.metadata(cache, [&write.requested]).await? {
            if let Some(schema) = schema_of(table, &write.requested, &metadata).transpose() {
                return Ok(schema.map(Some));
            }
        }
    }
    if let Some(text) = table.config.get(CREATE_SCHEMA) {
        return Ok(parse(table, tributary_hudi::PROPERTIES, text).map(Some));
    }
    if look_only && !upto.is_empty() {
        return Err(Error::Unsupported {
            url: table.url.clone(),
            what:
                "none of its commits tells its schema, only its data files do, and planning opens none: what a batch \
                   would do is not known before it runs"
                    .to_string(),
        });
    }
    from_footer(table, cache, upto.iter().rev().map(|write| &write.requested)).await.map(Ok)
}

/// The schema of the relations of a plan.
pub(crate) fn relation_schema(schema: Option<&SchemaRef>, request: &PlanRequest) -> SchemaRef {
    let own = schema.map_or_else(|| Arc::new(Schema::empty()), Arc::clone);
    let own = if request.deletes { with_flag(own) } else { own };
    if request.meta_columns { Arc::new(with_meta_columns(&own)) } else { own }
}

/// With a column that says which rows are deleted records.
fn with_flag(schema: SchemaRef) -> SchemaRef {
    if schema.field_with_name(IS_DELETED).is_ok() {
        return schema;
    }
    let flag: FieldRef = Field::new(IS_DELETED, DataType::Boolean, true).into();
    Arc::new(Schema::new(schema.fields().iter().cloned().chain([flag]).collect::<Vec<_>>()))
}

fn schema_of(table: &Table, requested: &InstantTime, metadata: &CommitMetadata) -> Resolved<Option<SchemaRef>> {
    let Some(text) = metadata.schema() else { return Ok(None) };
    check_schema_source(&table.url, metadata)?;
    parse(table, &format!("commit {requested}"), text).map(Some)
}

fn parse(table: &Table, file: &str, text: &str) -> Resolved<SchemaRef> {
    let schema = arrow_schema(file, text).map_err(fault(&table.url))?;
    Ok(Arc::new(without_meta_columns(&schema)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_columns_that_files_leave_out_come_last_as_text() {
        let own: SchemaRef = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
        let columns = ["id".to_string(), "region".to_string()];
        let schema = with_partition_columns(Arc::clone(&own), &columns);
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["id", "region"]);
        assert_eq!(with_partition_columns(Arc::clone(&own), &columns[..1]), own);
    }
}
