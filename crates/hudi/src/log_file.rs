// SPDX-License-Identifier: Apache-2.0
//! Log files: what their names say.
//!
//! `.<file id>_<instant>.log.<version>_<write token>`. Since table version 8 the instant is that of the write which
//! made the file; before, it is the instant of the slice's base file and the version counts the slice's log files
//! (`FSUtils.LOG_FILE_PATTERN`).

use tributary_types::InstantTime;

use crate::config::TableConfig;
use crate::slices::GroupKey;

/// The first table version whose log files bear the instant of their own write.
const OWN_INSTANT_SINCE: u32 = 8;

/// What the instant in a log file's name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogNames {
    /// The instant of the slice's base file: blocks of several writes may follow each other in one file.
    BaseInstant,
    /// The instant of the write that made the file.
    OwnInstant,
}

impl LogNames {
    /// How a table names its log files.
    pub fn of(config: &TableConfig) -> Self {
        if config.version < OWN_INSTANT_SINCE { LogNames::BaseInstant } else { LogNames::OwnInstant }
    }
}

/// A log file as its name and a listing describe it. Files of one slice are merged in their order here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogFile {
    /// Partition path, empty for a table without partitions.
    pub partition: String,
    /// File group.
    pub file_id: String,
    /// The instant in its name; see [`LogNames`].
    pub instant: InstantTime,
    /// Number of the file among those of its instant.
    pub version: u32,
    /// Which task wrote it.
    pub token: String,
    /// Path relative to the table.
    pub path: String,
    /// Size in bytes, 0 where unknown.
    pub bytes: u64,
}

impl LogFile {
    /// Interprets the path of a file, relative to the table; `None` for a file that is no log with rows.
    pub fn from_path(path: &str, bytes: u64) -> Option<Self> {
        let (partition, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (stem, number) = name.strip_prefix('.')?.split_once(".log.")?;
        let (file_id, instant) = stem.rsplit_once('_')?;
        let (version, token) = number.split_once('_').unwrap_or((number, ""));
        // `.cdc`: images before and after, for change data capture, of rows that are in other logs as well. `.crc`: the
        // checksums that Hadoop's local file system keeps beside each file, whose name has one more dot in front.
        if token.contains('.') || file_id.starts_with('.') {
            return None;
        }
        Some(LogFile {
            partition: partition.to_string(),
            file_id: file_id.to_string(),
            instant: instant.parse().ok()?,
            version: version.parse().ok()?,
            token: token.to_string(),
            path: path.to_string(),
            bytes,
        })
    }

    /// The file's group.
    pub fn group(&self) -> GroupKey {
        (self.partition.clone(), self.file_id.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: &str = "20250101000001000";

    #[test]
    fn a_log_file_says_its_partition_group_instant_and_number() {
        let path = format!("a=1/b=2/.9f0e-1_{T1}.log.12_3-40-7");
        let file = LogFile::from_path(&path, 5).unwrap();
        assert_eq!((file.partition.as_str(), file.file_id.as_str()), ("a=1/b=2", "9f0e-1"));
        assert_eq!((file.instant.as_str(), file.version, file.token.as_str()), (T1, 12, "3-40-7"));
        assert_eq!(LogFile::from_path(&format!(".f_{T1}.log.1"), 5).unwrap().token, "");
    }

    #[test]
    fn other_files_are_no_log_files() {
        for name in [
            ".hoodie_partition_metadata".to_string(),
            format!("f_0-0-0_{T1}.parquet"),
            format!(".f_{T1}.log.1_0-0-0.cdc"),
            format!("..f_{T1}.log.1_0-0-0.crc"),
            ".f_x.log.1_0-0-0".to_string(),
        ] {
            assert_eq!(LogFile::from_path(&name, 1), None, "{name}");
        }
    }

    #[test]
    fn log_files_are_ordered_by_instant_and_number_not_by_text() {
        let names = [format!(".f_{T1}.log.10_0-0-0"), format!(".f_{T1}.log.9_0-0-0")];
        let mut files: Vec<LogFile> = names.iter().map(|name| LogFile::from_path(name, 1).unwrap()).collect();
        files.sort();
        assert_eq!(files.iter().map(|file| file.version).collect::<Vec<_>>(), [9, 10]);
    }
}
