// SPDX-License-Identifier: Apache-2.0
//! Which table versions a target may have.

use super::{TableType, Target};

/// What version 8 cannot do, and that others cannot be written at all.
pub(super) fn problem(target: &Target) -> Option<String> {
    match target.table_version {
        9 => None,
        8 if target.table_type == TableType::MergeOnRead => Some(
            "`target.table_version = 8` is written for copy-on-write tables only: a merge-on-read table needs version 9"
                .to_string(),
        ),
        // Releases of Hudi differ in whether the key of such a table is the value or `column:value`.
        8 if target.record_key.len() == 1 && target.partition_by.len() > 1 => Some(
            "`target.table_version = 8` does not say how a single record key is written where there are several \
             `target.partition_by`: use version 9"
                .to_string(),
        ),
        8 => None,
        other => {
            Some(format!("`target.table_version = {other}` cannot be written: versions 8 and 9 are supported"))
        }
    }
}
