// SPDX-License-Identifier: Apache-2.0
//! `tributary run`: one batch, or one after another.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;
use tributary_api::coordinator::{self, BatchStatus, Coordinator, Failure, RunRequest};
use tributary_api::transform::Transforms;
use tributary_hudi::Stores;
use tributary_rpc::{Dial, Link};
use tributary_trace::{Baggage, TraceContext};
use tributary_types::{
    Clock, Entropy, Fault as _, Outcome, PipelineName, RequestId, Retry, SystemClock, SystemEntropy, with_causes,
};

use crate::cli::{Output, RunArgs};
use crate::commands::{self, Failed, Job, load_job, stop_signal};
use crate::lineage::Lineage;
use crate::news::ServerNews;
use crate::output::{self, Progress};
use crate::telemetry::bars;

/// Longest pause after failures, without what is added at random.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Runs the command; answers the exit code.
pub async fn run(args: RunArgs, stores: Arc<dyn Stores>, transforms: Transforms, dial: &Dial) -> Result<u8, Failed> {
    let Job { pipeline, overrides } = load_job(&args.job, &args.overrides)?;
    let request = request_id(args.request_id.as_deref())?;
    let lineage = match args.server {
        // The server tells of its batches itself.
        Some(_) => None,
        None => Lineage::start(&args.lineage)?,
    };
    let news = args.server.as_deref().map(|server| Arc::new(ServerNews::new(server)));
    let coordinator = match (&args.server, &news) {
        (Some(server), Some(news)) => commands::connect_with(server, dial, Arc::clone(news) as Arc<dyn Link>)?,
        _ => {
            let observer = lineage.as_ref().map(Lineage::observer);
            commands::roles_with(args.data_dir.as_deref(), stores, transforms, observer)?.coordinator
        }
    };
    let runner = Runner {
        coordinator: coordinator.as_ref(),
        news,
        clock: &SystemClock,
        entropy: &SystemEntropy,
        request: RunRequest {
            pipeline,
            request,
            allow_empty: args.allow_empty,
            overrides,
            cursors_only: false,
            asked_by: asked_by("tributary run"),
        },
        interval: args.interval.0,
        output: args.output,
        brief: args.brief,
    };
    let ended = match args.continuous {
        true => runner.continuous(stop_signal()).await,
        false => runner
            .one_batch()
            .await
            .map_err(Broken::into_failed)
            .map(|ended| ended.outcome.unwrap_or(Outcome::Failed).exit_code()),
    };
    if let Some(lineage) = lineage {
        lineage.finish().await;
    }
    ended
}

/// Who runs this command, for the history.
pub(super) fn asked_by(command: &str) -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    user.map_or(command.to_string(), |user| format!("{command} by {user}"))
}

/// The id of a request: the one given, or a fresh one.
pub(super) fn request_id(given: Option<&str>) -> Result<RequestId, Failed> {
    match given {
        Some(id) => RequestId::new(id).map_err(|e| Failed { message: e.to_string(), exit_code: 2 }),
        None => Ok(new_request_id(&SystemClock, &SystemEntropy)),
    }
}

/// The span of one batch as whoever asks for it sees it: below that of whoever started this process, where it says so in
/// `TRACEPARENT`.
pub(super) fn run_span(pipeline: &PipelineName) -> tracing::Span {
    let span = tracing::info_span!("run", otel.kind = "client", pipeline = %pipeline);
    let parent = std::env::var("TRACEPARENT").ok().and_then(|header| TraceContext::parse(&header));
    tributary_trace::join(&span, parent, &Baggage::default());
    span
}

/// A request that was not followed to its end.
enum Broken {
    /// It was refused, or got no answer.
    Call(coordinator::Error),
    /// The batch could not be followed to its end.
    Follow(Failed),
}

impl Broken {
    fn into_failed(self) -> Failed {
        match self {
            Broken::Call(error) => error.into(),
            Broken::Follow(failed) => failed,
        }
    }
}

/// What follows a batch, or an attempt to run one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Nothing: a failure that no repetition mends.
    End,
    /// Another batch at once.
    AtOnce,
    /// Another batch after the interval: there was nothing to do.
    Idle,
    /// Another batch after a pause that grows with each failure in a row.
    BackOff,
    /// The same request after such a pause: whether it was answered is not known, and its id makes asking again safe.
    AskAgain,
    /// Another attempt after the interval, again and again: the pipeline is paused until somebody resumes it.
    Paused,
}

/// The reason of what a paused pipeline is refused with.
const PAUSED: &str = "PIPELINE_PAUSED";

/// What follows a batch that ended.
fn after_batch(outcome: Outcome, failure: Option<&Failure>) -> Next {
    // It was paused while its batch waited for a turn.
    if failure.is_some_and(|failure| failure.reason == PAUSED) {
        return Next::Paused;
    }
    match (outcome, failure.map(|failure| failure.retry)) {
        (Outcome::Committed, _) => Next::AtOnce,
        (Outcome::NoNewData, _) => Next::Idle,
        (Outcome::Unknown, _) | (_, Some(Retry::ReadBack)) => Next::AskAgain,
        (_, Some(Retry::Again | Retry::Rebase)) => Next::BackOff,
        (_, Some(Retry::Never) | None) => Next::End,
    }
}

/// What is said of a pipeline that is stuck: one without news says nothing.
fn not_committed(ended: &BatchStatus, failures: u32, pause: Duration) -> String {
    let reason = ended.error.as_ref().map_or("no reason", |failure| failure.reason.as_str());
    let seconds = pause.as_secs();
    match failures {
        0 | 1 => format!("{}: not committed [{reason}]; another batch in {seconds} s", ended.pipeline),
        more => {
            format!("{}: {more} batches in a row not committed, now [{reason}]; another in {seconds} s", ended.pipeline)
        }
    }
}

