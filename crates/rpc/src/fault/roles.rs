// SPDX-License-Identifier: Apache-2.0
//! Which kinds of errors each role has, and which fields. A kind that is missing here does not compile; a reason that
//! differs from the role's own is found by the round-trip test.

use std::collections::HashMap;

use tributary_api::{BoxedError, RowError, checkpoint, coordinator, merge, timeline, writer};
use tributary_types::{CheckpointError, Code, Fault, MemoryExceeded, Retry};

use super::fields::{Field, take};
use super::{Call, RemoteFault, RoleError, Wire, causes_of, cut, source_of};
use crate::convert::WireEnum;
use crate::proto::common;

/// One role's error: its plain kinds with their reasons and fields, then the kinds that pass on another error.
macro_rules! role_error {
    ($error:ty, $role:literal:
        $($reason:literal => $kind:ident { $($field:ident),* $(; $source:ident)? })*
        $(, passes $inner:ident($inner_type:ty) by $rebuild:expr)*
    ) => {
        impl Wire for $error {
            const ROLE: &'static str = $role;

            fn describe(&self) -> common::Fault {
                let mut fields: HashMap<String, String> = HashMap::new();
                let inner: Option<Box<common::Fault>> = match self {
                    $(Self::$kind { $($field,)* $($source: _)? } => {
                        $(fields.insert(stringify!($field).to_string(), $field.put());)*
                        None
                    })*
                    $(Self::$inner(error) => Some(Box::new(error.describe())),)*
                    Self::Other { .. } => None,
                };
                common::Fault {
                    role: $role.to_string(),
                    reason: self.reason().to_string(),
                    code: self.code().to_wire(),
                    retry: self.retry().to_wire(),
                    message: cut(&self.to_string()),
                    fields,
                    // The error inside brings its own.
                    causes: if inner.is_some() { Vec::new() } else { causes_of(self) },
                    inner,
                }
            }

            fn rebuild(fault: &common::Fault) -> Option<Self> {
                let passed = fault.inner.as_deref();
                $(if let Some(inner) = passed.filter(|inner| inner.role == <$inner_type as Wire>::ROLE) {
                    let rebuild: fn(&common::Fault) -> Option<$inner_type> = $rebuild;
                    return rebuild(inner).map(Self::$inner);
                })*
                if passed.is_some() {
                    return None;
                }
                match fault.reason.as_str() {
                    $($reason => Some(Self::$kind {
                        $($field: take(&fault.fields, stringify!($field))?,)*
                        $($source: source_of(fault))?
                    }),)*
                    _ => None,
                }
            }
        }

        impl RoleError for $error {
            fn unreachable(doing: String, source: BoxedError) -> Self {
                Self::Unreachable { doing, source }
            }

            fn other(code: Code, retry: Retry, message: String) -> Self {
                Self::Other { code, retry, message }
            }
        }
    };
}

role_error! { timeline::Error, "timeline":
    "TABLE_NOT_FOUND" => NoTable { url, what }
    "DIRECTORY_NOT_FOUND" => NoDirectory { source_name, url }
    "TABLE_VERSION_UNSUPPORTED" => Version { url, version, supported }
    "TABLE_UNSUPPORTED" => Unsupported { url, what }
    "SOURCE_RECREATED" => Recreated { source_name, url, found, expected }
    "SOURCE_RESTORED" => Restored { source_name, url, cursor }
    "CURSOR_STALE" => Stale { source_name, url, cursor, earliest, resume }
    "TIMELINE_HOLE" => Hole { source_name, url, instant, action }
    "LATE_INSTANT" => Late { source_name, instant, completed }
    "CURSOR_CLOCK" => Clock { source_name, url, cursor, version, hint }
    "CURSOR_BEYOND" => Beyond { source_name, url, cursor, newest }
    "CURSOR_NO_COMMIT" => NoCommit { source_name, url, cursor, nearest }
    "SCHEMA_UNRESOLVABLE" => Schema { url, file, column, found, expected, hint }
    "FILE_GONE" => FileGone { url, file }
    "FILE_CHANGED" => FileChanged { url, file, detail }
    "LATE_FILES" => LateFiles { source_name, files, names }
    "CHANGED_FILES" => ChangedFiles { source_name, files, names }
    "OFFSETS_OUT_OF_RANGE" => OutOfRange { source_name, url, gone }
    "TOPIC_RECREATED" => TopicRecreated { source_name, url, why }
    "MESSAGES_GONE" => MessagesGone { url, partition, offset }
    "BAD_MESSAGE" => BadMessage { source_name, url, partition, offset, reason, record }
    "BROKERS_UNAVAILABLE" => Brokers { url, doing; source }
    "BAD_RECORD" => BadRecord { source_name, file, line, offset, reason, record }
    "SLICE_TOO_LARGE" => SliceTooLarge { url, detail }
    "TABLE_CORRUPT" => Corrupt { url, file, detail }
    "STORE_UNAVAILABLE" => Store { url, doing; source }
    "ROLE_UNREACHABLE" => Unreachable { doing; source }
}

