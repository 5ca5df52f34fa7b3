// SPDX-License-Identifier: Apache-2.0
//! Instant times of a Hudi timeline.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, LocalResult, NaiveDate, NaiveDateTime, TimeZone, Utc};
use serde::{Deserialize, Serialize};

/// A time on a Hudi timeline, written `yyyyMMddHHmmssSSS` (17 digits) or `yyyyMMddHHmmss` (14 digits).
///
/// The text has no zone of its own: the table's property `hoodie.table.timeline.timezone` gives it (see [`Zone`]).
/// Order is the order of the text, which is how Hudi itself compares instants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InstantTime(String);

/// Why a text is not an instant time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an instant time: expected 14 or 17 digits, yyyyMMddHHmmss[SSS]")]
pub struct InstantError {
    /// The refused text.
    pub text: String,
}

impl InstantTime {
    /// The instant before every other one: the cursor of a table that had no commit yet.
    pub fn init() -> Self {
        InstantTime("00000000000000".to_string())
    }

    /// The text as it stands in file names.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is [`InstantTime::init`], in either length.
    pub fn is_init(&self) -> bool {
        self.0.bytes().all(|b| b == b'0')
    }

    /// Milliseconds since the epoch (UTC), reading the digits in `zone`. `None` for [`InstantTime::init`] and for
    /// digits that are no calendar time, such as the reserved instants of a metadata table.
    pub fn epoch_millis(&self, zone: Zone) -> Option<i64> {
        let naive = self.naive()?;
        match zone {
            Zone::Utc => Some(naive.and_utc().timestamp_millis()),
            Zone::Local => match chrono::Local.from_local_datetime(&naive) {
                LocalResult::Single(at) => Some(at.timestamp_millis()),
                // An hour that happens twice: the earlier reading never calls a commit younger than it is.
                LocalResult::Ambiguous(first, _) => Some(first.timestamp_millis()),
                LocalResult::None => Some(naive.and_utc().timestamp_millis()),
            },
        }
    }

    /// The 17-digit instant of `millis` since the epoch, written in `zone`.
    pub fn from_epoch_millis(millis: i64, zone: Zone) -> Self {
        let at: DateTime<Utc> = DateTime::from_timestamp_millis(millis).unwrap_or(DateTime::UNIX_EPOCH);
        let text = match zone {
            Zone::Utc => at.format("%Y%m%d%H%M%S%3f").to_string(),
            Zone::Local => at.with_timezone(&chrono::Local).format("%Y%m%d%H%M%S%3f").to_string(),
        };
        InstantTime(text)
    }

    /// The next 17-digit instant: one millisecond later by the digits, whatever their zone.
    pub fn successor(&self) -> Self {
        let Some(naive) = self.naive() else {
            // Reserved digits, such as all zeros, are no time; anything that is one comes after them.
            return InstantTime("19700101000000000".to_string());
        };
        let next = naive + chrono::Duration::milliseconds(1);
        InstantTime(next.format("%Y%m%d%H%M%S%3f").to_string())
    }

    fn naive(&self) -> Option<NaiveDateTime> {
        let text = self.0.as_str();
        let number = |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<u32>().ok());
        let date = NaiveDate::from_ymd_opt(number(0..4)? as i32, number(4..6)?, number(6..8)?)?;
        let millis = if text.len() == 17 { number(14..17)? } else { 0 };
        date.and_hms_milli_opt(number(8..10)?, number(10..12)?, number(12..14)?, millis)
    }
}

impl FromStr for InstantTime {
    type Err = InstantError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        if digits && (text.len() == 14 || text.len() == 17) {
            return Ok(InstantTime(text.to_string()));
        }
        Err(InstantError { text: text.to_string() })
    }
}

impl TryFrom<String> for InstantTime {
    type Error = InstantError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<InstantTime> for String {
    fn from(instant: InstantTime) -> Self {
        instant.0
    }
}

impl fmt::Display for InstantTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The zone a table writes its instants in: `hoodie.table.timeline.timezone`, `LOCAL` where the property is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Zone {
    /// The zone of the machine that writes (and must then be the zone of the machine that reads).
    Local,
    /// Coordinated universal time.
    Utc,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fourteen_or_seventeen_digits_are_an_instant() {
        assert!("20250606182826197".parse::<InstantTime>().is_ok());
        assert!("20250606182826".parse::<InstantTime>().is_ok());
        for bad in ["", "2025", "2025060618282619x", "202506061828261", " 20250606182826197"] {
            assert_eq!(bad.parse::<InstantTime>(), Err(InstantError { text: bad.to_string() }));
        }
    }

    #[test]
    fn utc_digits_round_trip_through_epoch_millis() {
        let instant: InstantTime = "20250606182826197".parse().unwrap();
        let millis = instant.epoch_millis(Zone::Utc).unwrap();
        assert_eq!(millis, 1_749_234_506_197);
        assert_eq!(InstantTime::from_epoch_millis(millis, Zone::Utc), instant);
    }

    #[test]
    fn a_successor_is_later_and_carries_over() {
        let last: InstantTime = "20251231235959999".parse().unwrap();
        assert_eq!(last.successor().as_str(), "20260101000000000");
        let short: InstantTime = "20251231235959".parse().unwrap();
        assert!(short.successor() > short);
        assert!(InstantTime::init().successor() > InstantTime::init());
    }

    #[test]
    fn the_init_instant_has_no_calendar_time() {
        assert!(InstantTime::init().is_init());
        assert_eq!(InstantTime::init().epoch_millis(Zone::Utc), None);
    }
}
