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
use tributary_types::pipeline::{BadRecords, FileFormat};

use crate::charset::{Encoding, Transcoder};
use crate::csv::{CsvDecoder, CsvFormat};
use crate::fetch::{Pinned, parts};
use crate::inflate::Inflate;
use crate::json::{JsonDecoder, JsonFormat};
use crate::metrics;
use crate::parquet;
use crate::record::{Decode, DecodeError, Tally};
use crate::refused::{CleanSplits, Refusals};

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

/// Opens the stream of a file's rows, or of the records refused in it.
pub(crate) async fn read(
    storage: &Storage,
    request: ReadRequest,
    part_bytes: u64,
    clean: &Arc<CleanSplits>,
) -> Result<RowStream, Error> {
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
    let name = match file.format.bad_records() {
        Some(BadRecords::ErrorTable) => CleanSplits::name(&request),
        _ => None,
    };
    if file.refused && (name.as_ref().is_none_or(|name| clean.has(name))) {
        return Ok(futures::stream::empty().boxed());
    }
    let schema = Arc::clone(&request.schema);
    // Which records are refused does not depend on the columns asked for.
    let projection = if file.refused { Some(Vec::new()) } else { request.projection.clone() };
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
    let mut decoder = decoder.map_err(|error| place.fault(error))?;
    if file.refused {
        decoder.keep_refused();
    }
    let refusals = file.refused.then(|| Refusals::new(file.source.as_str()));
    let reading = Reading {
        clean: name.filter(|_| !file.refused).map(|name| (name, Arc::clone(clean))),
        refusals,
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
    /// Where what is asked for are the records that are refused: those found so far.
    refusals: Option<Refusals>,
    /// What the file is remembered by if no record of it is bad.
    clean: Option<(Arc<str>, Arc<CleanSplits>)>,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<RecordBatch>, Error> {
        loop {
            let made = self.made(false)?;
            if made.is_some() {
                return Ok(made);
            }
            if self.ended {
                self.note_clean();
                return self.rest();
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
                let made = self.made(true)?;
                if made.is_some() {
                    return Ok(made);
                }
            }
        }
    }

    /// What the decoder makes of the text that it has: rows, or a batch of refused records; `None`: it needs more.
    /// `last`: no text follows what it has.
    fn made(&mut self, last: bool) -> Result<Option<RecordBatch>, Error> {
        loop {
            let made = self.decoder.next();
            if last {
                self.decoder.end();
            }
            self.tell();
            let made = made.map_err(|error| self.place.fault(error))?;
            let Some(refusals) = &mut self.refusals else { return Ok(made) };
            refusals.add_of_file(&self.place.path, self.decoder.take_refused());
            if refusals.is_full() {
                return self.rest();
            }
            if made.is_none() {
                return Ok(None);
            }
        }
    }

    /// The refused records that are left.
    fn rest(&mut self) -> Result<Option<RecordBatch>, Error> {
        let Some(refusals) = self.refusals.as_mut().filter(|refusals| !refusals.is_empty()) else { return Ok(None) };
        refusals.make().map(Some).map_err(|error| self.place.fault(DecodeError::File(error.to_string())))
    }

    fn note_clean(&mut self) {
        if self.decoder.tally().bad == 0
            && let Some((name, clean)) = self.clean.take()
        {
            clean.note(name);
        }
    }

    /// Counts what became of records since the last time.
    fn tell(&mut self) {
        let now = self.decoder.tally();
        // Records that are asked for because they were refused were counted before.
        if now != self.told && self.refusals.is_none() {
            metrics::record_tally(self.place.source.as_str(), &now.since(&self.told));
            self.told = now;
        }
    }
}
