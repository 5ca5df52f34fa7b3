// SPDX-License-Identifier: Apache-2.0
//! What a batch's status says of what it wrote and of what it answers for.

use tributary_api::coordinator::{SourceStatus, Written};
use tributary_api::merge::Merged;
use tributary_api::timeline::WindowReport;
use tributary_types::{Checkpoint, SourceCheckpoint};

/// What a merge left staged.
pub(crate) fn written(merged: &Merged) -> Written {
    let files = &merged.staged.files;
    Written {
        rows: merged.staged.rows_in,
        inserts: files.iter().map(|file| file.inserts).sum(),
        updates: files.iter().map(|file| file.updates).sum(),
        files: files.len() as u64,
        bytes: files.iter().map(|file| file.bytes).sum(),
        combined: merged.staged.rows_combined,
        outdated: merged.staged.rows_outdated,
        without_key: merged.staged.rows_null_key,
        deletes: files.iter().map(|file| file.deletes).sum(),
        absent: merged.staged.rows_absent,
        replaced_groups: 0,
    }
}

/// The sources of a commit, as far as its cursors tell.
pub(crate) fn committed_sources(checkpoint: &Checkpoint) -> Vec<SourceStatus> {
    let one = |(name, source): (&tributary_types::SourceName, &SourceCheckpoint)| SourceStatus {
        source: name.clone(),
        window: source.window.clone(),
        report: WindowReport::default(),
        rows: 0,
        bytes_read: 0,
    };
    checkpoint.sources.iter().map(one).collect()
}