/// What follows an attempt to run a batch that was not followed to its end.
fn after_broken(broken: &Broken) -> Next {
    match broken {
        Broken::Call(error) if error.reason() == PAUSED => Next::Paused,
        Broken::Call(error) if error.retry() == Retry::Never => Next::End,
        Broken::Call(_) | Broken::Follow(_) => Next::AskAgain,
    }
}

/// Whether what follows is another request. A pipeline that is paused began no batch for the one that was refused, and
/// one whose answer was lost before the pause is still asked for by its id.
fn starts_anew(next: Next) -> bool {
    !matches!(next, Next::AskAgain | Next::Paused)
}

/// What is said when a pause begins, and when it is over.
fn pause_said(pipeline: &PipelineName, paused: bool) -> String {
    match paused {
        true => format!("{pipeline}: paused; batches go on after `tributary pipelines resume {pipeline}`"),
        false => format!("{pipeline}: resumed"),
    }
}

/// Doubles with each failure in a row, up to a limit, with up to a quarter more so that many pipelines do not come
/// back at once.
fn backoff(failures: u32, interval: Duration, entropy: &dyn Entropy) -> Duration {
    let base = interval.max(Duration::from_secs(1)).saturating_mul(2u32.saturating_pow(failures.min(8)));
    let capped = base.min(LONGEST_PAUSE);
    let quarter = (capped.as_millis() as u64 / 4).max(1);
    capped + Duration::from_millis((entropy.next_u128() % u128::from(quarter)) as u64)
}

/// A fresh id that carries the time, so that old ids can be told from unknown ones.
fn new_request_id(clock: &dyn Clock, entropy: &dyn Entropy) -> RequestId {
    RequestId::at(clock.now_millis(), entropy.next_u128())
}

/// Runs batches of one pipeline.
struct Runner<'a> {
    coordinator: &'a dyn Coordinator,
    /// Says when the server goes away and comes back; `None` without a server.
    news: Option<Arc<ServerNews>>,
    clock: &'a dyn Clock,
    entropy: &'a dyn Entropy,
    request: RunRequest,
    /// Pause after a batch that found nothing new.
    interval: Duration,
    output: Output,
    /// Print a batch in a few lines.
    brief: bool,
}

impl Runner<'_> {
    /// Batch after batch until told to stop, or until a failure that no repetition mends. A server that does not answer
    /// is asked again, with the same request, until it does.
    async fn continuous(mut self, stop: impl Future<Output = ()>) -> Result<u8, Failed> {
        let mut failures = 0u32;
        let mut paused = false;
        tokio::pin!(stop);
        loop {
            let result = self.one_batch().await;
            let next = match &result {
                Ok(ended) => after_batch(ended.outcome.unwrap_or(Outcome::Unknown), ended.error.as_ref()),
                Err(broken) => after_broken(broken),
            };
            let pause = match next {
                Next::End => {
                    let ended = result.map_err(Broken::into_failed)?;
                    return Ok(ended.outcome.unwrap_or(Outcome::Failed).exit_code());
                }
                Next::AtOnce | Next::Idle | Next::Paused => {
                    failures = 0;
                    if next == Next::AtOnce { Duration::ZERO } else { self.interval }
                }
                Next::BackOff | Next::AskAgain => {
                    failures = failures.saturating_add(1);
                    backoff(failures, self.interval, self.entropy)
                }
            };
            // Not on standard output, which has one line for each batch. A server that is away says nothing of pauses.
            let unreachable = matches!(&result, Err(Broken::Call(coordinator::Error::Unreachable { .. })));
            if !unreachable && paused != (next == Next::Paused) {
                paused = !paused;
                bars::say(&pause_said(&self.request.pipeline.name, paused));
            }
            match (result, &self.news) {
                _ if next == Next::Paused => {}
                (Err(Broken::Call(error @ coordinator::Error::Unreachable { .. })), Some(news)) => {
                    news.lost(&with_causes(&error));
                }
                (Err(broken), _) => {
                    bars::say(&format!("{}; asking again in {} s", broken.into_failed().message, pause.as_secs()));
                }
                (Ok(ended), _) if next == Next::BackOff => {
                    bars::say(&not_committed(&ended, failures, pause));
                }
                (Ok(_), _) => {}
            }
            // A batch that runs is always finished first: stopping never leaves one behind.
            tokio::select! {
                () = &mut stop => return Ok(0),
                () = tokio::time::sleep(pause) => {}
            }
            if starts_anew(next) {
                self.request.request = new_request_id(self.clock, self.entropy);
            }
        }
    }

    /// One batch, as one trace.
    async fn one_batch(&self) -> Result<BatchStatus, Broken> {
        self.follow_batch().instrument(run_span(&self.request.pipeline.name)).await
    }

    async fn follow_batch(&self) -> Result<BatchStatus, Broken> {
        let started = self.coordinator.run_batch(self.request.clone()).await.map_err(Broken::Call)?;
        if let Some(news) = &self.news {
            news.back();
        }
        let followed = output::follow(self.coordinator, &started.name, Progress::new(self.output)).await;
        let ended = followed.map_err(Broken::Follow)?;
        match self.brief {
            true => output::print_brief(&ended),
            false => output::print_batch(&ended, self.output),
        }
        Ok(ended)
    }
}

#[cfg(test)]
mod tests;
