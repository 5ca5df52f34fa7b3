// SPDX-License-Identifier: Apache-2.0
//! The writer role: rows go in over Flight `DoPut`, what was staged comes back as its one answer.
//!
//! A stream of rows that breaks must not look like one that ended, or a part of the rows would be staged as if it were
//! all of them. gRPC servers see a call that was given up as a stream that ended, so the last row is followed by a
//! message that says so, and a stream without it is an error. Rows that fail are followed by one that says that, and
//! the call then waits for the writer to stop: nothing is written any more when it returns.
//!
//! The stream stays open until the answer came, so that the writer can be told to stop by a further message at any
//! moment. A stream that ends before means that the caller is gone, and tells the writer the same. A staging that was
//! told still answers, once nothing of it is under way.
//!
//! Of the memory budget only the writer's share travels; see [`crate::merge`].

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
use tonic::{Status, Streaming};
use tracing::Instrument as _;
use tributary_api::writer::{Error, StageRequest, Staged, Writer};
use tributary_api::{RowError, RowStream, Stop, StopSource, boxed_error};
use tributary_types::{Code, Retry};

use crate::channel::Channel;
use crate::convert::{
    Malformed, count, required, stage_from_proto, stage_to_proto, staged_from_proto, staged_to_proto,
};
use crate::fault::{malformed, row_error, to_status};
use crate::flight::{STAGE_PATH, cut_stream, decoded_rows, encoder_error};
use crate::proto::writer as proto;
use crate::remote::Remote;
use crate::trace::traced;

/// What the message after the last row carries.
const END: &[u8] = b"end";
/// What the message after rows that failed carries.
const FAILED: &[u8] = b"failed";
/// What the message that tells the writer to stop carries.
const STOP: &[u8] = b"stop";
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
        let answers = flight.do_put(traced(messages)).await.map_err(self.remote.failed(doing))?;
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
            .chain(futures::stream::iter([Ok(FlightData::new().with_app_metadata(END))]))
            // Kept open: only an open stream can still tell the writer to stop.
            .chain(futures::stream::pending());
        let (failed, failure) = oneshot::channel();
        let call = self.put(DOING, until_failure(messages, request.stop.clone(), failed));
        tokio::pin!(call);
        let answer = tokio::select! {
            biased;
            Ok(error) = failure => {
                // What the other side answers to it is not the reason, but that it answers says that it stopped.
                if tokio::time::timeout(STOPPING, call).await.is_err() {
                    let source = std::io::Error::other(format!("it did not stop within {STOPPING:?}: {error}"));
                    return Err(Error::Unreachable { doing: self.remote.at(DOING), source: boxed_error(source) });
                }
                return Err(Error::Rows(error));
            }
            answer = &mut call => answer,
        };
        let answer = match answer {
            // Rows that were cut off by the stop are the stop.
            Err(Error::Rows(_)) if request.stop.is_set() => return Err(Error::Stopped),
            answer => answer?,
        };
        crate::count_peak(&budget, count(answer.peak_memory_bytes));
        let staged = required(answer.staged, "staged").map_err(self.remote.unreadable(DOING))?;
        staged_from_proto(staged).map_err(self.remote.unreadable(DOING))
    }
}

/// The messages up to the first error, which is reported, and in its place one that says that they failed; or up to the
/// stop, and in its place one that says that. It does not end by itself: what follows is the answer.
fn until_failure(
    messages: impl Stream<Item = Result<FlightData, FlightError>> + Send + 'static,
    stop: Stop,
    failed: oneshot::Sender<RowError>,
) -> impl Stream<Item = FlightData> + Send + 'static {
    let state = (Box::pin(messages), stop, Some(failed));
    futures::stream::unfold(state, |(mut messages, stop, failed)| async move {
        // Without the sender the end was told already.
        let Some(failed) = failed else { return std::future::pending().await };
        let next = tokio::select! {
            biased;
            () = stop.wait() => return Some((FlightData::new().with_app_metadata(STOP), (messages, stop, None))),
            next = messages.next() => next?,
        };
        match next {
            Ok(message) => Some((message, (messages, stop, Some(failed)))),
            Err(error) => {
                // Nobody listens any more when the call itself has failed.
                let _ = failed.send(encoder_error(error));
                Some((FlightData::new().with_app_metadata(FAILED), (messages, stop, None)))
            }
        }
    })
}

/// Stages what a `DoPut` brings. `first` is the first message of the stream.
pub(crate) async fn stage(
    writer: Arc<dyn Writer>,
    first: FlightData,
    rest: Streaming<FlightData>,
) -> Result<PutResult, Status> {
    let request = proto::StageRequest::decode(first.app_metadata.clone())
        .map_err(|e| malformed(Malformed::new("app_metadata", format!("is no StageRequest: {e}"))))?;
    let mut request = stage_from_proto(request).map_err(malformed)?;
    let stop = StopSource::new();
    request.stop = stop.listen();
    let (ended, after_end) = oneshot::channel();
    let messages = futures::stream::iter([Ok(first)]).chain(until_end(rest, ended));
    let rows = decoded_rows(FlightDataDecoder::new(messages), Arc::clone(&request.schema), |status| {
        row_error(status, "receiving the rows to stage")
    });
    let budget = request.budget.clone();
    // In a task of its own: when the caller goes away this future is dropped, and the staging must end by itself.
    let mut staging = tokio::spawn(async move { writer.stage(request, Box::pin(rows)).await }.in_current_span());
    let staged = tokio::select! {
        staged = &mut staging => staged,
        () = told_to_stop(after_end) => {
            stop.stop();
            staging.await
        }
    };
    let staged = staged.unwrap_or_else(|e| {
        let message = format!("the staging ended without a result: {e}");
        Err(Error::Other { code: Code::Internal, retry: Retry::Never, message })
    });
    let staged = staged.map_err(|e| to_status(&e))?;
    let response =
        proto::StageResponse { staged: Some(staged_to_proto(&staged)), peak_memory_bytes: budget.peak() as u64 };
    Ok(PutResult { app_metadata: response.encode_to_vec().into() })
}

/// What comes after the rows: the open stream, or nothing when the rows ended otherwise.
type AfterEnd = Option<Streaming<FlightData>>;

/// The messages up to the one that says that no more rows come; the stream behind it goes to `ended`. Without that one
/// they end with an error.
fn until_end(
    messages: Streaming<FlightData>,
    ended: oneshot::Sender<AfterEnd>,
) -> impl Stream<Item = Result<FlightData, FlightError>> + Send {
    futures::stream::unfold(Some((messages, ended)), |state| async move {
        let (mut messages, ended) = state?;
        let message = messages.message().await;
        let (after, last) = match message {
            Ok(Some(message)) if message.data_header.is_empty() => match &message.app_metadata[..] {
                END => (Some(messages), None),
                FAILED | STOP => (None, Some(Err(cut_stream().into()))),
                _ => return Some((Ok(message), Some((messages, ended)))),
            },
            Ok(Some(message)) => return Some((Ok(message), Some((messages, ended)))),
            Ok(None) => (None, Some(Err(cut_stream().into()))),
            Err(status) => (None, Some(Err(status.into()))),
        };
        // Nobody listens any more when the staging is over.
        let _ = ended.send(after);
        last.map(|last| (last, None))
    })
}

/// Waits for the caller to say stop, or to go away.
async fn told_to_stop(after_end: oneshot::Receiver<AfterEnd>) {
    match after_end.await {
        // Whatever comes after the end of the rows, its end included, says so.
        Ok(Some(mut messages)) => drop(messages.message().await),
        Ok(None) => {}
        // The writer did not read to the end, and says itself why.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
