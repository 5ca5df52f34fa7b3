// SPDX-License-Identifier: Apache-2.0
//! One suite of behaviour, passed by a merge role called directly and by the same one behind gRPC.

use std::sync::Mutex;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use tonic::service::Routes;
use tributary_api::merge::{ColumnOrigins, Deleted as QueryDeleted, MergeLimits, MergeSource, QueryTable, Step};
use tributary_api::refused::{RefusedKey, RefusedRows};
use tributary_api::timeline::{Deleted, Relation, Split, Views};
use tributary_api::writer::{FileSizes, KeySettings, StageRequest, Staged};
use tributary_api::{RowError, Stop};
use tributary_types::pipeline::{OnNullKey, Operation};
use tributary_types::{Code, Fault, MemoryBudget, Retry};

use super::*;
use crate::testing::{behaviours, connect, rows};

#[derive(Default)]
struct Memory {
    asked: Mutex<Vec<String>>,
}

struct Pair {
    role: Arc<dyn Merge>,
    memory: Arc<Memory>,
}

fn direct() -> Pair {
    let memory = Arc::new(Memory::default());
    Pair { role: Arc::clone(&memory) as Arc<dyn Merge>, memory }
}

fn remote() -> Pair {
    let memory = Arc::new(Memory::default());
    let merge = Arc::clone(&memory) as Arc<dyn Merge>;
    let flight = crate::FlightServer::new().with_merge(Arc::clone(&merge)).into_service();
    let channel = connect(Routes::new(MergeServer::new(merge)).add_service(flight));
    Pair { role: Arc::new(MergeClient::new(channel, "http://in-memory")), memory }
}

fn name(text: &str) -> SourceName {
    SourceName::new(text).unwrap()
}

fn steps() -> Vec<Step> {
    let refused = RefusedRows {
        pipeline: "p".to_string(),
        seq: 7,
        instant: "20250606182826197".parse().unwrap(),
        key: Some(RefusedKey { columns: vec!["id".to_string()], complex: true }),
        splits: vec![(name("a"), Vec::new())],
        max_rows: 3,
    };
    let sql = Step::Sql("SELECT * FROM <SRC>".to_string());
    let flatten = Step::Flatten { separator: "_".to_string() };
    vec![flatten, sql, Step::Rust("pair".to_string()), Step::Refused(Box::new(refused))]
}

pub(super) fn merged() -> Merged {
    Merged {
        staged: Staged { rows_in: 5, ..Staged::default() },
        rows_read: vec![(name("a"), 1), (name("b"), 2)],
        spilled_bytes: 3,
    }
}

#[async_trait]
impl Merge for Memory {
    async fn bind(&self, sql: Option<String>, sources: Vec<SourceName>) -> Result<Vec<Bound>, Error> {
        if sql.is_none() {
            return Err(Error::Unused { source_name: sources[0].clone() });
        }
        let views = Views { changed: true, end: false, begin: true };
        Ok(sources.into_iter().map(|source| Bound { source, views, by_position: true }).collect())
    }

    async fn check(&self, request: CheckRequest) -> Result<Checked, Error> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        Ok(Checked {
            schema: rows(&[]).schema(),
            logical_plan: "logical".to_string(),
            physical_plan: "physical".to_string(),
            origins: vec![
                ColumnOrigins { copied: true, columns: vec![(SourceName::new("s").unwrap(), "c".to_string())] },
                ColumnOrigins::default(),
            ],
        })
    }

    async fn run(&self, request: MergeRequest) -> Result<Merged, Error> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        if request.sql.as_deref() == Some("for ever") {
            request.limits.stop.wait().await;
            self.asked.lock().unwrap().push("stopped".to_string());
            return Err(Error::Stopped);
        }
        if request.sql.is_none() {
            return Err(Error::Limit { limit: "time", detail: "1 s".to_string() });
        }
        request.limits.budget.reservation("query").try_grow(400).unwrap();
        let shared = request.stage.budget.try_grow("writer", 300).and(request.limits.budget.try_grow("query", 800));
        assert!(shared.is_err(), "query and writer share one budget");
        request.stage.budget.shrink(300);
        Ok(merged())
    }

    async fn read_query(&self, sql: String) -> Result<QueryNames, Error> {
        match sql.as_str() {
            "" => Err(Error::Sql { at: " at line 1, column 1".to_string(), message: "nothing".to_string() }),
            _ => Ok(QueryNames { relations: vec![vec!["tables".to_string(), sql]], parameters: 2 }),
        }
    }

    async fn check_query(&self, request: QueryRequest) -> Result<SchemaRef, Error> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        Ok(rows(&[]).schema())
    }

    async fn query(&self, request: QueryRequest) -> Result<QueryRows, Error> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        let failed = RowError::new(Error::Limit { limit: "time", detail: "1 s".to_string() });
        let answer: Vec<Result<_, RowError>> = match request.sql.as_str() {
            "late" => vec![Ok(rows(&["a"])), Err(failed)],
            "wrong" => return Err(Error::Execution { message: "division".to_string() }),
            _ => vec![Ok(rows(&["a", "b"])), Ok(rows(&["c"]))],
        };
        Ok(QueryRows { schema: rows(&[]).schema(), rows: futures::stream::iter(answer).boxed() })
    }
}

