// SPDX-License-Identifier: Apache-2.0
//! What an error makes of a batch, and how it is told.

use serde::{Deserialize, Serialize};
use tributary_types::{Code, Fault as _, Outcome, Retry, with_causes};

use super::Error;

/// Why a batch did not commit, as it is told to a caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind.
    pub code: Code,
    /// What to do.
    pub retry: Retry,
    /// Stable name.
    pub reason: String,
    /// The message with its causes.
    pub message: String,
}

impl Error {
    /// The reason of [`Error::WriterConflict`], by which records of earlier batches tell it.
    pub const WRITER_CONFLICT: &'static str = "WRITER_CONFLICT";

    /// How a batch that failed with this error ended.
    pub fn outcome(&self) -> Outcome {
        if self.retry() == Retry::ReadBack {
            return Outcome::Unknown;
        }
        match self.code() {
            Code::Invalid | Code::Unsupported | Code::Exists | Code::Unauthenticated | Code::Denied => {
                Outcome::Rejected
            }
            Code::Conflict | Code::Fenced => Outcome::Conflict,
            Code::Cancelled => Outcome::Cancelled,
            _ => Outcome::Failed,
        }
    }

    /// The error as it is told to a caller: the message with all its causes on one line.
    pub fn failure(&self) -> Failure {
        Failure {
            code: self.code(),
            retry: self.retry(),
            reason: self.reason().to_string(),
            message: with_causes(self),
        }
    }
}
