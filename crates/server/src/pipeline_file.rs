// SPDX-License-Identifier: Apache-2.0
//! Pipeline files: TOML in, a checked [`Pipeline`] with its SQL out.

use std::path::{Component, Path, PathBuf};

use tributary_types::nearest;
use tributary_types::pipeline::{Pipeline, SourceKind};

/// Why a pipeline file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is no pipeline.
    #[error("`{}` is not a pipeline: {detail}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what, with the nearest known key for an unknown one.
        detail: String,
    },
    /// The pipeline contradicts itself or lacks something.
    #[error("pipeline `{}` has {}:\n  - {}", path.display(), counted(problems.len()), problems.join("\n  - "))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Every problem.
        problems: Vec<String>,
    },
}

/// `1 problem`, `2 problems`.
pub(crate) fn counted(problems: usize) -> String {
    format!("{problems} problem{}", if problems == 1 { "" } else { "s" })
}

/// Loads a pipeline: parses it, reads its SQL files, makes relative paths relative to the file, and checks it.
pub fn load(path: &Path) -> Result<Pipeline, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut pipeline = parse(path, &text)?;
    let problems = pipeline.validate();
    if !problems.is_empty() {
        return Err(Error::Invalid { path: path.to_path_buf(), problems });
    }
    for source in pipeline.sources.iter_mut().filter(|source| source.kind != SourceKind::Kafka) {
        source.path = resolve(directory, &source.path);
    }
    let read = |file: &str| {
        let path = directory.join(file);
        std::fs::read_to_string(&path).map_err(|source| Error::Read { path, source })
    };
    for source in &mut pipeline.sources {
        if let Some(file) = source.files.schema_file.take() {
            source.files.schema = Some(read(&file)?);
        }
        if let Some(file) = source.kafka.schema_file.take() {
            source.kafka.schema = Some(read(&file)?);
        }
    }
    pipeline.target.path = resolve(directory, &pipeline.target.path);
    if let Some(table) = &mut pipeline.error_table {
        table.path = resolve(directory, &table.path);
    }
    for transform in &mut pipeline.transforms {
        if let Some(file) = transform.sql_file.take() {
            transform.sql = Some(read(&file)?);
        }
    }
    Ok(pipeline)
}

fn parse(path: &Path, text: &str) -> Result<Pipeline, Error> {
    toml::from_str(text).map_err(|error| {
        let position = error.span().map(|span| position(text, span.start)).unwrap_or_default();
        let detail = format!("{position}{}", with_suggestion(error.message()));
        Error::Syntax { path: path.to_path_buf(), detail }
    })
}

