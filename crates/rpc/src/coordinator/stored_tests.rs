// SPDX-License-Identifier: Apache-2.0
//! Stored pipelines over the wire, in front of a keeper that only remembers: one suite directly and through gRPC, then what
//! only the wire can show.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tonic::service::Routes;
use tributary_api::coordinator::{BatchStatus, Coordinator, Error, RunRequest};
use tributary_api::pipelines::{Change, Pipelines, RunStored, StoredPipeline};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Fault as _, PipelineName, RequestId};

use super::{CoordinatorClient, CoordinatorServer};
use crate::channel::Channel;
use crate::convert::pipeline_to_proto;
use crate::proto::coordinator as proto;
use crate::testing::{MemoryCoordinator, behaviours, connect, pipeline};
use proto::coordinator_service_client::CoordinatorServiceClient;

/// Keeps pipelines, and what it was asked for.
#[derive(Default)]
struct Memory {
    stored: Mutex<BTreeMap<PipelineName, StoredPipeline>>,
    asked: Mutex<Vec<Change>>,
    batches: Arc<MemoryCoordinator>,
}

impl Memory {
    fn put(&self, pipeline: Pipeline, paused: bool, change: Change) -> StoredPipeline {
        let mut stored = self.stored.lock().unwrap();
        let etag = format!("e{}", stored.len() + self.asked.lock().unwrap().len());
        let kept = StoredPipeline { pipeline, paused, etag, created_millis: 1_500, updated_millis: 2_501 };
        if !change.validate_only {
            stored.insert(kept.pipeline.name.clone(), kept.clone());
        }
        self.asked.lock().unwrap().push(change);
        kept
    }
}

#[async_trait]
impl Pipelines for Memory {
    async fn create_pipeline(&self, pipeline: Pipeline, change: Change) -> Result<StoredPipeline, Error> {
        if self.stored.lock().unwrap().contains_key(&pipeline.name) {
            return Err(Error::PipelineExists { name: pipeline.name });
        }
        Ok(self.put(pipeline, false, change))
    }

    async fn update_pipeline(
        &self,
        pipeline: Pipeline,
        allow_missing: bool,
        change: Change,
    ) -> Result<StoredPipeline, Error> {
        let found = self.get_pipeline(&pipeline.name).await;
        match (found, &change.etag) {
            (Ok(found), Some(expected)) if *expected != found.etag => {
                Err(Error::PipelineChanged { name: pipeline.name, expected: expected.clone(), found: found.etag })
            }
            (Err(missing), _) if !allow_missing => Err(missing),
            _ => Ok(self.put(pipeline, false, change)),
        }
    }

    async fn get_pipeline(&self, name: &PipelineName) -> Result<StoredPipeline, Error> {
        let found = self.stored.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| Error::NoPipeline { name: name.to_string() })
    }

    async fn list_pipelines(&self, after: Option<&str>, limit: usize) -> Result<Vec<StoredPipeline>, Error> {
        let stored = self.stored.lock().unwrap();
        let found = stored.iter().filter(|(name, _)| after.is_none_or(|after| name.as_str() > after));
        Ok(found.take(limit).map(|(_, stored)| stored.clone()).collect())
    }

    async fn delete_pipeline(&self, name: &PipelineName, allow_missing: bool, change: Change) -> Result<(), Error> {
        self.asked.lock().unwrap().push(change);
        match self.stored.lock().unwrap().remove(name) {
            None if !allow_missing => Err(Error::NoPipeline { name: name.to_string() }),
            _ => Ok(()),
        }
    }

    async fn pause_pipeline(&self, name: &PipelineName, paused: bool, change: Change) -> Result<StoredPipeline, Error> {
        let found = self.get_pipeline(name).await?;
        Ok(self.put(found.pipeline, paused, change))
    }

    async fn run_stored(&self, request: RunStored) -> Result<BatchStatus, Error> {
        let found = self.get_pipeline(&request.name).await?;
        if found.paused && !request.cursors_only {
            return Err(Error::Paused { name: request.name });
        }
        let RunStored { request, allow_empty, overrides, cursors_only, asked_by, .. } = request;
        let run = RunRequest { pipeline: found.pipeline, request, allow_empty, overrides, cursors_only, asked_by };
        self.batches.run_batch(run).await
    }
}

