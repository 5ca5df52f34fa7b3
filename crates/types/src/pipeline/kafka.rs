// SPDX-License-Identifier: Apache-2.0
//! Kafka topics as sources: which messages, and what they mean.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CsvOptions, JsonOptions, ReadMode, Source, SourceKind, Span, UnknownColumns};
use crate::offsets::is_topic_name;

/// What a message of a topic holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KafkaFormat {
    /// An object of JSON.
    Json,
    /// Separated values, without a header.
    Csv,
}

impl KafkaFormat {
    /// The name in a pipeline file.
    pub fn as_str(self) -> &'static str {
        match self {
            KafkaFormat::Json => "json",
            KafkaFormat::Csv => "csv",
        }
    }
}

impl TryFrom<String> for KafkaFormat {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "json" => Ok(KafkaFormat::Json),
            "csv" => Ok(KafkaFormat::Csv),
            "avro" => Err("`format = \"avro\"` is not there yet: `json` and `csv` are".to_string()),
            other => Err(format!("`format = \"{other}\"` is neither `json` nor `csv`")),
        }
    }
}

impl From<KafkaFormat> for String {
    fn from(format: KafkaFormat) -> Self {
        format.as_str().to_string()
    }
}

/// What a message without a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tombstones {
    /// It deletes the record of its key: a row with the key's columns whose `_hoodie_is_deleted` is true.
    Delete,
    /// It is passed over, and counted.
    Ignore,
    /// It fails the batch, which says where it is.
    #[default]
    Error,
}

/// What to do where messages that were not read yet are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnOutOfRange {
    /// Fail, naming partitions and offsets.
    #[default]
    Fail,
    /// Go on in that partition with the first message that is there.
    Earliest,
    /// Go on in that partition behind its last message.
    Latest,
}

/// What the key of a message holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyFormat {
    /// The value of one column, as text.
    #[default]
    Text,
    /// An object of JSON with a field for each column.
    Json,
}

/// What is known of a message besides its value, each a column of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KafkaColumn {
    /// `_kafka_topic`: text.
    Topic,
    /// `_kafka_partition`: an integer of 32 bits.
    Partition,
    /// `_kafka_offset`: an integer of 64 bits.
    Offset,
    /// `_kafka_timestamp`: a timestamp in UTC.
    Timestamp,
    /// `_kafka_key`: text.
    Key,
    /// `_kafka_headers`: a map from text to bytes. Of headers of one name the last one counts.
    Headers,
}

impl KafkaColumn {
    /// The name of the column.
    pub fn column(self) -> &'static str {
        match self {
            KafkaColumn::Topic => "_kafka_topic",
            KafkaColumn::Partition => "_kafka_partition",
            KafkaColumn::Offset => "_kafka_offset",
            KafkaColumn::Timestamp => "_kafka_timestamp",
            KafkaColumn::Key => "_kafka_key",
            KafkaColumn::Headers => "_kafka_headers",
        }
    }
}

/// What else there is to say of a topic: `[source.kafka]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaOptions {
    /// How brokers are talked to: `plaintext` only, as yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_protocol: Option<String>,
    /// How long a broker may not answer.
    pub timeout: Span,
    /// Messages in one window at most, shared over the partitions.
    pub max_events: u64,
    /// What to do where messages that were not read yet are gone.
    pub on_out_of_range: OnOutOfRange,
    /// Columns that a message's key has the values of.
    pub key_columns: Vec<String>,
    /// How the key has them.
    pub key_format: KeyFormat,
    /// What is known of messages besides their values that is to be columns.
    pub metadata: Vec<KafkaColumn>,
    /// A message may hold several records, one after the other.
    pub lines: bool,
    /// A file with names and types: an Avro schema, or Arrow's in JSON. Whoever loads the pipeline reads it into `schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_file: Option<String>,
    /// The schema itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Messages from which types are inferred where no schema is given, and in which new columns are looked for.
    pub sample_events: u32,
    /// What to do with fields that the schema does not have.
    pub unknown_columns: UnknownColumns,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        KafkaOptions {
            security_protocol: None,
            timeout: Span(Duration::from_secs(30)),
            max_events: 5_000_000,
            on_out_of_range: OnOutOfRange::Fail,
            key_columns: Vec::new(),
            key_format: KeyFormat::Text,
            metadata: Vec::new(),
            lines: false,
            schema_file: None,
            schema: None,
            sample_events: 1000,
            unknown_columns: UnknownColumns::Evolve,
        }
    }
}

/// Everything that is particular to a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSource {
    /// Brokers to ask first: `host:port`, separated by commas.
    pub brokers: String,
    /// The topic.
    pub topic: String,
    /// What messages without a value are.
    pub tombstones: Tombstones,
    /// The rest.
    pub options: KafkaOptions,
}

/// What of a topic's keys a pipeline may give, on the wire and where they are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TopicKeys {
    /// `brokers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brokers: Option<String>,
    /// `topic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// `format`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<KafkaFormat>,
    /// `tombstones`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tombstones: Option<Tombstones>,
    /// `[source.kafka]`.
    pub kafka: KafkaOptions,
}

