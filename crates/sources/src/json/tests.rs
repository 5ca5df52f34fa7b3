// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use proptest::prelude::*;

use super::*;
use crate::record::{BadRecord, Decode, DecodeError, Tally};

fn format(value: serde_json::Value) -> Arc<JsonFormat> {
    Arc::new(JsonFormat::new(&serde_json::from_value(value).unwrap()).unwrap())
}

fn schema_of(text: &str) -> SchemaRef {
    let mut sampler = JsonSampler::new(100, 1000);
    sampler.push(text.as_bytes(), true);
    Arc::new(Schema::new(sampler.finish().columns()))
}

fn decode_in(
    step: usize,
    format: &Arc<JsonFormat>,
    schema: &SchemaRef,
    strict: bool,
    text: &[u8],
) -> Result<(Vec<RecordBatch>, Tally), DecodeError> {
    let mut decoder = JsonDecoder::new(Arc::clone(format), Arc::clone(schema), None, strict, 3)?;
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

/// Rows as Arrow writes them in JSON, nulls left out.
fn rows_of(batches: &[RecordBatch]) -> Vec<String> {
    let mut writer = arrow::json::LineDelimitedWriter::new(Vec::new());
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    String::from_utf8(writer.into_inner()).unwrap().lines().map(str::to_string).collect()
}

fn decoded(value: serde_json::Value, schema: &SchemaRef, text: &str) -> (Vec<String>, Tally) {
    let format = format(value);
    let (batches, tally) = decode_in(usize::MAX, &format, schema, false, text.as_bytes()).unwrap();
    for step in 1..text.len().min(12) {
        let (again, other) = decode_in(step, &format, schema, false, text.as_bytes()).unwrap();
        assert_eq!((rows_of(&again), other), (rows_of(&batches), tally), "in pieces of {step}");
    }
    (rows_of(&batches), tally)
}

fn refused(value: serde_json::Value, schema: &SchemaRef, strict: bool, text: &str) -> BadRecord {
    match decode_in(usize::MAX, &format(value), schema, strict, text.as_bytes()).unwrap_err() {
        DecodeError::Record(bad) => bad,
        DecodeError::File(what) => panic!("the file was refused: {what}"),
    }
}

#[test]
fn objects_one_a_line_in_arrays_or_one_after_the_other_are_records() {
    let expected = ["{\"a\":1}", "{\"a\":2}", "{\"a\":3}", "{\"a\":4}"];
    for text in [
        "{\"a\":1}\n{\"a\":2}\r\n\n{\"a\":3}\n{\"a\":4}",
        "[{\"a\":1},\n {\"a\":2}, {\"a\":3}\n]\n[{\"a\":4}]",
        "{\"a\":1}{\"a\":2} {\"a\":3}[{\"a\":4}]",
        "{\n  \"a\": 1\n}\n{\"a\":2}\n{\"a\":3}\n{\"a\":4}\n",
    ] {
        assert_eq!(decoded(serde_json::json!({}), &schema_of("{\"a\":1}"), text).0, expected, "{text}");
    }
}

#[test]
fn nested_values_become_structs_lists_and_the_text_of_what_differs() {
    let text = "{\"s\":{\"x\":1,\"l\":[1,2]},\"m\":[{\"k\":\"v\"},{\"k\":null,\"n\":1.5}],\"mixed\":1}\n\
                {\"s\":null,\"m\":[],\"mixed\":{\"a\":[1]}}\n";
    let schema = schema_of(text);
    assert!(matches!(schema.field(0).data_type(), DataType::Struct(fields) if fields.len() == 2));
    let (found, tally) = decoded(serde_json::json!({}), &schema, text);
    assert_eq!(found[0], "{\"s\":{\"x\":1,\"l\":[1,2]},\"m\":[{\"k\":\"v\"},{\"n\":1.5}],\"mixed\":\"1\"}");
    assert_eq!(found[1], "{\"m\":[],\"mixed\":\"{\\\"a\\\":[1]}\"}");
    assert_eq!(tally, Tally::default());
}

#[test]
fn maps_are_read_where_a_schema_says_so() {
    let pair = vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Int64, true)];
    let entries = Field::new("key_value", DataType::Struct(pair.into()), false);
    let schema = Arc::new(Schema::new(vec![Field::new("m", DataType::Map(entries.into(), false), true)]));
    let (found, _) = decoded(serde_json::json!({}), &schema, "{\"m\":{\"a\":1,\"b\":2}}\n{\"m\":{}}\n{}\n");
    assert_eq!(found, ["{\"m\":{\"a\":1,\"b\":2}}", "{\"m\":{}}", "{}"]);
}

#[test]
fn numbers_keep_every_digit_that_they_say() {
    let text = "{\"i\":9223372036854775807,\"w\":123456789012345678901234567890,\"d\":1234567890123456.78,\"f\":0.1}\n";
    let schema = schema_of(text);
    let types: Vec<&DataType> = schema.fields().iter().map(|field| field.data_type()).collect();
    assert_eq!(
        types,
        [&DataType::Int64, &DataType::Decimal128(38, 0), &DataType::Decimal128(38, 2), &DataType::Float64]
    );
    let (batches, _) = decode_in(9, &format(serde_json::json!({})), &schema, false, text.as_bytes()).unwrap();
    let shown = |at: usize| arrow::util::display::array_value_to_string(batches[0].column(at), 0).unwrap();
    assert_eq!(
        [shown(0), shown(1), shown(2), shown(3)],
        ["9223372036854775807", "123456789012345678901234567890", "1234567890123456.78", "0.1"]
    );
}

