// SPDX-License-Identifier: Apache-2.0
//! One suite of behaviour, passed by a writer role called directly and by the same one behind Flight.

use std::sync::Mutex;
use std::time::Duration;

use arrow::array::RecordBatch;
use tonic::service::Routes;
use tributary_api::timeline;
use tributary_api::writer::{ColumnStats, FileSizes, KeySettings, StagedFile, TargetSlice};
use tributary_types::pipeline::{MergeOperators, OnNullKey, Operation};
use tributary_types::{Code, Fault, MemoryBudget, Retry};

use super::*;
use crate::flight::FlightServer;
use crate::testing::{behaviours, connect, rows};

/// Keeps what it is asked to stage.
#[derive(Default)]
struct Memory {
    asked: Mutex<Option<String>>,
    batches: Mutex<Vec<RecordBatch>>,
    /// How the rows ended: `None` while they still come.
    ended: Mutex<Option<Result<(), RowError>>>,
}

struct Pair {
    role: Arc<dyn Writer>,
    memory: Arc<Memory>,
}

fn direct() -> Pair {
    let memory = Arc::new(Memory::default());
    Pair { role: Arc::clone(&memory) as Arc<dyn Writer>, memory }
}

fn remote() -> Pair {
    let memory = Arc::new(Memory::default());
    let flight = FlightServer::new().with_writer(Arc::clone(&memory) as Arc<dyn Writer>);
    let channel = connect(Routes::new(flight.into_service()));
    Pair { role: Arc::new(WriterClient::new(channel, "http://in-memory")), memory }
}

fn staged() -> Staged {
    let file = |previous| StagedFile {
        partition: "day=1".to_string(),
        file_id: "f".to_string(),
        path: "day=1/f.parquet".to_string(),
        previous,
        rows: 1,
        inserts: 2,
        updates: 3,
        deletes: 11,
        bytes: 4,
        columns: vec![ColumnStats { column: "id".to_string(), nulls: 5, values: 6 }],
    };
    let previous = ("day=1/old.parquet".to_string(), "20250606182826197".parse().unwrap());
    Staged {
        files: vec![file(None), file(Some(previous))],
        rows_in: 7,
        rows_combined: 8,
        rows_outdated: 9,
        rows_null_key: 10,
        rows_absent: 12,
        partitions: ["day=1".to_string()].into(),
    }
}

fn request(url: &str) -> StageRequest {
    StageRequest {
        url: url.to_string(),
        table_name: "t".to_string(),
        table_type: tributary_types::pipeline::TableType::MergeOnRead,
        instant: "20250606182826197".parse().unwrap(),
        attempt: 3,
        schema: rows(&[]).schema(),
        table_schema: Arc::new(rows(&[]).schema().project(&[1, 0, 2]).unwrap()),
        operation: Operation::Insert,
        keys: KeySettings {
            record_key: vec!["id".to_string()],
            partition_by: vec!["text".to_string()],
            complex: true,
            hive_style: false,
            url_encode: true,
        },
        ordering: vec!["ts".to_string()],
        merge: Some(Arc::new(MergeOperators {
            default: "last_non_null('null')".parse().unwrap(),
            columns: [("tags".to_string(), "concat('; ')".parse().unwrap())].into(),
            acknowledge_images: true,
        })),
        deletes_give_way: true,
        on_null_key: OnNullKey::Drop,
        files: FileSizes { small: 5, largest: 6 },
        slices: Arc::new(vec![TargetSlice {
            partition: "day=1".to_string(),
            file_id: "f".to_string(),
            path: "day=1/f.parquet".to_string(),
            instant: "20250606182826197".parse().unwrap(),
            bytes: 11,
            logs: vec!["day=1/.f_20250606182826197.log.1_0-0-0".to_string()],
        }]),
        budget: MemoryBudget::new(1000),
        share: None,
        spill_bytes: 12,
        stop: Stop::default(),
    }
}

