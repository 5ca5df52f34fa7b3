// SPDX-License-Identifier: Apache-2.0
//! Which row groups of a file are read, and which of them need their rows looked at.
//!
//! Everything here may only ever read too much: statistics that are missing, inexact or of another type than the
//! table's keep the row group.

use arrow::datatypes::{DataType, SchemaRef};
use parquet::basic::Type as PhysicalType;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;
use tributary_types::InstantTime;

use crate::error::{Error, Result};
use crate::parquet_file::ParquetFile;
use crate::scan::{COMMIT_TIME, FileScan};

/// A smallest or largest value, in the widest form of its family.
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    /// A boolean.
    Bool(bool),
    /// Any signed integer, and dates as days since the epoch.
    Int(i64),
    /// Any floating point number, never NaN.
    Float(f64),
    /// Text.
    Text(String),
}

/// What a row group's statistics say of one column. Bounds may be wider than the values are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnRange {
    /// Not larger than any value.
    pub min: Option<Bound>,
    /// Not smaller than any value.
    pub max: Option<Bound>,
    /// How many values are null.
    pub nulls: Option<u64>,
    /// How many rows there are.
    pub rows: u64,
}

/// Decides from statistics whether a row group may hold a row that matters.
pub trait Prune: Send + Sync {
    /// Whether to read it; `range` answers for a column by its name in the table, `None` where nothing is known.
    fn keep(&self, range: &dyn Fn(&str) -> Option<ColumnRange>) -> bool;
}

/// A row group that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Its position in the file.
    pub(crate) row_group: usize,
    /// Whether the commit time of each row must be looked at.
    pub(crate) filtered: bool,
}

/// What of a row group is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Take {
    Nothing,
    EveryRow,
    SomeRows,
}

pub(crate) fn plan_row_groups(scan: &FileScan, file: &ParquetFile, found: &SchemaRef) -> Result<Vec<Wanted>> {
    if scan.instants.is_some() && found.index_of(COMMIT_TIME).is_err() {
        return Err(Error::corrupt(&scan.path, format!("it has no column `{COMMIT_TIME}`")));
    }
    let groups = file.metadata.row_groups().iter().enumerate();
    let wanted = groups.filter_map(|(row_group, group)| match take(scan, group, found) {
        Take::Nothing => None,
        Take::EveryRow => Some(Wanted { row_group, filtered: false }),
        Take::SomeRows => Some(Wanted { row_group, filtered: true }),
    });
    Ok(wanted.collect())
}

fn take(scan: &FileScan, group: &RowGroupMetaData, found: &SchemaRef) -> Take {
    if group.num_rows() == 0 {
        return Take::Nothing;
    }
    if let Some(prune) = &scan.prune
        && !prune.keep(&|column| column_range(scan, group, found, column))
    {
        return Take::Nothing;
    }
    match &scan.instants {
        None => Take::EveryRow,
        Some(instants) => {
            let (range, no_nulls) = (text_range(group, COMMIT_TIME), no_nulls(group, COMMIT_TIME));
            match scan.all_but {
                true => take_unless_commit_time(range, no_nulls, instants),
                false => take_by_commit_time(range, no_nulls, instants),
            }
        }
    }
}

fn take_by_commit_time(range: Option<(String, String)>, no_nulls: bool, instants: &[InstantTime]) -> Take {
    let Some((min, max)) = range else { return Take::SomeRows };
    let mut inside =
        instants.iter().map(InstantTime::as_str).filter(|time| *time >= min.as_str() && *time <= max.as_str());
    match inside.next() {
        None => Take::Nothing,
        // A bound that is an instant in full is no shortened one.
        Some(time) if no_nulls && min == max && time == min => Take::EveryRow,
        Some(_) => Take::SomeRows,
    }
}

/// The same where rows of these instants are the ones left out.
fn take_unless_commit_time(range: Option<(String, String)>, no_nulls: bool, instants: &[InstantTime]) -> Take {
    match take_by_commit_time(range, no_nulls, instants) {
        Take::Nothing => Take::EveryRow,
        Take::EveryRow => Take::Nothing,
        Take::SomeRows => Take::SomeRows,
    }
}

/// Smallest and largest text of a root column, if the statistics say so and can be trusted.
pub(crate) fn text_range(group: &RowGroupMetaData, column: &str) -> Option<(String, String)> {
    let statistics = root_statistics(group, column)?;
    if statistics.is_min_max_deprecated() || statistics.physical_type() != PhysicalType::BYTE_ARRAY {
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some((text(statistics.min_bytes_opt()?)?, text(statistics.max_bytes_opt()?)?))
}

fn no_nulls(group: &RowGroupMetaData, column: &str) -> bool {
    root_statistics(group, column).and_then(Statistics::null_count_opt) == Some(0)
}

fn root_statistics<'a>(group: &'a RowGroupMetaData, column: &str) -> Option<&'a Statistics> {
    let chunk = group.columns().iter().find(|chunk| {
        let parts = chunk.column_path().parts();
        parts.len() == 1 && parts[0] == column
    })?;
    chunk.statistics()
}

