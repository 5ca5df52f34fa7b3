// SPDX-License-Identifier: Apache-2.0
//! Reads a merge script: temporary views, then one query.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{CreateTableOptions, CreateView, Query, Statement};
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan, Tokenizer, Whitespace};
use tributary_api::merge::Error;

use crate::bounds;
use crate::calls;
use crate::casing::Casing;
use crate::dialect::SqlDialect;
use crate::error::sql_error;
use crate::placeholders::Place;
use crate::settings::Settings;

const ALLOWED: &str = "a merge script holds `CREATE [OR REPLACE] TEMPORARY VIEW … AS query` any number of times, then \
                       one query";

/// A script whose statements are of the right kinds.
#[derive(Debug)]
pub(crate) struct Script {
    /// Temporary views in the order they are made.
    pub(crate) views: Vec<View>,
    /// The query whose result is the batch.
    pub(crate) query: Box<Query>,
}

/// One temporary view.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) name: String,
    pub(crate) place: Option<Place>,
    pub(crate) query: Box<Query>,
}

/// Reads `text`, whose placeholders are identifiers already.
pub(crate) fn parse(text: &str, casing: Casing, settings: &Settings) -> Result<Script, Error> {
    if text.len() > settings.max_sql_bytes {
        return Err(Error::Limit {
            limit: "SQL length",
            detail: format!("the SQL has {} bytes, {} are allowed; shorten it", text.len(), settings.max_sql_bytes),
        });
    }
    let mut tokens = Tokenizer::new(&SqlDialect::default(), text).tokenize_with_location().map_err(|error| {
        let place = Place { line: error.location.line, column: error.location.column };
        sql_error(Some(place), error.message)
    })?;
    bounds::check(&tokens, settings)?;
    casing.apply(&mut tokens);
    let statements = split(tokens);
    let Some((last, before)) = statements.split_last() else {
        return Err(sql_error(None, format!("the text holds no statement: {ALLOWED}")));
    };
    let mut views: Vec<View> = Vec::new();
    for statement in before {
        let (view, replaces) = parse_view(statement, settings)?;
        match views.iter().position(|known| known.name == view.name) {
            // The earlier one stays: views made in between may build on it.
            Some(_) if replaces => views.push(view),
            Some(_) => {
                let message = format!("view `{}` exists already: write CREATE OR REPLACE TEMPORARY VIEW", view.name);
                return Err(sql_error(view.place, message));
            }
            None => views.push(view),
        }
    }
    let query = parse_query(last, settings)?;
    Ok(Script { views, query })
}

/// Cuts the tokens at each `;` and leaves empty statements out.
fn split(tokens: Vec<TokenWithSpan>) -> Vec<Vec<TokenWithSpan>> {
    let mut statements = vec![Vec::new()];
    for token in tokens {
        if token.token == Token::SemiColon {
            statements.push(Vec::new());
        } else if let Some(statement) = statements.last_mut() {
            statement.push(token);
        }
    }
    statements.retain(|statement| statement.iter().any(|token| !is_blank(&token.token)));
    statements
}

/// Whether a token is white space, a comment or the end.
pub(crate) fn is_blank(token: &Token) -> bool {
    matches!(token, Token::Whitespace(Whitespace::Space | Whitespace::Tab | Whitespace::Newline))
        || matches!(token, Token::Whitespace(Whitespace::SingleLineComment { .. } | Whitespace::MultiLineComment(_)))
        || *token == Token::EOF
}

fn parse_view(tokens: &[TokenWithSpan], settings: &Settings) -> Result<(View, bool), Error> {
    let (place, word) = first_word(tokens);
    if word != "CREATE" {
        let what = if is_query_start(&word) {
            "a query that is not the last statement".to_string()
        } else {
            format!("a statement that begins with `{word}`")
        };
        return Err(sql_error(place, format!("{what} is not allowed: {ALLOWED}")));
    }
    // Told by its words, so that any other CREATE is named as such even where the parser does not know it.
    if !creates_temporary_view(tokens) {
        let message = format!("of all CREATE statements only CREATE [OR REPLACE] TEMPORARY VIEW is allowed: {ALLOWED}");
        return Err(sql_error(place, message));
    }
    match parse_statement(tokens, settings)? {
        Statement::CreateView(view) => {
            check_plain_view(&view, place)?;
            let name = match view.name.0.as_slice() {
                [part] => part.as_ident().map(|ident| ident.value.clone()),
                _ => None,
            };
            let Some(name) = name else {
                let message = format!("view name `{}` has a qualifier: a temporary view has a name only", view.name);
                return Err(sql_error(place, message));
            };
            Ok((View { name, place, query: view.query }, view.or_replace))
        }
        _ => Err(sql_error(place, format!("only temporary views can be created: {ALLOWED}"))),
    }
}

