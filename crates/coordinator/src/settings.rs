// SPDX-License-Identifier: Apache-2.0
//! Settings of the coordinator role.

use std::time::Duration;

use tributary_hudi::target::LeaseSettings;

/// How batches are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Partitions that a query runs in.
    pub parallelism: usize,
    /// How often the heartbeat of a pending instant is renewed.
    pub heartbeat_every: Duration,
    /// After how long without renewal an instant is no longer ours: Hudi's default interval times the misses it
    /// tolerates.
    pub heartbeat_valid: Duration,
    /// How leases on targets in shared stores are kept.
    pub leases: LeaseSettings,
    /// How long a batch of a shared target waits for the lock that every writer takes, each time it needs it.
    pub lock_within: Duration,
    /// After how long a batch that waits for a lock says so, and again each time as long once more.
    pub lock_said_after: Duration,
    /// How long a request of a completing commit may take. A commit is begun or repeated only while the target's lock
    /// certainly holds for longer than this.
    pub commit_request: Duration,
    /// How often a completing request without an answer is repeated before its outcome is reported as unknown.
    pub commit_tries: u32,
    /// Pause between such tries.
    pub commit_pause: Duration,
    /// Batches that run at once.
    pub batches_at_once: usize,
    /// Memory that the budgets of all batches running at once may add up to, in bytes; `None`: no limit.
    pub memory: Option<u64>,
    /// How long a batch that was told to stop may take to acknowledge it before its instant is left to the next batch.
    pub stop_within: Duration,
    /// How long the checkpoint role may take to keep a record before the batch goes on without.
    pub record_within: Duration,
    /// Finished batches whose status is kept in memory.
    pub remembered_batches: usize,
    /// Rows of a record batch that a puller gets.
    pub pull_batch_rows: usize,
    /// Queries of pullers that run at once; further ones are turned away.
    pub queries_at_once: usize,
    /// Memory that each of them may hold, in bytes.
    pub query_memory: usize,
    /// Temporary disk space that each of them may fill, in bytes.
    pub query_spill: u64,
    /// How long each of them may take.
    pub query_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            parallelism: std::thread::available_parallelism().map_or(2, usize::from),
            heartbeat_every: Duration::from_secs(30),
            heartbeat_valid: Duration::from_secs(120),
            leases: LeaseSettings::default(),
            lock_within: Duration::from_secs(300),
            lock_said_after: Duration::from_secs(3),
            commit_request: Duration::from_secs(45),
            commit_tries: 5,
            commit_pause: Duration::from_millis(500),
            batches_at_once: 4,
            memory: None,
            stop_within: Duration::from_secs(60),
            record_within: Duration::from_secs(10),
            remembered_batches: 1000,
            pull_batch_rows: 8192,
            queries_at_once: 4,
            query_memory: 512 << 20,
            query_spill: 4 << 30,
            query_timeout: Duration::from_secs(600),
        }
    }
}
