// SPDX-License-Identifier: Apache-2.0

use std::sync::Mutex;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tributary_api::checkpoint::CursorCommit;
use tributary_api::coordinator::{
    BatchStatus, Error as BatchError, OpenedBatch, OverrideStatus, PlannedBatch, RunRequest, Written,
};
use tributary_rpc::{CoordinatorClient, connect_lazily};
use tributary_types::pipeline::Pipeline;
use tributary_types::{Code, Outcome, Override, PipelineName, RequestId, Retry, Stage};

use super::*;

/// Batches of this coordinator run until the test ends them.
#[derive(Default)]
struct Held {
    batches: Mutex<Vec<watch::Sender<BatchStatus>>>,
    cancelled: Mutex<Vec<BatchName>>,
}

impl Held {
    fn end_all(&self) {
        for batch in self.batches.lock().unwrap().iter() {
            batch.send_modify(|status| {
                status.stage = Stage::Done;
                status.outcome = Some(Outcome::Committed);
            });
        }
    }
}

#[async_trait]
impl Coordinator for Held {
    async fn run_batch(&self, request: RunRequest) -> Result<BatchStatus, BatchError> {
        let status = BatchStatus {
            name: BatchName::new(format!("{}/{}", request.pipeline.name, request.request)).unwrap(),
            pipeline: request.pipeline.name,
            request: request.request,
            asked_by: request.asked_by,
            stage: Stage::Merge,
            outcome: None,
            instant: None,
            completed: None,
            seq: None,
            sources: Vec::new(),
            overrides: Vec::new(),
            written: Written::default(),
            refused: Default::default(),
            timings: Vec::new(),
            peak_memory: 0,
            error: None,
            started_millis: 0,
        };
        self.batches.lock().unwrap().push(watch::channel(status.clone()).0);
        Ok(status)
    }

    async fn get_batch(&self, name: &BatchName) -> Result<BatchStatus, BatchError> {
        Err(BatchError::NoBatch { name: name.to_string() })
    }

    async fn list_batches(&self, _: Option<&PipelineName>, _: usize) -> Result<Vec<BatchStatus>, BatchError> {
        Ok(self.batches.lock().unwrap().iter().map(|batch| batch.borrow().clone()).collect())
    }

    async fn watch_batch(&self, _: &BatchName) -> Result<watch::Receiver<BatchStatus>, BatchError> {
        Ok(self.batches.lock().unwrap()[0].subscribe())
    }

    async fn cancel_batch(&self, name: &BatchName) -> Result<BatchStatus, BatchError> {
        self.cancelled.lock().unwrap().push(name.clone());
        Ok(self.batches.lock().unwrap()[0].borrow().clone())
    }

    async fn check_overrides(&self, _: Pipeline, _: Vec<Override>) -> Result<Vec<OverrideStatus>, BatchError> {
        Ok(Vec::new())
    }

    async fn get_cursors(&self, _: &PipelineName, _: &str) -> Result<Option<CursorCommit>, BatchError> {
        Ok(None)
    }

    async fn plan_batch(&self, pipeline: Pipeline, _: Vec<Override>) -> Result<PlannedBatch, BatchError> {
        Err(BatchError::Pipeline { pipeline: pipeline.name.to_string(), problems: Vec::new() })
    }

    async fn open_batch(&self, name: &BatchName) -> Result<OpenedBatch, BatchError> {
        Err(BatchError::NoBatch { name: name.to_string() })
    }
}

fn request(id: &str) -> RunRequest {
    let pipeline: Pipeline = toml::from_str(
        "name = \"p\"\n[[source]]\nname = \"s\"\npath = \"/s\"\n[target]\npath = \"/t\"\ntable_name = \"t\"\nrecord_key = [\"id\"]\n",
    )
    .unwrap();
    RunRequest {
        pipeline,
        request: RequestId::new(id).unwrap(),
        allow_empty: false,
        overrides: Vec::new(),
        cursors_only: false,
        asked_by: String::new(),
    }
}

