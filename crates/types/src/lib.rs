// SPDX-License-Identifier: Apache-2.0
//! The words every part of Tributary shares: instants, cursors, checkpoints, names, outcomes, faults, the clock and
//! the memory budget.
//!
//! Nothing here does I/O or knows Arrow, tokio or gRPC, so every decision that is built from these types can be
//! tested as a pure function. A value that reached one of these types is valid: text from outside is parsed at the
//! edge, once.

mod checkpoint;
mod clock;
mod cursor;
mod fault;
mod files;
mod instant;
mod memory;
mod names;
mod offsets;
mod outcome;
pub mod pipeline;

pub use checkpoint::{
    Answer, Checkpoint, CheckpointError, FLAT_KEY, FLAT_KEY_V2, MalformedEntry, RECENT_INSTANTS, REQUESTS_KEPT,
    RequestRecord, SourceCheckpoint, checkpoint_key, flat_form, location_of, parse_flat_form, pipeline_of_key,
    same_location,
};
pub use clock::{Clock, Entropy, SystemClock, SystemEntropy};
pub use cursor::{Cursor, CursorError, CursorKind, Window};
pub use fault::{Code, Fault, Retry, with_causes};
pub use files::{FILES_KEPT, FILES_KNOWN, FilePosition, FilePositionError, FileState, Forgotten, ReadFile, path_hash};
pub use instant::{InstantError, InstantTime, Zone};
pub use memory::{MemoryBudget, MemoryExceeded, Reservation};
pub use names::{BatchName, NameError, PipelineName, RequestId, SourceName};
pub use offsets::{TopicOffsets, TopicOffsetsError, is_topic_name};
pub use outcome::{Outcome, Stage};
