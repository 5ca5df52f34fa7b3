// SPDX-License-Identifier: Apache-2.0
//! A topic on its brokers: who leads which partition, and what to do when that changes.
//!
//! Every question is safe to repeat. It is asked again, after a look who leads what, until an answer comes or the time that
//! brokers have is over; then the last reason is the error.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponse;
use kafka_protocol::messages::{FetchRequest, ListOffsetsRequest, MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tributary_api::boxed_error;
use tributary_types::pipeline::TopicSource;
use uuid::Uuid;

use crate::kafka::batch::{Aborted, unpack};
use crate::kafka::connection::Connection;
use crate::kafka::log::{Asked, At, Fetched, Log, LogError, Topic};

/// Versions of requests that are spoken: from those that know transactions to those that know ids of topics.
const METADATA: (i16, i16) = (4, 12);
const LIST_OFFSETS: (i16, i16) = (2, 7);
const FETCH: (i16, i16) = (4, 13);
/// The first version that asks by the id of a topic instead of its name.
const FETCH_BY_ID: i16 = 13;
/// Only messages of transactions that are over.
const READ_COMMITTED: i8 = 1;
/// How long a broker waits for messages where there are none.
const FETCH_WAIT_MILLIS: i32 = 500;
/// How long one broker may take to be connected to: another one may be there.
const CONNECT: Duration = Duration::from_secs(10);
/// Between two attempts at first, and at most.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A topic on its brokers. What is asked at once is asked one after the other.
pub(crate) struct Client {
    source: TopicSource,
    known: Mutex<Known>,
}

/// What was found out so far.
#[derive(Default)]
struct Known {
    /// By `host:port`.
    connections: HashMap<String, Connection>,
    topic: Option<Topic>,
    /// Who leads which partition.
    leaders: BTreeMap<i32, String>,
}

/// What is asked.
#[derive(Clone, Copy)]
enum Question<'a> {
    Topic,
    Offsets(&'a [i32], At),
    Messages(&'a Asked<'a>, i32),
}

impl Question<'_> {
    fn doing(self) -> String {
        match self {
            Question::Topic => "asking for the topic's partitions".to_string(),
            Question::Offsets(_, At::Start) => "asking where partitions begin".to_string(),
            Question::Offsets(_, At::End) => "asking where partitions end".to_string(),
            Question::Offsets(_, At::Time(_)) => "asking for the offsets of a time".to_string(),
            Question::Messages(asked, _) => {
                format!("reading partition {} from offset {}", asked.partition, asked.offset)
            }
        }
    }
}

/// What was answered, to the question of the same name.
enum Answer {
    Topic(Topic),
    Offsets(BTreeMap<i32, Option<i64>>),
    Messages(Fetched),
}

/// Why one attempt failed.
enum Failed {
    /// Another one may succeed.
    Again(io::Error),
    Never(LogError),
}

impl Client {
    /// A client that connects when it is first asked.
    pub(crate) fn new(source: TopicSource) -> Self {
        Client { source, known: Mutex::default() }
    }

    fn patience(&self) -> Duration {
        self.source.options.timeout.0
    }

    /// Asks until an answer comes or the time is over.
    async fn ask(&self, question: Question<'_>) -> Result<Answer, LogError> {
        let until = Instant::now() + self.patience();
        let mut pause = PAUSE;
        let mut known = self.known.lock().await;
        loop {
            let error = match self.attempt(&mut known, question).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Never(error)) => return Err(error),
                Err(Failed::Again(error)) => error,
            };
            // Who leads what may have changed, and a connection that failed is of no use.
            *known = Known::default();
            if Instant::now() + pause >= until {
                return Err(LogError::Unavailable { doing: question.doing(), source: boxed_error(error) });
            }
            tracing::debug!(topic = self.source.topic, doing = question.doing(), error = %error, "asking the brokers again");
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn attempt(&self, known: &mut Known, question: Question<'_>) -> Result<Answer, Failed> {
        match question {
            Question::Topic => {
                self.look(known).await?;
                let topic = known.topic.clone();
                topic.map(Answer::Topic).ok_or_else(|| again("no broker describes the topic".to_string()))
            }
            Question::Offsets(partitions, at) => self.try_offsets(known, partitions, at).await.map(Answer::Offsets),
            Question::Messages(asked, bytes) => self.try_fetch(known, asked, bytes).await.map(Answer::Messages),
        }
    }

