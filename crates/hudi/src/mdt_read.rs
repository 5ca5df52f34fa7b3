// SPDX-License-Identifier: Apache-2.0
//! The `files` partition of the metadata table: every partition's files with their sizes, without a listing.
//!
//! The partition is one file group of an HFile and the log files after it. A record is keyed by partition path and
//! holds file names with size or deletion mark; newer records add to and take from older ones. A log block counts
//! only when its instant is valid: it completed on the data timeline, or it is a completed deltacommit of the
//! metadata table whose instant is not pending on the data timeline.
//!
//! Up to table version 7 (layout 1) a log file carries the instant of the base file that it follows; later ones
//! carry their own.

use std::collections::{BTreeMap, HashSet};

use apache_avro::Schema;
use bytes::Bytes;
use hudi_core::hfile::{HFileReader, HFileRecord};
use hudi_core::metadata::table_record::{
    FilesPartitionRecord, MetadataRecordType, decode_files_partition_record_with_schema, parse_avro_schema,
};

use crate::commit::CommitMetadata;
use crate::error::{Error, Result};
use crate::listing::DataFiles;
use crate::log_blocks::{BlockKind, LogBlock, Torn, read_blocks};
use crate::mdt_timeline::{MdtTimeline, is_instant};
use crate::storage::{Entry, Storage};
use crate::timeline::Timeline;

const FILES_DIRECTORY: &str = ".hoodie/metadata/files";
/// Instants of the metadata table's own making start so: they have no counterpart on the data timeline.
const INIT_PREFIX: &str = "00000000000000";
/// How often a slice that a compaction replaces while it is read is looked up again.
const ATTEMPTS: usize = 3;

/// The record that lists the partitions.
pub(crate) const ALL_PARTITIONS: &str = FilesPartitionRecord::ALL_PARTITIONS_KEY;

/// File names and sizes by partition path; under [`ALL_PARTITIONS`] the partitions themselves.
pub(crate) type Listing = BTreeMap<String, BTreeMap<String, u64>>;

/// Every data file that the metadata table lists; `data` is the table's own timeline.
pub async fn read_file_listing(storage: &Storage, data: &Timeline) -> Result<DataFiles> {
    let mut attempt = 1;
    let listing = loop {
        match read_merged(storage, data).await {
            // Compacted and cleaned since it was listed.
            Err(Error::Gone { .. }) if attempt < ATTEMPTS => attempt += 1,
            other => break other?.0,
        }
    };
    let mut found = DataFiles::default();
    for (partition, files) in listing.into_iter().filter(|(key, _)| key != ALL_PARTITIONS) {
        for (name, bytes) in files {
            let path = if partition.is_empty() { name } else { format!("{partition}/{name}") };
            found.add(&path, bytes)?;
        }
    }
    Ok(found)
}

/// The newest slice and what its records say together.
pub(crate) async fn read_merged(storage: &Storage, data: &Timeline) -> Result<(Listing, Slice)> {
    let (files, _) = storage.list_level(FILES_DIRECTORY).await?;
    let own = own_timeline(storage, data).await?;
    let slice = newest_slice(data.layout(), files.iter().map(|file| file.path.as_str()), &own);
    if slice.base.is_none() && slice.logs.is_empty() {
        return Err(Error::unsupported(format!("`{FILES_DIRECTORY}` holds no file slice")));
    }
    let mut listing = Listing::new();
    for part in read_slice(storage, data, &own, &slice, "files/").await? {
        merge_hfile(&mut listing, &part.path, &part.hfile, part.schema.as_deref())?;
    }
    Ok((listing, slice))
}

/// The metadata table's own timeline as one listing shows it.
pub(crate) async fn own_timeline(storage: &Storage, data: &Timeline) -> Result<MdtTimeline> {
    let (instants, _) = storage.list_level(MdtTimeline::directory(data.layout())).await?;
    Ok(MdtTimeline::from_names(data.layout(), instants.iter().map(Entry::name)))
}

/// Records of a slice: the base file, or a block of a log.
pub(crate) struct Part {
    /// The file it comes from.
    pub(crate) path: String,
    /// The records, as an HFile.
    pub(crate) hfile: Bytes,
    /// Their schema where the HFile does not tell it itself.
    pub(crate) schema: Option<String>,
}

