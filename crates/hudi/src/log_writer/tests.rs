// SPDX-License-Identifier: Apache-2.0
//! What is written reads back through our own reader of log files.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array,
    Int32Array, Int64Array, ListArray, MapBuilder, StringArray, StringBuilder, StructArray, TimestampMicrosecondArray,
    TimestampMillisecondArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int32Type, SchemaRef};
use object_store::memory::InMemory;

use super::*;
use crate::avro::{META_COLUMNS, arrow_schema};
use crate::delete_block::read_deletes;
use crate::delete_encode::DeletedAt;
use crate::log_blocks::{BlockKind, LogBlock, Torn, read_blocks};
use crate::log_file::LogFile;
use crate::log_rows::read_rows;
use crate::ordering::OrderingValue;
use crate::target::LockKind;

const INSTANT: &str = "20250101000001000";

fn storage() -> Storage {
    let lock = LockKind::Process(Arc::new(tokio::sync::Mutex::new(())));
    Storage::new(Arc::new(InMemory::new()), object_store::path::Path::from("t"), "memory://t", lock)
}

fn instant() -> InstantTime {
    INSTANT.parse().unwrap()
}

/// Rows of every type that a table may have, every fourth value null, with meta columns.
fn typed(rows: usize) -> RecordBatch {
    let some = |row: usize| !row.is_multiple_of(4);
    let decimal = |precision, scale| {
        let values: Decimal128Array = (0..rows)
            .map(|row| some(row).then_some((row as i128 - 3) * 10i128.pow(u32::from(precision) / 2)))
            .collect();
        Arc::new(values.with_precision_and_scale(precision, scale).unwrap()) as ArrayRef
    };
    let integers: Int32Array = (0..rows).map(|row| some(row + 1).then_some(row as i32 * -7)).collect();
    let lists = (0..rows).map(|row| some(row + 2).then(|| (0..row % 3).map(|n| some(n).then_some(n as i32))));
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
    let item = Field::new("element", DataType::Int32, true);
    let lists = ListArray::new(item.into(), lists.offsets().clone(), lists.values().clone(), lists.nulls().cloned());
    let entry = arrow::array::MapFieldNames { entry: "key_value".into(), key: "key".into(), value: "value".into() };
    let mut maps = MapBuilder::new(Some(entry), StringBuilder::new(), StringBuilder::new());
    for row in 0..rows {
        for n in 0..row % 3 {
            maps.keys().append_value(format!("key {n}"));
            maps.values().append_option(some(n).then(|| format!("value {row}")));
        }
        maps.append(some(row)).unwrap();
    }
    let inner: Vec<(Arc<Field>, ArrayRef)> = vec![
        (Arc::new(Field::new("n", DataType::Int32, true)), Arc::new(integers.clone())),
        (
            Arc::new(Field::new("s", DataType::Utf8, false)),
            Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("ä{row}")))),
        ),
    ];
    let micros: TimestampMicrosecondArray =
        (0..rows).map(|row| some(row).then_some(1_700_000_000_000_000 + row as i64)).collect();
    let millis: TimestampMillisecondArray =
        (0..rows).map(|row| some(row).then_some(-1_700_000_000_000 + row as i64)).collect();
    let binary: BinaryArray = (0..rows).map(|row| some(row).then(|| vec![row as u8; row % 5])).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("b", Arc::new((0..rows).map(|row| some(row).then_some(row % 2 == 0)).collect::<BooleanArray>())),
        ("i", Arc::new(integers)),
        ("l", Arc::new((0..rows).map(|row| some(row).then_some(i64::MIN + row as i64)).collect::<Int64Array>())),
        ("f", Arc::new((0..rows).map(|row| some(row).then_some(row as f32 / 3.0)).collect::<Float32Array>())),
        ("d", Arc::new((0..rows).map(|row| some(row).then_some(row as f64 / -3.0)).collect::<Float64Array>())),
        ("s", Arc::new((0..rows).map(|row| some(row).then(|| format!("text {row}"))).collect::<StringArray>())),
        ("y", Arc::new(binary)),
        ("date", Arc::new((0..rows).map(|row| some(row).then_some(row as i32 - 50)).collect::<Date32Array>())),
        ("small", decimal(5, 2)),
        ("large", decimal(38, 10)),
        ("micros", Arc::new(micros.with_timezone("UTC"))),
        ("local", Arc::new(millis)),
        ("list", Arc::new(lists)),
        ("map", Arc::new(maps.finish())),
        ("record", Arc::new(StructArray::from(inner))),
    ];
    let text = |name: &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("{name}{row}"))))
    };
    let meta = META_COLUMNS.map(|name| (name, text(name)));
    let all = meta.into_iter().chain(columns).map(|(name, array)| (name, array, true));
    RecordBatch::try_from_iter_with_nullable(all).unwrap()
}

