// SPDX-License-Identifier: Apache-2.0

use arrow::array::{ArrayRef, Int32Array, Int64Array, StringArray};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::*;
use crate::row_groups::{Bound, ColumnRange};
use crate::target::LockKind;

const FILE: &str = "region=a%2Fb/f-0_0-0-0_20250101000003000.parquet";
const ROWS_PER_GROUP: usize = 4;

fn at(second: usize) -> String {
    format!("202501010000{second:02}000")
}

/// Three row groups of four rows: instants 1 1 1 1, 1 2 1 2, 3 3 3 3; ids 0 to 11.
async fn table() -> Storage {
    let seconds = [1, 1, 1, 1, 1, 2, 1, 2, 3, 3, 3, 3];
    let times: ArrayRef = Arc::new(StringArray::from_iter_values(seconds.map(at)));
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..12));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..12).map(|id| format!("n{id}"))));
    let batch = RecordBatch::try_from_iter_with_nullable([
        (COMMIT_TIME, times, true),
        ("id", ids, true),
        ("name", names, true),
    ])
    .unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(ROWS_PER_GROUP)).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let store = Arc::new(InMemory::new());
    store.put(&Path::parse(format!("t/{FILE}")).unwrap(), PutPayload::from(bytes)).await.unwrap();
    Storage::new(store, Path::from("t"), "memory://t", LockKind::Lease)
}

fn scan(fields: Vec<Field>) -> FileScan {
    FileScan {
        path: FILE.to_string(),
        bytes: 0,
        schema: Arc::new(Schema::new(fields)),
        projection: None,
        constants: BTreeMap::new(),
        instants: None,
        all_but: false,
        prune: None,
        batch_rows: 100,
        memory: MemoryBudget::new(1 << 20),
    }
}

fn id() -> Field {
    Field::new("id", DataType::Int64, true)
}

fn instants(seconds: &[usize]) -> Option<Arc<Vec<InstantTime>>> {
    Some(Arc::new(seconds.iter().map(|second| at(*second).parse().unwrap()).collect()))
}

async fn batches(scan: FileScan) -> Vec<RecordBatch> {
    open_scan(&table().await, scan).await.unwrap().try_collect().await.unwrap()
}

