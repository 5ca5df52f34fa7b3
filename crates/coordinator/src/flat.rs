// SPDX-License-Identifier: Apache-2.0
//! The checkpoint for Java jobs that a commit carries beside the structured cursors.

use tributary_api::coordinator::Error;
use tributary_types::pipeline::{Pipeline, ReadMode, Source};
use tributary_types::{Checkpoint, CursorKind, FLAT_KEY_V2, InstantTime, SourceCheckpoint, Zone, flat_form};

use crate::plan::Plans;

/// The metadata key and its value; `None` where there is nothing to say.
///
/// With `multi_checkpoint = false` several sources have one timestamp: the ceiling of the batch. Everything that completed
/// up to it was delivered and nothing after it, so it is a completion time that each of the sources can go on from, under
/// the key where Hudi keeps those.
pub(crate) fn flat_of(pipeline: &Pipeline, checkpoint: &Checkpoint) -> Option<(&'static str, String)> {
    let is_read = |source: &&SourceCheckpoint| source.cursor.is_some() || source.restart.is_some();
    if pipeline.multi_checkpoint || checkpoint.sources.values().filter(is_read).count() < 2 {
        return flat_form(&checkpoint.sources);
    }
    let ceiling = InstantTime::from_epoch_millis(checkpoint.ceiling_millis?, Zone::Utc);
    Some((FLAT_KEY_V2, ceiling.to_string()))
}

/// Refuses what one plain timestamp cannot stand for: sources that count requested times, and instants that are written in
/// the zone of some machine.
pub(crate) fn check_plain(pipeline: &Pipeline, plans: &Plans) -> Result<(), Error> {
    let read = pipeline.sources.iter().zip(&plans.sources);
    let read: Vec<_> = read.filter(|(source, _)| source.read == ReadMode::Incremental).collect();
    if pipeline.multi_checkpoint || read.len() < 2 {
        return Ok(());
    }
    let mut problems = Vec::new();
    for (source, plan) in read {
        let mut refuse = |why: &str| problems.push(problem(source, why));
        if plan.end.kind() != CursorKind::Completed {
            refuse("its cursor counts requested times (table version 6), and a ceiling is a completion time");
        } else if plan.table.zone != Zone::Utc {
            refuse(
                "its instants are written in a local time zone (`hoodie.table.timeline.timezone`), and a ceiling is in UTC",
            );
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Pipeline { pipeline: pipeline.name.to_string(), problems }) }
}

fn problem(source: &Source, why: &str) -> String {
    format!(
        "source `{}`: `multi_checkpoint = false` writes one timestamp for all sources: {why}; leave the key out, and the \
         checkpoint for Java jobs is `name=instant,…`",
        source.name
    )
}

/// Refuses to set cursors by a commit of their own where one plain timestamp stands for several: no ceiling would be that
/// of sources that stand apart.
pub(crate) fn check_set_apart(pipeline: &Pipeline) -> Result<(), Error> {
    let read = pipeline.sources.iter().filter(|source| source.read == ReadMode::Incremental).count();
    if pipeline.multi_checkpoint || read < 2 {
        return Ok(());
    }
    let problem =
        "`multi_checkpoint = false` writes one timestamp for all sources, which cannot say that one of them stands \
                   elsewhere: give the override to a run, whose window ends with the others"
            .to_string();
    Err(Error::Override { problems: vec![problem] })
}

#[cfg(test)]
mod tests {
    use tributary_types::{FLAT_KEY, SourceName};

    use super::*;

    fn pipeline(multi_checkpoint: bool) -> Pipeline {
        serde_json::from_value(serde_json::json!({
            "name": "p", "consistency": "aligned", "multi_checkpoint": multi_checkpoint,
            "source": [{"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}],
            "target": {"path": "/t", "table_name": "t", "record_key": ["id"]},
        }))
        .unwrap()
    }

    fn checkpoint(cursors: &[(&str, &str)]) -> Checkpoint {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.ceiling_millis = Some(1_749_234_506_197);
        for (name, cursor) in cursors {
            let entry = serde_json::json!({"kind": "hudi", "cursor": cursor, "fingerprint": "f"});
            checkpoint.sources.insert(SourceName::new(*name).unwrap(), serde_json::from_value(entry).unwrap());
        }
        checkpoint
    }

    const TWO: [(&str, &str); 2] = [("a", "completed:20250606182826190"), ("b", "completed:20250606182826195")];

    #[test]
    fn several_sources_have_one_timestamp_where_the_pipeline_says_so_and_it_is_the_ceiling() {
        let plain = flat_of(&pipeline(false), &checkpoint(&TWO));
        assert_eq!(plain, Some((FLAT_KEY_V2, "20250606182826197".to_string())));
        let named = "a=20250606182826190,b=20250606182826195".to_string();
        assert_eq!(flat_of(&pipeline(true), &checkpoint(&TWO)), Some((FLAT_KEY, named)));
        let mut unknown = checkpoint(&TWO);
        unknown.ceiling_millis = None;
        assert_eq!(flat_of(&pipeline(false), &unknown), None, "nothing rather than a place that is none");
    }

    #[test]
    fn one_source_has_its_own_timestamp_whatever_the_pipeline_says() {
        for multi in [false, true] {
            let one = flat_of(&pipeline(multi), &checkpoint(&TWO[..1]));
            assert_eq!(one, Some((FLAT_KEY_V2, "20250606182826190".to_string())));
        }
    }

    #[test]
    fn cursors_of_several_sources_are_not_set_apart_under_one_timestamp() {
        assert!(check_set_apart(&pipeline(true)).is_ok());
        let refused = check_set_apart(&pipeline(false)).unwrap_err().to_string();
        assert!(refused.contains("`multi_checkpoint = false`") && refused.contains("to a run"), "{refused}");
    }
}
