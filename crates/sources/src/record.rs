// SPDX-License-Identifier: Apache-2.0
//! Records that are no good, and who decodes records.

use arrow::array::RecordBatch;

/// Characters of a record that messages show.
const SHOWN: usize = 200;

/// A record that is no good: where it is, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRecord {
    /// Line where it begins, from 1; of JSON and CSV alike.
    pub(crate) line: u64,
    /// Where it begins, in bytes of the text.
    pub(crate) offset: u64,
    /// What is wrong.
    pub(crate) reason: String,
    /// Its text; cut where it is for a message.
    pub(crate) record: String,
}

/// Text of a record for a message: cut, in one line.
pub(crate) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown.replace('\n', "\\n").replace('\r', "\\r")
}

/// What became of a file's records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Records that were no good.
    pub(crate) bad: u64,
    /// Of those, the ones that were left out.
    pub(crate) dropped: u64,
    /// Fields of good records that the schema has no place for.
    pub(crate) unknown_fields: u64,
    /// Keys that an object had twice; the last one counts.
    pub(crate) duplicate_keys: u64,
}

impl Tally {
    /// What was added since it was `before`.
    pub(crate) fn since(&self, before: &Tally) -> Tally {
        Tally {
            bad: self.bad - before.bad,
            dropped: self.dropped - before.dropped,
            unknown_fields: self.unknown_fields - before.unknown_fields,
            duplicate_keys: self.duplicate_keys - before.duplicate_keys,
        }
    }
}

/// Why a file cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// A record is no good, and that is not allowed.
    Record(BadRecord),
    /// The file as a whole is no good.
    File(String),
}

/// Turns the text of one file into batches.
pub(crate) trait Decode: Send {
    /// Takes more of the text.
    fn push(&mut self, text: &[u8]);

    /// There is no more text.
    fn end(&mut self);

    /// The next batch; `None` when more text is needed, or after the end.
    fn next(&mut self) -> Result<Option<RecordBatch>, DecodeError>;

    /// What became of the records so far.
    fn tally(&self) -> Tally;

    /// From now on the records that are refused are kept, with their whole texts, until they are taken.
    fn keep_refused(&mut self);

    /// The refused records that were kept, in the order in which they were found.
    fn take_refused(&mut self) -> Vec<BadRecord>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_shown_cut_and_in_one_line() {
        assert_eq!(shown(b"a\r\nb"), "a\\r\\nb");
        assert_eq!(shown("ü".repeat(300).as_bytes()).chars().count(), 201);
        assert_eq!(shown(b"\xff"), "\u{fffd}");
    }
}