/// A request as text, without what a budget has counted.
fn shown(request: &StageRequest) -> String {
    let fresh = StageRequest { budget: MemoryBudget::new(request.budget.limit()), ..request.clone() };
    format!("{fresh:?}")
}

#[async_trait]
impl Writer for Memory {
    async fn stage(&self, request: StageRequest, mut rows: RowStream) -> Result<Staged, Error> {
        *self.asked.lock().unwrap() = Some(shown(&request));
        if request.url == "/full" {
            return Err(request.budget.try_grow("rows", 2000).unwrap_err().into());
        }
        request.budget.reservation("rows").try_grow(600).unwrap();
        while let Some(batch) = rows.next().await {
            match batch {
                Ok(batch) => self.batches.lock().unwrap().push(batch),
                Err(error) => {
                    *self.ended.lock().unwrap() = Some(Err(error.clone()));
                    return Err(error.into());
                }
            }
        }
        if request.url == "/slow" {
            request.stop.wait().await;
            *self.asked.lock().unwrap() = Some("stopped".to_string());
            return Err(Error::Stopped);
        }
        *self.ended.lock().unwrap() = Some(Ok(()));
        Ok(staged())
    }
}

behaviours! {
    rows_arrive_whole_with_their_request_and_the_files_come_back,
    no_rows_are_staged_too,
    a_row_of_ten_megabytes_passes,
    many_rows_arrive_in_order,
    an_error_of_the_writer_ends_the_staging_before_the_rows_end,
    an_error_of_the_rows_never_looks_like_their_end,
    what_the_writer_counted_is_in_the_callers_peak,
    a_staging_that_is_told_to_stop_after_its_rows_answers_once_it_has,
}

fn stream(batches: Vec<RecordBatch>) -> RowStream {
    futures::stream::iter(batches.into_iter().map(Ok)).boxed()
}

async fn rows_arrive_whole_with_their_request_and_the_files_come_back(pair: Pair) {
    let answer = pair.role.stage(request("/t"), stream(vec![rows(&["a"]), rows(&["b", "c"])])).await.unwrap();
    assert_eq!(answer, staged());
    assert_eq!(pair.memory.asked.lock().unwrap().as_ref(), Some(&shown(&request("/t"))));
    assert_eq!(*pair.memory.batches.lock().unwrap(), [rows(&["a"]), rows(&["b", "c"])]);
}

async fn no_rows_are_staged_too(pair: Pair) {
    assert_eq!(pair.role.stage(request("/t"), stream(Vec::new())).await.unwrap(), staged());
    assert!(pair.memory.batches.lock().unwrap().is_empty());
}

async fn a_row_of_ten_megabytes_passes(pair: Pair) {
    let wide = "w".repeat(10 << 20);
    pair.role.stage(request("/t"), stream(vec![rows(&["n", &wide])])).await.unwrap();
    assert_eq!(pair.memory.batches.lock().unwrap().iter().map(RecordBatch::num_rows).sum::<usize>(), 2);
}

async fn many_rows_arrive_in_order(pair: Pair) {
    let batches: Vec<RecordBatch> = (0..200).map(|n| rows(&vec![format!("{n}").as_str(); 100])).collect();
    pair.role.stage(request("/t"), stream(batches.clone())).await.unwrap();
    assert_eq!(*pair.memory.batches.lock().unwrap(), batches);
}

async fn an_error_of_the_writer_ends_the_staging_before_the_rows_end(pair: Pair) {
    let endless = futures::stream::repeat_with(|| Ok(rows(&["again"]))).boxed();
    let refused = pair.role.stage(request("/full"), endless).await.unwrap_err();
    let Error::Memory(exceeded) = &refused else { panic!("{refused:?}") };
    assert_eq!((exceeded.wanted, exceeded.limit), (2000, 1000));
}

