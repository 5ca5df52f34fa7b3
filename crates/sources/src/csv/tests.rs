// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use proptest::prelude::*;
use tributary_types::pipeline::CsvOptions;

use super::tokenizer::{Found, Tokenizer};
use super::*;
use crate::record::{BadRecord, Decode, DecodeError, Tally};

fn options(value: serde_json::Value) -> CsvOptions {
    serde_json::from_value(value).unwrap()
}

fn format(value: serde_json::Value) -> Arc<CsvFormat> {
    Arc::new(CsvFormat::new(&options(value)).unwrap())
}

fn texts(names: &[&str]) -> SchemaRef {
    Arc::new(Schema::new(names.iter().map(|name| Field::new(*name, DataType::Utf8, true)).collect::<Vec<_>>()))
}

fn typed(fields: &[(&str, DataType)]) -> SchemaRef {
    Arc::new(Schema::new(fields.iter().map(|(n, t)| Field::new(*n, t.clone(), true)).collect::<Vec<_>>()))
}

/// Decodes text that comes in pieces of `step` bytes.
fn decode_in(
    step: usize,
    format: &Arc<CsvFormat>,
    schema: &SchemaRef,
    wanted: Option<Vec<usize>>,
    text: &[u8],
    batch_rows: usize,
) -> Result<(Vec<RecordBatch>, Tally), DecodeError> {
    let mut decoder = CsvDecoder::new(Arc::clone(format), Arc::clone(schema), wanted, batch_rows)?;
    let mut batches = Vec::new();
    for chunk in text.chunks(step.max(1)) {
        decoder.push(chunk);
        while let Some(batch) = decoder.next()? {
            batches.push(batch);
        }
    }
    decoder.end();
    while let Some(batch) = decoder.next()? {
        batches.push(batch);
    }
    Ok((batches, decoder.tally()))
}

/// Rows with `~` for NULL.
fn rows_of(batches: &[RecordBatch]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cell = |column: &arrow::array::ArrayRef| match column.is_null(row) {
                true => "~".to_string(),
                false => arrow::util::display::array_value_to_string(column, row).unwrap(),
            };
            rows.push(batch.columns().iter().map(cell).collect());
        }
    }
    rows
}

fn decoded(value: serde_json::Value, schema: &SchemaRef, text: &str) -> Vec<Vec<String>> {
    let format = format(value);
    let (batches, _) = decode_in(usize::MAX, &format, schema, None, text.as_bytes(), 100).unwrap();
    for step in 1..text.len().min(12) {
        let (again, _) = decode_in(step, &format, schema, None, text.as_bytes(), 3).unwrap();
        assert_eq!(rows_of(&again), rows_of(&batches), "in pieces of {step}");
    }
    rows_of(&batches)
}

fn refused(value: serde_json::Value, schema: &SchemaRef, text: &str) -> BadRecord {
    let failed = decode_in(usize::MAX, &format(value), schema, None, text.as_bytes(), 100);
    match failed.unwrap_err() {
        DecodeError::Record(bad) => bad,
        DecodeError::File(what) => panic!("the file was refused: {what}"),
    }
}

fn rows(expected: &[&[&str]]) -> Vec<Vec<String>> {
    expected.iter().map(|row| row.iter().map(|cell| (*cell).to_string()).collect()).collect()
}

#[test]
fn quoted_and_unquoted_empty_fields_are_told_apart() {
    let found = decoded(serde_json::json!({}), &texts(&["a", "b", "c"]), "x,,\"\"\n");
    assert_eq!(found, rows(&[&["x", "~", ""]]));
    let marked = serde_json::json!({"null_value": "NULL", "empty_value": "(empty)"});
    let found = decoded(marked, &texts(&["a", "b", "c", "d"]), "NULL,\"NULL\",\"\",\n");
    assert_eq!(found, rows(&[&["~", "NULL", "(empty)", ""]]));
    // An empty field is what `null_value` says, whatever that is, and what equals it is NULL, in quotes as well.
    let spark = serde_json::json!({"preset": "spark", "null_value": "NULL"});
    let found = decoded(spark, &texts(&["a", "b", "c", "d"]), "NULL,\"NULL\",\"\",\n");
    assert_eq!(found, rows(&[&["~", "~", "", "~"]]));
    let found = decoded(serde_json::json!({"preset": "spark"}), &texts(&["a", "b", "c"]), "x,,\"\"\n");
    assert_eq!(found, rows(&[&["x", "~", "~"]]));
    let marked = serde_json::json!({"preset": "spark", "empty_value": "(empty)"});
    assert_eq!(decoded(marked, &texts(&["a", "b"]), "\"\",\n"), rows(&[&["(empty)", "~"]]));
}

