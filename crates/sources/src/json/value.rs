// SPDX-License-Identifier: Apache-2.0
//! One value of JSON (RFC 8259) in a buffer that may end within it. Numbers stay the text they are.

use std::borrow::Cow;

/// Values within values at most.
const DEPTH: usize = 128;

/// A value; where it is one, the text it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Number(&'a [u8]),
    Text(Cow<'a, str>),
    List(&'a [u8], Vec<Value<'a>>),
    /// Keys in order; of keys that are there twice the last one, and how many were dropped.
    Object(&'a [u8], Vec<(Cow<'a, str>, Value<'a>)>, u32),
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fail {
    /// The buffer ends first.
    More,
    /// Something is wrong at this place.
    At(usize, String),
}

/// Reads the value at `at`; answers it and where it ends.
pub(crate) fn read(buf: &[u8], at: usize) -> Result<(Value<'_>, usize), Fail> {
    let mut reader = Reader { buf, at };
    let value = reader.value(0)?;
    // A number may go on.
    if matches!(value, Value::Number(_)) && reader.at == buf.len() {
        return Err(Fail::More);
    }
    Ok((value, reader.at))
}

struct Reader<'a> {
    buf: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Result<u8, Fail> {
        self.buf.get(self.at).copied().ok_or(Fail::More)
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T, Fail> {
        Err(Fail::At(self.at, what.into()))
    }

    fn space(&mut self) {
        while self.buf.get(self.at).is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, Fail> {
        if depth > DEPTH {
            return self.fail(format!("values are nested more than {DEPTH} deep"));
        }
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b'"' => self.text().map(Value::Text),
            b't' => self.word(b"true", Value::Bool(true)),
            b'f' => self.word(b"false", Value::Bool(false)),
            b'n' => self.word(b"null", Value::Null),
            b'-' | b'0'..=b'9' => self.number(),
            other => self.fail(format!("{:?} begins no value", char::from(other))),
        }
    }

    fn word(&mut self, word: &[u8], value: Value<'a>) -> Result<Value<'a>, Fail> {
        let rest = &self.buf[self.at..];
        if rest.starts_with(word) {
            self.at += word.len();
            return Ok(value);
        }
        if word.starts_with(rest) { Err(Fail::More) } else { self.fail("an unknown word") }
    }

    fn number(&mut self) -> Result<Value<'a>, Fail> {
        let start = self.at;
        if self.buf[self.at] == b'-' {
            self.at += 1;
        }
        let whole = self.digits()?;
        if whole > 1 && self.buf[self.at - whole] == b'0' {
            self.at = start;
            return self.fail("a number begins with a zero");
        }
        if self.buf.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.buf.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.buf.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(Value::Number(&self.buf[start..self.at]))
    }

    fn digits(&mut self) -> Result<usize, Fail> {
        let count = self.buf[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return if self.at == self.buf.len() { Err(Fail::More) } else { self.fail("a number lacks digits") };
        }
        self.at += count;
        Ok(count)
    }

    fn text(&mut self) -> Result<Cow<'a, str>, Fail> {
        let start = self.at + 1;
        let special = |byte: &u8| matches!(byte, b'"' | b'\\') || *byte < b' ';
        let rest = self.buf.get(start..).unwrap_or_default();
        let at = start + rest.iter().position(special).ok_or(Fail::More)?;
        match self.buf[at] {
            b'"' => {}
            b'\\' => return self.escaped(start, at),
            control => {
                self.at = at;
                return self.fail(format!("a text holds the control character {control:#04x}"));
            }
        }
        let text = std::str::from_utf8(&self.buf[start..at]);
        self.at = at + 1;
        match text {
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(_) => Err(Fail::At(at, "a text is no UTF-8".to_string())),
        }
    }

    /// A text with escapes, of which `start..at` has none.
    fn escaped(&mut self, start: usize, mut at: usize) -> Result<Cow<'a, str>, Fail> {
        let mut out = self.buf[start..at].to_vec();
        loop {
            match self.buf.get(at).copied().ok_or(Fail::More)? {
                b'"' => break,
                b'\\' => at = self.escape(at, &mut out)?,
                control @ 0..b' ' => {
                    self.at = at;
                    return self.fail(format!("a text holds the control character {control:#04x}"));
                }
                byte => {
                    out.push(byte);
                    at += 1;
                }
            }
        }
        self.at = at + 1;
        let text = String::from_utf8(out).map_err(|_| Fail::At(at, "a text is no UTF-8".to_string()))?;
        Ok(Cow::Owned(text))
    }

    fn escape(&self, at: usize, out: &mut Vec<u8>) -> Result<usize, Fail> {
        let letter = self.buf.get(at + 1).copied().ok_or(Fail::More)?;
        let plain = match letter {
            b'"' | b'\\' | b'/' => letter,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode(at, out),
            _ => return Err(Fail::At(at, format!("the escape \\{} is not known", char::from(letter)))),
        };
        out.push(plain);
        Ok(at + 2)
    }

    fn unicode(&self, at: usize, out: &mut Vec<u8>) -> Result<usize, Fail> {
        let unit = |at: usize| -> Result<u16, Fail> {
            let digits = self.buf.get(at + 2..at + 6).ok_or(Fail::More)?;
            let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
            let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
            unit.ok_or_else(|| Fail::At(at, "\\u needs four hexadecimal digits".to_string()))
        };
        let first = unit(at)?;
        let (units, end) = match first {
            0xd800..=0xdbff => match self.buf.get(at + 6..at + 8) {
                Some(b"\\u") => ([first, unit(at + 6)?], at + 12),
                Some(_) => return Err(Fail::At(at, "half of a character stands alone".to_string())),
                None => return Err(Fail::More),
            },
            _ => ([first, 0], at + 6),
        };
        let width = if end == at + 12 { 2 } else { 1 };
        match char::decode_utf16(units.into_iter().take(width)).next() {
            Some(Ok(character)) => {
                let mut utf8 = [0; 4];
                out.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
                Ok(end)
            }
            _ => Err(Fail::At(at, "half of a character stands alone".to_string())),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value<'a>, Fail> {
        let start = self.at;
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(Value::List(&self.buf[start..self.at], items));
        }
        loop {
            self.space();
            items.push(self.value(depth + 1)?);
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(Value::List(&self.buf[start..self.at], items));
                }
                _ => return self.fail("a `,` or `]` is missing"),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>, Fail> {
        let start = self.at;
        self.at += 1;
        let mut fields: Vec<(Cow<'a, str>, Value<'a>)> = Vec::new();
        let mut dropped = 0;
        self.space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(Value::Object(&self.buf[start..self.at], fields, 0));
        }
        loop {
            self.space();
            if self.peek()? != b'"' {
                return self.fail("a key is missing");
            }
            let key = self.text()?;
            self.space();
            if self.peek()? != b':' {
                return self.fail("a `:` is missing");
            }
            self.at += 1;
            self.space();
            let value = self.value(depth + 1)?;
            match fields.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) => {
                    *known = value;
                    dropped += 1;
                }
                None => fields.push((key, value)),
            }
            self.space();
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(Value::Object(&self.buf[start..self.at], fields, dropped));
                }
                _ => return self.fail("a `,` or `}` is missing"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_as_the_standard_says() {
        let text = br#"{"a":[1,-0.5e+3,true,null,"x\u00e9\ud834\udd1e\n"],"":{}} "#;
        let (value, end) = read(text, 0).unwrap();
        assert_eq!(end, text.len() - 1);
        let Value::Object(_, fields, 0) = value else { panic!("no object") };
        let Value::List(_, items) = &fields[0].1 else { panic!("no list") };
        assert_eq!(items[1], Value::Number(b"-0.5e+3"));
        assert_eq!(items[4], Value::Text("xé𝄞\n".into()));
        assert!(matches!(fields[1].1, Value::Object(b"{}", _, 0)));
    }

    #[test]
    fn the_last_of_two_equal_keys_counts_and_both_are_counted() {
        let (value, _) = read(br#"{"a":1,"b":2,"a":3}"#, 0).unwrap();
        let Value::Object(_, fields, dropped) = value else { panic!("no object") };
        assert_eq!((fields.len(), dropped), (2, 1));
        assert_eq!(fields[0].1, Value::Number(b"3"));
    }

    #[test]
    fn every_beginning_of_a_value_asks_for_more_and_none_is_a_value() {
        let text = br#"{"a":[1,2.5e-3,true,null,"x\u00e9\ud834\udd1e\\"],"k":{"z":"y"}}"#;
        for cut in 0..text.len() {
            assert_eq!(read(&text[..cut], 0), Err(Fail::More), "{cut}");
        }
        assert_eq!(read(b"12", 0), Err(Fail::More), "it may go on");
    }

    #[test]
    fn what_is_no_value_is_refused_with_its_place() {
        for (text, place) in [
            ("{'a':1}", 1),
            ("{\"a\" 1}", 5),
            ("[1 2]", 3),
            ("[01]", 1),
            ("nul!", 0),
            ("[\"\\x\"]", 2),
            ("[-]", 2),
            ("[\"\\ud834x\"]", 2),
            ("\"a\nb\"", 2),
            ("[1,]", 3),
            ("{\"a\":1,}", 7),
        ] {
            let Err(Fail::At(at, _)) = read(text.as_bytes(), 0) else { panic!("{text} was read") };
            assert_eq!(at, place, "{text}");
        }
        assert!(matches!(read(b"\"\xff\"", 0), Err(Fail::At(2, _))));
        let deep = "[".repeat(1000);
        assert!(matches!(read(deep.as_bytes(), 0), Err(Fail::At(_, what)) if what.contains("deep")));
    }
}
