// SPDX-License-Identifier: Apache-2.0
//! One connection to one broker: requests and answers in the wire format of Kafka, one at a time.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiVersionsRequest, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request, StrBytes, encode_request_header_into_buffer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes of an answer at most.
const ANSWER_LIMIT: usize = 512 << 20;
/// Version of the question which versions there are; brokers know it since 2.4.
const VERSIONS_VERSION: i16 = 3;

/// A connection. After an error it must not be used again: answers may be left over.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// Versions that the broker knows, by the kind of request.
    versions: HashMap<i16, (i16, i16)>,
    last: i32,
}

impl Connection {
    /// Connects to `host:port` and asks which versions of requests it knows.
    pub(crate) async fn open(address: &str, patience: Duration) -> io::Result<Self> {
        let stream = within(patience, TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream, versions: HashMap::new(), last: 0 };
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("tributary"))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        let answer = connection.ask(&request, VERSIONS_VERSION, patience).await?;
        if answer.error_code != 0 {
            return Err(io::Error::other(format!(
                "the broker at {address} does not say which requests it knows (error {}); brokers from 2.4 on do",
                answer.error_code
            )));
        }
        let known = answer.api_keys.iter().map(|known| (known.api_key, (known.min_version, known.max_version)));
        connection.versions = known.collect();
        Ok(connection)
    }

    /// The newest version of `R` between `oldest` and `newest` that the broker knows.
    pub(crate) fn version<R: Request>(&self, oldest: i16, newest: i16) -> io::Result<i16> {
        let (least, most) = self.versions.get(&R::KEY).copied().unwrap_or((i16::MAX, i16::MIN));
        let version = newest.min(most);
        if version >= oldest.max(least) {
            return Ok(version);
        }
        Err(io::Error::other(format!(
            "the broker knows versions {least} to {most} of request {}, and {oldest} to {newest} are spoken here",
            R::KEY
        )))
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn ask<R: Request>(
        &mut self,
        request: &R,
        version: i16,
        patience: Duration,
    ) -> io::Result<R::Response> {
        self.last = self.last.wrapping_add(1);
        let number = self.last;
        let mut message = BytesMut::new();
        message.put_i32(0);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(number)
            .with_client_id(Some(StrBytes::from_static_str("tributary")));
        encode_request_header_into_buffer(&mut message, &header).map_err(malformed)?;
        request.encode(&mut message, version).map_err(malformed)?;
        let length = i32::try_from(message.len() - 4).map_err(io::Error::other)?;
        message[..4].copy_from_slice(&length.to_be_bytes());
        let mut answer = within(patience, async {
            self.stream.write_all(&message).await?;
            self.receive().await
        })
        .await?;
        let version_of_header = <R::Response as HeaderVersion>::header_version(version);
        let header = ResponseHeader::decode(&mut answer, version_of_header).map_err(malformed)?;
        if header.correlation_id != number {
            return Err(io::Error::other("the broker answered another request than the one that was sent"));
        }
        R::Response::decode(&mut answer, version).map_err(malformed)
    }

    async fn receive(&mut self) -> io::Result<Bytes> {
        let length = self.stream.read_i32().await?;
        let length = usize::try_from(length).ok().filter(|length| *length <= ANSWER_LIMIT);
        let length = length.ok_or_else(|| io::Error::other("what answers there is no Kafka broker"))?;
        // Grows with what comes: a length alone claims no memory.
        let mut answer = BytesMut::with_capacity(length.min(8 << 20));
        while answer.len() < length {
            let wanted = length - answer.len();
            let mut part = (&mut self.stream).take(wanted as u64);
            if part.read_buf(&mut answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(answer.freeze())
    }
}

/// An error of the codec, which has no type of its own.
fn malformed(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of Kafka's protocol is malformed: {error}"))
}

async fn within<T>(patience: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match tokio::time::timeout(patience, step).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} ms", patience.as_millis()))),
    }
}
