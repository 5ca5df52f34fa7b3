// SPDX-License-Identifier: Apache-2.0
//! Flight SQL as its Rust client speaks it: queries over targets and batches, prepared ones, what is refused.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow_flight::FlightInfo;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{CommandGetDbSchemas, CommandGetTables, SqlInfo};
use futures::TryStreamExt;
use tributary_rpc::connect_lazily;
use tributary_types::Outcome;

use crate::flights::{Served, job};
use crate::support::{Lake, json_rows, run, value_table, values};

macro_rules! sql_client {
    ($url:expr) => {
        FlightSqlServiceClient::new_from_inner(
            FlightServiceClient::new(connect_lazily($url).unwrap()).max_decoding_message_size(256 << 20),
        )
    };
}

/// The rows that an info's endpoints have.
macro_rules! fetched {
    ($client:expr, $info:expr) => {{
        let info: FlightInfo = $info;
        let mut batches: Vec<RecordBatch> = Vec::new();
        for endpoint in info.endpoint {
            batches
                .extend($client.do_get(endpoint.ticket.unwrap()).await.unwrap().try_collect::<Vec<_>>().await.unwrap());
        }
        batches
    }};
}

const SQL: &str = "SELECT id, value, value % 6 AS part FROM <SRC>";
const DELETING: &str = "SELECT id, value, value % 6 AS part, id = 'k1' AS _hoodie_is_deleted FROM <SRC>";