fn limits(budget: &MemoryBudget) -> MergeLimits {
    MergeLimits {
        budget: budget.clone(),
        spill_bytes: 2,
        timeout: Duration::from_millis(1500),
        parallelism: 4,
        stop: Stop::default(),
        progress: tributary_api::Progress::default(),
    }
}

pub(super) fn request(sql: Option<&str>, budget: &MemoryBudget) -> MergeRequest {
    let split = Split {
        url: "/a".to_string(),
        partition: String::new(),
        file_id: "f".to_string(),
        path: "f.parquet".to_string(),
        bytes: 0,
        logs: None,
        instants: None,
        all_but: false,
        file: None,
        deleted: Deleted::Unsaid,
    };
    let relation = Relation { schema: rows(&[]).schema(), splits: vec![split] };
    let source = |name, changed, at_end, at_begin| MergeSource {
        source: name,
        schema: rows(&[]).schema(),
        changed,
        at_end,
        at_begin,
    };
    MergeRequest {
        sql: sql.map(ToString::to_string),
        then: steps(),
        sources: vec![
            source(name("a"), Some(relation.clone()), None, Some(relation.clone())),
            source(name("b"), None, Some(relation), None),
        ],
        stage: StageRequest {
            url: "/t".to_string(),
            table_name: "t".to_string(),
            table_type: tributary_types::pipeline::TableType::CopyOnWrite,
            instant: "20250606182826197".parse().unwrap(),
            attempt: 1,
            schema: rows(&[]).schema(),
            table_schema: rows(&[]).schema(),
            operation: Operation::Upsert,
            keys: KeySettings {
                record_key: vec!["id".to_string()],
                partition_by: Vec::new(),
                complex: false,
                hive_style: true,
                url_encode: false,
            },
            ordering: Vec::new(),
            merge: None,
            deletes_give_way: false,
            on_null_key: OnNullKey::Fail,
            files: FileSizes { small: 5, largest: 6 },
            slices: Arc::new(Vec::new()),
            budget: budget.clone(),
            share: None,
            spill_bytes: 2,
            stop: Stop::default(),
        },
        limits: limits(budget),
    }
}

behaviours! {
    a_query_arrives_whole_and_its_rows_come_back,
    a_query_that_fails_says_how_before_and_among_its_rows,
    sources_are_bound_in_their_order,
    a_refusal_keeps_its_kind,
    a_plan_arrives_whole_and_so_does_its_request,
    a_merge_arrives_whole_and_so_does_its_request,
    a_limit_keeps_the_advice_that_goes_with_it,
    what_the_merge_counted_is_in_the_callers_peak,
    a_run_that_is_told_to_stop_answers_once_it_has,
}

