// SPDX-License-Identifier: Apache-2.0
//! Which roles run in this process, and how those that do not are reached.

use std::sync::Arc;

use clap::ValueEnum;
use tributary_api::BatchObserver;
use tributary_api::checkpoint::Checkpoints;
use tributary_api::coordinator::Coordinator;
use tributary_api::merge::Merge;
use tributary_api::pipelines::Pipelines;
use tributary_api::pulls::Pulls;
use tributary_api::timeline::Timeline;
use tributary_api::writer::Writer;
use tributary_hudi::Stores;
use tributary_store::KeyValue;
use tributary_types::{Clock, Entropy, with_causes};

use crate::embedded::{Embedded, Settings};
use crate::readers::Readers;

/// A role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Role {
    /// Reads Hudi tables.
    Timeline,
    /// Finds and keeps cursors.
    Checkpoint,
    /// Runs the SQL; calls timeline and writer.
    Merge,
    /// Stages files.
    Writer,
    /// Runs batches; calls timeline, checkpoint and merge.
    Coordinator,
    /// Reads directories of files, and topics.
    Sources,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 6] =
        [Role::Timeline, Role::Sources, Role::Checkpoint, Role::Merge, Role::Writer, Role::Coordinator];

    /// The name on the command line and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Timeline => "timeline",
            Role::Checkpoint => "checkpoint",
            Role::Merge => "merge",
            Role::Writer => "writer",
            Role::Coordinator => "coordinator",
            Role::Sources => "sources",
        }
    }
}

/// A role that is needed and cannot be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the role `{}` runs here and calls `{}`, which does not: run that here too, or say where it is with \
     --{}-address http://HOST:PORT",
    user.as_str(), needed.as_str(), needed.as_str()
)]
pub struct Missing {
    /// Who needs it.
    pub user: Role,
    /// What is needed.
    pub needed: Role,
}

/// Roles in other processes.
#[derive(Default, Clone)]
pub struct Elsewhere {
    /// Reads Hudi tables.
    pub timeline: Option<Arc<dyn Timeline>>,
    /// Reads directories of files, and topics.
    pub sources: Option<Arc<dyn Timeline>>,
    /// Finds cursors.
    pub checkpoints: Option<Arc<dyn Checkpoints>>,
    /// Runs the SQL.
    pub merge: Option<Arc<dyn Merge>>,
    /// Stages files.
    pub writer: Option<Arc<dyn Writer>>,
}

/// Roles in this process.
#[derive(Default, Clone)]
pub struct Hosted {
    /// Reads Hudi tables.
    pub timeline: Option<Arc<dyn Timeline>>,
    /// Reads directories of files, and topics.
    pub sources: Option<Arc<dyn Timeline>>,
    /// Finds cursors.
    pub checkpoints: Option<Arc<dyn Checkpoints>>,
    /// Runs the SQL.
    pub merge: Option<Arc<dyn Merge>>,
    /// Stages files.
    pub writer: Option<Arc<dyn Writer>>,
    /// Runs batches.
    pub coordinator: Option<Arc<dyn Coordinator>>,
    /// Keeps pipelines: the coordinator again.
    pub pipelines: Option<Arc<dyn Pipelines>>,
    /// Answers pulls; the coordinator role does.
    pub pulls: Option<Arc<dyn Pulls>>,
    pub(crate) start_up: StartUp,
}

/// What roles do once when their process starts.
#[derive(Default, Clone)]
pub(crate) struct StartUp {
    checkpoints: Option<Arc<tributary_checkpoint::Service>>,
    coordinator: Option<Arc<tributary_coordinator::Service>>,
}

impl Hosted {
    /// Compares what the local records say with the targets, repairs them, and finds out what became of batches that an
    /// earlier process left. Answers what was done, a sentence each.
    pub async fn start_up(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(checkpoints) = &self.start_up.checkpoints {
            match checkpoints.repair().await {
                Ok(repaired) => said.extend(repaired),
                Err(error) => said.push(format!("the local records cannot be read: {}", with_causes(&error))),
            }
        }
        if let Some(coordinator) = &self.start_up.coordinator {
            match coordinator.recover().await {
                Ok(recovered) => said.extend(recovered),
                // Whoever asks for such a batch finds it out then.
                Err(error) => said
                    .push(format!("what became of earlier batches cannot be found out yet: {}", with_causes(&error))),
            }
        }
        said
    }

    /// Tells `observer` of the batches of this process.
    pub fn observe(&self, observer: Arc<dyn BatchObserver>) {
        if let Some(coordinator) = &self.start_up.coordinator {
            coordinator.observe(observer);
        }
    }

