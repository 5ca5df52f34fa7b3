// SPDX-License-Identifier: Apache-2.0

use tributary_api::checkpoint::CursorCommit;
use tributary_types::{FLAT_KEY, SourceCheckpoint};

use super::*;

fn at(n: u32) -> InstantTime {
    format!("2025010100000000{n}").parse().unwrap()
}

fn name(text: &str) -> SourceName {
    SourceName::new(text).unwrap()
}

fn pipeline(sources: serde_json::Value) -> Pipeline {
    let target = serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]});
    serde_json::from_value(serde_json::json!({"name": "p", "source": sources, "target": target})).unwrap()
}

fn entry(n: u32) -> SourceCheckpoint {
    SourceCheckpoint {
        kind: "hudi".to_string(),
        cursor: Some(Cursor::Completed(at(n))),
        restart: None,
        window: None,
        as_of: None,
        fingerprint: "f".to_string(),
        path: None,
        schema: None,
        recent: Vec::new(),
        files: None,
    }
}

fn resolved(sources: &[(&str, u32)]) -> Resolved {
    let mut checkpoint = Checkpoint::first(String::new());
    checkpoint.sources = sources.iter().map(|(source, n)| (name(source), entry(*n))).collect();
    let newest = Some(CursorCommit { instant: at(9), completed: None, checkpoint });
    Resolved { newest, shared_target: false, next_epoch: 1, repaired: None }
}

fn known(source: &str, n: u32) -> KnownCursor {
    KnownCursor { source: name(source), instant: at(8), entry: entry(n) }
}

fn cursor_of(standing: &Standing, source: &str) -> Option<Cursor> {
    standing.checkpoint().unwrap().sources.get(&name(source)).and_then(|entry| entry.cursor.clone())
}

#[test]
fn a_renamed_source_goes_on_from_the_cursor_of_its_former_name_once() {
    let renamed = pipeline(serde_json::json!([{"name": "b", "path": "/a", "renamed_from": "a"}]));
    let standing = begin_with(&renamed, &resolved(&[("a", 1)]), &[]).unwrap();
    assert_eq!(cursor_of(&standing, "b"), Some(Cursor::Completed(at(1))));
    assert_eq!((cursor_of(&standing, "a"), standing.former(&name("b")).as_str()), (None, "a"));
    assert!(standing.missing(&renamed).is_empty());
    // It has a cursor of its own by now.
    let standing = begin_with(&renamed, &resolved(&[("a", 1), ("b", 2)]), &[]).unwrap();
    assert_eq!(cursor_of(&standing, "b"), Some(Cursor::Completed(at(2))));
    assert_eq!(standing.former(&name("b")).as_str(), "b");
}

#[test]
fn only_sources_without_any_place_are_looked_for_in_older_commits() {
    let sources = serde_json::json!([
        {"name": "a", "path": "/a"},
        {"name": "b", "path": "/b"},
        {"name": "c", "path": "/c", "read": "snapshot"},
        {"name": "d", "path": "/d"},
        {"name": "e", "path": "/e"},
    ]);
    let pipeline = pipeline(sources);
    let mut resolved = resolved(&[("a", 1)]);
    let restarted = SourceCheckpoint { cursor: None, restart: Some(Start::Snapshot), ..entry(1) };
    resolved.newest.as_mut().unwrap().checkpoint.sources.insert(name("e"), restarted);
    let standing = begin_with(&pipeline, &resolved, &["d=snapshot".parse().unwrap()]).unwrap();
    let missing: Vec<&str> = standing.missing(&pipeline).iter().map(|source| source.name.as_str()).collect();
    assert_eq!(missing, ["b"]);
}

#[test]
fn a_source_that_is_back_goes_on_where_it_was_only_if_the_pipeline_says_so() {
    let with = |start: &str| pipeline(serde_json::json!([{"name": "b", "path": "/b", "start": start}]));
    let bring = |pipeline: &Pipeline, found: &[KnownCursor]| {
        let mut standing = begin_with(pipeline, &resolved(&[("a", 1)]), &[]).unwrap();
        let missing = standing.missing(pipeline);
        standing.bring_back(&missing, found).map(|()| cursor_of(&standing, "b"))
    };
    assert_eq!(bring(&with("resume"), &[known("b", 3)]).unwrap(), Some(Cursor::Completed(at(3))));
    assert!(matches!(bring(&with("resume"), &[]), Err(Error::NothingToResume { .. })));
    let refused = bring(&with("snapshot"), &[known("b", 3)]).unwrap_err().to_string();
    for part in ["source `b`", at(8).as_str(), &format!("completed:{}", at(3)), "resume", "--override b=start"] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    assert_eq!(bring(&with("snapshot"), &[]).unwrap(), None, "it is new");
    let renamed = pipeline(serde_json::json!([{"name": "b", "path": "/b", "renamed_from": "z", "start": "latest"}]));
    assert_eq!(bring(&renamed, &[known("z", 4)]).unwrap(), Some(Cursor::Completed(at(4))));
}

