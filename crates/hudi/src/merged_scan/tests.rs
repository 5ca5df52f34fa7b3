// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use parquet::arrow::ArrowWriter;
use tributary_types::{InstantTime, MemoryBudget};

use super::*;
use crate::delete_block::tests::{content, of_long, of_none};
use crate::log_blocks::tests::block_with;
use crate::row_groups::{ColumnRange, Prune};
use crate::target::LockKind;

const BASE: &str = "p/f-0_0-0-0_20250101000001000.parquet";
const INSTANT: u32 = 0;
const TARGET: u32 = 1;
const COMPACTED: u32 = 4;
const PARQUET: u32 = 5;

fn at(second: u32) -> String {
    format!("202501010000{second:02}000")
}

/// A row: key, instant by its second, ordering value, value.
type Row<'a> = (&'a str, u32, i64, i64);

fn file(rows: &[Row], marks: Option<(&str, ArrayRef)>) -> Vec<u8> {
    let texts = |texts: Vec<String>| Arc::new(StringArray::from(texts)) as ArrayRef;
    let numbers = |numbers: Vec<i64>| Arc::new(Int64Array::from(numbers)) as ArrayRef;
    let mut columns = vec![
        (COMMIT_TIME, texts(rows.iter().map(|row| at(row.1)).collect())),
        (RECORD_KEY, texts(rows.iter().map(|row| row.0.to_string()).collect())),
        ("ts", numbers(rows.iter().map(|row| row.2).collect())),
        ("value", numbers(rows.iter().map(|row| row.3).collect())),
    ];
    columns.extend(marks);
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

/// A block with the rows of one instant.
fn rows(rows: &[Row]) -> Vec<u8> {
    block_with(PARQUET, &[(INSTANT, &at(rows[0].1))], &file(rows, None))
}

fn deletes(second: u32, deleted: &[(&str, Vec<u8>)]) -> Vec<u8> {
    block_with(1, &[(INSTANT, &at(second))], &content(deleted))
}

/// A slice of one base file and log files of some blocks each.
struct Slice {
    storage: Storage,
    scan: FileScan,
    logs: LogScan,
}

impl Slice {
    async fn new(base: &[Row<'_>], files: &[Vec<Vec<u8>>]) -> Self {
        let store = Arc::new(InMemory::new());
        let put = async |path: &str, bytes: Vec<u8>| {
            store.put(&Path::parse(format!("t/{path}")).unwrap(), PutPayload::from(bytes)).await.unwrap();
        };
        if !base.is_empty() {
            put(BASE, file(base, None)).await;
        }
        let mut names = Vec::new();
        for (number, blocks) in files.iter().enumerate() {
            names.push(format!("p/.f-0_{}.log.{number}_0-0-0", at(1)));
            put(&names[number], blocks.concat()).await;
        }
        let own = ["ts", "value"].map(|name| Field::new(name, DataType::Int64, true));
        let schema = Schema::new([vec![Field::new(COMMIT_TIME, DataType::Utf8, true)], own.to_vec()].concat());
        Slice {
            storage: Storage::new(store.clone(), Path::from("t"), "memory://t", LockKind::Lease),
            scan: FileScan {
                path: if base.is_empty() { String::new() } else { BASE.to_string() },
                bytes: 0,
                schema: Arc::new(schema),
                projection: Some(vec![2]),
                constants: BTreeMap::new(),
                instants: None,
                all_but: false,
                prune: None,
                batch_rows: 100,
                memory: MemoryBudget::new(1 << 30),
            },
            logs: LogScan {
                group: "p/f-0".to_string(),
                files: names,
                torn: Torn::Refused,
                counted: None,
                rules: MergeRules { ordering: Some(vec!["ts".to_string()]), delete_marker: None },
            },
        }
    }

    fn by_commit_time(mut self) -> Self {
        self.logs.rules.ordering = None;
        self
    }

    fn written_by(mut self, seconds: &[u32]) -> Self {
        let instants: Vec<InstantTime> = seconds.iter().map(|second| at(*second).parse().unwrap()).collect();
        self.scan.instants = Some(Arc::new(instants));
        self
    }

    fn written_by_all_but(self, seconds: &[u32]) -> Self {
        let mut slice = self.written_by(seconds);
        slice.scan.all_but = true;
        slice
    }

    async fn try_values(&self) -> Result<Vec<i64>> {
        let stream = open_slice(&self.storage, self.scan.clone(), self.logs.clone()).await?;
        let batches: Vec<RecordBatch> = stream.try_collect().await?;
        assert!(batches.iter().all(|batch| batch.schema() == self.scan.output_schema().unwrap()));
        let values = batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec());
        let mut values: Vec<i64> = values.collect();
        values.sort_unstable();
        Ok(values)
    }

    async fn values(&self) -> Vec<i64> {
        self.try_values().await.unwrap()
    }
}

#[tokio::test]
async fn the_row_with_the_highest_ordering_value_stays_wherever_it_is() {
    let base = [("a", 1, 1, 10), ("b", 1, 5, 20), ("c", 1, 1, 30), ("d", 1, 5, 40), ("e", 1, 5, 50)];
    let logs = [
        vec![rows(&[("a", 2, 3, 11), ("b", 2, 4, 21), ("x", 2, 1, 91)]), deletes(2, &[("c", of_none())])],
        vec![rows(&[("a", 3, 2, 12), ("x", 3, 1, 92)]), deletes(3, &[("d", of_long(4)), ("e", of_long(5))])],
    ];
    let slice = Slice::new(&base, &logs).await;
    assert_eq!(slice.values().await, [11, 20, 40, 92]);
    assert_eq!(slice.by_commit_time().values().await, [12, 21, 92]);
}

#[tokio::test]
async fn rows_are_chosen_by_commit_time_after_they_were_merged() {
    let base = [("a", 1, 1, 10), ("b", 1, 5, 20), ("c", 1, 1, 30)];
    let logs = [vec![rows(&[("a", 2, 2, 11), ("b", 2, 2, 21)])], vec![rows(&[("a", 3, 3, 12), ("d", 3, 1, 41)])]];
    let slice = Slice::new(&base, &logs).await;
    assert_eq!(slice.values().await, [12, 20, 30, 41]);
    // The late row of b lost, and the row of a was written again.
    assert_eq!(slice.written_by(&[2]).values().await, Vec::<i64>::new());
    let slice = Slice::new(&base, &logs).await.written_by(&[1, 3]);
    assert_eq!(slice.values().await, [12, 20, 30, 41]);
    let slice = Slice::new(&base, &logs).await.by_commit_time().written_by(&[2]);
    assert_eq!(slice.values().await, [21]);
    let slice = Slice::new(&base, &logs).await.written_by_all_but(&[1]);
    assert_eq!(slice.values().await, [12, 41]);
    let slice = Slice::new(&base, &logs).await.by_commit_time().written_by_all_but(&[2, 9]);
    assert_eq!(slice.values().await, [12, 30, 41]);
}

struct KeepsNothing;

impl Prune for KeepsNothing {
    fn keep(&self, _range: &dyn Fn(&str) -> Option<ColumnRange>) -> bool {
        false
    }
}

#[tokio::test]
async fn statistics_leave_a_base_file_out_only_where_no_row_of_a_log_can_lose_against_it() {
    let logs = [vec![rows(&[("b", 2, 4, 21), ("c", 2, 4, 31)])]];
    let mut slice = Slice::new(&[("a", 1, 5, 10), ("b", 1, 5, 20)], &logs).await;
    slice.scan.prune = Some(Arc::new(KeepsNothing));
    assert_eq!(slice.values().await, [10, 20, 31], "the late row of b must not come back");
    assert_eq!(slice.by_commit_time().values().await, [21, 31]);
}

#[tokio::test]
async fn a_group_may_have_logs_only_and_a_projection_no_column() {
    let logs = [vec![rows(&[("a", 2, 2, 11), ("b", 2, 2, 21)]), deletes(2, &[("a", of_none())])]];
    let mut slice = Slice::new(&[], &logs).await;
    assert_eq!(slice.values().await, [21]);
    slice.scan.projection = Some(Vec::new());
    let stream = open_slice(&slice.storage, slice.scan.clone(), slice.logs.clone()).await.unwrap();
    let batches: Vec<RecordBatch> = stream.try_collect().await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn rows_of_a_log_can_be_marked_as_deleted() {
    let marks: [(&str, ArrayRef, Option<&str>); 3] = [
        (IS_DELETED, Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])), None),
        (OPERATION, Arc::new(StringArray::from(vec![Some("D"), Some("U"), None])), None),
        ("op", Arc::new(StringArray::from(vec!["gone", "D", "-U"])), Some("gone")),
    ];
    for (name, marks, marker) in marks {
        let new = [("a", 2, 2, 11), ("b", 2, 2, 21), ("c", 2, 2, 31)];
        let field = Field::new(name, marks.data_type().clone(), true);
        let log = block_with(PARQUET, &[(INSTANT, &at(2))], &file(&new, Some((name, marks))));
        let mut slice = Slice::new(&[("a", 1, 1, 10), ("b", 1, 1, 20)], &[vec![log]]).await;
        let fields: Vec<Field> = slice.scan.schema.fields().iter().map(|field| field.as_ref().clone()).collect();
        slice.scan.schema = Arc::new(Schema::new([fields, vec![field]].concat()));
        slice.logs.rules.delete_marker = marker.map(|value| (name.to_string(), value.to_string()));
        assert_eq!(slice.values().await, [21, 31], "{name}");
    }
}

