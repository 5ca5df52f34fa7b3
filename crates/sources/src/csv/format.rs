// SPDX-License-Identifier: Apache-2.0
//! What the bytes of a CSV file mean: the options of a pipeline over the defaults of their preset.

use tributary_types::pipeline::{BadRecords, CsvOptions, CsvPreset, DuplicateNames, LongRows, ShortRows};

use crate::cells::Formats;
use crate::charset::Encoding;
use crate::pattern::Pattern;

/// Bytes of a record at most, unless an option says otherwise; and what an option may say at most.
const RECORD: u64 = 16 << 20;
const RECORD_LIMIT: u64 = 1 << 30;
/// Columns at most, as Spark has it.
const COLUMNS: u32 = 20_480;

/// How records and fields are cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dialect {
    /// At least one byte.
    pub(crate) sep: Vec<u8>,
    pub(crate) quote: Option<u8>,
    pub(crate) escape: Option<u8>,
    pub(crate) escape_escape: Option<u8>,
    pub(crate) comment: Option<u8>,
    pub(crate) trim_leading: bool,
    pub(crate) trim_trailing: bool,
    pub(crate) multi_line: bool,
    /// What follows a closing quote makes a record bad, and so does a quote that is never closed. Otherwise quotes are
    /// what they are to Spark: several closing ones in a row are all but the last part of the field, white space may
    /// follow them, and where anything else does, the quotes are text.
    pub(crate) strict_quotes: bool,
    /// Lines of nothing but white space are no records, whatever separates fields.
    pub(crate) skip_blank: bool,
    pub(crate) max_columns: usize,
    pub(crate) max_field: usize,
    pub(crate) max_record: usize,
}

impl Dialect {
    /// Whether two bytes inside a quoted field stand for the second one.
    #[inline]
    pub(crate) fn is_escape(&self, byte: u8, next: Option<u8>) -> bool {
        let Some(next) = next else { return false };
        (Some(byte) == self.escape && Some(next) == self.quote)
            || (Some(byte) == self.escape_escape && Some(next) == self.escape && self.escape != self.quote)
    }

    /// The text of a field with escapes, appended to `out`. One that begins with a quote and is not `quoted` after all,
    /// since text follows its closing quote, has escapes only up to that.
    pub(crate) fn unescape(&self, text: &[u8], quoted: bool, out: &mut Vec<u8>) {
        let mut at = usize::from(!quoted).min(text.len());
        out.extend(&text[..at]);
        while at < text.len() {
            let next = text.get(at + 1).copied();
            if self.is_escape(text[at], next) {
                out.extend(next);
                at += 2;
            } else if !quoted && Some(text[at]) == self.quote {
                out.extend(&text[at..]);
                return;
            } else {
                out.push(text[at]);
                at += 1;
            }
        }
    }
}

/// Everything about a CSV file.
#[derive(Debug, Clone)]
pub(crate) struct CsvFormat {
    pub(crate) dialect: Dialect,
    pub(crate) encoding: Option<Encoding>,
    pub(crate) header: bool,
    /// Columns are matched to a schema by position.
    pub(crate) by_position: bool,
    pub(crate) infer: bool,
    pub(crate) null: Vec<u8>,
    pub(crate) empty: Vec<u8>,
    /// An empty field is what `null` says, and a quoted one what `empty` says; whatever then equals `null` is NULL.
    pub(crate) spark_nulls: bool,
    pub(crate) formats: Formats,
    pub(crate) mode: BadRecords,
    pub(crate) corrupt: Option<String>,
    pub(crate) short: ShortRows,
    pub(crate) long: LongRows,
    /// Records with too few or too many fields keep those that they have, though they are bad.
    pub(crate) keep_ragged: bool,
    pub(crate) duplicates: DuplicateNames,
    pub(crate) drop_repeated_header: bool,
}