    /// The roles that run here.
    pub fn roles(&self) -> Vec<Role> {
        let here = |role: &Role| match role {
            Role::Timeline => self.timeline.is_some(),
            Role::Sources => self.sources.is_some(),
            Role::Checkpoint => self.checkpoints.is_some(),
            Role::Merge => self.merge.is_some(),
            Role::Writer => self.writer.is_some(),
            Role::Coordinator => self.coordinator.is_some(),
        };
        Role::ALL.into_iter().filter(here).collect()
    }

    /// Whoever reads sources here; `None`: neither role that does runs here.
    pub(crate) fn readers(&self) -> Option<Readers> {
        let readers = Readers { tables: self.timeline.clone(), files: self.sources.clone() };
        (readers.tables.is_some() || readers.files.is_some()).then_some(readers)
    }
}

impl From<Embedded> for Hosted {
    fn from(all: Embedded) -> Self {
        Hosted {
            timeline: Some(all.timeline),
            sources: Some(all.sources),
            checkpoints: Some(all.checkpoints),
            merge: Some(all.merge),
            writer: Some(all.writer),
            coordinator: Some(all.coordinator),
            pipelines: Some(all.pipelines),
            pulls: all.pulls,
            start_up: StartUp::default(),
        }
    }
}

/// What roles are made of.
#[derive(Clone)]
pub struct Parts {
    /// Where tables are.
    pub stores: Arc<dyn Stores>,
    /// Where the checkpoint role keeps its records, and the coordinator its pipelines.
    pub store: Arc<dyn KeyValue>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}

/// Makes the `wanted` roles. A role calls the one of this process where there is one, else the one elsewhere; it cannot
/// tell which.
pub fn host(wanted: &[Role], elsewhere: &Elsewhere, parts: &Parts, settings: Settings) -> Result<Hosted, Missing> {
    let mut hosted = Hosted::default();
    let Parts { stores, store, clock, entropy } = parts;
    if wanted.contains(&Role::Timeline) {
        let service = tributary_timeline::Service::new(Arc::clone(stores), Arc::clone(clock), settings.timeline);
        hosted.timeline = Some(Arc::new(service));
    }
    if wanted.contains(&Role::Sources) {
        let service = tributary_sources::Service::new(Arc::clone(stores), Arc::clone(clock), settings.sources);
        hosted.sources = Some(Arc::new(service));
    }
    if wanted.contains(&Role::Checkpoint) {
        let (stores, store, clock) = (Arc::clone(stores), Arc::clone(store), Arc::clone(clock));
        let service = Arc::new(tributary_checkpoint::Service::new(stores, store, clock, settings.checkpoint));
        hosted.start_up.checkpoints = Some(Arc::clone(&service));
        hosted.checkpoints = Some(service);
    }
    if wanted.contains(&Role::Writer) {
        let service = tributary_writer::Service::new(Arc::clone(stores), Arc::clone(entropy), settings.writer);
        hosted.writer = Some(Arc::new(service));
    }
    let readers = Readers {
        tables: hosted.timeline.clone().or(elsewhere.timeline.clone()),
        files: hosted.sources.clone().or(elsewhere.sources.clone()),
    };
    let timeline = readers.tables.is_some().then(|| Arc::new(readers) as Arc<dyn Timeline>);
    let needs = |user: Role, needed: Role| Missing { user, needed };
    if wanted.contains(&Role::Merge) {
        let timeline = timeline.clone().ok_or(needs(Role::Merge, Role::Timeline))?;
        let writer = hosted.writer.clone().or(elsewhere.writer.clone()).ok_or(needs(Role::Merge, Role::Writer))?;
        let service = tributary_merge::Service::new(timeline, writer, settings.merge);
        hosted.merge = Some(Arc::new(service.with_transforms(settings.transforms)));
    }
    if wanted.contains(&Role::Coordinator) {
        let checkpoints = hosted.checkpoints.clone().or(elsewhere.checkpoints.clone());
        let merge = hosted.merge.clone().or(elsewhere.merge.clone());
        let roles = tributary_coordinator::Roles {
            timeline: timeline.ok_or(needs(Role::Coordinator, Role::Timeline))?,
            checkpoints: checkpoints.ok_or(needs(Role::Coordinator, Role::Checkpoint))?,
            merge: merge.ok_or(needs(Role::Coordinator, Role::Merge))?,
        };
        let (stores, clock, entropy) = (Arc::clone(stores), Arc::clone(clock), Arc::clone(entropy));
        let (settings, catalog) = (settings.coordinator, Arc::clone(store));
        let service = tributary_coordinator::Service::with_catalog(roles, stores, clock, entropy, settings, catalog);
        let service = Arc::new(service);
        hosted.pipelines = Some(Arc::clone(&service) as Arc<dyn Pipelines>);
        hosted.start_up.coordinator = Some(Arc::clone(&service));
        hosted.pulls = Some(Arc::clone(&service) as Arc<dyn Pulls>);
        hosted.coordinator = Some(service);
    }
    Ok(hosted)
}
