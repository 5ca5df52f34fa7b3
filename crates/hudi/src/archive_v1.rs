// SPDX-License-Identifier: Apache-2.0
//! The archived timeline of layout 1: log files whose Avro blocks hold one `HoodieArchivedMetaEntry` for each state
//! that an instant went through.
//!
//! There is no manifest: the files are what the directory lists. A file may be appended to, and small ones are merged
//! into larger ones, so a file is known by its name and size.

use apache_avro::types::Value;
use apache_avro::{Schema, from_avro_datum, from_value};
use bytes::Bytes;
use hudi_core::metadata::commit::HoodieCommitMetadata;
use tributary_types::InstantTime;

use crate::archive::HistoryFile;
use crate::commit::CommitMetadata;
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::history::ArchivedInstant;
use crate::log_blocks::{BlockKind, Torn, read_blocks};
use crate::storage::Storage;
use crate::timeline::Action;

/// Names are `.commits_.archive.<number>_<write token>`.
const NAME_PREFIX: &str = ".commits_.archive.";
/// Bytes of a length inside a block.
const LENGTH: usize = 4;
/// The state of an entry that says what became of an instant.
const COMPLETED: &str = "COMPLETED";

/// One archived instant that completed.
pub(crate) struct ArchivedEntry {
    /// The instant. Layout 1 has no completion times: the requested time stands for it, as on the active timeline.
    pub(crate) instant: ArchivedInstant,
    metadata: Option<Value>,
}

impl ArchivedEntry {
    /// What the write said of itself; `file` is for messages.
    pub(crate) fn metadata(&self, file: &str) -> Result<CommitMetadata> {
        let Some(value) = &self.metadata else { return Ok(CommitMetadata::default()) };
        let raw: HoodieCommitMetadata = from_value(value).map_err(|e| Error::corrupt(file, e))?;
        Ok(CommitMetadata::from_raw(raw))
    }
}

/// The files of the archive, in the order of their names.
pub(crate) async fn list_files(storage: &Storage, config: &TableConfig) -> Result<Vec<HistoryFile>> {
    let (files, _) = storage.list_level(&config.history_dir()).await?;
    let mut found: Vec<HistoryFile> = files
        .into_iter()
        .filter(|file| file.name().starts_with(NAME_PREFIX))
        .map(|file| HistoryFile { path: file.path, range: None, bytes: file.bytes })
        .collect();
    found.sort();
    Ok(found)
}

/// A number that changes whenever the files do; `None` while nothing was archived.
pub(crate) fn version_of(files: &[HistoryFile]) -> Option<u64> {
    if files.is_empty() {
        return None;
    }
    let lines: Vec<String> = files.iter().map(|file| format!("{} {}", file.path, file.bytes)).collect();
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    Some((total << 32) | u64::from(crc32fast::hash(lines.join("\n").as_bytes())))
}

/// The completed instants in one file.
pub(crate) async fn read_file(storage: &Storage, file: &HistoryFile) -> Result<Vec<ArchivedEntry>> {
    read_entries(&file.path, &storage.read(&file.path).await?)
}

fn read_entries(file: &str, bytes: &Bytes) -> Result<Vec<ArchivedEntry>> {
    let corrupt = |detail: &dyn std::fmt::Display| Error::corrupt(file, detail);
    let mut schema: Option<(String, Schema)> = None;
    let mut found = Vec::new();
    for block in read_blocks(file, bytes, Torn::PassedOver)? {
        if block.kind != BlockKind::Avro {
            return Err(corrupt(&format!("a block of kind {:?} in an archive", block.kind)));
        }
        let text = block.schema().ok_or_else(|| corrupt(&"a block without schema"))?;
        if schema.as_ref().is_none_or(|(known, _)| known != text) {
            schema = Some((text.to_string(), parse_schema(text).map_err(|e| corrupt(&e))?));
        }
        let Some((_, schema)) = &schema else { continue };
        for mut record in split_records(&block.content).map_err(|e| corrupt(&e))? {
            let entry = from_avro_datum(schema, &mut record, None).map_err(|e| corrupt(&e))?;
            found.extend(completed_entry(file, entry)?);
        }
    }
    Ok(found)
}

/// The library panics on some schemas instead of refusing them; a damaged file must not end the process.
fn parse_schema(text: &str) -> std::result::Result<Schema, String> {
    match std::panic::catch_unwind(|| Schema::parse_str(text)) {
        Ok(parsed) => parsed.map_err(|e| e.to_string()),
        Err(_) => Err("its schema is no Avro schema".to_string()),
    }
}