async fn sources_are_bound_in_their_order(pair: Pair) {
    let bound = pair.role.bind(Some("SELECT 1".to_string()), vec![name("b"), name("a")]).await.unwrap();
    assert_eq!(bound.iter().map(|b| b.source.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    assert!(bound[0].by_position && bound[0].views == Views { changed: true, end: false, begin: true });
}

async fn a_refusal_keeps_its_kind(pair: Pair) {
    let refused = pair.role.bind(None, vec![name("b")]).await.unwrap_err();
    assert!(matches!(&refused, Error::Unused { source_name } if source_name.as_str() == "b"), "{refused:?}");
}

async fn a_plan_arrives_whole_and_so_does_its_request(pair: Pair) {
    let budget = MemoryBudget::new(1000);
    let sources = vec![(name("a"), rows(&[]).schema())];
    let request = CheckRequest {
        sql: Some("SELECT 1".to_string()),
        then: steps(),
        sources,
        deletes: vec![SourceName::new("a").unwrap()],
        limits: limits(&budget),
    };
    let checked = pair.role.check(request.clone()).await.unwrap();
    assert_eq!(checked.schema, rows(&[]).schema());
    assert_eq!((checked.origins.len(), checked.origins[0].columns[0].1.as_str()), (2, "c"));
    assert!(checked.origins[0].copied && !checked.origins[1].copied);
    assert_eq!((checked.logical_plan.as_str(), checked.physical_plan.as_str()), ("logical", "physical"));
    assert_eq!(*pair.memory.asked.lock().unwrap(), [format!("{request:?}")]);
}

async fn a_merge_arrives_whole_and_so_does_its_request(pair: Pair) {
    let asked = format!("{:?}", request(Some("SELECT 1"), &MemoryBudget::new(1000)));
    let answer = pair.role.run(request(Some("SELECT 1"), &MemoryBudget::new(1000))).await.unwrap();
    assert_eq!(format!("{answer:?}"), format!("{:?}", merged()));
    assert_eq!(*pair.memory.asked.lock().unwrap(), [asked]);
}

async fn a_limit_keeps_the_advice_that_goes_with_it(pair: Pair) {
    let refused = pair.role.run(request(None, &MemoryBudget::new(1000))).await.unwrap_err();
    assert!(matches!(refused, Error::Limit { limit: "time", .. }), "{refused:?}");
    assert_eq!((refused.code(), refused.retry()), (Code::Timeout, Retry::Again));
}

async fn what_the_merge_counted_is_in_the_callers_peak(pair: Pair) {
    let budget = MemoryBudget::new(1000);
    pair.role.run(request(Some("SELECT 1"), &budget)).await.unwrap();
    assert_eq!((budget.peak(), budget.used()), (400, 0));
}

async fn a_run_that_is_told_to_stop_answers_once_it_has(pair: Pair) {
    let stop = StopSource::new();
    let mut asked = request(Some("for ever"), &MemoryBudget::new(1000));
    asked.limits.stop = stop.listen();
    let (ended, ()) = tokio::join!(pair.role.run(asked), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.stop();
    });
    assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
    assert_eq!(pair.memory.asked.lock().unwrap().last().unwrap(), "stopped");
}

#[tokio::test]
async fn a_caller_that_goes_away_tells_its_run_to_stop() {
    let pair = remote();
    let run = pair.role.run(request(Some("for ever"), &MemoryBudget::new(1000)));
    assert!(tokio::time::timeout(Duration::from_millis(100), run).await.is_err());
    while pair.memory.asked.lock().unwrap().last().unwrap() != "stopped" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_role_that_is_not_there_is_named_and_asking_again_is_safe() {
    let client = MergeClient::new(crate::connect_lazily("http://127.0.0.1:1").unwrap(), "http://127.0.0.1:1");
    let refused = client.run(request(None, &MemoryBudget::new(1000))).await.unwrap_err();
    assert!(matches!(refused, Error::Unreachable { .. }) && refused.retry() == Retry::Again, "{refused:?}");
    assert!(refused.to_string().contains("http://127.0.0.1:1"), "{refused}");
}

fn query(sql: &str) -> QueryRequest {
    let relation = Relation { schema: rows(&[]).schema(), splits: Vec::new() };
    let deleted = QueryDeleted { before: relation.clone(), after: relation.clone() };
    let parts = |text: &str| text.split('.').map(ToString::to_string).collect();
    QueryRequest {
        sql: sql.to_string(),
        tables: vec![
            QueryTable { name: parts("tables.p"), relation: relation.clone(), deleted: None },
            QueryTable { name: parts("batches.p/r"), relation, deleted: Some(deleted) },
        ],
        parameters: Some(rows(&["value"])),
        limits: limits(&MemoryBudget::new(1000)),
    }
}

async fn a_query_arrives_whole_and_its_rows_come_back(pair: Pair) {
    let names = pair.role.read_query("p".to_string()).await.unwrap();
    assert_eq!((names.relations, names.parameters), (vec![vec!["tables".to_string(), "p".to_string()]], 2));
    assert_eq!(pair.role.check_query(query("q")).await.unwrap(), rows(&[]).schema());
    let QueryRows { schema, rows: answer } = pair.role.query(query("q")).await.unwrap();
    assert_eq!(schema, rows(&[]).schema());
    let answer: Vec<_> = answer.try_collect().await.unwrap();
    assert_eq!(answer, [rows(&["a", "b"]), rows(&["c"])]);
    let expected = format!("{:?}", query("q"));
    assert_eq!(*pair.memory.asked.lock().unwrap(), [expected.clone(), expected]);
}

async fn a_query_that_fails_says_how_before_and_among_its_rows(pair: Pair) {
    let wrong = pair.role.read_query(String::new()).await.unwrap_err();
    assert!(matches!(&wrong, Error::Sql { at, .. } if at == " at line 1, column 1"), "{wrong:?}");
    let wrong = pair.role.query(query("wrong")).await.err().unwrap();
    assert!(matches!(wrong, Error::Execution { .. }), "{wrong:?}");
    let mut late = pair.role.query(query("late")).await.unwrap().rows;
    assert!(late.next().await.unwrap().is_ok());
    let late = late.next().await.unwrap().unwrap_err();
    assert_eq!((late.code, late.reason), (Code::Timeout, "LIMIT_REACHED"));
}
