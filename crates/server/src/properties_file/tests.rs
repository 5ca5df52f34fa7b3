// SPDX-License-Identifier: Apache-2.0

use tributary_types::pipeline::{OnStale, Operation, Start, TableType};

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
        checkpoint: Some("resumeFromInstantRequestTime:20250606182826197".parse().unwrap()),
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
        "has 7 problems",
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
    let plain = "hoodie.streamer.source.multi.hudi.checkpoint.enable=false\n";
    assert!(read(&[MANY, plain, TARGET]).unwrap_err().contains("checkpoint.enable=false"));
    assert!(read(&[TARGET]).unwrap_err().contains("describe others in a pipeline file"));
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