#[test]
fn line_feeds_carriage_returns_and_both_end_records_and_leave_nothing_behind() {
    let found = decoded(serde_json::json!({}), &texts(&["a", "b"]), "1,2\r\n3,4\n5,6\r7,8");
    assert_eq!(found, rows(&[&["1", "2"], &["3", "4"], &["5", "6"], &["7", "8"]]));
}

#[test]
fn a_line_break_within_quotes_is_part_of_the_field() {
    let found = decoded(serde_json::json!({}), &texts(&["a", "b"]), "\"x\r\ny\",2\n3,\"4\n\"\n");
    assert_eq!(found, rows(&[&["x\r\ny", "2"], &["3", "4\n"]]));
    let schema = texts(&["a", "b"]);
    let bad = refused(serde_json::json!({"multi_line": false}), &schema, "0,0\n\"x\ny\",2\n");
    assert_eq!((bad.line, bad.offset, bad.record.as_str()), (2, 4, "\"x"));
}

#[test]
fn quotes_are_doubled_or_escaped_as_the_preset_says() {
    let found = decoded(serde_json::json!({}), &texts(&["a", "b"]), "\"say \"\"hi\"\"\",\"\"\"\"\n");
    assert_eq!(found, rows(&[&["say \"hi\"", "\""]]));
    let spark = serde_json::json!({"preset": "spark"});
    let found = decoded(spark, &texts(&["a", "b"]), "\"say \\\"hi\\\"\",\"a\\\\b\\n\"\n");
    assert_eq!(found, rows(&[&["say \"hi\"", "a\\b\\n"]]));
    let off = serde_json::json!({"quote": ""});
    assert_eq!(decoded(off, &texts(&["a", "b"]), "\"x\",y\"\n"), rows(&[&["\"x\"", "y\""]]));
}

#[test]
fn a_quote_in_the_middle_of_a_field_is_text() {
    let found = decoded(serde_json::json!({}), &texts(&["a", "b"]), "5\" pipe,it's\n");
    assert_eq!(found, rows(&[&["5\" pipe", "it's"]]));
}

#[test]
fn what_follows_a_closing_quote_is_bad_and_text_to_spark() {
    let schema = texts(&["a", "b"]);
    let bad = refused(serde_json::json!({}), &schema, "1,2\n\"x\"y,2\n");
    assert!(bad.line == 2 && bad.reason.contains("closing quote"), "{bad:?}");
    let spark = |text: &str| decoded(serde_json::json!({"preset": "spark"}), &schema, text);
    assert_eq!(spark("\"x\"y,2\n"), rows(&[&["\"x\"y", "2"]]));
    assert_eq!(spark("\"a,b\" y,2\n"), rows(&[&["\"a,b\" y", "2"]]));
    assert_eq!(spark("\"a\\\"b\"c\\\"d,2\n"), rows(&[&["\"a\"b\"c\\\"d", "2"]]), "escapes end with the quote");
    assert_eq!(spark("\"x\" \t,\"y\"  \n"), rows(&[&["x", "y"]]), "white space is no text");
}

#[test]
fn to_spark_a_quote_in_a_row_of_closing_ones_is_part_of_the_field() {
    let schema = texts(&["a", "b"]);
    let spark = |text: &str| decoded(serde_json::json!({"preset": "spark"}), &schema, text);
    assert_eq!(spark("\"say \"\"hi\"\"\",2\n"), rows(&[&["\"say \"\"hi\"\"\"", "2"]]));
    assert_eq!(spark("\"a\"\"\",2\n"), rows(&[&["a\"\"", "2"]]));
    assert_eq!(spark("\"\"\"\",2\n"), rows(&[&["\"\"", "2"]]));
    let doubled = serde_json::json!({"preset": "spark", "escape": "\""});
    let text = "\"a\"\"\",\"\"\"\"\n\"\"\"a\"b,2\n";
    assert_eq!(decoded(doubled, &schema, text), rows(&[&["a\"", "\""], &["\"\"a\"b", "2"]]));
}

