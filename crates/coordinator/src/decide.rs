// SPDX-License-Identifier: Apache-2.0
//! What a batch decides, over facts that were read before.

use std::collections::BTreeSet;

use tributary_api::coordinator::Error;
use tributary_api::merge::Bound;
use tributary_api::timeline::Begin;
use tributary_types::pipeline::{OnMalformedCursor, Pipeline, ReadMode, Source, SourceKind, Start};
use tributary_types::{Checkpoint, InstantTime, RequestId, SourceName, same_location};

use crate::conflict::{Conflict, OtherWrite, OwnWrite, find_conflict};
use crate::standing::Standing;

/// Where the window of a source begins: after its cursor, or where the pipeline says to start.
pub(crate) fn begin_of(source: &Source, stored: Option<&Checkpoint>) -> Result<Begin, Error> {
    let known = stored.and_then(|checkpoint| checkpoint.sources.get(&source.name));
    if let Some(cursor) = known.and_then(|known| known.cursor.clone()) {
        return Ok(Begin::After(cursor));
    }
    if source.read == ReadMode::Snapshot {
        return Ok(Begin::Snapshot);
    }
    let restart = known.and_then(|known| known.restart.as_ref()).and_then(begin_at);
    restart.or_else(|| source.start.as_ref().and_then(begin_at)).ok_or_else(|| match source.start {
        Some(Start::Resume) => Error::NothingToResume { source_name: source.name.clone() },
        _ => Error::NoStart { source_name: source.name.clone() },
    })
}

/// The place of a start, where it is one.
pub(crate) fn begin_at(start: &Start) -> Option<Begin> {
    match start {
        Start::Latest => Some(Begin::Latest),
        Start::Earliest => Some(Begin::Earliest),
        Start::Snapshot => Some(Begin::Snapshot),
        Start::At(cursor) => Some(Begin::After(cursor.clone())),
        Start::Timestamp(millis) => Some(Begin::Timestamp(*millis)),
        Start::Resume | Start::Fail => None,
    }
}

/// Refuses a source whose entry in the last commit cannot be read, unless it is to begin anew, or its cursor is set by hand.
/// An entry under a name that is no name may be that of any source that has no other entry.
pub(crate) fn check_cursors(
    pipeline: &Pipeline,
    stored: Option<(&InstantTime, &Checkpoint)>,
    is_set: impl Fn(&SourceName) -> bool,
) -> Result<(), Error> {
    let Some((instant, checkpoint)) = stored else { return Ok(()) };
    let nameless = checkpoint.malformed.iter().find(|(name, _)| SourceName::new(name.as_str()).is_err());
    for source in &pipeline.sources {
        let starts_anew = source.on_malformed_cursor == OnMalformedCursor::Start || is_set(&source.name);
        if starts_anew || checkpoint.sources.contains_key(&source.name) {
            continue;
        }
        let own = checkpoint.malformed.get_key_value(source.name.as_str());
        if let Some((name, entry)) = own.or(nameless) {
            let detail = match own {
                Some(_) => entry.detail.clone(),
                None => format!("there is none, and the entry `{name}` may be it: {}", entry.detail),
            };
            return Err(Error::MalformedCursor { source_name: source.name.clone(), instant: instant.clone(), detail });
        }
    }
    Ok(())
}

/// Refuses a source whose table was found, by its name and its first commit, in another place than in the last commit.
/// That it is that table the plan made sure of.
pub(crate) fn check_moved(pipeline: &Pipeline, standing: &Standing) -> Result<(), Error> {
    let Some((instant, checkpoint)) = standing.newest().filter(|_| !pipeline.accept_binding_change) else {
        return Ok(());
    };
    // One whose cursor is set by hand begins in the table that is there.
    for source in pipeline.sources.iter().filter(|source| standing.moved(&source.name).is_none()) {
        let known = checkpoint.sources.get(&source.name).and_then(|known| known.path.as_deref());
        if let Some(before) = known.filter(|before| !same_location(before, &source.location())) {
            return Err(Error::Moved {
                source_name: source.name.clone(),
                instant: instant.clone(),
                before: before.to_string(),
                now: source.url(),
                found: found_elsewhere(source.kind).to_string(),
            });
        }
    }
    Ok(())
}

/// What is known of a source that lies elsewhere than before: a table tells which one it is.
fn found_elsewhere(kind: SourceKind) -> &'static str {
    match kind {
        SourceKind::Hudi => "the table there has the same name and first commit, so it was moved or copied",
        SourceKind::Kafka => "it is another topic by its name",
        SourceKind::Csv | SourceKind::Json | SourceKind::Parquet => {
            "a directory of files does not say which one it is, so it may be the same one, moved or copied, or another one"
        }
    }
}

