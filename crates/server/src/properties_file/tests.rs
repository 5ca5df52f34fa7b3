// SPDX-License-Identifier: Apache-2.0

use tributary_types::pipeline::{OnStale, Operation, SourceKind, Start, TableType};

use super::*;

const TARGET: &str = "hoodie.table.name=out\nhoodie.base.path=/lake/out\nhoodie.datasource.write.recordkey.field=id\n";
const MANY: &str = "hoodie.streamer.source.multi.hudi.tables=db.orders, users\n\
                    hoodie.streamer.source.hudi.db_orders.path=s3a://lake/orders\n\
                    hoodie.streamer.source.hudi.users.path=file:///lake/users\n\
                    hoodie.streamer.transformer.sql=SELECT 1 FROM <SRC_0>, <SRC_1>\n";
const ONE: &str = "hoodie.deltastreamer.source.hoodieincr.path=/lake/orders\n";

fn read(parts: &[&str]) -> Result<Read, String> {
    load_with(&parts.concat(), &JobArgs::default())
}

fn load_with(text: &str, args: &JobArgs) -> Result<Read, String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("merge.sql"), "SELECT * FROM <SRC>").unwrap();
    let path = directory.path().join("job.properties");
    std::fs::write(&path, text).unwrap();
    load(&path, args).map_err(|error| error.to_string())
}

#[test]
fn a_job_over_several_tables_keeps_their_order_and_their_own_keys() {
    let own = "hoodie.streamer.source.hudi.db_orders.num_instants=9\n\
               hoodie.streamer.source.hudi.db_orders.missing_checkpoint_strategy=READ_UPTO_LATEST_COMMIT\n\
               hoodie.streamer.source.hudi.users.skip_on_schema_failure=true\n";
    let job = read(&[MANY, own, TARGET]).unwrap();
    assert_eq!(job.pipeline.name.as_str(), "out");
    let sources = &job.pipeline.sources;
    let told: Vec<_> = sources.iter().map(|it| (it.name.as_str(), it.path.as_str(), it.num_instants)).collect();
    assert_eq!(told, [("db.orders", "s3://lake/orders", 9), ("users", "/lake/users", 5)]);
    assert_eq!((sources[0].start.clone(), sources[1].start.clone()), (Some(Start::Snapshot), None));
    assert!(!sources[0].skip_on_schema_failure && sources[1].skip_on_schema_failure);
    assert_eq!(job.pipeline.first_start, Some(Start::Latest), "the whole job, the first time");
    assert_eq!(job.notes, Vec::<String>::new());
}

#[test]
fn both_prefixes_are_one_and_the_command_line_wins() {
    let job = read(&[ONE, TARGET]).unwrap();
    assert_eq!(job.pipeline.sources[0].name.as_str(), "orders");
    let differ = "hoodie.streamer.source.hoodieincr.path=/lake/others\n";
    assert!(read(&[ONE, differ, TARGET]).unwrap_err().contains("are one key and have different values"));
    let args = JobArgs {
        hoodie_conf: vec!["hoodie.deltastreamer.source.hoodieincr.num_instants=2".to_string()],
        target_table: Some("other".to_string()),
        table_type: Some("MERGE_ON_READ".to_string()),
        op: Some("INSERT".to_string()),
        source_ordering_field: Some("ts".to_string()),
        checkpoint: Some("resumeFromInstantRequestTime:20250606182826197".to_string()),
        ..JobArgs::default()
    };
    let job = load_with(&[ONE, "hoodie.streamer.source.hoodieincr.num_instants=7\n", TARGET].concat(), &args).unwrap();
    let (source, target) = (&job.pipeline.sources[0], &job.pipeline.target);
    assert_eq!((source.num_instants, target.table_name.as_str()), (2, "other"));
    assert_eq!((target.table_type, target.operation), (TableType::MergeOnRead, Operation::Insert));
    assert_eq!(target.ordering, ["ts"]);
    assert_eq!(job.overrides[0].to_string(), "requested:20250606182826197");
}

