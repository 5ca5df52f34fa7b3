// SPDX-License-Identifier: Apache-2.0
//! Which of the target's commits says where a pipeline stands.

use serde::{Deserialize, Serialize};
use tributary_api::checkpoint::{CommitFound, CursorCommit, Error, KnownCursor};
use tributary_types::{InstantTime, PipelineName, RequestId, SourceName};

/// What the local store knows of a pipeline in a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    /// Its highest epoch.
    pub(crate) epoch: u64,
    /// Sequence number of its newest commit.
    pub(crate) seq: u64,
    /// That commit.
    pub(crate) instant: Option<InstantTime>,
}

/// The newest of a pipeline's cursor commits: the one with the highest sequence number. Two with the same number are
/// a split brain.
pub(crate) fn newest(
    pipeline: &PipelineName,
    target: &str,
    mut commits: Vec<CursorCommit>,
) -> Result<Option<CursorCommit>, Error> {
    commits.sort_by(|a, b| a.checkpoint.seq.cmp(&b.checkpoint.seq).then_with(|| a.instant.cmp(&b.instant)));
    for pair in commits.windows(2) {
        if pair[0].checkpoint.seq == pair[1].checkpoint.seq {
            return Err(Error::SplitBrain {
                pipeline: pipeline.clone(),
                target: target.to_string(),
                seq: pair[0].checkpoint.seq,
                first: pair[0].instant.clone(),
                second: pair[1].instant.clone(),
            });
        }
    }
    Ok(commits.pop())
}

/// The commit among `commits` that answered `request`. Newer ones carry the ids of older ones, so the answer may be
/// known of a commit that is not there any more.
pub(crate) fn answer_of(commits: &[CursorCommit], request: &RequestId) -> Option<CommitFound> {
    let record = commits.iter().find_map(|commit| commit.checkpoint.answered(request))?;
    let itself = commits.iter().find(|commit| commit.instant == record.instant);
    Some(CommitFound {
        instant: record.instant.clone(),
        definition: record.definition.clone(),
        completed: itself.and_then(|commit| commit.completed.clone()),
        seq: itself.map(|commit| commit.checkpoint.seq),
    })
}

/// The newest cursors that `commits` have of `sources`; those of a higher sequence number are newer.
pub(crate) fn known_cursors(mut commits: Vec<CursorCommit>, sources: &[SourceName]) -> Vec<KnownCursor> {
    commits.sort_by_key(|commit| std::cmp::Reverse(commit.checkpoint.seq));
    let newest = |source: &SourceName| {
        commits.iter().find_map(|commit| {
            let entry = commit.checkpoint.sources.get(source).filter(|entry| entry.cursor.is_some())?;
            Some(KnownCursor { source: source.clone(), instant: commit.instant.clone(), entry: entry.clone() })
        })
    };
    sources.iter().filter_map(newest).collect()
}

/// What the local record should be, and what was wrong with it, in words. `restores` are the completed restores of the
/// target: one after its newest commit took the commits after that away, and the cursors in them.
pub(crate) fn repair(
    known: Option<&Known>,
    newest: Option<&CursorCommit>,
    restores: &[InstantTime],
) -> (Known, Option<String>) {
    let (mut right, said) = compare(known, newest);
    let restore = restores.iter().filter(|at| newest.is_none_or(|commit| **at > commit.instant)).max();
    let (Some(said), Some(restore)) = (&said, restore) else { return (right, said) };
    // Of the epochs that went away with their commits nobody may know any more.
    right.epoch += 1;
    let stands =
        newest.map_or("there is no commit left".to_string(), |commit| format!("they stand at {}", commit.instant));
    let said = format!(
        "{said}; the target was restored at {restore}, and the cursors went back with it: {stands}, and what came after \
         is delivered again"
    );
    (right, Some(said))
}

fn compare(known: Option<&Known>, newest: Option<&CursorCommit>) -> (Known, Option<String>) {
    let seq = newest.map_or(0, |commit| commit.checkpoint.seq);
    let instant = newest.map(|commit| commit.instant.clone());
    let target_epoch = newest.map_or(0, |commit| commit.checkpoint.epoch);
    let Some(known) = known else {
        let said = newest.map(|commit| format!("no local record; the target stands at {}", commit.instant));
        return (Known { epoch: target_epoch, seq, instant }, said);
    };
    let right = Known { epoch: known.epoch.max(target_epoch), seq, instant };
    if known.seq == right.seq && known.instant == right.instant {
        return (right, None);
    }
    let stood = |known: &Known| match &known.instant {
        Some(instant) => format!("commit {instant} with sequence number {}", known.seq),
        None => "no commit".to_string(),
    };
    let word = if known.seq > right.seq { "is ahead of" } else { "is behind" };
    let said = format!("the local record ({}) {word} the target ({}); the target wins", stood(known), stood(&right));
    (right, Some(said))
}

#[cfg(test)]
mod tests {
    use tributary_types::{Checkpoint, RequestRecord, SourceCheckpoint};

    use super::*;

    fn commit(seq: u64, instant: &str) -> CursorCommit {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.seq = seq;
        checkpoint.epoch = seq;
        CursorCommit { instant: instant.parse().unwrap(), completed: None, checkpoint }
    }

    fn pipeline() -> PipelineName {
        PipelineName::new("p").unwrap()
    }

