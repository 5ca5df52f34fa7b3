// SPDX-License-Identifier: Apache-2.0
//! Finds records and fields in bytes that are ASCII-compatible, without copying any.
//!
//! A record is looked for as a whole: where the bytes end before it does, it is looked for again once there are more,
//! so what is found never depends on how the file was cut into chunks.

use crate::csv::format::Dialect;

/// A field was quoted.
pub(crate) const QUOTED: u8 = 1;
/// A quoted field holds escapes.
pub(crate) const ESCAPED: u8 = 2;

/// A field: its bytes without the quotes around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) flags: u8,
}

/// What is wrong with a record as such.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The quote that a field begins with is never closed.
    OpenQuote,
    /// Something follows a closing quote.
    AfterQuote,
    /// It is longer than is allowed.
    Long,
    /// It has more fields than is allowed.
    Columns,
    /// A field is longer than is allowed.
    Field,
}

/// What is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// A record; its fields were appended.
    Record {
        /// Where its text ends.
        end: usize,
        /// Where the next one begins.
        next: usize,
        /// Line breaks in it.
        lines: u32,
        /// What is wrong with it.
        flaw: Option<Flaw>,
    },
    /// A line without a record.
    Skipped {
        /// Where the next line begins.
        next: usize,
    },
    /// A record whose end cannot be trusted; the next one may begin in the line after the one it begins in.
    Lost {
        /// Where its text is cut at the latest.
        end: usize,
        /// What is wrong with it.
        flaw: Flaw,
    },
    /// The bytes end before it does.
    More,
    /// There is nothing more.
    End,
}

/// Finds records of one dialect.
#[derive(Debug, Clone)]
pub(crate) struct Tokenizer {
    dialect: Dialect,
    /// Bytes that may end a field without quotes.
    stops: [bool; 256],
    /// Bytes that matter in a quoted field.
    quoted_stops: [bool; 256],
}

impl Tokenizer {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let mut stops = [false; 256];
        for byte in [dialect.sep[0], b'\n', b'\r'] {
            stops[byte as usize] = true;
        }
        let mut quoted_stops = [false; 256];
        for byte in [dialect.quote, dialect.escape, dialect.escape_escape].into_iter().flatten() {
            quoted_stops[byte as usize] = true;
        }
        if !dialect.multi_line {
            quoted_stops[b'\n' as usize] = true;
            quoted_stops[b'\r' as usize] = true;
        }
        Tokenizer { dialect, stops, quoted_stops }
    }

    pub(crate) fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    /// What is at `start`; `last`: nothing follows `buf`.
    pub(crate) fn find(&self, buf: &[u8], start: usize, last: bool, fields: &mut Vec<Field>) -> Found {
        let known = fields.len();
        if start >= buf.len() {
            return if last { Found::End } else { Found::More };
        }
        let limit = self.dialect.max_record;
        // Once so many bytes came without an end, the record is too long even if the last one begins a line break.
        let endless = buf.len() - start > limit + 1;
        match self.skip(buf, start, last) {
            Some(Found::More) if endless => return Found::Lost { end: start + limit, flaw: Flaw::Long },
            // A comment, too, is bounded, whether its end is at hand or not.
            Some(Found::Skipped { .. }) if line_end(buf, start).unwrap_or(buf.len()) - start > limit => {
                return Found::Lost { end: start + limit, flaw: Flaw::Long };
            }
            Some(skipped) => return skipped,
            None => {}
        }
        let found =
            Scan { tokens: self, buf, start, last, at: start, lines: 0, flaw: None, first: known }.record(fields);
        match found {
            Found::Record { end, .. } if end - start > limit => {
                fields.truncate(known);
                Found::Lost { end: start + limit, flaw: Flaw::Long }
            }
            Found::More if endless => {
                fields.truncate(known);
                Found::Lost { end: start + limit, flaw: Flaw::Long }
            }
            Found::Lost { end, .. } if end - start > limit => {
                fields.truncate(known);
                Found::Lost { end: start + limit, flaw: Flaw::Long }
            }
            Found::More | Found::Lost { .. } => {
                fields.truncate(known);
                found
            }
            found => found,
        }
    }

    /// Lines without a record: empty ones and comments.
    fn skip(&self, buf: &[u8], start: usize, last: bool) -> Option<Found> {
        let first = buf[start];
        let comment = self.dialect.comment == Some(first);
        let blank = matches!(first, b'\n' | b'\r') || (self.dialect.skip_blank && first <= b' ');
        if !comment && !blank {
            return None;
        }
        let Some(end) = line_end(buf, start) else {
            let empty = comment || buf[start..].iter().all(|byte| *byte <= b' ');
            return match (last, empty) {
                (true, true) => Some(Found::Skipped { next: buf.len() }),
                (true, false) => None,
                // Whether the rest is blank shows later.
                (false, true) => Some(Found::More),
                (false, false) => None,
            };
        };
        if !comment && buf[start..end].iter().any(|byte| *byte > b' ') {
            return None;
        }
        after_break(buf, end, last).map_or(Some(Found::More), |next| Some(Found::Skipped { next }))
    }
}

