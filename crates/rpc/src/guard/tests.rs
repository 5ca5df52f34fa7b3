// SPDX-License-Identifier: Apache-2.0
//! What a hostile client tries, against a server on a real port.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Criteria, FlightDescriptor};
use futures::{StreamExt, TryStreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Code, Status};
use tributary_api::coordinator::{Coordinator, RunRequest};
use tributary_security::secret::token_hash;
use tributary_security::{AuthFile, Certificates, ClusterKey, Secret, SecretSource, Watched};
use tributary_types::{Clock, RequestId, Retry};

use super::*;
use crate::channel::{Channel, Dial, connect_with};
use crate::flight::STAGE_PATH;
use crate::proto::coordinator as proto;
use crate::testing::{MemoryCoordinator, pipeline};
use crate::{AcceptLimits, CoordinatorClient, CoordinatorServer, FlightServer, Incoming};
use proto::coordinator_service_client::CoordinatorServiceClient;

mod names;

struct Hand(AtomicI64);

impl Clock for Hand {
    fn now_millis(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// A server that asks, with a file of principals: each token is the principal's name.
struct Asked {
    address: std::net::SocketAddr,
    clock: Arc<Hand>,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

fn principals(more: &str) -> String {
    let one = |name: &str, role: &str, pipelines: &str| {
        let hash = token_hash(name);
        format!(
            "[[principal]]\nname = \"{name}\"\nrole = \"{role}\"\npipelines = {pipelines}\ntoken_sha256 = [\"{hash}\"]\n\
             expires = 2027-01-01T00:00:00Z\n"
        )
    };
    [
        one("reads-all", "reader", "[\"*\"]"),
        one("reads-orders", "reader", "[\"orders*\"]"),
        one("runs-orders", "operator", "[\"orders*\"]"),
        one("admin", "admin", "[\"*\"]"),
        more.to_string(),
    ]
    .concat()
}

impl Asked {
    async fn start(limits: GuardLimits, prefixes: &[&str]) -> Asked {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth.toml");
        std::fs::write(&file, principals("")).unwrap();
        let path = file.clone();
        let watched = Watched::open("principals", vec![file.clone()], move || AuthFile::load(&path)).unwrap();
        let clock = Arc::new(Hand(AtomicI64::new(1_790_000_000_000)));
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as Arc<dyn Clock>;
        let key = ClusterKey::new(&Secret::new(KEY)).unwrap();
        let tickets = Tickets::shared(&key, Duration::from_secs(60), Arc::clone(&shared));
        let certificates = Certificates::Ignored;
        let authenticator = Authenticator::new(Some(Arc::new(watched)), Some(key), certificates, shared);
        let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
        let guard = Guard::open(limits, Prefixes::new(&prefixes).unwrap()).asking(authenticator, tickets);
        let address = serve(guard, AcceptLimits::default()).await;
        Asked { address, clock, file, _folder: folder }
    }

    fn channel(&self, token: Option<&str>) -> Channel {
        let token = token.map(|token| SecretSource::Fixed(Secret::new(token)));
        connect_with(&format!("http://{}", self.address), &Dial { token, ..Dial::default() }).unwrap()
    }

    /// A channel of another process of a server with this key.
    fn peer(&self, key: &str) -> Channel {
        let key = ClusterKey::new(&Secret::new(key)).unwrap();
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let tickets = Tickets::shared(&key, Duration::from_secs(60), clock);
        self.channel(None).with(Some(SecretSource::Fixed(key.token().clone())), Some(tickets))
    }

    fn calls(&self, token: &str) -> CoordinatorServiceClient<Channel> {
        CoordinatorServiceClient::new(self.channel(Some(token)))
    }

    fn flight(&self, token: &str) -> FlightServiceClient<Channel> {
        FlightServiceClient::new(self.channel(Some(token)))
    }

    /// A batch that committed.
    async fn batch(&self, pipeline_name: &str) -> String {
        let client = CoordinatorClient::new(self.channel(Some("admin")), "x");
        let request = RunRequest {
            pipeline: pipeline(pipeline_name),
            request: RequestId::new("r").unwrap(),
            allow_empty: false,
            overrides: Vec::new(),
            cursors_only: false,
            asked_by: "a test".to_string(),
        };
        let started = client.run_batch(request).await.unwrap();
        let mut watch = client.watch_batch(&started.name).await.unwrap();
        watch.wait_for(|status| status.outcome.is_some()).await.unwrap();
        started.name.to_string()
    }
}

async fn serve(guard: Guard, accept: AcceptLimits) -> std::net::SocketAddr {
    let coordinator: Arc<dyn Coordinator> = Arc::new(MemoryCoordinator::default());
    let flight = FlightServer::new().with_coordinator(Arc::clone(&coordinator));
    let routes = Routes::new(CoordinatorServer::new(coordinator)).add_service(flight.into_service());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = Incoming::new(listener, None, accept);
    let server = Server::builder().http2_max_header_list_size(32 << 10).layer(guard.layer()).add_routes(routes);
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

fn reason(status: &Status) -> String {
    let fault = crate::fault::fault_of(status).unwrap_or_else(|| panic!("no details: {status:?}"));
    fault.reason
}

fn assert_refused(status: &Status, code: Code, wanted: &str) {
    assert_eq!((status.code(), reason(status).as_str()), (code, wanted), "{}", status.message());
}

fn named(name: &str) -> proto::GetBatchRequest {
    proto::GetBatchRequest { name: name.to_string() }
}

fn run_request(name: &str) -> proto::RunBatchRequest {
    let pipeline = Some(crate::convert::pipeline_to_proto(&pipeline(name)));
    proto::RunBatchRequest { pipeline, request_id: "r2".to_string(), ..Default::default() }
}

#[tokio::test]
async fn whoever_is_not_known_is_told_so_and_why() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let ask = async |channel: Channel| CoordinatorServiceClient::new(channel).get_batch(named("orders/r")).await;
    assert_refused(&ask(server.channel(None)).await.unwrap_err(), Code::Unauthenticated, "CREDENTIALS_MISSING");
    let unknown = ask(server.channel(Some("nobodys-token"))).await.unwrap_err();
    assert_refused(&unknown, Code::Unauthenticated, "TOKEN_UNKNOWN");
    assert!(!unknown.message().contains("nobodys-token"));
    assert_eq!(crate::fault::fault_of(&unknown).unwrap().retry, crate::convert::WireEnum::to_wire(Retry::Never));
    // Known: the answer is the role's own.
    assert_refused(&ask(server.channel(Some("reads-all"))).await.unwrap_err(), Code::NotFound, "BATCH_NOT_FOUND");

    server.clock.0.store(1_900_000_000_000, Ordering::SeqCst);
    let expired = ask(server.channel(Some("reads-all"))).await.unwrap_err();
    assert_refused(&expired, Code::Unauthenticated, "TOKEN_EXPIRED");
}

#[tokio::test]
async fn a_revoked_token_is_refused_on_the_connection_that_it_was_used_on() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let mut calls = server.calls("reads-all");
    assert_eq!(calls.get_batch(named("orders/r")).await.unwrap_err().code(), Code::NotFound);
    std::fs::write(&server.file, principals("").replace(&token_hash("reads-all"), &token_hash("another"))).unwrap();
    assert_refused(&calls.get_batch(named("orders/r")).await.unwrap_err(), Code::Unauthenticated, "TOKEN_UNKNOWN");
    assert_eq!(server.calls("another").get_batch(named("orders/r")).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn credentials_of_another_kind_or_twice_are_refused() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let mut calls = CoordinatorServiceClient::new(server.channel(None));
    for values in [vec!["Basic cmVhZHMtYWxs"], vec!["reads-all"], vec!["Bearer reads-all", "Bearer admin"]] {
        let mut request = tonic::Request::new(named("orders/r"));
        for value in values {
            request.metadata_mut().append("authorization", value.parse().unwrap());
        }
        let refused = calls.get_batch(request).await.unwrap_err();
        assert_refused(&refused, Code::Unauthenticated, "TOKEN_INVALID");
    }
    let mut request = tonic::Request::new(named("orders/r"));
    request.metadata_mut().insert("authorization", "bearer reads-all".parse().unwrap());
    assert_eq!(calls.get_batch(request).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_role_on_some_pipelines_is_none_on_others_and_none_above_itself() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let orders = server.batch("orders").await;
    let users = server.batch("users").await;
    let mut reader = server.calls("reads-orders");
    assert!(reader.get_batch(named(&orders)).await.is_ok());
    let denied = reader.get_batch(named(&users)).await.unwrap_err();
    assert_refused(&denied, Code::PermissionDenied, "ROLE_MISSING");
    for told in ["`reads-orders`", "GetBatch", "pipeline `users`", "role `reader`"] {
        assert!(denied.message().contains(told), "{}", denied.message());
    }
    // One that is not there is not told from one that is.
    let absent = reader.get_batch(named("payments/r")).await.unwrap_err();
    assert_refused(&absent, Code::PermissionDenied, "ROLE_MISSING");
    let denied = reader.run_batch(run_request("orders")).await.unwrap_err();
    assert_refused(&denied, Code::PermissionDenied, "ROLE_MISSING");
    let cancel = proto::CancelBatchRequest { name: orders.clone() };
    assert_eq!(reader.cancel_batch(cancel.clone()).await.unwrap_err().code(), Code::PermissionDenied);
    let watch = proto::WatchBatchRequest { name: users.clone() };
    assert_eq!(reader.watch_batch(watch).await.unwrap_err().code(), Code::PermissionDenied);

    let mut operator = server.calls("runs-orders");
    let started = operator.run_batch(run_request("orders")).await.unwrap().into_inner().batch.unwrap();
    assert_eq!(started.asked_by, "as runs-orders from 127.0.0.1", "the history says who it was");
    assert!(operator.cancel_batch(cancel).await.is_ok());
    assert_eq!(operator.run_batch(run_request("users")).await.unwrap_err().code(), Code::PermissionDenied);

    // All pipelines are shown to those who may see all.
    let list = |pipeline: &str| proto::ListBatchesRequest { pipeline: pipeline.to_string(), ..Default::default() };
    assert_eq!(reader.list_batches(list("")).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(reader.list_batches(list("orders")).await.unwrap().into_inner().batches.len(), 2);
    assert_eq!(server.calls("reads-all").list_batches(list("")).await.unwrap().into_inner().batches.len(), 3);
}

#[tokio::test]
async fn what_roles_offer_each_other_is_not_for_clients_and_the_other_way_round() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    // The timeline role does not run here, so whoever is let in learns that.
    let describe = async |channel: Channel| {
        let mut calls = crate::proto::timeline::timeline_service_client::TimelineServiceClient::new(channel);
        calls.get_table(crate::proto::timeline::GetTableRequest { url: "/t".to_string() }).await.unwrap_err()
    };
    assert_refused(&describe(server.channel(Some("admin"))).await, Code::PermissionDenied, "ROLE_MISSING");
    assert_refused(
        &describe(server.peer("another key, another key, another")).await,
        Code::Unauthenticated,
        "TOKEN_UNKNOWN",
    );
    assert_eq!(describe(server.peer(KEY)).await.code(), Code::Unimplemented);
    let mut peer = CoordinatorServiceClient::new(server.peer(KEY));
    assert_refused(&peer.get_batch(named("orders/r")).await.unwrap_err(), Code::PermissionDenied, "ROLE_MISSING");
}

#[tokio::test]
async fn a_method_without_a_rule_may_be_called_by_nobody() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let mut grpc = tonic::client::Grpc::new(server.channel(Some("admin")));
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/tributary.coordinator.v1.CoordinatorService/DropEverything");
    let codec = tonic_prost::ProstCodec::<proto::GetBatchRequest, proto::Batch>::default();
    let refused = grpc.unary(tonic::Request::new(named("x")), path, codec).await.unwrap_err();
    assert_refused(&refused, Code::PermissionDenied, "METHOD_UNLISTED");
}

async fn ticket_of(server: &Asked, token: &str, batch: &str) -> Ticket {
    let descriptor = FlightDescriptor::new_path(vec![format!("batch:{batch}")]);
    let info = server.flight(token).get_flight_info(descriptor).await.unwrap().into_inner();
    let endpoint = &info.endpoint[0];
    assert!(endpoint.expiration_time.is_some());
    endpoint.ticket.clone().unwrap()
}

async fn redeem(server: &Asked, token: &str, ticket: Ticket) -> Result<usize, Status> {
    let rows = server.flight(token).do_get(ticket).await?.into_inner();
    Ok(rows.try_collect::<Vec<_>>().await?.len())
}

#[tokio::test]
async fn a_ticket_is_good_for_whom_it_was_made_until_it_expires() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let batch = server.batch("orders").await;
    let ticket = ticket_of(&server, "reads-orders", &batch).await;
    assert!(redeem(&server, "reads-orders", ticket.clone()).await.unwrap() > 1);
    assert!(redeem(&server, "reads-orders", ticket.clone()).await.is_ok(), "a broken stream can be read again");
    let foreign = redeem(&server, "reads-all", ticket.clone()).await.unwrap_err();
    assert_refused(&foreign, Code::PermissionDenied, "TICKET_INVALID");
    for at in [0, 20, 60, ticket.ticket.len() - 1] {
        let mut bytes = ticket.ticket.to_vec();
        bytes[at] ^= 1;
        let changed = redeem(&server, "reads-orders", Ticket::new(bytes)).await.unwrap_err();
        assert_refused(&changed, Code::PermissionDenied, "TICKET_INVALID");
    }
    // Made by hand.
    for raw in ["split:", "query:", "", "Batch:orders/r"] {
        let unsigned = redeem(&server, "admin", Ticket::new(raw)).await.unwrap_err();
        assert_refused(&unsigned, Code::PermissionDenied, "TICKET_INVALID");
    }
    // The name of a flight is no ticket: it takes the role.
    let name = format!("batch:{batch}");
    assert!(redeem(&server, "reads-orders", Ticket::new(name.clone())).await.is_ok());
    server.batch("users").await;
    let denied = redeem(&server, "reads-orders", Ticket::new("batch:users/r")).await.unwrap_err();
    assert_refused(&denied, Code::PermissionDenied, "ROLE_MISSING");
    let denied = redeem(&server, "reads-orders", Ticket::new("table:/t@20250606182826197")).await.unwrap_err();
    assert_refused(&denied, Code::PermissionDenied, "ROLE_MISSING");
    server.clock.0.fetch_add(60_000, Ordering::SeqCst);
    let expired = redeem(&server, "reads-orders", ticket).await.unwrap_err();
    assert_refused(&expired, Code::FailedPrecondition, "TICKET_EXPIRED");
}

#[tokio::test]
async fn a_ticket_outlives_no_role_and_listed_flights_have_good_ones() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let batch = server.batch("orders").await;
    let ticket = ticket_of(&server, "reads-orders", &batch).await;
    let listed = server.flight("reads-all").list_flights(Criteria::default()).await.unwrap().into_inner();
    let listed: Vec<FlightInfo> = listed.try_collect().await.unwrap();
    let of_list = listed[0].endpoint[0].ticket.clone().unwrap();
    assert!(redeem(&server, "reads-all", of_list).await.is_ok());
    let all = server.flight("reads-orders").list_flights(Criteria::default()).await.unwrap_err();
    assert_refused(&all, Code::PermissionDenied, "ROLE_MISSING");

    std::fs::write(&server.file, principals("").replace("[\"orders*\"]", "[\"other\"]")).unwrap();
    assert_refused(&redeem(&server, "reads-orders", ticket).await.unwrap_err(), Code::PermissionDenied, "ROLE_MISSING");
}

#[tokio::test]
async fn a_ticket_is_renewed_and_its_pull_ended_by_whom_it_was_made_for() {
    let server = Asked::start(GuardLimits::default(), &[]).await;
    let batch = server.batch("orders").await;
    let descriptor = FlightDescriptor::new_path(vec![format!("batch:{batch}")]);
    let info = server.flight("reads-orders").get_flight_info(descriptor).await.unwrap().into_inner();
    let renew = arrow_flight::RenewFlightEndpointRequest { endpoint: Some(info.endpoint[0].clone()) };
    let renew = Action::new("RenewFlightEndpoint", renew.encode_to_vec());
    let foreign = server.flight("reads-all").do_action(renew.clone()).await.unwrap_err();
    assert_refused(&foreign, Code::PermissionDenied, "TICKET_INVALID");
    // Opened, and found to be one that needs no renewal.
    let own = server.flight("reads-orders").do_action(renew).await.unwrap_err();
    assert!(own.message().contains("never expires"), "{own:?}");
    let cancel = arrow_flight::CancelFlightInfoRequest { info: Some(info) };
    let cancel = Action::new("CancelFlightInfo", cancel.encode_to_vec());
    assert!(server.flight("reads-orders").do_action(cancel).await.is_ok(), "a role on its pipeline is enough");
}

#[test]
fn the_ticket_of_a_renewed_endpoint_is_signed_on_its_way_out() {
    let clock: Arc<dyn Clock> = Arc::new(Hand(AtomicI64::new(1_790_000_000_000)));
    let tickets = Tickets::shared(&ClusterKey::new(&Secret::new(KEY)).unwrap(), Duration::from_secs(60), clock);
    let bound = Bound { principal: "p".to_string(), role: Role::Reader, scope: Scope::Pipeline("orders".to_string()) };
    let endpoint = arrow_flight::FlightEndpoint { ticket: Some(Ticket::new("pull:x")), ..Default::default() };
    let answer = arrow_flight::Result::new(endpoint.encode_to_vec()).encode_to_vec();
    let signed = sign(&answer, &tickets, &bound, Answers::Renewed).unwrap();
    let signed = arrow_flight::Result::decode(signed.as_slice()).unwrap();
    let ticket = arrow_flight::FlightEndpoint::decode(signed.body).unwrap().ticket.unwrap();
    let (opened, payload) = tickets.open(&ticket.ticket).unwrap();
    assert_eq!((opened, payload), (bound, b"pull:x".as_slice()));
}

#[tokio::test]
async fn questions_about_everything_take_a_role_on_everything() {
    let server = Asked::start(GuardLimits::default(), &["s3://lake"]).await;
    let sql = FlightDescriptor::new_cmd("SELECT * FROM secrets".as_bytes().to_vec());
    let denied = server.flight("reads-orders").get_flight_info(sql.clone()).await.unwrap_err();
    assert_refused(&denied, Code::PermissionDenied, "ROLE_MISSING");
    // Let in, and not offered by this server.
    assert_eq!(server.flight("reads-all").get_flight_info(sql).await.unwrap_err().code(), Code::InvalidArgument);
    let table = FlightDescriptor::new_path(vec!["table:orders@20250606182826197".to_string()]);
    let refused = server.flight("reads-orders").get_flight_info(table).await.unwrap_err();
    assert_refused(&refused, Code::PermissionDenied, "ROLE_MISSING");
    let action = Action::new("anything", "");
    assert_eq!(server.flight("reads-orders").do_action(action).await.unwrap_err().code(), Code::PermissionDenied);
    // Rows to stage come from roles only, and signed.
    let stage = |metadata: &'static [u8]| {
        let descriptor = FlightDescriptor::new_path(vec![STAGE_PATH.to_string()]);
        futures::stream::iter([FlightData::new().with_descriptor(descriptor).with_app_metadata(metadata)])
    };
    let denied = server.flight("admin").do_put(stage(b"")).await.unwrap_err();
    assert_refused(&denied, Code::PermissionDenied, "ROLE_MISSING");
    let mut unsigned = FlightServiceClient::new(
        server
            .peer(KEY)
            .with(Some(SecretSource::Fixed(ClusterKey::new(&Secret::new(KEY)).unwrap().token().clone())), None),
    );
    assert_refused(&unsigned.do_put(stage(b"")).await.unwrap_err(), Code::PermissionDenied, "TICKET_INVALID");
    let mut signed = FlightServiceClient::new(server.peer(KEY));
    assert_eq!(signed.do_put(stage(b"")).await.unwrap_err().code(), Code::Unimplemented, "no writer runs here");
}

