// SPDX-License-Identifier: Apache-2.0
//! The functions that a merge script may call.
//!
//! The list in `functions.txt` was reviewed name by name, so a function that a newer engine adds is not callable
//! until somebody looked at it. Where the engine and its Spark-compatible set both have a function, Spark's is taken.
//! Left out are functions that tell about the host or the session, and those that answer differently each time they
//! run: a batch that is retried must deliver the same rows. `now()` and its like are one time for the whole batch.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::execution::SessionStateDefaults;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, WindowUDF};

use crate::placeholders::nearest;
use crate::sized::bounded;

/// What the planner itself makes of a call, without a function behind it.
const PLANNED: [&str; 2] = ["unnest", "unnest_outer"];

const REVIEWED: &str = include_str!("functions.txt");

/// Functions that people might look for, and why they are left out.
const REFUSED: [(&[&str], &str); 5] = [
    (
        &["random", "rand", "randn", "uuid", "shuffle", "monotonically_increasing_id", "spark_partition_id"],
        "it answers differently each time it runs, so a retried batch would deliver other rows",
    ),
    (
        &[
            "version",
            "current_database",
            "current_catalog",
            "current_schema",
            "current_user",
            "session_user",
            "user",
            "input_file_name",
            "input_file_block_start",
            "input_file_block_length",
            "file_row_index",
        ],
        "it tells about the host or the session, not about the rows",
    ),
    (
        &["reflect", "java_method", "try_reflect", "sleep", "pg_sleep", "raise_error", "assert_true"],
        "it runs foreign code or has effects beside its answer",
    ),
    (&["generate_series", "range", "sequence"], "it makes lists of any length, which no memory limit counts"),
    (
        &["read_csv", "read_json", "read_parquet", "read_files", "read_avro", "from_csv_file"],
        "it reads files; only the relations of the batch can be read",
    ),
];

/// The callable functions, by every name they have.
#[derive(Debug, Clone)]
pub(crate) struct Functions {
    scalar: Vec<Arc<ScalarUDF>>,
    higher_order: Vec<Arc<HigherOrderUDF>>,
    aggregate: Vec<Arc<AggregateUDF>>,
    window: Vec<Arc<WindowUDF>>,
    names: Arc<HashSet<String>>,
}

impl Functions {
    /// All reviewed functions.
    pub(crate) fn reviewed() -> Self {
        let allowed: HashSet<&str> = reviewed_names().collect();
        let is_allowed = |name: &str| allowed.contains(name);
        let functions = Functions::registered();
        let scalar: Vec<_> = functions.scalar.into_iter().filter(|f| is_allowed(f.name())).collect();
        let higher_order: Vec<_> = functions.higher_order.into_iter().filter(|f| is_allowed(f.name())).collect();
        let aggregate: Vec<_> = functions.aggregate.into_iter().filter(|f| is_allowed(f.name())).collect();
        let window: Vec<_> = functions.window.into_iter().filter(|f| is_allowed(f.name())).collect();
        let mut names: HashSet<String> = PLANNED.iter().map(ToString::to_string).collect();
        names.extend(scalar.iter().flat_map(|f| with_aliases(f.name(), f.aliases())));
        names.extend(higher_order.iter().flat_map(|f| with_aliases(f.name(), f.aliases())));
        names.extend(aggregate.iter().flat_map(|f| with_aliases(f.name(), f.aliases())));
        names.extend(window.iter().flat_map(|f| with_aliases(f.name(), f.aliases())));
        Functions { scalar, higher_order, aggregate, window, names: Arc::new(names) }
    }

    /// Everything that the engine and its Spark-compatible set bring.
    fn registered() -> Self {
        let mut scalar = SessionStateDefaults::default_scalar_functions();
        scalar.extend(datafusion_spark::all_default_scalar_functions());
        let mut aggregate = SessionStateDefaults::default_aggregate_functions();
        aggregate.extend(datafusion_spark::all_default_aggregate_functions());
        let mut window = SessionStateDefaults::default_window_functions();
        window.extend(datafusion_spark::all_default_window_functions());
        Functions {
            scalar,
            higher_order: SessionStateDefaults::default_higher_order_functions(),
            aggregate,
            window,
            names: Arc::default(),
        }
    }

