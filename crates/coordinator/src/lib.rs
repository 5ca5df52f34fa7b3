// SPDX-License-Identifier: Apache-2.0
//! The coordinator role: one batch from its request to its outcome, and alone the completion of a commit.
//!
//! ```text
//! resolve   the newest commit of the target that carries this pipeline's cursors
//! plan      the window and the files of every source, all sources at once
//! begin     under the target's lock: finish what dead batches left, open an instant, pin the target's state
//! merge     the merge role pulls the rows, runs the SQL, pushes the result to the writer role
//! commit    the gate on a fresh listing, the metadata table's delta, then one put-if-absent
//! publish   table services that are due; the record of the batch
//! ```
//!
//! A failure before the commit rolls the instant back and leaves every cursor where it was. A commit whose answer was
//! lost is looked for, never guessed. A batch that is cancelled or runs out of time tells its stages to stop and waits
//! until they have, so that its instant can be rolled back at once. What decides is in `decide`, as pure functions.

mod batch;
mod beside;
mod catalog;
mod commit;
mod compaction;
mod conflict;
mod control;
mod decide;
mod flat;
mod heartbeat;
mod history;
mod housekeeping;
mod locks;
pub mod metrics;
mod operators;
mod overrides;
mod plan;
mod pull;
mod pulls;
mod refused;
mod registry;
mod remains;
mod report;
mod schedule;
mod schema;
mod service;
mod services;
mod setting;
mod settings;
pub mod source_metrics;
mod spans;
mod staged;
mod standing;
mod stored;
mod target;
mod turns;
mod watch;

pub use service::{Roles, Service};
pub use settings::Settings;
pub use staged::{file_changes, target_slices, write_stats};