role_error! { checkpoint::Error, "checkpoint":
    "SPLIT_BRAIN" => SplitBrain { pipeline, target, seq, first, second }
    "TABLE_CORRUPT" => Corrupt { target, detail }
    "STORE_UNAVAILABLE" => Store { target, doing; source }
    "CACHE_UNAVAILABLE" => Cache { doing; source }
    "ROLE_UNREACHABLE" => Unreachable { doing; source }
    , passes Checkpoint(CheckpointError) by CheckpointError::rebuild
}

role_error! { writer::Error, "writer":
    "NULL_KEY" => NullKey { column, rows }
    "EMPTY_KEY" => EmptyKey { column }
    "COLUMN_MISSING" => MissingColumn { column, role, present }
    "TYPE_UNSUPPORTED" => Type { column, found, what }
    "VALUES_UNMERGEABLE" => Fold { column, key, operator, what }
    "SPILL_EXCEEDED" => Spill { limit }
    "STOPPED" => Stopped {}
    "TABLE_CORRUPT" => Corrupt { url, file, detail }
    "STORE_UNAVAILABLE" => Store { url, doing; source }
    "ROLE_UNREACHABLE" => Unreachable { doing; source }
    , passes Rows(RowError) by RowError::rebuild
    , passes Memory(MemoryExceeded) by MemoryExceeded::rebuild
}

role_error! { merge::Error, "merge":
    "SQL_INVALID" => Sql { at, message }
    "PLACEHOLDER_UNKNOWN" => Placeholder { placeholder, line, column, present }
    "SOURCE_UNUSED" => Unused { source_name }
    "LIMIT_REACHED" => Limit { limit, detail }
    "MEMORY_EXCEEDED" => Memory { detail }
    "QUERY_FAILED" => Execution { message }
    "STOPPED" => Stopped {}
    "ROLE_UNREACHABLE" => Unreachable { doing; source }
    , passes Rows(RowError) by RowError::rebuild
    , passes Writer(writer::Error) by |fault| Some(writer::Error::from_fault(fault, Call::Repeatable))
}