    /// The connection to `address`.
    async fn connection<'k>(&self, known: &'k mut Known, address: &str) -> Result<&'k mut Connection, Failed> {
        if !known.connections.contains_key(address) {
            let opened =
                Connection::open(address, self.patience().min(CONNECT)).await.map_err(|error| at(address, error))?;
            known.connections.insert(address.to_string(), opened);
        }
        let opened = known.connections.get_mut(address);
        opened.ok_or_else(|| Failed::Again(io::ErrorKind::NotConnected.into()))
    }

    /// Asks the first broker that answers which topic it is and who leads what.
    async fn look(&self, known: &mut Known) -> Result<(), Failed> {
        let mut failed = Failed::Again(io::Error::other("no broker is given"));
        for address in self.source.brokers.split(',').map(str::trim) {
            match self.look_at(known, address).await {
                Err(Failed::Again(error)) => failed = Failed::Again(error),
                done => return done,
            }
        }
        Err(failed)
    }

    async fn look_at(&self, known: &mut Known, address: &str) -> Result<(), Failed> {
        let connection = self.connection(known, address).await?;
        let version = connection.version::<MetadataRequest>(METADATA.0, METADATA.1).map_err(unspoken)?;
        let topic = MetadataRequestTopic::default().with_name(Some(name(&self.source.topic)));
        let request = MetadataRequest::default().with_topics(Some(vec![topic])).with_allow_auto_topic_creation(false);
        let answer = connection.ask(&request, version, self.patience()).await.map_err(|error| at(address, error))?;
        let (topic, leaders) = described(&answer)?;
        known.topic = Some(topic);
        known.leaders = leaders;
        Ok(())
    }

    async fn leaders(&self, known: &mut Known) -> Result<BTreeMap<i32, String>, Failed> {
        if known.topic.is_none() {
            self.look(known).await?;
        }
        Ok(known.leaders.clone())
    }

    async fn try_offsets(
        &self,
        known: &mut Known,
        partitions: &[i32],
        at_offset: At,
    ) -> Result<BTreeMap<i32, Option<i64>>, Failed> {
        // As the wire format has it.
        let timestamp = match at_offset {
            At::Start => -2,
            At::End => -1,
            At::Time(millis) => millis,
        };
        let leaders = self.leaders(known).await?;
        let mut by_leader: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for partition in partitions {
            by_leader.entry(leader_of(&leaders, *partition)?).or_default().push(*partition);
        }
        let mut found = BTreeMap::new();
        for (address, led) in by_leader {
            let connection = self.connection(known, address).await?;
            let version = connection.version::<ListOffsetsRequest>(LIST_OFFSETS.0, LIST_OFFSETS.1).map_err(unspoken)?;
            let asked = led.iter().map(|partition| {
                ListOffsetsPartition::default().with_partition_index(*partition).with_timestamp(timestamp)
            });
            let topic =
                ListOffsetsTopic::default().with_name(name(&self.source.topic)).with_partitions(asked.collect());
            let request = ListOffsetsRequest::default()
                .with_replica_id((-1).into())
                .with_isolation_level(READ_COMMITTED)
                .with_topics(vec![topic]);
            let answer =
                connection.ask(&request, version, self.patience()).await.map_err(|error| at(address, error))?;
            for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
                check(partition.error_code)?;
                found.insert(partition.partition_index, Some(partition.offset).filter(|offset| *offset >= 0));
            }
        }
        match partitions.iter().find(|partition| !found.contains_key(*partition)) {
            None => Ok(found),
            Some(lacking) => Err(again(format!("a broker says nothing of partition {lacking}"))),
        }
    }

    async fn try_fetch(&self, known: &mut Known, asked: &Asked<'_>, bytes: i32) -> Result<Fetched, Failed> {
        let leaders = self.leaders(known).await?;
        let address = leader_of(&leaders, asked.partition)?;
        let now = known.topic.as_ref().and_then(|topic| topic.id.as_deref());
        if now.zip(asked.topic_id).is_some_and(|(now, planned)| now != planned) {
            return Err(Failed::Never(LogError::OtherTopic));
        }
        let connection = self.connection(known, address).await?;
        let id = asked.topic_id.and_then(|id| Uuid::parse_str(id).ok());
        let newest = if id.is_some() { FETCH.1 } else { FETCH_BY_ID - 1 };
        let version = connection.version::<FetchRequest>(FETCH.0, newest).map_err(unspoken)?;
        let partition = FetchPartition::default()
            .with_partition(asked.partition)
            .with_fetch_offset(asked.offset)
            .with_partition_max_bytes(bytes);
        let topic = FetchTopic::default().with_partitions(vec![partition]);
        let topic = match id.filter(|_| version >= FETCH_BY_ID) {
            Some(id) => topic.with_topic_id(id),
            None => topic.with_topic(name(&self.source.topic)),
        };
        let request = FetchRequest::default()
            .with_max_wait_ms(FETCH_WAIT_MILLIS)
            .with_min_bytes(1)
            .with_max_bytes(bytes)
            .with_isolation_level(READ_COMMITTED)
            .with_topics(vec![topic]);
        let answer = connection.ask(&request, version, self.patience()).await.map_err(|error| at(address, error))?;
        check(answer.error_code)?;
        let partitions = answer.responses.iter().flat_map(|topic| &topic.partitions);
        let answered = partitions.into_iter().find(|partition| partition.partition_index == asked.partition);
        let answered = answered.ok_or_else(|| again("a broker says nothing of the partition".to_string()))?;
        fetched(answered, asked, answer.throttle_time_ms > 0)
    }
}

