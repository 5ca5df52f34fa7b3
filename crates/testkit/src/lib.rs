// SPDX-License-Identifier: Apache-2.0
//! What tests share: tables written by Spark, and whatever else several crates test with.

mod archive;
mod clock;
pub mod collector;
mod counting;
mod faulty;
mod fixtures;
mod ghost;
mod held;
pub mod kafka;
mod memory_stores;
mod parquet_file;
mod random_table;
mod recorded;
mod restamp;
mod vanishing;

pub use archive::archive_instants;
pub use clock::{ManualClock, SeededEntropy};
pub use counting::{Asked, CountingStores, Requests};
pub use faulty::{FAULTS, Fault, FaultPlan, FaultyStores, all_files};
pub use fixtures::{Fixture, unpack_zip};
pub use ghost::Ghost;
pub use held::{HeldStores, Hold};
pub use memory_stores::MemoryStores;
pub use parquet_file::write_parquet;
pub use random_table::{Happened, RandomTable, Record};
pub use recorded::{Does, Operation, RecordedStores, Recording};
pub use restamp::restamp_rows;
pub use vanishing::{Vanishing, VanishingStores};
