// SPDX-License-Identifier: Apache-2.0
//! Delete blocks of log files, written: the opposite of `delete_block`.

use crate::avro_rows::{put_bytes, put_long};

/// The content version that is written, the newest.
const CONTENT_VERSION: u32 = 3;
/// Digits behind the point in `DecimalWrapper`.
const DECIMAL_SCALE: u32 = 15;
/// Position of `ArrayWrapper` in the union of ordering values.
const ARRAY: i64 = 12;
/// Position of `DateWrapper`.
const DATE: i64 = 8;

/// A key that is deleted.
#[derive(Debug, Clone, PartialEq)]
pub struct DeletedKey {
    /// Record key.
    pub key: String,
    /// Partition path.
    pub partition: String,
    /// At which ordering value.
    pub at: DeletedAt,
}

/// The ordering value of a delete, as the column has it.
#[derive(Debug, Clone, PartialEq)]
pub enum DeletedAt {
    /// None: the delete counts by its place.
    Place,
    /// Of a boolean column.
    Bool(bool),
    /// Of a column of 32 bits or less.
    Int(i32),
    /// Of a column of 64 bits.
    Long(i64),
    /// Of a single precision column.
    Float(f32),
    /// Of a double precision column.
    Double(f64),
    /// Of a binary column.
    Bytes(Vec<u8>),
    /// Of a text column.
    Text(String),
    /// Days since 1970.
    Date(i32),
    /// Unscaled value and scale; at most 15 digits behind the point.
    Decimal(i128, u32),
    /// Microseconds since 1970.
    Timestamp(i64),
    /// Of several columns.
    Several(Vec<DeletedAt>),
}

/// The content of a delete block.
pub(crate) fn encode_deletes(deletes: &[DeletedKey]) -> Vec<u8> {
    let mut datum = Vec::new();
    if !deletes.is_empty() {
        put_long(&mut datum, deletes.len() as i64);
        for delete in deletes {
            put_long(&mut datum, 1);
            put_bytes(&mut datum, delete.key.as_bytes());
            put_long(&mut datum, 1);
            put_bytes(&mut datum, delete.partition.as_bytes());
            put_ordering(&mut datum, &delete.at);
        }
    }
    put_long(&mut datum, 0);
    let mut content = CONTENT_VERSION.to_be_bytes().to_vec();
    content.extend((datum.len() as u32).to_be_bytes());
    content.extend(datum);
    content
}

fn put_ordering(out: &mut Vec<u8>, at: &DeletedAt) {
    match at {
        // The `int` zero that Java writes for no value.
        DeletedAt::Place => out.extend([4, 0]),
        DeletedAt::Bool(value) => {
            put_long(out, 1);
            out.push(u8::from(*value));
        }
        DeletedAt::Int(value) => {
            put_long(out, 2);
            put_long(out, i64::from(*value));
        }
        DeletedAt::Long(value) => {
            put_long(out, 3);
            put_long(out, *value);
        }
        DeletedAt::Float(value) => {
            put_long(out, 4);
            out.extend(value.to_le_bytes());
        }
        DeletedAt::Double(value) => {
            put_long(out, 5);
            out.extend(value.to_le_bytes());
        }
        DeletedAt::Bytes(value) => {
            put_long(out, 6);
            put_bytes(out, value);
        }
        DeletedAt::Text(value) => {
            put_long(out, 7);
            put_bytes(out, value.as_bytes());
        }
        DeletedAt::Date(value) => {
            put_long(out, DATE);
            put_long(out, i64::from(*value));
        }
        DeletedAt::Decimal(unscaled, scale) => {
            put_long(out, 9);
            let lifted = unscaled.saturating_mul(10i128.saturating_pow(DECIMAL_SCALE.saturating_sub(*scale)));
            put_bytes(out, shortest(&lifted.to_be_bytes()));
        }
        DeletedAt::Timestamp(value) => {
            put_long(out, 11);
            put_long(out, *value);
        }
        DeletedAt::Several(values) => {
            put_long(out, ARRAY);
            put_long(out, 1);
            put_long(out, values.len() as i64);
            for value in values {
                put_ordering(out, value);
            }
            put_long(out, 0);
        }
    }
}

/// A big-endian two's-complement number without the bytes in front that only repeat its sign.
fn shortest(bytes: &[u8]) -> &[u8] {
    let repeats = |pair: &[u8]| matches!((pair[0], pair[1] & 0x80), (0, 0) | (0xff, 0x80));
    let skipped = bytes.windows(2).take_while(|pair| repeats(pair)).count();
    &bytes[skipped..]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::delete_block::read_deletes;
    use crate::ordering::OrderingValue;

    /// Numbers that look random and are the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0 >> 11
        }

        /// A number of any size and sign.
        fn any(&mut self) -> i64 {
            let shift = self.next() % 64;
            (((self.next() << 11) | (self.next() & 0x7ff)) as i64) >> shift
        }
    }

    /// A random ordering value, and how it must read back.
    fn ordering(numbers: &mut Numbers, depth: u32) -> (DeletedAt, OrderingValue) {
        let value = numbers.any();
        match numbers.next() % if depth == 0 { 12 } else { 11 } {
            0 => (DeletedAt::Place, OrderingValue::Default),
            1 => (DeletedAt::Bool(value > 0), OrderingValue::Bool(value > 0)),
            2 => {
                let int = (value as i32).max(1);
                (DeletedAt::Int(int), OrderingValue::Int(i64::from(int)))
            }
            3 => (DeletedAt::Long(value), OrderingValue::Int(value)),
            4 => (DeletedAt::Float(value as f32), OrderingValue::Float(f64::from(value as f32))),
            5 => (DeletedAt::Double(value as f64 / 7.0), OrderingValue::Float(value as f64 / 7.0)),
            6 => (DeletedAt::Bytes(value.to_be_bytes().to_vec()), OrderingValue::Bytes(value.to_be_bytes().to_vec())),
            7 => (DeletedAt::Text(format!("ä{value}")), OrderingValue::Text(format!("ä{value}"))),
            8 => (DeletedAt::Date(value as i32), OrderingValue::Int(i64::from(value as i32))),
            9 => {
                let scale = (numbers.next() % 16) as u32;
                let lifted = i128::from(value) * 10i128.pow(15 - scale);
                (DeletedAt::Decimal(i128::from(value), scale), OrderingValue::Decimal(lifted, 15))
            }
            10 => (DeletedAt::Timestamp(value), OrderingValue::Int(value)),
            _ => {
                let count = 1 + numbers.next() % 3;
                let (given, read) = (0..count).map(|_| ordering(numbers, depth + 1)).unzip();
                (DeletedAt::Several(given), OrderingValue::Several(read))
            }
        }
    }

    #[test]
    fn random_deletes_read_back_with_their_ordering_values() {
        let mut numbers = Numbers(7);
        for _ in 0..300 {
            let count = numbers.next() % 20;
            let mut deletes = Vec::new();
            let mut expected = Vec::new();
            for number in 0..count {
                let (at, read) = ordering(&mut numbers, 0);
                let key = format!("k{number}-{}", numbers.any());
                deletes.push(DeletedKey { key: key.clone(), partition: format!("p={number}"), at });
                expected.push((key, read));
            }
            let content = Bytes::from(encode_deletes(&deletes));
            assert_eq!(read_deletes("f", &content).unwrap(), expected);
        }
    }
}
