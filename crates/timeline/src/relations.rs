// SPDX-License-Identifier: Apache-2.0
//! Pins the files of a plan's relations.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use futures::{StreamExt, TryStreamExt};
use tributary_api::timeline::{
    Begin, Blocks, Deleted, Error, InstantFact, LogFile, Logs, PlanRequest, Relation, Split,
};
use tributary_hudi as hudi;
use tributary_hudi::{BaseFile, Completions, DataFiles, FileSlice, GroupKey, LogNames, MergeRules, REQUESTS_AT_ONCE};
use tributary_types::pipeline::TableType;
use tributary_types::{Cursor, InstantTime};

use crate::cache::Cache;
use crate::complete::{Search, first_missing_log, lacks_base};
use crate::decide::Window;
use crate::facts::{COMMITS_AT_ONCE, Table};
use crate::fault::fault;
use crate::readset::{ReadSet, Rewrite, Write, read_set, written_files, written_logs};
use crate::refuse;
use crate::restamped::{LogCompaction, Stamps, stamps};

/// The relations of a plan, as far as they were asked for.
#[derive(Default)]
pub(crate) struct Relations {
    pub(crate) changed: Option<Relation>,
    pub(crate) at_end: Option<Relation>,
    pub(crate) at_begin: Option<Relation>,
}

/// Pins relations of one plan.
pub(crate) struct Pinning<'a> {
    pub(crate) table: &'a Table,
    pub(crate) cache: &'a Cache,
    pub(crate) request: &'a PlanRequest,
    pub(crate) window: &'a Window,
    pub(crate) schema: SchemaRef,
}

/// Data files of a table, or of some of its partitions, listed once for all relations.
pub(crate) struct Listing {
    pub(crate) files: DataFiles,
    pub(crate) completions: Completions,
}

/// A slice and the instants whose rows of it are wanted; `None`: all rows.
type Wanted = (FileSlice, Option<Arc<Vec<InstantTime>>>);

