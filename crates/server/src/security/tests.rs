// SPDX-License-Identifier: Apache-2.0

use clap::Parser;
use tributary_types::{SystemClock, SystemEntropy};

use super::*;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    client: ClientSecurity,
    #[command(flatten)]
    serve: ServeSecurity,
}

/// What a server with these flags says; the key and the token of the environment are given.
fn started(flags: &[&str], listen: &str, roles: &[Role], insecure: bool) -> Result<Secured, String> {
    advertising(None, flags, listen, roles, insecure)
}

fn advertising(
    advertise: Option<&str>,
    flags: &[&str],
    listen: &str,
    roles: &[Role],
    insecure: bool,
) -> Result<Secured, String> {
    let flags = Flags::parse_from(std::iter::once("tributary").chain(flags.iter().copied()));
    let plan = Plan { listen: listen.parse().unwrap(), http: None, roles, insecure, advertise };
    server(&flags.client, &flags.serve, &plan, Arc::new(SystemClock), &SystemEntropy, |_| None)
}

fn refused(flags: &[&str], listen: &str, roles: &[Role], insecure: bool) -> String {
    started(flags, listen, roles, insecure).err().unwrap_or_default()
}

struct Files {
    _folder: tempfile::TempDir,
    auth: String,
    cluster: String,
}

fn files() -> Files {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let hash = tributary_security::secret::token_hash("t");
    let auth =
        write("auth.toml", &format!("[[principal]]\nname = \"a\"\nrole = \"admin\"\ntoken_sha256 = [\"{hash}\"]\n"));
    let cluster = write("cluster.key", "0123456789abcdef0123456789abcdef\n");
    Files { auth, cluster, _folder: folder }
}

const HERE: &str = "127.0.0.1:7373";
const THERE: &str = "0.0.0.0:7373";

#[test]
fn plaintext_is_refused_where_others_can_reach_it_unless_told_otherwise() {
    assert_eq!(refused(&[], HERE, &Role::ALL, false), "");
    let told = refused(&[], THERE, &Role::ALL, false);
    for part in ["0.0.0.0:7373", "neither encrypts nor asks who calls", "--tls-cert", "--insecure"] {
        assert!(told.contains(part), "{told}");
    }
    assert_eq!(refused(&[], THERE, &Role::ALL, true), "");
}

#[test]
fn tokens_are_never_taken_in_the_clear_from_other_machines() {
    let files = files();
    assert_eq!(refused(&["--auth-file", &files.auth], HERE, &Role::ALL, false), "");
    for insecure in [true, false] {
        let told = refused(&["--auth-file", &files.auth], THERE, &Role::ALL, insecure);
        assert!(told.contains("tokens would cross the network in the clear"), "{told}");
    }
}

#[test]
fn roles_in_several_processes_need_a_shared_key_once_anybody_is_asked_who_calls() {
    let files = files();
    let apart = [Role::Coordinator, Role::Checkpoint];
    let told = refused(&["--auth-file", &files.auth], HERE, &apart, false);
    assert!(told.contains("--cluster-key-file"), "{told}");
    let both = ["--auth-file", &files.auth, "--cluster-key-file", &files.cluster];
    assert_eq!(refused(&both, HERE, &apart, false), "");
    assert_eq!(refused(&["--cluster-key-file", &files.cluster], HERE, &[Role::Writer], false), "");
    let told = refused(&["--cluster-key-file", &files.cluster], HERE, &apart, false);
    assert!(told.contains("only other processes of the server could call it"), "{told}");
    assert_eq!(refused(&[], HERE, &apart, false), "", "no ceremony on loopback");
}

#[test]
fn an_address_at_which_every_puller_would_be_refused_is_not_advertised() {
    let files = files();
    let told = |address: &str, flags: &[&str], roles: &[Role]| {
        advertising(Some(address), flags, HERE, roles, false).err().unwrap_or_default()
    };
    let (key, timeline) = (["--cluster-key-file", files.cluster.as_str()], [Role::Timeline]);
    let unknown = told("grpc://t:1", &key, &timeline);
    for part in ["--advertise-address grpc://t:1", "add the --auth-file"] {
        assert!(unknown.contains(part), "{unknown}");
    }
    assert_eq!(told("grpc://t:1", &[&key[..], &["--auth-file", &files.auth]].concat(), &timeline), "");
    assert_eq!(told("grpc://t:1", &[], &timeline), "", "nobody is asked");
    assert_eq!(refused(&key, HERE, &timeline, false), "", "peers alone");
    let plain = told("grpc+tls://t:1", &[], &timeline);
    assert!(plain.contains("does not encrypt") && plain.contains("advertise grpc://t:1"), "{plain}");
    let facts = |advertise| Facts {
        listen: HERE.parse().unwrap(),
        http: None,
        encrypts: true,
        tokens: false,
        certificates: false,
        has_principals: false,
        has_cluster_key: false,
        roles: &[Role::Timeline],
        insecure: false,
        advertise: Some(advertise),
    };
    for plain in ["grpc://t:1", "grpc+tcp://t:1"] {
        let refused = contradictions(&facts(plain)).join("\n");
        assert!(refused.contains(plain) && refused.contains("advertise grpc+tls://t:1"), "{refused}");
    }
    assert_eq!(contradictions(&facts("grpc+tls://t:1")), Vec::<String>::new());
}

#[test]
fn every_problem_is_told_at_once_and_no_secret_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let short = folder.path().join("short");
    std::fs::write(&short, "hunter2").unwrap();
    let short = short.display().to_string();
    let flags = [
        "--auth-file",
        "/nonexistent/auth.toml",
        "--cluster-key-file",
        &short,
        "--tls-cert",
        "/c.pem",
        "--tls-client-ca",
        "/ca.pem",
        "--allow-url-prefix",
        "s3://k:hunter2@b",
    ];
    let told = refused(&flags, HERE, &Role::ALL, false);
    for part in ["/nonexistent/auth.toml", "shorter than 32", "without --tls-key", "--allow-url-prefix"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("hunter2"), "{told}");
}

#[test]
fn a_token_comes_from_a_file_or_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "of-the-file\n").unwrap();
    let given = ClientSecurity { token_file: Some(file), ..ClientSecurity::default() };
    let variable = |name: &str| (name == TOKEN_VARIABLE).then(|| "of-the-variable".to_string());
    let token = |given: &ClientSecurity| client(given, variable).unwrap().token.unwrap().current();
    assert_eq!(token(&given).expose(), "of-the-file");
    assert_eq!(token(&ClientSecurity::default()).expose(), "of-the-variable");
    assert!(client(&ClientSecurity::default(), |_| None).unwrap().token.is_none());
    let missing = ClientSecurity { token_file: Some("/nonexistent/token".into()), ..ClientSecurity::default() };
    assert!(client(&missing, |_| None).err().unwrap().contains("/nonexistent/token"));
}