fn serve(memory: Memory) -> Channel {
    let coordinator: Arc<dyn Coordinator> = Arc::clone(&memory.batches) as Arc<dyn Coordinator>;
    connect(Routes::new(CoordinatorServer::with_pipelines(coordinator, Some(Arc::new(memory)))))
}

fn direct() -> Arc<dyn Pipelines> {
    Arc::new(Memory::default())
}

fn remote() -> Arc<dyn Pipelines> {
    Arc::new(CoordinatorClient::new(serve(Memory::default()), "http://in-memory"))
}

behaviours! {
    a_pipeline_arrives_whole_and_comes_back_whole,
    refusals_keep_their_kind_and_fields,
    pipelines_are_listed_to_the_end,
    a_batch_of_a_stored_pipeline_is_asked_for_by_name,
    cursors_of_a_paused_pipeline_are_set,
}

fn name(text: &str) -> PipelineName {
    PipelineName::new(text).unwrap()
}

fn run(named: &str, cursors_only: bool) -> RunStored {
    let overrides = if cursors_only { vec!["users=snapshot".parse().unwrap()] } else { Vec::new() };
    let (request, asked_by) = (RequestId::new("r").unwrap(), "a test".to_string());
    RunStored { name: name(named), request, allow_empty: false, overrides, cursors_only, asked_by }
}

async fn a_pipeline_arrives_whole_and_comes_back_whole(pipelines: Arc<dyn Pipelines>) {
    let created = pipelines.create_pipeline(pipeline("p"), Change::default()).await.unwrap();
    assert_eq!((&created.pipeline, created.paused), (&pipeline("p"), false));
    assert_eq!((created.created_millis, created.updated_millis), (1_500, 2_501));
    assert_eq!(pipelines.get_pipeline(&name("p")).await.unwrap(), created);
    let paused = pipelines.pause_pipeline(&name("p"), true, Change::default()).await.unwrap();
    assert!(paused.paused && paused.etag != created.etag);
    assert!(!pipelines.pause_pipeline(&name("p"), false, Change::default()).await.unwrap().paused);
    pipelines.delete_pipeline(&name("p"), false, Change::default()).await.unwrap();
    assert_eq!(pipelines.get_pipeline(&name("p")).await.unwrap_err().reason(), "PIPELINE_NOT_FOUND");
    pipelines.delete_pipeline(&name("p"), true, Change::default()).await.unwrap();
}

async fn refusals_keep_their_kind_and_fields(pipelines: Arc<dyn Pipelines>) {
    pipelines.create_pipeline(pipeline("p"), Change::default()).await.unwrap();
    let exists = pipelines.create_pipeline(pipeline("p"), Change::default()).await.unwrap_err();
    assert!(matches!(&exists, Error::PipelineExists { name } if name.as_str() == "p"), "{exists:?}");
    let stale = Change { etag: Some("old".to_string()), ..Change::default() };
    let changed = pipelines.update_pipeline(pipeline("p"), false, stale).await.unwrap_err();
    assert!(matches!(&changed, Error::PipelineChanged { expected, .. } if expected == "old"), "{changed:?}");
    let missing = pipelines.update_pipeline(pipeline("q"), false, Change::default()).await.unwrap_err();
    assert!(matches!(&missing, Error::NoPipeline { name } if name == "q"), "{missing:?}");
    assert!(pipelines.update_pipeline(pipeline("q"), true, Change::default()).await.is_ok());
}

async fn pipelines_are_listed_to_the_end(pipelines: Arc<dyn Pipelines>) {
    for named in ["b", "a", "c"] {
        pipelines.create_pipeline(pipeline(named), Change::default()).await.unwrap();
    }
    let names =
        |found: Vec<StoredPipeline>| found.iter().map(|stored| stored.pipeline.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(pipelines.list_pipelines(None, usize::MAX).await.unwrap()), ["a", "b", "c"]);
    assert_eq!(names(pipelines.list_pipelines(Some("a"), 1).await.unwrap()), ["b"]);
}

