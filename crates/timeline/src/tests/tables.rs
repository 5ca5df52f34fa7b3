// SPDX-License-Identifier: Apache-2.0
//! The public test tables of hudi-rs.

use arrow::datatypes::DataType;
use tributary_api::predicate::{Literal, Op, Predicate};
use tributary_testkit::Fixture;
use tributary_types::{Code, Fault, InstantTime};

use super::*;

fn unpack(name: &str) -> Fixture {
    Fixture::unpack("hudi", name)
}

#[tokio::test]
async fn every_scalar_and_nested_type_of_version_eight_is_read() {
    for name in ["cow_v8_nonpartitioned", "cow_v8_complexkeygen_hivestyle"] {
        let (table, service) = (unpack(name), service());
        let plan = service.plan(request(&table.url(), Begin::Snapshot)).await.unwrap();
        let rows = rows(&service, plan.changed.as_ref()).await;
        let mut named: Vec<(String, Value)> =
            rows.iter().map(|row| (json::text(&row["name"]), row["isActive"].clone())).collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Alice", "Bob", "Carol", "Diana"], "{name}");
        assert_eq!(named[0].1, Value::Bool(false), "{name}");
        let alice = rows.iter().find(|row| row["name"] == "Alice").unwrap();
        assert!(alice["structField"]["child_struct"].is_object(), "{name}: {alice}");
        assert!(alice["arrayField"].is_array() && alice["mapField"].is_object(), "{name}: {alice}");
        assert_eq!(plan.table.version, 8);
    }
}

#[tokio::test]
async fn the_second_window_of_version_eight_holds_the_second_commit() {
    let (table, service) = (unpack("cow_v8_complexkeygen_hivestyle"), service());
    let first = service.plan(PlanRequest { num_instants: 1, ..request(&table.url(), Begin::Earliest) }).await.unwrap();
    assert_eq!(column(&service, first.changed.as_ref(), "name").await, ["Alice", "Bob", "Carol"]);
    assert_eq!((first.limited, first.report.lag_instants), (true, 1));
    let second = service.plan(resume(&first, 1)).await.unwrap();
    assert_eq!(column(&service, second.changed.as_ref(), "name").await, ["Alice", "Diana"]);
    let latest = service.plan(request(&table.url(), Begin::Latest)).await.unwrap();
    assert_eq!(latest.instants, second.instants);
}

#[tokio::test]
async fn an_empty_table_has_a_schema_and_a_cursor() {
    let (table, service) = (unpack("cow_v8_empty"), service());
    for begin in [Begin::Latest, Begin::Earliest, Begin::Snapshot] {
        let plan = service.plan(request(&table.url(), begin)).await.unwrap();
        assert_eq!(plan.end, Cursor::Completed(InstantTime::init()));
        assert!(!plan.has_news);
        let changed = plan.changed.unwrap();
        assert_eq!((changed.splits.len(), changed.schema.fields().len()), (0, 8));
        assert_eq!(plan.table.fingerprint, "v8_empty@-");
    }
}

#[tokio::test]
async fn overwritten_clustered_and_deleted_rows_are_those_of_the_transactions() {
    for name in ["cow_v9_txns_simple_meta", "cow_v9_txns_nonpart_nometa"] {
        let (table, service) = (unpack(name), service());
        let plan = service.plan(request(&table.url(), Begin::Snapshot)).await.unwrap();
        let snapshot = column(&service, plan.changed.as_ref(), "txn_id").await;
        assert!(!snapshot.iter().any(|id| id.ends_with("002") || id.ends_with("005")), "{name}: {snapshot:?}");
        drop_metadata_table(table.path());
        let physical = service.plan(request(&table.url(), Begin::Snapshot)).await.unwrap();
        assert_eq!(plan.changed.unwrap().splits, physical.changed.as_ref().unwrap().splits, "{name}");

        // Everything at once is the snapshot: what later windows changed is seen at its end only.
        let all = PlanRequest { num_instants: 1000, ..request(&table.url(), Begin::Earliest) };
        let all = service.plan(all).await.unwrap();
        assert_eq!(column(&service, all.changed.as_ref(), "txn_id").await, snapshot, "{name}");
        let services = all.instants.iter().filter(|instant| instant.action == "replacecommit").count();
        assert_eq!(services, usize::from(name == "cow_v9_txns_simple_meta"), "clustering is no change");
    }
}

#[tokio::test]
async fn slashes_in_partition_paths_are_levels() {
    let (table, service) = (unpack("cow_v9_timebasedkeygen_nonhivestyle"), service());
    let plan = service.plan(request(&table.url(), Begin::Snapshot)).await.unwrap();
    let changed = plan.changed.unwrap();
    assert!(changed.splits.iter().all(|split| split.partition.split('/').count() == 4), "{:?}", changed.splits);
    drop_metadata_table(table.path());
    let physical = service.plan(request(&table.url(), Begin::Snapshot)).await.unwrap();
    assert_eq!(physical.changed.unwrap().splits, changed.splits);
    assert!(!column(&service, Some(&changed), "txn_id").await.iter().any(|id| id.ends_with("002")));
}

