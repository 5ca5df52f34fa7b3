// SPDX-License-Identifier: Apache-2.0
//! The steps of a merge.

use serde::{Deserialize, Serialize};

use super::Pipeline;

/// One step of the merge. The first one names sources, each later one the result before it as `<SRC>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    /// The SQL text itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql: Option<String>,
    /// A file that holds it, relative to the pipeline file. Whoever loads the pipeline reads it into `sql`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql_file: Option<String>,
    /// Makes a column of every field of a struct.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flatten: Option<Flatten>,
    /// A step written in Rust, by the name under which the program registered it. As the first step it gets the rows of
    /// every source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rust: Option<String>,
}

/// Structs become columns, at every depth: `address.city` becomes `address_city`. Arrays and maps stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flatten {
    /// What stands between the names.
    #[serde(default = "underscore")]
    pub separator: String,
}

fn underscore() -> String {
    "_".to_string()
}

impl Default for Flatten {
    fn default() -> Self {
        Flatten { separator: underscore() }
    }
}

/// What is wrong with the steps of a pipeline in themselves.
pub(super) fn problems(pipeline: &Pipeline) -> Vec<String> {
    let mut problems = Vec::new();
    let sources = pipeline.sources.len();
    if sources > 1 && pipeline.transforms.is_empty() {
        problems.push(format!(
            "{sources} sources and no SQL: add a `[[transform]]` with `sql` or `sql_file` that merges them"
        ));
    }
    for (number, transform) in pipeline.transforms.iter().enumerate() {
        let which = match pipeline.transforms.len() {
            1 => "a `[[transform]]`".to_string(),
            _ => format!("`[[transform]]` number {}", number + 1),
        };
        let Transform { sql, sql_file, flatten, rust } = transform;
        let given = [sql.is_some(), sql_file.is_some(), flatten.is_some(), rust.is_some()];
        match given.into_iter().filter(|given| *given).count() {
            0 => problems.push(format!("{which} has neither `sql` nor `sql_file` nor `flatten` nor `rust`")),
            1 => {}
            _ => {
                problems.push(format!("{which} has more than one of `sql`, `sql_file`, `flatten` and `rust`: give one"))
            }
        }
        if rust.as_ref().is_some_and(|name| name.trim().is_empty()) {
            problems.push(format!("{which}: `rust` is empty: it is the name of a step"));
        }
        if flatten.as_ref().is_some_and(|flatten| flatten.separator.is_empty()) {
            problems.push(format!("{which}: `flatten.separator` is empty: names would run into each other"));
        }
        if number == 0 && flatten.is_some() && sources > 1 {
            problems.push(format!(
                "the first `[[transform]]` flattens, and there are {sources} sources: begin with the SQL that merges them"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(sources: usize, transforms: serde_json::Value) -> String {
        let sources: Vec<_> =
            (0..sources).map(|n| serde_json::json!({"name": format!("s{n}"), "path": format!("/s{n}")})).collect();
        let target = serde_json::json!({"path": "/t", "table_name": "t", "record_key": ["id"]});
        let pipeline: Pipeline = serde_json::from_value(serde_json::json!({
            "name": "p", "source": sources, "transform": transforms, "target": target,
        }))
        .unwrap();
        pipeline.validate().join("\n")
    }

    #[test]
    fn steps_follow_one_another_and_each_is_one_thing() {
        let chain = serde_json::json!([{"sql": "SELECT 1"}, {"flatten": {}}, {"sql": "SELECT 1"}]);
        assert_eq!(problems_of(2, chain), "");
        assert_eq!(problems_of(1, serde_json::json!([{"flatten": {"separator": "__"}}])), "");
        assert!(problems_of(2, serde_json::json!([])).contains("no SQL"));
        assert!(problems_of(1, serde_json::json!([{}])).contains("a `[[transform]]` has neither"));
        let both = serde_json::json!([{"sql": "SELECT 1"}, {"sql": "SELECT 1", "flatten": {}}]);
        assert!(problems_of(1, both).contains("`[[transform]]` number 2 has more than one"));
        assert!(problems_of(2, serde_json::json!([{"flatten": {}}])).contains("begin with the SQL"));
        assert!(problems_of(1, serde_json::json!([{"flatten": {"separator": ""}}])).contains("separator"));
        assert_eq!(problems_of(2, serde_json::json!([{"rust": "pair"}, {"sql": "SELECT 1"}])), "");
        assert!(problems_of(1, serde_json::json!([{"rust": "a", "flatten": {}}])).contains("more than one"));
        assert!(problems_of(1, serde_json::json!([{"rust": " "}])).contains("name of a step"));
    }
}
