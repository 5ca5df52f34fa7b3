// SPDX-License-Identifier: Apache-2.0
//! Rows on their way between roles.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::Stream;
use tributary_types::{Code, Fault, Retry};

/// A stream of record batches that all have one schema. It ends at the first error.
pub type RowStream = Pin<Box<dyn Stream<Item = Result<RecordBatch, RowError>> + Send>>;

/// An error inside a stream of rows: what failed, classified where it happened, so that engines which only carry
/// boxed errors cannot lose the classification. Cheap to clone, since a stream's error is often reported twice.
#[derive(Debug, Clone)]
pub struct RowError {
    /// What kind of failure this is.
    pub code: Code,
    /// What the caller should do.
    pub retry: Retry,
    /// Stable name of the failure.
    pub reason: &'static str,
    source: Arc<dyn StdError + Send + Sync>,
}

impl RowError {
    /// Wraps a classified error.
    pub fn new(error: impl Fault + Send + Sync + 'static) -> Self {
        RowError { code: error.code(), retry: error.retry(), reason: error.reason(), source: Arc::new(error) }
    }

    /// Finds a row error inside an engine's error, however deep it is wrapped.
    pub fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a RowError> {
        let mut next = Some(error);
        while let Some(current) = next {
            if let Some(found) = current.downcast_ref::<RowError>() {
                return Some(found);
            }
            next = current.source();
        }
        None
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl StdError for RowError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.source()
    }
}

impl Fault for RowError {
    fn code(&self) -> Code {
        self.code
    }

    fn retry(&self) -> Retry {
        self.retry
    }

    fn reason(&self) -> &'static str {
        self.reason
    }
}

/// A source error as it is kept inside a role's error.
pub type BoxedError = Box<dyn StdError + Send + Sync>;

/// Boxes any error for the `source` field of a role's error.
pub fn boxed_error(error: impl StdError + Send + Sync + 'static) -> BoxedError {
    Box::new(error)
}
