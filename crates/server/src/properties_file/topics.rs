// SPDX-License-Identifier: Apache-2.0
//! Topics: `JsonKafkaSource`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Props;
use super::files::{json_options, schema_file};

const TOPIC: &str = "hoodie.streamer.source.kafka.topic";
const KEYS: &str = "hoodie.streamer.source.kafka.";

/// Whether the properties name a topic.
pub(super) fn has_topic(props: &Props) -> bool {
    props.has(TOPIC)
}

/// The source of a job over the messages of a topic.
pub(super) fn read(props: &mut Props, directory: &Path, provider: Option<&str>) -> Map<String, Value> {
    let mut needed = |key: &str, what: &str| match props.take(key) {
        Some(value) => value,
        None => {
            props.problem(format!("`{key}` is missing: {what}"));
            String::new()
        }
    };
    let topic = needed(TOPIC, "the topic that is read");
    let brokers = needed("bootstrap.servers", "brokers to ask first, `host:port,…`");
    let mut kafka = Map::new();
    if let Some(file) = schema_file(props, directory, provider) {
        kafka.insert("schema_file".to_string(), json!(file));
    }
    let events = props.number("hoodie.streamer.kafka.source.maxEvents");
    if let Some(events) = props.source_limit.take().or(events) {
        kafka.insert("max_events".to_string(), json!(events));
    }
    if let Some(protocol) = props.take("security.protocol") {
        kafka.insert("security_protocol".to_string(), json!(protocol));
    }
    let lost = format!("{KEYS}enable.failOnDataLoss");
    if props.has(&lost) {
        let policy = if props.flag(&lost) { "fail" } else { "earliest" };
        kafka.insert("on_out_of_range".to_string(), json!(policy));
    }
    refuse(props);
    let start = start(props);
    let mut source = Map::new();
    let mut put = |key: &str, value: Value| {
        source.insert(key.to_string(), value);
    };
    put("name", json!(super::source::name_of(&topic)));
    put("kind", json!("kafka"));
    put("brokers", json!(brokers));
    put("topic", json!(topic));
    put("format", json!("json"));
    put("start", json!(start));
    // Such a source leaves out messages without a value.
    put("tombstones", json!("ignore"));
    put("json", json_options(props));
    put("kafka", Value::Object(kafka));
    source
}

/// Where a job without a checkpoint begins.
fn start(props: &mut Props) -> &'static str {
    match props.take("auto.offset.reset").map(|text| text.to_lowercase()).as_deref() {
        None | Some("latest") => "latest",
        Some("earliest") => "earliest",
        Some(other) => {
            props.problem(format!(
                "`auto.offset.reset={other}` is not there: `latest` and `earliest` are; offsets that a consumer group \
                 committed are not read"
            ));
            "latest"
        }
    }
}

fn refuse(props: &mut Props) {
    let group = "offsets are kept in the target alone, and none is committed to the brokers";
    props.refuse_unless(&format!("{KEYS}enable.commit.offset"), "false", group);
    let checkpoint = "a checkpoint is `topic,partition:offset,…`; a topic begins at a time with `tributary.source.NAME.start=\
                      timestamp:…`";
    props.refuse_unless(&format!("{KEYS}checkpoint.type"), "string", checkpoint);
    let columns = "these columns are named `_kafka_offset`, `_kafka_partition` and so on here; ask for them with \
                   `tributary.source.NAME.kafka.metadata=[\"offset\",\"partition\",\"timestamp\",\"key\"]`";
    props.refuse_unless(&format!("{KEYS}append.offsets"), "false", columns);
}
