// SPDX-License-Identifier: Apache-2.0
//! The cursors of a pipeline as they stand in a commit of the target.
//!
//! The structured form is the truth and sits in every cursor commit under [`checkpoint_key`]. The flat form beside
//! it is what a Java Hudi Streamer job would have written, so that such a job can go on from our commit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cursor::{Cursor, Window};
use crate::files::{FilePosition, FileState};
use crate::instant::{InstantTime, Zone};
use crate::names::{PipelineName, RequestId, SourceName};
use crate::pipeline::FileOrder;

/// Where Hudi Streamer keeps a checkpoint of the first kind (requested times, and every several-source form).
pub const FLAT_KEY: &str = "deltastreamer.checkpoint.key";
/// Where Hudi Streamer keeps the completion time of a single Hudi source of table version 8 or 9.
pub const FLAT_KEY_V2: &str = "streamer.checkpoint.key.v2";
/// How many delivered instants a cursor remembers, to tell a late instant from one that was read.
pub const RECENT_INSTANTS: usize = 100;
/// How many request ids each commit carries.
pub const REQUESTS_KEPT: usize = 200;

const KEY_PREFIX: &str = "tributary.checkpoint.";
const FORMAT: u32 = 1;

/// The metadata key that holds the cursors of `pipeline`.
pub fn checkpoint_key(pipeline: &PipelineName) -> String {
    format!("{KEY_PREFIX}{pipeline}")
}

/// The pipeline whose cursors a metadata key holds, if it is such a key.
pub fn pipeline_of_key(key: &str) -> Option<PipelineName> {
    key.strip_prefix(KEY_PREFIX).and_then(|name| PipelineName::new(name).ok())
}

/// Everything a pipeline must know to go on: one of these in each of its commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Version of this form. Readers refuse one they do not know.
    pub format: u32,
    /// Rises by one with each cursor commit of the pipeline. Two commits of one number are a split brain.
    pub seq: u64,
    /// The owner's epoch; never falls from commit to commit.
    pub epoch: u64,
    /// Fingerprint of what the SQL's names are bound to.
    pub binding: String,
    /// The shared commit-time ceiling of an aligned batch, milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling_millis: Option<i64>,
    /// The cursor of every source, by name.
    pub sources: BTreeMap<SourceName, SourceCheckpoint>,
    /// Override tokens that were applied, each with the instant that applied it.
    #[serde(default)]
    pub tokens: BTreeMap<String, InstantTime>,
    /// The newest request ids with the instants that answered them, oldest first.
    #[serde(default)]
    pub requests: Vec<RequestRecord>,
}

/// One answered request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The caller's id.
    pub id: RequestId,
    /// The requested time of the commit that answered it.
    pub instant: InstantTime,
}

impl RequestRecord {
    /// When the request was made: as its id says, or else as its commit's instant does, read as UTC.
    fn millis(&self) -> Option<i64> {
        self.id.millis().or_else(|| self.instant.epoch_millis(Zone::Utc))
    }
}

/// What a checkpoint's request ids say about one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// This commit answered it.
    By(&'a InstantTime),
    /// It was never answered.
    New,
    /// It is older than what is remembered: it may have been answered.
    Forgotten {
        /// The oldest id that is remembered.
        oldest: &'a RequestId,
    },
}

/// One source in a [`Checkpoint`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceCheckpoint {
    /// Kind of source: `hudi`, `csv`, `json` or `parquet`.
    pub kind: String,
    /// How far it was read; absent for a source that is only looked up (`read = "snapshot"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// What the batch of this commit read of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// As of when it was looked up, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<Cursor>,
    /// Identity of the table that was read, so that another table at the same path is noticed.
    pub fingerprint: String,
    /// The newest delivered instants (requested times), oldest first, at most [`RECENT_INSTANTS`].
    #[serde(default)]
    pub recent: Vec<InstantTime>,
    /// What is remembered of the files of a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FileState>,
}

/// Why a stored checkpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Not the JSON this version writes.
    #[error("the cursors of pipeline `{pipeline}` in commit {instant} are malformed: {detail}")]
    Malformed {
        /// Whose cursors.
        pipeline: PipelineName,
        /// In which commit of the target.
        instant: InstantTime,
        /// What is wrong.
        detail: String,
    },
    /// Written by a newer version.
    #[error(
        "the cursors of pipeline `{pipeline}` in commit {instant} have format {found}; this version reads format {FORMAT}"
    )]
    Format {
        /// Whose cursors.
        pipeline: PipelineName,
        /// In which commit of the target.
        instant: InstantTime,
        /// The format found.
        found: u64,
    },
}

