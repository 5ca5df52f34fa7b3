// SPDX-License-Identifier: Apache-2.0
//! Who may do what: encrypted connections, identities, roles, signed tickets, and the places where tables may lie.
//!
//! Nothing here knows gRPC: crates/rpc puts these decisions at the edge of a server, crates/server makes them out of
//! files. What was not allowed is refused: an unknown method, an unknown token, a location outside of the prefixes.
//!
//! Files (certificates, keys, tokens) are read again when they change ([`Watched`]). A file that became unusable is
//! logged and counted, and what was read before stays in force, so that a half-written file locks nobody out. Secrets
//! are in no message, no log and no `Debug` output.

pub mod auth_file;
pub mod metrics;
pub mod oidc;
pub mod secret;
pub mod tls;
pub mod urls;

mod authenticator;
mod denied;
mod pattern;
mod principal;
mod ticket;
mod watched;

pub use auth_file::AuthFile;
pub use authenticator::{Authenticator, Certificates};
pub use denied::Denied;
pub use pattern::Pattern;
pub use principal::{Grant, Principal, Role, Scope};
pub use secret::{ClusterKey, Secret, SecretSource};
pub use ticket::{Bound, Tickets};
pub use tls::{ClientFiles, ClientTls, ServerFiles, ServerTls};
pub use urls::{Prefixes, UrlRefused};
pub use watched::{LoadError, Watched};
