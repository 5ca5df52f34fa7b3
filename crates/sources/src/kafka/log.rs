// SPDX-License-Identifier: Apache-2.0
//! What is asked of the brokers of a topic. Whatever speaks to brokers is behind this trait.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use tributary_api::BoxedError;
use tributary_api::timeline::Error;
use tributary_types::SourceName;

/// A topic, as its brokers hold it.
#[async_trait]
pub(crate) trait Log: Send + Sync {
    /// Which topic it is, and its partitions.
    async fn describe(&self) -> Result<Topic, LogError>;

    /// An offset of each of these partitions; `None` where no message is at that time or later.
    async fn offsets(&self, partitions: &[i32], at: At) -> Result<BTreeMap<i32, Option<i64>>, LogError>;

    /// Committed messages of a partition from an offset on and before `end`, as many as come in about `bytes`. Messages of
    /// the topic that has the id, where one is given.
    async fn fetch(&self, asked: &Asked<'_>, bytes: i32) -> Result<Fetched, LogError>;
}

/// A topic as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topic {
    /// Its identity, where the brokers tell one: a topic that is deleted and created again has another.
    pub(crate) id: Option<String>,
    pub(crate) partitions: Vec<i32>,
}

/// Which offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// That of the first message that is still there.
    Start,
    /// The one behind the last message of a transaction that is over.
    End,
    /// That of the first message that was stamped then or later, milliseconds since the epoch.
    Time(i64),
}

/// Where messages are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) topic_id: Option<&'a str>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) end: i64,
}

/// What a broker answered.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// In the order of their offsets.
    pub(crate) messages: Vec<Message>,
    /// The offset to go on with: there is nothing else before it. Where it was asked from: nothing came.
    pub(crate) next: i64,
    /// The broker's last stable offset.
    pub(crate) stable: i64,
    /// It holds answers back, since too much was asked of it.
    pub(crate) throttled: bool,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) offset: i64,
    /// Milliseconds since the epoch.
    pub(crate) timestamp: i64,
    pub(crate) key: Option<Bytes>,
    pub(crate) value: Option<Bytes>,
    /// Of headers of one name the last one.
    pub(crate) headers: Vec<(String, Option<Bytes>)>,
}

/// Why the brokers did not answer as asked.
#[derive(Debug)]
pub(crate) enum LogError {
    /// They cannot be reached, or not now.
    Unavailable { doing: String, source: BoxedError },
    /// They know no such topic.
    NoTopic,
    /// A topic of another identity has its name.
    OtherTopic,
    /// They do not have the offset any more.
    Gone { partition: i32, offset: i64 },
    /// They do not do it.
    Refused(String),
    /// What they sent is not what it should be.
    Corrupt { partition: i32, detail: String },
}

/// Which topic, for errors.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) source: SourceName,
    /// Brokers and topic.
    pub(crate) url: String,
}

impl Place {
    pub(crate) fn fault(&self, error: LogError) -> Error {
        let url = self.url.clone();
        match error {
            LogError::Unavailable { doing, source } => Error::Brokers { url, doing, source },
            LogError::NoTopic => self.refuse("there is no such topic; check `topic`, or create it"),
            LogError::OtherTopic => self.recreated("another topic has its name now".to_string()),
            LogError::Gone { partition, offset } => Error::MessagesGone {
                url,
                partition: u32::try_from(partition).unwrap_or_default(),
                offset: u64::try_from(offset).unwrap_or_default(),
            },
            LogError::Refused(what) => self.refuse(&what),
            LogError::Corrupt { partition, detail } => {
                Error::Corrupt { url, file: format!("partition {partition}"), detail }
            }
        }
    }

    pub(crate) fn refuse(&self, what: &str) -> Error {
        Error::Unsupported { url: self.url.clone(), what: format!("source `{}`: {what}", self.source) }
    }

    pub(crate) fn recreated(&self, why: String) -> Error {
        Error::TopicRecreated { source_name: self.source.clone(), url: self.url.clone(), why }
    }
}
