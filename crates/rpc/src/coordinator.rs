// SPDX-License-Identifier: Apache-2.0
//! The coordinator over gRPC, and its batches over Flight.

mod client;
mod pipelines;
mod server;

pub use client::CoordinatorClient;
pub use server::CoordinatorServer;

pub(crate) use server::{page_size, read_name};

#[cfg(test)]
mod tests;

#[cfg(test)]
mod stored_tests;
