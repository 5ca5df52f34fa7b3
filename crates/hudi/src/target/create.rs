// SPDX-License-Identifier: Apache-2.0
//! Creating a table of version 8 or 9.

use tributary_types::InstantTime;
use tributary_types::pipeline::TableType;

use crate::config::{PROPERTIES, PROPERTIES_BACKUP, table_checksum};
use crate::error::Result;
use crate::properties::format_property;
use crate::storage::{PutNew, Storage};

/// Merge strategies of Hudi, by merge mode (`HoodieRecordMerger`).
const EVENT_TIME_STRATEGY: &str = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5";
const COMMIT_TIME_STRATEGY: &str = "ce9acb64-bde0-424c-9b91-f6ebba25356d";
/// The payload classes that mean the same, which tables before version 9 name besides.
const EVENT_TIME_PAYLOAD: &str = "org.apache.hudi.common.model.DefaultHoodieRecordPayload";
const COMMIT_TIME_PAYLOAD: &str = "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload";

/// A table to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTable {
    /// Its name.
    pub name: String,
    /// Its layout.
    pub table_type: TableType,
    /// Its version.
    pub version: u32,
    /// Record key columns.
    pub record_key: Vec<String>,
    /// Partition columns.
    pub partition_by: Vec<String>,
    /// Ordering columns.
    pub ordering: Vec<String>,
    /// Whether partition paths are `column=value`.
    pub hive_style: bool,
    /// Whether partition values are percent-encoded.
    pub url_encode: bool,
}

/// Makes the table: its metadata table first, `hoodie.properties` last, so that a table exists only once it is whole.
/// Answers [`PutNew::Exists`] when somebody else made one meanwhile.
pub async fn create_table(storage: &Storage, table: &NewTable, now: &InstantTime) -> Result<PutNew> {
    super::metadata::create(storage, &table.name, table.version, now).await?;
    storage.put_new(PROPERTIES, properties(table).into_bytes()).await
}

/// Describes a table anew that never had a commit, by the update protocol of Hudi: a backup that readers fall back to,
/// the new properties, then the backup goes.
pub async fn replace_untouched(storage: &Storage, table: &NewTable) -> Result<()> {
    let old = storage.read(PROPERTIES).await?;
    storage.put(PROPERTIES_BACKUP, old).await?;
    storage.put(PROPERTIES, properties(table).into_bytes()).await?;
    storage.delete(PROPERTIES_BACKUP).await
}

impl NewTable {
    /// Short name of the key generator that makes the keys, as Hudi stores it.
    pub fn key_generator(&self) -> &'static str {
        match (self.partition_by.len(), self.record_key.len()) {
            (0, _) => "NON_PARTITION",
            (1, 1) => "SIMPLE",
            _ => "COMPLEX",
        }
    }
}

fn properties(table: &NewTable) -> String {
    let version = table.version.to_string();
    let record_key = table.record_key.join(",");
    let partition_by = table.partition_by.join(",");
    let ordering = table.ordering.join(",");
    let checksum = table_checksum("", &table.name).to_string();
    let (mode, strategy, payload) = match table.ordering.is_empty() {
        true => ("COMMIT_TIME_ORDERING", COMMIT_TIME_STRATEGY, COMMIT_TIME_PAYLOAD),
        false => ("EVENT_TIME_ORDERING", EVENT_TIME_STRATEGY, EVENT_TIME_PAYLOAD),
    };
    let mut lines = vec![
        ("hoodie.table.name", table.name.as_str()),
        ("hoodie.table.type", table.table_type.as_str()),
        ("hoodie.table.version", &version),
        ("hoodie.table.initial.version", &version),
        ("hoodie.table.format", "native"),
        ("hoodie.timeline.layout.version", "2"),
        ("hoodie.timeline.path", "timeline"),
        ("hoodie.timeline.history.path", "history"),
        ("hoodie.archivelog.folder", "history"),
        ("hoodie.table.timeline.timezone", "UTC"),
        ("hoodie.table.base.file.format", "PARQUET"),
        ("hoodie.table.multiple.base.file.formats.enable", "false"),
        ("hoodie.table.cdc.enabled", "false"),
        ("hoodie.populate.meta.fields", "true"),
        ("hoodie.partition.metafile.use.base.format", "false"),
        ("hoodie.datasource.write.drop.partition.columns", "false"),
        ("hoodie.datasource.write.hive_style_partitioning", if table.hive_style { "true" } else { "false" }),
        ("hoodie.datasource.write.partitionpath.urlencode", if table.url_encode { "true" } else { "false" }),
        ("hoodie.table.keygenerator.type", table.key_generator()),
        ("hoodie.table.recordkey.fields", &record_key),
        ("hoodie.record.merge.mode", mode),
        ("hoodie.record.merge.strategy.id", strategy),
        ("hoodie.table.metadata.partitions", "files"),
        ("hoodie.table.metadata.partitions.inflight", ""),
    ];
    if !table.partition_by.is_empty() {
        lines.push(("hoodie.table.partition.fields", &partition_by));
    }
    if !table.ordering.is_empty() {
        lines.push(("hoodie.table.ordering.fields", &ordering));
    }
    if table.version < 9 {
        lines.push(("hoodie.compaction.payload.class", payload));
        // The name that releases before 1.1 know.
        if let [column] = table.ordering.as_slice() {
            lines.push(("hoodie.table.precombine.field", column));
        }
    }
    lines.push(("hoodie.table.checksum", &checksum));
    lines.iter().map(|(key, value)| format!("{}\n", format_property(key, value))).collect()
}
