// SPDX-License-Identifier: Apache-2.0
//! The names of a file's columns, and which column of a schema each field is.

use std::collections::HashSet;

use arrow::datatypes::Schema;
use tributary_types::pipeline::DuplicateNames;

use crate::csv::format::{CsvFormat, Dialect};
use crate::csv::tokenizer::{ESCAPED, Field, QUOTED};

/// The names in a file's first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) names: Vec<String>,
}

impl Header {
    /// Reads the names of a line. A field without a name is called by its position, as a column without a header is.
    pub(crate) fn read(format: &CsvFormat, buf: &[u8], fields: &[Field]) -> Result<Self, String> {
        let mut names = Vec::with_capacity(fields.len());
        for (position, field) in fields.iter().enumerate() {
            let name = std::str::from_utf8(&text_of(&format.dialect, buf, field)).map(str::to_string);
            let name = name.map_err(|_| format!("the name of column {position} in its header is no UTF-8"))?;
            let unnamed = name.is_empty() || (format.spark_nulls && name.as_bytes() == format.null);
            names.push(if unnamed { numbered(position) } else { name });
        }
        let repeated = repeated_names(&names);
        if repeated.is_empty() {
            return Ok(Header { names });
        }
        match format.duplicates {
            DuplicateNames::Fail => {
                let mut shown: Vec<&str> =
                    names.iter().filter(|name| repeated.contains(&name.to_lowercase())).map(String::as_str).collect();
                shown.truncate(10);
                Err(format!(
                    "its header names columns twice: {}; rename them, or set `csv.duplicate_names = \"suffix\"`",
                    shown.join(", ")
                ))
            }
            DuplicateNames::Suffix => {
                for (position, name) in names.iter_mut().enumerate() {
                    if repeated.contains(&name.to_lowercase()) {
                        name.push_str(&position.to_string());
                    }
                }
                match repeated_names(&names).is_empty() {
                    true => Ok(Header { names }),
                    false => Err(format!("its header names columns twice, whatever is appended: {}", names.join(", "))),
                }
            }
        }
    }

    /// The fields of a schema's columns: by name, whatever the case where only that differs.
    pub(crate) fn positions(&self, schema: &Schema) -> Vec<Option<usize>> {
        let position = |name: &str| {
            let exact = self.names.iter().position(|found| found == name);
            exact.or_else(|| self.names.iter().position(|found| found.to_lowercase() == name.to_lowercase()))
        };
        schema.fields().iter().map(|field| position(field.name())).collect()
    }
}

/// Names, in lower case, that more than one column has.
fn repeated_names(names: &[String]) -> HashSet<String> {
    let mut seen = HashSet::new();
    names.iter().map(|name| name.to_lowercase()).filter(|name| !seen.insert(name.clone())).collect()
}

/// The name of a column without one.
pub(crate) fn numbered(position: usize) -> String {
    format!("_c{position}")
}

/// A field's text, without quotes and escapes.
pub(crate) fn text_of(dialect: &Dialect, buf: &[u8], field: &Field) -> Vec<u8> {
    let text = &buf[field.start as usize..field.end as usize];
    if field.flags & ESCAPED == 0 {
        return text.to_vec();
    }
    let mut out = Vec::with_capacity(text.len());
    dialect.unescape(text, field.flags & QUOTED != 0, &mut out);
    out
}
