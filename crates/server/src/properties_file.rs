// SPDX-License-Identifier: Apache-2.0
//! Properties files of Hudi Streamer: a Java job's configuration in, a checked pipeline out.
//!
//! Keys are those of `HoodieIncrSource`, of the proposal for several Hudi sources (RFC-108), of the sources of files and of
//! JSON topics, of the SQL and flattening transformers, and of the target; `hoodie.streamer.` and `hoodie.deltastreamer.` are one prefix. What Tributary has and
//! Hudi Streamer has not is said by own keys, `tributary.<path of a pipeline file's key>`. A key that has no meaning here is
//! told; one whose meaning cannot be kept is refused.

mod files;
mod lines;
mod source;
mod steps;
mod target;
mod topics;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tributary_types::pipeline::{Pipeline, Source, SourceKind};
use tributary_types::{Override, OverrideTo};

use crate::cli::JobArgs;
use crate::pipeline_file::{counted, resolve, with_suggestion};

const PREFIX: &str = "hoodie.streamer.";
const OLD_PREFIX: &str = "hoodie.deltastreamer.";
const OWN_PREFIX: &str = "tributary.";

/// A job as its properties describe it.
#[derive(Debug)]
pub struct Read {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// Cursors that are set by hand.
    pub overrides: Vec<Override>,
    /// What somebody should know: keys that have no meaning here, and where Tributary differs. A sentence each.
    pub notes: Vec<String>,
}

/// Why a properties file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The properties are no job that can be run here.
    #[error("properties `{}` have {}:\n  - {}", path.display(), counted(problems.len()), problems.join("\n  - "))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Every problem.
        problems: Vec<String>,
    },
}

/// Reads a properties file and what the command line says besides.
pub fn load(path: &Path, args: &JobArgs) -> Result<Read, Error> {
    let mut props = lines::read(path)?;
    props.source_limit = args.source_limit;
    for conf in &args.hoodie_conf {
        match conf.split_once('=') {
            Some((key, value)) => props.set(key.trim(), value.trim()),
            None => props.problem(format!("`--hoodie-conf {conf}` has no `=`")),
        }
    }
    let flags = [
        ("hoodie.base.path", &args.target_base_path),
        ("hoodie.table.name", &args.target_table),
        ("hoodie.datasource.write.table.type", &args.table_type),
        ("hoodie.datasource.write.operation", &args.op),
        ("hoodie.table.ordering.fields", &args.source_ordering_field),
        ("hoodie.streamer.transformer.class", &args.transformer_class),
    ];
    for (key, value) in flags {
        if let Some(value) = value {
            props.set(key, value);
        }
    }
    let directory = path.parent().unwrap_or(Path::new(""));
    let invalid = |problems| Error::Invalid { path: path.to_path_buf(), problems };
    let mut read = convert(props, directory, args).map_err(invalid)?;
    if let Some(text) = &args.checkpoint {
        let wanted = checkpoint(&read.pipeline, text).map_err(|problem| invalid(vec![problem]))?;
        read.overrides.push(wanted);
    }
    for source in &mut read.pipeline.sources {
        for (file, schema) in [
            (&mut source.files.schema_file, &mut source.files.schema),
            (&mut source.kafka.schema_file, &mut source.kafka.schema),
        ] {
            if let Some(file) = file.take() {
                let file = PathBuf::from(file);
                *schema = Some(std::fs::read_to_string(&file).map_err(|source| Error::Read { path: file, source })?);
            }
        }
    }
    for step in &mut read.pipeline.transforms {
        if let Some(file) = step.sql_file.take() {
            let file = PathBuf::from(file);
            step.sql = Some(std::fs::read_to_string(&file).map_err(|source| Error::Read { path: file, source })?);
        }
    }
    Ok(read)
}

