// SPDX-License-Identifier: Apache-2.0
//! Pins what tells which records a window deleted: the slices of the groups that it touched, at both of its ends.
//!
//! A record is its partition and its key. One that was in a touched group at the beginning and is in no touched group of
//! its partition at the end was deleted, however that came about; one that moved to another partition was deleted in the
//! one that it left. The state at the beginning is that without any of the window's commits, of which late ones may have
//! completed before it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use tributary_api::timeline::{Begin, Deleted, Error, InstantFact, PlanRequest, Split};
use tributary_hudi as hudi;
use tributary_hudi::{DataFiles, FileSlice, GroupKey, LogNames};
use tributary_types::pipeline::TableType;
use tributary_types::{Cursor, InstantTime};

use crate::complete::Search;
use crate::facts::COMMITS_AT_ONCE;
use crate::fault::fault;
use crate::relations::{Listing, Pinning, Relations};
use crate::touched::{Change, Touched, touched};

/// Whether nothing of the source was delivered before its window, so that nothing of it can be deleted: it begins where
/// its `start` says, and not at a cursor, be it one of a commit or one that somebody set.
fn is_first(request: &PlanRequest) -> bool {
    match request.begin {
        Begin::After(_) => request.fingerprint.is_none() && !request.by_hand,
        _ => true,
    }
}

