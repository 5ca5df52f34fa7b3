// SPDX-License-Identifier: Apache-2.0
//! Avro files of one record, as the timeline keeps plans and outcomes of table services.
//!
//! Written with a schema that Java declares, read with the schema that the file itself carries, so that a field that
//! a later release adds changes nothing here.

use hudi_core::metadata::table_record::{decode_avro_value, parse_avro_schema};
use hudi_core::schema::avsc::encode_with_schema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

const MAGIC: &[u8] = b"Obj\x01";
const SYNC_BYTES: usize = 16;

/// The file of a record; `schema` is the Avro schema as JSON, `what` is for messages.
pub(crate) fn write_record<T: Serialize>(what: &str, record: &T, schema: &str) -> Result<Vec<u8>> {
    let schema = parse_avro_schema(schema).map_err(|e| Error::corrupt(what, e))?;
    encode_with_schema(record, &schema).map_err(|e| Error::corrupt(what, e))
}

/// The first record of a file; `file` is for messages.
pub(crate) fn read_record<T: DeserializeOwned>(file: &str, bytes: &[u8]) -> Result<T> {
    let corrupt = |detail: &str| Error::corrupt(file, format!("as an Avro file: {detail}"));
    let mut input = Input { rest: bytes.strip_prefix(MAGIC).ok_or_else(|| corrupt("it does not begin like one"))? };
    let header = input.map().ok_or_else(|| corrupt("its header is cut off"))?;
    let find = |key: &str| header.iter().find(|(name, _)| *name == key.as_bytes()).map(|(_, value)| *value);
    if !matches!(find("avro.codec"), None | Some(b"null")) {
        return Err(Error::unsupported(format!("`{file}` is a compressed Avro file, which cannot be read")));
    }
    let schema = find("avro.schema").and_then(|text| std::str::from_utf8(text).ok());
    let schema = parse_avro_schema(schema.ok_or_else(|| corrupt("it has no schema"))?);
    let schema = schema.map_err(|e| Error::corrupt(file, e))?;
    let block = input.first_block().ok_or_else(|| corrupt("it has no record"))?;
    let value = decode_avro_value(block, &schema).map_err(|e| Error::corrupt(file, e))?;
    let value = serde_json::Value::try_from(value).map_err(|e| Error::corrupt(file, e))?;
    serde_json::from_value(value).map_err(|e| Error::corrupt(file, e))
}

/// Name and value of a header's entry.
type Pair<'a> = (&'a [u8], &'a [u8]);

struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.rest.get(..length)?;
        self.rest = self.rest.get(length..)?;
        Some(taken)
    }

    /// Zigzag, seven bits a byte, lowest first.
    fn long(&mut self) -> Option<i64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.long()?).ok()?;
        self.take(length)
    }

    fn map(&mut self) -> Option<Vec<Pair<'a>>> {
        let mut pairs = Vec::new();
        loop {
            let count = self.long()?;
            if count == 0 {
                return Some(pairs);
            }
            if count < 0 {
                // A negative count is followed by the block's size in bytes.
                self.long()?;
            }
            for _ in 0..count.unsigned_abs() {
                pairs.push((self.bytes()?, self.bytes()?));
            }
        }
    }

    fn first_block(&mut self) -> Option<&'a [u8]> {
        self.take(SYNC_BYTES)?;
        let records = self.long()?;
        let length = usize::try_from(self.long()?).ok()?;
        self.take(length).filter(|_| records > 0)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Note {
        text: String,
        count: i64,
    }

    const SCHEMA: &str = r#"{"type":"record","name":"Note","fields":[
        {"name":"text","type":"string"},{"name":"count","type":"long"}]}"#;

    #[test]
    fn a_record_reads_back() {
        let note = Note { text: "ä".repeat(100), count: -70_000 };
        let bytes = write_record("note", &note, SCHEMA).unwrap();
        assert_eq!(read_record::<Note>("f", &bytes).unwrap(), note);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_corrupt_and_named() {
        let bytes = write_record("note", &Note { text: "abc".to_string(), count: 1 }, SCHEMA).unwrap();
        // The sync marker at the end is not needed for the first record.
        for cut in 0..bytes.len() - SYNC_BYTES {
            let refused = read_record::<Note>("x.clean", &bytes[..cut]).unwrap_err().to_string();
            assert!(refused.contains("x.clean"), "cut at {cut}: {refused}");
        }
    }
}
