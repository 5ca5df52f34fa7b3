// SPDX-License-Identifier: Apache-2.0
//! One suite of behaviour, passed by a coordinator called directly and by the same one behind gRPC and Flight; then
//! what only the wire can show.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Criteria, FlightDescriptor, FlightInfo};
use futures::{StreamExt, TryStreamExt};
use tonic::service::Routes;
use tributary_api::coordinator::{BatchStatus, Coordinator, Error, RunRequest};
use tributary_types::{BatchName, Code, Fault, Outcome, Override, RequestId, Retry, Stage};

use super::{CoordinatorClient, CoordinatorServer};
use crate::channel::Channel;
use crate::flight::FlightServer;
use crate::proto::coordinator as proto;
use crate::testing::{MemoryCoordinator, behaviours, connect, pipeline, rows};
use proto::coordinator_service_client::CoordinatorServiceClient;

fn serve() -> Channel {
    let coordinator: Arc<dyn Coordinator> = Arc::new(MemoryCoordinator::default());
    let flight = FlightServer::new().with_coordinator(Arc::clone(&coordinator));
    connect(Routes::new(CoordinatorServer::new(coordinator)).add_service(flight.into_service()))
}

fn direct() -> Arc<dyn Coordinator> {
    Arc::new(MemoryCoordinator::default())
}

fn remote() -> Arc<dyn Coordinator> {
    Arc::new(CoordinatorClient::new(serve(), "http://in-memory"))
}

behaviours! {
    a_request_id_answers_with_its_batch_and_refuses_another_pipeline,
    an_unknown_batch_is_named,
    batches_are_listed_newest_first_of_one_pipeline_or_of_all,
    a_batch_is_followed_to_its_end,
    a_batch_that_is_over_is_followed_at_once,
    a_cancelled_batch_is_answered_as_it_is,
    a_batch_says_who_asked_for_it,
    a_plan_starts_nothing,
    cursors_are_set_by_a_batch_and_looked_at_without_one,
    the_cursors_of_a_pipeline_are_told,
    a_wrong_pipeline_is_refused_with_every_problem,
    a_pulled_batch_has_its_rows_and_their_exact_schema,
    a_commit_without_rows_is_an_empty_typed_stream,
    an_error_among_the_rows_keeps_its_classification,
    a_row_of_ten_megabytes_passes,
    a_cleaned_batch_is_gone,
}

async fn run(coordinator: &dyn Coordinator, name: &str, id: &str) -> Result<BatchStatus, Error> {
    let request = RequestId::new(id).unwrap();
    let asked_by = "a test".to_string();
    let (pipeline, overrides) = (pipeline(name), Vec::new());
    let asked = RunRequest { pipeline, request, allow_empty: false, overrides, cursors_only: false, asked_by };
    coordinator.run_batch(asked).await
}

async fn finish(coordinator: &dyn Coordinator, name: &BatchName) -> BatchStatus {
    let mut watch = coordinator.watch_batch(name).await.unwrap();
    watch.wait_for(|status| status.stage == Stage::Done).await.unwrap().clone()
}

async fn a_request_id_answers_with_its_batch_and_refuses_another_pipeline(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "p", "r").await.unwrap();
    assert_eq!((started.name.as_str(), started.stage, started.outcome), ("p/r", Stage::Pending, None));
    let ended = finish(coordinator.as_ref(), &started.name).await;
    assert_eq!(run(coordinator.as_ref(), "p", "r").await.unwrap(), ended);
    let mut other = pipeline("p");
    other.target.path.push('x');
    let request = RequestId::new("r").unwrap();
    let again = RunRequest {
        pipeline: other,
        request,
        allow_empty: true,
        overrides: Vec::new(),
        cursors_only: false,
        asked_by: String::new(),
    };
    let refused = coordinator.run_batch(again).await.unwrap_err();
    assert!(matches!(&refused, Error::RequestReused { request } if request.as_str() == "r"), "{refused:?}");
}

async fn an_unknown_batch_is_named(coordinator: Arc<dyn Coordinator>) {
    let name = BatchName::new("p/nope").unwrap();
    for refused in [
        coordinator.get_batch(&name).await.unwrap_err(),
        coordinator.watch_batch(&name).await.unwrap_err(),
        coordinator.open_batch(&name).await.err().unwrap(),
        coordinator.cancel_batch(&name).await.unwrap_err(),
    ] {
        assert!(matches!(&refused, Error::NoBatch { name } if name == "p/nope"), "{refused:?}");
    }
}

