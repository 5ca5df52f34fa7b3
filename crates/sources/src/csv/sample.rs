// SPDX-License-Identifier: Apache-2.0
//! The first records of a file, to learn its columns and their types from.

use crate::csv::format::CsvFormat;
use crate::csv::header::{Header, numbered, text_of};
use crate::csv::tokenizer::{Field, Found, QUOTED, Tokenizer};

/// The first records of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CsvSample {
    /// Names of the columns, where the file or its first record shows any.
    pub(crate) names: Vec<String>,
    /// Fields by record and column; `None`: NULL.
    pub(crate) rows: Vec<Vec<Option<Vec<u8>>>>,
}

/// Takes a sample while the text comes.
pub(crate) struct CsvSampler<'a> {
    format: &'a CsvFormat,
    tokens: Tokenizer,
    buf: Vec<u8>,
    at: usize,
    rows: usize,
    header: Option<Header>,
    sample: CsvSample,
}

impl<'a> CsvSampler<'a> {
    /// Takes up to `rows` records.
    pub(crate) fn new(format: &'a CsvFormat, rows: usize) -> Self {
        CsvSampler {
            format,
            tokens: Tokenizer::new(format.dialect.clone()),
            buf: Vec::new(),
            at: 0,
            rows,
            header: None,
            sample: CsvSample::default(),
        }
    }

    /// Takes more text; `true`: enough was seen.
    pub(crate) fn push(&mut self, text: &[u8], last: bool) -> Result<bool, String> {
        self.buf.drain(..self.at);
        self.at = 0;
        self.buf.extend_from_slice(text);
        let mut fields = Vec::new();
        loop {
            let headed = !self.format.header || self.header.is_some();
            if headed && self.sample.rows.len() >= self.rows {
                return Ok(true);
            }
            fields.clear();
            match self.tokens.find(&self.buf, self.at, last, &mut fields) {
                Found::More => return Ok(false),
                Found::End => return Ok(true),
                Found::Skipped { next } => self.at = next,
                // Whoever reads the file says what is wrong with it.
                Found::Lost { .. } => return Ok(true),
                Found::Record { next, flaw, .. } => {
                    self.at = next;
                    if !headed {
                        self.header = Some(Header::read(self.format, &self.buf, &fields)?);
                    } else if flaw.is_none() {
                        let row = fields.iter().map(|field| self.value(field)).collect();
                        self.sample.rows.push(row);
                    }
                }
            }
        }
    }

    fn value(&self, field: &Field) -> Option<Vec<u8>> {
        let text = text_of(self.tokens.dialect(), &self.buf, field);
        let null = match field.flags & QUOTED {
            0 => text == self.format.null,
            // An empty quoted field says nothing about a type.
            _ => false,
        };
        (!null).then_some(text)
    }

    /// The sample. Without a header, columns are named by their positions.
    pub(crate) fn finish(mut self) -> CsvSample {
        let widest = self.sample.rows.iter().map(Vec::len).max().unwrap_or(0);
        self.sample.names = match self.header {
            Some(header) => header.names,
            None => (0..widest).map(numbered).collect(),
        };
        self.sample
    }
}
