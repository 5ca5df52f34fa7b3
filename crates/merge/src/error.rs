// SPDX-License-Identifier: Apache-2.0
//! From the engine's errors to the role's: classified first, turned into text last.

use std::error::Error as StdError;

use datafusion::common::{Column, Diagnostic, SchemaError};
use datafusion::error::DataFusionError;
use tributary_api::RowError;
use tributary_api::merge::Error;
use tributary_types::{Code, Fault, Retry};

use crate::placeholders::{Place, nearest, placeholder_of};

/// How the engine says that its temporary files outgrew their limit. It does so in an I/O error without a type.
const SPILL_LIMIT: &str = "disk space during the spilling process has exceeded";
/// Column names listed in a message at most.
const LISTED: usize = 40;

/// The SQL is wrong at `place`.
pub(crate) fn sql_error(place: Option<Place>, message: impl Into<String>) -> Error {
    Error::Sql { at: place.map(Place::at).unwrap_or_default(), message: message.into() }
}

/// A failure that is nobody's input: a bug, here or in the engine.
pub(crate) fn internal(message: impl Into<String>) -> Error {
    Error::Other { code: Code::Internal, retry: Retry::Never, message: message.into() }
}

/// A failure while planning a query.
pub(crate) fn from_planning(error: &DataFusionError) -> Error {
    if let Some(rows) = RowError::find(error) {
        return Error::Rows(rows.clone());
    }
    let chain = engine_chain(error);
    let diagnostic = chain.iter().find_map(|link| match link {
        DataFusionError::Diagnostic(diagnostic, _) => Some(diagnostic.as_ref()),
        _ => None,
    });
    let place = diagnostic.and_then(place_of);
    let root = chain.last().copied().unwrap_or(error);
    match root {
        DataFusionError::SchemaError(schema, _) => {
            let (own_place, message) = describe_schema_error(schema, diagnostic);
            sql_error(place.or(own_place), message)
        }
        DataFusionError::Internal(message) => internal(format!("the query could not be planned: {message}")),
        DataFusionError::NotImplemented(message) => sql_error(place, format!("not supported: {}", readable(message))),
        DataFusionError::Plan(message) => sql_error(place, readable(message)),
        other => sql_error(place, readable(&other.strip_backtrace())),
    }
}

/// A failure while running a query. `share` is the memory it was held to.
pub(crate) fn from_execution(error: &DataFusionError, share: usize, spill_bytes: u64) -> Error {
    if let Some(rows) = RowError::find(error) {
        return Error::Rows(rows.clone());
    }
    let links = whole_chain(error);
    if links.iter().any(|link| link.to_string().contains(SPILL_LIMIT)) {
        return Error::Limit {
            limit: "spill",
            detail: format!(
                "the query needs more than {spill_bytes} bytes of temporary disk space; raise `limits.spill`"
            ),
        };
    }
    let chain = engine_chain(error);
    for link in &chain {
        match link {
            DataFusionError::ResourcesExhausted(message) => {
                return Error::Memory { detail: format!("{message} (the query's share is {share} bytes)") };
            }
            DataFusionError::IoError(io) => {
                return Error::Other {
                    code: Code::Unavailable,
                    retry: Retry::Again,
                    message: format!("a temporary file of the query failed: {io}"),
                };
            }
            DataFusionError::ExecutionJoin(join) => return internal(format!("a task of the query failed: {join}")),
            DataFusionError::Internal(message) => return internal(format!("the query failed: {message}")),
            _ => {}
        }
    }
    let message = match chain.last() {
        Some(DataFusionError::ArrowError(arrow, _)) => arrow.to_string(),
        Some(DataFusionError::Execution(message)) => message.clone(),
        Some(root) => root.strip_backtrace(),
        None => error.strip_backtrace(),
    };
    Error::Execution { message: readable(&message) }
}

/// Whether the engine ran out of memory, however deep it says so.
pub(crate) fn is_out_of_memory(error: &DataFusionError) -> bool {
    engine_chain(error).iter().any(|link| matches!(link, DataFusionError::ResourcesExhausted(_)))
}

/// The same failure as the writer sees it: code, advice and reason of `error`, and its text.
pub(crate) fn for_the_writer(error: &Error) -> RowError {
    match error {
        Error::Rows(rows) => rows.clone(),
        other => RowError::new(StreamFailure {
            code: other.code(),
            retry: other.retry(),
            reason: other.reason(),
            message: other.to_string(),
        }),
    }
}

/// Why the stream of rows into the writer ended early.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct StreamFailure {
    code: Code,
    retry: Retry,
    reason: &'static str,
    message: String,
}

impl Fault for StreamFailure {
    fn code(&self) -> Code {
        self.code
    }

    fn retry(&self) -> Retry {
        self.retry
    }

    fn reason(&self) -> &'static str {
        self.reason
    }
}

