// SPDX-License-Identifier: Apache-2.0
//! Plans and reads of topics on a broker in this process.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use serde_json::{Value, json};
use tributary_api::timeline::{Begin, Error, FilesRequest, PlanRequest, ReadRequest, SourcePlan, Timeline};
use tributary_api::{RowError, RowStream};
use tributary_hudi::{Storage, Stores, SystemStores};
use tributary_testkit::kafka::{Batch, Broker};
use tributary_types::pipeline::{FileSource, Source};
use tributary_types::{Fault, MemoryBudget, Retry, SystemClock};

use crate::{Service, Settings};

struct Topic {
    broker: Broker,
    name: String,
    url: String,
    source: FileSource,
    service: Service,
}

impl Topic {
    /// A topic of two partitions, and a source that reads it.
    async fn new(more: Value) -> Self {
        let broker = Broker::start().await;
        broker.create("clicks", 2);
        Topic::of(broker, more)
    }

    fn of(broker: Broker, more: Value) -> Self {
        let mut value = json!({
            "name": "clicks", "kind": "kafka", "topic": "clicks", "format": "json", "brokers": broker.address(),
        });
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let source: Source = serde_json::from_value(value).unwrap();
        // Small answers, so that every partition comes in several.
        let settings = Settings { part_bytes: 7, ..Settings::default() };
        let service = Service::new(Arc::new(SystemStores::new()), Arc::new(SystemClock), settings);
        let name = source.name.to_string();
        Topic { broker, name, url: source.url(), source: source.file_source().unwrap(), service }
    }

    fn request(&self, begin: Begin, before: Option<&SourcePlan>) -> PlanRequest {
        let state = before.map(|plan| plan.files.as_deref().unwrap().clone());
        let name = tributary_types::SourceName::new(self.name.as_str()).unwrap();
        PlanRequest {
            fingerprint: before.map(|plan| plan.table.fingerprint.clone()),
            files: Some(Box::new(FilesRequest { source: self.source.clone(), state, pinned: None, moved: false })),
            ..PlanRequest::window(name, self.url.as_str(), begin)
        }
    }

    async fn plan(&self, before: Option<&SourcePlan>) -> Result<SourcePlan, Error> {
        let begin = before.map_or(Begin::Earliest, |plan| Begin::After(plan.end.clone()));
        self.service.plan(self.request(begin, before)).await
    }

    async fn read(&self, plan: &SourcePlan, projection: Option<Vec<usize>>) -> Result<Vec<RecordBatch>, RowError> {
        let mut batches = Vec::new();
        let Some(relation) = &plan.changed else { return Ok(batches) };
        for split in relation.splits.clone() {
            let request = ReadRequest {
                split,
                schema: Arc::clone(&relation.schema),
                projection: projection.clone(),
                predicate: None,
                batch_rows: 2,
                memory: MemoryBudget::new(1 << 20),
            };
            let rows: RowStream = self.service.read(request).await.map_err(RowError::new)?;
            batches.extend(rows.try_collect::<Vec<_>>().await?);
        }
        Ok(batches)
    }

    /// The rows of the next window, as JSON, in the order of partitions and offsets.
    async fn next(&self, before: Option<&SourcePlan>) -> (Vec<String>, SourcePlan) {
        let plan = self.plan(before).await.unwrap();
        let rows = json_rows(&self.read(&plan, None).await.unwrap());
        (rows, plan)
    }
}

fn json_rows(batches: &[RecordBatch]) -> Vec<String> {
    let mut writer = arrow::json::LineDelimitedWriter::new(Vec::new());
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    let text = String::from_utf8(writer.into_inner()).unwrap();
    text.lines().map(str::to_string).collect()
}

fn columns(plan: &SourcePlan) -> Vec<String> {
    let schema = plan.table.schema.as_ref().unwrap();
    schema.fields().iter().map(|field| format!("{}: {}", field.name(), field.data_type())).collect()
}

fn end(plan: &SourcePlan) -> String {
    plan.end.to_string()
}