/// Version, number of records, and then each record behind its length.
fn split_records(content: &Bytes) -> std::result::Result<Vec<&[u8]>, &'static str> {
    let (_version, rest) = split_number(content)?;
    let (count, mut rest) = split_number(rest)?;
    let mut records = Vec::new();
    for _ in 0..count {
        let (length, after) = split_number(rest)?;
        let (record, after) = after.split_at_checked(length).ok_or("a record that ends too early")?;
        records.push(record);
        rest = after;
    }
    Ok(records)
}

fn split_number(bytes: &[u8]) -> std::result::Result<(usize, &[u8]), &'static str> {
    let (digits, rest) = bytes.split_first_chunk::<LENGTH>().ok_or("a block that ends too early")?;
    let number = usize::try_from(u32::from_be_bytes(*digits)).map_err(|_| "a length beyond memory")?;
    Ok((number, rest))
}

fn completed_entry(file: &str, entry: Value) -> Result<Option<ArchivedEntry>> {
    let Value::Record(fields) = entry else { return Err(Error::corrupt(file, "an entry that is no record")) };
    let text = |name: &str| fields.iter().find(|(field, _)| field == name).and_then(|(_, value)| as_text(value));
    if text("actionState").is_some_and(|state| state != COMPLETED) {
        return Ok(None);
    }
    let requested = text("commitTime").ok_or_else(|| Error::corrupt(file, "an entry without a time"))?;
    // An action this version does not know changes no file it would have to find.
    let Some(action) = text("actionType").and_then(|name| Action::parse(&name)) else { return Ok(None) };
    let requested: InstantTime = requested.parse().map_err(|e| Error::corrupt(file, e))?;
    let name = match action.completed() {
        Action::ReplaceCommit => "hoodieReplaceCommitMetadata",
        _ => "hoodieCommitMetadata",
    };
    let metadata = fields.into_iter().find(|(field, _)| field == name).map(|(_, value)| value).map(unwrap_union);
    Ok(Some(ArchivedEntry {
        instant: ArchivedInstant { completed: Some(requested.clone()), requested, action: action.completed() },
        metadata: metadata.filter(|value| !matches!(value, Value::Null)),
    }))
}

fn unwrap_union(value: Value) -> Value {
    match value {
        Value::Union(_, inner) => *inner,
        other => other,
    }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::Union(_, inner) => as_text(inner),
        Value::String(text) | Value::Enum(_, text) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_that_the_library_panics_on_is_an_error() {
        assert!(parse_schema(r#"{"type":"record","name":"1 bad","fields":[]}"#).is_err());
        assert!(parse_schema("no json").is_err());
        assert!(parse_schema(r#"{"type":"record","name":"good","fields":[]}"#).is_ok());
    }

    #[test]
    fn records_lie_behind_their_lengths() {
        let content = Bytes::from_static(&[0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 7, 0, 0, 0, 2, 8, 9]);
        assert_eq!(split_records(&content).unwrap(), [&[7][..], &[8, 9]]);
        assert!(split_records(&content.slice(..content.len() - 1)).is_err(), "cut short");
    }

    #[test]
    fn only_a_completed_state_is_an_archived_instant() {
        let entry = |state: &str, action: &str| {
            let field = |name: &str, value: &str| (name.to_string(), Value::String(value.to_string()));
            Value::Record(vec![
                field("commitTime", "20250101000000001"),
                field("actionType", action),
                ("actionState".to_string(), Value::Union(1, Box::new(Value::String(state.to_string())))),
            ])
        };
        assert!(completed_entry("f", entry("INFLIGHT", "commit")).unwrap().is_none());
        assert!(completed_entry("f", entry("COMPLETED", "something new")).unwrap().is_none());
        let found = completed_entry("f", entry("COMPLETED", "commit")).unwrap().unwrap();
        assert_eq!(found.instant.completed, Some("20250101000000001".parse().unwrap()));
        assert!(!found.metadata("f").unwrap().changes_rows());
    }

    #[test]
    fn a_file_that_grew_or_came_makes_another_version() {
        let file = |number: u32, bytes| HistoryFile { path: format!("a/{number}"), range: None, bytes };
        assert_eq!(version_of(&[]), None);
        let one = version_of(&[file(1, 10)]);
        assert_ne!(one, version_of(&[file(1, 11)]));
        assert_ne!(one, version_of(&[file(1, 10), file(2, 10)]));
        assert_eq!(one, version_of(&[file(1, 10)]));
    }
}
