// SPDX-License-Identifier: Apache-2.0
//! Names of operators: our own, and those that LakeSoul, Hudi and Paimon have for the same.

use super::{DELIMITER, Operator, unknown};

/// What a name stands for, by the arguments that it takes.
#[derive(Clone, Copy)]
enum Shape {
    Plain(fn() -> Operator),
    /// Any number of texts that are null.
    NullStrings(fn(Vec<String>) -> Operator),
    /// A delimiter, or none for a comma.
    Delimiter(fn(String) -> Operator),
}

use Shape::{Delimiter, NullStrings, Plain};

/// Our own names.
const NAMES: [(&str, Shape); 20] = [
    ("last", Plain(|| Operator::Last)),
    ("last_non_null", NullStrings(|null_strings| Operator::LastNonNull { null_strings })),
    ("first", Plain(|| Operator::First)),
    ("first_non_null", NullStrings(|null_strings| Operator::FirstNonNull { null_strings })),
    ("keep", Plain(|| Operator::Keep)),
    ("sum", Plain(|| Operator::Sum)),
    ("sum_last", Plain(|| Operator::SumLast)),
    ("count", Plain(|| Operator::Count)),
    ("min", Plain(|| Operator::Min)),
    ("max", Plain(|| Operator::Max)),
    ("product", Plain(|| Operator::Product)),
    ("bool_and", Plain(|| Operator::BoolAnd)),
    ("bool_or", Plain(|| Operator::BoolOr)),
    ("concat", Delimiter(|delimiter| Operator::Concat { delimiter })),
    ("concat_last", Delimiter(|delimiter| Operator::ConcatLast { delimiter })),
    ("concat_distinct", Delimiter(|delimiter| Operator::ConcatDistinct { delimiter })),
    ("collect", Plain(|| Operator::Collect)),
    ("collect_set", Plain(|| Operator::CollectSet)),
    ("map_merge", Plain(|| Operator::MapMerge)),
    ("struct_merge", Plain(|| Operator::StructMerge)),
];

/// Names of LakeSoul (`MergeOperator` classes and native names), of Hudi (payload classes, merge modes and the partial
/// update mode) and of Paimon (merge engines and aggregate functions) for what an operator of ours does.
const ALIASES: [(&str, Shape); 33] = [
    ("UseLast", Plain(|| Operator::Last)),
    ("DefaultMergeOp", Plain(|| Operator::Last)),
    ("UseLastNotNull", NullStrings(|null_strings| Operator::LastNonNull { null_strings })),
    // Its JVM class drops the text `null` too.
    ("MergeNonNullOp", Plain(|| Operator::LastNonNull { null_strings: vec!["null".to_string()] })),
    ("SumAll", Plain(|| Operator::Sum)),
    ("MergeOpInt", Plain(|| Operator::Sum)),
    ("MergeOpLong", Plain(|| Operator::Sum)),
    ("SumLast", Plain(|| Operator::SumLast)),
    ("JoinedAll", Delimiter(|delimiter| Operator::Concat { delimiter })),
    ("JoinedAllByComma", Plain(|| Operator::Concat { delimiter: ",".to_string() })),
    ("JoinedAllBySemicolon", Plain(|| Operator::Concat { delimiter: ";".to_string() })),
    ("JoinedLast", Delimiter(|delimiter| Operator::ConcatLast { delimiter })),
    ("JoinedLastByComma", Plain(|| Operator::ConcatLast { delimiter: ",".to_string() })),
    ("JoinedLastBySemicolon", Plain(|| Operator::ConcatLast { delimiter: ";".to_string() })),
    ("MergeOpString", Plain(|| Operator::ConcatLast { delimiter: ",".to_string() })),
    ("OverwriteWithLatest", Plain(|| Operator::Last)),
    ("OverwriteWithLatestAvroPayload", Plain(|| Operator::Last)),
    ("DefaultHoodieRecordPayload", Plain(|| Operator::Last)),
    ("EventTimeAvroPayload", Plain(|| Operator::Last)),
    ("COMMIT_TIME_ORDERING", Plain(|| Operator::Last)),
    ("EVENT_TIME_ORDERING", Plain(|| Operator::Last)),
    ("OverwriteNonDefaultsWithLatestAvroPayload", NullStrings(|null_strings| Operator::LastNonNull { null_strings })),
    ("PartialUpdateAvroPayload", NullStrings(|null_strings| Operator::LastNonNull { null_strings })),
    ("IGNORE_DEFAULTS", NullStrings(|null_strings| Operator::LastNonNull { null_strings })),
    ("deduplicate", Plain(|| Operator::Last)),
    ("partial-update", NullStrings(|null_strings| Operator::LastNonNull { null_strings })),
    ("last_value", Plain(|| Operator::Last)),
    ("last_non_null_value", NullStrings(|null_strings| Operator::LastNonNull { null_strings })),
    ("first_value", Plain(|| Operator::First)),
    ("first_non_null_value", NullStrings(|null_strings| Operator::FirstNonNull { null_strings })),
    ("listagg", Delimiter(|delimiter| Operator::Concat { delimiter })),
    ("merge_map", Plain(|| Operator::MapMerge)),
    ("immutable", Plain(|| Operator::Keep)),
];

/// Operators that the field has and this version does not.
const NOT_YET: [&str; 8] = [
    "last_by",
    "last_non_null_by",
    "first_by",
    "group_last",
    "json_merge_patch",
    "nested_update",
    "nested_partial_update",
    "merge_map_with_keytime",
];

/// Our own names, in the order of their description.
pub(super) fn canonical() -> Vec<&'static str> {
    NAMES.iter().map(|(name, _)| *name).collect()
}

/// A name as it is looked up: case, `_` and `-` do not matter.
fn folded(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// The operator of a name with its arguments.
pub(super) fn operator(name: &str, arguments: Vec<String>) -> Result<Operator, String> {
    let wanted = folded(name);
    let found = NAMES.iter().chain(&ALIASES).find(|(known, _)| folded(known) == wanted);
    let Some((_, shape)) = found else {
        if NOT_YET.iter().any(|known| folded(known) == wanted) {
            return Err(format!("merge operator `{name}` is not there yet; there are: {}", canonical().join(", ")));
        }
        let known: Vec<&'static str> = NAMES.iter().chain(&ALIASES).map(|(known, _)| *known).collect();
        return Err(unknown(name, &known));
    };
    match *shape {
        Plain(make) if arguments.is_empty() => Ok(make()),
        Plain(_) => Err(format!("merge operator `{name}` takes no argument")),
        NullStrings(make) => Ok(make(arguments)),
        Delimiter(make) => {
            let mut arguments = arguments.into_iter();
            let delimiter = arguments.next().unwrap_or_else(|| DELIMITER.to_string());
            if arguments.next().is_some() {
                return Err(format!("merge operator `{name}` takes one delimiter"));
            }
            match make(delimiter) {
                Operator::ConcatDistinct { delimiter } if delimiter.is_empty() => {
                    Err(format!("merge operator `{name}` needs a delimiter that is not empty: it splits by it"))
                }
                operator => Ok(operator),
            }
        }
    }
}
