// SPDX-License-Identifier: Apache-2.0
//! The batches of this process: those that run, and the last ones that ended.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tributary_api::coordinator::{BatchStatus, Error, RunRequest};
use tributary_types::{BatchName, Outcome, PipelineName};

use crate::control::Control;

/// A batch of this process.
#[derive(Clone)]
pub(crate) struct Known {
    /// Fingerprint of its pipeline.
    pub(crate) definition: String,
    pub(crate) target: String,
    pub(crate) status: watch::Receiver<BatchStatus>,
    pub(crate) control: Arc<Control>,
}

/// A batch that may begin.
pub(crate) struct Admitted {
    pub(crate) status: watch::Sender<BatchStatus>,
    pub(crate) control: Arc<Control>,
    /// Whether it is the first batch of its pipeline here.
    pub(crate) first_of_pipeline: bool,
}

/// Batches by name.
pub(crate) struct Registry {
    batches: Mutex<Batches>,
    /// Batches that are over of which so many are remembered.
    remembered: usize,
}

#[derive(Default)]
struct Batches {
    by_name: HashMap<BatchName, Known>,
    /// Names, oldest first.
    order: Vec<BatchName>,
    pipelines: HashSet<PipelineName>,
}

impl Registry {
    pub(crate) fn new(remembered: usize) -> Self {
        Registry { batches: Mutex::default(), remembered }
    }

    fn batches(&self) -> MutexGuard<'_, Batches> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, name: &BatchName) -> Option<Known> {
        self.batches().by_name.get(name).cloned()
    }

    /// Every batch that is remembered, newest first.
    pub(crate) fn newest(&self) -> Vec<BatchStatus> {
        let batches = self.batches();
        let newest = batches.order.iter().rev().filter_map(|name| batches.by_name.get(name));
        newest.map(|known| known.status.borrow().clone()).collect()
    }

    /// Pipelines with their targets, those of the newest batches first.
    pub(crate) fn targets(&self) -> Vec<(PipelineName, String)> {
        let batches = self.batches();
        let newest = batches.order.iter().rev().filter_map(|name| batches.by_name.get(name));
        newest.map(|known| (known.status.borrow().pipeline.clone(), known.target.clone())).collect()
    }

    /// The batch that already answers a request, if there is one: it runs, or it ended well. One that failed for now may
    /// be asked for again by the same id.
    pub(crate) fn answer(
        &self,
        name: &BatchName,
        definition: &str,
        request: &RunRequest,
    ) -> Result<Option<BatchStatus>, Error> {
        Ok(self.find(name).map(|known| answer_of(&known, definition, request)).transpose()?.flatten())
    }

    /// Registers a batch, or answers the one that came before it. A commit that was `undone` is no answer.
    pub(crate) fn admit(
        &self,
        request: &RunRequest,
        definition: &str,
        first: BatchStatus,
        undone: bool,
    ) -> Result<Result<Admitted, BatchStatus>, Error> {
        let mut batches = self.batches();
        if let Some(known) = batches.by_name.get(&first.name)
            && let Some(status) = answer_of(known, definition, request)?
            && !(undone && status.outcome == Some(Outcome::Committed))
        {
            return Ok(Err(status));
        }
        let first_of_pipeline = batches.pipelines.insert(request.pipeline.name.clone());
        let name = first.name.clone();
        let (sender, status) = watch::channel(first);
        let control = Arc::new(Control::new(&request.pipeline.target.path));
        let known = Known {
            definition: definition.to_string(),
            target: request.pipeline.target.path.clone(),
            status,
            control: Arc::clone(&control),
        };
        batches.order.retain(|other| other != &name);
        batches.by_name.insert(name.clone(), known);
        batches.order.push(name);
        batches.forget_old(self.remembered);
        Ok(Ok(Admitted { status: sender, control, first_of_pipeline }))
    }
}

fn answer_of(known: &Known, definition: &str, request: &RunRequest) -> Result<Option<BatchStatus>, Error> {
    if known.definition != definition {
        return Err(Error::RequestReused { request: request.request.clone() });
    }
    let status = known.status.borrow().clone();
    Ok(Some(status).filter(answers))
}

/// Whether a batch answers its request for good, or will.
pub(crate) fn answers(status: &BatchStatus) -> bool {
    matches!(status.outcome, None | Some(Outcome::Committed | Outcome::NoNewData))
}

impl Batches {
    fn forget_old(&mut self, remembered: usize) {
        let surplus = self.order.len().saturating_sub(remembered);
        let running = |name: &BatchName| self.by_name.get(name).is_some_and(|k| k.status.borrow().outcome.is_none());
        let old: Vec<BatchName> = self.order.iter().take(surplus).filter(|name| !running(name)).cloned().collect();
        for name in &old {
            self.by_name.remove(name);
        }
        self.order.retain(|name| !old.contains(name));
    }
}
