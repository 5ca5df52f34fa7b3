// SPDX-License-Identifier: Apache-2.0
//! Compactions of a small table.

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use object_store::memory::InMemory;
use object_store::path::Path;
use tributary_types::PipelineName;
use tributary_types::pipeline::TableType;

use super::*;
use crate::avro::avro_schema;
use crate::delete_encode::{DeletedAt, DeletedKey};
use crate::log_file::LogFile;
use crate::log_writer::{LogFileWriter, log_file_name, log_schema};
use crate::mdt_read::read_file_listing;
use crate::target::{LockKind, NewTable, complete_instant, create_table, read_owner, rollback_instant};

fn at(second: u32) -> InstantTime {
    format!("202501010000{second:02}000").parse().unwrap()
}

fn table_schema() -> Schema {
    Schema::new(vec![Field::new("id", DataType::Utf8, true), Field::new("v", DataType::Int64, true)])
}

fn owner() -> Owner {
    Owner { pipeline: PipelineName::new("p").unwrap(), epoch: 1, process: "x".to_string() }
}

async fn table() -> (Storage, TableConfig) {
    let lock = LockKind::Process(Arc::new(tokio::sync::Mutex::new(())));
    let storage = Storage::new(Arc::new(InMemory::new()), Path::from("t"), "memory://t", lock);
    let table = NewTable {
        name: "t".to_string(),
        table_type: TableType::MergeOnRead,
        version: 9,
        record_key: vec!["id".to_string()],
        partition_by: Vec::new(),
        ordering: vec!["v".to_string()],
        hive_style: true,
        url_encode: false,
    };
    create_table(&storage, &table, &at(0)).await.unwrap();
    let config = TableConfig::load(&storage).await.unwrap();
    (storage, config)
}

fn rows(second: u32, rows: &[(&str, i64)]) -> RecordBatch {
    let text = |value: &dyn Fn(&str) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(key, _)| value(key))))
    };
    let columns = vec![
        text(&|_| at(second).to_string()),
        text(&|key| format!("{second}_{key}")),
        text(&str::to_string),
        text(&|_| String::new()),
        text(&|_| "f".to_string()),
        text(&str::to_string),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(_, value)| *value))),
    ];
    RecordBatch::try_new(Arc::new(crate::avro::with_meta_columns(&table_schema())), columns).unwrap()
}

/// A write that leaves one file.
async fn commit(storage: &Storage, config: &TableConfig, second: u32, name: String, bytes: u64) {
    let changes = [FileChange { partition: String::new(), name: name.clone(), bytes, deleted: false }];
    write_delta(storage, &at(second), &at(second + 1), &changes).await.unwrap();
    let stat =
        WriteStat { file_id: "g-0".to_string(), path: name, rows: 1, bytes: bytes as i64, ..WriteStat::default() };
    let metadata = CommitMetadata { stats: vec![stat], ..CommitMetadata::default() }.encode().unwrap();
    let directory = config.timeline_dir();
    complete_instant(storage, &directory, &at(second), &at(second + 1), Action::DeltaCommit, metadata).await.unwrap();
}

async fn base(storage: &Storage, config: &TableConfig, second: u32, batch: &RecordBatch) {
    let name = base_file_name("g-0", 0, 0, &at(second));
    let mut file = BaseFileWriter::create(storage, &name, batch.schema()).unwrap();
    file.write(batch).await.unwrap();
    let (bytes, _) = file.close().await.unwrap();
    commit(storage, config, second, name, bytes).await;
}

async fn log(storage: &Storage, config: &TableConfig, second: u32, batch: &RecordBatch, deletes: &[DeletedKey]) {
    let name = log_file_name("g-0", 0, 0, &at(second));
    let schema = log_schema("t", &table_schema()).unwrap();
    let mut file = LogFileWriter::create(storage, &name, &at(second), &schema).unwrap();
    file.write(batch).await.unwrap();
    file.delete(deletes).await.unwrap();
    let (bytes, _) = file.close().await.unwrap();
    commit(storage, config, second, name, bytes).await;
}

/// A base file of three rows with two logs: `a` is updated, `b` late, `c` deleted.
async fn three_writes() -> (Storage, TableConfig) {
    let (storage, config) = table().await;
    base(&storage, &config, 1, &rows(1, &[("a", 1), ("b", 5), ("c", 1)])).await;
    log(&storage, &config, 3, &rows(3, &[("a", 3), ("b", 2)]), &[]).await;
    let deleted = DeletedKey { key: "c".to_string(), partition: String::new(), at: DeletedAt::Place };
    log(&storage, &config, 5, &rows(5, &[("a", 2)]), &[deleted]).await;
    (storage, config)
}

async fn load(storage: &Storage, config: &TableConfig) -> Timeline {
    Timeline::load(storage, config).await.unwrap()
}

