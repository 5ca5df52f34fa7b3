// SPDX-License-Identifier: Apache-2.0
//! The two locks of a target: the one that our own batches follow one another by, and the one that every writer takes.
//!
//! Ours is held by every batch from its beginning to its end, so that whoever holds it knows that every pending instant
//! of ours is dead. The other one an exclusive target holds as long, where it is a lease that others could take; a shared
//! target holds it while something is read or written that must not change in between: at the beginning, at the commit
//! and during table services. They are taken in this order.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tributary_api::coordinator::Error;
use tributary_hudi::target::TableLock;

/// The locks of a batch, as long as it runs.
pub(crate) struct Locks {
    turn: TableLock,
    whole: Option<TableLock>,
}

/// What is held of them at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    turn: &'a TableLock,
    table: Option<&'a TableLock>,
}

impl Locks {
    /// `whole` is the lock that every writer takes, where it is held for the whole batch.
    pub(crate) fn new(turn: TableLock, whole: Option<TableLock>) -> Self {
        Locks { turn, whole }
    }

    /// Whether other writers are kept out from beginning to end.
    pub(crate) fn hold_all(&self) -> bool {
        self.whole.is_some()
    }

    /// What is held, with a lock of this moment.
    pub(crate) fn held<'a>(&'a self, table: Option<&'a TableLock>) -> Held<'a> {
        Held { turn: &self.turn, table: table.or(self.whole.as_ref()) }
    }

    /// Waits until one is lost.
    pub(crate) async fn lost(&self) {
        self.held(None).lost().await;
    }

    /// Gives them back.
    pub(crate) async fn give_back(self) {
        if let Some(whole) = self.whole {
            give_back(whole).await;
        }
        give_back(self.turn).await;
    }
}

impl Held<'_> {
    /// For how long all of it certainly still holds; `None`: until it is released.
    pub(crate) fn left(&self) -> Option<Duration> {
        [Some(self.turn), self.table].into_iter().flatten().filter_map(TableLock::left).min()
    }

    /// Waits until a part of it is lost.
    pub(crate) async fn lost(&self) {
        let Some(table) = self.table else { return self.turn.lost().await };
        tokio::select! {
            () = self.turn.lost() => {}
            () = table.lost() => {}
        }
    }
}

/// Takes the lock that every writer takes once more.
#[async_trait]
pub(crate) trait Relock: Send + Sync {
    /// Waits for the lock; `None` where it is held for the whole batch, or nobody else may write.
    async fn relock(&self) -> Result<Option<TableLock>, Error>;
}

/// The locks during table services: the one that every writer takes is given back while a service writes files that
/// nobody reads yet.
pub(crate) struct Pausable<'a> {
    locks: &'a Locks,
    table: Mutex<Option<TableLock>>,
    relock: &'a dyn Relock,
}

impl<'a> Pausable<'a> {
    /// `table` is held now.
    pub(crate) fn new(locks: &'a Locks, table: Option<TableLock>, relock: &'a dyn Relock) -> Self {
        Pausable { locks, table: Mutex::new(table), relock }
    }

    /// Lets other writers in, where they are kept out for this moment only.
    pub(crate) async fn pause(&self) {
        if let Some(table) = self.table.lock().await.take() {
            give_back(table).await;
        }
    }

    /// Keeps them out again. Whatever they did meanwhile must be looked at anew.
    pub(crate) async fn go_on(&self) -> Result<(), Error> {
        let mut table = self.table.lock().await;
        if table.is_none() {
            *table = self.relock.relock().await?;
        }
        Ok(())
    }

    /// For how long what is held certainly still holds; `None`: until it is released.
    pub(crate) async fn left(&self) -> Option<Duration> {
        let table = self.table.lock().await;
        self.locks.held(table.as_ref()).left()
    }

    /// Waits until a lock of the whole batch is lost.
    pub(crate) async fn lost(&self) {
        self.locks.lost().await;
    }

    /// What is held in the end.
    pub(crate) fn into_table(self) -> Option<TableLock> {
        self.table.into_inner()
    }
}

/// Gives a lock back; one that cannot be given back lapses by itself, or the next batch knows that it was ours.
pub(crate) async fn give_back(lock: TableLock) {
    if let Err(error) = lock.release().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "the target's lock stays until it lapses");
    }
}