#[tokio::test]
async fn locations_outside_of_the_prefixes_are_refused_wherever_they_come_in() {
    let server = Asked::start(GuardLimits::default(), &["s3://lake/tables"]).await;
    let mut calls = server.calls("admin");
    let with = |source: &str, target: &str| {
        let mut pipeline = crate::convert::pipeline_to_proto(&pipeline("orders"));
        for one in &mut pipeline.sources {
            one.kind = proto::SourceKind::Hudi as i32;
            one.path = source.to_string();
        }
        pipeline.target.as_mut().unwrap().path = target.to_string();
        Some(pipeline)
    };
    let (good, good_target) = ("s3://lake/tables/orders", "s3://lake/tables/out");
    for (source, target) in [
        ("s3://lake/other", good_target),
        (good, "s3://lake/tables/../other"),
        (good, "s3://lake/tables/%2e%2e/other"),
        (good, "s3://me:hunter2@lake/tables/out"),
        ("/etc/passwd", good_target),
        ("file:///etc", good_target),
        (good, ""),
    ] {
        let run = proto::RunBatchRequest { pipeline: with(source, target), ..run_request("orders") };
        let refused = calls.run_batch(run).await.unwrap_err();
        assert_refused(&refused, Code::PermissionDenied, "LOCATION_REFUSED");
        assert!(!refused.message().contains("hunter2"), "{}", refused.message());
        let plan = proto::PlanBatchRequest { pipeline: with(source, target), ..Default::default() };
        assert_refused(&calls.plan_batch(plan).await.unwrap_err(), Code::PermissionDenied, "LOCATION_REFUSED");
        let set = proto::SetCursorRequest { pipeline: with(source, target), ..Default::default() };
        assert_refused(&calls.set_cursor(set).await.unwrap_err(), Code::PermissionDenied, "LOCATION_REFUSED");
    }
    let cursors = proto::GetCursorsRequest { pipeline: "p".to_string(), target: "/etc".to_string() };
    assert_refused(&calls.get_cursors(cursors).await.unwrap_err(), Code::PermissionDenied, "LOCATION_REFUSED");
}

