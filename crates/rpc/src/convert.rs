// SPDX-License-Identifier: Apache-2.0
//! Conversions between messages and the types of the roles. Everything that comes from outside is parsed here, once;
//! what cannot be is [`Malformed`] and names the field.

mod batch;
mod checkpoint;
mod common;
mod cursors;
mod enums;
mod merge;
mod pipeline;
mod predicate;
mod schema;
mod stored;
mod timeline;
mod writer;

pub use batch::{batch_from_proto, batch_to_proto, plan_from_proto, plan_to_proto};
pub use checkpoint::{
    commit_found_from_proto, commit_found_to_proto, known_cursors_from_proto, known_cursors_to_proto,
    legacy_from_proto, legacy_to_proto, record_from_proto, record_to_proto, resolved_from_proto, resolved_to_proto,
};
pub use common::{
    cursor_from_proto, cursor_to_proto, report_from_proto, report_to_proto, window_from_proto, window_to_proto,
};
pub use cursors::{
    cursors_from_proto, cursors_to_proto, override_statuses_from_proto, override_statuses_to_proto,
    overrides_from_proto, overrides_to_proto,
};
pub use enums::WireEnum;
pub use merge::{
    bound_from_proto, bound_to_proto, check_from_proto, check_to_proto, checked_from_proto, checked_to_proto,
    merge_from_proto, merge_to_proto, merged_from_proto, merged_to_proto, query_from_proto, query_names_from_proto,
    query_names_to_proto, query_to_proto, reads_from_proto, reads_to_proto,
};
pub use pipeline::{pipeline_from_proto, pipeline_to_proto};
pub use predicate::{predicate_from_proto, predicate_to_proto};
pub use schema::{schema_from_bytes, schema_to_bytes};
pub use stored::{stored_from_proto, stored_to_proto};
pub use timeline::{
    instant_from_proto, instant_to_proto, read_from_proto, read_to_proto, relation_from_proto, relation_to_proto,
    source_plan_from_proto, source_plan_to_proto, table_from_proto, table_to_proto, window_request_from_proto,
    window_request_to_proto,
};
pub use writer::{stage_from_proto, stage_to_proto, staged_from_proto, staged_to_proto};

pub(crate) use common::{
    count, instants, json_from_proto, json_to_proto, millis_from_proto, millis_to_proto, optional, required, text,
};
pub(crate) use timeline::source_name;

/// A message that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {what}")]
pub struct Malformed {
    /// The field, from the outermost message.
    pub field: String,
    /// What is wrong.
    pub what: String,
}

impl Malformed {
    /// Something is wrong with `field`.
    pub fn new(field: impl Into<String>, what: impl ToString) -> Self {
        Malformed { field: field.into(), what: what.to_string() }
    }

    /// The same, seen from the message around.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        Malformed { field: format!("{outer}.{}", self.field), what: self.what }
    }
}

#[cfg(test)]
pub(crate) mod tests;