/// Fingerprint of what positions (`<SRC_0>`) are bound to: the ordered names of the sources.
pub(crate) fn binding_of(pipeline: &Pipeline) -> String {
    binding_by(pipeline, |source| source)
}

/// The same by other names.
fn binding_by<'a>(pipeline: &'a Pipeline, name: impl Fn(&'a SourceName) -> &'a SourceName) -> String {
    let names: Vec<&str> = pipeline.sources.iter().map(|source| name(&source.name).as_str()).collect();
    format!("{:08x}", crc32fast::hash(names.join("\n").as_bytes()))
}

/// Refuses positions that are bound to other sources than in the last commit, unless the pipeline accepts it. Names
/// bind themselves: where only they are used, the order of the sources does not matter. A new name for a source is no other
/// source.
pub(crate) fn check_binding(pipeline: &Pipeline, bound: &[Bound], standing: &Standing) -> Result<String, Error> {
    let binding = binding_of(pipeline);
    let Some((instant, checkpoint)) = standing.newest() else { return Ok(binding) };
    let positions = bound.iter().any(|bound| bound.by_position);
    let before = binding_by(pipeline, |name| standing.former(name));
    if positions && checkpoint.binding != before && !pipeline.accept_binding_change {
        return Err(Error::Binding { instant: instant.clone() });
    }
    Ok(binding)
}

/// What the gate looks at, all read from the target after the rows were staged.
#[derive(Debug, Clone)]
pub(crate) struct GateFacts {
    /// The batch's own instant.
    pub(crate) instant: InstantTime,
    /// Whether its requested and its inflight file are there.
    pub(crate) own_pending: bool,
    /// Its completion, if any completed file of it is there.
    pub(crate) own_completed: Option<InstantTime>,
    /// Pending rollbacks and restores; of a shared target those that concern the batch: restores, and rollbacks of its own
    /// instant.
    pub(crate) rollbacks: Vec<InstantTime>,
    /// Writes that completed since just before the cursors were looked up, with what is known of each.
    pub(crate) newer: Vec<NewerWrite>,
    /// Whether the commit that the batch was planned from is still there; true when there was none.
    pub(crate) base_present: bool,
    /// Milliseconds since the heartbeat was last renewed.
    pub(crate) heartbeat_age_millis: u64,
    /// For how many milliseconds a heartbeat holds.
    pub(crate) heartbeat_valid_millis: u64,
    /// For how many milliseconds the target's lock certainly still holds; `None`: until it is released.
    pub(crate) lock_left_millis: Option<u64>,
    /// How long a completing request may take, in milliseconds.
    pub(crate) commit_request_millis: u64,
    /// Staged files that the store does not have, or has in another size.
    pub(crate) missing_files: Vec<String>,
    /// What other writers may do, and did.
    pub(crate) others: Others,
}

/// Other writers of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Others {
    /// There must not be any.
    Excluded,
    /// They write it too.
    Beside(Box<Beside>),
}

/// What a batch of a shared target and other writers do to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    /// What the batch is going to commit.
    pub(crate) own: OwnWrite,
    /// What other writers completed since the state that the batch was tagged against, and what is planned.
    pub(crate) writes: Vec<OtherWrite>,
    /// A commit whose schema has what the batch's lacks.
    pub(crate) schema: Option<Conflict>,
    /// What else is not as the batch found it, as the end of a sentence that begins with the table.
    pub(crate) changed: Option<String>,
}

/// A write that completed meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewerWrite {
    pub(crate) instant: InstantTime,
    /// Pipelines whose cursors it carries.
    pub(crate) pipelines: BTreeSet<String>,
    /// Request ids of this pipeline that it answers.
    pub(crate) requests: Vec<RequestId>,
}

/// What the gate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gate {
    /// The instant may be completed.
    Open(Permit),
    /// A commit answered the same request meanwhile: its result is this batch's result.
    AnsweredBy(InstantTime),
    /// The instant is complete already: an earlier try arrived.
    AlreadyCommitted(InstantTime),
    /// It must not be completed.
    Closed(String),
    /// It does not go together with what another writer did.
    Conflict(Conflict),
}

/// The right to complete one instant; only [`gate`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Permit {
    instant: InstantTime,
}

impl Permit {
    /// The instant it is for.
    pub(crate) fn instant(&self) -> &InstantTime {
        &self.instant
    }
}