#[tokio::test]
async fn one_log_file_of_several_instants_counts_as_far_as_it_was_completed() {
    let rollback = block_with(0, &[(INSTANT, &at(4)), (TARGET, &at(3))], b"");
    let log = vec![rows(&[("a", 2, 2, 11)]), rows(&[("a", 3, 9, 12)]), rollback, rows(&[("b", 5, 2, 21)])];
    let mut slice = Slice::new(&[("a", 1, 1, 10)], &[log]).await;
    assert_eq!(slice.values().await, [11, 21]);
    let counted = BlockInstants { before: None, listed: vec![at(2).parse().unwrap()] };
    slice.logs.counted = Some(Arc::new(counted));
    assert_eq!(slice.values().await, [11]);
}

#[tokio::test]
async fn rows_of_a_log_compaction_are_those_of_its_originals_where_it_matters_who_wrote_them() {
    let compacted = block_with(
        PARQUET,
        &[(INSTANT, &at(4)), (COMPACTED, &format!("{},{}", at(2), at(3)))],
        &file(&[("a", 4, 3, 12), ("b", 4, 2, 21)], None),
    );
    let logs = [vec![rows(&[("a", 2, 2, 11), ("b", 2, 2, 21)])], vec![rows(&[("a", 3, 3, 12)])], vec![compacted]];
    let slice = Slice::new(&[("a", 1, 1, 10)], &logs).await;
    assert_eq!(slice.values().await, [12, 21]);
    assert_eq!(slice.written_by(&[2]).values().await, [21]);
}