impl Checkpoint {
    /// A checkpoint of a pipeline that never committed.
    pub fn first(binding: String) -> Self {
        Checkpoint {
            format: FORMAT,
            seq: 0,
            epoch: 0,
            binding,
            ceiling_millis: None,
            sources: BTreeMap::new(),
            tokens: BTreeMap::new(),
            requests: Vec::new(),
        }
    }

    /// The JSON that goes into the commit.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a checkpoint has only string keys, so it always serialises")
    }

    /// Reads what [`Checkpoint::to_json`] wrote. One malformed entry makes the whole checkpoint unusable: a batch
    /// must never run with some of its cursors.
    pub fn from_json(pipeline: &PipelineName, instant: &InstantTime, text: &str) -> Result<Self, CheckpointError> {
        let malformed = |detail: String| CheckpointError::Malformed {
            pipeline: pipeline.clone(),
            instant: instant.clone(),
            detail,
        };
        let value: serde_json::Value = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(found) if found == u64::from(FORMAT) => {}
            Some(found) => {
                return Err(CheckpointError::Format { pipeline: pipeline.clone(), instant: instant.clone(), found });
            }
            None => return Err(malformed("`format` is missing".to_string())),
        }
        // Each source on its own first, so that the error names the one that is wrong.
        if let Some(sources) = value.get("sources").and_then(serde_json::Value::as_object) {
            let bad: Vec<String> = sources
                .iter()
                .filter_map(|(name, entry)| {
                    let parsed = serde_json::from_value::<SourceCheckpoint>(entry.clone());
                    parsed.err().map(|e| format!("source `{name}`: {e}"))
                })
                .collect();
            if !bad.is_empty() {
                return Err(malformed(bad.join("; ")));
            }
        }
        serde_json::from_value(value).map_err(|e| malformed(e.to_string()))
    }

    /// What the ids that this checkpoint carries say about `request`.
    ///
    /// Each commit adds the id that it answers and drops the oldest beyond [`REQUESTS_KEPT`]. Once ids were dropped, an
    /// id that is older than the oldest one left may be one of those: running it could commit it twice. An id that
    /// carries no time (see [`RequestId::millis`]) cannot be judged and counts as new.
    pub fn judge(&self, request: &RequestId) -> Answer<'_> {
        if let Some(instant) = self.answered(request) {
            return Answer::By(instant);
        }
        let dropped = self.seq > self.requests.len() as u64;
        let oldest = self.requests.first().filter(|_| dropped);
        match (request.millis(), oldest) {
            (Some(made), Some(oldest)) if oldest.millis().is_some_and(|oldest| made < oldest) => {
                Answer::Forgotten { oldest: &oldest.id }
            }
            _ => Answer::New,
        }
    }

    /// The commit that answered `request`, if this checkpoint still carries it.
    pub fn answered(&self, request: &RequestId) -> Option<&InstantTime> {
        self.requests.iter().find(|record| &record.id == request).map(|record| &record.instant)
    }

    /// Adds an answered request and forgets the oldest ones beyond [`REQUESTS_KEPT`].
    pub fn remember_request(&mut self, id: RequestId, instant: InstantTime) {
        self.requests.push(RequestRecord { id, instant });
        let surplus = self.requests.len().saturating_sub(REQUESTS_KEPT);
        self.requests.drain(..surplus);
    }
}

/// The flat form of `sources`: the metadata key and its value. `None` when there is no cursor to write.
///
/// One Hudi source: what the Java source of that kind writes under the key it uses. Several: `name=value,…` in
/// byte order of the names.
pub fn flat_form(sources: &BTreeMap<SourceName, SourceCheckpoint>) -> Option<(&'static str, String)> {
    let cursors: Vec<(&SourceName, &Cursor)> =
        sources.iter().filter_map(|(name, source)| source.cursor.as_ref().map(|cursor| (name, cursor))).collect();
    match cursors.as_slice() {
        [] => None,
        [(_, Cursor::Completed(instant))] => Some((FLAT_KEY_V2, instant.to_string())),
        [(_, Cursor::Requested(instant))] => Some((FLAT_KEY, instant.to_string())),
        [(_, Cursor::File(position))] => Some((FLAT_KEY, flat_position(position))),
        several => {
            let value = |cursor: &Cursor| match cursor {
                Cursor::Requested(instant) | Cursor::Completed(instant) => instant.to_string(),
                Cursor::File(position) => percent_encoded(&flat_position(position)),
            };
            let entries: Vec<String> =
                several.iter().map(|(name, cursor)| format!("{name}={}", value(cursor))).collect();
            Some((FLAT_KEY, entries.join(",")))
        }
    }
}

