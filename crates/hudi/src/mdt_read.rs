// SPDX-License-Identifier: Apache-2.0
//! The `files` partition of the metadata table: every partition's files with their sizes, without a listing.
//!
//! The partition is one file group of an HFile and the log files after it. A record is keyed by partition path and
//! holds file names with size or deletion mark; newer records add to and take from older ones. A log block counts
//! only when its instant is valid: it completed on the data timeline, or it is a completed deltacommit of the
//! metadata table whose instant is not pending on the data timeline.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use hudi_core::hfile::{HFileReader, HFileRecord};
use hudi_core::metadata::table_record::{
    FilesPartitionRecord, MetadataRecordType, decode_files_partition_record_with_schema, parse_avro_schema,
};
use tributary_types::InstantTime;

use crate::error::{Error, Result};
use crate::log_blocks::{BlockKind, LogBlock, read_blocks};
use crate::slices::BaseFile;
use crate::storage::{Entry, Storage};
use crate::timeline::Timeline;

const FILES_DIRECTORY: &str = ".hoodie/metadata/files";
/// The metadata table's own timeline; its layout is 2 in every table version that is read.
const TIMELINE_DIRECTORY: &str = ".hoodie/metadata/.hoodie/timeline";
const LAYOUT: u32 = 2;
/// Instants of the metadata table's own making start so: they have no counterpart on the data timeline.
const INIT_PREFIX: &str = "00000000000000";
/// How often a slice that a compaction replaces while it is read is looked up again.
const ATTEMPTS: usize = 3;

/// The record that lists the partitions.
pub(crate) const ALL_PARTITIONS: &str = FilesPartitionRecord::ALL_PARTITIONS_KEY;

/// File names and sizes by partition path; under [`ALL_PARTITIONS`] the partitions themselves.
pub(crate) type Listing = BTreeMap<String, BTreeMap<String, u64>>;

/// Every base file that the metadata table lists; `data` is the table's own timeline.
pub async fn read_file_listing(storage: &Storage, data: &Timeline) -> Result<Vec<BaseFile>> {
    let mut attempt = 1;
    let listing = loop {
        match read_merged(storage, data).await {
            // Compacted and cleaned since it was listed.
            Err(Error::Gone { .. }) if attempt < ATTEMPTS => attempt += 1,
            other => break other?.0,
        }
    };
    let mut found = Vec::new();
    for (partition, files) in listing.into_iter().filter(|(key, _)| key != ALL_PARTITIONS) {
        for (name, bytes) in files {
            let path = if partition.is_empty() { name } else { format!("{partition}/{name}") };
            found.extend(BaseFile::from_path(&path, bytes)?);
        }
    }
    Ok(found)
}

/// The newest slice and what its records say together.
pub(crate) async fn read_merged(storage: &Storage, data: &Timeline) -> Result<(Listing, Slice)> {
    let (files, _) = storage.list_level(FILES_DIRECTORY).await?;
    let (instants, _) = storage.list_level(TIMELINE_DIRECTORY).await?;
    let own = Timeline::from_names(TIMELINE_DIRECTORY, LAYOUT, instants.iter().map(Entry::name));
    let slice = newest_slice(files.iter().map(|file| file.path.as_str()), &own);
    if slice.base.is_none() && slice.logs.is_empty() {
        return Err(Error::unsupported(format!("`{FILES_DIRECTORY}` holds no file slice")));
    }
    let paths: Vec<String> = slice.base.iter().chain(&slice.logs).cloned().collect();
    let mut contents = Vec::with_capacity(paths.len());
    for (path, bytes) in paths.iter().zip(storage.read_all(&paths).await?) {
        contents.push((path.as_str(), bytes.ok_or_else(|| Error::Gone { file: path.clone() })?));
    }
    let (base, logs) = contents.split_at(usize::from(slice.base.is_some()));
    let valid = valid_instants(data, &own);
    let mut listing = Listing::new();
    for (path, bytes) in base {
        merge_hfile(&mut listing, path, bytes, None)?;
    }
    for (path, block) in valid_blocks(logs, &valid)? {
        merge_hfile(&mut listing, path, &block.content, block.schema())?;
    }
    Ok((listing, slice))
}

/// The newest file slice: paths of the HFile and of the log files after it, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) base: Option<String>,
    pub(crate) logs: Vec<String>,
}

