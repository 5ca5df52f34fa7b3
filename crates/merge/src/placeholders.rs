// SPDX-License-Identifier: Apache-2.0
//! Finds `<SRC>`, `<SRC_0>`, `<SRC:name>`, `<SNAP:name>` and `<PREV:name>` in a SQL text and binds them to sources.
//!
//! A placeholder is replaced by a quoted identifier of the same length (`<SRC:a>` by `` `SRC:a` ``), so that every
//! later error points into the text that the user wrote, and plans show the name that the user gave.

mod lexer;

use std::fmt;

use tributary_api::merge::{Bound, Error};
use tributary_api::timeline::Views;
use tributary_types::SourceName;

use crate::error::sql_error;
use lexer::{Kind, Token, tokenize};

/// The name inside the engine of what `<SRC>` is.
pub(crate) const RESULT: &str = "SRC";

/// A place in the SQL text. Both count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: u64,
    pub(crate) column: u64,
}

impl Place {
    /// ` at line L, column C`, as errors carry it.
    pub(crate) fn at(self) -> String {
        format!(" at line {}, column {}", self.line, self.column)
    }
}

/// What of a source is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum View {
    /// Rows changed in the window.
    Changed,
    /// The table at the window's end.
    AtEnd,
    /// The table at the window's beginning.
    AtBegin,
}

/// A relation that the SQL names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The name it has inside the engine: the placeholder without its angle brackets.
    pub(crate) table: String,
    /// Position of the source in the pipeline.
    pub(crate) source: usize,
    /// What of it.
    pub(crate) view: View,
    /// Named by position, so that the order of the sources matters.
    pub(crate) by_position: bool,
}

/// A SQL text whose placeholders are bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoundSql {
    /// The text with identifiers in place of the placeholders.
    pub(crate) text: String,
    /// The relations named, each once.
    pub(crate) references: Vec<Reference>,
}

/// Binds every placeholder of `sql` to one of `sources`.
pub(crate) fn bind(sql: &str, sources: &[SourceName]) -> Result<BoundSql, Error> {
    let mut text = String::with_capacity(sql.len());
    let mut references: Vec<Reference> = Vec::new();
    for token in tokenize(sql) {
        if token.kind != Kind::Placeholder {
            push(&mut text, token.text);
            continue;
        }
        let reference = resolve(&token, sources)?;
        push(&mut text, &quoted(&reference.table));
        if !references.iter().any(|known| known.table == reference.table) {
            references.push(reference);
        }
    }
    Ok(BoundSql { text, references })
}

/// Binds a later step of a merge, which names nothing but the result of the step before it.
pub(crate) fn bind_result(sql: &str) -> Result<String, Error> {
    let mut text = String::with_capacity(sql.len());
    let mut used = false;
    for token in tokenize(sql) {
        match token.kind {
            Kind::Placeholder if token.text == "<SRC>" => {
                used = true;
                push(&mut text, &quoted(RESULT));
            }
            Kind::Placeholder => {
                return Err(Error::Placeholder {
                    placeholder: token.text.to_string(),
                    line: token.place.line,
                    column: token.place.column,
                    present: "`<SRC>`, the result of the step before; only the first step names sources".to_string(),
                });
            }
            _ => push(&mut text, token.text),
        }
    }
    match used {
        true => Ok(text),
        false => Err(sql_error(None, "the step does not name `<SRC>`, the result of the step before it".to_string())),
    }
}

/// Adds a piece. A backtick right behind another would be an escaped one, and two names would become one.
fn push(text: &mut String, piece: &str) {
    if text.ends_with('`') && piece.starts_with('`') {
        text.push(' ');
    }
    text.push_str(piece);
}

fn quoted(table: &str) -> String {
    format!("`{}`", table.replace('`', "``"))
}

