// SPDX-License-Identifier: Apache-2.0
//! Merge operators: how the value of a column that comes in is combined with the one that is stored.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{OnChangedFile, Operation, Pipeline, ReadMode, SourceKind, TableType};
use crate::nearest::nearest;

mod names;

/// What an operator that needs a delimiter takes when none is given.
const DELIMITER: &str = ",";
/// Columns of this prefix are Hudi's own.
const META_PREFIX: &str = "_hoodie_";

/// The operators of a target: the table `target.merge` of a pipeline file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MergeOperators {
    /// Operator of the columns that are not named.
    pub default: Operator,
    /// Operators of columns, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, Operator>,
    /// Accept that rows which may come more than once, such as those of a Hudi table, whose rows are images and not
    /// events, are folded by an operator that counts each of them.
    #[serde(skip_serializing_if = "super::is_default")]
    pub acknowledge_images: bool,
}

/// How two values of one column become one. A null is skipped unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Operator {
    /// The later one, null included.
    #[default]
    Last,
    /// The later one that is not null.
    LastNonNull {
        /// Texts that are null.
        null_strings: Vec<String>,
    },
    /// The earlier one, null included.
    First,
    /// The earlier one that is not null.
    FirstNonNull {
        /// Texts that are null.
        null_strings: Vec<String>,
    },
    /// The one that is stored, also against a row that comes late and is older; null gives way.
    Keep,
    /// Their sum.
    Sum,
    /// The last one of a batch is added to the stored one.
    SumLast,
    /// How many there were.
    Count,
    /// The lesser one.
    Min,
    /// The greater one.
    Max,
    /// Their product.
    Product,
    /// Whether both are true.
    BoolAnd,
    /// Whether any is true.
    BoolOr,
    /// Both texts with a delimiter between them.
    Concat {
        /// The delimiter.
        delimiter: String,
    },
    /// The last text of a batch is appended to the stored one.
    ConcatLast {
        /// The delimiter.
        delimiter: String,
    },
    /// As concat, each text between two delimiters only where it is first.
    ConcatDistinct {
        /// The delimiter.
        delimiter: String,
    },
    /// Both lists one behind the other.
    Collect,
    /// As collect, each element only where it is first.
    CollectSet,
    /// The entries of both maps; of one key, the later.
    MapMerge,
    /// Field by field the later one that is not null.
    StructMerge,
}

impl MergeOperators {
    /// The first operator that counts a row each time it comes, and its key below `target.merge`.
    pub fn counting(&self) -> Option<(String, &Operator)> {
        let default = ("default".to_string(), &self.default);
        let named = self.columns.iter().map(|(column, operator)| (format!("columns.{column}"), operator));
        std::iter::once(default).chain(named).find(|(_, operator)| !operator.is_idempotent())
    }

    /// The operator of a column. Those in `fixed` (key, partition and ordering columns) and Hudi's own have none: they
    /// are those of the newest row.
    pub fn of(&self, column: &str, fixed: [&[String]; 3]) -> &Operator {
        static LAST: Operator = Operator::Last;
        if fixed.iter().any(|columns| columns.iter().any(|name| name == column)) || column.starts_with(META_PREFIX) {
            return &LAST;
        }
        self.columns.get(column).unwrap_or(&self.default)
    }
}

impl Operator {
    /// Its name without arguments.
    pub fn name(&self) -> &'static str {
        match self {
            Operator::Last => "last",
            Operator::LastNonNull { .. } => "last_non_null",
            Operator::First => "first",
            Operator::FirstNonNull { .. } => "first_non_null",
            Operator::Keep => "keep",
            Operator::Sum => "sum",
            Operator::SumLast => "sum_last",
            Operator::Count => "count",
            Operator::Min => "min",
            Operator::Max => "max",
            Operator::Product => "product",
            Operator::BoolAnd => "bool_and",
            Operator::BoolOr => "bool_or",
            Operator::Concat { .. } => "concat",
            Operator::ConcatLast { .. } => "concat_last",
            Operator::ConcatDistinct { .. } => "concat_distinct",
            Operator::Collect => "collect",
            Operator::CollectSet => "collect_set",
            Operator::MapMerge => "map_merge",
            Operator::StructMerge => "struct_merge",
        }
    }

    /// Whether a row that comes twice leaves what it left the first time.
    pub fn is_idempotent(&self) -> bool {
        !matches!(
            self,
            Operator::Sum
                | Operator::SumLast
                | Operator::Count
                | Operator::Product
                | Operator::Concat { .. }
                | Operator::ConcatLast { .. }
                | Operator::Collect
        )
    }

    fn arguments(&self) -> Vec<&str> {
        match self {
            Operator::LastNonNull { null_strings } | Operator::FirstNonNull { null_strings } => {
                null_strings.iter().map(String::as_str).collect()
            }
            Operator::Concat { delimiter }
            | Operator::ConcatLast { delimiter }
            | Operator::ConcatDistinct { delimiter } => {
                vec![delimiter]
            }
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let arguments: Vec<String> =
            self.arguments().iter().map(|text| format!("'{}'", text.replace('\'', "''"))).collect();
        if arguments.is_empty() { Ok(()) } else { write!(f, "({})", arguments.join(", ")) }
    }
}

