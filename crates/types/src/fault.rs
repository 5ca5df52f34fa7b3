// SPDX-License-Identifier: Apache-2.0
//! What an error means to the one who called: a code and a retry advice.

use serde::{Deserialize, Serialize};

/// What kind of failure it is. Each maps to one gRPC code and one row of the error catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// The request or the pipeline is wrong; it fails the same way until it is changed.
    Invalid,
    /// What was named does not exist.
    NotFound,
    /// What was to be made exists, and is another.
    Exists,
    /// Somebody else changed the target or a source in between.
    Conflict,
    /// This process no longer owns what it was working on.
    Fenced,
    /// A store or a role cannot be reached now.
    Unavailable,
    /// A time limit ran out.
    Timeout,
    /// A memory, disk, row or queue limit was reached.
    Overloaded,
    /// A file or a record is not what its format says.
    Corrupt,
    /// Named and understood, but not supported here.
    Unsupported,
    /// The batch was cancelled by its caller.
    Cancelled,
    /// A bug of ours.
    Internal,
    /// Nothing that the caller sent says who it is.
    Unauthenticated,
    /// Who the caller is does not allow it.
    Denied,
}

/// What the caller should do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Retry {
    /// Nothing helps but changing the request.
    Never,
    /// Send the same request again.
    Again,
    /// Read the state anew, build the request from it, send that.
    Rebase,
    /// The outcome is unknown: look whether it happened before doing anything else.
    ReadBack,
}

/// An error with all its causes on one line. Transparent wrappers repeat their source's text, which is told once.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(current) = cause {
        let text = current.to_string();
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        cause = current.source();
    }
    message
}

/// Implemented by every error of every role, so that a code and an advice survive each boundary.
pub trait Fault: std::error::Error {
    /// What kind of failure this is.
    fn code(&self) -> Code;
    /// What the caller should do.
    fn retry(&self) -> Retry {
        match self.code() {
            Code::Unavailable | Code::Timeout | Code::Overloaded => Retry::Again,
            Code::Conflict | Code::Fenced => Retry::Rebase,
            _ => Retry::Never,
        }
    }
    /// A short stable name, `SOURCE_RESTORED`, that documentation and clients can refer to.
    fn reason(&self) -> &'static str;
}