/// What the SQL names of each source, in pipeline order.
pub(crate) fn usage(references: &[Reference], sources: &[SourceName]) -> Vec<Bound> {
    let mut bound: Vec<Bound> = sources
        .iter()
        .map(|source| Bound { source: source.clone(), views: Views::default(), by_position: false })
        .collect();
    for reference in references {
        let entry = &mut bound[reference.source];
        match reference.view {
            View::Changed => entry.views.changed = true,
            View::AtEnd => entry.views.end = true,
            View::AtBegin => entry.views.begin = true,
        }
        entry.by_position |= reference.by_position;
    }
    bound
}

/// The placeholder that stands for `table` inside the engine, if it is one.
pub(crate) fn placeholder_of(table: &str) -> Option<String> {
    let named = ["SRC:", "SNAP:", "PREV:"].iter().any(|head| table.starts_with(head));
    let positional = table == "SRC" || table.strip_prefix("SRC_").is_some_and(is_number);
    (named || positional).then(|| format!("<{table}>"))
}

fn resolve(token: &Token<'_>, sources: &[SourceName]) -> Result<Reference, Error> {
    // The lexer only calls something a placeholder that has both brackets.
    let inner = &token.text[1..token.text.len() - 1];
    let unknown = || unknown_placeholder(token, sources);
    let reference = |source: usize, view: View, by_position: bool| Reference {
        table: inner.to_string(),
        source,
        view,
        by_position,
    };
    if inner == "SRC" {
        return if sources.is_empty() { Err(unknown()) } else { Ok(reference(0, View::Changed, true)) };
    }
    if let Some(digits) = inner.strip_prefix("SRC_").filter(|digits| is_number(digits)) {
        let index: usize = digits.parse().map_err(|_| unknown())?;
        return if index < sources.len() { Ok(reference(index, View::Changed, true)) } else { Err(unknown()) };
    }
    let (view, name) = match inner.split_once(':') {
        Some(("SRC", name)) => (View::Changed, name),
        Some(("SNAP", name)) => (View::AtEnd, name),
        Some(("PREV", name)) => (View::AtBegin, name),
        _ => return Err(unknown()),
    };
    let index = sources.iter().position(|source| source.as_str() == name).ok_or_else(unknown)?;
    Ok(reference(index, view, false))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn unknown_placeholder(token: &Token<'_>, sources: &[SourceName]) -> Error {
    let named: Vec<String> = sources.iter().map(|source| format!("<SRC:{source}>")).collect();
    let mut present = if named.is_empty() { "no source at all".to_string() } else { named.join(", ") };
    if !sources.is_empty() {
        let last = sources.len() - 1;
        let range = if last == 0 { "<SRC_0>".to_string() } else { format!("<SRC_0> to <SRC_{last}>") };
        present.push_str(&format!("; {range} by position; <SNAP:name> and <PREV:name> for each name"));
    }
    let mut candidates = vec!["<SRC>".to_string()];
    for (position, source) in sources.iter().enumerate() {
        candidates.push(format!("<SRC_{position}>"));
        candidates.extend(["SRC", "SNAP", "PREV"].map(|head| format!("<{head}:{source}>")));
    }
    if let Some(nearest) = nearest(token.text, candidates.iter().map(String::as_str)) {
        present.push_str(&format!("; did you mean `{nearest}`?"));
    }
    Error::Placeholder {
        placeholder: token.text.to_string(),
        line: token.place.line,
        column: token.place.column,
        present,
    }
}

/// The candidate that is spelled most like `wrong`, if one is close enough to be meant.
pub(crate) fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = wrong.to_lowercase();
    let mut best: Option<(f64, &str)> = None;
    for candidate in candidates {
        let likeness = strsim::normalized_damerau_levenshtein(&folded, &candidate.to_lowercase());
        if likeness >= 0.5 && best.is_none_or(|(known, _)| likeness > known) {
            best = Some((likeness, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            View::Changed => "SRC",
            View::AtEnd => "SNAP",
            View::AtBegin => "PREV",
        })
    }
}

#[cfg(test)]
mod tests;
