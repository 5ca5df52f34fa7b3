// SPDX-License-Identifier: Apache-2.0
//! Many pipelines on one process, one of which always fails and one of which is giant: facts of the schedule alone, without
//! a clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::oneshot;
use tributary_types::PipelineName;

use super::{Claim, Limits, Schedule, Slot, Turn};

const PIPELINES: usize = 50;
const SLOTS: usize = 4;
const FAILING: usize = 0;
const GIANT: usize = 1;
const SMALL: u64 = 1 << 20;
const MEMORY: u64 = 16 << 20;

/// A batch that waits or runs.
struct Batch {
    pipeline: usize,
    memory: u64,
    slot: Option<Slot>,
    granted: oneshot::Receiver<()>,
    /// Steps that it runs for, once it does.
    steps: u32,
    /// How many slots had been granted when it became the first of its pipeline.
    first_at: usize,
}

/// A server, step by step.
struct World {
    schedule: Arc<Schedule>,
    waiting: Vec<Batch>,
    running: Vec<Batch>,
    /// Pipelines in the order in which they got slots.
    grants: Vec<usize>,
    /// The longest that the first batch of any pipeline waited, in slots granted to others.
    longest_wait: usize,
    random: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let schedule = Schedule::new(Limits { batches: SLOTS, memory: Some(MEMORY) });
        let (waiting, running, grants) = (Vec::new(), Vec::new(), Vec::new());
        World { schedule, waiting, running, grants, longest_wait: 0, random: seed }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % limit
    }

    fn ask(&mut self, pipeline: usize) {
        let (memory, steps) = match pipeline {
            FAILING => (SMALL, 0),
            GIANT => (MEMORY, 40),
            _ => (SMALL * (1 + self.below(4)), 1 + self.below(5) as u32),
        };
        let name = PipelineName::new(format!("p{pipeline}")).unwrap();
        let Turn { slot, granted } =
            self.schedule.enter(Claim { pipeline: name, target: format!("/{pipeline}"), memory });
        let first_at = self.grants.len();
        self.waiting.push(Batch { pipeline, memory, slot: Some(slot), granted, steps, first_at });
    }

    /// Notices the slots that were granted.
    fn look(&mut self) {
        while let Some(at) = self.waiting.iter_mut().position(|batch| (&mut batch.granted).now_or_never().is_some()) {
            let batch = self.waiting.remove(at);
            self.longest_wait = self.longest_wait.max(self.grants.len() - batch.first_at);
            self.grants.push(batch.pipeline);
            let now = self.grants.len();
            if let Some(next) = self.waiting.iter_mut().find(|other| other.pipeline == batch.pipeline) {
                next.first_at = now;
            }
            self.running.push(batch);
            let used: u64 = self.running.iter().map(|batch| batch.memory).sum();
            assert!(self.running.len() <= SLOTS && used <= MEMORY, "{} batches of {used} bytes", self.running.len());
        }
    }

    fn step(&mut self) {
        for batch in &mut self.running {
            match batch.steps {
                0 => batch.slot = None,
                left => batch.steps = left - 1,
            }
        }
        self.running.retain(|batch| batch.slot.is_some());
        self.look();
    }
}

#[test]
fn of_fifty_pipelines_each_gets_a_slot_within_as_many_grants_whatever_one_fails_and_one_takes() {
    for seed in 1..=4 {
        let mut world = World::new(seed);
        // The failing one asks again and again, the giant has many batches waiting, all others come and go.
        for pipeline in (0..PIPELINES).chain([FAILING; 50]).chain([GIANT; 3]) {
            world.ask(pipeline);
        }
        world.look();
        for _ in 0..200 {
            let pipeline = world.below(PIPELINES as u64) as usize;
            world.ask(pipeline);
            world.ask(FAILING);
            world.step();
        }
        // One that finishes frees its place only when the step is over, so that many others may start in between.
        let bound = PIPELINES + SLOTS;
        assert!(world.longest_wait <= bound, "seed {seed}: {} grants", world.longest_wait);
        let mut granted: BTreeMap<usize, usize> = BTreeMap::new();
        world.grants.iter().for_each(|pipeline| *granted.entry(*pipeline).or_default() += 1);
        assert_eq!(granted.len(), PIPELINES, "seed {seed}: {granted:?}");
        // Let all that wait run out: nobody is left behind.
        for _ in 0..200_000 {
            if world.waiting.is_empty() && world.running.is_empty() {
                break;
            }
            world.step();
        }
        assert!(world.waiting.is_empty() && world.running.is_empty(), "seed {seed}: {} wait", world.waiting.len());
    }
}

#[test]
fn a_batch_that_needs_all_memory_gets_it_in_its_turn_and_small_ones_go_on_after_it() {
    let mut world = World::new(7);
    for pipeline in 2..PIPELINES {
        world.ask(pipeline);
        world.ask(pipeline);
    }
    world.ask(GIANT);
    world.look();
    while !world.grants.contains(&GIANT) {
        world.step();
    }
    let before = world.grants.len();
    assert!(before <= PIPELINES + SLOTS, "{before} others went first");
    assert_eq!(world.running.len(), 1, "it runs alone");
    while !world.waiting.is_empty() {
        world.step();
    }
    assert_eq!(world.grants.len(), 2 * (PIPELINES - 2) + 1);
}
