// SPDX-License-Identifier: Apache-2.0
//! Java properties text, as `hoodie.properties` and partition metafiles use it.

use std::collections::BTreeMap;

/// Reads Java properties text (`java.util.Properties.load`): comments, `=`, `:` or white space between key and
/// value, backslash escapes and continued lines. The last value of a key wins.
pub fn parse_properties(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(first) = lines.next() {
        let mut logical = first.trim_start().to_string();
        if logical.is_empty() || logical.starts_with(['#', '!']) {
            continue;
        }
        while ends_in_continuation(&logical) {
            logical.pop();
            match lines.next() {
                Some(next) => logical.push_str(next.trim_start()),
                None => break,
            }
        }
        let (key, value) = split_entry(&logical);
        found.insert(unescape(key), unescape(value));
    }
    found
}

/// Writes one `key=value` line without its end, escaped so that Java reads both back as they are.
pub fn format_property(key: &str, value: &str) -> String {
    format!("{}={}", escape(key, true), escape(value, false))
}

fn ends_in_continuation(line: &str) -> bool {
    line.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1
}

fn split_entry(line: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match c {
            '\\' => escaped = true,
            '=' | ':' => return (&line[..at], line[at + 1..].trim_start()),
            c if c.is_whitespace() => {
                let rest = line[at..].trim_start();
                let rest = rest.strip_prefix(['=', ':']).map_or(rest, str::trim_start);
                return (&line[..at], rest);
            }
            _ => {}
        }
    }
    (line, "")
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                match u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32) {
                    Some(decoded) => out.push(decoded),
                    None => out.push_str(&digits),
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

fn escape(text: &str, key: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.chars().enumerate() {
        match c {
            ' ' if key || at == 0 => out.push_str("\\ "),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\u{c}' => out.push_str("\\f"),
            '\\' | '=' | ':' | '#' | '!' => {
                out.push('\\');
                out.push(c);
            }
            ' '..='~' => out.push(c),
            other => {
                let mut units = [0u16; 2];
                for unit in other.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04X}"));
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_separators_and_continued_lines_are_read_as_java_does() {
        let text = "# c\n! c\n a = 1\nb:2\nc 3\nd = x\\\n   y\ne\\ f=g\\:h\n\nlast=1\nlast=2\n";
        let read = parse_properties(text);
        let expected = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "xy"), ("e f", "g:h"), ("last", "2")];
        for (key, value) in expected {
            assert_eq!(read.get(key).map(String::as_str), Some(value), "{key}");
        }
        assert_eq!(read.len(), expected.len());
    }

    #[test]
    fn what_is_written_reads_back() {
        for (key, value) in [("k", "v"), ("a b", " lead"), ("x:y", "1=2#3!4\\"), ("ü", "日本\t\n")] {
            let line = format_property(key, value);
            assert!(line.is_ascii(), "{line}");
            assert_eq!(parse_properties(&line).get(key).map(String::as_str), Some(value), "{line}");
        }
    }
}