/// What counts of a slice's files, in the order in which it was written. `prefix` is how the paths of the slice's file group
/// begin in the metadata table's commits.
pub(crate) async fn read_slice(
    storage: &Storage,
    data: &Timeline,
    own: &MdtTimeline,
    slice: &Slice,
    prefix: &str,
) -> Result<Vec<Part>> {
    let paths: Vec<String> = slice.base.iter().chain(&slice.logs).cloned().collect();
    let mut contents = Vec::with_capacity(paths.len());
    for (path, bytes) in paths.iter().zip(storage.read_all(&paths).await?) {
        contents.push((path.as_str(), bytes.ok_or_else(|| Error::Gone { file: path.clone() })?));
    }
    let (base, logs) = contents.split_at(usize::from(slice.base.is_some()));
    let logs = parse_logs(data.layout(), logs)?;
    if data.layout() != 1 {
        check_complete(storage, slice, own, prefix).await?;
    }
    let valid = valid_instants(data, own);
    let base = base.iter().map(|(path, bytes)| Part { path: (*path).to_string(), hfile: bytes.clone(), schema: None });
    let blocks = valid_blocks(logs, &valid)?.into_iter().map(|(path, block)| Part {
        path: path.to_string(),
        schema: block.schema().map(str::to_string),
        hfile: block.content,
    });
    Ok(base.chain(blocks).collect())
}

/// The newest slice of each file group among the files of one partition, by file id.
pub(crate) fn newest_slices<'a>(
    layout: u32,
    paths: impl Iterator<Item = &'a str>,
    own: &MdtTimeline,
) -> BTreeMap<String, Slice> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for path in paths {
        if let Some(group) = file_id(name_of(path)) {
            groups.entry(group).or_default().push(path);
        }
    }
    groups
        .into_iter()
        .map(|(group, paths)| (group.to_string(), newest_slice(layout, paths.into_iter(), own)))
        .filter(|(_, slice)| slice.base.is_some() || !slice.logs.is_empty())
        .collect()
}

/// The file group that a base or log file's name names.
pub(crate) fn file_id(name: &str) -> Option<&str> {
    let is_file = hfile_instant(name).is_some() || log_instant(name).is_some();
    name.strip_prefix('.').unwrap_or(name).split_once('_').map(|(group, _)| group).filter(|_| is_file)
}

/// The blocks of log files, each with the path of its file. A file that must be whole and is not makes the table one that
/// is not used: what it would list is an older state.
fn parse_logs<'a>(layout: u32, logs: &[(&'a str, Bytes)]) -> Result<Vec<(&'a str, LogBlock)>> {
    let torn = Torn::of_layout(layout);
    let mut blocks = Vec::new();
    for (path, bytes) in logs {
        let found = read_blocks(path, bytes, torn).map_err(|error| match torn {
            Torn::Refused => Error::unsupported(error.to_string()),
            Torn::PassedOver => error,
        })?;
        blocks.extend(found.into_iter().map(|block| (*path, block)));
    }
    Ok(blocks)
}

/// Refuses a slice that lacks a log file that its timeline says was written: what it would list is an older state of the
/// table, and rows of the newer one would silently be missing.
async fn check_complete(storage: &Storage, slice: &Slice, own: &MdtTimeline, prefix: &str) -> Result<()> {
    let base = slice.base.as_deref().and_then(|path| hfile_instant(name_of(path))).unwrap_or_default();
    let logged: HashSet<&str> =
        slice.logs.iter().filter_map(|path| log_instant(name_of(path))).map(|(instant, _)| instant).collect();
    let directory = MdtTimeline::directory(2);
    let unlogged: Vec<String> = own
        .completed()
        .filter(|instant| !logged.contains(instant))
        .filter_map(|instant| own.completion(instant).map(|completed| (instant, completed)))
        .filter(|(_, completed)| *completed >= base)
        .map(|(instant, completed)| format!("{directory}/{instant}_{completed}.deltacommit"))
        .collect();
    // Deltas without a file of this partition are few: most writes change files.
    for (file, bytes) in unlogged.iter().zip(storage.read_all(&unlogged).await?) {
        let Some(bytes) = bytes else { continue };
        let metadata = CommitMetadata::decode(file, &bytes)?;
        let log = metadata.stats.iter().find(|stat| stat.path.starts_with(prefix) && stat.path.contains(".log."));
        if let Some(log) = log {
            return Err(Error::unsupported(format!("`.hoodie/metadata/{}` is gone, which `{file}` names", log.path)));
        }
    }
    Ok(())
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The newest file slice: paths of the HFile and of the log files after it, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) base: Option<String>,
    pub(crate) logs: Vec<String>,
}

