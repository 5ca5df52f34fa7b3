// SPDX-License-Identifier: Apache-2.0
//! The streams of pulls that this process serves, so that they can be ended from outside and are counted.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use tonic::Status;
use tributary_api::{RowError, RowStream, Stop, StopSource};
use tributary_types::{Code, Fault};

use super::metrics;
use crate::fault::row_status;

/// Pulls that were cancelled of which so many are remembered: their tickets are refused from then on.
const REMEMBERED: usize = 4096;

/// The streams of pulls under way.
#[derive(Debug, Default)]
pub struct Running(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    pulls: HashMap<String, UnderWay>,
    /// Oldest first.
    cancelled: VecDeque<String>,
}

#[derive(Debug, Default)]
struct UnderWay {
    stop: Arc<StopSource>,
    streams: u64,
}

/// A stream that is counted as under way until this is dropped.
struct Counted {
    running: Arc<Running>,
    pull: String,
    outcome: &'static str,
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::stream_ended(self.outcome);
        let mut known = self.running.known();
        if let Some(under_way) = known.pulls.get_mut(&self.pull) {
            under_way.streams -= 1;
            if under_way.streams == 0 {
                known.pulls.remove(&self.pull);
            }
        }
    }
}

impl Running {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every stream of a pull, and refuses its tickets from now on. Answers how many streams there were.
    pub(crate) fn cancel(&self, pull: &str) -> u64 {
        let mut known = self.known();
        if !known.cancelled.iter().any(|name| name == pull) {
            known.cancelled.push_back(pull.to_string());
            if known.cancelled.len() > REMEMBERED {
                known.cancelled.pop_front();
            }
        }
        let Some(under_way) = known.pulls.get(pull) else { return 0 };
        under_way.stop.stop();
        under_way.streams
    }

    fn begin(self: &Arc<Self>, pull: &str) -> Result<(Counted, Stop), Status> {
        let mut known = self.known();
        if known.cancelled.iter().any(|name| name == pull) {
            return Err(row_status(&RowError::new(Cancelled)));
        }
        let under_way = known.pulls.entry(pull.to_string()).or_default();
        under_way.streams += 1;
        let stop = under_way.stop.listen();
        metrics::stream_began();
        let counted = Counted { running: Arc::clone(self), pull: pull.to_string(), outcome: metrics::DROPPED };
        Ok((counted, stop))
    }

    /// What `open` opens, as a stream of the pull: it ends once the pull is cancelled, and what it reads is dropped then.
    pub(crate) async fn watched(
        self: &Arc<Self>,
        pull: &str,
        open: impl Future<Output = Result<RowStream, Status>> + Send,
    ) -> Result<RowStream, Status> {
        let (mut counted, stop) = self.begin(pull)?;
        let opened = tokio::select! {
            opened = open => opened,
            () = stop.wait() => {
                counted.outcome = metrics::CANCELLED;
                return Err(row_status(&RowError::new(Cancelled)));
            }
        };
        let rows = match opened {
            Ok(rows) => rows,
            Err(status) => {
                counted.outcome = metrics::FAILED;
                return Err(status);
            }
        };
        let state = Some((rows, stop, counted));
        let watched = futures::stream::unfold(state, |state| async move {
            let (mut rows, stop, mut counted) = state?;
            let next = tokio::select! {
                biased;
                () = stop.wait() => {
                    counted.outcome = metrics::CANCELLED;
                    return Some((Err(RowError::new(Cancelled)), None));
                }
                next = rows.next() => next,
            };
            match next {
                None => {
                    counted.outcome = metrics::DONE;
                    None
                }
                Some(Err(error)) => {
                    counted.outcome = metrics::FAILED;
                    Some((Err(error), None))
                }
                Some(Ok(batch)) => {
                    metrics::sent(batch.num_rows());
                    Some((Ok(batch), Some((rows, stop, counted))))
                }
            }
        });
        Ok(watched.boxed())
    }
}

/// A stream that ended since its pull was cancelled.
#[derive(Debug, thiserror::Error)]
#[error("the pull was cancelled; ask GetFlightInfo again to pull anew")]
struct Cancelled;

impl Fault for Cancelled {
    fn code(&self) -> Code {
        Code::Cancelled
    }

    fn reason(&self) -> &'static str {
        "PULL_CANCELLED"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rows;

    async fn endless() -> Result<RowStream, Status> {
        Ok(futures::stream::repeat_with(|| Ok(rows(&["a"]))).boxed())
    }

    #[tokio::test]
    async fn cancelling_ends_every_stream_of_the_pull_and_of_no_other() {
        let running = Arc::new(Running::default());
        let mut streams = Vec::new();
        for pull in ["one", "one", "other"] {
            streams.push(running.watched(pull, endless()).await.unwrap());
        }
        assert_eq!(running.cancel("one"), 2);
        for (position, stream) in streams.iter_mut().enumerate() {
            let next = stream.next().await.unwrap();
            match position {
                2 => assert!(next.is_ok()),
                _ => {
                    assert_eq!(next.unwrap_err().reason, "PULL_CANCELLED");
                    assert!(stream.next().await.is_none());
                }
            }
        }
        drop(streams);
        assert!(running.known().pulls.is_empty());
        let refused = running.watched("one", endless()).await.err().unwrap();
        assert_eq!(refused.code(), tonic::Code::Cancelled);
        assert_eq!(running.cancel("unknown"), 0);
    }

    #[tokio::test]
    async fn cancelling_ends_what_is_still_being_opened() {
        let running = Arc::new(Running::default());
        let opening = running.watched("one", std::future::pending());
        let cancel = async { assert_eq!(running.cancel("one"), 1) };
        let (opened, ()) = futures::join!(opening, cancel);
        assert_eq!(opened.err().unwrap().code(), tonic::Code::Cancelled);
    }

    #[tokio::test]
    async fn only_so_many_cancelled_pulls_are_remembered() {
        let running = Arc::new(Running::default());
        for number in 0..=REMEMBERED {
            running.cancel(&number.to_string());
        }
        assert!(running.watched("0", endless()).await.is_ok());
        assert!(running.watched("1", endless()).await.is_err());
    }
}