#[test]
fn transformers_follow_one_another_each_with_its_own_text() {
    let chain = "hoodie.streamer.transformer.class=a:org.x.SqlQueryBasedTransformer,f:org.x.FlatteningTransformer,\
                 b:org.x.SqlFileBasedTransformer\n\
                 hoodie.streamer.transformer.sql.a=SELECT 1 FROM <SRC>\n\
                 hoodie.streamer.transformer.sql.file=merge.sql\n";
    let steps = read(&[ONE, chain, TARGET]).unwrap().pipeline.transforms;
    assert_eq!(steps.len(), 3);
    assert_eq!(steps[0].sql.as_deref(), Some("SELECT 1 FROM <SRC>"));
    assert_eq!(steps[1].flatten.as_ref().unwrap().separator, "_");
    assert_eq!(steps[2].sql.as_deref(), Some("SELECT * FROM <SRC>"));
    let twice = "hoodie.streamer.transformer.class=SqlQueryBasedTransformer,SqlQueryBasedTransformer\n\
                 hoodie.streamer.transformer.sql=SELECT 1 FROM <SRC>\n";
    assert!(read(&[ONE, twice, TARGET]).unwrap_err().contains("give each an id"));
    let unknown = "hoodie.streamer.transformer.class=com.acme.Mine\n";
    assert!(read(&[ONE, unknown, TARGET]).unwrap_err().contains("`com.acme.Mine` is not there"));
}

#[test]
fn the_target_means_what_it_meant_to_hudi() {
    let keys = "hoodie.datasource.write.partitionpath.field=day:SIMPLE,region\n\
                hoodie.datasource.write.precombine.field=ts\n\
                hoodie.cleaner.commits.retained=20\nhoodie.keep.max.commits=50\nhoodie.parquet.max.file.size=125829120\n";
    let target = read(&[ONE, keys, TARGET]).unwrap().pipeline.target;
    assert_eq!((target.partition_by, target.hive_style), (vec!["day".to_string(), "region".to_string()], false));
    assert_eq!((target.services.clean_commits, target.services.archive_commits), (20, 50));
    assert_eq!((target.ordering, target.max_file_size.0), (vec!["ts".to_string()], 120 << 20));
    let later_wins = "hoodie.datasource.write.precombine.field=ts\n\
                      hoodie.datasource.write.payload.class=org.apache.hudi.common.model.OverwriteWithLatestAvroPayload\n";
    let job = read(&[ONE, later_wins, TARGET]).unwrap();
    assert!(job.pipeline.target.ordering.is_empty() && job.notes.iter().any(|note| note.contains("later row")));
}

