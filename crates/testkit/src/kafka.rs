// SPDX-License-Identifier: Apache-2.0
//! A Kafka broker for tests, in this process: it speaks the protocol over TCP, and whatever happens to topics and brokers
//! happens when a test says so.

mod batch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::fetch_response::{AbortedTransaction, FetchableTopicResponse, PartitionData};
use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsResponse, FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse, MetadataRequest,
    MetadataResponse, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes, decode_request_header_from_buffer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

pub use batch::{Batch, encoded};

/// Codes of errors.
const OFFSET_OUT_OF_RANGE: i16 = 1;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const UNKNOWN_TOPIC_ID: i16 = 100;

/// A broker. It ends with the runtime of the test.
#[derive(Clone)]
pub struct Broker {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    topics: BTreeMap<String, Topic>,
    /// Topics that were ever created.
    created: u128,
    /// It closes connections and answers nothing.
    down: bool,
    /// Requests for messages that are not answered: the connection is closed instead.
    dropped: usize,
    /// Requests for messages that were answered.
    fetches: usize,
}

struct Topic {
    id: Uuid,
    partitions: Vec<Partition>,
}

#[derive(Default)]
struct Partition {
    start: i64,
    end: i64,
    /// Where the first open transaction begins.
    stable: Option<i64>,
    batches: Vec<Batch>,
    /// Producer, first offset and marker of transactions that were aborted.
    aborted: Vec<(i64, i64, i64)>,
}

