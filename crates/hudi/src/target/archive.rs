// SPDX-License-Identifier: Apache-2.0
//! Moving the oldest completed instants out of the active timeline.
//!
//! The archive is published first; then the requested and inflight files go, then the completed ones, oldest first.
//! After an interruption instants are in both places, which reads the same: whoever comes next takes them off the
//! active timeline.

use std::collections::{BTreeMap, BTreeSet};

use hudi_core::metadata::rollback::HoodieRollbackMetadata;
use tributary_types::InstantTime;

use super::clean::replacement_times;
use super::compact::{TIMELINE as METADATA_TIMELINE, latest_compaction, metadata_timeline};
use super::lsm::{ManifestEntry, Row, append, read_manifest};
use super::retain::{ArchiveFacts, Held, plan_archive};
use crate::archive::{HistoryFile, read_history_file};
use crate::config::TableConfig;
use crate::error::{Error, Result};
use crate::listing::{has_file_listing, list_files};
use crate::slices::{read_metadata, replaced_groups};
use crate::storage::{Entry, Storage};
use crate::timeline::{Action, Instant, Timeline};

const METADATA_HISTORY: &str = ".hoodie/metadata/.hoodie/timeline/history";

/// How many writes an active timeline has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Above this many completed writes something is archived.
    pub max: usize,
    /// So many stay at least.
    pub min: usize,
}

/// Archives what may go of the table's timeline, then of its metadata table's; answers how many instants went.
pub async fn archive_timelines(
    storage: &Storage,
    config: &TableConfig,
    timeline: &Timeline,
    keep: Keep,
) -> Result<usize> {
    let archived = archive_data(storage, config, timeline, keep).await?;
    // The metadata table's timeline gives away as much, at the same time.
    if archived == 0 || !has_file_listing(config) {
        return Ok(archived);
    }
    let timeline = Timeline::load(storage, config).await?;
    Ok(archived + archive_metadata(storage, &timeline, keep).await?)
}

async fn archive_data(storage: &Storage, config: &TableConfig, timeline: &Timeline, keep: Keep) -> Result<usize> {
    let mut facts = ArchiveFacts { timeline, max: keep.max, min: keep.min, before: None, held: &[] };
    if plan_archive(&facts).is_empty() {
        return Ok(0);
    }
    let compacted = match has_file_listing(config) {
        true => latest_compaction(&metadata_timeline(storage).await?),
        false => None,
    };
    if has_file_listing(config) && compacted.is_none() {
        return Ok(0);
    }
    // Without the instant, a log block of it that was not compacted yet might no longer count.
    facts.before = compacted.as_ref();
    let candidates = plan_archive(&facts);
    if candidates.is_empty() {
        return Ok(0);
    }
    let mut held = find_listed_replacements(storage, config, timeline, &candidates).await?;
    held.extend(find_rolled_back_files(storage, timeline, &candidates).await?);
    facts.held = &held;
    let instants = plan_archive(&facts);
    move_to_history(storage, &config.timeline_dir(), &config.history_dir(), &instants).await?;
    Ok(instants.len())
}

/// The metadata table's timeline keeps whatever the table's own keeps, and everything since its last compaction.
async fn archive_metadata(storage: &Storage, data: &Timeline, keep: Keep) -> Result<usize> {
    let own = metadata_timeline(storage).await?;
    let Some(compacted) = latest_compaction(&own) else { return Ok(0) };
    let before = data.earliest().map_or(&compacted, |earliest| earliest.min(&compacted));
    // Not one by one: as many at once as the table's own timeline gives away.
    let step = keep.max.saturating_sub(keep.min).max(1);
    let goes = own.instants().iter().take_while(|instant| &instant.requested < before && !instant.is_pending());
    if goes.count() < step {
        return Ok(0);
    }
    let instants = plan_archive(&ArchiveFacts { timeline: &own, max: 1, min: 1, before: Some(before), held: &[] });
    move_to_history(storage, METADATA_TIMELINE, METADATA_HISTORY, &instants).await?;
    Ok(instants.len())
}