#[tokio::test]
async fn oversized_and_malformed_messages_are_refused_and_the_server_goes_on() {
    let limits = GuardLimits { request_size: 64 << 10, ..GuardLimits::default() };
    let server = Asked::start(limits, &[]).await;
    let mut calls = server.calls("admin");
    let mut large = run_request("orders");
    large.pipeline.as_mut().unwrap().transforms =
        vec![proto::Transform { sql: Some("x".repeat(65 << 10)), ..Default::default() }];
    let refused = calls.run_batch(large).await.unwrap_err();
    assert_refused(&refused, Code::ResourceExhausted, "REQUEST_TOO_LARGE");

    let raw = async |bytes: Vec<u8>| {
        let body = Body::new(http_body_util::Full::new(Bytes::from(bytes)));
        let path = "/tributary.coordinator.v1.CoordinatorService/GetBatch";
        let request = Request::post(format!("http://{}{path}", server.address))
            .header("content-type", "application/grpc")
            .body(body)
            .unwrap();
        let mut channel = server.channel(Some("admin"));
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        let answer = channel.call(request).await.unwrap();
        Status::from_header_map(answer.headers()).unwrap()
    };
    for bytes in [
        vec![],
        vec![0],
        vec![0, 0, 0, 0, 9, 1],
        vec![1, 0, 0, 0, 0],
        vec![0, 0, 0, 0, 2, 0xff, 0xff],
        [messages::framed(b"").to_vec(), messages::framed(b"").to_vec()].concat(),
    ] {
        assert_refused(&raw(bytes).await, Code::InvalidArgument, "REQUEST_MALFORMED");
    }
    assert_refused(&raw(vec![0, 255, 255, 255, 255]).await, Code::ResourceExhausted, "REQUEST_TOO_LARGE");

    // Headers beyond the limit never reach a handler.
    let mut request = tonic::Request::new(named("orders/r"));
    request.metadata_mut().insert("x-large", "y".repeat(40 << 10).parse().unwrap());
    assert_ne!(calls.get_batch(request).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(server.calls("admin").get_batch(named("orders/r")).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_message_that_does_not_arrive_is_not_waited_for_for_ever() {
    let limits = GuardLimits { request_within: Duration::from_millis(200), ..GuardLimits::default() };
    let server = Asked::start(limits, &[]).await;
    let pieces = futures::stream::iter([Ok::<_, Status>(http_body::Frame::data(Bytes::from_static(&[0, 0, 0, 0, 9])))]);
    let body = Body::new(http_body_util::StreamBody::new(pieces.chain(futures::stream::pending())));
    let path = "/tributary.coordinator.v1.CoordinatorService/GetBatch";
    let request = Request::post(format!("http://{}{path}", server.address));
    let request = request.header("content-type", "application/grpc").body(body).unwrap();
    let mut channel = server.channel(Some("admin"));
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let answer = channel.call(request).await.unwrap();
    assert_refused(&Status::from_header_map(answer.headers()).unwrap(), Code::DeadlineExceeded, "REQUEST_SLOW");
}

#[tokio::test]
async fn more_requests_than_the_server_takes_are_refused_until_one_is_over() {
    let limits = GuardLimits { requests: 1, ..GuardLimits::default() };
    let server = Asked::start(limits, &[]).await;
    let mut calls = server.calls("admin");
    let started = calls.run_batch(run_request("orders")).await.unwrap().into_inner().batch.unwrap();
    // The rows of this one are held by not reading them.
    let mut watching = calls.watch_batch(proto::WatchBatchRequest { name: started.name }).await.unwrap().into_inner();
    let busy = calls.get_batch(named("orders/r")).await.unwrap_err();
    assert_refused(&busy, Code::ResourceExhausted, "SERVER_BUSY");
    assert_eq!(crate::fault::fault_of(&busy).unwrap().retry, crate::convert::WireEnum::to_wire(Retry::Again));
    while watching.message().await.unwrap().is_some() {}
    drop(watching);
    // The place is free a moment after the end was read.
    while let Err(status) = calls.get_batch(named("orders/r2")).await {
        assert_refused(&status, Code::ResourceExhausted, "SERVER_BUSY");
    }
}

#[tokio::test]
async fn connections_that_say_nothing_or_are_too_many_are_closed() {
    let accept = AcceptLimits { connections: 2, handshake: Duration::from_millis(300) };
    let guard = Guard::open(GuardLimits::default(), Prefixes::default());
    let address = serve(guard, accept).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"PRI * HTTP/2.0").await.unwrap();
    let mut third = TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();
    // Closed at once, while both others are open.
    assert_eq!(third.read_to_end(&mut answer).await.unwrap_or(0), 0);
    // A server may say its settings before it hears anything; what counts is that it hangs up.
    let _ = silent.read_to_end(&mut answer).await;
    let _ = slow.read_to_end(&mut answer).await;
    let channel = crate::connect_lazily(&format!("http://{address}")).unwrap();
    let mut calls = CoordinatorServiceClient::new(channel);
    loop {
        // Their places are free a moment after they were closed.
        match calls.get_batch(named("orders/r")).await.unwrap_err() {
            status if status.code() == Code::NotFound => break,
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test]
async fn a_server_that_asks_nobody_still_keeps_to_its_locations_and_takes_plain_tickets() {
    let guard = Guard::open(GuardLimits::default(), Prefixes::new(&["/elsewhere".to_string()]).unwrap());
    let address = serve(guard, AcceptLimits::default()).await;
    let channel = crate::connect_lazily(&format!("http://{address}")).unwrap();
    let refused = CoordinatorServiceClient::new(channel.clone()).run_batch(run_request("orders")).await.unwrap_err();
    assert_refused(&refused, Code::PermissionDenied, "LOCATION_REFUSED");
    let gone = FlightServiceClient::new(channel).do_get(Ticket::new("batch:orders/r")).await.unwrap_err();
    assert_refused(&gone, Code::NotFound, "BATCH_NOT_FOUND");
}

#[test]
fn the_headers_of_a_refusal_still_end_the_stream() {
    let after = After { rows: Some(Duration::from_secs(1)), ..After::default() };
    let refusal = crate::fault::denied(&Denied::ExpiredTicket).into_http::<Body>();
    assert!(after.over(refusal.into_body()).is_end_stream());
}
