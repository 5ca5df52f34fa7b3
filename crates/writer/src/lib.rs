// SPDX-License-Identifier: Apache-2.0
//! The writer role: rows in, staged base files out.
//!
//! One staging has three steps. **Ingest** reads all rows, makes their keys and keeps them in memory or, past a share
//! of the batch's budget, in temporary files, divided by key so that each part fits in memory; of each key one row is
//! kept, or all are folded into one by merge operators. **Tag** finds the file
//! group of every key in the slices that the coordinator pinned. **Write** rewrites the groups that have updates, or
//! gives them a log file in a merge-on-read table, and makes new groups for the rest, several files at once, a marker
//! before each.
//!
//! A staging that fails leaves files behind; its markers name them all, and the rollback of the instant removes them.
//! Nothing staged is ever used by another attempt.

mod combine;
mod deletes;
mod delta;
mod files;
mod fold;
mod ingest;
pub mod metrics;
mod order;
mod pack;
mod parallel;
mod service;
mod settings;
mod spool;
mod tag;

pub use service::Service;
pub use settings::Settings;
