// SPDX-License-Identifier: Apache-2.0
//! The cursors of a pipeline as they stand in a commit of the target.
//!
//! The structured form is the truth and sits in every cursor commit under [`checkpoint_key`]. The flat form beside
//! it is what a Java Hudi Streamer job would have written, so that such a job can go on from our commit.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::cursor::{Cursor, Window};
use crate::files::{FilePosition, FileState};
use crate::instant::{InstantTime, Zone};
use crate::names::{PipelineName, RequestId, SourceName};
use crate::pipeline::{FileOrder, Start};

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
    /// Merge operators of the target's columns, as a pipeline file writes them; a column that is not named is merged
    /// by `last`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub operators: BTreeMap<String, String>,
    /// The cursor of every source, by name.
    pub sources: BTreeMap<SourceName, SourceCheckpoint>,
    /// Override tokens that were applied, each with the instant that applied it.
    #[serde(default)]
    pub tokens: BTreeMap<String, InstantTime>,
    /// The newest request ids with the instants that answered them, oldest first.
    #[serde(default)]
    pub requests: Vec<RequestRecord>,
    /// Entries of `sources` that cannot be used, by name. They are passed on as they are, so that whoever reads the
    /// cursors in another process finds them too; a new commit has none.
    #[serde(skip)]
    pub malformed: BTreeMap<String, MalformedEntry>,
}

/// An entry of a checkpoint's sources that is not what this version writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedEntry {
    /// What is wrong with it.
    pub detail: String,
    /// The entry as JSON.
    text: String,
}

/// One answered request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The caller's id.
    pub id: RequestId,
    /// The requested time of the commit that answered it.
    pub instant: InstantTime,
    /// Fingerprint of the pipeline's definition that it was made with; absent in commits of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
}

impl RequestRecord {
    /// When the request was made: as its id says, or else as its commit's instant does, read as UTC.
    fn millis(&self) -> Option<i64> {
        self.id.millis().or_else(|| self.instant.epoch_millis(Zone::Utc))
    }

    /// Whether it is known to have been made with another definition of its pipeline than `definition`.
    pub fn is_of_another(&self, definition: &str) -> bool {
        self.definition.as_deref().is_some_and(|known| known != definition)
    }
}

/// What a checkpoint's request ids say about one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A commit answered it.
    By(&'a RequestRecord),
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
    /// Kind of source: `hudi`, `csv`, `json`, `parquet` or `kafka`.
    pub kind: String,
    /// How far it was read; absent for a source that is only looked up (`read = "snapshot"`), and for one whose next
    /// window was set by hand to the whole table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// Where its next window begins, set by hand, where no cursor says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Start>,
    /// What the batch of this commit read of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// As of when it was looked up, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<Cursor>,
    /// Identity of the table that was read, so that another table at the same path is noticed.
    pub fingerprint: String,
    /// Where the table was (see [`same_location`]); absent in commits of versions that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The schema it was read with, as an Avro record; absent for a look-up, for a table without a schema, and in
    /// commits of versions that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// The newest delivered instants (requested times), oldest first, at most [`RECENT_INSTANTS`].
    #[serde(default)]
    pub recent: Vec<InstantTime>,
    /// What is remembered of the files of a directory; of a topic only the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FileState>,
}

