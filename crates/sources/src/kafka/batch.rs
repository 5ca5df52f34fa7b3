// SPDX-License-Identifier: Apache-2.0
//! Record batches of a partition as messages: those of aborted transactions and the markers of transactions are left out,
//! and the place to go on with is behind whatever a batch spans, whether its messages are still there or not.

use std::collections::HashSet;

use bytes::{Buf, Bytes};
use kafka_protocol::records::{Record, RecordBatchDecoder};

use crate::kafka::log::Message;

/// Bytes of a batch before its records: see the record batch format of Kafka, version 2.
const HEADER: usize = 61;
/// Bytes before those that the length counts.
const PREFIX: usize = 12;
const MAGIC: usize = 16;
const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const LAST_TIMESTAMP: usize = 35;
const PRODUCER: usize = 43;
const COUNT: usize = 57;

/// Attributes of a batch.
const LOG_APPEND_TIME: i16 = 1 << 3;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

/// A marker that ends a transaction as aborted.
const ABORT: i16 = 0;

/// What a broker says of an aborted transaction: its producer, and its first offset.
pub(crate) type Aborted = (i64, i64);

/// Messages, and the offset to go on with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) messages: Vec<Message>,
    pub(crate) next: i64,
}

struct Header {
    base: i64,
    /// Bytes of the whole batch.
    bytes: usize,
    attributes: i16,
    last: i64,
    last_timestamp: i64,
    producer: i64,
    count: i32,
}

/// The header of the batch that `bytes` begins with; `None`: it is cut off.
fn header(bytes: &[u8]) -> Result<Option<Header>, String> {
    if bytes.len() < HEADER {
        return Ok(None);
    }
    let i16_at = |at: usize| (&bytes[at..]).get_i16();
    let i32_at = |at: usize| (&bytes[at..]).get_i32();
    let i64_at = |at: usize| (&bytes[at..]).get_i64();
    if bytes[MAGIC] != 2 {
        return Err(format!(
            "a batch has format {}, and 2 is read: rewrite the topic with a newer broker",
            bytes[MAGIC]
        ));
    }
    let base = i64_at(0);
    let length = usize::try_from(i32_at(8)).map_err(|_| "a batch has a negative length".to_string())?;
    let delta = i32_at(LAST_OFFSET_DELTA);
    let count = i32_at(COUNT);
    if length < HEADER - PREFIX || delta < 0 || count < 0 || i64::from(count) > i64::from(delta) + 1 {
        return Err(format!("the batch at offset {base} has {count} messages in {} offsets", i64::from(delta) + 1));
    }
    Ok(Some(Header {
        base,
        bytes: length + PREFIX,
        attributes: i16_at(ATTRIBUTES),
        last: base + i64::from(delta),
        last_timestamp: i64_at(LAST_TIMESTAMP),
        producer: i64_at(PRODUCER),
        count,
    }))
}

/// The messages in `bytes` from `offset` on and before `end`.
pub(crate) fn unpack(mut bytes: Bytes, mut aborted: Vec<Aborted>, offset: i64, end: i64) -> Result<Unpacked, String> {
    aborted.sort_unstable_by_key(|(_, first)| std::cmp::Reverse(*first));
    let mut open: HashSet<i64> = HashSet::new();
    let mut unpacked = Unpacked { messages: Vec::new(), next: offset };
    while !bytes.is_empty() && unpacked.next < end {
        let Some(header) = header(&bytes)?.filter(|header| header.bytes <= bytes.len()) else {
            // The last batch is cut where the answer was full; the next answer begins with it.
            if unpacked.next == offset {
                return Err(format!("the batch at offset {offset} is cut off"));
            }
            break;
        };
        let mut batch = bytes.split_to(header.bytes);
        while let Some((producer, _)) = aborted.pop_if(|(_, first)| *first <= header.base) {
            open.insert(producer);
        }
        let transactional = header.attributes & TRANSACTIONAL != 0;
        if header.attributes & CONTROL != 0 {
            if is_abort(&mut batch, &header)? {
                open.remove(&header.producer);
            }
        } else if header.count > 0 && !(transactional && open.contains(&header.producer)) {
            let records = records(&mut batch, &header)?;
            let wanted = records.into_iter().filter(|record| (offset..end).contains(&record.offset));
            unpacked.messages.extend(wanted.map(|record| message(record, &header)));
        }
        unpacked.next = unpacked.next.max(header.last + 1);
    }
    Ok(unpacked)
}