async fn batches_are_listed_newest_first_of_one_pipeline_or_of_all(coordinator: Arc<dyn Coordinator>) {
    for (name, id) in [("a", "1"), ("b", "1"), ("a", "2")] {
        run(coordinator.as_ref(), name, id).await.unwrap();
    }
    let names = |batches: Vec<BatchStatus>| batches.iter().map(|b| b.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(coordinator.list_batches(None, 10).await.unwrap()), ["a/2", "b/1", "a/1"]);
    assert_eq!(names(coordinator.list_batches(None, 2).await.unwrap()), ["a/2", "b/1"]);
    let only = tributary_types::PipelineName::new("a").unwrap();
    assert_eq!(names(coordinator.list_batches(Some(&only), usize::MAX).await.unwrap()), ["a/2", "a/1"]);
}

async fn a_batch_is_followed_to_its_end(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "p", "r").await.unwrap();
    let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
    let mut seen = vec![watch.borrow_and_update().stage];
    while watch.changed().await.is_ok() {
        seen.push(watch.borrow_and_update().stage);
    }
    assert!(seen.is_sorted() && seen.last() == Some(&Stage::Done), "{seen:?}");
    assert_eq!(watch.borrow().outcome, Some(Outcome::Committed));
}

async fn a_cancelled_batch_is_answered_as_it_is(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "p", "r").await.unwrap();
    assert_eq!(coordinator.cancel_batch(&started.name).await.unwrap().name, started.name);
}

async fn a_batch_says_who_asked_for_it(coordinator: Arc<dyn Coordinator>) {
    assert_eq!(run(coordinator.as_ref(), "p", "r").await.unwrap().asked_by, "a test");
}

async fn a_batch_that_is_over_is_followed_at_once(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "p", "r").await.unwrap();
    let ended = finish(coordinator.as_ref(), &started.name).await;
    assert_eq!(*coordinator.watch_batch(&started.name).await.unwrap().borrow(), ended);
}

fn overrides() -> Vec<Override> {
    let read = |text: &str| text.parse::<Override>().unwrap();
    vec![read("db.orders=requested:20250606182826197"), read("users=snapshot").with_token("t").unwrap()]
}

async fn cursors_are_set_by_a_batch_and_looked_at_without_one(coordinator: Arc<dyn Coordinator>) {
    let found = coordinator.check_overrides(pipeline("p"), overrides()).await.unwrap();
    let told: Vec<_> = found.iter().map(|it| (it.source.as_str(), it.to.as_str(), it.applied_by.is_some())).collect();
    assert_eq!(told, [("db.orders", "requested:20250606182826197", false), ("users", "snapshot", true)]);
    assert!(coordinator.list_batches(None, 10).await.unwrap().is_empty(), "nothing was started");
    let request = RequestId::new("r").unwrap();
    let (pipeline, overrides, asked_by) = (pipeline("p"), overrides(), "a test".to_string());
    let asked = RunRequest { pipeline, request, allow_empty: false, overrides, cursors_only: true, asked_by };
    let started = coordinator.run_batch(asked).await.unwrap();
    assert_eq!((&started.overrides, started.seq), (&found, Some(7)), "it is told apart from a run");
}

async fn the_cursors_of_a_pipeline_are_told(coordinator: Arc<dyn Coordinator>) {
    let name = |text: &str| tributary_types::PipelineName::new(text).unwrap();
    let found = coordinator.get_cursors(&name("p"), "/t").await.unwrap().unwrap();
    assert_eq!((found.checkpoint.seq, found.checkpoint.binding.as_str()), (3, "/t"));
    assert_eq!(found.checkpoint.tokens.len(), 1);
    assert_eq!(coordinator.get_cursors(&name("q"), "/t").await.unwrap(), None);
}

async fn a_plan_starts_nothing(coordinator: Arc<dyn Coordinator>) {
    let overrides = overrides();
    let plan = coordinator.plan_batch(pipeline("p"), overrides.clone()).await.unwrap();
    assert_eq!(plan.overrides, coordinator.check_overrides(pipeline("p"), overrides).await.unwrap());
    assert!(plan.has_news);
    assert_eq!(plan.columns, [("id".to_string(), "Int64".to_string())]);
    assert_eq!(plan.sources[0].window.as_ref().unwrap().to_string(), "(start, completed:20250606182826197]");
    assert!(coordinator.list_batches(None, 10).await.unwrap().is_empty());
}

