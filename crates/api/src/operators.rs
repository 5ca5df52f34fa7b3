// SPDX-License-Identifier: Apache-2.0
//! Which merge operator works on a column of which type. Pure: what does not work is refused before a batch begins.

use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use tributary_types::pipeline::Operator;

/// Why `operator` does not work on a column of type `data_type`, and what to do; `None` where it works.
pub fn operator_problem(operator: &Operator, data_type: &DataType) -> Option<String> {
    let needs = match operator {
        Operator::Last
        | Operator::LastNonNull { .. }
        | Operator::First
        | Operator::FirstNonNull { .. }
        | Operator::Keep => return None,
        Operator::Sum | Operator::SumLast => (!is_integer(data_type) && !is_decimal(data_type) && !is_float(data_type))
            .then_some("an integer, a floating point number or a decimal"),
        Operator::Count => (!is_integer(data_type)).then_some("an INT or a BIGINT"),
        Operator::Product => (!is_integer(data_type) && !is_float(data_type))
            .then_some("an integer or a floating point number; cast a decimal to DOUBLE"),
        Operator::Min | Operator::Max => {
            (data_type.is_nested() || *data_type == DataType::Null).then_some("a type that is not nested")
        }
        Operator::BoolAnd | Operator::BoolOr => (*data_type != DataType::Boolean).then_some("a BOOLEAN"),
        Operator::Concat { .. } | Operator::ConcatLast { .. } | Operator::ConcatDistinct { .. } => {
            (*data_type != DataType::Utf8).then_some("a text; CAST(… AS VARCHAR) in the SQL")
        }
        Operator::Collect => (!matches!(data_type, DataType::List(_))).then_some("a list; make_array(…) in the SQL"),
        Operator::CollectSet => match data_type {
            DataType::List(element) => {
                (!comparable(element.data_type())).then_some("a list of elements that can be compared")
            }
            _ => Some("a list; make_array(…) in the SQL"),
        },
        Operator::MapMerge => match data_type {
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(pair) if pair.len() == 2 && comparable(pair[0].data_type()) => None,
                _ => Some("a map whose keys can be compared"),
            },
            _ => Some("a map"),
        },
        Operator::StructMerge => (!matches!(data_type, DataType::Struct(_))).then_some("a struct"),
    };
    needs.map(|needs| format!("`{operator}` does not work on {data_type}; it needs {needs}"))
}

fn is_integer(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Int32 | DataType::Int64)
}

fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal128(..))
}

fn comparable(data_type: &DataType) -> bool {
    RowConverter::supports_fields(&[SortField::new(data_type.clone())])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, TimeUnit};

    use super::*;

    fn works(operator: &str, data_type: &DataType) -> bool {
        operator_problem(&operator.parse().unwrap(), data_type).is_none()
    }

    fn list(element: DataType) -> DataType {
        DataType::List(Arc::new(Field::new("element", element, true)))
    }

    fn map(key: DataType, value: DataType) -> DataType {
        let pair = vec![Field::new("key", key, false), Field::new("value", value, true)];
        DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(pair.into()), false)), false)
    }

    /// The types that a Hudi table holds.
    fn every_type() -> Vec<DataType> {
        vec![
            DataType::Boolean,
            DataType::Int32,
            DataType::Int64,
            DataType::Float32,
            DataType::Float64,
            DataType::Decimal128(10, 2),
            DataType::Utf8,
            DataType::Binary,
            DataType::FixedSizeBinary(4),
            DataType::Date32,
            DataType::Time64(TimeUnit::Microsecond),
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            list(DataType::Utf8),
            map(DataType::Utf8, DataType::Int64),
            DataType::Struct(vec![Field::new("a", DataType::Utf8, true)].into()),
        ]
    }

    #[test]
    fn choosing_one_of_two_works_on_every_type() {
        for operator in ["last", "last_non_null", "first", "first_non_null", "keep"] {
            assert!(every_type().iter().all(|data_type| works(operator, data_type)), "{operator}");
        }
    }

    #[test]
    fn each_other_operator_works_on_its_types_only() {
        let numbers = ["Int32", "Int64", "Float32", "Float64"];
        for (operator, expected) in [
            ("sum", [&numbers[..], &["Decimal128(10, 2)"]].concat()),
            ("product", numbers.to_vec()),
            ("count", vec!["Int32", "Int64"]),
            ("bool_or", vec!["Boolean"]),
            ("concat", vec!["Utf8"]),
        ] {
            let found: Vec<String> =
                every_type().iter().filter(|data_type| works(operator, data_type)).map(ToString::to_string).collect();
            assert_eq!(found, expected, "{operator}");
        }
        let nested = every_type().split_off(12);
        assert!(nested.iter().all(|data_type| !works("min", data_type)));
        assert!(every_type()[..12].iter().all(|data_type| works("max", data_type)));
        for (operator, at) in [("collect", 0), ("collect_set", 0), ("map_merge", 1), ("struct_merge", 2)] {
            let found: Vec<usize> = (0..3).filter(|n| works(operator, &nested[*n])).collect();
            assert_eq!(found, [at], "{operator}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_needed() {
        let problem = operator_problem(&Operator::Sum, &DataType::Utf8).unwrap();
        assert!(problem.contains("`sum` does not work on Utf8; it needs an integer"), "{problem}");
    }
}