fn hosted(held: &Arc<Held>) -> Hosted {
    Hosted { coordinator: Some(Arc::clone(held) as Arc<dyn Coordinator>), ..Hosted::default() }
}

async fn serve_held() -> (Arc<Held>, Server, String) {
    let held = Arc::new(Held::default());
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle();
    let options =
        Options { listen: any, http: Some(any), metrics: Some(metrics), peers: Vec::new(), pulls: Default::default() };
    let server = start(hosted(&held), options).await.unwrap();
    let url = format!("http://{}", server.address());
    (held, server, url)
}

async fn http_get(address: SocketAddr, path: &str) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let text = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    connection.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn port_zero_takes_a_free_port_and_everything_answers_on_it() {
    let (_, server, url) = serve_held().await;
    assert_ne!(server.address().port(), 0);
    let channel = connect_lazily(&url).unwrap();

    let status = HealthClient::new(channel.clone())
        .check(HealthCheckRequest { service: COORDINATOR_SERVICE.to_string() })
        .await
        .unwrap();
    assert_eq!(status.into_inner().status, ServingStatus::Serving as i32);

    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = ServerReflectionClient::new(channel.clone())
        .server_reflection_info(futures::stream::iter([list]))
        .await
        .unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else { panic!("{answer:?}") };
    let names: Vec<&str> = services.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&COORDINATOR_SERVICE) && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("merge")), "a role that does not run here: {names:?}");

    let client = CoordinatorClient::new(channel, url);
    assert_eq!(client.run_batch(request("r")).await.unwrap().name.as_str(), "p/r");

    let http = server.http_address().unwrap();
    assert!(http_get(http, "/livez").await.starts_with("HTTP/1.1 200"));
    assert!(http_get(http, "/readyz").await.ends_with("ready\n"));
    assert!(http_get(http, "/metrics").await.starts_with("HTTP/1.1 200"));
    assert!(http_get(http, "/nope").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn a_stopping_server_lets_running_batches_finish_and_starts_none() {
    let (held, server, url) = serve_held().await;
    let client = CoordinatorClient::new(connect_lazily(&url).unwrap(), url.clone());
    client.run_batch(request("r")).await.unwrap();
    let mut health = HealthClient::new(connect_lazily(&url).unwrap());
    let mut watching = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watching.message().await.unwrap().unwrap().status, ServingStatus::Serving as i32);
    let http = server.http_address().unwrap();

    let stopping = tokio::spawn(server.stop(Duration::from_secs(30)));
    assert_eq!(watching.message().await.unwrap().unwrap().status, ServingStatus::NotServing as i32);
    let refused = loop {
        // The gate closes a moment after the health changes.
        if let Err(error) = client.run_batch(request("late")).await {
            break error;
        }
    };
    assert!(refused.to_string().contains("is stopping"), "{refused}");
    assert!(matches!(refused, BatchError::Other { code: Code::Unavailable, retry: Retry::Again, .. }));
    assert!(http_get(http, "/readyz").await.starts_with("HTTP/1.1 503"));
    assert!(!stopping.is_finished());

    held.end_all();
    assert!(stopping.await.unwrap().unfinished.is_empty());
    assert!(TcpStream::connect(url.trim_start_matches("http://")).await.is_err());
}

#[tokio::test]
async fn a_batch_that_outlasts_the_drain_time_is_cancelled_and_named() {
    let (held, server, url) = serve_held().await;
    let client = CoordinatorClient::new(connect_lazily(&url).unwrap(), url);
    client.run_batch(request("slow")).await.unwrap();
    let stopped = server.stop(Duration::from_millis(100)).await;
    assert_eq!(held.cancelled.lock().unwrap().len(), 1);
    assert_eq!(stopped.unfinished.iter().map(BatchName::as_str).collect::<Vec<_>>(), ["p/slow"]);
}

/// The type and the content of the next frame of HTTP/2.
async fn next_frame(connection: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    connection.read_exact(&mut head).await.unwrap();
    let mut content = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    connection.read_exact(&mut content).await.unwrap();
    (head[3], content)
}

