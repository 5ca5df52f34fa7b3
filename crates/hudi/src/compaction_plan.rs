// SPDX-License-Identifier: Apache-2.0
//! What a log compaction was asked to put together.

use std::collections::HashMap;

use hudi_core::metadata::compaction::CompactionPlan;
use tributary_types::InstantTime;

use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::log_file::{LogFile, LogNames};
use crate::slices::GroupKey;
use crate::storage::Storage;
use crate::timeline::{Action, requested_path};

/// The instants of the log files that a log compaction put together, by group; `None` where their names do not say
/// them.
pub async fn log_compaction_originals(
    storage: &Storage,
    config: &TableConfig,
    requested: &InstantTime,
) -> Result<Option<HashMap<GroupKey, Vec<InstantTime>>>> {
    if LogNames::of(config) == LogNames::BaseInstant {
        return Ok(None);
    }
    let path = requested_path(&config.timeline_dir(), requested, Action::LogCompaction);
    originals(&path, &storage.read(&path).await?).map(Some)
}

fn originals(path: &str, bytes: &[u8]) -> Result<HashMap<GroupKey, Vec<InstantTime>>> {
    let plan = CompactionPlan::from_avro_bytes(bytes).map_err(|e| Error::corrupt(path, e))?;
    let mut found: HashMap<GroupKey, Vec<InstantTime>> = HashMap::new();
    for operation in plan.operations.unwrap_or_default() {
        let group = (operation.partition_path.unwrap_or_default(), operation.file_id.unwrap_or_default());
        let logs = found.entry(group).or_default();
        for name in operation.delta_file_paths.unwrap_or_default() {
            let log = LogFile::from_path(&name, 0);
            let log = log.ok_or_else(|| Error::corrupt(path, format!("`{name}` is no log file")))?;
            logs.push(log.instant);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use hudi_core::metadata::compaction::CompactionOperation;

    use super::*;

    fn plan(names: &[&str]) -> Vec<u8> {
        let operation = CompactionOperation {
            file_id: Some("f-0".to_string()),
            partition_path: Some("p".to_string()),
            delta_file_paths: Some(names.iter().map(ToString::to_string).collect()),
            ..CompactionOperation::default()
        };
        CompactionPlan { operations: Some(vec![operation]), ..CompactionPlan::default() }.to_avro_bytes().unwrap()
    }

    #[test]
    fn a_plan_says_the_instants_of_the_logs_of_each_group() {
        let names = [".f-0_20250101000001000.log.1_0-0-0", ".f-0_20250101000002000.log.1_0-0-0"];
        let found = originals("f", &plan(&names)).unwrap();
        let instants: Vec<&str> = found[&("p".into(), "f-0".into())].iter().map(InstantTime::as_str).collect();
        assert_eq!(instants, ["20250101000001000", "20250101000002000"]);
        assert!(originals("x.requested", b"no plan").unwrap_err().to_string().contains("x.requested"));
        assert!(originals("x.requested", &plan(&["f.parquet"])).unwrap_err().to_string().contains("f.parquet"));
    }
}
