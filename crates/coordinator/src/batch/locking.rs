// SPDX-License-Identifier: Apache-2.0
//! Which lock a batch takes when.

use std::time::Duration;

use async_trait::async_trait;
use tributary_api::coordinator::Error;
use tributary_hudi::Storage;
use tributary_hudi::target::{LockHolder, LockKind, TableLock, acquire_lock, acquire_shared_lock, lock_holder};
use tributary_types::pipeline::{Span, Writers};

use super::Batch;
use crate::locks::{Locks, Relock, give_back};
use crate::metrics;
use crate::target::target_error;
use crate::turns::{CONFLICTS_BEFORE_TURN, RECORDS, conflicts_in_a_row};

/// For how long a lock is asked for before the batch looks whether it was ended.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// One of the two locks of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// The one among our own batches.
    Turn,
    /// The one that every writer takes.
    Table,
}

/// A batch that takes the lock of all writers once more after it let them in.
pub(super) struct Relocking<'b, 'a> {
    pub(super) batch: &'b Batch<'a>,
    pub(super) locks: &'b Locks,
}

#[async_trait]
impl Relock for Relocking<'_, '_> {
    async fn relock(&self) -> Result<Option<TableLock>, Error> {
        self.batch.table_lock_to_clean_up(self.locks).await
    }
}

impl Batch<'_> {
    /// Takes the locks that are held for the whole batch.
    pub(super) async fn take_locks(&self, limit: Duration) -> Result<Locks, Error> {
        let turn = self.take_lock(&self.storage, Which::Turn, limit).await?;
        let whole = match self.takes_all().await {
            true => self.take_lock(&self.storage, Which::Table, limit).await.map(Some),
            false => Ok(None),
        };
        match whole {
            Ok(whole) => Ok(Locks::new(turn, whole)),
            Err(error) => {
                give_back(turn).await;
                Err(error)
            }
        }
    }

    /// Takes the locks of the error table, for as long as its commit takes.
    pub(super) async fn take_error_locks(&self, storage: &Storage) -> Result<Locks, Error> {
        let limit = self.inner.settings.lock_within;
        let turn = self.take_lock(storage, Which::Turn, limit).await?;
        if !matches!(storage.lock_kind(), LockKind::Lease) {
            return Ok(Locks::new(turn, None));
        }
        match self.take_lock(storage, Which::Table, limit).await {
            Ok(whole) => Ok(Locks::new(turn, Some(whole))),
            Err(error) => {
                give_back(turn).await;
                Err(error)
            }
        }
    }

    /// Whether the lock that every writer takes is held for the whole batch: an exclusive target's lease, and on a shared
    /// target after some conflicts in a row.
    async fn takes_all(&self) -> bool {
        if self.writers() == Writers::Exclusive {
            return matches!(self.storage.lock_kind(), LockKind::Lease);
        }
        let pipeline = &self.request.pipeline.name;
        let name = self.status.borrow().name.clone();
        let recorded = match self.inner.roles.checkpoints.history(Some(pipeline), RECORDS).await {
            Ok(records) => conflicts_in_a_row(&records, &name),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "how earlier batches ended cannot be looked up");
                0
            }
        };
        let conflicts = recorded.max(self.inner.conflicts.of(pipeline));
        if conflicts < CONFLICTS_BEFORE_TURN {
            return false;
        }
        tracing::info!(conflicts, "the batch keeps other writers out until it has committed");
        ::metrics::counter!(metrics::TURNS, "pipeline" => pipeline.to_string()).increment(1);
        true
    }

    /// Takes the lock that every writer takes, for a moment; `None` where nobody else may write, or it is held already.
    pub(super) async fn table_lock(&self, locks: &Locks) -> Result<Option<TableLock>, Error> {
        if self.writers() == Writers::Exclusive || locks.hold_all() {
            return Ok(None);
        }
        self.take_lock(&self.storage, Which::Table, self.inner.settings.lock_within).await.map(Some)
    }

    /// The same after a failure, which may be that the batch was ended, and for table services.
    pub(super) async fn table_lock_to_clean_up(&self, locks: &Locks) -> Result<Option<TableLock>, Error> {
        if self.writers() == Writers::Exclusive || locks.hold_all() {
            return Ok(None);
        }
        let within = self.inner.settings.stop_within;
        match self.ask(&self.storage, Which::Table, within).await? {
            Some(lock) => Ok(Some(lock)),
            None => Err(self.held_elsewhere(&self.storage, Which::Table, within).await),
        }
    }

    /// Takes a lock. It is asked for again and again for a short time: a lease that was taken while nobody waited for it
    /// any more would keep others out until it lapses.
    async fn take_lock(&self, storage: &Storage, which: Which, limit: Duration) -> Result<TableLock, Error> {
        let mut waited = Duration::ZERO;
        let mut say_after = self.inner.settings.lock_said_after;
        loop {
            if let Err(ended) = self.go_on() {
                return Err(self.ended_while_waiting(storage, ended, which, waited).await);
            }
            if waited >= say_after {
                let (holder, waited_s) = (self.holder(storage, which).await, waited.as_secs());
                tracing::warn!(waited_s, holder = %holder, file = holder.file, "waiting for the target's lock");
                // Less often the longer it takes.
                say_after = waited.saturating_mul(2);
            }
            let wait = LOCK_WAIT.min(limit - waited);
            if let Some(lock) = self.ask(storage, which, wait).await? {
                return Ok(lock);
            }
            waited += wait;
            if waited >= limit {
                return Err(self.held_elsewhere(storage, which, limit).await);
            }
        }
    }

    async fn holder(&self, storage: &Storage, which: Which) -> LockHolder {
        lock_holder(storage, which == Which::Table, self.inner.clock.now_millis()).await
    }

    /// The end of a batch that waited for a lock, which then is what its time went into.
    async fn ended_while_waiting(&self, storage: &Storage, ended: Error, which: Which, waited: Duration) -> Error {
        match ended {
            Error::Timeout { limit, .. } if !waited.is_zero() => {
                let waiting = format!(
                    ", since it waited for the target's lock, {} (if its holder died, remove that file once no writer \
                     runs)",
                    self.holder(storage, which).await
                );
                Error::Timeout { limit, waiting }
            }
            other => other,
        }
    }

    async fn ask(&self, storage: &Storage, which: Which, wait: Duration) -> Result<Option<TableLock>, Error> {
        let owner = self.inner.lock_owner(&format!("{}/{}", self.request.pipeline.name, self.request.request));
        let lock = match which {
            Which::Turn => acquire_lock(storage, &owner, wait).await,
            Which::Table => acquire_shared_lock(storage, &owner, wait).await,
        };
        lock.map_err(|e| target_error(storage.url(), "taking the target's lock", e))
    }

    async fn held_elsewhere(&self, storage: &Storage, which: Which, limit: Duration) -> Error {
        let (limit, holder) = (Span(limit), self.holder(storage, which).await);
        let what = match which {
            Which::Turn => format!("another batch held the target's lock for {limit}: {holder}"),
            Which::Table => format!(
                "another writer held the target's lock for {limit}: {holder}; a writer that died may have left it: once \
                 none runs, remove that file"
            ),
        };
        Error::Conflict { url: storage.url().to_string(), what }
    }

    fn writers(&self) -> Writers {
        self.request.pipeline.target.writers
    }
}
