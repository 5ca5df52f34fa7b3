// SPDX-License-Identifier: Apache-2.0
//! Texts with delimiters between them. A null is skipped; an empty text is a text.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray, StringBuilder};

use super::combine::{FoldError, unfit};

/// Both texts with `delimiter` between them.
pub(super) fn concat(earlier: &ArrayRef, later: &ArrayRef, delimiter: &str) -> Result<ArrayRef, FoldError> {
    let (a, b) = texts(earlier, later)?;
    let mut out = Texts::for_both(a, b);
    for row in 0..a.len() {
        match (a.is_valid(row), b.is_valid(row)) {
            (true, true) => {
                out.push(row, a.value(row))?;
                out.push(row, delimiter)?;
                out.push(row, b.value(row))?;
                out.end();
            }
            (true, false) => out.whole(row, a.value(row))?,
            (false, true) => out.whole(row, b.value(row))?,
            (false, false) => out.null(),
        }
    }
    Ok(out.finish())
}

/// What stands between delimiters in both texts, each where it is first.
pub(super) fn concat_distinct(earlier: &ArrayRef, later: &ArrayRef, delimiter: &str) -> Result<ArrayRef, FoldError> {
    let (a, b) = texts(earlier, later)?;
    let mut out = Texts::for_both(a, b);
    let mut seen: HashSet<&str> = HashSet::new();
    for row in 0..a.len() {
        if a.is_null(row) && b.is_null(row) {
            out.null();
            continue;
        }
        seen.clear();
        for side in [a, b].into_iter().filter(|side| side.is_valid(row)) {
            for part in side.value(row).split(delimiter) {
                let is_first_part = seen.is_empty();
                if !seen.insert(part) {
                    continue;
                }
                if !is_first_part {
                    out.push(row, delimiter)?;
                }
                out.push(row, part)?;
            }
        }
        out.end();
    }
    Ok(out.finish())
}

fn texts<'a>(earlier: &'a ArrayRef, later: &'a ArrayRef) -> Result<(&'a StringArray, &'a StringArray), FoldError> {
    match (earlier.as_string_opt::<i32>(), later.as_string_opt::<i32>()) {
        (Some(a), Some(b)) => Ok((a, b)),
        _ => Err(unfit("text", earlier.data_type())),
    }
}

/// A column of texts being made.
struct Texts {
    builder: StringBuilder,
    bytes: usize,
}

impl Texts {
    fn for_both(a: &StringArray, b: &StringArray) -> Self {
        let held = |array: &StringArray| match array.value_offsets() {
            [first, .., last] => (last - first) as usize,
            _ => 0,
        };
        Texts { builder: StringBuilder::with_capacity(a.len(), held(a) + held(b) + a.len()), bytes: 0 }
    }

    /// Adds to the text of `row`.
    fn push(&mut self, row: usize, text: &str) -> Result<(), FoldError> {
        self.bytes += text.len();
        // The builder would panic.
        if self.bytes > i32::MAX as usize {
            let what =
                "the texts of this batch would take more than 2 GiB: give the column another operator, or commit \
                        less at a time"
                    .to_string();
            return Err(FoldError::Value { row, what });
        }
        // Writing into a builder cannot fail.
        let _ = self.builder.write_str(text);
        Ok(())
    }

    fn end(&mut self) {
        self.builder.append_value("");
    }

    fn whole(&mut self, row: usize, text: &str) -> Result<(), FoldError> {
        self.push(row, text)?;
        self.end();
        Ok(())
    }

    fn null(&mut self) {
        self.builder.append_null();
    }

    fn finish(mut self) -> ArrayRef {
        Arc::new(self.builder.finish())
    }
}
