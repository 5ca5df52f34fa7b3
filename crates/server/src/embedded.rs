// SPDX-License-Identifier: Apache-2.0
//! All roles in this process.

use std::path::Path;
use std::sync::Arc;

use tributary_api::BatchObserver;
use tributary_api::checkpoint::Checkpoints;
use tributary_api::coordinator::Coordinator;
use tributary_api::merge::Merge;
use tributary_api::pipelines::Pipelines;
use tributary_api::pulls::Pulls;
use tributary_api::timeline::Timeline;
use tributary_api::transform::Transforms;
use tributary_api::writer::Writer;
use tributary_hudi::Stores;
use tributary_store::{KeyValue, MemoryStore, SledStore};
use tributary_types::{Clock, Entropy};

use crate::roles::{Elsewhere, Parts, Role, host};

/// The roles of one process, each behind the trait that its callers know.
#[derive(Clone)]
pub struct Embedded {
    /// Reads Hudi tables.
    pub timeline: Arc<dyn Timeline>,
    /// Reads directories of files, and topics.
    pub sources: Arc<dyn Timeline>,
    /// Finds cursors.
    pub checkpoints: Arc<dyn Checkpoints>,
    /// Runs the SQL.
    pub merge: Arc<dyn Merge>,
    /// Stages files.
    pub writer: Arc<dyn Writer>,
    /// Runs batches.
    pub coordinator: Arc<dyn Coordinator>,
    /// Keeps pipelines: the coordinator again.
    pub pipelines: Arc<dyn Pipelines>,
    /// Answers pulls; `None` where the coordinator is in another process, which answers them itself.
    pub pulls: Option<Arc<dyn Pulls>>,
}

/// Settings of every role.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Of the timeline role.
    pub timeline: tributary_timeline::Settings,
    /// Of the sources role.
    pub sources: tributary_sources::Settings,
    /// Of the checkpoint role.
    pub checkpoint: tributary_checkpoint::Settings,
    /// Of the merge role.
    pub merge: tributary_merge::Settings,
    /// Of the writer role.
    pub writer: tributary_writer::Settings,
    /// Of the coordinator role.
    pub coordinator: tributary_coordinator::Settings,
    /// Steps in Rust, which pipelines name as `rust = "name"`.
    pub transforms: Transforms,
}

/// Where the roles of a process keep what they remember: on disk below `data`, in memory without it.
pub fn open_store(data: Option<&Path>) -> Result<Arc<dyn KeyValue>, tributary_store::Error> {
    open_store_of(data, Role::Checkpoint)
}

/// The same of a process whose first role with a memory is `role`: two on one machine may share `data`.
pub fn open_store_of(data: Option<&Path>, role: Role) -> Result<Arc<dyn KeyValue>, tributary_store::Error> {
    Ok(match data {
        Some(directory) => Arc::new(SledStore::open(&directory.join(role.as_str()))?),
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
    embed_observed(stores, store, clock, entropy, settings, None)
}

/// The same, telling an observer of its batches.
pub fn embed_observed(
    stores: Arc<dyn Stores>,
    store: Arc<dyn KeyValue>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    settings: Settings,
    observer: Option<Arc<dyn BatchObserver>>,
) -> Embedded {
    const HERE: &str = "every role was asked for, so every role is here";
    let parts = Parts { stores, store, clock, entropy };
    let hosted = host(&Role::ALL, &Elsewhere::default(), &parts, settings).expect(HERE);
    if let Some(observer) = observer {
        hosted.observe(observer);
    }
    Embedded {
        timeline: hosted.timeline.expect(HERE),
        sources: hosted.sources.expect(HERE),
        checkpoints: hosted.checkpoints.expect(HERE),
        merge: hosted.merge.expect(HERE),
        writer: hosted.writer.expect(HERE),
        coordinator: hosted.coordinator.expect(HERE),
        pipelines: hosted.pipelines.expect(HERE),
        pulls: hosted.pulls,
    }
}

/// Settings of the coordinator role: its crate is not a dependency of whoever only wires roles.
pub type CoordinatorSettings = tributary_coordinator::Settings;

/// Settings of the writer role.
pub type WriterSettings = tributary_writer::Settings;

/// The coordinator's default settings with a change.
pub fn coordinator_settings(change: impl FnOnce(&mut CoordinatorSettings)) -> CoordinatorSettings {
    let mut settings = CoordinatorSettings::default();
    change(&mut settings);
    settings
}