async fn a_wrong_pipeline_is_refused_with_every_problem(coordinator: Arc<dyn Coordinator>) {
    let mut wrong = pipeline("p");
    wrong.sources[0].num_instants = 0;
    wrong.sources[2].num_instants = 0;
    let refused = coordinator.plan_batch(wrong, Vec::new()).await.unwrap_err();
    let Error::Pipeline { pipeline, problems } = &refused else { panic!("{refused:?}") };
    assert_eq!((pipeline.as_str(), problems.len()), ("p", 2));
    assert_eq!((refused.code(), refused.retry()), (Code::Invalid, Retry::Never));
}

async fn a_pulled_batch_has_its_rows_and_their_exact_schema(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "p", "r").await.unwrap();
    finish(coordinator.as_ref(), &started.name).await;
    let opened = coordinator.open_batch(&started.name).await.unwrap();
    assert_eq!(opened.schema, rows(&[]).schema());
    assert_eq!(opened.status.outcome, Some(Outcome::Committed));
    let batches: Vec<RecordBatch> = opened.rows.try_collect().await.unwrap();
    assert_eq!(batches, [rows(&["a", "b"]), rows(&["c"])]);
}

async fn a_commit_without_rows_is_an_empty_typed_stream(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "empty", "r").await.unwrap();
    let mut opened = coordinator.open_batch(&started.name).await.unwrap();
    assert_eq!(opened.schema, rows(&[]).schema());
    assert!(opened.rows.next().await.is_none());
}

async fn an_error_among_the_rows_keeps_its_classification(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "broken", "r").await.unwrap();
    let mut opened = coordinator.open_batch(&started.name).await.unwrap();
    assert!(opened.rows.next().await.unwrap().is_ok());
    let error = opened.rows.next().await.unwrap().unwrap_err();
    assert_eq!((error.code, error.retry, error.reason), (Code::Conflict, Retry::Rebase, "FILE_GONE"));
    assert!(error.to_string().contains("file `f` was pinned by the plan and is gone"), "{error}");
    assert!(opened.rows.next().await.is_none());
}

async fn a_row_of_ten_megabytes_passes(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "wide", "r").await.unwrap();
    let opened = coordinator.open_batch(&started.name).await.unwrap();
    let batches: Vec<RecordBatch> = opened.rows.try_collect().await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 2);
}

async fn a_cleaned_batch_is_gone(coordinator: Arc<dyn Coordinator>) {
    let started = run(coordinator.as_ref(), "gone", "r").await.unwrap();
    let refused = coordinator.open_batch(&started.name).await.err().unwrap();
    assert!(matches!(&refused, Error::Gone { what, .. } if what == "cleaned"), "{refused:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_and_asking_again_is_safe() {
    let channel = crate::connect_lazily("http://127.0.0.1:1").unwrap();
    let client = CoordinatorClient::new(channel, "http://127.0.0.1:1");
    let refused = run(&client, "p", "r").await.unwrap_err();
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused:?}");
    assert_eq!(refused.retry(), Retry::Again);
    let message = refused.failure().message;
    assert!(message.contains("starting a batch at http://127.0.0.1:1") && message.contains("refused"), "{message}");
}

