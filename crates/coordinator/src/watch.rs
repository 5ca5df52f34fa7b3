// SPDX-License-Identifier: Apache-2.0
//! Following batches that run in other processes, by their records.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::Instrument as _;
use tributary_api::coordinator::{BatchStatus, Error};
use tributary_types::BatchName;

use crate::service::Inner;

/// Pause between two looks at the record of a batch that runs elsewhere.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Inner {
    /// A batch as it goes on. Nobody changes one any more whose sender is gone.
    pub(crate) async fn watch(self: &Arc<Self>, name: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        if let Some(known) = self.registry.find(name) {
            return Ok(known.status);
        }
        let (status, _) = self.find_with_target(name).await?;
        let (sender, receiver) = watch::channel(status);
        if receiver.borrow().outcome.is_none() {
            tokio::spawn(Arc::clone(self).follow_record(name.clone(), sender).in_current_span());
        }
        Ok(receiver)
    }

    /// Keeps `sender` at what the record of a batch says until the batch is over, or nobody looks any more.
    async fn follow_record(self: Arc<Self>, name: BatchName, sender: watch::Sender<BatchStatus>) {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            match self.find_with_target(&name).await {
                Ok((status, _)) => {
                    let over = status.outcome.is_some();
                    sender.send_if_modified(|known| {
                        let changed = *known != status;
                        *known = status;
                        changed
                    });
                    if over {
                        return;
                    }
                }
                // Its record is gone, and nothing will tell how it ended.
                Err(Error::NoBatch { .. }) => return,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(batch = %name, error, "how far a batch is cannot be looked up; looking again");
                }
            }
        }
    }
}
