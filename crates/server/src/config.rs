// SPDX-License-Identifier: Apache-2.0
//! Settings from a file and the environment, below the flags.
//!
//! The keys are the flags themselves: every long flag of a command in `SECTIONS` is a key of its section, with `-` as
//! `_`. So a flag that is added to such a command can be set in a file at once. Order: what is compiled in, the file of
//! `--config`, `TRIBUTARY__SECTION__KEY`, a flag's own variable such as `TRIBUTARY_DATA_DIR`, the flag.
//!
//! What is found becomes flags that are put behind those of the command line, unless these have them: so whatever
//! refuses a flag refuses the setting as well. All problems of file and environment are told together.

mod print;
mod read;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, CommandFactory as _, FromArgMatches as _};

use crate::cli::Cli;

/// Sections, each with the command whose flags are its keys. Empty: the flags of every command.
const SECTIONS: [(&str, &str); 2] = [("common", ""), ("serve", "serve")];
/// Flags that are about one call, and no settings.
const NO_SETTINGS: [&str; 4] = ["config", "print-config", "help", "version"];
const PREFIX: &str = "TRIBUTARY__";

/// Variables of the environment.
pub type Environment = BTreeMap<String, String>;

/// Where a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A file.
    File(String),
    /// A variable.
    Variable(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path) => write!(f, "`{path}`"),
            Origin::Variable(name) => write!(f, "`{name}`"),
        }
    }
}

/// A setting that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) values: Vec<String>,
    pub(crate) origin: Origin,
}

/// Settings by section and key.
pub(crate) type Settings = BTreeMap<(String, String), Setting>;

/// A key, for those who document it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its section.
    pub section: &'static str,
    /// Its name.
    pub name: String,
    /// The flag that it stands for.
    pub flag: String,
    /// The flag's own variable.
    pub variable: Option<String>,
    /// What it is when nobody says. Empty: nothing.
    pub default: String,
    /// Values that it may have, where these are few.
    pub values: Vec<String>,
    /// Whether it may have several.
    pub many: bool,
    /// What it is for.
    pub help: String,
}

/// How the command line was understood.
#[derive(Debug)]
pub enum Parsed {
    /// Run this.
    Run(Box<Cli>),
    /// Print this and end well.
    Print(String),
}

/// Why nothing is run.
#[derive(Debug)]
pub enum Refused {
    /// The command line itself, or a call for help.
    Arguments(clap::Error),
    /// Settings of the file or the environment; every problem.
    Settings(Vec<String>),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Arguments(error) => write!(f, "{error}"),
            Refused::Settings(problems) => {
                write!(f, "the settings have {} problem(s):\n  - {}", problems.len(), problems.join("\n  - "))
            }
        }
    }
}

/// The command line with the settings of file and environment. Prints and ends the process where nothing is to be run.
pub fn parse_or_exit(arguments: impl IntoIterator<Item = OsString>) -> Cli {
    // What is no text can be no setting of ours.
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    match parse(arguments.into_iter().collect(), &variables.collect()) {
        Ok(Parsed::Run(cli)) => *cli,
        Ok(Parsed::Print(text)) => {
            print!("{text}");
            std::process::exit(0)
        }
        Err(Refused::Arguments(error)) => error.exit(),
        Err(refused @ Refused::Settings(_)) => {
            eprintln!("error: {refused}");
            std::process::exit(2)
        }
    }
}

/// The command line with the settings of file and environment.
pub fn parse(arguments: Vec<OsString>, environment: &Environment) -> Result<Parsed, Refused> {
    let command = Cli::command();
    let given = Given::new(&command, &arguments, environment);
    let mut problems = Vec::new();
    let mut settings = match &given.file {
        Some(path) => read::file(&command, path, &mut problems),
        None => Settings::new(),
    };
    settings.extend(read::environment(&command, environment, &mut problems));
    for ((section, key), setting) in &settings {
        problems.extend(problem_of(&command, section, key, setting));
    }
    if !problems.is_empty() {
        return Err(Refused::Settings(problems));
    }
    let added = given.flags_of(&command, &settings, environment);
    let matches = command.clone().try_get_matches_from(given.with(&arguments, &added)).map_err(Refused::Arguments)?;
    let cli = Cli::from_arg_matches(&matches).map_err(Refused::Arguments)?;
    if let crate::cli::Command::Serve(serve) = &cli.command
        && serve.print_config
    {
        return Ok(Parsed::Print(print::effective(&command, &matches, &settings, &given.own)));
    }
    Ok(Parsed::Run(Box::new(cli)))
}

/// What the command line says by itself.
struct Given {
    /// The command, where one is found.
    command: Option<String>,
    /// The file of settings.
    file: Option<String>,
    /// Long flags that are there, without dashes.
    own: Vec<String>,
}

impl Given {
    fn new(command: &Command, arguments: &[OsString], environment: &Environment) -> Self {
        let texts: Vec<String> = arguments.iter().skip(1).map(|text| text.to_string_lossy().into_owned()).collect();
        let flags = texts.iter().take_while(|text| *text != "--").filter_map(|text| text.strip_prefix("--"));
        let own: Vec<String> = flags.map(|flag| flag.split('=').next().unwrap_or(flag).to_string()).collect();
        let named = texts.iter().find(|text| command.find_subcommand(text).is_some()).cloned();
        let at = texts.iter().position(|text| text == "--config");
        let spaced = at.and_then(|at| texts.get(at + 1).cloned());
        let joined = texts.iter().find_map(|text| text.strip_prefix("--config=").map(ToString::to_string));
        let file = spaced.or(joined).or_else(|| environment.get("TRIBUTARY_CONFIG").cloned());
        Given { command: named, file: file.filter(|file| !file.is_empty()), own }
    }

