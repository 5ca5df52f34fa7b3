// SPDX-License-Identifier: Apache-2.0
//! Where rows go that are refused: `[error_table]`.

use serde::{Deserialize, Serialize};

use super::{BadRecords, FileFormat, OnNullKey, Pipeline, Source, SourceKind, same_path};

/// The table of rows that were refused. It is created when absent, and several pipelines may share one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorTable {
    /// Base path or URL of the table.
    pub path: String,
    /// Name of the table, when it is created.
    #[serde(default = "default_table_name")]
    pub table_name: String,
    /// Rows of one batch at most; with more the batch fails.
    #[serde(default = "default_max_rows")]
    pub max_rows: u64,
}

fn default_table_name() -> String {
    "errors".to_string()
}

fn default_max_rows() -> u64 {
    1000
}

impl ErrorTable {
    /// The table at `path`, with the defaults of everything else.
    pub fn at(path: impl Into<String>) -> Self {
        ErrorTable { path: path.into(), table_name: default_table_name(), max_rows: default_max_rows() }
    }
}

impl FileFormat {
    /// What is said of records that are no good; `None`: nothing.
    pub fn bad_records(&self) -> Option<BadRecords> {
        match self {
            FileFormat::Csv(options) => options.mode,
            FileFormat::Json(options) => options.mode,
            _ => None,
        }
    }
}

impl Source {
    /// Whether its bad records go to the error table.
    pub fn refuses_records(&self) -> bool {
        let format = self.file_source().map(|files| files.format);
        format.and_then(|format| format.bad_records()) == Some(BadRecords::ErrorTable)
    }
}

/// What is wrong with the error table of a pipeline, or with the lack of one.
pub(super) fn problems(pipeline: &Pipeline) -> Vec<String> {
    let mut users: Vec<String> = Vec::new();
    for source in pipeline.sources.iter().filter(|source| source.refuses_records()) {
        users.push(format!("source `{}`: `mode`", source.name));
    }
    if pipeline.target.on_null_key == OnNullKey::ErrorTable {
        users.push("`target.on_null_key`".to_string());
    }
    let Some(table) = &pipeline.error_table else {
        let problem =
            |user: String| format!("{user} is \"error_table\", and there is none: add `[error_table]` with `path`");
        return users.into_iter().map(problem).collect();
    };
    let mut problems = Vec::new();
    if users.is_empty() {
        problems.push(
            "`[error_table]` is given, and nothing goes there: set `csv.mode` or `json.mode` of a source, or \
             `target.on_null_key`, to \"error_table\""
                .to_string(),
        );
    }
    if table.path.trim().is_empty() {
        problems.push("`error_table.path` is empty".to_string());
    }
    if table.table_name.trim().is_empty() {
        problems.push("`error_table.table_name` is empty".to_string());
    }
    if table.max_rows == 0 {
        problems.push("`error_table.max_rows` is 0: no row could be refused; leave `[error_table]` out".to_string());
    }
    if same_path(&table.path, &pipeline.target.path) {
        problems.push(format!("`error_table.path` `{}` is the target: give it a directory of its own", table.path));
    }
    let is_source = |source: &Source| source.kind != SourceKind::Kafka && same_path(&source.path, &table.path);
    if pipeline.sources.iter().any(is_source) {
        problems.push(format!("`error_table.path` `{}` is also a source: a batch would read itself", table.path));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(mode: &str, on_null_key: &str, error_table: serde_json::Value) -> String {
        let pipeline: Pipeline = serde_json::from_value(serde_json::json!({
            "name": "p",
            "source": [{"name": "clicks", "kind": "csv", "path": "/clicks", "csv": {"mode": mode}}],
            "target": {"path": "/t", "table_name": "t", "record_key": ["id"], "on_null_key": on_null_key},
            "error_table": error_table,
        }))
        .unwrap();
        pipeline.validate().join("\n")
    }

    #[test]
    fn rows_go_to_an_error_table_that_is_given_and_it_is_given_for_something() {
        let table = serde_json::json!({"path": "/errors"});
        assert_eq!(problems_of("error_table", "fail", table.clone()), "");
        assert_eq!(problems_of("failfast", "error_table", table.clone()), "");
        assert!(problems_of("failfast", "drop", table).contains("nothing goes there"));
        let none = problems_of("error_table", "error_table", serde_json::Value::Null);
        assert!(none.contains("source `clicks`: `mode`") && none.contains("`target.on_null_key`"), "{none}");
    }

    #[test]
    fn it_is_a_table_of_its_own_and_takes_at_least_one_row() {
        for (path, part) in
            [("/t/", "is the target"), ("/clicks", "is also a source"), (" ", "`error_table.path` is empty")]
        {
            let found = problems_of("error_table", "fail", serde_json::json!({"path": path}));
            assert!(found.contains(part), "{found}");
        }
        let found =
            problems_of("error_table", "fail", serde_json::json!({"path": "/e", "max_rows": 0, "table_name": ""}));
        assert!(found.contains("max_rows") && found.contains("table_name"), "{found}");
    }

    #[test]
    fn only_path_is_needed() {
        let table: ErrorTable = serde_json::from_value(serde_json::json!({"path": "/e"})).unwrap();
        assert_eq!((table.clone(), table.max_rows, table.table_name.as_str()), (ErrorTable::at("/e"), 1000, "errors"));
    }
}