/// Begins a compaction and makes its files.
async fn compact_files(storage: &Storage, config: &TableConfig, second: u32) -> Vec<WriteStat> {
    let slices = find_compactable(storage, config, &load(storage, config).await).await.unwrap();
    begin_compaction(storage, &config.timeline_dir(), &at(second), &slices, &owner()).await.unwrap();
    let memory = MemoryBudget::new(64 << 20);
    let instant = at(second);
    let compaction = compaction(storage, config, &instant, &memory);
    let mut stats = Vec::new();
    for (task, slice) in slices.iter().enumerate() {
        stats.push(compaction.compact(slice, task).await.unwrap());
    }
    assert_eq!(memory.used(), 0);
    stats
}

fn compaction<'a>(
    storage: &'a Storage,
    config: &'a TableConfig,
    instant: &'a InstantTime,
    memory: &'a MemoryBudget,
) -> Compaction<'a> {
    let schema = Arc::new(crate::avro::with_meta_columns(&table_schema()));
    Compaction { storage, config, instant, schema, memory }
}

#[tokio::test]
async fn the_base_file_holds_the_merged_rows_with_the_times_of_their_writes() {
    let (storage, config) = three_writes().await;
    assert_eq!(delta_commits_since_compaction(&load(&storage, &config).await), 3);
    let stats = compact_files(&storage, &config, 7).await;
    let memory = MemoryBudget::new(64 << 20);
    let instant = at(7);
    let schema = avro_schema("t", &table_schema()).unwrap();
    let compaction = compaction(&storage, &config, &instant, &memory);
    compaction.complete(stats.clone(), schema, &at(8), &at(9)).await.unwrap();
    assert_eq!((stats.len(), stats[0].rows), (1, 2));

    let timeline = load(&storage, &config).await;
    assert_eq!(delta_commits_since_compaction(&timeline), 0);
    let slices = current_file_slices(&storage, &config, &timeline).await.unwrap();
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].logs, Vec::<LogFile>::new());
    let base = slices[0].base.clone().unwrap();
    assert_eq!((base.instant, base.path.as_str()), (at(7), stats[0].path.as_str()));
    let listed = read_file_listing(&storage, &timeline).await.unwrap();
    assert_eq!((listed.bases.len(), listed.logs.len()), (2, 2), "a clean takes the old slice away");
    let scan = compaction.scan(&slices[0]);
    let found: Vec<RecordBatch> =
        crate::scan::open_scan(&storage, scan).await.unwrap().map(Result::unwrap).collect().await;
    let found = arrow::compute::concat_batches(&found[0].schema(), &found).unwrap();
    let text = |column: usize| -> Vec<String> {
        found.column(column).as_string::<i32>().iter().map(|value| value.unwrap().to_string()).collect()
    };
    assert_eq!(text(0), [at(1).to_string(), at(3).to_string()], "`b` is of the first write, `a` of the second");
    assert_eq!(text(2), ["b", "a"]);
    assert_eq!(text(4), [base.path.clone(), base.path.clone()]);
    assert_eq!(found.column(6).as_primitive::<Int64Type>().values(), &[5, 3]);
    // A later log comes on top of the new base file.
    log(&storage, &config, 11, &rows(11, &[("b", 6)]), &[]).await;
    let slices = current_file_slices(&storage, &config, &load(&storage, &config).await).await.unwrap();
    assert_eq!((slices[0].base.as_ref().map(|base| base.instant.clone()), slices[0].logs.len()), (Some(at(7)), 1));
}

#[tokio::test]
async fn an_interrupted_compaction_is_ours_and_is_rolled_back_without_a_trace() {
    let (storage, config) = three_writes().await;
    let directory = config.timeline_dir();
    let before = current_file_slices(&storage, &config, &load(&storage, &config).await).await.unwrap();
    let stats = compact_files(&storage, &config, 7).await;
    let timeline = load(&storage, &config).await;
    let pending: Vec<_> = timeline.pending_writes().collect();
    assert_eq!((pending.len(), pending[0].action), (1, Action::Compaction));
    // Even without its heartbeat.
    super::super::delete_heartbeat(&storage, &at(7)).await.unwrap();
    assert_eq!(read_owner(&storage, &directory, &at(7), Action::Compaction).await.unwrap(), Some(owner()));
    rollback_instant(&storage, &directory, &at(7), Action::Compaction, &at(10), &at(11), &owner()).await.unwrap();
    let timeline = load(&storage, &config).await;
    assert_eq!(timeline.pending_writes().count(), 0);
    assert!(storage.head(&stats[0].path).await.unwrap().is_none());
    assert_eq!(current_file_slices(&storage, &config, &timeline).await.unwrap(), before);
}

#[tokio::test]
async fn a_compaction_of_another_writer_has_no_owner_of_ours() {
    let (storage, config) = three_writes().await;
    let directory = config.timeline_dir();
    let plan = CompactionPlan { version: Some(CompactionPlan::LATEST_VERSION), ..CompactionPlan::default() };
    let path = requested_path(&directory, &at(7), Action::Compaction);
    storage.put(&path, plan.to_avro_bytes().unwrap()).await.unwrap();
    assert_eq!(read_owner(&storage, &directory, &at(7), Action::Compaction).await.unwrap(), None);
}