fn newest_slice<'a>(paths: impl Iterator<Item = &'a str>, own: &Timeline) -> Slice {
    let mut base: Option<(InstantTime, &str)> = None;
    let mut logs = Vec::new();
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        if let Some(instant) = hfile_instant(name) {
            if own.is_committed(&instant) && base.as_ref().is_none_or(|(newest, _)| *newest < instant) {
                base = Some((instant, path));
            }
        } else if let Some((instant, version)) = log_instant(name)
            && own.is_committed(&instant)
        {
            // An archived deltacommit was compacted away long ago; its own time stands for its completion.
            let completed = own.find(&instant).and_then(|found| found.completed.clone());
            logs.push((completed.unwrap_or_else(|| instant.clone()), instant, version, path));
        }
    }
    // A log belongs to the newest base whose instant is not after the log's completion (layout 2).
    if let Some((base_instant, _)) = &base {
        logs.retain(|(completed, ..)| completed >= base_instant);
    }
    logs.sort();
    Slice {
        base: base.map(|(_, path)| path.to_string()),
        logs: logs.into_iter().map(|(.., path)| path.to_string()).collect(),
    }
}

/// `<file id>_<write token>_<instant>.hfile`.
pub(crate) fn hfile_instant(name: &str) -> Option<InstantTime> {
    name.strip_suffix(".hfile")?.rsplit_once('_')?.1.parse().ok()
}

/// `.<file id>_<instant>.log.<version>_<write token>`.
pub(crate) fn log_instant(name: &str) -> Option<(InstantTime, u32)> {
    let (_file_id, rest) = name.strip_prefix('.')?.split_once('_')?;
    let (instant, rest) = rest.split_once(".log.")?;
    let (version, _write_token) = rest.split_once('_')?;
    Some((instant.parse().ok()?, version.parse().ok()?))
}

/// Instants whose log blocks count. Rolled-back instants need no mention: their files are gone, and a file of theirs
/// that were still listed has no completed instant.
fn valid_instants(data: &Timeline, own: &Timeline) -> HashSet<String> {
    let completed = data.instants().iter().filter(|instant| !instant.is_pending());
    let mut valid: HashSet<String> = completed.map(|instant| instant.requested.to_string()).collect();
    for instant in own.instants().iter().filter(|instant| !instant.is_pending()) {
        let pending = data.find(&instant.requested).is_some_and(|found| found.is_pending());
        if !pending || instant.requested.as_str().starts_with(INIT_PREFIX) {
            valid.insert(instant.requested.to_string());
        }
    }
    valid
}

fn valid_blocks<'a>(logs: &[(&'a str, Bytes)], valid: &HashSet<String>) -> Result<Vec<(&'a str, LogBlock)>> {
    let mut kept: Vec<(&str, LogBlock)> = Vec::new();
    for (path, bytes) in logs {
        for block in read_blocks(path, bytes)? {
            match block.kind {
                BlockKind::Command => {
                    let target = block.target_instant().map(str::to_string);
                    kept.retain(|(_, earlier)| earlier.instant() != target.as_deref());
                }
                _ if !block.instant().is_some_and(|instant| valid.contains(instant)) => {}
                BlockKind::HFile => kept.push((path, block)),
                // Java begins the log of a fresh group with deletes of nothing.
                BlockKind::Delete if block.deletes_nothing() => {}
                BlockKind::Delete | BlockKind::Other(_) => {
                    return Err(Error::unsupported(format!("`{path}` holds a block of kind {:?}", block.kind)));
                }
            }
        }
    }
    Ok(kept)
}

fn merge_hfile(listing: &mut Listing, file: &str, bytes: &Bytes, schema: Option<&str>) -> Result<()> {
    let mut reader = HFileReader::new(bytes.to_vec()).map_err(|e| Error::corrupt(file, e))?;
    let records = reader.collect_records().map_err(|e| Error::corrupt(file, e))?;
    let own_schema = reader.avro_schema_json().map_err(|e| Error::corrupt(file, e))?;
    let Some(schema) = own_schema.or(schema) else {
        return Err(Error::corrupt(file, "no schema in its file info"));
    };
    let schema = parse_avro_schema(schema).map_err(|e| Error::corrupt(file, e))?;
    for record in &records {
        let decoded = decode_files_partition_record_with_schema(record, &schema);
        merge_record(listing, file, record, decoded.map_err(|e| Error::corrupt(file, e))?)?;
    }
    Ok(())
}

