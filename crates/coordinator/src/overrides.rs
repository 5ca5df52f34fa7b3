// SPDX-License-Identifier: Apache-2.0
//! Which cursors a batch sets by hand.

use std::collections::BTreeMap;

use tributary_api::coordinator::{Error, OverrideStatus};
use tributary_api::timeline::Begin;
use tributary_types::pipeline::{Operation, Pipeline, ReadMode, Source, SourceKind};
use tributary_types::{Checkpoint, Cursor, Override, OverrideTo, SourceName};

use crate::decide::begin_at;

/// Where a source begins instead of at its cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) begin: Begin,
    /// Whether somebody wrote the place down, so that it must be one.
    pub(crate) by_hand: bool,
}

/// The overrides of a request, as far as they are not applied yet.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) moves: BTreeMap<SourceName, Move>,
    /// What the commit remembers of each of them.
    pub(crate) tokens: Vec<String>,
    /// All of the request, applied or not.
    pub(crate) statuses: Vec<OverrideStatus>,
}

/// Chooses the overrides that a batch applies: those whose tokens the newest commit does not have. Every problem of them is
/// told at once.
pub(crate) fn choose(
    pipeline: &Pipeline,
    overrides: &[Override],
    stored: Option<&Checkpoint>,
) -> Result<Chosen, Error> {
    let mut chosen = Chosen::default();
    let mut problems = Vec::new();
    for wanted in overrides {
        let source = match source_of(pipeline, wanted) {
            Ok(source) => source,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        let token = wanted.key(&source.name);
        let known = stored.and_then(|checkpoint| checkpoint.sources.get(&source.name));
        let before = known.and_then(|known| known.cursor.clone());
        let applied_by = stored.and_then(|checkpoint| checkpoint.tokens.get(&token).cloned());
        let status = OverrideStatus { source: source.name.clone(), to: wanted.to.to_string(), applied_by, before };
        if status.applied_by.is_none() {
            let place = move_of(source, wanted, status.before.as_ref());
            match place.and_then(|place| check_again(pipeline, source, wanted, place, status.before.as_ref())) {
                Ok(_) if chosen.moves.contains_key(&source.name) => problems.push(format!(
                    "`{wanted}`: source `{}` is to be set to two places, none of which was applied yet: give one",
                    source.name
                )),
                Ok(place) => {
                    chosen.moves.insert(source.name.clone(), place);
                    chosen.tokens.push(token);
                }
                Err(problem) => problems.push(problem),
            }
        }
        chosen.statuses.push(status);
    }
    match problems.is_empty() {
        true => Ok(chosen),
        false => Err(Error::Override { problems }),
    }
}

fn source_of<'a>(pipeline: &'a Pipeline, wanted: &Override) -> Result<&'a Source, String> {
    let names = || pipeline.sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>().join(", ");
    let source = match (&wanted.source, pipeline.sources.as_slice()) {
        (Some(name), sources) => sources
            .iter()
            .find(|source| &source.name == name)
            .ok_or_else(|| format!("`{wanted}`: the pipeline has no source `{name}`; there are: {}", names()))?,
        (None, [only]) => only,
        (None, sources) => {
            return Err(format!(
                "`{wanted}`: the pipeline has {} sources ({}); say which one, as in `NAME={wanted}`",
                sources.len(),
                names()
            ));
        }
    };
    match source.read {
        ReadMode::Incremental => Ok(source),
        ReadMode::Snapshot => Err(format!(
            "`{wanted}`: source `{}` is only looked up (`read = \"snapshot\"`), so it has no cursor",
            source.name
        )),
    }
}

fn move_of(source: &Source, wanted: &Override, before: Option<&Cursor>) -> Result<Move, String> {
    let unfit = |cursor: &Cursor| {
        format!("`{wanted}`: {cursor} is no place in source `{}` of `kind = \"{}\"`", source.name, source.kind.as_str())
    };
    let exactly = |cursor: Cursor| match source.kind.fits(&cursor) {
        true => Ok(Move { begin: Begin::After(cursor), by_hand: true }),
        false => Err(unfit(&cursor)),
    };
    let begin = match &wanted.to {
        OverrideTo::Cursor(cursor) => return exactly(cursor.clone()),
        OverrideTo::Bare(instant) => {
            // A table of version 6 has no completion times, which its cursor tells.
            return exactly(match before {
                Some(Cursor::Requested(_)) => Cursor::Requested(instant.clone()),
                _ => Cursor::Completed(instant.clone()),
            });
        }
        OverrideTo::Latest => Begin::Latest,
        OverrideTo::Earliest => Begin::Earliest,
        OverrideTo::Snapshot => Begin::Snapshot,
        OverrideTo::Start => source.start.as_ref().and_then(begin_at).ok_or_else(|| {
            format!(
                "`{wanted}`: source `{}` has no `start` that is a place: say one in the pipeline, such as `start = \
                 \"snapshot\"`, or here",
                source.name
            )
        })?,
    };
    Ok(Move { begin, by_hand: false })
}

