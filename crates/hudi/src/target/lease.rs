// SPDX-License-Identifier: Apache-2.0
//! The storage lock: a lease in `.hoodie/.locks/table_lock.json`, the one that Hudi's `StorageBasedLockProvider`
//! takes, so that a Java writer configured with it and we exclude each other. A second one, in a file that nobody else
//! knows, serialises our own batches.
//!
//! The file is `{"expired": bool, "validUntil": milliseconds, "owner": text}`. It is free when it is absent, expired,
//! or past `validUntil` by half a second; it is taken, renewed and released by conditional writes only. Its holder may
//! be stopped for any time and wake up after the lease went to somebody else, so whoever completes a commit asks
//! [`Lease::left`] first and leaves room for the request itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::Instrument as _;
use tributary_types::Clock;

use crate::error::{Error, Result};
use crate::storage::{Storage, Version};

/// The lock's file, where Hudi 1.0.2 and later look for it.
pub(crate) const LEASE_FILE: &str = ".hoodie/.locks/table_lock.json";
/// The file of the lock among our own batches.
pub(crate) const TURN_FILE: &str = ".hoodie/.locks/tributary_lock.json";
/// By how much a lease must be over before another writer takes it: Hudi's own allowance for clocks that differ.
const SKEW_MILLIS: i64 = 500;
const POLL: Duration = Duration::from_millis(500);

/// How long leases hold, and how they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// For how long a lease holds from each renewal: as long a dead process keeps others out.
    pub valid: Duration,
    /// How often a held lease is renewed; a tenth of `valid` at most.
    pub renew_every: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        LeaseSettings { valid: Duration::from_secs(180), renew_every: Duration::from_secs(15) }
    }
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaseFile {
    expired: bool,
    valid_until: i64,
    owner: String,
}

impl LeaseFile {
    fn is_free(&self, now_millis: i64) -> bool {
        self.expired || now_millis > self.valid_until.saturating_add(SKEW_MILLIS)
    }

    fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::corrupt("a lease", e))
    }
}

struct State {
    version: Version,
    valid_until: i64,
}

struct Shared {
    storage: Storage,
    file: &'static str,
    clock: Arc<dyn Clock>,
    settings: LeaseSettings,
    owner: String,
    state: Mutex<State>,
    lost: watch::Sender<bool>,
}