fn merge_record(listing: &mut Listing, file: &str, raw: &HFileRecord, record: FilesPartitionRecord) -> Result<()> {
    match record.record_type {
        MetadataRecordType::AllPartitions | MetadataRecordType::Files => {}
        other => {
            let key = raw.key_as_str().unwrap_or_default();
            return Err(Error::corrupt(file, format!("record `{key}` of type {other:?} among file listings")));
        }
    }
    let files = listing.entry(record.key).or_default();
    for (name, info) in record.files {
        if info.is_deleted {
            files.remove(&name);
        } else {
            let bytes = u64::try_from(info.size).unwrap_or(0);
            // Appends are told by growing sizes, so the largest is the newest.
            files.entry(name).and_modify(|known| *known = bytes.max(*known)).or_insert(bytes);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: &str = "20250101000001000";
    const T3: &str = "20250101000003000";
    const T5: &str = "20250101000005000";
    const T7: &str = "20250101000007000";

    fn timeline(names: &[String]) -> Timeline {
        Timeline::from_names("d", 2, names.iter().map(String::as_str))
    }

    #[test]
    fn names_of_the_metadata_table_say_their_instant() {
        assert_eq!(hfile_instant(&format!("files-0000-0_0-1-2_{T1}.hfile")), T1.parse().ok());
        let log = format!(".files-0000-0_{T1}.log.2_0-1-2");
        assert_eq!(log_instant(&log), Some((T1.parse().unwrap(), 2)));
        assert_eq!(log_instant(".hoodie_partition_metadata"), None);
    }

    #[test]
    fn logs_that_a_compaction_took_in_are_left_out() {
        let own = timeline(&[
            format!("{T1}_20250101000002000.deltacommit"),
            format!("{T3}_20250101000004000.commit"),
            format!("{T5}_20250101000006000.deltacommit"),
            format!("{T7}.deltacommit.inflight"),
        ]);
        let paths = [
            format!("f/.files-0000-0_{T1}.log.1_0-1-2"),
            format!("f/files-0000-0_0-1-2_{T3}.hfile"),
            format!("f/.files-0000-0_{T5}.log.1_0-1-2"),
            format!("f/.files-0000-0_{T7}.log.1_0-1-2"),
        ];
        let slice = newest_slice(paths.iter().map(String::as_str), &own);
        assert_eq!(slice, Slice { base: Some(paths[1].clone()), logs: vec![paths[2].clone()] });
    }

    #[test]
    fn a_block_of_a_pending_data_instant_does_not_count() {
        let data = timeline(&[format!("{T1}_{T3}.commit"), format!("{T5}.commit.requested")]);
        let own = timeline(&[
            format!("{T1}_{T3}.deltacommit"),
            format!("{T5}_{T7}.deltacommit"),
            format!("00000000000000000_{T1}.deltacommit"),
            format!("{T7}_20250101000008000.deltacommit"),
        ]);
        let valid = valid_instants(&data, &own);
        assert!(valid.contains(T1) && valid.contains("00000000000000000"));
        assert!(!valid.contains(T5), "pending on the data timeline");
        assert!(valid.contains(T7), "archived there, or of the metadata table's own making");
    }

    #[test]
    fn newer_records_add_and_take_away() {
        use hudi_core::metadata::table_record::HoodieMetadataFileInfo;
        let raw = HFileRecord::from_str_key("p", Vec::new());
        let record = |files: &[(&str, i64, bool)]| FilesPartitionRecord {
            key: "p".to_string(),
            record_type: MetadataRecordType::Files,
            files: files
                .iter()
                .map(|(name, size, gone)| {
                    (name.to_string(), HoodieMetadataFileInfo::new(name.to_string(), *size, *gone))
                })
                .collect(),
        };
        let mut listing = Listing::new();
        merge_record(&mut listing, "f", &raw, record(&[("a", 1, false), ("b", 2, false)])).unwrap();
        merge_record(&mut listing, "f", &raw, record(&[("a", 0, true), ("c", 3, false), ("x", 0, true)])).unwrap();
        let files: Vec<_> = listing["p"].iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        assert_eq!(files, [("b", 2), ("c", 3)]);
    }
}