/// Every error from `error` down to its root.
fn whole_chain(error: &DataFusionError) -> Vec<&(dyn StdError + 'static)> {
    let mut links: Vec<&(dyn StdError + 'static)> = Vec::new();
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(link) = next {
        links.push(link);
        next = link.source();
    }
    links
}

/// The engine's own errors among them.
fn engine_chain(error: &DataFusionError) -> Vec<&DataFusionError> {
    whole_chain(error).into_iter().filter_map(|link| link.downcast_ref::<DataFusionError>()).collect()
}

fn place_of(diagnostic: &Diagnostic) -> Option<Place> {
    let start = diagnostic.span?.start;
    (start.line > 0).then_some(Place { line: start.line, column: start.column })
}

fn describe_schema_error(error: &SchemaError, diagnostic: Option<&Diagnostic>) -> (Option<Place>, String) {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let place = field.spans().first().map(|span| Place { line: span.start.line, column: span.start.column });
            (place, describe_missing_column(field, valid_fields))
        }
        SchemaError::AmbiguousReference { field } => {
            let place = field.spans().first().map(|span| Place { line: span.start.line, column: span.start.column });
            // The candidates are in the notes only: `possible column t.id`.
            let candidates: Vec<&str> = diagnostic
                .into_iter()
                .flat_map(|diagnostic| &diagnostic.notes)
                .filter_map(|note| note.message.strip_prefix("possible column "))
                .collect();
            let name = &field.name;
            let choice = if candidates.is_empty() {
                String::new()
            } else {
                format!(": write one of {}", readable(&candidates.join(", ")))
            };
            (place, format!("column `{name}` is ambiguous: more than one relation has it{choice}"))
        }
        other => (None, readable(&other.to_string())),
    }
}

fn describe_missing_column(field: &Column, valid_fields: &[Column]) -> String {
    let wanted = display_column(field);
    if valid_fields.is_empty() {
        return format!("column `{wanted}` does not exist: nothing here has columns");
    }
    let full: Vec<String> = valid_fields.iter().map(display_column).collect();
    let suggestion = match &field.relation {
        Some(_) => nearest(&wanted, full.iter().map(String::as_str)),
        // Without a qualifier only the names are compared, but the suggestion shows whose it is.
        None => nearest(field.name(), valid_fields.iter().map(Column::name))
            .and_then(|name| valid_fields.iter().position(|valid| valid.name() == name))
            .map(|position| full[position].as_str()),
    };
    let hint = suggestion.map(|name| format!("; did you mean `{name}`?")).unwrap_or(".".to_string());
    let listed: Vec<&str> = full.iter().take(LISTED).map(String::as_str).collect();
    let more = if full.len() > LISTED { ", …" } else { "" };
    format!("column `{wanted}` does not exist{hint} There are: {}{more}", listed.join(", "))
}

/// A column as the user would write it: `<SRC:orders>.id`, `o.id`, `id`.
fn display_column(column: &Column) -> String {
    match &column.relation {
        Some(relation) => {
            let table = relation.table();
            format!("{}.{}", placeholder_of(table).unwrap_or_else(|| table.to_string()), column.name())
        }
        None => column.name().to_string(),
    }
}

/// Puts placeholders back where the engine quotes the names it knows them by.
fn readable(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(open) = rest.find('"') {
        let (before, quoted) = rest.split_at(open);
        let Some(close) = quoted[1..].find('"') else { break };
        let name = &quoted[1..=close];
        text.push_str(before);
        match placeholder_of(name) {
            Some(placeholder) => text.push_str(&placeholder),
            None => text.push_str(&quoted[..close + 2]),
        }
        rest = &quoted[close + 2..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::error::ArrowError;

    use super::*;

    fn row_error() -> RowError {
        RowError::new(tributary_api::timeline::Error::FileGone { url: "/t".to_string(), file: "f".to_string() })
    }

    #[test]
    fn a_row_error_is_found_however_deep_it_is_wrapped() {
        let wrapped = DataFusionError::Context(
            "outer".to_string(),
            Box::new(DataFusionError::Shared(Arc::new(DataFusionError::ArrowError(
                Box::new(ArrowError::ExternalError(Box::new(DataFusionError::External(Box::new(row_error()))))),
                None,
            )))),
        );
        for error in [from_execution(&wrapped, 1, 1), from_planning(&wrapped)] {
            assert_eq!((error.code(), error.retry(), error.reason()), (Code::Conflict, Retry::Rebase, "FILE_GONE"));
        }
    }

    #[test]
    fn the_writer_sees_the_same_classification() {
        let memory = Error::Memory { detail: "x".to_string() };
        let seen = for_the_writer(&memory);
        assert_eq!((seen.code(), seen.retry(), seen.reason()), (memory.code(), memory.retry(), memory.reason()));
        let rows = for_the_writer(&Error::Rows(row_error()));
        assert_eq!(rows.reason(), "FILE_GONE");
    }

    #[test]
    fn internal_names_are_shown_as_placeholders() {
        assert_eq!(readable(r#"no "SRC:orders".id in "o" "#), r#"no <SRC:orders>.id in "o" "#);
        assert_eq!(readable(r#"a lone " stays"#), r#"a lone " stays"#);
    }
}