/// Replacecommits whose replaced groups still have files that readers would find.
async fn find_listed_replacements(
    storage: &Storage,
    config: &TableConfig,
    timeline: &Timeline,
    candidates: &[Instant],
) -> Result<Vec<Held>> {
    let replacing: Vec<&Instant> =
        candidates.iter().filter(|instant| instant.action == Action::ReplaceCommit).collect();
    if replacing.is_empty() {
        return Ok(Vec::new());
    }
    let files = list_files(storage, config, timeline).await?;
    let bases = files.bases.iter().map(crate::slices::BaseFile::group);
    let listed: BTreeSet<_> = bases.chain(files.logs.iter().map(crate::log_file::LogFile::group)).collect();
    let replaced = replacement_times(storage, timeline).await?;
    let mut held = Vec::new();
    for (instant, metadata) in replacing.iter().zip(read_metadata(storage, timeline, &replacing).await?) {
        if replaced_groups(&metadata).any(|group| listed.contains(&group) && replaced.contains_key(&group)) {
            held.push(Held::Replacing(instant.requested.clone()));
        }
    }
    Ok(held)
}

/// Rolled-back instants that would come to lie below the timeline's start while a file of theirs is on the store.
async fn find_rolled_back_files(storage: &Storage, timeline: &Timeline, candidates: &[Instant]) -> Result<Vec<Held>> {
    let taken: BTreeSet<&InstantTime> = candidates.iter().map(|instant| &instant.requested).collect();
    let start = timeline.instants().iter().map(|instant| &instant.requested).find(|time| !taken.contains(time));
    let rollbacks =
        timeline.instants().iter().filter(|instant| !instant.is_pending() && instant.action == Action::Rollback);
    let mut held = Vec::new();
    for instant in rollbacks {
        let Some(path) = timeline.completed_path(instant) else { continue };
        let metadata = HoodieRollbackMetadata::from_avro_bytes(&storage.read(&path).await?)
            .map_err(|e| Error::corrupt(&path, e))?;
        for dead in &metadata.commits_rollback {
            let dead: InstantTime = dead.parse().map_err(|e| Error::corrupt(&path, e))?;
            let below = start.is_none_or(|start| &dead < start);
            if below && has_files(storage, metadata.partition_metadata.keys(), &dead).await? {
                tracing::warn!(instant = %dead, "a file of a rolled-back instant is on the store; it is not archived");
                held.push(Held::RolledBack(dead));
            }
        }
    }
    Ok(held)
}

