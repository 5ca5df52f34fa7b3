// SPDX-License-Identifier: Apache-2.0
//! Who wants to know that the other side of an adapter goes away and comes back.

/// Told while a batch is followed: the stream is opened again by itself, which may take long.
pub trait Link: Send + Sync {
    /// The other side does not answer. Told with each attempt.
    fn lost(&self, why: &str);

    /// It answers. Told also when it was never away.
    fn back(&self);
}