#[test]
fn to_spark_a_quote_that_its_line_does_not_close_is_where_the_field_begins() {
    let schema = texts(&["a", "b"]);
    let spark = |text: &str| decoded(serde_json::json!({"preset": "spark"}), &schema, text);
    assert_eq!(spark("1,\"open\r\n2,\"a\\\"b"), rows(&[&["1", "open"], &["2", "a\"b"]]));
    assert_eq!(spark("\"open,1\n2,\"\n"), rows(&[&["open,1", "~"], &["2", "\""]]));
    // Where fields may hold line breaks, the rest of the file would be in it.
    let lines = serde_json::json!({"preset": "spark", "multi_line": true, "mode": "dropmalformed"});
    assert_eq!(decoded(lines, &schema, "1,\"open\n2,3\n"), rows(&[&["2", "3"]]));
}

#[test]
fn to_spark_a_line_of_white_space_is_no_record_whatever_separates_fields() {
    let schema = texts(&["a", "b"]);
    let tabs = |extra: serde_json::Value| {
        let mut value = serde_json::json!({"preset": "spark", "sep": "\\t"});
        value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        decoded(value, &schema, "1\t2\n\t\n3\t4\n")
    };
    assert_eq!(tabs(serde_json::json!({})), rows(&[&["1", "2"], &["3", "4"]]));
    assert_eq!(tabs(serde_json::json!({"multi_line": true})), rows(&[&["1", "2"], &["~", "~"], &["3", "4"]]));
}

#[test]
fn separators_of_several_characters_and_escapes_cut_fields() {
    let schema = texts(&["a", "b"]);
    assert_eq!(decoded(serde_json::json!({"sep": "||"}), &schema, "x|y||\"a||b\"\n"), rows(&[&["x|y", "a||b"]]));
    assert_eq!(decoded(serde_json::json!({"sep": "\\t"}), &schema, "x\ty\n"), rows(&[&["x", "y"]]));
    assert_eq!(decoded(serde_json::json!({"sep": "\\u0001"}), &schema, "x\u{1}y\n"), rows(&[&["x", "y"]]));
}

#[test]
fn comments_and_empty_lines_are_no_records_and_count_as_lines() {
    let schema = texts(&["a", "b"]);
    let text = "#c\n\n1,2\n# not,a,record\r\n\r\n3\n";
    let bad = refused(serde_json::json!({"comment": "#"}), &schema, text);
    assert_eq!((bad.line, bad.offset), (6, text.len() as u64 - 2));
    let found = decoded(serde_json::json!({"comment": "#", "short_rows": "null"}), &schema, text);
    assert_eq!(found, rows(&[&["1", "2"], &["3", "~"]]));
    let spark = serde_json::json!({"preset": "spark"});
    assert_eq!(decoded(spark, &schema, "1,2\n   \n3,4\n"), rows(&[&["1", "2"], &["3", "4"]]));
}

#[test]
fn white_space_around_fields_goes_only_where_it_is_asked_to() {
    let schema = texts(&["a", "b"]);
    assert_eq!(decoded(serde_json::json!({}), &schema, " x , y \n"), rows(&[&[" x ", " y "]]));
    let trimmed = serde_json::json!({"ignore_leading_white_space": true, "ignore_trailing_white_space": true});
    assert_eq!(decoded(trimmed, &schema, " x , \" y \" \n"), rows(&[&["x", " y "]]));
}

#[test]
fn ragged_records_are_bad_padded_or_cut_by_side() {
    let schema = texts(&["a", "b"]);
    for (text, fields) in [("1\n", "1 fields"), ("1,2,3\n", "3 fields")] {
        let bad = refused(serde_json::json!({}), &schema, text);
        assert!(bad.reason.contains(fields) && bad.reason.contains("2 are expected"), "{bad:?}");
    }
    let fitted = serde_json::json!({"short_rows": "null", "long_rows": "drop"});
    assert_eq!(decoded(fitted, &schema, "1\n1,2,3\n"), rows(&[&["1", "~"], &["1", "2"]]));
    let bad = serde_json::json!({"mode": "permissive"});
    assert_eq!(decoded(bad, &schema, "1\n1,2,3\n"), rows(&[&["~", "~"], &["~", "~"]]));
}

