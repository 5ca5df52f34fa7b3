// SPDX-License-Identifier: Apache-2.0
//! Servers that encrypt and ask who calls, as processes, and what strangers get from them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
use arrow_flight::{FlightDescriptor, HandshakeRequest, Ticket};
use futures::TryStreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tributary_api::coordinator::{Coordinator, Error};
use tributary_rpc::{CoordinatorClient, Dial, connect_with};
use tributary_security::secret::token_hash;
use tributary_security::tls::Identity;
use tributary_security::{ClientFiles, ClientTls, Secret, SecretSource, ServerFiles, ServerTls};
use tributary_testkit::collector::Collector;
use tributary_types::pipeline::Pipeline;
use tributary_types::{Code, Fault, Outcome, Retry};

use crate::process::{Process, command, ended, tributary};
use crate::support::{Lake, assert_sound, enriched, request_of};
use crate::traces::simple;

#[path = "../../crates/security/src/tls/certificates.rs"]
mod certificates;

use certificates::Authority;

const SOON: std::time::Duration = std::time::Duration::from_secs(30);
const VALID: (i32, i32) = (2020, 2120);
const HERE: [&str; 2] = ["localhost", "127.0.0.1"];
const TOKEN: &str = "operators-secret-token-0123456789";
const READER: &str = "readers-secret-token-0123456789";
const KEY: &str = "cluster-secret-0123456789abcdef0123456789";

/// A folder of certificates, tokens and principals.
struct Secrets {
    folder: tempfile::TempDir,
    ca: Authority,
}