fn newest_slice<'a>(layout: u32, paths: impl Iterator<Item = &'a str>, own: &MdtTimeline) -> Slice {
    let mut base: Option<(&str, &str)> = None;
    let mut logs = Vec::new();
    for path in paths {
        let name = name_of(path);
        if let Some(instant) = hfile_instant(name) {
            if own.is_committed(instant) && base.is_none_or(|(newest, _)| newest < instant) {
                base = Some((instant, path));
            }
        } else if let Some((instant, version)) = log_instant(name) {
            // An archived deltacommit was compacted away long ago; its own time stands for its completion.
            let completed = own.completion(instant).unwrap_or(instant);
            if layout == 1 {
                // The instant of a base file, or of a compaction that did not end yet.
                logs.push((instant, instant, version, path));
            } else if own.is_committed(instant) {
                logs.push((completed, instant, version, path));
            }
        }
    }
    // A log belongs to the newest base whose instant is not after the log's completion (layout 2), or is the log's
    // own; a compaction that did not end leaves the logs after it to the base before it.
    if let Some((base_instant, _)) = &base {
        logs.retain(|(from, ..)| from >= base_instant);
    }
    logs.sort_unstable();
    Slice {
        base: base.map(|(_, path)| path.to_string()),
        logs: logs.into_iter().map(|(.., path)| path.to_string()).collect(),
    }
}

/// `<file id>_<write token>_<instant>.hfile`.
pub(crate) fn hfile_instant(name: &str) -> Option<&str> {
    name.strip_suffix(".hfile")?.rsplit_once('_').map(|(_, instant)| instant).filter(|instant| is_instant(instant))
}

/// `.<file id>_<instant>.log.<version>_<write token>`. Beside such a file Hadoop's local file system keeps its checksums,
/// under the same name between a dot and `.crc`.
pub(crate) fn log_instant(name: &str) -> Option<(&str, u32)> {
    let (_file_id, rest) = name.strip_prefix('.')?.split_once('_')?;
    let (instant, rest) = rest.split_once(".log.")?;
    let (version, write_token) = rest.split_once('_')?;
    (is_instant(instant) && !write_token.contains('.')).then_some((instant, version.parse().ok()?))
}

/// Instants whose log blocks count. Rolled-back instants need no mention: their files are gone, or a command block
/// takes them back.
fn valid_instants(data: &Timeline, own: &MdtTimeline) -> HashSet<String> {
    let completed = data.instants().iter().filter(|instant| !instant.is_pending());
    let mut valid: HashSet<String> = completed.map(|instant| instant.requested.to_string()).collect();
    let pending = data.instants().iter().filter(|instant| instant.is_pending());
    let pending: HashSet<&str> = pending.map(|instant| instant.requested.as_str()).collect();
    let own = own.completed().filter(|instant| !pending.contains(instant) || instant.starts_with(INIT_PREFIX));
    valid.extend(own.map(str::to_string));
    valid
}

fn valid_blocks<'a>(blocks: Vec<(&'a str, LogBlock)>, valid: &HashSet<String>) -> Result<Vec<(&'a str, LogBlock)>> {
    let mut kept: Vec<(&str, LogBlock)> = Vec::new();
    for (path, block) in blocks {
        match block.kind {
            BlockKind::Command => {
                let target = block.target_instant().map(str::to_string);
                kept.retain(|(_, earlier)| earlier.instant() != target.as_deref());
            }
            _ if !block.instant().is_some_and(|instant| valid.contains(instant)) => {}
            BlockKind::HFile => kept.push((path, block)),
            // Java begins the log of a fresh group with deletes of nothing.
            BlockKind::Delete if block.deletes_nothing() => {}
            BlockKind::Delete | BlockKind::Avro | BlockKind::Parquet | BlockKind::Other(_) => {
                return Err(Error::unsupported(format!("`{path}` holds a block of kind {:?}", block.kind)));
            }
        }
    }
    Ok(kept)
}

