// SPDX-License-Identifier: Apache-2.0

use std::fmt::Debug;
use std::time::Duration;

use tributary_api::coordinator::{
    BatchStatus, Failure, OverrideStatus, PlannedBatch, Refused, RefusedCount, SourceStatus, Written,
};
use tributary_api::predicate::Op;
use tributary_api::timeline::WindowReport;
use tributary_types::pipeline::{
    ByteSize, Consistency, CsvOptions, Deletes, ErrorTable, FileOptions, Flatten, InsertConflict, JsonOptions,
    KafkaFormat, KafkaOptions, Limits, MergeOperators, OnHole, OnLate, OnMalformedCursor, OnNullKey, OnStale, OnUnused,
    Operation, Pipeline, ReadMode, Services, Source, SourceKind, Span, Start, TableType, Target, Tombstones, Transform,
    Writers,
};
use tributary_types::{
    BatchName, Code, Cursor, Outcome, PipelineName, RequestId, Retry, SourceName, Stage, Window, Zone,
};

use super::*;
use crate::proto::coordinator as proto;

fn crosses<E: WireEnum + PartialEq + Debug>() {
    for value in E::ALL {
        assert_ne!(value.to_wire(), 0, "{value:?} is sent as unspecified");
        assert_eq!(E::from_wire(value.to_wire()).as_ref(), Ok(value));
    }
    assert!(E::from_wire(999).unwrap_err().to_string().contains("999"));
}

#[test]
fn every_value_of_every_enum_crosses() {
    crosses::<Outcome>();
    crosses::<Stage>();
    crosses::<Code>();
    crosses::<Retry>();
    crosses::<OnLate>();
    crosses::<OnHole>();
    crosses::<TableType>();
    crosses::<Operation>();
    crosses::<OnNullKey>();
    crosses::<Consistency>();
    crosses::<SourceKind>();
    crosses::<ReadMode>();
    crosses::<OnStale>();
    crosses::<OnUnused>();
    crosses::<Deletes>();
    crosses::<OnMalformedCursor>();
    crosses::<Writers>();
    crosses::<InsertConflict>();
    crosses::<Zone>();
    crosses::<Op>();
}

#[test]
fn an_unspecified_value_is_the_default_where_there_is_one_and_refused_where_not() {
    assert_eq!(Operation::from_wire(0), Ok(Operation::Upsert));
    assert!(Stage::from_wire(0).is_err());
}

fn cursor(text: &str) -> Cursor {
    text.parse().unwrap()
}

fn source(name: &str, start: Option<Start>) -> Source {
    Source {
        name: SourceName::new(name).unwrap(),
        renamed_from: Some(SourceName::new(format!("old.{name}")).unwrap()),
        kind: SourceKind::Hudi,
        path: format!("/lake/{name}"),
        read: ReadMode::Snapshot,
        start,
        num_instants: usize::MAX,
        on_stale: OnStale::Snapshot,
        on_hole: OnHole::Fail,
        on_late_instant: OnLate::Deliver,
        on_malformed_cursor: OnMalformedCursor::Start,
        skip_on_schema_failure: true,
        meta_columns: true,
        deletes: Some(Deletes::Propagate),
        unused: OnUnused::Allow,
        files: FileOptions { glob: Some("*.csv".to_string()), ..FileOptions::default() },
        csv: CsvOptions { sep: Some("\t".to_string()), ..CsvOptions::default() },
        json: JsonOptions::default(),
        brokers: Some("a:9092,b:9092".to_string()),
        topic: Some("clicks".to_string()),
        format: Some(KafkaFormat::Csv),
        tombstones: Some(Tombstones::Ignore),
        kafka: KafkaOptions { max_events: 7, ..KafkaOptions::default() },
    }
}

