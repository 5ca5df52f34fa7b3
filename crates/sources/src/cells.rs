// SPDX-License-Identifier: Apache-2.0
//! Values that text says: numbers, dates, times, and columns of them.

use std::sync::Arc;

use arrow::array::builder::NullBufferBuilder;
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, BooleanBufferBuilder, Date32Array, Decimal128Array, Float32Array,
    Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, new_null_array,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, TimeUnit};

use crate::pattern::{Moment, Pattern, read_iso_date, read_iso_time};
use crate::spark_time::{read_date, read_time};

/// What a text stands for that is a type of column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Float32,
    Float64,
    /// Precision and scale.
    Decimal(u8, i8),
    Date,
    /// Milliseconds instead of microseconds, and the zone.
    Time(bool, Option<Arc<str>>),
    Text,
    Binary,
}

impl Kind {
    /// The kind of a type; `None` for one that no text stands for.
    pub(crate) fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Boolean => Kind::Bool,
            DataType::Int8 => Kind::Int8,
            DataType::Int16 => Kind::Int16,
            DataType::Int32 => Kind::Int32,
            DataType::Int64 => Kind::Int64,
            DataType::Float32 => Kind::Float32,
            DataType::Float64 => Kind::Float64,
            DataType::Decimal128(precision, scale) => Kind::Decimal(*precision, *scale),
            DataType::Date32 => Kind::Date,
            DataType::Timestamp(TimeUnit::Microsecond, zone) => Kind::Time(false, zone.clone()),
            DataType::Timestamp(TimeUnit::Millisecond, zone) => Kind::Time(true, zone.clone()),
            DataType::Utf8 => Kind::Text,
            DataType::Binary => Kind::Binary,
            _ => return None,
        })
    }

    /// What a value of it is called in messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::Bool => "a boolean",
            Kind::Int8 | Kind::Int16 | Kind::Int32 | Kind::Int64 => "an integer of its type",
            Kind::Float32 | Kind::Float64 => "a number",
            Kind::Decimal(..) => "a decimal of its type",
            Kind::Date => "a date",
            Kind::Time(..) => "a timestamp",
            Kind::Text => "text in UTF-8",
            Kind::Binary => "bytes",
        }
    }
}

/// How values are written.
#[derive(Debug, Clone)]
pub(crate) struct Formats {
    pub(crate) nan: String,
    pub(crate) positive_inf: String,
    pub(crate) negative_inf: String,
    pub(crate) date: Option<Pattern>,
    pub(crate) timestamp: Option<Pattern>,
    /// Numbers, and dates and times without a pattern, are read in every form that Spark reads.
    pub(crate) lenient: bool,
}

impl Formats {
    pub(crate) fn date(&self, text: &[u8]) -> Option<i32> {
        match &self.date {
            None if self.lenient => read_date(text),
            None => read_iso_date(text),
            Some(pattern) => pattern.read(text).map(|moment| moment.days()),
        }
    }

    pub(crate) fn moment(&self, text: &[u8]) -> Option<Moment> {
        match &self.timestamp {
            None if self.lenient => read_time(text).or_else(|| read_iso_time(text)),
            None => read_iso_time(text),
            Some(pattern) => pattern.read(text),
        }
    }

    /// Whether a text is a date, as types are inferred: a lenient reader would find one in every number and time.
    pub(crate) fn is_date(&self, text: &[u8]) -> bool {
        match &self.date {
            None => read_iso_date(text).is_some(),
            Some(pattern) => pattern.read(text).is_some(),
        }
    }

    /// Whether a text is a time, as types are inferred.
    pub(crate) fn is_time(&self, text: &[u8]) -> bool {
        match &self.timestamp {
            None => read_iso_time(text).is_some(),
            Some(pattern) => pattern.read(text).is_some(),
        }
    }

    fn float(&self, text: &[u8]) -> Option<f64> {
        let text = std::str::from_utf8(text).ok()?;
        // The format's own words first: a mere dash may be one.
        if text == self.nan {
            return Some(f64::NAN);
        }
        if text == self.positive_inf {
            return Some(f64::INFINITY);
        }
        if text == self.negative_inf {
            return Some(f64::NEG_INFINITY);
        }
        if self.lenient {
            return java_float(text);
        }
        // The words that Rust knows are numbers only where the format says so.
        let numeric = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E');
        text.bytes().all(numeric).then(|| text.parse().ok()).flatten()
    }
}