#[tokio::test]
async fn windows_go_on_where_the_last_one_ended_and_new_fields_become_columns() {
    let topic = Topic::new(json!({})).await;
    topic.broker.send("clicks", 0, &["{\"id\":1}", "{\"id\":2}"]);
    topic.broker.send("clicks", 1, &["{\"id\":3}"]);
    let (rows, first) = topic.next(None).await;
    assert_eq!(rows, ["{\"id\":1}", "{\"id\":2}", "{\"id\":3}"]);
    assert_eq!((end(&first), first.has_news), ("offsets:clicks,0:2,1:1".to_string(), true));
    let (rows, idle) = topic.next(Some(&first)).await;
    assert_eq!((rows.len(), idle.has_news), (0, false));
    topic.broker.send("clicks", 1, &["{\"id\":4,\"at\":{\"x\":1.5}}"]);
    let (rows, second) = topic.next(Some(&first)).await;
    assert_eq!(rows, ["{\"id\":4,\"at\":{\"x\":1.5}}"]);
    assert_eq!(columns(&second)[0], "id: Int64");
    assert_eq!((second.report.instants, second.report.files, second.report.lag_instants), (1, 1, 0));
}

#[tokio::test]
async fn csv_without_a_header_is_named_by_position_and_typed() {
    let topic = Topic::new(json!({"format": "csv"})).await;
    topic.broker.send("clicks", 0, &["1,\"a,b\"", "2,\"two\nlines\"", "3,\n"]);
    let (rows, plan) = topic.next(None).await;
    assert_eq!(columns(&plan), ["_c0: Int64", "_c1: Utf8"]);
    assert_eq!(rows, ["{\"_c0\":1,\"_c1\":\"a,b\"}", "{\"_c0\":2,\"_c1\":\"two\\nlines\"}", "{\"_c0\":3}"]);
    topic.broker.send("clicks", 0, &["4,x\n5,y"]);
    let more = topic.plan(Some(&plan)).await.unwrap();
    let refused = topic.read(&more, None).await.unwrap_err().to_string();
    assert!(refused.contains("partition 0, offset 3") && refused.contains("`kafka.lines = true`"), "{refused}");
    let many = Topic::of(topic.broker.clone(), json!({"format": "csv", "kafka": {"lines": true}}));
    let (rows, _) = many.next(Some(&plan)).await;
    assert_eq!(rows, ["{\"_c0\":4,\"_c1\":\"x\"}", "{\"_c0\":5,\"_c1\":\"y\"}"]);
}

#[tokio::test]
async fn only_committed_transactions_are_read_and_an_open_one_ends_the_window() {
    let topic = Topic::new(json!({})).await;
    topic.broker.transact("clicks", 0, 7, &["{\"id\":1}", "{\"id\":2}"], true);
    topic.broker.transact("clicks", 0, 7, &["{\"id\":-1}"], false);
    topic.broker.send("clicks", 0, &["{\"id\":3}"]);
    topic.broker.begin("clicks", 0, 9, &["{\"id\":4}"]);
    topic.broker.send("clicks", 0, &["{\"id\":5}"]);
    let (rows, first) = topic.next(None).await;
    assert_eq!(rows, ["{\"id\":1}", "{\"id\":2}", "{\"id\":3}"]);
    assert_eq!(end(&first), "offsets:clicks,0:6,1:0");
    topic.broker.finish("clicks", 0, 9, true);
    let (rows, second) = topic.next(Some(&first)).await;
    assert_eq!(
        (rows.join(""), end(&second)),
        ("{\"id\":4}{\"id\":5}".to_string(), "offsets:clicks,0:9,1:0".to_string())
    );
    topic.broker.transact("clicks", 1, 9, &["{\"id\":-2}"], false);
    let (rows, third) = topic.next(Some(&second)).await;
    assert_eq!((rows.len(), end(&third)), (0, "offsets:clicks,0:9,1:2".to_string()), "holes only, and left behind");
}

