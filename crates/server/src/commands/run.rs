// SPDX-License-Identifier: Apache-2.0
//! `tributary run`: one batch, or one after another.

use std::time::Duration;

use tributary_api::coordinator::{BatchStatus, Coordinator, RunRequest};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Clock, Entropy, Outcome, RequestId, Retry, SystemClock, SystemEntropy};

use crate::cli::{Output, RunArgs};
use crate::commands::{self, Failed, load_pipeline, stop_signal};
use crate::output::{self, Progress};

/// Longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Runs the command; answers the exit code.
pub async fn run(args: RunArgs) -> Result<u8, Failed> {
    let pipeline = load_pipeline(&args.pipeline, args.server.as_deref())?;
    let request = match &args.request_id {
        Some(id) => RequestId::new(id.clone()).map_err(|e| Failed { message: e.to_string(), exit_code: 2 })?,
        None => new_request_id()?,
    };
    let coordinator = commands::coordinator(args.server.as_deref(), args.data_dir.as_deref())?;
    let coordinator = coordinator.as_ref();
    if !args.continuous {
        let ended = one_batch(coordinator, &pipeline, request, args.allow_empty, args.output).await?;
        return Ok(ended.outcome.unwrap_or(Outcome::Failed).exit_code());
    }
    continuous(coordinator, &pipeline, request, &args).await
}

/// Batch after batch until the process is told to stop, or a failure that no repetition mends.
async fn continuous(
    coordinator: &dyn Coordinator,
    pipeline: &Pipeline,
    first: RequestId,
    args: &RunArgs,
) -> Result<u8, Failed> {
    let mut request = first;
    let mut failures = 0u32;
    let stop = stop_signal();
    tokio::pin!(stop);
    loop {
        let ended = one_batch(coordinator, pipeline, request, args.allow_empty, args.output).await?;
        let retry = ended.error.as_ref().map(|failure| failure.retry);
        let outcome = ended.outcome.unwrap_or(Outcome::Failed);
        let pause = match (outcome, retry) {
            (Outcome::Committed, _) => {
                failures = 0;
                Duration::ZERO
            }
            (Outcome::NoNewData, _) => {
                failures = 0;
                args.interval.0
            }
            (_, Some(Retry::Never)) => return Ok(outcome.exit_code()),
            _ => {
                failures += 1;
                backoff(failures, args.interval.0)
            }
        };
        // A batch that runs is always finished first: stopping never leaves one behind.
        tokio::select! {
            () = &mut stop => return Ok(0),
            () = tokio::time::sleep(pause) => {}
        }
        request = new_request_id()?;
    }
}

/// Doubles with each failure in a row, up to a limit, with up to a quarter more so that many pipelines do not come
/// back at once.
fn backoff(failures: u32, interval: Duration) -> Duration {
    let base = interval.max(Duration::from_secs(1)) * 2u32.saturating_pow(failures.min(8));
    let capped = base.min(LONGEST_PAUSE);
    let quarter = (capped.as_millis() as u64 / 4).max(1);
    capped + Duration::from_millis((SystemEntropy.next_u128() % u128::from(quarter)) as u64)
}

async fn one_batch(
    coordinator: &dyn Coordinator,
    pipeline: &Pipeline,
    request: RequestId,
    allow_empty: bool,
    output: Output,
) -> Result<BatchStatus, Failed> {
    let run = RunRequest { pipeline: pipeline.clone(), request, allow_empty };
    let started = coordinator.run_batch(run).await?;
    let ended = output::follow(coordinator, &started.name, Progress::new(output)).await?;
    output::print_batch(&ended, output);
    Ok(ended)
}

/// A fresh id that carries the time, so that old ids can be told from unknown ones.
fn new_request_id() -> Result<RequestId, Failed> {
    let bits = SystemEntropy.next_u128().to_be_bytes();
    let mut random = [0u8; 10];
    random.copy_from_slice(&bits[..10]);
    let millis = SystemClock.now_millis().max(0) as u64;
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
    RequestId::new(id.to_string()).map_err(|e| Failed { message: e.to_string(), exit_code: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_after_failures_grow_to_a_limit() {
        let interval = Duration::from_secs(1);
        assert!(backoff(1, interval) >= Duration::from_secs(2) && backoff(1, interval) < Duration::from_secs(3));
        assert!(backoff(30, interval) <= LONGEST_PAUSE + LONGEST_PAUSE / 4);
    }

    #[test]
    fn request_ids_are_unique() {
        assert_ne!(new_request_id().unwrap(), new_request_id().unwrap());
    }
}