fn blocks(bytes: &bytes::Bytes) -> Vec<LogBlock> {
    read_blocks("f", bytes, Torn::Refused).unwrap()
}

fn rows_of(blocks: &[LogBlock], schema: &SchemaRef) -> RecordBatch {
    let found: Vec<RecordBatch> =
        blocks.iter().flat_map(|block| read_rows("f", block, schema, &BTreeMap::new()).unwrap()).collect();
    concat_batches(schema, &found).unwrap()
}

#[tokio::test]
async fn rows_of_every_type_read_back_whatever_the_size_of_a_block() {
    let storage = storage();
    for (rows, block_bytes) in [(1, BLOCK_BYTES), (37, BLOCK_BYTES), (37, 1), (64, 2_000)] {
        let batch = typed(rows);
        let schema = log_schema("my-table", &batch.schema()).unwrap();
        let path = format!("p/{}", log_file_name("f-0", 3, 1, &instant()));
        let mut file = LogFileWriter::create(&storage, &path, &instant(), &schema).unwrap();
        file.block_bytes = block_bytes;
        let cut = rows / 2;
        file.write(&batch.slice(0, cut)).await.unwrap();
        file.write(&batch.slice(cut, rows - cut)).await.unwrap();
        let (bytes, written) = file.close().await.unwrap();
        let content = storage.read(&path).await.unwrap();
        assert_eq!((bytes, written), (content.len() as u64, rows as u64));
        let blocks = blocks(&content);
        let several = block_bytes < BLOCK_BYTES;
        assert_eq!(blocks.len() > 1, several, "{rows} rows in blocks of {block_bytes}: {}", blocks.len());
        assert!(blocks.iter().all(|block| block.kind == BlockKind::Avro && block.instant() == Some(INSTANT)));
        // The schema in the block is the one that commits carry.
        let read = Arc::new(arrow_schema("f", blocks[0].schema().unwrap()).unwrap());
        assert_eq!(rows_of(&blocks, &read), batch.clone().with_schema(Arc::clone(&read)).unwrap());
    }
}

#[tokio::test]
async fn deletes_come_between_the_rows_before_and_after_them() {
    let storage = storage();
    let batch = typed(4);
    let schema = log_schema("t", &batch.schema()).unwrap();
    let mut file = LogFileWriter::create(&storage, "x", &instant(), &schema).unwrap();
    file.write(&batch).await.unwrap();
    let deletes: Vec<DeletedKey> = ["a", "b"]
        .map(|key| DeletedKey { key: key.to_string(), partition: String::new(), at: DeletedAt::Long(5) })
        .to_vec();
    file.delete(&deletes).await.unwrap();
    file.write(&batch.slice(0, 1)).await.unwrap();
    let (bytes, rows) = file.close().await.unwrap();
    let content = storage.read("x").await.unwrap();
    assert_eq!((bytes, rows), (content.len() as u64, 5));
    let found = blocks(&content);
    let kinds: Vec<BlockKind> = found.iter().map(|block| block.kind).collect();
    assert_eq!(kinds, [BlockKind::Avro, BlockKind::Delete, BlockKind::Avro]);
    let keys = read_deletes("x", &found[1].content).unwrap();
    assert_eq!(keys, [("a".to_string(), OrderingValue::Int(5)), ("b".to_string(), OrderingValue::Int(5))]);
    let first = rows_of(&found[2..], &batch.schema());
    assert_eq!(first.column(2).as_string::<i32>().value(0), "_hoodie_record_key0");
}

#[test]
fn the_name_of_a_log_file_reads_back() {
    let name = log_file_name("9f0e-1", 4, 2, &instant());
    assert_eq!(name, format!(".9f0e-1_{INSTANT}.log.1_4-0-2"));
    let file = LogFile::from_path(&format!("p/{name}"), 1).unwrap();
    assert_eq!((file.file_id.as_str(), file.instant, file.version), ("9f0e-1", instant(), 1));
}
