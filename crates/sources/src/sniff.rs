// SPDX-License-Identifier: Apache-2.0
//! Types of columns from the values in a sample. Nothing that a value says may be lost in its type.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, TimeUnit};

use crate::cells::{Formats, integer};
use crate::csv::{CsvFormat, CsvSample};

/// Significant digits that a double always gives back.
const EXACT_DIGITS: usize = 15;
/// Digits of a decimal.
const DECIMAL_DIGITS: usize = 38;

/// What numbers of a column need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// Digits before the point at most, and after it.
    whole: usize,
    scale: usize,
    /// Some have a fraction or an exponent.
    fractions: bool,
    /// Some are integers that 64 bits do not hold.
    wide: bool,
    /// Some have more digits than a double gives back.
    fine: bool,
    /// Some are written with an exponent.
    exponents: bool,
}

impl Numbers {
    /// Takes a number in; `false`: it is none.
    pub(crate) fn add(&mut self, text: &[u8]) -> bool {
        let (mantissa, exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        let digits = mantissa.strip_prefix(b"-").or_else(|| mantissa.strip_prefix(b"+")).unwrap_or(mantissa);
        let (whole, fraction) = match digits.iter().position(|byte| *byte == b'.') {
            Some(at) => (&digits[..at], &digits[at + 1..]),
            None => (digits, &b""[..]),
        };
        let all_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
        if whole.len() + fraction.len() == 0 || !all_digits(whole) || !all_digits(fraction) {
            return false;
        }
        if exponent.is_some_and(|exponent| integer(exponent).is_none()) {
            return false;
        }
        let whole_digits = whole.iter().skip_while(|digit| **digit == b'0').count();
        let significant = if whole_digits > 0 {
            whole_digits + fraction.len()
        } else {
            fraction.iter().skip_while(|digit| **digit == b'0').count()
        };
        self.whole = self.whole.max(whole_digits);
        self.scale = self.scale.max(fraction.len());
        self.exponents |= exponent.is_some();
        self.fractions |= exponent.is_some() || digits.contains(&b'.');
        self.wide |= exponent.is_none() && !digits.contains(&b'.') && integer(text).is_none();
        self.fine |= significant > EXACT_DIGITS;
        true
    }

    pub(crate) fn merge(&mut self, other: &Numbers) {
        self.whole = self.whole.max(other.whole);
        self.scale = self.scale.max(other.scale);
        self.fractions |= other.fractions;
        self.wide |= other.wide;
        self.fine |= other.fine;
        self.exponents |= other.exponents;
    }

    /// The narrowest type that holds them all exactly; where there is none, text.
    pub(crate) fn data_type(&self) -> DataType {
        if !self.fractions && !self.wide {
            return DataType::Int64;
        }
        if !self.fine && !self.wide {
            return DataType::Float64;
        }
        if self.exponents || self.whole + self.scale > DECIMAL_DIGITS {
            return DataType::Utf8;
        }
        DataType::Decimal128(DECIMAL_DIGITS as u8, self.scale as i8)
    }
}

/// What the values of a column of text could be.
#[derive(Debug, Clone)]
struct Guess {
    any: bool,
    numbers: Option<Numbers>,
    booleans: bool,
    dates: bool,
    times: bool,
}

impl Guess {
    fn new() -> Self {
        Guess { any: false, numbers: Some(Numbers::default()), booleans: true, dates: true, times: true }
    }

    fn add(&mut self, text: &[u8], formats: &Formats) {
        self.any = true;
        // A number that begins with zeros is a name, such as a postal code: as a number it would lose them.
        let padded = text.len() > 1 && text[0] == b'0' && text[1].is_ascii_digit();
        if padded || !self.numbers.as_mut().is_some_and(|numbers| numbers.add(text)) {
            self.numbers = None;
        }
        self.booleans &= text.eq_ignore_ascii_case(b"true") || text.eq_ignore_ascii_case(b"false");
        self.dates = self.dates && formats.is_date(text);
        self.times = self.times && formats.is_time(text);
    }