/// A number as Java's `parseDouble` reads it: with white space around it, a letter of its type behind it, and words.
/// Hexadecimal ones, which it reads as well, are none here.
fn java_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(|c: char| c <= ' ');
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let value = match rest {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        _ => {
            let number = rest.strip_suffix(['d', 'D', 'f', 'F']).unwrap_or(rest);
            let first = number.as_bytes().first()?;
            let numeric = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E');
            if !(first.is_ascii_digit() || *first == b'.') || !number.bytes().all(numeric) {
                return None;
            }
            number.parse().ok()?
        }
    };
    Some(if negative { -value } else { value })
}

fn boolean(text: &[u8]) -> Option<bool> {
    if text.eq_ignore_ascii_case(b"true") {
        return Some(true);
    }
    text.eq_ignore_ascii_case(b"false").then_some(false)
}

/// An integer in decimal digits, with a sign or without.
#[inline]
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    if digits.len() <= 18 {
        let mut value = 0i64;
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + i64::from(digit);
        }
        return Some(if negative { -value } else { value });
    }
    let mut value = 0i128;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 || value > i128::from(u64::MAX) {
            return None;
        }
        value = value * 10 + i128::from(digit);
    }
    i64::try_from(if negative { -value } else { value }).ok()
}

/// A number as a decimal of a scale, where nothing of it is lost.
pub(crate) fn decimal(text: &[u8], precision: u8, scale: i8) -> Option<i128> {
    let (mantissa, exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&text[..at], integer(&text[at + 1..])?),
        None => (text, 0),
    };
    let (negative, digits) = match mantissa.first()? {
        b'-' => (true, &mantissa[1..]),
        b'+' => (false, &mantissa[1..]),
        _ => (false, mantissa),
    };
    let mut value = 0i128;
    let mut found = false;
    let mut fraction: Option<i64> = None;
    for byte in digits {
        match byte {
            b'.' if fraction.is_none() => fraction = Some(0),
            b'0'..=b'9' => {
                found = true;
                if let Some(places) = &mut fraction {
                    *places += 1;
                }
                value = value.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
            }
            _ => return None,
        }
    }
    if !found {
        return None;
    }
    let mut shift = i64::from(scale) - fraction.unwrap_or(0) + exponent;
    while shift > 0 && value != 0 {
        value = value.checked_mul(10)?;
        shift -= 1;
    }
    while shift < 0 && value != 0 {
        if value % 10 != 0 {
            return None;
        }
        value /= 10;
        shift += 1;
    }
    let limit = 10i128.checked_pow(u32::from(precision))?;
    (value < limit).then_some(if negative { -value } else { value })
}

/// A field of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cell<'a> {
    Null,
    Text(&'a [u8]),
}

/// Makes a column of cells. `bad` hears of each row whose cell is none of the kind: it is null then.
pub(crate) fn column<'a>(
    kind: &Kind,
    rows: usize,
    cells: impl Iterator<Item = Cell<'a>>,
    formats: &Formats,
    mut bad: impl FnMut(usize),
) -> ArrayRef {
    let bad = &mut bad;
    match kind {
        Kind::Int64 => {
            let (values, nulls) = fill(rows, cells, integer, bad);
            Arc::new(Int64Array::new(values, nulls))
        }
        Kind::Int32 => {
            let (values, nulls) = fill(rows, cells, |text| integer(text)?.try_into().ok(), bad);
            Arc::new(Int32Array::new(values, nulls))
        }
        Kind::Int16 => {
            let (values, nulls) = fill(rows, cells, |text| integer(text)?.try_into().ok(), bad);
            Arc::new(Int16Array::new(values, nulls))
        }
        Kind::Int8 => {
            let (values, nulls) = fill(rows, cells, |text| integer(text)?.try_into().ok(), bad);
            Arc::new(Int8Array::new(values, nulls))
        }
        Kind::Float64 => {
            let (values, nulls) = fill(rows, cells, |text| formats.float(text), bad);
            Arc::new(Float64Array::new(values, nulls))
        }
        Kind::Float32 => {
            let (values, nulls) = fill(rows, cells, |text| formats.float(text).map(|value| value as f32), bad);
            Arc::new(Float32Array::new(values, nulls))
        }
        Kind::Decimal(precision, scale) => {
            let (values, nulls) = fill(rows, cells, |text| decimal(text, *precision, *scale), bad);
            let column = Decimal128Array::new(values, nulls).with_precision_and_scale(*precision, *scale);
            Arc::new(column.expect("a schema's decimal has a precision and a scale that Arrow knows"))
        }
        Kind::Date => {
            let (values, nulls) = fill(rows, cells, |text| formats.date(text), bad);
            Arc::new(Date32Array::new(values, nulls))
        }
        Kind::Time(false, zone) => {
            let (values, nulls) = fill(rows, cells, |text| formats.moment(text).map(|m| m.micros()), bad);
            Arc::new(TimestampMicrosecondArray::new(values, nulls).with_timezone_opt(zone.clone()))
        }
        Kind::Time(true, zone) => {
            let millis = |text: &[u8]| formats.moment(text).map(|m| m.micros().div_euclid(1000));
            let (values, nulls) = fill(rows, cells, millis, bad);
            Arc::new(TimestampMillisecondArray::new(values, nulls).with_timezone_opt(zone.clone()))
        }
        Kind::Bool => booleans(rows, cells, bad),
        Kind::Text => texts(rows, cells, bad),
        Kind::Binary => {
            let (offsets, bytes, nulls) = bytes_of(rows, cells);
            Arc::new(BinaryArray::new(offsets, Buffer::from_vec(bytes), nulls))
        }
    }
}

