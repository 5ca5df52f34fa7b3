// SPDX-License-Identifier: Apache-2.0
//! What one ceiling for all sources promises, over tables whose commits come in any order.

use std::collections::BTreeMap;

use async_trait::async_trait;
use proptest::prelude::*;
use tributary_api::RowStream;
use tributary_api::timeline::{Error as TimelineError, InstantFact, ReadRequest, TableInfo, WindowReport};
use tributary_types::pipeline::TableType;
use tributary_types::{Cursor, InstantTime, SourceName, Zone};

use super::*;

/// Until when a listing knows of every completion, before its time.
const MARGIN: i64 = 2;

fn at(millis: i64) -> InstantTime {
    InstantTime::from_epoch_millis(1_700_000_000_000 + millis, Zone::Utc)
}

fn millis(instant: &InstantTime) -> i64 {
    instant.epoch_millis(Zone::Utc).map_or(0, |at| at - 1_700_000_000_000)
}

/// A table whose commits are requested and complete at these times, as a listing at `now` shows it.
#[derive(Debug, Clone)]
struct Model {
    kind: CursorKind,
    commits: Vec<(i64, i64)>,
    cursor: i64,
    size: usize,
    now: i64,
}

impl Model {
    fn order(&self, commit: &(i64, i64)) -> i64 {
        if self.kind == CursorKind::Requested { commit.0 } else { commit.1 }
    }

    /// The first commit that is still pending, where it holds others up.
    fn hole(&self) -> Option<i64> {
        let pending = self.commits.iter().filter(|commit| commit.0 <= self.now && commit.1 > self.now);
        pending.map(|commit| commit.0).min().filter(|_| self.kind == CursorKind::Requested)
    }

    fn frontier(&self) -> i64 {
        let listed = self.now - MARGIN;
        self.hole().map_or(listed, |hole| listed.min(hole - 1))
    }

    /// What may be read after the cursor up to a ceiling, in order.
    fn unread(&self, ceiling: i64) -> Vec<(i64, i64)> {
        let limit = self.hole().map_or(ceiling, |hole| ceiling.min(hole - 1));
        let done = self.commits.iter().filter(|commit| commit.1 <= self.now);
        let mut unread: Vec<(i64, i64)> =
            done.filter(|it| self.order(it) > self.cursor && self.order(it) <= limit).copied().collect();
        unread.sort_by_key(|commit| (self.order(commit), commit.0));
        unread
    }

    fn plan(&self, request: &PlanRequest) -> SourcePlan {
        let ceiling = request.ceiling_millis.map_or(i64::MAX, |ceiling| ceiling - 1_700_000_000_000);
        let unread = self.unread(ceiling);
        let last = unread.get(self.size - 1).map(|commit| self.order(commit));
        let taken: Vec<&(i64, i64)> =
            unread.iter().filter(|commit| last.is_none_or(|last| self.order(commit) <= last)).collect();
        let end = taken.last().map_or(self.cursor, |commit| self.order(commit));
        let fact = |commit: &&(i64, i64)| InstantFact {
            requested: at(commit.0),
            completed: at(self.order(commit)),
            action: "commit".to_string(),
        };
        SourcePlan {
            source: request.source.clone(),
            table: TableInfo {
                url: request.url.clone(),
                name: String::new(),
                version: 9,
                table_type: TableType::CopyOnWrite,
                zone: Zone::Utc,
                fingerprint: String::new(),
                record_key: Vec::new(),
                partition_by: Vec::new(),
                ordering: Vec::new(),
                schema: None,
                newest: None,
            },
            begin: Some(self.kind.at(at(self.cursor))),
            end: self.kind.at(at(end)),
            instants: taken.iter().map(fact).collect(),
            has_news: !taken.is_empty(),
            limited: taken.len() < unread.len(),
            frontier_millis: 1_700_000_000_000 + self.frontier(),
            recent: Vec::new(),
            changed: None,
            at_end: None,
            at_begin: None,
            report: WindowReport::default(),
            files: None,
        }
    }
}

struct Models(BTreeMap<SourceName, Model>);

#[async_trait]
impl Timeline for Models {
    async fn describe(&self, url: &str) -> Result<TableInfo, TimelineError> {
        Err(TimelineError::Unsupported { url: url.to_string(), what: "it is not asked for".to_string() })
    }