#[tokio::test]
async fn the_first_of_several_rows_of_one_key_is_merged_as_in_hudi() {
    let base = [("a", 1, 1, 10), ("a", 1, 1, 11)];
    let slice = Slice::new(&base, &[vec![rows(&[("a", 2, 2, 12)])]]).await;
    assert_eq!(slice.values().await, [11, 12]);
}

#[tokio::test]
async fn a_slice_that_does_not_fit_is_an_error_that_names_its_group_and_gives_its_memory_back() {
    let many: Vec<(String, i64)> = (0..1000).map(|n| (format!("key {n}"), n)).collect();
    let many: Vec<Row> = many.iter().map(|(key, n)| (key.as_str(), 2, *n, *n)).collect();
    let mut slice = Slice::new(&[("a", 1, 1, -1)], &[vec![rows(&many)]]).await;
    slice.scan.memory = MemoryBudget::new(100_000);
    let refused = slice.try_values().await.unwrap_err().to_string();
    assert!(refused.contains("p/f-0") && refused.contains("100000"), "{refused}");
    assert_eq!(slice.scan.memory.used(), 0);
    slice.scan.memory = MemoryBudget::new(1_000_000);
    assert_eq!(slice.values().await.len(), 1001);
    assert!(slice.scan.memory.peak() > 100_000 && slice.scan.memory.used() == 0);
}

