// SPDX-License-Identifier: Apache-2.0

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;
use tributary_api::boxed_error;
use tributary_api::checkpoint::CursorCommit;
use tributary_api::coordinator::{Error, Failure, OpenedBatch, OverrideStatus, PlannedBatch, Written};
use tributary_types::pipeline::Pipeline;
use tributary_types::{BatchName, Code, Override, PipelineName, Stage};

use super::*;

/// A clock and randomness that count.
#[derive(Default)]
struct Counting {
    millis: AtomicI64,
    bits: AtomicU64,
}

impl Clock for Counting {
    fn now_millis(&self) -> i64 {
        self.millis.fetch_add(1, Ordering::SeqCst)
    }
}

impl Entropy for Counting {
    fn next_u128(&self) -> u128 {
        u128::from(self.bits.fetch_add(1, Ordering::SeqCst))
    }
}

/// What a scripted coordinator does with one request.
enum Step {
    Unreachable,
    Refused,
    Paused,
    /// The pipeline was paused while the batch waited for its turn.
    PausedWaiting,
    Ends(Outcome, Option<Retry>),
    /// The batch runs, and then nobody says how it ends.
    Lost,
}

/// Follows a script; remembers the ids it was asked with, and when.
struct Scripted {
    steps: Mutex<VecDeque<Step>>,
    asked: Mutex<Vec<(RequestId, Instant)>>,
    batches: Mutex<Vec<watch::Receiver<BatchStatus>>>,
}

fn status(request: &RunRequest, outcome: Option<Outcome>, retry: Option<Retry>) -> BatchStatus {
    let failure = |retry| Failure { code: Code::Unavailable, retry, reason: "R".to_string(), message: String::new() };
    BatchStatus {
        name: BatchName::new(format!("p/{}", request.request)).unwrap(),
        pipeline: request.pipeline.name.clone(),
        request: request.request.clone(),
        asked_by: request.asked_by.clone(),
        stage: if outcome.is_some() { Stage::Done } else { Stage::Merge },
        outcome,
        instant: None,
        completed: None,
        seq: None,
        sources: Vec::new(),
        overrides: Vec::new(),
        written: Written::default(),
        refused: Default::default(),
        timings: Vec::new(),
        peak_memory: 0,
        error: retry.map(failure),
        started_millis: 0,
    }
}

#[async_trait]
impl Coordinator for Scripted {
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, Error> {
        self.asked.lock().unwrap().push((request.request.clone(), Instant::now()));
        let status = match self.steps.lock().unwrap().pop_front() {
            None | Some(Step::Refused) => return Err(Error::Cancelled),
            Some(Step::Unreachable) => {
                let source = boxed_error(std::io::Error::other("refused"));
                return Err(Error::Unreachable { doing: "starting".to_string(), source });
            }
            Some(Step::Paused) => return Err(Error::Paused { name: request.pipeline.name }),
            Some(Step::PausedWaiting) => {
                let mut ended = status(&request, Some(Outcome::Rejected), None);
                ended.error = Some(Error::Paused { name: request.pipeline.name }.failure());
                ended
            }
            Some(Step::Ends(outcome, retry)) => status(&request, Some(outcome), retry),
            Some(Step::Lost) => status(&request, None, None),
        };
        self.batches.lock().unwrap().push(watch::channel(status.clone()).1);
        Ok(status)
    }

    async fn get_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        Err(Error::NoBatch { name: name.to_string() })
    }

    async fn list_batches(&self, _: Option<&PipelineName>, _: usize) -> Result<Vec<BatchStatus>, Error> {
        Ok(Vec::new())
    }

    async fn watch_batch(&self, _: &BatchName) -> Result<watch::Receiver<BatchStatus>, Error> {
        Ok(self.batches.lock().unwrap().last().unwrap().clone())
    }

    async fn cancel_batch(&self, name: &BatchName) -> Result<BatchStatus, Error> {
        Err(Error::NoBatch { name: name.to_string() })
    }

    async fn check_overrides(&self, _: Pipeline, _: Vec<Override>) -> Result<Vec<OverrideStatus>, Error> {
        Ok(Vec::new())
    }

    async fn get_cursors(&self, _: &PipelineName, _: &str) -> Result<Option<CursorCommit>, Error> {
        Ok(None)
    }

    async fn plan_batch(&self, _: Pipeline, _: Vec<Override>) -> Result<PlannedBatch, Error> {
        Err(Error::Cancelled)
    }

    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, Error> {
        Err(Error::NoBatch { name: name.to_string() })
    }
}