#[test]
fn what_cannot_be_kept_is_refused_and_every_problem_is_told_at_once() {
    let text = "hoodie.streamer.checkpoint.force.skip=true\n\
                hoodie.read.timeline.holes.resolution.policy=USE_TRANSITION_TIME\n\
                hoodie.datasource.write.payload.class=com.acme.Payload\n\
                hoodie.datasource.write.keygenerator.class=org.apache.hudi.keygen.TimestampBasedKeyGenerator\n\
                hoodie.streamer.source.hoodieincr.data.datasource.options=a=b\n\
                hoodie.streamer.source.hoodieincr.missing.checkpoint.strategy=NEWEST\n\
                hoodie.errortable.enable=true\n";
    let refused = read(&[ONE, text, TARGET]).unwrap_err();
    for part in [
        "have 7 problems",
        "force.skip=true",
        "USE_TRANSITION_TIME",
        "com.acme",
        "Timestamp",
        "options of Spark",
        "NEWEST",
        "errortable",
    ] {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    let folding = "hoodie.streamer.source.multi.hudi.tables=db.orders,db_orders\n\
                   hoodie.streamer.source.hudi.db_orders.path=/a\n";
    assert!(read(&[folding, TARGET]).unwrap_err().contains("fold to one key `db_orders`"));
    assert!(read(&[TARGET]).unwrap_err().contains("need `--source-class`"));
}

#[test]
fn keys_without_a_meaning_are_told_and_unknown_own_keys_are_refused() {
    let text = "hoodie.index.type=BLOOM\nspark.executor.memory=4g\nhoodie.streamer.checkpoint.force.skip=false\n";
    let notes = read(&[MANY, text, TARGET]).unwrap().notes;
    assert_eq!(
        notes,
        ["`hoodie.index.type` is not used by Tributary", "`spark.executor.memory` is not used by Tributary"]
    );
    let refused = read(&[MANY, "tributary.limits.memroy=2GiB\n", TARGET]).unwrap_err();
    assert!(refused.contains("did you mean `memory`?"), "{refused}");
    assert!(read(&[MANY, "tributary.source.nope.on_stale=snapshot\n", TARGET]).unwrap_err().contains("no source"));
}

#[test]
fn digits_stay_a_text_where_the_key_is_of_one() {
    let own = "tributary.name=2025\ntributary.source.db_orders.start=20250606182826197\n\
               tributary.source.db_orders.num_instants=7\ntributary.source.db_orders.meta_columns=true\n\
               tributary.target.on_null_key=error_table\n\
               tributary.error_table.path=/e\ntributary.error_table.table_name=17\ntributary.error_table.max_rows=17\n";
    let job = read(&[MANY, own, TARGET]).unwrap();
    let source = &job.pipeline.sources[0];
    assert_eq!(source.start, Some(Start::At("completed:20250606182826197".parse().unwrap())));
    assert_eq!((job.pipeline.name.as_str(), source.num_instants, source.meta_columns), ("2025", 7, true));
    let table = job.pipeline.error_table.unwrap();
    assert_eq!((table.table_name.as_str(), table.max_rows), ("17", 17));
}

#[test]
fn own_keys_say_what_a_pipeline_file_says() {
    let own = "tributary.name=job\ntributary.limits.memory=2GiB\ntributary.source.db_orders.on_stale=snapshot\n\
               tributary.accept_binding_change=true\ntributary.override.db_orders=completed:20250606182826197\n\
               tributary.override_token=t1\n";
    let job = read(&[MANY, own, TARGET]).unwrap();
    assert_eq!((job.pipeline.name.as_str(), job.pipeline.limits.memory.0), ("job", 2 << 30));
    assert_eq!(job.pipeline.sources[0].on_stale, OnStale::Snapshot);
    assert!(job.pipeline.accept_binding_change);
    assert_eq!(job.overrides[0].to_string(), "db.orders=completed:20250606182826197");
    assert_eq!(job.overrides[0].token.as_deref(), Some("t1"));
}

#[test]
fn one_timestamp_for_several_tables_needs_aligned_windows() {
    let plain = "hoodie.streamer.source.multi.hudi.checkpoint.enable=false\n";
    let refused = read(&[MANY, plain, TARGET]).unwrap_err();
    assert!(refused.contains("have 1 problem:") && refused.contains("only `consistency = \"aligned\"`"), "{refused}");
    let job = read(&[MANY, plain, "tributary.consistency=aligned\n", TARGET]).unwrap();
    assert!(!job.pipeline.multi_checkpoint);
    assert!(
        read(&[MANY, plain, TARGET].map(|part| part.replace("=false", "=true")).each_ref().map(String::as_str)).is_ok()
    );
    assert!(!read(&[ONE, plain, TARGET]).unwrap().pipeline.multi_checkpoint, "one source has one anyway");
}

fn of_class(class: &str, text: &str) -> Result<Read, String> {
    load_with(&[text, TARGET].concat(), &JobArgs { source_class: Some(class.to_string()), ..JobArgs::default() })
}

#[test]
fn a_job_over_csv_files_keeps_every_option_of_spark_under_both_prefixes() {
    let text = "hoodie.deltastreamer.source.dfs.root=s3a://lake/clicks/\n\
                hoodie.deltastreamer.csv.sep=\\t\nhoodie.streamer.csv.header=true\nhoodie.streamer.csv.escape=\\\n\
                hoodie.streamer.csv.quote=\nhoodie.streamer.csv.mode=FAILFAST\nhoodie.streamer.csv.maxColumns=7\n\
                hoodie.streamer.csv.maxCharsPerColumn=-1\nhoodie.streamer.csv.nullValue=NA\n\
                hoodie.streamer.csv.timestampFormat=yyyy-MM-dd HH:mm\nhoodie.streamer.csv.multiLine=true\n\
                hoodie.streamer.csv.ignoreLeadingWhiteSpace=true\nhoodie.streamer.csv.enforceSchema=false\n\
                hoodie.streamer.csv.charToEscapeQuoteEscaping=#\nhoodie.streamer.csv.inferSchema=false\n";
    let job = of_class("org.apache.hudi.utilities.sources.CsvDFSSource", text).unwrap();
    let source = &job.pipeline.sources[0];
    assert_eq!(
        (source.name.as_str(), source.path.as_str(), source.kind),
        ("clicks", "s3://lake/clicks/", SourceKind::Csv)
    );
    assert_eq!(source.start, Some(Start::Earliest));
    let expected = serde_json::json!({
        "preset": "spark", "sep": "\\t", "header": true, "escape": "\\", "quote": "", "mode": "failfast", "max_columns": 7,
        "null_value": "NA", "timestamp_format": "yyyy-MM-dd HH:mm", "multi_line": true, "infer_schema": true,
        "ignore_leading_white_space": true, "enforce_schema": false, "char_to_escape_quote_escaping": "#",
    });
    assert_eq!(source.csv, serde_json::from_value(expected).unwrap());
    let told = |part: &str| job.notes.iter().any(|note| note.contains(part));
    assert!(told("inferSchema") && told("first 1000 records") && job.notes.len() == 2, "{:?}", job.notes);
}

#[test]
fn a_schema_of_files_is_read_and_other_providers_are_refused() {
    let text = "hoodie.streamer.source.dfs.root=/lake/clicks\n\
                hoodie.deltastreamer.schemaprovider.source.schema.file=merge.sql\n";
    let with = |provider: Option<&str>| {
        let args = JobArgs {
            source_class: Some("CsvDFSSource".to_string()),
            schemaprovider_class: provider.map(ToString::to_string),
            source_limit: Some(1000),
            ..JobArgs::default()
        };
        load_with(&[text, TARGET].concat(), &args)
    };
    for provider in [None, Some("org.apache.hudi.utilities.schema.FilebasedSchemaProvider")] {
        let source = with(provider).unwrap().pipeline.sources.remove(0);
        assert_eq!(source.files.schema.as_deref(), Some("SELECT * FROM <SRC>"), "the content of the file");
        assert_eq!((source.csv.infer_schema, source.files.max_bytes.0), (Some(false), 1000));
    }
    assert!(with(Some("SchemaRegistryProvider")).unwrap_err().contains("SchemaRegistryProvider` is not there"));
}

#[test]
fn a_job_over_json_files_needs_no_class_and_goes_on_from_a_modification_time() {
    let text = "hoodie.streamer.source.dfs.root=/lake/clicks\nhoodie.streamer.source.json.skip.invalid.records=true\n\
                tributary.source.clicks.files.order=name\n";
    let source = read(&[text, TARGET]).unwrap().pipeline.sources.remove(0);
    assert_eq!((source.kind, source.files.order), (SourceKind::Json, tributary_types::pipeline::FileOrder::Name));
    assert_eq!(source.json.mode, Some(tributary_types::pipeline::BadRecords::DropMalformed));
    let args = JobArgs { checkpoint: Some("1735689600123".to_string()), ..JobArgs::default() };
    let job = load_with(&["hoodie.streamer.source.dfs.root=/lake/clicks\n", TARGET].concat(), &args).unwrap();
    // After every file of that time.
    assert!(job.overrides[0].to_string().starts_with("file:modified:1735689600123:"), "{:?}", job.overrides);
    let text = "hoodie.streamer.source.dfs.root=/a\n\
                hoodie.streamer.source.input.selector=org.apache.hudi.utilities.sources.helpers.DatePartitionPathSelector\n";
    assert!(read(&[text, TARGET]).unwrap_err().contains("DatePartitionPathSelector"));
}

#[test]
fn a_job_over_a_topic_of_json_keeps_brokers_limits_and_where_it_begins() {
    let text = "hoodie.deltastreamer.source.kafka.topic=clicks\nbootstrap.servers=a:9092,b:9092\n\
                auto.offset.reset=earliest\nhoodie.streamer.kafka.source.maxEvents=70\n\
                hoodie.streamer.source.kafka.enable.failOnDataLoss=false\ngroup.id=g\n\
                tributary.source.clicks.kafka.metadata=[\"offset\",\"key\"]\n";
    let job = of_class("org.apache.hudi.utilities.sources.JsonKafkaSource", text).unwrap();
    let source = &job.pipeline.sources[0];
    assert_eq!(source.url(), "kafka://a:9092,b:9092/clicks");
    assert_eq!((source.start.clone(), source.kafka.max_events), (Some(Start::Earliest), 70));
    assert_eq!(source.kafka.on_out_of_range, tributary_types::pipeline::OnOutOfRange::Earliest);
    assert_eq!(source.tombstones, Some(tributary_types::pipeline::Tombstones::Ignore));
    assert_eq!(source.kafka.metadata.len(), 2);
    assert_eq!(job.notes, ["`group.id` is not used by Tributary"]);
    let args = JobArgs {
        source_class: Some("JsonKafkaSource".to_string()),
        checkpoint: Some("clicks,0:42,1:17".to_string()),
        ..JobArgs::default()
    };
    let job = load_with(&[text, TARGET].concat(), &args).unwrap();
    assert_eq!(job.overrides[0].to_string(), "offsets:clicks,0:42,1:17");
}

#[test]
fn what_a_topic_cannot_keep_and_other_classes_are_refused_by_name() {
    let text = "hoodie.streamer.source.kafka.topic=clicks\nauto.offset.reset=group\n\
                hoodie.streamer.source.kafka.enable.commit.offset=true\n\
                hoodie.streamer.source.kafka.append.offsets=true\n\
                hoodie.streamer.source.kafka.checkpoint.type=timestamp\n";
    let refused = of_class("JsonKafkaSource", text).unwrap_err();
    for part in
        ["bootstrap.servers", "=group", "enable.commit.offset=true", "_kafka_offset", "checkpoint.type=timestamp"]
    {
        assert!(refused.contains(part), "{part} in {refused}");
    }
    assert!(refused.contains("have 5 problems:"), "{refused}");
    let refused = of_class("org.apache.hudi.utilities.sources.AvroKafkaSource", text).unwrap_err();
    assert!(refused.contains("AvroKafkaSource` is not read from properties"), "{refused}");
    assert!(of_class("ORCDFSSource", "").unwrap_err().contains("CsvDFSSource"));
    assert!(read(&[text, TARGET]).unwrap_err().contains("give `--source-class JsonKafkaSource`"));
    let csv = "hoodie.streamer.source.dfs.root=/a\nhoodie.streamer.csv.header=true\n";
    assert!(read(&[csv, TARGET]).unwrap_err().contains("give `--source-class CsvDFSSource`"));
}

#[test]
fn payloads_that_keep_what_an_event_lacks_are_merge_operators() {
    let payload = |class: &str| {
        let text = format!(
            "hoodie.datasource.write.precombine.field=ts\nhoodie.datasource.write.payload.class=org.apache.hudi.{class}\n"
        );
        read(&[ONE, &text, TARGET]).unwrap().pipeline.target
    };
    let partial = payload("PartialUpdateAvroPayload");
    assert_eq!(
        (partial.merge.unwrap().default.to_string(), partial.ordering),
        ("last_non_null".to_string(), vec!["ts".to_string()])
    );
    let latest = payload("OverwriteNonDefaultsWithLatestAvroPayload");
    assert_eq!((latest.merge.unwrap().default.to_string(), latest.ordering.len()), ("last_non_null".to_string(), 0));
    assert!(payload("EventTimeAvroPayload").merge.is_none());
}
