// SPDX-License-Identifier: Apache-2.0
//! Lists, maps and structs. A null is skipped; null elements are elements.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, ListArray, MapArray, MutableArrayData, StructArray, make_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{is_null, nullif};
use arrow::datatypes::{DataType, FieldRef};
use arrow::row::{Row, RowConverter, Rows, SortField};

use super::combine::{FoldError, either, prefer, unfit};

/// The elements of two columns of lists or maps, copied in runs into those of a third.
struct Elements<'a> {
    copied: MutableArrayData<'a>,
    offsets: Vec<i32>,
}

impl<'a> Elements<'a> {
    fn new(sides: [&'a ArrayData; 2], rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Elements { copied: MutableArrayData::new(sides.to_vec(), false, sides[0].len() + sides[1].len()), offsets }
    }

    fn push(&mut self, side: usize, from: usize, to: usize) -> Result<(), FoldError> {
        Ok(self.copied.try_extend(side, from, to)?)
    }

    fn end(&mut self, row: usize) -> Result<(), FoldError> {
        let end = i32::try_from(self.copied.len()).map_err(|_| FoldError::Value {
            row,
            what: "the elements of this batch would be more than 2^31: commit less at a time".to_string(),
        })?;
        self.offsets.push(end);
        Ok(())
    }

    fn finish(self) -> (OffsetBuffer<i32>, ArrayRef) {
        (OffsetBuffer::new(self.offsets.into()), make_array(self.copied.freeze()))
    }
}

fn bounds(offsets: &[i32], row: usize) -> (usize, usize) {
    (offsets[row] as usize, offsets[row + 1] as usize)
}

fn lists<'a>(
    earlier: &'a ArrayRef,
    later: &'a ArrayRef,
) -> Result<(&'a ListArray, &'a ListArray, FieldRef), FoldError> {
    match (earlier.data_type(), earlier.as_list_opt::<i32>(), later.as_list_opt::<i32>()) {
        (DataType::List(field), Some(a), Some(b)) => Ok((a, b, Arc::clone(field))),
        (other, _, _) => Err(unfit("list", other)),
    }
}

/// The elements of both lists, those of the later behind.
pub(super) fn collect(earlier: &ArrayRef, later: &ArrayRef) -> Result<ArrayRef, FoldError> {
    let (a, b, field) = lists(earlier, later)?;
    let sides = [a.values().to_data(), b.values().to_data()];
    let mut elements = Elements::new([&sides[0], &sides[1]], a.len());
    for row in 0..a.len() {
        for (side, list) in [a, b].into_iter().enumerate().filter(|(_, list)| list.is_valid(row)) {
            let (from, to) = bounds(list.value_offsets(), row);
            elements.push(side, from, to)?;
        }
        elements.end(row)?;
    }
    let (offsets, values) = elements.finish();
    Ok(Arc::new(ListArray::try_new(field, offsets, values, either(a.nulls(), b.nulls()))?))
}

/// The elements of both lists, each where it is first.
pub(super) fn collect_set(earlier: &ArrayRef, later: &ArrayRef) -> Result<ArrayRef, FoldError> {
    let (a, b, field) = lists(earlier, later)?;
    let keys = comparable(field.data_type(), [a.values(), b.values()])?;
    let sides = [a.values().to_data(), b.values().to_data()];
    let mut elements = Elements::new([&sides[0], &sides[1]], a.len());
    let mut seen: HashSet<Row<'_>> = HashSet::new();
    for row in 0..a.len() {
        seen.clear();
        for (side, list) in [a, b].into_iter().enumerate().filter(|(_, list)| list.is_valid(row)) {
            let (from, to) = bounds(list.value_offsets(), row);
            for element in from..to {
                if seen.insert(keys[side].row(element)) {
                    elements.push(side, element, element + 1)?;
                }
            }
        }
        elements.end(row)?;
    }
    let (offsets, values) = elements.finish();
    Ok(Arc::new(ListArray::try_new(field, offsets, values, either(a.nulls(), b.nulls()))?))
}

/// Values of both sides as rows that are equal where the values are.
fn comparable(data_type: &DataType, sides: [&ArrayRef; 2]) -> Result<[Rows; 2], FoldError> {
    let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
    Ok([converter.convert_columns(&[Arc::clone(sides[0])])?, converter.convert_columns(&[Arc::clone(sides[1])])?])
}

/// The entries of both maps in the order in which their keys are first; of one key, the last value.
pub(super) fn map_merge(earlier: &ArrayRef, later: &ArrayRef) -> Result<ArrayRef, FoldError> {
    let (DataType::Map(field, ordered), Some(a), Some(b)) =
        (earlier.data_type(), earlier.as_map_opt(), later.as_map_opt())
    else {
        return Err(unfit("map", earlier.data_type()));
    };
    let keys = comparable(a.key_type(), [a.keys(), b.keys()])?;
    let sides = [a.entries().to_data(), b.entries().to_data()];
    let mut elements = Elements::new([&sides[0], &sides[1]], a.len());
    let mut places: HashMap<Row<'_>, usize> = HashMap::new();
    let mut chosen: Vec<(usize, usize)> = Vec::new();
    for row in 0..a.len() {
        places.clear();
        chosen.clear();
        for (side, map) in [a, b].into_iter().enumerate().filter(|(_, map)| map.is_valid(row)) {
            let (from, to) = bounds(map.value_offsets(), row);
            for entry in from..to {
                let place = *places.entry(keys[side].row(entry)).or_insert(chosen.len());
                match chosen.get_mut(place) {
                    Some(known) => *known = (side, entry),
                    None => chosen.push((side, entry)),
                }
            }
        }
        for (side, entry) in &chosen {
            elements.push(*side, *entry, entry + 1)?;
        }
        elements.end(row)?;
    }
    let (offsets, entries) = elements.finish();
    let entries = entries.as_struct().clone();
    let nulls = either(a.nulls(), b.nulls());
    Ok(Arc::new(MapArray::try_new(Arc::clone(field), offsets, entries, nulls, *ordered)?))
}

/// Field by field the later value that is not null; structs inside likewise.
pub(super) fn struct_merge(earlier: &ArrayRef, later: &ArrayRef) -> Result<ArrayRef, FoldError> {
    let (DataType::Struct(fields), Some(a), Some(b)) =
        (earlier.data_type(), earlier.as_struct_opt(), later.as_struct_opt())
    else {
        return Err(unfit("struct", earlier.data_type()));
    };
    let mut children = Vec::with_capacity(fields.len());
    for (at, field) in fields.iter().enumerate() {
        let (old, new) = (visible(earlier, a.column(at))?, visible(later, b.column(at))?);
        children.push(match field.data_type() {
            DataType::Struct(_) => struct_merge(&old, &new)?,
            _ => prefer(&new, &old)?,
        });
    }
    let nulls = either(a.nulls(), b.nulls());
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), children, nulls, a.len())?))
}

/// A field of a struct, null where the struct is.
fn visible(parent: &ArrayRef, child: &ArrayRef) -> Result<ArrayRef, FoldError> {
    match parent.null_count() {
        0 => Ok(Arc::clone(child)),
        _ => Ok(nullif(child, &is_null(parent)?)?),
    }
}