fn column_range(scan: &FileScan, group: &RowGroupMetaData, found: &SchemaRef, column: &str) -> Option<ColumnRange> {
    let in_table = scan.schema.field_with_name(column).ok()?;
    let in_file = found.field_with_name(column).ok()?;
    let statistics = root_statistics(group, column)?;
    let rows = u64::try_from(group.num_rows()).ok()?;
    let mut range = ColumnRange { nulls: statistics.null_count_opt(), rows, ..ColumnRange::default() };
    // Text sorts unlike numbers do, so bounds say something only about a type of the same family.
    if family(in_table.data_type()).is_some() && family(in_table.data_type()) == family(in_file.data_type()) {
        (range.min, range.max) = bounds(statistics);
    }
    Some(range)
}

#[derive(PartialEq, Eq)]
enum Family {
    Bool,
    Int,
    Float,
    Text,
}

fn family(data_type: &DataType) -> Option<Family> {
    match data_type {
        DataType::Boolean => Some(Family::Bool),
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 | DataType::Date32 => Some(Family::Int),
        DataType::Float32 | DataType::Float64 => Some(Family::Float),
        DataType::Utf8 => Some(Family::Text),
        _ => None,
    }
}

fn bounds(statistics: &Statistics) -> (Option<Bound>, Option<Bound>) {
    let number = |value: f64| (!value.is_nan()).then_some(Bound::Float(value));
    match statistics {
        Statistics::Boolean(s) => (s.min_opt().map(|v| Bound::Bool(*v)), s.max_opt().map(|v| Bound::Bool(*v))),
        Statistics::Int32(s) => {
            (s.min_opt().map(|v| Bound::Int(i64::from(*v))), s.max_opt().map(|v| Bound::Int(i64::from(*v))))
        }
        Statistics::Int64(s) => (s.min_opt().map(|v| Bound::Int(*v)), s.max_opt().map(|v| Bound::Int(*v))),
        Statistics::Float(s) => {
            let widen = |value: &f32| number(crate::widen::float_to_double(*value));
            (s.min_opt().and_then(widen), s.max_opt().and_then(widen))
        }
        Statistics::Double(s) => (s.min_opt().and_then(|v| number(*v)), s.max_opt().and_then(|v| number(*v))),
        Statistics::ByteArray(s) if !statistics.is_min_max_deprecated() => {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok().map(Bound::Text);
            (s.min_bytes_opt().and_then(text), s.max_bytes_opt().and_then(text))
        }
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T1: &str = "20250101000001000";
    const T2: &str = "20250101000002000";
    const T3: &str = "20250101000003000";

    fn take_range(min: &str, max: &str, instants: &[&str]) -> Take {
        let instants: Vec<InstantTime> = instants.iter().map(|time| time.parse().unwrap()).collect();
        take_by_commit_time(Some((min.to_string(), max.to_string())), true, &instants)
    }

    #[test]
    fn a_row_group_of_one_wanted_instant_is_taken_whole() {
        assert_eq!(take_range(T2, T2, &[T1, T2]), Take::EveryRow);
        assert_eq!(take_range(T2, T3, &[T2, T3]), Take::SomeRows);
        let instants = [T2.parse().unwrap()];
        let nulls = take_by_commit_time(Some((T2.to_string(), T2.to_string())), false, &instants);
        assert_eq!(nulls, Take::SomeRows, "a null may hide");
    }

    #[test]
    fn a_row_group_of_one_instant_that_is_not_wanted_is_left_out() {
        let unless = |min: &str, max: &str, nulls: bool| {
            let instants: Vec<InstantTime> = [T2].iter().map(|time| time.parse().unwrap()).collect();
            take_unless_commit_time(Some((min.to_string(), max.to_string())), !nulls, &instants)
        };
        assert_eq!(unless(T2, T2, false), Take::Nothing);
        assert_eq!(unless(T2, T2, true), Take::SomeRows, "a row without a time is of no instant that was read");
        assert_eq!(unless(T3, T3, true), Take::EveryRow);
        assert_eq!(unless(T1, T3, false), Take::SomeRows);
    }

    #[test]
    fn a_row_group_without_a_wanted_instant_is_left_out() {
        assert_eq!(take_range(T1, T1, &[T2, T3]), Take::Nothing);
        assert_eq!(take_range(T2, T2, &[T1, T3]), Take::Nothing);
        assert_eq!(take_range(T1, T3, &[T2]), Take::SomeRows);
        assert_eq!(take_by_commit_time(None, true, &[T1.parse().unwrap()]), Take::SomeRows);
    }
}
