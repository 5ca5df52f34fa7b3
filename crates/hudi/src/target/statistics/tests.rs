// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use object_store::memory::InMemory;
use object_store::path::Path;
use tributary_types::pipeline::TableType;

use super::*;
use crate::base_file::BaseFileWriter;
use crate::commit::CommitMetadata;
use crate::target::{LockKind, NewTable, compact_metadata, complete_instant, create_table, undo_delta};
use crate::timeline::Action;

const DEFINITION: &str = r#"{"indexDefinitions":{"column_stats":{"indexName":"column_stats","indexType":"column_stats",
"indexFunction":"column_stats","sourceFields":["_hoodie_partition_path","_hoodie_record_key","n","d","s"],
"indexOptions":{},"version":"V2"}}}"#;

#[test]
fn a_key_is_in_the_shard_that_java_looks_in() {
    assert_eq!(shard("abc", 10), 4, "hash code 96354");
    assert_eq!(shard("polygenelubricants", 10), 8, "hash code -2147483648, which has no opposite");
    assert_eq!(shard("größe", 7), {
        let hash = "größe".encode_utf16().fold(0_i64, |hash, unit| (hash * 31 + i64::from(unit)) & 0xffff_ffff) as u32;
        ((hash as i32).wrapping_abs() % 7).unsigned_abs() as usize
    });
}

#[test]
fn definitions_that_are_missing_or_unknown_are_refused_by_name() {
    let index = StatsIndex::parse("f", DEFINITION.as_bytes(), 9, true).unwrap();
    assert_eq!(index.version, StatsIndexVersion::V2);
    assert!(index.pins_type("n") && !index.pins_type("other"));
    let version = |text: &str, table| {
        let text = DEFINITION.replace(r#","version":"V2""#, text);
        StatsIndex::parse("f", text.as_bytes(), table, true).map(|index| index.version).map_err(|e| e.to_string())
    };
    assert_eq!(version("", 8), Ok(StatsIndexVersion::V1));
    assert_eq!(version("", 9), Ok(StatsIndexVersion::V2));
    assert!(version(r#","version":"V3""#, 9).unwrap_err().contains("version V3"));
    let none = StatsIndex::parse("f", b"{}", 9, true).unwrap_err().to_string();
    assert!(none.contains("`f` has no definition"), "{none}");
}

#[test]
fn not_a_number_is_greater_than_every_number() {
    let stats = |min: f64, max: f64| ColumnStatsMetadata {
        file_name: "p".to_string(),
        column_name: "d".to_string(),
        min_value: Some(ColumnStatValue::Double(min)),
        max_value: Some(ColumnStatValue::Double(max)),
        value_count: 1,
        null_count: 0,
        total_size: 1,
        total_uncompressed_size: 1,
        is_deleted: false,
        is_tight_bound: false,
        decoded_value_type_ordinal: None,
    };
    for (older, newer) in [(stats(1.0, f64::NAN), stats(2.0, 3.0)), (stats(2.0, 3.0), stats(1.0, f64::NAN))] {
        let merged = merge(&older, &newer);
        assert_eq!(merged.min_value, Some(ColumnStatValue::Double(1.0)));
        assert!(matches!(merged.max_value, Some(ColumnStatValue::Double(max)) if max.is_nan()));
    }
    let tight = ColumnStatsMetadata { is_tight_bound: true, ..stats(2.0, 3.0) };
    assert_eq!(merge(&stats(1.0, f64::NAN), &tight), tight, "an exact bound replaces");
}

#[test]
fn bounds_of_times_are_what_the_table_s_other_writers_would_write() {
    let range = |value: ColumnStatValue| ColumnRangeStats {
        min_value: Some(value.clone()),
        max_value: Some(value),
        range_known: true,
        ..no_range("t")
    };
    let settled = |value: ColumnStatValue, version| {
        let mut range = range(value);
        settle(&mut range, "p", version);
        range.max_value
    };
    let micros = ColumnStatValue::TimestampMicros(7);
    assert_eq!(settled(micros.clone(), StatsIndexVersion::V1), Some(ColumnStatValue::Long(7)));
    assert_eq!(settled(micros.clone(), StatsIndexVersion::V2), Some(micros));
    let index = StatsIndex::parse("f", DEFINITION.as_bytes(), 9, true).unwrap();
    assert!(index.follows("n", &DataType::Timestamp(TimeUnit::Microsecond, None)));
    assert!(!index.follows("n", &DataType::Timestamp(TimeUnit::Millisecond, None)));
    assert!(index.follows("other", &DataType::Timestamp(TimeUnit::Millisecond, None)));
}

fn at(second: u32, milli: u32) -> InstantTime {
    format!("202501010000{second:02}{milli:03}").parse().unwrap()
}

/// A table whose metadata table keeps statistics, as another writer would have built them: two groups and one, empty.
async fn table() -> (Storage, TableConfig) {
    let lock = LockKind::Process(Arc::new(tokio::sync::Mutex::new(())));
    let storage = Storage::new(Arc::new(InMemory::new()), Path::from("t"), "memory://t", lock);
    let table = NewTable {
        name: "t".to_string(),
        table_type: TableType::CopyOnWrite,
        version: 9,
        record_key: vec!["s".to_string()],
        partition_by: vec!["p".to_string()],
        ordering: Vec::new(),
        hive_style: true,
        url_encode: false,
    };
    create_table(&storage, &table, &at(0, 0)).await.unwrap();
    storage.put(DEFINITIONS, DEFINITION.as_bytes().to_vec()).await.unwrap();
    let properties = storage.read(crate::config::PROPERTIES).await.unwrap();
    let properties = String::from_utf8(properties.to_vec()).unwrap();
    let properties = properties.replace(
        "hoodie.table.metadata.partitions=files",
        "hoodie.table.metadata.partitions=column_stats,files,partition_stats",
    );
    storage.put(crate::config::PROPERTIES, properties.into_bytes()).await.unwrap();
    let part = |partition, group: &str| Part {
        partition,
        group: group.to_string(),
        records: vec![("!".to_string(), Vec::new())],
    };
    let parts = vec![
        part(COLUMN_STATS, "col-stats-0000-0"),
        part(COLUMN_STATS, "col-stats-0001-0"),
        part(PARTITION_STATS, "partition-stats-0000-0"),
    ];
    // Built by an instant that is not the table's: its records do not count, its groups are there.
    write_parts(&storage, &at(0, 1), &at(0, 2), parts).await.unwrap();
    undo_timeline(&storage, &at(0, 1), &at(0, 2)).await;
    (storage.clone(), TableConfig::load(&storage).await.unwrap())
}

async fn undo_timeline(storage: &Storage, instant: &InstantTime, completed: &InstantTime) {
    let timeline = ".hoodie/metadata/.hoodie/timeline";
    for name in [
        format!("{instant}_{completed}.deltacommit"),
        format!("{instant}.deltacommit.inflight"),
        format!("{instant}.deltacommit.requested"),
    ] {
        storage.delete(&format!("{timeline}/{name}")).await.unwrap();
    }
}

/// A file of rows `(s, n, d)`.
async fn file(storage: &Storage, group: &str, second: u32, partition: &str, rows: &[(&str, i64, f64)]) -> FileChange {
    let name = format!("{group}_0-0-0_{}.parquet", at(second, 0));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0)));
    let batch = RecordBatch::try_from_iter([
        ("_hoodie_record_key", Arc::clone(&texts)),
        (PARTITION_PATH, Arc::new(StringArray::from_iter_values(rows.iter().map(|_| partition))) as ArrayRef),
        ("s", texts),
        ("n", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)))),
        ("d", Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.2)))),
    ])
    .unwrap();
    let mut writer = BaseFileWriter::create(storage, &format!("{partition}/{name}"), batch.schema()).unwrap();
    writer.write(&batch).await.unwrap();
    let (bytes, _) = writer.close().await.unwrap();
    FileChange { partition: partition.to_string(), name, bytes, deleted: false }
}