    /// Hands the functions to an engine. Later ones replace earlier ones of the same name. None returns more than
    /// `result_bytes` for one record batch because a number said so.
    pub(crate) fn register(&self, builder: SessionStateBuilder, result_bytes: usize) -> SessionStateBuilder {
        let scalar = self.scalar.iter().map(|function| bounded(Arc::clone(function), result_bytes));
        builder
            .with_scalar_functions(scalar.collect())
            .with_higher_order_functions(self.higher_order.clone())
            .with_aggregate_functions(self.aggregate.clone())
            .with_window_functions(self.window.clone())
    }

    /// Why `name` cannot be called, or `None` where it can.
    pub(crate) fn refusal(&self, name: &str) -> Option<String> {
        let folded = name.to_lowercase();
        if self.names.contains(&folded) {
            return None;
        }
        if let Some((_, why)) = REFUSED.iter().find(|(names, _)| names.contains(&folded.as_str())) {
            return Some(format!("function `{folded}` is not allowed: {why}"));
        }
        let mut known: Vec<&str> = self.names.iter().map(String::as_str).collect();
        known.sort_unstable();
        let hint = nearest(&folded, known).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        Some(format!("there is no function `{folded}`{hint}"))
    }
}

fn reviewed_names() -> impl Iterator<Item = &'static str> {
    REVIEWED.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn with_aliases(name: &str, aliases: &[String]) -> Vec<String> {
    let mut names = vec![name.to_string()];
    names.extend(aliases.iter().cloned());
    names
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::Volatility;

    use super::*;

    fn registered_names() -> HashSet<String> {
        let functions = Functions::registered();
        let scalar = functions.scalar.iter().map(|f| f.name().to_string());
        let higher_order = functions.higher_order.iter().map(|f| f.name().to_string());
        let aggregate = functions.aggregate.iter().map(|f| f.name().to_string());
        let window = functions.window.iter().map(|f| f.name().to_string());
        scalar.chain(higher_order).chain(aggregate).chain(window).collect()
    }

    #[test]
    fn every_function_of_the_engine_was_reviewed() {
        let reviewed: HashSet<&str> = reviewed_names().collect();
        let refused: HashSet<&str> = REFUSED.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        let registered = registered_names();
        let mut unseen: Vec<&str> = registered
            .iter()
            .map(String::as_str)
            .filter(|name| !reviewed.contains(name) && !refused.contains(name))
            .collect();
        unseen.sort_unstable();
        assert_eq!(unseen, Vec::<&str>::new(), "add each to functions.txt or to the refused ones");
        let mut gone: Vec<&str> = reviewed.iter().copied().filter(|name| !registered.contains(*name)).collect();
        gone.sort_unstable();
        assert_eq!(gone, Vec::<&str>::new(), "the engine no longer has these");
    }

    #[test]
    fn no_volatile_function_is_callable() {
        let functions = Functions::reviewed();
        let volatile = |volatility: Volatility| volatility == Volatility::Volatile;
        let found: Vec<&str> = functions
            .scalar
            .iter()
            .filter(|f| volatile(f.signature().volatility))
            .map(|f| f.name())
            .chain(functions.aggregate.iter().filter(|f| volatile(f.signature().volatility)).map(|f| f.name()))
            .collect();
        assert_eq!(found, Vec::<&str>::new());
    }

    #[test]
    fn a_refusal_says_why_and_a_typo_gets_a_suggestion() {
        let functions = Functions::reviewed();
        assert_eq!(functions.refusal("COALESCE"), None);
        assert_eq!(functions.refusal("sum"), None);
        assert_eq!(functions.refusal("row_number"), None);
        assert!(functions.refusal("random").unwrap().contains("retried batch"));
        assert!(functions.refusal("version").unwrap().contains("host"));
        assert!(functions.refusal("java_method").unwrap().contains("foreign code"));
        assert!(functions.refusal("coalesc").unwrap().contains("did you mean `coalesce`?"));
    }
}
