// SPDX-License-Identifier: Apache-2.0
//! All roles in this process.

use std::path::Path;
use std::sync::Arc;

use tributary_api::checkpoint::Checkpoints;
use tributary_api::coordinator::Coordinator;
use tributary_api::merge::Merge;
use tributary_api::timeline::Timeline;
use tributary_api::writer::Writer;
use tributary_hudi::Stores;
use tributary_store::{KeyValue, MemoryStore, SledStore};
use tributary_types::{Clock, Entropy};

/// The roles of one process, each behind the trait that its callers know.
#[derive(Clone)]
pub struct Embedded {
    /// Reads Hudi tables.
    pub timeline: Arc<dyn Timeline>,
    /// Finds cursors.
    pub checkpoints: Arc<dyn Checkpoints>,
    /// Runs the SQL.
    pub merge: Arc<dyn Merge>,
    /// Stages files.
    pub writer: Arc<dyn Writer>,
    /// Runs batches.
    pub coordinator: Arc<dyn Coordinator>,
}

/// Settings of every role.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Of the timeline role.
    pub timeline: tributary_timeline::Settings,
    /// Of the checkpoint role.
    pub checkpoint: tributary_checkpoint::Settings,
    /// Of the merge role.
    pub merge: tributary_merge::Settings,
    /// Of the writer role.
    pub writer: tributary_writer::Settings,
    /// Of the coordinator role.
    pub coordinator: tributary_coordinator::Settings,
}

/// Where checkpoint records are kept: on disk below `data`, in memory without it.
pub fn open_store(data: Option<&Path>) -> Result<Arc<dyn KeyValue>, tributary_store::Error> {
    Ok(match data {
        Some(directory) => Arc::new(SledStore::open(&directory.join("checkpoint"))?),
        None => Arc::new(MemoryStore::default()),
    })
}

/// Wires the roles over tables in `stores`.
pub fn embed(
    stores: Arc<dyn Stores>,
    store: Arc<dyn KeyValue>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    settings: Settings,
) -> Embedded {
    let timeline: Arc<dyn Timeline> =
        Arc::new(tributary_timeline::Service::new(Arc::clone(&stores), Arc::clone(&clock), settings.timeline));
    let checkpoints: Arc<dyn Checkpoints> =
        Arc::new(tributary_checkpoint::Service::new(Arc::clone(&stores), store, settings.checkpoint));
    let writer: Arc<dyn Writer> =
        Arc::new(tributary_writer::Service::new(Arc::clone(&stores), Arc::clone(&entropy), settings.writer));
    let merge: Arc<dyn Merge> =
        Arc::new(tributary_merge::Service::new(Arc::clone(&timeline), Arc::clone(&writer), settings.merge));
    let roles = tributary_coordinator::Roles {
        timeline: Arc::clone(&timeline),
        checkpoints: Arc::clone(&checkpoints),
        merge: Arc::clone(&merge),
    };
    let coordinator: Arc<dyn Coordinator> =
        Arc::new(tributary_coordinator::Service::new(roles, stores, clock, entropy, settings.coordinator));
    Embedded { timeline, checkpoints, merge, writer, coordinator }
}

/// The coordinator's default settings with a change: its crate is not a dependency of whoever only wires roles.
pub fn coordinator_settings(
    change: impl FnOnce(&mut tributary_coordinator::Settings),
) -> tributary_coordinator::Settings {
    let mut settings = tributary_coordinator::Settings::default();
    change(&mut settings);
    settings
}
