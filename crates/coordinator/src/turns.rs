// SPDX-License-Identifier: Apache-2.0
//! When a batch of a shared target takes the target's turn: after some conflicts in a row it keeps the other writers out
//! until it has committed, so that a pipeline whose batches are longer than theirs gets through.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tributary_api::checkpoint::BatchRecord;
use tributary_api::coordinator::{BatchStatus, Error};
use tributary_types::{BatchName, Outcome, PipelineName};

/// Conflicts with other writers in a row after which a batch takes the turn.
pub(crate) const CONFLICTS_BEFORE_TURN: usize = 3;
/// Records that are looked at: that many, and the batch's own.
pub(crate) const RECORDS: usize = CONFLICTS_BEFORE_TURN + 1;

/// Conflicts in a row of the pipelines of this process: what the records do not tell of a request that was repeated by
/// the same id.
#[derive(Default)]
pub(crate) struct Conflicts {
    in_a_row: Mutex<HashMap<PipelineName, usize>>,
}

impl Conflicts {
    /// Counts how a batch ended.
    pub(crate) fn ended<T>(&self, pipeline: &PipelineName, result: &Result<T, Error>) {
        let mut in_a_row = self.in_a_row.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(_) => {
                in_a_row.remove(pipeline);
            }
            Err(Error::WriterConflict { .. }) => *in_a_row.entry(pipeline.clone()).or_default() += 1,
            Err(_) => {}
        }
    }

    pub(crate) fn of(&self, pipeline: &PipelineName) -> usize {
        self.in_a_row.lock().unwrap_or_else(PoisonError::into_inner).get(pipeline).copied().unwrap_or(0)
    }
}

/// Conflicts with other writers that the newest records of a pipeline end with, newest first; `own` is the batch that
/// asks.
pub(crate) fn conflicts_in_a_row(records: &[BatchRecord], own: &BatchName) -> usize {
    let earlier = records.iter().map(|record| &record.status).filter(|status| &status.name != own);
    earlier.take_while(|status| met_another_writer(status)).count()
}

fn met_another_writer(status: &BatchStatus) -> bool {
    status.outcome == Some(Outcome::Conflict)
        && status.error.as_ref().is_some_and(|failure| failure.reason == Error::WRITER_CONFLICT)
}

#[cfg(test)]
mod tests {
    use tributary_api::coordinator::Written;
    use tributary_types::{RequestId, Stage};

    use super::*;

    fn conflict() -> Error {
        let instant = "20250101000000001".parse().unwrap();
        Error::WriterConflict { url: "/t".to_string(), instant, action: "INSERT".to_string(), what: "w".to_string() }
    }

    fn record(request: &str, outcome: Option<Outcome>, error: Option<Error>) -> BatchRecord {
        let pipeline = PipelineName::new("p").unwrap();
        let status = BatchStatus {
            name: BatchName::new(format!("p/{request}")).unwrap(),
            pipeline,
            request: RequestId::new(request).unwrap(),
            asked_by: String::new(),
            stage: Stage::Done,
            outcome,
            instant: None,
            completed: None,
            seq: None,
            overrides: Vec::new(),
            sources: Vec::new(),
            written: Written::default(),
            refused: Default::default(),
            timings: Vec::new(),
            peak_memory: 0,
            error: error.map(|error| error.failure()),
            started_millis: 0,
        };
        BatchRecord { status, target: "/t".to_string(), definition: String::new(), process: String::new() }
    }

    #[test]
    fn only_conflicts_with_other_writers_that_nothing_followed_count() {
        let met = |request| record(request, Some(Outcome::Conflict), Some(conflict()));
        let lock = Error::Conflict { url: "/t".to_string(), what: "the lock".to_string() };
        let records =
            [record("now", None, None), met("c"), met("b"), record("a", Some(Outcome::Committed), None), met("z")];
        let own = BatchName::new("p/now").unwrap();
        assert_eq!(conflicts_in_a_row(&records, &own), 2);
        let other = [met("c"), record("b", Some(Outcome::Conflict), Some(lock)), met("a")];
        assert_eq!(conflicts_in_a_row(&other, &own), 1);
    }

    #[test]
    fn a_commit_ends_the_row_and_other_failures_do_not() {
        let conflicts = Conflicts::default();
        let pipeline = PipelineName::new("p").unwrap();
        conflicts.ended::<()>(&pipeline, &Err(conflict()));
        conflicts.ended::<()>(&pipeline, &Err(Error::Cancelled));
        conflicts.ended::<()>(&pipeline, &Err(conflict()));
        assert_eq!(conflicts.of(&pipeline), 2);
        conflicts.ended(&pipeline, &Ok(()));
        assert_eq!(conflicts.of(&pipeline), 0);
    }
}
