// SPDX-License-Identifier: Apache-2.0
//! Rows that are refused: what a reader says of a bad record, and what the error table keeps of it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};
use tributary_types::{InstantTime, SourceName};

use crate::timeline::Split;

/// Columns of the error table that make its record key: a batch that is tried again writes each row once.
pub const ERROR_KEY: [&str; 3] = ["pipeline", "source", "position"];

/// What stands for the source of a row that the key check refused: it is of the query's result. No source is called so.
pub const RESULT_SOURCE: &str = "<result>";

/// Reasons of refused rows.
pub const BAD_RECORD: &str = "BAD_RECORD";
/// A message that is no good.
pub const BAD_MESSAGE: &str = "BAD_MESSAGE";
/// A row without a record key.
pub const NULL_KEY: &str = "NULL_KEY";

/// Schema of what a reader delivers of the records of a split that it refuses, see [`crate::timeline::FileSplit::refused`].
pub fn refused_schema() -> SchemaRef {
    Arc::new(Schema::new(record_fields()))
}

/// Schema of the error table: which batch refused the row, and the columns of [`refused_schema`].
pub fn error_schema() -> SchemaRef {
    let mut fields = record_fields();
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    fields.insert(0, text("pipeline"));
    fields.insert(3, Field::new("seq", DataType::Int64, true));
    fields.insert(4, text("instant"));
    Arc::new(Schema::new(fields))
}

fn record_fields() -> Vec<Field> {
    let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
    vec![
        field("source", DataType::Utf8),
        field("position", DataType::Utf8),
        field("reason", DataType::Utf8),
        field("message", DataType::Utf8),
        field("file", DataType::Utf8),
        field("line", DataType::Int64),
        field("byte_offset", DataType::Int64),
        field("topic", DataType::Utf8),
        field("topic_partition", DataType::Int32),
        field("topic_offset", DataType::Int64),
        field("raw", DataType::Utf8),
    ]
}

/// The last step of a merge whose result are the rows that a batch refuses, in the form of [`error_schema`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRows {
    /// The pipeline.
    pub pipeline: String,
    /// Sequence number of the cursors that the batch commits.
    pub seq: u64,
    /// The batch's instant on its target.
    pub instant: InstantTime,
    /// Rows of the result before are refused where they have no key; `None`: that result is not looked at.
    pub key: Option<RefusedKey>,
    /// Splits whose bad records are refused, by source. Each says so itself.
    pub splits: Vec<(SourceName, Vec<Split>)>,
    /// More rows than this are of no interest: the result ends after one more.
    pub max_rows: u64,
}

/// Which rows have no key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedKey {
    /// Record key columns.
    pub columns: Vec<String>,
    /// Keys are `field:value,…`: one of nothing but nulls and blanks is none.
    pub complex: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_table_has_its_key_and_every_column_of_a_refused_record_in_order() {
        let table = error_schema();
        let names: Vec<&str> = table.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names[..5], ["pipeline", "source", "position", "seq", "instant"]);
        assert!(ERROR_KEY.iter().all(|column| names.contains(column)));
        let refused = refused_schema();
        let kept: Vec<_> =
            table.fields().iter().filter(|field| refused.field_with_name(field.name()).is_ok()).collect();
        assert_eq!(kept, refused.fields().iter().collect::<Vec<_>>());
    }

    #[test]
    fn no_source_is_called_as_the_result_is() {
        assert!(SourceName::new(RESULT_SOURCE).is_err());
    }
}
