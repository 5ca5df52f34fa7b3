// SPDX-License-Identifier: Apache-2.0
//! Functions whose result is as long as a number says.
//!
//! `repeat(name, 1000000000)` is a short text that asks for more memory than there is, and the engine does not count
//! what a function returns. So such a call is measured before it is made.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// What a character takes at most.
const CHARACTER: u64 = 4;
/// What a number or an empty value takes at most.
const ELEMENT: u64 = 16;

/// How long the result of a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Length {
    /// The first argument, as often as the second says.
    Repeated,
    /// As many characters as the argument at this place says.
    Characters(usize),
    /// As many elements as the second argument says, each like the third.
    Resized,
}

fn length_of(name: &str) -> Option<Length> {
    Some(match name {
        "repeat" | "array_repeat" => Length::Repeated,
        "lpad" | "rpad" => Length::Characters(1),
        "space" => Length::Characters(0),
        "array_resize" => Length::Resized,
        _ => return None,
    })
}

/// The function, refusing calls for one record batch whose result takes more than `limit` bytes; as it is, where its
/// result is no longer than what it is given.
pub(crate) fn bounded(function: Arc<ScalarUDF>, limit: usize) -> Arc<ScalarUDF> {
    match length_of(function.name()) {
        Some(length) => Arc::new(ScalarUDF::from(Bounded { inner: function, length, limit: limit as u64 })),
        None => function,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    inner: Arc<ScalarUDF>,
    length: Length,
    limit: u64,
}

impl Bounded {
    fn measure(&self, args: &ScalarFunctionArgs) -> Result<u64> {
        let given = &args.args;
        let argument = |at: usize| given.get(at).map(rows_of).transpose();
        let (Some(counts), of) = (match self.length {
            Length::Repeated | Length::Resized => (argument(1)?, given.first()),
            Length::Characters(at) => (argument(at)?, None),
        }) else {
            return Ok(0);
        };
        // One value for all rows is computed once.
        let all_are_one = given.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if all_are_one { 1 } else { args.number_rows as u64 };
        let times = if counts.len() == 1 { rows } else { 1 };
        let sizes = match (self.length, of) {
            (Length::Repeated, Some(value)) => Sizes::of(&rows_of(value)?),
            (Length::Resized, _) => Sizes::Same(argument(2)?.map_or(ELEMENT, |value| Sizes::of(&value).largest())),
            _ => Sizes::Same(CHARACTER),
        };
        let counts = cast(&counts, &DataType::Int64)?;
        let counts = counts.as_primitive::<Int64Type>();
        let most = sizes.len().max(counts.len());
        let bytes = (0..most).fold(0u64, |sum, row| {
            let at = if counts.len() == 1 { 0 } else { row };
            let count = if counts.is_null(at) { 0 } else { counts.value(at).max(0) as u64 };
            sum.saturating_add(count.saturating_mul(sizes.at(row)))
        });
        Ok(if most == 1 { bytes.saturating_mul(times) } else { bytes })
    }
}

/// The values of an argument: one, where it is the same for all rows.
fn rows_of(value: &ColumnarValue) -> Result<ArrayRef> {
    match value {
        ColumnarValue::Array(array) => Ok(Arc::clone(array)),
        ColumnarValue::Scalar(scalar) => scalar.to_array(),
    }
}

/// Bytes of values.
enum Sizes {
    Same(u64),
    Each(Vec<u64>),
}

impl Sizes {
    fn of(values: &ArrayRef) -> Sizes {
        let lengths = |each: Vec<u64>| match each.as_slice() {
            [one] => Sizes::Same(*one),
            _ => Sizes::Each(each),
        };
        fn text<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Vec<u64> {
            values.map(|value| value.map_or(0, str::len) as u64).collect()
        }
        match values.data_type() {
            DataType::Utf8 => lengths(text(values.as_string::<i32>().iter())),
            DataType::LargeUtf8 => lengths(text(values.as_string::<i64>().iter())),
            DataType::Utf8View => lengths(text(values.as_string_view().iter())),
            // Of other values only what all take together is known.
            _ => Sizes::Same((values.get_array_memory_size() as u64 / values.len().max(1) as u64).max(ELEMENT)),
        }
    }

    /// Number of values that are told apart.
    fn len(&self) -> usize {
        match self {
            Sizes::Same(_) => 1,
            Sizes::Each(each) => each.len(),
        }
    }

    fn at(&self, row: usize) -> u64 {
        match self {
            Sizes::Same(bytes) => *bytes,
            Sizes::Each(each) => each.get(row).copied().unwrap_or(0),
        }
    }

    fn largest(&self) -> u64 {
        match self {
            Sizes::Same(bytes) => *bytes,
            Sizes::Each(each) => each.iter().copied().max().unwrap_or(0),
        }
    }
}

impl ScalarUDFImpl for Bounded {
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bytes = self.measure(&args)?;
        if bytes > self.limit {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "`{}` would return {bytes} bytes for {} rows, more than the query's {} bytes of memory",
                self.name(),
                args.number_rows,
                self.limit
            )));
        }
        self.inner.inner().invoke_with_args(args)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.inner().return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.inner().return_field_from_args(args)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.inner().simplify(args, info)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.inner().coerce_types(arg_types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Functions;

    #[test]
    fn every_function_that_a_number_can_make_long_is_among_the_reviewed_ones() {
        let known = ["repeat", "array_repeat", "lpad", "rpad", "space", "array_resize"];
        for name in known {
            assert!(length_of(name).is_some() && Functions::reviewed().refusal(name).is_none(), "{name}");
        }
    }
}