async fn a_batch_of_a_stored_pipeline_is_asked_for_by_name(pipelines: Arc<dyn Pipelines>) {
    assert_eq!(pipelines.run_stored(run("p", false)).await.unwrap_err().reason(), "PIPELINE_NOT_FOUND");
    pipelines.create_pipeline(pipeline("p"), Change::default()).await.unwrap();
    let started = pipelines.run_stored(run("p", false)).await.unwrap();
    assert_eq!((started.name.as_str(), started.asked_by.as_str()), ("p/r", "a test"));
    assert_eq!(pipelines.run_stored(run("p", false)).await.unwrap().name, started.name);
}

async fn cursors_of_a_paused_pipeline_are_set(pipelines: Arc<dyn Pipelines>) {
    pipelines.create_pipeline(pipeline("p"), Change::default()).await.unwrap();
    pipelines.pause_pipeline(&name("p"), true, Change::default()).await.unwrap();
    let refused = pipelines.run_stored(run("p", false)).await.unwrap_err();
    assert!(matches!(&refused, Error::Paused { name } if name.as_str() == "p"), "{refused:?}");
    let set = pipelines.run_stored(run("p", true)).await.unwrap();
    assert_eq!((set.seq, set.overrides.len()), (Some(7), 1), "told apart from a run");
}

#[tokio::test]
async fn etag_request_id_and_validate_only_arrive() {
    let memory = Arc::new(Memory::default());
    let coordinator: Arc<dyn Coordinator> = Arc::clone(&memory.batches) as Arc<dyn Coordinator>;
    let keeper = Arc::clone(&memory) as Arc<dyn Pipelines>;
    let channel = connect(Routes::new(CoordinatorServer::with_pipelines(coordinator, Some(keeper))));
    let client = CoordinatorClient::new(channel, "x");
    let request = Some(RequestId::new("r1").unwrap());
    let look = Change { etag: None, validate_only: true, request: request.clone() };
    client.create_pipeline(pipeline("p"), look.clone()).await.unwrap();
    assert_eq!(client.get_pipeline(&name("p")).await.unwrap_err().reason(), "PIPELINE_NOT_FOUND");
    let created = client.create_pipeline(pipeline("p"), Change::default()).await.unwrap();
    let change = Change { etag: Some(created.etag), validate_only: false, request };
    client.update_pipeline(pipeline("p"), false, change.clone()).await.unwrap();
    client.pause_pipeline(&name("p"), true, change.clone()).await.unwrap();
    let delete = Change { validate_only: true, ..change.clone() };
    client.delete_pipeline(&name("p"), false, delete.clone()).await.unwrap();
    assert_eq!(*memory.asked.lock().unwrap(), [look, Change::default(), change.clone(), change, delete]);
}

#[tokio::test]
async fn calls_that_take_a_pipeline_take_its_name_as_well_and_not_both() {
    let channel = serve(Memory::default());
    CoordinatorClient::new(channel.clone(), "x").create_pipeline(pipeline("p"), Change::default()).await.unwrap();
    let mut calls = CoordinatorServiceClient::new(channel);
    let by_name = proto::PlanBatchRequest { pipeline_name: "p".to_string(), ..Default::default() };
    assert!(calls.plan_batch(by_name.clone()).await.unwrap().into_inner().has_news);
    let both = proto::PlanBatchRequest { pipeline: Some(pipeline_to_proto(&pipeline("p"))), ..by_name };
    let refused = calls.plan_batch(both).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("`pipeline_name`"), "{refused:?}");
    let look = proto::RunBatchRequest { pipeline_name: "p".to_string(), validate_only: true, ..Default::default() };
    assert!(calls.run_batch(look).await.unwrap().into_inner().plan.is_some());
    let nobody =
        proto::RunBatchRequest { pipeline_name: "q".to_string(), request_id: "r".to_string(), ..Default::default() };
    assert_eq!(calls.run_batch(nobody).await.unwrap_err().code(), tonic::Code::NotFound);
    let cursors = proto::GetCursorsRequest { pipeline: "p".to_string(), target: String::new() };
    assert_eq!(calls.get_cursors(cursors).await.unwrap().into_inner().seq, 3, "of its own target");
}