    async fn plan(&self, request: PlanRequest) -> Result<SourcePlan, TimelineError> {
        Ok(self.0[&request.source].plan(&request))
    }

    async fn read(&self, request: ReadRequest) -> Result<RowStream, TimelineError> {
        Err(TimelineError::Unsupported { url: request.split.url, what: "it is not asked for".to_string() })
    }
}

fn pipeline(models: &Models) -> Pipeline {
    let sources: Vec<_> = models.0.keys().map(|name| serde_json::json!({"name": name, "path": "/s"})).collect();
    serde_json::from_value(serde_json::json!({
        "name": "p", "consistency": "aligned", "source": sources,
        "target": {"path": "/t", "table_name": "t", "record_key": ["id"]},
    }))
    .unwrap()
}

fn aligned(models: &Models) -> Plans {
    let begin = |model: &Model| Begin::After(model.kind.at(at(model.cursor)));
    let requests: Vec<PlanRequest> =
        models.0.iter().map(|(name, model)| PlanRequest::window(name.clone(), "u", begin(model))).collect();
    let aligning = async {
        let first = plan_all(models, &requests).await?;
        align(models, &pipeline(models), requests, first).await
    };
    futures::executor::block_on(aligning).unwrap()
}

fn model() -> impl Strategy<Value = Model> {
    let commits = prop::collection::vec((1i64..8, 1i64..40), 0..40);
    (any::<bool>(), commits, 0i64..60, 1usize..6, 0i64..4).prop_map(|(by_request, gaps, cursor, size, late)| {
        let mut requested = 0;
        let one = |(gap, takes): (i64, i64)| {
            requested += gap;
            (requested, requested + takes)
        };
        let commits = gaps.into_iter().map(one).collect();
        let kind = if by_request { CursorKind::Requested } else { CursorKind::Completed };
        // Listings are made one after the other.
        Model { kind, commits, cursor, size, now: 120 + late }
    })
}

proptest! {
    /// Tables of both layouts, pending commits, limits that end a source early: every window ends at or below one ceiling,
    /// which is no higher than what every listing shows for good; a table in the order of completion delivers exactly its
    /// unread commits up to that ceiling, and one in the order of requests the longest prefix of them, which is called no cut
    /// beside the others.
    #[test]
    fn aligned_windows_hold_exactly_the_commits_up_to_their_ceiling(models in prop::collection::vec(model(), 1..5)) {
        let named = models.into_iter().enumerate().map(|(n, model)| (SourceName::new(format!("s{n}")).unwrap(), model));
        let models = Models(named.collect());
        let plans = aligned(&models);
        let ceiling = plans.ceiling_millis.unwrap() - 1_700_000_000_000;
        let any = |kind: CursorKind| models.0.values().any(|model| model.kind == kind);
        let mixed = any(CursorKind::Requested) && any(CursorKind::Completed);
        for (plan, model) in plans.sources.iter().zip(models.0.values()) {
            prop_assert!(ceiling <= model.frontier(), "{} above {:?}", ceiling, model);
            let got: Vec<i64> = plan.instants.iter().map(|instant| millis(&instant.requested)).collect();
            let expected: Vec<i64> = model.unread(ceiling).iter().map(|commit| commit.0).collect();
            prop_assert_eq!(got, expected, "{:?} under {}", model, ceiling);
            prop_assert!(!plan.limited);
            let end = plan.end.instant().map_or(0, millis);
            prop_assert!(end <= ceiling.max(model.cursor));
            // No commit that completes, or is requested, later can lie below it.
            if model.kind == CursorKind::Completed {
                let below = model.commits.iter().filter(|commit| commit.1 > model.now);
                prop_assert!(below.into_iter().all(|commit| commit.1 > ceiling));
            }
            prop_assert_eq!(plan.report.not_a_cut, mixed && model.kind == CursorKind::Requested);
        }
        // It is as high as it can be: the frontier of a source, or where a limit ended one.
        let frontiers = models.0.values().map(Model::frontier);
        let ends = plans.sources.iter().map(|plan| plan.end.instant().map_or(0, millis));
        prop_assert!(frontiers.chain(ends).any(|end| end == ceiling), "{}", ceiling);
        prop_assert!(plans.sources.iter().all(|plan| matches!(plan.end, Cursor::Requested(_) | Cursor::Completed(_))));
    }
}
