// SPDX-License-Identifier: Apache-2.0
//! Settings as they are in effect, printed as a file that could be used again.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::{Origin, SECTIONS, Settings, arguments, is_secret, is_switch, key_of, takes_many};

/// The settings of a server: each with where it comes from.
pub(super) fn effective(command: &Command, matches: &ArgMatches, settings: &Settings, own: &[String]) -> String {
    let mut text = String::new();
    for (section, of) in SECTIONS {
        let matches = if of.is_empty() { Some(matches) } else { matches.subcommand_matches(of) };
        let Some(matches) = matches else { continue };
        text.push_str(&format!("{}[{section}]\n", if text.is_empty() { "" } else { "\n" }));
        for arg in arguments(command, section) {
            text.push_str(&line(
                arg,
                matches,
                settings.get(&(section.to_string(), key_of(arg))).map(|s| &s.origin),
                own,
            ));
        }
    }
    text
}

fn line(arg: &Arg, matches: &ArgMatches, found: Option<&Origin>, own: &[String]) -> String {
    let key = key_of(arg);
    let id = arg.get_id().as_str();
    let values: Vec<String> = match is_switch(arg) {
        true => vec![matches.get_flag(id).to_string()],
        false => {
            let raw = matches.get_raw(id).into_iter().flatten();
            raw.map(|value| value.to_string_lossy().into_owned()).collect()
        }
    };
    if values.is_empty() {
        return format!("# {key} is not set\n");
    }
    let is_own = arg.get_long().is_some_and(|long| own.iter().any(|own| own == long));
    let origin = match (matches.value_source(id), found) {
        (Some(ValueSource::EnvVariable), _) => format!("`{}`", arg.get_env().unwrap_or_default().to_string_lossy()),
        (Some(ValueSource::CommandLine), Some(found)) if !is_own => found.to_string(),
        (Some(ValueSource::CommandLine), _) => "flag".to_string(),
        // A switch that a file turns off is not among the flags.
        (_, Some(found)) => found.to_string(),
        (_, None) => "default".to_string(),
    };
    let literals: Vec<String> = values.iter().map(|value| literal(arg, &key, value)).collect();
    let value = if takes_many(arg) { format!("[{}]", literals.join(", ")) } else { literals.join("") };
    format!("{key} = {value} # {origin}\n")
}

fn literal(arg: &Arg, key: &str, value: &str) -> String {
    if is_secret(key) {
        return "\"***\"".to_string();
    }
    if is_switch(arg) || value.parse::<u64>().is_ok() {
        return value.to_string();
    }
    toml::Value::String(without_credentials(value)).to_string()
}

/// A URL without what stands before its host, and without its query, which often is a key.
fn without_credentials(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return value.to_string() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (user, from) = rest[..end].rfind('@').map_or(("", 0), |at| ("***", at));
    let (shown, hidden) = rest[from..].find(['?', '#']).map_or((&rest[from..], ""), |at| {
        let (shown, _) = rest[from..].split_at(at + 1);
        (shown, "***")
    });
    format!("{scheme}://{user}{shown}{hidden}")
}