impl Pinning<'_> {
    /// Pins every relation that the query names.
    pub(crate) async fn pin(&self) -> Result<Relations, Error> {
        let views = self.request.views;
        let whole_changed = views.changed && self.window.whole;
        let begin = self.window.begin.as_ref().and_then(Cursor::instant).filter(|_| views.begin);
        let listing = match whole_changed || views.end || begin.is_some() {
            true => Some(self.list().await?),
            false => None,
        };
        let mut relations = Relations::default();
        if let Some(listing) = listing.as_ref().filter(|_| whole_changed || views.end) {
            let at_end = self.whole_relation(listing, &self.window.end).await?;
            relations.changed = whole_changed.then(|| self.unless_read(at_end.clone()));
            relations.at_end = views.end.then_some(at_end);
        }
        if views.changed && !self.window.whole {
            relations.changed = Some(self.changed().await?);
            if self.request.deletes {
                self.add_deleted(&mut relations).await?;
            }
        }
        if views.begin {
            relations.at_begin = Some(match (&listing, begin) {
                (Some(listing), Some(begin)) => self.whole_relation(listing, begin).await?,
                // Before a first window that takes the whole table there is nothing.
                _ => Relation { schema: Arc::clone(&self.schema), splits: Vec::new() },
            });
        }
        Ok(relations)
    }

    /// The rows of the whole table that are delivered: all, or those that no commit up to a stale cursor wrote.
    fn unless_read(&self, mut whole: Relation) -> Relation {
        let Some(read) = &self.window.unless else { return whole };
        for split in &mut whole.splits {
            split.instants = Some(Arc::clone(read));
            split.all_but = true;
        }
        whole
    }

    async fn list(&self) -> Result<Listing, Error> {
        let Table { storage, config, timeline, url, .. } = self.table;
        self.listing(hudi::list_files(storage, config, timeline).await.map_err(fault(url))?).await
    }

    pub(crate) async fn listing(&self, files: DataFiles) -> Result<Listing, Error> {
        let Table { storage, config, timeline, url, .. } = self.table;
        let completions = hudi::completions_for(storage, config, timeline, &files).await.map_err(fault(url))?;
        Ok(Listing { files, completions })
    }

    /// The whole table as of an instant.
    async fn whole_relation(&self, listing: &Listing, as_of: &InstantTime) -> Result<Relation, Error> {
        let replacements = hudi::completed_replacements(&self.table.timeline, Some(as_of));
        let mut replaced: HashSet<GroupKey> = HashSet::new();
        for chunk in replacements.chunks(COMMITS_AT_ONCE) {
            let metadata = self.table.metadata(self.cache, chunk.iter().map(|i| &i.requested)).await?;
            replaced.extend(metadata.iter().flat_map(|m| hudi::replaced_groups(m)));
        }
        let names = LogNames::of(&self.table.config);
        let slices = hudi::select_slices(listing.files.clone(), &listing.completions, &replaced, Some(as_of), names);
        self.check_complete(listing, as_of, &slices, |_| true).await?;
        self.relation(listing, as_of, slices.into_iter().map(|slice| (slice, None)).collect())
    }

    /// Refuses slices of which a cleaner took something since.
    pub(crate) async fn check_complete(
        &self,
        listing: &Listing,
        as_of: &InstantTime,
        slices: &[FileSlice],
        of_interest: impl Fn(&GroupKey) -> bool,
    ) -> Result<(), Error> {
        let later: Vec<&InstantFact> = self.table.writes.iter().filter(|write| write.completed > *as_of).collect();
        let was_there = |instant: &InstantTime| listing.completions.completed_by(instant, Some(as_of));
        let mut search = Search::new(slices, was_there, of_interest);
        // There may be many: what was read of one goes before the next chunk comes.
        for chunk in later.chunks(COMMITS_AT_ONCE) {
            for metadata in self.table.metadata(self.cache, chunk.iter().map(|write| &write.requested)).await? {
                if let Some(first) = search.add(&metadata).map_err(fault(&self.table.url))? {
                    return Err(self.stale(as_of, first + 1).await?);
                }
            }
        }
        let at_risk: Vec<&FileSlice> = slices.iter().filter(|slice| search.superseded.contains(&slice.group)).collect();
        if self.table.config.table_type == TableType::CopyOnWrite || at_risk.is_empty() {
            return Ok(());
        }
        // The logs of a slice were written since its base file was asked for.
        let since = at_risk.iter().map(|slice| slice.base.as_ref().map(|base| &base.instant)).min().flatten();
        let earlier = self.table.writes.iter().filter(|write| write.completed <= *as_of);
        let earlier: Vec<&InstantFact> =
            earlier.filter(|write| since.is_none_or(|since| write.completed >= *since)).collect();
        for chunk in earlier.chunks(COMMITS_AT_ONCE) {
            let metadata = self.table.metadata(self.cache, chunk.iter().map(|write| &write.requested)).await?;
            let names = LogNames::of(&self.table.config);
            let written = chunk.iter().map(|write| &write.completed).zip(metadata.iter().map(Arc::as_ref));
            if first_missing_log(&at_risk, written, names).is_some()
                || lacks_base(&at_risk, metadata.iter().map(Arc::as_ref), names).map_err(fault(&self.table.url))?
            {
                return Err(self.stale(as_of, 0).await?);
            }
        }
        Ok(())
    }

    /// The rows that the window's instants wrote.
    async fn changed(&self) -> Result<Relation, Error> {
        let window = self.window;
        let Some(first) = window.instants.iter().map(|write| &write.completed).min() else {
            return Ok(Relation { schema: Arc::clone(&self.schema), splits: Vec::new() });
        };
        let writes: Vec<&InstantFact> = self.table.writes_between(first, &window.end).collect();
        let metadata = self.table.metadata(self.cache, writes.iter().map(|write| &write.requested)).await?;
        let delivered: HashSet<&InstantTime> = window.instants.iter().map(|write| &write.requested).collect();
        let set = read_set(writes.iter().zip(&metadata).map(|(write, metadata)| Write {
            requested: &write.requested,
            metadata,
            delivered: delivered.contains(&write.requested),
        }));
        let set = set.map_err(fault(&self.table.url))?;
        self.check_rewrites(&set).await?;
        let mut instants: Vec<InstantTime> = delivered.into_iter().cloned().collect();
        instants.sort();
        match self.table.config.table_type {
            TableType::CopyOnWrite => self.changed_files(set, instants).await,
            TableType::MergeOnRead => self.changed_slices(set, instants).await,
        }
    }

    /// The commits of the window say every file.
    async fn changed_files(&self, set: ReadSet, instants: Vec<InstantTime>) -> Result<Relation, Error> {
        let files: Vec<BaseFile> = set.groups.into_values().flatten().collect();
        self.check_existence(&files).await?;
        let instants = Some(Arc::new(instants));
        let slice = |base: BaseFile| FileSlice { group: base.group(), base: Some(base), logs: Vec::new() };
        let wanted = files.into_iter().map(|file| (slice(file), instants.clone())).collect();
        let none = Listing { files: DataFiles::default(), completions: Completions::default() };
        self.relation(&none, &self.window.end, wanted)
    }

    /// The commits of the window say groups; what was in their slices before it only a listing tells, that of the
    /// partitions they are in.
    async fn changed_slices(&self, set: ReadSet, instants: Vec<InstantTime>) -> Result<Relation, Error> {
        let Table { storage, config, url, .. } = self.table;
        let end = &self.window.end;
        let failed = fault(url);
        let partitions: BTreeSet<String> = set.groups.keys().map(|(partition, _)| partition.clone()).collect();
        let mut files = hudi::list_partitions(storage, partitions.into_iter().collect()).await.map_err(&failed)?;
        files.bases.retain(|file| set.groups.contains_key(&file.group()));
        files.logs.retain(|log| set.groups.contains_key(&log.group()));
        let listing = self.listing(files).await?;
        let names = LogNames::of(config);
        let none = HashSet::new();
        let slices = hudi::select_slices(listing.files.clone(), &listing.completions, &none, Some(end), names);
        let begin = self.window.begin.as_ref().and_then(Cursor::instant).unwrap_or(end);
        let found: HashMap<&GroupKey, &FileSlice> = slices.iter().map(|slice| (&slice.group, slice)).collect();
        for (group, written) in &set.groups {
            let base = found.get(group).map(|slice| slice.base.as_ref());
            match (base, written) {
                (None, _) => return Err(self.stale(begin, 0).await?),
                (Some(base), Some(written)) if base.is_none_or(|base| base.instant != written.instant) => {
                    return Err(self.stale(begin, 0).await?);
                }
                _ => {}
            }
        }
        self.check_complete(&listing, end, &slices, |group| set.groups.contains_key(group)).await?;
        let compactions = self.log_compactions(&set).await?;
        let all = Arc::new(instants);
        let mut wanted: Vec<Wanted> = Vec::with_capacity(slices.len());
        for slice in slices {
            let instants = match stamps(&slice, &all, &compactions) {
                Stamps::Wanted(stamps) if stamps == *all => Arc::clone(&all),
                Stamps::Wanted(stamps) => Arc::new(stamps),
                Stamps::Hidden(compaction) => return Err(self.hidden(&compaction)),
            };
            wanted.push((slice, Some(instants)));
        }
        self.relation(&listing, end, wanted)
    }

    async fn log_compactions(&self, set: &ReadSet) -> Result<Vec<LogCompaction>, Error> {
        let Table { storage, config, url, .. } = self.table;
        let mut found = Vec::with_capacity(set.log_compactions.len());
        for requested in &set.log_compactions {
            let Some(write) = self.table.writes.iter().find(|write| write.requested == *requested) else { continue };
            let originals = hudi::log_compaction_originals(storage, config, requested).await.map_err(fault(url))?;
            found.push(LogCompaction { requested: requested.clone(), completed: write.completed.clone(), originals });
        }
        Ok(found)
    }

    /// A clustering or compaction that stamps rows with its own time hides when they were written.
    async fn check_rewrites(&self, set: &ReadSet) -> Result<(), Error> {
        if self.request.look_only {
            return Ok(());
        }
        for Rewrite { requested, clusters, sample } in &set.rewrites {
            let range = match hudi::commit_time_range(&self.table.storage, &sample.path, sample.bytes).await {
                Ok(range) => range,
                // A later write replaced it, and carries on what it held.
                Err(hudi::Error::Gone { .. }) => None,
                Err(error) => return Err(fault(&self.table.url)(error)),
            };
            if range.is_some_and(|(min, max)| min == requested.as_str() || max == requested.as_str()) {
                let (what, property) = match clusters {
                    true => ("clustering", "hoodie.clustering.preserve.commit.metadata"),
                    false => ("compaction", "hoodie.compaction.preserve.commit.metadata"),
                };
                return Err(Error::Unsupported {
                    url: self.table.url.clone(),
                    what: format!(
                        "{what} {requested} did not keep the commit times of its rows (`{property}=false`), so what \
                         changed cannot be told"
                    ),
                });
            }
        }
        Ok(())
    }

    fn hidden(&self, compaction: &InstantTime) -> Error {
        Error::Unsupported {
            url: self.table.url.clone(),
            what: format!(
                "log compaction {compaction} put rows of this window and rows of other commits under its own commit \
                 time, and a compaction followed: what changed cannot be told. Read windows that hold all of the \
                 commits it put together or none, or give the source another name and `start = \"snapshot\"`"
            ),
        }
    }

    /// Files that later commits replaced may have been cleaned. Those that are the newest of their group cannot.
    async fn check_existence(&self, files: &[BaseFile]) -> Result<(), Error> {
        let end = &self.window.end;
        if !self.table.writes.iter().any(|write| write.completed > *end) {
            return Ok(());
        }
        if self.missing(files.iter().map(|file| file.path.clone()).collect()).await?.is_some() {
            let begin = self.window.begin.as_ref().and_then(Cursor::instant).unwrap_or(end);
            return Err(self.stale(begin, 0).await?);
        }
        Ok(())
    }

    /// The error about a cursor whose files were cleaned, with the earliest commit after it whose own files are there;
    /// the first `passed` ones are known to be of no use.
    pub(crate) async fn stale(&self, as_of: &InstantTime, passed: usize) -> Result<Error, Error> {
        let table = self.table;
        let after: Vec<&InstantFact> = table.writes.iter().filter(|write| write.completed > *as_of).collect();
        let mut readable = after.len();
        // A cleaner works from the old end: what follows a commit that can be read can be read.
        while let Some(write) = readable.checked_sub(1).filter(|at| *at >= passed).and_then(|at| after.get(at)) {
            let metadata = table.metadata(self.cache, [&write.requested]).await?;
            let mut there = true;
            for metadata in &metadata {
                let files = written_files(metadata).map_err(fault(&table.url))?;
                let logs = written_logs(metadata).map(|log| log.path);
                let paths = files.into_iter().map(|file| file.path).chain(logs).collect();
                there &= self.missing(paths).await?.is_none();
            }
            if !there {
                break;
            }
            readable -= 1;
        }
        let before = readable.checked_sub(1).and_then(|at| after.get(at)).map_or(as_of, |write| &write.completed);
        Ok(Error::Stale {
            source_name: self.request.source.clone(),
            url: table.url.clone(),
            cursor: self.cursor(as_of),
            earliest: after.get(readable).map_or("the next one".to_string(), |write| write.requested.to_string()),
            resume: table.kind().at(before.clone()).to_string(),
        })
    }

    /// Where the source stands: what cannot be read is needed for what comes after that.
    fn cursor(&self, as_of: &InstantTime) -> Cursor {
        match &self.request.begin {
            Begin::After(cursor) if !self.request.lookup => cursor.clone(),
            _ => self.window.begin.clone().unwrap_or_else(|| self.table.kind().at(as_of.clone())),
        }
    }

    /// One of the files that is gone.
    async fn missing(&self, paths: Vec<String>) -> Result<Option<String>, Error> {
        let found: Vec<Option<String>> = futures::stream::iter(paths)
            .map(|path| async move {
                let there = self.table.storage.head(&path).await;
                there.map(|there| there.is_none().then_some(path))
            })
            .buffered(REQUESTS_AT_ONCE)
            .try_collect()
            .await
            .map_err(fault(&self.table.url))?;
        Ok(found.into_iter().flatten().next())
    }

    pub(crate) fn relation(
        &self,
        listing: &Listing,
        as_of: &InstantTime,
        mut wanted: Vec<Wanted>,
    ) -> Result<Relation, Error> {
        wanted.sort();
        let logs = LogPinning::new(self.table, &listing.completions, as_of, &wanted)?;
        let deleted = if self.request.deletes { Deleted::No } else { Deleted::Unsaid };
        let split = |(slice, instants): Wanted| {
            let (path, bytes) = slice.base.map(|base| (base.path, base.bytes)).unwrap_or_default();
            let (partition, file_id) = slice.group;
            let url = self.table.url.clone();
            let logs = logs.pin(slice.logs);
            Split {
                url,
                partition,
                file_id,
                path,
                bytes,
                logs,
                instants,
                all_but: false,
                file: None,
                deleted: deleted.clone(),
            }
        };
        Ok(Relation { schema: Arc::clone(&self.schema), splits: wanted.into_iter().map(split).collect() })
    }
}

