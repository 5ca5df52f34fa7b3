// SPDX-License-Identifier: Apache-2.0
//! The checkpoint role: where each pipeline stands in its target, and what its last batches did.
//!
//! The target's timeline is read first and always believed. The local store keeps the history of batches, the newest
//! known position of each pipeline and its epoch; it is compared with the target at every resolve, repaired where it
//! disagrees, and can be lost.

mod archive;
mod decide;
pub mod metrics;
mod records;
mod service;
mod settings;

pub use service::Service;
pub use settings::Settings;
