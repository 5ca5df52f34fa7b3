// SPDX-License-Identifier: Apache-2.0
//! Having the rows merged and staged.

use std::time::Duration;

use tributary_api::Progress;
use tributary_api::coordinator::Error;
use tributary_api::merge::{self, MergeRequest, Merged};
use tributary_api::writer;
use tributary_types::Fault;

use super::{Batch, Opened, Prepared};
use crate::plan::{Ends, Opening, Plans, merge_sources, plan_sources, sql_of, steps_of};
use crate::report::written;
use crate::source_metrics;

/// How often those who follow a batch hear how far it is.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

impl Batch<'_> {
    /// Runs the merge; once more with the same windows when a pinned file vanished meanwhile.
    pub(super) async fn merge(
        &mut self,
        prepared: &Prepared,
        opening: &Opening,
        opened: &Opened,
    ) -> Result<Merged, Error> {
        let first = self.merge_once(prepared, opening, &opening.plans, opened, 0).await;
        // The rows pass through the query and the writer, so the error comes back through either; its reason stays.
        let moved = |error: &&Error| matches!(error.reason(), "FILE_GONE" | "FILE_CHANGED");
        let Some(error) = first.as_ref().err().filter(moved) else { return first };
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "a pinned file is gone or changed; planning the same windows again"
        );
        let (roles, pipeline) = (&self.inner.roles, &self.request.pipeline);
        let ends = Ends::Pinned(&opening.plans);
        let again = plan_sources(roles, pipeline, &opening.bound, &prepared.standing, ends);
        let again = self.unless_stopped(again).await?;
        let merged = self.merge_once(prepared, opening, &again, opened, 1).await;
        self.replanned = Some(again);
        merged
    }

    async fn merge_once(
        &mut self,
        prepared: &Prepared,
        opening: &Opening,
        plans: &Plans,
        opened: &Opened,
        attempt: u32,
    ) -> Result<Merged, Error> {
        let pipeline = &self.request.pipeline;
        let stage = self.stage_request(prepared, opening, opened, attempt);
        let sources = merge_sources(pipeline, plans)?;
        let request =
            MergeRequest { sql: sql_of(pipeline), then: steps_of(pipeline), sources, stage, limits: self.limits() };
        let merged = self.acknowledged(self.inner.settings.stop_within, request).await?;
        source_metrics::record_rows(pipeline, &merged.rows_read);
        self.status.send_modify(|status| {
            for (source, rows) in &merged.rows_read {
                if let Some(found) = status.sources.iter_mut().find(|s| &s.source == source) {
                    found.rows = *rows;
                }
            }
            status.written = written(&merged);
            status.peak_memory = self.budget.peak() as u64;
        });
        Ok(merged)
    }

    /// Tells those who follow the batch what was read of each source so far.
    fn show(&self, progress: &Progress) {
        let reads = progress.reads();
        self.status.send_if_modified(|status| {
            let mut changed = false;
            for read in &reads {
                let found = status.sources.iter_mut().find(|status| status.source == read.source);
                if let Some(found) = found.filter(|found| (found.rows, found.bytes_read) != (read.rows, read.bytes)) {
                    (found.rows, found.bytes_read) = (read.rows, read.bytes);
                    changed = true;
                }
            }
            changed
        });
    }

    /// Runs a merge, and once it was told to stop waits for it to have stopped, at most for `within`.
    pub(super) async fn acknowledged(&mut self, within: Duration, request: MergeRequest) -> Result<Merged, Error> {
        let progress = request.limits.progress.clone();
        let run = self.inner.roles.merge.run(request);
        tokio::pin!(run);
        let stop = self.stop.clone();
        let overdue = async move {
            stop.wait().await;
            tokio::time::sleep(within).await;
        };
        tokio::pin!(overdue);
        let mut ticks = tokio::time::interval(PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let result = loop {
            tokio::select! {
            result = &mut run => break result,
            _ = ticks.tick() => self.show(&progress),
            () = &mut overdue => {
                self.unacknowledged = true;
                tracing::warn!(?within, "the merge did not acknowledge that it stopped; the next batch clears up");
                self.go_on()?;
                return Err(Error::Cancelled);
            }
            }
        };
        self.show(&progress);
        // A role that does not answer may still be writing.
        self.unacknowledged = matches!(
            &result,
            Err(merge::Error::Unreachable { .. } | merge::Error::Writer(writer::Error::Unreachable { .. }))
        );
        self.go_on()?;
        Ok(result?)
    }
}
