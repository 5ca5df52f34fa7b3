// SPDX-License-Identifier: Apache-2.0
//! Integration tests: all roles in one process, over real tables in a temporary directory.

#![allow(clippy::unwrap_used)]

mod archived;
mod cancelling;
mod crashes;
mod errors;
mod files;
mod history;
mod kills;
mod main_job;
mod merge_on_read;
mod roles_apart;
mod services;
mod several;
mod shared_store;
mod support;
mod vanishing;
mod version_six;