fn check_plain_view(view: &CreateView, place: Option<Place>) -> Result<(), Error> {
    let refused = if view.if_not_exists {
        "IF NOT EXISTS (views never outlive a batch, so none exists before it)"
    } else if !view.columns.is_empty() {
        "a column list (name the columns in the query: `SELECT a AS b`)"
    } else if view.options != CreateTableOptions::None || view.comment.is_some() || !view.cluster_by.is_empty() {
        "options"
    } else if !view.temporary || view.materialized || view.secure || view.or_alter || view.to.is_some() {
        "anything but CREATE [OR REPLACE] TEMPORARY VIEW name AS query"
    } else {
        return Ok(());
    };
    Err(sql_error(place, format!("a temporary view takes no {refused}")))
}

fn parse_query(tokens: &[TokenWithSpan], settings: &Settings) -> Result<Box<Query>, Error> {
    let (place, word) = first_word(tokens);
    if !is_query_start(&word) {
        let message = format!("the last statement must be a query, it begins with `{word}`: {ALLOWED}");
        return Err(sql_error(place, message));
    }
    match parse_statement(tokens, settings)? {
        Statement::Query(query) => Ok(query),
        _ => Err(sql_error(place, format!("the last statement is no query: {ALLOWED}"))),
    }
}

/// How often the parser may look at an expression: so often in any statement, and so often more for each word. A
/// statement without a mistake takes one or two for each word.
const LOOKS: usize = 10_000;
const LOOKS_PER_WORD: usize = 50;

fn parse_statement(tokens: &[TokenWithSpan], settings: &Settings) -> Result<Statement, Error> {
    let dialect = SqlDialect::within(LOOKS + LOOKS_PER_WORD * tokens.len());
    let mut parser =
        Parser::new(&dialect).with_recursion_limit(settings.max_nesting).with_tokens_with_locations(tokens.to_vec());
    let mut statement = parser.parse_statement().map_err(|error| {
        // Where a word such as CASE nests too deep, the parser tries to read it as a name, and then stumbles over what
        // follows.
        if bounds::depth(tokens) > settings.max_nesting {
            from_parser(&ParserError::RecursionLimitExceeded, settings)
        } else if dialect.is_exhausted() {
            unreadable(tokens)
        } else {
            from_parser(&error, settings)
        }
    })?;
    let next = parser.peek_token();
    if next.token == Token::EOF {
        match &mut statement {
            Statement::Query(query) => calls::rewrite(query),
            Statement::CreateView(view) => calls::rewrite(&mut view.query),
            _ => {}
        }
        return Ok(statement);
    }
    if bounds::depth(tokens) > settings.max_nesting {
        return Err(from_parser(&ParserError::RecursionLimitExceeded, settings));
    }
    let message = format!("unexpected `{}` after the end of the statement", next.token);
    Err(sql_error(place_of(next.span), message))
}

/// What the parser gave up on.
fn unreadable(tokens: &[TokenWithSpan]) -> Error {
    Error::Limit {
        limit: "nesting",
        detail: format!(
            "a statement whose calls and queries nest {} levels deep cannot be read: there is a mistake inside, or it \
             nests too deep to try all ways of reading it; give inner parts names of their own with CREATE TEMPORARY \
             VIEW, then the mistake is told with its place",
            bounds::depth(tokens)
        ),
    }
}

fn from_parser(error: &ParserError, settings: &Settings) -> Error {
    match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => {
            let (message, place) = split_place(text);
            sql_error(place, message)
        }
        ParserError::RecursionLimitExceeded => Error::Limit {
            limit: "nesting",
            detail: format!(
                "an expression or query nests deeper than the {} levels that are allowed (CASE in CASE, brackets in \
                 brackets, queries in queries); give inner parts names of their own with CREATE TEMPORARY VIEW",
                settings.max_nesting
            ),
        },
    }
}

/// The parser writes the place into its text: `… at Line: 1, Column: 8`.
fn split_place(text: &str) -> (String, Option<Place>) {
    let parsed = text.rsplit_once(" at Line: ").and_then(|(message, numbers)| {
        let (line, column) = numbers.split_once(", Column: ")?;
        Some((message.to_string(), Place { line: line.parse().ok()?, column: column.trim().parse().ok()? }))
    });
    match parsed {
        Some((message, place)) => (message, Some(place)),
        None => (text.to_string(), None),
    }
}

