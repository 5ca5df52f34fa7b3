// SPDX-License-Identifier: Apache-2.0
//! Cursors: where a pipeline stands, what was set by hand, and what batches did to them.

use std::collections::BTreeMap;

use serde::Serialize;
use tributary_api::checkpoint::CursorCommit;
use tributary_api::coordinator::{BatchStatus, OverrideStatus};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Cursor, Outcome, SourceCheckpoint};

use super::print_json;
use crate::cli::Output;

/// A cursor that was to be set by hand, as scripts see it.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct OverrideJson {
    source: String,
    to: String,
    /// `applied`, `already_applied`, `not_applied` or `pending`.
    state: &'static str,
    applied_by: Option<String>,
    before: Option<String>,
}

/// What became of an override in a batch that ended so; `None`: nothing yet.
pub(super) fn override_json(status: &OverrideStatus, outcome: Option<Outcome>) -> OverrideJson {
    let state = match (&status.applied_by, outcome) {
        (Some(_), _) => "already_applied",
        (None, Some(Outcome::Committed)) => "applied",
        (None, Some(_)) => "not_applied",
        (None, None) => "pending",
    };
    OverrideJson {
        source: status.source.to_string(),
        to: status.to.clone(),
        state,
        applied_by: status.applied_by.as_ref().map(ToString::to_string),
        before: status.before.as_ref().map(ToString::to_string),
    }
}

/// The same in a line.
pub(super) fn override_line(status: &OverrideStatus, outcome: Option<Outcome>) -> String {
    let told = override_json(status, outcome);
    let before = told.before.unwrap_or_else(|| "no cursor".to_string());
    let what = match (told.state, told.applied_by) {
        ("already_applied", Some(by)) => format!("already applied by {by}; nothing is done"),
        ("applied", _) => format!("applied (was {before})"),
        ("not_applied", _) => format!("not applied: the batch did not commit (is {before})"),
        _ => format!("would be applied (is {before})"),
    };
    format!("override {} = {}: {what}", told.source, told.to)
}

/// Prints what setting cursors would do.
pub(crate) fn print_overrides(statuses: &[OverrideStatus], output: Output) {
    for status in statuses {
        match output {
            Output::Json => print_json(&override_json(status, None)),
            Output::Text => println!("{}", override_line(status, None)),
        }
    }
}

/// Where a pipeline stands, as scripts see it.
#[derive(Serialize)]
struct CursorsJson<'a> {
    pipeline: String,
    target: &'a str,
    instant: Option<String>,
    completed: Option<String>,
    seq: Option<u64>,
    epoch: Option<u64>,
    sources: BTreeMap<String, SourceJson<'a>>,
    /// Entries that cannot be read, with what is wrong.
    malformed: BTreeMap<&'a str, &'a str>,
    /// Overrides that were applied, with the commits that did.
    overrides: BTreeMap<&'a str, String>,
}

#[derive(Serialize)]
struct SourceJson<'a> {
    kind: &'a str,
    cursor: Option<String>,
    /// Where the next window begins, set by hand, where no cursor says it.
    restart: Option<String>,
    as_of: Option<String>,
    begin: Option<String>,
    path: Option<&'a str>,
    fingerprint: &'a str,
}

/// Prints where a pipeline stands.
pub(crate) fn print_cursors(pipeline: &Pipeline, found: Option<&CursorCommit>, output: Output) {
    let target = pipeline.target.path.as_str();
    if output == Output::Json {
        let checkpoint = found.map(|commit| &commit.checkpoint);
        let sources = checkpoint.into_iter().flat_map(|it| &it.sources);
        let malformed = checkpoint.into_iter().flat_map(|it| &it.malformed);
        let overrides = checkpoint.into_iter().flat_map(|it| &it.tokens);
        print_json(&CursorsJson {
            pipeline: pipeline.name.to_string(),
            target,
            instant: found.map(|commit| commit.instant.to_string()),
            completed: found.and_then(|commit| commit.completed.as_ref()).map(ToString::to_string),
            seq: checkpoint.map(|it| it.seq),
            epoch: checkpoint.map(|it| it.epoch),
            sources: sources.map(|(name, source)| (name.to_string(), source_json(source))).collect(),
            malformed: malformed.map(|(name, entry)| (name.as_str(), entry.detail.as_str())).collect(),
            overrides: overrides.map(|(token, instant)| (token.as_str(), instant.to_string())).collect(),
        });
        return;
    }
    let Some(commit) = found else {
        println!("pipeline {} never committed into {target}: each source begins at its `start`", pipeline.name);
        return;
    };
    cursor_lines(commit).iter().for_each(|line| println!("{line}"));
}

fn source_json(source: &SourceCheckpoint) -> SourceJson<'_> {
    let begin = source.window.as_ref().and_then(|window| window.begin.as_ref());
    SourceJson {
        kind: &source.kind,
        cursor: source.cursor.as_ref().map(Cursor::to_string),
        restart: source.restart.as_ref().map(ToString::to_string),
        as_of: source.as_of.as_ref().map(Cursor::to_string),
        begin: begin.map(Cursor::to_string),
        path: source.path.as_deref(),
        fingerprint: &source.fingerprint,
    }
}

