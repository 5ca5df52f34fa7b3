// SPDX-License-Identifier: Apache-2.0
//! Keeping the metadata table's `column_stats` and `partition_stats` true, which Spark skips files and partitions by.
//!
//! A record of `column_stats` holds the least and greatest value and the counts of one column of one file. One of
//! `partition_stats` holds the same of all files of a partition; here it is only ever widened: what a commit adds is
//! merged with what was there (`isTightBound` false), so it may promise too little and never too much. Which columns
//! there are records of is said by the table's index definitions. A column without a record of a file does not exclude
//! that file.
//!
//! Keys, shards and the merging of records are those of Hudi's Java classes `HoodieTableMetadataUtil` and
//! `HoodieMetadataPayload`.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::{DataType, TimeUnit};
use futures::{StreamExt, TryStreamExt};
use hudi_core::metadata::payload_merger::MetadataPayloadMerger;
use hudi_core::metadata::table::column_stats::{
    ColumnRangeStats, aggregate_partition_stats, column_ranges_from_parquet_bytes, column_stats_for_file,
};
use hudi_core::metadata::table::encode::{
    ColumnStatValue, ColumnStatsMetadata, StatsIndexVersion, decode_column_stats_entry, encode_column_stats,
    encode_partition_stats,
};
use hudi_core::metadata::table::hash::{column_stats_index_key, partition_stats_index_key};
use serde::Deserialize;
use tributary_types::InstantTime;

use super::metadata::{FileChange, METADATA_DIR, Part, files_part, write_parts};
use crate::base_file::parse_base_file_name;
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::mdt_read::{Slice, file_id, hfile_records, newest_slices, own_timeline, read_slice};
use crate::parquet_file::footer_bytes;
use crate::storage::{REQUESTS_AT_ONCE, Storage};
use crate::timeline::Timeline;

const COLUMN_STATS: &str = "column_stats";
const PARTITION_STATS: &str = "partition_stats";
/// Partitions of the metadata table that this keeps.
pub(super) const STATISTICS: [&str; 2] = [COLUMN_STATS, PARTITION_STATS];
/// Where index definitions are where the table does not say (`hoodie.table.index.defs.path`).
const DEFINITIONS: &str = ".hoodie/.index_defs/index.json";
/// The same in every record of a file, so its statistics are left out of the file itself.
const PARTITION_PATH: &str = "_hoodie_partition_path";

