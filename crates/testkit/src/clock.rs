// SPDX-License-Identifier: Apache-2.0
//! Time and randomness that a test decides.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tributary_types::{Clock, Entropy};

/// A clock that moves only as it is told, and a little with each look, so that no two looks are the same time.
#[derive(Debug)]
pub struct ManualClock {
    millis: AtomicI64,
}

impl ManualClock {
    /// A clock that stands at `millis` since the epoch.
    pub fn at(millis: i64) -> Self {
        ManualClock { millis: AtomicI64::new(millis) }
    }

    /// Moves the clock, backwards too.
    pub fn advance(&self, millis: i64) {
        self.millis.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_millis(&self) -> i64 {
        self.millis.fetch_add(1, Ordering::SeqCst)
    }
}

/// Random-looking bits that are the same in every run of one seed (SplitMix64).
#[derive(Debug)]
pub struct SeededEntropy {
    state: AtomicU64,
}

impl SeededEntropy {
    /// Bits of a seed.
    pub fn new(seed: u64) -> Self {
        SeededEntropy { state: AtomicU64::new(seed) }
    }

    /// 64 bits.
    pub fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Entropy for SeededEntropy {
    fn next_u128(&self) -> u128 {
        (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64())
    }
}