#[tokio::test]
async fn reading_stops_at_the_end_where_compaction_left_nothing_before_it() {
    let topic = Topic::new(json!({})).await;
    for id in 0..6 {
        topic.broker.send("clicks", 0, &[format!("{{\"id\":{id}}}").as_str()]);
    }
    topic.broker.compact("clicks", 0, &[1, 2, 4], true);
    topic.broker.compact("clicks", 0, &[5], false);
    let (rows, first) = topic.next(None).await;
    assert_eq!(
        (rows.join(""), end(&first)),
        ("{\"id\":0}{\"id\":3}".to_string(), "offsets:clicks,0:6,1:0".to_string())
    );
    topic.broker.send("clicks", 0, &["{\"id\":6}"]);
    topic.broker.compact("clicks", 0, &[5, 6], true);
    let (rows, second) = topic.next(Some(&first)).await;
    assert_eq!((rows.len(), end(&second)), (0, "offsets:clicks,0:7,1:0".to_string()), "its last message is gone, too");
}

#[tokio::test]
async fn messages_that_are_gone_fail_the_plan_by_partition_or_are_passed_over_and_told() {
    let topic = Topic::new(json!({})).await;
    topic.broker.send("clicks", 0, &["{\"id\":1}"]);
    topic.broker.send("clicks", 1, &["{\"id\":2}"]);
    let (_, first) = topic.next(None).await;
    for id in 3..7 {
        topic.broker.send("clicks", 0, &[format!("{{\"id\":{id}}}").as_str()]);
    }
    topic.broker.send("clicks", 1, &["{\"id\":7}"]);
    topic.broker.expire("clicks", 0, 3);
    let refused = topic.plan(Some(&first)).await.unwrap_err();
    assert_eq!((refused.reason(), refused.retry()), ("OFFSETS_OUT_OF_RANGE", Retry::Never));
    assert!(refused.to_string().contains("partition 0: offsets 1 to 2"), "{refused}");
    let lenient = Topic::of(topic.broker.clone(), json!({"kafka": {"on_out_of_range": "earliest"}}));
    let (rows, second) = lenient.next(Some(&first)).await;
    assert_eq!(rows, ["{\"id\":5}", "{\"id\":6}", "{\"id\":7}"]);
    assert_eq!(
        (second.report.left_out_files, second.report.left_out.join("")),
        (2, "partition 0: offsets 1 to 2".to_string())
    );
}

#[tokio::test]
async fn messages_that_go_between_the_plan_and_the_read_are_planned_again() {
    let topic = Topic::new(json!({})).await;
    topic.broker.send("clicks", 0, &["{\"id\":1}"]);
    topic.broker.send("clicks", 0, &["{\"id\":2}"]);
    let plan = topic.plan(None).await.unwrap();
    topic.broker.expire("clicks", 0, 1);
    let gone = topic.read(&plan, None).await.unwrap_err();
    assert_eq!((gone.reason(), gone.retry()), ("MESSAGES_GONE", Retry::Rebase));
    let request = PlanRequest { pinned_end: Some(plan.end.clone()), ..topic.request(Begin::Earliest, None) };
    let again = topic.service.plan(request).await.unwrap();
    assert_eq!(again.end, plan.end);
    assert_eq!(json_rows(&topic.read(&again, None).await.unwrap()), ["{\"id\":2}"]);
}

#[tokio::test]
async fn a_topic_that_was_created_again_is_refused_by_name() {
    let topic = Topic::new(json!({})).await;
    topic.broker.send("clicks", 0, &["{\"id\":1}"]);
    let (_, first) = topic.next(None).await;
    let planned = {
        topic.broker.send("clicks", 0, &["{\"id\":2}"]);
        topic.plan(Some(&first)).await.unwrap()
    };
    topic.broker.create("clicks", 2);
    topic.broker.send("clicks", 0, &["{\"id\":10}", "{\"id\":11}", "{\"id\":12}"]);
    let refused = topic.plan(Some(&first)).await.unwrap_err();
    assert_eq!(refused.reason(), "TOPIC_RECREATED");
    assert!(
        refused.to_string().contains("source `clicks`") && refused.to_string().contains("its identity"),
        "{refused}"
    );
    let during = topic.read(&planned, None).await.unwrap_err();
    assert_eq!(during.reason(), "TOPIC_RECREATED", "{during}");
    topic.broker.delete("clicks");
    let refused = topic.plan(Some(&first)).await.unwrap_err().to_string();
    assert!(refused.contains("there is no such topic"), "{refused}");
}

