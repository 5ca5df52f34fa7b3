// SPDX-License-Identifier: Apache-2.0
//! Sizes and time spans as a pipeline file writes them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A size, written `512MiB`, `1GiB`, `1000` (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Scalar", into = "String")]
pub struct ByteSize(pub u64);

/// A time span, written `90s`, `5m`, `1h`, `200ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Scalar", into = "String")]
pub struct Span(pub Duration);

#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Number(u64),
    Text(String),
}

const SIZES: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || format!("`{text}` is not a size: write it as 512MiB, 1GiB or a number of bytes");
        let trimmed = text.trim();
        let (digits, factor) = SIZES
            .iter()
            .find_map(|(unit, factor)| trimmed.strip_suffix(unit).map(|digits| (digits.trim_end(), *factor)))
            .unwrap_or((trimmed, 1));
        let number: u64 = digits.parse().map_err(|_| refuse())?;
        number.checked_mul(factor).map(ByteSize).ok_or_else(refuse)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = SIZES.iter().take(4).find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match binary {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}B", self.0),
        }
    }
}

const SPANS: [(&str, u64); 4] = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || format!("`{text}` is not a time span: write it as 200ms, 90s, 5m or 1h");
        let trimmed = text.trim();
        let (digits, factor) = SPANS
            .iter()
            .find_map(|(unit, factor)| trimmed.strip_suffix(unit).map(|digits| (digits.trim_end(), *factor)))
            .ok_or_else(refuse)?;
        let number: u64 = digits.parse().map_err(|_| refuse())?;
        number.checked_mul(factor).map(|millis| Span(Duration::from_millis(millis))).ok_or_else(refuse)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis() as u64;
        let whole = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)]
            .into_iter()
            .find(|(_, factor)| millis >= *factor && millis.is_multiple_of(*factor));
        match whole {
            Some((unit, factor)) => write!(f, "{}{unit}", millis / factor),
            None => write!(f, "{millis}ms"),
        }
    }
}

impl TryFrom<Scalar> for ByteSize {
    type Error = String;

    fn try_from(scalar: Scalar) -> Result<Self, Self::Error> {
        match scalar {
            Scalar::Number(bytes) => Ok(ByteSize(bytes)),
            Scalar::Text(text) => text.parse(),
        }
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

impl TryFrom<Scalar> for Span {
    type Error = String;

    fn try_from(scalar: Scalar) -> Result<Self, Self::Error> {
        match scalar {
            Scalar::Number(number) => Err(format!("a time span of {number} has no unit: write 200ms, 90s, 5m or 1h")),
            Scalar::Text(text) => text.parse(),
        }
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}