fn cursor_lines(commit: &CursorCommit) -> Vec<String> {
    let checkpoint = &commit.checkpoint;
    let mut lines =
        vec![format!("commit   {}, sequence number {}, epoch {}", commit.instant, checkpoint.seq, checkpoint.epoch)];
    for (name, source) in &checkpoint.sources {
        let place = match (&source.cursor, &source.restart, &source.as_of) {
            (Some(cursor), _, _) => cursor.to_string(),
            (None, Some(restart), _) => format!("set by hand: begins at `{restart}`"),
            (None, None, Some(as_of)) => format!("looked up as of {as_of}"),
            (None, None, None) => "-".to_string(),
        };
        lines.push(format!("source   {name}: {place}  ({})", source.path.as_deref().unwrap_or("-")));
    }
    lines.extend(checkpoint.malformed.iter().map(|(name, entry)| format!("damaged  {name}: {}", entry.detail)));
    lines.extend(checkpoint.tokens.iter().map(|(token, instant)| format!("override {token}: applied by {instant}")));
    lines
}

/// Prints what batches did to the cursors of their pipeline.
pub(crate) fn print_history(batches: &[BatchStatus], output: Output) {
    for status in batches {
        match output {
            Output::Json => super::print_batch(status, output),
            Output::Text => history_lines(status).iter().for_each(|line| println!("{line}")),
        }
    }
}

fn history_lines(status: &BatchStatus) -> Vec<String> {
    let state = status.outcome.map_or_else(|| status.stage.as_str().to_lowercase(), |o| o.as_str().to_string());
    let instant = status.instant.as_ref().map_or("-".to_string(), ToString::to_string);
    let took: u64 = status.timings.iter().map(|(_, millis)| millis).sum();
    let seq = status.seq.map_or("-".to_string(), |seq| seq.to_string());
    let mut lines =
        vec![format!("{} {state} {instant} seq {seq}, {took} ms, asked by {}", status.name, status.asked_by)];
    for source in &status.sources {
        let Some(window) = &source.window else { continue };
        let begin = window.begin.as_ref().map_or("start".to_string(), ToString::to_string);
        lines.push(format!("  {}: {begin} -> {}", source.source, window.end));
    }
    lines.extend(status.overrides.iter().map(|it| format!("  {}", override_line(it, status.outcome))));
    lines
}

#[cfg(test)]
mod tests {
    use tributary_types::pipeline::Start;
    use tributary_types::{Checkpoint, InstantTime, SourceName};

    use super::*;

    const AT: &str = "20250101000000001";

    fn status(applied_by: Option<&str>) -> OverrideStatus {
        OverrideStatus {
            source: SourceName::new("orders").unwrap(),
            to: "snapshot".to_string(),
            applied_by: applied_by.map(|text| text.parse().unwrap()),
            before: Some(format!("completed:{AT}").parse().unwrap()),
        }
    }

    #[test]
    fn an_override_says_whether_it_was_applied_now_before_or_not_at_all() {
        let line = |applied_by, outcome| override_line(&status(applied_by), outcome);
        assert!(
            line(Some(AT), Some(Outcome::NoNewData)).ends_with(&format!("already applied by {AT}; nothing is done"))
        );
        let applied = line(None, Some(Outcome::Committed));
        assert_eq!(applied, format!("override orders = snapshot: applied (was completed:{AT})"));
        assert!(line(None, Some(Outcome::Rejected)).contains("not applied"));
        assert!(line(None, None).contains("would be applied"));
        assert_eq!(override_json(&status(None), Some(Outcome::Failed)).state, "not_applied");
    }

    #[test]
    fn where_a_pipeline_stands_names_each_source_and_what_was_applied() {
        let mut checkpoint = Checkpoint::first(String::new());
        let entry = |cursor: Option<&str>, restart| SourceCheckpoint {
            kind: "hudi".to_string(),
            cursor: cursor.map(|text| text.parse().unwrap()),
            restart,
            window: None,
            as_of: None,
            fingerprint: String::new(),
            path: Some("/lake/orders".to_string()),
            schema: None,
            recent: Vec::new(),
            files: None,
        };
        let name = |text: &str| SourceName::new(text).unwrap();
        checkpoint.sources.insert(name("orders"), entry(Some(&format!("completed:{AT}")), None));
        checkpoint.sources.insert(name("users"), entry(None, Some(Start::Snapshot)));
        let instant: InstantTime = AT.parse().unwrap();
        checkpoint.tokens.insert("users=snapshot".to_string(), instant.clone());
        let lines = cursor_lines(&CursorCommit { instant, completed: None, checkpoint });
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(lines[1], format!("source   orders: completed:{AT}  (/lake/orders)"));
        assert!(lines[2].contains("begins at `snapshot`"), "{lines:?}");
        assert_eq!(lines[3], format!("override users=snapshot: applied by {AT}"));
    }
}