impl TopicSource {
    /// Where it is, as prefixes of locations are compared with it.
    pub fn url(&self) -> String {
        topic_url(&self.brokers, &self.topic)
    }
}

impl Source {
    /// The keys of a topic.
    pub fn topic_keys(&self) -> TopicKeys {
        TopicKeys {
            brokers: self.brokers.clone(),
            topic: self.topic.clone(),
            format: self.format,
            tombstones: self.tombstones,
            kafka: self.kafka.clone(),
        }
    }

    /// The topic that it reads; `None` where it reads none.
    pub fn topic_source(&self) -> Option<TopicSource> {
        // Whoever names the columns of the key says what a message without a value deletes.
        let default = if self.kafka.key_columns.is_empty() { Tombstones::Error } else { Tombstones::Delete };
        (self.kind == SourceKind::Kafka).then(|| TopicSource {
            brokers: self.brokers.clone().unwrap_or_default(),
            topic: self.topic.clone().unwrap_or_default(),
            tombstones: self.tombstones.unwrap_or(default),
            options: self.kafka.clone(),
        })
    }
}

/// What is wrong with the keys of a topic, each as a sentence that names the key.
pub(super) fn problems(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    let mut refuse = |what: String| problems.push(format!("source `{}`: {what}", source.name));
    if source.kind != SourceKind::Kafka {
        let keys = source.topic_keys();
        let given = [
            ("brokers", keys.brokers.is_some()),
            ("topic", keys.topic.is_some()),
            ("format", keys.format.is_some()),
            ("tombstones", keys.tombstones.is_some()),
            ("kafka", keys.kafka != KafkaOptions::default()),
        ];
        for (key, _) in given.iter().filter(|(_, given)| *given) {
            refuse(format!("`{key}` means nothing to `kind = \"{}\"`", source.kind.as_str()));
        }
        return problems;
    }
    let options = &source.kafka;
    let brokers = source.brokers.as_deref().unwrap_or_default();
    match brokers.split(',').map(str::trim).find(|text| !is_address(text)) {
        Some("") => refuse("it has no `brokers`: give them as `host:port`, separated by commas".to_string()),
        Some(bad) => refuse(format!("`brokers`: `{bad}` is no `host:port`")),
        None => {}
    }
    match source.topic.as_deref() {
        None => refuse("it has no `topic`".to_string()),
        Some(topic) if !is_topic_name(topic) => {
            refuse(format!(
                "`topic = \"{topic}\"` is no name of a topic: letters, digits, `.`, `_` and `-` are allowed"
            ));
        }
        Some(_) => {}
    }
    if !source.path.is_empty() {
        refuse("`path` means nothing to `kind = \"kafka\"`: `brokers` and `topic` say where it is".to_string());
    }
    if source.read == ReadMode::Snapshot {
        refuse("`read = \"snapshot\"`: a topic cannot be looked up, only read on".to_string());
    }
    if source.skip_on_schema_failure {
        refuse("`skip_on_schema_failure` means nothing to `kind = \"kafka\"`".to_string());
    }
    match source.format {
        None => refuse("it has no `format`: say whether its messages are `json` or `csv`".to_string()),
        Some(KafkaFormat::Json) if source.csv != CsvOptions::default() => {
            refuse("`csv` means nothing to `format = \"json\"`".to_string());
        }
        Some(KafkaFormat::Csv) if source.json != JsonOptions::default() => {
            refuse("`json` means nothing to `format = \"csv\"`".to_string());
        }
        Some(_) => {}
    }
    if source.csv.header == Some(true) {
        refuse("`csv.header`: messages have no header; columns are named `_c0`, `_c1`, … or by a schema".to_string());
    }
    if source.csv.encoding.as_deref().is_some_and(|encoding| !encoding.eq_ignore_ascii_case("utf-8")) {
        refuse("`csv.encoding`: messages are read as UTF-8".to_string());
    }
    problems.extend(options_problems(source, options));
    problems
}

fn is_address(text: &str) -> bool {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    // With a slash in it, it would be a broker and a topic where prefixes of URLs are compared.
    let is_host = |host: &str| !host.is_empty() && !host.contains(['/', '\\', '?', '#', '@']);
    text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && is_port(port))
}

/// A topic as a location: `kafka://BROKERS/TOPIC`. Where the brokers are none, it is one that no prefix has.
pub fn topic_url(brokers: &str, topic: &str) -> String {
    match brokers.split(',').map(str::trim).all(is_address) {
        true => format!("kafka://{brokers}/{topic}"),
        false => "kafka:///".to_string(),
    }
}

