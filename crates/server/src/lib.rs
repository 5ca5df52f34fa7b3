// SPDX-License-Identifier: Apache-2.0
//! Everything of the `tributary` binary but its `main`: pipeline files, the wiring of the roles, the commands.
//!
//! The roles of an embedded run are the services themselves; nothing in them knows where the others run.

pub mod bench;
pub mod cli;
pub mod commands;
pub mod config;
pub mod embedded;
pub mod lineage;
pub mod peers;
pub mod pipeline_file;
pub mod properties_file;
pub mod roles;
pub mod security;
pub mod serve;
pub mod telemetry;

mod gate;
mod http;
mod news;
mod output;
pub mod readers;
mod replicas;