/// What `DFSPathSelector` keeps: the newest modification that was read, in milliseconds. No Java source reads by name;
/// its proposal (RFC "CSV source") keeps the name of the last file.
fn flat_position(position: &FilePosition) -> String {
    match (position.order, position.millis) {
        (FileOrder::Modified, Some(millis)) if !position.is_start() => millis.to_string(),
        (FileOrder::Modified, _) => "0".to_string(),
        (FileOrder::Name, _) => position.path.clone(),
    }
}

/// Everything but letters, digits and `-._~/` as `%XX`.
fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The good entries of a several-source flat form, and the malformed ones with what is wrong with each.
///
/// A duplicate name is malformed, and so is an empty value: neither says where to go on.
pub fn parse_flat_form(text: &str) -> (BTreeMap<SourceName, InstantTime>, Vec<String>) {
    let mut good: BTreeMap<SourceName, InstantTime> = BTreeMap::new();
    let mut bad = Vec::new();
    for entry in text.split(',') {
        let parsed = entry.split_once('=').ok_or_else(|| format!("`{entry}` has no `=`")).and_then(|(name, value)| {
            let name = SourceName::new(name).map_err(|e| format!("`{entry}`: {e}"))?;
            let value: InstantTime = value.parse().map_err(|e| format!("`{entry}`: {e}"))?;
            Ok((name, value))
        });
        match parsed {
            Ok((name, _)) if good.contains_key(&name) => bad.push(format!("`{entry}`: `{name}` appears twice")),
            Ok((name, value)) => {
                good.insert(name, value);
            }
            Err(detail) => bad.push(detail),
        }
    }
    (good, bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(cursor: &str) -> SourceCheckpoint {
        SourceCheckpoint {
            kind: "hudi".to_string(),
            cursor: Some(cursor.parse().unwrap()),
            window: None,
            as_of: None,
            fingerprint: "f".to_string(),
            recent: Vec::new(),
            files: None,
        }
    }

    fn name(text: &str) -> SourceName {
        SourceName::new(text).unwrap()
    }

    fn pipeline() -> PipelineName {
        PipelineName::new("p").unwrap()
    }

    fn instant() -> InstantTime {
        "20250606182826197".parse().unwrap()
    }

    #[test]
    fn a_checkpoint_reads_back_what_it_wrote() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.sources.insert(name("db.orders"), source("completed:20250606182826197"));
        checkpoint.remember_request(RequestId::new("r1").unwrap(), instant());
        let read = Checkpoint::from_json(&pipeline(), &instant(), &checkpoint.to_json()).unwrap();
        assert_eq!(read, checkpoint);
        assert_eq!(read.answered(&RequestId::new("r1").unwrap()), Some(&instant()));
    }

    #[test]
    fn one_malformed_source_fails_the_whole_checkpoint_and_is_named() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.sources.insert(name("good"), source("completed:20250606182826197"));
        checkpoint.sources.insert(name("users"), source("completed:20250606182826197"));
        let text = checkpoint.to_json().replacen("completed:20250606182826197\",\"fingerprint", "x\",\"fingerprint", 1);
        let refused = Checkpoint::from_json(&pipeline(), &instant(), &text).unwrap_err().to_string();
        assert!(refused.contains("source `good`"), "{refused}");
        assert!(!refused.contains("source `users`"), "{refused}");
    }

    #[test]
    fn a_newer_format_is_refused_by_number() {
        let text = Checkpoint::first("b".to_string()).to_json().replace("\"format\":1", "\"format\":7");
        let refused = Checkpoint::from_json(&pipeline(), &instant(), &text).unwrap_err();
        assert!(matches!(refused, CheckpointError::Format { found: 7, .. }));
    }

    #[test]
    fn only_the_newest_requests_are_carried() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        for n in 0..REQUESTS_KEPT + 5 {
            checkpoint.remember_request(RequestId::new(format!("r{n}")).unwrap(), instant());
        }
        assert_eq!(checkpoint.requests.len(), REQUESTS_KEPT);
        assert_eq!(checkpoint.answered(&RequestId::new("r4").unwrap()), None);
        assert!(checkpoint.answered(&RequestId::new("r5").unwrap()).is_some());
    }

    #[test]
    fn an_id_older_than_what_is_remembered_is_forgotten_and_never_new() {
        let id = |millis: i64| RequestId::at(millis, 1);
        let mut checkpoint = Checkpoint::first("b".to_string());
        for n in 0..REQUESTS_KEPT as i64 {
            checkpoint.seq += 1;
            checkpoint.remember_request(id(1000 + n), instant());
        }
        assert_eq!(checkpoint.judge(&id(1000)), Answer::By(&instant()));
        assert_eq!(checkpoint.judge(&id(999)), Answer::New, "no id was dropped yet, so this one was never answered");
        checkpoint.seq += 1;
        checkpoint.remember_request(id(9000), instant());
        assert_eq!(checkpoint.judge(&id(1000)), Answer::Forgotten { oldest: &id(1001) });
        assert_eq!(checkpoint.judge(&id(1002)), Answer::By(&instant()));
        assert_eq!(checkpoint.judge(&id(5000)), Answer::New);
        let plain = RequestId::new("nightly").unwrap();
        assert_eq!(checkpoint.judge(&plain), Answer::New, "an id without a time cannot be judged");
    }

    #[test]
    fn the_time_of_a_remembered_id_without_one_is_that_of_its_commit() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.seq = 7;
        checkpoint.remember_request(RequestId::new("plain").unwrap(), instant());
        let committed = instant().epoch_millis(Zone::Utc).unwrap();
        assert!(matches!(checkpoint.judge(&RequestId::at(committed - 1, 1)), Answer::Forgotten { .. }));
        assert_eq!(checkpoint.judge(&RequestId::at(committed + 1, 1)), Answer::New);
    }

    #[test]
    fn one_hudi_source_is_written_as_its_java_source_would() {
        let completed = BTreeMap::from([(name("orders"), source("completed:20250606182826197"))]);
        assert_eq!(flat_form(&completed), Some((FLAT_KEY_V2, "20250606182826197".to_string())));
        let requested = BTreeMap::from([(name("orders"), source("requested:20250606182826197"))]);
        assert_eq!(flat_form(&requested), Some((FLAT_KEY, "20250606182826197".to_string())));
    }

    #[test]
    fn one_directory_of_files_is_written_as_its_java_source_would() {
        let modified = BTreeMap::from([(name("clicks"), source("file:modified:1735689600123:a/b.csv"))]);
        assert_eq!(flat_form(&modified), Some((FLAT_KEY, "1735689600123".to_string())));
        let named = BTreeMap::from([(name("clicks"), source("file:name:-:2025-01-01.csv"))]);
        assert_eq!(flat_form(&named), Some((FLAT_KEY, "2025-01-01.csv".to_string())));
        let unread = BTreeMap::from([(name("clicks"), source("file:modified:-:"))]);
        assert_eq!(flat_form(&unread), Some((FLAT_KEY, "0".to_string())));
    }

    #[test]
    fn a_position_among_files_is_encoded_beside_other_sources() {
        let sources = BTreeMap::from([
            (name("clicks"), source("file:name:-:a,b=ü.csv")),
            (name("orders"), source("completed:20250606182826197")),
        ]);
        let (_, text) = flat_form(&sources).unwrap();
        assert_eq!(text, "clicks=a%2Cb%3D%C3%BC.csv,orders=20250606182826197");
    }

    #[test]
    fn several_sources_are_written_in_byte_order_of_their_names() {
        let sources = BTreeMap::from([
            (name("users"), source("completed:20250606182826197")),
            (name("db.orders"), source("completed:20250101000000000")),
            (name("Zed"), source("completed:20240101000000000")),
        ]);
        let expected = "Zed=20240101000000000,db.orders=20250101000000000,users=20250606182826197";
        assert_eq!(flat_form(&sources), Some((FLAT_KEY, expected.to_string())));
        let (good, bad) = parse_flat_form(expected);
        assert_eq!((good.len(), bad.len()), (3, 0));
    }

    #[test]
    fn good_flat_entries_survive_and_bad_ones_are_named() {
        let (good, bad) = parse_flat_form("a=20250101000000000,b=,a=20250101000000000,c,d=x");
        assert_eq!(good.keys().map(SourceName::as_str).collect::<Vec<_>>(), ["a"]);
        assert_eq!(bad.len(), 4, "{bad:?}");
        assert!(parse_flat_form("").0.is_empty());
    }
}
