// SPDX-License-Identifier: Apache-2.0
//! Sending spans to a collector.
//!
//! A span that is over goes into a queue with a bound, and a task of its own sends what is there, again and again. Whatever
//! the collector does, a batch neither waits nor fails: a span that finds no room, or that the collector does not take
//! after some tries, is dropped and counted.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tributary_rpc::otlp::{Collector, ExportError};
use tributary_trace::{FinishedSpan, Sink};

use super::otlp_settings::OtlpSettings;

/// Spans that a collector took.
pub(super) const EXPORTED: &str = "tributary_traces_exported_spans_total";
/// Spans that did not reach one.
pub(super) const DROPPED: &str = "tributary_traces_dropped_spans_total";
/// Name and help text of each metric.
pub(super) const HELP: [(&str, &str); 2] = [
    (EXPORTED, "Spans that the collector of traces took"),
    (DROPPED, "Spans that were not sent, by why: no room in the queue, or the collector did not take them"),
];
const QUEUE: &str = "queue";
const COLLECTOR: &str = "collector";

/// Spans of one request at most.
const MOST_SPANS: usize = 512;
/// Requests for the same spans.
const TRIES: u32 = 4;
/// Pause before a second try; doubled with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Makes the series exist at zero.
pub(super) fn register() {
    metrics::counter!(EXPORTED).increment(0);
    for why in [QUEUE, COLLECTOR] {
        metrics::counter!(DROPPED, "why" => why).increment(0);
    }
}

/// Where spans are sent.
#[async_trait]
trait Collects: Send + Sync + 'static {
    /// Sends spans; answers how many were refused.
    async fn export(&self, spans: &[FinishedSpan]) -> Result<u64, ExportError>;
}

#[async_trait]
impl Collects for Collector {
    async fn export(&self, spans: &[FinishedSpan]) -> Result<u64, ExportError> {
        Collector::export(self, spans).await
    }
}

/// The entry of the queue.
pub(super) struct Queue {
    sender: mpsc::Sender<FinishedSpan>,
}

impl Sink for Queue {
    fn accept(&self, span: FinishedSpan) {
        if self.sender.try_send(span).is_err() {
            metrics::counter!(DROPPED, "why" => QUEUE).increment(1);
        }
    }
}

/// The task that sends.
pub(super) struct Exporter {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Begins to send. Must be called in a runtime.
    pub(super) fn start(settings: OtlpSettings) -> (Queue, Exporter) {
        let (capacity, delay) = (settings.queue, settings.delay);
        Exporter::start_with(settings.into_collector(), capacity, delay)
    }

    fn start_with(collector: impl Collects, capacity: usize, delay: Duration) -> (Queue, Exporter) {
        register();
        let (sender, spans) = mpsc::channel(capacity);
        let (stop, stopped) = watch::channel(false);
        let sending = Sending { collector, spans, delay, stopped, trouble: false };
        (Queue { sender }, Exporter { stop, task: tokio::spawn(sending.run()) })
    }

    /// Sends what is left, at most for so long.
    pub(super) async fn finish(self, within: Duration) {
        self.stop.send_replace(true);
        let abort = self.task.abort_handle();
        if tokio::time::timeout(within, self.task).await.is_err() {
            abort.abort();
        }
    }
}

struct Sending<C> {
    collector: C,
    spans: mpsc::Receiver<FinishedSpan>,
    /// How long spans are gathered before they are sent.
    delay: Duration,
    stopped: watch::Receiver<bool>,
    /// Whether it was said that the collector takes nothing.
    trouble: bool,
}

impl<C: Collects> Sending<C> {
    async fn run(mut self) {
        let mut gathered = Vec::with_capacity(MOST_SPANS);
        loop {
            self.gather(&mut gathered).await;
            let stopped = *self.stopped.borrow();
            if gathered.is_empty() && stopped {
                return;
            }
            self.send(&gathered, if stopped { 1 } else { TRIES }).await;
            gathered.clear();
        }
    }

    /// Waits for a span, and then gathers those that come within the delay. Once stopped, only what is there.
    async fn gather(&mut self, gathered: &mut Vec<FinishedSpan>) {
        if !*self.stopped.borrow() {
            let mut stopped = self.stopped.clone();
            let spans = &mut self.spans;
            let gathering = async {
                spans.recv_many(gathered, 1).await;
                let more = async {
                    while gathered.len() < MOST_SPANS {
                        let room = MOST_SPANS - gathered.len();
                        if spans.recv_many(gathered, room).await == 0 {
                            break;
                        }
                    }
                };
                // What was gathered by then stays gathered.
                let _ = tokio::time::timeout(self.delay, more).await;
            };
            tokio::select! {
                () = gathering => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        }
        while gathered.len() < MOST_SPANS {
            match self.spans.try_recv() {
                Ok(span) => gathered.push(span),
                Err(_) => return,
            }
        }
    }

    async fn send(&mut self, spans: &[FinishedSpan], tries: u32) {
        if spans.is_empty() {
            return;
        }
        let mut pause = FIRST_PAUSE;
        for number in 1..=tries {
            match self.collector.export(spans).await {
                Ok(refused) => {
                    let refused = refused.min(spans.len() as u64);
                    metrics::counter!(EXPORTED).increment(spans.len() as u64 - refused);
                    metrics::counter!(DROPPED, "why" => COLLECTOR).increment(refused);
                    if std::mem::take(&mut self.trouble) {
                        tracing::warn!("traces are sent again");
                    }
                    return;
                }
                Err(error) => {
                    // Once for each outage, however long it lasts.
                    if !std::mem::replace(&mut self.trouble, true) {
                        tracing::warn!(error = &error as &dyn std::error::Error, "traces cannot be sent");
                    }
                    if !error.again || number == tries || *self.stopped.borrow() {
                        break;
                    }
                }
            }
            let mut stopped = self.stopped.clone();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stopped.wait_for(|stop| *stop) => {}
            }
            pause *= 2;
        }
        metrics::counter!(DROPPED, "why" => COLLECTOR).increment(spans.len() as u64);
    }
}

#[cfg(test)]
mod tests;
