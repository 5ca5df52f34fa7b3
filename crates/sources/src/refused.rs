// SPDX-License-Identifier: Apache-2.0
//! Records that are refused, as rows for the error table; and which splits have none.
//!
//! The rows of a split and the records refused in it are two streams of one content: what is bad does not depend on the
//! query, so each can be read without the other, and again.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::error::ArrowError;
use tributary_api::refused::{BAD_MESSAGE, BAD_RECORD, refused_schema};
use tributary_api::timeline::ReadRequest;

use crate::record::BadRecord;

/// Records and bytes of text in one batch, about.
const BATCH_RECORDS: usize = 1024;
const BATCH_BYTES: usize = 4 << 20;
/// Bytes that the names of clean splits may take.
const CLEAN_BYTES: usize = 8 << 20;

/// Where a refused record is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Where {
    /// In a file: its path, line and byte.
    File { path: String, line: u64, offset: u64 },
    /// A message: its topic, partition and offset, and the how manyth refused record of the message it is, from 0.
    Message { topic: String, partition: i32, offset: i64, number: usize },
}

impl Where {
    /// What names it among all records of its source.
    fn position(&self) -> String {
        match self {
            Where::File { path, offset, .. } => format!("{path}:{offset}"),
            Where::Message { topic, partition, offset, number: 0 } => format!("{topic}/{partition}:{offset}"),
            Where::Message { topic, partition, offset, number } => format!("{topic}/{partition}:{offset}#{number}"),
        }
    }
}

/// Refused records of one split, until there are enough for a batch.
pub(crate) struct Refusals {
    source: String,
    found: Vec<(Where, String, String)>,
    bytes: usize,
}

impl Refusals {
    pub(crate) fn new(source: impl Into<String>) -> Self {
        Refusals { source: source.into(), found: Vec::new(), bytes: 0 }
    }

    /// Adds a record: where it is, what is wrong, and its text.
    pub(crate) fn add(&mut self, at: Where, message: String, raw: String) {
        self.bytes += raw.len() + message.len();
        self.found.push((at, message, raw));
    }

    /// Adds records of a file.
    pub(crate) fn add_of_file(&mut self, path: &str, records: Vec<BadRecord>) {
        for BadRecord { line, offset, reason, record } in records {
            self.add(Where::File { path: path.to_string(), line, offset }, reason, record);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether a batch is as large as one gets.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES
    }

    /// The records so far as a batch; there are none then.
    pub(crate) fn make(&mut self) -> Result<RecordBatch, ArrowError> {
        self.bytes = 0;
        let found = std::mem::take(&mut self.found);
        let file = |at: &Where| match at {
            Where::File { path, line, offset } => Some((path.clone(), *line as i64, *offset as i64)),
            Where::Message { .. } => None,
        };
        let message = |at: &Where| match at {
            Where::Message { topic, partition, offset, .. } => Some((topic.clone(), *partition, *offset)),
            Where::File { .. } => None,
        };
        let reason = |at: &Where| if matches!(at, Where::File { .. }) { BAD_RECORD } else { BAD_MESSAGE };
        let files: Vec<_> = found.iter().map(|(at, ..)| file(at)).collect();
        let messages: Vec<_> = found.iter().map(|(at, ..)| message(at)).collect();
        let texts = |values: Vec<Option<String>>| Arc::new(StringArray::from(values)) as ArrayRef;
        let columns: Vec<ArrayRef> = vec![
            texts(vec![Some(self.source.clone()); found.len()]),
            texts(found.iter().map(|(at, ..)| Some(at.position())).collect()),
            Arc::new(StringArray::from_iter_values(found.iter().map(|(at, ..)| reason(at)))),
            texts(found.iter().map(|(_, message, _)| Some(message.clone())).collect()),
            texts(files.iter().map(|file| file.as_ref().map(|(path, ..)| path.clone())).collect()),
            Arc::new(files.iter().map(|file| file.as_ref().map(|(_, line, _)| *line)).collect::<Int64Array>()),
            Arc::new(files.iter().map(|file| file.as_ref().map(|(.., offset)| *offset)).collect::<Int64Array>()),
            texts(messages.iter().map(|message| message.as_ref().map(|(topic, ..)| topic.clone())).collect()),
            Arc::new(messages.iter().map(|m| m.as_ref().map(|(_, partition, _)| *partition)).collect::<Int32Array>()),
            Arc::new(messages.iter().map(|m| m.as_ref().map(|(.., offset)| *offset)).collect::<Int64Array>()),
            texts(found.into_iter().map(|(.., raw)| Some(raw)).collect()),
        ];
        RecordBatch::try_new(refused_schema(), columns)
    }
}

/// Splits of which every record was read and none refused, as far as they are remembered: most splits are such, and
/// need not be read once more to be told so.
#[derive(Debug, Default)]
pub(crate) struct CleanSplits {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    names: HashSet<Arc<str>>,
    oldest_first: VecDeque<Arc<str>>,
    bytes: usize,
}

impl CleanSplits {
    /// What a split's records and the columns that they are read by are called.
    pub(crate) fn name(request: &ReadRequest) -> Option<Arc<str>> {
        let mut split = request.split.clone();
        if let Some(file) = &mut split.file {
            file.refused = false;
        }
        let split = serde_json::to_string(&split).ok()?;
        Some(format!("{split} {:?}", request.schema.fields()).into())
    }

    /// Remembers a split.
    pub(crate) fn note(&self, name: Arc<str>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.names.insert(Arc::clone(&name)) {
            return;
        }
        known.bytes += name.len();
        known.oldest_first.push_back(name);
        while known.bytes > CLEAN_BYTES {
            let Some(oldest) = known.oldest_first.pop_front() else { break };
            known.bytes -= oldest.len();
            known.names.remove(&oldest);
        }
    }

    /// Whether a split is known to have no bad record.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).names.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;

    use super::*;

    #[test]
    fn each_refused_record_has_a_position_of_its_own_and_says_where_it_is() {
        let mut refusals = Refusals::new("clicks");
        let bad = BadRecord { line: 3, offset: 17, reason: "no".to_string(), record: "a,b".to_string() };
        refusals.add_of_file("d/1.csv", vec![bad]);
        for number in 0..2 {
            let at = Where::Message { topic: "t".to_string(), partition: 1, offset: 42, number };
            refusals.add(at, "why".to_string(), "{".to_string());
        }
        let batch = refusals.make().unwrap();
        let texts = |name: &str| -> Vec<String> {
            let column = batch.column_by_name(name).unwrap().as_string::<i32>();
            column.iter().map(|text| text.unwrap_or("-").to_string()).collect()
        };
        assert_eq!(texts("position"), ["d/1.csv:17", "t/1:42", "t/1:42#1"]);
        assert_eq!(texts("reason"), [BAD_RECORD, BAD_MESSAGE, BAD_MESSAGE]);
        assert_eq!(
            (texts("file"), texts("topic")),
            (vec!["d/1.csv".into(), "-".into(), "-".into()], vec!["-".into(), "t".into(), "t".into()])
        );
        assert_eq!(texts("raw"), ["a,b", "{", "{"]);
        assert!(refusals.is_empty());
    }

    #[test]
    fn clean_splits_are_remembered_within_a_bound_and_the_oldest_go_first() {
        let clean = CleanSplits::default();
        let name = |number: usize| -> Arc<str> { format!("{number}{}", "x".repeat((1 << 20) - 8)).into() };
        (0..9).for_each(|number| clean.note(name(number)));
        clean.note(name(8));
        assert!(!clean.has(&name(0)) && clean.has(&name(1)) && clean.has(&name(8)));
    }
}