impl Pinning<'_> {
    /// Adds splits of deleted records to the rows that the window's instants wrote.
    pub(crate) async fn add_deleted(&self, relations: &mut Relations) -> Result<(), Error> {
        if is_first(self.request) {
            return Ok(());
        }
        let begin = self.window.begin.as_ref().and_then(Cursor::instant);
        // Before the first commit of a table there is nothing that could be deleted.
        let Some(begin) = begin.filter(|begin| !begin.is_init() && !self.window.instants.is_empty()) else {
            return Ok(());
        };
        let splits = self.deleted(begin).await?;
        if let Some(changed) = &mut relations.changed {
            changed.splits.extend(splits);
        }
        Ok(())
    }

    async fn deleted(&self, begin: &InstantTime) -> Result<Vec<Split>, Error> {
        let end = &self.window.end;
        let delivered: HashSet<&InstantTime> = self.window.instants.iter().map(|write| &write.requested).collect();
        let first = self.window.instants.iter().map(|write| &write.completed).min().unwrap_or(begin).min(begin);
        let is_inside = |write: &InstantFact| write.completed > *begin || delivered.contains(&write.requested);
        let writes: Vec<&InstantFact> = self.table.writes_between(first, end).collect();
        let metadata = self.table.metadata(self.cache, writes.iter().map(|write| &write.requested)).await?;
        let changes = writes.iter().zip(&metadata);
        let changes = changes.map(|(write, metadata)| Change { metadata, inside: is_inside(write) });
        let touched = touched(changes).map_err(fault(&self.table.url))?;
        if touched.groups.is_empty() {
            return Ok(Vec::new());
        }
        let after_begin = writes.iter().zip(&metadata).filter(|(write, _)| write.completed > *begin);
        let after_begin: Vec<&hudi::CommitMetadata> = after_begin.map(|(_, metadata)| metadata.as_ref()).collect();
        // Commits of the window that completed before it began.
        let late: Vec<&InstantTime> =
            writes.iter().filter(|w| w.completed <= *begin && is_inside(w)).map(|w| &w.requested).collect();
        let at_end = self.list_touched(&touched).await?;
        let at_begin = Listing {
            files: at_end.files.clone(),
            completions: at_end.completions.clone().without(late.iter().copied()),
        };
        let before = self.slices(&at_begin, begin, &late).await?;
        self.check_before(&at_begin, begin, &before, &touched, &after_begin).await?;
        let after = self.slices(&at_end, end, &[]).await?;
        self.check_after(&at_end, begin, &after, &touched).await?;
        self.splits(&at_begin, begin, before, &at_end, after)
    }

    /// The files of touched groups.
    async fn list_touched(&self, touched: &Touched) -> Result<Listing, Error> {
        let partitions: BTreeSet<String> = touched.groups.iter().map(|(partition, _)| partition.clone()).collect();
        let listed = hudi::list_partitions(&self.table.storage, partitions.into_iter().collect()).await;
        let mut files: DataFiles = listed.map_err(fault(&self.table.url))?;
        files.bases.retain(|file| touched.groups.contains(&file.group()));
        files.logs.retain(|log| touched.groups.contains(&log.group()));
        self.listing(files).await
    }

    /// The slices of listed groups as of an instant, as if the commits `without` had not completed.
    async fn slices(
        &self,
        listing: &Listing,
        as_of: &InstantTime,
        without: &[&InstantTime],
    ) -> Result<Vec<FileSlice>, Error> {
        let mut replacements = hudi::completed_replacements(&self.table.timeline, Some(as_of));
        replacements.retain(|instant| !without.contains(&&instant.requested));
        let mut replaced: HashSet<GroupKey> = HashSet::new();
        for chunk in replacements.chunks(COMMITS_AT_ONCE) {
            let metadata = self.table.metadata(self.cache, chunk.iter().map(|i| &i.requested)).await?;
            replaced.extend(metadata.iter().flat_map(|m| hudi::replaced_groups(m)));
        }
        let names = LogNames::of(&self.table.config);
        Ok(hudi::select_slices(listing.files.clone(), &listing.completions, &replaced, Some(as_of), names))
    }

    /// Refuses a beginning of which a cleaner took something: those slices go first.
    async fn check_before(
        &self,
        listing: &Listing,
        begin: &InstantTime,
        slices: &[FileSlice],
        touched: &Touched,
        after_begin: &[&hudi::CommitMetadata],
    ) -> Result<(), Error> {
        let of_interest = |group: &GroupKey| touched.groups.contains(group);
        if self.table.config.table_type == TableType::MergeOnRead {
            return self.check_complete(listing, begin, slices, of_interest).await;
        }
        // Whoever writes a base file first says what it replaced.
        let was_there = |instant: &InstantTime| listing.completions.completed_by(instant, Some(begin));
        let mut search = Search::new(slices, was_there, of_interest);
        for metadata in after_begin {
            if let Some(first) = search.add(metadata).map_err(fault(&self.table.url))? {
                return Err(self.stale(begin, first + 1).await?);
            }
        }
        Ok(())
    }

    /// Refuses an end that is not whole: a group that is not found there would look as if all of it had been deleted.
    async fn check_after(
        &self,
        listing: &Listing,
        begin: &InstantTime,
        slices: &[FileSlice],
        touched: &Touched,
    ) -> Result<(), Error> {
        let found: BTreeMap<&GroupKey, &FileSlice> = slices.iter().map(|slice| (&slice.group, slice)).collect();
        for (group, written) in &touched.live {
            let Some(slice) = found.get(group) else { return Err(self.stale(begin, 0).await?) };
            let base = slice.base.as_ref().map(|base| &base.instant);
            if written.is_some() && base != written.as_ref() {
                return Err(self.stale(begin, 0).await?);
            }
        }
        if self.table.config.table_type == TableType::MergeOnRead {
            let of_interest = |group: &GroupKey| touched.live.contains_key(group);
            self.check_complete(listing, &self.window.end, slices, of_interest).await?;
        }
        Ok(())
    }

    fn splits(
        &self,
        at_begin: &Listing,
        begin: &InstantTime,
        before: Vec<FileSlice>,
        at_end: &Listing,
        after: Vec<FileSlice>,
    ) -> Result<Vec<Split>, Error> {
        let whole = |slices: Vec<FileSlice>| slices.into_iter().map(|slice| (slice, None)).collect();
        let mut splits = self.relation(at_begin, begin, whole(before))?.splits;
        let mut by_partition: BTreeMap<String, Vec<Split>> = BTreeMap::new();
        for split in self.relation(at_end, &self.window.end, whole(after))?.splits {
            by_partition.entry(split.partition.clone()).or_default().push(split);
        }
        let by_partition: BTreeMap<String, Arc<Vec<Split>>> =
            by_partition.into_iter().map(|(partition, splits)| (partition, Arc::new(splits))).collect();
        let none = Arc::new(Vec::new());
        let kept = |split: &Split| by_partition.get(&split.partition).unwrap_or(&none);
        // What is the same slice at both ends lost nothing.
        splits.retain(|split| !kept(split).iter().any(|after| after.file_id == split.file_id && after == split));
        for split in &mut splits {
            split.deleted = Deleted::UnlessIn(Arc::clone(kept(split)));
        }
        Ok(splits)
    }
}
