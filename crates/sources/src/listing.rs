// SPDX-License-Identifier: Apache-2.0
//! Which files of a listing a source reads, and in which order.

use std::collections::HashSet;

use tributary_hudi::Entry;
use tributary_types::FilePosition;
use tributary_types::pipeline::{FileOptions, FileOrder};

use crate::fetch::Pinned;
use crate::glob::Glob;
use crate::pattern::Pattern;

/// Ends of names that programs give to files which they are still writing.
const UNFINISHED: [&str; 3] = [".tmp", "._COPYING_", ".inprogress"];

/// A file that is read, and its place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) file: Pinned,
    pub(crate) at: FilePosition,
}

/// The rules of one source.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    order: FileOrder,
    recursive: bool,
    glob: Option<Glob>,
    stamp: Option<Pattern>,
    marker: Option<String>,
}

impl Rules {
    /// Compiles the options; answers what is wrong with them.
    pub(crate) fn new(options: &FileOptions) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let glob =
            options.glob.as_deref().map(Glob::new).transpose().map_err(|e| problems.push(format!("`files.glob`: {e}")));
        let stamp = options.name_timestamp.as_deref().map(Pattern::new).transpose();
        let stamp = stamp.map_err(|e| problems.push(format!("`files.name_timestamp`: {e}")));
        match (glob, stamp) {
            (Ok(glob), Ok(stamp)) => Ok(Rules {
                order: options.order,
                recursive: options.recursive,
                glob,
                stamp,
                marker: options.marker.clone(),
            }),
            _ => Err(problems),
        }
    }

    /// What orders the files.
    pub(crate) fn order(&self) -> FileOrder {
        self.order
    }

    /// The place of a file in the order; `None` when its name holds no time where it should.
    pub(crate) fn position(&self, path: &str, modified_millis: i64) -> Option<FilePosition> {
        let millis = match (self.order, &self.stamp) {
            (FileOrder::Modified, _) => Some(modified_millis),
            (FileOrder::Name, None) => None,
            (FileOrder::Name, Some(pattern)) => {
                let name = path.rsplit('/').next().unwrap_or(path);
                let (moment, _) = pattern.read_prefix(name.as_bytes())?;
                Some(moment.micros().div_euclid(1000))
            }
        };
        Some(FilePosition { order: self.order, millis, path: path.to_string() })
    }

    /// The files that are read, in order; or one whose name holds no time where it should.
    pub(crate) fn choose(&self, entries: &[Entry]) -> Result<Vec<Listed>, String> {
        let marked: Option<HashSet<&str>> = self.marker.as_deref().map(|marker| {
            entries.iter().filter(|entry| entry.name() == marker).map(|entry| directory(&entry.path)).collect()
        });
        let mut chosen = Vec::new();
        for entry in entries {
            let marked = marked.as_ref().is_none_or(|marked| marked.contains(directory(&entry.path)));
            if !marked || self.marker.as_deref() == Some(entry.name()) || !self.wants(&entry.path) {
                continue;
            }
            let at = self.position(&entry.path, entry.modified_millis).ok_or_else(|| entry.path.clone())?;
            let file = Pinned {
                path: entry.path.clone(),
                bytes: entry.bytes,
                modified_millis: entry.modified_millis,
                e_tag: entry.e_tag.clone(),
            };
            chosen.push(Listed { file, at });
        }
        chosen.sort_by(|a, b| (a.at.millis, &a.at.path).cmp(&(b.at.millis, &b.at.path)));
        Ok(chosen)
    }

    fn wants(&self, path: &str) -> bool {
        let hidden = |part: &str| part.starts_with('.') || part.starts_with('_');
        !path.split('/').any(hidden)
            && !UNFINISHED.iter().any(|end| path.ends_with(end))
            && (self.recursive || !path.contains('/'))
            && self.glob.as_ref().is_none_or(|glob| glob.fits(path))
    }
}

fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, modified_millis: i64) -> Entry {
        Entry { path: path.to_string(), bytes: 1, modified_millis, e_tag: None }
    }

    fn chosen(options: serde_json::Value, entries: &[(&str, i64)]) -> Vec<String> {
        let options: FileOptions = serde_json::from_value(options).unwrap();
        let entries: Vec<Entry> = entries.iter().map(|(path, at)| entry(path, *at)).collect();
        let listed = Rules::new(&options).unwrap().choose(&entries).unwrap();
        listed.into_iter().map(|listed| listed.file.path).collect()
    }

    #[test]
    fn files_that_are_hidden_or_still_written_are_not_read() {
        let names = [
            ("a.csv", 1),
            ("_SUCCESS", 1),
            (".a.csv.crc", 1),
            ("b.csv.tmp", 1),
            ("c.csv._COPYING_", 1),
            ("d.inprogress", 1),
            ("_temporary/0/e.csv", 1),
            (".hoodie/f", 1),
            ("x/g.csv", 1),
            ("x/_h.csv", 1),
        ];
        assert_eq!(chosen(serde_json::json!({}), &names), ["a.csv", "x/g.csv"]);
        assert_eq!(chosen(serde_json::json!({"recursive": false}), &names), ["a.csv"]);
        assert_eq!(chosen(serde_json::json!({"glob": "x/*"}), &names), ["x/g.csv"]);
    }

    #[test]
    fn files_are_ordered_by_time_then_path_or_by_the_bytes_of_their_paths() {
        let names = [("b", 1), ("a", 2), ("c", 1), ("10", 3), ("9", 3)];
        assert_eq!(chosen(serde_json::json!({}), &names), ["b", "c", "a", "10", "9"]);
        assert_eq!(chosen(serde_json::json!({"order": "name"}), &names), ["10", "9", "a", "b", "c"]);
    }

    #[test]
    fn a_time_in_the_name_orders_numbers_that_are_not_padded() {
        let options = serde_json::json!({"order": "name", "name_timestamp": "d.M.yyyy"});
        let names = [("10.1.2025.csv", 1), ("9.1.2025.csv", 1), ("x/9.1.2024.csv", 1)];
        assert_eq!(chosen(options.clone(), &names), ["x/9.1.2024.csv", "9.1.2025.csv", "10.1.2025.csv"]);
        let options: FileOptions = serde_json::from_value(options).unwrap();
        let refused = Rules::new(&options).unwrap().choose(&[entry("latest.csv", 1)]);
        assert_eq!(refused, Err("latest.csv".to_string()), "it is not left out in silence");
    }

    #[test]
    fn directories_without_their_marker_are_not_read_yet() {
        let options = serde_json::json!({"marker": "_SUCCESS"});
        let names = [("a/1", 1), ("a/_SUCCESS", 2), ("b/1", 1), ("c", 1)];
        assert_eq!(chosen(options, &names), ["a/1"]);
        let options = serde_json::json!({"marker": "DONE"});
        assert_eq!(chosen(options, &[("a/1", 1), ("a/DONE", 2)]), ["a/1"], "the marker itself is no data");
    }
}
