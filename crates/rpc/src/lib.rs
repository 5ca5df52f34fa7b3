// SPDX-License-Identifier: Apache-2.0
//! The wire: generated gRPC code, conversions to and from the types of the roles, one client and one server adapter
//! per role, and Arrow Flight for rows.
//!
//! A client adapter implements its role's trait, so a caller cannot tell it from the service itself; the same suite
//! of tests passes both ways. An error keeps its kind, its fields, its code and its retry advice over every hop
//! ([`fault`]). This is the only crate that builds a [`tonic::Status`].
//!
//! A role that does not answer is an `Unreachable` error of that role. Row data never travels inside a control
//! message.

pub mod accept;
pub mod channel;
pub mod checkpoint;
pub mod convert;
pub mod coordinator;
pub mod described;
pub mod fault;
pub mod flight;
pub mod guard;
pub mod merge;
pub mod otlp;
pub mod proto;
pub mod timeline;
pub mod trace;
pub mod writer;

mod link;
mod remote;

pub use accept::{AcceptLimits, Incoming};
pub use channel::{AddressError, Channel, Dial, connect_lazily, connect_with};
pub use checkpoint::{CheckpointClient, CheckpointServer};
pub use coordinator::{CoordinatorClient, CoordinatorServer};
pub use flight::{Echo, FlightServer, PullSettings, Running};
pub use guard::{Caller, Guard, GuardLimits};
pub use link::Link;
pub use merge::{MergeClient, MergeServer};
pub use timeline::{TimelineClient, TimelineServer};
pub use writer::WriterClient;

use tributary_types::MemoryBudget;

/// Largest message that is accepted. A row travels whole, so this bounds the row; batches of smaller rows are cut to
/// about 2 MiB a message.
pub const MESSAGE_LIMIT: usize = 256 << 20;

/// Adds what another process counted at most to the peak of `budget`.
pub(crate) fn count_peak(budget: &MemoryBudget, bytes: usize) {
    budget.grow(bytes);
    budget.shrink(bytes);
}

#[cfg(test)]
mod testing;