#[test]
fn to_spark_a_ragged_record_is_bad_and_keeps_the_fields_that_it_has() {
    let schema = typed(&[("a", DataType::Int64), ("b", DataType::Utf8), ("_corrupt_record", DataType::Utf8)]);
    let spark = |mode: &str| serde_json::json!({"preset": "spark", "mode": mode, "column_name_of_corrupt_record": "_corrupt_record"});
    let text = "1\n2,x\n3,y,z\nfour,u,v\n";
    let expected: [&[&str]; 4] = [&["1", "~", "1"], &["2", "x", "~"], &["3", "y", "3,y,z"], &["~", "u", "four,u,v"]];
    assert_eq!(decoded(spark("permissive"), &schema, text), rows(&expected));
    assert_eq!(decoded(spark("dropmalformed"), &schema, text), rows(&[&["2", "x", "~"]]));
    let bad = refused(spark("failfast"), &schema, text);
    assert!(bad.line == 1 && bad.reason.contains("1 fields"), "{bad:?}");
    let fitted =
        serde_json::json!({"preset": "spark", "mode": "dropmalformed", "short_rows": "null", "long_rows": "drop"});
    assert_eq!(decoded(fitted, &texts(&["a", "b"]), "1\n3,y,z\n"), rows(&[&["1", "~"], &["3", "y"]]));
}

#[test]
fn a_headerless_file_with_another_arity_fails_loudly() {
    // hudi 6404: wrong columns and values instead.
    let schema = typed(&[("id", DataType::Int64), ("name", DataType::Utf8), ("at", DataType::Date32)]);
    let bad = refused(serde_json::json!({"sep": "|"}), &schema, "1|a|2025-01-01\n2|b\n");
    assert!(bad.line == 2 && bad.reason.contains("2 fields, 3 are expected"), "{bad:?}");
}

#[test]
fn a_header_maps_columns_by_name_whatever_their_order_and_a_missing_one_is_null() {
    let schema = typed(&[("id", DataType::Int64), ("name", DataType::Utf8), ("gone", DataType::Utf8)]);
    let found = decoded(serde_json::json!({"header": true}), &schema, "NAME,extra,id\nx,?,1\n");
    assert_eq!(found, rows(&[&["1", "x", "~"]]));
    let by_position = serde_json::json!({"header": true, "enforce_schema": true, "short_rows": "null"});
    assert_eq!(decoded(by_position, &schema, "name,id\n1,x\n"), rows(&[&["1", "x", "~"]]));
}

#[test]
fn duplicate_names_are_refused_or_get_their_positions() {
    let format_of = |value| format(value);
    let fail =
        decode_in(9, &format_of(serde_json::json!({"header": true})), &texts(&["a"]), None, b"a,b,A\n1,2,3\n", 9);
    assert!(matches!(fail, Err(DecodeError::File(what)) if what.contains("a, A")));
    let suffix = serde_json::json!({"header": true, "duplicate_names": "suffix"});
    let found = decoded(suffix, &texts(&["a0", "b", "A2"]), "a,b,A\n1,2,3\n");
    assert_eq!(found, rows(&[&["1", "2", "3"]]));
}

#[test]
fn a_header_that_repeats_is_dropped_where_asked_to() {
    let schema = texts(&["a", "b"]);
    let text = "a,b\n1,2\na,b\n3,4\n";
    assert_eq!(decoded(serde_json::json!({"header": true}), &schema, text).len(), 3);
    let drop = serde_json::json!({"header": true, "drop_repeated_header": true});
    assert_eq!(decoded(drop, &schema, text), rows(&[&["1", "2"], &["3", "4"]]));
}

#[test]
fn a_file_of_a_header_or_nothing_or_white_space_has_no_rows() {
    for text in ["a,b\n", "a,b", "", "\n", "\r\n\r\n"] {
        assert_eq!(decoded(serde_json::json!({"header": true}), &texts(&["a", "b"]), text).len(), 0, "{text:?}");
    }
}

#[test]
fn a_quote_that_is_never_closed_costs_one_line_and_is_bounded() {
    let schema = texts(&["a", "b"]);
    let text = "1,2\n3,\"open\n5,6\n7,8\n";
    let bad = refused(serde_json::json!({}), &schema, text);
    assert_eq!((bad.line, bad.record.as_str()), (2, "3,\"open"));
    let drop = serde_json::json!({"mode": "dropmalformed"});
    assert_eq!(decoded(drop.clone(), &schema, text), rows(&[&["1", "2"], &["5", "6"], &["7", "8"]]));
    let long = format!("1,2\n3,\"{}\n5,6\n", "x\n".repeat(100));
    let limited = serde_json::json!({"mode": "dropmalformed", "max_record": 40, "short_rows": "null"});
    let found = decoded(limited, &schema, &long);
    assert_eq!((found.len(), found.last().unwrap()), (101, &rows(&[&["5", "6"]])[0]));
}

