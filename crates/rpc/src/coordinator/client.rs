// SPDX-License-Identifier: Apache-2.0
//! A coordinator behind a channel.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::Ticket;
use arrow_flight::flight_service_client::FlightServiceClient;
use async_trait::async_trait;
use tokio::sync::watch;
use tonic::{Status, Streaming};
use tributary_api::checkpoint::CursorCommit;
use tributary_api::coordinator::{
    BatchStatus, Coordinator, Error, OpenedBatch, OverrideStatus, PlannedBatch, RunRequest,
};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Override, PipelineName, Stage, with_causes};

use crate::channel::Channel;
use crate::convert::{
    batch_from_proto, cursors_from_proto, override_statuses_from_proto, overrides_to_proto, pipeline_to_proto,
    plan_from_proto, required,
};
use crate::fault::{Call, from_status};
use crate::flight::{batch_ticket, read_rows};
use crate::link::Link;
use crate::proto::coordinator as proto;
use crate::remote::Remote;
use crate::trace::traced;
use proto::coordinator_service_client::CoordinatorServiceClient;

/// Pause before the first attempt to follow a batch again after its stream broke; each next pause is longer.
const WATCH_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_WATCH_PAUSE: Duration = Duration::from_secs(5);
/// Attempts in a row without an answer: with the pauses, about two minutes.
const WATCH_ATTEMPTS: u32 = 30;
const PAGE: usize = 1000;

/// Calls a coordinator in another process.
#[derive(Clone)]
pub struct CoordinatorClient {
    calls: CoordinatorServiceClient<Channel>,
    flight: FlightServiceClient<Channel>,
    remote: Remote<Error>,
    link: Option<Arc<dyn Link>>,
}

impl CoordinatorClient {
    /// A client over `channel`; `address` is what messages call the other side.
    pub fn new(channel: Channel, address: impl Into<String>) -> Self {
        CoordinatorClient {
            calls: CoordinatorServiceClient::new(channel.clone()).max_decoding_message_size(crate::MESSAGE_LIMIT),
            flight: FlightServiceClient::new(channel).max_decoding_message_size(crate::MESSAGE_LIMIT),
            remote: Remote::new(address),
            link: None,
        }
    }

    /// Tells `link` when a batch that is followed cannot be, and when it can again.
    #[must_use]
    pub fn with_link(mut self, link: Arc<dyn Link>) -> Self {
        self.link = Some(link);
        self
    }

    pub(super) fn calls(&self) -> CoordinatorServiceClient<Channel> {
        self.calls.clone()
    }

    pub(super) fn remote(&self) -> &Remote<Error> {
        &self.remote
    }

    async fn follow(&self, name: &BatchName) -> Result<Streaming<proto::Batch>, Status> {
        let request = proto::WatchBatchRequest { name: name.to_string() };
        Ok(self.calls.clone().watch_batch(traced(request)).await?.into_inner())
    }
}

