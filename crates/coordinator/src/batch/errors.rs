// SPDX-License-Identifier: Apache-2.0
//! Rows that are refused: counted, and committed to the error table before the batch commits to its target.
//!
//! Bad records are read in a pass of their own over the same pinned splits, rows without a key by the same query once more.
//! A row's key is where it stands, so a batch that is tried again writes each row once. The error table's commit is a
//! transaction like any other; the batch goes on only once it is known to be there. If the batch dies in between, the
//! error table has rows of a sequence number that the target never committed, and the next try writes them anew.

use std::sync::Arc;

use futures::TryStreamExt;
use tributary_api::coordinator::{Error, Refused};
use tributary_api::merge::{MergeLimits, MergeRequest, Merged, Step};
use tributary_api::refused::{NULL_KEY, RESULT_SOURCE, RefusedKey, RefusedRows};
use tributary_api::timeline::{ReadRequest, Relation, Split};
use tributary_api::writer::StageRequest;
use tributary_api::{RowError, timeline};
use tributary_types::pipeline::{ErrorTable, OnNullKey, Pipeline};
use tributary_types::{Code, Fault, InstantTime, Retry, SourceName};

use super::{Batch, Opened, Prepared};
use crate::locks::Locks;
use crate::metrics;
use crate::plan::{Opening, Plans, merge_sources, sql_of, steps_of};
use crate::refused::{ErrorCommit, cell, check_error_table};
use crate::target::key_settings;

/// Rows of a batch of refused records, while they are only counted.
const COUNT_ROWS: usize = 1024;

/// The bad records of one source.
struct Bad {
    source: SourceName,
    relation: Relation,
}

impl Batch<'_> {
    /// Refuses an error table that could not be written, before anything is read.
    pub(super) async fn check_error_table(&self) -> Result<(), Error> {
        match &self.request.pipeline.error_table {
            Some(table) => check_error_table(self.inner, &self.request.pipeline, table, &self.storage).await,
            None => Ok(()),
        }
    }

    /// Commits the rows that the batch refused to the error table, if there are any.
    pub(super) async fn commit_refused(
        &mut self,
        prepared: &Prepared,
        opening: &Opening,
        opened: &Opened,
        merged: &Merged,
    ) -> Result<(), Error> {
        let request = self.request;
        let pipeline = &request.pipeline;
        let Some(table) = &pipeline.error_table else { return Ok(()) };
        let plans = self.replanned.as_ref().unwrap_or(&opening.plans);
        let bad = bad_records(pipeline, plans);
        let sources = merge_sources(pipeline, plans)?;
        let (mut refused, first) = self.unless_stopped(self.count(&bad, table)).await?;
        let without_key =
            if pipeline.target.on_null_key == OnNullKey::ErrorTable { merged.staged.rows_null_key } else { 0 };
        if without_key > 0 {
            refused.add(RESULT_SOURCE, NULL_KEY, without_key);
        }
        let rows = refused.rows();
        if rows == 0 {
            return Ok(());
        }
        count_refused(pipeline, &refused);
        self.status.send_modify(|status| status.refused = refused.clone());
        if rows > table.max_rows {
            let first = first.unwrap_or_else(|| format!("{without_key} rows of the query's result have no record key"));
            return Err(Error::TooManyRefused { rows, limit: table.max_rows, first });
        }
        let keys = key_settings(&pipeline.target, &prepared.target.config);
        let key = (without_key > 0).then_some(RefusedKey { columns: keys.record_key, complex: keys.complex });
        let (sql, mut then) = match &key {
            Some(_) => (sql_of(pipeline), steps_of(pipeline)),
            // Bad records do not depend on the query.
            None => (None, Vec::new()),
        };
        let seq = self.next_checkpoint(prepared, &opened.instant).seq;
        then.push(Step::Refused(Box::new(RefusedRows {
            pipeline: pipeline.name.to_string(),
            seq,
            instant: opened.instant.clone(),
            key,
            splits: bad.into_iter().map(|bad| (bad.source, bad.relation.splits)).collect(),
            max_rows: table.max_rows,
        })));
        let epoch = prepared.resolved.next_epoch;
        let commit = ErrorCommit::open(self.inner, request, table, &self.definition, epoch)?;
        let locks = self.take_error_locks(commit.storage()).await?;
        let merge = |stage, limits| MergeRequest { sql, then, sources, stage, limits };
        let committed = self.commit_errors(&commit, (rows, seq), merge, &locks).await;
        locks.give_back().await;
        let instant = committed?;
        ::metrics::counter!(metrics::ERROR_ROWS, "pipeline" => pipeline.name.to_string()).increment(rows);
        tracing::info!(rows, %instant, table = commit.storage().url(), "refused rows are in the error table");
        self.status.send_modify(|status| status.refused.instant = Some(instant));
        self.go_on()
    }

    /// One commit to the error table, under its locks: `rows` rows of sequence number `seq`, of the merge that `request` makes.
    async fn commit_errors(
        &mut self,
        commit: &ErrorCommit<'_>,
        (rows, seq): (u64, u64),
        request: impl FnOnce(StageRequest, MergeLimits) -> MergeRequest,
        locks: &Locks,
    ) -> Result<InstantTime, Error> {
        let mut opened = commit.begin(&self.budget, &self.stop).await?;
        let staged = self.acknowledged(self.inner.settings.stop_within, request(opened.stage(), self.limits())).await;
        let committed = match staged {
            Ok(merged) if merged.staged.rows_in != rows => Err(not_the_same(rows, merged.staged.rows_in)),
            Ok(merged) => commit.complete(&opened, &merged.staged, seq, locks.held(None)).await,
            Err(error) => Err(error),
        };
        let may_come = matches!(&committed, Err(error) if error.code() == Code::Unavailable);
        commit.end(&mut opened, committed.is_ok(), !self.unacknowledged && !may_come, locks).await;
        committed?;
        commit.serve(&opened, &self.budget, locks).await;
        Ok(opened.instant)
    }

    /// How many records are refused, by source and reason, at most one more than the error table takes; and where the
    /// first one is. Only figures are kept.
    async fn count(&self, bad: &[Bad], table: &ErrorTable) -> Result<(Refused, Option<String>), Error> {
        let (mut refused, mut first) = (Refused::default(), None);
        for Bad { source, relation } in bad {
            for split in &relation.splits {
                let request = ReadRequest {
                    split: split.clone(),
                    schema: Arc::clone(&relation.schema),
                    projection: None,
                    predicate: None,
                    batch_rows: COUNT_ROWS,
                    memory: self.budget.clone(),
                };
                let mut rows = self.inner.roles.timeline.read(request).await?;
                while let Some(batch) = rows.try_next().await.map_err(rows_failed)? {
                    for row in 0..batch.num_rows() {
                        refused.add(source.as_str(), &cell(&batch, "reason", row), 1);
                        first.get_or_insert_with(|| {
                            let (at, why) = (cell(&batch, "position", row), cell(&batch, "message", row));
                            format!("The first one is of source `{source}` at {at}: {why}")
                        });
                        if refused.rows() > table.max_rows {
                            return Ok((refused, first));
                        }
                    }
                }
            }
        }
        Ok((refused, first))
    }
}

