// SPDX-License-Identifier: Apache-2.0
//! Cursors and the windows between them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::files::{FilePosition, FilePositionError};
use crate::instant::{InstantError, InstantTime, Zone};
use crate::offsets::{TopicOffsets, TopicOffsetsError};

/// How far a source has been read: for a table in the clock that its version orders commits by, for a directory of
/// files in the order of its files, for a topic by the offsets of its partitions.
///
/// Table version 6 has no completion times, so its cursor is the requested time; versions 8 and 9 are read in the
/// order in which commits completed. Kinds never compare: see [`Cursor::same_clock`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Cursor {
    /// Everything requested at or before this instant was read.
    Requested(InstantTime),
    /// Everything completed at or before this instant was read.
    Completed(InstantTime),
    /// Every file up to this place was read.
    File(FilePosition),
    /// Every message before these offsets was read.
    Offsets(TopicOffsets),
}

/// What a cursor counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CursorKind {
    /// Requested times.
    Requested,
    /// Completion times.
    Completed,
    /// Files.
    File,
    /// Messages of a topic.
    Offsets,
}

impl CursorKind {
    /// The clock of a table of this timeline layout: layout 1 (up to table version 7) has no completion times.
    pub fn of_layout(layout: u32) -> Self {
        if layout == 1 { CursorKind::Requested } else { CursorKind::Completed }
    }

    /// A cursor in the clock of a timeline; that of a table which is not read by request counts completion times.
    pub fn at(self, instant: InstantTime) -> Cursor {
        match self {
            CursorKind::Requested => Cursor::Requested(instant),
            CursorKind::Completed | CursorKind::File | CursorKind::Offsets => Cursor::Completed(instant),
        }
    }
}

/// Why a text is not a cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The text names no clock.
    #[error(
        "`{text}` is not a cursor: expected `requested:<instant>`, `completed:<instant>`, `file:<position>` or \
         `offsets:<topic>,<partition>:<next offset>,…`"
    )]
    NoClock {
        /// The refused text.
        text: String,
    },
    /// What follows the clock is no instant.
    #[error(transparent)]
    Instant(#[from] InstantError),
    /// What follows is no place among files.
    #[error(transparent)]
    File(#[from] FilePositionError),
    /// What follows says no offsets.
    #[error(transparent)]
    Offsets(#[from] TopicOffsetsError),
}

impl Cursor {
    /// The instant, whatever the clock; `None` among files and messages.
    pub fn instant(&self) -> Option<&InstantTime> {
        match self {
            Cursor::Requested(instant) | Cursor::Completed(instant) => Some(instant),
            Cursor::File(_) | Cursor::Offsets(_) => None,
        }
    }

    /// Milliseconds since the epoch, where it says a time; instants are read in `zone`.
    pub fn epoch_millis(&self, zone: Zone) -> Option<i64> {
        match self {
            Cursor::Requested(instant) | Cursor::Completed(instant) => instant.epoch_millis(zone),
            Cursor::File(position) => position.millis.filter(|_| !position.is_start()),
            Cursor::Offsets(_) => None,
        }
    }

    /// The clock it counts in.
    pub fn kind(&self) -> CursorKind {
        match self {
            Cursor::Requested(_) => CursorKind::Requested,
            Cursor::Completed(_) => CursorKind::Completed,
            Cursor::File(_) => CursorKind::File,
            Cursor::Offsets(_) => CursorKind::Offsets,
        }
    }

    /// Whether both cursors count in the same clock, so that comparing their instants means something.
    pub fn same_clock(&self, other: &Cursor) -> bool {
        self.kind() == other.kind()
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cursor::Requested(instant) => write!(f, "requested:{instant}"),
            Cursor::Completed(instant) => write!(f, "completed:{instant}"),
            Cursor::File(position) => write!(f, "file:{position}"),
            Cursor::Offsets(offsets) => write!(f, "offsets:{offsets}"),
        }
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("requested", instant)) => Ok(Cursor::Requested(instant.parse()?)),
            Some(("completed", instant)) => Ok(Cursor::Completed(instant.parse()?)),
            Some(("file", position)) => Ok(Cursor::File(position.parse()?)),
            Some(("offsets", offsets)) => Ok(Cursor::Offsets(offsets.parse()?)),
            _ => Err(CursorError::NoClock { text: text.to_string() }),
        }
    }
}

impl TryFrom<String> for Cursor {
    type Error = CursorError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

/// What one batch reads of a source: commits after `begin` up to and including `end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Exclusive; `None` when the source is read from nothing (its first window, taken as a snapshot).
    pub begin: Option<Cursor>,
    /// Inclusive; the cursor after the batch.
    pub end: Cursor,
}

impl Window {
    /// Whether the window holds nothing: the source is where it was.
    pub fn is_empty(&self) -> bool {
        self.begin.as_ref() == Some(&self.end)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.begin {
            Some(begin) => write!(f, "({begin}, {}]", self.end),
            None => write!(f, "(start, {}]", self.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_what_it_prints() {
        for text in [
            "completed:20250606182826197",
            "requested:20250606182826",
            "file:modified:1735689600000:a/b:c.csv",
            "offsets:clicks,0:42,1:17",
        ] {
            assert_eq!(text.parse::<Cursor>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_bare_instant_is_not_a_cursor() {
        let refused = "20250606182826197".parse::<Cursor>();
        assert!(matches!(refused, Err(CursorError::NoClock { .. })));
    }

    #[test]
    fn a_clock_makes_cursors_of_its_kind() {
        for (layout, kind, text) in [(1, CursorKind::Requested, "requested"), (2, CursorKind::Completed, "completed")] {
            let cursor = CursorKind::of_layout(layout).at("20250606182826197".parse().unwrap());
            assert_eq!((cursor.kind(), cursor.to_string()), (kind, format!("{text}:20250606182826197")));
        }
    }

    #[test]
    fn cursors_of_different_clocks_do_not_share_a_clock() {
        let requested: Cursor = "requested:20250606182826197".parse().unwrap();
        let completed: Cursor = "completed:20250606182826197".parse().unwrap();
        assert!(!requested.same_clock(&completed));
        assert!(completed.same_clock(&completed.clone()));
    }
}
