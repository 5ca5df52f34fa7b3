// SPDX-License-Identifier: Apache-2.0
//! The timeline role: reads Hudi tables incrementally.
//!
//! A plan fixes the window of a source, (begin, end] in the order in which commits completed (were requested, on tables
//! of version 6), together with every file that will be read, from one listing of the timeline. Windows tile: no commit that changed rows is left out
//! or read twice, and one that appears inside a window read earlier is reported or delivered as late. Reading a
//! split looks at nothing but its file, so what was planned is what is delivered, or an error that says which file
//! is gone.
//!
//! What decides (`decide`, `readset`) is pure; the rest reads facts or acts on what was decided.

mod cache;
mod complete;
mod decide;
mod deleted;
mod deleted_rows;
mod facts;
mod fault;
mod headroom;
mod identity;
mod left_out;
pub mod metrics;
mod prune;
mod read;
mod readset;
mod refuse;
mod relations;
mod restamped;
mod schema;
mod service;
mod settings;
#[cfg(test)]
mod tests;
mod touched;

pub use service::Service;
pub use settings::Settings;
