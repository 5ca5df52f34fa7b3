// SPDX-License-Identifier: Apache-2.0
//! The text of a properties file, as Hudi Streamer reads it (`DFSPropertiesConfiguration`), which is not how Java reads
//! properties: a backslash is a backslash, no line goes on in the next one, and a line may include another file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Error, Props};

/// Reads a file and those that it includes, each line as it comes: the last value of a key holds.
pub(super) fn read(path: &Path) -> Result<Props, Error> {
    let mut found = BTreeMap::new();
    let mut problems = Vec::new();
    read_into(path, &mut Vec::new(), &mut found, &mut problems)?;
    let mut props = Props::new(found);
    problems.into_iter().for_each(|problem| props.problem(problem));
    Ok(props)
}

fn read_into(
    path: &Path,
    within: &mut Vec<PathBuf>,
    found: &mut BTreeMap<String, String>,
    problems: &mut Vec<String>,
) -> Result<(), Error> {
    // One file has many paths.
    let own = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if within.contains(&own) {
        problems.push(format!("`{}` includes itself", path.display()));
        return Ok(());
    }
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
    within.push(own);
    for line in text.lines() {
        match entry(line) {
            Some((key, value)) if key == "include" => {
                let directory = path.parent().unwrap_or(Path::new(""));
                read_into(&directory.join(value), within, found, problems)?;
            }
            Some((key, value)) => {
                found.insert(key, value);
            }
            None => {}
        }
    }
    within.pop();
    Ok(())
}

/// The key and the value of a line. White space of any length is one space; around both there is none.
fn entry(line: &str) -> Option<(String, String)> {
    if line.trim_start().starts_with(['#', '!']) {
        return None;
    }
    let squeezed = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (key, value) = squeezed.split_once('=').or_else(|| squeezed.split_once(' '))?;
    Some((key.trim().to_string(), value.trim().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_is_itself_and_white_space_is_one_space() {
        let read = |line: &str| entry(line).unwrap();
        let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
        assert_eq!(read("hoodie.streamer.csv.escape = \\"), pair("hoodie.streamer.csv.escape", "\\"));
        assert_eq!(read("hoodie.streamer.csv.sep=\\t"), pair("hoodie.streamer.csv.sep", "\\t"));
        assert_eq!(read("sql=SELECT  1\t FROM x WHERE a = 1"), pair("sql", "SELECT 1 FROM x WHERE a = 1"));
        assert_eq!(read("a b c"), pair("a", "b c"));
        assert_eq!(read("a="), pair("a", ""));
        for none in ["", "  ", "# a=b", "  ! a=b", "alone"] {
            assert_eq!(entry(none), None, "{none:?}");
        }
    }

    #[test]
    fn an_included_file_counts_where_it_is_included_and_a_loop_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        put("job.properties", "a=1\nb=1\ninclude=sub/base.properties\nc=3\n");
        std::fs::create_dir(directory.path().join("sub")).unwrap();
        put("sub/base.properties", "b=2\nc=2\n");
        let props = read(&directory.path().join("job.properties")).unwrap();
        let found: Vec<(&str, &str)> = props.left.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(found, [("a", "1"), ("b", "2"), ("c", "3")]);
        put("sub/base.properties", "include=../sub/base.properties\n");
        let looped = read(&directory.path().join("sub/base.properties"));
        let problems = looped.unwrap().problems;
        assert!(problems.len() == 1 && problems[0].contains("includes itself"), "{problems:?}");
        put("job.properties", "include=nothing.properties\n");
        let refused = read(&directory.path().join("job.properties")).unwrap_err().to_string();
        assert!(refused.contains("nothing.properties"), "{refused}");
    }
}
