// SPDX-License-Identifier: Apache-2.0
//! Which waiting batch runs next.
//!
//! Pipelines take turns: the one whose next batch waits longest is first, and the batch behind a batch of the same
//! pipeline begins to wait when that one starts. So each pipeline gets its slot after at most as many others as there
//! are pipelines, however many batches one of them asks for. Batches of one pipeline, and batches into one target,
//! follow one another and hold no slot while they wait for each other. A batch that waits for memory is not overtaken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tributary_types::PipelineName;

/// What a batch needs to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) pipeline: PipelineName,
    pub(crate) target: String,
    /// Bytes of its budget.
    pub(crate) memory: u64,
}

/// What all running batches together may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Batches.
    pub(crate) batches: usize,
    /// Bytes of their budgets; `None`: no limit. A batch that needs more by itself runs alone.
    pub(crate) memory: Option<u64>,
}

/// A claim with the number under which it came, and the one under which it became the first of its pipeline.
#[derive(Debug, Clone)]
struct Waiting {
    ticket: u64,
    first_since: Option<u64>,
    claim: Claim,
}

/// The position in `waiting` of the claim that may run now.
fn choose(waiting: &[Waiting], running: &[(u64, Claim)], limits: Limits) -> Option<usize> {
    if running.len() >= limits.batches.max(1) {
        return None;
    }
    let busy = |claim: &Claim| {
        running.iter().any(|(_, other)| other.pipeline == claim.pipeline || other.target == claim.target)
    };
    let first =
        waiting.iter().enumerate().filter(|(_, waiting)| waiting.first_since.is_some() && !busy(&waiting.claim));
    let (position, next) = first.min_by_key(|(_, waiting)| waiting.first_since)?;
    let used: u64 = running.iter().map(|(_, claim)| claim.memory).sum();
    let fits = limits.memory.is_none_or(|all| running.is_empty() || used.saturating_add(next.claim.memory) <= all);
    fits.then_some(position)
}

/// Hands out slots.
#[derive(Debug)]
pub(crate) struct Schedule {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_number: u64,
    waiting: Vec<Waiting>,
    /// One for each waiting claim, by its ticket.
    told: Vec<(u64, oneshot::Sender<()>)>,
    running: Vec<(u64, Claim)>,
}

/// The right to run; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    schedule: Arc<Schedule>,
    ticket: u64,
}

/// A place in the queue; given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    slot: Slot,
    granted: oneshot::Receiver<()>,
}

impl Turn {
    /// Waits for the slot.
    pub(crate) async fn comes(self) -> Slot {
        // The sender is kept until it has sent.
        let _ = self.granted.await;
        self.slot
    }
}

impl Schedule {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Schedule { limits, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place in the queue, now: batches wait in the order in which they were asked for.
    pub(crate) fn enter(self: &Arc<Self>, claim: Claim) -> Turn {
        let (told, granted) = oneshot::channel();
        let mut state = self.state();
        let ticket = state.number();
        let alone = !state.waiting.iter().any(|other| other.claim.pipeline == claim.pipeline);
        state.waiting.push(Waiting { ticket, first_since: alone.then_some(ticket), claim });
        state.told.push((ticket, told));
        state.grant(self.limits);
        Turn { slot: Slot { schedule: Arc::clone(self), ticket }, granted }
    }

    /// Whether a batch into `target` runs here.
    pub(crate) fn runs_into(&self, target: &str) -> bool {
        self.state().running.iter().any(|(_, claim)| claim.target == target)
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn grant(&mut self, limits: Limits) {
        while let Some(position) = choose(&self.waiting, &self.running, limits) {
            let next = self.take(position);
            self.running.push((next.ticket, next.claim));
            if let Some(at) = self.told.iter().position(|(ticket, _)| *ticket == next.ticket) {
                // One that does not listen any more gives its slot back by itself.
                let _ = self.told.swap_remove(at).1.send(());
            }
        }
    }

    /// Removes a waiting claim; the one behind it is then the first of its pipeline.
    fn take(&mut self, position: usize) -> Waiting {
        let taken = self.waiting.remove(position);
        let number = self.number();
        if taken.first_since.is_some()
            && let Some(next) = self.waiting.iter_mut().find(|other| other.claim.pipeline == taken.claim.pipeline)
        {
            next.first_since = Some(number);
        }
        taken
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let limits = self.schedule.limits;
        let mut state = self.schedule.state();
        state.running.retain(|(ticket, _)| *ticket != self.ticket);
        state.told.retain(|(ticket, _)| *ticket != self.ticket);
        if let Some(position) = state.waiting.iter().position(|waiting| waiting.ticket == self.ticket) {
            state.take(position);
        }
        state.grant(limits);
    }
}

#[cfg(test)]
mod fairness;

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn claim(pipeline: &str, target: &str, memory: u64) -> Claim {
        Claim { pipeline: PipelineName::new(pipeline).unwrap(), target: target.to_string(), memory }
    }

