// SPDX-License-Identifier: Apache-2.0
//! Objects as batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use tributary_types::pipeline::BadRecords;

use crate::json::JsonFormat;
use crate::json::build::{Findings, Record};
use crate::json::value::{Fail, Value, read};
use crate::record::{BadRecord, Decode, DecodeError, Tally, shown};

mod messages;

/// Bytes of text in one batch, at most one record more.
const BATCH_BYTES: u64 = 4 << 20;

/// What is at a place of the text.
pub(crate) enum Place {
    /// An object begins.
    Object,
    /// Anything else that is no separator: no record.
    Other,
    /// More text is needed.
    More,
    /// The end.
    End,
    /// The text is no sequence of objects.
    Broken(String),
}

/// Finds where objects begin: one after the other, or as elements of arrays.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    pub(crate) in_array: bool,
    element: bool,
}

impl Walk {
    /// Goes from `at` to the next object, over white space and what separates objects; counts lines.
    pub(crate) fn go(&mut self, buf: &[u8], at: &mut usize, line: &mut u64, last: bool) -> Place {
        while let Some(byte) = buf.get(*at).copied() {
            match byte {
                b'\n' => *line += 1,
                b' ' | b'\t' | b'\r' => {}
                b'[' if !self.in_array => (self.in_array, self.element) = (true, false),
                b']' if self.in_array => self.in_array = false,
                b',' if self.in_array && self.element => self.element = false,
                b'{' if self.in_array && self.element => {
                    return Place::Broken(format!("line {line}: a `,` is missing between two elements of its array"));
                }
                b'{' => {
                    self.element = true;
                    return Place::Object;
                }
                _ => return Place::Other,
            }
            *at += 1;
        }
        match (last, self.in_array) {
            (false, _) => Place::More,
            (true, false) => Place::End,
            (true, true) => {
                Place::Broken(format!("line {line}: it ends within its array: it was not written to its end"))
            }
        }
    }

    /// An object was found at a place, and is looked for there again.
    pub(crate) fn again(&mut self) {
        self.element = false;
    }
}

/// Decodes one file.
pub(crate) struct JsonDecoder {
    format: Arc<JsonFormat>,
    schema: SchemaRef,
    wanted: Vec<usize>,
    output: SchemaRef,
    /// Keys without a column make a record bad.
    strict: bool,
    batch_rows: usize,
    record: Record,
    walk: Walk,
    buf: Vec<u8>,
    at: usize,
    base: u64,
    line: u64,
    last: bool,
    skipping: bool,
    /// Where the batch's text began.
    batch_from: u64,
    /// Rows of the batch that are bad, with their texts.
    bad: Vec<(usize, String)>,
    tally: Tally,
    /// Records that are refused; `None`: they are not kept.
    refused: Option<Vec<BadRecord>>,
}

impl JsonDecoder {
    /// A decoder of `schema`'s columns, of which those at `wanted` are delivered.
    pub(crate) fn new(
        format: Arc<JsonFormat>,
        schema: SchemaRef,
        wanted: Option<Vec<usize>>,
        strict: bool,
        batch_rows: usize,
    ) -> Result<Self, DecodeError> {
        let wanted = wanted.unwrap_or_else(|| (0..schema.fields().len()).collect());
        let output = schema.project(&wanted).map_err(|e| DecodeError::File(e.to_string()))?;
        let record = Record::new("", schema.fields()).map_err(DecodeError::File)?;
        Ok(JsonDecoder {
            format,
            schema,
            wanted,
            output: Arc::new(output),
            strict,
            batch_rows: batch_rows.max(1),
            record,
            walk: Walk::default(),
            buf: Vec::new(),
            at: 0,
            base: 0,
            line: 1,
            last: false,
            skipping: false,
            batch_from: 0,
            bad: Vec::new(),
            tally: Tally::default(),
            refused: None,
        })
    }