    /// The flags that settings come to, where the command line or a flag's own variable does not say otherwise.
    fn flags_of(&self, command: &Command, settings: &Settings, environment: &Environment) -> Vec<String> {
        let Some(named) = self.command.as_deref().filter(|named| *named != "help") else { return Vec::new() };
        let mut flags = Vec::new();
        for ((section, key), setting) in settings {
            let applies = SECTIONS.iter().any(|(name, of)| name == section && (of.is_empty() || *of == named));
            let Some(arg) = argument(command, section, key).filter(|_| applies) else { continue };
            let names = arg.get_long_and_visible_aliases().unwrap_or_default();
            let said = names.iter().any(|name| self.own.iter().any(|own| own == name));
            let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
            if !said && !variable.is_some_and(|name| environment.contains_key(&name)) {
                flags.extend(flags_for(arg, setting));
            }
        }
        flags
    }

    /// The arguments with flags behind them, and before what is no flag whatever it looks like.
    fn with(&self, arguments: &[OsString], added: &[String]) -> Vec<OsString> {
        let end = arguments.iter().position(|text| text == "--").unwrap_or(arguments.len());
        let (before, after) = arguments.split_at(end);
        before.iter().cloned().chain(added.iter().map(OsString::from)).chain(after.iter().cloned()).collect()
    }
}

/// The command whose flags are a section's keys.
fn command_of<'a>(command: &'a Command, section: &str) -> Option<&'a Command> {
    let (_, of) = SECTIONS.iter().find(|(name, _)| *name == section)?;
    if of.is_empty() { Some(command) } else { command.find_subcommand(of) }
}

/// The flags of a section.
fn arguments<'a>(command: &'a Command, section: &str) -> impl Iterator<Item = &'a Arg> {
    let all = command_of(command, section).into_iter().flat_map(Command::get_arguments);
    all.filter(|arg| arg.get_long().is_some_and(|long| !NO_SETTINGS.contains(&long)) && !arg.is_hide_set())
}

fn key_of(arg: &Arg) -> String {
    arg.get_long().unwrap_or_default().replace('-', "_")
}

fn argument<'a>(command: &'a Command, section: &str, key: &str) -> Option<&'a Arg> {
    arguments(command, section).find(|arg| key_of(arg) == key)
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn takes_many(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_value_delimiter().is_some()
}

/// A setting as flags.
fn flags_for(arg: &Arg, setting: &Setting) -> Vec<String> {
    let long = arg.get_long().unwrap_or_default();
    if is_switch(arg) {
        return setting.values.iter().filter(|value| *value == "true").map(|_| format!("--{long}")).collect();
    }
    setting.values.iter().map(|value| format!("--{long}={value}")).collect()
}

/// What is wrong with a setting by itself.
fn problem_of(command: &Command, section: &str, key: &str, setting: &Setting) -> Option<String> {
    let arg = argument(command, section, key)?;
    let at = format!("{}: `{section}.{key}`", setting.origin);
    let shown = || if is_secret(key) { "its value".to_string() } else { format!("`{}`", setting.values.join(", ")) };
    if is_switch(arg) && setting.values.iter().any(|value| value != "true" && value != "false") {
        return Some(format!("{at} is {}: it must be true or false", shown()));
    }
    if setting.values.len() != 1 && !takes_many(arg) {
        return Some(format!("{at} has {} values: it takes one", setting.values.len()));
    }
    let mut alone = vec!["tributary".to_string()];
    alone.extend(
        SECTIONS.iter().filter(|(name, of)| *name == section && !of.is_empty()).map(|(_, of)| (*of).to_string()),
    );
    alone.extend(flags_for(arg, setting));
    let refused = command.clone().try_get_matches_from(alone).err()?;
    // What else is missing is the command line's own business.
    if !matches!(refused.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::InvalidUtf8) {
        return None;
    }
    if is_secret(key) {
        return Some(format!("{at}: its value cannot be used"));
    }
    let text = refused.to_string();
    let lines =
        text.lines().map(str::trim).take_while(|line| !line.starts_with("For more")).filter(|line| !line.is_empty());
    let told: Vec<&str> = lines.map(|line| line.strip_prefix("error: ").unwrap_or(line)).collect();
    Some(format!("{at}: {}", told.join("; ")))
}

/// Whether the value of a key must not be shown. Files that hold secrets may be named.
pub(crate) fn is_secret(key: &str) -> bool {
    let words: Vec<&str> = key.split('_').collect();
    let secret = words.iter().any(|word| matches!(*word, "secret" | "password" | "token" | "tokens" | "credentials"));
    let place =
        words.last().is_some_and(|last| matches!(*last, "file" | "path" | "dir" | "url" | "issuer" | "audience"));
    secret && !place
}

/// Every key, section by section.
pub fn keys() -> Vec<Key> {
    let command = Cli::command();
    let mut keys = Vec::new();
    for (section, _) in SECTIONS {
        for arg in arguments(&command, section) {
            let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
            let possible = arg.get_possible_values();
            keys.push(Key {
                section,
                name: key_of(arg),
                flag: format!("--{}", arg.get_long().unwrap_or_default()),
                variable: arg.get_env().map(|name| name.to_string_lossy().into_owned()),
                default: if is_switch(arg) { "false".to_string() } else { defaults.collect::<Vec<_>>().join(", ") },
                values: possible.iter().map(|value| value.get_name().to_string()).collect(),
                many: takes_many(arg),
                help: arg.get_help().map(ToString::to_string).unwrap_or_default(),
            });
        }
    }
    keys
}

/// The names of a section's keys.
fn names(command: &Command, section: &str) -> Vec<String> {
    arguments(command, section).map(key_of).collect()
}

#[cfg(test)]
mod tests;