/// Runs a script in continuous mode; answers how it ended, the ids that were asked with, and the seconds between them.
async fn run_script(steps: Vec<Step>) -> (Result<u8, Failed>, Vec<RequestId>, Vec<u64>) {
    let target = serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]});
    let pipeline = serde_json::from_value(serde_json::json!({"name": "p", "target": target})).unwrap();
    let coordinator = Scripted { steps: Mutex::new(steps.into()), asked: Mutex::default(), batches: Mutex::default() };
    let counting = Counting::default();
    let runner = Runner {
        coordinator: &coordinator,
        news: None,
        clock: &counting,
        entropy: &counting,
        request: RunRequest {
            pipeline,
            request: RequestId::new("first").unwrap(),
            allow_empty: false,
            overrides: Vec::new(),
            cursors_only: false,
            asked_by: "a test".to_string(),
        },
        interval: Duration::from_secs(10),
        output: Output::Json,
        brief: false,
    };
    let ended = runner.continuous(std::future::pending()).await;
    let asked = coordinator.asked.into_inner().unwrap();
    let pauses = asked.windows(2).map(|pair| (pair[1].1 - pair[0].1).as_secs()).collect();
    (ended, asked.into_iter().map(|(id, _)| id).collect(), pauses)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_asked_again_with_the_same_request_after_growing_pauses() {
    let committed = || Step::Ends(Outcome::Committed, None);
    let steps = vec![Step::Unreachable, Step::Unreachable, Step::Unreachable, committed(), committed()];
    let (ended, ids, pauses) = run_script(steps).await;
    assert_eq!(ended.unwrap_err().exit_code, Outcome::Cancelled.exit_code(), "the script's end is a refusal");
    assert!(ids[..4].iter().all(|id| id.as_str() == "first"), "{ids:?}");
    assert_ne!(ids[4], ids[3]);
    assert_eq!(pauses, [20, 40, 80, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_cannot_be_followed_is_asked_for_again_by_its_id() {
    let (_, ids, _) = run_script(vec![Step::Lost, Step::Ends(Outcome::Committed, None)]).await;
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[1], ids[2]);
}

#[tokio::test(start_paused = true)]
async fn idle_batches_are_paced_and_failures_that_may_pass_back_off() {
    let failed = |retry| Step::Ends(Outcome::Failed, Some(retry));
    let idle = || Step::Ends(Outcome::NoNewData, None);
    let steps = vec![idle(), failed(Retry::Again), failed(Retry::Rebase), idle(), failed(Retry::Again)];
    let (_, ids, pauses) = run_script(steps).await;
    assert_eq!(pauses, [10, 20, 40, 10, 20], "failures in a row count, and start over after a batch that did not fail");
    assert_eq!(ids.iter().collect::<std::collections::HashSet<_>>().len(), ids.len(), "each batch has a new id");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_asked_for_again_by_its_id() {
    let unknown = Step::Ends(Outcome::Unknown, Some(Retry::ReadBack));
    let (_, ids, _) = run_script(vec![unknown, Step::Ends(Outcome::Committed, None)]).await;
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_no_repetition_mends_ends_with_its_exit_code() {
    for (outcome, code) in [(Outcome::Rejected, 2), (Outcome::Cancelled, 4), (Outcome::Failed, 1)] {
        let (ended, ids, _) = run_script(vec![Step::Ends(outcome, Some(Retry::Never))]).await;
        assert_eq!((ended.unwrap(), ids.len()), (code, 1));
    }
    let (ended, ids, _) = run_script(vec![Step::Refused]).await;
    assert_eq!((ended.unwrap_err().exit_code, ids.len()), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn a_paused_pipeline_is_waited_for_at_the_idle_pace_until_it_is_resumed() {
    let committed = || Step::Ends(Outcome::Committed, None);
    let steps = vec![committed(), Step::Paused, Step::Paused, Step::PausedWaiting, Step::Paused, committed()];
    let (_, ids, pauses) = run_script(steps).await;
    assert_eq!(pauses, [0, 10, 10, 10, 10, 0], "no pause grows, and after the last one a batch follows at once");
    assert!(ids[1..=5].iter().all(|id| *id == ids[1]), "nothing was begun: the request stays the same: {ids:?}");
    assert_ne!(ids[6], ids[5]);
}

#[test]
fn only_a_pause_is_waited_out_of_what_no_repetition_mends() {
    let name = || PipelineName::new("p").unwrap();
    assert_eq!(after_broken(&Broken::Call(Error::Paused { name: name() })), Next::Paused);
    assert_eq!(after_broken(&Broken::Call(Error::NoPipeline { name: name().to_string() })), Next::End);
    let failure = Error::Paused { name: name() }.failure();
    assert_eq!(after_batch(Outcome::Rejected, Some(&failure)), Next::Paused);
    assert_eq!(after_batch(Outcome::Rejected, Some(&Error::Cancelled.failure())), Next::End);
    assert!(pause_said(&name(), true).contains("tributary pipelines resume p"));
    assert_eq!(pause_said(&name(), false), "p: resumed");
}

#[tokio::test(start_paused = true)]
async fn being_told_to_stop_ends_a_pause() {
    let began = Instant::now();
    let target = serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]});
    let pipeline = serde_json::from_value(serde_json::json!({"name": "p", "target": target})).unwrap();
    let steps = Mutex::new((0..100).map(|_| Step::Unreachable).collect());
    let coordinator = Scripted { steps, asked: Mutex::default(), batches: Mutex::default() };
    let counting = Counting::default();
    let request = RequestId::new("first").unwrap();
    let runner = Runner {
        coordinator: &coordinator,
        news: None,
        clock: &counting,
        entropy: &counting,
        request: RunRequest {
            pipeline,
            request,
            allow_empty: false,
            overrides: Vec::new(),
            cursors_only: false,
            asked_by: String::new(),
        },
        interval: Duration::from_secs(10),
        output: Output::Json,
        brief: false,
    };
    let code = runner.continuous(tokio::time::sleep(Duration::from_secs(1000))).await.unwrap();
    assert_eq!((code, began.elapsed()), (0, Duration::from_secs(1000)));
}

#[test]
fn pauses_after_failures_grow_to_a_limit_and_are_spread_by_the_given_randomness() {
    struct Fixed(u128);
    impl Entropy for Fixed {
        fn next_u128(&self) -> u128 {
            self.0
        }
    }
    let interval = Duration::from_secs(1);
    assert_eq!(backoff(1, interval, &Fixed(0)), Duration::from_secs(2));
    assert_eq!(backoff(1, interval, &Fixed(499)), Duration::from_millis(2499));
    assert_eq!(backoff(1, interval, &Fixed(500)), Duration::from_secs(2), "at most a quarter is added");
    assert_eq!(backoff(30, Duration::from_secs(3600), &Fixed(0)), LONGEST_PAUSE);
}

#[test]
fn request_ids_are_unique_and_carry_the_time() {
    let counting = Counting::default();
    let (one, two) = (new_request_id(&counting, &counting), new_request_id(&counting, &counting));
    assert_ne!(one, two);
    assert_eq!((one.millis(), two.millis()), (Some(0), Some(1)));
}

#[test]
fn a_pipeline_that_is_stuck_says_for_how_long_and_why() {
    let target = serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]});
    let request = RunRequest {
        pipeline: serde_json::from_value(serde_json::json!({"name": "p", "target": target})).unwrap(),
        request: RequestId::new("first").unwrap(),
        allow_empty: false,
        overrides: Vec::new(),
        cursors_only: false,
        asked_by: "a test".to_string(),
    };
    let failed = status(&request, Some(Outcome::Failed), Some(Retry::Again));
    let said = |failures| not_committed(&failed, failures, Duration::from_millis(20_400));
    assert_eq!(said(1), "p: not committed [R]; another batch in 20 s");
    assert_eq!(said(4), "p: 4 batches in a row not committed, now [R]; another in 20 s");
}
