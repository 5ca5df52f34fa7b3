// SPDX-License-Identifier: Apache-2.0
//! Requests that were answered before.

use tributary_api::checkpoint::Resolved;
use tributary_api::coordinator::Error;
use tributary_types::Answer;

use super::{Batch, Commit};
use crate::report::committed_sources;
use crate::target::TargetState;

impl Batch<'_> {
    /// The commit that answered this request before, if any did.
    pub(super) async fn answer(
        &self,
        target: Option<&TargetState>,
        resolved: &Resolved,
    ) -> Result<Option<Commit>, Error> {
        let Some(newest) = &resolved.newest else { return Ok(None) };
        let request = &self.request.request;
        let reused = || Error::RequestReused { request: request.clone() };
        let instant = match newest.checkpoint.judge(request) {
            Answer::New => return Ok(None),
            Answer::By(record) if record.is_of_another(&self.definition) => return Err(reused()),
            Answer::By(record) => &record.instant,
            Answer::Forgotten { oldest } => {
                // Commits that are still on the timeline remember more ids than the newest one.
                let pipeline = &self.request.pipeline.name;
                let found = self.inner.roles.checkpoints.find_commit(pipeline, self.storage.url(), request).await?;
                let Some(found) = found else {
                    return Err(Error::Expired { request: request.clone(), oldest: oldest.clone() });
                };
                if found.definition.is_some_and(|known| known != self.definition) {
                    return Err(reused());
                }
                return Ok(Some(Commit { instant: found.instant, completed: found.completed, seq: found.seq }));
            }
        };
        let mut seq = None;
        if instant == &newest.instant {
            seq = Some(newest.checkpoint.seq);
            self.status.send_modify(|status| status.sources = committed_sources(&newest.checkpoint));
        }
        let completed = target.and_then(|target| target.timeline.find(instant)?.completed.clone());
        Ok(Some(Commit { instant: instant.clone(), completed, seq }))
    }
}
