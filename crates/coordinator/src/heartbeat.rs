// SPDX-License-Identifier: Apache-2.0
//! Showing other writers that a pending instant is alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::Instrument as _;
use tributary_api::StopSource;
use tributary_hudi::Storage;
use tributary_hudi::target::{Owner, write_heartbeat};
use tributary_types::{Clock, InstantTime};

/// A heartbeat that is renewed until it is stopped or dropped.
pub(crate) struct Heartbeat {
    renewed: Arc<AtomicI64>,
    stop: StopSource,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// Goes on with the heartbeat that opening the instant wrote.
    pub(crate) fn go_on(
        storage: Storage,
        instant: InstantTime,
        owner: Owner,
        clock: Arc<dyn Clock>,
        every: Duration,
    ) -> Self {
        let renewed = Arc::new(AtomicI64::new(clock.now_millis()));
        let stop = StopSource::new();
        let (told, beat) = (stop.listen(), Arc::clone(&renewed));
        let beating = async move {
            loop {
                tokio::select! {
                    () = told.wait() => return,
                    () = tokio::time::sleep(every) => {}
                }
                let now = clock.now_millis();
                match write_heartbeat(&storage, &instant, &owner).await {
                    // Counted from before the write: it may have taken long.
                    Ok(()) => beat.store(now, Ordering::Relaxed),
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(%instant, error, "heartbeat could not be renewed");
                    }
                }
            }
        };
        let task = tokio::spawn(beating.in_current_span());
        Heartbeat { renewed, stop, task }
    }

    /// When it was last renewed, milliseconds since the epoch.
    pub(crate) fn renewed_millis(&self) -> i64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// Renews it no more. A renewal under way is waited for: one that lands after the instant was tidied up would stay.
    pub(crate) async fn stop(self) {
        self.stop.stop();
        if let Err(error) = self.task.await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the heartbeat ended early");
        }
    }
}