pub(crate) fn pipeline() -> Pipeline {
    let starts = [
        None,
        Some(Start::Latest),
        Some(Start::Earliest),
        Some(Start::Snapshot),
        Some(Start::Fail),
        Some(Start::At(cursor("completed:20250606182826197"))),
        Some(Start::At(cursor("requested:20250606182826"))),
        Some(Start::At(cursor("offsets:clicks,0:42,1:17"))),
        Some(Start::Timestamp(1_738_317_600_000)),
        Some(Start::Resume),
    ];
    let sources = starts.into_iter().enumerate().map(|(n, start)| source(&format!("db.s{n}"), start)).collect();
    Pipeline {
        name: PipelineName::new("p").unwrap(),
        consistency: Consistency::Aligned,
        accept_binding_change: true,
        adopt_legacy_checkpoint: true,
        first_start: Some(Start::Latest),
        accept_merge_change: true,
        multi_checkpoint: false,
        sources,
        transforms: vec![
            Transform { sql: Some("SELECT 1".to_string()), ..Transform::default() },
            Transform { sql_file: Some("merge.sql".to_string()), ..Transform::default() },
            Transform { flatten: Some(Flatten { separator: "__".to_string() }), ..Transform::default() },
            Transform { rust: Some("pair".to_string()), ..Transform::default() },
        ],
        target: Target {
            path: "/lake/t".to_string(),
            table_name: "t".to_string(),
            table_type: TableType::MergeOnRead,
            table_version: 8,
            record_key: vec!["a".to_string(), "b".to_string()],
            partition_by: vec!["day".to_string()],
            ordering: vec!["ts".to_string()],
            operation: Operation::InsertOverwriteTable,
            acknowledge_window_only: true,
            writers: Writers::Shared,
            insert_conflict: InsertConflict::Allow,
            on_null_key: OnNullKey::ErrorTable,
            hive_style: false,
            small_file_limit: ByteSize(11),
            max_file_size: ByteSize(12),
            services: Services {
                clean_commits: 3,
                archive_commits: 0,
                compact_metadata_commits: 7,
                compact_delta_commits: 0,
            },
            merge: Some(MergeOperators {
                default: "last_non_null('null')".parse().unwrap(),
                columns: [("tags".to_string(), "concat('; ')".parse().unwrap())].into(),
                acknowledge_images: true,
            }),
        },
        limits: Limits { memory: ByteSize(1 << 28), spill: ByteSize(7), timeout: Span(Duration::from_millis(1500)) },
        error_table: Some(ErrorTable { path: "/lake/e".to_string(), table_name: "e".to_string(), max_rows: 7 }),
    }
}

#[test]
fn a_pipeline_arrives_as_it_was_sent() {
    assert_eq!(pipeline_from_proto(pipeline_to_proto(&pipeline())), Ok(pipeline()));
}

#[test]
fn what_a_client_leaves_out_of_a_pipeline_has_the_defaults_of_a_pipeline_file() {
    let sent = proto::Pipeline {
        name: "p".to_string(),
        sources: vec![proto::Source { name: "s".to_string(), path: "/s".to_string(), ..Default::default() }],
        target: Some(proto::Target {
            path: "/t".to_string(),
            table_name: "t".to_string(),
            record_key: vec!["id".to_string()],
            ..Default::default()
        }),
        ..Default::default()
    };
    let arrived = pipeline_from_proto(sent).unwrap();
    assert_eq!(arrived.validate(), Vec::<String>::new());
    assert_eq!(arrived.sources[0].num_instants, 5);
    assert_eq!(arrived.sources[0].start, None);
    assert_eq!((arrived.target.table_version, arrived.target.hive_style), (9, true));
    assert_eq!(arrived.target.services, Services::default());
    assert_eq!(arrived.limits, Limits::default());
}

#[test]
fn a_malformed_pipeline_is_refused_with_the_path_of_the_field() {
    let mut sent = pipeline_to_proto(&pipeline());
    sent.sources[6].start.as_mut().unwrap().at =
        Some(proto::start::At::After(crate::proto::common::Cursor { clock: 2, instant: "x".to_string() }));
    let refused = pipeline_from_proto(sent).unwrap_err().to_string();
    assert!(refused.starts_with("`sources[6].start.after.instant`: `x` is not an instant time"), "{refused}");
    let mut sent = pipeline_to_proto(&pipeline());
    sent.target = None;
    assert_eq!(pipeline_from_proto(sent).unwrap_err().to_string(), "`target`: is missing");
}

fn report() -> WindowReport {
    WindowReport {
        instants: 1,
        files: 2,
        bytes: 3,
        oldest_pending: Some("20250606182826197".parse().unwrap()),
        lag_instants: 4,
        lag_seconds: 5,
        headroom_instants: 6,
        late_delivered: vec!["20250606182826198".parse().unwrap()],
        begin_requested: Some("20250606182826195".parse().unwrap()),
        end_requested: Some("20250606182826196".parse().unwrap()),
        not_a_cut: true,
        waits_for: Some("20250606182826199".parse().unwrap()),
        skipped: Some("column `a` is Utf8".to_string()),
        gap: true,
        late_files: vec!["a.csv".to_string()],
        left_out: vec!["b.csv".to_string()],
        left_out_files: 7,
        notice: Some("no file fits".to_string()),
    }
}

