// SPDX-License-Identifier: Apache-2.0
//! Messages in the bodies of gRPC calls: five bytes, of which the last four are a length, then the message.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use tonic::Status;
use tonic::body::Body;
use tributary_security::Denied;

const HEAD: usize = 5;

/// The message with its length before it.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD + message.len());
    bytes.put_u8(0);
    // Messages are far below 4 GiB: they were read within a limit, or made here.
    bytes.put_u32(message.len() as u32);
    bytes.put_slice(message);
    bytes.freeze()
}

/// The length of the first message, once its head is there.
fn length_of(bytes: &[u8], limit: usize) -> Result<Option<usize>, Denied> {
    let Some((head, _)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    if head[0] != 0 {
        return Err(Denied::Malformed { what: "it is compressed, which this server does not take".to_string() });
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > limit {
        return Err(Denied::TooLarge { limit });
    }
    Ok(Some(length))
}

/// Takes the first message out of the bytes, once it is whole.
fn take_message(bytes: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, Denied> {
    match length_of(bytes, limit)? {
        Some(length) if bytes.len() >= HEAD + length => {
            bytes.advance(HEAD);
            Ok(Some(bytes.split_to(length).freeze()))
        }
        _ => Ok(None),
    }
}

/// The first message of a body, and what follows it.
pub(crate) async fn first_message(mut body: Body, limit: usize) -> Result<(Bytes, Rest), Denied> {
    let mut bytes = BytesMut::new();
    loop {
        if let Some(message) = take_message(&mut bytes, limit)? {
            return Ok((message, Rest { before: VecDeque::from([bytes.freeze()]), body }));
        }
        let frame = match body.frame().await {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Err(Denied::Malformed { what: error.to_string() }),
            None => return Err(Denied::Malformed { what: "it holds no whole message".to_string() }),
        };
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
}

/// The one message of a body.
pub(crate) async fn only_message(body: Body, limit: usize) -> Result<Bytes, Denied> {
    let (message, mut rest) = first_message(body, limit).await?;
    if rest.before.iter().any(|bytes| !bytes.is_empty()) {
        return Err(Denied::Malformed { what: "it holds more than one message".to_string() });
    }
    // What follows is the end, which a client may send by itself.
    while let Some(frame) = rest.body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) if !data.is_empty() => {
                return Err(Denied::Malformed { what: "it holds more than one message".to_string() });
            }
            Ok(_) => {}
            Err(error) => return Err(Denied::Malformed { what: error.to_string() }),
        }
    }
    Ok(message)
}

/// A body of one message.
pub(crate) fn body_of(message: &[u8]) -> Body {
    Body::new(http_body_util::Full::new(framed(message)))
}

/// What follows the first message of a body, and pieces before it.
pub(crate) struct Rest {
    before: VecDeque<Bytes>,
    body: Body,
}

impl Rest {
    /// The body with this message in front.
    pub(crate) fn after(mut self, message: &[u8]) -> Body {
        self.before.push_front(framed(message));
        Body::new(self)
    }
}

impl HttpBody for Rest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        while let Some(bytes) = self.before.pop_front() {
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.before.iter().all(Bytes::is_empty) && self.body.is_end_stream()
    }
}

/// A body whose messages are each replaced.
pub(crate) struct MapMessages<F> {
    body: Body,
    bytes: BytesMut,
    map: F,
}

impl<F> MapMessages<F>
where
    F: FnMut(&[u8]) -> Option<Vec<u8>> + Send + Unpin + 'static,
{
    /// `map` answers what takes the place of a message; `None`: it stays.
    pub(crate) fn over(body: Body, map: F) -> Body {
        Body::new(MapMessages { body, bytes: BytesMut::new(), map })
    }
}

impl<F> HttpBody for MapMessages<F>
where
    F: FnMut(&[u8]) -> Option<Vec<u8>> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            match take_message(&mut this.bytes, crate::MESSAGE_LIMIT) {
                Ok(Some(message)) => {
                    let replaced = (this.map)(&message);
                    let bytes = framed(replaced.as_deref().unwrap_or(&message));
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Ok(None) => {}
                Err(denied) => return Poll::Ready(Some(Err(crate::fault::denied(&denied)))),
            }
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.bytes.extend_from_slice(&data),
                    // Trailers: the end.
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that comes in pieces of this many bytes.
    fn pieces(bytes: &[u8], size: usize) -> Body {
        let frames: Vec<Result<Frame<Bytes>, Status>> =
            bytes.chunks(size).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
        Body::new(http_body_util::StreamBody::new(futures::stream::iter(frames)))
    }

    async fn all(body: Body) -> Vec<u8> {
        body.collect().await.unwrap().to_bytes().to_vec()
    }

    #[tokio::test]
    async fn the_first_message_is_found_however_the_body_is_cut() {
        let whole = [framed(b"first"), framed(b""), framed(b"third")].concat();
        for size in 1..=whole.len() {
            let (first, rest) = first_message(pieces(&whole, size), 100).await.unwrap();
            assert_eq!(first, b"first".as_slice());
            let expected = [framed(b"1st"), framed(b""), framed(b"third")].concat();
            assert_eq!(all(rest.after(b"1st")).await, expected, "pieces of {size}");
        }
    }

    #[tokio::test]
    async fn every_message_is_replaced_however_the_body_is_cut() {
        let whole = [framed(b"a"), framed(b"bb"), framed(b"")].concat();
        for size in 1..=whole.len() {
            let map = |message: &[u8]| (message != b"bb").then(|| [message, b"!"].concat());
            let mapped = all(MapMessages::over(pieces(&whole, size), map)).await;
            assert_eq!(mapped, [framed(b"a!"), framed(b"bb"), framed(b"!")].concat());
        }
    }

    #[tokio::test]
    async fn what_is_no_single_message_within_the_limit_is_refused() {
        assert_eq!(only_message(pieces(&framed(b"good"), 2), 4).await.unwrap(), b"good".as_slice());
        let too_large = only_message(pieces(&framed(b"large"), 3), 4).await.unwrap_err();
        assert_eq!(too_large, Denied::TooLarge { limit: 4 });
        // Refused by what it says of itself, before it is read.
        assert_eq!(
            only_message(pieces(&[0, 255, 255, 255, 255], 5), 4).await.unwrap_err(),
            Denied::TooLarge { limit: 4 }
        );
        let twice = [framed(b"a"), framed(b"b")].concat();
        for (bytes, told) in [
            (twice.as_slice(), "more than one"),
            (&framed(b"cut off")[..8], "no whole message"),
            (b"".as_slice(), "no whole message"),
            ([1, 0, 0, 0, 0].as_slice(), "compressed"),
        ] {
            for size in [1, 100] {
                let refused = only_message(pieces(bytes, size), 100).await.unwrap_err().to_string();
                assert!(refused.contains(told), "{told}: {refused}");
            }
        }
    }
}
