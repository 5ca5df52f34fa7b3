// SPDX-License-Identifier: Apache-2.0
//! Delete blocks of log files: keys with the ordering values they are deleted at.
//!
//! The content is a version, a length, and one Avro datum of `HoodieDeleteRecordList`: records of key, partition path
//! and ordering value, the latter a union of one wrapper record per type.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::ordering::OrderingValue;

/// The only content version that tables of version 6 and later have.
const CONTENT_VERSION: u32 = 3;
/// Scale of `DecimalWrapper`.
const DECIMAL_SCALE: i8 = 15;
/// Position of `ArrayWrapper` in the union.
const ARRAY: i64 = 12;

/// The deleted keys of a block, in order; `file` is for messages.
pub(crate) fn read_deletes(file: &str, content: &Bytes) -> Result<Vec<(String, OrderingValue)>> {
    let word = |at: usize| content.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    match word(0) {
        Some(CONTENT_VERSION) => {}
        Some(version) => {
            return Err(Error::unsupported(format!("`{file}` holds a delete block of content version {version}")));
        }
        None => return Err(Error::corrupt(file, "a delete block without content")),
    }
    let length = word(4).and_then(|length| usize::try_from(length).ok());
    let datum = length.and_then(|length| content.get(8..8usize.checked_add(length)?));
    let mut input = Datum { rest: datum.ok_or_else(|| Error::corrupt(file, "a delete block is cut off"))? };
    input.deletes().ok_or_else(|| Error::corrupt(file, "a delete block that is no list of deleted records"))
}

/// What is left of an Avro datum. `None` from any step: it is not what its schema says.
struct Datum<'a> {
    rest: &'a [u8],
}

impl<'a> Datum<'a> {
    fn deletes(&mut self) -> Option<Vec<(String, OrderingValue)>> {
        let mut found = Vec::new();
        self.array(|input| {
            let key = input.optional_text()?;
            let _partition = input.optional_text()?;
            let ordering = input.wrapped()?;
            // Java skips a record without a key as well.
            found.extend(key.map(|key| (key, ordering)));
            Some(())
        })?;
        Some(found)
    }

    fn array(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        loop {
            let mut count = self.long()?;
            if count == 0 {
                return Some(());
            }
            if count < 0 {
                count = count.checked_neg()?;
                let _bytes = self.long()?;
            }
            for _ in 0..count {
                item(self)?;
            }
        }
    }

    fn wrapped(&mut self) -> Option<OrderingValue> {
        match self.long()? {
            ARRAY => self.wrapped_values(),
            branch => self.wrapped_one(branch),
        }
    }

    fn wrapped_values(&mut self) -> Option<OrderingValue> {
        if self.long()? == 0 {
            return Some(OrderingValue::Default);
        }
        let mut values = Vec::new();
        self.array(|input| {
            let branch = input.long()?;
            values.push(input.wrapped_one(branch)?);
            Some(())
        })?;
        Some(OrderingValue::Several(values))
    }

    fn wrapped_one(&mut self, branch: i64) -> Option<OrderingValue> {
        Some(match branch {
            0 => OrderingValue::Default,
            1 => OrderingValue::Bool(self.take(1)?[0] != 0),
            2 => match self.long()? {
                0 => OrderingValue::Default,
                value => OrderingValue::Int(value),
            },
            // Long, date, time, timestamp and, in arrays only, local date.
            3 | 8 | 10 | 11 | 12 => OrderingValue::Int(self.long()?),
            4 => OrderingValue::Float(f64::from(f32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            5 => OrderingValue::Float(f64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            6 => OrderingValue::Bytes(self.bytes()?.to_vec()),
            7 => OrderingValue::Text(self.text()?),
            9 => OrderingValue::Decimal(unscaled(self.bytes()?)?, DECIMAL_SCALE),
            _ => return None,
        })
    }

    fn optional_text(&mut self) -> Option<Option<String>> {
        match self.long()? {
            0 => Some(None),
            1 => self.text().map(Some),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.long()?).ok()?;
        self.take(length)
    }

    /// A variable-length zigzag number.
    fn long(&mut self) -> Option<i64> {
        let mut value: u64 = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }
}

/// A big-endian two's-complement number.
fn unscaled(bytes: &[u8]) -> Option<i128> {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    let start = wide.len().checked_sub(bytes.len())?;
    wide[start..].copy_from_slice(bytes);
    Some(i128::from_be_bytes(wide))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn long(out: &mut Vec<u8>, value: i64) {
        let mut rest = ((value << 1) ^ (value >> 63)) as u64;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn text(out: &mut Vec<u8>, text: &str) {
        long(out, text.len() as i64);
        out.extend(text.as_bytes());
    }

    /// A block's content; ordering values are encoded already, branch first.
    pub(crate) fn content(deletes: &[(&str, Vec<u8>)]) -> Bytes {
        let mut datum = Vec::new();
        long(&mut datum, deletes.len() as i64);
        for (key, ordering) in deletes {
            long(&mut datum, 1);
            text(&mut datum, key);
            long(&mut datum, 0);
            datum.extend(ordering);
        }
        datum.push(0);
        let mut out = CONTENT_VERSION.to_be_bytes().to_vec();
        out.extend((datum.len() as u32).to_be_bytes());
        out.extend(datum);
        Bytes::from(out)
    }

    /// An ordering value of type long.
    pub(crate) fn of_long(value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        long(&mut out, 3);
        long(&mut out, value);
        out
    }

    /// No ordering value: the `int` zero that Java writes.
    pub(crate) fn of_none() -> Vec<u8> {
        vec![4, 0]
    }

    #[test]
    fn keys_come_with_ordering_values_of_every_type() {
        let mut several = Vec::new();
        for number in [ARRAY, 1, 2] {
            long(&mut several, number);
        }
        several.extend(of_long(7));
        long(&mut several, 7);
        text(&mut several, "x");
        several.push(0);
        let deletes = [
            ("none", vec![0]),
            ("zero", of_none()),
            ("long", of_long(-3)),
            ("double", [vec![10], 1.5f64.to_le_bytes().to_vec()].concat()),
            ("text", vec![14, 2, b'a']),
            ("decimal", vec![18, 2, 0xff]),
            ("several", several),
        ];
        let found = read_deletes("f", &content(&deletes)).unwrap();
        let values: Vec<OrderingValue> = found.iter().map(|(_, value)| value.clone()).collect();
        let expected = [
            OrderingValue::Default,
            OrderingValue::Default,
            OrderingValue::Int(-3),
            OrderingValue::Float(1.5),
            OrderingValue::Text("a".into()),
            OrderingValue::Decimal(-1, DECIMAL_SCALE),
            OrderingValue::Several(vec![OrderingValue::Int(7), OrderingValue::Text("x".into())]),
        ];
        assert_eq!(values, expected);
        assert_eq!(found[6].0, "several");
    }

    #[test]
    fn garbage_and_unknown_versions_name_the_file() {
        let whole = content(&[("k", of_long(1))]);
        for cut in 0..whole.len() {
            let refused = read_deletes("x.log", &whole.slice(..cut)).unwrap_err().to_string();
            assert!(refused.contains("x.log"), "{refused}");
        }
        let refused = read_deletes("x.log", &Bytes::from_static(&[0, 0, 0, 2, 0, 0, 0, 0])).unwrap_err().to_string();
        assert!(refused.contains("version 2"), "{refused}");
    }
}