/// Why a stored checkpoint cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Not the JSON this version writes.
    #[error(
        "the cursors of pipeline `{pipeline}` in commit {instant} are malformed: {detail}. Restore the file of that \
         commit from a copy, or give the pipeline another name: its sources then begin at their `start`"
    )]
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
            operators: BTreeMap::new(),
            sources: BTreeMap::new(),
            tokens: BTreeMap::new(),
            requests: Vec::new(),
            malformed: BTreeMap::new(),
        }
    }

    /// The JSON that goes into the commit.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string(self).expect("a checkpoint has only string keys, so it always serialises");
        if self.malformed.is_empty() { text } else { self.with_malformed(&text).unwrap_or(text) }
    }

    fn with_malformed(&self, text: &str) -> Option<String> {
        let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
        let sources = value.get_mut("sources")?.as_object_mut()?;
        for (name, entry) in &self.malformed {
            sources.insert(name.clone(), serde_json::from_str(&entry.text).ok()?);
        }
        Some(value.to_string())
    }

    /// Reads what [`Checkpoint::to_json`] wrote. Entries of sources that are malformed are set aside in
    /// [`Checkpoint::malformed`], the others survive; whoever plans a batch decides what that means for it.
    pub fn from_json(pipeline: &PipelineName, instant: &InstantTime, text: &str) -> Result<Self, CheckpointError> {
        let malformed = |detail: String| CheckpointError::Malformed {
            pipeline: pipeline.clone(),
            instant: instant.clone(),
            detail,
        };
        let mut value: serde_json::Value = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(found) if found == u64::from(FORMAT) => {}
            Some(found) => {
                return Err(CheckpointError::Format { pipeline: pipeline.clone(), instant: instant.clone(), found });
            }
            None => return Err(malformed("`format` is missing".to_string())),
        }
        let Some(serde_json::Value::Object(entries)) = value.get_mut("sources").map(serde_json::Value::take) else {
            return Err(malformed("`sources` is missing".to_string()));
        };
        value["sources"] = serde_json::json!({});
        let mut checkpoint: Checkpoint = serde_json::from_value(value).map_err(|e| malformed(e.to_string()))?;
        let twice = repeated_sources(text);
        for (name, entry) in entries {
            match parse_entry(&name, &entry).and_then(|known| match twice.contains(&name) {
                true => Err("it is there twice".to_string()),
                false => Ok(known),
            }) {
                Ok((name, entry)) => {
                    checkpoint.sources.insert(name, entry);
                }
                Err(detail) => {
                    checkpoint.malformed.insert(name, MalformedEntry { detail, text: entry.to_string() });
                }
            }
        }
        Ok(checkpoint)
    }

    /// What the ids that this checkpoint carries say about `request`.
    ///
    /// Each commit adds the id that it answers and drops the oldest beyond [`REQUESTS_KEPT`]. Once ids were dropped, an
    /// id that is older than the oldest one left may be one of those: running it could commit it twice. An id that
    /// carries no time (see [`RequestId::millis`]) cannot be judged and counts as new.
    pub fn judge(&self, request: &RequestId) -> Answer<'_> {
        if let Some(record) = self.answered(request) {
            return Answer::By(record);
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

    /// How `request` was answered, if this checkpoint still carries it.
    pub fn answered(&self, request: &RequestId) -> Option<&RequestRecord> {
        self.requests.iter().find(|record| &record.id == request)
    }

    /// Adds an answered request and forgets the oldest ones beyond [`REQUESTS_KEPT`].
    pub fn remember_request(&mut self, record: RequestRecord) {
        self.requests.push(record);
        let surplus = self.requests.len().saturating_sub(REQUESTS_KEPT);
        self.requests.drain(..surplus);
    }
}

fn parse_entry(name: &str, entry: &serde_json::Value) -> Result<(SourceName, SourceCheckpoint), String> {
    let name = SourceName::new(name).map_err(|e| e.to_string())?;
    let entry = serde_json::from_value(entry.clone()).map_err(|e| e.to_string())?;
    Ok((name, entry))
}

/// Names that stand more than once in the `sources` of a checkpoint's JSON: of two entries nobody can say which one
/// holds.
fn repeated_sources(text: &str) -> BTreeSet<String> {
    #[derive(Deserialize)]
    struct Sources {
        sources: Names,
    }
    let sources: Result<Sources, _> = serde_json::from_str(text);
    let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for name in sources.map(|found| found.sources.0).unwrap_or_default() {
        if !seen.insert(name.clone()) {
            twice.insert(name);
        }
    }
    twice
}

/// The keys of a JSON object, each as often as it is there.
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> serde::de::Visitor<'de> for Keys {
            type Value = Names;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }

        deserializer.deserialize_map(Keys)
    }
}

/// A location without what does not make it another one: a `file://` in front, slashes at the end.
pub fn location_of(path: &str) -> &str {
    let path = path.trim();
    let path = path.strip_prefix("file://").unwrap_or(path);
    match path.trim_end_matches('/') {
        "" => path,
        trimmed => trimmed,
    }
}

/// Whether two paths or URLs name one place, as far as their text tells.
pub fn same_location(one: &str, other: &str) -> bool {
    location_of(one) == location_of(other)
}

