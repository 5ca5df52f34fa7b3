// SPDX-License-Identifier: Apache-2.0

#![allow(clippy::disallowed_methods)] // statuses as other servers and proxies send them

use tributary_api::{checkpoint, coordinator, merge, timeline, writer};
use tributary_types::{CheckpointError, Cursor, InstantTime, MemoryExceeded, PipelineName, RequestId, SourceName};

use super::*;

fn instant() -> InstantTime {
    "20250606182826197".parse().unwrap()
}

fn cursor() -> Cursor {
    Cursor::Completed(instant())
}

fn source_name() -> SourceName {
    SourceName::new("db.orders").unwrap()
}

fn pipeline() -> PipelineName {
    PipelineName::new("p").unwrap()
}

fn boxed() -> BoxedError {
    Box::new(RemoteCause { message: "outer".to_string(), source: Some("inner, with \"quotes\" and é".into()) })
}

fn s(text: &str) -> String {
    text.to_string()
}

fn timeline_errors() -> Vec<timeline::Error> {
    use timeline::Error as E;
    vec![
        E::NoTable { url: s("/a"), what: s("source `a`") },
        E::NoDirectory { source_name: source_name(), url: s("/a") },
        E::Version { url: s("/a"), version: 3, supported: "6, 8 and 9" },
        E::Unsupported { url: s("/a"), what: s("bootstrap") },
        E::Recreated { source_name: source_name(), url: s("/a"), found: s("1"), expected: s("2") },
        E::Restored { source_name: source_name(), url: s("/a"), cursor: cursor() },
        E::Stale {
            source_name: source_name(),
            url: s("/a"),
            cursor: cursor(),
            earliest: s("20250101000000000"),
            resume: s("completed:20250101000000000"),
        },
        E::Hole { source_name: source_name(), url: s("/a"), instant: instant(), action: s("commit") },
        E::Late { source_name: source_name(), instant: instant(), completed: instant() },
        E::Clock { source_name: source_name(), url: s("/a"), cursor: cursor(), version: 6, hint: "reset it" },
        E::Beyond { source_name: source_name(), url: s("/a"), cursor: cursor(), newest: s("x") },
        E::NoCommit { source_name: source_name(), url: s("/a"), cursor: cursor(), nearest: s("x") },
        E::Schema { url: s("/a"), file: s("f"), column: s("c"), found: s("Utf8"), expected: s("Int32"), hint: "no" },
        E::FileGone { url: s("/a"), file: s("f") },
        E::FileChanged { url: s("/a"), file: s("f"), detail: s("d") },
        E::LateFiles { source_name: source_name(), files: 2, names: s("a, b") },
        E::ChangedFiles { source_name: source_name(), files: 2, names: s("a, b") },
        E::BadRecord { source_name: source_name(), file: s("f"), line: 3, offset: 9, reason: s("r"), record: s("x,y") },
        E::SliceTooLarge { url: s("/a"), detail: s("d") },
        E::OutOfRange { source_name: source_name(), url: s("kafka://b/t"), gone: s("partition 1: offsets 5 to 8") },
        E::TopicRecreated { source_name: source_name(), url: s("kafka://b/t"), why: s("w") },
        E::MessagesGone { url: s("kafka://b/t"), partition: 3, offset: 1 << 40 },
        E::BadMessage {
            source_name: source_name(),
            url: s("kafka://b/t"),
            partition: 3,
            offset: 9,
            reason: s("r"),
            record: s("x,y"),
        },
        E::Brokers { url: s("kafka://b/t"), doing: s("asking"), source: boxed() },
        E::Corrupt { url: s("/a"), file: s("f"), detail: s("d") },
        E::Store { url: s("/a"), doing: s("listing"), source: boxed() },
        E::Unreachable { doing: s("planning"), source: boxed() },
        E::Other { code: Code::Fenced, retry: Retry::ReadBack, message: s("new") },
    ]
}

fn checkpoint_errors() -> Vec<checkpoint::Error> {
    use checkpoint::Error as E;
    vec![
        E::Checkpoint(CheckpointError::Malformed { pipeline: pipeline(), instant: instant(), detail: s("d") }),
        E::Checkpoint(CheckpointError::Format { pipeline: pipeline(), instant: instant(), found: 7 }),
        E::SplitBrain { pipeline: pipeline(), target: s("/t"), seq: 3, first: instant(), second: instant() },
        E::Corrupt { target: s("/t"), detail: s("d") },
        E::Store { target: s("/t"), doing: s("reading"), source: boxed() },
        E::Cache { doing: s("writing"), source: boxed() },
        E::Unreachable { doing: s("resolving"), source: boxed() },
        E::Other { code: Code::Internal, retry: Retry::Never, message: s("new") },
    ]
}

