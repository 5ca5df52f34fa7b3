// SPDX-License-Identifier: Apache-2.0
//! What the tests of the adapters share: a connection inside the process, and a coordinator that keeps batches in
//! memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef};
use async_trait::async_trait;
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use tokio::sync::{mpsc, watch};
use tonic::service::Routes;
use tonic::transport::{Endpoint, Server};
use tributary_api::checkpoint::CursorCommit;
use tributary_api::coordinator::{
    BatchStatus, Coordinator, Error, OpenedBatch, OverrideStatus, PlannedBatch, RunRequest, SourceStatus,
};
use tributary_api::timeline::{self, WindowReport};
use tributary_api::{RowError, RowStream};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Checkpoint, Outcome, Override, PipelineName, SourceName, Stage, Window};

use crate::channel::Channel;
use crate::convert::tests::status;

/// Runs each behaviour of a role twice: on the role of `direct()`, and on the one of `remote()` behind the wire. Both
/// are functions beside the call.
macro_rules! behaviours {
    ($($behaviour:ident),* $(,)?) => {
        mod directly {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::direct()).await;
            })*
        }
        mod through_grpc {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::remote()).await;
            })*
        }
    };
}

pub(crate) use behaviours;

/// A channel to `routes`, served over pipes in memory. Each connection of the channel is a new pipe.
pub(crate) fn connect(routes: Routes) -> Channel {
    let (accept, accepted) = mpsc::channel::<Result<tokio::io::DuplexStream, std::io::Error>>(4);
    let incoming = futures::stream::unfold(accepted, |mut accepted| async move {
        let next = accepted.recv().await?;
        Some((next, accepted))
    });
    tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(incoming));
    let endpoint = crate::channel::configure(Endpoint::from_static("http://in-memory"));
    Channel::from(endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
        let accept = accept.clone();
        async move {
            let (client, server) = tokio::io::duplex(64 << 10);
            let sent = accept.send(Ok(server)).await;
            sent.map_err(|_| std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "the server is gone"))?;
            Ok::<_, std::io::Error>(TokioIo::new(client))
        }
    })))
}

/// Runs "batches" that only change their state. What pulling one gives depends on the pipeline's name.
#[derive(Default)]
pub(crate) struct MemoryCoordinator {
    batches: Mutex<Vec<(Pipeline, watch::Receiver<BatchStatus>)>>,
    cancelled: Mutex<Vec<BatchName>>,
}

impl MemoryCoordinator {
    fn find(&self, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        let batches = self.batches.lock().unwrap();
        let found = batches.iter().find(|(_, status)| &status.borrow().name == name);
        found.map(|(_, status)| status.clone()).ok_or_else(|| Error::NoBatch { name: name.to_string() })
    }
}

/// Overrides with a token count as applied before.
fn statuses(overrides: Vec<Override>) -> Vec<OverrideStatus> {
    let one = |wanted: Override| OverrideStatus {
        source: wanted.source.clone().unwrap_or_else(|| SourceName::new("only").unwrap()),
        to: wanted.to.to_string(),
        applied_by: wanted.token.map(|_| "20250606182826197".parse().unwrap()),
        before: None,
    };
    overrides.into_iter().map(one).collect()
}

pub(crate) fn pipeline(name: &str) -> Pipeline {
    let mut pipeline = crate::convert::tests::pipeline();
    pipeline.name = PipelineName::new(name).unwrap();
    pipeline
}

#[async_trait]
impl Coordinator for MemoryCoordinator {
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, Error> {
        let mut batches = self.batches.lock().unwrap();
        let name = BatchName::new(format!("{}/{}", request.pipeline.name, request.request)).unwrap();
        if let Some((pipeline, status)) = batches.iter().find(|(_, status)| status.borrow().name == name) {
            if pipeline != &request.pipeline {
                return Err(Error::RequestReused { request: request.request });
            }
            return Ok(status.borrow().clone());
        }
        let first = BatchStatus {
            name,
            pipeline: request.pipeline.name.clone(),
            request: request.request,
            asked_by: request.asked_by,
            stage: Stage::Pending,
            overrides: statuses(request.overrides),
            seq: request.cursors_only.then_some(7),
            ..status(None)
        };
        let (sender, receiver) = watch::channel(first.clone());
        batches.push((request.pipeline, receiver));
        tokio::spawn(async move {
            for stage in [Stage::Resolve, Stage::Plan, Stage::Merge, Stage::Commit] {
                tokio::time::sleep(Duration::from_millis(5)).await;
                sender.send_modify(|status| status.stage = stage);
            }
            sender.send_modify(|status| {
                status.stage = Stage::Done;
                status.outcome = Some(Outcome::Committed);
            });
        });
        Ok(first)
    }

