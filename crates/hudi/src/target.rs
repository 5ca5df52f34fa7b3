// SPDX-License-Identifier: Apache-2.0
//! Writing a table: creation, locks, pending instants, completion, rollback and the metadata table.
//!
//! Each function here is one step of a transaction and does only I/O; the order of the steps and every decision
//! between them is the coordinator's.

mod archive;
mod clean;
mod clean_mark;
mod clean_records;
mod compact;
mod compaction;
mod create;
mod lease;
mod lock;
mod lock_file;
mod lsm;
mod markers;
mod metadata;
mod pending;
mod retain;
mod rollback;
mod statistics;

pub use archive::{Keep, archive_timelines, finish_archiving};
pub use clean::{Cleaned, cleaned_files, execute_clean, find_cleanable, pending_cleans, request_clean};
pub use clean_mark::CleanMark;
pub use compact::{Compacted, compact_metadata, deltas_since_compaction, metadata_timeline, undo_compactions};
pub use compaction::{Compaction, begin_compaction, delta_commits_since_compaction, find_compactable};
pub use create::{NewTable, create_table, replace_untouched};
pub use lease::LeaseSettings;
pub use lock::{LockKind, LockOwner, TableLock, acquire_lock, acquire_shared_lock, shared_lock_file};
pub use markers::{
    Marker, MarkerKind, delete_markers, list_markers, marked_instants, write_marker, write_partition_metafile,
};
pub use metadata::{FileChange, METADATA_DIR, undo_delta, write_delta};
pub use pending::{
    Owner, begin_instant, complete_instant, delete_heartbeat, find_completion, heartbeat_owner, mint_instant,
    own_heartbeats, read_owner, write_heartbeat,
};
pub use retain::CleanPlan;
pub use rollback::{
    RolledBack, delete_leftovers, pending_restores, pending_rollbacks, resume_rollback, rollback_instant,
    rolled_back_instant, rolled_back_instants,
};
pub use statistics::{StatsIndex, write_indexed_delta};