    #[test]
    fn the_newest_commit_is_the_one_with_the_highest_sequence_number() {
        let commits =
            vec![commit(2, "20250101000000002"), commit(3, "20250101000000001"), commit(1, "20250101000000003")];
        assert_eq!(newest(&pipeline(), "t", commits).unwrap().unwrap().checkpoint.seq, 3);
        assert_eq!(newest(&pipeline(), "t", Vec::new()).unwrap(), None);
    }

    #[test]
    fn two_commits_of_one_number_are_a_split_brain_and_both_are_named() {
        let commits = vec![commit(2, "20250101000000002"), commit(2, "20250101000000001")];
        let refused = newest(&pipeline(), "t", commits).unwrap_err().to_string();
        assert!(refused.contains("20250101000000001") && refused.contains("20250101000000002"), "{refused}");
    }

    #[test]
    fn the_newest_cursor_of_a_source_may_stand_in_an_older_commit() {
        let name = |text: &str| SourceName::new(text).unwrap();
        let entry = |cursor: Option<&str>| SourceCheckpoint {
            kind: "hudi".to_string(),
            cursor: cursor.map(|text| text.parse().unwrap()),
            restart: None,
            window: None,
            as_of: None,
            fingerprint: String::new(),
            path: None,
            schema: None,
            recent: Vec::new(),
            files: None,
        };
        let (mut first, mut second) = (commit(1, "20250101000000001"), commit(2, "20250101000000002"));
        first.checkpoint.sources.insert(name("a"), entry(Some("completed:20250101000000001")));
        first.checkpoint.sources.insert(name("b"), entry(Some("completed:20250101000000002")));
        second.checkpoint.sources.insert(name("a"), entry(Some("completed:20250101000000003")));
        second.checkpoint.sources.insert(name("b"), entry(None));
        let third = commit(3, "20250101000000003");
        let found = known_cursors(vec![first, third, second], &[name("a"), name("b"), name("c")]);
        let told: Vec<_> = found.iter().map(|it| (it.source.as_str(), it.instant.as_str())).collect();
        assert_eq!(told, [("a", "20250101000000002"), ("b", "20250101000000001")]);
        assert_eq!(found[1].entry.cursor.as_ref().unwrap().to_string(), "completed:20250101000000002");
    }

    #[test]
    fn the_commit_of_a_request_is_known_also_when_only_a_newer_one_is_left() {
        let (first, mut second) = (commit(1, "20250101000000001"), commit(2, "20250101000000002"));
        let request = RequestId::new("r").unwrap();
        assert_eq!(answer_of(std::slice::from_ref(&first), &request), None);
        second.checkpoint.remember_request(RequestRecord {
            id: request.clone(),
            instant: first.instant.clone(),
            definition: Some("d".to_string()),
        });
        let found = answer_of(&[second.clone()], &request).unwrap();
        assert_eq!((&found.instant, found.completed, found.seq), (&first.instant, None, None));
        assert_eq!(found.definition.as_deref(), Some("d"));
        let found = answer_of(&[second, first.clone()], &request).unwrap();
        assert_eq!((found.instant, found.seq), (first.instant, Some(1)));
    }

    #[test]
    fn a_lost_stale_or_leading_local_record_is_repaired_from_the_target() {
        let at = commit(5, "20250101000000005");
        let (right, said) = repair(None, Some(&at), &[]);
        assert_eq!((right.seq, right.epoch), (5, 5));
        assert!(said.unwrap().contains("no local record"));

        let stale = Known { epoch: 9, seq: 4, instant: None };
        let (right, said) = repair(Some(&stale), Some(&at), &[]);
        assert_eq!((right.seq, right.epoch), (5, 9), "an epoch never falls");
        assert!(said.unwrap().contains("is behind"));

        let ahead = Known { epoch: 9, seq: 7, instant: Some("20250101000000009".parse().unwrap()) };
        let (right, said) = repair(Some(&ahead), Some(&at), &[]);
        assert_eq!(right.seq, 5);
        assert!(said.unwrap().contains("is ahead"));

        let (_, said) = repair(Some(&right), Some(&at), &[]);
        assert_eq!(said, None);
    }

    #[test]
    fn after_a_restore_of_the_target_the_cursors_go_back_with_it_and_the_epoch_rises() {
        let left = commit(1, "20250101000000001");
        let restores = ["20250101000000005".parse().unwrap()];
        let ahead = Known { epoch: 3, seq: 3, instant: Some("20250101000000003".parse().unwrap()) };
        let (right, said) = repair(Some(&ahead), Some(&left), &restores);
        assert_eq!((right.seq, right.epoch), (1, 4));
        let said = said.unwrap();
        for part in ["restored at 20250101000000005", "stand at 20250101000000001", "delivered again"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(repair(Some(&right), Some(&left), &restores), (right, None), "once");
        let (right, said) = repair(None, Some(&left), &restores);
        assert_eq!(right.epoch, 2, "above what is left, also where nobody remembers what was");
        assert!(said.unwrap().contains("restored at"));
        let (right, said) = repair(Some(&ahead), None, &restores);
        assert_eq!((right.seq, right.instant), (0, None));
        assert!(said.unwrap().contains("no commit left"));
        let later = commit(2, "20250101000000007");
        let (_, said) = repair(None, Some(&later), &restores);
        assert!(!said.unwrap().contains("restored"), "a commit followed it");
    }
}