#[tokio::test]
async fn projections_predicates_and_batch_sizes_reach_the_scan() {
    let (table, service) = (unpack("cow_v8_nonpartitioned"), service());
    let meta_columns = PlanRequest { meta_columns: false, ..request(&table.url(), Begin::Snapshot) };
    let plan = service.plan(meta_columns).await.unwrap();
    let relation = plan.changed.unwrap();
    let position = |name: &str| relation.schema.index_of(name).unwrap();
    let read = |projection, predicate, batch_rows| ReadRequest {
        split: relation.splits[0].clone(),
        schema: Arc::clone(&relation.schema),
        projection,
        predicate,
        batch_rows,
    };
    let collect = async |request: ReadRequest| -> Vec<RecordBatch> {
        service.read(request).await.unwrap().try_collect().await.unwrap()
    };
    let some = collect(read(Some(vec![position("name"), position("id")]), None, 1)).await;
    assert!(some.iter().all(|batch| batch.num_rows() == 1) && some.len() > 1);
    let schema = some[0].schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["name", "id"]);
    assert_eq!(schema.field(1).data_type(), &DataType::Int32);
    let count = collect(read(Some(Vec::new()), None, 1000)).await;
    assert_eq!(count.iter().map(RecordBatch::num_rows).sum::<usize>(), some.len());
    let none = Predicate::Compare { column: "id".to_string(), op: Op::Gt, literal: Literal::Int(1000) };
    assert!(collect(read(None, Some(none), 1000)).await.is_empty());
}

#[tokio::test]
async fn a_file_that_vanished_says_which_and_asks_for_a_new_plan() {
    let (table, service) = (unpack("cow_v8_nonpartitioned"), service());
    let plan = service.plan(request(&table.url(), Begin::Latest)).await.unwrap();
    let relation = plan.changed.unwrap();
    let split = relation.splits[0].clone();
    std::fs::remove_file(table.path().join(&split.path)).unwrap();
    let read = ReadRequest {
        split: split.clone(),
        schema: Arc::clone(&relation.schema),
        projection: None,
        predicate: None,
        batch_rows: 10,
    };
    let Err(error) = service.read(read.clone()).await else { panic!("it was read") };
    assert_eq!(error.code(), Code::Conflict);
    assert!(matches!(&error, Error::FileGone { file, .. } if *file == split.path), "{error}");
    std::fs::write(table.path().join(&split.path), b"PAR1 no longer PAR1").unwrap();
    let Err(error) = service.read(read).await else { panic!("it was read") };
    assert!(matches!(&error, Error::Corrupt { file, .. } if *file == split.path), "{error}");
}

#[tokio::test]
async fn commits_are_read_once() {
    let (table, service) = (unpack("cow_v8_nonpartitioned"), service());
    let first = service.plan(request(&table.url(), Begin::Earliest)).await.unwrap();
    for entry in std::fs::read_dir(table.path().join(".hoodie/timeline")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "commit") {
            std::fs::write(entry.path(), b"not read any more").unwrap();
        }
    }
    let again = service.plan(request(&table.url(), Begin::Earliest)).await.unwrap();
    assert_eq!(first.instants, again.instants);
    let other = super::service().plan(request(&table.url(), Begin::Earliest)).await;
    assert!(matches!(failure(other), Error::Corrupt { .. }));
}

#[tokio::test]
async fn another_table_at_the_same_path_is_refused() {
    let (table, service) = (unpack("cow_v8_nonpartitioned"), service());
    let plan = service.plan(request(&table.url(), Begin::Latest)).await.unwrap();
    let fingerprint = Some("v8_nonpartitioned@20200101000000000".to_string());
    let refused = failure(service.plan(PlanRequest { fingerprint, ..resume(&plan, 5) }).await);
    assert!(matches!(refused, Error::Recreated { .. }), "{refused}");
    let fingerprint = Some("v8_nonpartitioned@-".to_string());
    assert!(service.plan(PlanRequest { fingerprint, ..resume(&plan, 5) }).await.is_ok(), "was empty then");
    let gone = Begin::After(completed("20200101000000000"));
    let refused = failure(service.plan(PlanRequest { begin: gone, ..resume(&plan, 5) }).await);
    assert!(matches!(refused, Error::Restored { .. }), "{refused}");
}

#[tokio::test]
async fn tables_that_cannot_be_read_are_refused_by_name() {
    let service = service();
    let missing = failure(service.plan(request("/nowhere/at/all", Begin::Latest)).await);
    assert!(missing.to_string().contains("source `s`"), "{missing}");
    for (property, named) in [
        ("hoodie.table.version=7", "versions 6, 8 and 9"),
        ("hoodie.table.type=MERGE_ON_READ", "MERGE_ON_READ"),
        ("hoodie.populate.meta.fields=false", "populate.meta.fields"),
    ] {
        let table = unpack("cow_v8_nonpartitioned");
        set_property(table.path(), property);
        let refused = failure(service.plan(request(&table.url(), Begin::Latest)).await).to_string();
        assert!(refused.contains(named), "{refused}");
    }
    let table = unpack("cow_v8_nonpartitioned");
    set_property(table.path(), "hoodie.populate.meta.fields=false");
    let lookup = PlanRequest { lookup: true, meta_columns: false, ..request(&table.url(), Begin::Latest) };
    let plan = service.plan(lookup).await.unwrap();
    assert_eq!(column(&service, plan.changed.as_ref(), "name").await.len(), 4, "a look-up needs none");
}

#[tokio::test]
async fn a_table_says_what_it_is() {
    let table = unpack("cow_v9_txns_simple_meta");
    let info = service().describe(&table.url()).await.unwrap();
    assert_eq!((info.name.as_str(), info.version), ("v9_txns_cow_simple_meta", 9));
    assert_eq!((info.record_key, info.partition_by), (vec!["txn_id".to_string()], vec!["region".to_string()]));
    assert_eq!(info.newest.unwrap().requested.as_str(), "20260307162456179");
    assert_eq!(info.schema.unwrap().field(0).name(), "txn_id");
}
