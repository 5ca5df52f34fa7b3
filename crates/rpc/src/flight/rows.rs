// SPDX-License-Identifier: Apache-2.0
//! Streams of rows to and from Flight messages.

use std::pin::Pin;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow_flight::FlightData;
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::encode::{DictionaryHandling, FlightDataEncoderBuilder};
use arrow_flight::error::FlightError;
use futures::{Stream, StreamExt, TryStreamExt};
use tonic::{Status, Streaming};
use tributary_api::{RowError, RowStream};
use tributary_types::{Code, Fault, Retry};

use super::METADATA_PREFIX;
use crate::fault::{row_error, row_status};

/// Messages of one answer.
pub(crate) type FlightStream = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;

/// Rows as Flight messages: the schema, then the rows in messages of about 2 MiB. A row is never cut, so one that is
/// larger travels in a message of its own. Dictionaries stay dictionaries.
pub(crate) fn send_rows(schema: SchemaRef, rows: RowStream) -> FlightStream {
    let rows = rows.map_err(|error| FlightError::Tonic(Box::new(row_status(&error))));
    let messages = FlightDataEncoderBuilder::new()
        .with_schema(schema)
        .with_dictionary_handling(DictionaryHandling::Resend)
        .build(rows);
    Box::pin(messages.map_err(flight_status))
}

/// An encoder's error as a status.
fn flight_status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        other => row_status(&RowError::new(FlightFault { doing: "the rows cannot be sent", source: other })),
    }
}

/// The error of an encoder as one of the rows that it encodes.
pub(crate) fn encoder_error(error: FlightError) -> RowError {
    match RowError::find(&error) {
        Some(found) => found.clone(),
        None => RowError::new(FlightFault { doing: "the rows cannot be sent", source: error }),
    }
}

/// Rows of Flight messages: the schema, without the metadata that a server of ours added, and the rows. The schema
/// comes first, so this waits for the first message.
pub(crate) async fn read_rows(data: Streaming<FlightData>, doing: String) -> Result<(SchemaRef, RowStream), Status> {
    let mut decoder = FlightDataDecoder::new(data.map_err(FlightError::from));
    let classify = move |status: Status| row_error(status, &doing);
    let sent = loop {
        match decoder.next().await {
            Some(Ok(message)) => match message.payload {
                DecodedPayload::Schema(schema) => break schema,
                DecodedPayload::None => {}
                DecodedPayload::RecordBatch(batch) => {
                    // Not what we send, but the schema is all the same.
                    let schema = batch.schema();
                    let rows =
                        futures::stream::iter([Ok(batch)]).chain(decoded_rows(decoder, Arc::clone(&schema), classify));
                    return Ok((schema, Box::pin(rows)));
                }
            },
            Some(Err(error)) => return Err(flight_status(error)),
            None => return Err(cut_stream()),
        }
    };
    let schema = without_metadata(&sent);
    Ok((Arc::clone(&schema), Box::pin(decoded_rows(decoder, schema, classify))))
}

/// The rows that follow a schema message, in exactly `schema`; messages without rows are left out.
pub(crate) fn decoded_rows(
    decoder: FlightDataDecoder,
    schema: SchemaRef,
    classify: impl Fn(Status) -> RowError + Send,
) -> impl Stream<Item = Result<RecordBatch, RowError>> + Send {
    decoder.map_err(move |error| classify(flight_status(error))).try_filter_map(move |message| {
        let schema = Arc::clone(&schema);
        async move {
            match message.payload {
                DecodedPayload::RecordBatch(batch) => with_schema(batch, schema).map(Some),
                _ => Ok(None),
            }
        }
    })
}

fn without_metadata(schema: &Schema) -> SchemaRef {
    let mut metadata = schema.metadata().clone();
    metadata.retain(|key, _| !key.starts_with(METADATA_PREFIX));
    Arc::new(Schema::new_with_metadata(schema.fields().clone(), metadata))
}

fn with_schema(batch: RecordBatch, schema: SchemaRef) -> Result<RecordBatch, RowError> {
    batch_of(&schema, batch.columns().to_vec(), batch.num_rows())
}

/// So many rows of these columns, in exactly `schema`.
pub(crate) fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, RowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(|source| {
        RowError::new(FlightFault { doing: "the rows differ from their schema", source: source.into() })
    })
}

/// The status of what Flight messages cannot hold.
pub(crate) fn unsendable(doing: &'static str, error: ArrowError) -> Status {
    row_status(&RowError::new(FlightFault { doing, source: error.into() }))
}

/// Flight messages that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("{doing}")]
struct FlightFault {
    doing: &'static str,
    source: FlightError,
}

impl Fault for FlightFault {
    fn code(&self) -> Code {
        Code::Internal
    }

    fn reason(&self) -> &'static str {
        "FLIGHT_UNREADABLE"
    }
}

/// The status of a stream that ended before it was whole.
pub(crate) fn cut_stream() -> Status {
    row_status(&RowError::new(CutStream))
}

/// A stream of rows that ended before it was whole.
#[derive(Debug, thiserror::Error)]
#[error("the stream of rows was cut: its sender failed or went away before the end")]
struct CutStream;

impl Fault for CutStream {
    fn code(&self) -> Code {
        Code::Unavailable
    }

    fn retry(&self) -> Retry {
        Retry::Again
    }

    fn reason(&self) -> &'static str {
        "STREAM_CUT"
    }
}
