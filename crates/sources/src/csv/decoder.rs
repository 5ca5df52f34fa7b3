// SPDX-License-Identifier: Apache-2.0
//! Records as batches: the fields of many records are found first, then each column is made in one go.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, SchemaRef};
use tributary_types::pipeline::{BadRecords, LongRows, ShortRows};

use crate::cells::{Cell, Kind, check, column, nothing};
use crate::csv::format::CsvFormat;
use crate::csv::header::{Header, text_of};
use crate::csv::tokenizer::{ESCAPED, Field, Flaw, Found, QUOTED, Tokenizer, after_break, line_end};
use crate::record::{BadRecord, Decode, DecodeError, Tally, shown};

mod messages;

/// Bytes of the records of one batch, at most one record more.
const BATCH_BYTES: usize = 4 << 20;

/// A record whose fields were found.
#[derive(Debug, Clone, Copy)]
struct Row {
    first: u32,
    fields: u32,
    start: u32,
    end: u32,
    line: u64,
}

/// How a column of the schema is made.
#[derive(Debug, Clone)]
enum Plan {
    /// From a field of each record.
    Field { kind: Kind, position: usize },
    /// The file does not have it.
    Missing,
    /// The text of bad records.
    Corrupt,
}

/// Decodes one file.
pub(crate) struct CsvDecoder {
    format: Arc<CsvFormat>,
    tokens: Tokenizer,
    schema: SchemaRef,
    /// The columns wanted, as positions in the schema.
    wanted: Vec<usize>,
    output: SchemaRef,
    plans: Vec<Plan>,
    /// The file's first line, once it was read; its names without escapes.
    header: Option<Vec<Vec<u8>>>,
    /// Whether the plans are made.
    ready: bool,
    /// Fields of a whole record.
    width: usize,
    batch_rows: usize,
    buf: Vec<u8>,
    /// Where the next record begins in `buf`.
    at: usize,
    /// Where `buf` begins in the text.
    base: u64,
    line: u64,
    last: bool,
    /// The rest of a line is no record.
    skipping: bool,
    fields: Vec<Field>,
    rows: Vec<Row>,
    /// Records that are bad, and why.
    bad: Vec<(u32, String)>,
    /// Records that are bad and keep the fields that they have.
    ragged: Vec<(u32, String)>,
    tally: Tally,
    /// Records that are refused; `None`: they are not kept.
    refused: Option<Vec<BadRecord>>,
}

impl CsvDecoder {
    /// A decoder of `schema`'s columns, of which those at `wanted` are delivered.
    pub(crate) fn new(
        format: Arc<CsvFormat>,
        schema: SchemaRef,
        wanted: Option<Vec<usize>>,
        batch_rows: usize,
    ) -> Result<Self, DecodeError> {
        let wanted = wanted.unwrap_or_else(|| (0..schema.fields().len()).collect());
        let output = schema.project(&wanted).map_err(|e| DecodeError::File(e.to_string()))?;
        let tokens = Tokenizer::new(format.dialect.clone());
        let mut decoder = CsvDecoder {
            format,
            tokens,
            schema,
            wanted,
            output: Arc::new(output),
            plans: Vec::new(),
            header: None,
            ready: false,
            width: 0,
            batch_rows: batch_rows.max(1),
            buf: Vec::new(),
            at: 0,
            base: 0,
            line: 1,
            last: false,
            skipping: false,
            fields: Vec::new(),
            rows: Vec::new(),
            bad: Vec::new(),
            ragged: Vec::new(),
            tally: Tally::default(),
            refused: None,
        };
        if !decoder.format.header {
            decoder.plan_by_position()?;
        }
        Ok(decoder)
    }

    fn is_corrupt(&self, name: &str) -> bool {
        self.format.corrupt.as_deref() == Some(name)
    }

    fn plan_by_position(&mut self) -> Result<(), DecodeError> {
        let mut position = 0;
        let mut positions = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields() {
            let own = !self.is_corrupt(field.name());
            positions.push(own.then_some(position));
            position += usize::from(own);
        }
        self.width = position;
        self.plan(&positions)
    }

    fn plan_by_name(&mut self, header: &Header) -> Result<(), DecodeError> {
        self.width = header.names.len();
        let schema = Arc::clone(&self.schema);
        self.plan(&header.positions(&schema))
    }