#[async_trait]
impl Coordinator for CoordinatorClient {
    /// Safe to repeat: the request id makes the second call answer with the same batch.
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, Error> {
        const DOING: &str = "starting a batch";
        let pipeline = Some(pipeline_to_proto(&request.pipeline));
        let overrides = overrides_to_proto(&request.overrides);
        let (request_id, asked_by) = (request.request.to_string(), request.asked_by);
        let mut calls = self.calls.clone();
        let batch = if request.cursors_only {
            let pipeline_name = String::new();
            let validate_only = false;
            let message =
                proto::SetCursorRequest { pipeline, overrides, request_id, validate_only, asked_by, pipeline_name };
            calls.set_cursor(traced(message)).await.map_err(self.remote.failed_write(DOING))?.into_inner().batch
        } else {
            let allow_empty = request.allow_empty;
            let message = proto::RunBatchRequest {
                pipeline,
                request_id,
                allow_empty,
                asked_by,
                overrides,
                ..proto::RunBatchRequest::default()
            };
            calls.run_batch(traced(message)).await.map_err(self.remote.failed_write(DOING))?.into_inner().batch
        };
        let batch = required(batch, "batch").map_err(self.remote.unreadable(DOING))?;
        batch_from_proto(batch).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn get_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        const DOING: &str = "asking for a batch";
        let request = proto::GetBatchRequest { name: name.to_string() };
        let batch = self.calls.clone().get_batch(traced(request)).await.map_err(self.remote.failed(DOING))?;
        batch_from_proto(batch.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn list_batches(&self, pipeline: Option<&PipelineName>, limit: usize) -> Result<Vec<BatchStatus>, Error> {
        const DOING: &str = "listing batches";
        let mut found = Vec::new();
        let mut page_token = String::new();
        while found.len() < limit {
            let request = proto::ListBatchesRequest {
                pipeline: pipeline.map(ToString::to_string).unwrap_or_default(),
                page_size: (limit - found.len()).min(PAGE) as i32,
                page_token,
            };
            let page =
                self.calls.clone().list_batches(traced(request)).await.map_err(self.remote.failed(DOING))?.into_inner();
            for batch in page.batches {
                found.push(batch_from_proto(batch).map_err(self.remote.unreadable(DOING))?);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// Safe to repeat. A stream that breaks is opened again; the receiver is only told that nothing more comes when
    /// the coordinator has forgotten the batch or does not answer for long.
    async fn watch_batch(&self, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        const DOING: &str = "following a batch";
        let mut stream = self.follow(name).await.map_err(self.remote.failed(DOING))?;
        let first = stream.message().await.map_err(self.remote.failed(DOING))?;
        let first = required(first, "batch").and_then(batch_from_proto).map_err(self.remote.unreadable(DOING))?;
        let over = first.stage == Stage::Done;
        let (sender, receiver) = watch::channel(first);
        if !over {
            tokio::spawn(forward(self.clone(), name.clone(), stream, sender));
        }
        Ok(receiver)
    }

    /// Safe to repeat.
    async fn cancel_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        const DOING: &str = "cancelling a batch";
        let request = proto::CancelBatchRequest { name: name.to_string() };
        let batch = self.calls.clone().cancel_batch(traced(request)).await.map_err(self.remote.failed(DOING))?;
        batch_from_proto(batch.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn plan_batch(&self, pipeline: Pipeline, overrides: Vec<Override>) -> Result<PlannedBatch, Error> {
        const DOING: &str = "planning a batch";
        let pipeline = Some(pipeline_to_proto(&pipeline));
        let overrides = overrides_to_proto(&overrides);
        let request = proto::PlanBatchRequest { pipeline, overrides, pipeline_name: String::new() };
        let plan = self.calls.clone().plan_batch(traced(request)).await.map_err(self.remote.failed(DOING))?;
        plan_from_proto(plan.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn check_overrides(
        &self,
        pipeline: Pipeline,
        overrides: Vec<Override>,
    ) -> Result<Vec<OverrideStatus>, Error> {
        const DOING: &str = "looking whether cursors can be set";
        let request = proto::SetCursorRequest {
            pipeline: Some(pipeline_to_proto(&pipeline)),
            overrides: overrides_to_proto(&overrides),
            validate_only: true,
            ..proto::SetCursorRequest::default()
        };
        let answer = self.calls.clone().set_cursor(traced(request)).await.map_err(self.remote.failed(DOING))?;
        override_statuses_from_proto(answer.into_inner().overrides).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn get_cursors(&self, pipeline: &PipelineName, target: &str) -> Result<Option<CursorCommit>, Error> {
        const DOING: &str = "asking for the cursors";
        let request = proto::GetCursorsRequest { pipeline: pipeline.to_string(), target: target.to_string() };
        let found = self.calls.clone().get_cursors(traced(request)).await.map_err(self.remote.failed(DOING))?;
        cursors_from_proto(pipeline, found.into_inner()).map_err(self.remote.unreadable(DOING))
    }

    /// Safe to repeat.
    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, Error> {
        const DOING: &str = "pulling a batch";
        let status = self.get_batch(name).await?;
        let ticket = Ticket::new(batch_ticket(name));
        let data = self.flight.clone().do_get(traced(ticket)).await.map_err(self.remote.failed(DOING))?;
        let (schema, rows) =
            read_rows(data.into_inner(), self.remote.at(DOING)).await.map_err(self.remote.failed(DOING))?;
        Ok(OpenedBatch { schema, rows, status })
    }
}

/// Keeps `sender` at what the coordinator says, until the batch is over or nobody looks any more.
async fn forward(
    client: CoordinatorClient,
    name: BatchName,
    mut stream: Streaming<proto::Batch>,
    sender: watch::Sender<BatchStatus>,
) {
    let mut failures = 0;
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            () = sender.closed() => return,
        };
        match message {
            Ok(Some(batch)) => {
                failures = 0;
                let Ok(status) = batch_from_proto(batch) else { return };
                let over = status.stage == Stage::Done;
                sender.send_replace(status);
                if over {
                    return;
                }
            }
            Ok(None) => return,
            Err(status) => match follow_again(&client, &name, &sender, status, &mut failures).await {
                Some(again) => stream = again,
                None => return,
            },
        }
    }
}

/// The stream, opened again; `None` when there is nothing to follow any more.
async fn follow_again(
    client: &CoordinatorClient,
    name: &BatchName,
    sender: &watch::Sender<BatchStatus>,
    broken: Status,
    failures: &mut u32,
) -> Option<Streaming<proto::Batch>> {
    let mut error: Error = from_status(broken, client.remote.at("following a batch"), Call::Repeatable);
    while matches!(error, Error::Unreachable { .. }) && *failures < WATCH_ATTEMPTS && !sender.is_closed() {
        let pause = (WATCH_PAUSE * 2u32.saturating_pow((*failures).min(8))).min(LONGEST_WATCH_PAUSE);
        *failures += 1;
        if let Some(link) = &client.link {
            link.lost(&with_causes(&error));
        }
        tokio::time::sleep(pause).await;
        match client.follow(name).await {
            Ok(stream) => {
                if let Some(link) = &client.link {
                    link.back();
                }
                return Some(stream);
            }
            Err(status) => error = from_status(status, client.remote.at("following a batch"), Call::Repeatable),
        }
    }
    if let Some(link) = client.link.as_ref().filter(|_| !matches!(error, Error::Unreachable { .. })) {
        link.back();
    }
    // A coordinator that was restarted follows nothing from before, but may remember how it ended.
    if let Ok(status) = client.get_batch(name).await {
        sender.send_replace(status);
    }
    tracing::warn!(batch = %name, error = &error as &dyn std::error::Error, "the batch cannot be followed any more");
    None
}
