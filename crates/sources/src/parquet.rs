// SPDX-License-Identifier: Apache-2.0
//! Parquet files: their footers give the schema, and they are read as the base files of tables are.

use std::collections::BTreeMap;

use arrow::datatypes::{DataType, Field, Schema};
use futures::StreamExt;
use tributary_api::timeline::{Error, ReadRequest};
use tributary_api::{RowError, RowStream};
use tributary_hudi::{FileScan, Storage, open_scan, plan_widening};

use crate::fault::fault;
use crate::fetch::{Pinned, check};

/// A schema that holds the rows of one more file: columns that it lacks are added where `add` says so, and numbers grow
/// where `grow` does. Otherwise the column, its type in the file, and its type in the schema.
pub(crate) fn merged(
    schema: Option<Schema>,
    found: &Schema,
    add: bool,
    grow: bool,
) -> Result<Schema, (String, String, String)> {
    let Some(schema) = schema else { return Ok(found.clone()) };
    let mut fields: Vec<Field> = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let Ok(other) = found.field_with_name(field.name()) else {
            fields.push(field.as_ref().clone());
            continue;
        };
        fields.push(Field::new(field.name(), wider(field, other, grow)?, true));
    }
    let new = found.fields().iter().filter(|field| add && schema.field_with_name(field.name()).is_err());
    fields.extend(new.map(|field| field.as_ref().clone()));
    Ok(Schema::new(fields))
}

fn wider(field: &Field, other: &Field, grow: bool) -> Result<DataType, (String, String, String)> {
    let (own, found) = (field.data_type(), other.data_type());
    match plan_widening(field.name(), found, own) {
        Ok(_) => Ok(own.clone()),
        Err(_) if grow && plan_widening(field.name(), own, found).is_ok() => Ok(found.clone()),
        Err(mismatch) => Err((mismatch.column, mismatch.found, mismatch.expected)),
    }
}

/// Streams the rows of a file.
pub(crate) async fn read(storage: &Storage, file: &Pinned, request: ReadRequest) -> Result<RowStream, Error> {
    check(storage, file).await?;
    let scan = FileScan {
        path: file.path.clone(),
        bytes: file.bytes,
        schema: request.schema,
        projection: request.projection,
        constants: BTreeMap::new(),
        instants: None,
        all_but: false,
        prune: None,
        batch_rows: request.batch_rows,
        memory: request.memory,
    };
    let url = storage.url().to_string();
    let rows = open_scan(storage, scan).await.map_err(fault(&url))?;
    // A file that was replaced while it was read is noticed at its end, before anything of the batch is committed.
    let (storage, file) = (storage.clone(), file.clone());
    let last = futures::stream::once(async move { check(&storage, &file).await.map_err(RowError::new) });
    let rows = rows.map(move |batch| batch.map_err(|error| RowError::new(fault(&url)(error))));
    Ok(rows.map(Some).chain(last.map(|checked| checked.err().map(Err))).filter_map(futures::future::ready).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(fields: &[(&str, DataType)]) -> Schema {
        Schema::new(
            fields.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect::<Vec<_>>(),
        )
    }

    #[test]
    fn numbers_grow_and_columns_are_added_and_nothing_shrinks() {
        let own = schema(&[("a", DataType::Int32), ("b", DataType::Int64)]);
        let found = schema(&[("b", DataType::Int32), ("a", DataType::Int64), ("c", DataType::Utf8)]);
        let both = merged(Some(own.clone()), &found, true, true).unwrap();
        assert_eq!(both, schema(&[("a", DataType::Int64), ("b", DataType::Int64), ("c", DataType::Utf8)]));
        assert!(merged(Some(own.clone()), &found, true, false).is_err(), "a declared column does not grow");
        let text = schema(&[("b", DataType::Boolean)]);
        let (column, found, expected) = merged(Some(own), &text, true, true).unwrap_err();
        assert_eq!((column.as_str(), found.as_str(), expected.as_str()), ("b", "Boolean", "Int64"));
    }
}
