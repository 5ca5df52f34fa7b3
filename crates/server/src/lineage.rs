// SPDX-License-Identifier: Apache-2.0
//! Telling of batches in events of OpenLineage: which run of which pipeline read what and wrote what.
//!
//! START when a batch begins, RUNNING once its windows are fixed, and at its end COMPLETE, FAIL or ABORT; a batch whose
//! outcome is unknown ends with OTHER. How such a batch ended, or one of a killed process, is told
//! once it is found out. Each event says all that is known by then. They go
//! out in order, from a task of its own with a bounded queue: a batch neither waits nor fails, and what cannot be
//! delivered after some tries is dropped and counted.
//!
//! No credential is in an event: of URLs only scheme, host and path are told.

mod dataset;
mod event;
mod send;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tributary_api::coordinator::BatchStatus;
use tributary_api::{BatchObserver, Schemas};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Clock, SystemClock};

use crate::cli::LineageArgs;
use crate::commands::Failed;

use self::event::{Moment, event, found_out};
use self::send::{Receiver, Sender};

/// Events that were delivered.
const SENT: &str = "tributary_lineage_sent_events_total";
/// Events that were not.
const DROPPED: &str = "tributary_lineage_dropped_events_total";
/// Name and help text of each metric.
pub(crate) const HELP: [(&str, &str); 2] = [
    (SENT, "Events of lineage that were delivered"),
    (
        DROPPED,
        "Events of lineage that were not delivered, by why: no room in the queue, or the receiver did not take them",
    ),
];
const QUEUE: &str = "queue";
const RECEIVER: &str = "receiver";

/// Events that wait to be delivered.
const CAPACITY: usize = 1024;
/// Time that the last events have when the process ends.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// Makes the series exist at zero.
pub(crate) fn register() {
    metrics::counter!(SENT).increment(0);
    for why in [QUEUE, RECEIVER] {
        metrics::counter!(DROPPED, "why" => why).increment(0);
    }
}

/// Events of lineage, as long as the process runs batches.
pub(crate) struct Lineage {
    observer: Arc<Observer>,
    sender: Sender,
}

impl Lineage {
    /// Begins to deliver, where it is wanted. Must be called in a runtime.
    pub(crate) fn start(args: &LineageArgs) -> Result<Option<Self>, Failed> {
        let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let receiver = Receiver::read(args.lineage.as_deref(), &environment);
        let receiver = receiver.map_err(|message| Failed { message, exit_code: 2 })?;
        Ok(receiver.map(|receiver| Lineage::deliver(receiver, &args.lineage_namespace, Arc::new(SystemClock))))
    }

    fn deliver(receiver: Receiver, namespace: &str, clock: Arc<dyn Clock>) -> Self {
        register();
        let (queue, events) = mpsc::channel(CAPACITY);
        let observer = Observer { namespace: namespace.to_string(), clock, queue, planned: Mutex::default() };
        Lineage { observer: Arc::new(observer), sender: Sender::start(receiver, events) }
    }

    /// Who is to be told of batches.
    pub(crate) fn observer(&self) -> Arc<dyn BatchObserver> {
        Arc::clone(&self.observer) as Arc<dyn BatchObserver>
    }

    /// Delivers what is left.
    pub(crate) async fn finish(self) {
        self.sender.finish(LAST_EVENTS).await;
    }
}

/// Makes events of what it is told.
struct Observer {
    namespace: String,
    clock: Arc<dyn Clock>,
    queue: mpsc::Sender<String>,
    /// Schemas of the batches that run.
    planned: Mutex<HashMap<BatchName, Schemas>>,
}

impl Observer {
    fn tell(&self, moment: Moment, pipeline: &Pipeline, status: &BatchStatus, schemas: Option<&Schemas>) {
        let event = event(&self.namespace, self.clock.now_millis(), moment, pipeline, status, schemas);
        self.send(&event);
    }

    fn send(&self, event: &Value) {
        if self.queue.try_send(event.to_string()).is_err() {
            metrics::counter!(DROPPED, "why" => QUEUE).increment(1);
        }
    }
}

impl BatchObserver for Observer {
    fn began(&self, pipeline: &Pipeline, status: &BatchStatus) {
        self.tell(Moment::Began, pipeline, status, None);
    }

    fn planned(&self, pipeline: &Pipeline, status: &BatchStatus, schemas: Schemas) {
        self.tell(Moment::Planned, pipeline, status, Some(&schemas));
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).insert(status.name.clone(), schemas);
    }

    fn ended(&self, pipeline: &Pipeline, status: &BatchStatus) {
        let schemas = self.planned.lock().unwrap_or_else(PoisonError::into_inner).remove(&status.name);
        self.tell(Moment::Ended, pipeline, status, schemas.as_ref());
    }

    fn found_out(&self, target: &str, status: &BatchStatus) {
        self.send(&found_out(&self.namespace, self.clock.now_millis(), target, status));
    }
}