impl Secrets {
    fn new() -> Secrets {
        let folder = tempfile::tempdir().unwrap();
        let ca = Authority::new(folder.path(), "ca");
        ca.issue("server", &HERE, VALID);
        let secrets = Secrets { folder, ca };
        secrets.write("operator.token", TOKEN);
        secrets.write("reader.token", READER);
        secrets.write("cluster.key", KEY);
        let one = |name: &str, role: &str, token: &str| {
            format!("[[principal]]\nname = \"{name}\"\nrole = \"{role}\"\ntoken_sha256 = [\"{}\"]\n", token_hash(token))
        };
        secrets.write("auth.toml", &[one("ann", "operator", TOKEN), one("bob", "reader", READER)].concat());
        secrets
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Flags with the files of this folder behind them.
    fn flags(&self, flags: &[(&str, &str)]) -> Vec<String> {
        flags.iter().flat_map(|(flag, file)| [(*flag).to_string(), self.at(file)]).collect()
    }

    fn dial(&self, ca: &Path, token: Option<&str>, identity: Option<(PathBuf, PathBuf)>) -> Dial {
        let identity = identity.map(|(certificate, key)| Identity { certificate, key });
        let tls = ClientTls::open(ClientFiles { ca: Some(ca.to_path_buf()), identity }).unwrap();
        let token = token.map(|token| SecretSource::Fixed(Secret::new(token)));
        Dial { tls: Some(Arc::new(tls)), token, tickets: None }
    }
}

const ENCRYPTED: [(&str, &str); 2] = [("--tls-cert", "server.pem"), ("--tls-key", "server.key")];
const ASKING: [(&str, &str); 3] = [ENCRYPTED[0], ENCRYPTED[1], ("--auth-file", "auth.toml")];
const PEER: [(&str, &str); 4] =
    [ENCRYPTED[0], ENCRYPTED[1], ("--tls-ca", "ca.pem"), ("--cluster-key-file", "cluster.key")];

fn start(flags: &[String]) -> Process {
    Process::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

fn https(server: &Process) -> String {
    format!("https://{}", server.address())
}

fn client(server: &Process, dial: &Dial) -> CoordinatorClient {
    CoordinatorClient::new(connect_with(&https(server), dial).unwrap(), https(server))
}

async fn run_on(coordinator: &dyn Coordinator, pipeline: &Pipeline, request: &str) -> Outcome {
    let started = coordinator.run_batch(request_of(pipeline, request)).await.unwrap();
    let mut watch = coordinator.watch_batch(&started.name).await.unwrap();
    let ended = watch.wait_for(|status| status.outcome.is_some()).await.unwrap().clone();
    assert!(ended.asked_by.contains("as ann from 127.0.0.1"), "{}", ended.asked_by);
    ended.outcome.unwrap()
}

fn denied(error: &Error) -> (Code, Retry) {
    (error.code(), error.retry())
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_apart_that_share_a_key_over_tls_commit_what_the_command_line_asks_for_with_a_token() {
    let (lake, secrets) = (Lake::demo(1), Secrets::new());
    let role = |more: &[&str]| {
        let mut flags = secrets.flags(&PEER);
        flags.extend(more.iter().map(ToString::to_string));
        start(&flags)
    };
    let timeline = role(&["--roles", "timeline"]);
    let writer = role(&["--roles", "writer"]);
    let checkpoint = role(&["--roles", "checkpoint", "--data-dir", &lake.path("records")]);
    let (timeline_at, writer_at) = (https(&timeline), https(&writer));
    let merge = role(&["--roles", "merge", "--timeline-address", &timeline_at, "--writer-address", &writer_at]);
    let (checkpoint_at, merge_at, auth) = (https(&checkpoint), https(&merge), secrets.at("auth.toml"));
    let others =
        ["--timeline-address", &timeline_at, "--checkpoint-address", &checkpoint_at, "--merge-address", &merge_at];
    let coordinator = role(&[&["--roles", "coordinator", "--auth-file", &auth], others.as_slice()].concat());

    let dial = secrets.dial(&secrets.ca.file(), Some(TOKEN), None);
    let pipeline = enriched(&lake);
    assert_eq!(run_on(&client(&coordinator, &dial), &pipeline, "r").await, Outcome::Committed);
    assert_sound(&lake.path("out"), "orders_enriched").await;

    let (ca, token, url) = (secrets.at("ca.pem"), secrets.at("reader.token"), https(&coordinator));
    let pulled = tributary(&[
        "batches",
        "pull",
        "--server",
        &url,
        "--tls-ca",
        &ca,
        "--token-file",
        &token,
        "orders_enriched/r",
        "--limit",
        "1",
    ]);
    assert_eq!(pulled.code, 0, "{pulled:?}");
    assert!(pulled.stderr.contains("1 rows of orders_enriched/r"), "{pulled:?}");
    let cancelled = tributary(&[
        "batches",
        "cancel",
        "--server",
        &url,
        "--tls-ca",
        &ca,
        "--token-file",
        &token,
        "orders_enriched/r",
    ]);
    assert_eq!(cancelled.code, 2, "{cancelled:?}");
    assert!(
        cancelled.stderr.contains("`bob` may not call") && cancelled.stderr.contains("`operator`"),
        "{cancelled:?}"
    );

    // A token of a user opens no door between roles, nor does another key.
    for token in [TOKEN, "peer-0123456789"] {
        let stranger = secrets.dial(&secrets.ca.file(), Some(token), None);
        let error = client(&timeline, &stranger).get_batch(&"orders_enriched/r".parse_name()).await.unwrap_err();
        assert_eq!(denied(&error), (Code::Unauthenticated, Retry::Never), "{error}");
    }
}

/// Names of batches in tests are right.
trait ParseName {
    fn parse_name(&self) -> tributary_types::BatchName;
}

impl ParseName for str {
    fn parse_name(&self) -> tributary_types::BatchName {
        tributary_types::BatchName::new(self).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_one_pipeline_gets_no_row_of_another_by_a_query_beside_or_behind_a_name() {
    let (lake, secrets) = (Lake::demo(1), Secrets::new());
    let eve = "eves-secret-token-0123456789abcdef";
    let kept = std::fs::read_to_string(secrets.at("auth.toml")).unwrap();
    let scoped = format!(
        "[[principal]]\nname = \"eve\"\nrole = \"reader\"\npipelines = [\"orders*\"]\ntoken_sha256 = [\"{}\"]\n",
        token_hash(eve)
    );
    secrets.write("auth.toml", &[kept, scoped].concat());
    let server = start(&secrets.flags(&ASKING));
    let orders = enriched(&lake);
    let mut secret = enriched(&lake);
    secret.name = tributary_types::PipelineName::new("secret").unwrap();
    secret.target.path = lake.path("secret");
    let ann = client(&server, &secrets.dial(&secrets.ca.file(), Some(TOKEN), None));
    assert_eq!(run_on(&ann, &orders, "r1").await, Outcome::Committed);
    assert_eq!(run_on(&ann, &secret, "r1").await, Outcome::Committed);

    let flight = |token: &str| {
        let channel = connect_with(&https(&server), &secrets.dial(&secrets.ca.file(), Some(token), None)).unwrap();
        FlightServiceClient::new(channel).max_decoding_message_size(256 << 20)
    };
    let statement = "SELECT * FROM tables.secret".to_string();
    let query = CommandStatementQuery { query: statement, transaction_id: None }.as_any();
    // As protobuf writes it: two fields of bytes.
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat();
    let query = [field(1, query.type_url.as_bytes()), field(2, &query.value)].concat();
    let read = async |token: &str, ticket: Ticket| match flight(token).do_get(ticket).await {
        Ok(messages) => messages.into_inner().try_collect::<Vec<_>>().await.map(|messages| messages.len()),
        Err(status) => Err(status),
    };
    // The query is one that gives rows to whoever may see everything.
    let info = flight(READER).get_flight_info(FlightDescriptor::new_cmd(query.clone())).await.unwrap().into_inner();
    assert!(read(READER, info.endpoint[0].ticket.clone().unwrap()).await.unwrap() > 1);
    // And Eve may read her own pipeline, by a ticket and by the name.
    let name = "batch:orders_enriched/r1";
    let own = FlightDescriptor::new_path(vec![name.to_string()]);
    let info = flight(eve).get_flight_info(own.clone()).await.unwrap().into_inner();
    assert!(read(eve, info.endpoint[0].ticket.clone().unwrap()).await.unwrap() > 1);
    assert!(read(eve, Ticket::new(name)).await.unwrap() > 1);

    let plain = flight(eve).get_flight_info(FlightDescriptor::new_cmd(query.clone())).await.unwrap_err();
    assert_eq!(format!("{:?}", plain.code()), "PermissionDenied", "{plain:?}");
    for kind in 0..=3 {
        let both = FlightDescriptor { r#type: kind, cmd: query.clone().into(), ..own.clone() };
        let answers = [
            flight(eve).get_flight_info(both.clone()).await.map(|_| ()),
            flight(eve).poll_flight_info(both.clone()).await.map(|_| ()),
            flight(eve).get_schema(both).await.map(|_| ()),
        ];
        for answer in answers {
            assert_eq!(format!("{:?}", answer.unwrap_err().code()), "PermissionDenied", "type {kind}");
        }
    }
    let mut behind = b"batch:orders_enriched/".to_vec();
    behind.resize(99, b'A');
    behind.extend(query);
    let refused = read(eve, Ticket::new(behind.clone())).await.unwrap_err();
    assert_eq!(format!("{:?}", refused.code()), "NotFound", "{refused:?}");
    let refused = flight(eve).get_flight_info(FlightDescriptor::new_cmd(behind)).await.unwrap_err();
    assert_eq!(format!("{:?}", refused.code()), "NotFound", "{refused:?}");

    // Drivers that were given a token shake hands first.
    let greeting = futures::stream::iter([HandshakeRequest::default()]);
    let mut answers = flight(eve).handshake(greeting).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_alone_lets_in_and_one_of_another_authority_or_none_or_an_expired_one_does_not() {
    let secrets = Secrets::new();
    let server = start(&secrets.flags(&[ENCRYPTED[0], ENCRYPTED[1], ("--tls-client-ca", "ca.pem")]));
    let other = Authority::new(secrets.folder.path(), "other");
    let ask = async |ca: &Path, identity| {
        let dial = secrets.dial(ca, None, identity);
        client(&server, &dial).list_batches(None, 1).await
    };
    let own = secrets.ca.issue("client", &["ops.example"], VALID);
    assert_eq!(ask(&secrets.ca.file(), Some(own.clone())).await.unwrap(), []);
    for (what, ca, identity) in [
        ("no certificate", secrets.ca.file(), None),
        ("an expired one", secrets.ca.file(), Some(secrets.ca.issue("old", &["ops.example"], (2019, 2021)))),
        ("one of another authority", secrets.ca.file(), Some(other.issue("foreign", &["ops.example"], VALID))),
        ("a server of another authority", other.file(), Some(own)),
    ] {
        let error = ask(&ca, identity).await.expect_err(what);
        assert!(matches!(error, Error::Unreachable { .. }), "{what}: {error:?}");
    }
    // Plaintext gets nothing, and the server goes on.
    let mut plain = TcpStream::connect(server.address()).unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|bytes| bytes == b"HTTP"), "{answer:?}");
    let plain = CoordinatorClient::new(connect_with(&server.url, &Dial::default()).unwrap(), "plain");
    // What the server says to it is no HTTP/2.
    assert!(plain.list_batches(None, 1).await.is_err());
    let own = secrets.ca.issue("client", &["ops.example"], VALID);
    assert!(ask(&secrets.ca.file(), Some(own)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_and_changed_principals_take_hold_without_a_restart() {
    let secrets = Secrets::new();
    let server = start(&secrets.flags(&ASKING));
    let list = async |dial: &Dial| client(&server, dial).list_batches(None, 1).await;
    let before = secrets.dial(&secrets.ca.file(), Some(READER), None);
    assert!(list(&before).await.is_ok());
    let other = Authority::new(secrets.folder.path(), "other");
    other.issue("server", &HERE, VALID);
    assert!(matches!(list(&before).await.unwrap_err(), Error::Unreachable { .. }), "the certificate is another");
    let after = secrets.dial(&other.file(), Some(READER), None);
    assert!(list(&after).await.is_ok());

    let kept = std::fs::read_to_string(secrets.at("auth.toml")).unwrap();
    secrets.write("auth.toml", &kept.replace(&token_hash(READER), &token_hash("other")));
    let error = list(&after).await.unwrap_err();
    assert_eq!(denied(&error), (Code::Unauthenticated, Retry::Never), "{error}");
    assert_eq!(error.outcome().exit_code(), 2);
    // One that cannot be read changes nothing.
    secrets.write("auth.toml", &kept);
    assert!(list(&after).await.is_ok());
    secrets.write("auth.toml", "[[principal]]\nrole = \"reader\"\n");
    assert!(list(&after).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_are_encrypted_as_the_rest_is_and_count_who_was_refused() {
    let secrets = Secrets::new();
    let mut flags = secrets.flags(&ASKING);
    flags.extend(["--http-listen", "127.0.0.1:0"].map(ToString::to_string));
    let server = start(&flags);
    let stranger = secrets.dial(&secrets.ca.file(), Some("a-strangers-token"), None);
    assert!(client(&server, &stranger).list_batches(None, 1).await.is_err());
    let http = server.http.clone().unwrap();
    let mut plain = TcpStream::connect(&http).unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    let files = ClientFiles { ca: Some(secrets.ca.file()), identity: None };
    let tls = ClientTls::speaking(files, &["http/1.1"]).unwrap();
    let get = async |path: &str| {
        let tcp = tokio::net::TcpStream::connect(&http).await.unwrap();
        let mut stream = tls.connect("127.0.0.1", tcp).await.unwrap();
        let text = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // Whether the end of the stream is told, too, is no matter here.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    };
    assert!(get("/readyz").await.ends_with("ready\n"));
    let metrics = get("/metrics").await;
    assert!(metrics.contains("tributary_security_denied_total{reason=\"TOKEN_UNKNOWN\"} 1"), "{metrics}");
    assert!(metrics.contains("tributary_security_connections_refused_total{cause=\"handshake\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_locations_nor_sql_lead_out_of_what_the_server_works_with() {
    let (lake, secrets) = (Lake::demo(1), Secrets::new());
    let outside = Lake::demo(1);
    let mut flags = secrets.flags(&ASKING);
    flags.extend(["--allow-url-prefix".to_string(), lake.dir().display().to_string()]);
    let server = start(&flags);
    let dial = secrets.dial(&secrets.ca.file(), Some(TOKEN), None);
    let coordinator = client(&server, &dial);
    std::os::unix::fs::symlink(outside.dir(), lake.dir().join("link")).unwrap();
    let encoded = format!("file://{}/%2e%2e/etc", lake.dir().display());
    for (n, path) in [outside.path("orders"), lake.path("../etc"), encoded, lake.path("link/orders")].iter().enumerate()
    {
        let mut source = enriched(&lake);
        source.sources[0].path.clone_from(path);
        let mut target = enriched(&lake);
        target.target.path.clone_from(path);
        for pipeline in [source, target] {
            let error = coordinator.run_batch(request_of(&pipeline, &format!("p{n}"))).await.unwrap_err();
            assert_eq!(denied(&error), (Code::Denied, Retry::Never), "{path}: {error}");
            let error = coordinator.plan_batch(pipeline, Vec::new()).await.err().unwrap();
            assert_eq!(denied(&error), (Code::Denied, Retry::Never), "{path}: {error}");
        }
    }
    for sql in [
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM <SRC:orders>; SELECT 1",
        "COPY (SELECT 1) TO '/tmp/stolen.csv'",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'",
        "SET datafusion.execution.batch_size = 1",
        "SELECT * FROM information_schema.tables",
        "INSERT INTO t VALUES (1)",
    ] {
        let mut pipeline = enriched(&lake);
        pipeline.transforms[0].sql = Some(sql.to_string());
        let error =
            coordinator.plan_batch(pipeline, Vec::new()).await.err().unwrap_or_else(|| panic!("{sql} was planned"));
        assert_eq!(error.outcome(), Outcome::Rejected, "{sql}: {error}");
    }
    assert_eq!(run_on(&coordinator, &enriched(&lake), "good").await, Outcome::Committed);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_the_log_in_messages_or_in_what_is_stored() {
    let (lake, secrets) = (Lake::demo(1), Secrets::new());
    let log = secrets.at("log");
    let mut all = vec!["serve".to_string(), "--listen".to_string(), "127.0.0.1:0".to_string()];
    all.extend(secrets.flags(&ASKING));
    all.extend(secrets.flags(&[("--cluster-key-file", "cluster.key")]));
    all.extend(["--data-dir".to_string(), lake.path("data")]);
    let mut command = command(&all.iter().map(String::as_str).collect::<Vec<_>>());
    command.env("TRIBUTARY_LOG", "debug").stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_string)).unwrap();
    let mut server = Process { child, url: format!("http://{address}"), http: None };

    let good = secrets.dial(&secrets.ca.file(), Some(TOKEN), None);
    assert_eq!(run_on(&client(&server, &good), &enriched(&lake), "r").await, Outcome::Committed);
    let wrong = secrets.dial(&secrets.ca.file(), Some("wrong-secret-token-0123456789"), None);
    let error = client(&server, &wrong).list_batches(None, 1).await.unwrap_err().to_string();
    server.terminate();
    let mut written = std::fs::read_to_string(&log).unwrap();
    assert!(written.contains("TOKEN_UNKNOWN"), "the refusal is logged: {written}");
    written.push_str(&error);
    let mut folders = vec![lake.dir().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => written.push_str(&String::from_utf8_lossy(&std::fs::read(path).unwrap())),
            }
        }
    }
    for secret in [TOKEN, READER, KEY, "wrong-secret-token"] {
        assert!(!written.contains(secret), "{secret}");
    }
}

#[test]
fn a_server_that_others_could_listen_to_does_not_start() {
    let secrets = Secrets::new();
    let refused = |flags: &[String], told: &str| {
        let mut all = vec!["serve".to_string()];
        all.extend_from_slice(flags);
        let ended = tributary(&all.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains(told), "{told}: {ended:?}");
    };
    let open = ["--listen".to_string(), "0.0.0.0:0".to_string()];
    refused(&open, "neither encrypts nor asks who calls");
    refused(&[open.as_slice(), &secrets.flags(&[ASKING[2]])].concat(), "tokens would cross the network in the clear");
    refused(&[open.as_slice(), &secrets.flags(&ENCRYPTED)].concat(), "neither knows nor asks who calls");
    let advertised = ["--roles", "timeline", "--advertise-address", "grpc://localhost:7373"].map(ToString::to_string);
    refused(
        &[advertised.as_slice(), &secrets.flags(&[("--cluster-key-file", "cluster.key")])].concat(),
        "all of them would be refused: add the --auth-file",
    );
    refused(&[advertised.as_slice(), &secrets.flags(&ENCRYPTED)].concat(), "advertise grpc+tls://localhost:7373");
    refused(&["--http-listen".to_string(), "0.0.0.0:0".to_string()], "--http-listen 0.0.0.0:0");
    let plain = tributary(&[
        "batches",
        "list",
        "--server",
        "http://192.0.2.1:1",
        "--token-file",
        &secrets.at("operator.token"),
    ]);
    assert_eq!(plain.code, 2, "{plain:?}");
    assert!(plain.stderr.contains("in the clear") && !plain.stderr.contains(TOKEN), "{plain:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_a_collector_whose_authority_only_a_variable_names() {
    let (lake, secrets) = (Lake::new(), Secrets::new());
    let file = simple(&lake).await;
    let identity = Identity { certificate: secrets.at("server.pem").into(), key: secrets.at("server.key").into() };
    let files = ServerFiles { identity, client_ca: None, certificate_optional: false };
    let collector = Collector::start_with(Some(Arc::new(ServerTls::open(files, &["h2"]).unwrap()))).await;
    let mut run = command(&["run", "--pipeline", &file, "--otlp-endpoint", &collector.url()]);
    run.env("OTEL_EXPORTER_OTLP_CERTIFICATE", secrets.at("ca.pem"));
    let run = tokio::task::spawn_blocking(move || ended(run)).await.unwrap();
    assert_eq!(run.code, 0, "{}", run.stderr);
    let told = tokio::time::timeout(SOON, collector.wait_for(|spans| spans.iter().any(|span| span.name == "batch")));
    assert!(told.await.is_ok(), "no span came: {}", run.stderr);
}