fn options_problems(source: &Source, options: &KafkaOptions) -> Vec<String> {
    let mut problems = Vec::new();
    let mut refuse = |what: String| problems.push(format!("source `{}`: {what}", source.name));
    if let Some(protocol) = options.security_protocol.as_deref().filter(|p| !p.eq_ignore_ascii_case("plaintext")) {
        refuse(format!("`kafka.security_protocol = \"{protocol}\"` is not there yet: `plaintext` is"));
    }
    if options.max_events == 0 {
        refuse("`kafka.max_events` must be greater than 0".to_string());
    }
    if options.timeout.0.is_zero() {
        refuse("`kafka.timeout` must be greater than 0".to_string());
    }
    if options.schema.is_some() && options.schema_file.is_some() {
        refuse("both `kafka.schema` and `kafka.schema_file` are given: give one".to_string());
    }
    if options.key_format == KeyFormat::Text && options.key_columns.len() > 1 {
        refuse(
            "`kafka.key_columns` names several columns: a key of text is one; set `kafka.key_format = \"json\"`"
                .to_string(),
        );
    }
    if source.tombstones == Some(Tombstones::Delete) && options.key_columns.is_empty() {
        refuse(
            "`tombstones = \"delete\"` needs `kafka.key_columns`, the columns that the key of a message has the values of"
                .to_string(),
        );
    }
    if options.metadata.iter().collect::<BTreeSet<_>>().len() < options.metadata.len() {
        refuse("`kafka.metadata` names a column twice".to_string());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(more: serde_json::Value) -> Source {
        let mut value = serde_json::json!({
            "name": "clicks", "kind": "kafka", "brokers": "localhost:9092", "topic": "clicks", "format": "json",
        });
        for (key, more) in more.as_object().unwrap() {
            value[key] = more.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_topic_has_a_location_of_its_own_unless_its_brokers_are_none() {
        assert_eq!(topic_url("a:1,b:2", "clicks"), "kafka://a:1,b:2/clicks");
        // Read as a location, the first broker would be one with a topic.
        for brokers in ["", "a", "a:1/clicks/x:1,b:1", "me@a:1"] {
            assert_eq!(topic_url(brokers, "clicks"), "kafka:///", "{brokers}");
        }
    }

    #[test]
    fn a_topic_without_options_has_no_problem_and_the_documented_defaults() {
        let source = source(serde_json::json!({}));
        assert_eq!(problems(&source), Vec::<String>::new());
        let topic = source.topic_source().unwrap();
        assert_eq!((topic.options.max_events, topic.tombstones), (5_000_000, Tombstones::Error));
        assert_eq!(topic.options.timeout.to_string(), "30s");
    }

    #[test]
    fn tombstones_delete_where_the_columns_of_the_key_are_named() {
        let keyed = source(serde_json::json!({"kafka": {"key_columns": ["id"]}}));
        assert_eq!(keyed.topic_source().unwrap().tombstones, Tombstones::Delete);
        let ignored = source(serde_json::json!({"kafka": {"key_columns": ["id"]}, "tombstones": "ignore"}));
        assert_eq!(ignored.topic_source().unwrap().tombstones, Tombstones::Ignore);
    }

    #[test]
    fn each_contradiction_is_named() {
        for (more, part) in [
            (serde_json::json!({"brokers": ""}), "no `brokers`"),
            (serde_json::json!({"brokers": "a:1,b"}), "`b` is no `host:port`"),
            (serde_json::json!({"brokers": "a:1/clicks/x:1,b:1"}), "`a:1/clicks/x:1` is no `host:port`"),
            (serde_json::json!({"topic": "a b"}), "no name of a topic"),
            (serde_json::json!({"path": "/x"}), "`path` means nothing"),
            (serde_json::json!({"read": "snapshot"}), "cannot be looked up"),
            (serde_json::json!({"csv": {"sep": ";"}}), "`csv` means nothing to `format = \"json\"`"),
            (serde_json::json!({"format": "csv", "csv": {"header": true}}), "`csv.header`"),
            (serde_json::json!({"tombstones": "delete"}), "needs `kafka.key_columns`"),
            (serde_json::json!({"kafka": {"key_columns": ["a", "b"]}}), "`kafka.key_format = \"json\"`"),
            (serde_json::json!({"kafka": {"max_events": 0}}), "`kafka.max_events`"),
            (serde_json::json!({"kafka": {"metadata": ["key", "key"]}}), "twice"),
            (serde_json::json!({"kafka": {"security_protocol": "SASL_SSL"}}), "SASL_SSL"),
        ] {
            let problems = problems(&source(more.clone())).join("\n");
            assert!(problems.contains(part), "{part} not in {problems} of {more}");
        }
    }

    #[test]
    fn a_format_that_is_not_there_is_refused_by_name() {
        let refused = KafkaFormat::try_from("avro".to_string()).unwrap_err();
        assert!(refused.contains("`format = \"avro\"` is not there yet"), "{refused}");
    }

    #[test]
    fn the_keys_of_a_topic_mean_nothing_to_a_table() {
        let table: Source = serde_json::from_value(
            serde_json::json!({"name": "t", "path": "/t", "topic": "x", "kafka": {"lines": true}}),
        )
        .unwrap();
        let problems = problems(&table);
        assert!(
            problems.len() == 2 && problems[0].contains("`topic` means nothing to `kind = \"hudi\"`"),
            "{problems:?}"
        );
    }
}
