// SPDX-License-Identifier: Apache-2.0
//! Record keys and partition paths, byte for byte as Hudi's key generators make them.

use std::fmt::Write as _;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, StringBuilder};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Date32Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema};
use chrono::NaiveDate;

/// What stands for null in a composite key.
const NULL_PART: &str = "__null__";
/// What stands for an empty string in a composite key.
const EMPTY_PART: &str = "__empty__";
/// What stands for null and empty in a partition path.
const DEFAULT_PARTITION: &str = "__HIVE_DEFAULT_PARTITION__";

/// How keys and partition paths are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRules {
    /// Record key columns, in order.
    pub record_key: Vec<String>,
    /// Partition columns, in order.
    pub partition_by: Vec<String>,
    /// Keys are `field:value,…` even for a single column: the complex key generator of table version 9.
    pub complex: bool,
    /// Partition paths are `column=value`.
    pub hive_style: bool,
    /// Partition values are percent-encoded.
    pub url_encode: bool,
}

/// Keys and partition paths of the rows of one batch.
#[derive(Debug, Clone)]
pub struct RowKeys {
    /// Record keys; null where the row has none.
    pub keys: StringArray,
    /// Partition paths; empty text for a table without partitions.
    pub partitions: StringArray,
}

/// Why keys cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A column that is named is not there.
    #[error("there is no column `{column}`, which `{role}` names; there are: {present}")]
    Missing {
        /// The column.
        column: String,
        /// `record_key` or `partition_by`.
        role: &'static str,
        /// What there is.
        present: String,
    },
    /// A type whose text differs between engines.
    #[error("column `{column}` of type {found} cannot be part of a {role}: cast it to text in the SQL")]
    Type {
        /// The column.
        column: String,
        /// Its type.
        found: String,
        /// `record key` or `partition path`.
        role: &'static str,
    },
    /// An empty key.
    #[error("record key column `{column}` is empty in a row: Hudi refuses empty keys")]
    Empty {
        /// The column, or the columns.
        column: String,
    },
    /// A partition value that would leave the table's directory.
    #[error("partition path `{path}` has an empty, `.` or `..` part: such a value cannot be a directory")]
    Path {
        /// The path.
        path: String,
    },
}

impl KeyRules {
    /// Checks that every key and partition column is in `schema` and has a type whose text is the same everywhere.
    pub fn check(&self, schema: &Schema) -> Result<(), KeyError> {
        let columns =
            [(&self.record_key, "record_key", "record key"), (&self.partition_by, "partition_by", "partition path")];
        for (names, key, role) in columns {
            for name in names {
                let field = schema.field_with_name(name).map_err(|_| KeyError::Missing {
                    column: name.clone(),
                    role: key,
                    present: schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", "),
                })?;
                if !has_portable_text(field.data_type()) {
                    let found = field.data_type().to_string();
                    return Err(KeyError::Type { column: name.clone(), found, role });
                }
            }
        }
        Ok(())
    }

    /// Keys and partition paths of every row.
    pub fn make(&self, batch: &RecordBatch) -> Result<RowKeys, KeyError> {
        self.check(&batch.schema())?;
        let column = |name: &String| batch.column_by_name(name).cloned();
        let keys: Vec<ArrayRef> = self.record_key.iter().filter_map(column).collect();
        let partitions: Vec<ArrayRef> = self.partition_by.iter().filter_map(column).collect();
        Ok(RowKeys {
            keys: self.record_keys(&keys, batch.num_rows())?,
            partitions: self.partition_paths(&partitions, batch.num_rows())?,
        })
    }

    /// Partition paths of every row, whatever its key.
    pub fn partitions(&self, batch: &RecordBatch) -> Result<ArrayRef, KeyError> {
        let rules = KeyRules { record_key: Vec::new(), ..self.clone() };
        rules.check(&batch.schema())?;
        let columns: Vec<ArrayRef> =
            self.partition_by.iter().filter_map(|name| batch.column_by_name(name).cloned()).collect();
        Ok(std::sync::Arc::new(self.partition_paths(&columns, batch.num_rows())?))
    }

    fn record_keys(&self, columns: &[ArrayRef], rows: usize) -> Result<StringArray, KeyError> {
        if let ([column], false) = (columns, self.complex) {
            return simple_keys(&self.record_key[0], column);
        }
        let mut out = StringBuilder::with_capacity(rows, rows * 32);
        let mut key = String::new();
        let mut part = String::new();
        for row in 0..rows {
            key.clear();
            let mut any = false;
            for (name, column) in self.record_key.iter().zip(columns) {
                if !key.is_empty() {
                    key.push(',');
                }
                key.push_str(name);
                key.push(':');
                part.clear();
                match write_text(column, row, &mut part) {
                    false => key.push_str(NULL_PART),
                    true if part.is_empty() => key.push_str(EMPTY_PART),
                    true => {
                        any = true;
                        key.push_str(&part);
                    }
                }
            }
            // A key of nothing but nulls and blanks names no record.
            match any {
                true => out.append_value(&key),
                false => out.append_null(),
            }
        }
        Ok(out.finish())
    }

    fn partition_paths(&self, columns: &[ArrayRef], rows: usize) -> Result<StringArray, KeyError> {
        if self.partition_by.is_empty() {
            return Ok(StringArray::new(OffsetBuffer::new_zeroed(rows), Buffer::default(), None));
        }
        let mut out = StringBuilder::with_capacity(rows, rows * 16);
        let mut path = String::new();
        let mut last_checked = String::new();
        for row in 0..rows {
            path.clear();
            for (level, (name, column)) in self.partition_by.iter().zip(columns).enumerate() {
                if level > 0 {
                    path.push('/');
                }
                self.push_level(name, column, row, &mut path);
            }
            // Neighbouring rows mostly share a partition: check each new path once.
            if path != last_checked {
                check_path(&path)?;
                last_checked.clone_from(&path);
            }
            out.append_value(&path);
        }
        Ok(out.finish())
    }

    fn push_level(&self, name: &str, column: &ArrayRef, row: usize, path: &mut String) {
        if self.hive_style {
            path.push_str(name);
            path.push('=');
        }
        let mut value = String::new();
        if !write_text(column, row, &mut value) || value.is_empty() {
            path.push_str(DEFAULT_PARTITION);
        } else if self.url_encode {
            push_escaped(&value, path);
        } else {
            path.push_str(&value);
        }
    }
}