/// Whether a partition holds a file of the instant; markers named every partition it could write to.
async fn has_files<'a>(
    storage: &Storage,
    partitions: impl Iterator<Item = &'a String>,
    dead: &InstantTime,
) -> Result<bool> {
    let (base, log) = (format!("_{dead}.parquet"), format!("_{dead}.log."));
    for partition in partitions {
        let (files, _) = storage.list_level(partition).await?;
        if files.iter().any(|file| file.name().ends_with(&base) || file.name().contains(&log)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Finishes what an interrupted archiver left: instants that are in the archive leave the active timeline.
pub async fn finish_archiving(storage: &Storage, config: &TableConfig, timeline: &Timeline) -> Result<usize> {
    let mut finished = finish(storage, &config.timeline_dir(), &config.history_dir(), timeline).await?;
    if has_file_listing(config) {
        let own = metadata_timeline(storage).await?;
        finished += finish(storage, METADATA_TIMELINE, METADATA_HISTORY, &own).await?;
    }
    Ok(finished)
}

async fn finish(storage: &Storage, directory: &str, history: &str, timeline: &Timeline) -> Result<usize> {
    let (_, manifest) = read_manifest(storage, history).await?;
    let newest = manifest.files.iter().filter_map(ManifestEntry::range).map(|(_, max, _)| max).max();
    let both: Vec<Instant> = timeline
        .instants()
        .iter()
        .filter(|instant| !instant.is_pending() && newest.is_some_and(|newest| instant.requested.as_str() <= newest))
        .cloned()
        .collect();
    if both.is_empty() {
        return Ok(0);
    }
    let archived = find_archived(storage, history, &both).await?;
    let left: Vec<Instant> = both.into_iter().filter(|instant| archived.contains(&instant.requested)).collect();
    take_off(storage, directory, &left).await?;
    Ok(left.len())
}

async fn move_to_history(storage: &Storage, directory: &str, history: &str, instants: &[Instant]) -> Result<()> {
    if instants.is_empty() {
        return Ok(());
    }
    let archived = find_archived(storage, history, instants).await?;
    let files = files_by_instant(storage, directory).await?;
    let mut rows = Vec::new();
    for instant in instants.iter().filter(|instant| !archived.contains(&instant.requested)) {
        let Some(completed) = instant.completed.clone() else { continue };
        let names = files.get(&instant.requested).map(Vec::as_slice).unwrap_or_default();
        let done = names.iter().find(|name| name.starts_with(&format!("{}_", instant.requested)));
        let done = done.ok_or_else(|| Error::Gone { file: format!("{directory}/{}_*", instant.requested) })?;
        rows.push(Row {
            requested: instant.requested.clone(),
            completed,
            action: instant.action.as_str(),
            metadata: storage.read(&format!("{directory}/{done}")).await?,
            plan: read_plan(storage, directory, names).await?,
        });
    }
    append(storage, history, &rows).await?;
    take_off(storage, directory, instants).await
}

/// What Java keeps as the plan of an instant: that of a service, or what an overwrite or a clustering meant to do.
async fn read_plan(storage: &Storage, directory: &str, names: &[String]) -> Result<Option<bytes::Bytes>> {
    const OF_REQUESTED: [&str; 3] = [".clean.requested", ".compaction.requested", ".logcompaction.requested"];
    const OF_EITHER: [&str; 4] =
        [".replacecommit.inflight", ".clustering.inflight", ".replacecommit.requested", ".clustering.requested"];
    for suffix in OF_REQUESTED.iter().chain(&OF_EITHER) {
        for name in names.iter().filter(|name| name.ends_with(suffix)) {
            let bytes = storage.read(&format!("{directory}/{name}")).await?;
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }
    Ok(None)
}

async fn take_off(storage: &Storage, directory: &str, instants: &[Instant]) -> Result<()> {
    if instants.is_empty() {
        return Ok(());
    }
    let files = files_by_instant(storage, directory).await?;
    let names = || instants.iter().flat_map(|instant| files.get(&instant.requested).into_iter().flatten());
    let pending = |name: &str| name.ends_with(".requested") || name.ends_with(".inflight");
    for name in names().filter(|name| pending(name)) {
        storage.delete(&format!("{directory}/{name}")).await?;
    }
    for name in names().filter(|name| !pending(name)) {
        storage.delete(&format!("{directory}/{name}")).await?;
    }
    Ok(())
}

/// Names of the files of each instant, without those of savepoints.
async fn files_by_instant(storage: &Storage, directory: &str) -> Result<BTreeMap<InstantTime, Vec<String>>> {
    let (listed, _) = storage.list_level(directory).await?;
    let mut files: BTreeMap<InstantTime, Vec<String>> = BTreeMap::new();
    for name in listed.iter().map(Entry::name).filter(|name| !name.contains(".savepoint")) {
        let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
        if let Ok(instant) = digits.parse() {
            files.entry(instant).or_default().push(name.to_string());
        }
    }
    for names in files.values_mut() {
        names.sort();
    }
    Ok(files)
}

/// Which of the instants, given by requested time, are in the archive already.
async fn find_archived(storage: &Storage, history: &str, instants: &[Instant]) -> Result<BTreeSet<InstantTime>> {
    let (Some(first), Some(last)) = (instants.first(), instants.last()) else { return Ok(BTreeSet::new()) };
    let (_, manifest) = read_manifest(storage, history).await?;
    let mut found = BTreeSet::new();
    for entry in &manifest.files {
        let overlaps =
            entry.range().is_none_or(|(min, max, _)| min <= last.requested.as_str() && first.requested.as_str() <= max);
        if overlaps {
            let file = HistoryFile { path: format!("{history}/{}", entry.file_name), range: None, bytes: 0 };
            found.extend(read_history_file(storage, &file).await?.into_iter().map(|instant| instant.requested));
        }
    }
    Ok(found)
}