impl From<Operator> for String {
    fn from(operator: Operator) -> Self {
        operator.to_string()
    }
}

impl TryFrom<String> for Operator {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for Operator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let (name, inside) = match trimmed.split_once('(') {
            None => (trimmed, None),
            Some((name, rest)) => {
                let inside = rest.strip_suffix(')').ok_or_else(|| format!("merge operator `{text}` lacks its `)`"))?;
                (name.trim(), Some(inside))
            }
        };
        let arguments = match inside {
            None => Vec::new(),
            Some(inside) => quoted(inside).ok_or_else(|| {
                format!(
                    "merge operator `{text}`: between the brackets stand texts in single quotes, as in `concat(', ')`"
                )
            })?,
        };
        names::operator(name, arguments)
    }
}

/// Texts in single quotes with commas between them; a quote in a text is doubled.
fn quoted(list: &str) -> Option<Vec<String>> {
    let mut texts = Vec::new();
    let mut rest = list.trim();
    if rest.is_empty() {
        return Some(texts);
    }
    loop {
        rest = rest.strip_prefix('\'')?;
        let mut text = String::new();
        loop {
            let end = rest.find('\'')?;
            text.push_str(&rest[..end]);
            rest = &rest[end + 1..];
            match rest.strip_prefix('\'') {
                Some(more) => {
                    text.push('\'');
                    rest = more;
                }
                None => break,
            }
        }
        texts.push(text);
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some(texts);
        }
        rest = rest.strip_prefix(',')?.trim_start();
    }
}

/// What is wrong with the operators of a pipeline, each as a sentence that names the key.
pub(super) fn problems(pipeline: &Pipeline) -> Vec<String> {
    let target = &pipeline.target;
    let Some(merge) = &target.merge else { return Vec::new() };
    let mut problems = Vec::new();
    if target.table_type == TableType::MergeOnRead {
        problems.push(
            "`target.merge` is there for copy-on-write tables only: which row of a log file wins is decided by its readers"
                .to_string(),
        );
    }
    if !matches!(target.operation, Operation::Upsert | Operation::Delete | Operation::DeletePartition) {
        problems.push(format!(
            "`target.merge` does not go with `target.operation = \"{}\"`, which combines no row with a stored one: use \
             \"upsert\"",
            target.operation.as_str().to_lowercase()
        ));
    }
    let fixed =
        [("record_key", &target.record_key), ("partition_by", &target.partition_by), ("ordering", &target.ordering)];
    for column in merge.columns.keys() {
        if let Some((key, _)) = fixed.iter().find(|(_, columns)| columns.contains(column)) {
            problems.push(format!(
                "`target.merge.columns` names column `{column}`, which `target.{key}` names too: it has no operator, the \
                 newest row gives its value"
            ));
        }
        if column.starts_with(META_PREFIX) {
            problems.push(format!("`target.merge.columns` names `{column}`: columns of that prefix are Hudi's own"));
        }
    }
    if !merge.acknowledge_images {
        problems.extend(repeated_rows(pipeline, merge));
    }
    problems
}

/// Operators that count each row, over sources that may bring a row twice.
fn repeated_rows(pipeline: &Pipeline, merge: &MergeOperators) -> Vec<String> {
    let Some((key, operator)) = merge.counting() else { return Vec::new() };
    let why = pipeline.sources.iter().filter(|source| source.read == ReadMode::Incremental).filter_map(|source| {
        let why = if source.kind == SourceKind::Hudi {
            "is a Hudi table: its rows are images of records, each of which comes again whenever it changed"
        } else if source.files.on_changed == OnChangedFile::Reread {
            "reads a file that changed once more from its beginning"
        } else {
            return None;
        };
        Some(format!(
            "source `{}` {why}, so `target.merge.{key} = \"{operator}\"` would take the same value more than once: set \
             `target.merge.acknowledge_images = true` if that is meant",
            source.name
        ))
    });
    why.collect()
}

/// Why `name` is no operator, with the nearest one.
fn unknown(name: &str, known: &[&'static str]) -> String {
    let near = nearest(name, known.iter().copied()).map(|near| format!("; did you mean `{near}`?"));
    let hint = near.unwrap_or_else(|| ".".to_string());
    format!("`{name}` is no merge operator{hint} There are: {}", names::canonical().join(", "))
}

#[cfg(test)]
mod tests;
