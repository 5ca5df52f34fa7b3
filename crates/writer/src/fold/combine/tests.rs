// SPDX-License-Identifier: Apache-2.0

use arrow::array::{
    Decimal128Array, Float64Array, Int32Array, Int64Array, Int64Builder, ListBuilder, MapBuilder, StringArray,
    StringBuilder, StructArray, TimestampMicrosecondArray,
};
use arrow::compute::concat;
use arrow::datatypes::{Field, Fields};
use proptest::prelude::*;

use super::*;

fn every() -> Vec<Combine> {
    let space = " ".to_string();
    vec![
        Combine::Later,
        Combine::LaterNonNull,
        Combine::Earlier,
        Combine::EarlierNonNull,
        Combine::Sum,
        Combine::Product,
        Combine::Min,
        Combine::Max,
        Combine::And,
        Combine::Or,
        Combine::Concat(space.clone()),
        Combine::ConcatDistinct(space),
        Combine::Collect,
        Combine::CollectSet,
        Combine::MapMerge,
        Combine::StructMerge,
    ]
}

fn numbers(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn texts(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(values.iter().map(|v| v.map(|v| format!("{v} {}", v % 2))).collect::<StringArray>())
}

fn booleans_of(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(values.iter().map(|v| v.map(|v| v > 0)).collect::<BooleanArray>())
}

fn lists(values: &[Option<i64>]) -> ArrayRef {
    let mut lists = ListBuilder::new(Int64Builder::new());
    for value in values {
        if let Some(value) = value {
            lists.values().append_value(*value);
            lists.values().append_option((*value > 0).then_some(value % 2));
        }
        lists.append(value.is_some());
    }
    Arc::new(lists.finish())
}

fn maps(values: &[Option<i64>]) -> ArrayRef {
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for value in values {
        if let Some(value) = value {
            maps.keys().append_value((value % 2).to_string());
            maps.values().append_option((*value != 1).then_some(*value));
        }
        maps.append(value.is_some()).unwrap();
    }
    Arc::new(maps.finish())
}

fn structs(values: &[Option<i64>]) -> ArrayRef {
    let of = |keep: fn(i64) -> bool| numbers(&values.iter().map(|v| v.filter(|v| keep(*v))).collect::<Vec<_>>());
    let inner_fields: Fields = vec![Field::new("c", DataType::Int64, true)].into();
    let inner = StructArray::new(inner_fields, vec![of(|v| v % 3 == 0)], None);
    let fields: Fields = vec![
        Field::new("a", DataType::Int64, true),
        Field::new("b", DataType::Int64, true),
        Field::new("inner", inner.data_type().clone(), true),
    ]
    .into();
    let nulls = NullBuffer::from_iter(values.iter().map(Option::is_some));
    let columns = vec![of(|v| v % 2 == 0), of(|v| v > 0), Arc::new(inner) as ArrayRef];
    Arc::new(StructArray::new(fields, columns, Some(nulls)))
}

/// A column that the operator works on.
fn column(combine: &Combine, values: &[Option<i64>]) -> ArrayRef {
    match combine {
        Combine::And | Combine::Or => booleans_of(values),
        Combine::Concat(_) | Combine::ConcatDistinct(_) => texts(values),
        Combine::Collect | Combine::CollectSet => lists(values),
        Combine::MapMerge => maps(values),
        Combine::StructMerge => structs(values),
        _ => numbers(values),
    }
}

fn small() -> impl Strategy<Value = Option<i64>> {
    prop::option::of(-4i64..5)
}

proptest! {
    #[test]
    fn it_does_not_matter_in_which_grouping_three_values_are_combined(
        rows in prop::collection::vec((small(), small(), small()), 1..20),
    ) {
        let (a, (b, c)): (Vec<_>, (Vec<_>, Vec<_>)) = rows.into_iter().map(|(a, b, c)| (a, (b, c))).unzip();
        for combine in every() {
            let (a, b, c) = (column(&combine, &a), column(&combine, &b), column(&combine, &c));
            let left = combine.combine(&combine.combine(&a, &b).unwrap(), &c).unwrap();
            let right = combine.combine(&a, &combine.combine(&b, &c).unwrap()).unwrap();
            prop_assert_eq!(&left, &right, "{:?}", combine);
        }
    }

    #[test]
    fn a_null_on_either_side_is_skipped_but_by_those_that_take_it_as_a_value(
        values in prop::collection::vec(small(), 1..20),
    ) {
        let nulls = vec![None; values.len()];
        for combine in every() {
            let (value, null) = (column(&combine, &values), column(&combine, &nulls));
            let lifted = if matches!(combine, Combine::ConcatDistinct(_) | Combine::CollectSet) {
                // Alone a value is already what it is among others: everything once.
                Lift::Alone(combine.clone()).lift(&value).unwrap()
            } else {
                Arc::clone(&value)
            };
            let (before, after) = (combine.combine(&null, &lifted).unwrap(), combine.combine(&lifted, &null).unwrap());
            match combine {
                Combine::Later => prop_assert_eq!((&before, &after), (&value, &null)),
                Combine::Earlier => prop_assert_eq!((&before, &after), (&null, &value)),
                _ => prop_assert_eq!((&before, &after), (&lifted, &lifted), "{:?}", combine),
            }
        }
    }

    #[test]
    fn rows_do_not_influence_each_other(rows in prop::collection::vec((small(), small()), 2..20), at in 0usize..20) {
        let at = at % rows.len();
        let (a, b): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        for combine in every() {
            let (a, b) = (column(&combine, &a), column(&combine, &b));
            let whole = combine.combine(&a, &b).unwrap();
            // Slices have offsets that kernels must mind.
            let first = combine.combine(&a.slice(0, at), &b.slice(0, at)).unwrap();
            let second = combine.combine(&a.slice(at, a.len() - at), &b.slice(at, b.len() - at)).unwrap();
            let joined = concat(&[first.as_ref(), second.as_ref()]).unwrap();
            prop_assert_eq!(&whole, &joined, "{:?}", combine);
        }
    }
}

fn shown(array: &ArrayRef) -> Vec<String> {
    (0..array.len()).map(|row| array_value_to_string(array, row).unwrap()).collect()
}

fn combined(combine: &Combine, earlier: ArrayRef, later: ArrayRef) -> Vec<String> {
    shown(&combine.combine(&earlier, &later).unwrap())
}

#[test]
fn values_are_combined_as_the_operator_says() {
    let (a, b) = ([Some(1), Some(2), None, None], [Some(5), None, Some(7), None]);
    let of = |combine: Combine| combined(&combine, column(&combine, &a), column(&combine, &b));
    assert_eq!(of(Combine::Later), ["5", "", "7", ""]);
    assert_eq!(of(Combine::LaterNonNull), ["5", "2", "7", ""]);
    assert_eq!(of(Combine::EarlierNonNull), ["1", "2", "7", ""]);
    assert_eq!(of(Combine::Sum), ["6", "2", "7", ""]);
    assert_eq!(of(Combine::Product), ["5", "2", "7", ""]);
    assert_eq!(of(Combine::Min), ["1", "2", "7", ""]);
    assert_eq!(of(Combine::Max), ["5", "2", "7", ""]);
    assert_eq!(of(Combine::Concat(";".to_string())), ["1 1;5 1", "2 0", "7 1", ""]);
    assert_eq!(of(Combine::ConcatDistinct(" ".to_string())), ["1 5", "2 0", "7 1", ""]);
    assert_eq!(of(Combine::Collect), ["[1, 1, 5, 1]", "[2, 0]", "[7, 1]", ""]);
    assert_eq!(of(Combine::CollectSet), ["[1, 5]", "[2, 0]", "[7, 1]", ""]);
    assert_eq!(of(Combine::MapMerge), ["{1: 5}", "{0: 2}", "{1: 7}", ""]);
    assert_eq!(of(Combine::StructMerge)[0], "{a: , b: 5, inner: {c: }}");
    assert_eq!(of(Combine::StructMerge)[1], "{a: 2, b: 2, inner: {c: }}");
}

#[test]
fn a_field_that_a_later_struct_lacks_keeps_its_value() {
    let merged = combined(&Combine::StructMerge, structs(&[Some(6)]), structs(&[Some(1)]));
    assert_eq!(merged, ["{a: 6, b: 1, inner: {c: 6}}"]);
}

#[test]
fn logical_values_are_combined_without_nulls() {
    let of = |values: [Option<bool>; 3]| Arc::new(BooleanArray::from(values.to_vec())) as ArrayRef;
    let (a, b) = (of([Some(true), None, Some(false)]), of([Some(false), Some(true), None]));
    assert_eq!(combined(&Combine::And, Arc::clone(&a), Arc::clone(&b)), ["false", "true", "false"]);
    assert_eq!(combined(&Combine::Or, a, b), ["true", "true", "false"]);
}

#[test]
fn the_greater_of_times_texts_and_numbers_is_told_by_their_own_order() {
    let times =
        |values: Vec<Option<i64>>| Arc::new(TimestampMicrosecondArray::from(values).with_timezone("UTC")) as ArrayRef;
    let found = combined(&Combine::Max, times(vec![Some(1), None]), times(vec![Some(0), Some(3)]));
    assert_eq!(found, ["1970-01-01T00:00:00.000001Z", "1970-01-01T00:00:00.000003Z"]);
    let texts = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    assert_eq!(combined(&Combine::Min, texts("b"), texts("ab")), ["ab"]);
    // Not a number is the greatest, as in Spark.
    let floats = |value: f64| Arc::new(Float64Array::from(vec![value])) as ArrayRef;
    assert_eq!(combined(&Combine::Max, floats(f64::NAN), floats(1.0)), ["NaN"]);
    assert_eq!(combined(&Combine::Min, floats(f64::NAN), floats(1.0)), ["1.0"]);
}

#[test]
fn a_number_that_does_not_fit_is_an_error_with_its_row() {
    let wide = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let narrow = |values: Vec<i32>| Arc::new(Int32Array::from(values)) as ArrayRef;
    let decimals =
        |value: i128| Arc::new(Decimal128Array::from(vec![value]).with_precision_and_scale(4, 2).unwrap()) as ArrayRef;
    let cases = [
        (Combine::Sum, wide(vec![1, i64::MAX]), wide(vec![1, 1]), 1, "9223372036854775807 and 1"),
        (Combine::Sum, narrow(vec![i32::MIN]), narrow(vec![-1]), 0, "Int32"),
        (Combine::Product, wide(vec![0, 0, i64::MAX]), wide(vec![1, 1, 2]), 2, "product"),
        (Combine::Sum, decimals(9_999), decimals(1), 0, "99.99 and 0.01"),
    ];
    for (combine, earlier, later, expected, part) in cases {
        match combine.combine(&earlier, &later) {
            Err(FoldError::Value { row, what }) => {
                assert_eq!(row, expected, "{what}");
                assert!(what.contains(part) && what.contains("wider type"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(combined(&Combine::Sum, decimals(150), decimals(-25)), ["1.25"]);
}

#[test]
fn a_type_that_an_operator_does_not_work_on_is_an_error_and_no_panic() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let list = lists(&[Some(1)]);
    for combine in every() {
        let works =
            matches!(combine, Combine::Later | Combine::LaterNonNull | Combine::Earlier | Combine::EarlierNonNull);
        let of_text =
            works || matches!(combine, Combine::Min | Combine::Max | Combine::Concat(_) | Combine::ConcatDistinct(_));
        assert_eq!(combine.combine(&text, &text).is_ok(), of_text, "{combine:?}");
        let of_list = works || matches!(combine, Combine::Collect | Combine::CollectSet);
        assert_eq!(combine.combine(&list, &list).is_ok(), of_list, "{combine:?}");
    }
}

#[test]
fn what_counts_as_null_and_what_counts_as_one_is_told_before_anything_is_combined() {
    let column: ArrayRef = Arc::new(StringArray::from(vec![Some("null"), Some("x"), None]));
    let lift = Lift::NullStrings(vec!["null".to_string(), "NULL".to_string()]);
    assert_eq!(lift.lift(&column).unwrap().as_string::<i32>(), &StringArray::from(vec![None, Some("x"), None]));
    assert_eq!(&lift.lift(&numbers(&[Some(1)])).unwrap(), &numbers(&[Some(1)]));
    assert_eq!(&Lift::Count.lift(&numbers(&[Some(7), None])).unwrap(), &numbers(&[Some(1), Some(0)]));
    let twice: ArrayRef = Arc::new(StringArray::from(vec!["a,b,a"]));
    let alone = Lift::Alone(Combine::ConcatDistinct(",".to_string())).lift(&twice).unwrap();
    assert_eq!(shown(&alone), ["a,b"]);
}