/// Whether a batch may complete its instant. The caller holds the target's lock from before the facts were read until
/// after the completion.
pub(crate) fn gate(pipeline: &str, request: &RequestId, facts: &GateFacts) -> Gate {
    if let Some(at) = &facts.own_completed {
        return Gate::AlreadyCommitted(at.clone());
    }
    if let Some(write) = facts.newer.iter().find(|write| write.requests.contains(request)) {
        return Gate::AnsweredBy(write.instant.clone());
    }
    if !facts.own_pending {
        return Gate::Closed(format!(
            "instant {} was rolled back by another writer. One that writes beside others must leave their pending \
             instants alone: `hoodie.write.concurrency.mode=optimistic_concurrency_control` with a lock provider and \
             `hoodie.clean.failed.writes.policy=LAZY`",
            facts.instant
        ));
    }
    if let Some(rollback) = facts.rollbacks.first() {
        return Gate::Closed(format!("rollback or restore {rollback} is pending"));
    }
    if facts.heartbeat_age_millis > facts.heartbeat_valid_millis {
        return Gate::Closed(format!(
            "the heartbeat of instant {} lapsed {} ms ago: another writer may treat it as dead",
            facts.instant,
            facts.heartbeat_age_millis - facts.heartbeat_valid_millis
        ));
    }
    if let Some(left) = facts.lock_left_millis.filter(|left| *left <= facts.commit_request_millis) {
        return Gate::Closed(format!(
            "the target's lock holds for {left} ms more, and a completing request may take {} ms: another writer \
             could take the table meanwhile",
            facts.commit_request_millis
        ));
    }
    if let Some(write) = facts.newer.iter().find(|write| write.pipelines.contains(pipeline)) {
        return Gate::Closed(format!(
            "commit {} moved this pipeline's cursors after the batch was planned; plan again from there",
            write.instant
        ));
    }
    let foreign = facts.newer.iter().find(|write| write.pipelines.is_empty());
    if let Some(write) = foreign.filter(|_| facts.others == Others::Excluded) {
        return Gate::Closed(format!(
            "another writer committed {} while `target.writers = \"exclusive\"`; stop that writer, or set \
             `target.writers = \"shared\"`",
            write.instant
        ));
    }
    if let Some(write) = facts.newer.iter().find(|write| !write.pipelines.is_empty()) {
        return Gate::Closed(format!("another pipeline committed {} meanwhile; plan again", write.instant));
    }
    if !facts.base_present {
        return Gate::Closed("the commit this batch was planned from is gone: the target was restored".to_string());
    }
    if let Others::Beside(beside) = &facts.others {
        if let Some(what) = &beside.changed {
            return Gate::Closed(format!("another writer changed the table while the batch ran: {what}"));
        }
        if let Some(conflict) = beside.schema.clone().or_else(|| find_conflict(&beside.own, &beside.writes)) {
            return Gate::Conflict(conflict);
        }
    }
    if let Some(file) = facts.missing_files.first() {
        return Gate::Closed(format!("staged file `{file}` is not in the store, or not whole"));
    }
    Gate::Open(Permit { instant: facts.instant.clone() })
}

#[cfg(test)]
mod tests {
    use tributary_api::timeline::Views;
    use tributary_types::SourceName;

    use super::*;

    fn at(text: &str) -> InstantTime {
        text.parse().unwrap()
    }

    fn facts() -> GateFacts {
        GateFacts {
            instant: at("20250101000000005"),
            own_pending: true,
            own_completed: None,
            rollbacks: Vec::new(),
            newer: Vec::new(),
            base_present: true,
            heartbeat_age_millis: 10,
            heartbeat_valid_millis: 120_000,
            lock_left_millis: None,
            commit_request_millis: 45_000,
            missing_files: Vec::new(),
            others: Others::Excluded,
        }
    }

    fn request() -> RequestId {
        RequestId::new("r").unwrap()
    }

    fn write(pipelines: &[&str], requests: &[&str]) -> NewerWrite {
        NewerWrite {
            instant: at("20250101000000007"),
            pipelines: pipelines.iter().map(|name| (*name).to_string()).collect(),
            requests: requests.iter().map(|id| RequestId::new(*id).unwrap()).collect(),
        }
    }

    fn closed_because(facts: &GateFacts) -> String {
        match gate("p", &request(), facts) {
            Gate::Closed(why) => why,
            other => panic!("not closed: {other:?}"),
        }
    }

    #[test]
    fn an_undisturbed_batch_may_commit() {
        assert!(matches!(gate("p", &request(), &facts()), Gate::Open(permit) if permit.instant() == &facts().instant));
    }

