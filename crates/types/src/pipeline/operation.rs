// SPDX-License-Identifier: Apache-2.0
//! How the target is laid out, and how rows enter it.

use serde::{Deserialize, Serialize};

/// Layout of a Hudi table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableType {
    /// Every write leaves whole parquet files.
    #[default]
    CopyOnWrite,
    /// Writes may leave log files that readers merge.
    MergeOnRead,
}

impl TableType {
    /// The name in `hoodie.properties`.
    pub fn as_str(self) -> &'static str {
        match self {
            TableType::CopyOnWrite => "COPY_ON_WRITE",
            TableType::MergeOnRead => "MERGE_ON_READ",
        }
    }
}

/// How rows enter the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A row replaces the row of the same key, wherever in its partition that is.
    #[default]
    Upsert,
    /// Rows are added; a key that is there already is there twice.
    Insert,
    /// As insert, without combining rows of one key inside the batch.
    BulkInsert,
    /// Each row names a record by its key and partition columns, which is deleted.
    Delete,
    /// The rows replace everything in the partitions that they are in.
    InsertOverwrite,
    /// The rows replace everything in the table.
    InsertOverwriteTable,
    /// Each row names a partition by its partition columns, in which everything is deleted.
    DeletePartition,
}

impl Operation {
    /// The name in commit metadata (`WriteOperationType` of Hudi).
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Upsert => "UPSERT",
            Operation::Insert => "INSERT",
            Operation::BulkInsert => "BULK_INSERT",
            Operation::Delete => "DELETE",
            Operation::InsertOverwrite => "INSERT_OVERWRITE",
            Operation::InsertOverwriteTable => "INSERT_OVERWRITE_TABLE",
            Operation::DeletePartition => "DELETE_PARTITION",
        }
    }

    /// Whether it replaces file groups as a whole, which is a replacecommit.
    pub fn replaces_groups(self) -> bool {
        matches!(self, Operation::InsertOverwrite | Operation::InsertOverwriteTable | Operation::DeletePartition)
    }

    /// Whether the rows only name what goes: then they need no other columns of the table.
    pub fn only_deletes(self) -> bool {
        matches!(self, Operation::Delete | Operation::DeletePartition)
    }
}
