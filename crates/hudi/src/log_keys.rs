// SPDX-License-Identifier: Apache-2.0
//! The keys that log files name, whether they give the key a row or delete it.
//!
//! A key that a log deleted belongs to its group all the same, as long as the log is there: what is written for it next
//! must be merged with the delete.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Schema};
use tributary_types::MemoryBudget;

use crate::avro::META_COLUMNS;
use crate::delete_block::read_deletes;
use crate::error::{Error, Result};
use crate::log_blocks::{BlockKind, Torn, read_blocks};
use crate::log_rows::read_rows;
use crate::storage::Storage;

const RECORD_KEY: &str = META_COLUMNS[2];

/// Calls `see` with every key of log files that each belong to one completed instant (table version 8 and later), one
/// file after the other; a key may come more than once. One file's content is held at a time, counted in `memory`.
pub async fn for_each_log_key(
    storage: &Storage,
    files: &[String],
    memory: &MemoryBudget,
    mut see: impl FnMut(&str) + Send,
) -> Result<()> {
    let schema = Arc::new(Schema::new(vec![Field::new(RECORD_KEY, DataType::Utf8, true)]));
    for file in files {
        let bytes = storage.read(file).await?;
        let mut held = memory.reservation(format!("the keys of log file `{file}`"));
        held.try_grow(bytes.len()).map_err(|source| Error::TooLarge { group: file.clone(), source })?;
        for block in read_blocks(file, &bytes, Torn::Refused)? {
            match block.kind {
                BlockKind::Delete => read_deletes(file, &block.content)?.iter().for_each(|(key, _)| see(key)),
                BlockKind::Command => {}
                _ => {
                    for batch in read_rows(file, &block, &schema, &BTreeMap::new())? {
                        batch.column(0).as_string::<i32>().iter().flatten().for_each(&mut see);
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use object_store::memory::InMemory;

    use super::*;
    use crate::delete_encode::{DeletedAt, DeletedKey};
    use crate::log_writer::{LogFileWriter, log_schema};
    use crate::target::LockKind;

    #[tokio::test]
    async fn keys_of_rows_and_of_deletes_are_seen() {
        let lock = LockKind::Process(Arc::new(tokio::sync::Mutex::new(())));
        let storage = Storage::new(Arc::new(InMemory::new()), object_store::path::Path::from("t"), "memory://t", lock);
        let keys = |keys: &[&str]| -> RecordBatch {
            let text = |_| Arc::new(StringArray::from(keys.to_vec())) as ArrayRef;
            let columns = META_COLUMNS.iter().enumerate().map(|(at, name)| (*name, text(at), true));
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        };
        let instant = "20250101000001000".parse().unwrap();
        let schema = log_schema("t", &Schema::empty()).unwrap();
        let mut file = LogFileWriter::create(&storage, "x", &instant, &schema).unwrap();
        file.write(&keys(&["a", "b"])).await.unwrap();
        let deleted = DeletedKey { key: "c".to_string(), partition: String::new(), at: DeletedAt::Place };
        file.delete(&[deleted]).await.unwrap();
        file.close().await.unwrap();
        let mut file = LogFileWriter::create(&storage, "y", &instant, &schema).unwrap();
        file.write(&keys(&["b"])).await.unwrap();
        file.close().await.unwrap();
        let mut seen = Vec::new();
        let memory = MemoryBudget::new(1 << 20);
        let files = ["x".to_string(), "y".to_string()];
        for_each_log_key(&storage, &files, &memory, |key| seen.push(key.to_string())).await.unwrap();
        assert_eq!(seen, ["a", "b", "c", "b"]);
        assert_eq!(memory.used(), 0);
        let little = MemoryBudget::new(10);
        assert!(matches!(for_each_log_key(&storage, &files, &little, |_| {}).await, Err(Error::TooLarge { .. })));
    }
}
