// SPDX-License-Identifier: Apache-2.0
//! Data blocks of log files as record batches.
//!
//! A block says the schema it was written with, which may be older than the table's: its rows are widened like those
//! of an old base file.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_avro::reader::ReaderBuilder;
use arrow_avro::schema::{AvroSchema, Fingerprint, SINGLE_OBJECT_MAGIC, SchemaStore};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};

use crate::error::{Error, Result};
use crate::log_blocks::{BlockKind, LogBlock};
use crate::shape::Shape;

/// Content versions of an Avro block that begin with the number of records.
const AVRO_VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;
/// Rows of a batch that is decoded from Parquet.
const BATCH_ROWS: usize = 8192;

/// The rows of a data block in the columns of `output`; `file` is for messages.
pub(crate) fn read_rows(
    file: &str,
    block: &LogBlock,
    output: &SchemaRef,
    constants: &BTreeMap<String, Option<String>>,
) -> Result<Vec<RecordBatch>> {
    if block.is_partial() {
        return Err(Error::unsupported(format!(
            "`{file}` holds partial updates (`IS_PARTIAL`), which cannot be applied: compact the table, and write it \
             with `hoodie.spark.sql.merge.into.partial.updates=false`"
        )));
    }
    match block.kind {
        BlockKind::Avro => match decode_avro(file, block)? {
            Some(batch) => Ok(vec![shape(file, &batch, output, constants)?]),
            None => Ok(Vec::new()),
        },
        BlockKind::Parquet => read_parquet(file, &block.content, output, constants),
        other => Err(Error::unsupported(format!(
            "`{file}` holds a block of kind {other:?}, whose rows cannot be read: Avro and Parquet blocks can"
        ))),
    }
}

fn shape(
    file: &str,
    batch: &RecordBatch,
    output: &SchemaRef,
    constants: &BTreeMap<String, Option<String>>,
) -> Result<RecordBatch> {
    let shape = Shape::new(file, &batch.schema(), Arc::clone(output), constants)?;
    let fetched = batch.project(shape.roots()).map_err(|e| Error::corrupt(file, e))?;
    shape.apply(file, &fetched)
}

/// The content: a version, the number of records, then each with its length and without any framing of Avro's own.
fn decode_avro(file: &str, block: &LogBlock) -> Result<Option<RecordBatch>> {
    let schema = block.schema().ok_or_else(|| Error::corrupt(file, "a data block without a schema"))?;
    let records = split_records(&block.content).map_err(|detail| Error::corrupt(file, detail))?;
    if records.is_empty() {
        return Ok(None);
    }
    let failed = |e: &dyn std::fmt::Display| Error::corrupt(file, format!("a data block: {e}"));
    let mut store = SchemaStore::new();
    let fingerprint = store.register(AvroSchema::new(schema.to_string())).map_err(|e| failed(&e))?;
    let Fingerprint::Rabin(number) = fingerprint else {
        return Err(failed(&"its schema has no fingerprint"));
    };
    // A decoder of its own for each block: one batch is all that it holds.
    let builder = ReaderBuilder::new().with_writer_schema_store(store).with_active_fingerprint(fingerprint);
    let mut decoder = builder.with_batch_size(records.len()).build_decoder().map_err(|e| failed(&e))?;
    // The decoder wants each record framed as a single object.
    let mut framed = Vec::new();
    for record in records {
        framed.clear();
        framed.extend(SINGLE_OBJECT_MAGIC);
        framed.extend(number.to_le_bytes());
        framed.extend(record.as_ref());
        let taken = decoder.decode(&framed).map_err(|e| failed(&e))?;
        if taken != framed.len() {
            return Err(failed(&"a record is longer than its schema says"));
        }
    }
    decoder.flush().map_err(|e| failed(&e))
}

fn split_records(content: &Bytes) -> std::result::Result<Vec<Bytes>, String> {
    let word = |at: usize| content.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    let version = word(0).ok_or("a data block without content")?;
    if !AVRO_VERSIONS.contains(&version) {
        return Err(format!("a data block of unknown content version {version}"));
    }
    let count = word(4).ok_or("a data block is cut off")?;
    let mut records = Vec::new();
    let mut at = 8;
    for _ in 0..count {
        let length = word(at).ok_or("a data block is cut off")? as usize;
        let end = (at + 4).checked_add(length).filter(|end| *end <= content.len()).ok_or("a data block is cut off")?;
        records.push(content.slice(at + 4..end));
        at = end;
    }
    Ok(records)
}

