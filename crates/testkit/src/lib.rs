// SPDX-License-Identifier: Apache-2.0
//! What tests share: tables written by Spark, and whatever else several crates test with.

mod fixtures;

pub use fixtures::Fixture;
