// SPDX-License-Identifier: Apache-2.0
//! Pins the files of a plan's relations.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use futures::{StreamExt, TryStreamExt};
use tributary_api::timeline::{Error, InstantFact, PlanRequest, Relation, Split};
use tributary_hudi as hudi;
use tributary_hudi::{BaseFile, CommitMetadata, Completions, FileSlice, GroupKey, REQUESTS_AT_ONCE};
use tributary_types::{Cursor, InstantTime};

use crate::cache::Cache;
use crate::decide::Window;
use crate::facts::Table;
use crate::fault::fault;
use crate::readset::{ReadSet, Write, first_missing_group, read_set, written_files};

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

/// Every base file of a table, listed once for all relations.
struct Listing {
    files: Vec<BaseFile>,
    completions: Completions,
}

impl Pinning<'_> {
    /// Pins every relation that the query names.
    pub(crate) async fn pin(&self) -> Result<Relations, Error> {
        let views = self.request.views;
        let whole_changed = views.changed && self.window.whole;
        let begin = self.window.begin.as_ref().map(Cursor::instant).filter(|_| views.begin);
        let listing = match whole_changed || views.end || begin.is_some() {
            true => Some(self.list().await?),
            false => None,
        };
        let mut relations = Relations::default();
        if let Some(listing) = listing.as_ref().filter(|_| whole_changed || views.end) {
            let at_end = self.relation(self.slices_as_of(listing, &self.window.end).await?, None);
            relations.changed = whole_changed.then(|| at_end.clone());
            relations.at_end = views.end.then_some(at_end);
        }
        if views.changed && !self.window.whole {
            relations.changed = Some(self.changed().await?);
        }
        if views.begin {
            let slices = match (&listing, begin) {
                (Some(listing), Some(begin)) => self.slices_as_of(listing, begin).await?,
                // Before a first window that takes the whole table there is nothing.
                _ => Vec::new(),
            };
            relations.at_begin = Some(self.relation(slices, None));
        }
        Ok(relations)
    }

    async fn list(&self) -> Result<Listing, Error> {
        let Table { storage, config, timeline, url, .. } = self.table;
        let failed = fault(url);
        let files = hudi::list_base_files(storage, config, timeline).await.map_err(&failed)?;
        let completions = hudi::completions_for(storage, config, timeline, &files).await.map_err(&failed)?;
        Ok(Listing { files, completions })
    }

    /// The whole table as of an instant.
    async fn slices_as_of(&self, listing: &Listing, as_of: &InstantTime) -> Result<Vec<FileSlice>, Error> {
        let replacements = hudi::completed_replacements(&self.table.timeline, Some(as_of));
        let metadata = self.table.metadata(self.cache, replacements.iter().map(|i| &i.requested)).await?;
        let replaced: HashSet<GroupKey> = metadata.iter().flat_map(|m| hudi::replaced_groups(m)).collect();
        let slices = hudi::select_slices(listing.files.clone(), &listing.completions, &replaced, Some(as_of));
        self.check_complete(listing, as_of, &slices).await?;
        Ok(slices)
    }

    /// A cleaner removes files that later commits replaced. What those commits say of the files before them shows
    /// whether any of `slices` is gone: a group that is missing altogether would otherwise go unnoticed.
    async fn check_complete(&self, listing: &Listing, as_of: &InstantTime, slices: &[FileSlice]) -> Result<(), Error> {
        let later: Vec<&InstantFact> = self.table.writes.iter().filter(|write| write.completed > *as_of).collect();
        let metadata = self.table.metadata(self.cache, later.iter().map(|write| &write.requested)).await?;
        let groups: HashSet<GroupKey> = slices.iter().map(BaseFile::group).collect();
        let was_there = |instant: &InstantTime| listing.completions.completed_by(instant, Some(as_of));
        let missing = first_missing_group(&groups, metadata.iter().map(Arc::as_ref), was_there);
        match missing.map_err(fault(&self.table.url))? {
            // From where the commits start that know nothing of the group.
            Some(gone) => {
                let touches = |m: &CommitMetadata| {
                    let wrote = m.stats.iter().any(|stat| (&stat.partition, &stat.file_id) == (&gone.0, &gone.1));
                    wrote || hudi::replaced_groups(m).any(|group| group == gone)
                };
                let first = metadata.iter().position(|metadata| touches(metadata.as_ref()));
                Err(self.stale(as_of, first.map_or(0, |at| at + 1)).await?)
            }
            None => Ok(()),
        }
    }

    /// The rows that the window's instants wrote.
    async fn changed(&self) -> Result<Relation, Error> {
        let window = self.window;
        let Some(first) = window.instants.iter().map(|write| &write.completed).min() else {
            return Ok(self.relation(Vec::new(), None));
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
        self.check_clusterings(&set).await?;
        let files: Vec<BaseFile> = set.files.into_values().collect();
        self.check_existence(&files).await?;
        let mut instants: Vec<InstantTime> = delivered.into_iter().cloned().collect();
        instants.sort();
        Ok(self.relation(files, Some(Arc::new(instants))))
    }

    /// A clustering that stamps rows with its own time hides when they were written.
    async fn check_clusterings(&self, set: &ReadSet) -> Result<(), Error> {
        for (requested, output) in &set.clusterings {
            let range = match hudi::commit_time_range(&self.table.storage, &output.path, output.bytes).await {
                Ok(range) => range,
                // A later write replaced it, and carries on what it held.
                Err(hudi::Error::Gone { .. }) => None,
                Err(error) => return Err(fault(&self.table.url)(error)),
            };
            if range.is_some_and(|(min, max)| min == requested.as_str() || max == requested.as_str()) {
                return Err(Error::Unsupported {
                    url: self.table.url.clone(),
                    what: format!(
                        "clustering {requested} did not keep the commit times of its rows \
                         (`hoodie.clustering.preserve.commit.metadata=false`), so what changed cannot be told"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Files that later commits replaced may have been cleaned. Those that are the newest of their group cannot.
    async fn check_existence(&self, files: &[BaseFile]) -> Result<(), Error> {
        let end = &self.window.end;
        if !self.table.writes.iter().any(|write| write.completed > *end) {
            return Ok(());
        }
        if self.missing(files.iter().map(|file| file.path.clone()).collect()).await?.is_some() {
            let begin = self.window.begin.as_ref().map_or(end, Cursor::instant);
            return Err(self.stale(begin, 0).await?);
        }
        Ok(())
    }

    /// The error about a cursor whose files were cleaned, with the earliest commit after it whose own files are there;
    /// the first `passed` ones are known to be of no use.
    async fn stale(&self, as_of: &InstantTime, passed: usize) -> Result<Error, Error> {
        let table = self.table;
        let after: Vec<&InstantFact> = table.writes.iter().filter(|write| write.completed > *as_of).collect();
        let mut readable = after.len();
        // A cleaner works from the old end: what follows a commit that can be read can be read.
        while let Some(write) = readable.checked_sub(1).filter(|at| *at >= passed).and_then(|at| after.get(at)) {
            let metadata = table.metadata(self.cache, [&write.requested]).await?;
            let mut there = true;
            for metadata in &metadata {
                let files = written_files(metadata).map_err(fault(&table.url))?;
                there &= self.missing(files.iter().map(|file| file.path.clone()).collect()).await?.is_none();
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
            cursor: table.kind().at(as_of.clone()),
            earliest: after.get(readable).map_or("the next one".to_string(), |write| write.requested.to_string()),
            resume: table.kind().at(before.clone()).to_string(),
        })
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

    fn relation(&self, mut files: Vec<BaseFile>, instants: Option<Arc<Vec<InstantTime>>>) -> Relation {
        files.sort();
        let split = |file: BaseFile| Split {
            url: self.table.url.clone(),
            partition: file.partition,
            file_id: file.file_id,
            path: file.path,
            bytes: file.bytes,
            instants: instants.clone(),
        };
        Relation { schema: Arc::clone(&self.schema), splits: files.into_iter().map(split).collect() }
    }
}