/// The place of `span`, if it has one.
pub(crate) fn place_of(span: Span) -> Option<Place> {
    let start = span.start;
    (start.line > 0).then_some(Place { line: start.line, column: start.column })
}

/// The first word of a statement in capitals, brackets around a query passed over.
fn first_word(tokens: &[TokenWithSpan]) -> (Option<Place>, String) {
    let mut place = None;
    let found = tokens.iter().filter(|token| !is_blank(&token.token)).try_for_each(|token| {
        place = place.or(place_of(token.span));
        match &token.token {
            Token::LParen => ControlFlow::Continue(()),
            Token::Word(word) => ControlFlow::Break(word.value.to_uppercase()),
            other => ControlFlow::Break(other.to_string()),
        }
    });
    match found {
        ControlFlow::Break(word) => (place, word),
        ControlFlow::Continue(()) => (place, "(".to_string()),
    }
}

fn is_query_start(word: &str) -> bool {
    matches!(word, "SELECT" | "WITH" | "VALUES" | "FROM")
}

fn creates_temporary_view(tokens: &[TokenWithSpan]) -> bool {
    let mut words = tokens.iter().filter(|token| !is_blank(&token.token)).filter_map(|token| match &token.token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_uppercase()),
        _ => None,
    });
    let mut next = words.by_ref().nth(1);
    if next.as_deref() == Some("OR") {
        next = (words.next().as_deref() == Some("REPLACE")).then(|| words.next()).flatten();
    }
    matches!(next.as_deref(), Some("TEMPORARY" | "TEMP")) && words.next().as_deref() == Some("VIEW")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Script, Error> {
        parse(text, Casing::default(), &Settings::default())
    }

    fn refused(text: &str) -> String {
        parsed(text).unwrap_err().to_string()
    }

    #[test]
    fn views_and_a_query_are_read_in_order() {
        let script = parsed(
            "CREATE TEMPORARY VIEW a AS SELECT 1 AS x;\n-- then\nCREATE OR REPLACE TEMP VIEW `b c` AS SELECT * FROM a;;\nSELECT * FROM `b c`;",
        )
        .unwrap();
        let names: Vec<&str> = script.views.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, ["a", "b c"]);
        assert!(parsed("WITH t AS (SELECT 1) SELECT * FROM t").is_ok());
        assert!(parsed("(SELECT 1) UNION ALL (SELECT 2)").is_ok());
        assert!(parsed("VALUES (1, 'a')").is_ok());
    }

    #[test]
    fn other_statements_are_refused_by_kind_and_place() {
        for (text, word) in [
            ("SET x = 1; SELECT 1", "`SET`"),
            ("CREATE TEMP VIEW v AS SELECT 1;\n DROP TABLE t", "`DROP`"),
            ("CACHE TABLE t; SELECT 1", "`CACHE`"),
            ("INSERT INTO t SELECT 1", "`INSERT`"),
            ("COPY t TO 'file'", "`COPY`"),
            ("EXPLAIN SELECT 1", "`EXPLAIN`"),
            ("DESCRIBE t", "`DESCRIBE`"),
            ("SHOW TABLES", "`SHOW`"),
            ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE", "`MERGE`"),
            ("UPDATE t SET a = 1", "`UPDATE`"),
            ("DELETE FROM t", "`DELETE`"),
        ] {
            let message = refused(text);
            assert!(message.contains(word) && message.contains("at line"), "{message}");
        }
        assert!(refused("SELECT 1;\n SET x = 1;\n SELECT 1").contains("SQL at line 1, column 1"));
        assert!(refused("CREATE TEMP VIEW v AS SELECT 1;\n SET x = 1; SELECT 1").contains("SQL at line 2, column 2"));
    }

    #[test]
    fn other_creates_and_other_views_are_refused() {
        for text in [
            "CREATE TABLE t (a INT); SELECT 1",
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'; SELECT 1",
            "CREATE VIEW v AS SELECT 1; SELECT 1",
            "CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1; SELECT 1",
            "CREATE FUNCTION f AS 'x'; SELECT 1",
            "CREATE TEMPORARY TABLE t AS SELECT 1; SELECT 1",
            "CREATE MATERIALIZED VIEW v AS SELECT 1; SELECT 1",
        ] {
            assert!(refused(text).contains("only CREATE [OR REPLACE] TEMPORARY VIEW"), "{text}: {}", refused(text));
        }
        assert!(refused("CREATE TEMP VIEW IF NOT EXISTS v AS SELECT 1; SELECT 1").contains("IF NOT EXISTS"));
        assert!(refused("CREATE TEMP VIEW v (a) AS SELECT 1; SELECT 1").contains("column list"));
        assert!(refused("CREATE TEMP VIEW a.v AS SELECT 1; SELECT 1").contains("qualifier"));
    }

    #[test]
    fn an_empty_text_a_missing_query_and_a_view_made_twice_are_refused() {
        for text in ["", " ;; ", "-- only a comment"] {
            assert!(refused(text).contains("holds no statement"), "{text:?}");
        }
        assert!(refused("CREATE TEMP VIEW v AS SELECT 1").contains("the last statement must be a query"));
        assert!(refused("SELECT 1; SELECT 2").contains("not the last statement"));
        let twice = "CREATE TEMP VIEW v AS SELECT 1; CREATE TEMP VIEW v AS SELECT 2; SELECT 1";
        assert!(refused(twice).contains("exists already"));
        assert!(parsed(&twice.replace("; CREATE", "; CREATE OR REPLACE")).is_ok());
    }

    #[test]
    fn syntax_errors_carry_their_place() {
        assert!(
            refused("SELECT 1,\n  FROM WHERE").starts_with("SQL at line 2, column"),
            "{}",
            refused("SELECT 1,\n  FROM WHERE")
        );
        assert!(refused("SELECT 'abc").starts_with("SQL at line 1, column 8"), "{}", refused("SELECT 'abc"));
        assert!(refused("SELECT 1 SELECT 2").contains("unexpected"), "{}", refused("SELECT 1 SELECT 2"));
    }

    #[test]
    fn length_and_nesting_are_limited_each_with_its_own_error() {
        let deep = format!("SELECT {}1{}", "(".repeat(200), ")".repeat(200));
        assert!(matches!(parsed(&deep), Err(Error::Limit { limit: "nesting", .. })));
        let cases = format!("SELECT {}1{}", "CASE WHEN a = 1 THEN ".repeat(60), " END".repeat(60));
        assert!(matches!(parsed(&cases), Err(Error::Limit { limit: "nesting", .. })));
    }

    #[test]
    fn deep_nesting_with_or_without_a_mistake_inside_is_parsed_or_refused_in_bounded_work() {
        // What the parser tries in two ways, level by level, when it cannot read what is inside.
        let shapes = [
            ("CAST(", " AS INT)"),
            ("CASE WHEN a = 1 THEN ", " END"),
            ("coalesce(a, ", ")"),
            ("(SELECT ", ")"),
            ("(SELECT * FROM (SELECT ", ") AS q)"),
            ("EXISTS (SELECT ", ")"),
            ("substring(", " FROM 1)"),
            ("[", "]"),
            ("struct(", ")"),
            ("NOT (", ")"),
            ("(a, ", ")"),
            ("sum(a) OVER (ORDER BY ", ")"),
            ("a IN (", ")"),
            ("a BETWEEN 1 AND (", ")"),
            ("extract(year FROM ", ")"),
            ("trim(", ")"),
            ("interval (", ") day"),
        ];
        for levels in [1, 3, 8, 16, 18, 24, 30, 40, 49] {
            for (open, close) in shapes {
                for inside in ["1", "FROM FROM", "1 1 1", "", "'x' SELECT"] {
                    let nested = format!("{}{inside}{}", open.repeat(levels), close.repeat(levels));
                    // It ends; what it says is right either way.
                    let _ = parsed(&format!("SELECT {nested} AS n FROM t"));
                    let _ = parsed(&format!("SELECT 1 FROM {nested}"));
                }
            }
        }
    }

    #[test]
    fn a_mistake_deep_inside_says_what_to_do() {
        let refused = refused(&format!("SELECT {}FROM FROM{}", "CAST(".repeat(40), " AS INT)".repeat(40)));
        assert!(refused.contains("40 levels") && refused.contains("CREATE TEMPORARY VIEW"), "{refused}");
        let read = parsed(&format!("SELECT {}1{}", "CAST(".repeat(12), " AS INT)".repeat(12)));
        assert!(read.is_ok(), "{read:?}");
    }

    #[test]
    fn sql_longer_than_the_limit_is_refused() {
        let settings = Settings { max_sql_bytes: 10, ..Settings::default() };
        let long = parse("SELECT 1234567", Casing::default(), &settings);
        assert!(matches!(long, Err(Error::Limit { limit: "SQL length", .. })));
    }

    #[test]
    fn strings_escape_with_backslashes_and_double_quotes_make_strings() {
        let query = parsed(r#"SELECT 'it\'s', "x;y", '\\d+'"#).unwrap().query.to_string();
        assert!(query.contains("x;y") && query.contains(r"\d+"), "{query}");
    }
}
