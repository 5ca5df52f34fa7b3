// SPDX-License-Identifier: Apache-2.0
//! Pending instants that will change rows when they complete.
//!
//! On layout 1 a pending `replacecommit` is an overwrite or a clustering. Its plan, an Avro file, says which
//! (`HoodieRequestedReplaceMetadata.operationType`); a writer that overwrites may leave it empty.

use apache_avro::Reader;
use apache_avro::types::Value;

use crate::error::{Error, Result};
use crate::storage::Storage;
use crate::timeline::{Action, Instant, Timeline};

const CLUSTER: &str = "CLUSTER";

/// Pending instants that are no table services, by requested time.
pub async fn pending_changes<'a>(storage: &Storage, timeline: &'a Timeline) -> Result<Vec<&'a Instant>> {
    let mut found = Vec::new();
    // Collected: a lazily filtered iterator held across an await is not known to be `Send`.
    for instant in timeline.pending_writes().collect::<Vec<_>>() {
        let service = match instant.action {
            Action::Compaction | Action::LogCompaction | Action::Clustering => true,
            Action::ReplaceCommit if timeline.layout() == 1 && instant.has_requested => {
                let file = timeline.plan_path(instant);
                plans_clustering(&file, &storage.read(&file).await?)?
            }
            _ => false,
        };
        if !service {
            found.push(instant);
        }
    }
    Ok(found)
}

fn plans_clustering(file: &str, plan: &[u8]) -> Result<bool> {
    if plan.is_empty() {
        return Ok(false);
    }
    let mut records = Reader::new(plan).map_err(|e| Error::corrupt(file, e))?;
    let Some(record) = records.next() else { return Ok(false) };
    let Value::Record(fields) = record.map_err(|e| Error::corrupt(file, e))? else {
        return Err(Error::corrupt(file, "a plan that is no record"));
    };
    let operation = fields.into_iter().find(|(name, _)| name == "operationType").map(|(_, value)| value);
    let operation = match operation {
        Some(Value::Union(_, inner)) => Some(*inner),
        other => other,
    };
    Ok(matches!(operation, Some(Value::String(text)) if text == CLUSTER))
}

#[cfg(test)]
mod tests {
    use apache_avro::{Schema, Writer};

    use super::*;

    fn plan(operation: &str) -> Vec<u8> {
        let schema = r#"{"type": "record", "name": "Plan", "fields": [
            {"name": "operationType", "type": ["null", "string"], "default": null},
            {"name": "version", "type": ["int", "null"], "default": 1}]}"#;
        let schema = Schema::parse_str(schema).unwrap();
        let mut writer = Writer::new(&schema, Vec::new());
        let text = Value::Union(1, Box::new(Value::String(operation.to_string())));
        let version = Value::Union(0, Box::new(Value::Int(1)));
        let record = Value::Record(vec![("operationType".to_string(), text), ("version".to_string(), version)]);
        writer.append(record).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn a_plan_says_whether_it_is_a_clustering() {
        assert!(plans_clustering("f", &plan("CLUSTER")).unwrap());
        assert!(!plans_clustering("f", &plan("INSERT_OVERWRITE")).unwrap());
        assert!(!plans_clustering("f", b"").unwrap(), "an overwrite may leave its plan empty");
        assert!(plans_clustering("x.requested", b"nonsense").unwrap_err().to_string().contains("x.requested"));
    }
}
