// SPDX-License-Identifier: Apache-2.0
//! `hoodie.properties`: what a table says of itself.

use std::collections::BTreeMap;

use tributary_types::Zone;
use tributary_types::pipeline::TableType;

use crate::error::{Error, Result};
use crate::properties::parse_properties;
use crate::storage::Storage;

/// Where the properties are.
pub const PROPERTIES: &str = ".hoodie/hoodie.properties";
/// Where Java leaves the old properties while it replaces them; read when the main file is missing.
pub const PROPERTIES_BACKUP: &str = ".hoodie/hoodie.properties.backup";

/// What a table says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableConfig {
    properties: BTreeMap<String, String>,
    /// `hoodie.table.name`.
    pub name: String,
    /// `hoodie.table.version`.
    pub version: u32,
    /// `hoodie.table.type`.
    pub table_type: TableType,
    /// `hoodie.timeline.layout.version`: 1 up to table version 7, 2 from 8 on.
    pub layout: u32,
    /// `hoodie.table.timeline.timezone`; `LOCAL` where absent.
    pub zone: Zone,
}

impl TableConfig {
    /// Reads the properties of the table, from the backup when an update of them was interrupted.
    pub async fn load(storage: &Storage) -> Result<Self> {
        for file in [PROPERTIES, PROPERTIES_BACKUP] {
            if let Some(bytes) = storage.get(file).await? {
                let text = String::from_utf8_lossy(&bytes);
                return Self::from_properties(file, parse_properties(&text));
            }
        }
        Err(Error::NoTable { url: storage.url().to_string() })
    }

    /// Interprets properties; `file` is for messages.
    pub fn from_properties(file: &str, properties: BTreeMap<String, String>) -> Result<Self> {
        let get = |key: &str| properties.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
        let number = |key: &str, absent: Option<u32>| match (get(key), absent) {
            (Some(value), _) => {
                value.parse::<u32>().map_err(|_| Error::corrupt(file, format!("`{key}` is `{value}`, no number")))
            }
            (None, Some(absent)) => Ok(absent),
            (None, None) => Err(Error::corrupt(file, format!("`{key}` is missing"))),
        };
        let name =
            get("hoodie.table.name").ok_or_else(|| Error::corrupt(file, "`hoodie.table.name` is missing"))?.to_string();
        let version = number("hoodie.table.version", None)?;
        let table_type = match get("hoodie.table.type") {
            Some("COPY_ON_WRITE") | None => TableType::CopyOnWrite,
            Some("MERGE_ON_READ") => TableType::MergeOnRead,
            Some(other) => return Err(Error::corrupt(file, format!("`hoodie.table.type` is `{other}`"))),
        };
        let zone = match get("hoodie.table.timeline.timezone") {
            Some(zone) if zone.eq_ignore_ascii_case("UTC") => Zone::Utc,
            _ => Zone::Local,
        };
        let layout = number("hoodie.timeline.layout.version", Some(if version >= 8 { 2 } else { 1 }))?;
        Ok(TableConfig { name, version, table_type, layout, zone, properties })
    }

    /// A property, if it is set and not empty.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.properties.get(key).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Every property.
    pub fn properties(&self) -> &BTreeMap<String, String> {
        &self.properties
    }

    /// A true-or-false property.
    pub fn flag(&self, key: &str, absent: bool) -> bool {
        self.get(key).map_or(absent, |value| value.eq_ignore_ascii_case("true"))
    }

    /// A comma-separated property.
    pub fn list(&self, key: &str) -> Vec<String> {
        let items = self.get(key).map(|value| value.split(',').map(|item| item.trim().to_string()));
        items.map(|items| items.filter(|item| !item.is_empty()).collect()).unwrap_or_default()
    }

    /// Record key columns; empty when Hudi generates keys.
    pub fn record_key(&self) -> Vec<String> {
        self.list("hoodie.table.recordkey.fields")
    }

    /// Partition columns, without the type suffix (`ts:TIMESTAMP`) that custom key generators add.
    pub fn partition_by(&self) -> Vec<String> {
        let fields = self.list("hoodie.table.partition.fields");
        fields.into_iter().map(|field| field.split(':').next().unwrap_or_default().to_string()).collect()
    }

    /// Ordering columns: `ordering.fields` since version 9, `precombine.field` before.
    pub fn ordering(&self) -> Vec<String> {
        match self.list("hoodie.table.ordering.fields") {
            fields if fields.is_empty() => self.list("hoodie.table.precombine.field"),
            fields => fields,
        }
    }

