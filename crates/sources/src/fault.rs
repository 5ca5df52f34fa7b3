// SPDX-License-Identifier: Apache-2.0
//! Errors of stores and files as errors of this role.

use tributary_api::boxed_error;
use tributary_api::timeline::Error;
use tributary_hudi as hudi;

/// What to do about types that do not fit.
const SCHEMA_HINT: &str =
    "give names and types with `files.schema_file`, or keep such files in a directory of their own";

/// Classifies an error about the files of the directory at `url`.
pub(crate) fn fault(url: &str) -> impl Fn(hudi::Error) -> Error + '_ {
    move |error| classify(url, error)
}

fn classify(url: &str, error: hudi::Error) -> Error {
    let url = url.to_string();
    match error {
        hudi::Error::Store { ref doing, .. } | hudi::Error::Disk { ref doing, .. } => {
            let doing = doing.clone();
            Error::Store { url, doing, source: boxed_error(error) }
        }
        hudi::Error::Gone { file } => Error::FileGone { url, file },
        hudi::Error::Corrupt { file, detail } => Error::Corrupt { url, file, detail },
        hudi::Error::Type { file, column, found, expected } => {
            Error::Schema { url, file, column, found, expected, hint: SCHEMA_HINT }
        }
        other => Error::Unsupported { url, what: other.to_string() },
    }
}