/// Refuses to read again what an operator of the target would count again, unless the pipeline accepts that.
fn check_again(
    pipeline: &Pipeline,
    source: &Source,
    wanted: &Override,
    place: Move,
    before: Option<&Cursor>,
) -> Result<Move, String> {
    let target = &pipeline.target;
    let combines = target.operation == Operation::Upsert;
    let merge = target.merge.as_ref().filter(|merge| combines && !merge.acknowledge_images);
    let (Some((key, operator)), Some(before)) = (merge.and_then(|merge| merge.counting()), before) else {
        return Ok(place);
    };
    if is_at_or_after(source, &place.begin, before) {
        return Ok(place);
    }
    Err(format!(
        "`{wanted}`: source `{}` stands at {before}, and what lies before that may come a second time, which \
         `target.merge.{key} = \"{operator}\"` would add to what is stored: set `target.merge.acknowledge_images = true` if \
         that is meant, or make the target anew",
        source.name
    ))
}

/// Whether nothing that was read before `before` lies after `begin`, as far as the two tell.
fn is_at_or_after(source: &Source, begin: &Begin, before: &Cursor) -> bool {
    match (begin, before) {
        // The end of a topic. Of a table or a directory the newest commit or file is delivered.
        (Begin::Latest, _) => source.kind == SourceKind::Kafka,
        (Begin::After(Cursor::Offsets(begin)), Cursor::Offsets(before)) => {
            let passed =
                |(partition, offset): (&i32, &i64)| begin.partitions.get(partition).is_some_and(|at| at >= offset);
            begin.topic == before.topic && before.partitions.iter().all(passed)
        }
        (Begin::After(Cursor::File(begin)), Cursor::File(before)) => begin >= before,
        (Begin::After(begin), before) if begin.same_clock(before) => begin.instant() >= before.instant(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use tributary_types::pipeline::Start;
    use tributary_types::{InstantTime, SourceCheckpoint};

    use super::*;

    const AT: &str = "20250101000000001";

    fn pipeline() -> Pipeline {
        let target = serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]});
        let sources = serde_json::json!([
            {"name": "a", "path": "/a", "start": "snapshot"},
            {"name": "b", "path": "/b", "read": "snapshot"},
            {"name": "c", "path": "/c", "kind": "csv"},
        ]);
        serde_json::from_value(serde_json::json!({"name": "p", "source": sources, "target": target})).unwrap()
    }

    fn only(mut pipeline: Pipeline) -> Pipeline {
        pipeline.sources.truncate(1);
        pipeline
    }

    fn stored(cursor: &str, tokens: &[&str]) -> Checkpoint {
        let mut checkpoint = Checkpoint::first(String::new());
        let entry = SourceCheckpoint {
            kind: "hudi".to_string(),
            cursor: Some(cursor.parse().unwrap()),
            restart: None,
            window: None,
            as_of: None,
            fingerprint: String::new(),
            path: None,
            schema: None,
            recent: Vec::new(),
            files: None,
        };
        checkpoint.sources.insert(SourceName::new("a").unwrap(), entry);
        let instant: InstantTime = AT.parse().unwrap();
        checkpoint.tokens = tokens.iter().map(|token| (token.to_string(), instant.clone())).collect();
        checkpoint
    }

    fn chosen(pipeline: &Pipeline, texts: &[&str], stored: Option<&Checkpoint>) -> Result<Chosen, String> {
        let overrides: Vec<Override> = texts.iter().map(|text| text.parse().unwrap()).collect();
        choose(pipeline, &overrides, stored).map_err(|error| error.to_string())
    }

    #[test]
    fn each_place_is_where_the_source_begins_and_its_text_is_its_token() {
        for (to, begin, by_hand) in [
            (format!("completed:{AT}"), Begin::After(format!("completed:{AT}").parse().unwrap()), true),
            ("latest".to_string(), Begin::Latest, false),
            ("earliest".to_string(), Begin::Earliest, false),
            ("snapshot".to_string(), Begin::Snapshot, false),
            ("start".to_string(), Begin::Snapshot, false),
        ] {
            let text = format!("a={to}");
            let chosen = chosen(&pipeline(), &[&text], None).unwrap();
            assert_eq!(chosen.moves.into_values().collect::<Vec<_>>(), [Move { begin, by_hand }]);
            assert_eq!((chosen.tokens, chosen.statuses[0].to.as_str()), (vec![text], to.as_str()));
        }
    }

    #[test]
    fn a_topic_takes_offsets_and_nothing_else_does() {
        let mut pipeline = pipeline();
        let topic =
            serde_json::json!({"name": "d", "kind": "kafka", "brokers": "h:9092", "topic": "t", "format": "json"});
        pipeline.sources.push(serde_json::from_value(topic).unwrap());
        let moved = chosen(&pipeline, &["d=offsets:t,0:42"], None).unwrap();
        let begin = Begin::After("offsets:t,0:42".parse().unwrap());
        assert_eq!(moved.moves.into_values().collect::<Vec<_>>(), [Move { begin, by_hand: true }]);
        let completed = format!("d=completed:{AT}");
        let refused = chosen(&pipeline, &[&completed, "a=offsets:t,0:42"], None).unwrap_err();
        assert!(refused.contains("`kind = \"kafka\"`") && refused.contains("`kind = \"hudi\"`"), "{refused}");
    }

    #[test]
    fn one_that_was_applied_changes_nothing_and_may_stay_beside_a_new_one() {
        let stored = stored("completed:20250101000000009", &["a=snapshot"]);
        let old = chosen(&pipeline(), &["a=snapshot"], Some(&stored)).unwrap();
        assert_eq!((old.moves.len(), old.tokens.len()), (0, 0));
        assert_eq!(old.statuses[0].applied_by.as_ref().unwrap().as_str(), AT);
        let both = chosen(&pipeline(), &["a=snapshot", "a=latest"], Some(&stored)).unwrap();
        assert_eq!((both.tokens, both.statuses.len()), (vec!["a=latest".to_string()], 2));
        assert!(chosen(&pipeline(), &["a=snapshot", "a=latest"], None).unwrap_err().contains("two places"));
        let again: Override = "a=snapshot".parse::<Override>().unwrap().with_token("again").unwrap();
        assert_eq!(choose(&pipeline(), &[again], Some(&stored)).unwrap().tokens, ["again/a=snapshot"]);
    }

    #[test]
    fn a_bare_instant_is_for_one_source_and_counts_in_the_clock_of_its_cursor() {
        let refused = chosen(&pipeline(), &[AT], None).unwrap_err();
        assert!(refused.contains("3 sources") && refused.contains(&format!("NAME={AT}")), "{refused}");
        for (before, after) in [("requested", "requested"), ("completed", "completed")] {
            let stored = stored(&format!("{before}:20250101000000009"), &[]);
            let chosen = chosen(&only(pipeline()), &[AT], Some(&stored)).unwrap();
            let begin = Begin::After(format!("{after}:{AT}").parse().unwrap());
            assert_eq!(chosen.moves.into_values().next().unwrap().begin, begin);
        }
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let completed = format!("c=completed:{AT}");
        let texts = ["x=latest", "b=latest", &completed, "a=file:name:-:x", "c=start"];
        let refused = chosen(&pipeline(), &texts, None).unwrap_err();
        for part in [
            "no source `x`; there are: a, b, c",
            "only looked up",
            "`kind = \"csv\"`",
            "`kind = \"hudi\"`",
            "no `start`",
        ] {
            assert!(refused.contains(part), "{part} in {refused}");
        }
        let mut resuming = pipeline();
        resuming.sources[0].start = Some(Start::Resume);
        assert!(chosen(&resuming, &["a=start"], None).unwrap_err().contains("no `start` that is a place"));
    }

    #[test]
    fn going_back_is_refused_where_rows_would_be_counted_again_unless_that_is_acknowledged() {
        let mut pipeline = pipeline();
        let topic = serde_json::json!({"name": "d", "kind": "kafka", "brokers": "h:9092", "topic": "t", "format": "json",
                                       "start": "earliest"});
        pipeline.sources.push(serde_json::from_value(topic).unwrap());
        let cursors = [("d", "offsets:t,0:100,1:7"), ("c", "file:modified:1000:m.csv")];
        let mut stored = stored(&format!("completed:{AT}"), &[]);
        for (name, cursor) in cursors {
            let mut entry = stored.sources.values().next().unwrap().clone();
            entry.cursor = Some(cursor.parse().unwrap());
            stored.sources.insert(SourceName::new(name).unwrap(), entry);
        }
        let merge = |text: &str| Some(serde_json::from_value(serde_json::json!({"default": text})).unwrap());
        let back = [
            "d=offsets:t,0:0,1:7",
            "d=offsets:t,0:100",
            "d=offsets:u,0:100,1:7",
            "d=earliest",
            "d=start",
            "c=file:modified:999:z.csv",
            "c=latest",
            "a=snapshot",
        ];
        let on = ["d=offsets:t,0:100,1:7", "d=offsets:t,0:101,1:7,2:0", "d=latest", "c=file:modified:1000:m.csv"];
        for operator in ["sum", "count", "concat(',')"] {
            pipeline.target.merge = merge(operator);
            for place in back {
                let refused = chosen(&pipeline, &[place], Some(&stored)).unwrap_err();
                for part in [&format!("`{place}`"), "`target.merge.default = ", "acknowledge_images = true"] {
                    assert!(refused.contains(part), "{part} in {refused}");
                }
                assert!(chosen(&pipeline, &[place], None).is_ok(), "nothing was read before");
            }
            for place in on {
                assert!(chosen(&pipeline, &[place], Some(&stored)).is_ok(), "{place}");
            }
        }
        pipeline.target.merge.as_mut().unwrap().acknowledge_images = true;
        assert!(back.iter().all(|place| chosen(&pipeline, &[place], Some(&stored)).is_ok()));
        pipeline.target.merge = merge("max");
        assert!(
            back.iter().all(|place| chosen(&pipeline, &[place], Some(&stored)).is_ok()),
            "the same rows, the same value"
        );
    }
}