    fn data_type(&self) -> DataType {
        match &self.numbers {
            _ if !self.any => DataType::Utf8,
            Some(numbers) => numbers.data_type(),
            None if self.booleans => DataType::Boolean,
            None if self.dates => DataType::Date32,
            None if self.times => time_type(),
            None => DataType::Utf8,
        }
    }
}

/// Timestamps of inferred columns.
pub(crate) fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::from("UTC")))
}

/// The columns of some samples, by name and whatever their case, in the order in which they appear.
pub(crate) fn csv_columns(format: &CsvFormat, samples: &[CsvSample]) -> Vec<Field> {
    let mut columns: Vec<(String, Guess)> = Vec::new();
    for sample in samples {
        let places: Vec<usize> = sample
            .names
            .iter()
            .map(|name| {
                let lower = name.to_lowercase();
                let known = columns.iter().position(|(known, _)| known.to_lowercase() == lower);
                known.unwrap_or_else(|| {
                    columns.push((name.clone(), Guess::new()));
                    columns.len() - 1
                })
            })
            .collect();
        for row in &sample.rows {
            for (place, value) in places.iter().zip(row) {
                // An empty quoted field says nothing about a type.
                if let Some(text) = value.as_ref().filter(|text| !text.is_empty()) {
                    columns[*place].1.add(text, &format.formats);
                }
            }
        }
    }
    let data_type = |guess: &Guess| if format.infer { guess.data_type() } else { DataType::Utf8 };
    columns.iter().map(|(name, guess)| Field::new(name, data_type(guess), true)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(texts: &[&str]) -> DataType {
        let mut numbers = Numbers::default();
        assert!(texts.iter().all(|text| numbers.add(text.as_bytes())), "{texts:?}");
        numbers.data_type()
    }

    #[test]
    fn numbers_get_the_narrowest_type_that_keeps_every_digit() {
        assert_eq!(numbers(&["1", "-9223372036854775808"]), DataType::Int64);
        assert_eq!(numbers(&["1", "1.5", "1e300"]), DataType::Float64);
        assert_eq!(numbers(&["9223372036854775808"]), DataType::Decimal128(38, 0));
        assert_eq!(numbers(&["1234567890123456.78", "1"]), DataType::Decimal128(38, 2));
        assert_eq!(numbers(&["9007199254740993", "0.5"]), DataType::Decimal128(38, 1), "no double holds the first");
        assert_eq!(numbers(&[&"9".repeat(39)]), DataType::Utf8);
        assert_eq!(numbers(&["1e5", "12345678901234567"]), DataType::Utf8);
        for text in ["", "-", "1.2.3", "1e", "x", "1_000", "NaN"] {
            assert!(!Numbers::default().add(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn columns_of_text_get_types_and_codes_with_leading_zeros_stay_text() {
        let format = CsvFormat::new(&tributary_types::pipeline::CsvOptions::default()).unwrap();
        let row = |values: [&str; 7]| values.iter().map(|v| (*v != "-").then(|| v.as_bytes().to_vec())).collect();
        let names = ["n", "zip", "b", "d", "t", "s", "null"].map(str::to_string).to_vec();
        let sample = CsvSample {
            names,
            rows: vec![
                row(["1", "00123", "true", "2025-01-01", "2025-01-01T10:00:00Z", "x", "-"]),
                row(["-", "1", "FALSE", "", "2025-01-01", "1", "-"]),
            ],
        };
        let found = csv_columns(&format, std::slice::from_ref(&sample));
        let types: Vec<&DataType> = found.iter().map(|field| field.data_type()).collect();
        let expected = [
            DataType::Int64,
            DataType::Utf8,
            DataType::Boolean,
            DataType::Date32,
            time_type(),
            DataType::Utf8,
            DataType::Utf8,
        ];
        assert_eq!(types, expected.iter().collect::<Vec<_>>());
        let without = CsvFormat { infer: false, ..format };
        assert!(csv_columns(&without, &[sample]).iter().all(|field| field.data_type() == &DataType::Utf8));
    }
}
