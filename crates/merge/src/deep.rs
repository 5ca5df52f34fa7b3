// SPDX-License-Identifier: Apache-2.0
//! A deep stack for parsing and planning.
//!
//! A parsed text is a tree that is cloned, walked and dropped level by level, with kilobytes of stack for each, by the
//! parser and the engine alike. How deep it may be is limited, but what is allowed must fit, whatever thread asks.
//! It also keeps this work, which does not wait for anything, off the threads that serve everybody.

use std::thread;

use tributary_api::merge::Error;

use crate::error::internal;

/// Address space; memory is only used as deep as the stack really gets.
const STACK: usize = 256 << 20;

/// Does `work` on a thread of its own. A panic in it is an error here.
pub(crate) async fn on_deep_stack<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let span = tracing::Span::current();
    // A blocking task waits for the thread, so that the runtime knows of it.
    let waiting = tokio::task::spawn_blocking(move || {
        let planner = thread::Builder::new().name("merge-planner".to_string()).stack_size(STACK);
        match planner.spawn(move || span.in_scope(work)) {
            Ok(running) => running.join().unwrap_or_else(|_| Err(internal("planning the query panicked"))),
            Err(error) => Err(internal(format!("no thread to plan the query on: {error}"))),
        }
    });
    waiting.await.unwrap_or_else(|error| Err(internal(format!("planning the query was cut short: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_answer_comes_back_and_a_panic_is_an_error() {
        assert_eq!(on_deep_stack(|| Ok(7)).await.unwrap(), 7);
        let panicked = on_deep_stack::<()>(|| panic!("on purpose")).await.unwrap_err();
        assert!(panicked.to_string().contains("panicked"));
    }
}