/// Which columns a table keeps statistics of, and in which form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsIndex {
    columns: BTreeSet<String>,
    version: StatsIndexVersion,
    of_partitions: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Definitions {
    #[serde(default)]
    index_definitions: BTreeMap<String, Definition>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Definition {
    #[serde(default)]
    source_fields: Vec<String>,
    version: Option<String>,
}

impl StatsIndex {
    /// What the table says; `None` where it keeps no statistics. An error names what is missing or not understood.
    pub async fn load(storage: &Storage, config: &TableConfig) -> Result<Option<Self>> {
        let kept = config.metadata_partitions();
        let keeps = |name: &str| kept.iter().any(|kept| kept == name);
        if !STATISTICS.iter().any(|name| keeps(name)) {
            return Ok(None);
        }
        // Early 1.0 releases wrote where it was at the time, which a moved table is not any more.
        let path = config.get("hoodie.table.index.defs.path").filter(|path| path.starts_with(".hoodie/"));
        let path = path.unwrap_or(DEFINITIONS);
        let Some(bytes) = storage.get(path).await? else {
            return Err(Error::unsupported(format!(
                "the metadata table keeps {COLUMN_STATS}, but `{path}`, which says of which columns, is missing; commit once \
                 with Spark, which writes it"
            )));
        };
        Self::parse(path, &bytes, config.version, keeps(PARTITION_STATS)).map(Some)
    }

    fn parse(path: &str, bytes: &[u8], table_version: u32, of_partitions: bool) -> Result<Self> {
        let definitions: Definitions = serde_json::from_slice(bytes).map_err(|e| Error::corrupt(path, e))?;
        let Some(definition) = definitions.index_definitions.get(COLUMN_STATS) else {
            return Err(Error::unsupported(format!("`{path}` has no definition of {COLUMN_STATS}")));
        };
        let version = match definition.version.as_deref() {
            Some("V1") => StatsIndexVersion::V1,
            Some("V2") => StatsIndexVersion::V2,
            None if table_version < 9 => StatsIndexVersion::V1,
            None => StatsIndexVersion::V2,
            Some(other) => {
                return Err(Error::unsupported(format!(
                    "`{path}`: {COLUMN_STATS} is of version {other}: V1 and V2 are known"
                )));
            }
        };
        Ok(StatsIndex { columns: definition.source_fields.iter().cloned().collect(), version, of_partitions })
    }

    /// Whether bounds of a column of this type can be kept as Hudi's writers keep them.
    pub fn follows(&self, column: &str, data_type: &DataType) -> bool {
        // Bounds are in microseconds here; of other units Hudi writes the number itself.
        let is_other_time = matches!(data_type, DataType::Timestamp(unit, _) if *unit != TimeUnit::Microsecond)
            || matches!(data_type, DataType::Time32(_) | DataType::Time64(_));
        !(is_other_time && self.columns.contains(column))
    }

    /// Whether a column may not change its type: its bounds in `partition_stats` could not be compared with new ones.
    pub fn pins_type(&self, column: &str) -> bool {
        self.of_partitions && self.columns.contains(column)
    }

    /// The records that follow from files which appear and disappear.
    async fn parts(&self, storage: &Storage, changes: &[FileChange]) -> Result<Vec<Part>> {
        let mut files = Vec::new();
        for change in changes {
            if parse_base_file_name(&change.name).is_none() {
                return Err(Error::unsupported(format!("`{}`: statistics of log files are not kept", change.name)));
            }
            files.push(async move {
                let ranges = match change.deleted {
                    true => self.columns.iter().map(|column| no_range(column)).collect(),
                    false => self.ranges(storage, change).await?,
                };
                Ok::<_, Error>((change, ranges))
            });
        }
        let files: Vec<(&FileChange, Vec<ColumnRangeStats>)> =
            futures::stream::iter(files).buffered(REQUESTS_AT_ONCE).try_collect().await?;
        let mut of_files = Vec::new();
        let mut by_partition: BTreeMap<&str, Vec<Vec<ColumnRangeStats>>> = BTreeMap::new();
        for (change, ranges) in files {
            for record in column_stats_for_file(&change.name, &ranges, change.deleted) {
                let key = column_stats_index_key(&change.partition, &change.name, &record.column_name);
                of_files.push((key, self.encode(COLUMN_STATS, &record)?));
            }
            if !change.deleted {
                by_partition.entry(&change.partition).or_default().push(ranges);
            }
        }
        let mut parts = shards(storage, COLUMN_STATS, of_files).await?;
        if !self.of_partitions {
            return Ok(parts);
        }
        let mut of_partitions = Vec::new();
        for (partition, ranges) in by_partition {
            let records = aggregate_partition_stats(partition, &ranges, false)
                .map_err(|e| Error::corrupt(format!("{METADATA_DIR}/{PARTITION_STATS}"), e))?;
            for record in records {
                let key = partition_stats_index_key(partition, &record.column_name);
                of_partitions.push((key, self.encode(PARTITION_STATS, &record)?));
            }
        }
        parts.extend(shards(storage, PARTITION_STATS, of_partitions).await?);
        Ok(parts)
    }

    /// Bounds and counts of a file's indexed columns, from its footer.
    async fn ranges(&self, storage: &Storage, file: &FileChange) -> Result<Vec<ColumnRangeStats>> {
        let path = match file.partition.is_empty() {
            true => file.name.clone(),
            false => format!("{}/{}", file.partition, file.name),
        };
        let footer = footer_bytes(storage, &path, file.bytes).await?;
        let mut ranges = column_ranges_from_parquet_bytes(&footer).map_err(|e| Error::corrupt(&path, e))?;
        ranges.retain(|range| self.columns.contains(&range.column_name));
        for range in &mut ranges {
            settle(range, &file.partition, self.version);
            if !range.range_known && range.null_count != range.value_count {
                return Err(Error::corrupt(path, format!("no statistics of column `{}`", range.column_name)));
            }
        }
        Ok(ranges)
    }

    fn encode(&self, partition: &str, record: &ColumnStatsMetadata) -> Result<Vec<u8>> {
        let encoded = match partition {
            COLUMN_STATS => encode_column_stats(record, self.version),
            _ => encode_partition_stats(record, self.version),
        };
        encoded.map_err(|e| Error::corrupt(format!("{METADATA_DIR}/{partition}"), e))
    }
}

/// A column of a file that disappears.
fn no_range(column: &str) -> ColumnRangeStats {
    ColumnRangeStats {
        column_name: column.to_string(),
        min_value: None,
        max_value: None,
        range_known: false,
        value_count: 0,
        null_count: 0,
        total_size: 0,
        total_uncompressed_size: 0,
    }
}

/// Puts in what a footer does not say, or says too narrowly.
fn settle(range: &mut ColumnRangeStats, partition: &str, version: StatsIndexVersion) {
    if range.column_name == PARTITION_PATH {
        let value = ColumnStatValue::String(partition.to_string());
        (range.min_value, range.max_value, range.range_known) = (Some(value.clone()), Some(value), true);
    }
    // Statistics of Parquet pass over NaN, which is greater than every number in Spark's order: a file must not be
    // skipped for `> 100` since its greatest number is 10.
    match (&range.min_value, &range.max_value) {
        (Some(ColumnStatValue::Float(_)), _) => range.max_value = Some(ColumnStatValue::Float(f32::NAN)),
        (Some(ColumnStatValue::Double(_)), _) => range.max_value = Some(ColumnStatValue::Double(f64::NAN)),
        _ => {}
    }
    // In the first version Hudi's writers put a timestamp down as the number that the file holds, though there is a form
    // for timestamps; the two cannot be compared.
    if version == StatsIndexVersion::V1 {
        for value in [&mut range.min_value, &mut range.max_value] {
            if let Some(ColumnStatValue::TimestampMicros(micros) | ColumnStatValue::LocalTimestampMicros(micros)) =
                value
            {
                *value = Some(ColumnStatValue::Long(*micros));
            }
        }
    }
}

/// Writes the delta of one instant of the data table, to every partition of the metadata table that the table has.
///
/// As with [`write_delta`](super::write_delta), repeated after a lost answer it writes the same again.
pub async fn write_indexed_delta(
    storage: &Storage,
    config: &TableConfig,
    instant: &InstantTime,
    completed: &InstantTime,
    changes: &[FileChange],
) -> Result<()> {
    let mut parts: Vec<Part> = files_part(changes)?.into_iter().collect();
    if let Some(index) = StatsIndex::load(storage, config).await? {
        parts.extend(index.parts(storage, changes).await?);
    }
    write_parts(storage, instant, completed, parts).await
}

/// Records by the file group that their key belongs to.
async fn shards(storage: &Storage, partition: &'static str, records: Vec<(String, Vec<u8>)>) -> Result<Vec<Part>> {
    if records.is_empty() {
        return Ok(Vec::new());
    }
    let groups = groups_of(storage, partition).await?;
    let mut shards: BTreeMap<usize, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for (key, record) in records {
        shards.entry(shard(&key, groups.len())).or_default().insert(key, record);
    }
    let parts = shards.into_iter().filter_map(|(shard, records)| {
        let group = groups.get(shard)?.clone();
        Some(Part { partition, group, records: records.into_iter().collect() })
    });
    Ok(parts.collect())
}

/// The file groups of a partition in the order of their numbers. There are as many as were made when the index was built.
async fn groups_of(storage: &Storage, partition: &str) -> Result<Vec<String>> {
    let directory = format!("{METADATA_DIR}/{partition}");
    let (files, _) = storage.list_level(&directory).await?;
    let ids: BTreeSet<&str> = files.iter().filter_map(|file| file_id(file.name())).collect();
    let groups: Vec<String> = ids.into_iter().map(str::to_string).collect();
    if groups.is_empty() {
        return Err(Error::unsupported(format!("`{directory}` holds no file group")));
    }
    Ok(groups)
}

/// Java: `mapRecordKeyToFileGroupIndex`, by `String.hashCode`.
fn shard(key: &str, groups: usize) -> usize {
    let hash = key.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // `Math.abs` leaves the least number as it is, so the remainder may be negative; hence the second one there.
    (hash.wrapping_abs() % groups as i32).unsigned_abs() as usize
}

/// Each file group of a statistics partition: its id, newest slice, and records in the order of their keys.
///
/// All records of the partition are held at once: about 150 bytes for each column of each file.
pub(super) async fn read_statistics(
    storage: &Storage,
    data: &Timeline,
    partition: &'static str,
) -> Result<Vec<(String, Slice, Vec<(String, Vec<u8>)>)>> {
    let (files, _) = storage.list_level(&format!("{METADATA_DIR}/{partition}")).await?;
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let config = TableConfig::load(storage).await?;
    let Some(index) = StatsIndex::load(storage, &config).await? else { return Ok(Vec::new()) };
    let own = own_timeline(storage, data).await?;
    let mut groups = Vec::new();
    for (id, slice) in newest_slices(data.layout(), files.iter().map(|file| file.path.as_str()), &own) {
        let mut merged: BTreeMap<String, ColumnStatsMetadata> = BTreeMap::new();
        for part in read_slice(storage, data, &own, &slice, &format!("{partition}/.{id}_")).await? {
            for (key, record) in decode(&part.path, &part.hfile, part.schema.as_deref())? {
                let record = match merged.get(&key) {
                    Some(older) => merge(older, &record),
                    None => record,
                };
                merged.insert(key, record);
            }
        }
        let mut records = Vec::with_capacity(merged.len());
        for (key, record) in merged.into_iter().filter(|(_, record)| !record.is_deleted) {
            records.push((key, index.encode(partition, &record)?));
        }
        groups.push((id, slice, records));
    }
    Ok(groups)
}

fn decode(path: &str, hfile: &[u8], schema: Option<&str>) -> Result<Vec<(String, ColumnStatsMetadata)>> {
    let (records, schema) = hfile_records(path, hfile, schema)?;
    let mut decoded = Vec::with_capacity(records.len());
    for record in records {
        let key = record.key_as_str().unwrap_or_default().to_string();
        let Some(stats) =
            decode_column_stats_entry(record.value(), Some(&schema)).map_err(|e| Error::corrupt(path, e))?
        else {
            return Err(Error::corrupt(path, format!("record `{key}` holds no statistics")));
        };
        decoded.push((key, stats));
    }
    Ok(decoded)
}

/// What two records of one key say together.
fn merge(older: &ColumnStatsMetadata, newer: &ColumnStatsMetadata) -> ColumnStatsMetadata {
    let mut merged = MetadataPayloadMerger.merge_column_stats(older, newer);
    // NaN compares with nothing there, and the newer value would stay.
    if !(newer.is_deleted || older.is_deleted || newer.is_tight_bound) {
        let is_nan = |value: &Option<ColumnStatValue>| match value {
            Some(ColumnStatValue::Float(value)) => value.is_nan(),
            Some(ColumnStatValue::Double(value)) => value.is_nan(),
            _ => false,
        };
        for record in [older, newer] {
            if is_nan(&record.max_value) {
                merged.max_value.clone_from(&record.max_value);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests;
