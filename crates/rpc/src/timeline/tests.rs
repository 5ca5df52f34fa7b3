// SPDX-License-Identifier: Apache-2.0
//! One suite of behaviour, passed by a timeline role called directly and by the same one behind gRPC and Flight.

use std::sync::Mutex;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use futures::{StreamExt, TryStreamExt};
use tonic::service::Routes;
use tributary_api::RowError;
use tributary_api::predicate::{Literal, Op, Predicate};
use tributary_api::timeline::{
    Begin, Blocks, Deleted, FileSplit, FilesRequest, InstantFact, LogFile, Logs, Relation, Split, TopicSplit, Views,
    WindowReport,
};
use tributary_types::pipeline::{
    CsvOptions, FileFormat, FileOptions, FileSource, KafkaOptions, OnHole, OnLate, OnStale, TableType, Tombstones,
    TopicSource,
};
use tributary_types::{Code, Cursor, Fault, FileState, InstantTime, MemoryBudget, Retry, SourceName, Zone};

use super::*;
use crate::testing::{behaviours, connect, rows};

/// Answers the same to everybody and remembers what it was asked.
#[derive(Default)]
struct Memory {
    asked: Mutex<Vec<String>>,
}

/// A role and what is behind it.
struct Pair {
    role: Arc<dyn Timeline>,
    memory: Arc<Memory>,
}

fn direct() -> Pair {
    let memory = Arc::new(Memory::default());
    Pair { role: Arc::clone(&memory) as Arc<dyn Timeline>, memory }
}

fn remote() -> Pair {
    let memory = Arc::new(Memory::default());
    let behind: Arc<dyn Timeline> = Arc::clone(&memory) as Arc<dyn Timeline>;
    let flight = FlightServer::new().with_timeline(Arc::clone(&behind));
    let channel = connect(Routes::new(TimelineServer::new(behind)).add_service(flight.into_service()));
    Pair { role: Arc::new(TimelineClient::new(channel, "http://in-memory")), memory }
}

fn instant(text: &str) -> InstantTime {
    text.parse().unwrap()
}

fn completed(text: &str) -> Cursor {
    Cursor::Completed(instant(text))
}

fn fact() -> InstantFact {
    InstantFact {
        requested: instant("20250606182826197"),
        completed: instant("20250606182826198"),
        action: "commit".to_string(),
    }
}

fn table(url: &str, schema: bool) -> TableInfo {
    TableInfo {
        url: url.to_string(),
        name: "orders".to_string(),
        version: 9,
        table_type: TableType::MergeOnRead,
        zone: Zone::Utc,
        fingerprint: "f".to_string(),
        record_key: vec!["id".to_string()],
        partition_by: vec!["day".to_string()],
        ordering: vec!["ts".to_string()],
        schema: schema.then(|| rows(&[]).schema()),
        newest: schema.then(fact),
    }
}

fn split(file: &str, instants: Option<&Arc<Vec<InstantTime>>>) -> Split {
    Split {
        url: "/a".to_string(),
        partition: "day=1".to_string(),
        file_id: file.to_string(),
        path: format!("day=1/{file}.parquet"),
        bytes: 7,
        logs: None,
        instants: instants.cloned(),
        all_but: file == "all-but",
        file: None,
        deleted: Deleted::Unsaid,
    }
}

fn logs(before: Option<&str>, listed: &[&str]) -> Option<Logs> {
    let blocks = Blocks { before: before.map(instant), listed: listed.iter().map(|time| instant(time)).collect() };
    Some(Logs {
        files: vec![LogFile { path: "day=1/.f_1.log.1_0-0-0".to_string(), bytes: 9 }],
        layout: 2,
        ordering: Some(vec!["ts".to_string()]),
        delete_marker: Some(("op".to_string(), "D".to_string())),
        blocks: Some(Arc::new(blocks)),
    })
}

fn file_state() -> FileState {
    FileState { older: vec![1, 2], seen_millis: 9, schema: Some("{}".to_string()), ..FileState::default() }
}

fn topic_source() -> TopicSource {
    TopicSource {
        brokers: "a:9092".to_string(),
        topic: "clicks".to_string(),
        tombstones: Tombstones::Delete,
        options: KafkaOptions { key_columns: vec!["id".to_string()], ..KafkaOptions::default() },
    }
}

