// SPDX-License-Identifier: Apache-2.0
//! Record batches of Kafka, format version 2, written byte by byte: with holes, and as markers of transactions.

/// Attributes of a batch.
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

/// One message: its place in the batch, its time, its key and its value.
#[derive(Debug, Clone)]
struct Record {
    place: i32,
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
}

/// A batch.
#[derive(Debug, Clone)]
pub struct Batch {
    base: i64,
    /// Offsets that it spans.
    span: i32,
    records: Vec<Record>,
    producer: Option<i64>,
    marker: bool,
}

impl Batch {
    /// Values at offsets from `base` on, stamped with their offsets.
    pub fn of(base: i64, values: &[&str]) -> Self {
        let messages = values.iter().map(|value| (None, Some(*value)));
        Batch::keyed(base, &messages.collect::<Vec<_>>())
    }

    /// Messages of keys and values, `None` where a message has none.
    pub fn keyed(base: i64, messages: &[(Option<&str>, Option<&str>)]) -> Self {
        let records = messages.iter().enumerate().map(|(place, (key, value))| Record {
            place: place as i32,
            timestamp: base + place as i64,
            key: key.map(|key| key.as_bytes().to_vec()),
            value: value.map(|value| value.as_bytes().to_vec()),
            headers: Vec::new(),
        });
        Batch { base, span: messages.len() as i32, records: records.collect(), producer: None, marker: false }
    }

    /// The marker that ends a transaction.
    pub fn marker(base: i64, producer: i64, commits: bool) -> Self {
        let key = [0i16.to_be_bytes(), i16::from(commits).to_be_bytes()].concat();
        let value = vec![0; 6];
        let record = Record { place: 0, timestamp: 0, key: Some(key), value: Some(value), headers: Vec::new() };
        Batch { base, span: 1, records: vec![record], producer: Some(producer), marker: true }
    }

    /// The same, written by a producer in a transaction.
    pub fn by(self, producer: i64) -> Self {
        Batch { producer: Some(producer), ..self }
    }

    /// The same, all of it stamped with a time in milliseconds since the epoch.
    pub fn stamped(mut self, millis: i64) -> Self {
        self.records.iter_mut().for_each(|record| record.timestamp = millis);
        self
    }

    /// The same with a header in each message.
    pub fn with_header(mut self, name: &str, value: &[u8]) -> Self {
        self.records.iter_mut().for_each(|record| record.headers.push((name.to_string(), value.to_vec())));
        self
    }

    /// The same without the messages at these offsets.
    pub fn without(mut self, offsets: &[i64]) -> Self {
        let base = self.base;
        self.records.retain(|record| !offsets.contains(&(base + i64::from(record.place))));
        self
    }

    pub(super) fn at(self, base: i64) -> Self {
        Batch { base, ..self }
    }

    pub(super) fn last(&self) -> i64 {
        self.base + i64::from(self.span) - 1
    }

    pub(super) fn is_marker(&self) -> bool {
        self.marker
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn first_since(&self, millis: i64) -> Option<i64> {
        let record = self.records.iter().find(|record| record.timestamp >= millis && !self.marker);
        record.map(|record| self.base + i64::from(record.place))
    }
}

/// The bytes of a batch.
pub fn encoded(batch: &Batch) -> Vec<u8> {
    let first = batch.records.first().map_or(0, |record| record.timestamp);
    let last = batch.records.iter().map(|record| record.timestamp).max().unwrap_or(0);
    let mut attributes = 0;
    if batch.producer.is_some() {
        attributes |= TRANSACTIONAL;
    }
    if batch.marker {
        attributes |= CONTROL;
    }
    let mut body = Vec::new();
    body.extend(attributes.to_be_bytes());
    body.extend((batch.span - 1).to_be_bytes());
    body.extend(first.to_be_bytes());
    body.extend(last.to_be_bytes());
    body.extend(batch.producer.unwrap_or(-1).to_be_bytes());
    body.extend(0i16.to_be_bytes());
    body.extend(0i32.to_be_bytes());
    body.extend((batch.records.len() as i32).to_be_bytes());
    batch.records.iter().for_each(|record| write_record(&mut body, record, first));
    let mut bytes = Vec::new();
    bytes.extend(batch.base.to_be_bytes());
    // Epoch, format and checksum count, too.
    bytes.extend((body.len() as i32 + 9).to_be_bytes());
    bytes.extend(0i32.to_be_bytes());
    bytes.push(2);
    bytes.extend(crc32c(&body).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn write_record(out: &mut Vec<u8>, record: &Record, first: i64) {
    let mut bytes = vec![0];
    write_varint(&mut bytes, record.timestamp - first);
    write_varint(&mut bytes, i64::from(record.place));
    write_bytes(&mut bytes, record.key.as_deref());
    write_bytes(&mut bytes, record.value.as_deref());
    write_varint(&mut bytes, record.headers.len() as i64);
    for (name, value) in &record.headers {
        write_bytes(&mut bytes, Some(name.as_bytes()));
        write_bytes(&mut bytes, Some(value));
    }
    write_varint(out, bytes.len() as i64);
    out.extend(bytes);
}

fn write_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    write_varint(out, bytes.map_or(-1, |bytes| bytes.len() as i64));
    out.extend(bytes.unwrap_or_default());
}

fn write_varint(out: &mut Vec<u8>, value: i64) {
    let mut left = ((value << 1) ^ (value >> 63)) as u64;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// The checksum of batches (Castagnoli).
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
    };
    !bytes.iter().fold(!0, step)
}
