// SPDX-License-Identifier: Apache-2.0
//! Messages instead of a file: each holds one object, or several, and ends by itself.

use arrow::array::{BooleanArray, RecordBatch};
use tributary_types::pipeline::BadRecords;

use super::{BATCH_BYTES, JsonDecoder};
use crate::json::value::{Fail, read};
use crate::record::{BadRecord, DecodeError, shown};

impl JsonDecoder {
    /// Takes a message in, and answers how many rows it became. `number` is what errors call its line.
    pub(crate) fn take_message(&mut self, text: &[u8], number: u64, lines: bool) -> Result<usize, DecodeError> {
        let before = self.record.rows();
        self.line = number;
        self.base += text.len() as u64;
        let limit = self.format.max_record;
        let mut at = after_space(text, 0);
        if at == text.len() {
            self.lose_message(text, "it is empty".to_string())?;
        }
        while at < text.len() {
            let found = match read(text, at) {
                _ if text[at] != b'{' => Err("a record is an object, and this is none".to_string()),
                Ok((_, end)) if end - at > limit => Err(format!("it is longer than `json.max_record`, {limit} bytes")),
                Ok((value, end)) => Ok((value, end, after_space(text, end))),
                Err(Fail::More) => Err("it ends within an object".to_string()),
                Err(Fail::At(place, what)) => Err(format!("at byte {place} of it, {what}")),
            };
            match found {
                Ok((_, _, next)) if next < text.len() && !lines => {
                    let reason = "something follows its object; set `kafka.lines = true` if it holds several";
                    self.lose_message(text, reason.to_string())?;
                    break;
                }
                Ok((value, end, next)) => {
                    self.take(&value, &text[at..end], at)?;
                    at = next;
                }
                Err(reason) => {
                    self.lose_message(&text[at..], reason)?;
                    break;
                }
            }
        }
        Ok(self.record.rows() - before)
    }

    fn lose_message(&mut self, text: &[u8], reason: String) -> Result<(), DecodeError> {
        self.tally.bad += 1;
        match self.format.mode {
            BadRecords::FailFast => {
                return Err(DecodeError::Record(BadRecord { line: self.line, offset: 0, reason, record: shown(text) }));
            }
            BadRecords::DropMalformed | BadRecords::ErrorTable => {
                self.tally.dropped += 1;
                self.note_refused(0, reason, text);
            }
            BadRecords::Permissive => {
                self.bad.push((self.record.rows(), String::from_utf8_lossy(text).into_owned()));
                self.record.append_null();
            }
        }
        Ok(())
    }

    /// Whether a batch is as large as one gets.
    pub(crate) fn is_full(&self) -> bool {
        self.base >= self.batch_from + BATCH_BYTES
    }

    /// The records so far as a batch, and which of them are to stay; `None`: all.
    pub(crate) fn take_batch(&mut self) -> Result<(RecordBatch, Option<BooleanArray>), DecodeError> {
        self.make_whole()
    }
}

fn after_space(text: &[u8], at: usize) -> usize {
    let space = text[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    at + space
}