fn writer_errors() -> Vec<writer::Error> {
    use writer::Error as E;
    let rows = || RowError::new(timeline::Error::FileGone { url: s("/a"), file: s("f") });
    vec![
        E::NullKey { column: s("id"), rows: 3 },
        E::EmptyKey { column: s("id") },
        E::MissingColumn { column: s("id"), role: "record_key", present: s("a, b") },
        E::Type { column: s("id"), found: s("Map"), what: s("no") },
        E::Fold { column: s("n"), key: s("k"), operator: s("sum"), what: s("too large") },
        E::Rows(rows()),
        E::Memory(MemoryExceeded { what: s("rows"), wanted: 1, used: 2, limit: 3 }),
        E::Spill { limit: 9 },
        E::Stopped,
        E::Corrupt { url: s("/t"), file: s("f"), detail: s("d") },
        E::Store { url: s("/t"), doing: s("writing"), source: boxed() },
        E::Unreachable { doing: s("staging"), source: boxed() },
        E::Other { code: Code::Internal, retry: Retry::Rebase, message: s("new") },
    ]
}

fn merge_errors() -> Vec<merge::Error> {
    use merge::Error as E;
    let mut errors = vec![
        E::Sql { at: s(" at line 1, column 2"), message: s("m") },
        E::Placeholder { placeholder: s("<SRC:x>"), line: 1, column: 2, present: s("a") },
        E::Unused { source_name: source_name() },
        E::Limit { limit: "time", detail: s("d") },
        E::Limit { limit: "disk", detail: s("d") },
        E::Memory { detail: s("d") },
        E::Rows(RowError::new(timeline::Error::FileGone { url: s("/a"), file: s("f") })),
        E::Execution { message: s("m") },
        E::Stopped,
        E::Unreachable { doing: s("running"), source: boxed() },
        E::Other { code: Code::Overloaded, retry: Retry::Again, message: s("new") },
    ];
    errors.extend(writer_errors().into_iter().map(E::Writer));
    errors
}

fn coordinator_errors() -> Vec<coordinator::Error> {
    use coordinator::Error as E;
    let mut errors = vec![
        E::Pipeline { pipeline: s("p"), problems: vec![s("one"), s("two")] },
        E::NoBatch { name: s("p/r") },
        E::RequestReused { request: RequestId::new("r").unwrap() },
        E::Expired { request: RequestId::new("r").unwrap(), oldest: RequestId::new("o").unwrap() },
        E::Cancelled,
        E::NoPipeline { name: s("p") },
        E::PipelineExists { name: PipelineName::new("p").unwrap() },
        E::Paused { name: PipelineName::new("p").unwrap() },
        E::PipelineChanged { name: PipelineName::new("p").unwrap(), expected: s("1"), found: s("2") },
        E::RequestTaken { request: RequestId::new("r").unwrap() },
        E::Catalog { doing: s("writing"), source: boxed() },
        E::Lost { what: s("it panicked") },
        E::Target { url: s("/t"), what: s("w") },
        E::Binding { instant: instant() },
        E::Operators { instant: instant(), changes: vec![s("a"), s("b")] },
        E::NoStart { source_name: source_name() },
        E::MalformedCursor { source_name: source_name(), instant: instant(), detail: s("d") },
        E::Override { problems: vec![s("one"), s("two")] },
        E::KnownBefore { source_name: source_name(), instant: instant(), cursor: cursor() },
        E::NothingToResume { source_name: source_name() },
        E::Legacy { url: s("/t"), instant: instant(), what: s("w") },
        E::Moved { source_name: source_name(), instant: instant(), before: s("/a"), now: s("/b"), found: s("x") },
        E::Conflict { url: s("/t"), what: s("w") },
        E::WriterConflict { url: s("/t"), instant: instant(), action: s("INSERT"), what: s("w") },
        E::Unknown { url: s("/t"), instant: instant(), source: boxed() },
        E::Gone { name: s("p/r"), what: s("w") },
        E::NoFlight { name: s("table:t"), what: s("w") },
        E::Timeout { limit: s("1h"), waiting: s(" while it waited") },
        E::Store { url: s("/t"), doing: s("d"), source: boxed() },
        E::Unreachable { doing: s("starting"), source: boxed() },
        E::Other { code: Code::Cancelled, retry: Retry::Never, message: s("new") },
    ];
    errors.extend(timeline_errors().into_iter().map(E::Timeline));
    errors.extend(checkpoint_errors().into_iter().map(E::Checkpoint));
    errors.extend(writer_errors().into_iter().map(E::Writer));
    errors.extend(merge_errors().into_iter().map(E::Merge));
    errors
}

