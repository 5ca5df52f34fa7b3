// SPDX-License-Identifier: Apache-2.0
//! How far a directory of files was read.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::pipeline::FileOrder;

/// Files of which everything is remembered; of older ones only a hash of the path is.
pub const FILES_KEPT: usize = 1000;
/// Files of which at least a hash is remembered.
pub const FILES_KNOWN: usize = 10_000;

/// A place in the order of a directory's files: at or before it every file was read.
///
/// Written `modified:<milliseconds>:<path>` or `name:<milliseconds or ->:<path>`, the path being relative to the
/// directory. Positions of different orders never compare.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FilePosition {
    /// What orders the files.
    pub order: FileOrder,
    /// When the file was modified, or the time in its name, in milliseconds since the epoch; `None` where names hold no
    /// time.
    pub millis: Option<i64>,
    /// The file, relative to the directory; empty: before the first.
    pub path: String,
}

/// Why a text is no position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a position among files: expected `modified:<milliseconds>:<path>` or `name:<milliseconds or ->:<path>`"
)]
pub struct FilePositionError {
    /// The refused text.
    pub text: String,
}

impl FilePosition {
    /// Before the first file.
    pub fn start(order: FileOrder) -> Self {
        let millis = (order == FileOrder::Modified).then_some(i64::MIN);
        FilePosition { order, millis, path: String::new() }
    }

    /// Whether it is before the first file.
    pub fn is_start(&self) -> bool {
        self.path.is_empty()
    }
}

impl PartialOrd for FilePosition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self.order == other.order).then(|| (self.millis, &self.path).cmp(&(other.millis, &other.path)))
    }
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.millis {
            Some(millis) if !self.is_start() => write!(f, "{}:{millis}:{}", self.order, self.path),
            _ => write!(f, "{}:-:{}", self.order, self.path),
        }
    }
}

impl FromStr for FilePosition {
    type Err = FilePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || FilePositionError { text: text.to_string() };
        let mut parts = text.splitn(3, ':');
        let (order, millis, path) =
            parts.next().zip(parts.next()).zip(parts.next()).map(|((a, b), c)| (a, b, c)).ok_or_else(refuse)?;
        let order = match order {
            "modified" => FileOrder::Modified,
            "name" => FileOrder::Name,
            _ => return Err(refuse()),
        };
        if path.is_empty() && millis == "-" {
            return Ok(FilePosition::start(order));
        }
        let millis = match millis {
            "-" => None,
            digits => Some(digits.parse::<i64>().map_err(|_| refuse())?),
        };
        // A modification time alone is what Hudi Streamer keeps: everything modified then was read.
        let everything = order == FileOrder::Modified && path.is_empty();
        let path = if everything { char::MAX.to_string() } else { path.to_string() };
        if order == FileOrder::Modified && millis.is_none() {
            return Err(refuse());
        }
        Ok(FilePosition { order, millis, path })
    }
}

impl TryFrom<String> for FilePosition {
    type Error = FilePositionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<FilePosition> for String {
    fn from(position: FilePosition) -> Self {
        position.to_string()
    }
}

/// What is remembered of a directory beside the position (of a topic, beside its offsets, only the schema): which files near it were read, so that late and changed ones
/// are noticed, and the names and types that were settled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileState {
    /// The newest files that were read, in order, at most [`FILES_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read: Vec<ReadFile>,
    /// Hashes of the paths of older ones, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "hashes")]
    pub older: Vec<u64>,
    /// Where more than [`FILES_KNOWN`] files are in the directory: up to where all files count as read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgotten: Option<Forgotten>,
    /// The newest modification that was ever listed, milliseconds since the epoch.
    #[serde(default)]
    pub seen_millis: i64,
    /// Names and types of the columns where none were given: an Arrow schema in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
}

/// Files that are too many to remember.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forgotten {
    /// The last of them.
    pub upto: FilePosition,
    /// How many there were.
    pub files: u64,
}

/// A file that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Relative to the directory.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Last modification, milliseconds since the epoch.
    pub modified_millis: i64,
    /// What the store calls this content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e_tag: Option<String>,
}

/// Hash of a path, the same on every machine and in every version (FNV-1a, 64 bits).
pub fn path_hash(path: &str) -> u64 {
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Hashes as one text of 16 hexadecimal digits each.
mod hashes {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(hashes: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&hashes.iter().map(|hash| format!("{hash:016x}")).collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if !text.is_ascii() || text.len() % 16 != 0 {
            return Err(serde::de::Error::custom("hashes of files are 16 hexadecimal digits each"));
        }
        let parts = (0..text.len() / 16).map(|at| &text[at * 16..at * 16 + 16]);
        parts.map(|part| u64::from_str_radix(part, 16).map_err(serde::de::Error::custom)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_what_it_prints() {
        for text in [
            "modified:1735689600000:a/b:c.csv",
            "name:-:2025.csv",
            "name:1735689600000:x.csv",
            "name:-:",
            "modified:-:",
        ] {
            assert_eq!(text.parse::<FilePosition>().unwrap().to_string(), text);
        }
        for bad in ["modified:x:a", "size:1:a", "name", "modified:-:a"] {
            assert!(bad.parse::<FilePosition>().is_err(), "{bad}");
        }
    }

    #[test]
    fn positions_order_by_time_then_path_and_not_across_orders() {
        let at = |text: &str| text.parse::<FilePosition>().unwrap();
        assert!(at("modified:1:b") < at("modified:2:a"));
        assert!(at("modified:1:a") < at("modified:1:b"));
        assert!(at("name:-:9.csv") > at("name:-:10.csv"));
        assert!(FilePosition::start(FileOrder::Modified) < at("modified:-5:a"));
        assert!(FilePosition::start(FileOrder::Name) < at("name:-:a"));
        assert_eq!(at("modified:1:a").partial_cmp(&at("name:1:a")), None);
    }

    #[test]
    fn a_modification_time_alone_stands_after_every_file_of_that_time() {
        let bare: FilePosition = "modified:1735689600000:".parse().unwrap();
        assert!(bare > "modified:1735689600000:zzz/ü.csv".parse().unwrap());
        assert!(bare < "modified:1735689600001:a".parse().unwrap());
    }

    #[test]
    fn what_is_remembered_reads_back_and_hashes_are_compact() {
        let state = FileState {
            read: vec![ReadFile { path: "a".to_string(), bytes: 1, modified_millis: 2, e_tag: Some("x".to_string()) }],
            older: vec![path_hash("b"), path_hash("c")],
            forgotten: Some(Forgotten { upto: "name:-:0".parse().unwrap(), files: 3 }),
            seen_millis: 9,
            schema: Some("{}".to_string()),
        };
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<FileState>(&text).unwrap(), state);
        assert!(text.contains(&format!("{:016x}{:016x}", path_hash("b"), path_hash("c"))), "{text}");
        assert!(serde_json::from_str::<FileState>(&text.replace("\"older\":\"", "\"older\":\"zz")).is_err());
        assert_eq!(path_hash("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
