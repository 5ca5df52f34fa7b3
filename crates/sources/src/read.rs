// SPDX-License-Identifier: Apache-2.0
//! Streams the rows of one file: its parts, decompressed, as UTF-8, as records.

use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use tributary_api::timeline::{Error, FileSplit, ReadRequest, Split};
use tributary_api::{RowError, RowStream};
use tributary_hudi::Storage;
use tributary_types::SourceName;
use tributary_types::pipeline::FileFormat;

use crate::charset::{Encoding, Transcoder};
use crate::csv::{CsvDecoder, CsvFormat};
use crate::fetch::{Pinned, parts};
use crate::inflate::Inflate;
use crate::json::{JsonDecoder, JsonFormat};
use crate::metrics;
use crate::parquet;
use crate::record::{Decode, DecodeError, Tally};

/// Compressed bytes that are decompressed at once: what they become is in memory.
const STEP: usize = 64 << 10;

/// The text of one file as its bytes come.
pub(crate) struct TextOf {
    inflate: Inflate,
    transcoder: Transcoder,
    raw: Vec<u8>,
}

impl TextOf {
    pub(crate) fn new(path: &str, encoding: Option<Encoding>) -> Self {
        TextOf { inflate: Inflate::new(path), transcoder: Transcoder::new(encoding), raw: Vec::new() }
    }

    /// How many bytes are taken at once.
    pub(crate) fn step(&self, bytes: usize) -> usize {
        if self.inflate.expands() { bytes.min(STEP) } else { bytes }
    }

    /// The text of some more bytes; `last`: there are no more.
    pub(crate) fn push(&mut self, bytes: &[u8], last: bool) -> Result<Vec<u8>, String> {
        self.raw.clear();
        self.inflate.push(bytes, last, &mut self.raw)?;
        let mut text = Vec::with_capacity(self.raw.len());
        self.transcoder.push(&self.raw, last, &mut text)?;
        Ok(text)
    }
}

/// Opens the stream of a file's rows.
pub(crate) async fn read(storage: &Storage, request: ReadRequest, part_bytes: u64) -> Result<RowStream, Error> {
    let url = storage.url().to_string();
    let Some(file) = request.split.file.clone() else {
        return Err(Error::Unsupported {
            url,
            what: "a file slice of a table is read by the timeline role".to_string(),
        });
    };
    let pinned = pinned(&request.split, &file);
    if pinned.bytes == 0 {
        crate::fetch::check(storage, &pinned).await?;
        tracing::info!(source = %file.source, file = pinned.path, "the file is empty");
        return Ok(futures::stream::empty().boxed());
    }
    let broken = |problems: Vec<String>| Error::Unsupported { url: url.clone(), what: problems.join("; ") };
    let (schema, projection) = (Arc::clone(&request.schema), request.projection.clone());
    let (decoder, encoding): (Result<Box<dyn Decode>, DecodeError>, _) = match file.format.as_ref() {
        FileFormat::Parquet => return parquet::read(storage, &pinned, request).await,
        FileFormat::Csv(options) => {
            let format = Arc::new(CsvFormat::new(options).map_err(broken)?);
            let encoding = format.encoding;
            let decoder = CsvDecoder::new(format, schema, projection, request.batch_rows);
            (decoder.map(|decoder| Box::new(decoder) as Box<dyn Decode>), encoding)
        }
        FileFormat::Json(options) => {
            let format = Arc::new(JsonFormat::new(options).map_err(broken)?);
            let decoder = JsonDecoder::new(format, schema, projection, file.strict, request.batch_rows);
            (decoder.map(|decoder| Box::new(decoder) as Box<dyn Decode>), None)
        }
    };
    let place = FileName { source: file.source.clone(), url, path: pinned.path.clone() };
    let decoder = decoder.map_err(|error| place.fault(error))?;
    let reading = Reading {
        text: TextOf::new(&pinned.path, encoding),
        parts: parts(storage, pinned, part_bytes),
        decoder,
        place,
        pending: Bytes::new(),
        ended: false,
        told: Tally::default(),
    };
    let rows = futures::stream::try_unfold(reading, |mut reading| async move {
        match reading.next().await {
            Ok(Some(batch)) => Ok(Some((batch, reading))),
            Ok(None) => Ok(None),
            Err(error) => Err(RowError::new(error)),
        }
    });
    Ok(rows.boxed())
}

/// A split's file as it was planned.
pub(crate) fn pinned(split: &Split, file: &FileSplit) -> Pinned {
    Pinned {
        path: split.path.clone(),
        bytes: split.bytes,
        modified_millis: file.modified_millis,
        e_tag: file.e_tag.clone(),
    }
}

/// Which file, for errors.
struct FileName {
    source: SourceName,
    url: String,
    path: String,
}

impl FileName {
    fn fault(&self, error: DecodeError) -> Error {
        match error {
            DecodeError::File(detail) => Error::Corrupt { url: self.url.clone(), file: self.path.clone(), detail },
            DecodeError::Record(bad) => Error::BadRecord {
                source_name: self.source.clone(),
                file: self.path.clone(),
                line: bad.line,
                offset: bad.offset,
                reason: bad.reason,
                record: bad.record,
            },
        }
    }
}

struct Reading {
    parts: BoxStream<'static, Result<Bytes, Error>>,
    text: TextOf,
    decoder: Box<dyn Decode>,
    place: FileName,
    /// Bytes that came and were not taken in.
    pending: Bytes,
    ended: bool,
    /// What was counted before.
    told: Tally,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            let made = self.decoder.next();
            self.tell();
            if let Some(batch) = made.map_err(|error| self.place.fault(error))? {
                return Ok(Some(batch));
            }
            if self.ended {
                return Ok(None);
            }
            if self.pending.is_empty() {
                match self.parts.next().await {
                    Some(part) => self.pending = part?,
                    None => self.ended = true,
                }
            }
            let step = self.pending.split_to(self.text.step(self.pending.len()));
            let text = self.text.push(&step, self.ended);
            let text = text.map_err(|what| self.place.fault(DecodeError::File(what)))?;
            self.decoder.push(&text);
            if self.ended {
                // What was pushed just now is looked at before the end is known, as every other part is.
                let made = self.decoder.next();
                self.decoder.end();
                self.tell();
                if let Some(batch) = made.map_err(|error| self.place.fault(error))? {
                    return Ok(Some(batch));
                }
            }
        }
    }

    /// Counts what became of records since the last time.
    fn tell(&mut self) {
        let now = self.decoder.tally();
        if now != self.told {
            metrics::record_tally(self.place.source.as_str(), &now.since(&self.told));
            self.told = now;
        }
    }
}
