// SPDX-License-Identifier: Apache-2.0
//! Why a request was refused before any role saw it.

use tributary_types::{Code, Fault, Retry};

use crate::principal::{Role, Scope};
use crate::urls::UrlRefused;

/// Why a request was refused. No message repeats a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Nothing says who calls.
    #[error(
        "this server asks who calls, and the request says nothing: send `authorization: Bearer TOKEN` (`--token-file` of \
         the command line), or a client certificate"
    )]
    NoCredentials,
    /// The token is nobody's.
    #[error("the token is not known here: it was never valid, or was revoked; ask for another one")]
    UnknownToken,
    /// The token was valid.
    #[error("the token of `{principal}` expired; ask for another one")]
    ExpiredToken {
        /// Whose it was.
        principal: String,
    },
    /// A token of an issuer that is not good here.
    #[error("the token is not valid here: {what}")]
    BadToken {
        /// What is wrong with it.
        what: String,
    },
    /// The certificate is good, but nobody's.
    #[error("the certificate of `{names}` is nobody's here: name it in the file of principals, or send a token")]
    UnknownCertificate {
        /// The names in it.
        names: String,
    },
    /// The issuer's keys cannot be had.
    #[error("the keys of the token's issuer cannot be had now, so that nobody can tell whether it is valid: {what}")]
    NoIssuer {
        /// What went wrong.
        what: String,
    },
    /// The role is missing.
    #[error("`{principal}` may not call `{method}` for {scope}: it takes the role `{needed}`", needed = needed.as_str())]
    Role {
        /// Who called.
        principal: String,
        /// What.
        method: String,
        /// The role it takes.
        needed: Role,
        /// On what.
        scope: Scope,
    },
    /// No rule says who may call it.
    #[error("`{method}` is no method that anybody may call here")]
    Method {
        /// What was called.
        method: String,
    },
    /// The location is not one that this server works with.
    #[error(transparent)]
    Url(UrlRefused),
    /// The ticket was not made here, not for this caller, or was changed.
    #[error("the ticket is not valid: {what}; get another one with GetFlightInfo")]
    Ticket {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The ticket was valid.
    #[error("the ticket expired; get another one with GetFlightInfo")]
    ExpiredTicket,
    /// The message cannot be read.
    #[error("the request cannot be read: {what}")]
    Malformed {
        /// What is wrong with it.
        what: String,
    },
    /// The message did not arrive.
    #[error("the request did not arrive within {seconds} s")]
    Slow {
        /// For how long it was waited for.
        seconds: u64,
    },
    /// The message is larger than what is read.
    #[error("the request has more than {limit} bytes, which is what this server reads of one (`--max-request-size`)")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// More requests at once than the server takes.
    #[error(
        "the server has {limit} requests under way and takes no further one now (`--max-requests`); ask again later"
    )]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// The caller did not read what it asked for.
    #[error(
        "no row was taken for {seconds} s, so the server gave the stream up (`--stall-timeout`); ask again, and read on"
    )]
    Stalled {
        /// For how long.
        seconds: u64,
    },
}

impl Fault for Denied {
    fn code(&self) -> Code {
        match self {
            Denied::NoCredentials
            | Denied::UnknownToken
            | Denied::ExpiredToken { .. }
            | Denied::BadToken { .. }
            | Denied::UnknownCertificate { .. } => Code::Unauthenticated,
            Denied::NoIssuer { .. } => Code::Unavailable,
            Denied::Role { .. } | Denied::Method { .. } | Denied::Url(_) | Denied::Ticket { .. } => Code::Denied,
            Denied::Malformed { .. } | Denied::ExpiredTicket => Code::Invalid,
            Denied::TooLarge { .. } | Denied::Busy { .. } => Code::Overloaded,
            Denied::Slow { .. } | Denied::Stalled { .. } => Code::Timeout,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Denied::NoIssuer { .. } | Denied::Busy { .. } | Denied::Slow { .. } | Denied::Stalled { .. } => {
                Retry::Again
            }
            Denied::ExpiredTicket => Retry::Rebase,
            _ => Retry::Never,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Denied::NoCredentials => "CREDENTIALS_MISSING",
            Denied::UnknownToken => "TOKEN_UNKNOWN",
            Denied::ExpiredToken { .. } => "TOKEN_EXPIRED",
            Denied::BadToken { .. } => "TOKEN_INVALID",
            Denied::UnknownCertificate { .. } => "CERTIFICATE_UNKNOWN",
            Denied::NoIssuer { .. } => "ISSUER_UNAVAILABLE",
            Denied::Role { .. } => "ROLE_MISSING",
            Denied::Method { .. } => "METHOD_UNLISTED",
            Denied::Url(_) => "LOCATION_REFUSED",
            Denied::Ticket { .. } => "TICKET_INVALID",
            Denied::ExpiredTicket => "TICKET_EXPIRED",
            Denied::Malformed { .. } => "REQUEST_MALFORMED",
            Denied::Slow { .. } => "REQUEST_SLOW",
            Denied::TooLarge { .. } => "REQUEST_TOO_LARGE",
            Denied::Busy { .. } => "SERVER_BUSY",
            Denied::Stalled { .. } => "STREAM_STALLED",
        }
    }
}

/// Every reason, for the series that are there at zero.
pub(crate) const REASONS: [&str; 16] = [
    "CREDENTIALS_MISSING",
    "TOKEN_UNKNOWN",
    "TOKEN_EXPIRED",
    "TOKEN_INVALID",
    "CERTIFICATE_UNKNOWN",
    "ISSUER_UNAVAILABLE",
    "ROLE_MISSING",
    "METHOD_UNLISTED",
    "LOCATION_REFUSED",
    "TICKET_INVALID",
    "TICKET_EXPIRED",
    "REQUEST_MALFORMED",
    "REQUEST_SLOW",
    "REQUEST_TOO_LARGE",
    "SERVER_BUSY",
    "STREAM_STALLED",
];