#[test]
fn a_record_without_end_is_bounded_and_the_next_line_is_read() {
    let schema = texts(&["a", "b"]);
    let text = format!("{}\n1,2\n", "x".repeat(500));
    let limited = serde_json::json!({"mode": "dropmalformed", "max_record": 40});
    assert_eq!(decoded(limited, &schema, &text), rows(&[&["1", "2"]]));
    let bad = refused(serde_json::json!({"max_record": 40}), &schema, &text);
    assert!(bad.reason.contains("40 bytes") && bad.line == 1, "{bad:?}");
}

#[test]
fn columns_and_fields_have_limits() {
    let schema = texts(&["a", "b"]);
    let bad = refused(serde_json::json!({"max_columns": 3}), &schema, "1,2,3,4\n");
    assert!(bad.reason.contains("3 fields"), "{bad:?}");
    let bad = refused(serde_json::json!({"max_chars_per_column": 3}), &schema, "1234,2\n");
    assert!(bad.reason.contains("3 characters"), "{bad:?}");
}

#[test]
fn a_cell_of_another_type_is_null_drops_the_record_or_fails_with_its_place() {
    let schema = typed(&[("id", DataType::Int64), ("at", DataType::Date32), ("_corrupt_record", DataType::Utf8)]);
    let text = "1,2025-01-01\n2,yesterday\nx,\"2025-01-03\"\n";
    let corrupt = |mode: &str| serde_json::json!({"mode": mode, "column_name_of_corrupt_record": "_corrupt_record"});
    let found = decoded(corrupt("permissive"), &schema, text);
    let expected: [&[&str]; 3] =
        [&["1", "2025-01-01", "~"], &["2", "~", "2,yesterday"], &["~", "2025-01-03", "x,\"2025-01-03\""]];
    assert_eq!(found, rows(&expected));
    assert_eq!(decoded(corrupt("dropmalformed"), &schema, text), rows(&[&["1", "2025-01-01", "~"]]));
    let bad = refused(corrupt("failfast"), &schema, text);
    assert_eq!((bad.line, bad.offset, bad.record.as_str()), (2, 13, "2,yesterday"));
    assert!(bad.reason.contains("`at` is not a date"), "{bad:?}");
}

#[test]
fn what_is_bad_does_not_depend_on_the_columns_that_are_read() {
    // SPARK-28058, SPARK-40468.
    let schema = typed(&[("id", DataType::Int64), ("n", DataType::Int32)]);
    let drop = format(serde_json::json!({"mode": "dropmalformed"}));
    let read = |wanted: Vec<usize>| {
        let (batches, tally) = decode_in(99, &drop, &schema, Some(wanted), b"1,1\n2,x\n3,3\n", 100).unwrap();
        (rows_of(&batches).len(), tally.bad, tally.dropped)
    };
    assert_eq!(read(vec![0]), (2, 1, 1));
    assert_eq!(read(vec![1]), (2, 1, 1));
    assert_eq!(read(vec![]), (2, 1, 1));
    assert_eq!(read(vec![1, 0, 1]), (2, 1, 1));
}

#[test]
fn bytes_that_are_no_utf_8_are_bad_and_their_neighbours_are_not() {
    let schema = texts(&["a", "b"]);
    let permissive = format(serde_json::json!({"mode": "permissive"}));
    let (batches, tally) = decode_in(99, &permissive, &schema, None, b"x,caf\xc3\xa9\n\xff,y\n", 100).unwrap();
    assert_eq!((rows_of(&batches), tally.bad), (rows(&[&["x", "café"], &["~", "y"]]), 1));
}

#[test]
fn types_are_read_by_their_formats() {
    let schema = typed(&[
        ("b", DataType::Boolean),
        ("f", DataType::Float64),
        ("d", DataType::Decimal128(10, 2)),
        ("day", DataType::Date32),
        ("n", DataType::Int16),
    ]);
    let value = serde_json::json!({"date_format": "dd.MM.yyyy", "nan_value": "-", "positive_inf": "oo"});
    let found = decoded(value, &schema, "TRUE,oo,1.5,01.02.2025,\"\"\nfalse,-,-7,,3\n");
    assert_eq!(found, rows(&[&["true", "inf", "1.50", "2025-02-01", "~"], &["false", "NaN", "-7.00", "~", "3"]]));
}