impl CsvFormat {
    /// Resolves options; answers what is wrong with them, each as a sentence that names the key.
    pub(crate) fn new(options: &CsvOptions) -> Result<Self, Vec<String>> {
        let spark = options.preset == CsvPreset::Spark;
        let mut problems = Vec::new();
        let dialect = dialect(options, spark, &mut problems);
        let mut pattern = |key: &str, text: &Option<String>| match text.as_deref().map(Pattern::new) {
            Some(Err(problem)) => {
                problems.push(format!("`csv.{key}`: {problem}"));
                None
            }
            Some(Ok(pattern)) => Some(pattern),
            None => None,
        };
        let date = pattern("date_format", &options.date_format);
        let timestamp = pattern("timestamp_format", &options.timestamp_format);
        let encoding = match options.encoding.as_deref().map(Encoding::named) {
            Some(Err(problem)) => {
                problems.push(format!("`csv.encoding`: {problem}"));
                None
            }
            Some(Ok(encoding)) => Some(encoding),
            None => None,
        };
        if !problems.is_empty() {
            return Err(problems);
        }
        let text = |value: &Option<String>, default: &str| value.clone().unwrap_or_else(|| default.to_string());
        let if_spark = |spark_default, default| if spark { spark_default } else { default };
        Ok(CsvFormat {
            dialect,
            encoding,
            header: options.header.unwrap_or(false),
            by_position: options.enforce_schema.unwrap_or(spark),
            infer: options.infer_schema.unwrap_or(true),
            null: text(&options.null_value, "").into_bytes(),
            empty: text(&options.empty_value, "").into_bytes(),
            spark_nulls: spark,
            formats: Formats {
                nan: text(&options.nan_value, "NaN"),
                positive_inf: text(&options.positive_inf, "Inf"),
                negative_inf: text(&options.negative_inf, "-Inf"),
                date,
                timestamp,
                lenient: spark,
            },
            mode: options.mode.unwrap_or(if_spark(BadRecords::Permissive, BadRecords::FailFast)),
            corrupt: options.column_name_of_corrupt_record.clone(),
            short: options.short_rows.unwrap_or_default(),
            long: options.long_rows.unwrap_or_default(),
            keep_ragged: spark,
            duplicates: options.duplicate_names.unwrap_or(match spark {
                true => DuplicateNames::Suffix,
                false => DuplicateNames::Fail,
            }),
            drop_repeated_header: options.drop_repeated_header.unwrap_or(false),
        })
    }
}

fn dialect(options: &CsvOptions, spark: bool, problems: &mut Vec<String>) -> Dialect {
    let sep = options.sep.as_deref().map_or_else(|| Ok(b",".to_vec()), separator);
    let sep = sep.unwrap_or_else(|problem| {
        problems.push(format!("`csv.sep`: {problem}"));
        b",".to_vec()
    });
    let mut one = |key: &str, given: &Option<String>, default: Option<u8>| match given.as_deref() {
        None => default,
        Some("") => None,
        Some(text) => match unescape_text(text) {
            Ok(bytes) if bytes.len() == 1 && bytes[0].is_ascii() && !matches!(bytes[0], b'\n' | b'\r') => {
                Some(bytes[0])
            }
            _ => {
                problems.push(format!("`csv.{key}` is `{text}`: it is one ASCII character, or empty for none"));
                None
            }
        },
    };
    let quote = one("quote", &options.quote, Some(b'"'));
    let escape = one("escape", &options.escape, if spark { Some(b'\\') } else { quote });
    let same = escape == quote;
    let escape_escape =
        one("char_to_escape_quote_escaping", &options.char_to_escape_quote_escaping, if same { None } else { escape });
    let comment = one("comment", &options.comment, None);
    let max_record = options.max_record.map_or(RECORD, |size| size.0);
    if max_record == 0 || max_record > RECORD_LIMIT {
        problems.push(format!("`csv.max_record` is {max_record}: between 1 byte and 1GiB are possible"));
    }
    let multi_line = options.multi_line.unwrap_or(!spark);
    let trim_leading = options.ignore_leading_white_space.unwrap_or(false);
    let max_columns = options.max_columns.unwrap_or(COLUMNS);
    if max_columns == 0 {
        problems.push("`csv.max_columns` is 0: a record has at least one".to_string());
    }
    if quote.is_some_and(|quote| sep.contains(&quote)) {
        problems.push("`csv.sep` and `csv.quote` share a character".to_string());
    }
    Dialect {
        sep,
        quote,
        escape: escape.filter(|_| quote.is_some()),
        escape_escape: escape_escape.filter(|_| quote.is_some()),
        comment,
        trim_leading,
        trim_trailing: options.ignore_trailing_white_space.unwrap_or(false),
        multi_line,
        strict_quotes: !spark,
        skip_blank: spark && (!multi_line || trim_leading),
        max_columns: max_columns as usize,
        max_field: options
            .max_chars_per_column
            .map_or(usize::MAX, |chars| usize::try_from(chars).unwrap_or(usize::MAX)),
        max_record: max_record as usize,
    }
}

