// SPDX-License-Identifier: Apache-2.0
//! Conversions between messages and the types of the roles. Everything that comes from outside is parsed here, once;
//! what cannot be is [`Malformed`] and names the field.

mod batch;
mod common;
mod enums;
mod pipeline;

pub use batch::{batch_from_proto, batch_to_proto, plan_from_proto, plan_to_proto};
pub use common::{
    cursor_from_proto, cursor_to_proto, report_from_proto, report_to_proto, window_from_proto, window_to_proto,
};
pub use enums::WireEnum;
pub use pipeline::{pipeline_from_proto, pipeline_to_proto};

pub(crate) use common::{count, optional, required, text};

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