#[async_trait]
impl Log for Client {
    async fn describe(&self) -> Result<Topic, LogError> {
        match self.ask(Question::Topic).await? {
            Answer::Topic(topic) => Ok(topic),
            _ => Err(other_answer()),
        }
    }

    async fn offsets(&self, partitions: &[i32], at: At) -> Result<BTreeMap<i32, Option<i64>>, LogError> {
        match self.ask(Question::Offsets(partitions, at)).await? {
            Answer::Offsets(offsets) => Ok(offsets),
            _ => Err(other_answer()),
        }
    }

    async fn fetch(&self, asked: &Asked<'_>, bytes: i32) -> Result<Fetched, LogError> {
        match self.ask(Question::Messages(asked, bytes)).await? {
            Answer::Messages(fetched) => Ok(fetched),
            _ => Err(other_answer()),
        }
    }
}

/// An answer to another question: a bug.
fn other_answer() -> LogError {
    LogError::Refused("another question was answered than the one that was asked; report this".to_string())
}

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_string()))
}

/// The topic of an answer, and who leads its partitions.
fn described(answer: &MetadataResponse) -> Result<(Topic, BTreeMap<i32, String>), Failed> {
    let Some(topic) = answer.topics.first() else { return Err(again("a broker describes no topic".to_string())) };
    check_topic(topic.error_code)?;
    let address = |host: &str, port: i32| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let addresses: HashMap<i32, String> =
        answer.brokers.iter().map(|broker| (broker.node_id.0, address(&broker.host, broker.port))).collect();
    let leader = |node: i32| addresses.get(&node).cloned();
    let mut partitions: Vec<i32> = topic.partitions.iter().map(|partition| partition.partition_index).collect();
    partitions.sort_unstable();
    let leaders = topic.partitions.iter().filter_map(|p| leader(p.leader_id.0).map(|at| (p.partition_index, at)));
    let id = Some(topic.topic_id).filter(|id| !id.is_nil()).map(|id| id.to_string());
    Ok((Topic { id, partitions }, leaders.collect()))
}

fn leader_of(leaders: &BTreeMap<i32, String>, partition: i32) -> Result<&str, Failed> {
    let leader = leaders.get(&partition).map(String::as_str);
    leader.ok_or_else(|| again(format!("partition {partition} has no leader")))
}

/// What one partition's answer holds.
fn fetched(answered: &PartitionData, asked: &Asked<'_>, throttled: bool) -> Result<Fetched, Failed> {
    let (partition, offset) = (asked.partition, asked.offset);
    match ResponseError::try_from_code(answered.error_code) {
        Some(ResponseError::OffsetOutOfRange) => return Err(Failed::Never(LogError::Gone { partition, offset })),
        // Whether it is another topic now, the next look shows.
        Some(error @ (ResponseError::UnknownTopicId | ResponseError::InconsistentTopicId)) => {
            return Err(again(format!("a broker answers {error:?}")));
        }
        _ => check(answered.error_code)?,
    }
    let aborted = answered.aborted_transactions.iter().flatten();
    let aborted: Vec<Aborted> = aborted.map(|one| (one.producer_id.0, one.first_offset)).collect();
    let bytes = answered.records.clone().unwrap_or_default();
    let unpacked = unpack(bytes, aborted, offset, asked.end)
        .map_err(|detail| Failed::Never(LogError::Corrupt { partition, detail }))?;
    let stable = answered.last_stable_offset;
    Ok(Fetched { messages: unpacked.messages, next: unpacked.next, stable, throttled })
}

/// An error of a topic as a whole.
fn check_topic(code: i16) -> Result<(), Failed> {
    match ResponseError::try_from_code(code) {
        Some(ResponseError::UnknownTopicOrPartition | ResponseError::UnknownTopicId) => {
            Err(Failed::Never(LogError::NoTopic))
        }
        _ => check(code),
    }
}

/// An error of anything else: one that passes is asked again.
fn check(code: i16) -> Result<(), Failed> {
    let Some(error) = ResponseError::try_from_code(code) else { return Ok(()) };
    let said = format!("a broker answers with error {code}, {error:?}");
    match error.is_retriable() {
        true => Err(again(said)),
        false => Err(Failed::Never(LogError::Refused(said))),
    }
}

fn again(what: String) -> Failed {
    Failed::Again(io::Error::other(what))
}

/// What an old or a foreign broker does not know it will not learn soon.
fn unspoken(error: io::Error) -> Failed {
    Failed::Never(LogError::Refused(error.to_string()))
}

fn at(address: &str, error: io::Error) -> Failed {
    Failed::Again(io::Error::new(error.kind(), format!("{address}: {error}")))
}