fn rows_failed(error: RowError) -> Error {
    Error::Merge(tributary_api::merge::Error::Rows(error))
}

/// The splits of whichever sources refuse records: those of the window, or the whole of a look-up.
fn bad_records(pipeline: &Pipeline, plans: &Plans) -> Vec<Bad> {
    let refusing = pipeline.sources.iter().zip(&plans.sources).filter(|(source, _)| source.refuses_records());
    let bad = refusing.filter_map(|(source, plan): (_, &timeline::SourcePlan)| {
        let relation = plan.changed.as_ref().or(plan.at_end.as_ref())?;
        let splits: Vec<Split> = relation.splits.iter().cloned().map(Split::refused_only).collect();
        let relation = Relation { schema: Arc::clone(&relation.schema), splits };
        (!relation.splits.is_empty()).then(|| Bad { source: source.name.clone(), relation })
    });
    bad.collect()
}

fn count_refused(pipeline: &Pipeline, refused: &Refused) {
    for count in &refused.counts {
        let labels = [
            ("pipeline", pipeline.name.to_string()),
            ("source", count.source.clone()),
            ("reason", count.reason.clone()),
        ];
        ::metrics::counter!(metrics::REFUSED_ROWS, &labels).increment(count.rows);
    }
}

/// A query that refuses other rows each time it runs.
fn not_the_same(expected: u64, found: u64) -> Error {
    Error::Other {
        code: Code::Internal,
        retry: Retry::Again,
        message: format!(
            "{expected} rows were refused, and {found} when they were read once more for the error table; nothing was \
             committed. A query whose result differs from run to run, by `random()` for example, cannot send rows there"
        ),
    }
}