#[tokio::test]
async fn a_connection_is_told_its_limits_and_begins_anew_when_it_is_old_while_what_runs_on_it_goes_on() {
    let (streams, age) = (7, Some(Duration::from_millis(200)));
    let security = Security { streams, age, ..Security::default() };
    let held = Arc::new(Held::default());
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        http: None,
        metrics: None,
        peers: Vec::new(),
        pulls: PullOptions::default(),
    };
    let server = start_secured(hosted(&held), options, security).await.unwrap();
    let url = format!("http://{}", server.address());
    let client = CoordinatorClient::new(connect_lazily(&url).unwrap(), url);
    let started = client.run_batch(request("r")).await.unwrap();
    let mut watching = client.watch_batch(&started.name).await.unwrap();

    let mut raw = TcpStream::connect(server.address()).await.unwrap();
    raw.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let (kind, settings) = next_frame(&mut raw).await;
    // The third setting is how many streams there may be.
    assert!(kind == 4 && settings.chunks(6).any(|one| one == [0, 3, 0, 0, 0, 7]), "{settings:?}");
    // The seventh kind of frame asks to go away.
    while next_frame(&mut raw).await.0 != 7 {}

    // Older than the connection may be by now: what runs on it goes on. The first call that finds it so may have to be
    // sent again, and begins on a new one.
    while let Err(error) = client.run_batch(request("r2")).await {
        assert!(matches!(error, BatchError::Unreachable { .. }), "{error:?}");
    }
    held.end_all();
    watching.wait_for(|status| status.outcome.is_some()).await.unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let (_, server, _) = serve_held().await;
    let options =
        Options { listen: server.address(), http: None, metrics: None, peers: Vec::new(), pulls: Default::default() };
    let refused = start(hosted(&Arc::new(Held::default())), options).await.err().unwrap();
    assert_eq!(refused.to_string(), format!("cannot listen on {}", server.address()));
}

/// A server of the merge role alone, asked by another one that calls it.
async fn serve_with_peer(address: &str) -> (Server, Peer) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let channel = connect_lazily(address).unwrap();
    let peer = Peer { role: Role::Merge, address: address.to_string(), channel };
    let options =
        Options { listen: any, http: Some(any), metrics: None, peers: vec![peer.clone()], pulls: Default::default() };
    (start(hosted(&Arc::default()), options).await.unwrap(), peer)
}

async fn ready_within(http: SocketAddr, limit: Duration, wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + limit;
    loop {
        let answer = http_get(http, "/readyz").await;
        if wanted(&answer) || Instant::now() > deadline {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn readiness_names_a_role_elsewhere_that_is_down_and_follows_it() {
    let (server, peer) = serve_with_peer("http://127.0.0.1:1").await;
    let http = server.http_address().unwrap();
    let answer = ready_within(http, Duration::from_secs(10), |answer| answer.contains("refused")).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("the merge role is down: http://127.0.0.1:1: "), "{answer}");
    assert_eq!(peer.role, Role::Merge);

    let merge = start(
        Hosted::default(),
        Options {
            listen: "127.0.0.1:0".parse().unwrap(),
            http: None,
            metrics: None,
            peers: Vec::new(),
            pulls: Default::default(),
        },
    )
    .await
    .unwrap();
    // No merge role runs there, and health says so by service.
    let url = format!("http://{}", merge.address());
    let (server, _) = serve_with_peer(&url).await;
    let http = server.http_address().unwrap();
    let answer = ready_within(http, Duration::from_secs(10), |answer| !answer.contains("not asked")).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("the merge role is down"), "{answer}");

    merge.health.set_service_status("tributary.merge.v1.MergeService", ServingStatus::Serving).await;
    let answer = ready_within(http, Duration::from_secs(10), |answer| answer.starts_with("HTTP/1.1 200")).await;
    assert!(answer.ends_with("ready\n"), "{answer}");
    merge.stop(Duration::ZERO).await;
    let answer = ready_within(http, Duration::from_secs(10), |answer| answer.starts_with("HTTP/1.1 503")).await;
    assert!(answer.contains(&url), "{answer}");
}
