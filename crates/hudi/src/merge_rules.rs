// SPDX-License-Identifier: Apache-2.0
//! Which of two rows of one key stays, as the table's properties say.
//!
//! Tables say it outright since version 8 (`hoodie.record.merge.mode`); older ones by their payload class
//! (`HoodieTableConfig.inferMergingConfigsForPreV9Table`). A merger of the table's own is Java code, and refused.

use crate::config::TableConfig;
use crate::error::{Error, Result};

const MERGE_MODE: &str = "hoodie.record.merge.mode";
const EVENT_TIME: &str = "EVENT_TIME_ORDERING";
const COMMIT_TIME: &str = "COMMIT_TIME_ORDERING";

const PAYLOADS: [&str; 2] = ["hoodie.compaction.payload.class", "hoodie.datasource.write.payload.class"];
const EVENT_TIME_PAYLOADS: [&str; 2] =
    ["org.apache.hudi.common.model.DefaultHoodieRecordPayload", "org.apache.hudi.common.model.EventTimeAvroPayload"];
const COMMIT_TIME_PAYLOAD: &str = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload";

const STRATEGIES: [&str; 2] = ["hoodie.record.merge.strategy.id", "hoodie.compaction.record.merger.strategy"];
const EVENT_TIME_STRATEGY: &str = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5";
const COMMIT_TIME_STRATEGY: &str = "ce9acb64-bde0-424c-9b91-f6ebba25356d";

const PARTIAL_UPDATE_MODE: &str = "hoodie.table.partial.update.mode";
/// Where version 9 keeps what a payload class of old was told; the plain name is that of writers.
const MERGE_PROPERTY: &str = "hoodie.record.merge.property.";
const DELETE_FIELD: &str = "hoodie.payload.delete.field";
const DELETE_MARKER: &str = "hoodie.payload.delete.marker";

/// Which of two rows of one key stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergeRules {
    /// Columns whose values decide, the later row winning a tie; `None`: the later row always stays.
    pub ordering: Option<Vec<String>>,
    /// A column and the value in it that marks a row as deleted, besides Hudi's own marks.
    pub delete_marker: Option<(String, String)>,
}

impl MergeRules {
    /// The rules of a table; a merger that only Java has is refused by name.
    pub fn of(config: &TableConfig) -> Result<Self> {
        if let Some(mode) = config.get(PARTIAL_UPDATE_MODE) {
            return Err(Error::unsupported(format!(
                "it merges rows column by column (`{PARTIAL_UPDATE_MODE}={mode}`), which cannot be applied"
            )));
        }
        let ordering = match by_event_time(config)? {
            true => Some(config.ordering()),
            false => None,
        };
        Ok(MergeRules { ordering, delete_marker: delete_marker(config) })
    }
}

fn by_event_time(config: &TableConfig) -> Result<bool> {
    let payload = PAYLOADS.iter().find_map(|key| config.get(key));
    if let Some(mode) = config.get(MERGE_MODE) {
        return match mode.to_ascii_uppercase().as_str() {
            EVENT_TIME => Ok(true),
            COMMIT_TIME => Ok(false),
            _ => Err(own_merger(&format!("{MERGE_MODE}={mode}"), payload)),
        };
    }
    let strategy = STRATEGIES.iter().find_map(|key| config.get(key));
    let by_payload = payload.map(|class| match class {
        class if EVENT_TIME_PAYLOADS.contains(&class) => Ok(true),
        COMMIT_TIME_PAYLOAD => Ok(false),
        class => Err(own_merger(class, None)),
    });
    let by_strategy = strategy.map(|id| match id {
        EVENT_TIME_STRATEGY => Ok(true),
        COMMIT_TIME_STRATEGY => Ok(false),
        id => Err(own_merger(&format!("merge strategy {id}"), payload)),
    });
    let inferred = if config.version >= 8 { by_strategy.or(by_payload) } else { by_payload.or(by_strategy) };
    inferred.unwrap_or(Ok(!config.ordering().is_empty()))
}

fn own_merger(what: &str, payload: Option<&str>) -> Error {
    let payload = payload.map(|class| format!(" with payload `{class}`")).unwrap_or_default();
    Error::unsupported(format!(
        "it merges rows with a merger of its own (`{what}`{payload}), which cannot be applied: event time and commit \
         time ordering can"
    ))
}

fn delete_marker(config: &TableConfig) -> Option<(String, String)> {
    let find = |key: &str| config.get(&format!("{MERGE_PROPERTY}{key}")).or_else(|| config.get(key));
    Some((find(DELETE_FIELD)?.to_string(), find(DELETE_MARKER)?.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(version: &str, lines: &[(&str, &str)]) -> Result<MergeRules> {
        let all = [("hoodie.table.name", "t"), ("hoodie.table.version", version)];
        let all = all.iter().chain(lines).map(|(key, value)| (key.to_string(), value.to_string())).collect();
        MergeRules::of(&TableConfig::from_properties("p", all).unwrap())
    }

    fn ordering(version: &str, lines: &[(&str, &str)]) -> Option<Vec<String>> {
        rules(version, lines).unwrap().ordering
    }

    #[test]
    fn a_table_that_says_its_merge_mode_is_taken_at_its_word() {
        let fields = ("hoodie.table.ordering.fields", "ts,seq");
        let payload = (PAYLOADS[0], "com.example.Mine");
        assert_eq!(ordering("9", &[(MERGE_MODE, EVENT_TIME), fields, payload]).unwrap(), ["ts", "seq"]);
        assert_eq!(ordering("9", &[(MERGE_MODE, COMMIT_TIME), fields]), None);
    }

    #[test]
    fn older_tables_merge_as_their_payload_class_says_before_version_eight_and_as_their_strategy_says_after() {
        let fields = ("hoodie.table.precombine.field", "ts");
        let lines = [fields, (PAYLOADS[0], COMMIT_TIME_PAYLOAD), (STRATEGIES[1], EVENT_TIME_STRATEGY)];
        assert_eq!(ordering("6", &lines), None);
        assert_eq!(ordering("8", &lines).unwrap(), ["ts"]);
        assert_eq!(ordering("6", &[fields, (PAYLOADS[0], EVENT_TIME_PAYLOADS[0])]).unwrap(), ["ts"]);
        assert_eq!(ordering("6", &[fields]).unwrap(), ["ts"]);
        assert_eq!(ordering("6", &[]), None);
    }

    #[test]
    fn mergers_of_a_tables_own_are_refused_by_name() {
        for (lines, named) in [
            (vec![(MERGE_MODE, "CUSTOM"), (PAYLOADS[0], "com.example.Mine")], "com.example.Mine"),
            (vec![(PAYLOADS[0], "com.example.Mine")], "com.example.Mine"),
            (vec![(STRATEGIES[0], "00000000-0000-0000-0000-000000000000")], "00000000-"),
            (vec![(PARTIAL_UPDATE_MODE, "IGNORE_DEFAULTS")], "IGNORE_DEFAULTS"),
        ] {
            let refused = rules("6", &lines).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn a_delete_marker_needs_a_column_and_a_value() {
        let field = format!("{MERGE_PROPERTY}{DELETE_FIELD}");
        let marker = format!("{MERGE_PROPERTY}{DELETE_MARKER}");
        let both = rules("9", &[(&field, "Op"), (&marker, "D")]).unwrap();
        assert_eq!(both.delete_marker, Some(("Op".to_string(), "D".to_string())));
        assert_eq!(rules("9", &[(&field, "Op")]).unwrap().delete_marker, None);
    }
}