/// The place of `--checkpoint`, which is the text of the source that it is of: an instant, a modification time, offsets.
fn checkpoint(pipeline: &Pipeline, text: &str) -> Result<Override, String> {
    let place = match pipeline.sources.first().map(|source| source.kind) {
        Some(SourceKind::Csv | SourceKind::Json | SourceKind::Parquet) if is_number(text) => {
            format!("file:modified:{text}:")
        }
        Some(SourceKind::Kafka) if !text.contains("offsets:") && text.contains(':') => format!("offsets:{text}"),
        _ => text.to_string(),
    };
    // A name in front is for jobs of several sources.
    let named = text.contains('=') && !text.starts_with("offsets:");
    let wanted = match named {
        true => text.parse::<Override>(),
        false => place.parse::<OverrideTo>().map(|to| Override { source: None, to, token: None }),
    };
    wanted.map_err(|error| format!("`--checkpoint {text}`: {error}"))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn convert(mut props: Props, directory: &Path, args: &JobArgs) -> Result<Read, Vec<String>> {
    let multi_checkpoint = source::writes_each_cursor(&mut props);
    let sources = source::read(&mut props, directory, args);
    let transforms = steps::read(&mut props, directory);
    let target = target::read(&mut props, directory);
    let name = props.take("tributary.name").unwrap_or_else(|| text_of(&target, "table_name"));
    let mut job = Map::new();
    job.insert("name".to_string(), json!(name));
    // A job of Hudi Streamer that never ran begins with the newest commit, as its proposal for several sources says.
    job.insert("first_start".to_string(), json!("latest"));
    job.insert("source".to_string(), Value::Array(sources.into_iter().map(Value::Object).collect()));
    job.insert("transform".to_string(), Value::Array(transforms));
    job.insert("target".to_string(), Value::Object(target));
    if !multi_checkpoint {
        job.insert("multi_checkpoint".to_string(), json!(false));
    }
    let overrides = overrides(&mut props, &job);
    own_keys(&mut props, &mut job);
    props.tell_unused();
    let Props { mut problems, notes, .. } = props;
    if !problems.is_empty() {
        return Err(problems);
    }
    match serde_json::from_value::<Pipeline>(Value::Object(job)) {
        Ok(pipeline) => {
            problems.extend(pipeline.validate());
            if problems.is_empty() { Ok(Read { pipeline, overrides, notes }) } else { Err(problems) }
        }
        Err(error) => Err(vec![with_suggestion(&error.to_string())]),
    }
}

/// Cursors that are set by hand: `tributary.override.<source>=<place>`.
fn overrides(props: &mut Props, job: &Map<String, Value>) -> Vec<Override> {
    let token = props.take("tributary.override_token");
    let mut found = Vec::new();
    for (key, place) in props.take_all("tributary.override.") {
        let Some(name) = source_names(job).into_iter().find(|name| fold(name) == key || *name == key) else {
            props.problem(format!("`tributary.override.{key}` names no source of the job"));
            continue;
        };
        let parsed = format!("{name}={place}").parse::<Override>();
        let parsed = parsed.and_then(|wanted| match &token {
            Some(token) => wanted.with_token(token),
            None => Ok(wanted),
        });
        match parsed {
            Ok(wanted) => found.push(wanted),
            Err(error) => props.problem(format!("`tributary.override.{key}`: {error}")),
        }
    }
    if token.is_some() && found.is_empty() {
        props.problem(
            "`tributary.override_token` is given, and no `tributary.override.…` that it could be of".to_string(),
        );
    }
    found
}

fn source_names(job: &Map<String, Value>) -> Vec<String> {
    let sources = job.get("source").and_then(Value::as_array).into_iter().flatten();
    sources.filter_map(|source| Some(source.get("name")?.as_str()?.to_string())).collect()
}

/// Puts own keys where a pipeline file has them: `tributary.limits.memory`, `tributary.source.<source>.on_stale`.
fn own_keys(props: &mut Props, job: &mut Map<String, Value>) {
    for (key, text) in props.take_all("tributary.source.") {
        let place = key.split_once('.').and_then(|(name, field)| {
            let sources = job.get_mut("source")?.as_array_mut()?.iter_mut().filter_map(Value::as_object_mut);
            let mut named = sources.filter(|source| fold(&text_of(source, "name")) == name);
            Some((named.next()?, field.to_string()))
        });
        match place {
            Some((source, field)) => {
                let value = value_of::<Source>(json!({"name": "s", "path": "/s"}), &field, &text);
                put(source, &field, value);
            }
            None => props.problem(format!(
                "`tributary.source.{key}` names no source of the job: write `tributary.source.NAME.KEY`, dots of the name \
                 as underscores"
            )),
        }
    }
    for (key, text) in props.take_all(OWN_PREFIX) {
        let empty = json!({"name": "p", "target": {"path": "/t", "table_name": "t", "record_key": ["k"]}});
        let value = value_of::<Pipeline>(empty, &key, &text);
        put(job, &key, value);
    }
}

/// The value that a text is: a flag, a number or a list, unless the key is of a text. `empty` is the least of a `T`.
fn value_of<T: DeserializeOwned>(empty: Value, path: &str, text: &str) -> Value {
    let list = || serde_json::from_str::<Value>(text).ok().filter(Value::is_array);
    let value = match (text.parse::<bool>(), text.parse::<u64>()) {
        (Ok(flag), _) => Value::Bool(flag),
        (_, Ok(number)) => json!(number),
        _ => return list().unwrap_or_else(|| Value::String(text.to_string())),
    };
    let is_of_another_type = |value: &Value| {
        let mut with = empty.clone();
        if let Some(object) = with.as_object_mut() {
            put(object, path, value.clone());
        }
        serde_json::from_value::<T>(with).err().is_some_and(|error| error.to_string().contains("invalid type"))
    };
    let as_text = Value::String(text.to_string());
    if is_of_another_type(&value) && !is_of_another_type(&as_text) { as_text } else { value }
}

fn put(object: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        Some((head, rest)) => {
            let inner = object.entry(head).or_insert_with(|| Value::Object(Map::new()));
            if let Some(inner) = inner.as_object_mut() {
                put(inner, rest, value);
            }
        }
        None => {
            object.insert(path.to_string(), value);
        }
    }
}

