// SPDX-License-Identifier: Apache-2.0
//! Errors of table files as errors of this role.

use tributary_api::boxed_error;
use tributary_api::timeline::Error;
use tributary_hudi as hudi;
use tributary_types::{Code, Retry};

/// What to do about types that do not fit.
const SCHEMA_HINT: &str = "the file is older than a change that Hudi does not allow; rewrite the table, or cast the column where it is written";

/// Classifies an error about the files of the table at `url`.
pub(crate) fn fault(url: &str) -> impl Fn(hudi::Error) -> Error + '_ {
    move |error| classify(url, error)
}

/// The error about a column, in a file or a commit, that does not fit the table's schema.
pub(crate) fn schema_error(url: &str, file: String, column: String, found: String, expected: String) -> Error {
    Error::Schema { url: url.to_string(), file, column, found, expected, hint: SCHEMA_HINT }
}

fn classify(url: &str, error: hudi::Error) -> Error {
    let url = url.to_string();
    match error {
        hudi::Error::Store { doing, source } => Error::Store { url, doing, source: boxed_error(source) },
        hudi::Error::Disk { doing, source } => Error::Store { url, doing, source: boxed_error(source) },
        hudi::Error::NoTable { .. } => Error::NoTable { url, what: "the table".to_string() },
        hudi::Error::Location { detail, .. } => Error::Unsupported { url, what: detail },
        hudi::Error::ReadOnly { why, .. } => Error::Unsupported { url, what: why.to_string() },
        hudi::Error::Unsupported { what } => Error::Unsupported { url, what },
        hudi::Error::Gone { file } => Error::FileGone { url, file },
        // The text inside says what was asked for and what there is.
        hudi::Error::TooLarge { .. } => Error::SliceTooLarge { url, detail: error.to_string() },
        hudi::Error::Corrupt { file, detail } => Error::Corrupt { url, file, detail },
        hudi::Error::Type { file, column, found, expected } => schema_error(&url, file, column, found, expected),
        hudi::Error::Conflict { what } => {
            Error::Other { code: Code::Conflict, retry: Retry::Again, message: format!("table `{url}`: {what}") }
        }
    }
}
