// SPDX-License-Identifier: Apache-2.0
//! The merge role: one SQL text over the pinned relations of a batch, its rows handed to the writer.
//!
//! The SQL names relations by placeholders (`<SRC:orders>`, `<SNAP:users>`), may define temporary views, and ends in
//! one query whose result is the batch. A batch gets an engine of its own: its views, its relations and its temporary
//! files are gone with it, and nothing but them can be named. What the query may call is a reviewed list of functions.
//!
//! Rows are pulled from the timeline role split by split, with the columns and simple conditions the query needs,
//! and pushed into the writer role. Query and writer share one memory budget, of which the query may use a part:
//! operators that can spill do, a hash join that cannot is planned again as a sort-merge join.
//!
//! On a failure the stream into the writer ends with an error, so the writer never mistakes a cut stream for a whole
//! one; the error keeps the code and the retry advice it had where it happened. Dropping the future of a run stops it.

pub mod baseline;
mod bounds;
mod calls;
mod casing;
mod correlated;
mod deep;
mod deletes;
mod dialect;
mod engine;
mod error;
mod functions;
mod handover;
mod joins;
mod memory;
pub mod metrics;
mod origins;
mod output;
mod placeholders;
mod planner;
mod predicate;
mod queries;
mod query;
mod refused;
mod relation;
mod sandbox;
mod scan;
mod script;
mod service;
mod settings;
mod sized;
mod steps;
mod transform;

#[cfg(test)]
mod fixtures;

pub use service::Service;
pub use settings::Settings;