    fn plan(&mut self, positions: &[Option<usize>]) -> Result<(), DecodeError> {
        let mut plans = Vec::with_capacity(positions.len());
        for (field, position) in self.schema.fields().iter().zip(positions) {
            let plan = match position {
                _ if self.is_corrupt(field.name()) => Plan::Corrupt,
                None => Plan::Missing,
                Some(position) => {
                    let kind = Kind::of(field.data_type()).ok_or_else(|| {
                        let data_type = field.data_type();
                        DecodeError::File(format!("column `{}` is {data_type}, which no CSV field holds", field.name()))
                    })?;
                    Plan::Field { kind, position: *position }
                }
            };
            plans.push(plan);
        }
        self.plans = plans;
        self.ready = true;
        Ok(())
    }

    /// Finds records until a batch is full; `false`: more text is needed.
    fn collect(&mut self) -> Result<bool, DecodeError> {
        while self.rows.len() < self.batch_rows && self.at < BATCH_BYTES.saturating_add(self.rows_begin()) {
            if self.skipping && !self.skip_line() {
                return Ok(self.last);
            }
            let known = self.fields.len();
            match self.tokens.find(&self.buf, self.at, self.last, &mut self.fields) {
                Found::More => return Ok(false),
                Found::End => return Ok(true),
                Found::Skipped { next } => {
                    self.at = next;
                    self.line += 1;
                }
                Found::Record { end, next, lines, flaw } => {
                    if self.ready {
                        self.add(known, end, flaw);
                    } else {
                        self.read_header(known, end, flaw)?;
                    }
                    self.at = next;
                    self.line += u64::from(lines);
                }
                Found::Lost { end, flaw } => self.lose(end, flaw)?,
            }
        }
        Ok(true)
    }

    fn rows_begin(&self) -> usize {
        self.rows.first().map_or(self.at, |row| row.start as usize)
    }

    fn read_header(&mut self, known: usize, end: usize, flaw: Option<Flaw>) -> Result<(), DecodeError> {
        if let Some(flaw) = flaw {
            return Err(self.bad_record(self.at, end, self.line, self.explain(flaw)));
        }
        let fields = &self.fields[known..];
        if self.format.by_position {
            self.header = Some(fields.iter().map(|field| text_of(&self.format.dialect, &self.buf, field)).collect());
            self.fields.truncate(known);
            return self.plan_by_position();
        }
        let header = Header::read(&self.format, &self.buf, fields).map_err(DecodeError::File)?;
        self.header = Some(fields.iter().map(|field| text_of(&self.format.dialect, &self.buf, field)).collect());
        self.fields.truncate(known);
        self.plan_by_name(&header)
    }

    fn add(&mut self, known: usize, end: usize, flaw: Option<Flaw>) {
        let count = self.fields.len() - known;
        if self.format.drop_repeated_header && self.repeats_header(known) {
            self.fields.truncate(known);
            return;
        }
        let row = self.rows.len() as u32;
        let ragged = (count < self.width && self.format.short == ShortRows::Bad)
            || (count > self.width && self.format.long == LongRows::Bad);
        if let Some(flaw) = flaw {
            self.bad.push((row, self.explain(flaw)));
        } else if ragged {
            let problem = format!("it has {count} fields, {} are expected", self.width);
            let kept = if self.format.keep_ragged { &mut self.ragged } else { &mut self.bad };
            kept.push((row, problem));
        } else if count > self.width {
            self.tally.unknown_fields += (count - self.width) as u64;
        }
        self.rows.push(Row {
            first: known as u32,
            fields: count as u32,
            start: self.at as u32,
            end: end as u32,
            line: self.line,
        });
    }

    fn repeats_header(&self, known: usize) -> bool {
        let Some(header) = &self.header else { return false };
        let fields = &self.fields[known..];
        fields.len() == header.len()
            && fields
                .iter()
                .zip(header)
                .all(|(field, name)| text_of(&self.format.dialect, &self.buf, field) == name.as_slice())
    }

    /// A record whose end is not known: the line in which it begins is bad, the next one may be good.
    fn lose(&mut self, end: usize, flaw: Flaw) -> Result<(), DecodeError> {
        let line = line_end(&self.buf, self.at);
        let end = line.map_or(end, |line| line.min(end)).min(self.buf.len());
        if !self.ready {
            return Err(self.bad_record(self.at, end, self.line, self.explain(flaw)));
        }
        self.bad.push((self.rows.len() as u32, self.explain(flaw)));
        let (first, start) = (self.fields.len() as u32, self.at as u32);
        self.rows.push(Row { first, fields: 0, start, end: end as u32, line: self.line });
        self.at = end;
        self.skipping = true;
        Ok(())
    }