async fn ids(scan: FileScan) -> Vec<i64> {
    let batches = batches(scan).await;
    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

async fn wanted(scan: &FileScan) -> Vec<Wanted> {
    let file = open_file(&table().await, FILE, 0).await.unwrap();
    let found = file.arrow_schema(FILE).unwrap();
    plan_row_groups(scan, &file, &found).unwrap()
}

#[tokio::test]
async fn rows_of_wanted_instants_only() {
    for (seconds, expected) in [
        (vec![1], vec![0, 1, 2, 3, 4, 6]),
        (vec![2], vec![5, 7]),
        (vec![3], vec![8, 9, 10, 11]),
        (vec![2, 3], vec![5, 7, 8, 9, 10, 11]),
        (vec![9], vec![]),
    ] {
        let wanted = FileScan { instants: instants(&seconds), ..scan(vec![id()]) };
        assert_eq!(ids(wanted).await, expected, "{seconds:?}");
        // The same with the commit time among the columns, which is then read as text.
        let with_time = vec![id(), Field::new(COMMIT_TIME, DataType::Utf8, true)];
        let wanted = FileScan { instants: instants(&seconds), ..scan(with_time) };
        assert_eq!(ids(wanted).await, expected, "{seconds:?}");
    }
    assert_eq!(ids(scan(vec![id()])).await, (0..12).collect::<Vec<i64>>());
}

#[tokio::test]
async fn rows_of_all_but_some_instants() {
    for (seconds, expected) in [
        (vec![1], vec![5, 7, 8, 9, 10, 11]),
        (vec![1, 3], vec![5, 7]),
        (vec![1, 2, 3], vec![]),
        (vec![9], (0..12).collect()),
        (vec![], (0..12).collect()),
    ] {
        let wanted = FileScan { instants: instants(&seconds), all_but: true, ..scan(vec![id()]) };
        assert_eq!(ids(wanted).await, expected, "{seconds:?}");
        let with_time = vec![id(), Field::new(COMMIT_TIME, DataType::Utf8, true)];
        let wanted = FileScan { instants: instants(&seconds), all_but: true, ..scan(with_time) };
        assert_eq!(ids(wanted).await, expected, "{seconds:?}");
    }
}

#[tokio::test]
async fn only_mixed_row_groups_have_their_rows_looked_at() {
    let group = |row_group, filtered| Wanted { row_group, filtered };
    let two = FileScan { instants: instants(&[1, 3]), ..scan(vec![id()]) };
    assert_eq!(wanted(&two).await, [group(0, false), group(1, true), group(2, false)]);
    let one = FileScan { instants: instants(&[2]), ..scan(vec![id()]) };
    assert_eq!(wanted(&one).await, [group(1, true)]);
    let others = FileScan { instants: instants(&[1]), all_but: true, ..scan(vec![id()]) };
    assert_eq!(wanted(&others).await, [group(1, true), group(2, false)]);
}

struct IdOver(i64);

impl Prune for IdOver {
    fn keep(&self, range: &dyn Fn(&str) -> Option<ColumnRange>) -> bool {
        assert_eq!(range("missing"), None);
        let range = range("id").unwrap();
        assert_eq!((range.nulls, range.rows), (Some(0), ROWS_PER_GROUP as u64));
        matches!(range.max, Some(Bound::Int(max)) if max > self.0)
    }
}

#[tokio::test]
async fn row_groups_that_cannot_match_are_left_out() {
    let pruned = FileScan { prune: Some(Arc::new(IdOver(7))), ..scan(vec![id()]) };
    assert_eq!(ids(pruned).await, [8, 9, 10, 11]);
    // Text sorts otherwise than numbers, so an integer's bounds say nothing of it.
    let text = scan(vec![Field::new("id", DataType::Utf8, true)]);
    let file = open_file(&table().await, FILE, 0).await.unwrap();
    struct NoBounds;
    impl Prune for NoBounds {
        fn keep(&self, range: &dyn Fn(&str) -> Option<ColumnRange>) -> bool {
            let range = range("id").unwrap();
            assert_eq!((range.min, range.max), (None, None));
            true
        }
    }
    let text = FileScan { prune: Some(Arc::new(NoBounds)), ..text };
    plan_row_groups(&text, &file, &file.arrow_schema(FILE).unwrap()).unwrap();
}

#[tokio::test]
async fn columns_come_in_the_order_asked_for_and_widened() {
    let fields = vec![
        Field::new("added", DataType::Float64, true),
        Field::new("name", DataType::Utf8, true),
        id(),
        Field::new("region", DataType::Utf8, true),
    ];
    let constants = BTreeMap::from([("region".to_string(), Some("a/b".to_string())), ("name".to_string(), None)]);
    let whole = FileScan { constants, batch_rows: 5, ..scan(fields) };
    let read = batches(whole.clone()).await;
    assert!(read.iter().all(|batch| batch.num_rows() <= 5 && batch.schema() == whole.schema));
    assert_eq!(read[0].column(0).null_count(), read[0].num_rows());
    assert_eq!(read[0].column(1).as_string::<i32>().value(1), "n1", "the file has it, whatever the path says");
    assert_eq!(read[0].column(2).as_ref().slice(0, 2).as_ref(), &Int64Array::from(vec![0, 1]));
    assert_eq!(read[0].column(3).as_string::<i32>().value(0), "a/b");
    let projected = batches(FileScan { projection: Some(vec![2, 0]), ..whole.clone() }).await;
    assert_eq!(projected[0].schema().fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(), ["id", "added"]);
    let counted = batches(FileScan { projection: Some(vec![]), instants: instants(&[2, 3]), ..whole }).await;
    assert_eq!(counted.iter().map(RecordBatch::num_rows).sum::<usize>(), 6);
}

#[tokio::test]
async fn what_does_not_fit_names_file_and_column() {
    let storage = table().await;
    let narrow = scan(vec![Field::new("name", DataType::Int64, true)]);
    match open_scan(&storage, narrow).await.err().unwrap() {
        Error::Type { file, column, found, expected } => {
            assert_eq!((file.as_str(), column.as_str()), (FILE, "name"));
            assert_eq!((found.as_str(), expected.as_str()), ("Utf8", "Int64"));
        }
        other => panic!("{other}"),
    }
    let required = scan(vec![Field::new("added", DataType::Int64, false)]);
    assert!(matches!(open_scan(&storage, required).await, Err(Error::Type { .. })));
}

#[tokio::test]
async fn a_file_of_another_size_is_corrupt_and_a_missing_one_is_gone() {
    let storage = table().await;
    let longer = FileScan { bytes: 1 << 20, ..scan(vec![id()]) };
    assert!(matches!(open_scan(&storage, longer).await, Err(Error::Corrupt { .. })));
    for bytes in [0, 100] {
        let missing = FileScan { path: "x/y.parquet".to_string(), bytes, ..scan(vec![id()]) };
        match open_scan(&storage, missing).await.err().unwrap() {
            Error::Gone { file } => assert_eq!(file, "x/y.parquet"),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_file_without_commit_times_cannot_be_filtered_by_them() {
    let storage = table().await;
    let store = storage.store();
    let column: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let batch = RecordBatch::try_from_iter([("id", column)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    store.put(&storage.path("bare.parquet").unwrap(), PutPayload::from(bytes)).await.unwrap();
    let bare = FileScan { path: "bare.parquet".to_string(), instants: instants(&[1]), ..scan(vec![id()]) };
    assert!(open_scan(&storage, bare.clone()).await.err().unwrap().to_string().contains(COMMIT_TIME));
    let rows: Vec<RecordBatch> =
        open_scan(&storage, FileScan { instants: None, ..bare }).await.unwrap().try_collect().await.unwrap();
    assert_eq!(rows[0].num_rows(), 1);
}

#[tokio::test]
async fn row_groups_are_counted_while_they_are_held_and_given_back() {
    let scanned = scan(vec![id()]);
    let memory = scanned.memory.clone();
    let rows = open_scan(&table().await, scanned).await.unwrap();
    assert_eq!(memory.peak(), 0, "a stream that is not polled holds nothing");
    let all: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    assert_eq!(all.iter().map(RecordBatch::num_rows).sum::<usize>(), 12);
    assert!(memory.peak() > 0);
    assert_eq!(memory.used(), 0);
}

#[tokio::test]
async fn a_row_group_larger_than_the_whole_memory_is_refused_by_name() {
    let small = FileScan { memory: MemoryBudget::new(10), ..scan(vec![id()]) };
    let refused = open_scan(&table().await, small).await.unwrap().try_collect::<Vec<_>>().await.unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused:?}");
    let told = refused.to_string();
    assert!(told.contains("row group 0") && told.contains(FILE) && told.contains("limits.memory"), "{told}");
}

#[test]
fn a_row_group_takes_its_stored_bytes_two_pages_of_each_column_and_a_batch() {
    let small = held_bytes([(100, 300)].into_iter(), 30, 10);
    assert_eq!(small, 100 + 300 + 100);
    let large = held_bytes([(50 << 20, 90 << 20)].into_iter(), 90 << 10, 1 << 10);
    assert_eq!(large, (50 << 20) + 2 * PAGE_BYTES + (1 << 20));
}
