// SPDX-License-Identifier: Apache-2.0
//! Integration tests: all roles in one process, over real tables in a temporary directory.

#![allow(clippy::unwrap_used)]

mod answering;
mod archived;
mod bindings;
mod cancelling;
mod crashes;
mod errors;
mod files;
mod history;
mod kafka;
mod kills;
mod left_out;
mod main_job;
mod merge_on_read;
mod merge_on_read_target;
mod messages;
mod migration;
mod operations;
mod operators;
mod overrides;
mod pages;
mod planning;
mod process;
mod pulling;
mod restored_target;
mod reused_ids;
mod roles_apart;
mod schema_failures;
mod server_away;
mod services;
mod several;
mod shared_store;
mod shared_writers;
mod source_reports;
mod source_sets;
mod stopping;
mod support;
mod traces;
mod unreachable;
mod vanishing;
mod version_six;