#[test]
fn a_first_start_is_for_the_first_batch_of_all_only() {
    let mut both = pipeline(serde_json::json!([{"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}]));
    both.first_start = Some(Start::Latest);
    let never = Resolved { newest: None, ..resolved(&[]) };
    assert_eq!(begin_with(&both, &never, &[]).unwrap().first_start(), Some(Begin::Latest));
    assert_eq!(begin_with(&both, &resolved(&[("a", 1)]), &[]).unwrap().first_start(), None, "b was added");
}

#[test]
fn an_override_heals_a_malformed_entry() {
    let pipeline = pipeline(serde_json::json!([{"name": "a", "path": "/a", "start": "snapshot"}]));
    let text = resolved(&[("a", 1)]).newest.unwrap().checkpoint.to_json().replacen("completed:", "completed-", 1);
    let checkpoint = Checkpoint::from_json(&pipeline.name, &at(9), &text).unwrap();
    let mut resolved = resolved(&[]);
    resolved.newest.as_mut().unwrap().checkpoint = checkpoint;
    assert!(matches!(begin_with(&pipeline, &resolved, &[]), Err(Error::MalformedCursor { .. })));
    let standing = begin_with(&pipeline, &resolved, &["a=start".parse().unwrap()]).unwrap();
    assert_eq!(standing.moved(&name("a")).unwrap().begin, Begin::Snapshot);
}

fn legacy(key: &str, value: &str) -> LegacyCheckpoint {
    LegacyCheckpoint { instant: at(7), key: key.to_string(), value: value.to_string() }
}

#[test]
fn a_checkpoint_of_hudi_streamer_is_taken_over_by_the_kind_of_the_source_and_the_key() {
    let cursor = |source: serde_json::Value, key: &str, value: &str| {
        legacy_cursor(&pipeline(serde_json::json!([source])).sources[0], &legacy(key, value)).map(|it| it.to_string())
    };
    let table = || serde_json::json!({"name": "a", "path": "/a"});
    let instant = at(1).to_string();
    assert_eq!(cursor(table(), FLAT_KEY_V2, &instant).unwrap(), format!("completed:{instant}"));
    assert_eq!(cursor(table(), FLAT_KEY, &instant).unwrap(), format!("requested:{instant}"));
    let resuming = format!("resumeFromInstantCompletionTime:{instant}");
    assert_eq!(cursor(table(), FLAT_KEY, &resuming).unwrap(), format!("completed:{instant}"));
    assert_eq!(cursor(table(), FLAT_KEY, &format!("a={instant}")).unwrap(), format!("requested:{instant}"));
    let refused = cursor(table(), FLAT_KEY, &format!("a={instant},b={instant}")).unwrap_err();
    assert!(refused.contains("several sources") && refused.contains("--override a="), "{refused}");
    assert!(cursor(table(), FLAT_KEY, "0:1,1:2").unwrap_err().contains("no instant"));
    assert!(cursor(table(), FLAT_KEY, "latest").is_err());
    let files = serde_json::json!({"name": "a", "path": "/a", "kind": "csv"});
    let taken = cursor(files, FLAT_KEY, "1735689600123").unwrap();
    assert!(taken.starts_with("file:modified:1735689600123:"), "{taken}");
}

#[test]
fn a_checkpoint_of_one_source_is_not_spread_over_several() {
    let two = pipeline(serde_json::json!([{"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}]));
    let mut standing = Standing::default();
    let refused = standing.adopt(&two, "/t", &legacy(FLAT_KEY, at(1).as_str())).unwrap_err().to_string();
    assert!(refused.contains("reads 2") && refused.contains(at(7).as_str()), "{refused}");
}
