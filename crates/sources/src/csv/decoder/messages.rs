// SPDX-License-Identifier: Apache-2.0
//! Messages instead of a file: each holds one record, or several, and ends by itself.

use arrow::array::{BooleanArray, RecordBatch};

use super::{BATCH_BYTES, CsvDecoder, Row};
use crate::csv::tokenizer::Found;
use crate::record::DecodeError;

impl CsvDecoder {
    /// Takes a message in, and answers how many records it is. `number` is what errors call its line.
    pub(crate) fn take_message(&mut self, text: &[u8], number: u64, lines: bool) -> usize {
        let before = self.rows.len();
        self.at = self.buf.len();
        self.line = number;
        self.buf.extend_from_slice(text);
        loop {
            if self.rows.len() > before && !lines && self.at < self.buf.len() {
                let row = before as u32;
                self.bad
                    .push((row, "it has more than one line; set `kafka.lines = true` if that is meant".to_string()));
                break;
            }
            let known = self.fields.len();
            match self.tokens.find(&self.buf, self.at, true, &mut self.fields) {
                Found::End | Found::More => break,
                Found::Skipped { next } => self.at = next,
                Found::Record { end, next, flaw, .. } => {
                    self.add(known, end, flaw);
                    self.at = next;
                }
                Found::Lost { flaw, .. } => {
                    let reason = self.explain(flaw);
                    self.add_bad(reason);
                    break;
                }
            }
        }
        if self.rows.len() == before {
            self.add_bad("it is empty".to_string());
        }
        self.at = self.buf.len();
        self.rows.len() - before
    }

    /// The rest of the message is a record that is no good.
    fn add_bad(&mut self, reason: String) {
        self.bad.push((self.rows.len() as u32, reason));
        let (first, start, end) = (self.fields.len() as u32, self.at as u32, self.buf.len() as u32);
        self.rows.push(Row { first, fields: 0, start, end, line: self.line });
    }

    /// Whether a batch is as large as one gets.
    pub(crate) fn is_full(&self) -> bool {
        self.buf.len() >= BATCH_BYTES
    }

    /// The records so far as a batch, and which of them are to stay; `None`: all.
    pub(crate) fn take_batch(&mut self) -> Result<(RecordBatch, Option<BooleanArray>), DecodeError> {
        self.make_whole()
    }
}
