// SPDX-License-Identifier: Apache-2.0
//! Objects of JSON, one a line, or in arrays.

pub(crate) mod build;
mod decoder;
mod infer;
#[cfg(test)]
mod tests;
pub(crate) mod value;

use tributary_types::pipeline::{BadRecords, JsonOptions};

pub(crate) use decoder::JsonDecoder;
pub(crate) use infer::{JsonSampler, Shape};

use crate::cells::Formats;
use crate::pattern::Pattern;

/// Bytes of a record at most, unless an option says otherwise; and what an option may say at most.
const RECORD: u64 = 16 << 20;
const RECORD_LIMIT: u64 = 1 << 30;

/// Everything about a JSON file.
#[derive(Debug, Clone)]
pub(crate) struct JsonFormat {
    pub(crate) max_record: usize,
    pub(crate) mode: BadRecords,
    pub(crate) corrupt: Option<String>,
    pub(crate) formats: Formats,
}

impl JsonFormat {
    /// Resolves options; answers what is wrong with them.
    pub(crate) fn new(options: &JsonOptions) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut pattern = |key: &str, text: &Option<String>| {
            let pattern = text.as_deref().map(Pattern::new).transpose();
            pattern.unwrap_or_else(|problem| {
                problems.push(format!("`json.{key}`: {problem}"));
                None
            })
        };
        let date = pattern("date_format", &options.date_format);
        let timestamp = pattern("timestamp_format", &options.timestamp_format);
        let max_record = options.max_record.map_or(RECORD, |size| size.0);
        if max_record == 0 || max_record > RECORD_LIMIT {
            problems.push(format!("`json.max_record` is {max_record}: between 1 byte and 1GiB are possible"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(JsonFormat {
            max_record: max_record as usize,
            mode: options.mode.unwrap_or_default(),
            corrupt: options.column_name_of_corrupt_record.clone(),
            formats: Formats {
                nan: "NaN".to_string(),
                positive_inf: "Infinity".to_string(),
                negative_inf: "-Infinity".to_string(),
                date,
                timestamp,
            },
        })
    }
}
