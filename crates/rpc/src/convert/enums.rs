// SPDX-License-Identifier: Apache-2.0
//! Enums: the same names on both sides.

use tributary_api::predicate::Op;
use tributary_types::pipeline::{
    Consistency, Deletes, InsertConflict, OnHole, OnLate, OnMalformedCursor, OnNullKey, OnStale, OnUnused, Operation,
    ReadMode, SourceKind, TableType, Writers,
};
use tributary_types::{Code, Outcome, Retry, Stage, Zone};

use super::Malformed;
use crate::proto::{common, coordinator, timeline};

/// An enum that crosses processes.
pub trait WireEnum: Sized + Copy + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// The number on the wire.
    fn to_wire(self) -> i32;

    /// The value of a number. What is unspecified is the default where there is one.
    fn from_wire(number: i32) -> Result<Self, Malformed>;
}

macro_rules! wire_enums {
    ($($native:ident = $proto:path $(, unspecified is $default:ident)? { $($value:ident),* })*) => {$(
        impl WireEnum for $native {
            const ALL: &'static [Self] = &[$($native::$value),*];

            fn to_wire(self) -> i32 {
                use $proto as Proto;
                match self {
                    $($native::$value => Proto::$value as i32,)*
                }
            }

            fn from_wire(number: i32) -> Result<Self, Malformed> {
                use $proto as Proto;
                match Proto::try_from(number) {
                    $(Ok(Proto::$value) => Ok($native::$value),)*
                    $(Ok(Proto::Unspecified) => Ok($native::$default),)?
                    #[allow(unreachable_patterns)] // only enums without a default reach it
                    Ok(_) => Err(Malformed::new(stringify!($native), "no value is given")),
                    Err(_) => Err(Malformed::new(stringify!($native), format!("value {number} is not known here"))),
                }
            }
        }
    )*};
}

wire_enums! {
    Outcome = common::Outcome { Committed, NoNewData, Rejected, Conflict, Cancelled, Failed, Unknown }
    Stage = coordinator::Stage { Pending, Resolve, Plan, Begin, Merge, Commit, Publish, Done }
    Code = common::Code {
        Invalid, NotFound, Exists, Conflict, Fenced, Unavailable, Timeout, Overloaded, Corrupt, Unsupported, Cancelled,
        Internal, Unauthenticated, Denied
    }
    Retry = common::Retry { Never, Again, Rebase, ReadBack }
    Zone = timeline::Zone { Local, Utc }
    Op = timeline::Op { Eq, NotEq, Lt, LtEq, Gt, GtEq }
    OnLate = common::OnLate, unspecified is Fail { Fail, Deliver }
    OnHole = common::OnHole, unspecified is Block { Block, Fail }
    OnStale = common::OnStale, unspecified is Fail { Fail, Snapshot }
    TableType = common::TableType, unspecified is CopyOnWrite { CopyOnWrite, MergeOnRead }
    Operation = common::Operation, unspecified is Upsert {
        Upsert, Insert, BulkInsert, Delete, InsertOverwrite, InsertOverwriteTable, DeletePartition
    }
    OnNullKey = common::OnNullKey, unspecified is Fail { Fail, Drop, ErrorTable }
    Consistency = coordinator::Consistency, unspecified is Independent { Independent, Aligned }
    SourceKind = coordinator::SourceKind, unspecified is Hudi { Hudi, Csv, Json, Parquet, Kafka }
    ReadMode = coordinator::ReadMode, unspecified is Incremental { Incremental, Snapshot }
    OnMalformedCursor = coordinator::OnMalformedCursor, unspecified is Fail { Fail, Start }
    OnUnused = coordinator::OnUnused, unspecified is Fail { Fail, Allow }
    Deletes = coordinator::Deletes, unspecified is Ignore { Ignore, Propagate }
    Writers = coordinator::Writers, unspecified is Exclusive { Exclusive, Shared }
    InsertConflict = coordinator::InsertConflict, unspecified is Fail { Fail, Allow }
}
