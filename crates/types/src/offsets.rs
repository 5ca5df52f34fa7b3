// SPDX-License-Identifier: Apache-2.0
//! How far a Kafka topic was read.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Characters of a topic's name at most, as Kafka has it.
const NAME_LIMIT: usize = 249;

/// The next offset to read in each partition of a topic: everything before it was read.
///
/// Written `clicks,0:42,1:17`, which is what Hudi Streamer keeps of its Kafka sources too.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicOffsets {
    /// The topic.
    pub topic: String,
    /// The next offset of each partition.
    pub partitions: BTreeMap<i32, i64>,
}

/// Why a text says no offsets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` says no offsets of a topic: expected `<topic>,<partition>:<next offset>,…` with each partition once")]
pub struct TopicOffsetsError {
    /// The refused text.
    pub text: String,
}

/// Whether Kafka allows a topic of this name.
pub fn is_topic_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.len() <= NAME_LIMIT && name != "." && name != ".." && name.chars().all(allowed)
}

impl fmt::Display for TopicOffsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.topic)?;
        self.partitions.iter().try_for_each(|(partition, offset)| write!(f, ",{partition}:{offset}"))
    }
}

impl FromStr for TopicOffsets {
    type Err = TopicOffsetsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || TopicOffsetsError { text: text.to_string() };
        let mut parts = text.split(',');
        let topic = parts.next().filter(|name| is_topic_name(name)).ok_or_else(refuse)?.to_string();
        let mut partitions = BTreeMap::new();
        for part in parts {
            let (partition, offset) = part.split_once(':').ok_or_else(refuse)?;
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            if !digits(partition) || !digits(offset) {
                return Err(refuse());
            }
            let partition: i32 = partition.parse().map_err(|_| refuse())?;
            let offset: i64 = offset.parse().map_err(|_| refuse())?;
            if partitions.insert(partition, offset).is_some() {
                return Err(refuse());
            }
        }
        Ok(TopicOffsets { topic, partitions })
    }
}

impl TryFrom<String> for TopicOffsets {
    type Error = TopicOffsetsError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TopicOffsets> for String {
    fn from(offsets: TopicOffsets) -> Self {
        offsets.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_read_back_what_they_print_and_come_in_the_order_of_partitions() {
        for text in ["clicks", "clicks,0:42,1:17", "a.b-c_d,12:9223372036854775807"] {
            assert_eq!(text.parse::<TopicOffsets>().unwrap().to_string(), text);
        }
        let offsets: TopicOffsets = "clicks,10:1,2:3".parse().unwrap();
        assert_eq!(offsets.to_string(), "clicks,2:3,10:1");
    }

    #[test]
    fn what_says_no_offsets_is_refused() {
        for bad in
            ["", ",0:1", "a b,0:1", "t,0", "t,0:", "t,:1", "t,0:-1", "t,-1:0", "t,0:1,0:2", "t,0:1,", "..", "t,+1:2"]
        {
            assert!(bad.parse::<TopicOffsets>().is_err(), "{bad}");
        }
    }
}
