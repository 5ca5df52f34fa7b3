// SPDX-License-Identifier: Apache-2.0
//! Errors on the wire.
//!
//! A failed call carries the gRPC code of a table, the message, and in the details a `google.rpc.Status` with a
//! `google.rpc.ErrorInfo` for clients of any kind, beside a `google.rpc.RetryInfo` where the same request may be sent again,
//! and a `tributary.common.v1.Fault` for ours: role, reason, code, retry advice, message, fields, causes, and the error of
//! another role inside. `to_status` encodes, `from_status` decodes.
//!
//! A kind that the receiver does not know becomes the role's `Other` with the code and the advice that were sent. A
//! status without details is a lost call when its code says so (`Unreachable`), else `Other` by its code.

mod fields;
mod roles;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;

use bytes::Bytes;
use prost::Message;
use tonic::Status;
use tributary_api::{BoxedError, RowError};
use tributary_types::{Code, Fault, Retry};

use crate::convert::WireEnum;
use crate::proto::common;

const TYPE_PREFIX: &str = "type.googleapis.com/";
const INFO_TYPE: &str = "google.rpc.ErrorInfo";
const FAULT_TYPE: &str = "tributary.common.v1.Fault";
const RETRY_TYPE: &str = "google.rpc.RetryInfo";
/// How long a client waits before it sends the same request again, at least.
const RETRY_DELAY: prost_types::Duration = prost_types::Duration { seconds: 1, nanos: 0 };
/// Bytes of a message. gRPC clients in C refuse more than 8 KiB of headers, and details travel in a header.
const MESSAGE_LIMIT: usize = 1_500;
/// Bytes of the encoded details, before base64.
const DETAILS_LIMIT: usize = 4_000;

/// An error that crosses processes.
pub(crate) trait Wire: StdError + Sized + 'static {
    /// Name of the role, or of the part, whose error it is.
    const ROLE: &'static str;

    /// The whole error for the wire.
    fn describe(&self) -> common::Fault;

    /// The error that was described. `None` when its kind or a field of it is not known here.
    fn rebuild(fault: &common::Fault) -> Option<Self>;
}

/// A role's own error: it can also say that the role did not answer, or pass on what it does not know.
pub(crate) trait RoleError: Wire + Fault {
    /// The role did not answer.
    fn unreachable(doing: String, source: BoxedError) -> Self;

    /// An answer that is not known here.
    fn other(code: Code, retry: Retry, message: String) -> Self;

    /// The described error, or `Other` in its place.
    fn from_fault(fault: &common::Fault, call: Call) -> Self {
        Self::rebuild(fault).unwrap_or_else(|| {
            let code = known_code(fault);
            Self::other(code, known_retry(fault, code, call), with_causes(&fault.message, &fault.causes))
        })
    }
}

/// What a call may have done before its answer was lost or was not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Nothing that matters: it can simply be sent again.
    Repeatable,
    /// Something: look before doing anything else, unless the answer says that it was refused.
    Write,
}

/// The status of a failed call.
pub(crate) fn to_status<E: RoleError>(error: &E) -> Status {
    encode(error.describe())
}

/// The status of a stream of rows that ends with `error`.
pub(crate) fn row_status(error: &RowError) -> Status {
    encode(error.describe())
}

/// The status of a call that this server does not offer.
pub(crate) fn unsupported(message: impl Into<String>) -> Status {
    encode(common::Fault {
        role: "rpc".to_string(),
        reason: "UNSUPPORTED".to_string(),
        code: Code::Unsupported.to_wire(),
        retry: Retry::Never.to_wire(),
        message: message.into(),
        ..common::Fault::default()
    })
}

/// The status of a request that cannot be read.
pub(crate) fn malformed(message: impl fmt::Display) -> Status {
    encode(common::Fault {
        role: "rpc".to_string(),
        reason: "REQUEST_MALFORMED".to_string(),
        code: Code::Invalid.to_wire(),
        retry: Retry::Never.to_wire(),
        message: message.to_string(),
        ..common::Fault::default()
    })
}

/// The status of a request that was refused before any role saw it.
pub(crate) fn denied(denied: &tributary_security::Denied) -> Status {
    use tributary_types::Fault as _;
    encode(common::Fault {
        role: "rpc".to_string(),
        reason: denied.reason().to_string(),
        code: denied.code().to_wire(),
        retry: denied.retry().to_wire(),
        message: cut(&denied.to_string()),
        ..common::Fault::default()
    })
}

/// The status of a ticket that expired so long ago.
pub(crate) fn ticket_expired(flight: &str, ago_millis: i64) -> Status {
    encode(common::Fault {
        role: "rpc".to_string(),
        reason: "TICKET_EXPIRED".to_string(),
        code: Code::Invalid.to_wire(),
        retry: Retry::Rebase.to_wire(),
        message: format!(
            "the ticket of `{flight}` expired {} s ago; ask GetFlightInfo again and use the new tickets. One that is \
             about to expire can be renewed with the action RenewFlightEndpoint",
            ago_millis / 1000
        ),
        ..common::Fault::default()
    })
}