#[test]
fn an_integer_that_does_not_fit_is_bad_and_never_cut() {
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, true)]));
    let bad = refused(serde_json::json!({}), &schema, false, "{\"n\":1}\n{\"n\":2147483648}\n");
    assert!(bad.line == 2 && bad.reason.contains("integer of 32 bits"), "{bad:?}");
    let bad = refused(serde_json::json!({}), &schema, false, "{\"n\":1.5}\n");
    assert!(bad.reason.contains("`n`"), "{bad:?}");
    assert_eq!(decoded(serde_json::json!({}), &schema, "{\"n\":1.0}\n{\"n\":2e1}\n").0, ["{\"n\":1}", "{\"n\":20}"]);
}

#[test]
fn of_equal_keys_the_last_counts_and_they_are_counted() {
    let (found, tally) = decoded(serde_json::json!({}), &schema_of("{\"a\":1}"), "{\"a\":1,\"a\":2}\n");
    assert_eq!((found, tally.duplicate_keys), (vec!["{\"a\":2}".to_string()], 1));
}

#[test]
fn keys_without_a_column_are_counted_or_make_the_record_bad() {
    let schema = schema_of("{\"a\":1}");
    let text = "{\"a\":1,\"b\":2,\"c\":{\"d\":1}}\n";
    assert_eq!(decoded(serde_json::json!({}), &schema, text).1.unknown_fields, 2);
    let bad = refused(serde_json::json!({}), &schema, true, text);
    assert!(bad.reason.contains("key `b`"), "{bad:?}");
}

#[test]
fn a_line_that_is_no_object_is_null_dropped_or_fails_with_its_place() {
    let schema =
        Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true), Field::new("bad", DataType::Utf8, true)]));
    let text = "{\"a\":1}\n{\"a\":oops}\n[\n{\"a\":3}\n]\n17\n{\"a\":\"x\"}\n{\"a\":4";
    let with = |mode: &str| serde_json::json!({"mode": mode, "column_name_of_corrupt_record": "bad"});
    let (found, tally) = decoded(with("permissive"), &schema, text);
    assert_eq!(
        found,
        [
            "{\"a\":1}",
            "{\"bad\":\"{\\\"a\\\":oops}\"}",
            "{\"a\":3}",
            "{\"bad\":\"17\"}",
            "{\"bad\":\"{\\\"a\\\":\\\"x\\\"}\"}",
            "{\"bad\":\"{\\\"a\\\":4\"}",
        ]
    );
    assert_eq!((tally.bad, tally.dropped), (4, 0));
    let (found, tally) = decoded(with("dropmalformed"), &schema, text);
    assert_eq!((found.len(), tally.bad, tally.dropped), (2, 4, 4));
    let bad = refused(with("failfast"), &schema, false, text);
    assert_eq!((bad.line, bad.offset, bad.record.as_str()), (2, 8, "{\"a\":oops}"));
}

#[test]
fn an_array_that_breaks_off_or_has_a_bad_element_is_a_bad_file() {
    let schema = schema_of("{\"a\":1}");
    for text in ["[{\"a\":1}", "[{\"a\":1},{\"a\":oops}]", "[{\"a\":1} {\"a\":2}]", "[1]"] {
        for mode in ["permissive", "failfast"] {
            let format = format(serde_json::json!({"mode": mode}));
            let failed = decode_in(3, &format, &schema, false, text.as_bytes());
            assert!(matches!(failed, Err(DecodeError::File(_))), "{text}: {failed:?}");
        }
    }
}

#[test]
fn a_record_without_end_is_bounded() {
    let schema = schema_of("{\"a\":1}");
    let text = format!("{{\"a\":\"{}\"}}\n{{\"a\":2}}\n", "x".repeat(500));
    let (found, tally) = decoded(serde_json::json!({"mode": "dropmalformed", "max_record": 50}), &schema, &text);
    assert_eq!((found, tally.dropped), (vec!["{\"a\":2}".to_string()], 1));
}

#[test]
fn dates_and_timestamps_are_read_by_their_formats() {
    let micros = crate::sniff::time_type();
    let schema: SchemaRef =
        Arc::new(Schema::new(vec![Field::new("d", DataType::Date32, true), Field::new("t", micros, true)]));
    let text = "{\"d\":\"2025-06-06\",\"t\":\"2025-06-06T18:28:26.197Z\"}\n";
    let (batches, _) = decode_in(99, &format(serde_json::json!({})), &schema, false, text.as_bytes()).unwrap();
    assert_eq!(rows_of(&batches), ["{\"d\":\"2025-06-06\",\"t\":\"2025-06-06T18:28:26.197Z\"}"]);
    assert_eq!(batches[0].column(1).null_count(), 0);
}

proptest! {
    #[test]
    fn any_bytes_are_read_alike_however_they_are_cut(
        text in prop::collection::vec(prop::sample::select(&b"{}[]\",:a1-.e\\u \n\rtrue"[..]), 0..80),
        step in 1usize..10,
        max_record in 5u64..40,
    ) {
        let format = format(serde_json::json!({
            "mode": "permissive", "max_record": max_record, "column_name_of_corrupt_record": "bad",
        }));
        let schema: SchemaRef = Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int64, true),
            Field::new("bad", DataType::Utf8, true),
        ]));
        let whole = decode_in(usize::MAX, &format, &schema, false, &text).map(|(b, t)| (rows_of(&b), t));
        let cut = decode_in(step, &format, &schema, false, &text).map(|(b, t)| (rows_of(&b), t));
        prop_assert_eq!(whole, cut);
    }
}