fn plan() -> SourcePlan {
    let (window, other) = (Arc::new(vec![instant("20250606182826197")]), Arc::new(Vec::new()));
    let mut changed =
        vec![split("1", Some(&window)), split("2", None), split("3", Some(&window)), split("4", Some(&other))];
    changed[0].logs = Some(Logs { ordering: None, delete_marker: None, blocks: None, ..logs(None, &[]).unwrap() });
    changed[1].logs = logs(Some("20250606182826000"), &["20250606182826197"]);
    changed[2].logs = logs(None, &["20250606182826197"]);
    changed[3].logs = changed[1].logs.clone();
    changed[3].file = Some(FileSplit {
        source: SourceName::new("clicks").unwrap(),
        format: Arc::new(FileFormat::Csv(Box::new(CsvOptions { header: Some(true), ..CsvOptions::default() }))),
        modified_millis: -5,
        e_tag: Some("\"x\"".to_string()),
        strict: true,
        topic: Some(TopicSplit {
            source: Arc::new(topic_source()),
            topic_id: Some("id".to_string()),
            partition: 3,
            begin: 1,
            end: 1 << 40,
            value_columns: 2,
        }),
        refused: true,
    });
    let kept = Arc::new(vec![Split { logs: logs(None, &["20250606182826000"]), ..split("5", None) }, split("6", None)]);
    changed.push(Split { deleted: Deleted::No, ..split("7", Some(&window)) });
    for file in ["8", "9"] {
        changed.push(Split { deleted: Deleted::UnlessIn(Arc::clone(&kept)), ..split(file, None) });
    }
    changed.push(Split { deleted: Deleted::UnlessIn(Arc::default()), ..split("10", None) });
    SourcePlan {
        source: SourceName::new("db.orders").unwrap(),
        table: table("/a", true),
        begin: Some(completed("20250606182826000")),
        end: completed("20250606182826198"),
        instants: vec![fact()],
        has_news: true,
        limited: true,
        frontier_millis: -5,
        recent: vec![instant("20250606182826197")],
        changed: Some(Relation { schema: rows(&[]).schema(), splits: changed }),
        at_end: Some(Relation { schema: Arc::new(Schema::empty()), splits: Vec::new() }),
        at_begin: None,
        report: WindowReport { instants: 1, files: 4, ..WindowReport::default() },
        files: Some(Box::new(file_state())),
    }
}

#[async_trait]
impl Timeline for Memory {
    async fn describe(&self, url: &str) -> Result<TableInfo, Error> {
        match url {
            "/nope" => Err(Error::NoTable { url: url.to_string(), what: "the test".to_string() }),
            "/new" => Ok(table(url, false)),
            _ => Ok(table(url, true)),
        }
    }

    async fn list_instants(
        &self,
        _: &str,
        before: Option<&InstantTime>,
        limit: usize,
    ) -> Result<Vec<InstantInfo>, Error> {
        let all = (1..=5).rev().map(|n| InstantInfo {
            requested: instant(&format!("2025060618282619{n}")),
            completed: (n < 5).then(|| instant(&format!("2025060618282620{n}"))),
            action: "commit".to_string(),
        });
        Ok(all.filter(|one| before.is_none_or(|before| one.requested < *before)).take(limit).collect())
    }

    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, Error> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        Ok(plan())
    }

    async fn read(&self, request: ReadRequest) -> Result<RowStream, Error> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        let all = rows(&["a", "b"]);
        let projected = match &request.projection {
            Some(columns) => all.project(columns).unwrap(),
            None => all,
        };
        let gone = || Error::FileGone { url: "/a".to_string(), file: "f".to_string() };
        match request.split.file_id.as_str() {
            "gone" => Err(gone()),
            "breaks" => Ok(futures::stream::iter([Ok(projected), Err(RowError::new(gone()))]).boxed()),
            _ => Ok(futures::stream::iter([Ok(projected.clone()), Ok(projected)]).boxed()),
        }
    }
}

behaviours! {
    instants_are_listed_newest_first_from_any_on,
    a_table_is_described_with_its_schema,
    a_table_without_a_schema_has_none,
    a_table_that_is_not_there_is_named,
    a_plan_arrives_whole_and_so_does_its_request,
    splits_of_one_window_share_their_instants,
    a_split_is_read_in_its_exact_schema,
    columns_are_read_in_the_order_wanted,
    no_columns_are_still_rows,
    a_file_that_is_gone_is_an_error_of_its_kind_before_and_among_the_rows,
}

async fn a_table_is_described_with_its_schema(pair: Pair) {
    let described = pair.role.describe("/a").await.unwrap();
    assert_eq!(format!("{described:?}"), format!("{:?}", table("/a", true)));
}

async fn a_table_without_a_schema_has_none(pair: Pair) {
    let described = pair.role.describe("/new").await.unwrap();
    assert!(described.schema.is_none() && described.newest.is_none());
}

async fn a_table_that_is_not_there_is_named(pair: Pair) {
    let refused = pair.role.describe("/nope").await.unwrap_err();
    assert!(matches!(&refused, Error::NoTable { url, .. } if url == "/nope"), "{refused:?}");
}

