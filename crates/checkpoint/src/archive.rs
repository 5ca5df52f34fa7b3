// SPDX-License-Identifier: Apache-2.0
//! Cursors in commits that left the active timeline.

use std::collections::BTreeSet;

use tributary_hudi::{
    ArchivedInstant, CommitMetadata, Error, HistoryFile, Storage, TableConfig, archived_metadata, history_files,
    history_version, read_history_file,
};
use tributary_types::InstantTime;

/// How often the archive is read anew when an archiver replaced its files in between.
const TRIES: usize = 5;

/// Which archived writes are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// All.
    All,
    /// Those of these requested times.
    These(&'a BTreeSet<InstantTime>),
    /// Those that were requested later.
    After(&'a InstantTime),
}

impl Wanted<'_> {
    fn may_be_in(self, file: &HistoryFile) -> bool {
        match self {
            Wanted::All => true,
            Wanted::These(times) => times.iter().any(|instant| file.may_hold(instant)),
            // The name of a file that an upgrade left says its first and last row, which are in no order.
            Wanted::After(after) => file.range.as_ref().is_none_or(|(first, last)| first.max(last) > after),
        }
    }

    fn is(self, requested: &InstantTime) -> bool {
        match self {
            Wanted::All => true,
            Wanted::These(times) => times.contains(requested),
            Wanted::After(after) => requested > after,
        }
    }
}

/// The archived writes that are `wanted`, with their metadata.
///
/// An archiver that runs now may replace the manifest and its files between two reads. What was missed then is never
/// taken for absent: the archive is read anew from its newer version.
pub(crate) async fn archived_writes(
    storage: &Storage,
    config: &TableConfig,
    wanted: Wanted<'_>,
) -> Result<Vec<(ArchivedInstant, CommitMetadata)>, Error> {
    if config.layout == 1 {
        // The archive of layout 1 holds no commit of ours: such tables cannot be targets.
        return Ok(Vec::new());
    }
    for _ in 0..TRIES {
        match read_once(storage, config, wanted).await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) | Err(Error::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::Conflict { what: format!("the archive of `{}` changed {TRIES} times while it was read", storage.url()) })
}

/// `None` when a newer version took the place of the one that was being read.
async fn read_once(
    storage: &Storage,
    config: &TableConfig,
    wanted: Wanted<'_>,
) -> Result<Option<Vec<(ArchivedInstant, CommitMetadata)>>, Error> {
    let Some(version) = history_version(storage, config).await? else { return Ok(Some(Vec::new())) };
    let Some(files) = history_files(storage, config, version).await? else { return Ok(None) };
    let mut writes: Vec<ArchivedInstant> = Vec::new();
    for file in files.iter().filter(|file| wanted.may_be_in(file)) {
        let instants = read_history_file(storage, file).await?;
        let is_wanted = |it: &ArchivedInstant| it.action.writes_files() && wanted.is(&it.requested);
        writes.extend(instants.into_iter().filter(is_wanted));
    }
    if writes.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let times: BTreeSet<InstantTime> = writes.iter().map(|write| write.requested.clone()).collect();
    let metadata = archived_metadata(storage, &files, &times).await?;
    let found = metadata.into_iter().filter_map(|(time, metadata)| {
        let write = writes.iter().find(|write| write.requested == time)?;
        Some((write.clone(), metadata))
    });
    Ok(Some(found.collect()))
}
