// SPDX-License-Identifier: Apache-2.0
//! Sources that deliver deleted records.

use super::{Deletes, OnStale, Operation, Pipeline, ReadMode, Source, SourceKind};

impl Source {
    /// Whether records that are deleted in the table are delivered.
    pub fn propagates_deletes(&self) -> bool {
        self.deletes == Some(Deletes::Propagate)
    }
}

impl Pipeline {
    /// Whether a row that deletes gives way to another row of its key in the same batch. What a table delivers as deleted is
    /// what a record was at the beginning of the window, so it says nothing against a row of the same key as of its end: a
    /// record that moved to another partition of its table is both. An event that deletes does say something, which is why
    /// topics and files are not read beside such a table.
    pub fn deletes_give_way(&self) -> bool {
        self.sources.iter().any(Source::propagates_deletes)
    }
}

/// What is wrong with what a source says of deletes.
pub(super) fn problems(source: &Source, pipeline: &Pipeline) -> Vec<String> {
    let mut problems = Vec::new();
    let Some(deletes) = source.deletes else { return problems };
    let name = &source.name;
    if source.kind != SourceKind::Hudi {
        problems.push(format!(
            "source `{name}`: `deletes` means nothing to `kind = \"{}\"`: only a Hudi table says what was deleted in it",
            source.kind.as_str()
        ));
        return problems;
    }
    if deletes == Deletes::Ignore {
        return problems;
    }
    let does_not_go = format!("source `{name}`: `deletes = \"propagate\"` does not go with");
    if source.read == ReadMode::Snapshot {
        problems.push(format!("{does_not_go} `read = \"snapshot\"`: a look-up delivers no changes"));
    }
    if source.on_stale == OnStale::Snapshot {
        problems.push(format!(
            "{does_not_go} `on_stale = \"snapshot\"`: what was deleted in the gap would be lost in silence; leave \
             `on_stale = \"fail\"`"
        ));
    }
    let events = |other: &&Source| other.read == ReadMode::Incremental && other.kind != SourceKind::Hudi;
    if let Some(other) = pipeline.sources.iter().find(events) {
        problems.push(format!(
            "{does_not_go} source `{0}` of `kind = \"{1}\"`: a delete of a table gives way to any row of its key, since it may \
             have moved, and one of an event does not; leave `deletes` out, read `{0}` as a look-up (`read = \
             \"snapshot\"`), or make two pipelines of it",
            other.name,
            other.kind.as_str()
        ));
    }
    let operation = pipeline.target.operation;
    if operation != Operation::Upsert {
        problems.push(format!(
            "{does_not_go} `target.operation = \"{}\"`, which looks no record up to delete it: use `upsert`",
            operation.as_str().to_lowercase()
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline() -> Pipeline {
        serde_json::from_value(serde_json::json!({
            "name": "p",
            "source": [
                {"name": "orders", "path": "/a", "start": "snapshot", "deletes": "propagate"},
                {"name": "users", "path": "/b", "start": "snapshot"},
            ],
            "transform": [{"sql": "SELECT 1"}],
            "target": {"path": "/t", "table_name": "t", "record_key": ["id"]},
        }))
        .unwrap()
    }

    #[test]
    fn a_table_may_propagate_deletes_and_by_default_ignores_them() {
        let pipeline = pipeline();
        assert_eq!(pipeline.validate(), Vec::<String>::new());
        assert!(pipeline.sources[0].propagates_deletes() && !pipeline.sources[1].propagates_deletes());
        let text = serde_json::to_string(&pipeline.sources[1]).unwrap();
        assert!(!text.contains("deletes"), "a pipeline that does not say it is the one that it was: {text}");
    }

    #[test]
    fn what_cannot_deliver_deletes_is_refused_by_name() {
        let problem = |change: fn(&mut Pipeline)| {
            let mut pipeline = pipeline();
            change(&mut pipeline);
            pipeline.validate().join("\n")
        };
        let files = problem(|p| p.sources[0].kind = SourceKind::Csv);
        assert!(files.contains("source `orders`: `deletes` means nothing to `kind = \"csv\"`"), "{files}");
        let ignored = problem(|p| {
            p.sources[0].kind = SourceKind::Json;
            p.sources[0].deletes = Some(Deletes::Ignore);
        });
        assert!(ignored.contains("`deletes` means nothing"), "{ignored}");
        let lookup = problem(|p| p.sources[0].read = ReadMode::Snapshot);
        assert!(lookup.contains("`read = \"snapshot\"`"), "{lookup}");
        let stale = problem(|p| p.sources[0].on_stale = OnStale::Snapshot);
        assert!(stale.contains("`on_stale = \"snapshot\"`: what was deleted in the gap"), "{stale}");
        let bulk = problem(|p| p.target.operation = Operation::BulkInsert);
        assert!(bulk.contains("`target.operation = \"bulk_insert\"`"), "{bulk}");
    }

    #[test]
    fn deletes_of_tables_give_way_and_events_are_not_read_beside_them() {
        let mut pipeline = pipeline();
        assert!(pipeline.deletes_give_way());
        for kind in [SourceKind::Csv, SourceKind::Json, SourceKind::Kafka] {
            pipeline.sources[1].kind = kind;
            let refused = pipeline.validate().join("\n");
            let part =
                format!("`deletes = \"propagate\"` does not go with source `users` of `kind = \"{}\"`", kind.as_str());
            assert!(refused.contains("source `orders`") && refused.contains(&part), "{refused}");
        }
        pipeline.sources[1].kind = SourceKind::Csv;
        pipeline.sources[1].read = ReadMode::Snapshot;
        pipeline.sources[1].start = None;
        assert!(!pipeline.validate().join("\n").contains("does not go with source"), "a look-up has no events");
        pipeline.sources[1].kind = SourceKind::Hudi;
        pipeline.sources[0].deletes = None;
        assert!(!pipeline.deletes_give_way());
    }
}