fn text_of(object: &Map<String, Value>, key: &str) -> String {
    object.get(key).and_then(Value::as_str).unwrap_or_default().to_string()
}

/// A name as keys write it.
fn fold(name: &str) -> String {
    name.replace('.', "_")
}

/// A path as Hudi Streamer takes it.
fn location(directory: &Path, path: &str) -> String {
    let path = path.trim();
    let local = path.strip_prefix("file://").or_else(|| path.strip_prefix("file:"));
    let path = local.map_or_else(|| path.to_string(), ToString::to_string);
    let path = ["s3a://", "s3n://"]
        .iter()
        .find_map(|old| path.strip_prefix(old))
        .map(|rest| format!("s3://{rest}"))
        .unwrap_or(path);
    resolve(directory, &path)
}

/// Properties, of which each is taken once.
#[derive(Debug)]
struct Props {
    left: BTreeMap<String, String>,
    problems: Vec<String>,
    notes: Vec<String>,
    /// What one batch reads at most, in the unit of the source, until the source took it.
    source_limit: Option<u64>,
}

impl Props {
    fn new(read: BTreeMap<String, String>) -> Self {
        let mut props = Props { left: BTreeMap::new(), problems: Vec::new(), notes: Vec::new(), source_limit: None };
        for (key, value) in &read {
            let Some(rest) = key.strip_prefix(OLD_PREFIX) else {
                props.left.insert(key.clone(), value.clone());
                continue;
            };
            let new = format!("{PREFIX}{rest}");
            match read.get(&new) {
                Some(other) if other != value => {
                    props.problem(format!("`{key}` and `{new}` are one key and have different values: give one"));
                }
                _ => {
                    props.left.insert(new, value.clone());
                }
            }
        }
        props
    }

    /// Sets a property in the place of what the file says.
    fn set(&mut self, key: &str, value: &str) {
        let key = key.strip_prefix(OLD_PREFIX).map_or_else(|| key.to_string(), |rest| format!("{PREFIX}{rest}"));
        self.left.insert(key, value.to_string());
    }

    fn problem(&mut self, problem: String) {
        self.problems.push(problem);
    }

    fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// The value of a key; an empty one is none.
    fn take(&mut self, key: &str) -> Option<String> {
        self.left.remove(key).map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
    }

    /// Whether a key is there with a value.
    fn has(&self, key: &str) -> bool {
        self.left.get(key).is_some_and(|value| !value.trim().is_empty())
    }

    /// The value of a key, an empty one too.
    fn take_raw(&mut self, key: &str) -> Option<String> {
        self.left.remove(key)
    }

    /// The value of keys that mean the same: the first that is there. Others must say the same.
    fn first(&mut self, keys: &[&str]) -> Option<String> {
        let mut found: Option<(String, String)> = None;
        for key in keys {
            let Some(value) = self.take(key) else { continue };
            match &found {
                Some((known, first)) if *first != value => {
                    self.problem(format!("`{known}` is `{first}`, and `{key}`, which means the same, is `{value}`"));
                }
                Some(_) => {}
                None => found = Some(((*key).to_string(), value)),
            }
        }
        found.map(|(_, value)| value)
    }

    /// Everything under a prefix, by what follows it.
    fn take_all(&mut self, prefix: &str) -> Vec<(String, String)> {
        let keys: Vec<String> = self.left.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        let taken = keys.into_iter().filter_map(|key| {
            let value = self.left.remove(&key)?;
            Some((key[prefix.len()..].to_string(), value.trim().to_string()))
        });
        taken.collect()
    }

    fn flag(&mut self, key: &str) -> bool {
        match self.take(key).map(|value| value.to_lowercase()).as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                self.problem(format!("`{key}` is `{other}`, neither true nor false"));
                false
            }
        }
    }

    fn number(&mut self, key: &str) -> Option<u64> {
        let value = self.take(key)?;
        match value.parse() {
            Ok(number) => Some(number),
            Err(_) => {
                self.problem(format!("`{key}` is `{value}`, which is no whole number"));
                None
            }
        }
    }

    /// Refuses a key that is set to anything but what has no effect.
    fn refuse_unless(&mut self, key: &str, harmless: &str, why: &str) {
        if let Some(value) = self.take(key).filter(|value| !value.eq_ignore_ascii_case(harmless)) {
            self.problem(format!("`{key}={value}`: {why}"));
        }
    }

    /// Tells what was not taken.
    fn tell_unused(&mut self) {
        if self.source_limit.is_some() {
            self.note(
                "`--source-limit` is not used: `num_instants` says how many commits of a table a batch reads"
                    .to_string(),
            );
        }
        for key in std::mem::take(&mut self.left).into_keys() {
            self.note(format!("`{key}` is not used by Tributary"));
        }
    }
}

#[cfg(test)]
mod tests;
