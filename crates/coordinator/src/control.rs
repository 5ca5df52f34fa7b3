// SPDX-License-Identifier: Apache-2.0
//! Ending a batch early: by its caller, by its time limit, and never once it commits.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tributary_api::coordinator::Error;
use tributary_api::{Stop, StopSource};

/// Where a batch stands on its way to the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It may still be ended.
    Open,
    Cancelled,
    TimedOut,
    /// Its lock on the target went to another writer.
    LockLost,
    /// The commit began: it is not ended any more.
    Committing,
}

/// What ends a batch. Whichever comes first decides: an end, or the beginning of the commit.
#[derive(Debug)]
pub(crate) struct Control {
    /// The target, for messages.
    url: String,
    phase: Mutex<Phase>,
    stop: StopSource,
}

impl Control {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Control { url: url.into(), phase: Mutex::new(Phase::Open), stop: StopSource::new() }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, how: Phase) {
        let mut phase = self.phase();
        if *phase == Phase::Open {
            *phase = how;
            self.stop.stop();
        }
    }

    /// Ends the batch for its caller.
    pub(crate) fn cancel(&self) {
        self.end(Phase::Cancelled);
    }

    /// Ends the batch for its time limit.
    pub(crate) fn time_out(&self) {
        self.end(Phase::TimedOut);
    }

    /// Ends the batch because its lock on the target is lost.
    pub(crate) fn lose_lock(&self) {
        self.end(Phase::LockLost);
    }

    /// Whether the batch may commit. From then on it is not ended any more.
    pub(crate) fn begin_commit(&self, limit: &str) -> Result<(), Error> {
        let mut phase = self.phase();
        match self.error_of(*phase, limit) {
            Some(error) => Err(error),
            None => {
                *phase = Phase::Committing;
                Ok(())
            }
        }
    }

    /// Why the batch was ended, if it was. `limit` is its time limit, for the message.
    pub(crate) fn cause(&self, limit: &str) -> Option<Error> {
        self.error_of(*self.phase(), limit)
    }

    /// What the work of the batch looks at.
    pub(crate) fn stop(&self) -> Stop {
        self.stop.listen()
    }

    fn error_of(&self, phase: Phase, limit: &str) -> Option<Error> {
        match phase {
            Phase::Open | Phase::Committing => None,
            Phase::Cancelled => Some(Error::Cancelled),
            Phase::TimedOut => Some(Error::Timeout { limit: limit.to_string(), waiting: String::new() }),
            Phase::LockLost => Some(Error::Conflict {
                url: self.url.clone(),
                what: "another writer took the target's lock, or it could not be renewed, while rows were staged"
                    .to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_end_is_the_cause_and_stops_the_work() {
        let control = Control::new("t");
        let stop = control.stop();
        assert!(control.cause("1h").is_none() && !stop.is_set());
        control.time_out();
        control.cancel();
        assert!(matches!(control.cause("1h"), Some(Error::Timeout { limit, .. }) if limit == "1h"));
        assert!(stop.is_set());
        assert!(matches!(control.begin_commit("1h"), Err(Error::Timeout { .. })));
    }

    #[test]
    fn a_batch_that_loses_its_lock_must_not_commit() {
        let control = Control::new("s3://lake/out");
        control.lose_lock();
        let refused = control.begin_commit("1h").unwrap_err().to_string();
        assert!(refused.contains("s3://lake/out") && refused.contains("lock"), "{refused}");
    }

    #[test]
    fn a_batch_that_commits_is_not_cancelled_any_more() {
        let control = Control::new("t");
        control.begin_commit("1h").unwrap();
        control.cancel();
        assert!(control.cause("1h").is_none() && !control.stop().is_set());
    }
}