/// Records of a batch, decompressed, their checksum compared.
fn records(batch: &mut Bytes, header: &Header) -> Result<Vec<Record>, String> {
    let decoded = RecordBatchDecoder::decode(batch);
    decoded.map(|set| set.records).map_err(|error| format!("the batch at offset {}: {error:#}", header.base))
}

/// Whether a control batch says that its producer's transaction was aborted. Anything else does not open what follows.
fn is_abort(batch: &mut Bytes, header: &Header) -> Result<bool, String> {
    let records = records(batch, header)?;
    let key = records.first().and_then(|record| record.key.clone());
    Ok(key.is_some_and(|key| key.len() >= 4 && (&key[2..]).get_i16() == ABORT))
}

fn message(record: Record, header: &Header) -> Message {
    // Where the broker stamps messages, its time is that of the batch.
    let stamped = header.attributes & LOG_APPEND_TIME != 0;
    Message {
        offset: record.offset,
        timestamp: if stamped { header.last_timestamp } else { record.timestamp },
        key: record.key,
        value: record.value,
        headers: record.headers.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use tributary_testkit::kafka::{Batch, encoded};

    use super::*;

    fn offsets(unpacked: &Unpacked) -> Vec<i64> {
        unpacked.messages.iter().map(|message| message.offset).collect()
    }

    fn all(batches: &[Batch]) -> Bytes {
        batches.iter().flat_map(encoded).collect::<Vec<u8>>().into()
    }

    #[test]
    fn messages_are_cut_at_both_ends_and_the_next_offset_is_behind_the_batch() {
        let bytes = all(&[Batch::of(0, &["a", "b", "c"]), Batch::of(3, &["d", "e"])]);
        let unpacked = unpack(bytes, Vec::new(), 1, 4).unwrap();
        assert_eq!((offsets(&unpacked), unpacked.next), (vec![1, 2, 3], 5));
        assert_eq!(unpacked.messages[0].value.as_deref(), Some(&b"b"[..]));
    }

    #[test]
    fn a_batch_whose_last_messages_were_compacted_away_is_left_behind_as_a_whole() {
        let bytes = all(&[Batch::of(0, &["a", "b", "c"]).without(&[1, 2]), Batch::of(7, &["d"])]);
        let unpacked = unpack(bytes.clone(), Vec::new(), 0, 7).unwrap();
        assert_eq!((offsets(&unpacked), unpacked.next), (vec![0], 8));
        let all_gone = all(&[Batch::of(0, &["a", "b"]).without(&[0, 1])]);
        assert_eq!(unpack(all_gone, Vec::new(), 0, 9).unwrap(), Unpacked { messages: Vec::new(), next: 2 });
    }

    #[test]
    fn aborted_transactions_and_markers_are_left_out_and_later_ones_of_the_producer_are_not() {
        let bytes = all(&[
            Batch::of(0, &["x", "y"]).by(7),
            Batch::of(2, &["kept"]).by(8),
            Batch::marker(3, 7, false),
            Batch::of(4, &["again"]).by(7),
            Batch::marker(5, 7, true),
            Batch::marker(6, 8, true),
        ]);
        let unpacked = unpack(bytes, vec![(7, 0)], 0, 100).unwrap();
        assert_eq!((offsets(&unpacked), unpacked.next), (vec![2, 4], 7));
    }

    #[test]
    fn a_batch_that_is_cut_off_waits_for_the_next_answer_unless_it_is_the_first() {
        let bytes = all(&[Batch::of(0, &["a"]), Batch::of(1, &["b"])]);
        let cut = bytes.slice(..bytes.len() - 3);
        assert_eq!(unpack(cut.clone(), Vec::new(), 0, 9).unwrap().next, 1);
        assert!(unpack(cut, Vec::new(), 1, 9).unwrap_err().contains("offset 1"));
        let first = bytes.slice(..40);
        assert!(unpack(first, Vec::new(), 0, 9).unwrap_err().contains("cut off"));
    }

    #[test]
    fn a_batch_that_was_damaged_is_told_by_its_offset() {
        let mut bytes = all(&[Batch::of(5, &["abc"])]).to_vec();
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
        let refused = unpack(bytes.into(), Vec::new(), 5, 9).unwrap_err();
        assert!(refused.contains("offset 5"), "{refused}");
    }
}
