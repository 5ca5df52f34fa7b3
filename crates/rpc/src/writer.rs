// SPDX-License-Identifier: Apache-2.0
//! The writer role: rows go in over Flight `DoPut`, what was staged comes back as its one answer.
//!
//! A stream of rows that breaks must not look like one that ended, or a part of the rows would be staged as if it were
//! all of them. gRPC servers see a call that was given up as a stream that ended, so the last row is followed by a
//! message that says so, and a stream without it is an error. Rows that fail are followed by one that says that, and
//! the call then waits for the writer to stop: nothing is written any more when it returns.
//!
//! Of the memory budget only the limit travels; see [`crate::merge`].

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::decode::FlightDataDecoder;
use arrow_flight::encode::{DictionaryHandling, FlightDataEncoderBuilder};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightData, FlightDescriptor, PutResult};
use async_trait::async_trait;
use futures::{Stream, StreamExt, TryStreamExt};
use prost::Message;
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use tributary_api::writer::{Error, StageRequest, Staged, Writer};
use tributary_api::{RowError, RowStream};

use crate::convert::{
    Malformed, count, required, stage_from_proto, stage_to_proto, staged_from_proto, staged_to_proto,
};
use crate::fault::{malformed, row_error, to_status};
use crate::flight::{STAGE_PATH, cut_stream, decoded_rows, encoder_error};
use crate::proto::writer as proto;
use crate::remote::Remote;

/// What the message after the last row carries.
const END: &[u8] = b"end";
/// What the message after rows that failed carries.
const FAILED: &[u8] = b"failed";
/// Time that the writer has to stop once the rows failed.
const STOPPING: Duration = Duration::from_secs(30);

/// Calls a writer role in another process.
#[derive(Clone)]
pub struct WriterClient {
    flight: FlightServiceClient<Channel>,
    remote: Remote<Error>,
}

impl WriterClient {
    /// A client over `channel`; `address` is what messages call the other side.
    pub fn new(channel: Channel, address: impl Into<String>) -> Self {
        WriterClient {
            flight: FlightServiceClient::new(channel).max_decoding_message_size(crate::MESSAGE_LIMIT),
            remote: Remote::new(address),
        }
    }

    async fn put(
        &self,
        doing: &str,
        messages: impl Stream<Item = FlightData> + Send + 'static,
    ) -> Result<proto::StageResponse, Error> {
        let mut flight = self.flight.clone();
        let answers = flight.do_put(messages).await.map_err(self.remote.failed(doing))?;
        let answer = answers.into_inner().message().await.map_err(self.remote.failed(doing))?;
        let answer = required(answer, "answer").map_err(self.remote.unreadable(doing))?;
        proto::StageResponse::decode(answer.app_metadata)
            .map_err(|e| Malformed::new("app_metadata", e))
            .map_err(self.remote.unreadable(doing))
    }
}

#[async_trait]
impl Writer for WriterClient {
    /// Safe to repeat by another attempt, which has file names of its own.
    async fn stage(&self, request: StageRequest, rows: RowStream) -> Result<Staged, Error> {
        const DOING: &str = "staging rows";
        let budget = request.budget.clone();
        let messages = FlightDataEncoderBuilder::new()
            .with_schema(Arc::clone(&request.schema))
            .with_dictionary_handling(DictionaryHandling::Resend)
            .with_flight_descriptor(Some(FlightDescriptor::new_path(vec![STAGE_PATH.to_string()])))
            .with_metadata(stage_to_proto(&request).encode_to_vec().into())
            .build(rows.map_err(|error| FlightError::ExternalError(Box::new(error))))
            .chain(futures::stream::iter([Ok(FlightData::new().with_app_metadata(END))]));
        let (failed, failure) = oneshot::channel();
        let call = self.put(DOING, until_failure(messages, failed));
        tokio::pin!(call);
        let answer = tokio::select! {
            biased;
            Ok(error) = failure => {
                // What the other side answers to it is not the reason.
                let _ = tokio::time::timeout(STOPPING, call).await;
                return Err(Error::Rows(error));
            }
            answer = &mut call => answer?,
        };
        crate::count_peak(&budget, count(answer.peak_memory_bytes));
        let staged = required(answer.staged, "staged").map_err(self.remote.unreadable(DOING))?;
        staged_from_proto(staged).map_err(self.remote.unreadable(DOING))
    }
}

/// The messages up to the first error, which is reported, and in its place one that says that they failed.
fn until_failure(
    messages: impl Stream<Item = Result<FlightData, FlightError>> + Send + 'static,
    failed: oneshot::Sender<RowError>,
) -> impl Stream<Item = FlightData> + Send + 'static {
    futures::stream::unfold((Box::pin(messages), Some(failed)), |(mut messages, failed)| async move {
        // Without the sender the failure was told already.
        let failed = failed?;
        match messages.next().await? {
            Ok(message) => Some((message, (messages, Some(failed)))),
            Err(error) => {
                // Nobody listens any more when the call itself has failed.
                let _ = failed.send(encoder_error(error));
                Some((FlightData::new().with_app_metadata(FAILED), (messages, None)))
            }
        }
    })
}

/// Stages what a `DoPut` brings. `first` is the first message of the stream.
pub(crate) async fn stage(
    writer: &dyn Writer,
    first: FlightData,
    rest: Streaming<FlightData>,
) -> Result<PutResult, Status> {
    let request = proto::StageRequest::decode(first.app_metadata.clone())
        .map_err(|e| malformed(Malformed::new("app_metadata", format!("is no StageRequest: {e}"))))?;
    let request = stage_from_proto(request).map_err(malformed)?;
    let messages = futures::stream::iter([Ok(first)]).chain(until_end(rest));
    let rows = decoded_rows(FlightDataDecoder::new(messages), Arc::clone(&request.schema), |status| {
        row_error(status, "receiving the rows to stage")
    });
    let budget = request.budget.clone();
    let staged = writer.stage(request, Box::pin(rows)).await.map_err(|e| to_status(&e))?;
    let response =
        proto::StageResponse { staged: Some(staged_to_proto(&staged)), peak_memory_bytes: budget.peak() as u64 };
    Ok(PutResult { app_metadata: response.encode_to_vec().into() })
}

/// The messages up to the one that says that no more come. Without that one they end with an error.
fn until_end(messages: Streaming<FlightData>) -> impl Stream<Item = Result<FlightData, FlightError>> + Send {
    futures::stream::unfold(Some(messages), |messages| async move {
        let mut messages = messages?;
        match messages.message().await {
            Ok(Some(message)) if message.data_header.is_empty() && message.app_metadata == END => None,
            Ok(Some(message)) if message.data_header.is_empty() && message.app_metadata == FAILED => {
                Some((Err(cut_stream().into()), None))
            }
            Ok(Some(message)) => Some((Ok(message), Some(messages))),
            Ok(None) => Some((Err(cut_stream().into()), None)),
            Err(status) => Some((Err(status.into()), None)),
        }
    })
}

#[cfg(test)]
mod tests;
