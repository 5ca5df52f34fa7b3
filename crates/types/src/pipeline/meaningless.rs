// SPDX-License-Identifier: Apache-2.0
//! Keys of a source that its kind, or how it is read, gives no meaning: whoever set one expects what will not happen.

use super::source::{default_num_instants, is_default};
use super::{FileOptions, OnHole, OnLate, OnMalformedCursor, OnStale, ReadMode, Source, SourceKind};

/// What is wrong with the keys of `source`, each as a sentence that names the key. A key that says what holds anyway is
/// not told from one that is not given.
pub(super) fn problems(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    let windows = of_windows(source);
    if source.kind != SourceKind::Hudi {
        for (key, instead) in
            of_tables(source).into_iter().filter_map(|(key, given, instead)| given.then_some((key, instead)))
        {
            let instead = instead_of(source.kind, instead);
            problems.push(format!(
                "source `{}`: `{key}` means nothing to `kind = \"{}\"`{instead}",
                source.name,
                source.kind.as_str()
            ));
        }
    }
    if source.read == ReadMode::Snapshot {
        let of_table = |key: &str| of_tables(source).iter().any(|(known, given, _)| *given && *known == key);
        let told = |key: &str| source.kind != SourceKind::Hudi && of_table(key);
        for (key, _) in windows.into_iter().filter(|(key, given)| *given && !told(key)) {
            problems.push(format!(
                "source `{}`: `{key}` means nothing to `read = \"snapshot\"`: a look-up is the whole table each time, and has \
                 no cursor",
                source.name
            ));
        }
    }
    problems
}

/// What stands for the key of a table elsewhere.
struct Instead {
    files: &'static str,
    topic: &'static str,
}

/// Keys of tables, whether each is given, and what other kinds have for it.
fn of_tables(source: &Source) -> [(&'static str, bool, Instead); 5] {
    let none = Instead { files: "", topic: "" };
    [
        (
            "num_instants",
            source.num_instants != default_num_instants(),
            Instead {
                files: "`files.max_files` and `files.max_bytes` limit a window",
                topic: "`kafka.max_events` limits a window",
            },
        ),
        (
            "on_stale",
            source.on_stale != OnStale::Fail,
            Instead { files: "", topic: "`kafka.on_out_of_range` says what to do where messages are gone" },
        ),
        ("on_hole", source.on_hole != OnHole::Block, none),
        (
            "on_late_instant",
            source.on_late_instant != OnLate::Fail,
            Instead { files: "`files.on_late` says what to do with late files", topic: "" },
        ),
        (
            "meta_columns",
            source.meta_columns,
            Instead { files: "", topic: "`kafka.metadata` shows what is known of a message" },
        ),
    ]
}

fn instead_of(kind: SourceKind, instead: Instead) -> String {
    match if kind == SourceKind::Kafka { instead.topic } else { instead.files } {
        "" => String::new(),
        what => format!("; {what}"),
    }
}

/// Keys that say how windows follow one another, and whether each is given.
fn of_windows(source: &Source) -> Vec<(&'static str, bool)> {
    let (files, whole) = (&source.files, FileOptions::default());
    vec![
        ("start", source.start.is_some()),
        ("num_instants", source.num_instants != default_num_instants()),
        ("on_stale", source.on_stale != OnStale::Fail),
        ("on_hole", source.on_hole != OnHole::Block),
        ("on_late_instant", source.on_late_instant != OnLate::Fail),
        ("on_malformed_cursor", !is_default::<OnMalformedCursor>(&source.on_malformed_cursor)),
        ("files.max_files", files.max_files != whole.max_files),
        ("files.max_bytes", files.max_bytes != whole.max_bytes),
        ("files.late_window", files.late_window != whole.late_window),
        ("files.on_late", files.on_late != whole.on_late),
        ("files.on_changed", files.on_changed != whole.on_changed),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: serde_json::Value) -> Vec<String> {
        problems(&serde_json::from_value(source).unwrap())
    }

    #[test]
    fn keys_of_tables_are_refused_by_name_for_files_and_topics() {
        let table = serde_json::json!({
            "num_instants": 9, "on_stale": "snapshot", "on_hole": "fail", "on_late_instant": "deliver", "meta_columns": true,
        });
        for kind in ["csv", "json", "parquet", "kafka"] {
            let mut source = serde_json::json!({"name": "s", "kind": kind, "path": "/s"});
            assert_eq!(found(source.clone()), Vec::<String>::new());
            for (key, value) in table.as_object().unwrap() {
                source[key] = value.clone();
            }
            let problems = found(source);
            assert_eq!(problems.len(), 5, "{problems:?}");
            for key in table.as_object().unwrap().keys() {
                let begin = format!("source `s`: `{key}` means nothing to `kind = \"{kind}\"`");
                assert!(problems.iter().any(|it| it.starts_with(&begin)), "{key} of {kind} in {problems:?}");
            }
            let instead = if kind == "kafka" { "`kafka.max_events`" } else { "`files.max_files`" };
            assert!(problems.iter().any(|it| it.contains(instead)), "{problems:?}");
        }
        let mut source = serde_json::json!({"name": "s", "path": "/s"});
        for (key, value) in table.as_object().unwrap() {
            source[key] = value.clone();
        }
        assert_eq!(found(source), Vec::<String>::new(), "a table has them all");
    }

    #[test]
    fn keys_of_windows_are_refused_by_name_for_look_ups() {
        let keys = serde_json::json!({
            "start": "latest", "num_instants": 9, "on_stale": "snapshot", "on_hole": "fail", "on_late_instant": "deliver",
            "on_malformed_cursor": "start",
        });
        let mut source = serde_json::json!({"name": "s", "path": "/s", "read": "snapshot", "meta_columns": true});
        assert_eq!(found(source.clone()), Vec::<String>::new());
        for (key, value) in keys.as_object().unwrap() {
            source[key] = value.clone();
        }
        let problems = found(source);
        assert_eq!(problems.len(), 6, "{problems:?}");
        for key in keys.as_object().unwrap().keys() {
            let begin = format!("source `s`: `{key}` means nothing to `read = \"snapshot\"`");
            assert!(problems.iter().any(|it| it.starts_with(&begin)), "{key} in {problems:?}");
        }
        let files = serde_json::json!({
            "name": "s", "kind": "csv", "path": "/s", "read": "snapshot", "num_instants": 9,
            "files": {"max_files": 3, "on_late": "warn", "glob": "*.csv"},
        });
        let problems = found(files).join("\n");
        assert!(problems.contains("`files.max_files`") && problems.contains("`files.on_late`"), "{problems}");
        assert_eq!(problems.matches("`num_instants`").count(), 1, "each key once: {problems}");
    }
}
