// SPDX-License-Identifier: Apache-2.0
//! Pulls as Flight clients do them: endpoints in parallel, tickets that expire, cancelling, tables as of an instant.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{
    CancelFlightInfoRequest, CancelStatus, FlightClient, FlightDescriptor, FlightInfo, RenewFlightEndpointRequest,
    Ticket,
};
use futures::{StreamExt, TryStreamExt};
use serde_json::json;
use tributary_api::coordinator::BatchStatus;
use tributary_hudi::{Stores, SystemStores};
use tributary_rpc::{PullSettings, connect_lazily};
use tributary_server::bench::source::SourceTable;
use tributary_server::embedded::{Embedded, Settings, embed};
use tributary_server::roles::Hosted;
use tributary_server::serve::{Options, PullOptions, Server};
use tributary_store::MemoryStore;
use tributary_testkit::{HeldStores, Hold, RecordedStores, Recording};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Outcome, SystemClock, SystemEntropy};

use crate::support::{Lake, json_rows, pipeline, request_of, rows, run, value_table, values};

/// All roles in this process, and a server in front of them.
pub(crate) struct Served {
    pub(crate) roles: Embedded,
    pub(crate) server: Server,
}

impl Served {
    pub(crate) async fn start() -> Served {
        Served::over(Arc::new(SystemStores::new()), PullSettings::default()).await
    }

    pub(crate) async fn over(stores: Arc<dyn Stores>, settings: PullSettings) -> Served {
        let store = Arc::new(MemoryStore::default());
        let roles = embed(stores, store, Arc::new(SystemClock), Arc::new(SystemEntropy), Settings::default());
        let pulls = PullOptions { advertise: None, settings };
        let listen = "127.0.0.1:0".parse().unwrap();
        let options = Options { listen, http: None, metrics: None, peers: Vec::new(), pulls };
        let server = tributary_server::serve::start(Hosted::from(roles.clone()), options).await.unwrap();
        Served { roles, server }
    }

    pub(crate) fn client(&self) -> FlightClient {
        client(&format!("http://{}", self.server.address()))
    }
}

/// A client of a server at `http://HOST:PORT`.
pub(crate) fn client(url: &str) -> FlightClient {
    let channel = connect_lazily(url).unwrap();
    FlightClient::new_from_inner(
        FlightServiceClient::new(channel.into_transport()).max_decoding_message_size(256 << 20),
    )
}

pub(crate) fn flight(name: &str) -> FlightDescriptor {
    FlightDescriptor::new_path(vec![name.to_string()])
}

/// The rows of every endpoint, all read at the same time.
async fn pull(client: &FlightClient, info: &FlightInfo) -> Vec<RecordBatch> {
    let streams = info.endpoint.iter().map(|endpoint| {
        let mut client = FlightClient::new_from_inner(client.inner().clone());
        let ticket = endpoint.ticket.clone().unwrap();
        async move { client.do_get(ticket).await.unwrap().try_collect::<Vec<_>>().await.unwrap() }
    });
    futures::future::join_all(streams).await.into_iter().flatten().collect()
}

/// What an error says.
fn told<T>(result: Result<T, arrow_flight::error::FlightError>) -> String {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(arrow_flight::error::FlightError::Tonic(status)) => format!("{:?}: {}", status.code(), status.message()),
        Err(other) => other.to_string(),
    }
}

const SQL: &str = "SELECT id, value, value % 6 AS part FROM <SRC>";

/// A job whose target has six partitions.
pub(crate) fn job(lake: &Lake, sql: &str) -> Pipeline {
    pipeline(json!({
        "name": "p",
        "source": [{"name": "src", "path": lake.path("src"), "start": "snapshot", "num_instants": 1}],
        "transform": [{"sql": sql}],
        "target": {"path": lake.path("out"), "table_name": "parts", "record_key": ["id"], "partition_by": ["part"]},
    }))
}

