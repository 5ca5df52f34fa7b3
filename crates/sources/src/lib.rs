// SPDX-License-Identifier: Apache-2.0
//! The sources role: reads directories of CSV, JSON and Parquet files, and Kafka topics, incrementally.
//!
//! A plan fixes which whole files a window holds, each with its size and what the store calls its content. A file that
//! is gone or has other content when it is read is an error, so what was planned is what is delivered. The cursor is
//! the place of the last file in the order of the directory's files; beside it the checkpoint remembers which files near
//! it were read, so that one that appears or changes behind the cursor is noticed and never lost in silence.
//!
//! The CSV tokenizer and the JSON parser are ours: both know where a record begins, tell a quoted empty field from one
//! that is missing, and keep what a number says. Decoding streams: a batch of rows and a chunk of the file are in memory,
//! however large the file is.

mod cells;
mod charset;
mod csv;
mod decide;
mod fault;
mod fetch;
mod glob;
mod inflate;
mod json;
mod kafka;
mod listing;
pub mod metrics;
mod notice;
mod parquet;
mod pattern;
mod read;
mod record;
mod schema;
mod service;
mod settings;
mod settle;
mod sniff;
mod spark_time;
#[cfg(test)]
mod tests;

pub use service::Service;
pub use settings::Settings;