async fn commit(storage: &Storage, config: &TableConfig, second: u32, changes: &[FileChange]) {
    let (instant, delta, completed) = (at(second, 0), at(second, 500), at(second, 501));
    write_indexed_delta(storage, config, &instant, &delta, changes).await.unwrap();
    let bytes = CommitMetadata::default().encode().unwrap();
    complete_instant(storage, &config.timeline_dir(), &instant, &completed, Action::Commit, bytes).await.unwrap();
}

/// Least and greatest value by file (or partition) and column.
async fn bounds(
    storage: &Storage,
    config: &TableConfig,
    partition: &'static str,
) -> BTreeMap<(String, String), String> {
    let timeline = Timeline::load(storage, config).await.unwrap();
    let mut bounds = BTreeMap::new();
    for (id, _, records) in read_statistics(storage, &timeline, partition).await.unwrap() {
        let count = groups_of(storage, partition).await.unwrap().len();
        for (key, bytes) in records {
            assert!(id.contains(&format!("{:04}", shard(&key, count))), "{key} is in {id}");
            let found = decode_column_stats_entry(&bytes, None).unwrap().unwrap();
            let show = |value: Option<ColumnStatValue>| match value {
                Some(ColumnStatValue::String(text)) => text,
                Some(ColumnStatValue::Long(number)) => number.to_string(),
                Some(ColumnStatValue::Double(number)) => number.to_string(),
                other => format!("{other:?}"),
            };
            let text = format!("{}..{} of {}", show(found.min_value), show(found.max_value), found.value_count);
            assert!(bounds.insert((found.file_name, found.column_name), text).is_none());
        }
    }
    bounds
}