role_error! { coordinator::Error, "coordinator":
    "PIPELINE_INVALID" => Pipeline { pipeline, problems }
    "BATCH_NOT_FOUND" => NoBatch { name }
    "REQUEST_REUSED" => RequestReused { request }
    "REQUEST_EXPIRED" => Expired { request, oldest }
    "CANCELLED" => Cancelled {}
    "PIPELINE_NOT_FOUND" => NoPipeline { name }
    "PIPELINE_EXISTS" => PipelineExists { name }
    "PIPELINE_PAUSED" => Paused { name }
    "PIPELINE_CHANGED" => PipelineChanged { name, expected, found }
    "REQUEST_TAKEN" => RequestTaken { request }
    "CATALOG_UNAVAILABLE" => Catalog { doing; source }
    "BATCH_LOST" => Lost { what }
    "TARGET_MISMATCH" => Target { url, what }
    "BINDING_CHANGED" => Binding { instant }
    "OPERATORS_CHANGED" => Operators { instant, changes }
    "START_MISSING" => NoStart { source_name }
    "CURSOR_MALFORMED" => MalformedCursor { source_name, instant, detail }
    "OVERRIDE_INVALID" => Override { problems }
    "CURSOR_KNOWN_BEFORE" => KnownBefore { source_name, instant, cursor }
    "CURSOR_NOT_FOUND" => NothingToResume { source_name }
    "LEGACY_CHECKPOINT" => Legacy { url, instant, what }
    "SOURCE_MOVED" => Moved { source_name, instant, before, now, found }
    "TARGET_CONFLICT" => Conflict { url, what }
    "WRITER_CONFLICT" => WriterConflict { url, instant, action, what }
    "COMMIT_UNKNOWN" => Unknown { url, instant; source }
    "TOO_MANY_REFUSED" => TooManyRefused { rows, limit, first }
    "BATCH_GONE" => Gone { name, what }
    "FLIGHT_NOT_FOUND" => NoFlight { name, what }
    "TIMEOUT" => Timeout { limit, waiting }
    "STORE_UNAVAILABLE" => Store { url, doing; source }
    "ROLE_UNREACHABLE" => Unreachable { doing; source }
    , passes Timeline(timeline::Error) by |fault| Some(timeline::Error::from_fault(fault, Call::Repeatable))
    , passes Checkpoint(checkpoint::Error) by |fault| Some(checkpoint::Error::from_fault(fault, Call::Repeatable))
    , passes Merge(merge::Error) by |fault| Some(merge::Error::from_fault(fault, Call::Repeatable))
    , passes Writer(writer::Error) by |fault| Some(writer::Error::from_fault(fault, Call::Repeatable))
}

impl Wire for RowError {
    const ROLE: &'static str = "rows";

    fn describe(&self) -> common::Fault {
        common::Fault {
            role: Self::ROLE.to_string(),
            reason: self.reason.to_string(),
            code: self.code.to_wire(),
            retry: self.retry.to_wire(),
            message: cut(&self.to_string()),
            causes: causes_of(self),
            ..common::Fault::default()
        }
    }

    fn rebuild(fault: &common::Fault) -> Option<Self> {
        Some(RowError::new(RemoteFault::new(fault)))
    }
}

impl Wire for MemoryExceeded {
    const ROLE: &'static str = "memory";

    fn describe(&self) -> common::Fault {
        let fields = [
            ("what", self.what.clone()),
            ("wanted", self.wanted.put()),
            ("used", self.used.put()),
            ("limit", self.limit.put()),
        ];
        part(Self::ROLE, "MEMORY_EXCEEDED", self.to_string(), fields)
    }

    fn rebuild(fault: &common::Fault) -> Option<Self> {
        Some(MemoryExceeded {
            what: take(&fault.fields, "what")?,
            wanted: take(&fault.fields, "wanted")?,
            used: take(&fault.fields, "used")?,
            limit: take(&fault.fields, "limit")?,
        })
    }
}

impl Wire for CheckpointError {
    const ROLE: &'static str = "cursors";

    fn describe(&self) -> common::Fault {
        match self {
            CheckpointError::Malformed { pipeline, instant, detail } => {
                let fields = [("pipeline", pipeline.put()), ("instant", instant.put()), ("detail", detail.clone())];
                part(Self::ROLE, "MALFORMED", self.to_string(), fields)
            }
            CheckpointError::Format { pipeline, instant, found } => {
                let fields = [("pipeline", pipeline.put()), ("instant", instant.put()), ("found", found.put())];
                part(Self::ROLE, "FORMAT", self.to_string(), fields)
            }
        }
    }

    fn rebuild(fault: &common::Fault) -> Option<Self> {
        let pipeline = take(&fault.fields, "pipeline")?;
        let instant = take(&fault.fields, "instant")?;
        match fault.reason.as_str() {
            "MALFORMED" => {
                Some(CheckpointError::Malformed { pipeline, instant, detail: take(&fault.fields, "detail")? })
            }
            "FORMAT" => Some(CheckpointError::Format { pipeline, instant, found: take(&fault.fields, "found")? }),
            _ => None,
        }
    }
}

/// A part of a role's error; code and advice are those of the error around it.
fn part<const N: usize>(role: &str, reason: &str, message: String, fields: [(&str, String); N]) -> common::Fault {
    common::Fault {
        role: role.to_string(),
        reason: reason.to_string(),
        message: cut(&message),
        fields: fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
        ..common::Fault::default()
    }
}