impl Broker {
    /// Starts one.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let broker = Broker { port, state: Arc::default() };
        let serving = broker.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = serving.clone();
                tokio::spawn(async move { connection.serve(stream).await });
            }
        });
        broker
    }

    /// What clients connect to.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a topic, in the place of one of that name.
    pub fn create(&self, topic: &str, partitions: usize) {
        let mut state = self.state();
        state.created += 1;
        let id = Uuid::from_u128(state.created);
        let partitions = (0..partitions).map(|_| Partition::default()).collect();
        state.topics.insert(topic.to_string(), Topic { id, partitions });
    }

    /// Deletes a topic.
    pub fn delete(&self, topic: &str) {
        self.state().topics.remove(topic);
    }

    /// Adds partitions, so that there are this many.
    pub fn grow(&self, topic: &str, partitions: usize) {
        let mut state = self.state();
        if let Some(topic) = state.topics.get_mut(topic) {
            topic.partitions.resize_with(partitions, Partition::default);
        }
    }

    fn change(&self, topic: &str, partition: usize, change: impl FnOnce(&mut Partition)) {
        let mut state = self.state();
        change(&mut state.topics.get_mut(topic).expect("the topic was created").partitions[partition]);
    }

    /// Appends values as one batch.
    pub fn send(&self, topic: &str, partition: usize, values: &[&str]) {
        self.append(topic, partition, Batch::of(0, values));
    }

    /// Appends a batch behind what is there.
    pub fn append(&self, topic: &str, partition: usize, batch: Batch) {
        self.change(topic, partition, |partition| {
            let batch = batch.at(partition.end);
            partition.end = batch.last() + 1;
            if batch.is_marker() {
                partition.stable = None;
            }
            partition.batches.push(batch);
        });
    }

    /// Appends a transaction of a producer that is over, committed or aborted.
    pub fn transact(&self, topic: &str, partition: usize, producer: i64, values: &[&str], commits: bool) {
        self.begin(topic, partition, producer, values);
        self.finish(topic, partition, producer, commits);
    }

    /// Appends messages of a transaction that stays open.
    pub fn begin(&self, topic: &str, partition: usize, producer: i64, values: &[&str]) {
        self.change(topic, partition, |partition| {
            partition.stable.get_or_insert(partition.end);
        });
        self.append(topic, partition, Batch::of(0, values).by(producer));
    }

    /// Ends the only open transaction.
    pub fn finish(&self, topic: &str, partition: usize, producer: i64, commits: bool) {
        self.change(topic, partition, |partition| {
            if let Some(first) = partition.stable.filter(|_| !commits) {
                partition.aborted.push((producer, first, partition.end));
            }
        });
        self.append(topic, partition, Batch::marker(0, producer, commits));
    }

    /// Deletes messages before an offset, as retention does.
    pub fn expire(&self, topic: &str, partition: usize, before: i64) {
        self.change(topic, partition, |partition| {
            partition.start = before;
            partition.batches.retain(|batch| batch.last() >= before);
        });
    }

    /// Takes messages out, as compaction does; batches stay, unless nothing is left of them and `whole` says so.
    pub fn compact(&self, topic: &str, partition: usize, offsets: &[i64], whole: bool) {
        self.change(topic, partition, |partition| {
            let batches = std::mem::take(&mut partition.batches);
            let left = batches.into_iter().map(|batch| batch.without(offsets));
            partition.batches = left.filter(|batch| !(whole && batch.is_empty())).collect();
        });
    }

    /// Takes the end of a partition off, as a broker that loses its disk does.
    pub fn truncate(&self, topic: &str, partition: usize, end: i64) {
        self.change(topic, partition, |partition| {
            partition.end = end;
            partition.batches.retain(|batch| batch.last() < end);
        });
    }

    /// Whether it closes connections instead of answering.
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// Closes the connection instead of answering the next requests for messages.
    pub fn drop_fetches(&self, requests: usize) {
        self.state().dropped = requests;
    }

    /// Requests for messages that were answered.
    pub fn fetches(&self) -> usize {
        self.state().fetches
    }

    async fn serve(&self, mut stream: TcpStream) {
        while let Ok(length) = stream.read_i32().await {
            let mut request = vec![0; length.max(0) as usize];
            if stream.read_exact(&mut request).await.is_err() {
                return;
            }
            let Some(answer) = self.answer(request.into()) else { return };
            let sent = async {
                stream.write_i32(answer.len() as i32).await?;
                stream.write_all(&answer).await
            };
            if sent.await.is_err() {
                return;
            }
        }
    }

    /// `None`: the connection is closed.
    fn answer(&self, mut request: Bytes) -> Option<BytesMut> {
        if self.state().down {
            return None;
        }
        let header = decode_request_header_from_buffer(&mut request).ok()?;
        let version = header.request_api_version;
        let key = ApiKey::try_from(header.request_api_key).ok()?;
        let mut answer = BytesMut::new();
        let answered = ResponseHeader::default().with_correlation_id(header.correlation_id);
        answered.encode(&mut answer, key.response_header_version(version)).ok()?;
        match key {
            ApiKey::ApiVersions => versions().encode(&mut answer, version),
            ApiKey::Metadata => {
                self.metadata(&MetadataRequest::decode(&mut request, version).ok()?).encode(&mut answer, version)
            }
            ApiKey::ListOffsets => {
                self.offsets(&ListOffsetsRequest::decode(&mut request, version).ok()?).encode(&mut answer, version)
            }
            ApiKey::Fetch => {
                let mut state = self.state();
                if state.dropped > 0 {
                    state.dropped -= 1;
                    return None;
                }
                state.fetches += 1;
                state.fetch(&FetchRequest::decode(&mut request, version).ok()?).encode(&mut answer, version)
            }
            _ => return None,
        }
        .ok()?;
        Some(answer)
    }

    fn metadata(&self, request: &MetadataRequest) -> MetadataResponse {
        let state = self.state();
        let broker = MetadataResponseBroker::default()
            .with_node_id(1.into())
            .with_host(StrBytes::from_static_str("127.0.0.1"))
            .with_port(i32::from(self.port));
        let asked = request.topics.iter().flatten().filter_map(|topic| topic.name.clone());
        let topics = asked.map(|name| {
            let described = MetadataResponseTopic::default().with_name(Some(name.clone()));
            let Some(topic) = state.topics.get(name.as_str()) else {
                return described.with_error_code(UNKNOWN_TOPIC_OR_PARTITION);
            };
            let partition = |(number, _): (usize, &Partition)| {
                MetadataResponsePartition::default().with_partition_index(number as i32).with_leader_id(1.into())
            };
            let partitions = topic.partitions.iter().enumerate().map(partition);
            described.with_topic_id(topic.id).with_partitions(partitions.collect())
        });
        MetadataResponse::default().with_brokers(vec![broker]).with_topics(topics.collect())
    }

    fn offsets(&self, request: &ListOffsetsRequest) -> ListOffsetsResponse {
        let state = self.state();
        let topics = request.topics.iter().map(|asked| {
            let partitions = asked.partitions.iter().map(|asked_of| {
                let answer = ListOffsetsPartitionResponse::default().with_partition_index(asked_of.partition_index);
                match state.partition(&asked.name, asked_of.partition_index) {
                    Some(partition) => answer.with_offset(partition.offset_at(asked_of.timestamp)),
                    None => answer.with_error_code(UNKNOWN_TOPIC_OR_PARTITION),
                }
            });
            ListOffsetsTopicResponse::default().with_name(asked.name.clone()).with_partitions(partitions.collect())
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    }
}

impl State {
    fn partition(&self, topic: &TopicName, partition: i32) -> Option<&Partition> {
        self.topics.get(topic.as_str()).and_then(|topic| topic.partitions.get(partition as usize))
    }

    fn fetch(&self, request: &FetchRequest) -> FetchResponse {
        let topics = request.topics.iter().map(|asked| {
            let by_id =
                || self.topics.iter().find(|(_, topic)| topic.id == asked.topic_id).map(|(name, _)| name.clone());
            let name = if asked.topic_id.is_nil() { Some(asked.topic.to_string()) } else { by_id() };
            let partitions = asked.partitions.iter().map(|wanted| {
                let answer =
                    PartitionData::default().with_partition_index(wanted.partition).with_records(Some(Bytes::new()));
                let topic = name.as_ref().and_then(|name| self.topics.get(name));
                let partition = topic.and_then(|topic| topic.partitions.get(wanted.partition as usize));
                match partition {
                    None if name.is_none() => answer.with_error_code(UNKNOWN_TOPIC_ID),
                    None => answer.with_error_code(UNKNOWN_TOPIC_OR_PARTITION),
                    Some(partition) => partition.fetch(answer, wanted.fetch_offset, wanted.partition_max_bytes),
                }
            });
            let partitions: Vec<PartitionData> = partitions.collect();
            FetchableTopicResponse::default()
                .with_topic(asked.topic.clone())
                .with_topic_id(asked.topic_id)
                .with_partitions(partitions)
        });
        FetchResponse::default().with_responses(topics.collect())
    }
}

impl Partition {
    fn stable(&self) -> i64 {
        self.stable.unwrap_or(self.end)
    }

    fn offset_at(&self, timestamp: i64) -> i64 {
        match timestamp {
            -2 => self.start,
            -1 => self.stable(),
            time => self.batches.iter().find_map(|batch| batch.first_since(time)).unwrap_or(-1),
        }
    }

    /// Whole batches from the one that holds the offset on: at least one, whatever its size.
    fn fetch(&self, answer: PartitionData, offset: i64, bytes: i32) -> PartitionData {
        let answer = answer
            .with_high_watermark(self.end)
            .with_last_stable_offset(self.stable())
            .with_log_start_offset(self.start);
        if offset < self.start || offset > self.end {
            return answer.with_error_code(OFFSET_OUT_OF_RANGE);
        }
        let mut records = Vec::new();
        for batch in self.batches.iter().filter(|batch| batch.last() >= offset && batch.last() < self.stable()) {
            let more = encoded(batch);
            if !records.is_empty() && records.len() + more.len() > bytes as usize {
                break;
            }
            records.extend(more);
        }
        let aborted = self.aborted.iter().filter(|(_, _, marker)| *marker >= offset).map(|(producer, first, _)| {
            AbortedTransaction::default().with_producer_id((*producer).into()).with_first_offset(*first)
        });
        answer.with_records(Some(records.into())).with_aborted_transactions(Some(aborted.collect()))
    }
}

fn versions() -> ApiVersionsResponse {
    let known =
        [(ApiKey::ApiVersions, 0, 4), (ApiKey::Metadata, 0, 12), (ApiKey::ListOffsets, 1, 7), (ApiKey::Fetch, 4, 13)];
    let known = known.into_iter().map(|(key, least, most)| {
        ApiVersion::default().with_api_key(key as i16).with_min_version(least).with_max_version(most)
    });
    ApiVersionsResponse::default().with_api_keys(known.collect())
}
