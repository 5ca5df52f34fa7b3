// SPDX-License-Identifier: Apache-2.0
//! Cuts a SQL text into code, literals, comments, separators and placeholders.
//!
//! It must agree with the parser about where a literal or a comment ends, for everything in [`super::super::dialect`]:
//! a placeholder inside one is text, and a `;` inside one separates nothing.

use tributary_types::nearest;

use super::Place;

/// Longest text that is taken for a placeholder: the longest source name and its decoration.
const LONGEST: usize = 600;
/// What stands before the name of a source.
const KINDS: [&str; 3] = ["SRC", "SNAP", "PREV"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anything that is none of the others.
    Code,
    /// A string literal or a quoted identifier, quotes included.
    Literal,
    /// A comment, its end included.
    Comment,
    /// A `;` between statements.
    Separator,
    /// Angle brackets and what they hold, which names a relation or is meant to.
    Placeholder,
}

/// A piece of the text. All pieces put together are the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) place: Place,
}

/// Cuts `sql` into tokens. Any text can be cut; what is not terminated reaches to the end of the text, and the parser
/// complains about it.
pub(crate) fn tokenize(sql: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { sql, at: 0, code_from: 0, place: Place { line: 1, column: 1 }, tokens: Vec::new() };
    while let Some(next) = lexer.rest().chars().next() {
        match lexer.special(next) {
            Some((kind, length)) => lexer.emit(kind, length),
            None => lexer.at += next.len_utf8(),
        }
    }
    lexer.flush_code();
    lexer.tokens
}

struct Lexer<'a> {
    sql: &'a str,
    /// Where reading goes on.
    at: usize,
    /// Where code that was not emitted yet begins.
    code_from: usize,
    /// The place of `code_from`.
    place: Place,
    tokens: Vec<Token<'a>>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.sql[self.at..]
    }

    /// What begins here, and its length in bytes. `None`: one character of code.
    fn special(&self, next: char) -> Option<(Kind, usize)> {
        let rest = self.rest();
        match next {
            ';' => Some((Kind::Separator, 1)),
            '\'' | '"' => Some((Kind::Literal, quoted(rest, next, true))),
            '`' => Some((Kind::Literal, quoted(rest, next, false))),
            '$' => dollar_quoted(rest).map(|length| (Kind::Literal, length)),
            '-' if rest.starts_with("--") => {
                Some((Kind::Comment, rest.find('\n').map_or(rest.len(), |newline| newline + 1)))
            }
            '/' if rest.starts_with("/*") => Some((Kind::Comment, block_comment(rest))),
            '<' if !self.inside_type() => {
                placeholder(rest, self.names_relation()).map(|length| (Kind::Placeholder, length))
            }
            _ => None,
        }
    }

    /// Whether a `<` here opens the parameters of a type, as in `STRUCT<src:INT>`.
    fn inside_type(&self) -> bool {
        let before = self.sql[self.code_from..self.at].trim_end();
        let from = before
            .char_indices()
            .rev()
            .take_while(|(_, c)| c.is_alphanumeric() || *c == '_')
            .last()
            .map_or(before.len(), |(position, _)| position);
        ["STRUCT", "ARRAY", "MAP"].iter().any(|name| before[from..].eq_ignore_ascii_case(name))
    }

    /// Whether a relation is named here: nothing can be compared behind `FROM` and `JOIN`.
    fn names_relation(&self) -> bool {
        let before = self.sql[self.code_from..self.at].trim_end();
        let word = before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
        ["FROM", "JOIN"].iter().any(|keyword| word.eq_ignore_ascii_case(keyword))
    }

    fn emit(&mut self, kind: Kind, length: usize) {
        self.flush_code();
        self.push(kind, self.at, self.at + length);
        self.at += length;
        self.code_from = self.at;
    }

    fn flush_code(&mut self) {
        if self.code_from < self.at {
            self.push(Kind::Code, self.code_from, self.at);
            self.code_from = self.at;
        }
    }

    fn push(&mut self, kind: Kind, from: usize, to: usize) {
        let text = &self.sql[from..to];
        self.tokens.push(Token { kind, text, place: self.place });
        for c in text.chars() {
            if c == '\n' {
                self.place.line += 1;
                self.place.column = 1;
            } else {
                self.place.column += 1;
            }
        }
    }
}

/// Length of a quoted text. A doubled quote does not end it, nor does one after a backslash where those escape.
fn quoted(rest: &str, quote: char, backslash: bool) -> usize {
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c == '\\' && backslash {
            chars.next();
        } else if c == quote {
            match chars.peek() {
                Some((_, again)) if *again == quote => {
                    chars.next();
                }
                _ => return at + c.len_utf8(),
            }
        }
    }
    rest.len()
}

/// Length of `$$…$$` or `$tag$…$tag$`; `None` for a lone `$`, which begins a parameter.
fn dollar_quoted(rest: &str) -> Option<usize> {
    let tag =
        rest[1..].find(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|end| rest[1 + end..].starts_with('$'))?;
    let delimiter = &rest[..tag + 2];
    let length = rest[delimiter.len()..].find(delimiter).map(|end| end + 2 * delimiter.len());
    Some(length.unwrap_or(rest.len()))
}

/// Length of a block comment; they nest.
fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut depth = 1;
    let mut at = 2;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'/', Some(b'*')) => {
                depth += 1;
                at += 2;
            }
            (b'*', Some(b'/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a placeholder, well spelled or nearly so. `a<SRC_1` is a comparison: it has no closing bracket; so is
/// `a<src AND b>c`: a name holds no white space. Where a relation must be named, whatever is in brackets is meant as one.
fn placeholder(rest: &str, names_relation: bool) -> Option<usize> {
    let limit = rest.char_indices().map(|(at, _)| at).take_while(|at| *at <= LONGEST).last().unwrap_or(0);
    let stop = |c: char| c == '>' || c == '<' || c == ',' || c == '=' || c.is_whitespace() || c.is_control();
    let end = 1 + rest.get(1..).and_then(|inner| inner.find(stop))?;
    if end > limit || !rest[end..].starts_with('>') {
        return None;
    }
    let inner = &rest[1..end];
    if names_relation && !inner.is_empty() {
        return Some(end + 1);
    }
    let head_length = inner.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(inner.len());
    let (head, tail) = inner.split_at(head_length);
    if !KINDS.iter().any(|known| head.eq_ignore_ascii_case(known)) {
        // `a<b::INT>c` is a comparison with a cast.
        let names_source = tail.starts_with(':') && !tail.starts_with("::");
        return (names_source && nearest(head, KINDS).is_some()).then_some(end + 1);
    }
    let is_name = tail.is_empty()
        || tail.starts_with(':')
        || (tail.starts_with('_') && tail.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    is_name.then_some(end + 1)
}
