// SPDX-License-Identifier: Apache-2.0
use std::path::Path;

use super::*;
use crate::cli::{Command as Chosen, ServeArgs};

fn environment(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn with(arguments: &[&str], pairs: &[(&str, &str)]) -> Result<Parsed, Refused> {
    let arguments = [&["tributary"], arguments].concat();
    parse(arguments.iter().map(OsString::from).collect(), &environment(pairs))
}

fn serve(arguments: &[&str], pairs: &[(&str, &str)]) -> ServeArgs {
    match with(&[&["serve"], arguments].concat(), pairs) {
        Ok(Parsed::Run(cli)) => match cli.command {
            Chosen::Serve(args) => args,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn problems(arguments: &[&str], pairs: &[(&str, &str)]) -> Vec<String> {
    match with(arguments, pairs) {
        Err(Refused::Settings(problems)) => problems,
        other => panic!("{other:?}"),
    }
}

fn printed(arguments: &[&str], pairs: &[(&str, &str)]) -> String {
    match with(&[&["serve", "--print-config"], arguments].concat(), pairs) {
        Ok(Parsed::Print(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn file(directory: &Path, text: &str) -> String {
    let path = directory.join("tributary.toml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_flag_goes_before_the_environment_before_the_file_before_what_is_compiled_in() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "[serve]\nmax_batches = 7\nlisten = \"127.0.0.1:1\"\ndrain = \"5s\"\n");
    let from_file = ["--config", path.as_str()];
    let args = serve(&from_file, &[]);
    assert_eq!((args.max_batches, args.listen.as_str(), args.drain.to_string().as_str()), (7, "127.0.0.1:1", "5s"));
    assert_eq!(args.http_listen, None);
    let variable = [("TRIBUTARY__SERVE__MAX_BATCHES", "8")];
    assert_eq!(serve(&from_file, &variable).max_batches, 8);
    assert_eq!(serve(&[], &variable).max_batches, 8, "without a file");
    assert_eq!(serve(&[&from_file[..], &["--max-batches", "9"]].concat(), &variable).max_batches, 9);
    assert_eq!(serve(&[&from_file[..], &["--max-batches=9"]].concat(), &variable).max_batches, 9);
    assert_eq!(serve(&[], &[]).max_batches, 4);
    let named = [("TRIBUTARY_CONFIG", path.as_str())];
    assert_eq!(serve(&[], &named).max_batches, 7, "the file may be named by the environment");
}

#[test]
fn lists_replace_lists_and_switches_can_be_turned_off_again() {
    use crate::roles::Role;
    let directory = tempfile::tempdir().unwrap();
    let path = file(
        directory.path(),
        "[serve]\nroles = [\"timeline\", \"sources\"]\ninsecure = true\n[common]\nlog_json = true\n",
    );
    let from_file = ["--config", path.as_str()];
    let args = serve(&from_file, &[]);
    assert_eq!((args.roles, args.insecure), (vec![Role::Timeline, Role::Sources], true));
    let off = [("TRIBUTARY__SERVE__INSECURE", "false"), ("TRIBUTARY__SERVE__ROLES", "merge,writer")];
    let args = serve(&from_file, &off);
    assert_eq!((args.roles, args.insecure), (vec![Role::Merge, Role::Writer], false));
    let args = serve(&[&from_file[..], &["--roles", "writer"]].concat(), &off);
    assert_eq!(args.roles, [Role::Writer], "a flag is not added to what a file says");
}

#[test]
fn common_settings_hold_for_every_command_and_others_for_their_own_only() {
    let pairs = [("TRIBUTARY__COMMON__STORE_TIMEOUT", "7s"), ("TRIBUTARY__SERVE__MAX_BATCHES", "8")];
    let Ok(Parsed::Run(cli)) = with(&["table", "inspect", "/t"], &pairs) else { panic!("refused") };
    assert_eq!(cli.store_timeout.to_string(), "7s");
    let Ok(Parsed::Run(cli)) = with(&["table", "inspect", "--", "--odd"], &pairs) else { panic!("refused") };
    assert_eq!(cli.store_timeout.to_string(), "7s");
}

#[test]
fn every_problem_of_file_and_environment_is_told_at_once_with_the_nearest_known_name() {
    let directory = tempfile::tempdir().unwrap();
    let text = "listen = \"x\"\n[serve]\nmax_batchs = 3\ndrain = \"soon\"\nlisten = [\"a\", \"b\"]\ninsecure = \"maybe\"\n\
                roles = {}\n[srve]\nlisten = \"x\"\n";
    let path = file(directory.path(), text);
    let pairs = [
        ("TRIBUTARY__SERVE__MEMROY", "1GiB"),
        ("TRIBUTARY__SERVE__MEMORY", "lots"),
        ("TRIBUTARY__WHATEVER", "1"),
        ("TRIBUTARY__SERV__LISTEN", "x"),
        ("TRIBUTARY_LOG", "info"),
    ];
    let found = problems(&["serve", "--config", &path], &pairs);
    let expected = [
        "`listen` stands in no section",
        "`max_batchs` is no key of this section; did you mean `max_batches`?",
        "`serve.drain`: invalid value 'soon' for '--drain <DRAIN>'",
        "`serve.listen` has 2 values: it takes one",
        "`serve.insecure` is `maybe`: it must be true or false",
        "`serve.roles` is neither a text",
        "`srve` is no section; did you mean `serve`?",
        "`TRIBUTARY__SERVE__MEMROY`: `memroy` is no key of its section; did you mean `memory`?",
        "`TRIBUTARY__SERVE__MEMORY`: `serve.memory`: invalid value 'lots'",
        "`TRIBUTARY__WHATEVER` is no setting",
        "`TRIBUTARY__SERV__LISTEN`: `serv` is no section; did you mean `serve`?",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for wanted in expected {
        assert!(found.iter().any(|problem| problem.contains(wanted)), "{wanted}: {found:#?}");
    }
    let gone = problems(&["serve", "--config=/nowhere.toml"], &[]);
    assert!(gone[0].contains("`/nowhere.toml` cannot be read"), "{gone:?}");
    let torn = file(directory.path(), "[serve]\nlisten = \n");
    assert!(problems(&["plan", "--config", &torn], &[])[0].contains("line 2"), "any command says so");
}

#[test]
fn what_is_printed_says_where_each_setting_comes_from_and_can_be_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "[serve]\nmax_batches = 7\nroles = [\"timeline\"]\ninsecure = true\n");
    let arguments = ["--config", path.as_str(), "--drain", "9s"];
    let pairs = [("TRIBUTARY__SERVE__INSECURE", "false"), ("TRIBUTARY__SERVE__HTTP_LISTEN", "127.0.0.1:0")];
    let text = printed(&arguments, &pairs);
    for line in [
        &format!("max_batches = 7 # `{path}`"),
        &format!("roles = [\"timeline\"] # `{path}`"),
        "insecure = false # `TRIBUTARY__SERVE__INSECURE`",
        "http_listen = \"127.0.0.1:0\" # `TRIBUTARY__SERVE__HTTP_LISTEN`",
        "drain = \"9s\" # flag",
        "listen = \"127.0.0.1:7373\" # default",
        "# timeline_address is not set",
        "store_timeout = \"30s\" # default",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line}: {text}");
    }
    let again = file(directory.path(), &text);
    let (once, twice) = (serve(&arguments[2..], &pairs), serve(&["--config", &again], &[]));
    assert_eq!((twice.max_batches, twice.insecure, &twice.http_listen), (7, false, &once.http_listen));
    assert_eq!(twice.drain.to_string(), "9s");
}

#[test]
fn secrets_are_neither_printed_nor_told_in_problems() {
    for key in ["auth_token", "password", "oidc_client_secret", "peer_tokens"] {
        assert!(is_secret(key), "{key}");
    }
    for key in ["token_file", "tokens_file", "listen", "tls_key_file"] {
        assert!(!is_secret(key), "{key}");
    }
    let text = printed(&["--timeline-address", "http://user:word@host:1/x", "--roles", "merge"], &[]);
    assert!(text.contains("timeline_address = [\"http://***@host:1/x\"]") && !text.contains("word"), "{text}");
    for (given, shown) in [
        ("http://user:word@host:1/x?api_key=word", "http://***@host:1/x?***"),
        ("http://host:1?api_key=word@word", "http://host:1?***"),
        ("http://host:1/x#word", "http://host:1/x#***"),
    ] {
        let text = printed(&["--timeline-address", given, "--roles", "merge"], &[]);
        assert!(text.contains(&format!("[\"{shown}\"]")) && !text.contains("word"), "{given}: {text}");
    }
}

#[test]
fn every_flag_of_serve_is_a_key_and_none_is_there_twice() {
    let keys = keys();
    let command = Cli::command();
    let serve = command.find_subcommand("serve").unwrap();
    for arg in serve.get_arguments().filter(|arg| arg.get_long().is_some()) {
        let long = arg.get_long().unwrap();
        let known = keys.iter().filter(|key| key.section == "serve" && key.flag == format!("--{long}")).count();
        assert_eq!(known, usize::from(!NO_SETTINGS.contains(&long)), "{long}");
    }
    assert!(keys.iter().all(|key| !key.help.is_empty()));
}