#[tokio::test]
async fn pages_follow_each_other_even_when_new_batches_come_in_between() {
    let channel = serve();
    let client = CoordinatorClient::new(channel.clone(), "x");
    for id in ["1", "2", "3", "4", "5"] {
        run(&client, "p", id).await.unwrap();
    }
    let mut calls = CoordinatorServiceClient::new(channel);
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = proto::ListBatchesRequest { pipeline: String::new(), page_size: 2, page_token };
        let page = calls.list_batches(request).await.unwrap().into_inner();
        seen.extend(page.batches.iter().map(|batch| batch.request_id.clone()));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
        run(&client, "p", &format!("new{}", seen.len())).await.unwrap();
    }
    assert_eq!(seen, ["5", "4", "3", "2", "1"]);
    let stale = proto::ListBatchesRequest { page_token: "nope".to_string(), ..Default::default() };
    assert_eq!(calls.list_batches(stale).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let negative = proto::ListBatchesRequest { page_size: -1, ..Default::default() };
    assert_eq!(calls.list_batches(negative).await.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn a_request_that_is_only_validated_is_planned_and_needs_no_id() {
    let channel = serve();
    let mut calls = CoordinatorServiceClient::new(channel);
    let sent = Some(crate::convert::pipeline_to_proto(&pipeline("p")));
    let request = proto::RunBatchRequest { pipeline: sent.clone(), validate_only: true, ..Default::default() };
    let answer = calls.run_batch(request).await.unwrap().into_inner();
    assert!(answer.batch.is_none() && answer.plan.unwrap().has_news);
    let request = proto::RunBatchRequest { pipeline: sent, ..Default::default() };
    let refused = calls.run_batch(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("`request_id`"), "{refused:?}");
    let refused = calls.run_batch(proto::RunBatchRequest::default()).await.unwrap_err();
    assert!(refused.message().contains("`pipeline`: is missing"), "{refused:?}");
}

#[tokio::test]
async fn a_flight_is_found_by_path_and_by_command_and_says_what_the_batch_was() {
    let channel = serve();
    let client = CoordinatorClient::new(channel.clone(), "x");
    let started = run(&client, "p", "r").await.unwrap();
    finish(&client, &started.name).await;
    let mut flight = FlightServiceClient::new(channel);
    for descriptor in [
        FlightDescriptor::new_path(vec!["batch:p/r".to_string()]),
        FlightDescriptor::new_path(vec!["batch:p".to_string(), "r".to_string()]),
        FlightDescriptor::new_cmd("batch:p/r"),
    ] {
        let info = flight.get_flight_info(descriptor.clone()).await.unwrap().into_inner();
        assert_eq!((info.endpoint.len(), info.total_records), (1, 5));
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        assert_eq!(&ticket.ticket[..], b"batch:p/r");
        let schema = info.try_decode_schema().unwrap();
        assert_eq!(schema.metadata()["tributary.instant"], "20250606182826197");
        assert_eq!(schema.metadata()["tributary.source.a.end"], "completed:20250606182826197");
        assert_eq!(schema.metadata()["made by"], "a writer");
        let told = flight.get_schema(descriptor).await.unwrap().into_inner();
        assert_eq!(arrow::datatypes::Schema::try_from(told).unwrap(), schema);
    }
    let unknown = flight.get_flight_info(FlightDescriptor::new_cmd("rows:x")).await.unwrap_err();
    assert!(unknown.message().contains("a batch is `batch:<pipeline>/<request id>`"), "{unknown:?}");
}

#[tokio::test]
async fn committed_batches_that_can_still_be_pulled_are_listed_as_flights() {
    let channel = serve();
    let client = CoordinatorClient::new(channel.clone(), "x");
    for name in ["p", "gone", "empty"] {
        let started = run(&client, name, "r").await.unwrap();
        finish(&client, &started.name).await;
    }
    let mut flight = FlightServiceClient::new(channel);
    let all = flight.list_flights(Criteria::default()).await.unwrap().into_inner();
    let all: Vec<FlightInfo> = all.try_collect().await.unwrap();
    let path = |info: &FlightInfo| info.flight_descriptor.clone().unwrap().path.join("/");
    assert_eq!(all.iter().map(path).collect::<Vec<_>>(), ["batch:empty/r", "batch:p/r"]);
    let one = flight.list_flights(Criteria { expression: "p".into() }).await.unwrap().into_inner();
    assert_eq!(one.try_collect::<Vec<_>>().await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_flight_does_not_offer_says_so() {
    let mut flight = FlightServiceClient::new(serve());
    let refused = flight.do_action(arrow_flight::Action::new("x", "")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    assert!(refused.message().contains("not offered"), "{refused:?}");
}

#[tokio::test]
async fn a_server_without_the_role_says_so() {
    let channel = connect(Routes::new(FlightServer::new().into_service()));
    let client = CoordinatorClient::new(channel, "http://in-memory");
    let refused = run(&client, "p", "r").await.unwrap_err();
    assert_eq!((refused.code(), refused.retry()), (Code::Unsupported, Retry::Never));
    assert_eq!(refused.to_string(), "starting a batch at http://in-memory: the role does not run there");
}