/// The error that `status` stands for. `doing` says what was being attempted, and where.
pub(crate) fn from_status<E: RoleError>(status: Status, doing: String, call: Call) -> E {
    if let Some(fault) = fault_of(&status) {
        if fault.role == E::ROLE {
            return E::from_fault(&fault, call);
        }
        let code = known_code(&fault);
        return E::other(code, known_retry(&fault, code, call), with_causes(&fault.message, &fault.causes));
    }
    if is_lost(&status) {
        return E::unreachable(doing, lost_cause(status));
    }
    let code = code_of_grpc(status.code());
    // tonic says nothing about a service that was not added.
    let what = match (status.message(), code) {
        ("", Code::Unsupported) => "the role does not run there",
        ("", _) => "the call failed without a message",
        (message, _) => message,
    };
    let message = format!("{doing}: {what}");
    E::other(code, default_retry(code, call), message)
}

/// The error that ends a stream of rows.
pub(crate) fn row_error(status: Status, doing: &str) -> RowError {
    if let Some(fault) = fault_of(&status) {
        return RowError::new(RemoteFault::new(&fault));
    }
    let code = if is_lost(&status) { Code::Unavailable } else { code_of_grpc(status.code()) };
    let reason = if is_lost(&status) { "ROLE_UNREACHABLE" } else { "OTHER" };
    let message = format!("no rows any more while {doing}: {}", lost_cause(status));
    RowError::new(RemoteFault { code, retry: default_retry(code, Call::Repeatable), reason, message, cause: None })
}

/// An error that happened in another process and is only passed on here.
#[derive(Debug)]
pub(crate) struct RemoteFault {
    code: Code,
    retry: Retry,
    reason: &'static str,
    message: String,
    cause: Option<BoxedError>,
}

impl RemoteFault {
    fn new(fault: &common::Fault) -> Self {
        // The innermost error is the one that happened; those around it only passed it on.
        let mut innermost = fault;
        while let Some(inner) = &innermost.inner {
            innermost = inner;
        }
        let code = known_code(fault);
        RemoteFault {
            code,
            retry: known_retry(fault, code, Call::Repeatable),
            reason: fields::intern(&innermost.reason).unwrap_or("OTHER"),
            message: fault.message.clone(),
            cause: chain(&fault.causes),
        }
    }
}

impl fmt::Display for RemoteFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for RemoteFault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

impl Fault for RemoteFault {
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

/// A cause that is known by its message only.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct RemoteCause {
    message: String,
    source: Option<BoxedError>,
}

fn chain(causes: &[String]) -> Option<BoxedError> {
    let mut built: Option<BoxedError> = None;
    for message in causes.iter().rev() {
        built = Some(Box::new(RemoteCause { message: message.clone(), source: built.take() }));
    }
    built
}

/// The source of an error whose variant needs one.
pub(crate) fn source_of(fault: &common::Fault) -> BoxedError {
    chain(&fault.causes)
        .unwrap_or_else(|| Box::new(RemoteCause { message: "no cause was sent".to_string(), source: None }))
}

/// Messages of everything below `error`.
pub(crate) fn causes_of(error: &(dyn StdError + 'static)) -> Vec<String> {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(current) = next {
        causes.push(cut(&current.to_string()));
        next = current.source();
    }
    causes
}

fn with_causes(message: &str, causes: &[String]) -> String {
    let mut text = message.to_string();
    for cause in causes {
        if !text.ends_with(cause.as_str()) {
            text.push_str(": ");
            text.push_str(cause);
        }
    }
    text
}

/// `text` within the limit of a message.
pub(crate) fn cut(text: &str) -> String {
    if text.len() <= MESSAGE_LIMIT {
        return text.to_string();
    }
    let end = (0..=MESSAGE_LIMIT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}… ({} bytes cut)", &text[..end], text.len() - end)
}

#[allow(clippy::disallowed_methods)] // the one place that builds a status
fn encode(fault: common::Fault) -> Status {
    let grpc = grpc_code(&fault);
    let message = cut(&with_causes(&fault.message, &fault.causes));
    let advice = known_retry_of(&fault);
    let info = ErrorInfo {
        reason: fault.reason.clone(),
        domain: format!("{}.tributary", fault.role),
        metadata: HashMap::from([("retry".to_string(), format!("{advice:?}"))]),
    };
    let mut bytes = fault.encode_to_vec();
    if bytes.len() > DETAILS_LIMIT {
        // Without its fields the kind cannot be rebuilt, but the code, the advice and the message arrive.
        let short = common::Fault {
            message: message.clone(),
            fields: HashMap::new(),
            causes: Vec::new(),
            inner: None,
            ..fault
        };
        bytes = short.encode_to_vec();
    }
    let mut details = vec![
        prost_types::Any { type_url: format!("{TYPE_PREFIX}{INFO_TYPE}"), value: info.encode_to_vec() },
        prost_types::Any { type_url: format!("{TYPE_PREFIX}{FAULT_TYPE}"), value: bytes },
    ];
    // Other advices than to send the same request again are none that this message could say.
    if advice == Retry::Again {
        let delay = RetryInfo { retry_delay: Some(RETRY_DELAY) };
        details.push(prost_types::Any { type_url: format!("{TYPE_PREFIX}{RETRY_TYPE}"), value: delay.encode_to_vec() });
    }
    let details = RpcStatus { code: grpc as i32, message: message.clone(), details };
    Status::with_details(grpc, message, Bytes::from(details.encode_to_vec()))
}