/// Only looks whether the cells are of the kind.
pub(crate) fn check<'a>(
    kind: &Kind,
    cells: impl Iterator<Item = Cell<'a>>,
    formats: &Formats,
    mut bad: impl FnMut(usize),
) {
    for (row, cell) in cells.enumerate() {
        let Cell::Text(text) = cell else { continue };
        let good = match kind {
            Kind::Bool => boolean(text).is_some(),
            Kind::Int8 => integer(text).is_some_and(|value| i8::try_from(value).is_ok()),
            Kind::Int16 => integer(text).is_some_and(|value| i16::try_from(value).is_ok()),
            Kind::Int32 => integer(text).is_some_and(|value| i32::try_from(value).is_ok()),
            Kind::Int64 => integer(text).is_some(),
            Kind::Float32 | Kind::Float64 => formats.float(text).is_some(),
            Kind::Decimal(precision, scale) => decimal(text, *precision, *scale).is_some(),
            Kind::Date => formats.date(text).is_some(),
            Kind::Time(..) => formats.moment(text).is_some(),
            Kind::Text => std::str::from_utf8(text).is_ok(),
            Kind::Binary => true,
        };
        if !good {
            bad(row);
        }
    }
}

fn fill<'a, T: Default + arrow::datatypes::ArrowNativeType>(
    rows: usize,
    cells: impl Iterator<Item = Cell<'a>>,
    parse: impl Fn(&[u8]) -> Option<T>,
    bad: &mut impl FnMut(usize),
) -> (ScalarBuffer<T>, Option<arrow::buffer::NullBuffer>) {
    let mut values = Vec::with_capacity(rows);
    let mut nulls = NullBufferBuilder::new(rows);
    for (row, cell) in cells.enumerate() {
        let value = match cell {
            Cell::Null => None,
            Cell::Text(text) => {
                let value = parse(text);
                if value.is_none() {
                    bad(row);
                }
                value
            }
        };
        nulls.append(value.is_some());
        values.push(value.unwrap_or_default());
    }
    (ScalarBuffer::from(values), nulls.finish())
}

fn booleans<'a>(rows: usize, cells: impl Iterator<Item = Cell<'a>>, bad: &mut impl FnMut(usize)) -> ArrayRef {
    let mut values = BooleanBufferBuilder::new(rows);
    let mut nulls = NullBufferBuilder::new(rows);
    for (row, cell) in cells.enumerate() {
        let value = match cell {
            Cell::Null => None,
            Cell::Text(text) => {
                let value = boolean(text);
                if value.is_none() {
                    bad(row);
                }
                value
            }
        };
        nulls.append(value.is_some());
        values.append(value.unwrap_or_default());
    }
    Arc::new(BooleanArray::new(values.finish(), nulls.finish()))
}

fn bytes_of<'a>(
    rows: usize,
    cells: impl Iterator<Item = Cell<'a>>,
) -> (OffsetBuffer<i32>, Vec<u8>, Option<arrow::buffer::NullBuffer>) {
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0i32);
    let mut bytes: Vec<u8> = Vec::with_capacity(rows * 16);
    let mut nulls = NullBufferBuilder::new(rows);
    for cell in cells {
        match cell {
            Cell::Null => nulls.append_null(),
            Cell::Text(text) => {
                bytes.extend_from_slice(text);
                nulls.append_non_null();
            }
        }
        // A batch has far fewer bytes, see `BATCH_BYTES`.
        offsets.push(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    }
    (OffsetBuffer::new(ScalarBuffer::from(offsets)), bytes, nulls.finish())
}