/// How the logs of a relation are merged.
struct LogPinning {
    layout: u32,
    rules: MergeRules,
    blocks: Option<Arc<Blocks>>,
}

impl LogPinning {
    /// A table whose logs cannot be merged may be read as long as there are none.
    fn new(table: &Table, completions: &Completions, as_of: &InstantTime, wanted: &[Wanted]) -> Result<Self, Error> {
        let layout = table.config.layout;
        if wanted.iter().all(|(slice, _)| slice.logs.is_empty()) {
            return Ok(LogPinning { layout, rules: MergeRules::default(), blocks: None });
        }
        let rules = MergeRules::of(&table.config).map_err(fault(&table.url))?;
        refuse::check_mergeable(&table.url, &table.config)?;
        let blocks = match LogNames::of(&table.config) {
            LogNames::OwnInstant => None,
            LogNames::BaseInstant => {
                let counted = completions.counted_blocks(Some(as_of));
                Some(Arc::new(Blocks { before: counted.before, listed: counted.listed }))
            }
        };
        Ok(LogPinning { layout, rules, blocks })
    }

    fn pin(&self, files: Vec<hudi::LogFile>) -> Option<Logs> {
        if files.is_empty() {
            return None;
        }
        Some(Logs {
            files: files.into_iter().map(|file| LogFile { path: file.path, bytes: file.bytes }).collect(),
            layout: self.layout,
            ordering: self.rules.ordering.clone(),
            delete_marker: self.rules.delete_marker.clone(),
            blocks: self.blocks.clone(),
        })
    }
}
