// SPDX-License-Identifier: Apache-2.0
//! Running pieces of work on several threads, a bounded number at a time.

use std::future::Future;

use tokio::task::JoinSet;
use tracing::Instrument as _;
use tributary_api::writer::Error;
use tributary_types::{Code, Retry};

/// Runs the jobs, at most `at_once` together, each as a task of its own so that encoding uses every processor. Results
/// come in no order.
///
/// After the first error no further job begins, and those that run are waited for: an operation on a store cannot be
/// called back, and a file that appears after the instant was rolled back would stay for ever. A stop reaches
/// the jobs in the same way: each fails at its next step. Dropping the returned future ends the tasks without waiting.
pub(crate) async fn run_jobs<T, F>(jobs: impl IntoIterator<Item = F>, at_once: usize) -> Result<Vec<T>, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let mut waiting = jobs.into_iter();
    let mut running = JoinSet::new();
    let mut done = Vec::new();
    let mut failed: Option<Error> = None;
    for job in waiting.by_ref().take(at_once.max(1)) {
        running.spawn(job.in_current_span());
    }
    while let Some(joined) = running.join_next().await {
        let result = joined.unwrap_or_else(|e| {
            Err(Error::Other {
                code: Code::Internal,
                retry: Retry::Never,
                message: format!("a writing task ended without a result: {e}"),
            })
        });
        match result {
            Ok(result) => done.push(result),
            Err(error) => failed = failed.or(Some(error)),
        }
        if failed.is_none()
            && let Some(job) = waiting.next()
        {
            running.spawn(job.in_current_span());
        }
    }
    match failed {
        None => Ok(done),
        Some(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_job_runs_and_an_error_ends_the_rest() {
        let jobs = (0..10).map(|n| async move { Ok::<_, Error>(n) });
        let mut done = run_jobs(jobs, 3).await.unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..10).collect::<Vec<_>>());
        let failing = (0..10).map(|n| async move { if n == 4 { Err(Error::Spill { limit: 1 }) } else { Ok(n) } });
        assert!(matches!(run_jobs(failing, 2).await, Err(Error::Spill { limit: 1 })));
    }

    #[tokio::test]
    async fn nothing_runs_any_more_when_an_error_is_returned() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};
        let finished = Arc::new(AtomicUsize::new(0));
        let jobs = (0..4u64).map(|n| {
            let finished = Arc::clone(&finished);
            async move {
                if n == 0 {
                    return Err(Error::Spill { limit: 1 });
                }
                tokio::time::sleep(std::time::Duration::from_millis(10 * n)).await;
                finished.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        });
        assert!(run_jobs(jobs, 3).await.is_err());
        assert_eq!(finished.load(Ordering::SeqCst), 2, "those that ran are waited for, the next did not begin");
    }
}