    /// Whether rows carry the five meta columns.
    pub fn has_meta_columns(&self) -> bool {
        self.flag("hoodie.populate.meta.fields", true)
    }

    /// Whether partition columns were left out of the data files.
    pub fn drops_partition_columns(&self) -> bool {
        self.flag("hoodie.datasource.write.drop.partition.columns", false)
    }

    /// Whether partition paths are `column=value`.
    pub fn hive_style(&self) -> bool {
        self.flag("hoodie.datasource.write.hive_style_partitioning", false)
    }

    /// Whether partition values are percent-encoded in paths.
    pub fn url_encode(&self) -> bool {
        self.flag("hoodie.datasource.write.partitionpath.urlencode", false)
    }

    /// Key generator: the short type where there is one, else the class name, else empty.
    pub fn key_generator(&self) -> &str {
        self.get("hoodie.table.keygenerator.type").or_else(|| self.get("hoodie.table.keygenerator.class")).unwrap_or("")
    }

    /// Partitions of the metadata table that are complete; empty: there is no metadata table.
    pub fn metadata_partitions(&self) -> Vec<String> {
        self.list("hoodie.table.metadata.partitions")
    }

    /// Directory of the active timeline, relative to the table.
    pub fn timeline_dir(&self) -> String {
        match self.layout {
            1 => ".hoodie".to_string(),
            _ => format!(".hoodie/{}", self.get("hoodie.timeline.path").unwrap_or("timeline")),
        }
    }

    /// Directory of the archived timeline, relative to the table.
    pub fn history_dir(&self) -> String {
        match self.layout {
            1 => format!(".hoodie/{}", self.get("hoodie.archivelog.folder").unwrap_or("archived")),
            _ => format!("{}/{}", self.timeline_dir(), self.get("hoodie.timeline.history.path").unwrap_or("history")),
        }
    }
}

/// Decimal CRC-32 over `<database>.<table>`, as Java stores it under `hoodie.table.checksum`. Without a database the
/// text starts with the dot.
pub fn table_checksum(database: &str, table: &str) -> u32 {
    crc32fast::hash(format!("{database}.{table}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(lines: &str) -> Result<TableConfig> {
        TableConfig::from_properties("p", parse_properties(lines))
    }

    #[test]
    fn checksums_equal_those_of_spark_written_tables() {
        assert_eq!(table_checksum("default", "trips"), 2_200_697_520);
        assert_eq!(table_checksum("", "trips"), 3_761_586_722);
        assert_eq!(table_checksum("", "mdt"), 2_002_732_260);
        // Version 6.
        assert_eq!(table_checksum("default", "v6_nonpartitioned"), 1_363_530_505);
        assert_eq!(table_checksum("", "cow_v6_updates"), 579_903_663);
        assert_eq!(table_checksum("", "mdt_metadata"), 1_751_370_147);
    }

    #[test]
    fn a_version_nine_table_says_where_its_timeline_is() {
        let config = config("hoodie.table.name=t\nhoodie.table.version=9\nhoodie.timeline.layout.version=2\n").unwrap();
        assert_eq!(config.timeline_dir(), ".hoodie/timeline");
        assert_eq!(config.history_dir(), ".hoodie/timeline/history");
        assert_eq!((config.zone, config.table_type), (Zone::Local, TableType::CopyOnWrite));
        assert!(config.has_meta_columns());
    }

    #[test]
    fn a_version_six_table_keeps_its_timeline_beside_its_properties() {
        let config =
            config("hoodie.table.name=t\nhoodie.table.version=6\nhoodie.archivelog.folder=archived\n").unwrap();
        assert_eq!(
            (config.layout, config.timeline_dir(), config.history_dir()),
            (1, ".hoodie".into(), ".hoodie/archived".into())
        );
        assert_eq!(config.zone, Zone::Local, "no version 6 property says another one by default");
    }

    #[test]
    fn a_missing_name_or_version_is_corrupt_and_named() {
        assert!(config("hoodie.table.version=9").unwrap_err().to_string().contains("hoodie.table.name"));
        assert!(config("hoodie.table.name=t").unwrap_err().to_string().contains("hoodie.table.version"));
        assert!(config("hoodie.table.name=t\nhoodie.table.version=x").unwrap_err().to_string().contains("no number"));
    }

    #[test]
    fn ordering_falls_back_to_the_older_property() {
        let old = config("hoodie.table.name=t\nhoodie.table.version=8\nhoodie.table.precombine.field=ts").unwrap();
        assert_eq!(old.ordering(), ["ts"]);
    }
}
