//! testkit

mod fixtures;

pub use fixtures::Fixture;
