// SPDX-License-Identifier: Apache-2.0
//! Integration tests: all roles in one process, over real tables in a temporary directory.

#![allow(clippy::unwrap_used)]

mod archived;
mod cancelling;
mod crashes;
mod errors;
mod history;
mod kills;
mod left_out;
mod main_job;
mod merge_on_read;
mod merge_on_read_target;
mod roles_apart;
mod services;
mod several;
mod shared_store;
mod support;
mod vanishing;
mod version_six;