fn messages(error: &(dyn StdError + 'static)) -> Vec<String> {
    let mut all = vec![error.to_string()];
    all.extend(causes_of(error));
    // Transparent wrappers repeat their source's text, a row error's source is that of what it wraps.
    all.dedup();
    all
}

fn crosses<E: RoleError>(errors: Vec<E>) {
    for error in errors {
        let status = to_status(&error);
        let arrived: E = from_status(status, s("testing"), Call::Write);
        assert_eq!(arrived.code(), error.code(), "{error:?}");
        assert_eq!(arrived.retry(), error.retry(), "{error:?}");
        assert_eq!(arrived.reason(), error.reason(), "{error:?}");
        assert_eq!(messages(&arrived), messages(&error), "{error:?}");
        let kind = |e: &E| format!("{e:?}").split(['(', '{']).take(2).map(str::trim).collect::<Vec<_>>().join("/");
        assert_eq!(kind(&arrived), kind(&error));
    }
}

#[test]
fn every_kind_of_every_role_arrives_with_its_fields_code_advice_and_causes() {
    crosses(timeline_errors());
    crosses(checkpoint_errors());
    crosses(writer_errors());
    crosses(merge_errors());
    crosses(coordinator_errors());
}

/// Compares the rows of the error catalogue with what errors say of themselves.
fn is_in_the_catalogue<E: RoleError>(errors: Vec<E>) {
    let page = include_str!("../../../../docs/errors.md");
    for error in errors {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", error.reason())));
        let row = row.unwrap_or_else(|| panic!("docs/errors.md has no row for `{}`", error.reason()));
        if error.reason() == "OTHER" {
            // Its code and advice are those that were sent.
            continue;
        }
        let code = common::Code::try_from(error.code().to_wire()).unwrap().as_str_name();
        let retry = common::Retry::try_from(error.retry().to_wire()).unwrap().as_str_name();
        let said = format!("{} {}", code.trim_start_matches("CODE_"), retry.trim_start_matches("RETRY_"));
        let cell = row.split('|').nth(2).unwrap();
        assert!(cell.split(" or ").any(|one| one.trim() == said), "docs/errors.md, `{}`: {said}", error.reason());
    }
}

#[test]
fn the_error_catalogue_says_code_and_advice_of_every_kind() {
    is_in_the_catalogue(timeline_errors());
    is_in_the_catalogue(checkpoint_errors());
    is_in_the_catalogue(writer_errors());
    is_in_the_catalogue(merge_errors());
    is_in_the_catalogue(coordinator_errors());
}

#[test]
fn a_row_error_keeps_its_classification_whatever_it_wraps() {
    let sent = RowError::new(timeline::Error::FileGone { url: s("/a"), file: s("f") });
    let arrived = row_error(row_status(&sent), "reading");
    assert_eq!((arrived.code, arrived.retry, arrived.reason), (sent.code, sent.retry, sent.reason));
    assert_eq!(arrived.to_string(), sent.to_string());
}

#[test]
fn the_grpc_code_says_what_kind_it_is_to_clients_that_know_no_details() {
    let gone = coordinator::Error::Gone { name: s("p/r"), what: s("cleaned") };
    assert_eq!(to_status(&gone).code(), tonic::Code::FailedPrecondition);
    let none = coordinator::Error::NoBatch { name: s("p/r") };
    assert_eq!(to_status(&none).code(), tonic::Code::NotFound);
    let reused = coordinator::Error::RequestReused { request: RequestId::new("r").unwrap() };
    assert_eq!(to_status(&reused).code(), tonic::Code::AlreadyExists);
    let paused = coordinator::Error::Paused { name: PipelineName::new("p").unwrap() };
    assert_eq!(to_status(&paused).code(), tonic::Code::FailedPrecondition);
    let changed =
        coordinator::Error::PipelineChanged { name: PipelineName::new("p").unwrap(), expected: s("1"), found: s("2") };
    assert_eq!(to_status(&changed).code(), tonic::Code::Aborted);
    for code in Code::ALL {
        let other = timeline::Error::Other { code: *code, retry: Retry::Never, message: s("m") };
        assert_eq!(code_of_grpc(to_status(&other).code()), *code);
    }
}

#[test]
fn a_kind_from_a_newer_server_keeps_its_code_and_advice() {
    let fault = common::Fault {
        role: s("timeline"),
        reason: s("BRAND_NEW"),
        code: Code::Conflict.to_wire(),
        retry: Retry::ReadBack.to_wire(),
        message: s("m"),
        causes: vec![s("c")],
        ..common::Fault::default()
    };
    let arrived: timeline::Error = from_status(encode(fault), s("testing"), Call::Repeatable);
    let timeline::Error::Other { code, retry, message } = arrived else { panic!("{arrived:?}") };
    assert_eq!((code, retry, message.as_str()), (Code::Conflict, Retry::ReadBack, "m: c"));
}

#[test]
fn a_lost_call_is_unreachable_and_an_answer_nobody_explains_is_read_back_after_a_write() {
    let lost: coordinator::Error = from_status(Status::unavailable("refused"), s("starting at X"), Call::Write);
    assert!(matches!(lost, coordinator::Error::Unreachable { .. }) && lost.retry() == Retry::Again);
    assert!(lost.to_string().contains("starting at X"));
    let odd: coordinator::Error = from_status(Status::internal("?"), s("starting"), Call::Write);
    assert_eq!(odd.retry(), Retry::ReadBack);
    let odd: coordinator::Error = from_status(Status::internal("?"), s("getting"), Call::Repeatable);
    assert_eq!(odd.retry(), Retry::Never);
    let refused: coordinator::Error = from_status(Status::invalid_argument("?"), s("starting"), Call::Write);
    assert_eq!(refused.retry(), Retry::Never);
}

#[test]
fn a_huge_error_is_cut_to_what_a_header_may_hold() {
    let huge = coordinator::Error::Pipeline { pipeline: s("p"), problems: vec!["é".repeat(50_000)] };
    let status = to_status(&huge);
    assert!(status.message().len() < 2_000 && status.details().len() < 8_000);
    let arrived: coordinator::Error = from_status(status, s("testing"), Call::Write);
    assert_eq!((arrived.code(), arrived.retry()), (Code::Invalid, Retry::Never));
    assert!(arrived.to_string().contains("cut"), "{arrived}");
}

#[test]
fn details_of_another_kind_are_ignored() {
    let status = Status::with_details(tonic::Code::NotFound, "m", Bytes::from_static(b"\xff\xff\xff"));
    let arrived: coordinator::Error = from_status(status, s("getting"), Call::Repeatable);
    assert_eq!(arrived.code(), Code::NotFound);
}

#[test]
fn clients_of_any_kind_are_told_when_the_same_request_may_be_sent_again() {
    let kinds = |error: &coordinator::Error| {
        let details = RpcStatus::decode(to_status(error).details()).unwrap().details;
        let kind = |any: &prost_types::Any| any.type_url.strip_prefix(TYPE_PREFIX).unwrap().to_string();
        details.iter().map(kind).collect::<Vec<_>>()
    };
    let again = coordinator::Error::Timeout { limit: s("1h"), waiting: String::new() };
    assert_eq!(kinds(&again), [INFO_TYPE, FAULT_TYPE, RETRY_TYPE]);
    assert_eq!(kinds(&coordinator::Error::Cancelled), [INFO_TYPE, FAULT_TYPE]);
    let details = RpcStatus::decode(to_status(&again).details()).unwrap().details;
    let info = ErrorInfo::decode(details[0].value.as_slice()).unwrap();
    assert_eq!((info.reason.as_str(), info.metadata["retry"].as_str()), ("TIMEOUT", "Again"));
    let delay = RetryInfo::decode(details[2].value.as_slice()).unwrap().retry_delay.unwrap();
    assert_eq!((delay.seconds, delay.nanos), (1, 0));
}