fn plan_request(begin: Begin) -> PlanRequest {
    PlanRequest {
        source: SourceName::new("db.orders").unwrap(),
        url: "/a".to_string(),
        begin,
        lookup: true,
        num_instants: usize::MAX,
        ceiling_millis: Some(-1),
        pinned_end: Some(completed("20250606182826198")),
        by_hand: true,
        fingerprint: Some(String::new()),
        recent: vec![instant("20250606182826197")],
        on_late: OnLate::Deliver,
        on_stale: OnStale::Snapshot,
        on_hole: OnHole::Fail,
        views: Views { changed: true, end: false, begin: true },
        meta_columns: true,
        deletes: true,
        look_only: true,
        fallback_schema: Some(rows(&[]).schema()),
        files: Some(Box::new(FilesRequest {
            source: FileSource {
                files: FileOptions::default(),
                format: FileFormat::Parquet,
                topic: Some(topic_source()),
            },
            state: Some(file_state()),
            pinned: Some(vec!["a,b.parquet".to_string()]),
            moved: true,
        })),
    }
}

async fn a_plan_arrives_whole_and_so_does_its_request(pair: Pair) {
    let cursor = Cursor::Requested(instant("20250606182826"));
    for begin in [Begin::After(cursor), Begin::Latest, Begin::Earliest, Begin::Snapshot, Begin::Timestamp(-1)] {
        let request = plan_request(begin);
        let planned = pair.role.plan(request.clone()).await.unwrap();
        assert_eq!(format!("{planned:?}"), format!("{:?}", plan()));
        assert_eq!(pair.memory.asked.lock().unwrap().last(), Some(&format!("{request:?}")));
    }
}

async fn splits_of_one_window_share_their_instants(pair: Pair) {
    let planned = pair.role.plan(plan_request(Begin::Latest)).await.unwrap();
    let splits = planned.changed.unwrap().splits;
    let set = |n: usize| splits[n].instants.as_ref().unwrap();
    assert!(Arc::ptr_eq(set(0), set(2)) && !Arc::ptr_eq(set(0), set(3)));
    assert_eq!(splits[1].instants, None);
    let blocks = |n: usize| splits[n].logs.as_ref().and_then(|logs| logs.blocks.as_ref());
    assert!(blocks(0).is_none() && Arc::ptr_eq(blocks(1).unwrap(), blocks(3).unwrap()));
    assert_ne!(blocks(1), blocks(2));
    let kept = |n: usize| match &splits[n].deleted {
        Deleted::UnlessIn(slices) => slices,
        other => panic!("{other:?}"),
    };
    assert!(Arc::ptr_eq(kept(5), kept(6)) && kept(7).is_empty(), "what deleted records are told by is sent once");
}

fn read_request(file: &str, projection: Option<Vec<usize>>) -> ReadRequest {
    let compare = |op, literal| Predicate::Compare { column: "id".to_string(), op, literal };
    let mut split = split(file, Some(&Arc::new(vec![instant("20250606182826197")])));
    split.logs = logs(Some("20250606182826000"), &["20250606182826198"]);
    ReadRequest {
        split,
        schema: rows(&[]).schema(),
        projection,
        predicate: Some(Predicate::And(vec![
            compare(Op::Eq, Literal::Int(i64::MIN)),
            Predicate::Or(vec![
                compare(Op::NotEq, Literal::Float(0.5)),
                compare(Op::Lt, Literal::Text("é".to_string())),
                compare(Op::LtEq, Literal::Bool(true)),
                compare(Op::Gt, Literal::Int(1)),
                compare(Op::GtEq, Literal::Int(2)),
            ]),
            Predicate::In { column: "id".to_string(), literals: vec![Literal::Int(1), Literal::Int(2)] },
            Predicate::IsNull("a".to_string()),
            Predicate::IsNotNull("b".to_string()),
        ])),
        batch_rows: 1000,
        memory: MemoryBudget::new(5000),
    }
}

async fn read(pair: &Pair, request: ReadRequest) -> Vec<RecordBatch> {
    let asked = format!("{request:?}");
    let stream = pair.role.read(request).await.unwrap();
    assert_eq!(pair.memory.asked.lock().unwrap().last(), Some(&asked));
    stream.try_collect().await.unwrap()
}

async fn a_split_is_read_in_its_exact_schema(pair: Pair) {
    let mut request = read_request("1", None);
    assert_eq!(read(&pair, request.clone()).await, [rows(&["a", "b"]), rows(&["a", "b"])]);
    let slices = vec![Split { logs: logs(None, &["20250606182826000"]), ..split("2", None) }];
    request.split.deleted = Deleted::UnlessIn(Arc::new(slices));
    assert_eq!(read(&pair, request).await.len(), 2);
}

