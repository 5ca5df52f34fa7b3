// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with the files of a table.

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with the files of a table.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store did not do what was asked; whether a write arrived is unknown.
    #[error("the store failed while {doing}")]
    Store {
        /// What was being attempted.
        doing: String,
        /// The store's error.
        #[source]
        source: object_store::Error,
    },
    /// The local disk did not do what was asked.
    #[error("the local disk failed while {doing}")]
    Disk {
        /// What was being attempted.
        doing: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A URL that names no store.
    #[error("`{url}` is not a table location: {detail}")]
    Location {
        /// The URL.
        url: String,
        /// What is wrong, and what to do.
        detail: String,
    },
    /// A place whose tables can be read only.
    #[error("`{url}` cannot be a target: {why}")]
    ReadOnly {
        /// The URL.
        url: String,
        /// What is in the way, and what to do.
        why: &'static str,
    },
    /// There is no table.
    #[error("no Hudi table at `{url}`: `.hoodie/hoodie.properties` is missing")]
    NoTable {
        /// Where it was looked for.
        url: String,
    },
    /// A file that must be there is not.
    #[error("file `{file}` is gone")]
    Gone {
        /// The file, relative to the table.
        file: String,
    },
    /// A file is not what its format says.
    #[error("`{file}` cannot be read: {detail}")]
    Corrupt {
        /// The file, relative to the table.
        file: String,
        /// What is wrong.
        detail: String,
    },
    /// Understood, but not supported.
    #[error("{what}")]
    Unsupported {
        /// What, and what to do.
        what: String,
    },
    /// A column's type does not fit.
    #[error("`{file}`: column `{column}` is {found}, expected {expected}")]
    Type {
        /// The file, relative to the table.
        file: String,
        /// The column.
        column: String,
        /// Type found.
        found: String,
        /// Type expected.
        expected: String,
    },
    /// A file slice, or a row group of a file, does not fit into the memory that is left.
    #[error("file group `{group}` is too large to be read: {source}")]
    TooLarge {
        /// Partition and file id, or the file.
        group: String,
        /// What was asked for, and what there is.
        #[source]
        source: tributary_types::MemoryExceeded,
    },
    /// Something exists that must not: another writer was here.
    #[error("{what}")]
    Conflict {
        /// What was found.
        what: String,
    },
}

impl Error {
    /// A corrupt file.
    pub fn corrupt(file: impl Into<String>, detail: impl std::fmt::Display) -> Self {
        Error::Corrupt { file: file.into(), detail: detail.to_string() }
    }

    /// Something that is not supported.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Error::Unsupported { what: what.into() }
    }

    /// A failure of the store: what was being attempted, and the store's own error. Another error is given back.
    pub fn into_store_failure(self) -> std::result::Result<(String, Box<dyn std::error::Error + Send + Sync>), Self> {
        match self {
            Error::Store { doing, source } => Ok((doing, Box::new(source))),
            Error::Disk { doing, source } => Ok((doing, Box::new(source))),
            other => Err(other),
        }
    }

    /// Whether a write that failed so may still have arrived.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Error::Store { .. } | Error::Disk { .. })
    }
}