    /// Goes to the next line; `false`: its beginning is not there yet.
    fn skip_line(&mut self) -> bool {
        let Some(end) = line_end(&self.buf, self.at) else {
            self.at = self.buf.len();
            if self.last {
                self.skipping = false;
            }
            return false;
        };
        let Some(next) = after_break(&self.buf, end, self.last) else {
            self.at = end;
            return false;
        };
        self.at = next;
        self.line += 1;
        self.skipping = false;
        true
    }

    fn explain(&self, flaw: Flaw) -> String {
        let dialect = &self.format.dialect;
        match flaw {
            Flaw::OpenQuote => "a quote is never closed".to_string(),
            Flaw::AfterQuote => "something follows a closing quote".to_string(),
            Flaw::Long => format!("it is longer than `csv.max_record`, {} bytes", dialect.max_record),
            Flaw::Columns => format!("it has more than `csv.max_columns`, {} fields", dialect.max_columns),
            Flaw::Field => {
                format!("a field is longer than `csv.max_chars_per_column`, {} characters", dialect.max_field)
            }
        }
    }

    fn bad_record(&self, start: usize, end: usize, line: u64, reason: String) -> DecodeError {
        let record = shown(&self.buf[start..end]);
        DecodeError::Record(BadRecord { line, offset: self.base + start as u64, reason, record })
    }

    /// The records that were found as a batch, without those that are left out.
    fn make(&mut self) -> Result<RecordBatch, DecodeError> {
        match self.make_whole()? {
            (batch, None) => Ok(batch),
            (batch, Some(keep)) => filter_record_batch(&batch, &keep).map_err(|e| DecodeError::File(e.to_string())),
        }
    }