fn read_parquet(
    file: &str,
    content: &Bytes,
    output: &SchemaRef,
    constants: &BTreeMap<String, Option<String>>,
) -> Result<Vec<RecordBatch>> {
    let failed = |e: &dyn std::fmt::Display| Error::corrupt(file, format!("a Parquet block: {e}"));
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(content.clone(), options);
    let builder = builder.map_err(|e| failed(&e))?;
    let shape = Shape::new(file, builder.schema(), Arc::clone(output), constants)?;
    let columns = ProjectionMask::roots(builder.parquet_schema(), shape.roots().to_vec());
    let reader = builder.with_projection(columns).with_batch_size(BATCH_ROWS).build().map_err(|e| failed(&e))?;
    let mut found = Vec::new();
    for batch in reader {
        found.push(shape.apply(file, &batch.map_err(|e| failed(&e))?)?);
    }
    Ok(found)
}

#[cfg(test)]
pub(crate) mod tests {
    use arrow::array::{AsArray, Int32Array, StringArray};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::log_blocks::tests::block_with;
    use crate::log_blocks::{Torn, read_blocks};

    const SCHEMA_KEY: u32 = 2;
    const PARTIAL_KEY: u32 = 7;
    const AVRO: &str = r#"{"type":"record","name":"r","fields":[
        {"name":"id","type":["string","null"]},{"name":"n","type":["int","null"]},{"name":"gone","type":"long"}]}"#;

    /// An Avro block of two records of the schema above.
    fn content() -> Vec<u8> {
        let records: [&[u8]; 2] = [&[0, 2, b'a', 0, 10, 0], &[0, 2, b'b', 2, 0]];
        let mut out = [3u32.to_be_bytes(), 2u32.to_be_bytes()].concat();
        for record in records {
            out.extend((record.len() as u32).to_be_bytes());
            out.extend(record);
        }
        out
    }

    fn only_block(kind: u32, header: &[(u32, &str)], content: &[u8]) -> LogBlock {
        read_blocks("f", &Bytes::from(block_with(kind, header, content)), Torn::Refused).unwrap().remove(0)
    }

    fn output() -> SchemaRef {
        let fields = [("n", DataType::Int64), ("id", DataType::Utf8), ("new", DataType::Boolean)]
            .map(|(name, data_type)| Field::new(name, data_type, true));
        Arc::new(Schema::new(fields.to_vec()))
    }

    fn check(batches: &[RecordBatch]) {
        assert_eq!(batches.len(), 1);
        assert_eq!(batches[0].schema(), output());
        let numbers: Vec<_> = batches[0].column(0).as_primitive::<Int64Type>().iter().collect();
        let ids: Vec<_> = batches[0].column(1).as_string::<i32>().iter().flatten().collect();
        assert_eq!((numbers, ids), (vec![Some(5), None], vec!["a", "b"]));
        assert_eq!(batches[0].column(2).null_count(), 2);
    }

    #[test]
    fn avro_rows_are_widened_to_the_tables_columns() {
        let block = only_block(3, &[(SCHEMA_KEY, AVRO)], &content());
        check(&read_rows("f", &block, &output(), &BTreeMap::new()).unwrap());
        let empty = only_block(3, &[(SCHEMA_KEY, AVRO)], &[0, 0, 0, 3, 0, 0, 0, 0]);
        assert!(read_rows("f", &empty, &output(), &BTreeMap::new()).unwrap().is_empty());
    }

    #[test]
    fn parquet_rows_are_widened_to_the_tables_columns() {
        let batch = RecordBatch::try_from_iter([
            ("id", Arc::new(StringArray::from(vec!["a", "b"])) as arrow::array::ArrayRef),
            ("n", Arc::new(Int32Array::from(vec![Some(5), None]))),
        ])
        .unwrap();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let block = only_block(5, &[(SCHEMA_KEY, AVRO)], &bytes);
        check(&read_rows("f", &block, &output(), &BTreeMap::new()).unwrap());
    }

    #[test]
    fn partial_updates_and_hfiles_are_refused_by_name() {
        let partial = only_block(3, &[(SCHEMA_KEY, AVRO), (PARTIAL_KEY, "true")], &content());
        let refused = read_rows("x.log", &partial, &output(), &BTreeMap::new()).unwrap_err().to_string();
        assert!(refused.contains("x.log") && refused.contains("partial"), "{refused}");
        let whole = only_block(3, &[(SCHEMA_KEY, AVRO), (PARTIAL_KEY, "false")], &content());
        assert!(read_rows("x.log", &whole, &output(), &BTreeMap::new()).is_ok());
        let hfile = only_block(4, &[], b"abc");
        let refused = read_rows("x.log", &hfile, &output(), &BTreeMap::new()).unwrap_err().to_string();
        assert!(refused.contains("HFile"), "{refused}");
    }

    #[test]
    fn torn_content_is_corrupt_and_names_the_file() {
        let whole = content();
        for cut in 0..whole.len() {
            let block = only_block(3, &[(SCHEMA_KEY, AVRO)], &whole[..cut]);
            let refused = read_rows("x.log", &block, &output(), &BTreeMap::new()).unwrap_err().to_string();
            assert!(refused.contains("x.log"), "{cut}: {refused}");
        }
    }
}