#[tokio::test]
async fn new_partitions_begin_with_their_first_message_and_a_lost_end_is_noticed() {
    let topic = Topic::new(json!({})).await;
    topic.broker.send("clicks", 0, &["{\"id\":1}"]);
    let (_, first) = topic.next(None).await;
    topic.broker.grow("clicks", 3);
    topic.broker.send("clicks", 2, &["{\"id\":2}", "{\"id\":3}"]);
    let (rows, second) = topic.next(Some(&first)).await;
    assert_eq!((rows.len(), end(&second)), (2, "offsets:clicks,0:1,1:0,2:2".to_string()));
    topic.broker.truncate("clicks", 2, 0);
    let refused = topic.plan(Some(&second)).await.unwrap_err().to_string();
    assert!(refused.contains("partition 2 was read up to offset 2, and it ends at 0 now"), "{refused}");
}

#[tokio::test]
async fn a_start_by_time_begins_with_the_first_later_message() {
    let topic = Topic::new(json!({})).await;
    topic.broker.append("clicks", 0, Batch::of(0, &["{\"id\":1}"]).stamped(1_000));
    topic.broker.append("clicks", 0, Batch::of(0, &["{\"id\":2}"]).stamped(2_000));
    topic.broker.append("clicks", 1, Batch::of(0, &["{\"id\":3}"]).stamped(500));
    let plan = topic.service.plan(topic.request(Begin::Timestamp(1_500), None)).await.unwrap();
    assert_eq!(json_rows(&topic.read(&plan, None).await.unwrap()), ["{\"id\":2}"]);
    assert_eq!(plan.begin.as_ref().unwrap().to_string(), "offsets:clicks,0:1,1:1");
    let latest = topic.service.plan(topic.request(Begin::Latest, None)).await.unwrap();
    assert!(latest.has_news && latest.changed.unwrap().splits.is_empty(), "the moment is kept");
    let ceiling = PlanRequest { ceiling_millis: Some(1_999), ..topic.request(Begin::Earliest, None) };
    let aligned = topic.service.plan(ceiling).await.unwrap();
    assert_eq!(end(&aligned), "offsets:clicks,0:1,1:1");
}

#[tokio::test]
async fn messages_without_a_value_delete_the_record_of_their_key_in_the_order_of_offsets() {
    let options = json!({"kafka": {"key_columns": ["id"], "metadata": ["offset", "key"]}});
    let topic = Topic::new(options).await;
    let batch = Batch::keyed(
        0,
        &[
            (Some("1"), Some("{\"id\":1,\"n\":\"a\"}")),
            (Some("1"), None),
            (Some("2"), Some("{\"id\":2,\"n\":\"b\"}")),
            (Some("x"), Some("{\"id\":3}")),
            (Some("3"), None),
        ],
    );
    topic.broker.append("clicks", 0, batch);
    let (rows, plan) = topic.next(None).await;
    assert_eq!(
        columns(&plan)[2..],
        ["_kafka_offset: Int64", "_kafka_key: Utf8", "_hoodie_is_deleted: Boolean"].map(str::to_string)
    );
    assert_eq!(
        rows,
        [
            "{\"id\":1,\"n\":\"a\",\"_kafka_offset\":0,\"_kafka_key\":\"1\",\"_hoodie_is_deleted\":false}",
            "{\"id\":1,\"_kafka_offset\":1,\"_kafka_key\":\"1\",\"_hoodie_is_deleted\":true}",
            "{\"id\":2,\"n\":\"b\",\"_kafka_offset\":2,\"_kafka_key\":\"2\",\"_hoodie_is_deleted\":false}",
            "{\"id\":3,\"_kafka_offset\":3,\"_kafka_key\":\"x\",\"_hoodie_is_deleted\":false}",
            "{\"id\":3,\"_kafka_offset\":4,\"_kafka_key\":\"3\",\"_hoodie_is_deleted\":true}",
        ]
    );
    let some = topic.read(&plan, Some(vec![4, 0])).await.unwrap();
    assert_eq!(json_rows(&some)[1], "{\"_hoodie_is_deleted\":true,\"id\":1}");
}

