// SPDX-License-Identifier: Apache-2.0
//! Bodies of answers: each holds its place among the requests under way until it is sent, and one of rows that nobody
//! takes is given up.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tributary_security::{Denied, metrics};
use tributary_types::Fault as _;

/// An answer on its way.
pub(super) struct Answer {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl Answer {
    pub(super) fn over(body: Body, place: OwnedSemaphorePermit) -> Body {
        Body::new(Answer { body, _place: place })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Rows on their way. What makes them is dropped when nobody took one for a while, so that a client that stops reading
/// keeps neither files open nor memory in use.
pub(super) struct Rows {
    shared: Arc<Mutex<State>>,
    limit: Duration,
}

struct State {
    /// Gone once it was given up.
    body: Option<Body>,
    /// When a piece was handed over after which none was asked for yet.
    handed: Option<Instant>,
    told: bool,
}

impl Rows {
    /// Must be called in a runtime.
    pub(super) fn over(body: Body, limit: Duration) -> Body {
        let state = State { body: Some(body), handed: None, told: false };
        let shared = Arc::new(Mutex::new(state));
        tokio::spawn(watch(Arc::downgrade(&shared), limit));
        Body::new(Rows { shared, limit })
    }
}

/// Gives the rows up when a piece waits for longer than `limit`; ends when the answer is gone.
async fn watch(shared: Weak<Mutex<State>>, limit: Duration) {
    loop {
        tokio::time::sleep(limit / 4).await;
        let Some(shared) = shared.upgrade() else { return };
        let abandoned = {
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            match state.handed {
                Some(since) if since.elapsed() >= limit => state.body.take(),
                _ => continue,
            }
        };
        metrics::denied(stalled(limit).reason());
        tracing::warn!(seconds = limit.as_secs(), "rows that nobody took were given up");
        drop(abandoned);
        return;
    }
}

fn stalled(limit: Duration) -> Denied {
    Denied::Stalled { seconds: limit.as_secs() }
}

impl HttpBody for Rows {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut state = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        state.handed = None;
        let Some(body) = state.body.as_mut() else {
            if std::mem::replace(&mut state.told, true) {
                return Poll::Ready(None);
            }
            // As trailers, since a broken body would reach the client as a connection that failed.
            let mut trailers = http::HeaderMap::new();
            let status = crate::fault::denied(&stalled(self.limit));
            return match status.add_header(&mut trailers) {
                Ok(()) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Err(status) => Poll::Ready(Some(Err(status))),
            };
        };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && frame.is_data()
        {
            state.handed = Some(Instant::now());
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn endless() -> (Body, Weak<()>) {
        let alive = Arc::new(());
        let held = Arc::downgrade(&alive);
        let rows = futures::stream::repeat_with(move || {
            let _alive = &alive;
            Ok::<_, Status>(Frame::data(Bytes::from_static(b"rows")))
        });
        (Body::new(http_body_util::StreamBody::new(rows)), held)
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_nobody_takes_are_given_up_and_the_client_is_told() {
        let (body, held) = endless();
        let mut rows = Rows::over(body, Duration::from_secs(60));
        assert!(rows.frame().await.unwrap().unwrap().is_data());
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert!(rows.frame().await.unwrap().unwrap().is_data(), "it was taken in time");
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert!(held.upgrade().is_none(), "what makes the rows is still there");
        let trailers = rows.frame().await.unwrap().unwrap().into_trailers().unwrap();
        let status = Status::from_header_map(&trailers).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        assert!(status.message().contains("no row was taken for 60 s"), "{}", status.message());
        assert!(rows.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_are_waited_for_are_not_given_up_however_long_they_take() {
        let body = futures::stream::unfold(0, |n| async move {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            (n < 3).then(|| (Ok::<_, Status>(Frame::data(Bytes::from_static(b"rows"))), n + 1))
        });
        let rows = Rows::over(Body::new(http_body_util::StreamBody::new(Box::pin(body))), Duration::from_secs(60));
        assert_eq!(rows.collect().await.unwrap().to_bytes(), b"rowsrowsrows".as_slice());
    }
}
