// SPDX-License-Identifier: Apache-2.0
//! Telling work under way to stop, and waiting until it has.
//!
//! A future that is dropped may leave an operation on its way to a store, and a file that lands after its instant was
//! rolled back stays for ever. So work on a target is never dropped: it is told to stop, begins nothing any more, waits
//! for what it began, and returns. That it returned is the acknowledgement.

use std::fmt;

use futures::future::select_all;
use tokio::sync::watch;

/// Tells work to stop. One that is dropped has told it too: whoever would wait for the work is gone.
#[derive(Debug)]
pub struct StopSource(watch::Sender<bool>);

impl StopSource {
    /// A source that has not told anybody yet.
    #[must_use]
    pub fn new() -> Self {
        StopSource(watch::channel(false).0)
    }

    /// Tells all work to stop. Telling it again changes nothing.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was told.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// What the work looks at.
    pub fn listen(&self) -> Stop {
        Stop(vec![self.0.subscribe()])
    }
}

impl Default for StopSource {
    fn default() -> Self {
        StopSource::new()
    }
}

/// What work under way looks at. The default never says stop.
#[derive(Clone, Default)]
pub struct Stop(Vec<watch::Receiver<bool>>);

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A request is the same request wherever its stop comes from.
        f.write_str("Stop")
    }
}

impl Stop {
    /// Says stop as soon as either does.
    #[must_use]
    pub fn or(&self, other: &Stop) -> Stop {
        Stop(self.0.iter().chain(&other.0).cloned().collect())
    }

    /// Whether the work is to stop.
    pub fn is_set(&self) -> bool {
        self.0.iter().any(|told| *told.borrow() || told.has_changed().is_err())
    }

    /// Waits until the work is to stop.
    pub async fn wait(&self) {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let told = self.0.iter().cloned().map(|mut told| {
            Box::pin(async move {
                // A source that is gone means the same.
                let _ = told.wait_for(|told| *told).await;
            })
        });
        select_all(told).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_told_by_any_of_its_sources_and_by_one_that_is_dropped() {
        let (one, two) = (StopSource::new(), StopSource::new());
        let both = one.listen().or(&two.listen());
        assert!(!both.is_set());
        two.stop();
        assert!(both.is_set() && two.is_stopped() && !one.listen().is_set());
        both.wait().await;
        let left = one.listen();
        drop(one);
        assert!(left.is_set());
        left.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_default_never_says_stop() {
        let never = Stop::default();
        assert!(!never.is_set());
        assert!(tokio::time::timeout(std::time::Duration::from_secs(3600), never.wait()).await.is_err());
    }
}