/// A held lease; renewed in the background until it is released or dropped. A dropped one lapses by itself.
pub(crate) struct Lease {
    shared: Arc<Shared>,
    renewing: tokio::task::JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Lease {
    /// For how long the lease still holds; nothing once it is lost.
    pub(crate) fn left(&self) -> Duration {
        self.shared.left()
    }

    /// Waits until the lease is lost: taken by somebody else, or run out because it could not be renewed.
    pub(crate) async fn lost(&self) {
        let mut lost = self.shared.lost.subscribe();
        // The sender lives as long as this lease.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// Gives the lease back, so that others need not wait for its end.
    pub(crate) async fn release(self) -> Result<()> {
        self.renewing.abort();
        // An aborted renewal may have been written all the same: what the file says now is what is replaced.
        self.shared.replace_own(|file| file.expired = true).await.map(drop)
    }
}

impl Shared {
    fn left(&self) -> Duration {
        if *self.lost.borrow() {
            return Duration::ZERO;
        }
        let until = self.state.lock().unwrap_or_else(PoisonError::into_inner).valid_until;
        Duration::from_millis(u64::try_from(until - self.clock.now_millis()).unwrap_or(0))
    }

    /// Rewrites the file if it is still ours; `false` when it is not.
    async fn replace_own(&self, change: impl FnOnce(&mut LeaseFile)) -> Result<bool> {
        let Some((mut file, version)) = read_lease(&self.storage, self.file).await? else { return Ok(false) };
        if file.owner != self.owner || file.expired {
            return Ok(false);
        }
        change(&mut file);
        let written = self.storage.put_over(self.file, file.to_json()?, Some(version)).await?;
        let Some(version) = written else { return Ok(false) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = State { version, valid_until: file.valid_until };
        Ok(true)
    }

    async fn renew(&self) -> Result<bool> {
        // Counted from before the request: it may take long.
        let until = self.clock.now_millis() + self.settings.valid.as_millis() as i64;
        let known = self.state.lock().unwrap_or_else(PoisonError::into_inner).version.clone();
        let file = LeaseFile { expired: false, valid_until: until, owner: self.owner.clone() };
        if let Some(version) = self.storage.put_over(self.file, file.to_json()?, Some(known)).await? {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            *state = State { version, valid_until: until };
            return Ok(true);
        }
        // Somebody else's, or our own renewal whose answer was lost: the file says which.
        self.replace_own(|file| file.valid_until = until).await
    }
}

/// Takes the lease in `file`, waiting at most `wait`; `None` when others held it all that time.
///
/// # Errors
/// [`Error::Corrupt`] if the file is there and is no lease: it is never overwritten on a guess.
pub(crate) async fn acquire(
    storage: &Storage,
    file: &'static str,
    clock: &Arc<dyn Clock>,
    settings: &LeaseSettings,
    owner: &str,
    wait: Duration,
) -> Result<Option<Lease>> {
    let mut waited = Duration::ZERO;
    loop {
        let found = read_lease(storage, file).await?;
        let now = clock.now_millis();
        // Ours and not expired: an earlier try arrived and its answer was lost.
        let free = found.as_ref().is_none_or(|(lease, _)| lease.is_free(now) || lease.owner == owner);
        if free {
            let until = now + settings.valid.as_millis() as i64;
            let lease = LeaseFile { expired: false, valid_until: until, owner: owner.to_string() };
            let over = found.map(|(_, version)| version);
            match storage.put_over(file, lease.to_json()?, over).await {
                Ok(Some(version)) => {
                    let state = State { version, valid_until: until };
                    let shared = Shared {
                        storage: storage.clone(),
                        file,
                        clock: Arc::clone(clock),
                        settings: settings.clone(),
                        owner: owner.to_string(),
                        state: Mutex::new(state),
                        lost: watch::Sender::new(false),
                    };
                    return Ok(Some(hold(shared)));
                }
                Ok(None) => {}
                // Looking again tells whether it arrived.
                Err(error) if waited < wait && error.outcome_unknown() => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "no answer while taking the table's lock");
                }
                Err(error) => return Err(error),
            }
        }
        if waited >= wait {
            return Ok(None);
        }
        tokio::time::sleep(POLL).await;
        waited += POLL;
    }
}

fn hold(shared: Shared) -> Lease {
    let shared = Arc::new(shared);
    let renewing = tokio::spawn(keep(Arc::clone(&shared)).in_current_span());
    Lease { shared, renewing }
}

async fn keep(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(shared.settings.renew_every).await;
        match shared.renew().await {
            Ok(true) => continue,
            Ok(false) => tracing::error!(table = shared.storage.url(), "the table's lock was taken by another writer"),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the table's lock could not be renewed");
                if !shared.left().is_zero() {
                    continue;
                }
            }
        }
        shared.lost.send_replace(true);
        return;
    }
}

/// Who holds a lease, and how many milliseconds ago it was renewed at the latest, if it is renewed for as long as ours
/// are; `None` where nobody does, or it cannot be told.
pub(super) async fn holder(storage: &Storage, file: &str, now_millis: i64) -> Option<(Option<String>, Option<i64>)> {
    let (lease, _) = read_lease(storage, file).await.ok()??;
    let valid = LeaseSettings::default().valid.as_millis() as i64;
    Some((Some(lease.owner), Some(now_millis - (lease.valid_until - valid))))
}

async fn read_lease(storage: &Storage, file: &str) -> Result<Option<(LeaseFile, Version)>> {
    let Some((bytes, version)) = storage.get_versioned(file).await? else { return Ok(None) };
    let lease = serde_json::from_slice(&bytes)
        .map_err(|e| Error::corrupt(file, format!("it is no lock of Hudi's ({e}); once no writer runs, remove it")))?;
    Ok(Some((lease, version)))
}

#[cfg(test)]
mod tests;
