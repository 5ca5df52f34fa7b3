// SPDX-License-Identifier: Apache-2.0
//! Topics of Apache Kafka.
//!
//! A plan fixes the span of offsets that a window holds of each partition; its ends are the last stable offsets, so that
//! every transaction in it is over. Reading stops at these ends by position, not by number: compaction and transactions
//! leave holes. The cursor is the next offset of each partition, and is kept in the target alone: nothing is committed to
//! the brokers.

mod batch;
mod client;
mod connection;
mod decide;
mod log;
mod plan;
mod read;
mod rows;
mod schema;
#[cfg(test)]
mod tests;

pub(crate) use client::Client;
pub(crate) use plan::plan;
pub(crate) use read::read;