    fn schedule(batches: usize, memory: Option<u64>) -> Arc<Schedule> {
        Schedule::new(Limits { batches, memory })
    }

    /// A claim that waits, and whether it got its slot.
    struct Asked {
        slot: Option<Slot>,
        granted: oneshot::Receiver<()>,
        has: bool,
    }

    fn ask(schedule: &Arc<Schedule>, pipeline: &str, target: &str, memory: u64) -> Asked {
        let Turn { slot, granted } = schedule.enter(claim(pipeline, target, memory));
        Asked { slot: Some(slot), granted, has: false }
    }

    impl Asked {
        fn runs(&mut self) -> bool {
            self.has = self.has || (&mut self.granted).now_or_never().is_some();
            self.has
        }
    }

    #[test]
    fn no_more_batches_run_at_once_than_the_limit_and_the_next_in_line_follows() {
        let schedule = schedule(2, None);
        let mut asked: Vec<Asked> = ["a", "b", "c", "d"].iter().map(|name| ask(&schedule, name, name, 1)).collect();
        assert_eq!(asked.iter_mut().map(Asked::runs).collect::<Vec<_>>(), [true, true, false, false]);
        asked[1].slot = None;
        assert_eq!(asked.iter_mut().map(Asked::runs).collect::<Vec<_>>(), [true, true, true, false]);
        asked[0].slot = None;
        assert!(asked[3].runs());
    }

    #[test]
    fn a_pipeline_with_many_batches_takes_turns_with_the_others() {
        let schedule = schedule(1, None);
        let mut running = ask(&schedule, "z", "z", 1);
        assert!(running.runs());
        let mut waiting: Vec<(&str, Asked)> = Vec::new();
        for name in ["big", "big", "big", "small", "other", "big"] {
            waiting.push((name, ask(&schedule, name, name, 1)));
        }
        let mut order = Vec::new();
        running.slot = None;
        while !waiting.is_empty() {
            let at = waiting.iter_mut().position(|(_, asked)| asked.runs()).unwrap();
            let (name, ended) = waiting.remove(at);
            order.push(name);
            drop(ended);
        }
        assert_eq!(order, ["big", "small", "other", "big", "big", "big"]);
    }

    #[test]
    fn batches_into_one_target_follow_one_another_and_hold_no_slot_meanwhile() {
        let schedule = schedule(2, None);
        let mut first = ask(&schedule, "a", "shared", 1);
        let mut second = ask(&schedule, "b", "shared", 1);
        let mut elsewhere = ask(&schedule, "c", "own", 1);
        assert!(first.runs() && !second.runs() && elsewhere.runs());
        assert!(schedule.runs_into("shared") && !schedule.runs_into("none"));
        first.slot = None;
        assert!(second.runs());
    }

    #[test]
    fn batches_of_one_pipeline_follow_one_another_whatever_their_target() {
        let schedule = schedule(4, None);
        let mut first = ask(&schedule, "a", "one", 1);
        let mut second = ask(&schedule, "a", "two", 1);
        assert!(first.runs() && !second.runs());
        first.slot = None;
        assert!(second.runs());
    }

    #[test]
    fn memory_is_shared_out_and_a_giant_is_neither_starved_nor_refused() {
        let schedule = schedule(8, Some(100));
        let mut small = ask(&schedule, "a", "a", 60);
        let mut giant = ask(&schedule, "g", "g", 500);
        let mut late = ask(&schedule, "b", "b", 10);
        assert!(small.runs() && !giant.runs() && !late.runs(), "nobody overtakes the giant");
        small.slot = None;
        assert!(giant.runs() && !late.runs(), "the giant runs alone");
        giant.slot = None;
        assert!(late.runs());
    }

    #[test]
    fn one_that_waits_no_longer_is_passed_over() {
        let schedule = schedule(1, None);
        let mut running = ask(&schedule, "a", "a", 1);
        assert!(running.runs());
        let given_up = ask(&schedule, "b", "b", 1);
        let mut behind = ask(&schedule, "b", "b", 1);
        let mut last = ask(&schedule, "c", "c", 1);
        drop(given_up);
        running.slot = None;
        assert!(!behind.runs(), "it became the first of its pipeline after the last one came");
        assert!(last.runs());
        last.slot = None;
        assert!(behind.runs());
    }

    #[tokio::test]
    async fn a_slot_is_waited_for() {
        let schedule = schedule(1, None);
        let first = schedule.enter(claim("a", "a", 1)).comes().await;
        let waiting = tokio::spawn(schedule.enter(claim("b", "b", 1)).comes());
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.unwrap();
    }
}
