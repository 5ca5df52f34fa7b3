// SPDX-License-Identifier: Apache-2.0
//! Time and randomness as arguments, so that a test decides both.

use std::time::{SystemTime, UNIX_EPOCH};

/// Where the current time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the epoch, UTC.
    fn now_millis(&self) -> i64;
}

/// Where random bits come from.
pub trait Entropy: Send + Sync + 'static {
    /// 128 fresh random bits.
    fn next_u128(&self) -> u128;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one place that may read the wall clock
    fn now_millis(&self) -> i64 {
        // A clock before 1970 reads as 1970: instants minted from it are then refused as older than the timeline.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
    }
}

/// The machine's own randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[allow(clippy::disallowed_methods)] // the one place that may draw random bits
    fn next_u128(&self) -> u128 {
        uuid::Uuid::new_v4().as_u128()
    }
}