async fn columns_are_read_in_the_order_wanted(pair: Pair) {
    let read = read(&pair, read_request("1", Some(vec![1, 0]))).await;
    assert_eq!(read[0], rows(&["a", "b"]).project(&[1, 0]).unwrap());
}

async fn no_columns_are_still_rows(pair: Pair) {
    let read = read(&pair, read_request("1", Some(Vec::new()))).await;
    assert_eq!(read.iter().map(RecordBatch::num_rows).sum::<usize>(), 4);
    assert_eq!(read[0].num_columns(), 0);
}

async fn a_file_that_is_gone_is_an_error_of_its_kind_before_and_among_the_rows(pair: Pair) {
    let refused = pair.role.read(read_request("gone", None)).await.err().unwrap();
    assert!(matches!(&refused, Error::FileGone { file, .. } if file == "f"), "{refused:?}");
    let mut stream = pair.role.read(read_request("breaks", None)).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.retry(), error.reason()), (Code::Conflict, Retry::Rebase, "FILE_GONE"));
}

#[tokio::test]
async fn a_position_outside_of_the_schema_is_refused_at_the_door() {
    let pair = remote();
    let refused = pair.role.read(read_request("1", Some(vec![9]))).await.err().unwrap();
    assert_eq!(refused.code(), Code::Invalid);
    assert!(refused.to_string().contains("column 9"), "{refused}");
    assert!(pair.memory.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_role_that_is_not_there_is_named_and_asking_again_is_safe() {
    let client = TimelineClient::new(crate::connect_lazily("http://127.0.0.1:1").unwrap(), "http://127.0.0.1:1");
    for refused in [
        client.describe("/a").await.err().unwrap(),
        client.plan(plan_request(Begin::Latest)).await.err().unwrap(),
        client.read(read_request("1", None)).await.err().unwrap(),
    ] {
        assert!(matches!(refused, Error::Unreachable { .. }), "{refused:?}");
        assert_eq!(refused.retry(), Retry::Again);
        assert!(refused.to_string().contains("http://127.0.0.1:1"), "{refused}");
    }
}

async fn instants_are_listed_newest_first_from_any_on(pair: Pair) {
    let timeline = pair.role;
    let all = timeline.list_instants("/t", None, 10).await.unwrap();
    assert_eq!(all.len(), 5);
    assert!(all[0].completed.is_none() && all[1].completed.is_some() && all[0].requested > all[1].requested);
    assert_eq!(timeline.list_instants("/t", None, 2).await.unwrap(), all[..2]);
    assert_eq!(timeline.list_instants("/t", Some(&all[1].requested), 10).await.unwrap(), all[2..]);
}

#[tokio::test]
async fn pages_of_instants_follow_each_other_and_wrong_ones_are_refused() {
    let timeline: Arc<dyn Timeline> = Arc::new(Memory::default());
    let channel = connect(Routes::new(TimelineServer::new(timeline)));
    let mut calls = TimelineServiceClient::new(channel);
    let (mut seen, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = proto::ListInstantsRequest { url: "/t".to_string(), page_size: 2, page_token };
        let page = calls.list_instants(request).await.unwrap().into_inner();
        seen.push(page.instants.len());
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, [2, 2, 1]);
    for (page_size, page_token) in [(-1, ""), (2, "nope")] {
        let request =
            proto::ListInstantsRequest { page_size, page_token: page_token.to_string(), ..Default::default() };
        assert_eq!(calls.list_instants(request).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_timeline_says_where_its_splits_are_read_and_ends_what_is_read_there() {
    let memory: Arc<dyn Timeline> = Arc::new(Memory::default());
    let flight = crate::FlightServer::new().advertised_at(Some("grpc://outside:7373".to_string()));
    let running = flight.running();
    let channel = connect(Routes::new(TimelineServer::beside(memory, &flight)));
    let client = TimelineClient::new(channel, "http://in-memory");
    assert_eq!(client.locations().await.unwrap(), ["grpc://outside:7373"]);
    let endless = async { Ok(futures::stream::repeat_with(|| Ok(rows(&["a"]))).boxed() as RowStream) };
    let mut stream = running.watched("p1", endless).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    assert_eq!((client.cancel_pull("p1").await.unwrap(), client.cancel_pull("p2").await.unwrap()), (1, 0));
    assert_eq!(stream.next().await.unwrap().unwrap_err().reason, "PULL_CANCELLED");
    // One without an address of its own has none to give.
    assert!(remote().role.locations().await.unwrap().is_empty());
}