#[tokio::test]
async fn pages_go_on_by_name_and_a_paused_pipeline_is_a_failed_precondition() {
    let channel = serve(Memory::default());
    let client = CoordinatorClient::new(channel.clone(), "x");
    for named in ["a", "b", "c"] {
        client.create_pipeline(pipeline(named), Change::default()).await.unwrap();
    }
    let mut calls = CoordinatorServiceClient::new(channel);
    let first = proto::ListPipelinesRequest { page_size: 2, ..Default::default() };
    let page = calls.list_pipelines(first).await.unwrap().into_inner();
    assert_eq!((page.pipelines.len(), page.next_page_token.as_str()), (2, "b"));
    client.delete_pipeline(&name("b"), false, Change::default()).await.unwrap();
    let second = proto::ListPipelinesRequest { page_size: 2, page_token: page.next_page_token };
    let page = calls.list_pipelines(second).await.unwrap().into_inner();
    assert_eq!((page.pipelines[0].name.as_str(), page.next_page_token.as_str()), ("c", ""));
    for (page_size, page_token) in [(-1, ""), (1, "no/name")] {
        let wrong = proto::ListPipelinesRequest { page_size, page_token: page_token.to_string() };
        assert_eq!(calls.list_pipelines(wrong).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    }
    let pause = proto::PausePipelineRequest { name: "a".to_string(), ..Default::default() };
    let paused = calls.pause_pipeline(pause).await.unwrap().into_inner();
    assert_eq!(paused.state(), proto::PipelineState::Paused);
    let run =
        proto::RunBatchRequest { pipeline_name: "a".to_string(), request_id: "r".to_string(), ..Default::default() };
    assert_eq!(calls.run_batch(run).await.unwrap_err().code(), tonic::Code::FailedPrecondition);
    let unnamed = calls.get_pipeline(proto::GetPipelineRequest::default()).await.unwrap_err();
    assert_eq!(unnamed.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn a_batch_is_waited_for_to_its_end_or_to_the_time_that_is_given() {
    let channel = serve(Memory::default());
    let client = CoordinatorClient::new(channel.clone(), "x");
    client.create_pipeline(pipeline("p"), Change::default()).await.unwrap();
    client.run_stored(run("p", false)).await.unwrap();
    let mut calls = CoordinatorServiceClient::new(channel);
    let no_time = Some(prost_types::Duration { seconds: 0, nanos: 0 });
    let at_once = proto::WaitBatchRequest { name: "p/r".to_string(), timeout: no_time };
    let now = calls.wait_batch(at_once).await.unwrap().into_inner();
    assert_ne!(now.stage(), proto::Stage::Done, "it takes some milliseconds");
    let to_the_end = proto::WaitBatchRequest { name: "p/r".to_string(), timeout: None };
    let ended = calls.wait_batch(to_the_end).await.unwrap().into_inner();
    assert_eq!(ended.stage(), proto::Stage::Done);
    let backwards = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    let wrong = proto::WaitBatchRequest { name: "p/r".to_string(), timeout: backwards };
    assert_eq!(calls.wait_batch(wrong).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    let nobody = proto::WaitBatchRequest { name: "p/nope".to_string(), timeout: None };
    assert_eq!(calls.wait_batch(nobody).await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn a_server_that_keeps_no_pipelines_says_so() {
    let coordinator: Arc<dyn Coordinator> = Arc::new(MemoryCoordinator::default());
    let client = CoordinatorClient::new(connect(Routes::new(CoordinatorServer::new(coordinator))), "x");
    let refused = client.get_pipeline(&name("p")).await.unwrap_err();
    assert!(refused.to_string().contains("keeps no pipelines"), "{refused}");
}