pub(crate) fn fault_of(status: &Status) -> Option<common::Fault> {
    if status.details().is_empty() {
        return None;
    }
    let details = RpcStatus::decode(status.details()).ok()?;
    let any = details.details.iter().find(|any| any.type_url.strip_prefix(TYPE_PREFIX) == Some(FAULT_TYPE))?;
    common::Fault::decode(any.value.as_slice()).ok()
}

/// Codes with which tonic and proxies report that no answer of the service came.
fn is_lost(status: &Status) -> bool {
    matches!(
        status.code(),
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled | tonic::Code::DeadlineExceeded
    )
}

fn lost_cause(status: Status) -> BoxedError {
    let mut causes = vec![status.message().to_string()];
    causes.extend(causes_of(&status));
    // tonic says "transport error" and puts what happened below it, often twice.
    causes.retain(|cause| !cause.is_empty() && cause != "transport error");
    causes.dedup();
    chain(&causes).unwrap_or_else(|| Box::new(RemoteCause { message: status.code().to_string(), source: None }))
}

fn known_code(fault: &common::Fault) -> Code {
    Code::from_wire(fault.code).unwrap_or(Code::Internal)
}

fn known_retry_of(fault: &common::Fault) -> Retry {
    known_retry(fault, known_code(fault), Call::Repeatable)
}

fn known_retry(fault: &common::Fault, code: Code, call: Call) -> Retry {
    Retry::from_wire(fault.retry).unwrap_or_else(|_| default_retry(code, call))
}

fn default_retry(code: Code, call: Call) -> Retry {
    match (code, call) {
        (Code::Unavailable | Code::Timeout | Code::Internal | Code::Cancelled, Call::Write) => Retry::ReadBack,
        (Code::Unavailable | Code::Timeout | Code::Overloaded, _) => Retry::Again,
        (Code::Conflict | Code::Fenced, _) => Retry::Rebase,
        _ => Retry::Never,
    }
}

fn grpc_code(fault: &common::Fault) -> tonic::Code {
    // It exists, or did, and cannot be had, or not now: clients must tell it from a name that never was.
    if matches!(fault.reason.as_str(), "BATCH_GONE" | "REQUEST_EXPIRED" | "PIPELINE_PAUSED" | "TICKET_EXPIRED") {
        return tonic::Code::FailedPrecondition;
    }
    match known_code(fault) {
        Code::Invalid => tonic::Code::InvalidArgument,
        Code::NotFound => tonic::Code::NotFound,
        Code::Exists => tonic::Code::AlreadyExists,
        Code::Conflict => tonic::Code::Aborted,
        Code::Fenced => tonic::Code::FailedPrecondition,
        Code::Unavailable => tonic::Code::Unavailable,
        Code::Timeout => tonic::Code::DeadlineExceeded,
        Code::Overloaded => tonic::Code::ResourceExhausted,
        Code::Corrupt => tonic::Code::DataLoss,
        Code::Unsupported => tonic::Code::Unimplemented,
        Code::Cancelled => tonic::Code::Cancelled,
        Code::Internal => tonic::Code::Internal,
        Code::Unauthenticated => tonic::Code::Unauthenticated,
        Code::Denied => tonic::Code::PermissionDenied,
    }
}

fn code_of_grpc(code: tonic::Code) -> Code {
    match code {
        tonic::Code::InvalidArgument | tonic::Code::OutOfRange => Code::Invalid,
        tonic::Code::NotFound => Code::NotFound,
        tonic::Code::AlreadyExists => Code::Exists,
        tonic::Code::Aborted => Code::Conflict,
        tonic::Code::FailedPrecondition => Code::Fenced,
        tonic::Code::Unavailable => Code::Unavailable,
        tonic::Code::DeadlineExceeded => Code::Timeout,
        tonic::Code::ResourceExhausted => Code::Overloaded,
        tonic::Code::DataLoss => Code::Corrupt,
        tonic::Code::Unimplemented => Code::Unsupported,
        tonic::Code::Cancelled => Code::Cancelled,
        tonic::Code::Unauthenticated => Code::Unauthenticated,
        tonic::Code::PermissionDenied => Code::Denied,
        _ => Code::Internal,
    }
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

#[cfg(test)]
mod tests;
