// SPDX-License-Identifier: Apache-2.0
//! Names of pipelines, sources, batches and requests.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The data column whose true marks its row as one that deletes the record of its key, as in Hudi.
pub const IS_DELETED: &str = "_hoodie_is_deleted";

/// Why a text cannot be such a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing is left to name.
    #[error("a {what} name is empty")]
    Empty {
        /// Which kind of name.
        what: &'static str,
    },
    /// A character that the flat checkpoint, a placeholder or a URL could not hold.
    #[error("{what} name `{name}` holds {found:?}: {allowed}")]
    Character {
        /// Which kind of name.
        what: &'static str,
        /// The refused name.
        name: String,
        /// The character that is not allowed.
        found: char,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Longer than any store or header should carry.
    #[error("{what} name `{name}` has {length} characters, at most {limit} are allowed")]
    Long {
        /// Which kind of name.
        what: &'static str,
        /// The refused name.
        name: String,
        /// Its length in characters.
        length: usize,
        /// The limit in characters.
        limit: usize,
    },
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $limit:literal, $allowed:literal, $allow:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// Parses and checks the name.
            pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
                let name = name.into();
                let length = name.chars().count();
                if length == 0 {
                    return Err(NameError::Empty { what: $what });
                }
                if length > $limit {
                    return Err(NameError::Long { what: $what, name, length, limit: $limit });
                }
                let allow: fn(char) -> bool = $allow;
                match name.chars().find(|c| !allow(*c)) {
                    Some(found) => Err(NameError::Character { what: $what, name, found, allowed: $allowed }),
                    None => Ok($type(name)),
                }
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = NameError;

            fn try_from(name: String) -> Result<Self, Self::Error> {
                Self::new(name)
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> Self {
                name.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A pipeline's name: part of a commit's metadata key, a URL and a metric label.
    PipelineName, "pipeline", 128, "letters, digits, `_`, `-` and `.` are allowed",
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
);
name!(
    /// A source's name: `<SRC:name>` in SQL and `name=value` in the flat checkpoint. It may hold dots, but no `=`,
    /// `,`, `<`, `>`, white space or control character.
    SourceName, "source", 128, "`=`, `,`, `<`, `>`, white space and control characters are not allowed",
    |c| !c.is_control() && !c.is_whitespace() && !matches!(c, '=' | ',' | '<' | '>')
);
name!(
    /// A caller's id for one request. Whoever sends the same id again gets the same batch.
    RequestId, "request", 128, "letters, digits, `_`, `-`, `.` and `:` are allowed",
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':')
);
name!(
    /// A batch's name, `<pipeline>/<number or request id>`.
    BatchName, "batch", 300, "letters, digits, `_`, `-`, `.`, `:` and `/` are allowed",
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
);

impl RequestId {
    /// A fresh id that carries the time (UUID of version 7), so that an old id can be told from one never seen.
    pub fn at(millis: i64, random: u128) -> Self {
        let bits = random.to_be_bytes();
        let mut random = [0u8; 10];
        random.copy_from_slice(&bits[..10]);
        let id = uuid::Builder::from_unix_timestamp_millis(millis.max(0) as u64, &random).into_uuid();
        RequestId(id.to_string())
    }

    /// When the id was made, milliseconds since the epoch, if it carries a time: a UUID of version 7 does.
    pub fn millis(&self) -> Option<i64> {
        let id = uuid::Uuid::try_parse(&self.0).ok().filter(|id| id.get_version_num() == 7)?;
        // The first 48 bits.
        i64::try_from(id.as_u128() >> 80).ok()
    }
}

impl SourceName {
    /// The name as properties keys write it: dots become underscores. Two sources of one pipeline must not fold to
    /// the same text.
    pub fn folded(&self) -> String {
        self.as_str().replace('.', "_")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_name_may_hold_dots_but_nothing_that_breaks_the_flat_form() {
        assert_eq!(SourceName::new("db.orders").unwrap().folded(), "db_orders");
        for bad in ["a=b", "a,b", "a b", "a\tb", "<a>", "a\u{0}"] {
            assert!(matches!(SourceName::new(bad), Err(NameError::Character { .. })), "{bad:?}");
        }
        assert_eq!(SourceName::new(""), Err(NameError::Empty { what: "source" }));
    }

    #[test]
    fn a_request_id_tells_its_time_where_it_carries_one() {
        let id = RequestId::at(1_749_234_506_197, u128::MAX / 3);
        assert_eq!(id.millis(), Some(1_749_234_506_197));
        assert_ne!(id, RequestId::at(1_749_234_506_197, 5));
        assert_eq!(RequestId::new("0d7bfe04-5f3e-4e0c-9a3b-2f4d2a9d8f11").unwrap().millis(), None, "version 4");
        assert_eq!(RequestId::new("nightly-2025-06-06").unwrap().millis(), None);
    }

    #[test]
    fn a_name_over_its_limit_is_refused_with_both_numbers() {
        let refused = PipelineName::new("x".repeat(129)).unwrap_err();
        assert!(matches!(refused, NameError::Long { length: 129, limit: 128, .. }));
    }
}
