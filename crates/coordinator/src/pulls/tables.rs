// SPDX-License-Identifier: Apache-2.0
//! The targets of pipelines as tables that can be pulled, as of an instant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::Schema;
use tributary_api::coordinator::Error;
use tributary_api::pulls::{BATCHES, FlightName, Listed, Pull, TABLES};
use tributary_api::timeline::{Error as Unread, PlanRequest, Relation};
use tributary_hudi::{Instant, TableConfig, Timeline};
use tributary_types::{Cursor, InstantTime, Outcome, PipelineName, SourceName};

use crate::service::Inner;
use crate::target::{load_timeline, target_error};

/// Batches that are listed at most.
const LISTED_BATCHES: usize = 100;
/// Names that a message lists at most.
const NAMES_SHOWN: usize = 20;

/// The target of each pipeline.
type Targets = BTreeMap<PipelineName, String>;

impl Inner {
    pub(super) async fn plan_table_pull(&self, name: &str, at: Option<&InstantTime>) -> Result<Pull, Error> {
        let url = self.find_target(name).await?;
        let missing = |what: String| Error::NoFlight { name: shown(name, at), what };
        let storage = self.stores.open(&url).map_err(|e| target_error(&url, "opening the target", e))?;
        let config = match TableConfig::load(&storage).await {
            Ok(config) => config,
            Err(tributary_hudi::Error::NoTable { .. }) => {
                return Err(missing("no batch of it has committed yet, so there is no table".to_string()));
            }
            Err(e) => return Err(target_error(&url, "reading the target's properties", e)),
        };
        let timeline = load_timeline(&storage, &config).await?;
        let commit = commit_at(&timeline, at).map_err(missing)?;
        let source = SourceName::new("table").expect("a plain word is a source name");
        let pinned_end = commit.and_then(|commit| match config.version {
            // Version 6 has no completion times.
            ..=7 => Some(Cursor::Requested(commit.requested.clone())),
            _ => commit.completed.clone().map(Cursor::Completed),
        });
        let request = PlanRequest { pinned_end, ..PlanRequest::whole_table(source, storage.url()) };
        let plan = self.roles.timeline.plan(request).await.map_err(|error| match error {
            Unread::Stale { .. } | Unread::FileGone { .. } | Unread::Restored { .. } => Error::Gone {
                name: shown(name, at),
                what: "what it was made of then was cleaned, or its commits were archived".to_string(),
            },
            other => Error::Timeline(other),
        })?;
        let empty = Relation {
            schema: plan.table.schema.clone().unwrap_or_else(|| Arc::new(Schema::empty())),
            splits: Vec::new(),
        };
        let relation = plan.at_end.unwrap_or(empty);
        let mut metadata = BTreeMap::from([("table".to_string(), name.to_string())]);
        if let Some(commit) = commit {
            metadata.insert("instant".to_string(), commit.requested.to_string());
            metadata.extend(commit.completed.as_ref().map(|at| ("completed".to_string(), at.to_string())));
        }
        let at = commit.map(|commit| commit.requested.clone());
        Ok(Pull {
            flight: FlightName::Table { name: name.to_string(), at },
            schema: Arc::clone(&relation.schema),
            batch: None,
            metadata,
            relation,
            flags_deletes: false,
            rows: None,
            batch_rows: self.settings.pull_batch_rows,
        })
    }

    /// The target that a name stands for: a pipeline's, or the one of which it is the table's own name.
    async fn find_target(&self, name: &str) -> Result<String, Error> {
        if let Ok(pipeline) = PipelineName::new(name) {
            let here = self.registry.targets().into_iter().find(|(known, _)| known == &pipeline);
            if let Some((_, target)) = here {
                return Ok(target);
            }
            if let Some(record) = self.roles.checkpoints.history(Some(&pipeline), 1).await?.into_iter().next() {
                return Ok(record.target);
            }
        }
        let targets = self.targets().await?;
        let urls: BTreeSet<&String> = targets.values().collect();
        let mut found = Vec::new();
        for url in urls {
            let Ok(storage) = self.stores.open(url) else { continue };
            // One that cannot be read now has no name that could be compared.
            if TableConfig::load(&storage).await.is_ok_and(|config| config.name == name) {
                found.push(url.clone());
            }
        }
        let what = match found.as_slice() {
            [url] => return Ok(url.clone()),
            [] => format!("no pipeline and no target has this name; {}", listing(&targets)),
            _ => format!("{} targets have this name; name the pipeline instead: {}", found.len(), listing(&targets)),
        };
        Err(Error::NoFlight { name: shown(name, None), what })
    }

    /// The target of each pipeline that ran, as of its newest batch.
    async fn targets(&self) -> Result<Targets, Error> {
        let mut targets = Targets::new();
        let records = self.roles.checkpoints.history(None, usize::MAX).await?;
        let records = records.into_iter().map(|record| (record.status.pipeline, record.target));
        for (pipeline, target) in self.registry.targets().into_iter().chain(records) {
            targets.entry(pipeline).or_insert(target);
        }
        Ok(targets)
    }

