// SPDX-License-Identifier: Apache-2.0
//! Where a source starts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cursor::Cursor;
use crate::instant::InstantTime;
use crate::overrides::resume_form;

/// Where a source starts when the target knows no cursor of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Start {
    /// Deliver the newest commit and nothing before it.
    Latest,
    /// Deliver every commit that is still on the timeline, and refuse if any is not.
    Earliest,
    /// Deliver the whole table.
    Snapshot,
    /// Deliver what came after this cursor.
    At(Cursor),
    /// Deliver the messages of a topic from this time on, milliseconds since the epoch.
    Timestamp(i64),
    /// Go on from the cursor that an earlier commit of the target has of it, from before it was left out.
    Resume,
    /// Refuse: a cursor must exist.
    Fail,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Start::Latest => f.write_str("latest"),
            Start::Earliest => f.write_str("earliest"),
            Start::Snapshot => f.write_str("snapshot"),
            Start::At(cursor) => cursor.fmt(f),
            Start::Timestamp(millis) => write!(f, "timestamp:{millis}"),
            Start::Resume => f.write_str("resume"),
            Start::Fail => f.write_str("fail"),
        }
    }
}

impl TryFrom<String> for Start {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            // In capitals: what Hudi Streamer calls them.
            "latest" | "READ_LATEST" => Ok(Start::Latest),
            "earliest" => Ok(Start::Earliest),
            "snapshot" | "READ_UPTO_LATEST_COMMIT" => Ok(Start::Snapshot),
            "resume" => Ok(Start::Resume),
            "fail" => Ok(Start::Fail),
            timestamp if timestamp.starts_with("timestamp:") => read_timestamp(timestamp).map(Start::Timestamp),
            other => cursor_of(other).map(Start::At).ok_or_else(|| {
                format!(
                    "`start = \"{other}\"` is none of latest, earliest, snapshot, resume, fail, an instant, \
                     `completed:<instant>`, `requested:<instant>`, `file:<position>`, \
                     `offsets:<topic>,<partition>:<next offset>,…` or `timestamp:<time>`"
                )
            }),
        }
    }
}

/// `timestamp:` and a time of RFC 3339, or milliseconds since the epoch. Seconds are refused rather than taken for
/// milliseconds.
fn read_timestamp(text: &str) -> Result<i64, String> {
    let time = text.trim_start_matches("timestamp:");
    let digits = time.len() >= MILLIS_DIGITS && time.bytes().all(|byte| byte.is_ascii_digit());
    let found = match digits {
        true => time.parse().ok(),
        false => chrono::DateTime::parse_from_rfc3339(time).ok().map(|time| time.timestamp_millis()),
    };
    found.ok_or_else(|| {
        format!(
            "`start = \"{text}\"` is no time: write it as 2025-01-31T10:00:00Z, or in milliseconds since the epoch, at \
             least {MILLIS_DIGITS} digits"
        )
    })
}

/// Digits of a time in milliseconds at least: those of 1973 and later, and of no time in seconds.
const MILLIS_DIGITS: usize = 12;

impl From<Start> for String {
    fn from(start: Start) -> Self {
        start.to_string()
    }
}

/// A bare instant is a completion time, the clock of all table versions but 6.
fn cursor_of(text: &str) -> Option<Cursor> {
    if let Some(cursor) = resume_form(text) {
        return cursor;
    }
    text.parse::<InstantTime>().map(Cursor::Completed).ok().or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_a_policy_or_a_cursor() {
        let read = |text: &str| Start::try_from(text.to_string());
        assert_eq!(read("20250606182826197").unwrap().to_string(), "completed:20250606182826197");
        assert!(read("newest").unwrap_err().contains("none of latest"));
        for text in ["latest", "earliest", "snapshot", "resume", "fail", "requested:20250606182826197"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_start_of_a_topic_is_a_time_with_a_zone_or_in_milliseconds() {
        let read = |text: &str| Start::try_from(text.to_string());
        for time in ["timestamp:2025-01-31T11:00:00+01:00", "timestamp:1738317600000"] {
            assert_eq!(read(time).unwrap(), Start::Timestamp(1_738_317_600_000), "{time}");
        }
        assert!(read("timestamp:1738317600").unwrap_err().contains("milliseconds"));
    }

    #[test]
    fn the_names_that_hudi_streamer_has_for_a_start_are_taken() {
        let read = |text: &str| Start::try_from(text.to_string()).unwrap();
        assert_eq!(read("READ_LATEST"), Start::Latest);
        assert_eq!(read("READ_UPTO_LATEST_COMMIT"), Start::Snapshot);
        let requested = read("resumeFromInstantRequestTime:20250606182826197");
        assert_eq!(requested.to_string(), "requested:20250606182826197");
    }
}