/// Where the line ends.
pub(crate) fn line_end(buf: &[u8], start: usize) -> Option<usize> {
    buf[start..].iter().position(|byte| matches!(byte, b'\n' | b'\r')).map(|at| start + at)
}

/// Where the next line begins after a break at `at`; `None` when that shows later.
pub(crate) fn after_break(buf: &[u8], at: usize, last: bool) -> Option<usize> {
    if buf[at] == b'\n' {
        return Some(at + 1);
    }
    match buf.get(at + 1) {
        Some(b'\n') => Some(at + 2),
        Some(_) => Some(at + 1),
        None => last.then_some(at + 1),
    }
}

/// How a field ended.
enum Ended {
    /// Another field follows.
    Field,
    /// The record is over.
    Record(Found),
}

/// One record being read.
struct Scan<'a> {
    tokens: &'a Tokenizer,
    buf: &'a [u8],
    start: usize,
    last: bool,
    at: usize,
    lines: u32,
    flaw: Option<Flaw>,
    first: usize,
}

impl Scan<'_> {
    fn record(mut self, fields: &mut Vec<Field>) -> Found {
        let dialect = &self.tokens.dialect;
        loop {
            if dialect.trim_leading {
                while self.buf.get(self.at).is_some_and(|byte| is_space(*byte) && *byte != dialect.sep[0]) {
                    self.at += 1;
                }
            }
            let quoted = dialect.quote.is_some() && self.buf.get(self.at).copied() == dialect.quote;
            let ended = if quoted { self.quoted(fields) } else { self.plain(self.at, 0, fields) };
            match ended {
                Ended::Field => {}
                Ended::Record(found) => return found,
            }
        }
    }

    /// A field without quotes, from `begin` on; it is looked for its end from `self.at` on.
    #[inline]
    fn plain(&mut self, begin: usize, flags: u8, fields: &mut Vec<Field>) -> Ended {
        let tokens = self.tokens;
        loop {
            let rest = &self.buf[self.at..];
            let Some(offset) = rest.iter().position(|byte| tokens.stops[*byte as usize]) else {
                if !self.last {
                    return Ended::Record(Found::More);
                }
                self.push(begin, self.buf.len(), flags, fields);
                return self.over(self.buf.len(), self.buf.len());
            };
            self.at += offset;
            match self.ends_field() {
                None => return Ended::Record(Found::More),
                Some(Stop::No) => self.at += 1,
                Some(Stop::Separator) => {
                    self.push(begin, self.at, flags, fields);
                    self.at += tokens.dialect.sep.len();
                    return Ended::Field;
                }
                Some(Stop::Break) => {
                    let end = self.at;
                    let Some(next) = after_break(self.buf, end, self.last) else { return Ended::Record(Found::More) };
                    self.push(begin, end, flags, fields);
                    self.lines += 1;
                    return self.over(end, next);
                }
            }
        }
    }

    /// What is at `self.at`; `None` when that shows later.
    #[inline]
    fn ends_field(&self) -> Option<Stop> {
        let sep = &self.tokens.dialect.sep;
        let byte = self.buf[self.at];
        if byte == sep[0] {
            if sep.len() == 1 {
                return Some(Stop::Separator);
            }
            let rest = &self.buf[self.at..];
            if rest.starts_with(sep) {
                return Some(Stop::Separator);
            }
            if !self.last && sep.starts_with(rest) {
                return None;
            }
            return Some(Stop::No);
        }
        Some(if matches!(byte, b'\n' | b'\r') { Stop::Break } else { Stop::No })
    }

    fn quoted(&mut self, fields: &mut Vec<Field>) -> Ended {
        let tokens = self.tokens;
        let dialect = &tokens.dialect;
        let open = self.at;
        let begin = open + 1;
        let mut flags = QUOTED;
        let mut at = begin;
        let close = loop {
            let Some(offset) = self.buf[at..].iter().position(|byte| tokens.quoted_stops[*byte as usize]) else {
                return self.open_quote(open, flags, fields);
            };
            at += offset;
            let byte = self.buf[at];
            if matches!(byte, b'\n' | b'\r') && !dialect.multi_line {
                return self.open_line(open, at, flags, fields);
            }
            let next = self.buf.get(at + 1).copied();
            if next.is_none() && !self.last {
                return Ended::Record(Found::More);
            }
            if dialect.is_escape(byte, next) {
                flags |= ESCAPED;
                at += 2;
            } else if Some(byte) == dialect.quote && (dialect.strict_quotes || next != dialect.quote) {
                break at;
            } else {
                at += 1;
            }
        };
        self.lines += self.buf[begin..close].iter().filter(|byte| **byte == b'\n').count() as u32;
        self.after_quote(open, begin, close, flags, fields)
    }

    /// The text ends before a quote that was opened is closed.
    fn open_quote(&mut self, open: usize, flags: u8, fields: &mut Vec<Field>) -> Ended {
        if !self.last {
            return Ended::Record(Found::More);
        }
        if !self.tokens.dialect.multi_line {
            return self.open_line(open, self.buf.len(), flags, fields);
        }
        let end = line_end(self.buf, self.start).unwrap_or(self.buf.len());
        Ended::Record(Found::Lost { end, flaw: Flaw::OpenQuote })
    }

    /// The line ends before a quote that was opened is closed. To Spark the field is what follows the quote; a quote
    /// that nothing follows is itself.
    fn open_line(&mut self, open: usize, end: usize, flags: u8, fields: &mut Vec<Field>) -> Ended {
        if self.tokens.dialect.strict_quotes {
            return Ended::Record(Found::Lost { end, flaw: Flaw::OpenQuote });
        }
        let next = if end < self.buf.len() { after_break(self.buf, end, self.last) } else { Some(end) };
        let Some(next) = next else { return Ended::Record(Found::More) };
        let (begin, flags) = if open + 1 == end { (open, 0) } else { (open + 1, flags) };
        self.push(begin, end, flags, fields);
        self.lines += u32::from(next > end);
        self.over(end, next)
    }

    fn after_quote(&mut self, open: usize, begin: usize, close: usize, flags: u8, fields: &mut Vec<Field>) -> Ended {
        let dialect = &self.tokens.dialect;
        self.at = close + 1;
        if dialect.trim_trailing || !dialect.strict_quotes {
            while self.buf.get(self.at).is_some_and(|byte| is_space(*byte) && *byte != dialect.sep[0]) {
                self.at += 1;
            }
        }
        if self.at >= self.buf.len() {
            if !self.last {
                return Ended::Record(Found::More);
            }
            self.push(begin, close, flags, fields);
            return self.over(self.buf.len(), self.buf.len());
        }
        let stop = match self.tokens.stops[self.buf[self.at] as usize] {
            true => self.ends_field(),
            false => Some(Stop::No),
        };
        match stop {
            None => Ended::Record(Found::More),
            Some(Stop::Separator) => {
                self.push(begin, close, flags, fields);
                self.at += dialect.sep.len();
                Ended::Field
            }
            Some(Stop::Break) => {
                let end = self.at;
                let Some(next) = after_break(self.buf, end, self.last) else { return Ended::Record(Found::More) };
                self.push(begin, close, flags, fields);
                self.lines += 1;
                self.over(end, next)
            }
            Some(Stop::No) => {
                // Not a quoted field after all: its text is what stands there, up to the next separator.
                if dialect.strict_quotes {
                    self.flaw = self.flaw.or(Some(Flaw::AfterQuote));
                }
                self.plain(open, flags & ESCAPED, fields)
            }
        }
    }

    #[inline]
    fn push(&mut self, begin: usize, mut end: usize, flags: u8, fields: &mut Vec<Field>) {
        let dialect = &self.tokens.dialect;
        if flags & QUOTED == 0 && dialect.trim_trailing {
            while end > begin && is_space(self.buf[end - 1]) {
                end -= 1;
            }
        }
        if end - begin > dialect.max_field {
            self.flaw = self.flaw.or(Some(Flaw::Field));
        }
        if fields.len() - self.first >= dialect.max_columns {
            self.flaw = self.flaw.or(Some(Flaw::Columns));
            return;
        }
        // A record, and with it the buffer, is far smaller than 4 GiB: see `Dialect::max_record`.
        fields.push(Field { start: begin as u32, end: end as u32, flags });
    }

    fn over(&self, end: usize, next: usize) -> Ended {
        Ended::Record(Found::Record { end, next, lines: self.lines, flaw: self.flaw })
    }
}

enum Stop {
    Separator,
    Break,
    No,
}

/// White space, control characters among it, as Java trims it; line breaks end records.
fn is_space(byte: u8) -> bool {
    byte <= b' ' && !matches!(byte, b'\n' | b'\r')
}