    /// The records that were found as a batch, and which of them are to stay; `None`: all.
    fn make_whole(&mut self) -> Result<(RecordBatch, Option<BooleanArray>), DecodeError> {
        let rows = self.rows.len();
        let mut bad = std::mem::take(&mut self.bad);
        let mut columns: Vec<Option<ArrayRef>> = vec![None; self.plans.len()];
        let spoilt: Vec<bool> = match bad.is_empty() {
            true => Vec::new(),
            false => {
                let mut spoilt = vec![false; rows];
                bad.iter().for_each(|(row, _)| spoilt[*row as usize] = true);
                spoilt
            }
        };
        // Their cells are read, so they are no part of what is spoilt.
        bad.append(&mut self.ragged);
        for (at, plan) in self.plans.iter().enumerate() {
            let Plan::Field { kind, position } = plan else { continue };
            let escaped = self.unescaped(*position);
            let cells = self.cells(*position, kind, &spoilt, &escaped);
            let name = self.schema.field(at).name();
            let mut wrong = Vec::new();
            if self.wanted.contains(&at) {
                columns[at] = Some(column(kind, rows, cells, &self.format.formats, |row| wrong.push(row)));
            } else {
                // What is bad must not depend on which columns a query reads.
                check(kind, cells, &self.format.formats, |row| wrong.push(row));
            }
            bad.extend(wrong.into_iter().map(|row| (row as u32, format!("column `{name}` is not {}", kind.name()))));
        }
        bad.sort_by_key(|(row, _)| *row);
        bad.dedup_by_key(|(row, _)| *row);
        self.tally.bad += bad.len() as u64;
        if let Some((row, reason)) = bad.first().filter(|_| self.format.mode == BadRecords::FailFast) {
            let row = self.rows[*row as usize];
            return Err(self.bad_record(row.start as usize, row.end as usize, row.line, reason.clone()));
        }
        let wanted = self.wanted.iter().map(|at| match columns[*at].take() {
            Some(column) => column,
            None => self.other_column(*at, rows, &bad),
        });
        // A column may be wanted twice.
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.wanted.len());
        for (place, array) in wanted.collect::<Vec<_>>().into_iter().enumerate() {
            let earlier = self.wanted[..place].iter().position(|other| *other == self.wanted[place]);
            arrays.push(earlier.map_or(array, |earlier| Arc::clone(&arrays[earlier])));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.output), arrays, &options);
        let batch = batch.map_err(|e| DecodeError::File(e.to_string()))?;
        self.note_refused(&bad);
        self.clear();
        if bad.is_empty() || !self.format.mode.leaves_out() {
            return Ok((batch, None));
        }
        self.tally.dropped += bad.len() as u64;
        let mut keep = vec![true; rows];
        bad.iter().for_each(|(row, _)| keep[*row as usize] = false);
        Ok((batch, Some(BooleanArray::from(keep))))
    }

    fn note_refused(&mut self, bad: &[(u32, String)]) {
        let Some(refused) = &mut self.refused else { return };
        for (row, reason) in bad {
            let row = self.rows[*row as usize];
            let text = &self.buf[row.start as usize..row.end as usize];
            refused.push(BadRecord {
                line: row.line,
                offset: self.base + u64::from(row.start),
                reason: reason.clone(),
                record: String::from_utf8_lossy(text).into_owned(),
            });
        }
    }

    fn other_column(&self, at: usize, rows: usize, bad: &[(u32, String)]) -> ArrayRef {
        let field = self.schema.field(at);
        if !matches!(self.plans[at], Plan::Corrupt) || field.data_type() != &DataType::Utf8 {
            return nothing(field.data_type(), rows);
        }
        let mut texts: Vec<Option<String>> = vec![None; rows];
        for (row, _) in bad {
            let found = self.rows[*row as usize];
            let text = &self.buf[found.start as usize..found.end as usize];
            texts[*row as usize] = Some(String::from_utf8_lossy(text).into_owned());
        }
        Arc::new(StringArray::from(texts))
    }

    /// The texts of a column's fields that hold escapes, in order.
    fn unescaped(&self, position: usize) -> Vec<Vec<u8>> {
        let fields = self.rows.iter().filter_map(|row| self.field(row, position));
        let escaped = fields.filter(|field| field.flags & ESCAPED != 0);
        escaped.map(|field| text_of(&self.format.dialect, &self.buf, field)).collect()
    }

    #[inline]
    fn field(&self, row: &Row, position: usize) -> Option<&Field> {
        (position < row.fields as usize).then(|| &self.fields[row.first as usize + position])
    }

    /// The cells of a column; those of records that are bad as such are null.
    fn cells<'a>(
        &'a self,
        position: usize,
        kind: &'a Kind,
        spoilt: &'a [bool],
        escaped: &'a [Vec<u8>],
    ) -> impl Iterator<Item = Cell<'a>> {
        let is_text = matches!(kind, Kind::Text | Kind::Binary);
        let mut next_escaped = escaped.iter();
        self.rows.iter().enumerate().map(move |(number, row)| {
            let Some(field) = self.field(row, position) else { return Cell::Null };
            let text = match field.flags & ESCAPED {
                0 => &self.buf[field.start as usize..field.end as usize],
                _ => next_escaped.next().map_or(&[][..], Vec::as_slice),
            };
            if spoilt.get(number).copied().unwrap_or(false) {
                return Cell::Null;
            }
            self.cell(text, field.flags & QUOTED != 0, is_text)
        })
    }

    #[inline]
    fn cell<'a>(&'a self, text: &'a [u8], quoted: bool, is_text: bool) -> Cell<'a> {
        if self.format.spark_nulls {
            let text = if quoted && text.is_empty() { self.format.empty.as_slice() } else { text };
            let null = text == self.format.null.as_slice() || (text.is_empty() && !quoted);
            return if null { Cell::Null } else { Cell::Text(text) };
        }
        if !quoted {
            return if text == self.format.null.as_slice() { Cell::Null } else { Cell::Text(text) };
        }
        if text.is_empty() {
            // Programs that quote everything mean NULL by an empty number.
            return if is_text { Cell::Text(&self.format.empty) } else { Cell::Null };
        }
        Cell::Text(text)
    }

    /// Forgets the records of a batch, and their text.
    fn clear(&mut self) {
        self.rows.clear();
        self.fields.clear();
        self.base += self.at as u64;
        self.buf.drain(..self.at);
        self.at = 0;
    }
}

impl Decode for CsvDecoder {
    fn push(&mut self, text: &[u8]) {
        if self.rows.is_empty() && self.fields.is_empty() && self.at > 0 {
            self.clear();
        }
        self.buf.extend_from_slice(text);
    }

    fn end(&mut self) {
        self.last = true;
    }

    fn next(&mut self) -> Result<Option<RecordBatch>, DecodeError> {
        loop {
            let full = self.collect()?;
            if self.rows.is_empty() {
                // Nothing but skipped lines: the end, or more text is needed.
                let over = self.last && self.at >= self.buf.len();
                if !full || over {
                    return Ok(None);
                }
                self.clear();
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