    #[test]
    fn each_disturbance_closes_the_gate_and_is_named() {
        let mut f = facts();
        f.own_pending = false;
        let why = closed_because(&f);
        assert!(why.contains("rolled back") && why.contains("LAZY"), "{why}");
        let mut f = facts();
        f.rollbacks.push(at("20250101000000009"));
        assert!(closed_because(&f).contains("20250101000000009"));
        let mut f = facts();
        f.heartbeat_age_millis = 120_001;
        assert!(closed_because(&f).contains("heartbeat"));
        let mut f = facts();
        f.lock_left_millis = Some(45_000);
        assert!(closed_because(&f).contains("lock holds for 45000 ms"));
        f.lock_left_millis = Some(45_001);
        assert!(matches!(gate("p", &request(), &f), Gate::Open(_)));
        let mut f = facts();
        f.newer.push(write(&["p"], &["other"]));
        assert!(closed_because(&f).contains("moved this pipeline's cursors"));
        let mut f = facts();
        f.newer.push(write(&[], &[]));
        assert!(closed_because(&f).contains("exclusive"));
        let mut f = facts();
        f.newer.push(write(&["q"], &[]));
        assert!(closed_because(&f).contains("another pipeline"));
        let mut f = facts();
        f.base_present = false;
        assert!(closed_because(&f).contains("restored"));
        let mut f = facts();
        f.missing_files.push("x.parquet".to_string());
        assert!(closed_because(&f).contains("x.parquet"));
    }

    #[test]
    fn beside_other_writers_a_foreign_commit_closes_the_gate_only_where_both_meet() {
        let mut f = facts();
        f.newer.push(write(&[], &[]));
        f.others = Others::Beside(Box::default());
        assert!(matches!(gate("p", &request(), &f), Gate::Open(_)));
        let group = ("d".to_string(), "f-0".to_string());
        let other = OtherWrite {
            instant: at("20250101000000007"),
            action: "UPSERT".to_string(),
            kind: crate::conflict::Kind::Rows,
            pending: false,
            groups: [group.clone()].into(),
            added: BTreeSet::new(),
            partitions: ["d".to_string()].into(),
        };
        let own = OwnWrite { written: [(group, true)].into(), ..OwnWrite::default() };
        f.others = Others::Beside(Box::new(Beside { own, writes: vec![other], ..Beside::default() }));
        assert!(matches!(gate("p", &request(), &f), Gate::Conflict(conflict) if conflict.action == "UPSERT"));
        // Commits of ours are no business of the conflict check.
        f.newer.push(write(&["q"], &[]));
        assert!(closed_because(&f).contains("another pipeline"));
        f.newer.push(write(&["p"], &[]));
        assert!(closed_because(&f).contains("moved this pipeline's cursors"));
    }

    #[test]
    fn a_table_that_is_not_what_it_was_closes_the_gate_beside_other_writers() {
        let mut f = facts();
        let changed = Some("it was restored by 20250101000000007".to_string());
        f.others = Others::Beside(Box::new(Beside { changed, ..Beside::default() }));
        assert!(closed_because(&f).contains("20250101000000007"));
    }

    #[test]
    fn a_request_that_was_answered_meanwhile_gets_that_answer() {
        let mut f = facts();
        f.own_pending = false;
        f.newer.push(write(&["p"], &["r"]));
        assert_eq!(gate("p", &request(), &f), Gate::AnsweredBy(at("20250101000000007")));
    }

    #[test]
    fn an_instant_that_is_complete_is_not_completed_again() {
        let mut f = facts();
        f.own_completed = Some(at("20250101000000006"));
        assert_eq!(gate("p", &request(), &f), Gate::AlreadyCommitted(at("20250101000000006")));
    }