    pub(super) async fn relations(&self, with_schemas: bool) -> Result<Vec<Listed>, Error> {
        let mut listed = Vec::new();
        let mut schemas = BTreeMap::new();
        for (pipeline, target) in self.targets().await? {
            // One without a commit is no table yet, and one that cannot be read now must not hide the others.
            let table = match self.roles.timeline.describe(&target).await {
                Ok(table) => table,
                Err(Unread::NoTable { .. }) => continue,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(pipeline = %pipeline, error, "a target cannot be listed");
                    continue;
                }
            };
            let schema = table.schema.unwrap_or_else(|| Arc::new(Schema::empty()));
            let shown = with_schemas.then(|| Arc::clone(&schema));
            listed.push(Listed { schema_name: TABLES, name: pipeline.to_string(), schema: shown });
            schemas.insert(pipeline, schema);
        }
        let mut batches = self.registry.newest();
        let known: BTreeSet<_> = batches.iter().map(|status| status.name.clone()).collect();
        let records = self.records(None, LISTED_BATCHES).await?;
        batches.extend(records.into_iter().map(|record| record.status).filter(|status| !known.contains(&status.name)));
        batches.retain(|status| status.outcome == Some(Outcome::Committed) && schemas.contains_key(&status.pipeline));
        batches.sort_by_key(|status| std::cmp::Reverse(status.started_millis));
        for status in batches.into_iter().take(LISTED_BATCHES) {
            let schema = schemas.get(&status.pipeline).filter(|_| with_schemas).cloned();
            listed.push(Listed { schema_name: BATCHES, name: status.name.to_string(), schema });
        }
        Ok(listed)
    }
}

fn shown(name: &str, at: Option<&InstantTime>) -> String {
    FlightName::Table { name: name.to_string(), at: at.cloned() }.to_string()
}

fn listing(targets: &Targets) -> String {
    if targets.is_empty() {
        return "no pipeline ran here yet".to_string();
    }
    let names: Vec<&str> = targets.keys().take(NAMES_SHOWN).map(PipelineName::as_str).collect();
    match targets.len() - names.len() {
        0 => format!("there are: {}", names.join(", ")),
        more => format!("there are: {}, and {more} more", names.join(", ")),
    }
}

/// The commit that a table is pulled as of: the one that was requested then, or else the newest that had completed by
/// then; `None`: the table has none. The error says what is wrong.
fn commit_at<'a>(timeline: &'a Timeline, at: Option<&InstantTime>) -> Result<Option<&'a Instant>, String> {
    let writes = timeline.completed_writes();
    let Some(at) = at else { return Ok(writes.last().copied()) };
    if let Some(named) = timeline.find(at).filter(|named| named.action.writes_files()) {
        return match named.completed {
            Some(_) => Ok(Some(named)),
            None => Err(format!("{at} has not completed")),
        };
    }
    let by_then = |write: &&Instant| write.completed.as_ref().is_some_and(|completed| completed <= at);
    match writes.iter().rev().copied().find(by_then) {
        Some(write) => Ok(Some(write)),
        None => Err(match writes.first() {
            Some(first) => format!("the first commit on the active timeline is {}", first.requested),
            None => "it has no commit".to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u32) -> InstantTime {
        format!("202506061828{second:02}000").parse().unwrap()
    }

    fn timeline() -> Timeline {
        let names = [
            format!("{}.commit.requested", at(1)),
            format!("{}.inflight", at(1)),
            format!("{}_{}.commit", at(1), at(4)),
            format!("{}.commit.requested", at(2)),
            format!("{}.inflight", at(2)),
            format!("{}_{}.commit", at(2), at(3)),
            format!("{}.commit.requested", at(6)),
            format!("{}.inflight", at(6)),
        ];
        Timeline::from_names(".hoodie/timeline", 2, names.iter().map(String::as_str))
    }

    #[test]
    fn a_table_is_pulled_as_of_a_commits_request_or_else_of_what_had_completed_by_a_time() {
        let timeline = timeline();
        let requested = |time: Option<InstantTime>| {
            commit_at(&timeline, time.as_ref()).map(|commit| commit.map(|commit| commit.requested.clone()))
        };
        assert_eq!(requested(None), Ok(Some(at(1))), "the one that completed last");
        assert_eq!(requested(Some(at(1))), Ok(Some(at(1))));
        assert_eq!(requested(Some(at(2))), Ok(Some(at(2))));
        assert_eq!(requested(Some(at(3))), Ok(Some(at(2))));
        assert_eq!(requested(Some(at(5))), Ok(Some(at(1))));
        assert!(requested(Some(at(6))).unwrap_err().contains("not completed"));
        assert!(requested(Some(at(0))).unwrap_err().contains(at(2).as_str()));
    }

    #[test]
    fn an_empty_timeline_has_no_commit() {
        let timeline = Timeline::from_names(".hoodie/timeline", 2, []);
        assert!(commit_at(&timeline, None).unwrap().is_none());
        assert!(commit_at(&timeline, Some(&at(1))).is_err());
    }
}