#[tokio::test]
async fn a_log_that_is_gone_or_torn_apart_names_its_file() {
    let mut slice = Slice::new(&[("a", 1, 1, 10)], &[vec![rows(&[("a", 2, 2, 11)])]]).await;
    let torn = Slice::new(&[("a", 1, 1, 10)], &[vec![block_with(PARQUET, &[(INSTANT, &at(2))], b"no file")]]).await;
    assert!(torn.try_values().await.unwrap_err().to_string().contains(".log.0_"));
    slice.logs.files.push("p/.f-0_gone.log.9_0-0-0".to_string());
    match slice.try_values().await.unwrap_err() {
        Error::Gone { file } => assert_eq!(file, "p/.f-0_gone.log.9_0-0-0"),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_ordering_column_that_is_not_there_is_refused_by_name() {
    let mut slice = Slice::new(&[("a", 1, 1, 10)], &[]).await;
    slice.logs.rules.ordering = Some(vec!["nowhere".to_string()]);
    assert!(slice.try_values().await.unwrap_err().to_string().contains("`nowhere`"));
}

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What happened to a key: ordering value, and the value unless it was a delete.
type Event = (i64, Option<i64>);

#[tokio::test]
async fn any_history_of_a_key_ends_with_its_last_event_of_the_highest_ordering_value() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    for seed in 0..60 {
        let mut numbers = Numbers(seed);
        let mut history: BTreeMap<&str, Vec<Event>> = BTreeMap::new();
        let mut next = 0;
        let mut base = Vec::new();
        for key in KEYS {
            if numbers.below(2) == 0 {
                next += 1;
                let ordering = numbers.below(6) as i64;
                base.push((key, 1, ordering, next));
                history.entry(key).or_default().push((ordering, Some(next)));
            }
        }
        let mut files = Vec::new();
        for second in 2..(3 + numbers.below(4) as u32) {
            let mut blocks = Vec::new();
            for _ in 0..=numbers.below(3) {
                let (key, ordering) = (KEYS[numbers.below(4) as usize], numbers.below(6) as i64);
                let value = (numbers.below(4) > 0).then(|| {
                    next += 1;
                    next
                });
                blocks.push(match value {
                    Some(value) => rows(&[(key, second, ordering, value)]),
                    None => deletes(second, &[(key, of_long(ordering))]),
                });
                history.entry(key).or_default().push((ordering, value));
            }
            files.push(blocks);
        }
        let last = |events: &Vec<Event>| events.last().unwrap().1;
        // The last of equals is the highest for `max_by_key`.
        let highest = |events: &Vec<Event>| events.iter().max_by_key(|event| event.0).unwrap().1;
        let mut expected: Vec<i64> = history.values().filter_map(highest).collect();
        expected.sort_unstable();
        let slice = Slice::new(&base, &files).await;
        assert_eq!(slice.values().await, expected, "seed {seed}: {history:?}");
        let mut expected: Vec<i64> = history.values().filter_map(last).collect();
        expected.sort_unstable();
        assert_eq!(slice.by_commit_time().values().await, expected, "seed {seed}: {history:?}");
    }
}