async fn source(served: &Served, lake: &Lake) -> SourceTable {
    let source = value_table(&served.roles, &lake.path("src")).await;
    source.upsert(vec![values((0..24).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    source
}

async fn committed(served: &Served, pipeline: &Pipeline, request: &str) -> BatchStatus {
    let ended = run(&served.roles, pipeline, request).await;
    assert_eq!(ended.outcome, Some(Outcome::Committed), "{:?}", ended.error);
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_pulled_from_several_endpoints_at_once_and_says_what_it_was() {
    let lake = Lake::new();
    let served = Served::over(Arc::new(SystemStores::new()), PullSettings { endpoints: 4, ..Default::default() }).await;
    source(&served, &lake).await;
    let batch = committed(&served, &job(&lake, SQL), "r1").await;
    let mut client = served.client();
    let info = client.get_flight_info(flight("batch:p/r1")).await.unwrap();
    assert_eq!((info.endpoint.len(), info.total_records), (4, 24), "six files, four endpoints");
    let tickets: HashSet<Vec<u8>> =
        info.endpoint.iter().map(|endpoint| endpoint.ticket.clone().unwrap().ticket.to_vec()).collect();
    assert_eq!(tickets.len(), 4);
    for endpoint in &info.endpoint {
        assert!(endpoint.expiration_time.is_some());
        assert!(endpoint.location.is_empty(), "the server that was asked");
    }
    let pulled = pull(&client, &info).await;
    assert_eq!(json_rows(&pulled), rows(&served.roles, &lake.path("out")).await);

    let schema = info.clone().try_decode_schema().unwrap();
    let metadata = schema.metadata();
    assert_eq!(metadata["tributary.batch"], "p/r1");
    assert_eq!(metadata["tributary.instant"], batch.instant.unwrap().to_string());
    assert_eq!(metadata["tributary.source.src.end"], batch.sources[0].window.as_ref().unwrap().end.to_string());
    // printf '%s' "$SQL" | sha256sum
    assert_eq!(metadata["tributary.sql_sha256"], "b246f36f6fd5d0f643903b4abbcca636ff83cd5c37c6edc504266197a9ab2af8");
    for batch in &pulled {
        assert_eq!(batch.schema().metadata(), metadata, "the rows say the same");
    }
    let told = client.get_schema(flight("batch:p/r1")).await.unwrap();
    assert_eq!(&told, &schema);
    // All of it in one stream, for whoever knows the name only.
    let whole = client.do_get(Ticket::new("batch:p/r1")).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(json_rows(&whole), json_rows(&pulled));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_pulled_as_of_each_of_its_instants_and_else_as_of_the_newest() {
    let lake = Lake::new();
    let served = Served::start().await;
    let source = source(&served, &lake).await;
    let first = committed(&served, &job(&lake, SQL), "r1").await;
    let before = rows(&served.roles, &lake.path("out")).await;
    source.upsert(vec![values([("k0".to_string(), 600), ("new".to_string(), 7)])]).await.unwrap();
    let second = committed(&served, &job(&lake, SQL), "r2").await;
    let after = rows(&served.roles, &lake.path("out")).await;
    assert_ne!(before, after);

    let mut client = served.client();
    let (first, second) = (first.instant.unwrap(), second.instant.unwrap());
    for (name, expected, instant) in [
        ("table:p".to_string(), &after, &second),
        // The table's own name stands for it as well.
        ("table:parts".to_string(), &after, &second),
        (format!("table:p@{second}"), &after, &second),
        (format!("table:p@{first}"), &before, &first),
        ("table:p@29991231235959999".to_string(), &after, &second),
    ] {
        let info = client.get_flight_info(flight(&name)).await.unwrap();
        assert_eq!(&json_rows(&pull(&client, &info).await), expected, "{name}");
        let schema = info.try_decode_schema().unwrap();
        assert_eq!(schema.metadata()["tributary.instant"], instant.to_string(), "{name}");
        let whole = client.do_get(Ticket::new(name.clone())).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
        assert_eq!(&json_rows(&whole), expected, "{name}");
    }
    // A ticket goes on with what it was made for, whatever is committed in between.
    let info = client.get_flight_info(flight("table:p")).await.unwrap();
    source.upsert(vec![values([("k1".to_string(), 601)])]).await.unwrap();
    committed(&served, &job(&lake, SQL), "r3").await;
    assert_eq!(json_rows(&pull(&client, &info).await), after);

    let nobody = told(client.get_flight_info(flight("table:nobody")).await);
    assert!(nobody.starts_with("NotFound") && nobody.contains("there are: p"), "{nobody}");
    let early = told(client.get_flight_info(flight("table:p@20200101000000000")).await);
    assert!(early.starts_with("NotFound") && early.contains(first.as_str()), "{early}");
    let what = told(client.get_flight_info(flight("rows of p")).await);
    assert!(what.starts_with("InvalidArgument") && what.contains("table:<name>@<instant>"), "{what}");
    let listed: Vec<FlightInfo> = client.list_flights("").await.unwrap().try_collect().await.unwrap();
    let listed: Vec<String> =
        listed.iter().map(|info| info.flight_descriptor.clone().unwrap().path[0].clone()).collect();
    assert!(listed.iter().any(|name| name.starts_with("table:p@")), "{listed:?}");
    assert!(listed.contains(&"batch:p/r3".to_string()), "{listed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_records_of_a_batch_have_an_endpoint_of_their_own() {
    let lake = Lake::new();
    let served = Served::start().await;
    let source = source(&served, &lake).await;
    committed(&served, &job(&lake, SQL), "r1").await;
    source.upsert(vec![values([("k1".to_string(), 1), ("k2".to_string(), 200), ("k3".to_string(), 3)])]).await.unwrap();
    let deleting = "SELECT id, value, value % 6 AS part, id IN ('k1', 'k3') AS _hoodie_is_deleted FROM <SRC>";
    let batch = committed(&served, &job(&lake, deleting), "r2").await;
    assert_eq!(batch.written.deletes, 2);
    let mut client = served.client();
    let info = client.get_flight_info(flight("batch:p/r2")).await.unwrap();
    assert!(info.endpoint.len() >= 2);
    let opened = served.roles.coordinator.open_batch(&batch.name).await.unwrap();
    let expected: Vec<RecordBatch> = opened.rows.try_collect().await.unwrap();
    let expected = json_rows(&expected);
    assert_eq!(expected.iter().filter(|row| row.contains("\"_hoodie_is_deleted\":true")).count(), 2, "{expected:?}");
    assert_eq!(json_rows(&pull(&client, &info).await), expected);
    let whole = client.do_get(Ticket::new("batch:p/r2")).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(json_rows(&whole), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_expired_says_so_and_one_that_has_not_is_renewed() {
    let lake = Lake::new();
    let at_once = PullSettings { tickets_valid: Duration::ZERO, ..PullSettings::default() };
    let served = Served::over(Arc::new(SystemStores::new()), at_once).await;
    source(&served, &lake).await;
    committed(&served, &job(&lake, SQL), "r1").await;
    let mut client = served.client();
    let info = client.get_flight_info(flight("batch:p/r1")).await.unwrap();
    let expired = told(client.do_get(info.endpoint[0].ticket.clone().unwrap()).await);
    assert!(expired.starts_with("FailedPrecondition"), "{expired}");
    assert!(expired.contains("`batch:p/r1` expired") && expired.contains("GetFlightInfo"), "{expired}");
    let renewed = client.renew_flight_endpoint(RenewFlightEndpointRequest::new(info.endpoint[0].clone())).await;
    assert!(told(renewed).contains("expired"), "what has expired is not renewed");

    // Another server has the same target, and tickets that last.
    let lasting = Served::start().await;
    committed(&lasting, &job(&lake, SQL), "r1").await;
    let mut client = lasting.client();
    let info = client.get_flight_info(flight("batch:p/r1")).await.unwrap();
    let old = info.endpoint[0].clone();
    let renewed = client.renew_flight_endpoint(RenewFlightEndpointRequest::new(old.clone())).await.unwrap();
    let millis = |endpoint: &arrow_flight::FlightEndpoint| {
        let at = endpoint.expiration_time.unwrap();
        at.seconds * 1000 + i64::from(at.nanos) / 1_000_000
    };
    assert!(millis(&renewed) >= millis(&old));
    let of = |batches: Vec<RecordBatch>| json_rows(&batches);
    let by_old = client.do_get(old.ticket.unwrap()).await.unwrap().try_collect().await.unwrap();
    let by_new = client.do_get(renewed.ticket.unwrap()).await.unwrap().try_collect().await.unwrap();
    assert_eq!(of(by_old), of(by_new));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_whose_file_was_cleaned_says_so() {
    let lake = Lake::new();
    let served = Served::start().await;
    source(&served, &lake).await;
    committed(&served, &job(&lake, SQL), "r1").await;
    let mut client = served.client();
    let info = client.get_flight_info(flight("batch:p/r1")).await.unwrap();
    for entry in std::fs::read_dir(lake.dir().join("out")).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with(".hoodie") && path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
    let gone = told(client.do_get(info.endpoint[0].ticket.clone().unwrap()).await);
    assert!(gone.starts_with("FailedPrecondition") && gone.contains("cleaned"), "{gone}");
    let gone = told(client.get_flight_info(flight("batch:p/r1")).await);
    assert!(gone.starts_with("FailedPrecondition") && gone.contains("can no longer be pulled"), "{gone}");
}

/// Files of the target that a recording says were read.
fn files_read(recording: &Recording) -> HashSet<String> {
    let operations = recording.take().into_iter();
    let data = operations.filter(|operation| operation.reads_data() && operation.path.contains("/out/"));
    data.map(|operation| operation.path).collect()
}

/// A target of many files, each of one row that is too large to be sent ahead of its reader.
async fn wide(served: &Served, lake: &Lake, files: i64, bytes: usize) {
    let source = value_table(&served.roles, &lake.path("src")).await;
    source.upsert(vec![values((0..files).map(|n| (format!("k{n}"), n)))]).await.unwrap();
    let sql = format!("SELECT id, value AS part, repeat(substr(id, 1, 1), {bytes}) AS text FROM <SRC>");
    committed(served, &job(lake, &sql), "r1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_a_pull_ends_its_streams_and_no_file_is_read_any_more() {
    let lake = Lake::new();
    let recording = Recording::new();
    let stores = Arc::new(RecordedStores::new(Arc::new(SystemStores::new()), Arc::clone(&recording)));
    let served = Served::over(stores, PullSettings { endpoints: 1, ..PullSettings::default() }).await;
    wide(&served, &lake, 40, 2 << 20).await;
    let mut client = served.client();
    let info = client.get_flight_info(flight("batch:p/r1")).await.unwrap();
    let other = client.get_flight_info(flight("table:p")).await.unwrap();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let mut stream = client.do_get(ticket.clone()).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().num_rows(), 1);

    let cancelled = client.cancel_flight_info(CancelFlightInfoRequest::new(info)).await.unwrap();
    assert_eq!(cancelled.status, CancelStatus::Cancelled as i32);
    let mut rows = 1;
    let error = loop {
        match stream.next().await.expect("a cancelled stream does not look like a whole one") {
            Ok(batch) => rows += batch.num_rows(),
            Err(error) => break told::<()>(Err(error)),
        }
    };
    assert!(error.starts_with("Cancelled") && error.contains("was cancelled"), "{error}");
    assert!(rows < 40, "{rows} rows came");
    let again = told(client.do_get(ticket).await);
    assert!(again.starts_with("Cancelled"), "{again}");
    // Another pull of the same rows is not concerned.
    files_read(&recording);
    assert_eq!(pull(&client, &other).await.len(), 40);
    assert_eq!(files_read(&recording).len(), 40, "and it alone has read since");
    let none = client.cancel_flight_info(CancelFlightInfoRequest::new(FlightInfo::new())).await.unwrap();
    assert_eq!(none.status, CancelStatus::NotCancellable as i32);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_its_client_drops_stops_reading_files() {
    let lake = Lake::new();
    let recording = Recording::new();
    let stores = Arc::new(RecordedStores::new(Arc::new(SystemStores::new()), Arc::clone(&recording)));
    let served = Served::over(stores, PullSettings { endpoints: 1, ..PullSettings::default() }).await;
    wide(&served, &lake, 40, 2 << 20).await;
    let mut client = served.client();
    let info = client.get_flight_info(flight("batch:p/r1")).await.unwrap();
    files_read(&recording);
    let mut stream = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().num_rows(), 1);
    drop((stream, client));
    // Nothing of the server is left once it has stopped, so nothing can be read later.
    served.server.stop(Duration::from_secs(10)).await;
    let read = files_read(&recording).len();
    assert!((1..40).contains(&read), "{read} of 40 files were read");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_ten_megabytes_are_pulled_from_a_target() {
    let lake = Lake::new();
    let served = Served::start().await;
    wide(&served, &lake, 3, 10 << 20).await;
    let mut client = served.client();
    for name in ["batch:p/r1", "table:p"] {
        let info = client.get_flight_info(flight(name)).await.unwrap();
        let pulled = pull(&client, &info).await;
        let mut lengths = Vec::new();
        for batch in &pulled {
            let text = batch.column_by_name("text").unwrap();
            let text = text.as_any().downcast_ref::<arrow::array::StringArray>().unwrap();
            lengths.extend(text.iter().map(|text| text.unwrap().len()));
        }
        assert_eq!(lengths, [10 << 20; 3], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_batch_is_polled_until_it_can_be_pulled() {
    let lake = Lake::new();
    let hold = Hold::of(".parquet");
    let quick = PullSettings { poll_wait: Duration::from_millis(1), ..PullSettings::default() };
    let making = Served::start().await;
    source(&making, &lake).await;
    let stores = Arc::new(HeldStores::new(Arc::new(SystemStores::new()), Arc::clone(&hold)));
    let served = Served::over(stores, quick).await;
    let started = served.roles.coordinator.run_batch(request_of(&job(&lake, SQL), "r1")).await.unwrap();
    hold.reached(1).await;
    let mut client = served.client();
    let poll = client.poll_flight_info(flight("batch:p/r1")).await.unwrap();
    let again = poll.flight_descriptor.expect("it runs");
    assert!(poll.info.unwrap().endpoint.is_empty());
    assert!(poll.progress.is_some_and(|progress| progress > 0.0 && progress < 1.0));
    let early = told(client.get_flight_info(flight("batch:p/r1")).await);
    assert!(early.starts_with("FailedPrecondition") && early.contains("still running"), "{early}");
    hold.release();
    let mut watch = served.roles.coordinator.watch_batch(&started.name).await.unwrap();
    watch.wait_for(|status| status.outcome.is_some()).await.unwrap();
    let poll = client.poll_flight_info(again).await.unwrap();
    assert_eq!((poll.flight_descriptor, poll.progress), (None, Some(1.0)));
    assert_eq!(pull(&client, &poll.info.unwrap()).await.iter().map(RecordBatch::num_rows).sum::<usize>(), 24);
    let unknown = told(client.poll_flight_info(flight("batch:p/nobody")).await);
    assert!(unknown.starts_with("NotFound"), "{unknown}");
}
