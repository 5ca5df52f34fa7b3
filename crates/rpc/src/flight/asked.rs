// SPDX-License-Identifier: Apache-2.0
//! What a descriptor or a ticket asks for: the one place that decides it.
//!
//! Whoever lets a call in and whoever serves it read its bytes by this. Were there two readings, a request could be let
//! in as the one thing and be served as the other: bytes can be the text of a name and a command of Flight SQL at once,
//! since protobuf passes over fields that it does not know.

use arrow_flight::FlightDescriptor;
use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::sql::{Any, Command};
use prost::Message;

use super::{BATCH_PREFIX, STAGE_PATH, TABLE_PREFIX};

/// Begins the type of every command of Flight SQL.
pub(super) const COMMANDS: &str = "type.googleapis.com/arrow.flight.protocol.sql.";

/// What bytes ask for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Asked {
    /// A batch, by its name, which may be none.
    Batch(String),
    /// A table, by the whole text of its flight, `table:<name>`.
    Table(String),
    /// A command of Flight SQL.
    Command(Box<Command>),
    /// A text that begins as no flight does.
    Unnamed(String),
    /// Nothing that has one reading, and why.
    Refused(String),
}

/// What a descriptor asks for. A path is read as if it were joined by `/`.
pub(crate) fn of_descriptor(descriptor: &FlightDescriptor) -> Asked {
    let (path, command) = (&descriptor.path, &descriptor.cmd);
    match DescriptorType::try_from(descriptor.r#type) {
        Ok(DescriptorType::Path | DescriptorType::Cmd) if !path.is_empty() && !command.is_empty() => {
            Asked::Refused("the descriptor has both a path and a command: send one of them".to_string())
        }
        Ok(DescriptorType::Path) if command.is_empty() => match of_bytes(path.join("/").as_bytes()) {
            // A command is no path, however its bytes are written.
            Asked::Command(_) => Asked::Unnamed(path.join("/")),
            asked => asked,
        },
        Ok(DescriptorType::Cmd) if path.is_empty() => of_bytes(command),
        Ok(DescriptorType::Path | DescriptorType::Cmd) => {
            Asked::Refused("the descriptor's type is not that of what it holds: a path has PATH, a command CMD".into())
        }
        Ok(DescriptorType::Unknown) | Err(_) => {
            Asked::Refused("the type of the descriptor is not known: it must be PATH or CMD".to_string())
        }
    }
}

/// What the bytes of a command, or of a ticket that nobody signed, ask for. What begins as a name is one, whatever else
/// it could be.
pub(crate) fn of_bytes(bytes: &[u8]) -> Asked {
    if bytes.starts_with(BATCH_PREFIX.as_bytes()) || bytes.starts_with(TABLE_PREFIX.as_bytes()) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Asked::Refused("the name of the flight is no text".to_string());
        };
        return match text.strip_prefix(BATCH_PREFIX) {
            Some(batch) => Asked::Batch(batch.to_string()),
            None => Asked::Table(text.to_string()),
        };
    }
    match Any::decode(bytes) {
        Ok(any) if any.type_url.starts_with(COMMANDS) => match Command::try_from(any) {
            Ok(command) => Asked::Command(Box::new(command)),
            Err(error) => Asked::Refused(format!("the command of Flight SQL cannot be read: {error}")),
        },
        _ => Asked::Unnamed(String::from_utf8_lossy(bytes).into_owned()),
    }
}

/// Whether a descriptor is that of rows to stage, which roles send each other.
pub(crate) fn is_stage(descriptor: &FlightDescriptor) -> bool {
    of_descriptor(descriptor) == Asked::Unnamed(STAGE_PATH.to_string())
        && descriptor.r#type == DescriptorType::Path as i32
}

#[cfg(test)]
mod tests {
    use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
    use bytes::Bytes;

    use super::*;

    fn query() -> Vec<u8> {
        let query = CommandStatementQuery { query: "SELECT * FROM tables.secret".to_string(), transaction_id: None };
        query.as_any().encode_to_vec()
    }

    fn descriptor(kind: i32, path: &[&str], command: &[u8]) -> FlightDescriptor {
        let path = path.iter().map(ToString::to_string).collect();
        FlightDescriptor { r#type: kind, path, cmd: Bytes::copy_from_slice(command) }
    }

    #[test]
    fn names_and_commands_are_told_apart_however_they_are_sent() {
        let batch = Asked::Batch("orders/r1".to_string());
        assert_eq!(of_descriptor(&descriptor(1, &["batch:orders", "r1"], b"")), batch);
        assert_eq!(of_descriptor(&descriptor(1, &["batch:orders/r1"], b"")), batch);
        assert_eq!(of_descriptor(&descriptor(2, &[], b"batch:orders/r1")), batch);
        assert_eq!(of_bytes(b"table:t@1"), Asked::Table("table:t@1".to_string()));
        assert!(matches!(of_descriptor(&descriptor(2, &[], &query())), Asked::Command(_)));
        assert_eq!(of_bytes(b"SELECT 1"), Asked::Unnamed("SELECT 1".to_string()));
        assert_eq!(of_bytes(b""), Asked::Unnamed(String::new()));
    }

    #[test]
    fn a_descriptor_that_holds_more_or_something_else_than_its_type_says_is_refused() {
        for (kind, path, command) in [
            (1, &["batch:orders/r1"][..], query()),
            (2, &["batch:orders/r1"], query()),
            (1, &["stage"], query()),
            (1, &[], query()),
            (2, &["batch:orders/r1"], Vec::new()),
            (0, &[], query()),
            (0, &["batch:orders/r1"], Vec::new()),
            (7, &["batch:orders/r1"], Vec::new()),
            (-1, &[], query()),
        ] {
            let descriptor = descriptor(kind, path, &command);
            assert!(matches!(of_descriptor(&descriptor), Asked::Refused(_)), "{descriptor:?}");
            assert!(!is_stage(&descriptor));
        }
        // The text of a command in a path is none.
        let text = String::from_utf8(query()).unwrap();
        assert!(matches!(of_descriptor(&descriptor(1, &[&text], b"")), Asked::Unnamed(_)));
    }

    #[test]
    fn bytes_that_begin_as_a_name_are_one_although_they_decode_as_a_command() {
        // `ba` is the tag of field 12 and its length, 97 bytes: protobuf passes over them.
        let mut bytes = b"batch:orders/".to_vec();
        bytes.resize(99, b'A');
        bytes.extend(query());
        assert!(Any::decode(bytes.as_slice()).unwrap().type_url.starts_with(COMMANDS));
        assert!(matches!(of_bytes(&bytes), Asked::Batch(_)));
        bytes.push(0xff);
        assert!(matches!(of_bytes(&bytes), Asked::Refused(_)), "no text");
    }

    #[test]
    fn rows_to_stage_come_by_their_path_alone() {
        assert!(is_stage(&descriptor(1, &[STAGE_PATH], b"")));
        assert!(!is_stage(&descriptor(2, &[], STAGE_PATH.as_bytes())));
    }
}