/// The bytes of a whole column are looked at once; only where something is wrong, cell by cell.
fn texts<'a>(rows: usize, cells: impl Iterator<Item = Cell<'a>>, bad: &mut impl FnMut(usize)) -> ArrayRef {
    let (offsets, bytes, nulls) = bytes_of(rows, cells);
    let buffer = Buffer::from_vec(bytes);
    if let Ok(column) = StringArray::try_new(offsets.clone(), buffer.clone(), nulls.clone()) {
        return Arc::new(column);
    }
    let parts = offsets.windows(2).enumerate().map(|(row, ends)| {
        let valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
        let text = std::str::from_utf8(&buffer[ends[0] as usize..ends[1] as usize]);
        if valid && text.is_err() {
            bad(row);
        }
        text.ok().filter(|_| valid)
    });
    Arc::new(StringArray::from_iter(parts))
}

/// A column without a value.
pub(crate) fn nothing(data_type: &DataType, rows: usize) -> ArrayRef {
    new_null_array(data_type, rows)
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;

    use super::*;

    fn formats() -> Formats {
        Formats {
            nan: "NaN".to_string(),
            positive_inf: "Inf".to_string(),
            negative_inf: "-Inf".to_string(),
            date: None,
            timestamp: None,
            lenient: false,
        }
    }

    #[test]
    fn integers_are_exact_to_the_last_and_refuse_what_does_not_fit() {
        for (text, value) in
            [("0", 0), ("-7", -7), ("+7", 7), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(integer(text.as_bytes()), Some(value), "{text}");
        }
        let zeros = format!("{}1", "0".repeat(40));
        assert_eq!(integer(zeros.as_bytes()), Some(1));
        for text in ["", "-", "1.0", " 1", "9223372036854775808", "99999999999999999999999999999999999999999999", "1_0"]
        {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn decimals_lose_no_digit() {
        for (text, value) in
            [("1.5", 150), ("-1.50", -150), ("1.500", 150), ("15e-1", 150), ("1E2", 10_000), (".5", 50)]
        {
            assert_eq!(decimal(text.as_bytes(), 10, 2), Some(value), "{text}");
        }
        for text in ["1.505", "", ".", "1.2.3", "100000000", "1e400", "x"] {
            assert_eq!(decimal(text.as_bytes(), 10, 2), None, "{text}");
        }
        assert_eq!(decimal("0e400".as_bytes(), 10, 2), Some(0));
        let most = "9".repeat(38);
        assert_eq!(decimal(most.as_bytes(), 38, 0), Some(10i128.pow(38) - 1));
    }

    #[test]
    fn words_are_numbers_only_where_the_format_says_so() {
        assert_eq!(formats().float(b"1e3"), Some(1000.0));
        assert_eq!(formats().float(b"-Inf"), Some(f64::NEG_INFINITY));
        assert!(formats().float(b"NaN").unwrap().is_nan());
        for text in ["nan", "inf", "infinity", "1d", "", "."] {
            assert_eq!(formats().float(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_lenient_format_reads_the_numbers_that_java_reads() {
        let lenient = Formats { lenient: true, ..formats() };
        for (text, value) in [
            (" 1.5", 1.5),
            ("1.5\t", 1.5),
            ("1d", 1.0),
            ("-2.F", -2.0),
            (".5", 0.5),
            ("+1e3", 1000.0),
            ("-Infinity", f64::NEG_INFINITY),
        ] {
            assert_eq!(lenient.float(text.as_bytes()), Some(value), "{text:?}");
        }
        assert!(lenient.float(b"NaN").unwrap().is_nan());
        for text in ["nan", "inf", "1dd", "", ".", "d", "--1", "+-1", "1 2", "0x1p3"] {
            assert_eq!(lenient.float(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_cell_that_is_no_text_is_null_and_named() {
        let cells = [Cell::Text(b"a"), Cell::Text(b"\xff"), Cell::Null, Cell::Text("ü".as_bytes())];
        let mut bad = Vec::new();
        let column = column(&Kind::Text, 4, cells.into_iter(), &formats(), |row| bad.push(row));
        assert_eq!((bad, column.null_count()), (vec![1], 2));
        // Half a character at the end of one cell and the other half in the next.
        let cells = [Cell::Text(b"\xc3"), Cell::Text(b"\xbc")];
        let mut bad = Vec::new();
        super::column(&Kind::Text, 2, cells.into_iter(), &formats(), |row| bad.push(row));
        assert_eq!(bad, [0, 1]);
    }
}
