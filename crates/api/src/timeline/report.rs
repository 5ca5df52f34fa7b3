// SPDX-License-Identifier: Apache-2.0
//! What is said of a window besides its rows.

use serde::{Deserialize, Serialize};
use tributary_types::InstantTime;

/// Figures of one window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowReport {
    /// Data commits in the window; of a topic the offsets in it, which is how many messages there are at most.
    pub instants: usize,
    /// Base and log files pinned for all relations.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Oldest pending data instant on the timeline.
    pub oldest_pending: Option<InstantTime>,
    /// Data commits after the window's end that are complete already; of a topic offsets.
    pub lag_instants: usize,
    /// Seconds between the window's end and the newest complete commit.
    pub lag_seconds: u64,
    /// How many commits the archiver and the cleaner, whichever is further, may still pass before the next batch of
    /// this source could not be read.
    pub headroom_instants: usize,
    /// Late instants that were delivered on request.
    pub late_delivered: Vec<InstantTime>,
    /// Requested time of the commit that the window begins after, where it is known.
    pub begin_requested: Option<InstantTime>,
    /// Requested time of the commit that the window ends with, where it is known.
    pub end_requested: Option<InstantTime>,
    /// The shared ceiling of an aligned batch is no cut: this table orders its commits by request while another source
    /// of the batch orders them by completion.
    pub not_a_cut: bool,
    /// A pending instant that completed commits wait for, where commits are read in the order of requests.
    #[serde(default)]
    pub waits_for: Option<InstantTime>,
    /// Why the source was left out: its files do not fit the table's schema, so its relations are empty and its cursor
    /// stays.
    #[serde(default)]
    pub skipped: Option<String>,
    /// The cursor was stale, so the whole table was read but for the rows of commits up to it. What was deleted since is
    /// lost.
    #[serde(default)]
    pub gap: bool,
    /// Files that appeared, or changed, before the cursor and are read with this window. The first
    /// [`NAMES_REPORTED`].
    #[serde(default)]
    pub late_files: Vec<String>,
    /// Files that appeared too late, or changed, and are left out as the source says; of a topic, partitions with the
    /// offsets that are lost. The first [`NAMES_REPORTED`].
    #[serde(default)]
    pub left_out: Vec<String>,
    /// How many are left out; of a topic, offsets.
    #[serde(default)]
    pub left_out_files: u64,
    /// What looks like no news and may be a mistake, as a sentence: a directory in which no file is read.
    #[serde(default)]
    pub notice: Option<String>,
}

/// Names that a report lists at most.
pub const NAMES_REPORTED: usize = 20;
