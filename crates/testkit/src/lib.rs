// SPDX-License-Identifier: Apache-2.0
//! What tests share: tables written by Spark, and whatever else several crates test with.

mod clock;
mod faulty;
mod fixtures;
mod memory_stores;

pub use clock::{ManualClock, SeededEntropy};
pub use faulty::{FAULTS, Fault, FaultPlan, FaultyStores, all_files};
pub use fixtures::{Fixture, unpack_zip};
pub use memory_stores::MemoryStores;
