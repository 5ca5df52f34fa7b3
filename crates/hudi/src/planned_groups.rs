// SPDX-License-Identifier: Apache-2.0
//! The file groups that a pending table service is going to rewrite.

use std::collections::BTreeSet;

use apache_avro::Reader;
use apache_avro::types::Value;
use hudi_core::metadata::compaction::CompactionPlan;

use crate::error::{Error, Result};
use crate::slices::GroupKey;
use crate::storage::Storage;
use crate::timeline::{Action, Instant, Timeline};

/// The groups in the plan of a pending compaction, log compaction or clustering; none for other instants.
pub async fn planned_groups(storage: &Storage, timeline: &Timeline, instant: &Instant) -> Result<BTreeSet<GroupKey>> {
    let file = timeline.plan_path(instant);
    match instant.action {
        Action::Compaction | Action::LogCompaction => compacted(&file, &storage.read(&file).await?),
        Action::Clustering => clustered(&file, &storage.read(&file).await?),
        _ => Ok(BTreeSet::new()),
    }
}

fn compacted(file: &str, plan: &[u8]) -> Result<BTreeSet<GroupKey>> {
    let plan = CompactionPlan::from_avro_bytes(plan).map_err(|e| Error::corrupt(file, e))?;
    let operations = plan.operations.unwrap_or_default().into_iter();
    Ok(operations.map(|one| (one.partition_path.unwrap_or_default(), one.file_id.unwrap_or_default())).collect())
}

/// `HoodieRequestedReplaceMetadata.clusteringPlan.inputGroups[].slices[]`: whatever names both a file id and a partition
/// there is a slice.
fn clustered(file: &str, plan: &[u8]) -> Result<BTreeSet<GroupKey>> {
    let mut found = BTreeSet::new();
    for record in Reader::new(plan).map_err(|e| Error::corrupt(file, e))? {
        collect_slices(&record.map_err(|e| Error::corrupt(file, e))?, &mut found);
    }
    // A clustering of nothing is never planned; one that cannot be understood must not be taken for one.
    if found.is_empty() {
        return Err(Error::corrupt(file, "a plan of a clustering that names no file group"));
    }
    Ok(found)
}

fn collect_slices(value: &Value, found: &mut BTreeSet<GroupKey>) {
    match value {
        Value::Record(fields) => {
            let field =
                |wanted: &str| fields.iter().find(|(name, _)| name == wanted).and_then(|(_, value)| text(value));
            if let (Some(partition), Some(file_id)) = (field("partitionPath"), field("fileId")) {
                found.insert((partition, file_id));
                return;
            }
            fields.iter().for_each(|(_, value)| collect_slices(value, found));
        }
        Value::Union(_, inner) => collect_slices(inner, found),
        Value::Array(values) => values.iter().for_each(|value| collect_slices(value, found)),
        _ => {}
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Union(_, inner) => text(inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use apache_avro::{Schema, Writer};
    use hudi_core::metadata::compaction::CompactionOperation;

    use super::*;

    const CLUSTERING: &str = r#"{"type": "record", "name": "HoodieRequestedReplaceMetadata", "fields": [
        {"name": "operationType", "type": ["null", "string"], "default": null},
        {"name": "clusteringPlan", "type": ["null", {"type": "record", "name": "HoodieClusteringPlan", "fields": [
            {"name": "inputGroups", "type": ["null", {"type": "array", "items":
                {"type": "record", "name": "HoodieClusteringGroup", "fields": [
                    {"name": "slices", "type": ["null", {"type": "array", "items":
                        {"type": "record", "name": "HoodieSliceInfo", "fields": [
                            {"name": "dataFilePath", "type": ["null", "string"], "default": null},
                            {"name": "fileId", "type": ["null", "string"], "default": null},
                            {"name": "partitionPath", "type": ["null", "string"], "default": null}]}}],
                     "default": null}]}}], "default": null}]}], "default": null}]}"#;

    fn union(value: Value) -> Value {
        Value::Union(1, Box::new(value))
    }

    fn named(name: &str, value: Value) -> (String, Value) {
        (name.to_string(), value)
    }

    fn clustering(groups: &[(&str, &str)]) -> Vec<u8> {
        let slice = |(partition, id): &(&str, &str)| {
            Value::Record(vec![
                named("dataFilePath", Value::Union(0, Box::new(Value::Null))),
                named("fileId", union(Value::String((*id).to_string()))),
                named("partitionPath", union(Value::String((*partition).to_string()))),
            ])
        };
        let input = |group| Value::Record(vec![named("slices", union(Value::Array(vec![slice(group)])))]);
        let inputs = groups.iter().map(input).collect();
        let plan = Value::Record(vec![named("inputGroups", union(Value::Array(inputs)))]);
        let schema = Schema::parse_str(CLUSTERING).unwrap();
        let mut writer = Writer::new(&schema, Vec::new());
        let record = Value::Record(vec![
            named("operationType", union(Value::String("CLUSTER".to_string()))),
            named("clusteringPlan", union(plan)),
        ]);
        writer.append(record).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn a_clustering_rewrites_the_slices_of_its_input_groups() {
        let found = clustered("f", &clustering(&[("d=1", "a-0"), ("", "b-0")])).unwrap();
        let expected = [("d=1".to_string(), "a-0".to_string()), (String::new(), "b-0".to_string())];
        assert_eq!(found, expected.into_iter().collect());
    }

    #[test]
    fn a_clustering_that_names_no_group_is_not_taken_for_one_that_rewrites_nothing() {
        assert!(clustered("x.requested", &clustering(&[])).unwrap_err().to_string().contains("x.requested"));
        assert!(clustered("x.requested", b"nonsense").unwrap_err().to_string().contains("x.requested"));
    }

    #[test]
    fn a_compaction_rewrites_the_groups_of_its_operations() {
        let operation = CompactionOperation {
            file_id: Some("a-0".to_string()),
            partition_path: Some("d=1".to_string()),
            ..CompactionOperation::default()
        };
        let plan = CompactionPlan { operations: Some(vec![operation]), ..CompactionPlan::default() };
        let found = compacted("f", &plan.to_avro_bytes().unwrap()).unwrap();
        assert_eq!(found, [("d=1".to_string(), "a-0".to_string())].into_iter().collect());
        assert!(compacted("x.requested", b"no plan").unwrap_err().to_string().contains("x.requested"));
    }
}