fn simple_keys(name: &str, column: &ArrayRef) -> Result<StringArray, KeyError> {
    let keys = match column.as_string_opt::<i32>() {
        // The common case copies no text.
        Some(text) => text.clone(),
        None => {
            let mut out = StringBuilder::with_capacity(column.len(), column.len() * 12);
            let mut text = String::new();
            for row in 0..column.len() {
                text.clear();
                match write_text(column, row, &mut text) {
                    true => out.append_value(&text),
                    false => out.append_null(),
                }
            }
            out.finish()
        }
    };
    let offsets = keys.value_offsets();
    let empty = (0..keys.len()).any(|row| offsets[row] == offsets[row + 1] && keys.is_valid(row));
    if empty { Err(KeyError::Empty { column: name.to_string() }) } else { Ok(keys) }
}

fn check_path(path: &str) -> Result<(), KeyError> {
    if !path.is_empty() && path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(KeyError::Path { path: path.to_string() });
    }
    Ok(())
}

fn has_portable_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8
            | DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Date32
    )
}

/// Appends the value's text; `false` for null.
fn write_text(column: &ArrayRef, row: usize, out: &mut String) -> bool {
    if column.is_null(row) {
        return false;
    }
    // Writing into a String cannot fail.
    let _ = match column.data_type() {
        DataType::Utf8 => {
            out.push_str(column.as_string::<i32>().value(row));
            Ok(())
        }
        DataType::Boolean => write!(out, "{}", column.as_boolean().value(row)),
        DataType::Int8 => write!(out, "{}", column.as_primitive::<Int8Type>().value(row)),
        DataType::Int16 => write!(out, "{}", column.as_primitive::<Int16Type>().value(row)),
        DataType::Int32 => write!(out, "{}", column.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => write!(out, "{}", column.as_primitive::<Int64Type>().value(row)),
        DataType::Date32 => write!(out, "{}", date_of(column.as_primitive::<Date32Type>().value(row))),
        _ => Ok(()),
    };
    true
}

fn date_of(days: i32) -> NaiveDate {
    const EPOCH: NaiveDate = NaiveDate::from_ymd_opt(1970, 1, 1).expect("the epoch is a date");
    EPOCH.checked_add_signed(chrono::Duration::days(i64::from(days))).unwrap_or(EPOCH)
}

/// Percent-encodes as Hive does for partition names (`PartitionPathEncodeUtils` of Hudi).
fn push_escaped(value: &str, out: &mut String) {
    const ESCAPED: &str = "\"#%'*/:=?\\{[]^\u{7f}";
    for c in value.chars() {
        if (c as u32) < 0x20 || ESCAPED.contains(c) {
            let _ = write!(out, "%{:02X}", c as u32);
        } else {
            out.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Date32Array, Float64Array, Int64Array};
    use arrow::datatypes::Field;

    use super::*;

    fn rules(record_key: &[&str], partition_by: &[&str]) -> KeyRules {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
        KeyRules {
            record_key: owned(record_key),
            partition_by: owned(partition_by),
            complex: record_key.len() > 1,
            hive_style: true,
            url_encode: false,
        }
    }

    fn batch() -> RecordBatch {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(StringArray::from(vec![Some("a"), Some("b"), None]))),
            ("n", Arc::new(Int64Array::from(vec![Some(1), None, None]))),
            ("d", Arc::new(Date32Array::from(vec![Some(19723), None, Some(-1)]))),
            ("p", Arc::new(StringArray::from(vec![Some("x/y z"), Some(""), Some("q=1%")]))),
            ("f", Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
    }

    fn text(array: &StringArray) -> Vec<Option<&str>> {
        array.iter().collect()
    }

    #[test]
    fn a_single_key_column_is_the_bare_value_and_null_stays_null() {
        let made = rules(&["id"], &[]).make(&batch()).unwrap();
        assert_eq!(text(&made.keys), [Some("a"), Some("b"), None]);
        assert_eq!(text(&made.partitions), [Some(""); 3]);
        let made = rules(&["n"], &[]).make(&batch()).unwrap();
        assert_eq!(text(&made.keys), [Some("1"), None, None]);
    }

    #[test]
    fn a_composite_key_names_its_fields_and_its_nulls() {
        let made = rules(&["id", "n"], &[]).make(&batch()).unwrap();
        assert_eq!(text(&made.keys), [Some("id:a,n:1"), Some("id:b,n:__null__"), None]);
        let mut complex = rules(&["id"], &[]);
        complex.complex = true;
        assert_eq!(text(&complex.make(&batch()).unwrap().keys), [Some("id:a"), Some("id:b"), None]);
    }

    #[test]
    fn partition_paths_are_those_of_hudi() {
        let made = rules(&["id"], &["d", "p"]).make(&batch()).unwrap();
        let default = "d=__HIVE_DEFAULT_PARTITION__/p=__HIVE_DEFAULT_PARTITION__";
        assert_eq!(text(&made.partitions), [Some("d=2024-01-01/p=x/y z"), Some(default), Some("d=1969-12-31/p=q=1%")]);
        let mut encoded = rules(&["id"], &["p"]);
        encoded.url_encode = true;
        encoded.hive_style = false;
        let made = encoded.make(&batch()).unwrap();
        assert_eq!(text(&made.partitions), [Some("x%2Fy z"), Some("__HIVE_DEFAULT_PARTITION__"), Some("q%3D1%25")]);
    }

    #[test]
    fn an_empty_key_and_a_type_without_portable_text_are_refused_by_column() {
        assert_eq!(rules(&["p"], &[]).make(&batch()).unwrap_err(), KeyError::Empty { column: "p".to_string() });
        assert!(matches!(rules(&["f"], &[]).make(&batch()), Err(KeyError::Type { .. })));
        assert!(matches!(rules(&["nope"], &[]).make(&batch()), Err(KeyError::Missing { .. })));
    }

    #[test]
    fn a_partition_value_cannot_leave_the_table() {
        for bad in ["..", "a//b", "/a", "a/.."] {
            let schema =
                Schema::new(vec![Field::new("p", DataType::Utf8, true), Field::new("id", DataType::Utf8, true)]);
            let columns: Vec<ArrayRef> =
                vec![Arc::new(StringArray::from(vec![bad])), Arc::new(StringArray::from(vec!["k"]))];
            let batch = RecordBatch::try_new(Arc::new(schema), columns).unwrap();
            let mut rules = rules(&["id"], &["p"]);
            rules.hive_style = false;
            assert!(matches!(rules.make(&batch), Err(KeyError::Path { .. })), "{bad}");
        }
    }
}