#[tokio::test]
async fn messages_without_a_value_fail_or_are_passed_over_where_no_key_is_known() {
    let topic = Topic::new(json!({})).await;
    topic.broker.append("clicks", 1, Batch::keyed(0, &[(None, Some("{\"id\":1}")), (Some("k"), None)]));
    let plan = topic.plan(None).await.unwrap();
    let refused = topic.read(&plan, None).await.unwrap_err();
    assert_eq!(refused.reason(), "BAD_MESSAGE");
    assert!(refused.to_string().contains("partition 1, offset 1: it has no value"), "{refused}");
    let ignoring = Topic::of(topic.broker.clone(), json!({"tombstones": "ignore"}));
    assert_eq!(ignoring.next(None).await.0, ["{\"id\":1}"]);
    let keyed = json!({"kafka": {"key_columns": ["id"], "key_format": "json"}});
    let refused = Topic::of(topic.broker.clone(), keyed).plan(None).await.unwrap();
    let refused = topic.read(&refused, None).await.unwrap_err().to_string();
    assert!(refused.contains("its key is no object of JSON: k"), "{refused}");
}

#[tokio::test]
async fn a_message_that_cannot_be_decoded_fails_with_its_place_or_is_kept_or_left_out() {
    let topic = Topic::new(json!({})).await;
    topic.broker.send(
        "clicks",
        0,
        &["{\"id\":1}", "{\"id\":", "[1]", "{\"id\":\"x\"}", "{\"id\":5} {\"id\":6}", "", "{\"id\":7}"],
    );
    let given =
        "{\"fields\": [{\"name\": \"id\", \"type\": {\"name\": \"int\", \"bitWidth\": 64, \"isSigned\": true}}]}";
    let with = |json: Value| Topic::of(topic.broker.clone(), json!({"json": json, "kafka": {"schema": given}}));
    let strict = with(json!({}));
    let refused = strict.read(&strict.plan(None).await.unwrap(), None).await.unwrap_err();
    assert_eq!((refused.reason(), refused.retry()), ("BAD_MESSAGE", Retry::Never));
    assert!(refused.to_string().contains("partition 0, offset 1: it ends within an object"), "{refused}");
    let (rows, _) = with(json!({"mode": "dropmalformed"})).next(None).await;
    assert_eq!(rows, ["{\"id\":1}", "{\"id\":7}"]);
    let kept = with(json!({"mode": "permissive", "column_name_of_corrupt_record": "bad"}));
    let (rows, _) = kept.next(None).await;
    assert_eq!(rows.len(), 7, "{rows:?}");
    assert_eq!(rows[3], "{\"bad\":\"{\\\"id\\\":\\\"x\\\"}\"}");
}

