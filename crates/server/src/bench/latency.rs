// SPDX-License-Identifier: Apache-2.0
//! How long batches wait for their turn, and take, where many pipelines share a process: one always fails, one is giant,
//! and all others are small.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde::Serialize;
use tributary_api::coordinator::{BatchStatus, RunRequest};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, RequestId};

use super::source::BuildError;
use super::{Made, make_source};
use crate::embedded::Embedded;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Pipelines, the failing and the giant one among them.
    pub pipelines: usize,
    /// Rows of the giant one.
    pub rows: usize,
    /// Batches of each pipeline, one after another.
    pub rounds: usize,
}

/// Times of the batches of one kind of pipeline, milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// `small`, `failing` or `giant`.
    pub kind: &'static str,
    /// Batches that ended.
    pub batches: usize,
    /// From the request to the first stage: the middle, 95 of 100, and the longest.
    pub waited_millis: [u64; 3],
    /// From the request to the outcome.
    pub took_millis: [u64; 3],
}

/// A kind of pipeline, and what its batches end with.
const KINDS: [(&str, Outcome); 3] =
    [("small", Outcome::Committed), ("failing", Outcome::Failed), ("giant", Outcome::Committed)];
const FAILING: usize = 0;
const GIANT: usize = 1;

fn kind(number: usize) -> (&'static str, Outcome) {
    match number {
        FAILING => KINDS[1],
        GIANT => KINDS[2],
        _ => KINDS[0],
    }
}

/// Runs the batches of all pipelines at once, those of one pipeline after each other.
pub async fn run(roles: &Embedded, directory: &Path, plan: &Plan) -> Result<Vec<Latency>, BuildError> {
    let small = make_source(roles, directory, "small", 100).await?;
    let giant = make_source(roles, directory, "giant", plan.rows).await?;
    let mut running = Vec::new();
    for number in 0..plan.pipelines.max(3) {
        running.push(one_pipeline(roles, pipeline(directory, &small, &giant, number)?, number, plan.rounds));
    }
    let mut times: Vec<(usize, Times)> = Vec::new();
    for ended in try_join_all(running).await? {
        times.extend(ended);
    }
    let of_kind = |(name, _): &(&'static str, Outcome)| {
        let of = times.iter().filter(|(number, _)| kind(*number).0 == *name).map(|(_, times)| *times);
        summary(name, of.collect())
    };
    Ok(KINDS.iter().map(of_kind).collect())
}

fn pipeline(directory: &Path, small: &Made, giant: &Made, number: usize) -> Result<Pipeline, BuildError> {
    let nowhere = directory.join("nowhere").display().to_string();
    let path = match number {
        FAILING => &nowhere,
        GIANT => &giant.url,
        _ => &small.url,
    };
    Ok(serde_json::from_value(serde_json::json!({
        "name": format!("latency{number}"),
        "source": [{"name": "src", "path": path, "start": "snapshot"}],
        "target": {
            "path": directory.join(format!("latency{number}")).display().to_string(),
            "table_name": "latency", "record_key": ["id"],
        },
    }))?)
}

/// How long one batch waited, and took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    waited: Duration,
    took: Duration,
}

async fn one_pipeline(
    roles: &Embedded,
    pipeline: Pipeline,
    number: usize,
    rounds: usize,
) -> Result<Vec<(usize, Times)>, BuildError> {
    let mut all = Vec::new();
    for round in 0..rounds {
        let request = RunRequest {
            pipeline: pipeline.clone(),
            request: RequestId::new(format!("round{round}"))?,
            // Later rounds find nothing new and commit all the same.
            allow_empty: true,
            overrides: Vec::new(),
            cursors_only: false,
            asked_by: "bench".to_string(),
        };
        let began = Instant::now();
        let started = roles.coordinator.run_batch(request).await?;
        let mut watch = roles.coordinator.watch_batch(&started.name).await?;
        let ended = watch.wait_for(|status| status.outcome.is_some()).await?.clone();
        all.push((number, times_of(&ended, began.elapsed())));
        let expected = kind(number).1;
        if ended.outcome != Some(expected) {
            let why = ended.error.map_or(String::new(), |error| error.message);
            return Err(format!("batch {} ended as {:?}, not {expected:?}: {why}", started.name, ended.outcome).into());
        }
    }
    Ok(all)
}

fn times_of(ended: &BatchStatus, took: Duration) -> Times {
    let worked: u64 = ended.timings.iter().map(|(_, millis)| millis).sum();
    Times { waited: took.saturating_sub(Duration::from_millis(worked)), took }
}

fn summary(kind: &'static str, times: Vec<Times>) -> Latency {
    let of = |pick: fn(&Times) -> Duration| {
        let mut millis: Vec<u64> = times.iter().map(|times| pick(times).as_millis() as u64).collect();
        millis.sort_unstable();
        [50, 95, 100].map(|percent| at(&millis, percent))
    };
    Latency { kind, batches: times.len(), waited_millis: of(|times| times.waited), took_millis: of(|times| times.took) }
}

/// The value that so many of a hundred do not exceed.
fn at(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_values_that_are_there() {
        let sorted: Vec<u64> = (1..=40).collect();
        assert_eq!([50, 95, 100].map(|percent| at(&sorted, percent)), [20, 38, 40]);
        assert_eq!([50, 95, 100].map(|percent| at(&[7], percent)), [7, 7, 7]);
        assert_eq!(at(&[], 50), 0);
    }
}
