// SPDX-License-Identifier: Apache-2.0
//! What every command has: help with examples, output for scripts, completion, settings from files.

use clap::{Command, CommandFactory as _};
use tributary_server::cli::Cli;
use tributary_types::Outcome;

use crate::process::{Process, command, ended, tributary};

/// Every command that does something, with its words.
pub(crate) fn leaves() -> Vec<(Vec<String>, Command)> {
    fn walk(command: &Command, path: &[String], found: &mut Vec<(Vec<String>, Command)>) {
        if command.get_subcommands().next().is_none() {
            found.push((path.to_vec(), command.clone()));
        }
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            walk(inner, &[path, &[inner.get_name().to_string()]].concat(), found);
        }
    }
    let mut found = Vec::new();
    walk(&Cli::command(), &[], &mut found);
    found
}

#[test]
fn every_command_explains_itself_with_examples_that_it_understands() {
    let all = leaves();
    assert!(all.len() > 20, "{}", all.len());
    for (path, command) in all {
        let at = path.join(" ");
        assert!(command.get_about().is_some(), "{at}");
        let help = command.get_after_help().unwrap_or_else(|| panic!("`{at}` has no examples")).to_string();
        let examples: Vec<&str> = help.lines().map(str::trim).filter(|line| line.starts_with("tributary ")).collect();
        assert!(!examples.is_empty(), "{at}");
        for example in examples {
            assert!(example.starts_with(&format!("tributary {at}")), "{at}: {example}");
            let words = example.split(" > ").next().unwrap().split_whitespace();
            if let Err(refused) = Cli::command().try_get_matches_from(words) {
                panic!("{example}: {refused}");
            }
        }
    }
}

#[test]
fn every_command_that_has_a_result_prints_it_as_json_where_asked_to() {
    // A server says where it listens, and a script for a shell is one already.
    let without = ["serve", "completion"];
    for (path, command) in leaves() {
        let has = command.get_arguments().any(|arg| arg.get_long() == Some("output"));
        assert_eq!(has, !without.contains(&path[0].as_str()), "{}", path.join(" "));
    }
}

#[test]
fn shells_complete_commands_and_flags() {
    for (shell, begins) in [("bash", "_tributary()"), ("zsh", "#compdef tributary"), ("fish", "complete -c tributary")]
    {
        let script = tributary(&["completion", shell]);
        assert_eq!(script.code, 0, "{}", script.stderr);
        assert!(script.stdout.contains(begins), "{shell}");
        for word in ["pipelines", "resume", "continuous", "max-batches"] {
            assert!(script.stdout.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(tributary(&["completion", "tcsh"]).code, 2);
}

#[test]
fn outcomes_have_exit_codes_of_their_own() {
    use Outcome::{Cancelled, Committed, Conflict, Failed, NoNewData, Rejected, Unknown};
    let codes = [Committed, NoNewData, Failed, Rejected, Conflict, Cancelled, Unknown].map(Outcome::exit_code);
    assert_eq!(codes, [0, 0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_server_takes_its_settings_from_a_file_and_the_environment_and_refuses_what_it_does_not_know() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tributary.toml");
    std::fs::write(&file, "[serve]\nhttp_listen = \"127.0.0.1:0\"\nmax_batches = 3\n[common]\nlog_json = true\n")
        .unwrap();
    let path = file.display().to_string();
    // Where it listens is said by the file: the address of probes is printed.
    let server = Process::start(&["--config", &path]);
    assert!(server.url.starts_with("http://127.0.0.1:"));
    let mut shown = command(&["serve", "--config", &path, "--print-config"]);
    shown.env("TRIBUTARY__SERVE__MAX_BATCHES", "5");
    let shown = ended(shown);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.contains("max_batches = 5 # `TRIBUTARY__SERVE__MAX_BATCHES`"), "{}", shown.stdout);
    assert!(shown.stdout.contains("http_listen = \"127.0.0.1:0\" # `"), "{}", shown.stdout);

    std::fs::write(&file, "[serve]\nmax_batchs = 3\ndrain = \"soon\"\n").unwrap();
    let mut refused = command(&["serve", "--config", &path]);
    refused.env("TRIBUTARY__SERVE__MEMROY", "1GiB");
    let refused = ended(refused);
    assert_eq!(refused.code, 2);
    for problem in ["3 problem(s)", "did you mean `max_batches`?", "did you mean `memory`?", "'soon'"] {
        assert!(refused.stderr.contains(problem), "{problem}: {}", refused.stderr);
    }
}