/// `line L, column C: ` of a byte of the text.
fn position(text: &str, at: usize) -> String {
    let before = &text[..at.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: ")
}

/// Adds the nearest known key to the message about an unknown one.
pub(crate) fn with_suggestion(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    if !message.starts_with("unknown ") || quoted.len() < 2 {
        return message.to_string();
    }
    match nearest(quoted[0], quoted[1..].iter().copied()) {
        Some(known) => format!("{message}; did you mean `{known}`?"),
        None => message.to_string(),
    }
}

pub(crate) fn resolve(directory: &Path, path: &str) -> String {
    let has_scheme = path.split_once("://").is_some_and(|(scheme, _)| !scheme.contains('/'));
    if has_scheme || Path::new(path).is_absolute() || directory.as_os_str().is_empty() {
        return without_parents(path);
    }
    without_parents(&directory.join(path).display().to_string())
}

/// A local path without `..`, which tables refuse: each takes the directory before it away. A URL stays as it is.
pub(crate) fn without_parents(path: &str) -> String {
    if path.contains("://") || !Path::new(path).components().any(|part| part == Component::ParentDir) {
        return path.to_string();
    }
    // One that begins with `..` means something only from where the process is.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    let mut plain = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_goes_up_is_the_one_it_means() {
        assert_eq!(resolve(Path::new("/a/../b/jobs"), "../lake/t"), "/b/lake/t");
        assert_eq!(resolve(Path::new("jobs"), "lake/t"), "jobs/lake/t");
        assert_eq!(without_parents("s3://lake/a/../b"), "s3://lake/a/../b");
        let here = std::env::current_dir().unwrap();
        assert_eq!(without_parents("../t"), here.parent().unwrap().join("t").display().to_string());
        assert_eq!(without_parents("/../t"), "/t");
    }

    const GOOD: &str = r#"
name = "p"
[[source]]
name = "orders"
path = "tables/orders"
start = "snapshot"
[[source]]
name = "users"
path = "s3://lake/users"
read = "snapshot"
[[transform]]
sql_file = "merge.sql"
[target]
path = "/out"
table_name = "t"
record_key = ["id"]
"#;

    fn load_text(text: &str) -> Result<Pipeline, Error> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("merge.sql"), "SELECT 1").unwrap();
        let file = directory.path().join("p.toml");
        std::fs::write(&file, text).unwrap();
        load(&file)
    }

    #[test]
    fn relative_paths_are_relative_to_the_file_and_sql_files_are_read() {
        let pipeline = load_text(GOOD).unwrap();
        assert!(pipeline.sources[0].path.ends_with("/tables/orders"));
        assert!(Path::new(&pipeline.sources[0].path).is_absolute());
        assert_eq!(pipeline.sources[1].path, "s3://lake/users");
        assert_eq!(pipeline.target.path, "/out");
        assert_eq!(pipeline.transforms[0].sql.as_deref(), Some("SELECT 1"));
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_place_and_the_nearest_known_one() {
        let refused = load_text(&GOOD.replace("record_key =", "record_keys =")).unwrap_err().to_string();
        assert!(refused.contains("line 16"), "{refused}");
        assert!(refused.contains("did you mean `record_key`?"), "{refused}");
        let refused = load_text(&GOOD.replace("\"snapshot\"\n[[tr", "\"snapshto\"\n[[tr")).unwrap_err().to_string();
        assert!(refused.contains("did you mean `snapshot`?"), "{refused}");
    }

    #[test]
    fn every_problem_of_a_pipeline_is_reported_at_once() {
        let refused = load_text(&GOOD.replace("[\"id\"]", "[]")).unwrap_err().to_string();
        assert!(refused.contains("has 1 problem:"), "{refused}");
        let text = GOOD.replace("[[transform]]\nsql_file = \"merge.sql\"", "").replace("[\"id\"]", "[]");
        let refused = load_text(&text).unwrap_err().to_string();
        assert!(
            refused.contains("has 2 problems:") && refused.contains("no SQL") && refused.contains("record_key"),
            "{refused}"
        );
    }

    #[test]
    fn a_schema_file_of_a_directory_is_read_and_its_options_are_checked() {
        let files = "kind = \"csv\"\nfiles = {schema_file = \"merge.sql\"}\ncsv = {header = true}\nstart = ";
        let pipeline = load_text(&GOOD.replacen("start = ", files, 1)).unwrap();
        assert_eq!(pipeline.sources[0].files.schema.as_deref(), Some("SELECT 1"));
        assert_eq!(pipeline.sources[0].csv.header, Some(true));
        let refused = load_text(&GOOD.replacen("start = ", "csv = {header = true}\nstart = ", 1)).unwrap_err();
        assert!(refused.to_string().contains("`csv` means nothing to `kind = \"hudi\"`"), "{refused}");
        let misspelt = GOOD.replacen("start = ", "kind = \"csv\"\ncsv = {heeder = true}\nstart = ", 1);
        let refused = load_text(&misspelt).unwrap_err().to_string();
        assert!(refused.contains("did you mean `header`?"), "{refused}");
    }

    #[test]
    fn a_topic_has_no_path_and_its_schema_file_is_read() {
        let kafka = "kind = \"kafka\"\nbrokers = \"localhost:9092\"\ntopic = \"orders\"\nformat = \"json\"\n\
                     kafka = {schema_file = \"merge.sql\"}\n";
        let text = GOOD.replacen("path = \"tables/orders\"\n", kafka, 1).replacen(
            "snapshot",
            "timestamp:2025-01-31T10:00:00Z",
            1,
        );
        let pipeline = load_text(&text).unwrap();
        assert_eq!(pipeline.sources[0].kafka.schema.as_deref(), Some("SELECT 1"));
        assert_eq!(pipeline.sources[0].url(), "kafka://localhost:9092/orders");
        assert_eq!(pipeline.validate(), Vec::<String>::new(), "a server checks it again");
        let refused = load_text(&text.replace("\"json\"", "\"avro\"")).unwrap_err().to_string();
        assert!(refused.contains("`format = \"avro\"` is not there yet"), "{refused}");
    }

    #[test]
    fn the_path_of_an_error_table_is_relative_to_the_file_as_well() {
        let text = format!("{GOOD}on_null_key = \"error_table\"\n[error_table]\npath = \"refused\"\n");
        let table = load_text(&text).unwrap().error_table.unwrap();
        assert!(Path::new(&table.path).is_absolute() && table.path.ends_with("/refused"), "{}", table.path);
        let misspelt =
            load_text(&text.replace("\npath = \"refused\"", "\npath = \"refused\"\nmax_row = 1")).unwrap_err();
        assert!(misspelt.to_string().contains("did you mean `max_rows`?"), "{misspelt}");
    }

    #[test]
    fn a_missing_sql_file_is_named() {
        let refused = load_text(&GOOD.replace("merge.sql", "nope.sql")).unwrap_err().to_string();
        assert!(refused.contains("nope.sql"), "{refused}");
    }
}
