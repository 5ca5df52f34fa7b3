// SPDX-License-Identifier: Apache-2.0
//! docs/cli.md: every command with its flags and examples, and the exit codes.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory as _};
use tributary_server::cli::Cli;
use tributary_types::Outcome;

use super::{cell, compare};
use crate::shell::leaves;

const HEAD: &str = "# Command line\n\nGenerated from the code; `make docs` writes it. `tributary completion bash|zsh|fish` prints a \
                    script that completes commands and flags. Results go to standard output, everything else to \
                    standard error; `--output json` is one JSON object a line.\n\n## Exit codes\n\nThose of `run`, \
                    `batches watch`, `cursors set`, `cursors reset` and `pipelines run` say how the batch ended. Other \
                    commands exit with 0 when they did what they were asked for, and with the code of the error else; \
                    see [errors.md](errors.md).\n\n| code | outcome | meaning |\n|---|---|---|\n";

fn meaning(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Committed => "rows and cursors are in the target",
        Outcome::NoNewData => "no source had news; nothing was written",
        Outcome::Failed => "it failed before the commit; nothing was written",
        Outcome::Rejected => "the pipeline, the request or the command line is wrong; nothing was written",
        Outcome::Conflict => "somebody else changed the target or a source in between; nothing was written",
        Outcome::Cancelled => "it was cancelled; nothing was written",
        Outcome::Unknown => "the commit was sent and no answer came; the next look finds out",
    }
}

fn row(arg: &Arg) -> String {
    let value = arg.get_value_names().into_iter().flatten().next().map(ToString::to_string).unwrap_or_default();
    let takes = !matches!(arg.get_action(), ArgAction::SetTrue);
    let name = match arg.get_long() {
        Some(long) if takes => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None => value,
    };
    let mut notes = Vec::new();
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes && !defaults.is_empty() {
        notes.push(format!("default `{}`", defaults.join(",")));
    }
    let values: Vec<String> = arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if takes && !values.is_empty() {
        notes.push(values.join(", "));
    }
    if let Some(variable) = arg.get_env() {
        notes.push(format!("`{}`", variable.to_string_lossy()));
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    format!("| `{}` | {} | {} |", cell(&name), cell(&help), notes.join("; "))
}

fn flags(text: &mut String, arguments: impl Iterator<Item = Arg>) {
    let rows: Vec<String> = arguments.map(|arg| row(&arg)).collect();
    if !rows.is_empty() {
        writeln!(text, "\n| | meaning | default, values, variable |\n|---|---|---|\n{}", rows.join("\n")).unwrap();
    }
}

fn page() -> String {
    let mut text = HEAD.to_string();
    let outcomes = [
        Outcome::Committed,
        Outcome::NoNewData,
        Outcome::Failed,
        Outcome::Rejected,
        Outcome::Conflict,
        Outcome::Cancelled,
        Outcome::Unknown,
    ];
    for outcome in outcomes {
        writeln!(text, "| {} | {} | {} |", outcome.exit_code(), outcome.as_str(), meaning(outcome)).unwrap();
    }
    text.push_str("\n## Flags of every command\n");
    // With its names of values: these are made up when the command is built.
    let mut whole = Cli::command();
    whole.build();
    let own = |arg: &&Arg| !matches!(arg.get_id().as_str(), "help" | "version");
    flags(&mut text, whole.get_arguments().filter(own).cloned());
    for (path, command) in leaves() {
        writeln!(text, "\n## tributary {}\n\n{}", path.join(" "), about(&command)).unwrap();
        let built = path.iter().fold(&whole, |command, name| command.find_subcommand(name).unwrap());
        flags(&mut text, built.get_arguments().filter(own).filter(|arg| !arg.is_global_set()).cloned());
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples: Vec<&str> = examples.lines().skip(1).collect();
        writeln!(text, "\n```sh\n{}\n```", examples.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n"))
            .unwrap();
    }
    text
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn the_reference_of_the_command_line_is_what_the_code_says() {
    compare("docs/cli.md", &page());
}