fn overrides() -> Vec<OverrideStatus> {
    let instant = "20250606182826197".parse().unwrap();
    let one = |name: &str, applied_by, before| OverrideStatus {
        source: SourceName::new(name).unwrap(),
        to: "snapshot".to_string(),
        applied_by,
        before,
    };
    vec![one("a", Some(instant), None), one("b", None, Some(cursor("requested:20250606182826")))]
}

pub(crate) fn status(outcome: Option<Outcome>) -> BatchStatus {
    let window = Window { begin: None, end: cursor("completed:20250606182826197") };
    BatchStatus {
        name: BatchName::new("p/r").unwrap(),
        pipeline: PipelineName::new("p").unwrap(),
        request: RequestId::new("r").unwrap(),
        asked_by: "somebody".to_string(),
        stage: Stage::Merge,
        outcome,
        instant: Some("20250606182826197".parse().unwrap()),
        completed: Some("20250606182826198".parse().unwrap()),
        seq: Some(0),
        sources: vec![
            SourceStatus {
                source: SourceName::new("a").unwrap(),
                window: Some(window),
                report: report(),
                rows: 7,
                bytes_read: 9,
            },
            SourceStatus {
                source: SourceName::new("b").unwrap(),
                window: None,
                report: WindowReport::default(),
                rows: 0,
                bytes_read: 0,
            },
        ],
        overrides: overrides(),
        written: Written {
            rows: 1,
            inserts: 2,
            updates: 3,
            files: 4,
            bytes: 5,
            combined: 6,
            outdated: 7,
            without_key: 8,
            deletes: 9,
            absent: 10,
            replaced_groups: 11,
        },
        refused: Refused {
            counts: vec![RefusedCount { source: "a".to_string(), reason: "BAD_RECORD".to_string(), rows: 12 }],
            instant: Some("20250606182826196".parse().unwrap()),
        },
        timings: vec![(Stage::Pending, 0), (Stage::Plan, 61_001)],
        peak_memory: 9,
        error: Some(Failure {
            code: Code::Conflict,
            retry: Retry::ReadBack,
            reason: "TARGET_CONFLICT".to_string(),
            message: "somebody".to_string(),
        }),
        started_millis: -1,
    }
}

#[test]
fn a_batch_arrives_as_it_was_sent_whatever_its_outcome() {
    for outcome in Outcome::ALL.iter().copied().map(Some).chain([None]) {
        let sent = status(outcome);
        assert_eq!(batch_from_proto(batch_to_proto(&sent)).as_ref(), Ok(&sent));
    }
    let refused = Refused::default();
    let bare = BatchStatus { instant: None, completed: None, seq: None, error: None, refused, ..status(None) };
    assert_eq!(batch_from_proto(batch_to_proto(&bare)).as_ref(), Ok(&bare));
}

#[test]
fn overrides_arrive_as_they_were_sent_and_wrong_ones_are_refused_with_the_path_of_the_field() {
    let mut sent: Vec<tributary_types::Override> =
        ["db.orders=requested:20250606182826", "clicks=file:name:-:a=b.csv", "snapshot", "20250606182826197"]
            .map(|text| text.parse().unwrap())
            .to_vec();
    sent[0] = sent[0].clone().with_token("t:1").unwrap();
    assert_eq!(overrides_from_proto(overrides_to_proto(&sent)).as_ref(), Ok(&sent));
    let wrong = |source: &str, to: &str, token: &str| {
        let wrong = proto::Override { source: source.to_string(), to: to.to_string(), token: token.to_string() };
        overrides_from_proto(vec![overrides_to_proto(&sent).remove(0), wrong]).unwrap_err().to_string()
    };
    assert!(wrong("a", "newest", "").starts_with("`overrides[1].to`: `newest` is no place"));
    assert!(wrong("a b", "start", "").starts_with("`overrides[1].source`"));
    assert!(wrong("a", "start", "x/y").starts_with("`overrides[1].token`"));
}

#[test]
fn a_plan_arrives_as_it_was_sent() {
    let sent = PlannedBatch {
        sources: status(None).sources,
        overrides: overrides(),
        has_news: true,
        logical_plan: "l".to_string(),
        physical_plan: "p".to_string(),
        columns: vec![("id".to_string(), "Int64".to_string())],
    };
    let arrived = plan_from_proto(plan_to_proto(&sent)).unwrap();
    assert_eq!(format!("{arrived:?}"), format!("{sent:?}"));
}
