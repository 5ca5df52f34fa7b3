// SPDX-License-Identifier: Apache-2.0
//! Fields of errors as text.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use tributary_types::{Cursor, InstantTime, PipelineName, RequestId, SourceName};

/// A field's type.
pub(super) trait Field: Sized {
    fn put(&self) -> String;
    fn take(text: &str) -> Option<Self>;
}

macro_rules! displayed {
    ($($type:ty: $parse:expr;)*) => {$(
        impl Field for $type {
            fn put(&self) -> String {
                self.to_string()
            }

            fn take(text: &str) -> Option<Self> {
                let parse: fn(&str) -> Option<$type> = $parse;
                parse(text)
            }
        }
    )*};
}

displayed! {
    String: |text| Some(text.to_string());
    u32: |text| text.parse().ok();
    u64: |text| text.parse().ok();
    usize: |text| text.parse().ok();
    InstantTime: |text| text.parse().ok();
    Cursor: |text| text.parse().ok();
    SourceName: |text| SourceName::new(text).ok();
    PipelineName: |text| PipelineName::new(text).ok();
    RequestId: |text| RequestId::new(text).ok();
    &'static str: intern;
}

impl Field for Vec<String> {
    fn put(&self) -> String {
        self.iter().map(|line| line.replace('\n', " ")).collect::<Vec<_>>().join("\n")
    }

    fn take(text: &str) -> Option<Self> {
        Some(text.lines().map(ToString::to_string).collect())
    }
}

/// Reads a field out of the map.
pub(super) fn take<T: Field>(fields: &HashMap<String, String>, name: &str) -> Option<T> {
    T::take(fields.get(name)?)
}

/// Texts are kept for good, so there is an end to how many and how long.
const TEXTS_LIMIT: usize = 512;
const TEXT_LIMIT: usize = 512;

/// The text as one that lives for ever, as fields have it that are constants where the error is made. `None` once too
/// many different ones came, so that a peer cannot fill the memory.
pub(super) fn intern(text: &str) -> Option<&'static str> {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return Some(known);
    }
    if texts.len() >= TEXTS_LIMIT || text.len() > TEXT_LIMIT {
        return None;
    }
    let kept: &'static str = Box::leak(text.to_string().into_boxed_str());
    texts.insert(kept);
    Some(kept)
}
