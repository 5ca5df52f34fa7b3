// SPDX-License-Identifier: Apache-2.0
//! Cursors that are set by hand, each once.
//!
//! An override is applied by one commit, which keeps its token; every later commit carries the token on. Whoever sends
//! the same override again, as a flag that stays in the arguments of a pod does, therefore changes nothing.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::cursor::Cursor;
use crate::instant::InstantTime;
use crate::names::SourceName;

/// How Hudi Streamer writes a requested time that a job is to resume from.
const RESUME_REQUESTED: &str = "resumeFromInstantRequestTime:";
/// The same for a completion time.
const RESUME_COMPLETED: &str = "resumeFromInstantCompletionTime:";
/// Characters that a token may have.
const LONGEST_TOKEN: usize = 128;

/// One source's cursor, set by hand: `orders=requested:20250606182826197`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The source; `None` is the only source of a pipeline.
    pub source: Option<SourceName>,
    /// Where its next window begins.
    pub to: OverrideTo,
    /// What tells it from one that was applied before; `None`: its own text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Where an override sets a cursor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum OverrideTo {
    /// After this cursor.
    Cursor(Cursor),
    /// After this instant, in the clock that the source's cursor has; of a source without one, the completion time.
    Bare(InstantTime),
    /// At the newest commit, which is delivered.
    Latest,
    /// At the first commit.
    Earliest,
    /// At the whole table.
    Snapshot,
    /// Where the pipeline's `start` says.
    Start,
}

/// Why a text is no override.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverrideError {
    /// The part before `=` names no source.
    #[error("`{text}` is no override: {detail}")]
    Source {
        /// The refused text.
        text: String,
        /// What is wrong.
        detail: String,
    },
    /// The part after it is no place.
    #[error(
        "`{text}` is no place to set a cursor to: expected `requested:<instant>`, `completed:<instant>`, \
         `file:<position>`, `offsets:<topic>,<partition>:<next offset>,…`, `latest`, `earliest`, `snapshot`, `start`, or an instant alone for a pipeline of one source"
    )]
    Place {
        /// The refused text.
        text: String,
    },
    /// The token is too long, or would not be told from other text.
    #[error("`{token}` is no token: 1 to {LONGEST_TOKEN} letters, digits, `_`, `-`, `.` and `:`")]
    Token {
        /// The refused text.
        token: String,
    },
}

impl Override {
    /// The text under which commits remember that it was applied to `source`.
    pub fn key(&self, source: &SourceName) -> String {
        match &self.token {
            Some(token) => format!("{token}/{source}={}", self.to),
            None => format!("{source}={}", self.to),
        }
    }

    /// The same with a token, which makes it another one.
    pub fn with_token(mut self, token: &str) -> Result<Self, OverrideError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        if token.is_empty() || token.len() > LONGEST_TOKEN || !token.chars().all(plain) {
            return Err(OverrideError::Token { token: token.to_string() });
        }
        self.token = Some(token.to_string());
        Ok(self)
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{source}={}", self.to),
            None => self.to.fmt(f),
        }
    }
}

impl FromStr for Override {
    type Err = OverrideError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((source, to)) = text.split_once('=') else {
            return Ok(Override { source: None, to: text.parse()?, token: None });
        };
        let source = SourceName::new(source)
            .map_err(|e| OverrideError::Source { text: text.to_string(), detail: e.to_string() })?;
        Ok(Override { source: Some(source), to: to.parse()?, token: None })
    }
}

impl fmt::Display for OverrideTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverrideTo::Cursor(cursor) => cursor.fmt(f),
            OverrideTo::Bare(instant) => instant.fmt(f),
            OverrideTo::Latest => f.write_str("latest"),
            OverrideTo::Earliest => f.write_str("earliest"),
            OverrideTo::Snapshot => f.write_str("snapshot"),
            OverrideTo::Start => f.write_str("start"),
        }
    }
}

impl FromStr for OverrideTo {
    type Err = OverrideError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || OverrideError::Place { text: text.to_string() };
        match text {
            "latest" => return Ok(OverrideTo::Latest),
            "earliest" => return Ok(OverrideTo::Earliest),
            "snapshot" => return Ok(OverrideTo::Snapshot),
            "start" => return Ok(OverrideTo::Start),
            _ => {}
        }
        if let Some(cursor) = resume_form(text) {
            return cursor.map(OverrideTo::Cursor).ok_or_else(refuse);
        }
        match text.parse::<InstantTime>() {
            Ok(instant) => Ok(OverrideTo::Bare(instant)),
            Err(_) => text.parse().map(OverrideTo::Cursor).map_err(|_| refuse()),
        }
    }
}

/// A cursor in the form of Hudi Streamer's `--checkpoint`; the inner `None`: it begins like one and is none.
pub(crate) fn resume_form(text: &str) -> Option<Option<Cursor>> {
    let instant = |rest: &str| rest.trim().parse::<InstantTime>().ok();
    let requested = text.strip_prefix(RESUME_REQUESTED).map(|rest| instant(rest).map(Cursor::Requested));
    requested.or_else(|| text.strip_prefix(RESUME_COMPLETED).map(|rest| instant(rest).map(Cursor::Completed)))
}

impl TryFrom<String> for OverrideTo {
    type Error = OverrideError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<OverrideTo> for String {
    fn from(to: OverrideTo) -> Self {
        to.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "20250606182826197";

    #[test]
    fn an_override_reads_back_what_it_prints() {
        for text in [
            format!("orders=requested:{AT}"),
            format!("db.users=completed:{AT}"),
            "clicks=file:name:-:dt=2025/a.csv".to_string(),
            "orders=start".to_string(),
            "orders=snapshot".to_string(),
            AT.to_string(),
            format!("completed:{AT}"),
            "latest".to_string(),
        ] {
            assert_eq!(text.parse::<Override>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_forms_of_hudi_streamer_are_taken_as_typed_cursors() {
        let requested: Override = format!("o=resumeFromInstantRequestTime: {AT}").parse().unwrap();
        assert_eq!(requested.to_string(), format!("o=requested:{AT}"));
        let completed: Override = format!("resumeFromInstantCompletionTime:{AT}").parse().unwrap();
        assert_eq!(completed.to.to_string(), format!("completed:{AT}"));
        assert!("o=resumeFromInstantRequestTime:x".parse::<Override>().is_err());
    }

    #[test]
    fn what_is_no_place_is_refused_with_what_would_be_one() {
        for bad in ["orders=", "orders=2025", "orders=newest", "orders=completed:2025", "=start", "a b=start", ""] {
            let refused = bad.parse::<Override>().unwrap_err().to_string();
            assert!(refused.contains("requested:<instant>") || refused.contains("no override"), "{bad}: {refused}");
        }
    }

    #[test]
    fn a_token_makes_the_same_override_another_one_and_the_bare_form_is_the_named_one() {
        let orders = SourceName::new("orders").unwrap();
        let named: Override = "orders=start".parse().unwrap();
        let bare: Override = "start".parse().unwrap();
        assert_eq!(named.key(&orders), bare.key(&orders));
        let again = named.clone().with_token("2026-12-01").unwrap();
        assert_eq!(again.key(&orders), "2026-12-01/orders=start");
        for bad in ["", "a/b", "a=b", &"x".repeat(129)] {
            assert!(named.clone().with_token(bad).is_err(), "{bad}");
        }
    }
}