async fn an_error_of_the_rows_never_looks_like_their_end(pair: Pair) {
    let gone = timeline::Error::FileGone { url: "/a".to_string(), file: "f".to_string() };
    let broken = futures::stream::iter([Ok(rows(&["a"])), Err(RowError::new(gone))]).boxed();
    let refused = pair.role.stage(request("/t"), broken).await.unwrap_err();
    assert!(matches!(&refused, Error::Rows(_)), "{refused:?}");
    assert_eq!((refused.code(), refused.retry(), refused.reason()), (Code::Conflict, Retry::Rebase, "FILE_GONE"));
    // The writer has stopped by now, wherever it runs.
    assert!(matches!(*pair.memory.ended.lock().unwrap(), Some(Err(_))));
}

async fn what_the_writer_counted_is_in_the_callers_peak(pair: Pair) {
    let request = request("/t");
    let budget = request.budget.clone();
    pair.role.stage(request, stream(vec![rows(&["a"])])).await.unwrap();
    assert_eq!((budget.peak(), budget.used()), (600, 0));
}

async fn a_staging_that_is_told_to_stop_after_its_rows_answers_once_it_has(pair: Pair) {
    let stop = StopSource::new();
    let request = StageRequest { stop: stop.listen(), ..request("/slow") };
    let (ended, ()) = tokio::join!(pair.role.stage(request, stream(vec![rows(&["a"])])), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.stop();
    });
    assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
    assert_eq!(pair.memory.asked.lock().unwrap().as_deref(), Some("stopped"));
}

#[tokio::test]
async fn a_staging_that_is_told_to_stop_among_its_rows_has_stopped_reading_them() {
    let pair = remote();
    let stop = StopSource::new();
    let request = StageRequest { stop: stop.listen(), ..request("/t") };
    let stuck = futures::stream::iter([Ok(rows(&["a"]))]).chain(futures::stream::pending()).boxed();
    let (ended, ()) = tokio::join!(pair.role.stage(request, stuck), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.stop();
    });
    assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
    assert!(matches!(*pair.memory.ended.lock().unwrap(), Some(Err(_))));
}

#[tokio::test]
async fn a_client_that_goes_away_after_its_rows_tells_the_writer_to_stop() {
    let pair = remote();
    let staging = pair.role.stage(request("/slow"), stream(vec![rows(&["a"])]));
    assert!(tokio::time::timeout(Duration::from_millis(100), staging).await.is_err());
    while pair.memory.asked.lock().unwrap().as_deref() != Some("stopped") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_writer_elsewhere_gets_its_share_of_the_memory() {
    let pair = remote();
    let request = StageRequest { share: Some(700), ..request("/t") };
    pair.role.stage(request, stream(Vec::new())).await.unwrap();
    assert!(pair.memory.asked.lock().unwrap().as_ref().unwrap().contains("limit: 700"));
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_leaves_no_whole_staging() {
    let pair = remote();
    let stuck = futures::stream::iter([Ok(rows(&["a"]))]).chain(futures::stream::pending()).boxed();
    let staging = pair.role.stage(request("/t"), stuck);
    assert!(tokio::time::timeout(Duration::from_millis(100), staging).await.is_err());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(pair.memory.batches.lock().unwrap().len(), 1);
    assert!(!matches!(*pair.memory.ended.lock().unwrap(), Some(Ok(()))));
}

#[tokio::test]
async fn rows_put_by_anybody_else_are_refused() {
    let pair = remote();
    let client = connect(Routes::new(FlightServer::new().into_service()));
    let refused = WriterClient::new(client, "x").stage(request("/t"), stream(Vec::new())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unsupported);
    assert!(pair.memory.asked.lock().unwrap().is_none());
}

#[tokio::test]
async fn a_writer_that_is_not_there_is_named() {
    let client = WriterClient::new(crate::connect_lazily("http://127.0.0.1:1").unwrap(), "http://127.0.0.1:1");
    let refused = client.stage(request("/t"), stream(vec![rows(&["a"])])).await.unwrap_err();
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused:?}");
    assert!(refused.to_string().contains("http://127.0.0.1:1"), "{refused}");
}
