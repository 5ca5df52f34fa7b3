// SPDX-License-Identifier: Apache-2.0
//! Steps of a merge that are written in Rust.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tributary_types::{Code, Fault};

use crate::RowStream;

/// A step of a merge, written in Rust: streams of rows in, one stream of rows out.
///
/// As the first step of a pipeline it gets one input for each source, in the order of the pipeline: what changed in the
/// window, or the whole table of a look-up. As a later step it gets one input, the result of the step before.
///
/// A batch that fails is run again, and a query may be run twice within one batch: the same inputs must give the same
/// rows. What a step keeps in memory is not counted against `limits.memory`; one that goes on row by row needs little.
pub trait MultiTransform: Send + Sync {
    /// Schema of the result over inputs of these names and schemas. Called when a pipeline is planned, before any row is
    /// read: inputs that the step cannot work on are refused here.
    fn schema(&self, inputs: &[InputSchema]) -> Result<SchemaRef, TransformError>;

    /// The rows of the result, in the schema announced. Rows should be pulled from the inputs as they are asked for; an
    /// error of an input is passed on. Dropping the result stops the step.
    fn apply(&self, inputs: Vec<Input>) -> Result<RowStream, TransformError>;
}

/// What a step knows of an input before there are rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSchema {
    /// Name of the source; of a later step's input `SRC`.
    pub name: String,
    /// Schema of its rows.
    pub schema: SchemaRef,
}

/// One input of a step.
pub struct Input {
    /// Name of the source; of a later step's input `SRC`.
    pub name: String,
    /// Schema of its rows.
    pub schema: SchemaRef,
    /// Its rows. Inputs may be read at the same time, or one after the other.
    pub rows: RowStream,
}

/// Why a step cannot go on. In a stream of rows it is wrapped: `RowError::new(TransformError::new("…"))`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TransformError {
    /// What is wrong, and what to do.
    pub message: String,
}

impl TransformError {
    /// An error with this text.
    pub fn new(message: impl Into<String>) -> Self {
        TransformError { message: message.into() }
    }
}

impl Fault for TransformError {
    fn code(&self) -> Code {
        Code::Invalid
    }

    fn reason(&self) -> &'static str {
        "TRANSFORM_FAILED"
    }
}

/// The steps that a program has, by name.
#[derive(Clone, Default)]
pub struct Transforms {
    by_name: BTreeMap<String, Arc<dyn MultiTransform>>,
}

impl Transforms {
    /// None.
    pub fn new() -> Self {
        Transforms::default()
    }

    /// Adds a step: pipelines name it as `rust = "name"`. A name that is taken is refused.
    pub fn register(
        mut self,
        name: impl Into<String>,
        transform: Arc<dyn MultiTransform>,
    ) -> Result<Self, TransformError> {
        let name = name.into();
        if name.trim().is_empty() || self.by_name.contains_key(&name) {
            return Err(TransformError::new(format!("two steps are registered as `{name}`, or it is no name")));
        }
        self.by_name.insert(name, transform);
        Ok(self)
    }

    /// The step of that name; an error lists what there is.
    pub fn find(&self, name: &str) -> Result<Arc<dyn MultiTransform>, TransformError> {
        self.by_name.get(name).cloned().ok_or_else(|| {
            let known: Vec<String> = self.by_name.keys().map(|known| format!("`{known}`")).collect();
            let present = match known.is_empty() {
                true => "there is none; a program of its own registers them, see the documentation of Rust steps"
                    .to_string(),
                false => format!("there are: {}", known.join(", ")),
            };
            TransformError::new(format!("no Rust step `{name}` is registered where queries run; {present}"))
        })
    }
}

impl fmt::Debug for Transforms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl MultiTransform for Nothing {
        fn schema(&self, inputs: &[InputSchema]) -> Result<SchemaRef, TransformError> {
            Ok(Arc::clone(&inputs[0].schema))
        }

        fn apply(&self, _inputs: Vec<Input>) -> Result<RowStream, TransformError> {
            Ok(Box::pin(futures::stream::empty()))
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_those_that_there_are() {
        assert!(Transforms::new().find("x").err().unwrap().message.contains("there is none"));
        let some =
            Transforms::new().register("b", Arc::new(Nothing)).unwrap().register("a", Arc::new(Nothing)).unwrap();
        assert!(some.find("a").is_ok());
        let refused = some.find("x").err().unwrap().message;
        assert!(refused.contains("`x`") && refused.contains("there are: `a`, `b`"), "{refused}");
        assert!(some.register("a", Arc::new(Nothing)).is_err());
    }
}