fn separator(text: &str) -> Result<Vec<u8>, String> {
    let bytes = unescape_text(text)?;
    if bytes.is_empty() {
        return Err("it is empty".to_string());
    }
    if bytes.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Err("it holds a line break, which ends a record".to_string());
    }
    Ok(bytes)
}

/// `\t`, `\\`, `\0`, `\u0001` as what they stand for.
fn unescape_text(text: &str) -> Result<Vec<u8>, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let Some(letter) = after.chars().next() else {
            // A single backslash is itself.
            out.push('\\');
            rest = "";
            break;
        };
        rest = &after[letter.len_utf8()..];
        match letter {
            't' => out.push('\t'),
            '\\' => out.push('\\'),
            '0' => out.push('\0'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            '"' | '\'' => out.push(letter),
            'u' => {
                let code = rest.get(..4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
                out.push(code.and_then(char::from_u32).ok_or_else(|| format!("`{text}`: `\\u` needs four digits"))?);
                rest = &rest[4..];
            }
            other => return Err(format!("`{text}`: `\\{other}` is not known")),
        }
    }
    out.push_str(rest);
    Ok(out.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_may_be_several_characters_and_escapes() {
        for (text, bytes) in
            [("\\t", "\t"), ("||", "||"), ("\\u0001", "\u{1}"), ("\\\\", "\\"), ("ü", "ü"), ("\\", "\\")]
        {
            assert_eq!(separator(text).unwrap(), bytes.as_bytes(), "{text}");
        }
        for bad in ["", "\\n", "\\q", "\\u12"] {
            assert!(separator(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn presets_have_the_defaults_of_their_namesakes() {
        let rfc = CsvFormat::new(&CsvOptions::default()).unwrap();
        assert_eq!((rfc.dialect.escape, rfc.dialect.multi_line, rfc.mode), (Some(b'"'), true, BadRecords::FailFast));
        assert_eq!((rfc.short, rfc.long, rfc.by_position), (ShortRows::Bad, LongRows::Bad, false));
        let spark = CsvFormat::new(&CsvOptions { preset: CsvPreset::Spark, ..CsvOptions::default() }).unwrap();
        assert_eq!((spark.dialect.escape, spark.dialect.multi_line), (Some(b'\\'), false));
        assert_eq!((spark.dialect.escape_escape, spark.dialect.max_columns), (Some(b'\\'), 20_480));
        assert_eq!((spark.mode, spark.by_position), (BadRecords::Permissive, true));
        assert_eq!((spark.short, spark.long, spark.keep_ragged), (ShortRows::Bad, LongRows::Bad, true));
        let doubled = CsvOptions { preset: CsvPreset::Spark, escape: Some("\"".to_string()), ..CsvOptions::default() };
        assert_eq!(CsvFormat::new(&doubled).unwrap().dialect.escape_escape, None, "not an escape of itself");
    }

    #[test]
    fn every_wrong_option_is_named_at_once() {
        let options = CsvOptions {
            sep: Some(String::new()),
            quote: Some("ab".to_string()),
            encoding: Some("EBCDIC".to_string()),
            date_format: Some("q".to_string()),
            max_columns: Some(0),
            ..CsvOptions::default()
        };
        let problems = CsvFormat::new(&options).unwrap_err();
        for key in ["csv.sep", "csv.quote", "csv.encoding", "csv.date_format", "csv.max_columns"] {
            assert!(problems.iter().any(|problem| problem.contains(key)), "{key} in {problems:?}");
        }
    }
}
