// SPDX-License-Identifier: Apache-2.0
//! What somebody should know of a directory in which no file is read: it looks the same as one without news.

use tributary_hudi::Entry;
use tributary_types::pipeline::FileOptions;

/// Why no file of a directory that was never read is chosen, as a sentence; `None` for a directory of a local disk that
/// is simply empty: that it is there is known.
pub(crate) fn no_file(url: &str, options: &FileOptions, entries: &[Entry], is_directory: bool) -> Option<String> {
    if entries.is_empty() {
        return (!is_directory).then(|| {
            format!(
                "there is no file under `{url}`; an object store does not tell an empty directory from one that is not \
                 there: check the path"
            )
        });
    }
    let there = match entries.len() {
        1 => "one file is there".to_string(),
        more => format!("{more} files are there"),
    };
    let example = &entries[0].path;
    Some(match (&options.glob, &options.marker) {
        (Some(glob), _) => format!("{there}, `{example}` for one, and none fits `files.glob = \"{glob}\"`"),
        (None, Some(marker)) => {
            format!("{there}, `{example}` for one, and none lies beside a file `{marker}`, as `files.marker` asks")
        }
        (None, None) => format!(
            "{there}, `{example}` for one, and none is read: names that begin with `.` or `_`, or end as those of files that \
             are still written, are left out"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> Entry {
        Entry { path: path.to_string(), bytes: 1, modified_millis: 1, e_tag: None }
    }

    #[test]
    fn a_glob_that_fits_nothing_is_told_with_a_file_that_is_there() {
        let glob = FileOptions { glob: Some("*.tsv".to_string()), ..FileOptions::default() };
        let said = no_file("/d", &glob, &[entry("a.csv"), entry("b.csv")], true).unwrap();
        assert_eq!(said, "2 files are there, `a.csv` for one, and none fits `files.glob = \"*.tsv\"`");
    }

    #[test]
    fn a_prefix_without_a_file_is_told_and_an_empty_directory_of_a_disk_is_not() {
        let said = no_file("s3://lake/d", &FileOptions::default(), &[], false).unwrap();
        assert!(said.contains("no file under `s3://lake/d`") && said.contains("check the path"), "{said}");
        assert_eq!(no_file("/d", &FileOptions::default(), &[], true), None);
    }

    #[test]
    fn files_that_only_a_marker_or_their_names_leave_out_are_told() {
        let marker = FileOptions { marker: Some("_SUCCESS".to_string()), ..FileOptions::default() };
        let said = no_file("/d", &marker, &[entry("a.csv")], true).unwrap();
        assert!(said.starts_with("one file is there") && said.contains("`_SUCCESS`"), "{said}");
        let said = no_file("/d", &FileOptions::default(), &[entry("_a.csv")], true).unwrap();
        assert!(said.contains("`_a.csv`") && said.contains("begin with `.` or `_`"), "{said}");
    }
}