/// The flat form of `sources`: the metadata key and its value. `None` when there is no cursor to write.
///
/// One source: what the Java source of that kind writes under the key it uses. Several: `name=value,…` in byte order of
/// the names, of those that have a cursor. A source that begins anew has none and counts as one.
pub fn flat_form(sources: &BTreeMap<SourceName, SourceCheckpoint>) -> Option<(&'static str, String)> {
    let cursors: Vec<(&SourceName, &Cursor)> =
        sources.iter().filter_map(|(name, source)| source.cursor.as_ref().map(|cursor| (name, cursor))).collect();
    let restarting = sources.values().any(|source| source.cursor.is_none() && source.restart.is_some());
    match cursors.as_slice() {
        [] => None,
        several if restarting => Some((FLAT_KEY, named_cursors(several))),
        [(_, Cursor::Completed(instant))] => Some((FLAT_KEY_V2, instant.to_string())),
        [(_, Cursor::Requested(instant))] => Some((FLAT_KEY, instant.to_string())),
        [(_, Cursor::File(position))] => Some((FLAT_KEY, flat_position(position))),
        [(_, Cursor::Offsets(offsets))] => Some((FLAT_KEY, offsets.to_string())),
        several => Some((FLAT_KEY, named_cursors(several))),
    }
}