/// `p` committed `r1`, ten rows, and then `r2`, which changed `k0`, deleted `k1` and added `new`.
async fn two_batches(lake: &Lake) -> Served {
    let served = Served::start().await;
    let source = value_table(&served.roles, &lake.path("src")).await;
    source.upsert(vec![values((0..10).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    let first = run(&served.roles, &job(lake, SQL), "r1").await;
    assert_eq!(first.outcome, Some(Outcome::Committed), "{:?}", first.error);
    let changed = [("k0".to_string(), 600), ("k1".to_string(), 1), ("new".to_string(), 7)];
    source.upsert(vec![values(changed)]).await.unwrap();
    let second = run(&served.roles, &job(lake, DELETING), "r2").await;
    assert_eq!(second.outcome, Some(Outcome::Committed), "{:?}", second.error);
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_read_tables_now_and_then_and_batches_with_what_they_deleted() {
    let lake = Lake::new();
    let served = two_batches(&lake).await;
    let url = format!("http://{}", served.server.address());
    let mut client = sql_client!(&url);
    let first = run(&served.roles, &job(&lake, SQL), "r1").await.instant.unwrap();
    let asked = [
        ("SELECT count(*) AS rows, sum(value) AS total FROM tables.p".to_string(), r#"{"rows":10,"total":651}"#),
        ("SELECT count(*) AS rows FROM p WHERE p.value > 100".to_string(), r#"{"rows":1}"#),
        ("SELECT count(*) AS rows FROM tributary.tables.parts x WHERE x.id = 'k1'".to_string(), r#"{"rows":0}"#),
        (format!("SELECT sum(value) AS total FROM tables.`p@{first}`"), r#"{"total":45}"#),
        ("SELECT count(*) AS rows FROM batches.`p/r1`".to_string(), r#"{"rows":10}"#),
        (
            "SELECT count(*) AS rows, sum(CASE WHEN _hoodie_is_deleted THEN 1 ELSE 0 END) AS deleted, \
             max(CASE WHEN _hoodie_is_deleted THEN id END) AS which FROM `batch:p/r2`"
                .to_string(),
            r#"{"rows":3,"deleted":1,"which":"k1"}"#,
        ),
        (
            "WITH old AS (SELECT id, value FROM batches.`p/r1`) SELECT n.id, old.value AS was, n.value AS is \
             FROM old JOIN tables.p n ON n.id = old.id WHERE n.value <> old.value"
                .to_string(),
            r#"{"id":"k0","was":0,"is":600}"#,
        ),
    ];
    for (sql, expected) in asked {
        let info = client.execute(sql.clone(), None).await.unwrap();
        assert_eq!(json_rows(&fetched!(client, info)), [expected], "{sql}");
    }
    // Any name of a column, where no table has to hold it.
    let info = client.execute("SELECT count(*) FROM p".to_string(), None).await.unwrap();
    assert_eq!(fetched!(client, info)[0].num_rows(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_reads_what_was_there_when_it_was_planned() {
    let lake = Lake::new();
    let served = two_batches(&lake).await;
    let mut client = sql_client!(&format!("http://{}", served.server.address()));
    let info = client.execute("SELECT count(*) AS rows FROM p".to_string(), None).await.unwrap();
    let source = crate::support::open_value_table(&served.roles, &lake.path("src")).await;
    source.upsert(vec![values([("later".to_string(), 1)])]).await.unwrap();
    let third = run(&served.roles, &job(&lake, DELETING), "r3").await;
    assert_eq!(third.outcome, Some(Outcome::Committed), "{:?}", third.error);
    assert_eq!(json_rows(&fetched!(client, info)), [r#"{"rows":10}"#]);
    let info = client.execute("SELECT count(*) AS rows FROM p".to_string(), None).await.unwrap();
    assert_eq!(json_rows(&fetched!(client, info)), [r#"{"rows":11}"#]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_statement_is_run_with_values_and_closed() {
    let lake = Lake::new();
    let served = two_batches(&lake).await;
    let mut client = sql_client!(&format!("http://{}", served.server.address()));
    let sql = "SELECT id, value > ? AS large, ? AS said FROM p WHERE id = $1 OR value = ? ORDER BY id LIMIT ?";
    let mixed = client.prepare(sql.replace("$1", "?"), None).await.unwrap();
    assert_eq!(mixed.parameter_schema().unwrap().fields().len(), 5);
    let names: Vec<String> = mixed.dataset_schema().unwrap().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["id", "large", "said"]);

    let mut prepared = client
        .prepare("SELECT id, ? AS said FROM p WHERE id = ? OR value > ? ORDER BY id LIMIT ?".to_string(), None)
        .await
        .unwrap();
    let parameters = |id: &str, more: i64| {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("1", Arc::new(BooleanArray::from(vec![true]))),
            ("2", Arc::new(StringArray::from(vec![id]))),
            ("3", Arc::new(Int64Array::from(vec![more]))),
            ("4", Arc::new(Int64Array::from(vec![5]))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    prepared.set_parameters(parameters("k5", 100)).unwrap();
    let info = prepared.execute().await.unwrap();
    let expected = [r#"{"id":"k0","said":true}"#, r#"{"id":"k5","said":true}"#];
    assert_eq!(json_rows(&fetched!(client, info)), expected);
    // Text that looks like SQL is a value, and negative numbers are numbers.
    prepared.set_parameters(parameters("' OR 1 = 1 --\\", -1)).unwrap();
    let info = prepared.execute().await.unwrap();
    assert_eq!(json_rows(&fetched!(client, info)).len(), 5);
    prepared.close().await.unwrap();

    let mut bare = client.prepare("SELECT id FROM p WHERE id = ?".to_string(), None).await.unwrap();
    let unbound = bare.execute().await.unwrap_err().to_string();
    assert!(unbound.contains("1 parameters and no values"), "{unbound}");
    let few: Vec<(&str, ArrayRef)> = vec![("1", Arc::new(StringArray::from(vec!["a", "b"])))];
    bare.set_parameters(RecordBatch::try_from_iter(few).unwrap()).unwrap();
    let many = bare.execute().await.unwrap_err().to_string();
    assert!(many.contains("one row of parameters"), "{many}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_no_select_over_them_is_refused_with_what_is_wrong() {
    let lake = Lake::new();
    let served = two_batches(&lake).await;
    let mut client = sql_client!(&format!("http://{}", served.server.address()));
    for (sql, said) in [
        ("DELETE FROM tables.p", "begins with `DELETE`"),
        ("DROP TABLE tables.p", "begins with `DROP`"),
        ("CREATE TABLE x AS SELECT 1", "begins with `CREATE`"),
        ("SELECT * FROM `/etc/passwd`", "no pipeline and no target"),
        ("SELECT * FROM nobody", "there are: p"),
        ("SELECT * FROM lake.p", "there is no schema `lake`"),
        ("SELECT * FROM batches.`p/nobody`", "there is no batch `p/nobody`"),
        ("SELECT nobody FROM p", "nobody"),
        ("SELECT * FROM read_parquet('/etc/passwd')", "table"),
        ("SELECT version() FROM p", "version"),
        ("SELECT a.id, b.id FROM p a JOIN p b ON a.id = b.id", "two columns `id`"),
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT * FROM r", "RECURSIVE"),
        ("", "holds no statement"),
    ] {
        let refused = client.execute(sql.to_string(), None).await.unwrap_err().to_string();
        assert!(refused.contains(said), "{sql}: {refused}");
        let refused = client.prepare(sql.to_string(), None).await.err().unwrap().to_string();
        assert!(refused.contains(said), "{sql}: {refused}");
    }
    let update = client.execute_update("UPDATE p SET value = 1".to_string(), None).await.unwrap_err().to_string();
    assert!(update.contains("only reads"), "{update}");
    let transaction = client.begin_transaction().await.unwrap_err().to_string();
    assert!(transaction.contains("not offered"), "{transaction}");
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_find_the_tables_and_batches_and_what_the_server_can_do() {
    let lake = Lake::new();
    let served = two_batches(&lake).await;
    let mut client = sql_client!(&format!("http://{}", served.server.address()));
    let info = client.get_catalogs().await.unwrap();
    assert_eq!(json_rows(&fetched!(client, info)), [r#"{"catalog_name":"tributary"}"#]);
    let info = client.get_db_schemas(CommandGetDbSchemas::default()).await.unwrap();
    let schemas = json_rows(&fetched!(client, info)).join("\n");
    assert!(schemas.contains("tables") && schemas.contains("batches"), "{schemas}");
    let info = client.get_table_types().await.unwrap();
    assert_eq!(json_rows(&fetched!(client, info)), [r#"{"table_type":"BATCH"}"#, r#"{"table_type":"TABLE"}"#]);

    let all = client.get_tables(CommandGetTables::default()).await.unwrap();
    let all = json_rows(&fetched!(client, all)).join("\n");
    for name in [r#""table_name":"p""#, r#""table_name":"p/r1""#, r#""table_name":"p/r2""#] {
        assert!(all.contains(name), "{all}");
    }
    let only = CommandGetTables {
        include_schema: true,
        table_types: vec!["TABLE".to_string()],
        table_name_filter_pattern: Some("p".to_string()),
        ..CommandGetTables::default()
    };
    let only = client.get_tables(only).await.unwrap();
    let only = fetched!(client, only);
    assert_eq!(only.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
    let info = client.get_sql_info(vec![SqlInfo::FlightSqlServerName, SqlInfo::FlightSqlServerReadOnly]).await.unwrap();
    assert_eq!(fetched!(client, info).iter().map(RecordBatch::num_rows).sum::<usize>(), 2);
    let info = client.get_xdbc_type_info(arrow_flight::sql::CommandGetXdbcTypeInfo { data_type: None }).await.unwrap();
    assert!(fetched!(client, info).iter().map(RecordBatch::num_rows).sum::<usize>() > 10);
}
