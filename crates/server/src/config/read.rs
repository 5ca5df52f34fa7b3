// SPDX-License-Identifier: Apache-2.0
//! Settings as a file and the environment have them.

use clap::Command;
use tributary_types::nearest;

use super::{Environment, Origin, PREFIX, SECTIONS, Setting, Settings, names};

/// The settings of a file. What is wrong with it is added to `problems`.
pub(super) fn file(command: &Command, path: &str, problems: &mut Vec<String>) -> Settings {
    let mut settings = Settings::new();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            problems.push(format!("`{path}` cannot be read: {error}"));
            return settings;
        }
    };
    let table: toml::Table = match toml::from_str(&text) {
        Ok(table) => table,
        Err(error) => {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let line = line.map_or(String::new(), |line| format!("line {line}: "));
            problems.push(format!("`{path}` is not TOML: {line}{}", error.message()));
            return settings;
        }
    };
    let origin = Origin::File(path.to_string());
    for (section, value) in table {
        let known = SECTIONS.map(|(name, _)| name);
        let toml::Value::Table(keys) = value else {
            let at = format!("{origin}: `{section}`");
            problems.push(match known.contains(&section.as_str()) {
                true => format!("{at} is a section: write `[{section}]` above its keys"),
                false => format!("{at} stands in no section; there are {}", listed(&known)),
            });
            continue;
        };
        if let Some(problem) = unknown(&origin, "section", &section, known.iter().copied()) {
            problems.push(problem);
            continue;
        }
        let names = names(command, &section);
        for (key, value) in keys {
            if let Some(problem) = unknown(&origin, "key of this section", &key, names.iter().map(String::as_str)) {
                problems.push(format!("{problem} (section `{section}`)"));
                continue;
            }
            match texts(&value) {
                Some(values) => {
                    settings.insert((section.clone(), key), Setting { values, origin: origin.clone() });
                }
                None => problems.push(format!(
                    "{origin}: `{section}.{key}` is neither a text, a number, true or false, nor a list of these"
                )),
            }
        }
    }
    settings
}

fn texts(value: &toml::Value) -> Option<Vec<String>> {
    let one = |value: &toml::Value| match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    };
    match value {
        toml::Value::Array(values) => values.iter().map(one).collect(),
        value => one(value).map(|text| vec![text]),
    }
}

/// The settings of the environment.
pub(super) fn environment(command: &Command, environment: &Environment, problems: &mut Vec<String>) -> Settings {
    let mut settings = Settings::new();
    for (variable, value) in environment {
        let Some(rest) = variable.strip_prefix(PREFIX) else { continue };
        let origin = Origin::Variable(variable.clone());
        let Some((section, key)) = rest.split_once("__") else {
            problems.push(format!("{origin} is no setting: they are written `{PREFIX}SECTION__KEY`"));
            continue;
        };
        let (section, key) = (section.to_lowercase(), key.to_lowercase());
        let known = SECTIONS.map(|(name, _)| name);
        let problem = unknown(&origin, "section", &section, known.iter().copied()).or_else(|| {
            let names = names(command, &section);
            unknown(&origin, "key of its section", &key, names.iter().map(String::as_str))
        });
        match problem {
            Some(problem) => problems.push(problem),
            None => {
                settings.insert((section, key), Setting { values: vec![value.clone()], origin });
            }
        }
    }
    settings
}

/// Says that a name is none of the known ones, and which is nearest.
fn unknown<'a>(
    origin: &Origin,
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<String> {
    if known.clone().any(|other| other == name) {
        return None;
    }
    let hint = match nearest(name, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", listed(&known.collect::<Vec<_>>())),
    };
    Some(format!("{origin}: `{name}` is no {what}; {hint}"))
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