fn named_cursors(cursors: &[(&SourceName, &Cursor)]) -> String {
    let value = |cursor: &Cursor| match cursor {
        Cursor::Requested(instant) | Cursor::Completed(instant) => instant.to_string(),
        Cursor::File(position) => percent_encoded(&flat_position(position)),
        Cursor::Offsets(offsets) => percent_encoded(&offsets.to_string()),
    };
    let entries: Vec<String> = cursors.iter().map(|(name, cursor)| format!("{name}={}", value(cursor))).collect();
    entries.join(",")
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
            restart: None,
            window: None,
            as_of: None,
            fingerprint: "f".to_string(),
            path: Some("/lake/f".to_string()),
            schema: Some("{}".to_string()),
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

    fn record(id: &str) -> RequestRecord {
        RequestRecord { id: RequestId::new(id).unwrap(), instant: instant(), definition: None }
    }

    #[test]
    fn a_request_of_an_earlier_version_is_known_without_its_definition() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.remember_request(record("r1"));
        assert!(!checkpoint.to_json().contains("definition"));
        let read = Checkpoint::from_json(&pipeline(), &instant(), &checkpoint.to_json()).unwrap();
        assert!(!read.answered(&RequestId::new("r1").unwrap()).unwrap().is_of_another("any"));
    }

    #[test]
    fn a_checkpoint_reads_back_what_it_wrote() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.sources.insert(name("db.orders"), source("completed:20250606182826197"));
        checkpoint.remember_request(RequestRecord { definition: Some("d".to_string()), ..record("r1") });
        let read = Checkpoint::from_json(&pipeline(), &instant(), &checkpoint.to_json()).unwrap();
        assert_eq!(read, checkpoint);
        let answered = read.answered(&RequestId::new("r1").unwrap()).unwrap();
        assert_eq!(answered.instant, instant());
        assert!(answered.is_of_another("e") && !answered.is_of_another("d"));
    }

    fn read(text: &str) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::from_json(&pipeline(), &instant(), text)
    }

    #[test]
    fn a_malformed_entry_is_set_aside_by_name_and_the_good_ones_survive() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.sources.insert(name("good"), source("completed:20250606182826197"));
        checkpoint.sources.insert(name("users"), source("completed:20250606182826198"));
        for (damage, said) in [
            ("\"completed:20250606182826198\"", "\"x\""),
            ("\"completed:20250606182826198\"", "\"\""),
            ("\"completed:20250606182826198\"", "7"),
            ("\"cursor\":\"completed:20250606182826198\"", "\"cursr\":1"),
        ] {
            let found = read(&checkpoint.to_json().replacen(damage, said, 1)).unwrap();
            assert_eq!(found.sources.keys().map(SourceName::as_str).collect::<Vec<_>>(), ["good"], "{said}");
            assert_eq!(found.malformed.keys().collect::<Vec<_>>(), ["users"], "{said}");
            // As another process gets it.
            assert_eq!(read(&found.to_json()).unwrap(), found, "{said}");
        }
        let misnamed = read(&checkpoint.to_json().replacen("\"users\"", "\"us=ers\"", 1)).unwrap();
        assert_eq!((misnamed.sources.len(), misnamed.malformed.len()), (1, 1));
    }

    #[test]
    fn a_source_that_is_there_twice_is_malformed() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.sources.insert(name("a"), source("completed:20250606182826197"));
        checkpoint.sources.insert(name("b"), source("completed:20250606182826198"));
        let found = read(&checkpoint.to_json().replacen("\"b\":{", "\"a\":{", 1)).unwrap();
        assert!(found.sources.is_empty());
        assert!(found.malformed["a"].detail.contains("twice"), "{found:?}");
    }

    #[test]
    fn what_is_no_checkpoint_at_all_is_an_error_that_says_what_to_do() {
        for text in ["", "{}", "[]", "{\"format\":1}", "{\"format\":1,\"sources\":3}"] {
            let refused = read(text).unwrap_err().to_string();
            assert!(refused.contains(instant().as_str()) && refused.contains("Restore the file"), "{refused}");
        }
    }

    #[test]
    fn an_entry_of_an_older_version_has_no_path_and_no_schema() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.sources.insert(name("a"), source("completed:20250606182826197"));
        let text = checkpoint.to_json().replace("\"path\":\"/lake/f\",\"schema\":\"{}\",", "");
        let found = read(&text).unwrap();
        assert_eq!((&found.sources[&name("a")].path, &found.sources[&name("a")].schema), (&None, &None));
    }

    #[test]
    fn a_location_is_the_same_with_and_without_its_scheme_and_trailing_slashes() {
        assert!(same_location("/lake/a/", "file:///lake/a") && same_location("s3://b/a", "s3://b/a//"));
        assert!(!same_location("/lake/a", "/lake/b"));
        assert!(same_location("/", "/"));
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
            checkpoint.remember_request(record(&format!("r{n}")));
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
            checkpoint.remember_request(record(id(1000 + n).as_str()));
        }
        assert_eq!(checkpoint.judge(&id(1000)), Answer::By(&record(id(1000).as_str())));
        assert_eq!(checkpoint.judge(&id(999)), Answer::New, "no id was dropped yet, so this one was never answered");
        checkpoint.seq += 1;
        checkpoint.remember_request(record(id(9000).as_str()));
        assert_eq!(checkpoint.judge(&id(1000)), Answer::Forgotten { oldest: &id(1001) });
        assert_eq!(checkpoint.judge(&id(1002)), Answer::By(&record(id(1002).as_str())));
        assert_eq!(checkpoint.judge(&id(5000)), Answer::New);
        let plain = RequestId::new("nightly").unwrap();
        assert_eq!(checkpoint.judge(&plain), Answer::New, "an id without a time cannot be judged");
    }

    #[test]
    fn the_time_of_a_remembered_id_without_one_is_that_of_its_commit() {
        let mut checkpoint = Checkpoint::first("b".to_string());
        checkpoint.seq = 7;
        checkpoint.remember_request(record("plain"));
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
        let topic = BTreeMap::from([(name("a"), source("offsets:clicks,0:42,1:17"))]);
        assert_eq!(flat_form(&topic), Some((FLAT_KEY, "clicks,0:42,1:17".to_string())));
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
    fn one_of_two_sources_that_begins_anew_leaves_the_form_of_several() {
        let anew =
            SourceCheckpoint { cursor: None, restart: Some(Start::Snapshot), ..source("completed:20250101000000000") };
        let mut sources =
            BTreeMap::from([(name("a"), source("completed:20250606182826197")), (name("b"), anew.clone())]);
        assert_eq!(flat_form(&sources), Some((FLAT_KEY, "a=20250606182826197".to_string())));
        sources.insert(name("a"), anew);
        assert_eq!(flat_form(&sources), None, "there is no cursor");
        let lookup = SourceCheckpoint { cursor: None, ..source("completed:20250101000000000") };
        let beside = BTreeMap::from([(name("a"), source("completed:20250606182826197")), (name("b"), lookup)]);
        assert_eq!(flat_form(&beside), Some((FLAT_KEY_V2, "20250606182826197".to_string())), "a look-up has none ever");
    }

    #[test]
    fn good_flat_entries_survive_and_bad_ones_are_named() {
        let (good, bad) = parse_flat_form("a=20250101000000000,b=,a=20250101000000000,c,d=x");
        assert_eq!(good.keys().map(SourceName::as_str).collect::<Vec<_>>(), ["a"]);
        assert_eq!(bad.len(), 4, "{bad:?}");
        assert!(parse_flat_form("").0.is_empty());
    }
}
