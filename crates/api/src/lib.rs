// SPDX-License-Identifier: Apache-2.0
//! One trait per role, with its requests, answers and errors. No gRPC and no engine: a role is an `Arc<dyn Trait>`,
//! and whoever calls it cannot tell whether the service itself or an adapter over a channel is behind it.
//!
//! Row data is a boxed stream of record batches ([`RowStream`]); it is the one heavy type of this crate.

pub mod checkpoint;
pub mod coordinator;
pub mod merge;
pub mod pipelines;
pub mod predicate;
pub mod pulls;
pub mod refused;
pub mod timeline;
pub mod transform;
pub mod writer;

mod observer;
mod operators;
mod progress;
mod rows;
mod stop;

pub use observer::{BatchObserver, Schemas};
pub use operators::operator_problem;
pub use progress::{Progress, ReadCounter, SourceRead};
pub use rows::{BoxedError, RowError, RowStream, boxed_error};
pub use stop::{Stop, StopSource};
