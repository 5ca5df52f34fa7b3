// SPDX-License-Identifier: Apache-2.0
//! Running pieces of work on several threads, a bounded number at a time.

use std::future::Future;

use tokio::task::JoinSet;
use tributary_api::writer::Error;
use tributary_types::{Code, Retry};

/// Runs the jobs, at most `at_once` together, each as a task of its own so that encoding uses every processor. The
/// first error ends the rest; so does dropping the returned future. Results come in no order.
pub(crate) async fn run_jobs<T, F>(jobs: impl IntoIterator<Item = F>, at_once: usize) -> Result<Vec<T>, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let mut waiting = jobs.into_iter();
    let mut running = JoinSet::new();
    let mut done = Vec::new();
    for job in waiting.by_ref().take(at_once.max(1)) {
        running.spawn(job);
    }
    while let Some(joined) = running.join_next().await {
        let result = joined.map_err(|e| Error::Other {
            code: Code::Internal,
            retry: Retry::Never,
            message: format!("a writing task ended without a result: {e}"),
        })?;
        done.push(result?);
        if let Some(job) = waiting.next() {
            running.spawn(job);
        }
    }
    Ok(done)
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
}
