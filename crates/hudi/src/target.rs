// SPDX-License-Identifier: Apache-2.0
//! Writing a table: creation, locks, pending instants, completion, rollback and the metadata table.
//!
//! Each function here is one step of a transaction and does only I/O; the order of the steps and every decision
//! between them is the coordinator's.

mod create;
mod lease;
mod lock;
mod markers;
mod metadata;
mod pending;
mod rollback;

pub use create::{NewTable, create_table, replace_untouched};
pub use lease::LeaseSettings;
pub use lock::{LockKind, LockOwner, TableLock, acquire_lock};
pub use markers::{
    Marker, MarkerKind, delete_markers, list_markers, marked_instants, write_marker, write_partition_metafile,
};
pub use metadata::{FileChange, METADATA_DIR, undo_delta, write_delta};
pub use pending::{
    Owner, begin_instant, complete_instant, delete_heartbeat, find_completion, mint_instant, read_owner,
    write_heartbeat,
};
pub use rollback::{RolledBack, pending_rollbacks, resume_rollback, rollback_instant};