/// The records of an HFile and the schema that they were written in; `schema` is that of its block, where the HFile does
/// not tell it itself.
pub(crate) fn hfile_records(file: &str, bytes: &[u8], schema: Option<&str>) -> Result<(Vec<HFileRecord>, Schema)> {
    let mut reader = HFileReader::new(bytes.to_vec()).map_err(|e| Error::corrupt(file, e))?;
    let records = reader.collect_records().map_err(|e| Error::corrupt(file, e))?;
    let own_schema = reader.avro_schema_json().map_err(|e| Error::corrupt(file, e))?;
    let Some(schema) = own_schema.or(schema) else {
        return Err(Error::corrupt(file, "no schema in its file info"));
    };
    let schema = parse_avro_schema(schema).map_err(|e| Error::corrupt(file, e))?;
    Ok((records, schema))
}

fn merge_hfile(listing: &mut Listing, file: &str, bytes: &Bytes, schema: Option<&str>) -> Result<()> {
    let (records, schema) = hfile_records(file, bytes, schema)?;
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

    fn data(names: &[String]) -> Timeline {
        Timeline::from_names("d", 2, names.iter().map(String::as_str))
    }

    fn own(layout: u32, names: &[String]) -> MdtTimeline {
        MdtTimeline::from_names(layout, names.iter().map(String::as_str))
    }

    #[test]
    fn names_of_the_metadata_table_say_their_instant() {
        assert_eq!(hfile_instant(&format!("files-0000-0_0-1-2_{T1}.hfile")), Some(T1));
        assert_eq!(hfile_instant(&format!("files-0000-0_0-1-2_{T1}001.hfile")), Some(format!("{T1}001").as_str()));
        assert_eq!(log_instant(&format!(".files-0000-0_{T1}.log.2_0-1-2")), Some((T1, 2)));
        assert_eq!(log_instant(".hoodie_partition_metadata"), None);
        assert_eq!(log_instant(&format!("..files-0000-0_{T1}.log.2_0-1-2.crc")), None);
    }

    #[test]
    fn logs_that_a_compaction_took_in_are_left_out() {
        let own = own(
            2,
            &[
                format!("{T1}_20250101000002000.deltacommit"),
                format!("{T3}_20250101000004000.commit"),
                format!("{T5}_20250101000006000.deltacommit"),
                format!("{T7}.deltacommit.inflight"),
            ],
        );
        let paths = [
            format!("f/.files-0000-0_{T1}.log.1_0-1-2"),
            format!("f/files-0000-0_0-1-2_{T3}.hfile"),
            format!("f/.files-0000-0_{T5}.log.1_0-1-2"),
            format!("f/.files-0000-0_{T7}.log.1_0-1-2"),
        ];
        let slice = newest_slice(2, paths.iter().map(String::as_str), &own);
        assert_eq!(slice, Slice { base: Some(paths[1].clone()), logs: vec![paths[2].clone()] });
    }

    #[test]
    fn on_layout_one_a_log_follows_the_base_file_that_it_names() {
        let own = own(
            1,
            &[
                format!("{T1}.deltacommit"),
                format!("{T1}001.commit"),
                format!("{T3}.deltacommit"),
                format!("{T3}001.compaction.requested"),
            ],
        );
        let paths = [
            "f/.files-0000-0_00000000000000010.log.1_0-0-0".to_string(),
            "f/files-0000-0_0-1-2_00000000000000010.hfile".to_string(),
            format!("f/files-0000-0_0-1-2_{T1}001.hfile"),
            format!("f/files-0000-0_0-1-2_{T3}001.hfile"),
            format!("f/.files-0000-0_{T1}001.log.10_0-1-2"),
            format!("f/.files-0000-0_{T1}001.log.9_0-1-2"),
            format!("f/.files-0000-0_{T3}001.log.1_0-1-2"),
        ];
        let slice = newest_slice(1, paths.iter().map(String::as_str), &own);
        let logs = [5, 4, 6].map(|at: usize| paths[at].clone());
        assert_eq!(slice, Slice { base: Some(paths[2].clone()), logs: logs.to_vec() });
    }

    #[test]
    fn a_block_of_a_pending_data_instant_does_not_count() {
        let data = data(&[format!("{T1}_{T3}.commit"), format!("{T5}.commit.requested")]);
        let own = own(
            2,
            &[
                format!("{T1}_{T3}.deltacommit"),
                format!("{T5}_{T7}.deltacommit"),
                format!("00000000000000000_{T1}.deltacommit"),
                format!("{T7}_20250101000008000.deltacommit"),
            ],
        );
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