#[tokio::test]
async fn what_is_known_of_messages_is_a_column_where_it_is_asked_for() {
    let options = json!({"kafka": {"metadata": ["topic", "partition", "timestamp", "headers"]}});
    let topic = Topic::new(options).await;
    let batch = Batch::of(0, &["{\"id\":1}"]).stamped(1_700_000_000_123).with_header("trace", b"\x01\xff");
    topic.broker.append("clicks", 1, batch);
    let (rows, _) = topic.next(None).await;
    assert_eq!(
        rows,
        [
            "{\"id\":1,\"_kafka_topic\":\"clicks\",\"_kafka_partition\":1,\"_kafka_timestamp\":\"2023-11-14T22:13:20.123Z\",\
          \"_kafka_headers\":{\"trace\":\"01ff\"}}"
        ]
    );
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_again_and_a_broker_that_stays_away_is_an_error_that_may_be_tried_again() {
    let topic = Topic::new(json!({"kafka": {"timeout": "300ms"}})).await;
    topic.broker.send("clicks", 0, &["{\"id\":1}"]);
    let plan = topic.plan(None).await.unwrap();
    topic.broker.drop_fetches(2);
    assert_eq!(json_rows(&topic.read(&plan, None).await.unwrap()), ["{\"id\":1}"]);
    topic.broker.set_down(true);
    let refused = topic.read(&plan, None).await.unwrap_err();
    assert_eq!((refused.reason(), refused.retry()), ("BROKERS_UNAVAILABLE", Retry::Again));
    let refused = topic.plan(None).await.unwrap_err();
    assert!(refused.to_string().contains("asking for the topic's partitions"), "{refused}");
    topic.broker.set_down(false);
    assert!(topic.plan(None).await.is_ok());
}

#[tokio::test]
async fn a_window_holds_as_many_events_as_it_may_and_each_partition_its_share() {
    let topic = Topic::new(json!({"kafka": {"max_events": 4}})).await;
    let many: Vec<String> = (0..9).map(|id| format!("{{\"id\":{id}}}")).collect();
    topic.broker.send("clicks", 0, &many.iter().map(String::as_str).collect::<Vec<_>>());
    topic.broker.send("clicks", 1, &["{\"id\":100}"]);
    let (rows, first) = topic.next(None).await;
    assert_eq!((rows.len(), end(&first), first.limited), (4, "offsets:clicks,0:3,1:1".to_string(), true));
    assert_eq!(first.report.lag_instants, 6);
    let (rows, second) = topic.next(Some(&first)).await;
    assert_eq!((rows.join(""), end(&second)), (many[3..7].join(""), "offsets:clicks,0:7,1:1".to_string()));
}

#[tokio::test]
async fn refused_messages_are_told_by_offset_and_several_of_one_message_by_number() {
    let more = json!({"format": "csv", "csv": {"mode": "error_table"}, "tombstones": "delete",
                      "kafka": {"lines": true, "key_columns": ["_c0"], "schema": json!({"fields": [
        {"name": "_c0", "nullable": true, "type": {"name": "int", "bitWidth": 64, "isSigned": true}, "children": []},
    ]}).to_string()}});
    let topic = Topic::new(more).await;
    topic.broker.send("clicks", 0, &["1\n2", "x\n3\ny", "4"]);
    topic.broker.send("clicks", 1, &["z"]);
    let (rows, plan) = topic.next(None).await;
    let ids = rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap()["_c0"].to_string());
    assert_eq!(ids.collect::<Vec<_>>(), ["1", "2", "3", "4"]);
    let mut refused = plan;
    let splits = &mut refused.changed.as_mut().unwrap().splits;
    *splits = splits.drain(..).map(tributary_api::timeline::Split::refused_only).collect();
    for _ in 0..2 {
        let rows = json_rows(&topic.read(&refused, None).await.unwrap());
        let found = rows.iter().map(|row| serde_json::from_str::<Value>(row).unwrap());
        let found: Vec<String> = found.map(|row| format!("{} {}", row["position"], row["raw"])).collect();
        assert_eq!(found, ["\"clicks/0:1\" \"x\"", "\"clicks/0:1#1\" \"y\"", "\"clicks/1:0\" \"z\""]);
    }
}

/// Stores where one location is allowed.
struct Only(String);

impl Stores for Only {
    fn open(&self, url: &str) -> tributary_hudi::Result<Storage> {
        SystemStores::new().open(url)
    }

    fn check(&self, url: &str) -> tributary_hudi::Result<()> {
        match url == self.0 {
            true => Ok(()),
            false => {
                Err(tributary_hudi::Error::Location { url: url.to_string(), detail: format!("it is not {}", self.0) })
            }
        }
    }
}

#[tokio::test]
async fn a_topic_where_locations_are_restricted_is_neither_planned_nor_read_unless_it_is_one_of_them() {
    let mut topic = Topic::new(json!({})).await;
    topic.broker.send("clicks", 0, &["{\"id\":1}"]);
    let only = |url: &str| Service::new(Arc::new(Only(url.to_string())), Arc::new(SystemClock), Settings::default());
    let url = topic.url.clone();
    topic.service = only(&url);
    let plan = topic.plan(None).await.unwrap();
    assert_eq!(topic.read(&plan, None).await.unwrap().len(), 1);
    topic.service = only("kafka://elsewhere:1/clicks");
    let refused = topic.plan(None).await.unwrap_err().to_string();
    assert!(refused.contains(&url) && refused.contains("it is not kafka://elsewhere:1/clicks"), "{refused}");
    // A split that was planned before, or that somebody wrote: its topic counts, not what it calls itself.
    let mut plan = plan;
    for split in &mut plan.changed.as_mut().unwrap().splits {
        split.url = "kafka://elsewhere:1/clicks".to_string();
    }
    let refused = topic.read(&plan, None).await.unwrap_err();
    assert!(refused.to_string().contains("it is not kafka://elsewhere:1/clicks"), "{refused}");
}