    fn pipeline(names: &[&str]) -> Pipeline {
        let sources: Vec<_> = names.iter().map(|name| serde_json::json!({"name": name, "path": "/x"})).collect();
        let target = serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]});
        serde_json::from_value(serde_json::json!({"name": "p", "source": sources, "target": target})).unwrap()
    }

    fn bound(by_position: bool) -> Vec<Bound> {
        vec![Bound { source: SourceName::new("a").unwrap(), views: Views::default(), by_position }]
    }

    #[test]
    fn a_reordering_matters_only_where_sources_are_named_by_position() {
        let stored = Checkpoint::first(binding_of(&pipeline(&["a", "b"])));
        let instant = at("20250101000000001");
        let mut changed = pipeline(&["b", "a"]);
        let standing = Standing::of(&instant, &stored);
        assert!(check_binding(&changed, &bound(false), &standing).is_ok());
        let refused = check_binding(&changed, &bound(true), &standing);
        assert!(matches!(refused, Err(Error::Binding { .. })));
        changed.accept_binding_change = true;
        assert!(check_binding(&changed, &bound(true), &standing).is_ok());
    }

    fn known(path: Option<&str>) -> tributary_types::SourceCheckpoint {
        tributary_types::SourceCheckpoint {
            kind: "hudi".to_string(),
            cursor: Some("completed:20250101000000001".parse().unwrap()),
            restart: None,
            window: None,
            as_of: None,
            fingerprint: String::new(),
            path: path.map(str::to_string),
            schema: None,
            recent: Vec::new(),
            files: None,
        }
    }

    /// What is read back once a part of the text was replaced.
    fn damaged(names: &[&str], from: &str, to: &str) -> Checkpoint {
        let mut stored = Checkpoint::first(String::new());
        for name in names {
            stored.sources.insert(SourceName::new(*name).unwrap(), known(None));
        }
        let name = tributary_types::PipelineName::new("p").unwrap();
        Checkpoint::from_json(&name, &at("20250101000000001"), &stored.to_json().replacen(from, to, 1)).unwrap()
    }

    #[test]
    fn a_malformed_entry_fails_by_its_name_unless_the_source_may_begin_anew() {
        let instant = at("20250101000000001");
        let stored = damaged(&["a", "b"], "completed:", "completed-");
        assert_eq!(stored.malformed.keys().collect::<Vec<_>>(), ["a"]);
        let mut both = pipeline(&["a", "b"]);
        let refused = check_cursors(&both, Some((&instant, &stored)), |_| false).unwrap_err();
        assert!(matches!(&refused, Error::MalformedCursor { source_name, .. } if source_name.as_str() == "a"));
        assert!(refused.to_string().contains(instant.as_str()) && refused.to_string().contains("on_malformed_cursor"));
        both.sources[0].on_malformed_cursor = OnMalformedCursor::Start;
        both.sources[0].start = Some(Start::Snapshot);
        assert!(check_cursors(&both, Some((&instant, &stored)), |_| false).is_ok());
        assert_eq!(begin_of(&both.sources[0], Some(&stored)).unwrap(), Begin::Snapshot);
        assert!(matches!(begin_of(&both.sources[1], Some(&stored)).unwrap(), Begin::After(_)), "the good one survives");
        // One that the pipeline does not read any more leaves the next commit anyway.
        assert!(check_cursors(&pipeline(&["b"]), Some((&instant, &stored)), |_| false).is_ok());
    }

    #[test]
    fn an_entry_whose_name_is_damaged_may_be_that_of_any_source_without_one() {
        let instant = at("20250101000000001");
        let stored = damaged(&["a", "b"], "\"a\":", "\"a=b\":");
        let refused =
            check_cursors(&pipeline(&["a", "b"]), Some((&instant, &stored)), |_| false).unwrap_err().to_string();
        assert!(refused.contains("source `a`") && refused.contains("`a=b` may be it"), "{refused}");
        assert!(check_cursors(&pipeline(&["b"]), Some((&instant, &stored)), |_| false).is_ok());
    }

    #[test]
    fn a_table_that_moved_is_refused_until_it_is_accepted() {
        let instant = at("20250101000000001");
        let moved = |stored: Option<&str>, accept: bool| {
            let mut checkpoint = Checkpoint::first(String::new());
            checkpoint.sources.insert(SourceName::new("a").unwrap(), known(stored));
            let pipeline = Pipeline { accept_binding_change: accept, ..pipeline(&["a"]) };
            check_moved(&pipeline, &Standing::of(&instant, &checkpoint))
        };
        assert!(moved(Some("/x/"), false).is_ok());
        assert!(moved(None, false).is_ok(), "a commit of a version that kept no path");
        let refused = moved(Some("/y"), false).unwrap_err().to_string();
        for part in ["`a`", "`/y`", "`/x`", "accept_binding_change"] {
            assert!(refused.contains(part), "{part} in {refused}");
        }
        assert!(moved(Some("/y"), true).is_ok());
    }

    #[test]
    fn a_cursor_is_believed_over_the_start_policy_and_a_missing_start_is_an_error() {
        let mut pipeline = pipeline(&["a"]);
        assert!(matches!(begin_of(&pipeline.sources[0], None), Err(Error::NoStart { .. })));
        pipeline.sources[0].start = Some(Start::Latest);
        assert_eq!(begin_of(&pipeline.sources[0], None).unwrap(), Begin::Latest);
        let mut stored = Checkpoint::first(String::new());
        stored.sources.insert(pipeline.sources[0].name.clone(), known(None));
        let begin = begin_of(&pipeline.sources[0], Some(&stored)).unwrap();
        assert_eq!(begin, Begin::After("completed:20250101000000001".parse().unwrap()));
    }
}