    /// Takes records in until a batch is full; `false`: more text is needed.
    fn collect(&mut self) -> Result<bool, DecodeError> {
        while self.record.rows() < self.batch_rows && self.base + (self.at as u64) < self.batch_from + BATCH_BYTES {
            if self.skipping && !self.skip_line() {
                return Ok(self.last);
            }
            match self.walk.go(&self.buf, &mut self.at, &mut self.line, self.last) {
                Place::More => return Ok(false),
                Place::End => return Ok(true),
                Place::Broken(what) => return Err(DecodeError::File(what)),
                Place::Other if !self.shows_line(&self.buf, self.at) => return Ok(false),
                Place::Other => {
                    let what = "a record is an object, and this is none".to_string();
                    self.lose(self.at, what)?;
                }
                Place::Object => {
                    if !self.object()? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Takes the object at the place in; `false`: more text is needed.
    fn object(&mut self) -> Result<bool, DecodeError> {
        let start = self.at;
        let limit = self.format.max_record;
        let long = || format!("it is longer than `json.max_record`, {limit} bytes");
        // The buffer is put aside while values point into it.
        let buf = std::mem::take(&mut self.buf);
        let found = read(&buf, start);
        let taken = match found {
            Ok((_, end)) if end - start > limit => Err(long()),
            Ok((value, end)) => {
                let lines = buf[start..end].iter().filter(|byte| **byte == b'\n').count() as u64;
                self.take(&value, &buf[start..end], start)?;
                self.at = end;
                self.line += lines;
                Ok(true)
            }
            Err(Fail::More) if buf.len() - start > limit + 1 => Err(long()),
            Err(Fail::More) if self.last => Err("the file ends within it".to_string()),
            Err(Fail::More) => Ok(false),
            Err(Fail::At(at, _)) if at - start > limit => Err(long()),
            Err(Fail::At(..)) if !self.shows_line(&buf, start) => Ok(false),
            Err(Fail::At(at, what)) => Err(format!("at byte {} of it, {what}", at - start)),
        };
        self.buf = buf;
        match taken {
            Ok(true) => Ok(true),
            Ok(false) => {
                self.walk.again();
                Ok(false)
            }
            Err(what) => {
                self.lose(start, what)?;
                Ok(true)
            }
        }
    }

    /// Whether the text of a line that is no record can be told.
    fn shows_line(&self, buf: &[u8], start: usize) -> bool {
        self.last || buf.len() - start > self.format.max_record + 1 || buf[start..].contains(&b'\n')
    }

    fn take(&mut self, value: &Value<'_>, text: &[u8], start: usize) -> Result<(), DecodeError> {
        let Value::Object(_, fields, dropped) = value else { return Ok(()) };
        let mut findings = Findings { duplicates: u64::from(*dropped), ..Findings::default() };
        let row = self.record.rows();
        self.record.append("", fields, &self.format.formats, &mut findings);
        self.tally.duplicate_keys += findings.duplicates;
        if let (true, None, Some(key)) = (self.strict, &findings.problem, &findings.unknown_key) {
            findings.problem = Some(format!("key `{key}` is no column, and `unknown_columns` is \"fail\""));
        }
        let Some(problem) = findings.problem else {
            self.tally.unknown_fields += findings.unknown;
            return Ok(());
        };
        self.tally.bad += 1;
        if self.format.mode == BadRecords::FailFast {
            let (line, offset) = (self.line, self.base + start as u64);
            return Err(DecodeError::Record(BadRecord { line, offset, reason: problem, record: shown(text) }));
        }
        self.note_refused(self.base + start as u64, problem, text);
        self.bad.push((row, String::from_utf8_lossy(text).into_owned()));
        Ok(())
    }

    /// Keeps a record that is refused.
    fn note_refused(&mut self, offset: u64, reason: String, text: &[u8]) {
        if let Some(refused) = &mut self.refused {
            let record = String::from_utf8_lossy(text).into_owned();
            refused.push(BadRecord { line: self.line, offset, reason, record });
        }
    }

    /// The rest of the line is no record. Within an array there is no telling where the next element begins.
    fn lose(&mut self, start: usize, reason: String) -> Result<(), DecodeError> {
        let line = self.buf[start..].iter().position(|byte| *byte == b'\n').map(|at| start + at);
        let end = line.unwrap_or(self.buf.len()).min(start + self.format.max_record);
        let text = self.buf[start..end].to_vec();
        let offset = self.base + start as u64;
        if self.walk.in_array {
            return Err(DecodeError::File(format!("line {}: an element of its array is no good: {reason}", self.line)));
        }
        self.tally.bad += 1;
        match self.format.mode {
            BadRecords::FailFast => {
                let line = self.line;
                return Err(DecodeError::Record(BadRecord { line, offset, reason, record: shown(&text) }));
            }
            BadRecords::DropMalformed | BadRecords::ErrorTable => {
                self.tally.dropped += 1;
                self.note_refused(offset, reason, &text);
            }
            BadRecords::Permissive => {
                self.bad.push((self.record.rows(), String::from_utf8_lossy(&text).into_owned()));
                self.record.append_null();
            }
        }
        self.skipping = true;
        self.walk.again();
        Ok(())
    }

    fn skip_line(&mut self) -> bool {
        match self.buf[self.at..].iter().position(|byte| *byte == b'\n') {
            Some(offset) => {
                self.at += offset;
                self.skipping = false;
                true
            }
            None => {
                self.at = self.buf.len();
                self.skipping = !self.last;
                false
            }
        }
    }

    fn make(&mut self) -> Result<RecordBatch, DecodeError> {
        match self.make_whole()? {
            (batch, None) => Ok(batch),
            (batch, Some(keep)) => filter_record_batch(&batch, &keep).map_err(|e| DecodeError::File(e.to_string())),
        }
    }

    /// The records so far as a batch, and which of them are to stay; `None`: all.
    fn make_whole(&mut self) -> Result<(RecordBatch, Option<BooleanArray>), DecodeError> {
        let failed = |what: String| DecodeError::File(what);
        let (mut columns, _, rows) = self.record.finish().map_err(failed)?;
        let bad = std::mem::take(&mut self.bad);
        self.batch_from = self.base + self.at as u64;
        if let Some(at) = self.format.corrupt.as_deref().and_then(|name| self.schema.index_of(name).ok()) {
            columns[at] = corrupt_column(&columns[at], rows, &bad);
        }
        let wanted: Vec<ArrayRef> = self.wanted.iter().map(|at| Arc::clone(&columns[*at])).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.output), wanted, &options);
        let batch = batch.map_err(|e| failed(e.to_string()))?;
        if bad.is_empty() || !self.format.mode.leaves_out() {
            return Ok((batch, None));
        }
        self.tally.dropped += bad.len() as u64;
        let mut keep = vec![true; rows];
        bad.iter().for_each(|(row, _)| keep[*row] = false);
        Ok((batch, Some(BooleanArray::from(keep))))
    }
}

/// The texts of bad records; a good one may have a value of its own there.
fn corrupt_column(column: &ArrayRef, rows: usize, bad: &[(usize, String)]) -> ArrayRef {
    let Some(own) = column.as_any().downcast_ref::<StringArray>() else { return Arc::clone(column) };
    let mut texts: Vec<Option<&str>> = (0..rows).map(|row| own.is_valid(row).then(|| own.value(row))).collect();
    bad.iter().for_each(|(row, text)| texts[*row] = Some(text));
    Arc::new(StringArray::from(texts))
}

impl Decode for JsonDecoder {
    fn push(&mut self, text: &[u8]) {
        self.base += self.at as u64;
        self.buf.drain(..self.at);
        self.at = 0;
        self.buf.extend_from_slice(text);
    }

    fn end(&mut self) {
        self.last = true;
    }

    fn next(&mut self) -> Result<Option<RecordBatch>, DecodeError> {
        loop {
            let full = self.collect()?;
            if self.record.rows() == 0 {
                let over = self.last && self.at >= self.buf.len();
                if !full || over {
                    return Ok(None);
                }
                self.batch_from = self.base + self.at as u64;
                continue;
            }
            if !full {
                return Ok(None);
            }
            let batch = self.make()?;
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
        }
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn keep_refused(&mut self) {
        self.refused = Some(Vec::new());
    }

    fn take_refused(&mut self) -> Vec<BadRecord> {
        self.refused.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