#[test]
fn a_sample_has_names_and_values_and_stops_early() {
    let format = format(serde_json::json!({"header": true}));
    let mut sampler = CsvSampler::new(&format, 2);
    assert!(!sampler.push(b"a,b\n1,", false).unwrap());
    assert!(sampler.push(b"\n2,\"\"\n3,4\n", false).unwrap());
    let sample = sampler.finish();
    assert_eq!(sample.names, ["a", "b"]);
    let cell = |text: &str| Some(text.as_bytes().to_vec());
    assert_eq!(sample.rows, [vec![cell("1"), None], vec![cell("2"), cell("")]]);
    let plain = super::tests::format(serde_json::json!({}));
    let mut sampler = CsvSampler::new(&plain, 9);
    assert!(!sampler.push(b"1,2\n3,4,5", false).unwrap());
    assert!(sampler.push(b"", true).unwrap());
    assert_eq!(sampler.finish().names, ["_c0", "_c1", "_c2"]);
}

/// Writes records as RFC 4180 says: everything quoted that has to be.
fn written(records: &[Vec<Option<String>>]) -> String {
    let mut out = String::new();
    for record in records {
        for (position, field) in record.iter().enumerate() {
            if position > 0 {
                out.push(',');
            }
            if let Some(text) = field {
                out.push_str(&format!("\"{}\"", text.replace('"', "\"\"")));
            }
        }
        out.push_str("\r\n");
    }
    out
}

proptest! {
    #[test]
    fn what_was_written_is_read_back(
        records in prop::collection::vec(prop::collection::vec(prop::option::of("[a\",\n\r ü#]{0,6}"), 3), 0..20),
        step in 1usize..40,
        batch in 1usize..8,
    ) {
        // A record of nothing but NULLs in its first field begins with a comma, so it is no empty line.
        let text = written(&records);
        let (batches, tally) =
            decode_in(step, &format(serde_json::json!({})), &texts(&["a", "b", "c"]), None, text.as_bytes(), batch).unwrap();
        let expected: Vec<Vec<String>> =
            records.iter().map(|r| r.iter().map(|f| f.clone().unwrap_or("~".to_string())).collect()).collect();
        prop_assert_eq!(rows_of(&batches), expected);
        prop_assert_eq!(tally.bad, 0);
        prop_assert!(batches.iter().all(|b| b.num_rows() <= batch));
    }

    #[test]
    fn any_bytes_are_read_alike_however_they_are_cut(
        text in prop::collection::vec(prop::sample::select(&b"a1,;|\"\\\n\r #\xc3\xa9"[..]), 0..120),
        step in 1usize..20,
        preset in prop::sample::select(&["spark", "rfc4180"][..]),
        sep in prop::sample::select(&[",", ";|", "|"][..]),
        multi_line in any::<bool>(),
        trim in any::<bool>(),
        max_record in 5u64..60,
        mode in prop::sample::select(&["permissive", "dropmalformed", "failfast"][..]),
    ) {
        let value = serde_json::json!({
            "preset": preset, "sep": sep, "multi_line": multi_line, "comment": "#", "max_record": max_record,
            "ignore_leading_white_space": trim, "ignore_trailing_white_space": trim, "mode": mode,
            "column_name_of_corrupt_record": "c", "max_columns": 4,
        });
        let schema = typed(&[("a", DataType::Int64), ("b", DataType::Utf8), ("c", DataType::Utf8)]);
        let format = format(value);
        let whole = decode_in(usize::MAX, &format, &schema, None, &text, 1000).map(|(b, t)| (rows_of(&b), t));
        let cut = decode_in(step, &format, &schema, None, &text, 1000).map(|(b, t)| (rows_of(&b), t));
        prop_assert_eq!(whole, cut);
    }

    #[test]
    fn no_bytes_make_the_tokenizer_panic_or_stand_still(
        text in prop::collection::vec(any::<u8>(), 0..200),
        last in any::<bool>(),
    ) {
        let tokens = Tokenizer::new(format(serde_json::json!({})).dialect.clone());
        let (mut at, mut fields) = (0, Vec::new());
        loop {
            match tokens.find(&text, at, last, &mut fields) {
                Found::More | Found::End | Found::Lost { .. } => break,
                Found::Skipped { next } | Found::Record { next, .. } => {
                    prop_assert!(next > at);
                    at = next;
                }
            }
        }
        prop_assert!(fields.iter().all(|field| field.start <= field.end && field.end as usize <= text.len()));
    }
}
