// SPDX-License-Identifier: Apache-2.0
//! Rows as JSON lines that leave nothing out: nulls are written, also those in maps, and so are numbers that JSON does
//! not know, as text: `"NaN"`, `"Infinity"`, `"-Infinity"`.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, AsArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, DataType, FieldRef, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::json::writer::{Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, WriterBuilder};

/// Writes rows, one JSON object a line.
pub(crate) fn write_rows(batches: &[RecordBatch], to: impl Write) -> Result<(), ArrowError> {
    let builder = WriterBuilder::new().with_explicit_nulls(true).with_encoder_factory(Arc::new(WholeFloats));
    let mut writer = builder.build::<_, LineDelimited>(to);
    for batch in batches {
        writer.write(batch)?;
    }
    writer.finish()
}

/// Writes every floating point number: by default those that JSON does not know become null.
#[derive(Debug)]
struct WholeFloats;

impl EncoderFactory for WholeFloats {
    fn make_default_encoder<'a>(
        &self,
        _: &'a FieldRef,
        array: &'a dyn Array,
        _: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float32 => Box::new(Floats(array.as_primitive::<Float32Type>())),
            DataType::Float64 => Box::new(Floats(array.as_primitive::<Float64Type>())),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

struct Floats<'a, T: ArrowPrimitiveType>(&'a PrimitiveArray<T>);

impl<T> Encoder for Floats<'_, T>
where
    T: ArrowPrimitiveType,
    T::Native: Into<f64> + serde::Serialize,
{
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        let value = self.0.value(index);
        let wide: f64 = value.into();
        if wide.is_finite() {
            // Its own type, so that the digits are those of its precision. Writing into a vector does not fail.
            let _ = serde_json::to_writer(out, &value);
            return;
        }
        out.extend_from_slice(match wide {
            wide if wide.is_nan() => b"\"NaN\"",
            wide if wide > 0.0 => b"\"Infinity\"",
            _ => b"\"-Infinity\"",
        });
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        ArrayRef, Float32Array, Float64Array, Float64Builder, Int64Array, Int64Builder, ListBuilder, MapBuilder,
        StringBuilder,
    };

    use super::*;

    fn lines(columns: Vec<(&str, ArrayRef)>) -> Vec<String> {
        let mut out = Vec::new();
        write_rows(
            &[RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap()],
            &mut out,
        )
        .unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_string).collect()
    }

    #[test]
    fn nulls_are_written_in_columns_and_in_maps() {
        let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
        map.keys().append_value("there");
        map.values().append_value(1);
        map.keys().append_value("gone");
        map.values().append_null();
        map.append(true).unwrap();
        let map: ArrayRef = Arc::new(map.finish());
        let number: ArrayRef = Arc::new(Int64Array::from(vec![None]));
        assert_eq!(lines(vec![("m", map), ("n", number)]), [r#"{"m":{"there":1,"gone":null},"n":null}"#]);
    }

    #[test]
    fn numbers_that_json_does_not_know_are_written_as_text_also_inside_lists() {
        let doubles = vec![Some(f64::NAN), Some(f64::INFINITY), Some(f64::NEG_INFINITY), Some(0.1), None];
        let floats = vec![Some(f32::NAN), Some(0.1), Some(-1.5), None, Some(2.0)];
        let mut lists = ListBuilder::new(Float64Builder::new());
        for value in &doubles {
            lists.values().append_option(*value);
            lists.append(true);
        }
        let written = lines(vec![
            ("d", Arc::new(Float64Array::from(doubles))),
            ("f", Arc::new(Float32Array::from(floats))),
            ("l", Arc::new(lists.finish())),
        ]);
        let expected = [
            r#"{"d":"NaN","f":"NaN","l":["NaN"]}"#,
            r#"{"d":"Infinity","f":0.1,"l":["Infinity"]}"#,
            r#"{"d":"-Infinity","f":-1.5,"l":["-Infinity"]}"#,
            r#"{"d":0.1,"f":null,"l":[0.1]}"#,
            r#"{"d":null,"f":2.0,"l":[null]}"#,
        ];
        assert_eq!(written, expected);
    }
}