    async fn get_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        Ok(self.find(name)?.borrow().clone())
    }

    async fn list_batches(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchStatus>, Error> {
        let batches = self.batches.lock().unwrap();
        let newest = batches.iter().rev().map(|(_, status)| status.borrow().clone());
        Ok(newest.filter(|status| pipeline.is_none_or(|name| &status.pipeline == name)).take(limit).collect())
    }

    async fn watch_batch(&self, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        self.find(name)
    }

    async fn cancel_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        self.find(name)?;
        self.cancelled.lock().unwrap().push(name.clone());
        self.get_batch(name).await
    }

    async fn check_overrides(&self, _: Pipeline, overrides: Vec<Override>) -> Result<Vec<OverrideStatus>, Error> {
        Ok(statuses(overrides))
    }

    async fn get_cursors(&self, pipeline: &PipelineName, target: &str) -> Result<Option<CursorCommit>, Error> {
        let mut checkpoint = Checkpoint::first(target.to_string());
        checkpoint.seq = 3;
        checkpoint.tokens.insert("a=start".to_string(), "20250606182826197".parse().unwrap());
        let instant = "20250606182826197".parse().unwrap();
        let found = CursorCommit { completed: None, instant, checkpoint };
        Ok(Some(found).filter(|_| pipeline.as_str() == "p"))
    }

    async fn plan_batch(&self, pipeline: Pipeline, overrides: Vec<Override>) -> Result<PlannedBatch, Error> {
        let problems = pipeline.sources.iter().filter(|source| source.num_instants == 0);
        let problems: Vec<String> = problems.map(|source| format!("source `{}`", source.name)).collect();
        if !problems.is_empty() {
            return Err(Error::Pipeline { pipeline: pipeline.name.to_string(), problems });
        }
        let end = "completed:20250606182826197".parse().unwrap();
        Ok(PlannedBatch {
            sources: vec![SourceStatus {
                source: SourceName::new("s").unwrap(),
                window: Some(Window { begin: None, end }),
                report: WindowReport::default(),
                rows: 0,
                bytes_read: 0,
            }],
            overrides: statuses(overrides),
            has_news: true,
            logical_plan: "logical".to_string(),
            physical_plan: "physical".to_string(),
            columns: vec![("id".to_string(), "Int64".to_string())],
        })
    }

    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, Error> {
        let status = self.get_batch(name).await?;
        let rows: Vec<Result<RecordBatch, RowError>> = match status.pipeline.as_str() {
            "gone" => {
                return Err(Error::Gone { name: name.to_string(), what: "cleaned".to_string() });
            }
            "empty" => Vec::new(),
            "broken" => vec![
                Ok(rows(&["a"])),
                Err(RowError::new(timeline::Error::FileGone { url: "/t".to_string(), file: "f".to_string() })),
            ],
            "wide" => vec![Ok(rows(&["w".repeat(10 << 20).as_str(), "narrow"]))],
            _ => vec![Ok(rows(&["a", "b"])), Ok(rows(&["c"]))],
        };
        let rows: RowStream = futures::stream::iter(rows).boxed();
        Ok(OpenedBatch { schema: schema(), rows, status })
    }
}

fn schema() -> SchemaRef {
    let color = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let fields = vec![
        Field::new("id", DataType::Int64, false),
        Field::new("text", DataType::Utf8, true),
        Field::new("color", color, true),
    ];
    Arc::new(Schema::new_with_metadata(fields, HashMap::from([("made by".to_string(), "a writer".to_string())])))
}

pub(crate) fn rows(texts: &[&str]) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..texts.len() as i64));
    let colors: DictionaryArray<Int32Type> = texts.iter().map(|_| Some("red")).collect();
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    RecordBatch::try_new(schema(), vec![ids, text, Arc::new(colors)]).unwrap()
}