#[tokio::test]
async fn statistics_follow_files_that_come_and_go_and_survive_compaction() {
    let (storage, config) = table().await;
    let a1 = file(&storage, "a", 1, "p=1", &[("k1", 5, 0.5), ("k2", 9, 1.5)]).await;
    let b1 = file(&storage, "b", 1, "p=2", &[("k3", -4, 2.5)]).await;
    commit(&storage, &config, 1, &[a1.clone(), b1.clone()]).await;
    let a2 = file(&storage, "a", 2, "p=1", &[("k1", 7, 0.25), ("k2", 8, 1.0)]).await;
    commit(&storage, &config, 2, std::slice::from_ref(&a2)).await;
    let files = bounds(&storage, &config, COLUMN_STATS).await;
    let of = |name: &str, column: &str| (name.to_string(), column.to_string());
    assert_eq!(files.len(), 3 * 5, "each file, each column");
    assert_eq!(files[&of(&a1.name, "n")], "5..9 of 2");
    assert_eq!(files[&of(&a2.name, "n")], "7..8 of 2");
    assert_eq!(files[&of(&a2.name, "d")], "0.25..NaN of 2");
    assert_eq!(files[&of(&b1.name, "_hoodie_partition_path")], "p=2..p=2 of 1");
    let partitions = bounds(&storage, &config, PARTITION_STATS).await;
    assert_eq!(partitions[&of("p=1", "n")], "5..9 of 4", "only ever widened");
    assert_eq!(partitions[&of("p=2", "s")], "k3..k3 of 1");

    // A clean takes the older file away.
    commit(&storage, &config, 3, &[FileChange { deleted: true, bytes: 0, ..a1.clone() }]).await;
    let files = bounds(&storage, &config, COLUMN_STATS).await;
    assert_eq!(files.len(), 2 * 5);
    assert!(!files.contains_key(&of(&a1.name, "n")));

    // What a batch left that did not end does not count, and goes with it.
    let c4 = file(&storage, "c", 4, "p=1", &[("k9", 1000, 0.0)]).await;
    write_indexed_delta(&storage, &config, &at(4, 0), &at(4, 500), &[c4]).await.unwrap();
    undo_delta(&storage, &at(4, 0)).await.unwrap();
    assert_eq!(bounds(&storage, &config, COLUMN_STATS).await, files);

    let timeline = Timeline::load(&storage, &config).await.unwrap();
    let instant = timeline.latest_time().unwrap();
    let compacted = compact_metadata(&storage, &timeline, instant, &instant.successor(), "test").await.unwrap();
    assert!(compacted.logs >= 3 + 3 + 2, "{compacted:?}");
    assert_eq!(bounds(&storage, &config, COLUMN_STATS).await, files);
    assert_eq!(bounds(&storage, &config, PARTITION_STATS).await, partitions);
    let a5 = file(&storage, "a", 5, "p=1", &[("k0", 3, 0.25)]).await;
    commit(&storage, &config, 5, std::slice::from_ref(&a5)).await;
    assert_eq!(bounds(&storage, &config, COLUMN_STATS).await[&of(&a5.name, "n")], "3..3 of 1");
    assert_eq!(bounds(&storage, &config, PARTITION_STATS).await[&of("p=1", "n")], "3..9 of 5");
}

#[tokio::test]
async fn a_table_without_statistics_or_without_their_definitions() {
    let (storage, config) = table().await;
    storage.delete(DEFINITIONS).await.unwrap();
    let missing = StatsIndex::load(&storage, &config).await.unwrap_err().to_string();
    assert!(missing.contains(DEFINITIONS) && missing.contains("commit once with Spark"), "{missing}");
    let text = "hoodie.table.name=t\nhoodie.table.version=9\nhoodie.table.type=COPY_ON_WRITE\nhoodie.table.metadata.partitions=files";
    let plain = TableConfig::from_properties("p", crate::properties::parse_properties(text)).unwrap();
    assert_eq!(StatsIndex::load(&storage, &plain).await.unwrap(), None);
}

#[tokio::test]
async fn a_footer_longer_than_what_is_fetched_at_once_is_read_whole() {
    let (storage, config) = table().await;
    // Every distinct text of 64 bytes stands twice in each row group's statistics; many columns make a long footer.
    let long = "x".repeat(64);
    let columns: Vec<(String, ArrayRef)> = (0..1200)
        .map(|number| (format!("c{number}"), Arc::new(StringArray::from(vec![long.as_str()])) as ArrayRef))
        .chain([("n".to_string(), Arc::new(Int64Array::from(vec![42])) as ArrayRef)])
        .collect();
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let name = format!("w_0-0-0_{}.parquet", at(1, 0));
    let mut writer = BaseFileWriter::create(&storage, &format!("p=1/{name}"), batch.schema()).unwrap();
    writer.write(&batch).await.unwrap();
    let (bytes, _) = writer.close().await.unwrap();
    assert!(bytes > 256 << 10, "{bytes}");
    let change = FileChange { partition: "p=1".to_string(), name: name.clone(), bytes, deleted: false };
    commit(&storage, &config, 1, &[change]).await;
    assert_eq!(bounds(&storage, &config, COLUMN_STATS).await[&(name, "n".to_string())], "42..42 of 1");
}
